//! The page that a browser gets: one document with its style and its script in it, and the policy for it.
//!
//! Invariant: the document consists of the files in `assets/`, which are built into the program; nothing that the
//! cluster says is in it. The policy names its one style and its one script by their hashes, and lets it ask its own
//! API alone.

#![forbid(unsafe_code)]

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

const FRAME: &str = include_str!("../assets/index.html");
const STYLE: &str = include_str!("../assets/style.css");

/// The files of the script, in this order: a later one uses what an earlier one defines.
const SCRIPT: &str = concat!(
    include_str!("../assets/dom.js"),
    include_str!("../assets/redraw.js"),
    include_str!("../assets/words.js"),
    include_str!("../assets/route.js"),
    include_str!("../assets/api.js"),
    include_str!("../assets/store.js"),
    include_str!("../assets/live.js"),
    include_str!("../assets/same.js"),
    include_str!("../assets/way.js"),
    include_str!("../assets/strip.js"),
    include_str!("../assets/view/now.js"),
    include_str!("../assets/view/frontends.js"),
    include_str!("../assets/view/service.js"),
    include_str!("../assets/view/time.js"),
    include_str!("../assets/view/answers.js"),
    include_str!("../assets/view/diagnose.js"),
    include_str!("../assets/main.js"),
);

/// The places in the frame that the style and the script take.
const STYLE_PLACE: &str = "/*style*/";
const SCRIPT_PLACE: &str = "/*script*/";

static DOCUMENT: LazyLock<String> =
    LazyLock::new(|| FRAME.replace(STYLE_PLACE, STYLE).replace(SCRIPT_PLACE, SCRIPT));

/// No word of the API can become markup or code: `trusted-types` lets no text in where a browser would read it as such.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    let style = hash(STYLE);
    let script = hash(SCRIPT);
    format!(
        "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    )
});

/// The whole document.
pub fn document() -> &'static str {
    &DOCUMENT
}

/// What the browser may do for it, as the value of `Content-Security-Policy`.
pub fn policy() -> &'static str {
    &POLICY
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
        let (document, policy) = (document(), policy());
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
            let found = document().matches(foreign).count();
            assert!(found <= allowed, "{foreign}: {found}");
        }
    }
}
