//! Texts that most objects have in common, such as the names of writers and of ports: kept once, and shared.
//!
//! Invariant: what is given is what was asked for, to the byte. Each thread remembers a fixed number of short texts;
//! what tenants write may push out others, and costs no more memory than without.

use std::cell::Cell;
use std::sync::Arc;

/// Places for texts: a cluster has some dozens of writers and of names of ports.
const CACHE_ENTRIES: usize = 128;

/// Longer texts are not looked for: what many objects share is a word or two.
const INTERNED_LENGTH_MAX: usize = 64;

thread_local! {
    static KNOWN: [Cell<Option<Arc<str>>>; CACHE_ENTRIES] = const { [const { Cell::new(None) }; CACHE_ENTRIES] };
}

/// The text, shared with whatever else of this thread had the same lately.
pub fn intern_text(text: &str) -> Arc<str> {
    if text.len() > INTERNED_LENGTH_MAX {
        return text.into();
    }
    KNOWN.with(|known| {
        let Some(place) = known.get(cache_index(text)) else { return text.into() };
        let kept = place.take().filter(|kept| **kept == *text).unwrap_or_else(|| text.into());
        place.set(Some(Arc::clone(&kept)));
        kept
    })
}

/// FNV-1a: a few texts that share a place cost what they would cost without.
fn cache_index(text: &str) -> usize {
    let mixed =
        text.bytes().fold(0x811c_9dc5_u32, |mixed, byte| (mixed ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    mixed as usize % CACHE_ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_are_one() {
        let long = "x".repeat(INTERNED_LENGTH_MAX + 1);
        for (text, is_one) in [("", true), ("kube-controller-manager", true), (&long, false)] {
            let [one, other] = [intern_text(text), intern_text(text)];
            assert_eq!((&*one, &*other, Arc::ptr_eq(&one, &other)), (text, text, is_one), "{text}");
        }
    }

    /// More texts than places.
    #[test]
    fn no_text_is_taken_for_another() {
        let texts: Vec<String> = (0..10 * CACHE_ENTRIES).map(|number| format!("writer-{number}")).collect();
        for text in texts.iter().chain(&texts) {
            assert_eq!(&*intern_text(text), text);
        }
    }
}
