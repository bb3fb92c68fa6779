//! The sentences of a packet trace.
//!
//! Invariant: each step is a sentence that an operator can check against the object or the node.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::Transport;
use holdfast_core::list::{Scope, Slot};
use holdfast_core::maglev;
use holdfast_core::op::{PortFacts, Word, WordFlags};
use holdfast_core::snapshot::{FrontendView, Verdict};
use holdfast_core::source_ranges::SourceRange;
use holdfast_core::words;

use super::{BackendShare, FastPathDevices};

/// The most names in one sentence; more are counted.
const NAMED_MAX: usize = 3;

words! {
    pub enum Outcome {
        /// A backend gets it.
        Served = "served",
        /// The client learns that the port is closed.
        Refused = "refused",
        /// The client gets no reply.
        Dropped = "dropped",
        /// No program changes it.
        Passed = "passed",
        /// The maps could not be read.
        Unknown = "unknown",
    }
}

words! {
    pub enum ClientClass {
        /// Neither of the two below.
        Outside = "outside",
        /// Its address is that of an endpoint on this node.
        Pod = "pod",
        /// Its address is this node's own.
        Node = "node",
    }
}

words! {
    /// The subject of a step.
    pub enum StepKind {
        /// The device through which the packet comes.
        Device = "device",
        Client = "client",
        /// The frontend that it is sent to.
        Frontend = "frontend",
        /// Whether the service allows its source.
        Source = "source",
        /// The list that applies to it.
        List = "list",
        /// How a backend of the list is selected.
        Selection = "choice",
        /// The address that the backend sees as the client's.
        ClientAddress = "seen-as",
        /// The path of the replies.
        ReturnPath = "way-back",
        /// The reply to the client if no backend gets the packet.
        Reject = "answer",
    }
}

words! {
    /// The client's address as a backend sees it.
    pub enum ClientAddress {
        /// The client's own address.
        Client = "client",
        /// The client's own address. The backend's node gets the packet unchanged, and the backend's replies bypass
        /// this node (`[packets] dsr`).
        Dsr = "direct",
        /// An address of this node.
        Node = "node",
        /// The backend's endpoint names no node. The address is the client's own if the path to the backend leaves
        /// through no outer device.
        Unknown = "unknown",
    }
}

pub(super) const SOURCES_IGNORED: &str =
    "Any: loadBalancerSourceRanges are for addresses of a load balancer alone.";

pub(super) const SOURCES_ABSENT: &str =
    "Any: for this family there are no ranges, or one of all addresses, or the maps do not have them yet.";

pub(super) const SOURCES_STALE: &str =
    "Not known: the maps still have ranges for which the service does not ask any more.";

pub(super) const NO_OUTER_DEVICE: &str = "no outer device has its programs (see `holdfast datapath`)";

pub(super) const NO_POD_DEVICE: &str = "it is a pod's, and no device of pods has programs (`pod_devices` under [packets]): its sockets are served";

/// The device through which the packet comes. Routes of other hosts decide it.
pub(super) fn describe_device(names: &[String], of_pods: bool) -> String {
    let (kind, whose) = if of_pods {
        ("device of pods", "the pod's own")
    } else {
        ("outer one", "as the routes of other machines decide")
    };
    let otherwise = "If it comes by another device, holdfast does not translate it.";
    match names {
        [only] => format!("{only}, the only {kind}. {otherwise}"),
        several => format!("One of {}, {whose}. {otherwise}", join_names(several)),
    }
}

/// The case of a client that is a pod without an endpoint; its address does not show that.
pub(super) fn describe_pod_exception(devices: &[String]) -> String {
    format!(
        "If it comes by {} it counts as a pod, with all backends and its own address.",
        join_names(devices)
    )
}

/// An endpoint whose object does not name its node.
pub(super) fn describe_unplaced_client(from: IpAddr) -> String {
    format!(
        "{from} counts as outside: its endpoint names no node. If it is a pod of this node, its sockets are served where \
         they dial, unless they are left to packets."
    )
}

pub(super) fn describe_client(from: IpAddr, class: ClientClass, transport: Transport) -> String {
    match class {
        ClientClass::Pod if transport == Transport::Sctp => {
            format!("{from} is an endpoint on this node, and no socket of SCTP is served where it dials.")
        }
        ClientClass::Node if transport == Transport::Sctp => {
            format!(
                "{from} is this node: its own processes are not served by SCTP. The steps are those of a packet that \
                 comes from outside with that address."
            )
        }
        ClientClass::Outside => {
            format!(
                "{from} counts as outside: it is neither this node's address nor that of an endpoint on it. A pod of this \
                 node without an endpoint is served at its sockets."
            )
        }
        ClientClass::Pod => format!(
            "{from} is an endpoint on this node: its sockets are served where they dial, unless they are left to packets; \
             then this is for it."
        ),
        ClientClass::Node => format!(
            "{from} is this node: its own processes are served where they dial. The steps are those of a packet that \
             comes from outside with that address."
        ),
    }
}

/// The case of a process of this node, which comes first: its connects are served before there is a packet.
pub(super) fn describe_own_client(from: IpAddr, dialled: SocketAddr) -> String {
    format!(
        "{from} is this node, and its own processes are served where they dial: `holdfast explain {dialled}` says what \
         they get. "
    )
}

/// Why a frontend is not in the maps.
pub(super) const fn absence_reason(it: &FrontendView) -> &'static str {
    match it.verdict {
        Verdict::Passing => "it is left to the real balancer while it has no endpoint",
        Verdict::Bypassed => "this node reaches the apiserver there",
        Verdict::Conflict => "another service owns the address",
        Verdict::Unprogrammed => "its address or protocol cannot be served",
        Verdict::Serving | Verdict::Draining | Verdict::Held | Verdict::Refusing | Verdict::Dropping => {
            "it is not written yet, or answers at other addresses only"
        }
    }
}

pub(super) const fn reject_message(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "a TCP reset",
        Transport::Udp | Transport::Sctp => "an ICMP port unreachable",
    }
}

/// How a client's backend is selected from such a list.
pub(super) fn describe_selection(
    list: Word,
    backends: &BTreeMap<Slot, u32>,
    is_even: bool,
    again: Option<String>,
) -> String {
    let unweighted = (!is_even && list.count as usize == backends.len())
        .then(|| format!("{} by their weights.", missing_table_reason(list.count)));
    [Some(describe_shares(backends)), unweighted, describe_maglev(list, backends.len()), again]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

pub(super) fn describe_affinity(facts: PortFacts, from: IpAddr) -> Option<String> {
    let PortFacts { affinity_timeout: seconds, ignored_bits: left_out } = facts;
    let all = SourceRange::single_host(from).bits();
    let network = SourceRange::new(from, all.saturating_sub(left_out)).filter(|it| it.bits() < all);
    let who = network.map_or_else(|| "Who".to_owned(), |it| format!("{it} is one client: if any of it"));
    let all = if network.is_some() { ", all of it" } else { "" };
    let last = format!("{who} came within the last {seconds} s{all} gets the same again (session affinity).");
    (seconds > 0).then_some(last)
}

/// Why a list of this size has no table.
const fn missing_table_reason(backends: u32) -> &'static str {
    if maglev::table_size(backends) == backends {
        "There are too many for a table"
    } else {
        "There is no room for a table"
    }
}

fn describe_shares(backends: &BTreeMap<Slot, u32>) -> String {
    let (least, most) = (backends.values().min(), backends.values().max());
    match (least.zip(most), backends.len()) {
        (_, 1) => "There is one backend.".to_owned(),
        // The slot counts of a table differ by rounding.
        (Some((least, most)), count) if *most <= least.saturating_add(2) => {
            format!("Each of {count} gets the same share.")
        }
        (_, count) => format!("Each of {count} gets a share by its weight."),
    }
}

/// How a client's slot is computed, unless it is random. A list of one has one slot.
fn describe_maglev(list: Word, backends: usize) -> Option<String> {
    (backends > 1 && list.flags.contains(WordFlags::MAGLEV)).then(|| {
        let by = "Which one is computed from the addresses and ports of client and frontend, alike on all nodes (maglev)";
        match list.count as usize {
            count if count == backends => {
                format!("{by}. {}, so a change of the list moves most clients.", missing_table_reason(list.count))
            }
            places => format!("{by}, by a table of {places} places."),
        }
    })
}

/// How a backend sees a client that keeps its address. Only policy Local keeps the port, too.
const fn own_address_clause(scope: Scope) -> &'static str {
    match scope {
        Scope::Local => "the client's own address and port",
        Scope::Cluster => {
            "the client's own address, and a port that this node gives it (through_port in /flows)"
        }
    }
}

pub(super) fn describe_client_address(backends: &[BackendShare], class: ClientClass, scope: Scope) -> String {
    if class == ClientClass::Pod {
        return describe_pod_address(backends).to_owned();
    }
    let count = |wanted| backends.iter().filter(|it| it.seen_as.0 == wanted).count();
    let parts = [
        (ClientAddress::Client, "on this node", own_address_clause(scope)),
        (
            ClientAddress::Dsr,
            "on other nodes",
            "the client's own address and port, since their nodes get the packet as it came",
        ),
        (
            ClientAddress::Node,
            "on other nodes",
            "this node's address at the device by which it leaves, so that answers come back here",
        ),
        (
            ClientAddress::Unknown,
            "whose node is not known",
            "the client's own address; this node's, if the way to them leaves by an outer device",
        ),
    ];
    let parts = parts.into_iter().map(|(seen, which, what)| (count(seen), which, what));
    let parts = parts.filter(|(count, ..)| *count > 0);
    let parts: Vec<String> =
        parts.map(|(count, which, what)| format!("backends {which} ({count}) see {what}")).collect();
    capitalise(&format!("{}.", parts.join("; ")))
}

/// What becomes of a packet whose backend has a loopback address. The programs change its address before the kernel's
/// routing, which takes no packet to the loopback from a device.
pub(super) fn describe_loopback_loss(backends: &[BackendShare]) -> Option<String> {
    let lost: Vec<&str> = backends.iter().filter(|it| it.is_loopback).map(|it| it.backend.as_str()).collect();
    let is_v4 = lost.iter().any(|backend| !backend.starts_with('['));
    let unless = if is_v4 { " (unless `route_localnet` of that device is 1)" } else { "" };
    (!lost.is_empty()).then(|| {
        format!(
            "the kernel of this node drops packets that come by a device and go to the loopback{unless}, so only processes \
             in this host's own network reach {}",
            join_names(&lost)
        )
    })
}

/// How backends see a client that is a pod. A pod drops packets with its own source address, so a pod that reaches
/// itself sees an address of this node.
fn describe_pod_address(backends: &[BackendShare]) -> &'static str {
    if backends.iter().any(|it| it.seen_as.0 == ClientAddress::Node) {
        "By its own address; where it reaches itself, by an address of this node that is near to it."
    } else {
        "By its own address, because this node has the route back to its own pods."
    }
}

/// The path of replies under DSR.
const DSR_RETURN_PATH: &str = "From the backend's node to the client, past this one";

pub(super) fn describe_return_path(
    dialled: SocketAddr,
    backends: &[BackendShare],
    shortcut: &FastPathDevices,
) -> String {
    let any = |is_meant: fn(ClientAddress) -> bool| backends.iter().any(|it| is_meant(it.seen_as.0));
    if !any(|it| it != ClientAddress::Dsr) {
        return format!("{DSR_RETURN_PATH}, which makes it come from {dialled}.");
    }
    let leads_on = any(|it| matches!(it, ClientAddress::Node | ClientAddress::Unknown));
    let node = if leads_on {
        " A backend that sees this node answers to it, which gives the client's address back."
    } else {
        ""
    };
    let directly = if any(|it| it == ClientAddress::Dsr) {
        format!(" Of others: {DSR_RETURN_PATH}.")
    } else {
        String::new()
    };
    let [others, near] = describe_fast_path(backends, shortcut);
    format!("Through this node, which makes it come from {dialled} again.{node}{directly}{others}{near}")
}

/// Which packets bypass the stack: those to backends of other nodes, and those to pods of this one.
fn describe_fast_path(backends: &[BackendShare], shortcut: &FastPathDevices) -> [String; 2] {
    let any = |is_meant: fn(ClientAddress) -> bool| backends.iter().any(|it| is_meant(it.seen_as.0));
    let others = any(|it| matches!(it, ClientAddress::Node | ClientAddress::Unknown))
        .then_some(&shortcut.outer)
        .filter(|it| !it.is_empty());
    let some_of =
        |names| any(|it| it == ClientAddress::Client).then_some(names).filter(|it: &&Vec<_>| !it.is_empty());
    let (near, pods) = (some_of(&shortcut.local), some_of(&shortcut.pods));
    let others = others.map(|names| {
        let drivers = describe_drivers(&shortcut.drivers);
        format!(" At {} packets of such flows bypass the stack, both ways{drivers}.", join_names(names))
    });
    let near =
        near.map(|names| format!(" Packets to and from pods behind {} bypass the stack.", join_names(names)));
    let pods =
        pods.map(|names| format!(" From pod to pod behind {} they bypass the stack.", join_names(names)));
    [others, near.or(pods)].map(Option::unwrap_or_default)
}

/// The drivers in which most of them bypass it already. The first and last packets of a connection, and one packet each
/// second, take the fast path after the driver.
fn describe_drivers(names: &[String]) -> String {
    if names.is_empty() {
        String::new()
    } else {
        format!(", most of them at the driver of {}", join_names(names))
    }
}

/// The client's address as backends see it, for the first sentence.
pub(super) fn client_address_clause(backends: &[BackendShare], class: ClientClass) -> &'static str {
    let all = |wanted| backends.iter().all(|it| it.seen_as.0 == wanted);
    if class == ClientClass::Pod && !all(ClientAddress::Client) {
        return "which sees the client's own address, or one of this node where it is the client itself";
    }
    if backends.iter().all(|it| matches!(it.seen_as.0, ClientAddress::Client | ClientAddress::Dsr)) {
        "which sees the client's own address"
    } else if all(ClientAddress::Node) {
        "which sees an address of this node"
    } else {
        "which sees the client's own address if that backend is on this node"
    }
}

pub(super) fn describe_backends(service: &str, backends: &[BackendShare], all: usize) -> String {
    let names: Vec<&str> = backends.iter().take(NAMED_MAX).map(|it| it.backend.as_str()).collect();
    match all {
        1 => format!("{} of {service}", names.join("")),
        count if count <= NAMED_MAX => format!("one of {count} backends of {service} ({})", names.join(", ")),
        count => {
            format!(
                "one of {count} backends of {service} ({} and {} more)",
                names.join(", "),
                count - NAMED_MAX
            )
        }
    }
}

/// The first few names, and the number of the others.
pub(super) fn join_names<T: ToString>(all: &[T]) -> String {
    let names: Vec<String> = all.iter().take(NAMED_MAX).map(ToString::to_string).collect();
    match all.len().saturating_sub(NAMED_MAX) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

pub(super) fn capitalise(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

#[cfg(test)]
mod tests {
    use holdfast_status::schema_types::Code;

    use super::*;

    #[test]
    fn a_backend_at_the_loopback_gets_nothing_from_a_device() {
        let share = |backend: &str| BackendShare {
            backend: backend.to_owned(),
            share: 0.5,
            draining: false,
            node: None,
            seen_as: Code(ClientAddress::Client),
            is_loopback: backend.starts_with("127.") || backend.starts_with("[::1]"),
        };
        for (backends, unless) in [
            (
                ["127.0.0.9:80", "10.1.0.1:80"],
                Some(
                    " (unless `route_localnet` of that device is 1), so only processes in \
                     this host's own network reach 127.0.0.9:80",
                ),
            ),
            (
                ["[::1]:80", "[fd00::1]:80"],
                Some(" go to the loopback, so only processes in this host's own network reach [::1]:80"),
            ),
            (["10.1.0.1:80", "10.1.0.2:80"], None),
        ] {
            let loss = describe_loopback_loss(&backends.map(share));
            assert_eq!(loss.is_some(), unless.is_some(), "{loss:?}");
            assert!(loss.unwrap_or_default().ends_with(unless.unwrap_or_default()), "{backends:?}");
        }
    }
}
