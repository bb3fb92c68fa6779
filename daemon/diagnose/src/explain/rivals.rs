//! Services that claim an address which another one has, in sentences that follow an answer.
//!
//! Invariant: whoever asks about the address or its owner learns of the claim, and by which rule it comes second.

use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot, Verdict};

use super::place::{describe_precedence, format_place};
use super::query_match::{DialTarget, Subject};

/// A frontend without its address, and the service that claims it.
type Claim<'a> = (&'a ServiceView, &'a FrontendView);

/// A sentence about the services that claim the address in vain, beside the one that has it.
pub(super) fn describe_rivals(
    snapshot: &Snapshot,
    dialled: &DialTarget,
    shown: &FrontendView,
    subjects: &[Subject],
) -> String {
    let is_in_vain = |it: &&FrontendView| it.verdict == Verdict::Conflict && it.protocol == shown.protocol;
    let all = subjects
        .iter()
        .skip(1)
        .flat_map(|subject| subject.frontends().filter(is_in_vain).map(move |it| (&*subject.view, it)));
    describe_claims(snapshot, &dialled.to_string(), all)
}

/// A sentence about the services that claim an address of this one in vain.
pub(super) fn describe_losers(snapshot: &Snapshot, owner: &ServiceView) -> String {
    let is_its =
        |it: &&FrontendView| it.verdict == Verdict::Conflict && it.owner.as_ref() == Some(&owner.key);
    let frontends = |view: &ServiceView| view.frontends.iter().any(|it| is_its(&it));
    let views = snapshot.services.with_problems().filter(|view| frontends(view));
    let all: Vec<Claim<'_>> =
        views.flat_map(|view| view.frontends.iter().filter(is_its).map(move |it| (&**view, it))).collect();
    let place = all.first().map(|(_, it)| format_place(it, &snapshot.node)).unwrap_or_default();
    describe_claims(snapshot, &place, all.into_iter())
}

fn describe_claims<'a>(snapshot: &Snapshot, place: &str, all: impl Iterator<Item = Claim<'a>>) -> String {
    let mut all = all.filter(|(_, it)| it.owner.is_some());
    let Some((view, it)) = all.next() else { return String::new() };
    let owner = it.owner.as_ref().map(|key| key.name.to_string()).unwrap_or_default();
    let rule = describe_precedence(snapshot, view, it);
    let rule = rule.map_or_else(String::new, |rule| format!(": the claim of {owner} comes first {rule}"));
    let more = match all.count() {
        0 => String::new(),
        more => format!(" So it is with {more} more."),
    };
    format!(" {} claims {place} too, and does not get it{rule}.{more}", view.key.name)
}
