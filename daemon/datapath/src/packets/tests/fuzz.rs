//! Random packets: of flows and strangers, valid and corrupted, from a seed.
//!
//! Each goes through both programs, and [`Judge`] checks the results. `SEED` selects other packets, and `FUZZ_SECONDS`
//! continues for as long.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::op::{FrontendType, WordFlags};
use holdfast_fixtures::clock::Deadline;
use holdfast_laws::simulation::Random;
use holdfast_status::datapath::FlowFilter;

use super::craft::{ACK, FIN, RST, SYN, Sent, TCP, UDP, address, error};
use super::judge::{Judge, Known, NODE6, Service, Way};
use super::node::{NEXT, Node};
use super::sctp::{SCTP, chunk_of};
use crate::flows::FlowTable;
use crate::kernel::bed::Port;

/// A part of a run; all flows are checked after it.
const PACKETS: usize = 2_000;
const PARTS: usize = 10;

/// More than may wait for replies at once, so that the table is never full.
const FLOWS: u32 = 32_768;

/// Frontends and their backends for all transports: local pods, pods of another node, or none.
const SERVICES: [(&str, &[&str], WordFlags); 11] = [
    ("203.0.113.10:80", &["10.1.0.5:8080", "10.1.0.6:8080"], NOTHING),
    ("203.0.113.11:80", &["10.2.0.5:8080"], NOTHING),
    ("203.0.113.12:80", &[], NOTHING),
    ("203.0.113.13:80", &[], WordFlags::DROP),
    ("203.0.113.14:80", &["10.1.0.7:8080"], NOTHING),
    ("0.0.0.0:30080", &["10.1.0.5:8080"], NOTHING),
    ("[2001:db8:f::10]:80", &["[fd01::5]:8080", "[fd01::6]:8080"], NOTHING),
    ("[2001:db8:f::11]:80", &["[fd02::5]:8080"], NOTHING),
    ("[2001:db8:f::12]:80", &[], NOTHING),
    ("[2001:db8:f::13]:80", &[], WordFlags::DROP),
    ("[2001:db8:f::14]:80", &["[fd01::5]:8080"], NOTHING),
];
const NOTHING: WordFlags = crate::kernel::bed::NONE;

const CLIENTS: [[&str; 3]; 2] =
    [["198.51.100.7", "198.51.100.8", "10.1.0.9"], ["2001:db8:1::7", "2001:db8:1::8", "fd01::9"]];
/// Addresses of no frontend and no flow.
const STRANGERS: [[&str; 4]; 2] = [
    ["203.0.113.10:81", "10.1.0.5:8080", "192.0.2.1:61001", "224.0.0.1:80"],
    ["[2001:db8:f::10]:81", "[fd01::5]:8080", "[2001:db8::1]:61001", "[ff02::1]:80"],
];

fn serve(node: &mut Node) -> Judge {
    let mut judge = Judge::default();
    for (transport, base) in [(TCP, Port::TCP), (UDP, Port::UDP), (SCTP, Port::SCTP)] {
        for (frontend, backends, flags) in SERVICES {
            let index = u32::try_from(judge.services.len()).unwrap() + 1;
            let backends: Vec<SocketAddr> = backends.iter().map(|it| address(it)).collect();
            let is_node_port = frontend.starts_with("0.0.0.0");
            let kind = if is_node_port { FrontendType::NodePort } else { FrontendType::LoadBalancer };
            let frontends = [frontend];
            node.serve(&Port {
                index,
                kind,
                frontends: &frontends,
                backends: &backends,
                base: index * 4,
                flags,
                ..base
            });
            judge.services.push(Service {
                transport,
                frontend: address(frontend),
                is_remote: backends.iter().any(|it| is_remote(*it)),
                is_silent: flags.contains(WordFlags::DROP),
                backends,
            });
        }
    }
    judge
}

fn is_remote(backend: SocketAddr) -> bool {
    ["10.2.0.5:8080", "[fd02::5]:8080"].map(address).contains(&backend)
}

/// One of them at random.
fn one<'a, T>(random: &mut Random, of: &'a [T]) -> &'a T {
    &of[random.below(of.len())]
}

/// A packet's direction, transport and flow.
struct Sender<'a> {
    random: &'a mut Random,
    judge: &'a Judge,
}

impl Sender<'_> {
    fn frame(&mut self) -> Vec<u8> {
        let mut frame = match self.random.below(8) {
            0 | 1 => self.error(),
            _ => self.packet().frame(),
        };
        for _ in 0..*one(self.random, &[0, 0, 0, 1, 1, 2, 4]) {
            self.spoil(&mut frame);
        }
        frame
    }

    fn packet(&mut self) -> Sent {
        let (transport, from, to) = self.ends();
        let flags = *one(self.random, &[SYN, SYN, ACK, ACK, SYN | ACK, FIN | ACK, RST, RST | ACK, 0, 0xff]);
        let sent = Sent::tcp(&from.to_string(), &to.to_string(), flags);
        let most = *one(self.random, &[80, 80, 80, 1_400]);
        let payload: Vec<u8> = (0..self.random.below(most)).map(|_| self.byte()).collect();
        let payload = if transport == SCTP { chunk_of(flags, &payload) } else { payload };
        let fragment = self.random.chance(150).then(|| self.part());
        let (options, extensions) = match (from.is_ipv4(), self.random.chance(150)) {
            (true, true) => (vec![1; self.random.below(11) * 4], Vec::new()),
            (false, true) => (Vec::new(), self.extensions()),
            _ => (Vec::new(), Vec::new()),
        };
        let no_sum = transport == UDP && self.random.chance(50);
        Sent { transport, payload, fragment, options, extensions, no_sum, ..sent }
    }

    fn ends(&mut self) -> (u8, SocketAddr, SocketAddr) {
        let Some(known) = self.known().filter(|_| !self.random.chance(300)) else { return self.stranger() };
        let Known { transport, client, frontend, backend, through, nat, .. } = known;
        let (from, to) = match self.random.below(4) {
            0 => (client, frontend),
            1 => (backend, through),
            2 => (through, backend),
            _ => nat.map_or((frontend, client), |nat| (backend, nat)),
        };
        (transport, from, to)
    }

    /// One of the first or last flows: those between may have been evicted.
    fn known(&mut self) -> Option<Known> {
        let all = &self.judge.known;
        let within = all.len().min(100);
        let at = self.random.below(within);
        let at = if self.random.chance(500) { at } else { all.len().saturating_sub(at + 1) };
        all.get(at).copied()
    }

    fn stranger(&mut self) -> (u8, SocketAddr, SocketAddr) {
        let service = one(self.random, &self.judge.services).clone();
        let v4 = service.frontend.is_ipv4();
        let family = usize::from(!v4);
        let client = one(self.random, &CLIENTS[family]).parse().unwrap();
        let port = u16::try_from(40_000 + self.random.below(3_000)).unwrap();
        let node = if v4 { "192.0.2.1" } else { NODE6 };
        let to = match service.frontend.ip() {
            ip if ip.is_unspecified() => SocketAddr::new(node.parse().unwrap(), service.frontend.port()),
            _ => service.frontend,
        };
        let is_elsewhere = self.random.chance(200);
        let to = if is_elsewhere { address(STRANGERS[family][self.random.below(4)]) } else { to };
        (service.transport, SocketAddr::new(client, port), to)
    }

    /// One of a few datagrams, so that their fragments meet.
    fn part(&mut self) -> (u16, u16, bool) {
        let id = u16::try_from(self.random.below(6)).unwrap();
        let offset = *one(self.random, &[0, 0, 0, 8, 16, 1480]);
        (id, offset, offset == 0 || self.random.chance(500))
    }

    fn extensions(&mut self) -> Vec<(u8, Vec<u8>)> {
        let count = self.random.below(8);
        let header = |random: &mut Random| {
            let kind = *one(random, &[0, 43, 60, 51]);
            let length = u8::try_from(random.below(4)).unwrap();
            let bytes =
                if kind == 51 { (usize::from(length) + 2) * 4 } else { (usize::from(length) + 1) * 8 };
            let mut header = vec![0; bytes];
            header[1] = length;
            (kind, header)
        };
        (0..count).map(|_| header(self.random)).collect()
    }

    fn error(&mut self) -> Vec<u8> {
        let about = Sent { has_ethernet: false, ..self.packet() };
        let v4 = about.from.is_ipv4();
        let routers = if v4 { ["198.51.100.254", "10.1.0.5"] } else { ["2001:db8:1::fe", "fd01::5"] };
        let from = *one(self.random, &routers);
        let kind = match v4 {
            true => *one(self.random, &[(3, 4), (3, 3), (11, 0), (12, 0), (8, 0)]),
            false => *one(self.random, &[(1, 4), (2, 0), (3, 0), (4, 0), (128, 0)]),
        };
        let quoted = 20 + self.random.below(200);
        error(from, &about.from.ip().to_string(), kind, &about.packet(), quoted)
    }

    fn byte(&mut self) -> u8 {
        self.random.number().to_le_bytes()[0]
    }

    fn spoil(&mut self, frame: &mut Vec<u8>) {
        let at = 12 + self.random.below(frame.len().saturating_sub(14).min(120));
        match self.random.below(7) {
            0 => frame[at] ^= 1 << self.random.below(8),
            1 => frame[at] = *one(self.random, &[0, 1, 0x0f, 0x2c, 0x3a, 0x45, 0x4f, 0x6f, 0xff]),
            2 => frame.truncate(15 + self.random.below(frame.len())),
            3 => frame.extend((0..self.random.below(64)).map(|it| u8::try_from(it).unwrap())),
            4 => frame.splice(at..at, [0; 4]).for_each(drop),
            5 => {
                let other = 12 + self.random.below(frame.len().saturating_sub(14));
                frame.swap(at, other);
            }
            _ => {
                let value = *one(self.random, &[0_u16, 1, 7, 8, 20, 40, 512, 0x8000, 0xffff]);
                frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
            }
        }
    }
}

/// Each flow belongs to a client that dialled, and leads to an allowed backend.
fn check_flows(node: &Node, judge: &Judge) {
    let table = FlowTable::new(&node.handles).unwrap();
    let report = table.find_flows(&FlowFilter::default(), FLOWS as usize);
    assert_eq!(report.omitted, 0);
    for flow in report.matches {
        let transport = flow.transport.protocol_number();
        assert!(
            judge.dialled.contains(&(transport, flow.client, flow.frontend)),
            "no client dialled: {flow:?}"
        );
        let behind = judge.services.iter().filter(|it| it.transport == transport);
        assert!(
            behind.flat_map(|it| &it.backends).any(|it| *it == flow.backend),
            "no service's backend: {flow:?}"
        );
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap())
}

#[test]
fn kernel_invariant_13_only_packets_of_frontends_and_flows_change() {
    Node::test_with(FLOWS, |node| {
        let (seed, until) = (
            number("SEED").unwrap_or(1),
            number("FUZZ_SECONDS").map(Duration::from_secs).map(Deadline::after),
        );
        let (mut random, mut judge) = (Random::new(seed), serve(node));
        let (mut taken, mut part) = (0_u64, 0);
        while part < PARTS || until.is_some_and(|until| !until.is_over()) {
            for _ in 0..PACKETS {
                let frame = Sender { random: &mut random, judge: &judge }.frame();
                let Some(made) = node.take(&frame) else { continue };
                taken += 1;
                for (way, made) in [Way::In, Way::Out].iter().zip(&made) {
                    if let Err(what) = judge.judge(*way, &frame, made) {
                        panic!("seed {seed}, packet {taken}, {way:?}: {what}\n{frame:02x?}\n{made:02x?}");
                    }
                }
            }
            check_flows(node, &judge);
            part += 1;
        }
        assert!(taken > u64::try_from(part * PACKETS * 9 / 10).unwrap(), "{taken} packets are taken");
        assert!(judge.changed > taken / 8, "too few of {taken} change: {}", judge.changed);
        assert!(judge.known.iter().any(|known| known.nat.is_some()), "none went to another node");
        let last = Sent::tcp("198.51.100.9:50000", "203.0.113.14:80", SYN);
        assert_eq!(node.come(&last.frame()).0, NEXT);
        assert_ne!(node.comes(&last).to, last.to, "the programs still translate");
    });
}
