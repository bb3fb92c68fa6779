//! The page that a browser gets of `/`: one document with its style and its script in it, which reads the other paths.
//!
//! Invariant: the page consists of the files in `page/`, which are built into the program; nothing that the cluster
//! says is in it. Its policy names its one style and its one script by their hashes, and lets it ask this API alone.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

use super::answer;

const FRAME: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");

/// The files of the script, in this order: a later one uses what an earlier one defines.
const SCRIPT: &str = concat!(
    include_str!("page/dom.js"),
    include_str!("page/redraw.js"),
    include_str!("page/words.js"),
    include_str!("page/route.js"),
    include_str!("page/api.js"),
    include_str!("page/store.js"),
    include_str!("page/live.js"),
    include_str!("page/same.js"),
    include_str!("page/way.js"),
    include_str!("page/strip.js"),
    include_str!("page/view/now.js"),
    include_str!("page/view/frontends.js"),
    include_str!("page/view/service.js"),
    include_str!("page/view/time.js"),
    include_str!("page/view/answers.js"),
    include_str!("page/view/diagnose.js"),
    include_str!("page/main.js"),
);

/// The places in the frame that the style and the script take.
const STYLE_PLACE: &str = "/*style*/";
const SCRIPT_PLACE: &str = "/*script*/";

const HTML: &str = "text/html; charset=utf-8";

/// A page that opened this one, or that this one opens, shares no window with it.
const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

static DOCUMENT: LazyLock<Bytes> =
    LazyLock::new(|| FRAME.replace(STYLE_PLACE, STYLE).replace(SCRIPT_PLACE, SCRIPT).into());

/// No word of the API can become markup or code: `trusted-types` lets no text in where a browser would read it as such.
static POLICY: LazyLock<Option<HeaderValue>> = LazyLock::new(|| {
    let style = hash(STYLE);
    let script = hash(SCRIPT);
    let policy = format!(
        "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    );
    HeaderValue::try_from(policy).ok()
});

/// The whole page.
pub(super) fn page() -> Response {
    let mut response = answer::typed(StatusCode::OK, HTML, DOCUMENT.clone());
    let headers = response.headers_mut();
    // Without this policy the guard's own one holds, under which nothing of the page runs.
    headers.extend(POLICY.clone().map(|policy| (header::CONTENT_SECURITY_POLICY, policy)));
    headers.insert(OPENER, HeaderValue::from_static("same-origin"));
    response
}

/// Whether a client wants the page, because it names HTML in `Accept`: browsers do, `curl` and programs do not.
pub(super) fn is_wanted(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(header::ACCEPT);
    let mut ranges = ranges.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    ranges.any(|range| {
        range.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/html"))
    })
}

/// The hash by which a policy names a style or script that stands in a document.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The most that the page may have: room for what is to come, and still nothing that a slow tunnel would notice.
    const BYTES_MAX: usize = 120 * 1024;

    fn between<'a>(text: &'a str, open: &str, close: &str) -> &'a str {
        text.split_once(open).unwrap().1.split_once(close).unwrap().0
    }

    #[test]
    fn the_policy_names_exactly_what_stands_in_the_document() {
        let document = std::str::from_utf8(&DOCUMENT).unwrap();
        let policy = POLICY.as_ref().unwrap().to_str().unwrap();
        for (open, close) in [("<style>", "</style>"), ("<script type=\"module\">", "</script>")] {
            assert_eq!(document.matches(open).count(), 1, "{open}");
            assert!(policy.contains(&hash(between(document, open, close))), "{open}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    }

    #[test]
    fn it_is_small() {
        assert!(DOCUMENT.len() <= BYTES_MAX, "{} bytes", DOCUMENT.len());
    }

    #[test]
    fn it_asks_nobody_else_and_has_no_handler_in_its_markup() {
        for foreign in ["http://", "https://", " onclick=", " style=", "javascript:", "innerHTML", "eval("] {
            let allowed = usize::from(foreign == "http://");
            let found = std::str::from_utf8(&DOCUMENT).unwrap().matches(foreign).count();
            assert!(found <= allowed, "{foreign}: {found}");
        }
    }

    #[test]
    fn only_who_names_html_gets_it() {
        let wanted = |accept: &str| {
            is_wanted(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_str(accept).unwrap())]))
        };
        assert!(wanted("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"));
        assert!(wanted("application/json, TEXT/HTML;q=0.1"));
        for accept in ["*/*", "text/*", "application/json", "text/plain", ""] {
            assert!(!wanted(accept), "{accept}");
        }
        assert!(!is_wanted(&HeaderMap::new()));
    }
}
