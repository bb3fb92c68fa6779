//! The daemon reads what the packet programs write.

use std::net::IpAddr;
use std::os::fd::AsRawFd;

use holdfast_core::op::FrontendType;
use holdfast_status::datapath::FlowFilter;
use libbpf_rs::libbpf_sys;

use super::super::sweep::FlowSweep;
use super::*;
use crate::kernel::bed::{Port, address};

/// To the loopback, where test runs place packets.
const ETHERNET: [u8; 12] = [0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2];

/// A packet without checksums, which programs ignore at ingress.
fn packet(from: SocketAddr, to: SocketAddr, transport: u8) -> Vec<u8> {
    let ports = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    let body = match transport {
        // A SYN: no sequence numbers, 20 bytes of header, a window.
        TCP => [&ports[..], &[0; 8], &[0x50, 0x02, 0xff, 0xff, 0, 0, 0, 0]].concat(),
        _ => [&ports[..], &[0, 12, 0, 0], b"what"].concat(),
    };
    let length = body.len() as u16;
    let header = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => [
            &[8, 0, 0x45, 0][..],
            &(20 + length).to_be_bytes(),
            &[0, 1, 0, 0, 64, transport, 0, 0],
            &from.octets(),
            &to.octets(),
        ]
        .concat(),
        (IpAddr::V6(from), IpAddr::V6(to)) => [
            &[0x86, 0xdd, 0x60, 0, 0, 0][..],
            &length.to_be_bytes(),
            &[transport, 64],
            &from.octets(),
            &to.octets(),
        ]
        .concat(),
        _ => unreachable!("both have one family"),
    };
    [&ETHERNET[..], &header, &body].concat()
}

/// Runs a program of Ethernet devices on a packet.
#[allow(unsafe_code)]
fn run(program: &impl AsRawFd, packet: &[u8]) {
    let mut out = [0_u8; 512];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        repeat: 1,
        ..Default::default()
    };
    // SAFETY: both buffers have the given lengths, and outlive the call.
    let returned = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    assert_eq!(returned, 0, "{}", std::io::Error::last_os_error());
}

fn entries(bed: &FlowMaps) -> usize {
    let keys = |map: &Map| bed.handles[map].keys().count();
    keys(&Map::Entries4) + keys(&Map::Entries6)
}

#[test]
fn kernel_flows_of_programs_are_read_whole_and_swept_completely() {
    let mut programs = None;
    let mut bed = FlowMaps::with(64, |given| {
        let (loaded, made) =
            load::EthernetPrograms::load(given, 64, &crate::packets::PacketSwitches::default()).unwrap();
        programs = Some(loaded);
        made
    });
    let programs = programs.unwrap();
    CLOCK.set(monotonic_seconds());
    let clients = ["203.0.113.9:4000", "9.9.9.200:4001", "[2001:db8::9]:4000", "[fd00::1]:4001"];
    let services = [
        ("10.96.0.10:53", "10.1.0.7:5353", "[2001:db8:96::10]:53", "[fd00::7]:5353", Port::UDP, UDP),
        ("10.96.0.11:80", "250.1.0.250:80", "[2001:db8:96::11]:80", "[fd00:ff::f7]:80", Port::TCP, TCP),
    ];
    for (index, (v4, v4_backend, v6, v6_backend, port, transport)) in (1..).zip(services) {
        for (index, frontend, backend) in [(index, v4, v4_backend), (index + 4, v6, v6_backend)] {
            let port = Port { index, base: index * 64, kind: FrontendType::ExternalIp, ..port };
            Port { frontends: &[frontend], backends: &[address(backend)], ..port }.serve(&mut bed.maps);
            let of_family = |it: &&&str| it.starts_with('[') == frontend.starts_with('[');
            for client in clients.iter().filter(of_family) {
                let packet = packet(address(client), address(frontend), transport);
                run(&programs.ingress, &packet);
            }
        }
    }
    let report = bed.table.find_flows(&FlowFilter::default(), 100);
    let told = |flow: &Flow| (flow.client.to_string(), flow.frontend.to_string(), flow.backend.to_string());
    let opening = report.matches.iter().filter(|flow| flow.stage == Stage::Opening).count();
    assert_eq!((report.matches.len(), opening), (8, 8), "{report:?}");
    assert_eq!(report.tally.families, [4, 4]);
    assert_eq!(bed.table.packet_counts().events[0], ("new", 8));
    let expected = ("203.0.113.9:4000".to_owned(), "10.96.0.10:53".to_owned(), "10.1.0.7:5353".to_owned());
    assert_eq!(told(&report.matches[0]), expected);
    // A moment later all entries exist; after its lifetime none does.
    CLOCK.set(CLOCK.get() + 3);
    let sampled = bed.table.sample_flows(0, 100, |_, _| true);
    assert_eq!((sampled.checked, sampled.wrong), (8, Vec::new()));
    assert_eq!(entries(&bed), 16);
    CLOCK.set(CLOCK.get() + 40);
    let mut sweep = FlowSweep::new(bed.table.clone(), FlowSweepProgress::default());
    assert!(sweep.sweep_part(64, later()));
    assert_eq!((sweep.swept.ended, entries(&bed), bed.free()), (8, 0, 64));
}
