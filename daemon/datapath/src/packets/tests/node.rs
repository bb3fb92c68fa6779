//! A node on which a test runs the programs by hand.

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
use crate::load::{self, PacketPrograms};
use crate::map::{self, Map, MapHandles};
use crate::packets::PacketSwitches;

/// What a program returns if the packet goes on, ends, or is sent back.
pub(super) const NEXT: i32 = -1;
pub(super) const SHOT: i32 = 2;
pub(super) const REDIRECTED: i32 = 7;

/// The longest packet that a refusal quotes whole, and how much of a longer one it quotes behind its header of IP.
pub(super) const QUOTED_MOST: usize = 1200;
pub(super) const QUOTED_LEAST: usize = 20;

const FLOWS: u32 = 64;
/// The node's address outside, which backends of other nodes see.
pub(super) const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const NODE6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
/// The node's addresses at the device of its pods.
pub(super) const POD_GATE: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
pub(super) const POD_GATE6: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1);
pub(super) const SNAT_FIRST: u16 = 61_000;
pub(super) const SNAT_COUNT: u16 = 64;
/// The ports by which clients come to backends of this node.
pub(super) const THROUGH: std::ops::Range<u16> = 1_024..30_000;
/// Where the slots of local lists begin: so low that no map grows, because the programs would not have the larger map.
const LOCAL_SLOTS: u32 = 64;
/// The slots of the maps from the start: a table does not fill them so far that they grow, either.
const SLOTS: u32 = 65_536;

/// The programs over maps of their own, in a network with an outer device and a device of pods.
pub(super) struct Node {
    pub(super) maps: KernelMaps,
    pub(super) handles: MapHandles,
    programs: PacketPrograms,
}

impl Node {
    /// Runs a test on a node of its own.
    pub(super) fn test(test: impl FnOnce(&mut Self) + Send + 'static) {
        Self::test_with(FLOWS, test);
    }

    /// Runs a test on a node with room for this many flows.
    pub(super) fn test_with(flows: u32, test: impl FnOnce(&mut Self) + Send + 'static) {
        Self::test_as(flows, PacketSwitches::default(), test);
    }

    /// Runs a test on a node of which the programs are told this when they are loaded.
    pub(super) fn test_as(
        flows: u32,
        switches: PacketSwitches,
        test: impl FnOnce(&mut Self) + Send + 'static,
    ) {
        bed(move |bed| test(&mut Self::new(bed, flows, &switches)));
    }

    fn new(_bed: &ThreadBed, flows: u32, switches: &PacketSwitches) -> Self {
        network::lay();
        let mut maps = KernelMaps::without_programs(CAPACITY).unwrap();
        maps.reserve_capacity(&MapGrowth { slots: [SLOTS; 2], ..MapGrowth::default() }).unwrap();
        let given = map::clone_handles(maps.handles_for_tests()).unwrap();
        let (programs, handles) = load::load_ethernet(&given, flows, switches).unwrap();
        let mut node = Self { maps, handles, programs };
        node.tell_all(flows);
        node
    }

    /// Loads the programs anew over the same maps, as a start does and a change of the tables' size.
    pub(super) fn load_again(&mut self) {
        let (programs, _) = load::load_ethernet(&self.handles, FLOWS, &PacketSwitches::default()).unwrap();
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

    /// Has the programs look at packets to this port of the node.
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

    /// The rest of the settings is as it was.
    pub(super) fn tell_drains(&self, drains: u32) {
        let settings = map::find_handle(&self.handles, Map::PacketSettings).unwrap();
        let before = settings.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        let before: types::packet_settings = abi::from_bytes(&before).unwrap();
        let told = types::packet_settings { drains, ..before };
        self.put(Map::PacketSettings, &0_u32.to_ne_bytes(), abi::as_bytes(&told));
    }

    /// How often `what` was counted, on all CPUs.
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

    /// Serves a port by policy Local, with both lists alike: backends see a client as itself, by its own port.
    pub(super) fn serve_local(&mut self, port: &Port<'_>) {
        let flags = port.flags.with(WordFlags::INTERNAL_LOCAL, true).with(WordFlags::EXTERNAL_LOCAL, true);
        Port { base: port.base + LOCAL_SLOTS, flags, ..*port }.publish(&mut self.maps, Scope::Local);
        self.serve(&Port { flags, ..*port });
    }

    /// What becomes of a frame that comes by the outer device.
    #[track_caller]
    pub(super) fn come(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.run(&self.programs.ingress, frame, OUTER).unwrap()
    }

    /// Tells the programs which side sends by the device, and which addresses are seen there.
    pub(super) fn tell_of_device(&self, side: DeviceSide, seen: [Option<IpAddr>; 2]) {
        self.tell_of(side, seen, false);
    }

    /// The same, and whether answers to clients that came by the device are routed by the address that was dialled.
    pub(super) fn tell_of(&self, side: DeviceSide, seen: [Option<IpAddr>; 2], by_address: bool) {
        self.tell(&Device { route_by_address: by_address, ..device(side, seen) });
    }

    /// Tells the programs how many bits of its addresses the outer device shares with pods of this node.
    pub(super) fn tell_of_near(&self, seen: [IpAddr; 2], [near4, near6]: [u8; 2]) {
        self.tell(&Device {
            local_prefix4: near4,
            local_prefix6: near6,
            ..device(DeviceSide::Outer, seen.map(Some))
        });
    }

    /// Tells the programs that the outer device is a bridge.
    pub(super) fn tell_of_bridge(&self) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        self.tell(&Device { bridge: true, ..device(DeviceSide::Outer, seen) });
    }

    /// Tells the programs that the outer device is a switch, with pods of this node behind it and those of others.
    pub(super) fn tell_of_switch(&self) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        self.tell(&Device { switch: true, ..device(DeviceSide::Outer, seen) });
    }

    /// Tells the programs whether policies of IPsec are to see what the outer device sends and takes.
    pub(super) fn tell_of_policies(&self, secured: bool) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        self.tell(&Device { has_ipsec: secured, adopts_flows: true, ..device(DeviceSide::Outer, seen) });
    }

    /// Tells the programs whether packets may pass by the stack between the outer device and itself.
    pub(super) fn tell_of_shortcut(&self, shortcut: bool) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        self.tell(&Device { fast_path: shortcut, peer: true, ..device(DeviceSide::Outer, seen) });
    }

    /// Tells the programs of such a device, and whether the kernel finds ways without a look at ports.
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

    /// The same of any device, and whether frames may pass at its driver.
    pub(super) fn tell_of_frames(&self, index: u32, shortcut: bool, frames: bool) {
        let seen = [NODE.into(), NODE6.into()].map(Some);
        let device = Device { index, fast_path: shortcut, peer: true, ..device(DeviceSide::Outer, seen) };
        let told = devices::encode_device(&device, frames);
        self.put(Map::Devices, &index.to_ne_bytes(), abi::as_bytes(&told));
    }

    /// The program for frames, as devices have it.
    pub(super) fn frames(&self) -> BorrowedFd<'_> {
        self.programs.xdp.as_ref().unwrap().as_fd()
    }

    /// What becomes of a frame at the driver of the outer device. An error: this kernel's test run knows no devices.
    pub(super) fn try_arrive(&self, frame: &[u8]) -> std::io::Result<(i32, Vec<u8>)> {
        self.try_arrive_in_buffers(frame, frame.len())
    }

    /// The same of a frame of which so many bytes are in the first buffer.
    pub(super) fn try_arrive_in_buffers(
        &self,
        frame: &[u8],
        first: usize,
    ) -> std::io::Result<(i32, Vec<u8>)> {
        // A `struct xdp_md`: the first buffer's bounds, no bytes before it, and the number of the device.
        let context = [0, u32::try_from(first).unwrap(), 0, OUTER, 0, 0];
        run_once(self.frames().as_raw_fd(), frame, &context, 0)
    }

    #[track_caller]
    pub(super) fn arrive(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.try_arrive(frame).unwrap()
    }

    /// What becomes of a frame at the driver of the loopback, as every kernel can run it.
    #[track_caller]
    pub(super) fn arrive_elsewhere(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        run_once(self.frames().as_raw_fd(), frame, &[], 0).unwrap()
    }

    /// Tells the programs of the device of pods: whether packets may pass by the stack there, and be given to the pod
    /// right away.
    pub(super) fn tell_of_pods(&self, side: DeviceSide, shortcut: bool, peer: bool) {
        let seen = [POD_GATE.into(), POD_GATE6.into()].map(Some);
        // A pod's own device leads to no pod beside it.
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

    /// What becomes of a frame that a pod of this node sends.
    #[track_caller]
    pub(super) fn come_from_pod(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.tell_of_device(DeviceSide::Pod, [Some(POD_GATE.into()), Some(POD_GATE6.into())]);
        self.run(&self.programs.ingress, frame, PODS).unwrap()
    }

    /// What becomes of a frame that comes by a device, as the programs know that one.
    #[track_caller]
    pub(super) fn come_by(&self, frame: &[u8], device: u32) -> (i32, Vec<u8>) {
        self.run(&self.programs.ingress, frame, device).unwrap()
    }

    /// What becomes of a frame that comes by a device where pods' answers pass by the stack.
    #[track_caller]
    pub(super) fn come_back(&self, frame: &[u8], device: u32) -> (i32, Vec<u8>) {
        self.run(&self.programs.pod_egress, frame, device).unwrap()
    }

    /// What becomes of a frame that leaves by the device of pods.
    #[track_caller]
    pub(super) fn leave_to_pod(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.run(&self.programs.egress, frame, PODS).unwrap()
    }

    /// What becomes of a frame that leaves by the outer device.
    #[track_caller]
    pub(super) fn leave(&self, frame: &[u8]) -> (i32, Vec<u8>) {
        self.run(&self.programs.egress, frame, OUTER).unwrap()
    }

    /// What becomes of any frame, when it comes and when it leaves; `None`: the kernel's test run takes no such frame.
    pub(super) fn take(&self, frame: &[u8]) -> Option<[(i32, Vec<u8>); 2]> {
        let PacketPrograms { ingress, egress, .. } = &self.programs;
        let run = |program| self.run(program, frame, OUTER).ok();
        Some([run(ingress)?, run(egress)?])
    }

    /// Runs a program once, over a packet with a sum that a network card has made of all of it (CHECKSUM_COMPLETE).
    /// Afterwards that sum still is the packet's, or the packet was cut. Kernels before 6.17 know no such packets.
    fn run(&self, program: &OwnedFd, frame: &[u8], device: u32) -> std::io::Result<(i32, Vec<u8>)> {
        let summed = run_with(program, frame, device, sys::BPF_F_TEST_SKB_CHECKSUM_COMPLETE);
        match summed.as_ref().err().and_then(std::io::Error::raw_os_error) {
            Some(libc::EINVAL) => run_with(program, frame, device, 0),
            Some(libc::EBADMSG) => Ok(self.run_cut(program, frame, device)),
            _ => summed,
        }
    }

    /// Runs a program once more, over a packet that it has cut. To cut a packet is all that makes the kernel forget the
    /// sum of it (`__skb_trim_rcsum`), and the test run takes what was forgotten for a sum all the same. If the program
    /// does not cut the packet, the sum is wrong.
    fn run_cut(&self, program: &OwnedFd, frame: &[u8], device: u32) -> (i32, Vec<u8>) {
        self.forget_answers();
        let (verdict, out) = run_with(program, frame, device, 0).unwrap();
        let is_cut = verdict == REDIRECTED && out.len() < frame.len() + size_of_new_headers(&out);
        assert!(
            is_cut,
            "the sum of the whole packet is not the packet's: {frame:02x?}, {verdict}: {out:02x?}"
        );
        (verdict, out)
    }

    /// Lets the programs send as many answers as at the beginning of a second.
    fn forget_answers(&self) {
        let (map, key) = (map::find_handle(&self.handles, Map::PacketPace).unwrap(), 0_u32.to_ne_bytes());
        let mut paces = map.lookup_percpu(&key, MapFlags::ANY).unwrap().unwrap();
        paces.iter_mut().for_each(|pace| pace.fill(0));
        map.update_percpu(&key, &paces, MapFlags::ANY).unwrap();
    }

    /// A packet that came and goes on, as it looks then.
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

    /// Checks that a packet goes on, coming and leaving, and that no byte of it changes.
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

/// How many bytes a program has put before a packet: the headers of an ICMP error, or one more header of IP.
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
    // The beginning of the kernel's struct __sk_buff, where the device's number is the eleventh word.
    let mut context = [0_u32; 16];
    context[10] = device;
    run_once(program.as_raw_fd(), frame, &context, flags)
}

fn run_once(program: RawFd, frame: &[u8], context: &[u32], flags: u32) -> std::io::Result<(i32, Vec<u8>)> {
    let mut out = vec![0_u8; 4096];
    // SAFETY: zeros are options that ask for nothing.
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
    // SAFETY: all memory that the options point to lives through the call.
    let returned = unsafe { sys::bpf_prog_test_run_opts(program, &raw mut options) };
    if returned != 0 {
        return Err(std::io::Error::last_os_error());
    }
    out.truncate(options.data_size_out as usize);
    Ok((options.retval.cast_signed(), out))
}
