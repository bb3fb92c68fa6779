//! keepalived: its virtual servers. The addresses, and which node has them, stay with keepalived.
//!
//! Invariant: blocks are read by their braces alone, to a bounded depth; a block of another kind is noted once as a
//! whole.

mod checks;
mod tree;

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::keys::Transport;

use super::address::{parse_address_pair, parse_address_range};
use super::imported_service::{AFFINITY_TIMEOUT, ImportedService};
use super::notes::{Notes, quote_excerpt};
use super::prefix;
use checks::ServerChecks;
use tree::Node;

/// The default interval of checks.
const DELAY_LOOP: Duration = Duration::from_secs(60);

/// Keepalived's own settings, and VRRP, by which nodes agree who has an address.
const STAYS_NOTE: &str = "stays with keepalived, which still decides which node has the address";

pub(super) fn parse_services(text: &str, notes: &mut Notes) -> Vec<ImportedService> {
    let nodes = tree::parse_nodes(text, notes);
    let servers = nodes.iter().filter_map(|node| match node.word(0) {
        "virtual_server" => Some(parse_virtual_server(node, &nodes, notes)),
        "virtual_server_group" => None,
        "include" => {
            notes.add(node.line, format!("{} is another file: import it too", quote_excerpt(node.word(1))));
            None
        }
        word => {
            notes.add(node.line, format!("{} {STAYS_NOTE}", quote_excerpt(word)));
            None
        }
    });
    servers.collect()
}

fn parse_virtual_server(node: &Node<'_>, all: &[Node<'_>], notes: &mut Notes) -> ImportedService {
    let words = [node.word(1), node.word(2)];
    let name = if words[0] == "group" { words[1].to_owned() } else { words.join("-") };
    let mut found = ImportedService::new(node.line, name, Transport::Tcp);
    found.frontends = collect_frontends(node, words, all, notes);
    let mut interval = DELAY_LOOP;
    let mut checks = ServerChecks::default();
    for child in &node.children {
        match child.word(0) {
            "delay_loop" => interval = parse_seconds(child, notes).unwrap_or(interval),
            "protocol" => found.transport = parse_transport(child, notes).unwrap_or(found.transport),
            "lb_algo" | "lvs_sched" => apply_scheduler(&mut found, child, notes),
            "lb_kind" | "lvs_method" => note_forwarding(child, notes),
            "persistence_timeout" => {
                found.affinity = Some(parse_seconds(child, notes).unwrap_or(AFFINITY_TIMEOUT));
            }
            "persistence_granularity" => prefix::set_prefix(&mut found, child.line, child.word(1), notes),
            "real_server" => found.backends.extend(parse_real_server(child, &mut checks, notes)),
            word => notes.add_unsupported(child.line, word),
        }
    }
    found.check = checks.into_check(interval);
    found
}

fn collect_frontends(
    node: &Node<'_>,
    words: [&str; 2],
    all: &[Node<'_>],
    notes: &mut Notes,
) -> Vec<SocketAddr> {
    let [first, second] = words;
    if first == "group" {
        let is_it = |other: &&Node<'_>| other.word(0) == "virtual_server_group" && other.word(1) == second;
        let Some(group) = all.iter().find(is_it) else {
            notes.add(node.line, format!("there is no group {}", quote_excerpt(second)));
            return Vec::new();
        };
        return group
            .children
            .iter()
            .flat_map(|member| parse_addresses(member, [member.word(0), member.word(1)], notes))
            .collect();
    }
    parse_addresses(node, words, notes)
}

/// The addresses of two words: one address or a range, with their port.
fn parse_addresses(node: &Node<'_>, [address, port]: [&str; 2], notes: &mut Notes) -> Vec<SocketAddr> {
    let port = port.parse::<u16>().ok().filter(|port| *port != 0);
    let found = parse_address_range(address).zip(port);
    if found.is_none() {
        notes.add(node.line, format!("{} is no address with a port", quote_excerpt(&node.words.join(" "))));
    }
    let (all, port) = found.unwrap_or_default();
    all.into_iter().map(|address| SocketAddr::new(address, port)).collect()
}

fn parse_seconds(node: &Node<'_>, notes: &mut Notes) -> Option<Duration> {
    let time = node.word(1).parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    if time.is_none() {
        notes.add(node.line, format!("{} is no number of seconds", quote_excerpt(node.word(1))));
    }
    time
}

fn parse_transport(node: &Node<'_>, notes: &mut Notes) -> Option<Transport> {
    match node.word(1).to_ascii_uppercase().as_str() {
        "TCP" => Some(Transport::Tcp),
        "UDP" => Some(Transport::Udp),
        "SCTP" => Some(Transport::Sctp),
        _ => {
            notes.add_unsupported(node.line, &node.words.join(" "));
            None
        }
    }
}

fn apply_scheduler(found: &mut ImportedService, node: &Node<'_>, notes: &mut Notes) {
    match node.word(1) {
        "wrr" => {}
        "rr" => found.ignores_weights = true,
        "mh" => found.maglev = true,
        "sh" => found.affinity = found.affinity.or(Some(AFFINITY_TIMEOUT)),
        other => {
            let instead = "backends are chosen at random, by their weights";
            notes.add(node.line, format!("scheduler {} has no counterpart: {instead}", quote_excerpt(other)));
        }
    }
}

fn note_forwarding(node: &Node<'_>, notes: &mut Notes) {
    if !node.word(1).eq_ignore_ascii_case("nat") {
        let what = "answers come back through this node, and servers need no address of the service";
        notes.add(node.line, format!("{}: {what}", node.word(1).escape_debug()));
    }
}

fn parse_real_server(
    node: &Node<'_>,
    checks: &mut ServerChecks,
    notes: &mut Notes,
) -> Option<(SocketAddr, u32)> {
    let address = parse_address_pair(node.word(1), node.word(2));
    if address.is_none() {
        notes.add(node.line, format!("{} is no address with a port", quote_excerpt(&node.words.join(" "))));
    }
    let mut weight = 1;
    for child in &node.children {
        match child.word(0) {
            "weight" => weight = child.word(1).parse().unwrap_or(weight),
            word if checks::is_check(word) => checks.add_check(child, notes),
            // A failed server gets no new clients, and loses none: all checks here behave so.
            "inhibit_on_failure" => {}
            word => notes.add_unsupported(child.line, word),
        }
    }
    Some((address?, weight))
}
