//! `/metrics` at kube-proxy's port: those of kube-proxy's metrics that have a true value here.
//!
//! Invariant: no number is invented. A metric without a meaning here is left out, and none of holdfast's own is
//! added. A step of the engine serves both families, so only metrics counted by family have a family label.

use std::collections::BTreeMap;

use holdfast_core::facts::TrafficPolicy;
use holdfast_core::keys::Family;
use holdfast_core::snapshot::{PortView, ServiceView, Snapshot};
use holdfast_status::rfc3339::Millis;

use super::health_requests::{AnswerCounts, HealthRequests};
use super::local::is_local_row;
use crate::engine::steps::StepMetrics;
use crate::exposition::{Exposition, process};
use crate::readings::Readings;
use holdfast_kubernetes::source::Resource;

pub(super) fn render_metrics(readings: &Readings, requests: &HealthRequests) -> String {
    let mut out = Exposition::default();
    write_steps(&mut out, &readings.liveness.steps);
    write_programming_latency(&mut out, readings);
    write_changes(&mut out, readings);
    write_nonlocal_ports(&mut out, &readings.snapshot());
    write_answers(
        &mut out,
        "kubeproxy_proxy_healthz_total",
        "Cumulative proxy healthz HTTP status",
        &requests.healthz,
    );
    write_answers(
        &mut out,
        "kubeproxy_proxy_livez_total",
        "Cumulative proxy livez HTTP status",
        &requests.livez,
    );
    process::write(&mut out, readings.about.started);
    out.into_text()
}

fn write_steps(out: &mut Exposition, steps: &StepMetrics) {
    let name = "kubeproxy_sync_proxy_rules_duration_seconds";
    out.histogram(name, "SyncProxyRules latency in seconds", &steps.durations);
    let help = "The last time proxy rules were successfully synced";
    out.gauge(
        "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
        help,
        format_seconds(steps.last_caught_up()),
    );
    let help = "The last time a sync of proxy rules was queued";
    out.gauge(
        "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
        help,
        format_seconds(steps.last_events()),
    );
}

fn format_seconds(Millis(milliseconds): Millis) -> String {
    format!("{}.{:03}", milliseconds.div_euclid(1000), milliseconds.rem_euclid(1000))
}

/// The latency from an endpoint's change to the maps; nothing without an apiserver.
fn write_programming_latency(out: &mut Exposition, readings: &Readings) {
    if !readings.watches.current().is_empty() {
        let name = "kubeproxy_network_programming_duration_seconds";
        let help = "In Cluster Network Programming Latency in seconds";
        let steps = &readings.liveness.steps;
        out.histogram_by(name, help, "ip_family", steps.programming_latency.by_family());
    }
}

/// Changes from the apiserver; nothing without one.
fn write_changes(out: &mut Exposition, readings: &Readings) {
    let named = [
        (Resource::Slices, "kubeproxy_sync_proxy_rules_endpoint_changes_total", "Endpoint"),
        (Resource::Services, "kubeproxy_sync_proxy_rules_service_changes_total", "Service"),
    ];
    let watches = readings.watches.current();
    for (what, name, kind) in named {
        if let Some(watch) = watches.iter().find(|watch| watch.what == what) {
            out.counter(name, &format!("Cumulative proxy rules {kind} changes"), watch.events);
        }
    }
}

/// Counts ports that have a Local traffic policy, and all their endpoints on other nodes.
fn write_nonlocal_ports(out: &mut Exposition, snapshot: &Snapshot) {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let kinds = ["internal", "external"];
    for key in kinds.into_iter().flat_map(|kind| Family::ALL.map(|family| (kind, family.as_str()))) {
        counts.insert(key, 0);
    }
    for view in snapshot.services.iter() {
        for family in Family::ALL {
            let lacking = count_nonlocal_ports(view, family, &snapshot.node.name);
            for (kind, lacks) in kinds.into_iter().zip(lacking) {
                *counts.entry((kind, family.as_str())).or_default() += lacks;
            }
        }
    }
    let name = "kubeproxy_sync_proxy_rules_no_local_endpoints_total";
    out.begin(name, "gauge", "Number of services with a Local traffic policy and no endpoints");
    for ((policy, family), count) in counts {
        out.sample(name, &[("traffic_policy", policy), ("ip_family", family)], count);
    }
}

/// How many ports of a service lack local endpoints, by its internal and by its external policy. kube-proxy calls
/// each port of each family a service.
fn count_nonlocal_ports(view: &ServiceView, family: Family, node: &str) -> [usize; 2] {
    let Some(facts) = &view.facts else { return [0; 2] };
    let balanced = facts.ingress.iter().filter(|it| !it.proxied).map(|it| it.address);
    let mut outer = balanced.chain(facts.external_ips.iter().copied());
    let is_outer = outer.any(|address| Family::from_address(address) == family);
    let has_external = |port: &PortView| {
        is_outer || facts.ports.iter().any(|it| it.name == port.key.name && it.node_port.is_some())
    };
    let is_local = [facts.internal_policy, facts.external_policy].map(|it| it == TrafficPolicy::Local);
    if is_local == [false; 2] {
        return [0; 2];
    }
    let lacks: Vec<&PortView> = view
        .ports
        .iter()
        .filter(|port| port.key.family == family && is_remote_only(port, view, node))
        .collect();
    let [internal, external] = is_local;
    let outside = lacks.iter().filter(|port| has_external(port)).count();
    [if internal { lacks.len() } else { 0 }, if external { outside } else { 0 }]
}

/// Whether there are usable backends, all on other nodes.
fn is_remote_only(port: &PortView, view: &ServiceView, node: &str) -> bool {
    let usable = || {
        port.rows.iter().filter(|row| {
            let conditions = row.conditions();
            conditions.ready || (conditions.serving && conditions.terminating)
        })
    };
    usable().next().is_some() && !usable().any(|row| is_local_row(port, &row, &view.slices, node))
}

fn write_answers(out: &mut Exposition, name: &str, help: &str, answers: &AnswerCounts) {
    out.begin(name, "counter", help);
    for (code, count) in answers.totals() {
        out.sample(name, &[("code", code)], count);
    }
}
