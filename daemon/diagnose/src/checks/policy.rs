//! Settings of the Service that decide which client gets which backend: traffic policies, hints, affinity, source
//! ranges.
//!
//! Invariant: a setting that works as requested is an info at most.

use std::collections::BTreeSet;
use std::net::IpAddr;

use holdfast_core::affinity::Prefixes;
use holdfast_core::facts::TrafficPolicy;
use holdfast_core::keys::Family;
use holdfast_core::list::Scope;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{PortView, UnusedReason, Verdict};
use holdfast_core::source_ranges::SourceRange;
use serde_json::json;

use super::collision::describe_object;
use crate::case::{Case, judge_unavailable};
use crate::command::Command;
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_count, join_names};
use crate::limits::NAMED_MAX;

fn ready_nodes(case: &Case<'_>) -> BTreeSet<String> {
    let ready = case.endpoints().into_values().filter(|it| it.conditions.ready);
    ready.filter_map(|it| it.node).map(|node| node.to_string()).collect()
}

fn nodes_json(nodes: &BTreeSet<String>) -> serde_json::Value {
    json!(nodes.iter().take(NAMED_MAX).collect::<Vec<_>>())
}

fn describe_location(nodes: &BTreeSet<String>) -> String {
    if nodes.is_empty() { "elsewhere".to_owned() } else { format!("on {}", join_names(nodes)) }
}

fn spread_remedy() -> Remedy {
    Remedy::disruptive(
        "Leave the policy, and spread the pods: podAntiAffinity on kubernetes.io/hostname, more replicas, or a DaemonSet.",
    )
}

pub(super) fn check_internal_local(case: &Case<'_>) -> Judgement {
    let Some(facts) = case.facts() else { return Judgement::not_applicable("Its policies are not known.") };
    if facts.internal_policy != TrafficPolicy::Local {
        return Judgement::ok("Clients on this node get any endpoint of the cluster.");
    }
    if !case.frontends().any(|it| it.scope == Scope::Local && it.verdict == Verdict::Dropping) {
        return Judgement::ok("The internal policy is Local, and an endpoint is here.");
    }
    let nodes = ready_nodes(case);
    Judgement::error(format!(
        "The internal traffic policy is Local and every usable endpoint is {}: clients here wait in vain.",
        describe_location(&nodes)
    ))
    .with("nodes_with_endpoints", nodes_json(&nodes))
    .remedy(Remedy::disruptive("Set internalTrafficPolicy to Cluster.").with_command(Command::set_field(
        case.name(),
        "internalTrafficPolicy",
        "Cluster",
    )))
    .remedy(spread_remedy())
}

pub(super) fn check_external_local(case: &Case<'_>) -> Judgement {
    let Some(facts) = case.facts().filter(|facts| facts.external_policy == TrafficPolicy::Local) else {
        return Judgement::ok("Clients from outside get any endpoint of the cluster.");
    };
    let nodes = ready_nodes(case);
    let outside = [FrontendType::NodePort, FrontendType::LoadBalancer, FrontendType::ExternalIp];
    if !case.frontends().any(|it| outside.contains(&it.kind)) || case.counts().ready == 0 {
        return Judgement::not_applicable("It has no frontend for outside clients, or no ready endpoint.");
    }
    if nodes.iter().any(|node| case.is_local(Some(node.as_str().into()))) {
        return Judgement::ok("The external policy is Local, and an endpoint is here.");
    }
    let eligible = |node: &str| case.node(node).is_none_or(|it| it.exists && !it.excluded && !it.leaving);
    let are_known = case.nodes_lookup().answer().is_some() && !nodes.is_empty();
    let is_nowhere = are_known && !nodes.iter().any(|node| eligible(node));
    let here = format!(
        "The external traffic policy is Local and no endpoint is here: they are {}.",
        describe_location(&nodes)
    );
    let judgement = match (is_nowhere, case.is_load_balancer(), facts.health_check_node_port) {
        (true, ..) => Judgement::error(format!("{here} No load balancer sends anybody to those nodes.")),
        (false, true, Some(port)) => Judgement::info(format!(
            "{here} Port {port} tells load balancers so, and they go elsewhere; it was asked for."
        )),
        (false, true, None) => Judgement::warning(format!("{here} No health port tells load balancers so.")),
        (false, false, _) => {
            Judgement::warning(format!("{here} Who dials this node from outside waits in vain."))
        }
    };
    judgement
        .with("nodes_with_endpoints", nodes_json(&nodes))
        .remedy(
            Remedy::disruptive(
                "Set externalTrafficPolicy to Cluster; pods then see the node's address, not the client's.",
            )
            .with_command(Command::set_field(case.name(), "externalTrafficPolicy", "Cluster")),
        )
        .remedy(spread_remedy())
}

pub(super) fn check_local_draining(case: &Case<'_>) -> Judgement {
    match case.ports().any(|port| port.local_used && port.rows.is_draining(Scope::Local)) {
        false => Judgement::ok("It does not rely on terminating endpoints here."),
        true => Judgement::warning(
            "Only terminating endpoints are left on this node: they still serve, and load balancers are told to leave.",
        )
        .remedy(Remedy::safe("Wait for the rollout, or look why no new pod starts on this node.")),
    }
}

pub(super) fn check_topology(case: &Case<'_>) -> Judgement {
    let endpoints = case.endpoints();
    let ready = || endpoints.values().filter(|it| it.conditions.ready);
    let with_hints = ready().filter(|it| it.hints.is_some()).count();
    let all = ready().count();
    if with_hints == 0 {
        return Judgement::ok("No hints narrow down the endpoints.");
    }
    if with_hints < all {
        return Judgement::warning(format!(
            "Hints are ignored, because {} of {} have none: traffic crosses zones.",
            all - with_hints,
            format_count(all, "endpoint")
        ))
        .remedy(Remedy::safe(
            "Look at the Event TopologyAwareHintsDisabled of the Service, which says why.",
        ));
    }
    let left_out = |port: &PortView| {
        port.rows.iter().filter(|row| port.unused_reason(row) == Some(UnusedReason::Zone)).count()
    };
    match case.ports().map(left_out).max().unwrap_or(0) {
        0 => Judgement::ok("Hints exclude no endpoint here."),
        out => Judgement::info(format!(
            "Hints keep {} of {} for this node.",
            all.saturating_sub(out),
            format_count(all, "endpoint")
        )),
    }
}

pub(super) fn check_affinity(case: &Case<'_>) -> Judgement {
    let Some((facts, seconds)) = case.facts().and_then(|it| Some((it, it.affinity_timeout?))) else {
        return Judgement::ok("No client is bound to a backend.");
    };
    let prefixes = facts.affinity_prefixes().filter(|it| *it != Prefixes::WHOLE);
    let who = prefixes.map_or_else(
        || "A client keeps its".to_owned(),
        |it| format!("All clients of a prefix ({it}) keep one"),
    );
    Judgement::info(format!("{who} backend for {seconds} s, each port for itself (ClientIP)."))
        .with("seconds", seconds)
}

/// What to do about clients that no source range has. It may be meant, so the owner is asked first.
pub(super) fn build_admission_remedies(case: &Case<'_>) -> Vec<Remedy> {
    let ask = "Ask whether the client is meant to come in, and whether that address is its own: a NAT on the way shows \
               another one.";
    let object = case.view().map_or_else(|| format!("Service {}", case.name()), describe_object);
    let ranges = case.facts().map(|facts| join_names(&facts.source_ranges)).unwrap_or_default();
    let admit = format!(
        "If the client is meant to come in, add a range that has it to `loadBalancerSourceRanges` of {object} (now \
         {ranges}): that changes who gets in."
    );
    vec![Remedy::safe(ask), Remedy::disruptive(admit)]
}

/// Whether the source ranges keep this client out of the load balancer's addresses.
pub(super) fn is_kept_out(case: &Case<'_>, client: IpAddr) -> bool {
    let ranges = case.facts().into_iter().flat_map(|facts| &facts.source_ranges);
    let ranges = ranges.filter_map(|text| SourceRange::parse(text));
    let of_family: Vec<SourceRange> =
        ranges.filter(|range| range.family() == Family::from_address(client)).collect();
    case.is_load_balancer() && !of_family.is_empty() && !of_family.iter().any(|range| range.contains(client))
}

pub(super) fn check_source_ranges(case: &Case<'_>) -> Judgement {
    let Some(facts) = case.facts().filter(|facts| !facts.source_ranges.is_empty()) else {
        return Judgement::ok("No source range keeps a client out.");
    };
    let read: Vec<Option<SourceRange>> =
        facts.source_ranges.iter().map(|text| SourceRange::parse(text)).collect();
    if read.iter().any(Option::is_none) {
        let bad =
            facts.source_ranges.iter().zip(&read).filter(|(_, range)| range.is_none()).map(|(text, _)| text);
        return Judgement::warning(format!("Not a range of addresses: {}.", join_names(bad))).remedy(
            Remedy::disruptive(
                "Write ranges such as 10.0.0.0/8 in loadBalancerSourceRanges: that changes who gets in.",
            ),
        );
    }
    if let Some(client) = case.scope().client.filter(|client| is_kept_out(case, *client)) {
        let ranges = join_names(&facts.source_ranges);
        if case.may_dial_here(client) {
            return Judgement::info(format!(
                "{client} is in none of the source ranges ({ranges}), which keep out packets that come from outside. \
                 Processes and pods of this node are served at their sockets, and get in."
            ));
        }
        return Judgement::warning(format!(
            "{client} is in none of the source ranges ({ranges}): its packets to the load balancer's addresses are \
             dropped, unless it is a pod of this node."
        ))
        .with("client", client.to_string())
        .remedies(build_admission_remedies(case));
    }
    let ranged: BTreeSet<Family> =
        read.iter().flatten().map(|range| Family::from_address(range.address())).collect();
    let open: Vec<&str> = case.families().difference(&ranged).map(|family| family.as_str()).collect();
    match open.is_empty() {
        true => {
            Judgement::info(format!("Its load balancer is for {} alone.", join_names(&facts.source_ranges)))
        }
        false => Judgement::warning(format!(
            "No source range is of {}: that family is open to everybody.",
            open.join(" and ")
        ))
        .with("open", json!(open))
        .remedy(Remedy::disruptive(
            "Add a range of that family to loadBalancerSourceRanges: that changes who gets in.",
        )),
    }
}

pub(super) fn check_publish_not_ready(case: &Case<'_>) -> Judgement {
    let Some(seen) = case.api_service() else {
        return judge_unavailable(case.service_lookup(), "Whether it publishes pods that are not ready");
    };
    match seen.publishes_not_ready {
        false => Judgement::ok("Only ready pods get traffic."),
        true => Judgement::info(
            "Pods that are not ready get traffic too, because publishNotReadyAddresses says so.",
        ),
    }
}
