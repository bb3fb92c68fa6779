//! The page for browsers: one document with its style and its script in it, and its policy.
//!
//! Invariant: the document consists of the files in `assets/`, which are built into the program; no data of the cluster
//! is in it. The policy names its one style and its one script by their hashes, and allows queries to its own API
//! alone.

#![forbid(unsafe_code)]

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};

const FRAME: &str = include_str!("../assets/index.html");
const STYLE: &str = include_str!("../assets/style.css");

/// The files of the script in this order: a later one uses definitions of an earlier one.
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

/// The placeholders in the frame for the style and the script, and that in the script for the verdicts.
const STYLE_PLACE: &str = "/*style*/";
const SCRIPT_PLACE: &str = "/*script*/";
const VERDICTS_PLACE: &str = "/*verdicts*/ null";

/// The page, as the daemon serves it.
#[derive(Debug)]
pub struct Page {
    pub document: String,
    /// The permissions of the page, as the value of `Content-Security-Policy`.
    pub policy: String,
}

impl Page {
    /// The page with the daemon's definition of verdicts, as JSON.
    pub fn new(verdicts: &str) -> Self {
        let script = SCRIPT.replace(VERDICTS_PLACE, verdicts);
        let document = FRAME.replace(STYLE_PLACE, STYLE).replace(SCRIPT_PLACE, &script);
        Self { document, policy: policy(&script) }
    }
}

/// No word of the API can become markup or code: `trusted-types` rejects text where a browser would read it as such.
fn policy(script: &str) -> String {
    let style = hash(STYLE);
    let script = hash(script);
    format!(
        "default-src 'none'; style-src '{style}'; script-src '{script}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'"
    )
}

/// The hash by which a policy names an inline style or script.
fn hash(text: &str) -> String {
    format!("sha256-{}", STANDARD.encode(digest(&SHA256, text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest size of the page: room to grow, and still nothing that a slow tunnel would notice.
    const BYTES_MAX: usize = 120 * 1024;

    fn between<'a>(text: &'a str, open: &str, close: &str) -> &'a str {
        text.split_once(open).unwrap().1.split_once(close).unwrap().0
    }

    fn page() -> Page {
        Page::new("{\"worst_first\": []}")
    }

    #[test]
    fn the_script_has_the_verdicts_once() {
        let document = page().document;
        assert_eq!(document.matches("{\"worst_first\": []}").count(), 1);
        assert!(!document.contains("/*verdicts*/"));
    }

    #[test]
    fn the_policy_has_the_hashes_of_the_documents_style_and_script() {
        let Page { document, policy } = page();
        for (open, close) in [("<style>", "</style>"), ("<script type=\"module\">", "</script>")] {
            assert_eq!(document.matches(open).count(), 1, "{open}");
            assert!(policy.contains(&hash(between(&document, open, close))), "{open}");
        }
        assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
    }

    #[test]
    fn the_page_stays_small() {
        let bytes = page().document.len();
        assert!(bytes <= BYTES_MAX, "{bytes} bytes");
    }

    #[test]
    fn the_page_has_no_foreign_links_and_no_inline_handlers() {
        for foreign in ["http://", "https://", " onclick=", " style=", "javascript:", "innerHTML", "eval("] {
            let allowed = usize::from(foreign == "http://");
            let found = page().document.matches(foreign).count();
            assert!(found <= allowed, "{foreign}: {found}");
        }
    }
}
