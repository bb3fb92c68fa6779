//! EndpointSlices: whether they exist, fit the Service and lead to live nodes, and which controller writes them.
//!
//! Invariant: counts are of addresses, each once, as proxies count them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroU16;

use holdfast_core::facts::{AddressType, SliceFacts};
use holdfast_core::keys::{Family, Source};
use holdfast_core::lifecycle::{Severity, endpoints as lifecycle};
use holdfast_core::snapshot::Verdict;
use serde_json::json;

use super::selector;
use crate::case::{Case, judge_unavailable, missing_right_remedy};
use crate::command::{Command, CommandWord};
use crate::evidence::{Condition, Lease, ProbeOutcome};
use crate::finding::{Judgement, Remedy, State};
use crate::formatting::{clean, format_count, format_duration, join_names};
use crate::limits::NAMED_MAX;

/// A controller renews its lease every few seconds. The holder of an older lease is dead.
const LEASE_SECONDS: i64 = 60;

/// The longest time in which a change of a pod may reach this node's slice.
const LAG_SECONDS: i64 = 60;

/// A remedy that makes the controller rewrite its slices: a harmless change of the Service itself. The value differs
/// each time, because the same value would change nothing.
pub(super) fn touch_service_remedy(case: &Case<'_>) -> Remedy {
    if case.source().is_some_and(|source| source != Source::Kubernetes) {
        return Remedy::safe("Write an EndpointSlice for it: no controller does for this source.");
    }
    let words = [
        CommandWord::Literal("annotate"),
        CommandWord::Literal("service"),
        CommandWord::Name(case.name().name()),
        CommandWord::Literal("--overwrite"),
        CommandWord::Pair("holdfast.io/nudge", case.taken_at().0.unsigned_abs()),
    ];
    Remedy::safe("Touch the Service, so that the controller writes its slices anew.")
        .with_command(Command::kubectl(case.namespace(), &words))
}

pub(super) fn restart_controller_remedy() -> Remedy {
    Remedy::disruptive("Restart kube-controller-manager on the node that holds its lease.")
}

pub(super) fn check_exist(case: &Case<'_>) -> Judgement {
    let number = case.all_slices().count();
    if case.source() == Some(Source::Config) {
        return Judgement::not_applicable("Its [[service]] block lists its backends.");
    }
    if number > 0 {
        return Judgement::ok(format!("{} of it.", describe_slices(number))).with("slices", number);
    }
    if case.selector().is_some_and(BTreeMap::is_empty) {
        return Judgement::not_applicable("It has no selector; see svc.selector.");
    }
    if case.source() == Some(Source::Manifests) {
        return judge_unlisted_manifest(case);
    }
    match case.pods().map(|pods| pods.list.len()) {
        Some(0) => Judgement::error("No EndpointSlice has its name, and no pod matches its selector.")
            .remedy(Remedy::safe("See pods.match.")),
        Some(pods) => Judgement::error(format!(
            "No EndpointSlice has its name, although {} its selector.",
            describe_matching_pods(pods)
        ))
        .remedy(touch_service_remedy(case))
        .remedy(restart_controller_remedy()),
        None => {
            Judgement::error("No EndpointSlice has its name.").likely().remedy(touch_service_remedy(case))
        }
    }
}

/// Judges a Service of a manifest without a slice: nothing finds its pods by its selector there.
fn judge_unlisted_manifest(case: &Case<'_>) -> Judgement {
    let origin = case.facts().and_then(|facts| facts.meta.origin.as_deref());
    let origin = origin.map(|origin| format!(" ({})", clean(origin))).unwrap_or_default();
    let name = case.name().name();
    let selector = selector::describe_manifest_selector(case);
    let selector = selector.map(|it| format!(" {it}")).unwrap_or_default();
    Judgement::error(format!(
        "The manifests{origin} have no EndpointSlice of {}. In manifests, only an EndpointSlice gives a service its \
         backends; a selector gives it none.{selector}",
        case.name()
    ))
    .remedy(Remedy::safe(format!(
        "Write an EndpointSlice with the label kubernetes.io/service-name={name} and the addresses of its pods into the \
         manifests{origin}. holdfast reads it at once."
    )))
}

fn describe_slices(number: usize) -> String {
    format!("There {} {}", if number == 1 { "is" } else { "are" }, format_count(number, "EndpointSlice"))
}

fn describe_matching_pods(number: usize) -> String {
    format!("{} {}", format_count(number, "pod"), if number == 1 { "matches" } else { "match" })
}

pub(super) fn check_counts(case: &Case<'_>) -> Judgement {
    let counts = case.counts();
    let ready = counts.ready;
    let total = counts.total();
    let is_held = case.frontends().any(|it| it.verdict == Verdict::Held);
    let judgement = match (ready, counts.serving, total) {
        (0, 0, _) if is_held => Judgement::warning("No endpoint of it is ready, and its last list is held."),
        (0, 0, 0) => Judgement::error("No endpoint is listed."),
        (0, 0, _) => Judgement::error(format!(
            "None of {} is ready.{}",
            format_count(total, "endpoint"),
            describe_manifest_conditions(case)
        )),
        (0, serving, _) => {
            Judgement::warning(format!("Only terminating endpoints are left: {serving} that still answer."))
        }
        _ if ready * 2 < total => {
            Judgement::warning(format!("Only {ready} of {} are ready.", format_count(total, "endpoint")))
        }
        _ => Judgement::ok(format!("{ready} of {} ready.", format_count(total, "endpoint"))),
    };
    let judgement = judgement
        .with("ready", ready)
        .with("serving", counts.serving)
        .with("terminating", counts.terminating)
        .with("unready", counts.unready);
    let remedies = missing_right_remedy(case.pods_lookup()).into_iter().chain([see_endpoints_remedy(case)]);
    let judgement = if judgement.state.is_trouble() { judgement.remedies(remedies) } else { judgement };
    match (case.pods(), judgement.state) {
        (None, State::Error) if has_pods(case) => {
            judgement.likely().with("missing", "pods: they would say why")
        }
        _ => judgement,
    }
}

/// What manifests say of unready endpoints, and which of these answer nonetheless.
fn describe_manifest_conditions(case: &Case<'_>) -> String {
    if case.source() != Some(Source::Manifests) {
        return String::new();
    }
    let answering: Vec<_> =
        case.probes().filter(|it| it.outcome == ProbeOutcome::Connected).map(|it| it.to).collect();
    let answers = match answering.len() {
        0 => String::new(),
        1 => format!(" {} takes connections nonetheless.", join_names(&answering)),
        _ => format!(" {} take connections nonetheless.", join_names(&answering)),
    };
    let unready = case.endpoints().into_iter().filter(|(_, it)| !it.conditions.ready).map(|(at, _)| at);
    format!(" {} has `ready: false` for {}.{answers}", name_manifest_slices(case), join_names(unready))
}

/// What to write into the slices of manifests, by which of their unready endpoints take connections.
fn describe_ready_edit(case: &Case<'_>) -> String {
    let slices = name_manifest_slices(case);
    let unready: BTreeSet<IpAddr> =
        case.endpoints().into_iter().filter(|(_, it)| !it.conditions.ready).map(|(at, _)| at).collect();
    let at = |is_up: bool| -> BTreeSet<IpAddr> {
        let met = case.probes().filter(|it| (it.outcome == ProbeOutcome::Connected) == is_up);
        met.map(|it| it.to.ip()).filter(|at| unready.contains(at)).collect()
    };
    let (up, down) = (at(true), at(false));
    let down: BTreeSet<IpAddr> = down.difference(&up).copied().collect();
    match (up.is_empty(), down.is_empty()) {
        (false, true) => {
            format!("Set `ready: true` for {} in {slices}, if the application there is well.", join_names(up))
        }
        (false, false) => {
            let (pronoun, verb) =
                if down.len() == 1 { ("it is", "it takes") } else { ("they are", "they take") };
            format!(
                "Set `ready: true` for {} in {slices}, if the application there is well. Leave {} as {pronoun}: {verb} \
                 no connection.",
                join_names(up),
                join_names(down)
            )
        }
        (true, false) => {
            format!("Start the process at {}, then set `ready: true` for it in {slices}.", join_names(down))
        }
        (true, true) => format!("Set `ready: true` in {slices} for each endpoint that is well."),
    }
}

/// The slices of manifests, each with its file.
pub(super) fn name_manifest_slices(case: &Case<'_>) -> String {
    let shown = |slice: &SliceFacts| {
        let origin = slice.meta.origin.as_deref().map(|origin| format!(" ({})", clean(origin)));
        format!("EndpointSlice {}{}", slice.key.name, origin.unwrap_or_default())
    };
    let named: Vec<String> = case.all_slices().map(shown).collect();
    if named.is_empty() { "the manifests' EndpointSlices".to_owned() } else { join_names(named) }
}

/// Whether pods are behind it, which an apiserver knows.
fn has_pods(case: &Case<'_>) -> bool {
    !matches!(case.source(), Some(Source::Config | Source::Manifests))
}

/// Where to look for why endpoints are missing or unready. Only an apiserver knows pods.
pub(super) fn see_endpoints_remedy(case: &Case<'_>) -> Remedy {
    if case.source() == Some(Source::Manifests) {
        // Clients get what is ready.
        return Remedy::disruptive(describe_ready_edit(case));
    }
    Remedy::safe(match case.source() {
        Some(Source::Config) => {
            format!(
                "`holdfast backends {}` says why each backend of its [[service]] block gets no client.",
                case.name()
            )
        }
        _ => "See the findings on pods: which should be behind it, and why they are not ready.".to_owned(),
    })
}

pub(super) fn check_port_name(case: &Case<'_>) -> Judgement {
    let Some(facts) = case.facts() else { return Judgement::not_applicable("Its ports are not known.") };
    let offered: BTreeSet<_> = case
        .slices()
        .flat_map(|slice| slice.ports.iter())
        .map(|port| (&*port.name, port.protocol.as_str()))
        .collect();
    if offered.is_empty() {
        return judge_without_ports(case);
    }
    let lacks = |name: &str, protocol: &str| !offered.contains(&(name, protocol));
    let lacking = facts.ports.iter().filter(|port| lacks(&port.name, port.protocol.as_str()));
    let lacking: Vec<String> = lacking.map(|port| format!("{:?}/{}", &*port.name, port.protocol)).collect();
    match lacking.is_empty() {
        true => Judgement::ok("Every port has its counterpart in a slice."),
        false => Judgement::error(format!(
            "No slice has a port named {}; names and protocols must be equal.",
            join_names(&lacking)
        ))
        .with("ports", json!(lacking.iter().take(NAMED_MAX).collect::<Vec<_>>()))
        .remedy(Remedy::safe("Give the ports of hand-written slices the names of the Service's ports."))
        .remedy(Remedy::safe("If the target port has a name, see pods.named-port.")),
    }
}

/// Judges slices without ports. The controller writes them if a pod has no port with targetPort's name. Each slice
/// shows that by itself, even if this node may not list pods.
fn judge_without_ports(case: &Case<'_>) -> Judgement {
    let full = case.slices().find(|slice| !slice.endpoints.is_empty() && !slice.headless);
    let is_asked = case.facts().is_some_and(|facts| !facts.ports.is_empty());
    let Some(slice) = full.filter(|_| is_asked) else {
        return Judgement::not_applicable("No slice has a port to compare with.");
    };
    let endpoints = format_count(slice.endpoints.len(), "endpoint");
    Judgement::error(format!(
        "EndpointSlice {} has {endpoints} and no port: its targetPort names no port of the pods.",
        slice.key.name
    ))
    .remedy(Remedy::safe(
        "Give the pods' container a port of the name that targetPort says, or write its number there.",
    ))
    .remedy(Remedy::safe("If another controller writes its slices, give them the Service's ports."))
}

pub(super) fn check_family(case: &Case<'_>) -> Judgement {
    let wanted = case.families();
    let have = AddressTypes::from_slices(case.slices().map(|slice| slice.address_type));
    if have.families.is_empty() && !have.fqdn {
        return Judgement::not_applicable("There is no slice.");
    }
    let lacking: Vec<&str> =
        wanted.iter().filter(|it| !have.families.contains(it)).map(|it| it.as_str()).collect();
    match (lacking.is_empty(), have.fqdn) {
        (true, false) => Judgement::ok("There are slices for each of its families."),
        (true, true) => Judgement::info("Slices of host names are left alone, as by every proxy."),
        (false, _) => Judgement::warning(format!(
            "No slice has {} addresses: its cluster IP of that family has no backend.",
            lacking.join(" and ")
        ))
        .with("lacking", json!(lacking))
        .remedy(Remedy::safe("Look whether the pods have addresses of that family.")),
    }
}

#[derive(Default)]
struct AddressTypes {
    families: BTreeSet<Family>,
    fqdn: bool,
}

impl AddressTypes {
    fn from_slices(all: impl Iterator<Item = AddressType>) -> Self {
        let mut types = Self::default();
        for it in all {
            match it {
                AddressType::Ip(family) => {
                    types.families.insert(family);
                }
                AddressType::Fqdn => types.fqdn = true,
            }
        }
        types
    }
}

pub(super) fn check_lag(case: &Case<'_>) -> Judgement {
    let Some(slices) = case.slices_lookup().answer() else {
        return judge_unavailable(case.slices_lookup(), "How fast news of slices comes");
    };
    let known = |name: &str| case.all_slices().find(|it| it.key.name.name() == name);
    let behind = slices.iter().filter(|slice| {
        let version = known(&slice.name).and_then(|it| it.meta.resource_version.as_deref());
        version.is_some_and(|version| version != slice.resource_version)
    });
    let oldest = behind.filter_map(|slice| slice.triggered).map(|triggered| case.age(triggered)).max();
    match oldest {
        Some(age) if age > LAG_SECONDS => Judgement::warning(format!(
            "A change of {} ago has reached the apiserver and not this node.",
            format_duration(age)
        ))
        .with("seconds", age)
        .remedy(Remedy::safe("See self.watch and self.control.")),
        _ => Judgement::ok("What the apiserver has of its slices has come."),
    }
}

/// The remedy where a backend at the loopback has clients that are not on this host.
pub(super) const LISTEN_AT_THE_NODE: &str =
    "If clients are elsewhere, let the backend listen at an address of the node, and name that one.";

/// Whether all backends are at this host's loopback.
pub(crate) fn serves_only_this_host(case: &Case<'_>) -> bool {
    let endpoints = case.endpoints();
    !endpoints.is_empty() && endpoints.keys().all(IpAddr::is_loopback)
}

/// The programs give a packet the backend's address before the kernel routes it, and the kernel routes none from a
/// device to the loopback.
pub(super) fn check_loopback(case: &Case<'_>) -> Judgement {
    let looped: BTreeSet<IpAddr> = case.endpoints().into_keys().filter(IpAddr::is_loopback).collect();
    if looped.is_empty() {
        return Judgement::ok("No endpoint has an address of the loopback.");
    }
    let unless = match looped.iter().any(IpAddr::is_ipv4) {
        true => ", unless `route_localnet` of that device is 1",
        false => "",
    };
    Judgement::info(format!(
        "Only processes in this host's own network reach {}: pods have a loopback of their own, and the kernel drops \
         packets that come by a device and go to the loopback{unless}.",
        join_names(&looped)
    ))
    .remedy(Remedy::safe(LISTEN_AT_THE_NODE))
}

pub(super) fn check_duplicates(case: &Case<'_>) -> Judgement {
    let mut places: BTreeMap<(IpAddr, NonZeroU16), usize> = BTreeMap::new();
    for slice in case.slices() {
        for (endpoint, port) in
            slice.endpoints.iter().flat_map(|it| slice.ports.iter().map(move |at| (it, at)))
        {
            *places.entry((endpoint.address, port.port)).or_default() += 1;
        }
    }
    let twice = places.into_iter().filter(|(_, times)| *times > 1).map(|((address, _), _)| address);
    let twice: BTreeSet<IpAddr> = twice.collect();
    if twice.is_empty() {
        return Judgement::ok("No address is listed twice.");
    }
    let lasting = case.view().and_then(|view| lifecycle::find_duplicates(&view.slices, case.taken_at()));
    let judgement = match lasting {
        None => Judgement::info(format!(
            "Listed twice, which is legal while endpoints move between slices: {}.",
            join_names(&twice)
        )),
        Some(found) => Judgement::error_if(
            found.severity == Severity::Error,
            format!(
                "Listed twice for longer than a move takes: {}.",
                join_names(found.evidence.iter().filter_map(|it| it.address))
            ),
        )
        .remedy(Remedy::safe("Find the writer of each of the two slices; see slices.manager."))
        .remedy(touch_service_remedy(case)),
    };
    judgement.with("addresses", json!(twice.iter().take(NAMED_MAX).collect::<Vec<_>>()))
}

pub(super) fn check_manager(case: &Case<'_>) -> Judgement {
    let Some(slices) = case.slices_lookup().answer() else {
        return judge_unavailable(case.slices_lookup(), "Who writes its slices");
    };
    let managers: BTreeSet<&str> =
        slices.iter().map(|slice| slice.manager.as_deref().unwrap_or("a writer without a label")).collect();
    let all = join_names(&managers);
    match managers.first() {
        _ if managers.len() > 1 => Judgement::warning(format!("Its slices have several writers: {all}."))
            .with("managers", json!(managers.iter().take(NAMED_MAX).collect::<Vec<_>>()))
            .remedy(Remedy::safe("Leave one of them to write slices for this Service.")),
        Some(&"endpointslice-controller.k8s.io") => {
            Judgement::ok("Its slices are written by Kubernetes' controller.")
        }
        Some(&"endpointslicemirroring-controller.k8s.io") => {
            Judgement::info("Its slices mirror an Endpoints object of another writer.")
        }
        Some(other) => Judgement::info(format!("Its slices are written by {other}.")),
        None => Judgement::not_applicable("There is no slice."),
    }
}

pub(super) fn check_hidden(case: &Case<'_>) -> Judgement {
    let is_normal = case.is_served_here();
    let slices = case.all_slices();
    let hidden: Vec<&str> =
        slices.filter(|slice| slice.headless).map(|slice| slice.key.name.name()).collect();
    match hidden.is_empty() || !is_normal {
        true => Judgement::ok("No slice of it is hidden from proxies."),
        false => Judgement::error(format!(
            "The label service.kubernetes.io/headless hides {} from every proxy: {}.",
            format_count(hidden.len(), "slice"),
            join_names(&hidden)
        ))
        .with("slices", json!(hidden.iter().take(NAMED_MAX).collect::<Vec<_>>()))
        .remedy(Remedy::disruptive(
            "Remove the label; Kubernetes' controller does it when the Service is touched.",
        ))
        .remedy(touch_service_remedy(case)),
    }
}

pub(super) fn check_truncated(case: &Case<'_>) -> Judgement {
    let Some(endpoints) = case.endpoints_lookup().answer() else {
        return judge_unavailable(case.endpoints_lookup(), "Its Endpoints object");
    };
    let over = endpoints.as_ref().and_then(|it| it.over_capacity.as_deref());
    match over {
        None => Judgement::ok("The Endpoints object is whole, or there is none."),
        Some(how) => Judgement::warning(format!(
            "The Endpoints object is {how}: who reads Endpoints sees 1000 addresses, who reads slices all."
        ))
        .remedy(Remedy::safe("Have its readers read EndpointSlices. This node does.")),
    }
}

pub(super) fn check_handmade(case: &Case<'_>) -> Judgement {
    let Some(endpoints) = case.endpoints_lookup().answer() else {
        return judge_unavailable(case.endpoints_lookup(), "Its Endpoints object");
    };
    let has_selector = case.selector().is_some_and(|selector| !selector.is_empty());
    match endpoints {
        Some(it) if !it.by_controller && has_selector => Judgement::warning(
            "An Endpoints object of its name was written by hand, although the Service has a selector: \
             Kubernetes' controller cannot create its own.",
        )
        .remedy(
            Remedy::disruptive("Delete the Endpoints object; the controller writes it anew.").with_command(
                Command::kubectl(
                    case.namespace(),
                    &[
                        CommandWord::Literal("delete"),
                        CommandWord::Literal("endpoints"),
                        CommandWord::Name(case.name().name()),
                    ],
                ),
            ),
        ),
        Some(_) | None => Judgement::ok("No other writer competes with the controller for its Endpoints."),
    }
}

pub(super) fn check_controller(case: &Case<'_>) -> Judgement {
    judge_lease(case, "kube-controller-manager")
}

/// Whether a controller renews its lease. Managed control planes hide their leases.
pub(super) fn judge_lease(case: &Case<'_>, name: &str) -> Judgement {
    if case.leases_lookup().answer().is_none() {
        return judge_unavailable(case.leases_lookup(), &format!("Whether {name} lives"));
    }
    let Some(Lease { holder, renewed, .. }) = case.lease(name) else {
        return Judgement::not_applicable(format!(
            "There is no lease of {name}, as with a managed control plane."
        ));
    };
    let Some(age) = renewed.map(|renewed| case.age(renewed)) else {
        return Judgement::not_applicable(format!("The lease of {name} was never renewed."));
    };
    let holder = holder.as_deref().unwrap_or("nobody");
    match age > LEASE_SECONDS {
        false => {
            Judgement::ok(format!("{name} lives: {holder} renewed its lease {} ago.", format_duration(age)))
        }
        true => Judgement::error(format!(
            "{name} does not live: {holder} renewed its lease {} ago.",
            format_duration(age)
        ))
        .with("holder", holder)
        .with("seconds", age)
        .likely()
        .remedy(Remedy::safe(format!("Start {name}, and read its log: nobody else does its work."))),
    }
}

pub(super) fn check_nodes(case: &Case<'_>) -> Judgement {
    let Some(nodes) = case.nodes_lookup().answer() else {
        return judge_unavailable(case.nodes_lookup(), "Whether the nodes of endpoints are ready");
    };
    let on = case.endpoints().into_values().filter_map(|it| it.node);
    let names: BTreeSet<String> = on.map(|node| node.to_string()).collect();
    let used: Vec<_> = nodes.iter().filter(|node| names.contains(&node.name)).collect();
    let unasked: Vec<&String> = case.unqueried_nodes().iter().filter(|name| names.contains(*name)).collect();
    if used.is_empty() && unasked.is_empty() {
        return Judgement::not_applicable("No endpoint says on which node it is, or none of those was read.");
    }
    let is_bad = |ready: &Option<Condition>| ready.as_ref().is_none_or(|it| !it.is_true);
    let bad: Vec<&str> = used
        .iter()
        .filter(|node| !node.exists || is_bad(&node.ready))
        .map(|node| node.name.as_str())
        .collect();
    let not_asked = match unasked.len() {
        0 => String::new(),
        number => format!(" {number} more of them have no label, and were not queried one by one."),
    };
    if bad.is_empty() {
        let sentence = format!("{} of its endpoints ready.{not_asked}", format_count(used.len(), "node"));
        return if unasked.is_empty() { Judgement::ok(sentence) } else { Judgement::unknown(sentence) };
    }
    Judgement::error_if(
        bad.len() + unasked.len() == names.len(),
        format!("Not ready of the nodes of its endpoints: {}.{not_asked}", join_names(&bad)),
    )
    .with("nodes", json!(bad.iter().take(NAMED_MAX).collect::<Vec<_>>()))
    .with("not_asked", unasked.len())
    .remedy(Remedy::safe("Look at the node: kubelet, container runtime, network.").with_command(
        bad.first().and_then(|node| {
            Command::from_words(&[
                CommandWord::Literal("kubectl"),
                CommandWord::Literal("describe"),
                CommandWord::Literal("node"),
                CommandWord::Name(node),
            ])
        }),
    ))
}
