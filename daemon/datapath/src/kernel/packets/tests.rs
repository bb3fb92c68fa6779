//! Packet programs at devices of their own network namespace, with links and with filters. Needs root.

mod frames;

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_core::keys::Transport;
use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, MapGrowth};
use holdfast_fixtures::clock::{pause, wait_until};
use libbpf_rs::query::{MapInfo, MapInfoIter, ProgInfoIter, ProgInfoQueryOptions};
use libbpf_rs::{Link, MapFlags, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, libbpf_sys as sys};

use super::*;
use crate::abi;
use crate::abi::packets::types;
use crate::bpf_syscall;
use crate::devices::{DeviceSide, FastPathState, HookKind, POD_DEVICES_MAX};
use crate::flows::FlowTable;
use crate::kernel::bed::{NONE, Port, ThreadBed, bed, pinned};
use crate::pins::{VERSION, cleanup, drain};
use crate::probe;
use holdfast_core::op::FrontendType;
use holdfast_status::datapath::Features;

const KINDS: [HookKind; 2] = [HookKind::Tcx, HookKind::Clsact];
const FLOWS: u32 = 64;

/// Runs a test with both kinds of hooks, each in its own bed.
#[track_caller]
fn with_each(test: impl Fn(&ThreadBed, HookKind) + Copy + Send + 'static) {
    for kind in KINDS {
        bed_with_devices(move |bed| test(bed, kind));
    }
}

#[track_caller]
fn bed_with_devices(test: impl FnOnce(&ThreadBed) + Send + 'static) {
    bed(move |bed| {
        run("ip", "link add left index 70 type veth peer name right index 71");
        run("ip", "address add 10.9.0.1/24 dev left");
        run("ip", "link set left up");
        run("ip", "link set right up");
        test(bed);
    });
}

#[track_caller]
fn run(program: &str, arguments: &str) -> String {
    let done = Command::new(program).args(arguments.split(' ')).output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{program} {arguments}: {error}");
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn start(bed: &ThreadBed, kind: HookKind) -> KernelMaps {
    let mut maps = begin(bed, kind);
    maps.serve_packets();
    assert_eq!(packets_of(&maps).failure, None);
    maps
}

/// Starts with sockets served and packets not yet.
fn begin(bed: &ThreadBed, kind: HookKind) -> KernelMaps {
    let packets = Some(PacketOptions {
        flows: FLOWS,
        snat_ports: vec![61_000..=61_003],
        switches: PacketSwitches::default(),
    });
    let options = super::super::StartOptions { packets, ..bed.options() };
    let features = Features { tcx: kind == HookKind::Tcx, ..probe::probe_features().unwrap() };
    libbpf_rs::set_print(None);
    KernelMaps::start_as(&options, features, VERSION).unwrap()
}

/// Sets the devices, and runs all steps.
fn set_devices(maps: &mut KernelMaps, devices: &[Device]) {
    maps.set_devices(devices);
    while maps.tend_devices(|| false) {}
}

/// Checks everything, runs all steps, and returns the repaired hooks.
fn repair(maps: &mut KernelMaps) -> Vec<String> {
    maps.repair().unwrap();
    mend(maps)
}

/// Runs all steps of a check round, and returns the repaired hooks.
fn mend(maps: &mut KernelMaps) -> Vec<String> {
    while maps.tend_devices(|| false) {}
    maps.packets.running.as_mut().map(|running| running.devices.take_repaired()).unwrap_or_default()
}

fn packets_of(maps: &KernelMaps) -> PacketStatus {
    maps.status().packets.unwrap()
}

fn outer(index: u32, name: &str) -> Device {
    Device { address4: Some([10, 9, 0, 1].into()), ..Device::new(index, name, DeviceSide::Outer) }
}

fn errors(maps: &KernelMaps) -> BTreeMap<u32, Option<String>> {
    packets_of(maps).devices.into_iter().map(|it| (it.device.index, it.error)).collect()
}

/// The ids of our programs, ingress and egress; 0 if there is none.
fn ours(kind: HookKind, name: &str, index: i32) -> [u32; 2] {
    let first = |hook| bpf_syscall::query_programs(index, hook).unwrap().first().copied().unwrap_or(0);
    match kind {
        HookKind::Tcx => [sys::BPF_TCX_INGRESS, sys::BPF_TCX_EGRESS].map(first),
        HookKind::Clsact => ["ingress", "egress"].map(|way| {
            let shown = run("tc", &format!("filter show dev {name} {way}"));
            let line = shown.lines().find(|line| line.contains("handle 0x686f6c64"));
            let number = line.and_then(|line| line.split(" id ").nth(1)?.split(' ').next()?.parse().ok());
            number.unwrap_or(0)
        }),
    }
}

#[track_caller]
fn check_attached(maps: &KernelMaps, kind: HookKind, name: &str, index: u32) -> [u32; 2] {
    let programs = ours(kind, name, i32::try_from(index).unwrap());
    assert!(programs.iter().all(|number| *number != 0), "{kind:?} {name}: {programs:?}");
    let status = packets_of(maps);
    let told = status.devices.iter().find(|it| it.device.index == index).unwrap();
    assert!(told.attached && told.error.is_none(), "{told:?}");
    assert_eq!(status.hooks, Some(kind));
    programs
}

/// The entry of a device.
fn entry(maps: &KernelMaps, index: u32) -> Option<types::device> {
    let running = maps.packets.running.as_ref().unwrap();
    let map = running.handles.get(&Map::Devices).unwrap();
    abi::from_bytes(&map.lookup(&index.to_ne_bytes(), MapFlags::ANY).unwrap()?)
}

#[test]
fn kernel_a_device_has_programs_and_an_entry_while_it_is_named() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        assert_eq!(ours(kind, "left", 70), [0, 0], "no program yet");
        set_devices(&mut maps, &[outer(70, "left")]);
        check_attached(&maps, kind, "left", 70);
        let known = entry(&maps, 70).unwrap();
        let flag = types::device_flag::DEVICE_OUTER.0;
        assert_eq!((known.address4.to_ne_bytes(), u32::from(known.flags)), ([10, 9, 0, 1], flag));
        let pod = Device { side: DeviceSide::Pod, address4: None, ..outer(70, "renamed") };
        set_devices(&mut maps, std::slice::from_ref(&pod));
        assert_eq!(u32::from(entry(&maps, 70).unwrap().flags), types::device_flag::DEVICE_POD.0);
        assert_eq!(packets_of(&maps).devices[0].device, pod);
        set_devices(&mut maps, &[]);
        assert_eq!(ours(kind, "left", 70), [0, 0]);
        assert!(entry(&maps, 70).is_none() && packets_of(&maps).devices.is_empty());
        let left = bed.options().bpffs.join("links/tc/70");
        assert!(!left.exists(), "no pin is left");
    });
}

#[test]
fn kernel_a_failing_device_stops_no_other_and_reports_why() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(69, "gone"), outer(70, "left"), outer(71, "right")]);
        check_attached(&maps, kind, "left", 70);
        check_attached(&maps, kind, "right", 71);
        let said = errors(&maps);
        assert!(said[&69].as_ref().unwrap().contains("No such device"), "{said:?}");
        run("ip", "link add gone index 69 type bridge");
        assert_eq!(repair(&mut maps), Vec::<String>::new(), "nothing was removed");
        check_attached(&maps, kind, "gone", 69);
    });
}

/// A foreign program that returns this verdict for every packet.
fn program_of_others(answer: i32) -> OwnedFd {
    program_of_others_as(sys::BPF_PROG_TYPE_SCHED_CLS, answer)
}

/// The same of any type.
#[allow(unsafe_code)]
fn program_of_others_as(kind: sys::bpf_prog_type, answer: i32) -> OwnedFd {
    let registers = || sys::__BindgenBitfieldUnit::new([0]);
    let instruction =
        |code, imm| sys::bpf_insn { code, _bitfield_align_1: [], _bitfield_1: registers(), off: 0, imm };
    let code = [instruction(0xb7, answer), instruction(0x95, 0)];
    let licence = c"GPL".as_ptr();
    // SAFETY: all arguments outlive the call, and a non-negative result is our descriptor.
    unsafe {
        let fd = sys::bpf_prog_load(kind, std::ptr::null(), licence, code.as_ptr(), 2, std::ptr::null_mut());
        assert!(fd >= 0, "{fd}");
        OwnedFd::from_raw_fd(fd)
    }
}

/// A foreign filter at `left`.
fn filter(way: TcAttachPoint, priority: u32, answer: i32) -> TcHook {
    let program = program_of_others(answer);
    let mut hook = TcHook::new(program.as_fd());
    hook.ifindex(70).attach_point(way).priority(priority).handle(1).replace(true);
    hook.create().unwrap();
    hook.attach().unwrap();
    hook
}

const GOES_ON: i32 = -1;
const DROPPED: i32 = 2;

/// How many packets `right` receives after one is sent by `left`.
fn received() -> u64 {
    let counted = || -> u64 {
        let shown = run("ip", "-s link show right");
        let mut lines = shown.lines().skip_while(|line| !line.trim().starts_with("RX:")).skip(1);
        lines.next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    run("ip", "neighbour replace 10.9.0.2 lladdr 02:00:00:00:00:02 dev left");
    let before = counted();
    for _ in 0..10 {
        UdpSocket::bind("10.9.0.1:0").unwrap().send_to(b"x", "10.9.0.2:9").unwrap();
    }
    counted() - before
}

#[test]
fn kernel_foreign_programs_stay_and_run_before_and_after_ours() {
    with_each(|bed, kind| {
        filter(TC_EGRESS, 1, GOES_ON);
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        check_attached(&maps, kind, "left", 70);
        assert!(received() >= 10, "neither filter drops packets");
        let mut after = filter(TC_EGRESS, 200, DROPPED);
        assert!(received() < 10, "the filter behind ours still drops");
        repair(&mut maps);
        assert_eq!(packets_of(&maps).devices[0].foreign_programs, 2);
        after.detach().unwrap();
        let mut before = filter(TC_EGRESS, 1, DROPPED);
        assert!(received() < 10, "and the one before ours");
        set_devices(&mut maps, &[]);
        assert!(before.query().is_ok(), "the foreign filter stays");
        before.detach().unwrap();
    });
}

/// The kernel numbers devices in order of creation, so an uplink may have a greater index than all pods. Missing
/// devices take no time, and space like others.
#[test]
fn kernel_an_uplink_gets_its_programs_with_pods_beyond_the_limit() {
    with_each(|bed, kind| {
        run("ip", "link add late index 9000 type bridge");
        let mut maps = start(bed, kind);
        let pods = (1_000..6_000).map(|index| Device::new(index, "pod", DeviceSide::Pod));
        let devices: Vec<_> = pods.chain([outer(9_000, "late")]).collect();
        set_devices(&mut maps, &devices);
        check_attached(&maps, kind, "late", 9_000);
        let errors = errors(&maps);
        let left_out = errors.values().flatten().filter(|error| error.contains("too many devices")).count();
        assert!(left_out >= 5_000 - POD_DEVICES_MAX, "{left_out}");
        assert!(errors.values().flatten().all(|error| !error.contains("Argument list too long")));
    });
}

/// The devices with both programs, and the number of all their programs.
fn attached_of(kind: HookKind, names: &[String]) -> (Vec<u32>, usize) {
    let programs = |at: usize| ours(kind, &names[at], i32::try_from(100 + at).unwrap());
    let found: Vec<_> = (0..names.len()).map(programs).collect();
    let all = (100..).zip(&found).filter(|(_, programs)| !programs.contains(&0)).map(|(index, _)| index);
    (all.collect(), found.iter().flatten().filter(|number| **number != 0).count())
}

/// Runs step by step, and returns the order in which devices got both programs or neither.
fn steps(maps: &mut KernelMaps, kind: HookKind, names: &[String]) -> Vec<u32> {
    let (mut before, mut order) = (attached_of(kind, names), Vec::new());
    loop {
        let is_more = maps.tend_devices(|| true);
        let now = attached_of(kind, names);
        let once = if kind == HookKind::Tcx { 1 } else { 2 };
        assert!(now.1.abs_diff(before.1) <= once, "a step waits for the kernel once: {before:?} {now:?}");
        let has_changed = |index: &u32| now.0.contains(index) != before.0.contains(index);
        order.extend((100..).take(names.len()).filter(has_changed));
        before = now;
        if !is_more {
            return order;
        }
    }
}

/// Attaching or detaching takes some ten milliseconds, and service changes wait for each step.
#[test]
fn kernel_devices_attach_in_steps_uplinks_first_and_detach_last() {
    with_each(|bed, kind| {
        let names: Vec<String> = (0..6).map(|at| format!("dev{at}")).collect();
        for (index, name) in (100..).zip(&names) {
            run("ip", &format!("link add {name} index {index} type bridge"));
        }
        let device = |index: u32, side| Device::new(index, &names[index as usize - 100], side);
        let mut maps = start(bed, kind);
        maps.set_devices(&[
            device(100, DeviceSide::Pod),
            device(101, DeviceSide::Pod),
            device(102, DeviceSide::Backends),
            device(103, DeviceSide::Outer),
        ]);
        assert!(maps.awaits_uplink());
        assert_eq!(steps(&mut maps, kind, &names), [102, 103, 100, 101]);
        assert!(!maps.awaits_uplink());
        maps.set_devices(&[
            device(103, DeviceSide::Outer),
            device(104, DeviceSide::Pod),
            device(105, DeviceSide::Outer),
        ]);
        assert_eq!(steps(&mut maps, kind, &names), [105, 104, 100, 101, 102]);
        assert_eq!(attached_of(kind, &names).0, [103, 104, 105]);
        assert!(entry(&maps, 100).is_none() && !bed.options().bpffs.join("links/tc/100").exists());
    });
}

/// A pod that is renamed, or that a reload of the configuration briefly omitted.
#[test]
fn kernel_a_detaching_device_that_is_wanted_again_gets_all_programs() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        for steps in 0..4 {
            set_devices(&mut maps, &[outer(70, "left")]);
            maps.set_devices(&[]);
            for _ in 0..steps {
                maps.tend_devices(|| true);
            }
            set_devices(&mut maps, &[outer(70, "left")]);
            check_attached(&maps, kind, "left", 70);
            assert!(entry(&maps, 70).is_some(), "after {steps} steps");
        }
    });
}

/// A leaving device keeps files open until its programs are detached.
#[test]
fn kernel_new_devices_do_not_delay_detaching_without_end() {
    bed_with_devices(|bed| {
        let devices = |first: u32| -> Vec<_> {
            (first..first + 200).map(|index| Device::new(index, "gone", DeviceSide::Pod)).collect()
        };
        let mut maps = start(bed, HookKind::Tcx);
        set_devices(&mut maps, &devices(1_000));
        maps.set_devices(&devices(2_000));
        for _ in 0..100 {
            maps.tend_devices(|| true);
        }
        assert!(entry(&maps, 1_050).is_none() && entry(&maps, 1_199).is_some());
    });
}

/// Foreign programs behind ours would not see packets on the fast path.
#[test]
fn kernel_the_fast_path_ends_while_a_device_has_foreign_programs() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        let told = |maps: &KernelMaps| {
            let flag = u16::try_from(types::device_flag::DEVICE_FAST_PATH.0).unwrap();
            let is_told = entry(maps, 70).unwrap().flags & flag != 0;
            let shown = packets_of(maps).devices[0].fast_path;
            assert_eq!(is_told, shown == FastPathState::Active, "{shown:?}");
            shown
        };
        set_devices(&mut maps, &[outer(70, "left")]);
        assert_eq!(told(&maps), FastPathState::Disabled);
        let wanted = Device { fast_path: true, ..outer(70, "left") };
        set_devices(&mut maps, std::slice::from_ref(&wanted));
        if !probe::probe_features().unwrap().lengths {
            assert_eq!(told(&maps), FastPathState::Unsupported);
            return;
        }
        assert_eq!(told(&maps), FastPathState::Active);
        let mut other = filter(TC_INGRESS, 200, GOES_ON);
        // Foreign programs are counted every tenth round.
        (0..11).for_each(|_| drop(repair(&mut maps)));
        assert_eq!(told(&maps), FastPathState::ForeignPrograms);
        set_devices(&mut maps, &[wanted]);
        assert_eq!(told(&maps), FastPathState::ForeignPrograms);
        other.detach().unwrap();
        (0..11).for_each(|_| drop(repair(&mut maps)));
        assert_eq!(told(&maps), FastPathState::Active);
    });
}

/// Packets to a pod need no program at its device.
#[test]
fn kernel_a_local_pods_device_has_one_program_after_a_start_too() {
    with_each(|bed, kind| {
        let near =
            Device { side: DeviceSide::LocalPods, address4: None, fast_path: true, ..outer(70, "left") };
        let mut maps = start(bed, kind);
        set_devices(&mut maps, std::slice::from_ref(&near));
        if kind == HookKind::Clsact {
            // A network plug-in that creates the qdisc itself would fail if it existed.
            assert!(!run("tc", "qdisc show dev left").contains("clsact"));
            assert_eq!(packets_of(&maps).devices[0].fast_path, FastPathState::Unsupported);
            repair(&mut maps);
            assert_eq!(ours(kind, "left", 70), [0, 0]);
            return;
        }
        let [way_in, way_out] = ours(kind, "left", 70);
        assert!(way_in != 0 && way_out == 0 && packets_of(&maps).devices[0].attached);
        drop(maps);
        bed.remove_programs();
        let mut maps = start(bed, kind);
        let [again, way_out] = ours(kind, "left", 70);
        assert!(again != 0 && again != way_in && way_out == 0, "the new program is attached at once");
        assert_ne!(u32::from(entry(&maps, 70).unwrap().flags) & types::device_flag::DEVICE_LOCAL_PODS.0, 0);
        set_devices(&mut maps, &[near.clone(), outer(71, "right")]);
        let [right_in, _] = check_attached(&maps, kind, "right", 71);
        assert_ne!(ours(kind, "left", 70)[0], right_in, "a different program than at other devices");
        set_devices(&mut maps, &[outer(70, "left")]);
        check_attached(&maps, kind, "left", 70);
        set_devices(&mut maps, &[near]);
        assert_eq!(ours(kind, "left", 70)[1], 0, "no former program is left");
    });
}

/// A pod that is a client has one program for its requests, and one for its replies.
#[test]
fn kernel_a_pods_device_has_a_second_program_on_the_fast_path() {
    with_each(|bed, kind| {
        let pod = |shortcut| Device { side: DeviceSide::Pod, fast_path: shortcut, ..outer(70, "left") };
        let incoming = || bpf_syscall::query_programs(70, sys::BPF_TCX_INGRESS).unwrap();
        let near = u16::try_from(types::device_flag::DEVICE_LOCAL_PODS.0).unwrap();
        let state = |maps: &KernelMaps| {
            (packets_of(maps).devices[0].fast_path, entry(maps, 70).unwrap().flags & near != 0)
        };
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[pod(true)]);
        check_attached(&maps, kind, "left", 70);
        if kind == HookKind::Clsact {
            assert_eq!(state(&maps), (FastPathState::Unsupported, false));
            return;
        }
        assert_eq!((incoming().len(), state(&maps)), (2, (FastPathState::Active, true)));
        let former = incoming();
        drop(maps);
        bed.remove_programs();
        let mut maps = start(bed, kind);
        let programs = incoming();
        assert!(
            programs.len() == 2 && programs.iter().all(|it| !former.contains(it)),
            "new programs, at once"
        );
        set_devices(&mut maps, &[pod(true)]);
        assert_eq!((incoming(), state(&maps)), (programs.clone(), (FastPathState::Active, true)));
        let mut other = filter(TC_INGRESS, 200, GOES_ON);
        (0..121).for_each(|_| drop(repair(&mut maps)));
        assert_eq!(state(&maps), (FastPathState::ForeignPrograms, false));
        other.detach().unwrap();
        (0..121).for_each(|_| drop(repair(&mut maps)));
        assert_eq!(state(&maps), (FastPathState::Active, true));
        set_devices(&mut maps, &[pod(false)]);
        let [back, way_in] = programs[..] else { panic!("{programs:?}") };
        assert_eq!((incoming(), state(&maps)), (vec![way_in], (FastPathState::Disabled, false)));
        assert_ne!(back, way_in);
        set_devices(&mut maps, &[pod(true)]);
        assert_eq!((incoming().len(), state(&maps)), (2, (FastPathState::Active, true)));
        set_devices(&mut maps, &[]);
        assert!(incoming().is_empty());
    });
}

#[test]
fn kernel_a_recreated_device_gets_its_programs_again() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        run("ip", "link delete left");
        assert_eq!(repair(&mut maps), Vec::<String>::new());
        assert!(errors(&maps)[&70].is_some(), "the device is missing");
        run("ip", "link add left index 70 type bridge");
        set_devices(&mut maps, &[outer(70, "left")]);
        check_attached(&maps, kind, "left", 70);
        run("ip", "link delete left");
        run("ip", "link add left index 72 type bridge");
        set_devices(&mut maps, &[outer(72, "left")]);
        check_attached(&maps, kind, "left", 72);
        assert!(entry(&maps, 70).is_none(), "the former entry is gone");
        assert!(!bed.options().bpffs.join("links/tc/70").exists());
    });
}

/// Removes the programs of `left` from outside, or their pins.
fn take_away(bed: &ThreadBed, kind: HookKind) -> usize {
    let pin = |way: &str| bed.options().bpffs.join("links/tc/70").join(way);
    match kind {
        HookKind::Tcx => {
            Link::open(pin("in")).unwrap().detach().unwrap();
            std::fs::remove_file(pin("out")).unwrap();
        }
        HookKind::Clsact => drop(run("tc", "qdisc delete dev left clsact")),
    }
    2
}

#[test]
fn kernel_programs_removed_from_a_device_are_repaired_and_counted() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        assert!(repair(&mut maps).is_empty());
        let taken = take_away(bed, kind);
        assert_eq!(repair(&mut maps), ["left in", "left out"]);
        check_attached(&maps, kind, "left", 70);
        assert_eq!(packets_of(&maps).repaired, taken as u64);
        assert!(repair(&mut maps).is_empty(), "nothing is left to repair");
    });
}

/// Blocks a hook: it has no program, and none can be pinned.
fn block(bed: &ThreadBed, hook: &str) {
    let pin = bed.options().bpffs.join("links").join(hook);
    libbpf_rs::Link::open(&pin).unwrap().detach().unwrap();
    std::fs::remove_file(&pin).unwrap();
    std::fs::create_dir_all(pin.join("theirs")).unwrap();
}

#[test]
fn kernel_a_failed_repair_stops_no_other() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left"), outer(72, "new")]);
        repair(&mut maps);
        block(bed, "connect4");
        std::fs::remove_file(bed.options().bpffs.join("links/connect6")).unwrap();
        take_away(bed, kind);
        run("ip", "link add new index 72 type bridge");
        let error = maps.repair().unwrap_err();
        assert!(error.to_string().contains("links/connect4"), "{error}");
        assert_eq!(error.repaired.hooks, ["connect6"]);
        assert_eq!(mend(&mut maps), ["left in", "left out"]);
        check_attached(&maps, kind, "left", 70);
        check_attached(&maps, kind, "new", 72);
        assert_eq!(maps.last_status().broken_hooks, ["connect4"]);
    });
}

/// As after the pins' file system is unmounted. Filters need no pins.
#[test]
fn kernel_filters_are_repaired_without_pins() {
    bed_with_devices(|bed| {
        let mut maps = start(bed, HookKind::Clsact);
        set_devices(&mut maps, &[outer(70, "left")]);
        let root = bed.options().bpffs;
        std::fs::remove_dir_all(&root).unwrap();
        std::os::unix::fs::symlink("/proc/self", &root).unwrap();
        take_away(bed, HookKind::Clsact);
        let error = maps.repair().unwrap_err();
        assert_eq!(mend(&mut maps), ["left in", "left out"], "{error}");
        check_attached(&maps, HookKind::Clsact, "left", 70);
    });
}

/// As after the pins' folder is removed while the BPF file system is read-only for the daemon.
#[test]
fn kernel_without_pins_devices_old_and_new_are_served() {
    bed_with_devices(|bed| {
        let mut maps = start(bed, HookKind::Tcx);
        set_devices(&mut maps, &[outer(70, "left")]);
        repair(&mut maps);
        let root = bed.options().bpffs;
        std::fs::remove_dir_all(&root).unwrap();
        std::os::unix::fs::symlink("/proc/self", &root).unwrap();
        let programs = ours(HookKind::Tcx, "left", 70);
        for round in 0..3 {
            let error = maps.repair().unwrap_err();
            assert!(error.to_string().contains("was removed while holdfast runs"), "{error}");
            assert_eq!(mend(&mut maps), [""; 0], "round {round}: nothing was repaired");
            assert_eq!(maps.last_status().repair_failure, Some(error.to_string()));
        }
        set_devices(&mut maps, &[outer(70, "left"), outer(71, "right")]);
        for (name, index) in [("left", 70), ("right", 71)] {
            let told = packets_of(&maps).devices.into_iter().find(|it| it.device.index == index).unwrap();
            assert!(told.attached && told.unpinned, "{told:?}");
            let error = told.error.unwrap();
            assert!(error.starts_with("cannot pin in: "), "{error}");
            assert!(
                ours(HookKind::Tcx, name, index.cast_signed()).iter().all(|number| *number != 0),
                "{name}"
            );
        }
        assert_eq!(ours(HookKind::Tcx, "left", 70), programs);
        std::fs::remove_file(&root).unwrap();
        repair(&mut maps);
        check_attached(&maps, HookKind::Tcx, "left", 70);
        check_attached(&maps, HookKind::Tcx, "right", 71);
        assert!(packets_of(&maps).devices.iter().all(|it| !it.unpinned));
        assert_eq!(maps.last_status().repair_failure, None);
    });
}

/// The id of the link pinned there.
fn link(bed: &ThreadBed, way: &str) -> u32 {
    let pin = bed.options().bpffs.join("links/tc/70").join(way);
    Link::open(pin).unwrap().info().unwrap().id
}

#[test]
fn kernel_a_restart_replaces_the_programs_of_devices_without_a_gap() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left"), outer(71, "right")]);
        let before = check_attached(&maps, kind, "left", 70);
        let links = (kind == HookKind::Tcx).then(|| ["in", "out"].map(|way| link(bed, way)));
        drop(maps);
        assert_eq!(ours(kind, "left", 70), before, "programs outlive the daemon");
        bed.remove_programs();
        let mut maps = start(bed, kind);
        let after = ours(kind, "left", 70);
        assert!(after.iter().zip(before).all(|(after, before)| *after != 0 && *after != before));
        assert_eq!((kind == HookKind::Tcx).then(|| ["in", "out"].map(|way| link(bed, way))), links);
        assert!(packets_of(&maps).devices.is_empty(), "no device was set yet");
        run("ip", "link delete left");
        set_devices(&mut maps, &[]);
        let entries =
            open_counted_table(&maps.packets.running.as_ref().unwrap().handles, Map::Devices).unwrap();
        assert_eq!(entries.used(), 0, "a former daemon's unwanted entries are gone");
    });
}

#[test]
fn kernel_a_daemon_without_packets_removes_former_packet_programs() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        check_attached(&maps, kind, "left", 70);
        drop(maps);
        let features = Features { tcx: kind == HookKind::Tcx, ..probe::probe_features().unwrap() };
        let mut maps = KernelMaps::start_as(&bed.options(), features, VERSION).unwrap();
        assert_eq!(maps.repair().unwrap(), super::super::RepairReport::default());
        assert_eq!((ours(kind, "left", 70), maps.packet_status()), ([0, 0], None));
    });
}

/// The maps that a program reads: ids and names.
fn maps_of(program: u32) -> BTreeMap<u32, String> {
    let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
    let info = ProgInfoIter::with_query_opts(with_maps).find(|it| it.id == program).unwrap();
    let is_read = |map: &MapInfo| info.map_ids.contains(&map.id);
    MapInfoIter::default().filter(is_read).map(|map| (map.id, map.name.to_string_lossy().into())).collect()
}

/// They load in parallel, each from its own object.
#[test]
fn kernel_the_programs_of_a_device_share_their_variables() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        let [into, out] = check_attached(&maps, kind, "left", 70).map(maps_of);
        let are_variables = |(map, name): &(&u32, &String)| name.ends_with(".bss") && out.contains_key(map);
        assert_eq!(into.iter().filter(are_variables).count(), 1, "{into:?}, {out:?}");
    });
}

/// A client arrives by a tunnel, and its backend's replies by a bridge: both programs share their variables.
#[test]
fn kernel_programs_of_all_link_layers_share_their_variables() {
    with_each(|bed, kind| {
        run("ip", "tuntap add dev tunnel mode tun");
        let tunnel = nix::net::if_::if_nametoindex("tunnel").unwrap();
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(tunnel, "tunnel"), outer(70, "left")]);
        let [of_ip, of_ethernet] =
            [("tunnel", tunnel), ("left", 70)].map(|(name, at)| check_attached(&maps, kind, name, at));
        let [into, out] = [maps_of(of_ip[0]), maps_of(of_ethernet[1])];
        let are_variables = |(map, name): &(&u32, &String)| name.ends_with(".bss") && out.contains_key(map);
        assert_eq!(into.iter().filter(are_variables).count(), 1, "{into:?}, {out:?}");
    });
}

#[test]
fn kernel_a_link_layer_that_is_added_leaves_the_programs_of_the_others() {
    with_each(|bed, kind| {
        run("ip", "tuntap add dev tunnel mode tun");
        let tunnel = nix::net::if_::if_nametoindex("tunnel").unwrap();
        let both = [outer(tunnel, "tunnel"), outer(70, "left")];
        let attached = |maps: &KernelMaps| {
            [("tunnel", tunnel), ("left", 70)].map(|(name, at)| check_attached(maps, kind, name, at))
        };
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &both[1..]);
        let before = check_attached(&maps, kind, "left", 70);
        set_devices(&mut maps, &both);
        let [of_tunnel, of_left] = attached(&maps);
        assert_eq!(of_left, before);
        drop(maps);
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &both[1..]);
        drop(maps);
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &both);
        assert_eq!(attached(&maps), [of_tunnel, of_left], "a start without the tunnel has left them pinned");
    });
}

#[test]
fn kernel_programs_loaded_in_parallel_are_not_used_for_grown_tables() {
    with_each(|bed, kind| {
        let mut maps = begin(bed, kind);
        assert!(maps.packets.load_thread.is_some(), "they are being loaded");
        maps.reserve_capacity(&MapGrowth { frontends: [10_000, 0], ..MapGrowth::default() }).unwrap();
        maps.serve_packets();
        assert_eq!((maps.growths, packets_of(&maps).failure), (1, None));
        set_devices(&mut maps, &[outer(70, "left")]);
        let frontends = maps.generation.handles().get(&Map::Frontends4).unwrap().info().unwrap().info.id;
        for program in check_attached(&maps, kind, "left", 70) {
            assert!(maps_of(program).contains_key(&frontends), "{program} reads the current map");
        }
    });
}

#[test]
fn kernel_growth_moves_the_programs_of_devices_too() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        let before = check_attached(&maps, kind, "left", 70);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // A concurrent check always finds a program.
            let watching = scope.spawn(|| {
                let mut looks = 0_u32;
                while !done.load(Ordering::Relaxed) {
                    assert!(ours(kind, "left", 70).iter().all(|number| *number != 0));
                    looks += 1;
                    pause(Duration::from_millis(1));
                }
                looks
            });
            maps.reserve_capacity(&MapGrowth { frontends: [10_000, 0], ..MapGrowth::default() }).unwrap();
            done.store(true, Ordering::Relaxed);
            assert!(watching.join().unwrap() > 0);
        });
        assert_eq!((maps.status().growths, packets_of(&maps).failure), (1, None));
        let after = check_attached(&maps, kind, "left", 70);
        assert!(
            after.iter().zip(before).all(|(after, before)| *after != before),
            "programs read the larger maps"
        );
        assert!(!maps.packets.is_behind && packets_of(&maps).failure.is_none());
        assert!(repair(&mut maps).is_empty());
    });
}

#[test]
fn kernel_a_prebuilt_growth_moves_the_programs_of_devices() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        let before = check_attached(&maps, kind, "left", 70);
        let mut numbers = 10..;
        while maps.growths == 0 {
            let number: u32 = numbers.next().unwrap();
            let vip = format!("10.100.{}.{}:80", number >> 8, number & 255);
            Port { index: number, frontends: &[&vip], ..Port::TCP }.serve(&mut maps);
            if number > 3_000 {
                crate::kernel::tests::wait_until_made(&maps);
            }
        }
        assert!(numbers.start < 3_800, "{} frontends are served", numbers.start);
        let after = check_attached(&maps, kind, "left", 70);
        assert!(
            after.iter().zip(before).all(|(after, before)| *after != before),
            "programs read the larger maps"
        );
        assert!(!maps.packets.is_behind && packets_of(&maps).failure.is_none());
    });
}

#[test]
fn kernel_cleanup_detaches_our_programs_from_devices_and_leaves_foreign_ones() {
    with_each(|bed, kind| {
        let mut others = filter(TC_INGRESS, 200, GOES_ON);
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left"), outer(71, "right")]);
        drop(maps);
        check_all_is_taken(bed, kind, 4);
        assert!(others.query().is_ok(), "the foreign filter stays");
        assert!(!cleanup(&bed.options().bpffs).unwrap().has_any(), "nothing is left");
    });
}

#[track_caller]
fn check_all_is_taken(bed: &ThreadBed, kind: HookKind, at_devices: usize) {
    let taken = cleanup(&bed.options().bpffs).unwrap();
    assert!(taken.errors.is_empty() && taken.has_any(), "{taken:?}");
    assert_eq!(taken.at_devices, at_devices);
    for (name, index) in [("left", 70), ("right", 71)] {
        assert_eq!(ours(kind, name, index), [0, 0], "{kind:?} {name}");
    }
    assert!(!bed.options().bpffs.exists());
}

#[test]
fn kernel_cleanup_removes_filters_from_devices_without_pins() {
    bed_with_devices(|bed| {
        let mut maps = start(bed, HookKind::Clsact);
        set_devices(&mut maps, &[outer(70, "left")]);
        drop(maps);
        std::fs::remove_dir_all(bed.options().bpffs).unwrap();
        assert!(ours(HookKind::Clsact, "left", 70).iter().all(|number| *number != 0));
        check_all_is_taken(bed, HookKind::Clsact, 2);
    });
}

/// Writes the record of a connection; serial 0 makes it free.
fn write_flow(bed: &ThreadBed, serial: u32) {
    let pin = bed.options().bpffs.join("flows1").join(Map::Flows.name());
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).unwrap();
    let seen = u32::try_from(now.tv_sec()).unwrap();
    let state = types::flow_state::FLOW_OPEN.0.try_into().unwrap();
    let flow = types::flow { transport: 6, v4: 1, state, serial, seen, began: seen, ..Default::default() };
    let map = libbpf_rs::MapHandle::from_pinned_path(pin).unwrap();
    map.update(&3_u32.to_ne_bytes(), abi::as_bytes(&flow), MapFlags::ANY).unwrap();
}

/// How many flows continue.
fn drained(root: &std::path::Path) -> u64 {
    drain(root).unwrap().flows
}

fn drains(maps: &KernelMaps) -> u32 {
    let settings = maps.packets.running.as_ref().unwrap().handles.get(&Map::PacketSettings).unwrap();
    let found = settings.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    abi::from_bytes::<types::packet_settings>(&found).unwrap().drains
}

#[test]
fn kernel_a_drain_keeps_flows_and_a_start_serves_all_again() {
    with_each(|bed, kind| {
        let root = bed.options().bpffs;
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        write_flow(bed, 1);
        assert!(drain(&root).is_err(), "not while a daemon runs");
        drop(maps);
        assert_eq!((drained(&root), drained(&root)), (1, 1));
        assert!(ours(kind, "left", 70).iter().all(|number| *number != 0), "{kind:?}");
        let links = std::fs::read_dir(root.join("links")).unwrap().flatten();
        assert!(
            links.map(|it| it.file_name()).all(|name| name == "tc"),
            "the node's processes are not translated"
        );
        write_flow(bed, 0);
        assert_eq!(drained(&root), 0);
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        assert_eq!(drains(&maps), 0);
        check_attached(&maps, kind, "left", 70);
    });
}

#[test]
fn kernel_a_drain_ignores_flows_without_programs() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        write_flow(bed, 1);
        drop(maps);
        let features = Features { tcx: kind == HookKind::Tcx, ..probe::probe_features().unwrap() };
        let mut sockets = KernelMaps::start_as(&bed.options(), features, VERSION).unwrap();
        sockets.serve_packets();
        drop(sockets);
        assert_eq!(ours(kind, "left", 70), [0, 0], "packets are not translated any more");
        assert_eq!(drained(&bed.options().bpffs), 0, "{kind:?}");
    });
}

#[test]
fn kernel_a_drain_refuses_programs_of_another_version() {
    with_each(|bed, kind| {
        let root = bed.options().bpffs;
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        write_flow(bed, 1);
        drop(maps);
        std::fs::remove_dir_all(root.join(format!("v{VERSION}")).join("packets")).unwrap();
        let said = || drain(&root).unwrap_err().to_string();
        assert!(
            said().contains(&format!("/v{VERSION} was left by another version of holdfast")),
            "{}",
            said()
        );
        std::fs::create_dir_all(root.join("v1").join("packets")).unwrap();
        assert!(said().contains("/v1 was left by another version of holdfast"), "{}", said());
        set_devices(&mut start(bed, kind), &[outer(70, "left")]);
        assert_eq!(drained(&root), 1, "{kind:?}: a start adopts it");
    });
}

#[test]
fn kernel_a_device_without_a_link_layer_has_programs_too() {
    with_each(|bed, kind| {
        run("ip", "tuntap add dev tunnel mode tun");
        let tunnel = nix::net::if_::if_nametoindex("tunnel").unwrap();
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(tunnel, "tunnel"), outer(70, "left")]);
        let programs =
            [("tunnel", tunnel), ("left", 70)].map(|(name, at)| check_attached(&maps, kind, name, at));
        assert!(programs[0][0] != programs[1][0], "different link layers");
    });
}

fn bit(maps: &MapHandles, map: Map, bit: u32) -> bool {
    let view = crate::generation::map_array(maps, map).unwrap();
    view[bit as usize / 64].load(Ordering::Relaxed) >> (bit % 64) & 1 == 1
}

/// In the pinned map.
fn set_bit(bed: &ThreadBed, bit: u32) {
    let pin = bed.options().bpffs.join(pinned("shared")).join(Map::FrontendBlocks.name());
    let view = crate::mapped_array::MappedArray::new(&MapHandle::from_pinned_path(pin).unwrap()).unwrap();
    view[bit as usize / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
}

/// A client of 192.0.2.200:443 with a backend on another node, and one of a node port.
fn write_flows(handles: &MapHandles) {
    let mapped = |address: [u8; 4]| [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes(address)];
    let state = u8::try_from(types::flow_state::FLOW_OPEN.0).unwrap();
    let vip = types::flow {
        frontend: mapped([192, 0, 2, 200]),
        frontend_port: 443_u16.to_be(),
        nat: mapped([10, 9, 0, 1]),
        nat_port: 50_000_u16.to_be(),
        state,
        serial: 7,
        ..types::flow::default()
    };
    let node_port = types::flow {
        frontend: mapped([10, 9, 0, 1]),
        frontend_port: 30_080_u16.to_be(),
        state,
        serial: 8,
        ..types::flow::default()
    };
    let flows = handles.get(&Map::Flows).unwrap();
    for (number, flow) in [(3_u32, vip), (4, node_port)] {
        flows.update(&number.to_ne_bytes(), abi::as_bytes(&flow), MapFlags::ANY).unwrap();
    }
}

#[test]
fn kernel_a_former_daemons_flows_are_found_and_numbers_released_once() {
    bed(|bed| {
        let mut maps = start(bed, HookKind::Tcx);
        let node_port = Port { frontends: &["0.0.0.0:30099"], kind: FrontendType::NodePort, ..Port::TCP };
        node_port.serve(&mut maps);
        let address = [10, 9, 0, 1].into();
        maps.execute(&holdfast_core::op::Action::InsertNodeAddress(address)).unwrap();
        let handles = &maps.packets.running.as_ref().unwrap().handles;
        for (port, expected) in
            [(61_000, true), (61_003, true), (61_004, false), (30_099, true), (443, false)]
        {
            assert_eq!(bit(handles, Map::PacketPorts, port), expected, "{port}");
        }
        let settings = handles.get(&Map::PacketSettings).unwrap();
        let settings = settings.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        assert_eq!(abi::from_bytes::<types::packet_settings>(&settings).unwrap().snat_ports, 4);
        write_flows(handles);
        drop(maps);
        let of_gone = abi::address_block([192, 0, 2, 200].into());
        set_bit(bed, of_gone);
        let unused = abi::address_block([172, 31, 0, 1].into());
        set_bit(bed, unused);
        let mut maps = begin(bed, HookKind::Tcx);
        for bit_of in [of_gone, unused] {
            let is_set = bit(maps.shared.handles(), Map::FrontendBlocks, bit_of);
            assert!(is_set, "former programs check it until new ones load");
        }
        maps.serve_packets();
        assert!(bit(maps.shared.handles(), Map::FrontendBlocks, unused), "the first sweep is not over");
        look_at_flows(&mut maps, |maps| !bit(maps.shared.handles(), Map::FrontendBlocks, unused));
        let handles = &maps.packets.running.as_ref().unwrap().handles;
        for port in [443, 50_000, 30_080, 30_099, 61_000] {
            assert!(bit(handles, Map::PacketPorts, port), "{port}");
        }
        let block = |address: [u8; 4]| abi::address_block(address.into());
        assert!(bit(maps.shared.handles(), Map::FrontendBlocks, block([192, 0, 2, 200])));
        assert!(
            !bit(maps.shared.handles(), Map::FrontendBlocks, block([10, 9, 0, 1])),
            "an address of the node"
        );
        let numbers = handles.get(&Map::FreeFlows).unwrap();
        let taken = (0..2 * FLOWS).filter_map(|_| numbers.lookup_and_delete(&[]).unwrap());
        let taken: Vec<_> = taken.map(|it| u32::from_ne_bytes(it.try_into().unwrap())).collect();
        assert_eq!(taken, (0..FLOWS).collect::<Vec<_>>());
    });
}

/// A frontend at a node's address is found by that address, and its clients continue after it is gone. Its port may be
/// a SNAT port.
#[test]
fn kernel_flows_of_a_removed_node_frontend_are_found_after_each_start() {
    let frontend = key("10.9.0.1:61002");
    let block = abi::address_block(frontend.address);
    let unused = abi::address_block([172, 31, 0, 1].into());
    bed(move |bed| {
        let mut maps = start(bed, HookKind::Tcx);
        maps.execute(&Action::InsertNodeAddress(frontend.address)).unwrap();
        let kind = FrontendType::LoadBalancer;
        Port { frontends: &["10.9.0.1:61002"], kind, ..Port::TCP }.serve(&mut maps);
        write_flow_to(&maps.packets.running.as_ref().unwrap().handles, frontend);
        maps.execute(&Action::RemoveFrontend(frontend)).unwrap();
        let is_set = |maps: &KernelMaps, map, at| bit(maps.shared.handles(), map, at);
        let is_found = |maps: &KernelMaps| {
            is_set(maps, Map::NodePorts, 61_002) || is_set(maps, Map::FrontendBlocks, block)
        };
        for starts in 1..=3 {
            drop(maps);
            set_bit(bed, unused);
            maps = begin(bed, HookKind::Tcx);
            assert!(is_found(&maps), "before the sweep, start {starts}");
            maps.serve_packets();
            assert!(is_found(&maps), "during the sweep, start {starts}");
            look_at_flows(&mut maps, |maps| !is_set(maps, Map::FrontendBlocks, unused));
            assert!(is_set(&maps, Map::NodePorts, 61_002), "start {starts}");
            assert!(!is_set(&maps, Map::FrontendBlocks, block), "nearly all packets go to that address");
            let other = Port { frontends: &["0.0.0.0:61002"], kind: FrontendType::NodePort, ..Port::TCP };
            other.serve(&mut maps);
            maps.execute(&Action::RemoveFrontend(key("0.0.0.0:61002"))).unwrap();
            assert!(is_set(&maps, Map::NodePorts, 61_002), "frontends at that port come and go");
        }
        write_flow(bed, 0);
        drop(maps);
        set_bit(bed, unused);
        let mut maps = start(bed, HookKind::Tcx);
        look_at_flows(&mut maps, |maps| !is_set(maps, Map::FrontendBlocks, unused));
        assert!(!is_set(&maps, Map::NodePorts, 61_002), "the bit ends with the flows");
    });
}

fn key(at: &str) -> FrontendKey {
    let at: std::net::SocketAddr = at.parse().unwrap();
    FrontendKey { address: at.ip(), port: at.port().try_into().unwrap(), transport: Transport::Tcp }
}

/// Writes the record of a flow to that frontend.
fn write_flow_to(handles: &MapHandles, frontend: FrontendKey) {
    let flow = types::flow {
        frontend: [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes([10, 9, 0, 1])],
        frontend_port: frontend.port.get().to_be(),
        state: u8::try_from(types::flow_state::FLOW_OPEN.0).unwrap(),
        serial: 7,
        ..types::flow::default()
    };
    handles
        .get(&Map::Flows)
        .unwrap()
        .update(&3_u32.to_ne_bytes(), abi::as_bytes(&flow), MapFlags::ANY)
        .unwrap();
}

/// Sweeps until this holds after the first pass.
fn look_at_flows(maps: &mut KernelMaps, is_over: impl Fn(&KernelMaps) -> bool) {
    wait_until("the sweep", || {
        let is_over = is_over(maps);
        maps.update_flows().unwrap();
        is_over
    });
}

#[test]
fn kernel_without_the_port_bits_all_ports_are_checked_until_the_sweep() {
    bed(|bed| {
        let maps = start(bed, HookKind::Tcx);
        write_flows(&maps.packets.running.as_ref().unwrap().handles);
        drop(maps);
        let folder = bed.options().bpffs.join(format!("v{VERSION}"));
        std::fs::remove_file(folder.join("packets").join(Map::PacketPorts.name())).unwrap();
        std::fs::remove_file(folder.join("shared").join(Map::FrontendBlocks.name())).unwrap();
        let mut maps = start(bed, HookKind::Tcx);
        let port = |maps: &KernelMaps, port| bit(maps.packets.handles().unwrap(), Map::PacketPorts, port);
        let block = |maps: &KernelMaps, address: [u8; 4]| {
            bit(maps.shared.handles(), Map::FrontendBlocks, abi::address_block(address.into()))
        };
        let (gone, unused) = ([192, 0, 2, 200], [172, 31, 0, 1]);
        assert!(port(&maps, 30_080) && port(&maps, 7) && block(&maps, gone) && block(&maps, unused));
        assert!(!maps.repair().unwrap().bits, "the bits are unchanged");
        look_at_flows(&mut maps, |maps| !port(maps, 7));
        assert!(port(&maps, 30_080) && block(&maps, gone) && !block(&maps, unused));
    });
}

#[test]
fn kernel_an_incomplete_set_of_flow_maps_is_recreated() {
    bed(|bed| {
        drop(start(bed, HookKind::Tcx));
        let flows = bed.options().bpffs.join("flows1");
        std::fs::remove_file(flows.join(Map::Entries4.name())).unwrap();
        let mut maps = start(bed, HookKind::Tcx);
        assert!(flows.join(Map::Entries4.name()).exists());
        assert_eq!(maps.repair().unwrap(), super::super::RepairReport::default());
        let numbers = maps.packets.running.as_ref().unwrap().handles.get(&Map::FreeFlows).unwrap();
        let pinned = MapHandle::from_pinned_path(flows.join(Map::FreeFlows.name())).unwrap();
        assert_eq!(pinned.info().unwrap().info.id, numbers.info().unwrap().info.id, "the used map is pinned");
        let packets = bed.options().bpffs.join(format!("v{VERSION}/packets"));
        for pin in [flows.join(Map::Flows.name()), packets.join(Map::Devices.name())] {
            std::fs::remove_file(&pin).unwrap();
            assert!(maps.repair().unwrap().pins && pin.exists(), "{}", pin.display());
        }
    });
}

/// Opens flows of these clients as programs do, with entries.
fn begin_flows(table: &FlowTable, clients: std::ops::Range<u16>) {
    for client in clients {
        table.begin_for_tests(client);
    }
}

#[track_caller]
fn resize(maps: &mut KernelMaps, flows: u32) {
    maps.set_flow_capacity(flows);
    look_at_flows(maps, |maps| packets_of(maps).flows == flows);
    let status = packets_of(maps);
    assert_eq!((status.flows_wanted, status.flows_failure, status.failure), (flows, None, None));
    assert_eq!(drains(maps), 0, "flows resume");
}

#[test]
fn kernel_the_flow_table_is_resized_and_flows_stay() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        let before = check_attached(&maps, kind, "left", 70);
        maps.update_flows().unwrap();
        begin_flows(&maps.live_maps().flow_table.unwrap(), 1..21);
        for flows in [1_024, 32] {
            resize(&mut maps, flows);
            let table = maps.live_maps().flow_table.unwrap();
            assert_eq!((table.capacity(), table.tally().live()), (flows, 20));
            assert_eq!(packets_of(&maps).flows_evicted, EvictedFlows::default());
            let pinned =
                MapHandle::from_pinned_path(bed.options().bpffs.join("flows1").join(Map::Flows.name()));
            assert_eq!(pinned.unwrap().max_entries(), flows);
        }
        let after = check_attached(&maps, kind, "left", 70);
        assert!(
            after.iter().zip(before).all(|(after, before)| *after != before),
            "programs read the new table"
        );
        assert_eq!(maps.repair().unwrap(), super::super::RepairReport::default());
        let names: Vec<_> = std::fs::read_dir(bed.options().bpffs).unwrap().flatten().collect();
        assert!(!names.iter().any(|it| it.file_name().to_string_lossy().contains('-')), "{names:?}");
        resize(&mut maps, 8);
        assert_eq!(packets_of(&maps).flows_evicted, EvictedFlows { total: 13, in_use: 13 });
        assert_eq!(maps.live_maps().flow_table.unwrap().tally().live(), 7);
        drop(maps);
        // A start finds the flows, and resizes the table as configured.
        let mut maps = start(bed, kind);
        assert_eq!(packets_of(&maps).flows, 8);
        look_at_flows(&mut maps, |maps| packets_of(maps).flows == FLOWS);
        assert_eq!(maps.live_maps().flow_table.unwrap().tally().live(), 7);
        set_devices(&mut maps, &[outer(70, "left")]);
        check_attached(&maps, kind, "left", 70);
    });
}

#[test]
fn kernel_a_failed_resize_is_retried_when_it_is_due() {
    bed(|bed| {
        const LARGER: u32 = 16_384;
        let mut maps = start(bed, HookKind::Tcx);
        maps.update_flows().unwrap();
        maps.set_flow_capacity(LARGER);
        maps.fail_resize();
        look_at_flows(&mut maps, |maps| packets_of(maps).flows_failure.is_some());
        for _ in 0..3 {
            maps.update_flows().unwrap();
            assert!(maps.packets.resizing.is_none(), "the retry is not due");
        }
        maps.end_wait_for_size();
        look_at_flows(&mut maps, |maps| packets_of(maps).flows == LARGER);
        assert_eq!(packets_of(&maps).flows_failure, None);
    });
}

#[test]
fn kernel_a_daemon_killed_while_replacing_flows_loses_none() {
    bed(|bed| {
        let mut maps = start(bed, HookKind::Tcx);
        maps.update_flows().unwrap();
        begin_flows(&maps.live_maps().flow_table.unwrap(), 1..4);
        drop(maps);
        let folder = bed.options().bpffs;
        // Between the two renames.
        std::fs::rename(folder.join("flows1"), folder.join("flows-former")).unwrap();
        std::fs::create_dir(folder.join("flows-next")).unwrap();
        let mut maps = start(bed, HookKind::Tcx);
        maps.update_flows().unwrap();
        assert_eq!(maps.live_maps().flow_table.unwrap().tally().live(), 3);
        drop(maps);
        // After both renames.
        std::fs::create_dir(folder.join("flows-former")).unwrap();
        let mut maps = start(bed, HookKind::Tcx);
        maps.update_flows().unwrap();
        assert_eq!(maps.live_maps().flow_table.unwrap().tally().live(), 3);
        assert!(!folder.join("flows-former").exists() && !folder.join("flows-next").exists());
    });
}

/// A flow opened by a device's former programs would be in the former table.
#[test]
fn kernel_flows_pause_until_the_last_device_reads_the_new_table() {
    bed_with_devices(|bed| {
        let mut maps = start(bed, HookKind::Tcx);
        set_devices(&mut maps, &[outer(70, "left")]);
        maps.update_flows().unwrap();
        maps.set_flow_capacity(2 * FLOWS);
        look_at_flows(&mut maps, |maps| maps.packets.resizing.is_some());
        maps.resize_slowly();
        assert!(drains(&maps) > FlowTable::monotonic_seconds(), "{}", drains(&maps));
    });
}

#[test]
fn kernel_a_daemon_killed_after_pinning_a_table_loses_no_number() {
    bed(|bed| {
        const LARGER: u32 = 16_384;
        let mut maps = start(bed, HookKind::Tcx);
        maps.update_flows().unwrap();
        begin_flows(&maps.live_maps().flow_table.unwrap(), 1..4);
        maps.set_flow_capacity(LARGER);
        look_at_flows(&mut maps, |maps| maps.packets.resizing.is_some());
        maps.resize_as_far_as_pins();
        drop(maps);
        let mut maps = start(bed, HookKind::Tcx);
        maps.set_flow_capacity(LARGER);
        maps.update_flows().unwrap();
        look_at_flows(&mut maps, |maps| maps.live_maps().flow_table.unwrap().are_numbers_released());
        assert_eq!(maps.live_maps().flow_table.unwrap().tally().live(), 3);
        let numbers = maps.packets.running.as_ref().unwrap().handles.get(&Map::FreeFlows).unwrap();
        let free = std::iter::from_fn(|| numbers.lookup_and_delete(&[]).unwrap()).count();
        assert_eq!(free, LARGER as usize - 3);
    });
}

#[test]
fn kernel_flows_of_another_version_are_removed_and_own_ones_kept() {
    bed(|bed| {
        drop(start(bed, HookKind::Tcx));
        let folder = bed.options().bpffs;
        let flows = MapHandle::from_pinned_path(folder.join("flows1").join(Map::Flows.name())).unwrap();
        std::fs::create_dir(folder.join("flows99")).unwrap();
        let maps = start(bed, HookKind::Tcx);
        assert!(!folder.join("flows99").exists());
        let kept = &maps.packets.running.as_ref().unwrap().handles[&Map::Flows];
        assert_eq!(kept.info().unwrap().info.id, flows.info().unwrap().info.id);
    });
}

#[test]
fn kernel_a_failure_of_packets_leaves_sockets_served_and_is_retried() {
    bed(|bed| {
        let packets =
            Some(PacketOptions { flows: FLOWS, snat_ports: vec![], switches: PacketSwitches::default() });
        let options = super::super::StartOptions { packets, ..bed.options() };
        let folder = bed.options().bpffs;
        std::fs::create_dir_all(folder.join("links")).unwrap();
        let mut maps = KernelMaps::start(&options).unwrap();
        // A folder blocks the path of a pin.
        let occupied = folder.join("flows1/flow_table");
        std::fs::create_dir_all(&occupied).unwrap();
        maps.serve_packets();
        let failure = packets_of(&maps).failure.unwrap();
        assert!(failure.contains("flows1"), "{failure}");
        assert!(!packets_of(&maps).behind, "no device has a program");
        assert_eq!((packets_of(&maps).flows, maps.status().broken_hooks), (0, vec![]));
        bed.join(&bed.cgroup);
        let backends = [crate::kernel::bed::tcp_backend("127.0.0.2:0")];
        Port { frontends: &["10.96.0.10:80"], backends: &backends, flags: NONE, ..Port::TCP }
            .serve(&mut maps);
        crate::kernel::bed::dial("10.96.0.10:80");
        std::fs::remove_dir(&occupied).unwrap();
        repair(&mut maps);
        let status = packets_of(&maps);
        assert_eq!((status.failure, status.flows), (None, FLOWS));
    });
}

/// Another version's daemon has other tables, so its programs at devices follow no change.
#[test]
fn kernel_former_packet_programs_are_behind_until_replaced() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[outer(70, "left")]);
        drop(maps);
        let mut maps = begin(bed, kind);
        let occupied = bed.options().bpffs.join("flows1/flow_table");
        let aside = occupied.with_file_name("aside");
        std::fs::rename(&occupied, &aside).unwrap();
        std::fs::create_dir(&occupied).unwrap();
        maps.serve_packets();
        let status = packets_of(&maps);
        assert!(status.failure.is_some() && status.behind, "{status:?}");
        assert!(ours(kind, "left", 70).iter().all(|number| *number != 0), "programs still serve");
        std::fs::remove_dir(&occupied).unwrap();
        std::fs::rename(&aside, &occupied).unwrap();
        repair(&mut maps);
        let status = packets_of(&maps);
        assert_eq!((status.failure, status.behind), (None, false));
    });
}

#[test]
fn attempts_become_ever_less_frequent() {
    let mut retry = RetryTimer::default();
    let mut due = Vec::new();
    for look in 0..600 {
        if retry.tick() {
            due.push(look);
            retry.record_failure();
        }
    }
    assert_eq!(due, [0, 1, 3, 7, 15, 31, 63, 127, 255, 511]);
}

#[test]
fn kernel_flows_are_reported_while_packets_are_translated() {
    bed(|bed| {
        let mut maps = KernelMaps::start(&bed.options()).unwrap();
        maps.update_flows().unwrap();
        assert_eq!(maps.status().flows, None, "packets are not translated");
        drop(maps);
        let mut maps = start(bed, HookKind::Tcx);
        maps.update_flows().unwrap();
        let table = maps.live_maps().flow_table.unwrap();
        assert_eq!((table.capacity(), table.tally().live()), (FLOWS, 0));
        maps.update_flows().unwrap();
        assert_eq!(maps.live_maps().flow_table.unwrap(), table, "the table is opened once");
    });
}
