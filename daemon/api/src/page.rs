//! The answer with the page that a browser gets of `/`.
//!
//! Invariant: only a client that names HTML gets the page; its policy is the page's own instead of the guard's.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use super::response;
use holdfast_page::{document, policy};

const HTML: &str = "text/html; charset=utf-8";

/// The page shares no window with one that opened it, or that it opens.
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

pub(super) fn page() -> Response {
    let mut response =
        response::typed_response(StatusCode::OK, HTML, Bytes::from_static(document().as_bytes()));
    let headers = response.headers_mut();
    // Without this policy the guard's own one applies, under which nothing of the page runs.
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy()));
    headers.insert(OPENER_POLICY, HeaderValue::from_static("same-origin"));
    response
}

/// Whether a client wants the page, because it names HTML in `Accept`: browsers do, `curl` and programs do not.
pub(super) fn wants_html(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT);
    let mut ranges = ranges.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    ranges.any(|range| {
        range.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/html"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_client_that_names_html_gets_the_page() {
        let wanted = |accept: &str| {
            wants_html(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_str(accept).unwrap())]))
        };
        assert!(wanted("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
        assert!(wanted("application/json, TEXT/HTML;q=0.1"));
        for accept in ["*/*", "text/*", "application/json", "text/plain", ""] {
            assert!(!wanted(accept), "{accept}");
        }
        assert!(!wants_html(&HeaderMap::new()));
    }
}
