//! Matches names of tests with patterns in which `*` stands for any text.
//!
//! Invariant: a pattern without `*` matches only itself.

/// Whether the whole text matches the pattern.
pub(crate) fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let mut pieces: Vec<&str> = rest.split('*').collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        let Some(found) = text.find(piece) else { return false };
        text = text.get(found + piece.len()..).unwrap_or_default();
    }
    text.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(pattern: &str, fitting: &[&str], others: &[&str]) {
        for text in fitting {
            assert!(fits(pattern, text), "{pattern} fits {text}");
        }
        for text in others {
            assert!(!fits(pattern, text), "{pattern} does not fit {text}");
        }
    }

    #[test]
    fn a_star_is_any_text() {
        check("core/*", &["core/lib/a", "core/"], &["laws/lib/a", "core"]);
        check("*/kernel_*", &["a/b/kernel_x", "a/kernel_"], &["a/kernel", "kernel_x"]);
        check("a*b*c", &["abc", "axbxc", "abbcc"], &["ab", "acb"]);
        check("a*a", &["aa", "aba"], &["a", "ab"]);
        check("plain", &["plain"], &["plainer", ""]);
    }
}
