//! Which programs a start finds pinned, and which the kernel has to verify again.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use holdfast_core::source_ranges::SourceRange;
use libbpf_rs::Link;

use super::*;
use crate::bpf_syscall;
use crate::kernel::bed::pinned;
use crate::packets::{PacketOptions, PacketSwitches};

/// The kernel's ids of what one set holds, by name.
type ProgramIds = BTreeMap<String, u32>;

const MUCH: MapGrowth = MapGrowth { frontends: [0; 2], ports: 10_000, slots: [0; 2], members: 0 };

fn options(bed: &ThreadBed, switches: PacketSwitches) -> StartOptions {
    let packets = PacketOptions { flows: 64, snat_ports: vec![61_000..=61_003], switches };
    StartOptions { packets: Some(packets), ..bed.options() }
}

fn start_with(bed: &ThreadBed, switches: PacketSwitches, features: Features) -> KernelMaps {
    libbpf_rs::set_print(None);
    let mut maps = KernelMaps::start_as(&options(bed, switches), features, VERSION).unwrap();
    maps.serve_packets();
    assert_eq!(maps.status().packets.unwrap().failure, None);
    maps
}

fn start(bed: &ThreadBed) -> KernelMaps {
    start_with(bed, PacketSwitches::default(), probe::probe_features().unwrap())
}

fn sets(bed: &ThreadBed) -> Vec<PathBuf> {
    let folder = bed.options().bpffs.join(pinned("programs"));
    let mut sets: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    sets.sort();
    sets
}

fn read_ids(set: &Path) -> ProgramIds {
    let read_id = |path: PathBuf| {
        let object = bpf_syscall::open_pin(&path).unwrap();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, bpf_syscall::object_id(object.as_fd()).unwrap())
    };
    fs::read_dir(set).unwrap().map(|entry| read_id(entry.unwrap().path())).collect()
}

/// The only set of each kind: of packets, and of sockets.
#[track_caller]
fn program_sets(bed: &ThreadBed) -> [ProgramIds; 2] {
    let sets = sets(bed);
    let [packets, sockets] = sets.as_slice() else { panic!("{sets:?}") };
    assert!(
        packets.to_string_lossy().contains("/packets-") && sockets.to_string_lossy().contains("/sockets-")
    );
    [read_ids(packets), read_ids(sockets)]
}

/// The programs that serve sockets.
fn attached_programs(bed: &ThreadBed) -> ProgramIds {
    let links = fs::read_dir(bed.options().bpffs.join("links")).unwrap().map(|entry| entry.unwrap().path());
    let program = |path: PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, Link::open(&path).unwrap().info().unwrap().prog_id)
    };
    links.filter(|path| !path.is_dir()).map(program).collect()
}

#[test]
fn kernel_a_start_over_the_same_maps_takes_the_pinned_programs() {
    bed(|bed| {
        drop(start(bed));
        let first = program_sets(bed);
        assert_eq!(attached_programs(bed), first[1]);
        assert!(
            first[0].contains_key("ethernet-packet_in") && first[0].contains_key("variables"),
            "{first:?}"
        );
        let mut maps = start(bed);
        assert_eq!(program_sets(bed), first);
        assert_eq!(attached_programs(bed), first[1]);
        maps.self_test().unwrap();
        bed.join(&bed.cgroup);
        let backends = [tcp_backend("127.0.0.2:0")];
        Port { frontends: &["10.96.0.10:80"], backends: &backends, ..Port::TCP }.serve(&mut maps);
        assert_eq!(dial("10.96.0.10:80"), address("10.96.0.10:80"));
    });
}

/// Starts twice with something else in between: these kinds of programs, packets' and sockets', are loaded anew.
#[track_caller]
fn check_loaded(loaded: [bool; 2], change: impl FnOnce(&ThreadBed) + Send + 'static) {
    bed(move |bed| {
        drop(start(bed));
        let first = program_sets(bed);
        change(bed);
        let second = program_sets(bed);
        for ((before, after), loaded) in first.iter().zip(&second).zip(loaded) {
            let is_kept = |(name, number): (&String, &u32)| after.get(name) == Some(number);
            assert_eq!(before.iter().any(is_kept), !loaded, "{before:?} {after:?}");
        }
        assert_eq!(attached_programs(bed), second[1]);
    });
}

#[test]
fn kernel_programs_with_other_switches_are_loaded() {
    let marked = PacketSwitches { forward_mark: 1 << 14, ..PacketSwitches::default() };
    check_loaded([true, false], move |bed| {
        drop(start_with(bed, marked, probe::probe_features().unwrap()));
    });
    let networks = ["192.0.2.0", "2001:db8::"]
        .map(|network| SourceRange::new(network.parse().unwrap(), 24).unwrap())
        .to_vec();
    let with_nodes = PacketSwitches { dsr_from: networks, ..PacketSwitches::default() };
    check_loaded([true, false], move |bed| {
        drop(start_with(bed, with_nodes, probe::probe_features().unwrap()));
    });
    let features = probe::probe_features().unwrap();
    // Each kernel loads the programs with this one, and without.
    let other = Features { lengths: !features.lengths, ..features };
    check_loaded([false, true], move |bed| drop(start_with(bed, PacketSwitches::default(), other)));
}

#[test]
fn kernel_programs_over_other_maps_are_loaded() {
    check_loaded([true, true], |bed| {
        let mut maps = start(bed);
        maps.reserve_capacity(&MUCH).unwrap();
        drop(maps);
        let grown = program_sets(bed);
        drop(start(bed));
        assert_eq!(program_sets(bed), grown, "a growth leaves its own programs");
    });
    check_loaded([true, false], |bed| {
        fs::remove_file(bed.options().bpffs.join("flows1/free_flows")).unwrap();
        drop(start(bed));
    });
    check_loaded([true, true], |bed| {
        fs::remove_file(bed.options().bpffs.join(pinned("shared/affinity"))).unwrap();
        drop(start(bed));
    });
}

#[test]
fn kernel_programs_of_another_build_are_loaded() {
    check_loaded([true, true], |bed| {
        for set in sets(bed) {
            let kind = set.file_name().unwrap().to_string_lossy().split('-').next().unwrap().to_owned();
            fs::rename(&set, set.with_file_name(format!("{kind}-{:016x}", 1))).unwrap();
        }
        drop(start(bed));
    });
}

/// Changes two sets of pins by this, packets' and sockets': the start loads what they should hold, and pins it.
#[track_caller]
fn check_mended(change: impl Fn(&Path, &str, &str) + Send + 'static) {
    bed(move |bed| {
        drop(start(bed));
        let before = program_sets(bed);
        let names = [["ethernet-packet_out", "ethernet-packet_in"], ["connect6", "connect4"]];
        for (set, [name, other]) in sets(bed).iter().zip(names) {
            change(set, name, other);
        }
        drop(start(bed));
        let after = program_sets(bed);
        for ((before, after), [name, _]) in before.iter().zip(&after).zip(names) {
            assert!(before.keys().eq(after.keys()), "{after:?}");
            assert!(!before.values().any(|id| *id == after[name]), "{name}: {before:?} {after:?}");
        }
        assert_eq!(attached_programs(bed), after[1]);
    });
}

#[test]
fn kernel_a_set_with_other_objects_than_its_programs_is_loaded() {
    let remove = |set: &Path, name: &str| fs::remove_file(set.join(name)).unwrap();
    check_mended(move |set, name, _| remove(set, name));
    check_mended(|set, name, other| {
        let [first, second, third] = [name, other, "third"].map(|name| set.join(name));
        fs::rename(&first, &third).unwrap();
        fs::rename(&second, &first).unwrap();
        fs::rename(&third, &second).unwrap();
    });
    check_mended(move |set, name, _| {
        remove(set, name);
        let map = bpf_syscall::open_pin(&set.ancestors().nth(2).unwrap().join("shared/affinity")).unwrap();
        bpf_syscall::pin(map.as_fd(), &set.join(name)).unwrap();
    });
    // As after a removal that was killed half way: of the set of packets, another layer is left.
    check_mended(move |set, name, other| {
        let _ = fs::remove_file(set.join("variables"));
        for path in fs::read_dir(set).unwrap().map(|entry| entry.unwrap().path()) {
            let pin = path.file_name().unwrap().to_string_lossy().into_owned();
            match pin.strip_prefix("ethernet-") {
                Some(function) => fs::rename(&path, set.join(format!("ip-{function}"))).unwrap(),
                None if pin == name || pin == other => fs::remove_file(&path).unwrap(),
                None => {}
            }
        }
    });
}

#[test]
fn kernel_a_failed_self_test_removes_the_pinned_programs() {
    bed(|bed| {
        bed.join(&bed.child_cgroup("daemon"));
        let mut maps = KernelMaps::start(&bed.options()).unwrap();
        maps.self_test().unwrap();
        drop(maps);
        let mut maps = KernelMaps::start(&bed.options()).unwrap();
        let control = maps.shared.control();
        maps.shared.write_control(&types::control { exempt_mark: MARK + 1, ..control });
        maps.self_test().unwrap_err();
        assert!(sets(bed).is_empty());
    });
}

#[test]
fn kernel_a_daemon_without_packets_pins_none_of_their_programs() {
    bed(|bed| {
        drop(start(bed));
        let mut maps = KernelMaps::start(&bed.options()).unwrap();
        maps.serve_packets();
        let sets = sets(bed);
        assert!(
            matches!(sets.as_slice(), [only] if only.to_string_lossy().contains("/sockets-")),
            "{sets:?}"
        );
    });
}

#[test]
fn kernel_programs_that_cannot_be_pinned_serve() {
    bed(|bed| {
        drop(start(bed));
        let folder = bed.options().bpffs.join(pinned("programs"));
        fs::remove_dir_all(&folder).unwrap();
        // A map is where the folder of the sets belongs.
        let map = bpf_syscall::open_pin(&bed.options().bpffs.join(pinned("shared/affinity"))).unwrap();
        bpf_syscall::pin(map.as_fd(), &folder).unwrap();
        drop(start(bed));
        assert_eq!(attached_programs(bed).len(), 8);
    });
}
