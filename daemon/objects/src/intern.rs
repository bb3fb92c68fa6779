//! Interns short texts that many objects share, such as the names of writers and ports.
//!
//! Invariant: the result equals the input. Each thread caches a fixed number of short texts; tenants' texts may evict
//! others, but never take more memory than without the cache.

use std::cell::Cell;
use std::sync::Arc;

/// A cluster has some dozens of writers and port names.
const CACHE_ENTRIES: usize = 128;

/// Longer texts are not cached: shared texts are a word or two.
const INTERNED_LENGTH_MAX: usize = 64;

thread_local! {
    static KNOWN: [Cell<Option<Arc<str>>>; CACHE_ENTRIES] = const { [const { Cell::new(None) }; CACHE_ENTRIES] };
}

/// Returns the text, shared with a recent equal one of this thread.
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

/// FNV-1a. Colliding texts cost no more than without the cache.
fn cache_index(text: &str) -> usize {
    let mixed =
        text.bytes().fold(0x811c_9dc5_u32, |mixed, byte| (mixed ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    mixed as usize % CACHE_ENTRIES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_short_texts_are_shared() {
        let long = "x".repeat(INTERNED_LENGTH_MAX + 1);
        for (text, is_one) in [("", true), ("kube-controller-manager", true), (&long, false)] {
            let [one, other] = [intern_text(text), intern_text(text)];
            assert_eq!((&*one, &*other, Arc::ptr_eq(&one, &other)), (text, text, is_one), "{text}");
        }
    }

    /// More texts than cache entries.
    #[test]
    fn colliding_texts_stay_distinct() {
        let texts: Vec<String> = (0..10 * CACHE_ENTRIES).map(|number| format!("writer-{number}")).collect();
        for text in texts.iter().chain(&texts) {
            assert_eq!(&*intern_text(text), text);
        }
    }
}
