//! A node whose programs a test runs by hand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use holdfast_core::list::Scope;
use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, FrontendType, MapGrowth, WordFlags};
use libbpf_rs::{MapCore, MapFlags, libbpf_sys as sys};

use super::craft::{Seen, Sent, see};
use super::network::{self, OUTER, PODS};
use crate::abi;
use crate::abi::packets::types;
use crate::devices::{self, Device, DeviceSide};
use crate::kernel::KernelMaps;
use crate::kernel::bed::{CAPACITY, Port, ThreadBed, bed};
use crate::load::EthernetPrograms;
use crate::map::{self, Map, MapHandles};
use crate::packets::PacketSwitches;

/// The verdicts: the packet continues, is dropped, or is redirected.
pub(super) const NEXT: i32 = -1;
pub(super) const SHOT: i32 = 2;
pub(super) const REDIRECTED: i32 = 7;

/// The longest packet that an ICMP error quotes whole, and how much of a longer one it quotes behind the IP header.
pub(super) const QUOTED_MOST: usize = 1200;
pub(super) const QUOTED_LEAST: usize = 20;

const FLOWS: u32 = 64;
/// The node's outer address, which remote backends see.
pub(super) const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NODE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// The node's addresses at the pods' device.
pub(super) const POD_GATE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
pub(super) const POD_GATE6: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1);
pub(super) const SNAT_FIRST: u16 = 61_000;
pub(super) const SNAT_COUNT: u16 = 64;
/// The translated ports by which clients reach local backends.
pub(super) const THROUGH: std::ops::Range<u16> = 1_024..30_000;
/// Where the slots of local lists begin: so low that no map grows, because the programs would not read the larger map.
const LOCAL_SLOTS: u32 = 64;
/// The slots of the maps: enough that a table makes none grow.
const SLOTS: u32 = 65_536;

/// Waits for another second of the programs' clock, which they take from the kernel.
pub(super) fn next_second() {
    holdfast_fixtures::clock::pause(std::time::Duration::from_millis(1_100));
}

/// The programs over their own maps, in a network with an outer device and a pods' device.
pub(super) struct Node {
    pub(super) maps: KernelMaps,
    pub(super) handles: MapHandles,
    programs: EthernetPrograms,
}

impl Node {
    /// Runs a test on its own node.
    pub(super) fn test(test: impl FnOnce(&mut Self) + Send + 'static) {
        Self::test_with(FLOWS, test);
    }

    /// Runs a test on a node with space for this many flows.
    pub(super) fn test_with(flows: u32, test: impl FnOnce(&mut Self) + Send + 'static) {
        Self::test_as(flows, PacketSwitches::default(), test);
    }

    /// Runs a test on a node whose programs load with these switches.
    pub(super) fn test_as(
        flows: u32,
        switches: PacketSwitches,
        test: impl FnOnce(&mut Self) + Send + 'static,
    ) {
        bed(move |bed| test(&mut Self::new(bed, flows, &switches)));
    }

    fn new(_bed: &ThreadBed, flows: u32, switches: &PacketSwitches) -> Self {
        network::lay();
        // A growth would load the programs of sockets, and this test runs none of them.
        let expected = MapGrowth { slots: [SLOTS; 2], ..MapGrowth::default() };
        let maps = KernelMaps::expecting(CAPACITY, &expected).unwrap();
        let given = map::clone_handles(maps.handles_for_tests()).unwrap();
        let (programs, handles) = EthernetPrograms::load(&given, flows, switches).unwrap();
        let mut node = Self { maps, handles, programs };
        node.tell_all(flows);
        node
    }

    /// Loads the programs again over the same maps, as a start or a resize does.
    pub(super) fn load_again(&mut self) {
        let (programs, _) = EthernetPrograms::load(&self.handles, FLOWS, &PacketSwitches::default()).unwrap();
        self.programs = programs;
    }

    fn tell_all(&mut self, flows: u32) {
        for number in 0..flows {
            self.put(Map::FreeFlows, &[], &number.to_ne_bytes());
        }
        let device = types::device {
            address4: u32::from_ne_bytes(NODE.octets()),
            address6: [0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
                .as_chunks()
                .0
                .iter()
                .map(|part| u32::from_ne_bytes(*part))
                .collect::<Vec<_>>()
                .try_into()
                .unwrap(),
            flags: u16::try_from(types::device_flag::DEVICE_OUTER.0 | types::device_flag::DEVICE_ADOPTS.0)
                .unwrap(),
            ..Default::default()
        };
        self.put(Map::Devices, &OUTER.to_ne_bytes(), abi::as_bytes(&device));
        let mut settings = types::packet_settings { snat_ports: SNAT_COUNT.into(), ..Default::default() };
        settings.snat[0] = types::port_range { first: SNAT_FIRST, count: SNAT_COUNT };
        self.put(Map::PacketSettings, &0_u32.to_ne_bytes(), abi::as_bytes(&settings));
        self.maps.execute(&Action::InsertNodeAddress(NODE.into())).unwrap();
        self.maps.execute(&Action::InsertNodeAddress("2001:db8::1".parse().unwrap())).unwrap();
        (SNAT_FIRST..SNAT_FIRST + SNAT_COUNT).for_each(|port| self.watch(port));
    }

    pub(super) fn answers_node_ports_at(&mut self, address: IpAddr) {
        self.maps.execute(&Action::InsertNodeAddress(address)).unwrap();
    }

    /// Makes the programs check packets to this port of the node.
    pub(super) fn watch(&self, port: u16) {
        let key = u32::from(port / 64).to_ne_bytes();
        let map = map::find_handle(&self.handles, Map::PacketPorts).unwrap();
        let before = map.lookup(&key, MapFlags::ANY).unwrap().unwrap();
        let bits = u64::from_ne_bytes(before.try_into().unwrap()) | 1 << (port % 64);
        self.put(Map::PacketPorts, &key, &bits.to_ne_bytes());
    }

    pub(super) fn put(&self, map: Map, key: &[u8], value: &[u8]) {
        let map = map::find_handle(&self.handles, map).unwrap();
        map.update(key, value, MapFlags::ANY).unwrap();
    }

    /// The other settings stay.
    pub(super) fn tell_drains(&self, drains: u32) {
        let settings = map::find_handle(&self.handles, Map::PacketSettings).unwrap();
        let before = settings.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        let before: types::packet_settings = abi::from_bytes(&before).unwrap();
        let told = types::packet_settings { drains, ..before };
        self.put(Map::PacketSettings, &0_u32.to_ne_bytes(), abi::as_bytes(&told));
    }

    /// A count, summed over all CPUs.
    pub(super) fn counted(&self, what: types::packet_count) -> u64 {
        let map = map::find_handle(&self.handles, Map::PacketCounts).unwrap();
        let each = map.lookup_percpu(&what.0.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        each.iter().map(|count| u64::from_ne_bytes(count.as_slice().try_into().unwrap())).sum()
    }

    pub(super) fn serve(&mut self, port: &Port<'_>) {
        port.serve(&mut self.maps);
        if port.kind == FrontendType::NodePort {
            port.frontends.iter().for_each(|it| self.watch(it.parse::<SocketAddr>().unwrap().port()));
        }
    }

    /// Serves a port with policy Local and equal lists: backends see a client's own address and port.
    pub(super) fn serve_local(&mut self, port: &Port<'_>) {
        let flags = port.flags.with(WordFlags::INTERNAL_LOCAL, true).with(WordFlags::EXTERNAL_LOCAL, true);
        Port { base: port.base + LOCAL_SLOTS, flags, ..*port }.publish(&mut self.maps, Scope::Local);
        self.serve(&Port { flags, ..*port });
    }

    /// The result for a frame that arrives at the outer device.
    #[track_caller]
    pub(super) fn come(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.run(&self.programs.ingress, frame, OUTER).unwrap()
    }

    /// Writes the outer device's entry: its side, and its addresses.
    pub(super) fn tell_of_device(&self, side: DeviceSide, seen: [Option<IpAddr>; 2]) {
        self.tell_of(side, seen, false);
    }

    /// The same, with `by_address`: replies to the device's clients are routed by the dialled address.
    pub(super) fn tell_of(&self, side: DeviceSide, seen: [Option<IpAddr>; 2], by_address: bool) {
        self.tell(&Device { route_by_address: by_address, ..device(side, seen) });
    }

    /// Writes how many bits of its addresses the outer device shares with local pods.
    pub(super) fn tell_of_near(&self, seen: [IpAddr; 2], [near4, near6]: [u8; 2]) {
        self.tell(&Device {
            local_prefix4: near4,
            local_prefix6: near6,
            ..device(DeviceSide::Outer, seen.map(Some))
        });
    }

    /// Marks the outer device as a bridge.
    pub(super) fn tell_of_bridge(&self) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        self.tell(&Device { bridge: true, ..device(DeviceSide::Outer, seen) });
    }

    /// Marks the outer device as a switch, with local and remote pods behind it.
    pub(super) fn tell_of_switch(&self) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        self.tell(&Device { switch: true, ..device(DeviceSide::Outer, seen) });
    }

    /// Sets whether IPsec policies apply at the outer device.
    pub(super) fn tell_of_policies(&self, secured: bool) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        self.tell(&Device { has_ipsec: secured, adopts_flows: true, ..device(DeviceSide::Outer, seen) });
    }

    /// Sets whether the fast path is on between the outer device and itself.
    pub(super) fn tell_of_shortcut(&self, shortcut: bool) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        self.tell(&Device { fast_path: shortcut, peer: true, ..device(DeviceSide::Outer, seen) });
    }

    /// The same for another device, and whether the kernel's FIB ignores ports.
    pub(super) fn tell_of_plain(&self, index: u32, plain: [bool; 2]) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        self.tell(&Device {
            index,
            fib_ignores_ports: plain,
            fast_path: true,
            peer: true,
            ..device(DeviceSide::Outer, seen)
        });
    }

    /// The same for any device, and whether its driver may redirect frames.
    pub(super) fn tell_of_frames(&self, index: u32, shortcut: bool, frames: bool) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        let device = Device { index, fast_path: shortcut, peer: true, ..device(DeviceSide::Outer, seen) };
        let told = devices::encode_device(&device, frames);
        self.put(Map::Devices, &index.to_ne_bytes(), abi::as_bytes(&told));
    }

    /// The XDP program as devices have it.
    pub(super) fn frames(&self) -> BorrowedFd<'_> {
        self.programs.xdp().as_fd()
    }

    /// The result for a frame at the outer device's driver. An error: this kernel's test run has no devices.
    pub(super) fn try_arrive(&self, frame: &[u8]) -> std::io::Result<(i32, Vec<u8>)> {
        self.try_arrive_in_buffers(frame, frame.len())
    }

    /// The same with so many bytes in the first buffer.
    pub(super) fn try_arrive_in_buffers(
        &self,
        frame: &[u8],
        first: usize,
    ) -> std::io::Result<(i32, Vec<u8>)> {
        // A `struct xdp_md`: the first buffer's bounds, no metadata, and the device's index.
        let context = [0, u32::try_from(first).unwrap(), 0, OUTER, 0, 0];
        run_once(self.frames().as_raw_fd(), frame, &context, 0)
    }

    #[track_caller]
    pub(super) fn arrive(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.try_arrive(frame).unwrap()
    }

    /// The result for a frame at the loopback's driver, which every kernel can run.
    #[track_caller]
    pub(super) fn arrive_elsewhere(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        run_once(self.frames().as_raw_fd(), frame, &[], 0).unwrap()
    }

    /// Writes the entry of the pods' device: whether the fast path is on, and whether packets go to the peer directly.
    pub(super) fn tell_of_pods(&self, side: DeviceSide, shortcut: bool, peer: bool) {
        let seen = [POD_GATE.into(), POD_GATE6.into()].map(Some);
        // A pod's own device leads to no other pod.
        let (near4, near6) = if side == DeviceSide::Pod { (0, 0) } else { (24, 64) };
        self.tell(&Device {
            index: PODS,
            local_prefix4: near4,
            local_prefix6: near6,
            fast_path: shortcut,
            peer,
            ..device(side, seen)
        });
    }

    fn tell(&self, device: &Device) {
        self.put(
            Map::Devices,
            &device.index.to_ne_bytes(),
            abi::as_bytes(&devices::encode_device(device, false)),
        );
    }

    /// The result for a frame that a local pod sends.
    #[track_caller]
    pub(super) fn come_from_pod(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.tell_of_device(DeviceSide::Pod, [Some(POD_GATE.into()), Some(POD_GATE6.into())]);
        self.run(&self.programs.ingress, frame, PODS).unwrap()
    }

    /// The result for a frame that arrives at a device with an entry.
    #[track_caller]
    pub(super) fn come_by(&self, frame: &[u8], device: u32) -> (i32, Vec<u8>) {
        self.run(&self.programs.ingress, frame, device).unwrap()
    }

    /// The result for a frame at a device whose pods' replies take the fast path.
    #[track_caller]
    pub(super) fn come_back(&self, frame: &[u8], device: u32) -> (i32, Vec<u8>) {
        self.run(self.programs.pod_egress(), frame, device).unwrap()
    }

    /// The result for a frame that leaves by the pods' device.
    #[track_caller]
    pub(super) fn leave_to_pod(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.run(&self.programs.egress, frame, PODS).unwrap()
    }

    /// The result for a frame that leaves by the outer device.
    #[track_caller]
    pub(super) fn leave(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.run(&self.programs.egress, frame, OUTER).unwrap()
    }

    /// The results for any frame at ingress and egress; `None`: the kernel's test run rejects the frame.
    pub(super) fn take(&self, frame: &[u8]) -> Option<[(i32, Vec<u8>); 2]> {
        let EthernetPrograms { ingress, egress, .. } = &self.programs;
        let run = |program| self.run(program, frame, OUTER).ok();
        Some([run(ingress)?, run(egress)?])
    }

    /// Runs a program on a packet with a full checksum by a network card (CHECKSUM_COMPLETE). Afterwards that checksum
    /// is still right, or the packet was trimmed. Kernels before 6.17 have no such packets.
    fn run(&self, program: &OwnedFd, frame: &[u8], device: u32) -> std::io::Result<(i32, Vec<u8>)> {
        let summed = run_with(program, frame, device, sys::BPF_F_TEST_SKB_CHECKSUM_COMPLETE);
        match summed.as_ref().err().and_then(std::io::Error::raw_os_error) {
            Some(libc::EINVAL) => run_with(program, frame, device, 0),
            Some(libc::EBADMSG) => Ok(self.run_cut(program, frame, device)),
            _ => summed,
        }
    }

    /// Runs a program again on a packet that it trims. Only trimming makes the kernel drop the checksum
    /// (`__skb_trim_rcsum`), and the test run still compares it. If the program does not trim, the checksum is wrong.
    fn run_cut(&self, program: &OwnedFd, frame: &[u8], device: u32) -> (i32, Vec<u8>) {
        self.forget_answers();
        let (verdict, out) = run_with(program, frame, device, 0).unwrap();
        let is_cut = verdict == REDIRECTED && out.len() < frame.len() + size_of_new_headers(&out);
        assert!(is_cut, "the checksum of the whole packet is wrong: {frame:02x?}, {verdict}: {out:02x?}");
        (verdict, out)
    }

    /// Resets the reply pace, as at the beginning of a second.
    fn forget_answers(&self) {
        let (map, key) = (map::find_handle(&self.handles, Map::PacketPace).unwrap(), 0_u32.to_ne_bytes());
        let mut paces = map.lookup_percpu(&key, MapFlags::ANY).unwrap().unwrap();
        paces.iter_mut().for_each(|pace| pace.fill(0));
        map.update_percpu(&key, &paces, MapFlags::ANY).unwrap();
    }

    /// A packet after ingress.
    #[track_caller]
    pub(super) fn comes(&self, sent: &Sent) -> Seen {
        let (verdict, frame) = self.come(&sent.frame());
        assert_eq!(verdict, NEXT, "{sent:?}");
        see(&frame, true)
    }

    #[track_caller]
    pub(super) fn leaves(&self, sent: &Sent) -> Seen {
        let (verdict, frame) = self.leave(&sent.frame());
        assert_eq!(verdict, NEXT, "{sent:?}");
        see(&frame, true)
    }

    /// Checks that a packet passes ingress and egress unchanged.
    #[track_caller]
    pub(super) fn check_passed(&self, sent: &Sent) {
        let frame = sent.frame();
        assert_eq!(self.come(&frame), (NEXT, frame.clone()), "comes: {sent:?}");
        assert_eq!(self.leave(&frame), (NEXT, frame), "leaves: {sent:?}");
    }
}

fn device(side: DeviceSide, [address4, address6]: [Option<IpAddr>; 2]) -> Device {
    let index = if matches!(side, DeviceSide::Pod | DeviceSide::LocalPods) { PODS } else { OUTER };
    Device {
        address4: address4.and_then(|it| if let IpAddr::V4(it) = it { Some(it) } else { None }),
        address6: address6.and_then(|it| if let IpAddr::V6(it) = it { Some(it) } else { None }),
        ..Device::new(index, "device", side)
    }
}

/// How many bytes a program has added before a packet: the headers of an ICMP error, or an outer IP header.
fn size_of_new_headers(frame: &[u8]) -> usize {
    match (frame.get(12..14), frame.get(23), frame.get(20)) {
        (Some([0x08, 0x00]), Some(1), _) => 28,
        (Some([0x08, 0x00]), Some(4 | 41), _) => 20,
        (Some([0x86, 0xdd]), _, Some(58)) => 48,
        (Some([0x86, 0xdd]), _, Some(4 | 41)) => 40,
        _ => 0,
    }
}

fn run_with(program: &OwnedFd, frame: &[u8], device: u32, flags: u32) -> std::io::Result<(i32, Vec<u8>)> {
    // The beginning of the kernel's struct __sk_buff, where the device's index is the eleventh word.
    let mut context = [0_u32; 16];
    context[10] = device;
    run_once(program.as_raw_fd(), frame, &context, flags)
}

fn run_once(program: RawFd, frame: &[u8], context: &[u32], flags: u32) -> std::io::Result<(i32, Vec<u8>)> {
    let mut out = vec![0_u8; 4096];
    // SAFETY: zeros are valid options.
    let mut options: sys::bpf_test_run_opts = unsafe { std::mem::zeroed() };
    options.sz = size_of::<sys::bpf_test_run_opts>() as u64;
    options.data_in = frame.as_ptr().cast();
    options.data_size_in = u32::try_from(frame.len()).unwrap();
    options.data_out = out.as_mut_ptr().cast();
    options.data_size_out = u32::try_from(out.len()).unwrap();
    if !context.is_empty() {
        options.ctx_in = context.as_ptr().cast();
        options.ctx_size_in = u32::try_from(size_of_val(context)).unwrap();
    }
    options.repeat = 1;
    options.flags = flags;
    // SAFETY: all memory that the options point to outlives the call.
    let returned = unsafe { sys::bpf_prog_test_run_opts(program, &raw mut options) };
    if returned != 0 {
        return Err(std::io::Error::last_os_error());
    }
    out.truncate(options.data_size_out as usize);
    Ok((options.retval.cast_signed(), out))
}
