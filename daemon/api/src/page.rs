//! The answer with the page that a browser gets of `/`.
//!
//! Invariant: only a client that names HTML gets the page; its policy is the page's own instead of the guard's.

use std::cmp::Reverse;
use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;

use holdfast_core::health::Health;
use holdfast_core::snapshot::{Reason, Verdict};
use holdfast_page::Page;
use serde_json::{Value, json};

use super::response;

const HTML: &str = "text/html; charset=utf-8";

/// The page shares no window with one that opened it, or that it opens.
const OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

static PAGE: LazyLock<Page> = LazyLock::new(|| Page::new(&verdicts().to_string()));

/// The definition of what is well, so that the page and `holdfast status` never disagree: verdicts, the worst first,
/// and what each means by its reason. A reason that is not listed means the same as `*`.
fn verdicts() -> Value {
    let mut worst_first = Verdict::ALL;
    worst_first.sort_by_key(|it| Reverse(it.severity()));
    let health = worst_first.map(|verdict| (verdict.as_str().to_owned(), health_by_reason(verdict)));
    json!({
        "worst_first": worst_first.map(Verdict::as_str),
        "health": Value::Object(health.into_iter().collect()),
    })
}

fn health_by_reason(verdict: Verdict) -> Value {
    let health = |reason| Health::from_verdict(verdict, reason);
    let usual = health(Some(Reason::AllUnready));
    let reasons = Reason::ALL.into_iter().map(Some).chain([None]).filter(|it| health(*it) != usual);
    let listed = reasons.map(|it| (it.map_or("", Reason::as_str).to_owned(), json!(health(it).as_str())));
    Value::Object(listed.chain([("*".to_owned(), json!(usual.as_str()))]).collect())
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
    fn the_page_has_the_health_of_each_verdict_and_reason() {
        let verdicts = verdicts();
        for verdict in Verdict::ALL {
            assert!(verdicts["worst_first"].as_array().unwrap().contains(&json!(verdict.as_str())));
            let health = &verdicts["health"][verdict.as_str()];
            for reason in Reason::ALL.into_iter().map(Some).chain([None]) {
                let told = health.get(reason.map_or("", Reason::as_str)).unwrap_or(&health["*"]);
                assert_eq!(told, Health::from_verdict(verdict, reason).as_str(), "{verdict} {reason:?}");
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
