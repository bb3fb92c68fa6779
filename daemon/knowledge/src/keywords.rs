//! Searches messages for keywords, fast.
//!
//! Invariant: case is ignored. The object's own name in a message is skipped, because the author of an object could
//! otherwise pick its cause by the name.

use memchr::memmem::{self, Finder};

use crate::entry::Cause;

/// A message prepared for the search: in lower case, with blanks instead of the object's name.
#[derive(Debug)]
pub(crate) struct SearchText(Vec<u8>);

impl SearchText {
    pub(crate) fn new(message: &str, namespace: &str, name: &str) -> Self {
        let mut text = message.to_ascii_lowercase().into_bytes();
        if !name.is_empty() {
            let name = name.to_ascii_lowercase();
            if !namespace.is_empty() {
                blank_out(&mut text, &format!("{}/{name}", namespace.to_ascii_lowercase()));
            }
            blank_out(&mut text, &format!("\"{name}\""));
            // Objects that a controller creates for an object carry its name as a prefix.
            blank_out(&mut text, &format!(" {name}-"));
        }
        Self(text)
    }
}

fn blank_out(text: &mut [u8], name: &str) {
    let found: Vec<usize> = memmem::find_iter(text, name).collect();
    for at in found {
        if let Some(place) = text.get_mut(at..at + name.len()) {
            place.fill(b' ');
        }
    }
}

/// Keywords, prepared for the search.
#[derive(Clone, Debug)]
pub(crate) struct Keywords(Vec<Finder<'static>>);

impl Keywords {
    pub(crate) fn new(words: &[String]) -> Self {
        Self(words.iter().map(|word| Finder::new(&word.to_ascii_lowercase()).into_owned()).collect())
    }

    pub(crate) fn matches_any(&self, message: &SearchText) -> bool {
        self.0.iter().any(|word| word.find(&message.0).is_some())
    }

    fn matches_all(&self, message: &SearchText) -> bool {
        self.0.iter().all(|word| word.find(&message.0).is_some())
    }
}

/// The keywords that decide whether a cause matches a message.
#[derive(Clone, Debug)]
pub(crate) struct CauseMatcher {
    any: Keywords,
    all: Keywords,
    not: Keywords,
}

impl CauseMatcher {
    pub(crate) fn new(cause: &Cause) -> Self {
        Self {
            any: Keywords::new(&cause.any),
            all: Keywords::new(&cause.all),
            not: Keywords::new(&cause.not),
        }
    }

    pub(crate) fn matches(&self, message: &SearchText) -> bool {
        self.any.matches_any(message) && self.all.matches_all(message) && !self.not.matches_any(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(words: &[&str], message: &str, name: &str) -> bool {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        Keywords::new(&words).matches_any(&SearchText::new(message, "shop", name))
    }

    #[test]
    fn keywords_match_in_any_case() {
        assert!(fits(&["already exists"], "endpoints ALREADY Exists", ""));
        assert!(!fits(&["already exists"], "already  exists", ""));
    }

    #[test]
    fn a_keyword_in_the_objects_name_does_not_match() {
        assert!(fits(&["conflict"], "Failed: a conflict", "conflict"));
        assert!(!fits(&["conflict"], "Failed to update endpoint shop/conflict: slow", "conflict"));
        assert!(!fits(&["conflict"], "endpoints \"Conflict\" not seen", "conflict"));
        assert!(!fits(&["conflict"], "failed to update conflict-x7k2p EndpointSlice", "conflict"));
        assert!(Keywords::new(&["/api".to_owned()]).matches_any(&SearchText::new("get /api", "", "api")));
    }
}
