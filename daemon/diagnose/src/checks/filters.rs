//! Firewall rules of this host that treat the Service's packets differently than under kube-proxy.
//!
//! Invariant: a rule is named only if it concerns a port or an address of this Service, or all Services.

use serde_json::json;

use crate::case::Case;
use crate::finding::{Judgement, Remedy};
use crate::limits::NAMED_MAX;
use holdfast_status::views::proxies::{DialTargets, Filter, FilterKind};

pub(super) fn check_filters(case: &Case<'_>) -> Judgement {
    let all = case.filters();
    let dialled = DialTargets::from_frontends(case.frontends());
    let of = |kind| all.iter().filter(move |it| it.kind.0 == kind).collect::<Vec<_>>();
    let early: Vec<_> =
        of(FilterKind::Early).into_iter().filter(|filter| dialled.matches_filter(filter)).collect();
    if let Some(first) = early.first() {
        let sentence = format!("{} {}: clients that it excluded get in now.", first.place, first.rule);
        return with_places(Judgement::warning(sentence), &early).remedy(Remedy::safe(
            "Use loadBalancerSourceRanges or a NetworkPolicy instead, or a FORWARD rule for the pods themselves.",
        ));
    }
    let forward = of(FilterKind::Forward);
    if let Some(first) = forward.first() {
        let sentence = format!("{}: {}.", first.place, first.rule);
        return with_places(Judgement::info(sentence), &forward).possible().remedy(Remedy::safe(
            "Set forward_mark under [packets], and have FORWARD accept that mark and what is established.",
        ));
    }
    let connections = of(FilterKind::Connections);
    if let Some(first) = connections.first() {
        let sentence = format!("{} has {}.", first.place, first.rule);
        return with_places(Judgement::info(sentence), &connections)
            .remedy(Remedy::safe("Write it, and the timeouts, to a file below /etc/sysctl.d."));
    }
    Judgement::ok("No firewall rule was found that must see its packets before they are translated.")
}

fn with_places(judgement: Judgement, filters: &[&Filter]) -> Judgement {
    judgement.with("places", json!(filters.iter().map(|it| &it.place).take(NAMED_MAX).collect::<Vec<_>>()))
}
