//! One path that can be read: its description, and the handler of its requests.
//!
//! Invariant: a handler that answers about the paths gets them as an argument, so no handler needs their table.

use std::pin::Pin;

use axum::response::Response;

use super::admin_listener::RequestContext;
use super::form::Form;
use super::query::{Parameter, Query};
use super::response_schema::ResponseSchema;
use holdfast_agent::readings::Readings;

#[derive(Clone, Copy)]
pub(super) enum Handler {
    /// It answers from present state.
    Immediate(fn(&Readings, Query, Form) -> Response),
    /// It answers from the list of paths.
    FromPaths(fn(&[ApiPath], Form) -> Response),
    /// The same, but a browser without a format gets a page.
    PageOrPaths(fn(&[ApiPath], Form) -> Response),
    /// It queries other parts first, or depends on the client's listener.
    Deferred(fn(RequestContext, Query, Form) -> ResponseFuture),
}

/// An answer in the future.
pub(super) type ResponseFuture = Pin<Box<dyn Future<Output = Response> + Send>>;

/// One path, with its entry in the index and in the description.
pub(super) struct ApiPath {
    pub(super) path: &'static str,
    pub(super) about: &'static str,
    pub(super) parameters: &'static [Parameter],
    pub(super) handler: Handler,
    pub(super) response: ResponseSchema,
}
