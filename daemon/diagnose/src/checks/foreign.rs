//! Other proxies on this node.
//!
//! Invariant: the checks report what exists, and whether it affects this service; they change nothing of others.

use std::collections::BTreeSet;

use serde_json::json;

use crate::case::{Case, judge_unavailable};
use crate::command::{Command, CommandWord};
use crate::evidence::Rule;
use crate::finding::{Judgement, Remedy, State};
use crate::formatting::join_names;
use crate::limits::NAMED_MAX;
use holdfast_status::views::proxies::{OtherProxy, Trace};

pub(super) fn check_kube_proxy(case: &Case<'_>) -> Judgement {
    let cleanup =
        Command::from_words(&[CommandWord::Literal("kube-proxy"), CommandWord::Literal("--cleanup")]);
    judge_proxy(case, "kube-proxy").map_or_else(judge_absent, |judgement| {
        match judgement.state.is_trouble() {
            true => judgement.remedy(
                Remedy::disruptive("Remove kube-proxy's DaemonSet, and clean up what it left on each node.")
                    .with_command(cleanup),
            ),
            false => judgement,
        }
    })
}

/// Judges Cilium. Its programs outlive its agent, and then translate clients by an outdated table.
pub(super) fn check_cilium(case: &Case<'_>) -> Judgement {
    let found = case.proxies().iter().find(|it| it.proxy == "Cilium");
    let traces = found.map_or(&[][..], |it| &it.traces);
    let judgement =
        judge_with_remedy(case, "Cilium", "Set kubeProxyReplacement to false in Cilium's configuration.")
            .with("traces", json!(traces.iter().take(NAMED_MAX).collect::<Vec<_>>()));
    if !found.is_some_and(OtherProxy::is_abandoned) || judgement.state == State::Error {
        return judgement;
    }
    let translating: Vec<&Trace> = traces.iter().filter(|trace| trace.translates).collect();
    let what = join_names(translating.iter().map(|trace| &trace.what));
    let removes = translating.iter().take(NAMED_MAX).map(|trace| {
        Remedy::disruptive(format!("If Cilium will not return to this node: {}.", trace.remove))
    });
    let sentence = format!("Cilium's agent does not run here, and what it left still translates: {what}.");
    Judgement { evidence: judgement.evidence, ..Judgement::warning(sentence) }.remedies(removes)
}

pub(super) fn check_calico(case: &Case<'_>) -> Judgement {
    judge_with_remedy(
        case,
        "Calico",
        "Switch Calico's eBPF data plane, or its connect-time load balancing, off.",
    )
}

pub(super) fn check_kube_router(case: &Case<'_>) -> Judgement {
    judge_with_remedy(
        case,
        "kube-router",
        "Start kube-router with --run-service-proxy=false, and run its --cleanup-config on this node.",
    )
}

pub(super) fn check_antrea(case: &Case<'_>) -> Judgement {
    judge_with_remedy(case, "Antrea", "Set antreaProxy.enable to false in antrea-agent's configuration.")
}

fn judge_with_remedy(case: &Case<'_>, proxy: &'static str, remedy: &'static str) -> Judgement {
    judge_proxy(case, proxy).map_or_else(judge_absent, |judgement| match judgement.state.is_trouble() {
        true => judgement.remedy(Remedy::disruptive(remedy)),
        false => judgement,
    })
}

fn judge_absent() -> Judgement {
    Judgement::ok("It was not found on this node.")
}

/// Judges the effect of another proxy on this service. `None`: it is not on this node.
fn judge_proxy(case: &Case<'_>, proxy: &str) -> Option<Judgement> {
    let found = case.proxies().iter().find(|it| it.proxy == proxy)?;
    let evidence = join_names(&found.evidence);
    let rules = proxy_rules(case, proxy);
    let judgement = match (rules.is_empty(), rules.iter().any(|rule| leads_to_non_backend(case, rule))) {
        (true, _) => Judgement::info(format!("{proxy} is, or was, on this node: {evidence}.")),
        (false, false) => Judgement::warning(format!(
            "{proxy} serves the same frontends ({evidence}): clients that holdfast translates bypass it, others do not."
        )),
        (false, true) => Judgement::error(format!(
            "{proxy} sends {} to addresses that are no backends ({evidence}): clients that holdfast does not \
             translate are lost.",
            join_names(rules.iter().map(|rule| rule.frontend))
        )),
    };
    Some(judgement.with("evidence", json!(found.evidence.iter().take(NAMED_MAX).collect::<Vec<_>>())))
}

fn proxy_rules<'a>(case: &Case<'a>, proxy: &str) -> Vec<&'a Rule> {
    case.rules().answer().into_iter().flatten().filter(|rule| rule.proxy == proxy).collect()
}

/// Whether a rule leads to an address that is no backend. A rule without a known target does not count.
fn leads_to_non_backend(case: &Case<'_>, rule: &Rule) -> bool {
    !rule.backends.iter().all(|at| case.is_backend(*at))
}

/// Judges rules of a proxy that does not run: they become outdated and lead to pods that are gone.
pub(super) fn check_leftover(case: &Case<'_>) -> Judgement {
    let Some(all) = case.rules().answer() else {
        return judge_unavailable(case.rules(), "Rules of other proxies for its frontends");
    };
    let runs = |rule: &&Rule| {
        let found = case.proxies().iter().filter(|it| it.proxy == rule.proxy);
        found.flat_map(|it| &it.evidence).any(|evidence| evidence.starts_with("listens"))
    };
    let left: Vec<&Rule> = all.iter().filter(|rule| !runs(rule)).collect();
    let Some(first) = left.first() else {
        return Judgement::ok("No leftover rules of another proxy name its frontends.");
    };
    let is_wrong = left.iter().any(|rule| leads_to_non_backend(case, rule));
    let what = if is_wrong { " and lead to addresses that are no backends" } else { "" };
    Judgement::error_if(
        is_wrong,
        format!(
            "Rules of {}, which does not run, name {}{what} ({}). Clients that holdfast serves do not meet \
             them; other forwarded packets do.",
            first.proxy,
            join_names(left.iter().map(|rule| rule.frontend).collect::<BTreeSet<_>>()),
            first.place
        ),
    )
    .with("rules", left.len())
    .with("place", &*first.place)
    // The last scan for proxies is some minutes old.
    .likely()
    .remedy(Remedy::disruptive("Remove what it left: `kube-proxy --cleanup`, or the clean-up of that proxy."))
}
