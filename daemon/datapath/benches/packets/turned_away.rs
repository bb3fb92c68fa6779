//! How many packets of denied clients a core drops: SYNs from outside a Service's source ranges, and to one without
//! local backends; by rules like kube-proxy's, and by the programs, behind the driver and at it.
//!
//! Invariant: all cases take turns in one network, on one CPU, which also creates the packets. The dropper itself
//! counts, and the time is that of the CPU.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, FrontendType, PortIndex, QuotaId, SourceKey, WordFlags};
use holdfast_core::source_ranges::SourceRange;
use holdfast_datapath::{
    Device, DeviceSide, KernelMaps, PacketOptions, PacketSwitches, StartOptions, XdpState, XdpUse,
};

use crate::bed::{Port, ThreadBed, address};
use crate::clock::{self, median};
use crate::craft::{SYN, Sent};
use crate::feeder::Frames;
use crate::forward::{rules, run, time_of_packets};
use crate::network::{self, OUTER};
use crate::size::sized;

const CLIENT: &str = "198.51.100.7:40000";
/// One with source ranges, and one without local backends under policy Local.
const FRONTENDS: [&str; 2] = ["203.0.113.11:80", "203.0.113.12:80"];

const ROUNDS: usize = 31;
const PACKETS: u32 = 100_000;
const WARM_UP: u32 = 2_000;

/// The rules of kube-proxy's nftables mode for these two.
const RULES: &str = "table ip rules {
 counter turned { }
 chain firewall {
  ip saddr != { 192.0.2.0/24 } counter name turned drop
 }
 map firewall-ips {
  type ipv4_addr . inet_proto . inet_service : verdict
  elements = { 203.0.113.11 . tcp . 80 : goto firewall }
 }
 chain silent {
  counter name turned drop
 }
 map no-endpoint-services {
  type ipv4_addr . inet_proto . inet_service : verdict
  elements = { 203.0.113.12 . tcp . 80 : goto silent }
 }
 chain filter-prerouting {
  type filter hook prerouting priority -110;
  ct state new ip daddr . meta l4proto . th dport vmap @firewall-ips
  ct state new ip daddr . meta l4proto . th dport vmap @no-endpoint-services
 }
}
";

/// The dropper of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Rules,
    Behind,
    Driver,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Rules, "rules as kube-proxy's (nftables)"),
    (Way::Behind, "holdfast, behind the driver"),
    (Way::Driver, "holdfast, at the driver"),
];

struct Node {
    maps: KernelMaps,
    fabric: u32,
    left_to: PathBuf,
}

impl Node {
    fn new(bed: &ThreadBed) -> Self {
        network::lay();
        network::know_routers();
        // Each end of the link transmits frames only while the other one uses GRO.
        ["outer", "fabric"].iter().for_each(|end| drop(run("ethtool", &format!("-K {end} gro on"))));
        let packets = Some(PacketOptions {
            flows: 1024,
            snat_ports: vec![61_000..=61_000],
            switches: PacketSwitches::default(),
        });
        let mut maps = KernelMaps::start(&StartOptions { packets, ..bed.options() }).unwrap();
        maps.serve_packets();
        let kind = FrontendType::LoadBalancer;
        let backends = [address("10.2.0.5:8080")];
        let [barred, silent] = FRONTENDS;
        let flags = WordFlags::default().with(WordFlags::SOURCES, true);
        let port =
            Port { index: 1, base: 1, kind, frontends: &[barred], backends: &backends, flags, ..Port::TCP };
        port.serve(&mut maps);
        let range = SourceRange::new("192.0.2.0".parse().unwrap(), 24).unwrap();
        maps.execute(&Action::InsertSource(SourceKey { port: PortIndex(1), range }, QuotaId(1))).unwrap();
        Port { index: 2, kind, frontends: &[silent], flags: WordFlags::DROP, ..Port::TCP }.serve(&mut maps);
        let fabric = nix::net::if_::if_nametoindex("fabric").unwrap();
        Self { maps, fabric, left_to: time_of_packets() }
    }

    /// Switches to that dropper.
    fn choose(&mut self, way: Way) {
        if way == Way::Rules {
            rules(RULES);
            return;
        }
        let xdp = if way == Way::Driver { XdpUse::Native } else { XdpUse::Never };
        let outer = Device::new(OUTER, "outer", DeviceSide::Outer);
        self.maps.set_devices(&[Device { fast_path: true, peer: true, xdp, ..outer }]);
        while self.maps.tend_devices(|| false) {}
        let state = &self.maps.packet_status().unwrap().devices[0].xdp;
        assert_eq!(*state == XdpState::Active, way == Way::Driver);
    }

    fn leave(&mut self, way: Way) {
        if way == Way::Rules {
            run("nft", "delete table ip rules");
        }
        self.maps.set_devices(&[]);
        while self.maps.tend_devices(|| false) {}
    }

    /// How many packets that dropper has counted so far.
    fn dropped(&self, way: Way) -> u64 {
        if way == Way::Rules {
            let said = run("nft", "list counter ip rules turned");
            return said
                .split_whitespace()
                .skip_while(|word| *word != "packets")
                .nth(1)
                .unwrap()
                .parse()
                .unwrap();
        }
        let counts = self.maps.live_maps().port_counts;
        [1, 2].map(|port| counts.read_port(PortIndex(port)).dropped).iter().sum()
    }

    fn send(&self, to: &str, count: u32) {
        Frames::sent(&Sent::tcp(CLIENT, to, SYN).frame(), self.fabric).send(count);
    }

    /// Packets dropped per second of CPU time.
    fn rate(&self, way: Way, to: &str, count: u32) -> f64 {
        self.send(to, WARM_UP);
        let (before, begun) = (self.dropped(way), self.used());
        self.send(to, count);
        let used = self.used() - begun;
        let dropped = self.dropped(way) - before;
        assert!(dropped > u64::from(count / 2), "{way:?}: {dropped} are dropped of {count}");
        f64::from(u32::try_from(dropped).unwrap()) / used.as_secs_f64()
    }

    fn used(&self) -> Duration {
        let told = fs::read_to_string(&self.left_to).unwrap();
        clock::used() + Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
    }
}

/// All cases by turns.
pub(crate) fn all(bed: &ThreadBed) {
    let mut node = Node::new(bed);
    let mut rates = vec![[Vec::new(), Vec::new()]; WAYS.len()];
    for _ in 0..sized(ROUNDS, 1) {
        for ((way, _), rates) in WAYS.iter().zip(&mut rates) {
            node.choose(*way);
            for (to, rates) in FRONTENDS.iter().zip(rates) {
                rates.push(node.rate(*way, to, sized(PACKETS, 10_000)));
            }
            node.leave(*way);
        }
    }
    println!("{:40}{:>16}{:>16}", "SYNs dropped in a second, one core", "source ranges", "nothing here");
    for ((_, name), [barred, silent]) in WAYS.iter().zip(rates) {
        println!("{name:40}{:>16.0}{:>16.0}", median(barred), median(silent));
    }
}
