//! Nanoseconds per packet.
//!
//! Invariant: each case takes turns with an empty program fed the same way.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::bed::{ThreadBed, address};
use crate::clock::{median, time};
use crate::craft::{ACK, SYN, Sent, see};
use crate::feeder::{Client, Feeder, empty};
use crate::network::OUTER;
use crate::node::{FAR, NEAR, NEIGHBOUR, NOBODY, Node, PICKED, Packet, Program, SERVER, Way};
use crate::size::sized;

const ROUNDS: usize = 31;
/// A round takes a few milliseconds.
const PACKETS: u32 = 20_000;
/// Flows opened per round: some tenths of a millisecond, and all rounds together leave most SNAT ports free.
const BEGINNINGS: u32 = 256;
/// Twice the limit of unanswered flows: each further one evicts another.
const FLOOD: u32 = 32_768;
/// The default size of the table: hardly any flow is in the CPU's nearest caches.
const MANY: u32 = 65_536;
/// How long it takes to release the record numbers of four times as many flows.
const HANDED_OUT: Duration = Duration::from_secs(10);

/// Two feeders of the same packets: to the program, and to an empty one.
pub(crate) struct Cost {
    packet: Packet,
    pub(crate) fed: Feeder,
    idle: Feeder,
    pub(crate) times: Vec<f64>,
}

impl Cost {
    pub(crate) fn new(node: &Node, packet: Packet, empty: &OwnedFd) -> Self {
        let fed = node.meet(&packet);
        let idle = Feeder::new(&packet.sent.frame(), packet.clients, empty.as_fd(), OUTER);
        Self { packet, fed, idle, times: Vec::new() }
    }

    pub(crate) fn take_turn(&mut self, count: u32) {
        let idle = time(1, || drop(self.idle.run(count)));
        let mut last = None;
        let fed = time(1, || last = Some(self.fed.run(count)));
        self.packet.check(&last.unwrap());
        self.times.push((fed - idle) / f64::from(count) * 1e9);
    }
}

/// A line with figures over IPv4 and IPv6.
struct Row {
    name: &'static str,
    goal: &'static str,
    costs: [Cost; 2],
}

fn row(node: &Node, empty: &OwnedFd, name: &'static str, goal: &'static str, packets: [Packet; 2]) -> Row {
    Row { name, goal, costs: packets.map(|packet| Cost::new(node, packet, empty)) }
}

fn show(rows: Vec<Row>) {
    println!("{:44}{:>8}{:>8}  goal", "ns of a packet, less an empty program", "IPv4", "IPv6");
    for Row { name, goal, costs } in rows {
        let [v4, v6] = costs.map(|cost| median(cost.times));
        println!("{name:44}{v4:>8.1}{v6:>8.1}  {goal}");
    }
}

/// From the node itself and from others, to an unserved address.
fn of_nobody(from: [&str; 2], to: [&str; 2], program: Program) -> [Packet; 2] {
    [0, 1].map(|family| Packet::new(Sent::tcp(from[family], to[family], ACK), program))
}

fn each(ways: &[Way; 2], packet: impl Fn(&Way) -> Packet) -> [Packet; 2] {
    [packet(&ways[0]), packet(&ways[1])]
}

/// The client of the only flow as a remote backend sees it.
fn nat_of(node: &Node, way: &Way) -> SocketAddr {
    let leaving = Packet::new(Sent::tcp(way.client, way.backend, ACK), Program::Out);
    see(&node.meet(&leaving).run(1).frame, true).from
}

/// All cases except new flows.
pub(crate) fn all(bed: &ThreadBed) {
    let mut node = Node::new(bed, 4 * MANY);
    node.hand_out(HANDED_OUT);
    let many = sized(MANY, 1024);
    for way in NEAR.iter().chain(&FAR) {
        for packet in [way.first(), way.back(SYN | ACK), way.there()] {
            packet.check(&node.meet(&packet).run(1));
        }
    }
    NEAR.iter().for_each(|way| node.open(way, 0..many));
    let (empty, clients) = (empty(), [NEAR[0].client, NEAR[1].client]);
    let line = |name, goal, packets| row(&node, &empty, name, goal, packets);
    let far_out = |way: &Way| {
        let leaving = Packet::new(Sent::tcp(way.client, way.backend, ACK), Program::Out);
        leaving.becomes(nat_of(&node, way))
    };
    let far_in = |way: &Way| {
        let answer = Sent::tcp(way.backend, &nat_of(&node, way).to_string(), ACK);
        Packet::new(answer, Program::In).becomes(address(way.client))
    };
    let mut rows = vec![
        line("not ours, in", "5", of_nobody(clients, SERVER, Program::In)),
        line("not ours, out", "25", of_nobody(SERVER, clients, Program::Out)),
        line("in, beside a frontend", "", of_nobody(clients, NOBODY, Program::In)),
        line("out, from a port of backends", "25", of_nobody(NEIGHBOUR, clients, Program::Out)),
        line("of a flow, in", "100", each(&NEAR, Way::there)),
        line("of a flow, out", "100", each(&NEAR, |way| way.back(ACK))),
        line("to another node: in", "100", each(&FAR, Way::there)),
        line("to another node: out", "100", each(&FAR, far_out)),
        line("from another node: in", "100", each(&FAR, far_in)),
        line("from another node: out", "100", each(&FAR, |way| way.back(ACK))),
        line(
            "of one of many flows in turn, in",
            "",
            each(&NEAR, |way| way.there().of(Client::IsSource, many)),
        ),
        line(
            "of one of many flows in turn, out",
            "",
            each(&NEAR, |way| way.back(ACK).of(Client::IsDestination, many)),
        ),
    ];
    for _ in 0..sized(ROUNDS, 1) {
        rows.iter_mut().flat_map(|row| &mut row.costs).for_each(|cost| cost.take_turn(sized(PACKETS, 100)));
    }
    show(rows);
}

/// Flows of as many clients as a counter counts, to local or remote backends.
fn beginning(node: &Node, empty: &OwnedFd, name: &'static str, goal: &'static str, ways: &[Way; 2]) -> Row {
    row(node, empty, name, goal, each(ways, |way| way.first().of(Client::IsSource, 1 << 24)))
}

/// New flows: with a reply before the next round, and without.
pub(crate) fn first(bed: &ThreadBed) {
    let node = Node::new(bed, MANY);
    let (empty, count) = (empty(), sized(BEGINNINGS, 32));
    let line = |name, ways| beginning(&node, &empty, name, "800", ways);
    let mut rows = vec![line("the first of a flow, policy Local", &NEAR), line("… to another node", &FAR)];
    for _ in 0..sized(ROUNDS, 1) {
        for (row, ways) in rows.iter_mut().zip([&NEAR, &FAR]) {
            for (cost, way) in row.costs.iter_mut().zip(ways) {
                let first = u32::try_from(cost.times.len()).unwrap() * count;
                cost.fed.turn_to(first);
                cost.take_turn(count);
                node.answer(way, first, count);
            }
        }
    }
    let mut flood = beginning(&node, &empty, "… in a flood", "", &NEAR);
    for cost in &mut flood.costs {
        cost.fed.turn_to(1 << 20);
        cost.fed.run(sized(FLOOD, count));
        (0..sized(ROUNDS, 1)).for_each(|_| cost.take_turn(count));
    }
    rows.push(flood);
    show(rows);
}

/// New flows with a translated port and no local backend to reply: all rounds together stay below the limit of
/// unanswered flows. Each round has its own client, with most of its ports free.
pub(crate) fn picked(bed: &ThreadBed) {
    let node = Node::new(bed, MANY);
    let mut row = beginning(&node, &empty(), "the first of a flow, policy Cluster", "800", &PICKED);
    for round in 0..sized(ROUNDS, 1) {
        for cost in &mut row.costs {
            cost.fed.turn_to(u32::try_from(round).unwrap() << 16);
            cost.take_turn(sized(BEGINNINGS, 32));
        }
    }
    let new = median(row.costs[0].times.clone());
    show(vec![row]);
    println!("new flows of one core, by that: {:.2} million a second (goal 1)", 1e3 / new);
}
