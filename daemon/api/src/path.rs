//! One path that can be read: what it says of itself, and what makes its answer.
//!
//! Invariant: what makes an answer about the paths is given them, so no part that answers needs to know their table.

use std::pin::Pin;

use axum::response::Response;

use super::admin_listener::RequestContext;
use super::form::Form;
use super::query::{Parameter, Query};
use super::response_schema::ResponseSchema;
use holdfast_agent::readings::Readings;

/// What makes the answer.
#[derive(Clone, Copy)]
pub(super) enum Handler {
    /// It is made from what is known already.
    Immediate(fn(&Readings, Query, Form) -> Response),
    /// It is made from the paths that there are.
    FromPaths(fn(&[ApiPath], Form) -> Response),
    /// The same, but a browser that names no form gets a page.
    PageOrPaths(fn(&[ApiPath], Form) -> Response),
    /// It takes questions to other parts first, or depends on the door by which the client came.
    Deferred(fn(RequestContext, Query, Form) -> ResponseFuture),
}

/// An answer that is waited for.
pub(super) type ResponseFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

/// One path, with everything that the index and the description say of it.
pub(super) struct ApiPath {
    pub(super) path: &'static str,
    pub(super) about: &'static str,
    pub(super) parameters: &'static [Parameter],
    pub(super) handler: Handler,
    pub(super) response: ResponseSchema,
}
