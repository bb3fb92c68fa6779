//! The index for Events: reasons by their words, and the keywords that distinguish their causes.
//!
//! Invariant: the index is built once from the knowledge, and only read afterwards. Its numbers are positions in the
//! lists of reasons and causes that it was built from.

use std::collections::BTreeMap;

use crate::entry::{Cause, EventReason, Step};
use crate::keywords::{CauseMatcher, Keywords};

/// Reasons by their words, and the keywords to search in their messages.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReasonIndex {
    exact: BTreeMap<String, Vec<usize>>,
    aliases: BTreeMap<String, Vec<usize>>,
    folded: BTreeMap<String, Vec<usize>>,
    pub(crate) ids: BTreeMap<String, usize>,
    /// One scan for each reason, in the order of the reasons.
    pub(crate) scans: Vec<ReasonScan>,
    /// One matcher for each cause, in the order of the causes.
    pub(crate) matchers: Vec<CauseMatcher>,
}

/// The messages that a reason applies to, and the causes to try first for each.
#[derive(Clone, Debug)]
pub(crate) struct ReasonScan {
    pub(crate) only_if: Option<Keywords>,
    pub(crate) when: Vec<(Keywords, Option<Step>, Vec<usize>)>,
    pub(crate) causes: Vec<usize>,
}

impl ReasonIndex {
    pub(crate) fn new(reasons: &[EventReason], causes: &[Cause]) -> Self {
        let places: BTreeMap<&str, usize> =
            causes.iter().enumerate().map(|(at, cause)| (cause.id.as_str(), at)).collect();
        let mut index = Self {
            scans: reasons.iter().map(|reason| ReasonScan::new(reason, &places)).collect(),
            matchers: causes.iter().map(CauseMatcher::new).collect(),
            ..Self::default()
        };
        for (at, reason) in reasons.iter().enumerate() {
            index.ids.insert(reason.id.clone(), at);
            index.exact.entry(reason.reason.clone()).or_default().push(at);
            index.folded.entry(fold_word(&reason.reason)).or_default().push(at);
            for alias in &reason.aliases {
                index.aliases.entry(alias.clone()).or_default().push(at);
                index.folded.entry(fold_word(alias)).or_default().push(at);
            }
        }
        index
    }

    /// The reasons of a word, and whether they are spelled exactly so. If not, the word is an alias, or nearly equal.
    pub(crate) fn find_reasons(&self, word: &str) -> (&[usize], bool) {
        if let Some(found) = self.exact.get(word) {
            return (found, true);
        }
        let other = self.aliases.get(word).or_else(|| self.folded.get(&fold_word(word)));
        (other.map_or(&[], Vec::as_slice), false)
    }
}

/// The common form of words that differ only in case or a plural `s`.
fn fold_word(word: &str) -> String {
    let small = word.to_ascii_lowercase();
    small.strip_suffix('s').map(str::to_owned).unwrap_or(small)
}

impl ReasonScan {
    fn new(reason: &EventReason, places: &BTreeMap<&str, usize>) -> Self {
        let at = |ids: &[String]| -> Vec<usize> {
            ids.iter().filter_map(|id| places.get(id.as_str()).copied()).collect()
        };
        let when = reason.when.iter().map(|it| (Keywords::new(&it.contains), it.step, at(&it.causes)));
        Self {
            only_if: (!reason.only_if.is_empty()).then(|| Keywords::new(&reason.only_if)),
            when: when.collect(),
            causes: at(&reason.causes),
        }
    }
}
