//! The cost of the programs: nanoseconds per run of each hook, connects through a VIP against direct ones, and the
//! speed of filling the maps. Needs root; `cargo bench -p holdfast-datapath`.
//!
//! Rounds alternate between the cases and show medians, so that a busy machine disturbs all alike.

// A program that measures and prints.
#![allow(unsafe_code)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

#[allow(dead_code, unreachable_pub)]
#[path = "../../../tests/src/size.rs"]
mod size;

#[path = "../tests/kernel/bed.rs"]
mod bed;

#[path = "common/clock.rs"]
mod clock;

use std::fs::File;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bed::{Port, ThreadBed, address, ask, bed, closed_port, tcp_backend, udp_backend, udp_client};
use clock::{median, stay_on_one_cpu, time, used};
use holdfast_core::change::Change;
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::{Capacity, Maps, MemoryMaps};
use holdfast_core::time::ClockReading;
use holdfast_datapath::{Allocator, KernelMaps};
use holdfast_laws::worlds;
use size::sized;

use libbpf_rs::query::ProgInfoIter;
use libbpf_rs::{Link, libbpf_sys as sys};

/// The daemon's allocator.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const ROUNDS: usize = 400;
/// Connects of one batch, fewer than a listener's queue holds: the accepting thread runs only between batches.
const CONNECTS: usize = 100;
const FILLS: usize = 7;
const RESET_TURNS: usize = 10;
const PAUSE: Duration = Duration::from_millis(2);

fn connect(to: SocketAddr) {
    bed::reset_when_closed(&TcpStream::connect(to).unwrap()).unwrap();
}

/// Run count and nanoseconds of a program.
fn run_stats(program: i32) -> (u64, u64) {
    let mut told = sys::bpf_prog_info::default();
    let mut length = u32::try_from(size_of_val(&told)).unwrap();
    // SAFETY: the struct has the given length and outlives the call.
    let returned = unsafe { sys::bpf_obj_get_info_by_fd(program, (&raw mut told).cast(), &raw mut length) };
    assert_eq!(returned, 0);
    (told.run_cnt, told.run_time_ns)
}

fn program_of(link: &Path) -> OwnedFd {
    let id = Link::open(link).unwrap().info().unwrap().prog_id;
    // SAFETY: the result is a new file descriptor or negative.
    let fd = unsafe { sys::bpf_prog_get_fd_by_id(id) };
    assert!(fd >= 0);
    // SAFETY: nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The newest program of that name. It has no pin.
fn program_named(name: &str) -> OwnedFd {
    let newest = ProgInfoIter::default().filter(|it| it.name.to_str() == Some(name)).map(|it| it.id).max();
    // SAFETY: the result is a new file descriptor or negative.
    let fd = unsafe { sys::bpf_prog_get_fd_by_id(newest.unwrap()) };
    assert!(fd >= 0);
    // SAFETY: nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Makes the kernel count programs' runs and time, while the returned file is open.
fn count_runs() -> OwnedFd {
    // SAFETY: a number is passed; the kernel returns a new file descriptor or a negative number.
    let fd = unsafe { sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME) };
    assert!(fd >= 0);
    // SAFETY: nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A connect4 program that lets everything pass, attached to a cgroup while both are open.
fn empty_program(cgroup: &File) -> (OwnedFd, OwnedFd) {
    // r0 = 1; exit
    let code = [0xb7_u64 | 1 << 32, 0x95];
    let options = sys::bpf_prog_load_opts {
        sz: size_of::<sys::bpf_prog_load_opts>() as _,
        expected_attach_type: sys::BPF_CGROUP_INET4_CONNECT,
        ..Default::default()
    };
    // SAFETY: two instructions, strings that end in zero; all outlive the call.
    let program = unsafe {
        sys::bpf_prog_load(
            sys::BPF_PROG_TYPE_CGROUP_SOCK_ADDR,
            c"empty".as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as _,
            (&raw const options).cast_mut(),
        )
    };
    assert!(program >= 0);
    // SAFETY: only numbers are passed.
    let link = unsafe {
        sys::bpf_link_create(program, cgroup.as_raw_fd(), sys::BPF_CGROUP_INET4_CONNECT, std::ptr::null())
    };
    assert!(link >= 0);
    // SAFETY: new file descriptors that nothing else owns.
    unsafe { (OwnedFd::from_raw_fd(program), OwnedFd::from_raw_fd(link)) }
}

/// The cost of one run, reported by the kernel.
struct Cost<'a> {
    name: &'static str,
    program: OwnedFd,
    act: Box<dyn FnMut() + 'a>,
    /// Nanoseconds, round by round.
    times: Vec<f64>,
}

impl Cost<'_> {
    fn take_turn(&mut self) {
        std::thread::sleep(PAUSE);
        let before = run_stats(self.program.as_raw_fd());
        (0..sized(CONNECTS, 5)).for_each(|_| (self.act)());
        let after = run_stats(self.program.as_raw_fd());
        self.times.push((after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64);
    }
}

fn hooks(bed: &ThreadBed, maps: &mut KernelMaps) {
    let backend = [tcp_backend("127.0.0.2:0")];
    Port { frontends: &["10.96.0.10:80"], backends: &backend, ..Port::TCP }.serve(maps);
    let backend6 = [tcp_backend("[::1]:0")];
    Port { index: 2, base: 8, frontends: &["[fd00::10]:80"], backends: &backend6, ..Port::TCP }.serve(maps);
    let udp = [udp_backend("127.0.0.2:0")];
    let port = Port { index: 3, base: 16, ..Port::UDP };
    Port { frontends: &["10.96.0.10:53"], backends: &udp, ..port }.serve(maps);
    Port { index: 4, frontends: &["10.96.0.11:80"], ..Port::TCP }.serve(maps);

    let _counting = count_runs();
    let program = |hook: &str| program_of(&bed.options().bpffs.join("links").join(hook));
    let other = bed.child_cgroup("empty");
    let (empty, _link) = empty_program(&File::open(&other).unwrap());
    let (peer, socket) = (TcpStream::connect(address("10.96.0.10:80")).unwrap(), udp_client("0.0.0.0:0"));
    let (plain, direct) = (udp_client("0.0.0.0:0"), udp[0].to_string());
    let dialler = udp_client("0.0.0.0:0");
    let cost = |name, program, act| Cost { name, program, act, times: Vec::new() };
    let dial = |to: SocketAddr| Box::new(move || connect(to));
    let vip = || Box::new(|| _ = ask(&socket, "10.96.0.10:53"));
    let mut costs = [
        cost("empty program", empty, dial(backend[0])),
        cost("connect4 miss", program("connect4"), dial(backend[0])),
        cost("connect4 hit", program("connect4"), dial(address("10.96.0.10:80"))),
        cost(
            "connect4 refused",
            program("connect4"),
            Box::new(|| drop(TcpStream::connect(address("10.96.0.11:80")))),
        ),
        cost("connect6 miss", program("connect6"), dial(backend6[0])),
        cost("connect6 hit", program("connect6"), dial(address("[fd00::10]:80"))),
        cost("connect6 hit, mapped", program("connect6"), dial(address("[::ffff:10.96.0.10]:80"))),
        cost("getpeername4 hit", program("getpeername4"), Box::new(|| drop(peer.peer_addr()))),
        cost("sendmsg4 miss", program("sendmsg4"), Box::new(|| _ = ask(&socket, &direct))),
        cost("sendmsg4 hit, sticky", program("sendmsg4"), vip()),
        cost("recvmsg4 hit", program("recvmsg4"), vip()),
        cost("recvmsg4 miss", program("recvmsg4"), Box::new(|| _ = ask(&plain, &direct))),
        cost(
            "connect4 hit, UDP",
            program("connect4"),
            Box::new(|| dialler.connect(address("10.96.0.10:53")).unwrap()),
        ),
        cost(
            "sendmsg4 hit, new socket",
            program("sendmsg4"),
            Box::new(|| _ = ask(&udp_client("0.0.0.0:0"), "10.96.0.10:53")),
        ),
    ];
    for _ in 0..sized(ROUNDS, 4) / 4 {
        for (at, cost) in costs.iter_mut().enumerate() {
            bed.join(if at == 0 { &other } else { &bed.cgroup });
            cost.take_turn();
        }
    }
    bed.join(&bed.cgroup);
    show(costs);
}

fn show<const N: usize>(costs: [Cost<'_>; N]) {
    println!("{:34}{:>8}{:>8}", "hook", "ns/run", "net");
    let mut floor = None;
    for cost in costs {
        let ns = median(cost.times);
        let floor = *floor.get_or_insert(ns);
        println!("{:34}{ns:>8.0}{:>8.0}", cost.name, ns - floor);
    }
}

/// The cgroups from which a thread connects to the backend.
struct Ways<'a> {
    bed: &'a ThreadBed,
    listener: &'a TcpListener,
    /// A cgroup without programs.
    outside: PathBuf,
    /// A cgroup with one empty program at connect.
    empty: PathBuf,
    _empty: (OwnedFd, OwnedFd),
}

impl<'a> Ways<'a> {
    fn new(bed: &'a ThreadBed, listener: &'a TcpListener) -> Self {
        let empty = bed.other_cgroup("empty");
        let program = empty_program(&File::open(&empty).unwrap());
        Self { bed, listener, outside: bed.other_cgroup("other"), empty, _empty: program }
    }

    /// Seconds of CPU time for one connect, accept and close, by case: 0 without programs, 1 with an empty one, 2 with
    /// the daemon's, 3 through a VIP.
    fn take(&self, way: usize) -> f64 {
        let backend = self.listener.local_addr().unwrap();
        let to = if way == 3 { address("10.96.0.10:80") } else { backend };
        self.bed.join([&self.outside, &self.empty, &self.bed.cgroup, &self.bed.cgroup][way]);
        std::thread::sleep(PAUSE);
        time(sized(CONNECTS, 5), || {
            connect(to);
            drop(self.listener.accept());
        })
    }
}

/// Prints the cost of each case beyond the one without programs, which is measured before and after each other one.
fn ratios(ways: &Ways<'_>, services: u32) {
    let (mut direct, mut more) = (Vec::new(), [const { Vec::new() }; 3]);
    for round in 0..sized(ROUNDS, 4) {
        for way in [[1, 2, 3], [3, 1, 2], [2, 3, 1], [3, 2, 1]][round % 4] {
            let (before, there, after) = (ways.take(0), ways.take(way), ways.take(0));
            direct.push(before.midpoint(after));
            more[way - 1].push(there - before.midpoint(after));
        }
    }
    ways.bed.join(&ways.bed.cgroup);
    let direct = median(direct);
    let [empty, attached, served] = more.map(median);
    println!(
        "connect, accept, close, {services} services: direct {:.2} us, an empty program {:+.0} ns, {:.4} of direct; \
         without a VIP {:+.0} ns, {:.4}; through a VIP {:+.0} ns, {:.4}",
        direct * 1e6,
        empty * 1e9,
        direct / (direct + empty),
        attached * 1e9,
        direct / (direct + attached),
        served * 1e9,
        direct / (direct + served)
    );
}

/// Prints what a run for an RST costs: of an open connection, of a connect to a service, and of another one.
fn reset_runs(bed: &ThreadBed) {
    let mut maps = bed.start();
    let (open, closed) = ([tcp_backend("127.0.0.2:0")], [closed_port("127.0.0.2:0")]);
    Port { frontends: &["10.96.0.12:80"], backends: &closed, ..Port::TCP }.serve(&mut maps);
    let _counting = count_runs();
    let refuse = |to: SocketAddr| Box::new(move || assert!(TcpStream::connect(to).is_err()));
    let cost = |name, act| Cost { name, program: program_named("note_reset"), act, times: Vec::new() };
    let mut costs = [
        cost("note_reset, an open connection", Box::new(|| connect(open[0]))),
        cost("note_reset, a service", refuse(address("10.96.0.12:80"))),
        cost("note_reset, no service", refuse(closed[0])),
    ];
    for _ in 0..sized(ROUNDS, 4) / 4 {
        costs.iter_mut().for_each(Cost::take_turn);
    }
    show(costs);
}

/// Prints what the tracepoint adds to a connection, by the clock: with a daemon and without one, in turns, in a cgroup
/// that it does not serve.
fn resets(bed: &ThreadBed) {
    let outside = bed.other_cgroup("other");
    let (listener, closed) = (TcpListener::bind("127.0.0.2:0").unwrap(), closed_port("127.0.0.2:0"));
    let to = listener.local_addr().unwrap();
    let close = || {
        let client = TcpStream::connect(to).unwrap();
        drop((listener.accept(), client));
    };
    let reset = || {
        connect(to);
        drop(listener.accept());
    };
    let refuse = || assert!(TcpStream::connect(closed).is_err());
    let ways: [(&str, &dyn Fn()); 3] = [("closed", &close), ("reset", &reset), ("refused", &refuse)];
    let mut times = [const { [const { Vec::new() }; 2] }; 3];
    for turn in 0..sized(2 * RESET_TURNS, 2) {
        bed.join(&bed.cgroup);
        let maps = (turn % 2 == 1).then(|| bed.start());
        bed.join(&outside);
        for ((_, way), times) in ways.iter().zip(&mut times) {
            (0..sized(ROUNDS / 10, 1)).for_each(|_| times[turn % 2].push(time(sized(CONNECTS, 5), way)));
        }
        drop(maps);
    }
    bed.join(&bed.cgroup);
    for ((name, _), times) in ways.iter().zip(times) {
        let [without, with] = times.map(median);
        println!(
            "connect, {name}: {:.2} us without a daemon, {:+.0} ns with one, {:.4}",
            without * 1e6,
            (with - without) * 1e9,
            without / with
        );
    }
}

fn fill(maps: &mut impl Maps, services: u32) {
    let backends = [address("192.0.2.1:80"), address("192.0.2.2:80")];
    for number in 0..services {
        let vip = format!("10.{}.{}.{}:80", 100 + (number >> 16), number >> 8 & 255, number & 255);
        let port = Port { index: number + 10, base: 64 + number * 2, backends: &backends, ..Port::TCP };
        Port { frontends: &[&vip], ..port }.serve(maps);
    }
}

/// Runs one part, named by the argument, or all.
fn main() {
    let wanted = size::wanted();
    let wants = |part: &str| wanted.as_deref().is_none_or(|wanted| wanted == part);
    if wants("hooks") {
        in_bed(|bed| hooks(bed, &mut bed.start()));
    }
    if wants("nowhere") {
        in_bed(nowhere);
    }
    if wants("ratios") {
        in_bed(all_ratios);
    }
    if wants("resets") {
        in_bed(reset_runs);
        in_bed(resets);
    }
    if wants("programming") {
        programming();
    }
    if wants("restart") {
        in_bed(restart);
    }
}

fn in_bed(part: fn(&ThreadBed)) {
    bed(move |bed| {
        stay_on_one_cpu();
        part(bed);
        bed::go_home();
    });
}

/// The cost of a hook by the clock, if the rest of connect() is short: without a route it ends after the programs.
fn nowhere(bed: &ThreadBed) {
    let mut maps = bed.start();
    let (vip, away) = (address("10.96.0.10:80"), address("192.0.2.9:80"));
    Port { frontends: &["10.96.0.10:80"], backends: &[away], ..Port::TCP }.serve(&mut maps);
    let (outside, other) = (bed.other_cgroup("other"), bed.other_cgroup("empty"));
    let _empty = empty_program(&File::open(&other).unwrap());
    let ways = [(&outside, away), (&other, away), (&bed.cgroup, away), (&bed.cgroup, vip)];
    // A socket belongs to the cgroup in which it was created.
    let ways = ways.map(|(cgroup, to)| {
        bed.join(cgroup);
        (bed::Unconnected::new(), to)
    });
    let mut times = [const { Vec::new() }; 4];
    for round in 0..sized(ROUNDS, 4) * 4 {
        let (socket, to) = &ways[round % 4];
        times[round % 4]
            .push(time(sized(CONNECTS, 5) * 10, || assert_eq!(socket.connect(*to), libc::ENETUNREACH)));
    }
    bed.join(&bed.cgroup);
    let [direct, empty, missed, served] = times.map(|times| median(times) * 1e9);
    println!(
        "connect() without a route: {direct:.1} ns; an empty program {:+.1}, without a VIP {:+.1}, through a VIP {:+.1}",
        empty - direct,
        missed - direct,
        served - direct
    );
}

fn all_ratios(bed: &ThreadBed) {
    let mut maps = bed.start();
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let backend = [listener.local_addr().unwrap()];
    Port { frontends: &["10.96.0.10:80"], backends: &backend, ..Port::TCP }.serve(&mut maps);
    let ways = Ways::new(bed, &listener);
    ratios(&ways, 1);
    let many = sized(40_000, 500);
    fill(&mut maps, many);
    ratios(&ways, many);
}

/// Prints how fast an engine programs 50,000 services into empty maps, from their events on, and removes them again: by
/// the clock, and by the CPU time of its thread. The same with maps in memory shows all but the kernel's share.
fn programming() {
    let shape = worlds::Shape { services: sized(50_000, 500), endpoints: 1 };
    let (mut memory, mut real) = (Rates::default(), Rates::default());
    for _ in 0..sized(FILLS, 1) {
        memory.take(MemoryMaps::default(), shape, |_| ());
        real.take(KernelMaps::without_programs(Capacity::default()).unwrap(), shape, |maps| {
            let status = maps.status();
            assert_eq!((status.frontends, status.growths), ([shape.services, 0], sized(1, status.growths)));
        });
    }
    println!("{:34}{:>12}{:>12}{:>12}", "services/s, of 50,000", "by clock", "at best", "of CPU time");
    real.show("the kernel's maps");
    memory.show("maps of memory");
}

/// How long each round took to write and to remove all services: by the clock, and in CPU time.
#[derive(Default)]
struct Rates {
    services: u32,
    inserts: [Vec<f64>; 2],
    deletes: [Vec<f64>; 2],
}

impl Rates {
    fn take<M: Maps>(&mut self, maps: M, shape: worlds::Shape, check: impl FnOnce(&M)) {
        self.services = shape.services;
        let (mut engine, found) = Engine::start(maps, Seed(7), &[Source::Kubernetes]).unwrap();
        assert_eq!(found, []);
        let events = shape.events().into_iter().chain([Event::Synced(Source::Kubernetes)]);
        clocked(&mut self.inserts, &mut engine, events.collect());
        check(engine.maps());
        clocked(&mut self.deletes, &mut engine, shape.deletions());
        assert_eq!(engine.maps_mut().dump().unwrap().frontends, []);
    }

    fn show(&self, what: &str) {
        for (done, times) in [("insert", &self.inserts), ("delete", &self.deletes)] {
            let rate = |seconds: f64| f64::from(self.services) / seconds;
            let [clock, cpu] = times.each_ref().map(|times| rate(median(times.clone())));
            let best = rate(times[0].iter().copied().fold(f64::INFINITY, f64::min));
            println!("{:34}{clock:>12.0}{best:>12.0}{cpu:>12.0}", format!("{what}, {done}"));
        }
    }
}

/// Lets the engine handle events until they are realized. The daemon frees the changes on another thread, this bench
/// after the clock has stopped.
fn clocked<M: Maps>(times: &mut [Vec<f64>; 2], engine: &mut Engine<M>, events: Vec<Event>) {
    let mut changes = Vec::with_capacity(events.len());
    let (begun, used_before) = (Instant::now(), used());
    write(engine, events, &mut |change| changes.push(change));
    times[0].push(begun.elapsed().as_secs_f64());
    times[1].push((used() - used_before).as_secs_f64());
}

/// Returns an engine over these maps after a first list, and its number of ops.
fn bring_about<M: Maps>(maps: M, events: Vec<Event>) -> (Engine<M>, u64) {
    let (mut engine, found) = Engine::start(maps, Seed(7), &[Source::Kubernetes]).unwrap();
    assert_eq!(found, []);
    let ops = write(
        &mut engine,
        events.into_iter().chain([Event::Synced(Source::Kubernetes)]).collect(),
        &mut drop,
    );
    (engine, ops)
}

/// Steps like the daemon until the maps hold these events, and returns the total number of ops.
#[inline(never)]
fn write<M: Maps>(engine: &mut Engine<M>, events: Vec<Event>, changed: &mut dyn FnMut(Change)) -> u64 {
    events.into_iter().for_each(|event| engine.apply(event));
    loop {
        let snapshot = engine.step(ClockReading::default(), changed);
        if engine.is_written() {
            return snapshot.counters.ops;
        }
        if engine.next_due(Duration::ZERO) != Some(Duration::ZERO) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Prints how long a start with 10,000 services takes over a former daemon's maps, until nothing is left to write.
fn restart(bed: &ThreadBed) {
    let shape = worlds::Shape { services: sized(10_000, 500), endpoints: 8 };
    drop(bring_about(bed.start(), shape.events()));
    let mut rounds = Vec::new();
    for _ in 0..sized(FILLS, 1) {
        let events = shape.events();
        let (begun, used_before) = (Instant::now(), used());
        let (_engine, ops) = bring_about(KernelMaps::start(&bed.options()).unwrap(), events);
        assert_eq!(ops, 0);
        rounds.push([begun.elapsed().as_secs_f64(), (used() - used_before).as_secs_f64()]);
    }
    let over = |what: usize| median(rounds.iter().map(|round| round[what]).collect());
    println!(
        "restart with {} services of {} endpoints: {:.0} ms by the clock, {:.0} ms of CPU time",
        shape.services,
        shape.endpoints,
        over(0) * 1e3,
        over(1) * 1e3
    );
}
