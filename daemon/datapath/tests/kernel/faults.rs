//! A failed start says what to do, and changes nothing for clients. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use crate::bed::{
    self, CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, Port, ThreadBed, address, bed, check_errno, dial, hide,
    pinned, tcp_backend, unmount_cgroups, with_capabilities, with_mounts,
};
use holdfast_core::maps::Maps;
use holdfast_datapath::{KernelMaps, PINS_VERSION, StartOptions};
use holdfast_fixtures::clock::{pause, wait_until};

const VIP: &str = "10.96.0.10:80";

fn serve(maps: &mut impl Maps) {
    let backends = [tcp_backend("127.0.0.2:0")];
    Port { frontends: &[VIP], backends: &backends, ..Port::TCP }.serve(maps);
}

/// The start must fail with this text. `{}` stands for the folder of the pins.
#[track_caller]
fn check(options: &StartOptions, expected: &str) {
    let error = KernelMaps::start(options).map(drop).expect_err(expected).to_string();
    let expected = expected.replace("{}", options.bpffs.to_str().unwrap());
    assert!(error.starts_with(&expected), "{error}\nshould begin with\n{expected}");
}

/// Clients are still served, and a proper start succeeds.
#[track_caller]
fn check_served(bed: &ThreadBed) {
    assert_eq!(dial(VIP), address(VIP));
    let maps = KernelMaps::start(&bed.options()).unwrap();
    assert_eq!(dial(VIP), address(VIP));
    assert_eq!(maps.status().broken_hooks, [""; 0]);
}

#[test]
fn kernel_without_privileges_a_start_says_which_are_missing() {
    bed(|bed| {
        serve(&mut bed.start());
        let missing =
            "loading programs is not permitted; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON";
        for too_few in [0, CAP_NET_ADMIN, CAP_BPF | CAP_PERFMON] {
            with_capabilities(too_few, || check(&bed.options(), missing));
        }
        check_served(bed);
        let enough = CAP_BPF | CAP_NET_ADMIN | CAP_PERFMON;
        with_capabilities(enough, || {
            let mut maps = KernelMaps::start(&bed.options()).unwrap();
            assert_eq!(maps.status().broken_hooks, [""; 0]);
            maps.dump().unwrap();
        });
        check_served(bed);
    });
}

#[test]
fn kernel_a_kernel_without_btf_is_supported() {
    bed(|bed| {
        let btf = Path::new("/sys/kernel/btf");
        with_mounts(
            || hide(btf),
            || {
                assert!(!btf.join("vmlinux").exists());
                KernelMaps::start(&bed.options()).unwrap();
            },
        );
    });
}

#[test]
fn kernel_without_a_cgroup_hierarchy_a_start_says_so() {
    bed(|bed| {
        let options = StartOptions { cgroup: None, ..bed.options() };
        let expected = "no cgroup v2 hierarchy is mounted; mount one, or set `datapath.cgroup`";
        with_mounts(unmount_cgroups, move || check(&options, expected));
        check(
            &StartOptions { cgroup: Some("/nowhere".into()), ..bed.options() },
            "/nowhere is not there; check `datapath.cgroup`",
        );
    });
}

#[test]
fn kernel_the_root_of_a_cgroup_namespace_is_reported() {
    bed(|bed| {
        bed.join(&bed.cgroup);
        let (root, expected) = (tempfile::tempdir().unwrap(), fs::metadata(&bed.cgroup).unwrap().ino());
        let started = with_mounts(
            || bed::enter_cgroup_namespace(root.path()),
            || {
                // Nothing may attach to the machine's own root.
                assert_eq!(fs::metadata(root.path()).unwrap().ino(), expected);
                let maps = KernelMaps::start(&StartOptions { cgroup: None, ..bed.options() }).unwrap();
                maps.status()
            },
        );
        assert!(started.in_cgroup_namespace);
        assert_eq!(started.cgroup.as_deref(), Some(root.path()));
        let asked_for = KernelMaps::start(&bed.options()).unwrap();
        assert!(!asked_for.status().in_cgroup_namespace, "a configured cgroup is not reported");
    });
}

#[test]
fn kernel_a_start_that_cannot_pin_says_so() {
    bed(|bed| {
        let elsewhere = tempfile::tempdir().unwrap();
        let options = StartOptions { bpffs: elsewhere.path().join("pins"), ..bed.options() };
        check(&options, "{} is not on a BPF file system; mount one (`mount -t bpf bpf /sys/fs/bpf`)");
        assert!(!options.bpffs.exists());

        bed.set_read_only(true);
        check(
            &bed.options(),
            "{} cannot be written, because the file system is read-only here; mount it `rw`",
        );
        bed.set_read_only(false);
        serve(&mut bed.start());
        bed.set_read_only(true);
        // Opening a pin counts as writing.
        check(
            &bed.options(),
            "{}/sockets1/udp_sockets cannot be written, because the file system is read-only here",
        );
        bed.set_read_only(false);
        check_served(bed);
    });
}

#[test]
fn kernel_a_pin_in_place_of_a_folder_is_reported() {
    bed(|bed| {
        drop(bed.start());
        let pin = bed.options().bpffs.join(pinned("g1/ports"));
        let stray = StartOptions { bpffs: bed.bpffs().join("stray"), ..bed.options() };
        fs::hard_link(&pin, &stray.bpffs).unwrap();
        check(&stray, "{} is no folder, so nothing can be pinned below it; remove it");
        fs::remove_file(&stray.bpffs).unwrap();
        for folder in ["links".to_owned(), format!("v{PINS_VERSION}")] {
            fs::create_dir(&stray.bpffs).unwrap();
            fs::hard_link(&pin, stray.bpffs.join(&folder)).unwrap();
            check(
                &stray,
                &format!("{{}}/{folder} is no folder, so nothing can be pinned below it; remove it"),
            );
            fs::remove_dir_all(&stray.bpffs).unwrap();
        }
        let link = bed.options().bpffs.join("links/connect4");
        fs::remove_file(&link).unwrap();
        fs::hard_link(&pin, &link).unwrap();
        let maps = KernelMaps::start(&bed.options()).unwrap();
        assert_eq!(maps.status().broken_hooks, [""; 0], "a pin that is no link is replaced");
    });
}

extern "C" fn do_nothing(_: libc::c_int) {}

#[test]
fn kernel_a_signal_does_not_end_the_reading_of_refusals() {
    bed(|bed| {
        let mut maps = bed.start();
        Port { frontends: &[VIP], ..Port::TCP }.serve(&mut maps);
        let (refusals, thread) = (maps.refusals().unwrap(), AtomicI32::new(0));
        let (until, stop) = std::io::pipe().unwrap();
        let mut stop = Some(stop);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                interrupted_by_usr1(&thread);
                refusals.read_refusals(&until, |_| drop(stop.take()))
            });
            wait_until("the reader", || thread.load(Ordering::Relaxed) != 0);
            for _ in 0..5 {
                // Most signals meet the reader in its wait, which shows nothing to others.
                pause(Duration::from_millis(20));
                interrupt(thread.load(Ordering::Relaxed));
            }
            assert!(!reader.is_finished(), "{:?}", reader.join());
            check_errno(TcpStream::connect(address(VIP)), libc::ECONNREFUSED, "nobody");
            reader.join().unwrap().unwrap();
        });
    });
}

#[allow(unsafe_code)]
fn interrupted_by_usr1(thread: &AtomicI32) {
    // SAFETY: the handler does nothing, and the thread's id is only read.
    unsafe {
        libc::signal(libc::SIGUSR1, do_nothing as *const () as libc::sighandler_t);
        thread.store(libc::gettid(), Ordering::Relaxed);
    }
}

#[allow(unsafe_code)]
fn interrupt(thread: i32) {
    // SAFETY: only numbers are passed.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
    assert_eq!(sent, 0);
}

#[test]
fn kernel_an_incomplete_generation_is_never_adopted() {
    for broken in ["a map is gone", "all are gone", "a pin in its place"] {
        bed(move |bed| {
            let mut maps = bed.start();
            serve(&mut maps);
            let dump = maps.dump().unwrap();
            drop(maps);
            let folder = bed.options().bpffs.join(pinned("g1"));
            match broken {
                "a map is gone" => fs::remove_file(folder.join("frontends4")).unwrap(),
                "all are gone" => fs::remove_dir_all(&folder).unwrap(),
                _ => {
                    fs::hard_link(folder.join("ports"), bed.bpffs().join("pin")).unwrap();
                    fs::remove_dir_all(&folder).unwrap();
                    fs::rename(bed.bpffs().join("pin"), &folder).unwrap();
                }
            }
            let mut maps = KernelMaps::start(&bed.options()).unwrap();
            assert!(maps.is_predecessor_serving(), "{broken}");
            assert_eq!(dial(VIP), address(VIP), "the programs still hold the unpinned maps");
            serve(&mut maps);
            maps.take_over().unwrap();
            assert_eq!(dial(VIP), address(VIP));
            assert_eq!(maps.dump().unwrap().frontends, dump.frontends);
            drop(maps);
            check_served(bed);
        });
    }
}
