//! Cases that only this crate can set up: an older kernel, and maps changed from outside. Needs root.

mod pinned_programs;

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_core::keys::Transport;
use holdfast_core::list::Scope;
use holdfast_core::op::{FrontendType, Owner, WordFlags};
use holdfast_fixtures::clock::wait_until;

use super::bed::{
    MARK, NONE, Port, ThreadBed, address, ask, bed, check_errno, connect_marked, dial, sweep, tcp_backend,
    tells_what_sockets_keep, udp_backend, udp_client,
};
use super::prebuild::Prebuild;
use super::*;
use crate::cgroup::Cgroup;
use crate::pins::VERSION;
use crate::probe;
use crate::site::Site;

#[test]
fn kernel_without_set_retval_a_refused_client_still_never_sees_eperm() {
    bed(|bed| {
        let mut maps = KernelMaps::start_as(&bed.options(), Features::FLOOR, VERSION).unwrap();
        bed.join(&bed.cgroup);
        for (index, frontend, flags) in
            [(1, "10.96.0.10:80", NONE), (2, "10.96.0.11:80", WordFlags::DROP), (3, "[fd00::10]:80", NONE)]
        {
            let port = Port { index, frontends: &[frontend], flags, ..Port::TCP };
            port.serve(&mut maps);
            check_errno(TcpStream::connect(address(frontend)), libc::ECONNREFUSED, frontend);
            Port { transport: Transport::Udp, keeps_members: true, ..port }.serve(&mut maps);
            let any = if frontend.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = udp_client(any);
            socket.connect(address(frontend)).unwrap();
            socket.send(b"x").unwrap();
            check_errno(socket.recv(&mut [0; 8]), libc::ECONNREFUSED, "recv reports the refusal of UDP");
        }
        let mapped = TcpStream::connect(address("[::ffff:10.96.0.10]:80"));
        check_errno(mapped, libc::ECONNREFUSED, "mapped");
        let backends = [tcp_backend("127.0.0.2:0")];
        Port { index: 4, frontends: &["10.96.0.12:80"], backends: &backends, ..Port::TCP }.serve(&mut maps);
        assert_eq!(dial("10.96.0.12:80"), address("10.96.0.12:80"), "other clients are served");
    });
}

#[test]
fn kernel_foreign_contents_are_left_out_of_a_dump() {
    let mut maps = KernelMaps::without_programs(super::bed::CAPACITY).unwrap();
    // Port 0, transport 255: no version of this daemon wrote that.
    let key = [1, 2, 3, 4, 0, 0, 255, 0];
    maps.generation.frontends_mut(Family::V4).put(&key, &[9; 16]).unwrap();
    assert_eq!(maps.dump().unwrap(), Dump::default());
}

/// Inserts a frontend with its own port, by its number.
fn insertion(number: u32) -> Op {
    let address = IpAddr::from((0x0a60_0000 + number).to_be_bytes());
    let key = FrontendKey { address, port: NonZeroU16::MIN, transport: Transport::Tcp };
    let value = FrontendValue {
        port: PortIndex(1),
        kind: FrontendType::ClusterIp,
        quota: holdfast_core::op::QuotaId::default(),
    };
    Op { owner: Owner::Nobody, action: Action::InsertFrontend(key, value) }
}

fn insert(maps: &mut KernelMaps, numbers: std::ops::Range<u32>) {
    for number in numbers {
        maps.execute(&insertion(number).action).unwrap();
    }
}

fn grown(maps: &KernelMaps) -> (u32, u32) {
    let [frontends, _] = maps.generation.shape.frontends;
    (maps.growths, frontends)
}

pub(super) fn wait_until_made(maps: &KernelMaps) {
    wait_until(
        "the larger maps",
        || !matches!(&maps.prebuild, Prebuild::Building { thread, .. } if !thread.is_finished()),
    );
}

#[test]
fn kernel_larger_maps_are_built_ahead_and_adopted_when_finished() {
    let mut maps = KernelMaps::without_programs(Capacity::default()).unwrap();
    insert(&mut maps, 0..2560);
    assert!(matches!(maps.prebuild, Prebuild::Idle), "{:?}", maps.prebuild);
    insert(&mut maps, 2560..2561);
    assert!(matches!(maps.prebuild, Prebuild::Building { .. }), "{:?}", maps.prebuild);
    wait_until_made(&maps);
    assert_eq!(grown(&maps), (0, 4096), "nothing moves between two ops");
    insert(&mut maps, 2561..2562);
    assert_eq!(grown(&maps), (1, 65_536));
    assert!(matches!(maps.prebuild, Prebuild::Idle), "{:?}", maps.prebuild);
    assert_eq!(maps.dump().unwrap().frontends.len(), 2562);
}

#[test]
fn kernel_an_op_waits_for_larger_maps_only_when_full() {
    let mut maps = KernelMaps::without_programs(Capacity::default()).unwrap();
    insert(&mut maps, 0..2560);
    // As if the prebuild had failed, which is not reported while there is space.
    maps.prebuild = Prebuild::Failed;
    insert(&mut maps, 2560..3840);
    assert_eq!(grown(&maps), (0, 4096));
    insert(&mut maps, 3840..3841);
    assert_eq!(grown(&maps), (1, 65_536));
    assert_eq!(maps.dump().unwrap().frontends.len(), 3841);
}

#[test]
fn kernel_a_prebuild_that_is_too_small_is_not_awaited() {
    let mut maps = KernelMaps::without_programs(Capacity::default()).unwrap();
    insert(&mut maps, 0..2561);
    assert!(matches!(maps.prebuild, Prebuild::Building { .. }), "{:?}", maps.prebuild);
    maps.reserve_capacity(&MapGrowth { ports: 100_000, ..MapGrowth::default() }).unwrap();
    assert!(maps.generation.shape.ports >= 100_000, "{:?}", maps.generation.shape);
    assert_eq!((maps.growths, maps.dump().unwrap().frontends.len()), (1, 2561));
}

/// A start over empty maps takes one growth for its writes, however full the first maps are meanwhile.
#[test]
fn kernel_the_maps_of_a_start_hold_what_it_expects() {
    let mut maps = KernelMaps::without_programs(Capacity::default()).unwrap();
    let coming = MapGrowth { frontends: [20_000, 0], ports: 20_000, slots: [20_000, 0], members: 0 };
    maps.prepare(&coming);
    assert!(matches!(maps.prebuild, Prebuild::Building { .. }), "{:?}", maps.prebuild);
    assert_eq!(grown(&maps), (0, 4096), "still the first maps");
    // A little less or more than expected is written, as long as it fits.
    maps.reserve_capacity(&MapGrowth {
        frontends: [19_000, 0],
        ports: 20_100,
        slots: [21_000, 0],
        members: 9,
    })
    .unwrap();
    assert_eq!(grown(&maps), (1, 65_536));
    insert(&mut maps, 0..20_000);
    let word = |base| Word { base, count: 1, flags: WordFlags::default() };
    for number in 0..20_100 {
        maps.execute(&Action::PublishWord(PortIndex(number), Scope::Cluster, word(number))).unwrap();
    }
    assert_eq!(grown(&maps), (1, 65_536));
    assert!(matches!(maps.prebuild, Prebuild::Idle), "{:?}", maps.prebuild);
}

#[test]
fn kernel_small_expectations_do_not_enlarge_maps() {
    let mut maps = KernelMaps::without_programs(Capacity::default()).unwrap();
    maps.prepare(&MapGrowth { frontends: [3_000; 2], ports: 4_000, slots: [16_000; 2], members: 3_000 });
    assert!(matches!(maps.prebuild, Prebuild::Idle), "{:?}", maps.prebuild);
}

/// A growth takes as long as thousands of ops, and the engine waits for it.
#[test]
fn kernel_a_failed_growth_is_retried_only_after_a_pause() {
    bed(|bed| {
        let mut maps = KernelMaps::start(&bed.options()).unwrap();
        insert(&mut maps, 0..2560);
        // As if no larger maps could be created while there is space.
        maps.prebuild = Prebuild::Failed;
        insert(&mut maps, 2560..3840);
        bed.set_read_only(true);
        let refusal = maps.execute_batch(&[insertion(3840)]).unwrap_err();
        maps.growth_failures.prolong_pause();
        for number in 3841..3890 {
            let op = insertion(number);
            let alone = maps.execute(&op.action).map(|()| 1);
            assert_eq!((maps.execute_batch(&[op]), alone), (Err(refusal.clone()), Err(refusal.clone())));
        }
        assert_eq!(maps.growth_failures.count(), 1, "one growth was tried for all of them");
        bed.set_read_only(false);
        assert_eq!(maps.execute(&insertion(3840).action), Err(refusal), "the pause is not over");
        assert_eq!(grown(&maps), (0, 4096));
        maps.growth_failures.end_pause();
        insert(&mut maps, 3840..3890);
        assert_eq!(grown(&maps), (1, super::bed::CAPACITY.ports));
    });
}

const VIP: &str = "10.96.0.10:80";

fn serve(maps: &mut KernelMaps) {
    let backends = [tcp_backend("127.0.0.2:0")];
    Port { frontends: &[VIP], backends: &backends, ..Port::TCP }.serve(maps);
}

/// The ids of all programs at all hooks of the bed's cgroup.
fn attached(bed: &ThreadBed) -> BTreeSet<u32> {
    let cgroup = Cgroup::open(Some(&bed.cgroup)).unwrap();
    cgroup.hooks().flat_map(|hook| cgroup.query_programs(hook).unwrap()).collect()
}

type Forget = fn(&types::control) -> types::control;

/// Exemptions removed from outside, and the error of the self-test.
const FORGETTING: [(Forget, &str); 2] = [
    (
        |told| types::control { exempt_mark: MARK + 1, ..*told },
        "sockets with the mark 0x686f are translated, so this daemon could cut itself off",
    ),
    (
        |told| types::control { exempt_cgroup: 0, ..*told },
        "sockets of this daemon's cgroup are translated, so it could cut itself off",
    ),
];

#[test]
fn kernel_a_failed_self_test_leaves_nothing_of_a_first_start() {
    for (forget, said) in FORGETTING {
        bed(move |bed| {
            bed.join(&bed.child_cgroup("daemon"));
            let mut maps = KernelMaps::start(&bed.options()).unwrap();
            serve(&mut maps);
            maps.shared.write_control(&forget(&maps.shared.control()));
            assert_eq!(maps.self_test().unwrap_err().to_string(), said);
            drop(maps);
            bed.join(&bed.cgroup);
            assert_eq!(attached(bed), BTreeSet::new());
            assert!(!bed.options().bpffs.exists());
            check_errno(TcpStream::connect(address(VIP)), libc::ENETUNREACH, "no translation");
        });
    }
}

#[test]
fn kernel_a_failed_self_test_leaves_what_a_former_daemon_attached() {
    for (forget, said) in FORGETTING {
        bed(move |bed| {
            bed.join(&bed.child_cgroup("daemon"));
            let mut maps = KernelMaps::start(&bed.options()).unwrap();
            serve(&mut maps);
            maps.self_test().unwrap();
            let told = |maps: &KernelMaps| {
                let control = maps.shared.control();
                (control.exempt_cgroup, control.exempt_mark, control.host_netns)
            };
            let before = (attached(bed), told(&maps));
            drop(maps);
            bed.remove_programs();
            let mut maps = KernelMaps::start(&bed.options()).unwrap();
            assert_ne!(attached(bed), before.0, "the new programs are attached");
            maps.shared.write_control(&forget(&maps.shared.control()));
            assert_eq!(maps.self_test().unwrap_err().to_string(), said);
            assert_eq!((attached(bed), told(&maps)), before);
            drop(maps);
            bed.join(&bed.cgroup);
            assert_eq!(dial(VIP), address(VIP), "clients are served as before");
            KernelMaps::start(&bed.options()).unwrap().self_test().unwrap();
        });
    }
}

/// Connects without a pause until it is dropped; a failed connect fails the test.
struct Clients {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<u32>>,
}

impl Clients {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let dial_all = move || {
            let mut connects = 0;
            while !stopped.load(Ordering::Relaxed) {
                let stream = TcpStream::connect(address(VIP)).unwrap();
                super::bed::reset_when_closed(&stream).unwrap();
                connects += 1;
            }
            connects
        };
        Self { stop, thread: Some(std::thread::spawn(dial_all)) }
    }

    fn end(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let connects = self.thread.take().unwrap().join().unwrap();
        assert!(connects > 100, "{connects}");
    }
}

#[test]
fn kernel_another_version_fills_its_maps_and_takes_over_without_a_gap() {
    bed(|bed| {
        let start = |version| start_as(bed, version);
        let maps = |version| bed.options().bpffs.join(format!("v{version}/g1"));
        let (old_maps, new_maps) = (maps(VERSION - 1), maps(VERSION));
        let mut old = start(VERSION - 1);
        bed.join(&bed.cgroup);
        serve(&mut old);
        let old_programs = attached(bed);
        let clients = Clients::start();
        drop(old);
        // A daemon that dies while it fills its maps leaves no complete generation.
        let mut new = start(VERSION);
        assert!(new.is_predecessor_serving() && new.status().waiting);
        assert_eq!(new.dump().unwrap(), Dump::default(), "nothing is adopted from another version");
        drop(new);
        let mut new = start(VERSION);
        assert!(new.is_predecessor_serving());
        // Even if it must grow meanwhile.
        for number in 0..4000_u32 {
            let vip = format!("10.100.{}.{}:80", number >> 8, number & 255);
            Port { index: number + 10, frontends: &[&vip], ..Port::TCP }.serve(&mut new);
        }
        assert!(new.status().growths > 0);
        serve(&mut new);
        assert_eq!(attached(bed), old_programs, "the old programs still serve");
        assert!(old_maps.exists() && !new_maps.exists());
        new.take_over().unwrap();
        assert!(!new.is_predecessor_serving());
        assert_eq!(attached(bed).intersection(&old_programs).count(), 0);
        assert!(!old_maps.exists() && new_maps.exists());
        let dump = new.dump().unwrap();
        drop(new);
        // And back again, as in a rollback.
        let mut old = start(VERSION - 1);
        assert!(old.is_predecessor_serving());
        serve(&mut old);
        old.take_over().unwrap();
        assert!(old_maps.exists() && !new_maps.exists());
        assert_ne!(old.dump().unwrap(), dump);
        clients.end();
    });
}

#[test]
fn invariant_11_kernel_a_daemon_that_waits_is_exempt_from_the_programs_that_still_serve() {
    bed(|bed| {
        let mut old = start_as(bed, VERSION - 1);
        let vip = "127.9.9.9:80";
        Port { frontends: &[vip], ..Port::TCP }.serve(&mut old);
        tcp_backend(vip);
        drop(old);
        let mark = MARK << 1;
        let own = bed.child_cgroup("daemon");
        bed.join(&own);
        let options = StartOptions { mark, ..bed.options() };
        let new = KernelMaps::start_as(&options, probe::probe_features().unwrap(), VERSION).unwrap();
        assert!(new.is_predecessor_serving());
        TcpStream::connect(address(vip)).unwrap();
        bed.join(&bed.cgroup);
        check_errno(TcpStream::connect(address(vip)), libc::ECONNREFUSED, "clients are served as before");
        connect_marked(vip, mark).unwrap();
        check_errno(connect_marked(vip, MARK), libc::ECONNREFUSED, "the mark of a former daemon");
    });
}

#[test]
fn kernel_another_version_moves_no_udp_flow() {
    if !tells_what_sockets_keep() {
        return;
    }
    bed(|bed| {
        let mut old = start_as(bed, VERSION - 1);
        bed.join(&bed.cgroup);
        let vip = "10.96.0.10:53";
        let backends: Vec<_> = (2..10).map(|n| udp_backend(&format!("127.0.0.{n}:0"))).collect();
        let port = Port { frontends: &[vip], backends: &backends, ..Port::UDP };
        port.serve(&mut old);
        let sockets: Vec<_> = (0..16).map(|_| udp_client("0.0.0.0:0")).collect();
        let asked = || sockets.iter().map(|socket| ask(socket, vip)).collect::<Vec<_>>();
        let connected = udp_client("0.0.0.0:0");
        connected.connect(address(vip)).unwrap();
        let before = asked();
        drop(old);
        let mut new = start_as(bed, VERSION);
        port.serve(&mut new);
        assert!(new.is_predecessor_serving());
        assert_eq!(asked(), before, "two versions in parallel");
        new.take_over().unwrap();
        assert_eq!(asked(), before);
        assert_eq!(connected.peer_addr().unwrap(), address(vip));
        assert_eq!(sweep(&mut new), 0);
        Port { backends: &[], ..port }.publish(&mut new, Scope::Cluster);
        assert_eq!(sweep(&mut new), 1, "the new version reads what it dialled");
    });
}

fn start_as(bed: &ThreadBed, version: u32) -> KernelMaps {
    KernelMaps::start_as(&bed.options(), probe::probe_features().unwrap(), version).unwrap()
}

#[test]
fn kernel_a_failed_self_test_of_another_version_restores_the_old_one() {
    bed(|bed| {
        let mut old = start_as(bed, VERSION - 1);
        serve(&mut old);
        let before = attached(bed);
        drop(old);
        let mut new = start_as(bed, VERSION);
        serve(&mut new);
        if let Some(attached) = &mut new.attached {
            attached.control.exempt_mark = MARK + 1;
        }
        let error = new.take_over().unwrap_err().to_string();
        assert!(error.starts_with("sockets with the mark 0x6870 are translated"), "{error}");
        drop(new);
        assert_eq!(attached(bed), before);
        bed.join(&bed.cgroup);
        assert_eq!(dial(VIP), address(VIP));
    });
}
