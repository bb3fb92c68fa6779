//! Starts, ends, second daemons, growth under traffic: clients notice nothing. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::bed::{self, Port, ThreadBed, address, bed, check_errno, dial, hide, pinned, show, tcp_backend};
use holdfast_core::keys::Family;
use holdfast_core::list::Scope;
use holdfast_core::maps::Maps;
use holdfast_core::op::{Action, FrontendType, MapGrowth, PortIndex, SlotRange, Word};
use holdfast_datapath::{KernelMaps, RepairReport, StartError, StartOptions, cleanup};
use holdfast_fixtures::clock::{pause, wait_until};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

const VIP: &str = "10.96.0.10:80";

fn serve(maps: &mut impl Maps) {
    let backends = [tcp_backend("127.0.0.2:0")];
    Port { frontends: &[VIP], backends: &backends, ..Port::TCP }.serve(maps);
}

#[test]
fn invariant_09_kernel_the_realized_state_outlives_the_daemon() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        let node_port =
            Port { index: 2, kind: FrontendType::NodePort, frontends: &["0.0.0.0:30080"], ..Port::TCP };
        node_port.serve(&mut maps);
        maps.execute(&Action::InsertNodeAddress("127.0.0.1".parse().unwrap())).unwrap();
        let dump = maps.dump().unwrap();
        drop(maps);
        assert_eq!(dial(VIP), address(VIP), "without a daemon, clients are served");
        let mut maps = KernelMaps::start(&bed.options()).unwrap();
        assert_eq!(maps.dump().unwrap(), dump, "a restart finds the realized state");
        assert_eq!(dial(VIP), address(VIP));
        check_errno(TcpStream::connect(address("127.0.0.1:30080")), libc::ECONNREFUSED, "a node port");
        assert_eq!(maps.status().generation, 1, "adopted, not recreated");
        assert_eq!(maps.status().broken_hooks, [""; 0]);
    });
}

/// More than the first maps hold.
const MUCH: MapGrowth = MapGrowth { frontends: [0; 2], ports: 10_000, slots: [0; 2], members: 0 };

/// Whether programs read what this daemon writes: clients are refused as soon as it says so.
#[track_caller]
fn check_obeyed(maps: &mut KernelMaps) {
    assert_eq!(dial(VIP), address(VIP));
    maps.execute(&Action::PublishWord(PortIndex(1), Scope::Cluster, Word::EMPTY)).unwrap();
    check_errno(TcpStream::connect(address(VIP)), libc::ECONNREFUSED, "the list is empty now");
}

#[test]
fn kernel_a_growth_succeeds_even_if_old_maps_cannot_be_removed() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        let old = bed.options().bpffs.join(pinned("g1"));
        hide(&old);
        let grown = maps.reserve_capacity(&MUCH);
        check_obeyed(&mut maps);
        grown.unwrap();
        let leftover = maps.status().leftover.unwrap();
        assert!(leftover.starts_with("cannot remove ") && leftover.contains("/g1: "), "{leftover}");
        assert_eq!(maps.repair().unwrap().leftover, maps.status().leftover);
        assert_eq!(maps.repair().unwrap(), RepairReport::default(), "reported once");
        assert!(maps.status().leftover.is_some());
        show(&old);
        maps.repair().unwrap();
        assert_eq!(maps.status().leftover, None);
        assert!(!old.exists());
    });
}

/// Blocks hooks: they have no program, and none can be pinned.
fn block(bed: &ThreadBed, hooks: &[&str]) {
    for hook in hooks {
        let pin = bed.options().bpffs.join("links").join(hook);
        libbpf_rs::Link::open(&pin).unwrap().detach().unwrap();
        std::fs::remove_file(&pin).unwrap();
        std::fs::create_dir(&pin).unwrap();
    }
}

fn unblock(bed: &ThreadBed, hooks: &[&str]) {
    let links = bed.options().bpffs.join("links");
    hooks.iter().for_each(|hook| std::fs::remove_dir(links.join(hook)).unwrap());
}

#[test]
fn kernel_a_growth_that_moved_some_programs_moves_the_others_later() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        let backends = [tcp_backend("[::1]:0")];
        Port { index: 2, frontends: &["[fd00::10]:80"], backends: &backends, ..Port::TCP }.serve(&mut maps);
        let behind = ["connect6", "sendmsg6"];
        block(bed, &behind);
        let grown = maps.reserve_capacity(&MUCH);
        check_obeyed(&mut maps);
        grown.unwrap();
        assert_eq!(maps.status().behind_hooks, behind);
        maps.repair().unwrap_err();
        assert_eq!(maps.status().behind_hooks, behind);
        unblock(bed, &behind);
        assert_eq!(
            maps.repair().unwrap(),
            RepairReport { hooks: behind.to_vec(), ..RepairReport::default() }
        );
        assert_eq!(maps.status().behind_hooks, [""; 0]);
        assert_eq!(dial("[fd00::10]:80"), address("[fd00::10]:80"));
    });
}

#[test]
fn kernel_a_growth_that_moves_no_program_changes_nothing() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        let hooks = HOOKS;
        block(bed, &hooks);
        maps.reserve_capacity(&MUCH).unwrap_err();
        let status = maps.status();
        assert_eq!((status.generation, status.growths), (1, 0));
        assert_eq!((status.behind_hooks, status.leftover), (vec![], None));
        assert!(!bed.options().bpffs.join(pinned("g2")).exists());
        unblock(bed, &hooks);
        maps.repair().unwrap();
        check_obeyed(&mut maps);
    });
}

const HOOKS: [&str; 8] =
    ["connect4", "connect6", "sendmsg4", "sendmsg6", "recvmsg4", "recvmsg6", "getpeername4", "getpeername6"];

#[test]
fn kernel_a_second_daemon_refuses_to_start() {
    bed(|bed| {
        let first = bed.start();
        let second = KernelMaps::start(&bed.options());
        let us = std::process::id();
        assert!(matches!(second, Err(StartError::Locked { holder: Some(it), .. }) if it == us), "{second:?}");
        assert!(matches!(cleanup(&bed.options().bpffs), Err(StartError::Locked { .. })));
        drop(first);
        KernelMaps::start(&bed.options()).unwrap();
    });
}

#[test]
fn kernel_cleanup_leaves_nothing() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        drop(maps);
        assert!(cleanup(&bed.options().bpffs).unwrap().errors.is_empty());
        assert!(!bed.options().bpffs.exists());
        check_errno(TcpStream::connect(address(VIP)), libc::ENETUNREACH, "no program is left");
        assert!(!cleanup(&bed.options().bpffs).unwrap().has_any(), "nothing to do is no error");
    });
}

#[test]
fn kernel_cleanup_leaves_an_empty_folder_that_is_a_mount() {
    bed(|bed| {
        bed.mount_pins();
        let mut maps = bed.start();
        serve(&mut maps);
        drop(maps);
        let pins = bed.options().bpffs;
        let errors = cleanup(&pins).unwrap().errors;
        assert!(errors.is_empty(), "{errors:?}");
        assert_eq!(std::fs::read_dir(&pins).unwrap().count(), 0);
        check_errno(TcpStream::connect(address(VIP)), libc::ENETUNREACH, "no program is left");
    });
}

#[test]
fn kernel_a_recreated_cgroup_gets_its_programs_again() {
    bed(|bed| {
        let doomed = bed.child_cgroup("doomed");
        let options = StartOptions { cgroup: Some(doomed.clone()), ..bed.options() };
        drop(KernelMaps::start(&options).unwrap());
        std::fs::remove_dir(&doomed).unwrap();
        bed.child_cgroup("doomed");
        let mut maps = KernelMaps::start(&options).unwrap();
        bed.join(&doomed);
        serve(&mut maps);
        assert_eq!(dial(VIP), address(VIP));
        std::fs::remove_file(options.bpffs.join("links/connect4")).unwrap();
        assert_eq!(maps.status().broken_hooks, ["connect4"]);
    });
}

#[test]
fn kernel_errors_of_a_start_name_their_cause() {
    bed(|bed| {
        let options = bed.options();
        let start = |change: &dyn Fn(&mut StartOptions)| {
            let mut options = options.clone();
            change(&mut options);
            KernelMaps::start(&options).unwrap_err()
        };
        let error = start(&|options| options.cgroup = Some("/proc".into()));
        assert!(error.to_string().starts_with("/proc is not a cgroup v2 folder"), "{error}");
        let error = start(&|options| options.cgroup = Some("/nonexistent".into()));
        assert!(error.to_string().starts_with("/nonexistent is not there; check"), "{error}");
        let error = start(&|options| options.bpffs = "/tmp/holdfast".into());
        assert!(matches!(error, StartError::NoBpffs { .. }), "{error}");
        assert!(!std::path::Path::new("/tmp/holdfast").exists());

        drop(KernelMaps::start(&options).unwrap());
        let pin = options.bpffs.join("links/connect4");
        std::fs::remove_file(&pin).unwrap();
        std::fs::create_dir(&pin).unwrap();
        let error = start(&|_| ());
        assert!(matches!(error, StartError::ForeignPin { .. }), "{error}");
        std::fs::remove_dir(&pin).unwrap();
        std::fs::remove_file(options.bpffs.join(pinned("g1/ports"))).unwrap();
        std::fs::hard_link(options.bpffs.join(pinned("g1/members")), options.bpffs.join(pinned("g1/ports")))
            .unwrap();
        let error = start(&|_| ());
        assert!(error.to_string().starts_with("cannot adopt the map ports: it is pinned, but as"), "{error}");
        let hint = "; clients are served as before; `holdfast cleanup` removes all pins, and clients are not served from \
                    then until holdfast has started again";
        assert!(error.to_string().ends_with(hint), "{error}");
        assert!(cleanup(&options.bpffs).unwrap().errors.is_empty());
        drop(KernelMaps::start(&options).unwrap());
        // A former daemon died during a growth.
        std::fs::create_dir(options.bpffs.join(pinned("filling"))).unwrap();
        std::fs::create_dir(options.bpffs.join(pinned("filling/ports"))).unwrap();
        let maps = KernelMaps::start(&options).unwrap();
        assert_eq!(maps.status().broken_hooks, [""; 0], "the missing hook is attached again");
        assert!(!options.bpffs.join(pinned("filling")).exists());
    });
}

#[test]
fn kernel_removed_programs_and_pins_are_repaired() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        let (root, dump) = (bed.options().bpffs, maps.dump().unwrap());
        assert_eq!(maps.repair().unwrap(), RepairReport::default(), "nothing is missing");
        std::fs::remove_file(root.join("links/connect4")).unwrap();
        std::fs::remove_dir_all(root.join(pinned("g1"))).unwrap();
        std::fs::remove_file(root.join(pinned("shared/control"))).unwrap();
        assert_eq!(maps.status().broken_hooks, ["connect4"]);
        assert_eq!(maps.status().detached_hooks, [""; 0], "it serves without its pin");
        assert_eq!(
            maps.repair().unwrap(),
            RepairReport { hooks: vec!["connect4"], pins: true, ..RepairReport::default() }
        );
        assert_eq!(maps.repair().unwrap(), RepairReport::default(), "nothing is left to repair");
        assert_eq!(maps.status().hooks_restored, 1);
        assert_eq!(dial(VIP), address(VIP));
        drop(maps);
        assert_eq!(dial(VIP), address(VIP), "programs serve by the new pins");
        assert_eq!(KernelMaps::start(&bed.options()).unwrap().dump().unwrap(), dump);
    });
}

#[test]
fn kernel_a_hook_that_cannot_be_repaired_is_reported_as_broken() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        assert_eq!(maps.repair().unwrap(), RepairReport::default(), "nothing is missing");
        let pin = bed.options().bpffs.join("links/connect4");
        libbpf_rs::Link::open(&pin).unwrap().detach().unwrap();
        std::fs::remove_file(&pin).unwrap();
        // A foreign, non-empty folder takes the place of the pin.
        std::fs::create_dir_all(pin.join("theirs")).unwrap();
        let cause = maps.repair().unwrap_err();
        assert_eq!(maps.last_status().broken_hooks, maps.status().broken_hooks, "{cause}");
        assert_eq!(maps.last_status().detached_hooks, ["connect4"], "{cause}");
        std::fs::remove_dir_all(&pin).unwrap();
        maps.repair().unwrap();
        assert_eq!(
            (maps.last_status().broken_hooks, maps.last_status().detached_hooks),
            (Vec::new(), Vec::new())
        );
        assert_eq!(dial(VIP), address(VIP));
    });
}

/// As when the file system of the pins is unmounted: nothing can be repaired, and a stop would end the programs.
#[test]
fn kernel_hooks_without_repairable_pins_are_reported_as_broken() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        assert_eq!(maps.repair().unwrap(), RepairReport::default(), "nothing is missing");
        let root = bed.options().bpffs;
        std::fs::remove_dir_all(&root).unwrap();
        // A place where nothing can be created, as without a BPF file system.
        std::os::unix::fs::symlink("/proc/self", &root).unwrap();
        maps.repair().unwrap_err();
        assert!(
            maps.last_status().broken_hooks.contains(&"connect4"),
            "{:?}",
            maps.last_status().broken_hooks
        );
        std::fs::remove_file(&root).unwrap();
        maps.repair().unwrap();
        assert_eq!(maps.last_status().broken_hooks, Vec::<&str>::new());
        drop(maps);
        assert_eq!(dial(VIP), address(VIP), "programs serve by the new pins");
    });
}

#[test]
fn kernel_cleared_bits_of_frontends_are_repaired() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        let pin = bed.options().bpffs.join(pinned("shared/frontend_blocks"));
        let blocks = MapHandle::from_pinned_path(pin).unwrap();
        for word in 0..blocks.max_entries() {
            blocks.update(&word.to_ne_bytes(), &[0; 8], MapFlags::ANY).unwrap();
        }
        let error = TcpStream::connect(address(VIP)).map(drop);
        check_errno(error, libc::ENETUNREACH, "programs do not look for the frontend");
        assert_eq!(maps.repair().unwrap(), RepairReport { bits: true, ..RepairReport::default() });
        assert_eq!(dial(VIP), address(VIP));
        assert_eq!(maps.repair().unwrap(), RepairReport::default(), "nothing is left to repair");
    });
}

#[test]
fn kernel_programs_and_daemon_compute_the_same_address_blocks() {
    bed(|bed| {
        let mut maps = bed.start();
        let v4 = ["10.0.0.1:80", "10.255.255.255:80", "192.168.1.1:80", "240.0.0.1:80", "1.2.3.4:80"];
        let v6 =
            ["[fd00::10]:80", "[fd12:3456:789a:bcde::1]:80", "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:80"];
        let (backend4, backend6) = ([tcp_backend("127.0.0.2:0")], [tcp_backend("[::1]:0")]);
        Port { frontends: &v4, backends: &backend4, ..Port::TCP }.serve(&mut maps);
        Port { index: 2, base: 8, frontends: &v6, backends: &backend6, ..Port::TCP }.serve(&mut maps);
        for vip in v4.iter().chain(&v6) {
            assert_eq!(dial(vip), address(vip));
        }
        drop(maps);
        // A start sets the bits of found frontends again.
        let _maps = bed.start();
        for vip in v4.iter().chain(&v6) {
            assert_eq!(dial(vip), address(vip), "after a restart");
        }
    });
}

#[test]
fn kernel_foreign_programs_are_kept_and_reported() {
    bed(|bed| {
        let other = StartOptions { bpffs: bed.options().bpffs.with_file_name("other"), ..bed.options() };
        let mut maps = KernelMaps::start(&other).unwrap();
        assert_eq!(maps.status().shared_hooks, []);
        serve(&mut maps);
        let second = bed.start();
        assert_eq!(second.status().shared_hooks.len(), 8);
        let beside = &second.status().shared_hooks[0];
        assert_eq!((beside.hook, beside.before.len(), beside.after.len()), ("connect4", 1, 0));
        let beside = &maps.status().shared_hooks[0];
        assert_eq!(
            (beside.hook, beside.before.len(), beside.after.len()),
            ("connect4", 0, 1),
            "it was first"
        );
        assert_eq!(dial(VIP), address(VIP), "foreign programs still run");
    });
}

/// Connects in a loop until stopped; returns connects and errors.
struct Traffic {
    stop: Arc<AtomicBool>,
    connects: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<Vec<String>>,
}

impl Traffic {
    fn start(_: &ThreadBed) -> Self {
        let (stop, connects) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&connects));
        let thread = std::thread::spawn(move || {
            let mut errors = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                match TcpStream::connect(address(VIP)).and_then(|stream| bed::reset_when_closed(&stream)) {
                    Ok(()) => counted.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        errors.push(error.to_string());
                        0
                    }
                };
            }
            errors
        });
        Self { stop, connects, thread }
    }

    /// Ends after many connects, none of which failed.
    fn end(self) {
        wait_until("a hundred connects", || self.connects.load(Ordering::Relaxed) > 100);
        self.stop.store(true, Ordering::Relaxed);
        assert_eq!(self.thread.join().unwrap(), Vec::<String>::new());
    }
}

#[test]
fn kernel_growth_fails_no_connect() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        let traffic = Traffic::start(bed);
        for number in 0..20_000_u32 {
            let vip = format!("10.{}.{}.{}:80", 100 + (number >> 16), number >> 8 & 255, number & 255);
            Port { index: number + 10, frontends: &[&vip], ..Port::TCP }.serve(&mut maps);
        }
        assert!(maps.status().growths >= 1, "{:?}", maps.status());
        assert_eq!(maps.status().broken_hooks, [""; 0]);
        traffic.end();
        let dump = maps.dump().unwrap();
        drop(maps);
        assert_eq!(KernelMaps::start(&bed.options()).unwrap().dump().unwrap(), dump);
    });
}

#[test]
fn kernel_restarts_fail_no_connect() {
    bed(|bed| {
        let mut maps = bed.start();
        serve(&mut maps);
        let traffic = Traffic::start(bed);
        for _ in 0..10 {
            drop(maps);
            maps = KernelMaps::start(&bed.options()).unwrap();
        }
        traffic.end();
    });
}

#[test]
fn kernel_the_self_test_proves_translation_and_exemption() {
    bed(|bed| {
        let daemon = bed.child_cgroup("daemon");
        bed.join(&daemon);
        let mut maps = KernelMaps::start(&bed.options()).unwrap();
        let before = maps.dump().unwrap();
        maps.self_test().unwrap();
        assert_eq!(maps.dump().unwrap(), before, "the probe is gone");
        assert!(maps.status().own_cgroup_exempt, "the exemption is back");
        bed.join(&bed.cgroup);
    });
}

#[test]
fn kernel_the_self_test_works_from_outside_the_cgroup() {
    bed(|bed| {
        let mut maps = KernelMaps::start(&bed.options()).unwrap();
        maps.self_test().unwrap();
        let unmarked = StartOptions { mark: 0, ..bed.options() };
        drop(maps);
        KernelMaps::start(&unmarked).unwrap().self_test().unwrap();
    });
}

/// Ranges used in turn. A range is reused only after all programs that could have seen it have ended.
const RANGES: u32 = 8;

/// How many lists replace each other, so that each range is reused often.
const STEPS: u32 = 1_000;

/// Far less than a grace period. It sleeps: a yielding thread could keep the kernel's threads from the CPU.
const GRACE_POLL: Duration = Duration::from_micros(200);

#[test]
fn invariant_04_kernel_whole_lists_are_replaced_under_traffic() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends: Vec<_> = (2..10).map(|n| tcp_backend(&format!("127.0.0.{n}:0"))).collect();
        let port = Port { frontends: &[VIP], backends: &backends, ..Port::TCP };
        port.serve(&mut maps);
        let traffic = Traffic::start(bed);
        let mut graces = [None; RANGES as usize];
        for step in 0..STEPS {
            let range = 1 + step % RANGES;
            let grace = &mut graces[(step % RANGES) as usize];
            while grace.is_some_and(|grace| !maps.is_grace_over(grace)) {
                pause(GRACE_POLL);
            }
            // The old slots are cleared, so a reader of them would find no backend.
            let wiped = SlotRange { family: Family::V4, base: range * 8, count: 8 };
            maps.execute(&Action::FreeRange(wiped)).unwrap();
            let some = &backends[..=(step % 8) as usize];
            Port { backends: some, base: range * 8, ..port }.publish(&mut maps, Scope::Cluster);
            // The former range is free once this period is over.
            graces[((step + RANGES - 1) % RANGES) as usize] = Some(maps.begin_grace());
        }
        traffic.end();
    });
}
