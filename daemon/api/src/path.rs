//! One path that can be read: what it says of itself, and what makes its answer.
//!
//! Invariant: what makes an answer about the paths is given them, so no part that answers needs to know their table.

use std::pin::Pin;

use axum::response::Response;

use super::answers::Answers;
use super::door::Visit;
use super::form::Form;
use super::query::{Parameter, Query};
use holdfast_agent::readings::Readings;

/// What makes the answer.
#[derive(Clone, Copy)]
pub(super) enum Maker {
    /// It is made from what is known already.
    Known(fn(&Readings, Query, Form) -> Response),
    /// It is made from the paths that there are.
    Listed(fn(&[Path], Form) -> Response),
    /// The same, but a browser that names no form gets a page.
    Shown(fn(&[Path], Form) -> Response),
    /// It takes questions to other parts first, or depends on the door by which the client came.
    Asked(fn(Visit, Query, Form) -> Asked),
}

/// An answer that is waited for.
pub(super) type Asked = Pin<Box<dyn Future<Output = Response> + Send>>;

/// One path, with everything that the index and the description say of it.
pub(super) struct Path {
    pub(super) path: &'static str,
    pub(super) about: &'static str,
    pub(super) legal: &'static [Parameter],
    pub(super) answer: Maker,
    pub(super) answers: Answers,
}
