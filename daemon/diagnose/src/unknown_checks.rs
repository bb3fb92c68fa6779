//! Checks that could not judge, grouped by reason, so that one silent source is reported once.
//!
//! Invariant: each check is in one group. A check without a known reason is a group of its own.

use super::formatting::format_count;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnknownCheck<'a> {
    pub id: &'static str,
    pub sentence: &'a str,
    /// The reason, which other checks may share.
    pub reason: Option<&'a str>,
    pub explained_by: Option<&'static str>,
}

impl UnknownCheck<'_> {
    fn shares_reason(&self, other: &Self) -> bool {
        match (self.explained_by, other.explained_by) {
            (Some(cause), Some(other)) => cause == other,
            (None, None) => self.reason.is_some() && self.reason == other.reason,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnknownGroup<'a> {
    pub first: UnknownCheck<'a>,
    pub ids: Vec<&'static str>,
}

impl UnknownGroup<'_> {
    /// The group in a few words, without a full stop.
    pub(super) fn to_text(&self) -> String {
        match (self.ids.len(), self.first.reason) {
            (0 | 1, _) | (_, None) => self.first.sentence.trim_end_matches('.').to_owned(),
            (number, Some(why)) => format!("{} ({why})", format_count(number, "check")),
        }
    }
}

/// Groups checks by reason, in the order in which the reasons first appear.
pub(super) fn group_unknown<'a>(checks: impl IntoIterator<Item = UnknownCheck<'a>>) -> Vec<UnknownGroup<'a>> {
    let mut groups: Vec<UnknownGroup<'a>> = Vec::new();
    for check in checks {
        match groups.iter_mut().find(|group| group.first.shares_reason(&check)) {
            Some(group) => group.ids.push(check.id),
            None => groups.push(UnknownGroup { first: check, ids: vec![check.id] }),
        }
    }
    groups
}
