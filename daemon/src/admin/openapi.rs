//! The description of this API, for programs.
//!
//! Invariant: a test compares it with the paths that are served and with real answers, field by field, both ways.

/// OpenAPI 3.1, written by hand.
pub(super) const OPENAPI: &str = include_str!("openapi.json");
