//! The answer with the page that a browser gets of `/`.
//!
//! Invariant: only a client that names HTML gets the page; its policy is the page's own instead of the guard's.

use std::cmp::Reverse;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use holdfast_core::snapshot::{Reason, Verdict};
use holdfast_page::Page;
use serde_json::{Value, json};

use super::response;

const HTML: &str = "text/html; charset=utf-8";

/// The page shares no window with one that opened it, or that it opens.
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

static PAGE: LazyLock<Page> = LazyLock::new(|| Page::new(&verdicts().to_string()));

/// The definition of what is well, so that the page and `holdfast status` never disagree: verdicts, those under which
/// clients are as well as somebody meant them to be, and reasons that excuse the others.
fn verdicts() -> Value {
    let mut worst_first = Verdict::ALL;
    worst_first.sort_by_key(|it| Reverse((it.is_failure(None), it.severity())));
    let harmless = Verdict::ALL.into_iter().filter(|it| !it.is_failure(None));
    let meant = Reason::ALL.into_iter().filter(|it| !Verdict::Refusing.is_failure(Some(*it)));
    json!({
        "worst_first": worst_first.map(Verdict::as_str),
        "harmless": harmless.map(Verdict::as_str).collect::<Vec<_>>(),
        "meant": meant.map(Reason::as_str).collect::<Vec<_>>(),
    })
}

pub(super) fn page() -> Response {
    let mut response =
        response::typed_response(StatusCode::OK, HTML, Bytes::from_static(PAGE.document.as_bytes()));
    let headers = response.headers_mut();
    // Without this policy the guard's own one applies, under which nothing of the page runs.
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(&PAGE.policy));
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
    fn the_pages_lists_decide_like_the_definition() {
        let verdicts = verdicts();
        let has = |list: &str, word: &str| verdicts[list].as_array().unwrap().iter().any(|it| it == word);
        for verdict in Verdict::ALL {
            assert!(has("worst_first", verdict.as_str()), "{verdict}");
            for reason in Reason::ALL.into_iter().map(Some).chain([None]) {
                let is_meant = reason.is_some_and(|reason| has("meant", reason.as_str()));
                let fails = !has("harmless", verdict.as_str()) && !is_meant;
                assert_eq!(fails, verdict.is_failure(reason), "{verdict} {reason:?}");
            }
        }
    }

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
