//! How many packets a core forwards to another node: datagrams of 64 bytes, by plain routing, by rules like
//! kube-proxy's, and by the programs, through the stack, on the fast path, and at the driver.
//!
//! Invariant: all cases take turns in one network, on one CPU, which also creates and drops the packets: a veth passes
//! them as frames in both directions, so neither costs much. Packets count when they leave for the backend, and the
//! time is that of the CPU, so other work of the machine does not count.

use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use holdfast_core::op::FrontendType;
use holdfast_datapath::{
    Device, DeviceSide, KernelMaps, PacketOptions, PacketSwitches, StartOptions, XdpState, XdpUse,
};
use libbpf_rs::libbpf_sys as sys;

use crate::bed::{Port, ThreadBed, address};
use crate::clock::{self, median};
use crate::craft::Sent;
use crate::feeder::Frames;
use crate::network::{self, OUTER};
use crate::size::sized;

const CLIENT: &str = "198.51.100.7:40000";
/// A flow keeps its path, so each case has its own service. The first one also serves plain routing and rules.
const FRONTENDS: [&str; 3] = ["203.0.113.11:80", "203.0.113.12:80", "203.0.113.13:80"];
const BACKENDS: [&str; 3] = ["10.2.0.5:8080", "10.2.0.6:8080", "10.2.0.7:8080"];
const BACKEND_PORT: u16 = 8080;
/// The only port by which the backend sees the client.
const SEEN: &str = "192.0.2.1:61000";

const ROUNDS: usize = 31;
/// A turn takes some tens of milliseconds, so that few packets in it need the slow path.
const PACKETS: u32 = 100_000;
const WARM_UP: u32 = 2_000;

/// The rules of kube-proxy's nftables mode for this frontend and another service.
const RULES: &str = "table ip rules {
 chain mark-for-masquerade {
  meta mark set meta mark or 0x4000
 }
 chain endpoint {
  meta l4proto udp dnat to 10.2.0.5:8080
 }
 chain service {
  numgen random mod 1 vmap { 0 : goto endpoint }
 }
 chain external {
  jump mark-for-masquerade
  goto service
 }
 map service-ips {
  type ipv4_addr . inet_proto . inet_service : verdict
  elements = { 203.0.113.11 . udp . 80 : goto external, 203.0.113.12 . udp . 80 : goto external }
 }
 chain services {
  ip daddr . meta l4proto . th dport vmap @service-ips
 }
 chain nat-prerouting {
  type nat hook prerouting priority dstnat;
  jump services
 }
 chain masquerading {
  meta mark and 0x4000 == 0 return
  meta mark set meta mark xor 0x4000
  masquerade fully-random
 }
 chain nat-postrouting {
  type nat hook postrouting priority srcnat;
  jump masquerading
 }
 chain filter-forward {
  type filter hook forward priority -110;
  ct state new counter
 }
}
";

/// The path of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Rules,
    Stack,
    Shortcut,
    Driver,
}

const WAYS: [(Way, &str); 5] = [
    (Way::Plain, "plain routing"),
    (Way::Rules, "rules as kube-proxy's (nftables)"),
    (Way::Stack, "holdfast, through the stack"),
    (Way::Shortcut, "holdfast, past the stack"),
    (Way::Driver, "holdfast, at the driver"),
];

impl Way {
    fn service(self) -> usize {
        match self {
            Self::Plain | Self::Rules | Self::Stack => 0,
            Self::Shortcut => 1,
            Self::Driver => 2,
        }
    }

    fn dialled(self) -> &'static str {
        if self == Self::Plain { BACKENDS[0] } else { FRONTENDS[self.service()] }
    }

    /// The device's entry; none: no programs are attached.
    fn device(self) -> Option<Device> {
        let device = Device {
            address4: Some([192, 0, 2, 1].into()),
            ..Device::new(OUTER, "outer", DeviceSide::Outer)
        };
        let past = Device { fast_path: true, peer: true, ..device.clone() };
        match self {
            Self::Plain | Self::Rules => None,
            Self::Stack => Some(device),
            Self::Shortcut => Some(past),
            Self::Driver => Some(Device { xdp: XdpUse::Native, ..past }),
        }
    }
}

pub(crate) fn run(program: &str, arguments: &str) -> String {
    let done = Command::new(program).args(arguments.split(' ')).output().unwrap();
    assert!(done.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

pub(crate) fn rules(text: &str) {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success());
}

struct Node {
    maps: KernelMaps,
    // Drops and counts packets that leave the node.
    sink: Frames,
    _sink_link: OwnedFd,
    fabric: u32,
    left_to: PathBuf,
}

impl Node {
    fn new(bed: &ThreadBed) -> Self {
        network::lay();
        network::know_routers();
        // Frames arrive at this end, and pass the other one, only with GRO on.
        run("ethtool", "-K outer gro on");
        let packets = Some(PacketOptions {
            flows: 1024,
            snat_ports: vec![61_000..=61_000],
            switches: PacketSwitches::default(),
        });
        let mut maps = KernelMaps::start(&StartOptions { packets, ..bed.options() }).unwrap();
        maps.serve_packets();
        for ((index, frontend), backend) in (1..).zip(FRONTENDS).zip(BACKENDS) {
            let (frontends, backends, kind) = ([frontend], [address(backend)], FrontendType::LoadBalancer);
            let port =
                Port { index, base: index, kind, frontends: &frontends, backends: &backends, ..Port::UDP };
            port.serve(&mut maps);
        }
        let fabric = nix::net::if_::if_nametoindex("fabric").unwrap();
        let sink = Frames::counted(BACKEND_PORT);
        let link = attach(sink.program(), fabric);
        Self { maps, sink, _sink_link: link, fabric, left_to: time_of_packets() }
    }

    /// Datagrams of 60 bytes; a card adds the frame check sequence.
    fn frames(&self, from: &str, to: &str) -> Frames {
        Frames::sent(&Sent::udp(from, to, &[7; 18]).frame(), self.fabric)
    }

    /// Switches the packets and the flow to that path.
    fn choose(&mut self, way: Way) {
        if way == Way::Rules {
            rules(RULES);
        }
        let device = way.device();
        self.maps.set_devices(device.as_slice());
        while self.maps.tend_devices(|| false) {}
        if way == Way::Driver {
            let state = &self.maps.packet_status().unwrap().devices[0].xdp;
            assert_eq!(*state, XdpState::Active);
        }
        self.send(way, WARM_UP / 2);
        if way != Way::Plain {
            self.frames(BACKENDS[way.service()], SEEN).send(16);
        }
        self.send(way, WARM_UP / 2);
    }

    fn leave(&mut self, way: Way) {
        if way == Way::Rules {
            run("nft", "delete table ip rules");
        }
        self.maps.set_devices(&[]);
        while self.maps.tend_devices(|| false) {}
    }

    fn send(&self, way: Way, count: u32) {
        self.frames(CLIENT, way.dialled()).send(count);
    }

    /// Packets that left per second of CPU time.
    fn rate(&self, way: Way, count: u32) -> f64 {
        let frames = self.frames(CLIENT, way.dialled());
        let (before, begun) = (self.sink.count(), self.used());
        frames.send(count);
        let used = self.used() - begun;
        let arrived = self.sink.count() - before;
        assert!(arrived > u64::from(count / 2), "{way:?}: {arrived} arrive of {count}");
        f64::from(u32::try_from(arrived).unwrap()) / used.as_secs_f64()
    }

    /// The CPU time of this thread and of ksoftirqd.
    fn used(&self) -> Duration {
        let told = fs::read_to_string(&self.left_to).unwrap();
        clock::used() + Duration::from_nanos(told.split(' ').next().unwrap().parse().unwrap())
    }
}

/// The file with the CPU time of ksoftirqd on the first CPU.
pub(crate) fn time_of_packets() -> PathBuf {
    let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let is_that =
        |path: &PathBuf| fs::read_to_string(path.join("comm")).is_ok_and(|it| it == "ksoftirqd/0\n");
    all.into_iter().find(is_that).unwrap().join("schedstat")
}

fn attach(program: &OwnedFd, device: u32) -> OwnedFd {
    use std::os::fd::FromRawFd;
    let device = i32::try_from(device).unwrap();
    let options = sys::bpf_link_create_opts {
        sz: size_of::<sys::bpf_link_create_opts>() as _,
        flags: sys::XDP_FLAGS_DRV_MODE,
        ..Default::default()
    };
    // SAFETY: the options outlive the call, and a non-negative result is our descriptor.
    unsafe {
        let link =
            sys::bpf_link_create(program.as_fd().as_raw_fd(), device, sys::BPF_XDP, &raw const options);
        assert!(link >= 0, "{link}");
        OwnedFd::from_raw_fd(link)
    }
}

/// All cases by turns.
pub(crate) fn all(bed: &ThreadBed) {
    let mut node = Node::new(bed);
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); WAYS.len()];
    for _ in 0..sized(ROUNDS, 1) {
        for (at, (way, _)) in WAYS.iter().enumerate() {
            node.choose(*way);
            rates[at].push(node.rate(*way, sized(PACKETS, 10_000)));
            node.leave(*way);
        }
    }
    let rules = rates[1].clone();
    println!("{:40}{:>12}{:>18}", "datagrams of 64 bytes sent on, one core", "a second", "of the rules'");
    for ((_, name), rates) in WAYS.iter().zip(rates) {
        let ratios: Vec<f64> = rates.iter().zip(&rules).map(|(rate, rules)| rate / rules).collect();
        println!("{name:40}{:>12.0}{:>18.2}", median(rates), median(ratios));
    }
}
