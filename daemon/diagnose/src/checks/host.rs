//! This host: other users of the Service's ports, and the kernel's settings.
//!
//! Invariant: a part that could not be read is unknown. Process names are shown, never used.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::facts::NodeFacts;
use holdfast_core::keys::Family;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::FrontendView;
use serde_json::json;

use crate::case::{Case, judge_unavailable};
use crate::command::{Command, CommandWord};
use crate::evidence::{HostPort, Listener};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_count, join_names};
use crate::limits::NAMED_MAX;
use crate::node_ports::describe_node_port_listener;
use holdfast_status::views::node_ports::NodePortListener;

/// The percentage at which the conntrack table counts as full. A full table drops new connections.
const CONNTRACK_PERCENT: u64 = 80;

fn list_node_ports(case: &Case<'_>) -> BTreeSet<(u16, String)> {
    case.frontends_with_type(FrontendType::NodePort)
        .map(|it| (it.port.get(), it.protocol.to_string()))
        .collect()
}

pub(super) fn check_node_port_addresses(case: &Case<'_>) -> Judgement {
    let ports = list_node_ports(case);
    if ports.is_empty() {
        return Judgement::not_applicable("It has no node port.");
    }
    let served: BTreeSet<Family> = case
        .frontends_with_type(FrontendType::NodePort)
        .filter(|it| it.verdict.is_in_maps())
        .map(|it| Family::from_address(it.address))
        .collect();
    if served.is_empty() {
        return Judgement::not_applicable("None of its node ports is in the maps; `verdict` says why.");
    }
    let node = &case.table().node;
    let at = |family: &Family| list_answering_addresses(node, *family);
    let silent: Vec<_> = served.iter().filter(|family| at(family).is_empty()).map(|it| it.as_str()).collect();
    let all: Vec<String> = served.iter().flat_map(at).collect();
    let remedy = Remedy::safe("Look at `node_port_addresses` of the configuration.");
    match (all.is_empty(), silent.first()) {
        (true, _) => Judgement::error("No address of this node answers its node ports.").remedy(remedy),
        (false, None) => Judgement::ok(format!("Its node ports answer at {}.", join_names(all))),
        (false, Some(silent)) => Judgement::info(format!(
            "Its node ports answer at {}, and at no address of {silent}.",
            join_names(all)
        ))
        .remedy(remedy),
    }
}

/// Addresses of a family at which node ports answer. Loopback appears as its whole range.
fn list_answering_addresses(node: &NodeFacts, family: Family) -> Vec<String> {
    let outer = node.external_addresses().filter(|address| Family::from_address(*address) == family);
    let looped = node.has_node_ports_at(family.loopback_address()).then(|| match family {
        Family::V4 => "127.0.0.0/8 (this host's own processes)".to_owned(),
        Family::V6 => "::1 (this host's own processes)".to_owned(),
    });
    outer.map(|address| address.to_string()).chain(looped).collect()
}

pub(super) fn check_listener(case: &Case<'_>) -> Judgement {
    let ports = list_node_ports(case);
    if ports.is_empty() {
        return Judgement::not_applicable("It has no node port.");
    }
    let known: Vec<Listener>;
    let listeners = match case.listeners().answer() {
        Some(listeners) => listeners,
        None => {
            let of_it = |it: &&NodePortListener| it.service == *case.name();
            known = case.node_port_listeners().iter().filter(of_it).map(Listener::from).collect();
            if known.is_empty() {
                return judge_unavailable(case.listeners(), "Which processes listen on its node ports");
            }
            &known
        }
    };
    let families: BTreeSet<Family> =
        case.frontends_with_type(FrontendType::NodePort).map(|it| Family::from_address(it.address)).collect();
    let conflicts = |it: &&Listener| {
        !it.own
            && ports.contains(&(it.port, it.protocol.clone()))
            && families.contains(&Family::from_address(it.address))
    };
    let node = &case.table().node;
    let found: Vec<&Listener> = listeners.iter().filter(conflicts).collect();
    let sharing = found.iter().find(|it| node.takes_node_port_clients(it.address));
    let Some(first) = sharing.or_else(|| found.first()) else {
        return Judgement::ok("No other process listens on its node ports.");
    };
    let text = format!("{}.", describe_node_port_listener(node, case.name(), first));
    let judgement = match sharing.is_some() {
        true => Judgement::warning(text).remedies(build_listener_remedies(node, first)),
        // It takes no client of an address that answers node ports.
        false => Judgement::info(text),
    };
    judgement
        .with("listeners", found.len())
        .with("process", first.process.as_deref().unwrap_or("an unknown process"))
        .with("port", first.port)
}

/// What to do about a process at a node port, the harmless steps first.
fn build_listener_remedies(node: &NodeFacts, listener: &Listener) -> Vec<Remedy> {
    let family = Family::from_address(listener.address);
    let answering = node.external_addresses().filter(|it| Family::from_address(*it) == family);
    let answering = join_names(answering);
    let mut remedies =
        vec![Remedy::safe("Look what that process is.").with_command(look_at_process(listener))];
    if !answering.is_empty() {
        remedies.push(Remedy::safe(format!(
            "Have clients dial {answering}: `node_port_addresses` of the configuration says which addresses answer node \
             ports."
        )));
    }
    remedies
        .push(Remedy::disruptive("Move the process to another port, or give the Service another nodePort."));
    remedies
}

/// The command that shows a process, or who listens at its port if the process is not known.
pub(super) fn look_at_process(listener: &Listener) -> Option<Command> {
    let words = match listener.pid {
        Some(pid) => {
            vec![CommandWord::Literal("ps"), CommandWord::Literal("-fp"), CommandWord::Number(pid.into())]
        }
        None => vec![
            CommandWord::Literal("ss"),
            CommandWord::Literal(if listener.protocol == "UDP" { "-lunp" } else { "-ltnp" }),
            CommandWord::Literal("sport"),
            CommandWord::Literal("="),
            CommandWord::Number(listener.port.into()),
        ],
    };
    Command::from_words(&words)
}

pub(super) fn check_ephemeral(case: &Case<'_>) -> Judgement {
    let ports = list_node_ports(case);
    if ports.is_empty() {
        return Judgement::not_applicable("It has no node port.");
    }
    let Some((first, last)) = case.port_range().answer() else {
        return judge_unavailable(case.port_range(), "Which ports the kernel assigns to connections");
    };
    let reserved = case.reserved().answer();
    let is_reserved =
        |port: u16| reserved.is_some_and(|all| all.iter().any(|(from, to)| (*from..=*to).contains(&port)));
    let inside = ports
        .iter()
        .map(|(port, _)| *port)
        .filter(|port| (*first..=*last).contains(port) && !is_reserved(*port));
    let inside: BTreeSet<u16> = inside.collect();
    match inside.is_empty() {
        true => Judgement::ok("The kernel assigns its node ports to no connection."),
        false => Judgement::warning(format!(
            "Node port {} is inside ip_local_port_range {first}-{last}: the kernel may assign it to a connection.",
            join_names(&inside)
        ))
        .with("ports", json!(inside.iter().take(NAMED_MAX).collect::<Vec<_>>()))
        .remedy(Remedy::safe("Reserve the range of node ports: net.ipv4.ip_local_reserved_ports = 30000-32767.")),
    }
}

pub(super) fn check_port_pods(case: &Case<'_>) -> Judgement {
    let mut ports = list_node_ports(case);
    let own: BTreeSet<_> = case.table().node.node_port_addresses.iter().copied().collect();
    let at_node = case.frontends().filter(|it| own.contains(&it.address));
    ports.extend(at_node.map(|it| (it.port.get(), it.protocol.to_string())));
    if ports.is_empty() {
        return Judgement::not_applicable("It has no port at an address of this node.");
    }
    let clashes = |it: &&HostPort| ports.contains(&(it.port, it.protocol.clone()));
    if let Some(hosted) = case.host_ports().answer() {
        let found: Vec<&HostPort> = hosted.iter().filter(clashes).collect();
        if let Some(first) = found.first() {
            return Judgement::error(format!(
                "Pod {} has host port {}/{}, which is a port of this Service at this node.",
                first.pod, first.port, first.protocol
            ))
            .with("pods", json!(found.iter().map(|it| &it.pod).take(NAMED_MAX).collect::<Vec<_>>()))
            .with("port", first.port)
            .remedy(Remedy::disruptive("Give the pod another host port, or the Service another port."));
        }
    }
    match (case.host_port_rules().answer(), case.host_ports().answer()) {
        (Some(rules), hosted) => {
            let is_taken = |rule: &u16| hosted.into_iter().flatten().any(|it| it.port == *rule);
            let stale: Vec<u16> = rules.iter().copied().filter(|rule| !is_taken(rule)).collect();
            judge_host_port_rules(&ports, &stale, hosted.is_some())
        }
        (None, Some(_)) => Judgement::ok("No pod on this node has one of its ports as host port."),
        (None, None) => judge_unavailable(case.host_ports(), "Host ports of pods on this node"),
    }
}

/// Judges rules for host ports that no pod has any more.
fn judge_host_port_rules(ports: &BTreeSet<(u16, String)>, rules: &[u16], pods_are_known: bool) -> Judgement {
    let stale: Vec<u16> =
        rules.iter().copied().filter(|rule| ports.iter().any(|(port, _)| port == rule)).collect();
    let Some(port) = stale.first() else {
        return Judgement::ok("No host port conflicts with its ports.");
    };
    let judgement = Judgement::error(format!(
        "Rules of the CNI plug-in redirect port {port} to a pod's host port{}.",
        if pods_are_known { ", and no pod has it any more" } else { "" }
    ))
    .with("ports", json!(stale.iter().take(NAMED_MAX).collect::<Vec<_>>()))
    .remedy(Remedy::disruptive(
        "Have the CNI plug-in remove them: delete the pod's sandbox that it left, or restart the node.",
    ));
    if pods_are_known { judgement } else { judgement.likely() }
}

/// Families of the backends beyond this host. Only these need forwarding.
fn forwarded_families(case: &Case<'_>) -> BTreeSet<Family> {
    let own = case.host_addresses().answer().map_or(&[][..], Vec::as_slice);
    let backends = case.backends().into_iter().map(|it| it.ip());
    backends.filter(|it| !it.is_loopback() && !own.contains(it)).map(Family::from_address).collect()
}

pub(super) fn check_sysctls(case: &Case<'_>) -> Judgement {
    if case.forwards().answer().is_none() {
        return judge_unavailable(case.forwards(), "Whether this host forwards");
    }
    let beyond = forwarded_families(case);
    for family in &beyond {
        let (forwards, setting) = match family {
            Family::V4 => (case.forwards(), "net.ipv4.ip_forward"),
            Family::V6 => (case.forwards6(), "net.ipv6.conf.all.forwarding"),
        };
        match forwards.answer() {
            None => return judge_unavailable(forwards, "Whether this host forwards"),
            Some(true) => {}
            Some(false) => {
                return Judgement::warning(format!(
                    "{setting} is 0: packets of outside clients and of pods are dropped if their backend is in a pod \
                     or on another host."
                ))
                .remedy(Remedy::safe(format!("Set {setting} to 1, as Kubernetes needs it.")));
            }
        }
    }
    let strict = case.reverse_path().answer().into_iter().flatten().filter(|it| it.mode == 1);
    let strict: Vec<&str> = strict.map(|it| it.device.as_str()).collect();
    match strict.is_empty() {
        true if beyond.is_empty() => {
            Judgement::ok("No backend is beyond this host, and no device has a strict rp_filter.")
        }
        true => Judgement::ok("This host forwards, and no device has a strict rp_filter."),
        false => Judgement::info(format!(
            "rp_filter is strict at {}: replies that come in on another device are dropped.",
            join_names(&strict)
        ))
        .with("devices", json!(strict.iter().take(NAMED_MAX).collect::<Vec<_>>())),
    }
}

pub(super) fn check_conntrack(case: &Case<'_>) -> Judgement {
    let Some(table) = case.conntrack().answer() else {
        return judge_unavailable(case.conntrack(), "How full the conntrack table is");
    };
    let entries = table.entries;
    let room = table.entries_max;
    let is_full = room > 0 && entries.saturating_mul(100) >= room.saturating_mul(CONNTRACK_PERCENT);
    let judgement = match is_full {
        false => Judgement::ok(format!("The kernel's conntrack table has {entries} of {room} entries.")),
        true => Judgement::error_if(
            entries >= room,
            format!("The kernel's conntrack table has {entries} of {room} entries: it drops new connections when it \
                     is full."),
        )
        .remedy(Remedy::safe("Raise net.netfilter.nf_conntrack_max.")),
    };
    judgement.with("entries", entries).with("room", room)
}

pub(super) fn check_routes(case: &Case<'_>) -> Judgement {
    let Some(routes) = case.routes().answer() else {
        return judge_unavailable(case.routes(), "The routes to its backends");
    };
    let lost: Vec<_> = routes.iter().filter(|it| it.unreachable.is_some()).collect();
    if let Some(first) = lost.first() {
        let why = first.unreachable.as_deref().unwrap_or_default();
        return Judgement::error_if(
            lost.len() == routes.len(),
            format!(
                "There is no route from this host to {}: {why}.",
                join_names(lost.iter().map(|it| it.to))
            ),
        )
        .with("backends", json!(lost.iter().take(NAMED_MAX).map(|it| it.to).collect::<Vec<_>>()))
        .remedy(Remedy::safe("Look at the CNI plug-in on this node: it makes the routes to pods."));
    }
    let mtus: BTreeSet<u32> = routes.iter().filter_map(|it| it.mtu).collect();
    match (mtus.first(), mtus.last()) {
        (Some(least), Some(most)) if least < most => Judgement::info(format!(
            "Routes to its backends take packets of {least} to {most} bytes; large ones rely on path MTU discovery."
        ))
        .with("mtu", json!(mtus.iter().take(NAMED_MAX).collect::<Vec<_>>())),
        _ if routes.is_empty() => Judgement::not_applicable("It has no backend to which a route could lead."),
        _ => Judgement::ok(format!("There is a route to each of {}.", format_count(routes.len(), "backend"))),
    }
}

pub(super) fn frontend_address(it: &FrontendView) -> SocketAddr {
    SocketAddr::new(it.address, it.port.get())
}
