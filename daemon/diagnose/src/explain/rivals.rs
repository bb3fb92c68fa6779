//! Services that claim an address which another one has.
//!
//! Invariant: explanations and diagnoses find the claims here, judge them by one rule, and tell of each in one
//! sentence.

use holdfast_core::health::Health;
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot, Verdict};

use super::place::{describe_precedence, format_place};
use super::query_match::{DialTarget, Subject};

/// A frontend without its address, and the service that claims it.
pub(crate) type Claim<'a> = (&'a ServiceView, &'a FrontendView);

/// The claims of others on an address of this service, or on one that its node ports or cluster IPs cover.
pub(crate) fn list_claims<'a>(snapshot: &'a Snapshot, owner: &ServiceView) -> Vec<Claim<'a>> {
    let is_in_vain =
        |it: &&FrontendView| it.verdict == Verdict::Conflict && it.owner.as_ref() == Some(&owner.key);
    let views = snapshot.services.with_problems();
    views.flat_map(|view| view.frontends.iter().filter(is_in_vain).map(move |it| (&**view, it))).collect()
}

/// Whether the owner's operator needs to know. A claim on what a node port or a cluster IP covers is hopeless, and a
/// derived ServiceImport is no other service.
pub(crate) fn is_serious_claim(snapshot: &Snapshot, (view, it): &Claim<'_>) -> bool {
    describe_precedence(snapshot, view, it).is_some() && view.frontend_health(it) == Health::Outage
}

/// A sentence about a claim on what stands at a place, and the rule by which it comes second.
pub(crate) fn describe_claim(snapshot: &Snapshot, (view, it): &Claim<'_>, place: &str) -> String {
    let owner = it.owner.as_ref().map(|key| key.name.to_string()).unwrap_or_default();
    let rule = describe_precedence(snapshot, view, it);
    let rule = rule.map_or_else(String::new, |rule| format!(": the claim of {owner} comes first {rule}"));
    format!("{} claims {place} too, and does not get it{rule}.", view.key.name)
}

/// A sentence about the services that claim the address in vain, beside the one that has it.
pub(super) fn describe_rivals(
    snapshot: &Snapshot,
    dialled: &DialTarget,
    shown: &FrontendView,
    subjects: &[Subject],
) -> String {
    let is_in_vain = |it: &&FrontendView| {
        it.verdict == Verdict::Conflict && it.protocol == shown.protocol && it.owner.is_some()
    };
    let others = subjects.iter().skip(1);
    let all: Vec<Claim<'_>> = others
        .flat_map(|subject| subject.frontends().filter(is_in_vain).map(move |it| (&*subject.view, it)))
        .collect();
    describe_first(snapshot, &all, &dialled.to_string())
}

/// A sentence about the serious claims on addresses of this service.
pub(super) fn describe_losers(snapshot: &Snapshot, owner: &ServiceView) -> String {
    let mut all = list_claims(snapshot, owner);
    all.retain(|claim| is_serious_claim(snapshot, claim));
    let place = all.first().map(|(_, it)| format_place(it, &snapshot.node)).unwrap_or_default();
    describe_first(snapshot, &all, &place)
}

/// Whether others claim an address of this service seriously.
pub(super) fn has_losers(snapshot: &Snapshot, owner: &ServiceView) -> bool {
    list_claims(snapshot, owner).iter().any(|claim| is_serious_claim(snapshot, claim))
}

fn describe_first(snapshot: &Snapshot, all: &[Claim<'_>], place: &str) -> String {
    let Some((first, others)) = all.split_first() else { return String::new() };
    let more =
        if others.is_empty() { String::new() } else { format!(" So it is with {} more.", others.len()) };
    format!(" {}{more}", describe_claim(snapshot, first, place))
}
