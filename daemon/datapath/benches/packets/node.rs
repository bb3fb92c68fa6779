//! A node with an outer device and a pods' device, its services, and the frames for its packet programs.

use std::fs;
use std::net::SocketAddr;
use std::ops::{Range, RangeInclusive};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use holdfast_core::list::Scope;
use holdfast_core::maps::Capacity;
use holdfast_core::op::{FrontendType, WordFlags};
use holdfast_datapath::{Device, DeviceSide, KernelMaps, PacketOptions, PacketSwitches, StartOptions};
use libbpf_rs::libbpf_sys as sys;

use crate::bed::{NONE, Port, ThreadBed, address};
use crate::craft::{ACK, SYN, Sent, see};
use crate::feeder::{Client, Clients, Feeder, Last};
use crate::network::{self, OUTER};
use crate::size::sized;

/// More SNAT ports than one client of a kind needs.
const SNAT_PORTS: RangeInclusive<u16> = 30_000..=65_535;
/// Fewer than the unanswered flows that evict each other.
const OPENED_AT_ONCE: u32 = 8192;

/// Client, frontend, backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) client: &'static str,
    pub(crate) frontend: &'static str,
    pub(crate) backend: &'static str,
}

const CLIENT4: &str = "198.51.100.7:40000";
const CLIENT6: &str = "[2001:db8:1::7]:40000";

/// To a local pod under policy Local, so with the client's own port: over IPv4 and over IPv6.
pub(crate) const NEAR: [Way; 2] = [
    Way { client: CLIENT4, frontend: "203.0.113.10:80", backend: "10.1.0.5:8080" },
    Way { client: CLIENT6, frontend: "[2001:db8:f::10]:80", backend: "[fd01::5]:8080" },
];

/// To a remote pod.
pub(crate) const FAR: [Way; 2] = [
    Way { client: CLIENT4, frontend: "203.0.113.11:80", backend: "10.2.0.5:8080" },
    Way { client: CLIENT6, frontend: "[2001:db8:f::11]:80", backend: "[fd02::5]:8080" },
];

/// To a local pod under policy Cluster: with a translated port.
pub(crate) const PICKED: [Way; 2] = [
    Way { client: CLIENT4, frontend: "203.0.113.13:80", backend: "10.1.0.7:8080" },
    Way { client: CLIENT6, frontend: "[2001:db8:f::13]:80", backend: "[fd01::7]:8080" },
];

/// Addresses without a service, next to those of services.
pub(crate) const NOBODY: [&str; 2] = ["203.0.113.12:80", "[2001:db8:f::12]:80"];
/// A server of the node's own.
pub(crate) const SERVER: [&str; 2] = ["192.0.2.1:9999", "[2001:db8::1]:9999"];
/// A pod without flows, at a port where others have flows.
pub(crate) const NEIGHBOUR: [&str; 2] = ["10.1.0.6:8080", "[fd01::6]:8080"];

/// Selects one of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    In,
    Out,
}

pub(crate) struct Node {
    pub(crate) maps: KernelMaps,
    pins: PathBuf,
    programs: [OwnedFd; 2],
}

impl Node {
    /// In a bed, with space for so many flows.
    pub(crate) fn new(bed: &ThreadBed, flows: u32) -> Self {
        Self::start(bed.options(), flows)
    }

    /// The same, with space for as many services as nodes have.
    pub(crate) fn with_room(bed: &ThreadBed, flows: u32) -> Self {
        Self::start(StartOptions { capacity: Capacity::default(), ..bed.options() }, flows)
    }

    fn start(options: StartOptions, flows: u32) -> Self {
        network::lay();
        let packets =
            Some(PacketOptions { flows, snat_ports: vec![SNAT_PORTS], switches: PacketSwitches::default() });
        let options = StartOptions { packets, ..options };
        let mut maps = KernelMaps::start(&options).unwrap();
        let outer = Device {
            address4: Some([192, 0, 2, 1].into()),
            address6: Some("2001:db8::1".parse().unwrap()),
            fib_ignores_ports: [true; 2],
            adopts_flows: true,
            has_ipsec: false,
            bridge: false,
            switch: false,
            ..Device::new(OUTER, "outer", DeviceSide::Outer)
        };
        maps.set_devices(&[outer]);
        maps.serve_packets();
        while maps.tend_devices(|| false) {}
        assert_eq!(maps.packet_status().unwrap().failure, None);
        let mut node =
            Self { maps, pins: options.bpffs, programs: [programs("packet_in"), programs("packet_out")] };
        let policies = [(&NEAR, NONE.with(WordFlags::EXTERNAL_LOCAL, true)), (&FAR, NONE), (&PICKED, NONE)];
        let ways = policies.iter().flat_map(|(ways, flags)| ways.iter().map(move |way| (way, *flags)));
        for ((way, flags), index) in ways.zip(1..) {
            node.serve(way, flags, index);
        }
        node
    }

    fn serve(&mut self, way: &Way, flags: WordFlags, index: u32) {
        let (kind, backends) = (FrontendType::LoadBalancer, [address(way.backend)]);
        let port = Port { index, kind, flags, backends: &backends, frontends: &[way.frontend], ..Port::TCP };
        Port { base: 2 * index, ..port }.publish(&mut self.maps, Scope::Local);
        Port { base: 2 * index + 1, ..port }.serve(&mut self.maps);
    }

    /// Waits until all record numbers are released: a start releases the first ones, and the sweep thread the rest in
    /// pieces.
    pub(crate) fn hand_out(&mut self, takes: Duration) {
        self.maps.update_flows().unwrap();
        std::thread::sleep(sized(takes, Duration::ZERO));
    }

    /// The folder of the flow maps' pins.
    pub(crate) fn flow_pins(&self) -> PathBuf {
        self.pins.join("flows1")
    }

    fn program(&self, which: Program) -> BorrowedFd<'_> {
        self.programs[usize::from(which == Program::Out)].as_fd()
    }

    /// Feeds a packet to one of the programs.
    pub(crate) fn meet(&self, packet: &Packet) -> Feeder {
        Feeder::new(&packet.sent.frame(), packet.clients, self.program(packet.program), OUTER)
    }

    /// The backend replies to new flows, which continue.
    pub(crate) fn answer(&self, way: &Way, first: u32, count: u32) {
        for packet in &way.opening(1 << 24)[1..] {
            let feeder = self.meet(packet);
            feeder.turn_to(first);
            packet.check(&feeder.run(count));
        }
    }

    /// Opens flows of these clients as both sides would.
    pub(crate) fn open(&self, way: &Way, clients: Range<u32>) {
        let feeders = way.opening(1 << 24).map(|packet| (self.meet(&packet), packet));
        for first in clients.clone().step_by(OPENED_AT_ONCE as usize) {
            for (feeder, packet) in &feeders {
                feeder.turn_to(first);
                packet.check(&feeder.run(OPENED_AT_ONCE.min(clients.end - first)));
            }
        }
    }
}

/// Packets of one kind, and their expected result.
pub(crate) struct Packet {
    pub(crate) sent: Sent,
    pub(crate) program: Program,
    /// `None`: they are all equal.
    pub(crate) clients: Option<Clients>,
    /// The expected source or destination; `None`: it passes unchanged.
    pub(crate) becomes: Option<SocketAddr>,
}

impl Packet {
    pub(crate) fn new(sent: Sent, program: Program) -> Self {
        Self { sent, program, clients: None, becomes: None }
    }

    pub(crate) fn of(self, at: Client, count: u32) -> Self {
        Self { clients: Some(Clients { at, count }), ..self }
    }

    pub(crate) fn becomes(self, place: SocketAddr) -> Self {
        Self { becomes: Some(place), ..self }
    }

    #[track_caller]
    pub(crate) fn check(&self, last: &Last) {
        assert_eq!(last.verdict, -1, "it does not go on: {:?}", self.sent);
        let Some(place) = self.becomes else {
            return assert_eq!(last.frame, self.sent.frame(), "{:?}", self.sent);
        };
        let seen = see(&last.frame, true);
        assert!([seen.from, seen.to].contains(&place), "{seen:?} of {:?}", self.sent);
    }
}

impl Way {
    pub(crate) fn first(&self) -> Packet {
        Packet::new(Sent::tcp(self.client, self.frontend, SYN), Program::In).becomes(address(self.backend))
    }

    pub(crate) fn there(&self) -> Packet {
        Packet::new(Sent::tcp(self.client, self.frontend, ACK), Program::In).becomes(address(self.backend))
    }

    pub(crate) fn back(&self, flags: u8) -> Packet {
        Packet::new(Sent::tcp(self.backend, self.client, flags), Program::Out).becomes(address(self.frontend))
    }

    /// The packets that open a flow of so many clients.
    fn opening(&self, count: u32) -> [Packet; 3] {
        let (there, back) = (Client::IsSource, Client::IsDestination);
        [self.first().of(there, count), self.back(SYN | ACK).of(back, count), self.there().of(there, count)]
    }
}

/// The program of that name that this process has open: other processes may have loaded one of that name too.
fn programs(name: &str) -> OwnedFd {
    let folder = fs::read_dir("/proc/self/fdinfo").unwrap().flatten();
    let texts = folder.filter_map(|entry| fs::read_to_string(entry.path()).ok());
    let numbers = texts.filter_map(|text| field(&text, "prog_id:"));
    let mut found =
        numbers.map(|number| open(u32::try_from(number).unwrap())).filter(|fd| name_of(fd) == name);
    found.next().unwrap()
}

/// A field of a file descriptor's description.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

fn open(number: u32) -> OwnedFd {
    // SAFETY: the result is a new file descriptor or negative.
    let fd = unsafe { sys::bpf_prog_get_fd_by_id(number) };
    assert!(fd >= 0);
    // SAFETY: nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

fn name_of(program: &OwnedFd) -> String {
    let mut told = sys::bpf_prog_info::default();
    let mut length = u32::try_from(size_of_val(&told)).unwrap();
    // SAFETY: the struct is as long as said and outlives the call.
    let returned =
        unsafe { sys::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut told).cast(), &raw mut length) };
    assert_eq!(returned, 0);
    let name: Vec<u8> =
        told.name.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
    String::from_utf8(name).unwrap()
}
