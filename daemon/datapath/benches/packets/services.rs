//! The effect of a node's services on the packets of one of them.
//!
//! Invariant: the maps grow from few services to many while the same packets are measured; each figure is relative to
//! few services on the same node.

use crate::bed::{Port, ThreadBed};
use crate::clock::median;
use crate::craft::{ACK, SYN};
use crate::feeder::{Client, empty};
use crate::node::{NEAR, Node, Way};
use crate::runs::Cost;
use crate::size::sized;

const FLOWS: u32 = 65_536;
/// The node's first services always exist.
const SERVICES: [u32; 4] = [6, 1_000, 10_000, 100_000];
const ROUNDS: usize = 31;
const BEGINNINGS: u32 = 128;
const PACKETS: u32 = 20_000;

/// Nanoseconds of a flow's first packet and of a later one, over IPv4 and IPv6.
fn measure(node: &Node, clients: &mut u32) -> Vec<f64> {
    let (empty, count) = (empty(), sized(BEGINNINGS, 32));
    let firsts = NEAR.iter().map(|way| way.first().of(Client::IsSource, 1 << 24));
    let mut costs: Vec<Cost> =
        firsts.chain(NEAR.iter().map(Way::there)).map(|it| Cost::new(node, it, &empty)).collect();
    for _ in 0..sized(ROUNDS, 1) {
        for (cost, way) in costs.iter_mut().zip(&NEAR) {
            cost.fed.turn_to(*clients);
            cost.take_turn(count);
            node.answer(way, *clients, count);
        }
        *clients += count;
        costs.iter_mut().skip(NEAR.len()).for_each(|cost| cost.take_turn(sized(PACKETS, 100)));
    }
    costs.into_iter().map(|cost| median(cost.times)).collect()
}

/// One node with more and more services: the figures for each number.
fn draw(bed: &ThreadBed) -> Vec<Vec<f64>> {
    let mut node = Node::with_room(bed, FLOWS);
    let (mut there, mut clients) = (SERVICES[0], 0);
    for way in &NEAR {
        for packet in [way.first(), way.back(SYN | ACK), way.there()] {
            packet.check(&node.meet(&packet).run(1));
        }
    }
    SERVICES[..sized(SERVICES.len(), 2)]
        .iter()
        .map(|services| {
            for number in there..*services {
                let vip = format!("10.{}.{}.{}:80", 100 + (number >> 16), number >> 8 & 255, number & 255);
                Port { index: number + 10, frontends: &[&vip], ..Port::TCP }.serve(&mut node.maps);
            }
            there = *services;
            measure(&node, &mut clients)
        })
        .collect()
}

pub(crate) fn all(bed: &ThreadBed) {
    let drawn = draw(bed);
    println!(
        "{:44}{:>12}{:>12}{:>12}{:>12}",
        "of what it takes with few services", "first, v4", "first, v6", "in, v4", "in, v6"
    );
    for (services, figures) in SERVICES.iter().zip(&drawn) {
        let ratios: Vec<String> =
            figures.iter().zip(&drawn[0]).map(|(ns, few)| format!("{:>12.3}", ns / few)).collect();
        println!("{:44}{}", format!("{services} services"), ratios.concat());
    }
}
