//! Traffic that node proxies got wrong before: each case has a name, and reports what is wrong.
//!
//! Invariant: a case holds for any proxy that does what Kubernetes asks for; no case depends on which proxy serves.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use super::{Clients, Family, SERVICES, TARGET_PORT, address_of};
use crate::bed::ask::{HeldConnections, Outcome, Question, Transport};
use crate::bed::fabric::{NODE_ADDRESSES, Switches};
use crate::bed::{Bed, BedError, Location};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

const TRANSPORTS: [Transport; 2] = [Transport::Tcp, Transport::Udp];

/// The bytes of a large transfer in each direction: many times what is in flight at once.
const TRANSFER_BYTES: usize = 200_000;

/// Three fragments on an ordinary link.
const DATAGRAM_BYTES: usize = 4000;

/// A kind of traffic on a node that serves the services of the table.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub name: &'static str,
    pub switches: Switches,
    /// Returns a line for each failure.
    pub run: fn(&Bed, &mut Clients) -> Result<Vec<String>, BedError>,
}

const PLAIN: Switches =
    Switches { strict_rp_filter: true, guarded: true, tracked: false, no_offload: true, narrow: false };

/// All cases. The last one needs its own network, because a narrow path loses the first datagrams that are too large.
pub const CASES: [Case; 8] = [
    Case { name: "one_source_port_two_frontends_one_backend", switches: PLAIN, run: one_source_port },
    Case { name: "a_source_port_is_used_again_at_once", switches: PLAIN, run: port_reuse },
    Case { name: "datagrams_in_fragments", switches: PLAIN, run: datagrams },
    Case { name: "datagrams_whose_last_fragment_comes_first", switches: PLAIN, run: backwards },
    Case { name: "errors_of_routers_on_the_way_reach_the_client", switches: PLAIN, run: hops },
    Case { name: "a_process_of_the_node_has_a_node_ports_number", switches: PLAIN, run: own_ports },
    Case { name: "clients_stick_to_their_backend_at_each_address", switches: PLAIN, run: affinity },
    Case {
        name: "large_transfers_over_a_narrow_path",
        switches: Switches { narrow: true, ..PLAIN },
        run: transfers,
    },
];

/// A frontend address of a service of the table.
pub fn frontend(service: &str, address: &str, family: Family) -> Result<SocketAddr, BedError> {
    let service_of = |name: &str| SERVICES.iter().find(|service| service.name == name);
    let found = service_of(service).and_then(|service| service.frontend(address, family));
    found.ok_or_else(|| BedError::NoNeighbour { name: format!("{service} {address}") })
}

/// An address of the first outside client.
pub fn outside(family: Family, port: u16) -> SocketAddr {
    let v6 = SocketAddr::from(([0xfd00, 0x20, 0, 0, 0, 0, 0, 2], port));
    family.of([([10, 20, 0, 2], port).into(), v6])
}

fn unanswered(questions: &[Question], outcomes: &[Outcome]) -> Vec<String> {
    let pairs = questions.iter().zip(outcomes);
    let bad = pairs.filter(|(_, outcome)| !matches!(outcome, Outcome::Answered { .. }));
    bad.map(|(question, outcome)| format!("{question:?}: {outcome:?}")).collect()
}

/// Sends all requests at once from the outside client, and returns a line for each unanswered one.
fn answered(clients: &mut Clients, questions: &[Question]) -> Result<Vec<String>, BedError> {
    let outcomes = clients.client("outside")?.ask_all(questions)?;
    Ok(unanswered(questions, &outcomes))
}

fn all_alive(expected: usize, held: &HeldConnections, when: &str) -> Option<String> {
    (held.alive != expected || !held.broken.is_empty())
        .then(|| format!("{when}: {held:?}, not {expected} alive"))
}

/// Two connections from one source port to two frontends of one backend: after translation they would be equal.
/// Datagrams are sent one after the other.
fn one_source_port(_: &Bed, clients: &mut Clients) -> Result<Vec<String>, BedError> {
    let mut lines = Vec::new();
    let mut all = 0;
    for (family, service) in FAMILIES.into_iter().flat_map(|family| [(family, "here"), (family, "away")]) {
        let from = Some(outside(family, 40_001));
        for address in ["balancer", "external", "node"] {
            let to = frontend(service, address, family)?;
            let held = clients.client("outside")?.hold(to, from, 1)?;
            all += 1;
            lines.extend(all_alive(1, &held, &format!("{to} from one port")));
            let datagram = Question::new(Transport::Udp, to).from(outside(family, 40_002));
            lines.extend(answered(clients, &[datagram])?);
        }
    }
    let held = clients.client("outside")?.try_held()?;
    lines.extend(all_alive(all, &held, "all at the end"));
    Ok(lines)
}

fn port_reuse(_: &Bed, clients: &mut Clients) -> Result<Vec<String>, BedError> {
    let mut lines = Vec::new();
    for (family, service) in FAMILIES.into_iter().flat_map(|family| [(family, "here"), (family, "many")]) {
        let to = frontend(service, "node", family)?;
        let question = Question::new(Transport::Tcp, to).from(outside(family, 40_010)).abort();
        for _ in 0..20 {
            lines.extend(answered(clients, std::slice::from_ref(&question))?);
        }
    }
    Ok(lines)
}

/// Requests to a pod of this node, a process of it, and a pod of another node.
fn places(transport: Transport, take: usize, give: usize) -> Result<Vec<Question>, BedError> {
    let mut questions = Vec::new();
    for family in FAMILIES {
        for (service, address) in
            [("here", "node"), ("bridged", "balancer"), ("host", "node"), ("away", "external")]
        {
            let to = frontend(service, address, family)?;
            questions.push(Question::new(transport, to).from(outside(family, 0)).sized(take, give));
        }
    }
    Ok(questions)
}

/// The router answers large packets with an ICMP error about a translated packet.
fn transfers(_: &Bed, clients: &mut Clients) -> Result<Vec<String>, BedError> {
    let mut lines = answered(clients, &places(Transport::Tcp, TRANSFER_BYTES, 0)?)?;
    lines.extend(answered(clients, &places(Transport::Tcp, 0, TRANSFER_BYTES)?)?);
    Ok(lines)
}

fn datagrams(_: &Bed, clients: &mut Clients) -> Result<Vec<String>, BedError> {
    answered(clients, &places(Transport::Udp, DATAGRAM_BYTES, DATAGRAM_BYTES)?)
}

fn backwards(_: &Bed, clients: &mut Clients) -> Result<Vec<String>, BedError> {
    let mut lines = Vec::new();
    for (service, address) in [("here", "node"), ("bridged", "balancer"), ("away", "node")] {
        let to = frontend_v4(service, address)?;
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 20, 0, 2), 40_020);
        let outcome = clients.client("outside")?.backwards(from, to, DATAGRAM_BYTES)?;
        if !matches!(outcome, Outcome::Answered { .. }) {
            lines.push(format!("{service} at {to}: {outcome:?}"));
        }
    }
    Ok(lines)
}

/// The router is the first hop, the node the second, the other node the third.
fn hops(_: &Bed, clients: &mut Clients) -> Result<Vec<String>, BedError> {
    let mut lines = Vec::new();
    for (service, hops, arrives) in
        [("here", 2, false), ("here", 3, true), ("away", 3, false), ("away", 4, true)]
    {
        for (family, transport) in pairs() {
            let to = frontend(service, "balancer", family)?;
            let question = Question::new(transport, to).from(outside(family, 0)).hops(hops);
            let outcome = clients.client("outside")?.ask(question)?;
            let as_expected = match outcome {
                Outcome::Answered { .. } => arrives,
                Outcome::Unreachable => !arrives,
                _ => false,
            };
            if !as_expected {
                lines.push(format!("{service} {transport:?} {to} over {hops} hops: {outcome:?}"));
            }
        }
    }
    Ok(lines)
}

fn pairs() -> impl Iterator<Item = (Family, Transport)> {
    FAMILIES.into_iter().flat_map(|family| TRANSPORTS.map(|transport| (family, transport)))
}

/// The node's own replies arrive at a NodePort's number, or at a port that SNAT may allocate.
fn own_ports(bed: &Bed, clients: &mut Clients) -> Result<Vec<String>, BedError> {
    let far = FAMILIES.map(|family| outside(family, TARGET_PORT));
    let _server = bed.serve_seen_source(Location::far("client"), "far", &far)?;
    let mut questions = Vec::new();
    for (port, (family, transport)) in
        [30_001, 61_234].into_iter().flat_map(|port| pairs().map(move |it| (port, it)))
    {
        let Ok(own) = family.of(NODE_ADDRESSES).parse() else { continue };
        let to = outside(family, TARGET_PORT);
        questions.push(Question::new(transport, to).from(SocketAddr::new(own, port)));
    }
    let outcomes = clients.client("host")?.ask_all(&questions)?;
    Ok(unanswered(&questions, &outcomes))
}

/// The addresses of one port share a client's affinity.
fn affinity(_: &Bed, clients: &mut Clients) -> Result<Vec<String>, BedError> {
    let mut lines = Vec::new();
    for ((family, transport), client) in pairs().flat_map(|pair| [(pair, "outside"), (pair, "outside-3")]) {
        let own = address_of(client, family).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let from = SocketAddr::new(own, 0);
        let mut seen = Vec::new();
        for address in ["node", "balancer", "external", "node", "balancer", "external"] {
            let question = Question::new(transport, frontend("sticky", address, family)?).from(from);
            seen.push(clients.client("outside")?.ask(question)?);
        }
        let mut names: Vec<String> = seen.iter().map(by).collect();
        names.dedup();
        if names.len() != 1 {
            lines.push(format!("{transport:?} from {from}: {seen:?}"));
        }
    }
    Ok(lines)
}

fn by(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Answered { by, .. } => by.clone(),
        other => format!("{other:?}"),
    }
}

/// The IPv4 address for a client's raw packets.
pub fn frontend_v4(service: &str, address: &str) -> Result<SocketAddrV4, BedError> {
    match frontend(service, address, Family::V4)? {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(address) => Err(BedError::NoNeighbour { name: address.to_string() }),
    }
}
