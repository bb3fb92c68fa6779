//! The XDP program at a device's driver: its attachment, and the device's entry.

use std::path::Path;

use super::*;
use crate::devices::{XdpState, XdpUse, has_xdp_xmit, keeps_vlan_tags, subscribe_driver_changes};

/// A device that redirects frames on the fast path.
fn with_frames(index: u32, name: &str, xdp: XdpUse) -> Device {
    Device { xdp, fast_path: true, ..outer(index, name) }
}

fn state(maps: &KernelMaps, index: u32) -> XdpState {
    let devices = packets_of(maps).devices;
    devices.into_iter().find(|it| it.device.index == index).unwrap().xdp
}

/// The state of a device, checked against its entry.
#[track_caller]
fn told(maps: &KernelMaps, index: u32) -> XdpState {
    let shown = state(maps, index);
    let flags = u32::from(entry(maps, index).unwrap().flags);
    let is_told = flags & types::device_flag::DEVICE_XDP.0 != 0;
    assert_eq!(is_told, shown == XdpState::Active, "{shown:?}");
    shown
}

#[track_caller]
fn check_not(maps: &KernelMaps, index: u32, why: &str) {
    let shown = told(maps, index);
    assert!(matches!(&shown, XdpState::Unavailable(said) if said.contains(why)), "{shown:?}, not {why}");
}

/// The XDP mode and program id of a device, as `ip` shows it.
fn shown(name: &str) -> Option<(String, u32)> {
    let said = run("ip", &format!("link show {name}"));
    let mode = said.split_whitespace().find(|word| word.starts_with("xdp"))?.to_owned();
    let number = said.split_whitespace().skip_while(|word| !word.starts_with("prog/xdp")).nth(2)?;
    Some((mode, number.parse().unwrap()))
}

/// Turns on GRO at the veth's other end, so that the veth transmits redirected frames. `false`: this kernel does not
/// report XDP features, so no program attaches, which is checked.
fn is_told(bed: &ThreadBed, kind: HookKind) -> bool {
    run("ethtool", "-K right gro on");
    if has_xdp_xmit(70).is_ok() {
        return true;
    }
    let mut maps = start(bed, kind);
    set_devices(&mut maps, &[with_frames(70, "left", XdpUse::Native)]);
    check_not(&maps, 70, "does not report whether it transmits");
    assert_eq!(shown("left"), None);
    false
}

/// Like [`with_each`], on kernels that report XDP features.
fn with_each_told(test: fn(&ThreadBed, HookKind)) {
    with_each(move |bed, kind| {
        if is_told(bed, kind) {
            test(bed, kind);
        }
    });
}

/// Runs as many rounds as lie between two checks, `looks` times.
fn pass(maps: &mut KernelMaps, looks: usize) {
    for _ in 0..=10 * looks {
        assert!(repair(maps).is_empty());
    }
}

/// A veth transmits redirected frames only while its other end uses GRO.
#[test]
fn kernel_xdp_is_active_while_the_driver_transmits_redirected_frames() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        let wanted = [with_frames(70, "left", XdpUse::Native)];
        set_devices(&mut maps, &wanted);
        assert_eq!(shown("left"), None, "no ineffective program attaches");
        if !is_told(bed, kind) {
            return;
        }
        check_not(&maps, 70, "does not transmit redirected frames");
        pass(&mut maps, 1);
        assert_eq!(told(&maps, 70), XdpState::Active);
        run("ethtool", "-K right gro off");
        set_devices(&mut maps, &wanted);
        repair(&mut maps);
        check_not(&maps, 70, "does not transmit redirected frames");
        assert!(shown("left").is_some(), "the program stays for a while");
        pass(&mut maps, 3);
        assert_eq!(shown("left"), None);
        check_not(&maps, 70, "does not transmit redirected frames");
        run("ethtool", "-K right gro on");
        pass(&mut maps, 7);
        assert_eq!(told(&maps, 70), XdpState::Active);
    });
}

/// The kernel is queried every tenth round, and at once after a device changed.
#[test]
fn kernel_a_device_with_an_xdp_program_is_checked_every_tenth_round() {
    with_each_told(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[with_frames(70, "left", XdpUse::Native)]);
        repair(&mut maps);
        run("ethtool", "-K right gro off");
        let rounds = (0..20).take_while(|_| {
            repair(&mut maps);
            told(&maps, 70) == XdpState::Active
        });
        assert!((5..=10).contains(&rounds.count()));
    });
}

/// Whether a notification has arrived; drains them.
fn is_noticed(notices: &OwnedFd) -> bool {
    let mut datagram = [0; 1 << 16];
    let mut has_come = false;
    while nix::unistd::read(notices, &mut datagram).is_ok_and(|length| length > 0) {
        has_come = true;
    }
    has_come
}

/// A pod may reconfigure its veth's end at any moment. Frames are lost until the entry changes.
#[test]
fn kernel_a_notification_of_a_changed_driver_stops_redirects() {
    with_each_told(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[with_frames(70, "left", XdpUse::Native)]);
        let notices = subscribe_driver_changes().unwrap();
        assert_eq!(told(&maps, 70), XdpState::Active);
        for _ in 0..2 {
            is_noticed(&notices);
            run("ethtool", "-K right gro off");
            assert!(is_noticed(&notices), "the other end sends a notification");
            for _ in 0..6 {
                maps.check_drivers();
                check_not(&maps, 70, "does not transmit redirected frames");
            }
            assert!(shown("left").is_some(), "notifications do not detach the program");
            run("ethtool", "-K right gro on");
            assert!(is_noticed(&notices));
            maps.check_drivers();
            assert_eq!(told(&maps, 70), XdpState::Active);
        }
    });
}

#[test]
fn kernel_a_change_by_ethtool_sends_a_notification() {
    with_each_told(|_, _| {
        run("ethtool", "-K left rxvlan off");
        let notices = subscribe_driver_changes().unwrap();
        assert!(!is_noticed(&notices));
        run("ethtool", "-K left rxvlan on");
        assert!(is_noticed(&notices));
    });
}

/// A stacked device receives packets of VLANs without tags.
#[test]
fn kernel_a_driver_without_xdp_gets_no_program() {
    with_each_told(|bed, kind| {
        const DEVICES: [(u32, &str); 3] = [(75, "tunnel"), (76, "above"), (77, "bridge")];
        run("ip", "link add tunnel index 75 type vxlan id 7 dstport 4789");
        run("ip", "link add link left name above index 76 type macvlan");
        run("ip", "link add bridge index 77 type bridge");
        DEVICES.iter().for_each(|(_, name)| drop(run("ip", &format!("link set {name} up"))));
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &DEVICES.map(|(index, name)| with_frames(index, name, XdpUse::Native)));
        for (index, name) in DEVICES {
            check_not(&maps, index, "does not support XDP");
            assert_eq!(shown(name), None);
        }
    });
}

#[test]
fn kernel_a_foreign_xdp_program_is_left_alone() {
    with_each_told(|bed, kind| {
        const PASSES: i32 = 2;
        let program = program_of_others_as(sys::BPF_PROG_TYPE_XDP, PASSES);
        let others =
            bpf_syscall::create_link(program.as_fd(), 70, sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE).unwrap();
        let before = shown("left").unwrap();
        let mut maps = start(bed, kind);
        for xdp in [XdpUse::Native, XdpUse::Never] {
            set_devices(&mut maps, &[with_frames(70, "left", xdp)]);
            (0..3).for_each(|_| drop(repair(&mut maps)));
            if xdp != XdpUse::Never {
                check_not(&maps, 70, "a foreign XDP program is attached");
            }
            assert_eq!(shown("left").unwrap(), before, "{xdp:?}");
            check_attached(&maps, kind, "left", 70);
        }
        set_devices(&mut maps, &[with_frames(70, "left", XdpUse::Native)]);
        drop(others);
        (0..3).for_each(|_| drop(repair(&mut maps)));
        let own = shown("left").unwrap();
        assert!(own != before && own.0 == "xdp", "a later attempt: {own:?}");
    });
}

#[test]
fn kernel_the_xdp_program_outlives_the_daemon_until_its_setting_or_device_ends() {
    with_each_told(|bed, kind| {
        let wanted = [with_frames(70, "left", XdpUse::Native)];
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &wanted);
        let (before, number) = (shown("left").unwrap(), link(bed, "xdp"));
        drop(maps);
        assert_eq!(shown("left").unwrap(), before);
        bed.remove_programs();
        let mut maps = start(bed, kind);
        assert_ne!(shown("left").unwrap(), before, "the new program is attached at once");
        set_devices(&mut maps, &wanted);
        assert_eq!(link(bed, "xdp"), number, "the link stays");
        set_devices(&mut maps, &[with_frames(70, "left", XdpUse::Never)]);
        assert_eq!(shown("left"), None);
        set_devices(&mut maps, &wanted);
        assert!(shown("left").is_some());
        set_devices(&mut maps, &[]);
        assert_eq!(shown("left"), None);
        assert!(!bed.options().bpffs.join("links/tc/70").exists(), "no pin is left");
        set_devices(&mut maps, &wanted);
        drop(maps);
        // A former daemon's XDP program is found even if its filters were removed.
        if kind == HookKind::Clsact {
            run("tc", "qdisc del dev left clsact");
        }
        set_devices(&mut start(bed, kind), &[]);
        assert_eq!(shown("left"), None, "{kind:?}");
    });
}

#[test]
fn kernel_a_removed_xdp_program_is_repaired_and_counted() {
    with_each_told(|bed, kind| {
        let mut maps = start(bed, kind);
        set_devices(&mut maps, &[with_frames(70, "left", XdpUse::Native)]);
        repair(&mut maps);
        Link::open(bed.options().bpffs.join("links/tc/70/xdp")).unwrap().detach().unwrap();
        assert_eq!(shown("left"), None);
        let mended = repair(&mut maps);
        assert!(shown("left").is_some());
        assert_eq!(mended, ["left xdp"]);
        assert!(repair(&mut maps).is_empty());
        std::fs::remove_file(bed.options().bpffs.join("links/tc/70/xdp")).unwrap();
        repair(&mut maps);
        drop(maps);
        assert!(shown("left").is_some(), "the link is pinned again");
    });
}

#[test]
fn kernel_vlan_offloads_of_a_device_are_detected() {
    with_each(|_, _| {
        for (first, second) in [("on", "on"), ("on", "off"), ("off", "on"), ("off", "off")] {
            run("ethtool", &format!("-K left rxvlan {first} rx-vlan-stag-hw-parse {second}"));
            assert_eq!(keeps_vlan_tags(70).unwrap(), (first, second) == ("off", "off"));
        }
        assert!(keeps_vlan_tags(69).is_err(), "there is no such device");
    });
}

/// A former daemon's programs may have had fewer counts.
#[test]
fn kernel_packet_counts_that_are_too_small_are_recreated() {
    with_each(|bed, kind| {
        drop(start(bed, kind));
        let pin = bed.options().bpffs.join(format!("v{VERSION}/packets/packet_counts"));
        let all = MapHandle::from_pinned_path(&pin).unwrap().max_entries();
        pin_smaller(&pin, (libbpf_rs::MapType::PercpuArray, 8));
        drop(start(bed, kind));
        assert_eq!(MapHandle::from_pinned_path(&pin).unwrap().max_entries(), all);
    });
}

/// Pins a smaller map in place of another one, as an older version had it.
fn pin_smaller(pin: &Path, (of, size): (libbpf_rs::MapType, u32)) -> MapHandle {
    let all = MapHandle::from_pinned_path(pin).unwrap().max_entries();
    std::fs::remove_file(pin).unwrap();
    let flags = if of == libbpf_rs::MapType::Hash { sys::BPF_F_NO_PREALLOC } else { 0 };
    let options = sys::bpf_map_create_opts {
        sz: size_of::<sys::bpf_map_create_opts>() as _,
        map_flags: flags,
        ..Default::default()
    };
    let mut smaller = MapHandle::create(of, Some("less"), 4, size, all - 1, &options).unwrap();
    smaller.pin(pin).unwrap();
    smaller
}

/// A former version's programs had fewer devices.
#[test]
fn kernel_a_device_map_that_is_too_small_is_recreated_with_its_devices() {
    with_each(|bed, kind| {
        let mut maps = start(bed, kind);
        let pin = bed.options().bpffs.join(format!("v{VERSION}/packets/devices"));
        let all = MapHandle::from_pinned_path(&pin).unwrap().max_entries();
        set_devices(&mut maps, &[outer(70, "left")]);
        let known = entry(&maps, 70).unwrap();
        drop(maps);
        let smaller = pin_smaller(&pin, (libbpf_rs::MapType::Hash, 24));
        smaller.update(&70_u32.to_ne_bytes(), abi::as_bytes(&known), MapFlags::ANY).unwrap();
        let maps = start(bed, kind);
        assert_eq!(MapHandle::from_pinned_path(&pin).unwrap().max_entries(), all);
        assert_eq!(abi::as_bytes(&entry(&maps, 70).unwrap()), abi::as_bytes(&known));
        assert_ne!(ours(kind, "left", 70), [0, 0], "the new programs are attached at once");
    });
}
