//! What the programs cost: nanoseconds per run of each hook, connects through a VIP against direct ones, and how fast the
//! maps are filled. Needs root; `cargo bench -p holdfast-datapath`.
//!
//! Rounds alternate what they measure, and medians are shown, so that a busy machine disturbs all alike.

// A program that measures and prints.
#![allow(unsafe_code, missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout
)]

#[path = "../tests/bed.rs"]
mod bed;

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use bed::{Bed, Port, address, ask, bed, tcp_backend, udp_backend, udp_client};
use holdfast_core::keys::Transport;
use holdfast_datapath::{KernelMaps, Maps};
use libbpf_rs::{Link, libbpf_sys as sys};

const ROUNDS: usize = 120;
/// Fewer than a listener's queue holds: its thread runs only between batches.
const CONNECTS: usize = 100;
const PAUSE: Duration = Duration::from_millis(2);

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn connect(to: SocketAddr) {
    bed::reset_when_closed(&TcpStream::connect(to).unwrap()).unwrap();
}

fn time(count: usize, mut act: impl FnMut()) -> f64 {
    let begun = Instant::now();
    (0..count).for_each(|_| act());
    begun.elapsed().as_secs_f64() / count as f64
}

/// Runs and nanoseconds of a program.
fn run_stats(program: i32) -> (u64, u64) {
    let mut told = sys::bpf_prog_info::default();
    let mut length = u32::try_from(size_of_val(&told)).unwrap();
    // SAFETY: the struct is as long as said and outlives the call.
    let returned = unsafe { sys::bpf_obj_get_info_by_fd(program, (&raw mut told).cast(), &raw mut length) };
    assert_eq!(returned, 0);
    (told.run_cnt, told.run_time_ns)
}

fn program_of(link: &Path) -> OwnedFd {
    let id = Link::open(link).unwrap().info().unwrap().prog_id;
    // SAFETY: the number is a new file descriptor or negative.
    let fd = unsafe { sys::bpf_prog_get_fd_by_id(id) };
    assert!(fd >= 0);
    // SAFETY: nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// The kernel counts as long as this is open.
fn count_runs() -> OwnedFd {
    // SAFETY: as above.
    let fd = unsafe { sys::bpf_enable_stats(sys::BPF_STATS_RUN_TIME) };
    assert!(fd >= 0);
    // SAFETY: nobody else owns it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A connect4 program that lets everything pass, attached to a cgroup for as long as both are open.
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
    // SAFETY: new file descriptors that nobody else owns.
    unsafe { (OwnedFd::from_raw_fd(program), OwnedFd::from_raw_fd(link)) }
}

fn ns_per_run(program: &OwnedFd, mut act: impl FnMut()) -> f64 {
    let mut times = Vec::new();
    for _ in 0..30 {
        std::thread::sleep(PAUSE);
        let before = run_stats(program.as_raw_fd());
        (0..CONNECTS).for_each(|_| act());
        let after = run_stats(program.as_raw_fd());
        times.push((after.1 - before.1) as f64 / (after.0 - before.0).max(1) as f64);
    }
    median(times)
}

fn hooks(bed: &Bed, maps: &mut KernelMaps) {
    let backend = [tcp_backend("127.0.0.2:0")];
    Port { frontends: &["10.96.0.10:80"], backends: &backend, ..Port::TCP }.serve(maps);
    let backend6 = [tcp_backend("[::1]:0")];
    Port { index: 2, base: 8, frontends: &["[fd00::10]:80"], backends: &backend6, ..Port::TCP }.serve(maps);
    let udp = [udp_backend("127.0.0.2:0")];
    let port = Port { index: 3, base: 16, transport: Transport::Udp, ..Port::TCP };
    Port { frontends: &["10.96.0.10:53"], backends: &udp, ..port }.serve(maps);
    Port { index: 4, frontends: &["10.96.0.11:80"], ..Port::TCP }.serve(maps);

    let _counting = count_runs();
    let program = |hook: &str| program_of(&bed.options().bpffs.join("links").join(hook));
    let other = bed.child_cgroup("empty");
    let (empty, _link) = empty_program(&File::open(&other).unwrap());
    bed.join(&other);
    let floor = ns_per_run(&empty, || connect(backend[0]));
    bed.join(&bed.cgroup);
    println!("{:34}{:>8}{:>8}", "hook", "ns/run", "net");
    let show = |name: &str, ns: f64| println!("{name:34}{ns:>8.0}{:>8.0}", ns - floor);
    show("empty program", floor);
    let connect4 = program("connect4");
    show("connect4 miss", ns_per_run(&connect4, || connect(backend[0])));
    show("connect4 hit", ns_per_run(&connect4, || connect(address("10.96.0.10:80"))));
    show("connect4 refused", ns_per_run(&connect4, || drop(TcpStream::connect(address("10.96.0.11:80")))));
    let connect6 = program("connect6");
    show("connect6 miss", ns_per_run(&connect6, || connect(backend6[0])));
    show("connect6 hit", ns_per_run(&connect6, || connect(address("[fd00::10]:80"))));
    show("connect6 hit, mapped", ns_per_run(&connect6, || connect(address("[::ffff:10.96.0.10]:80"))));
    let peer = TcpStream::connect(address("10.96.0.10:80")).unwrap();
    show("getpeername4 hit", ns_per_run(&program("getpeername4"), || drop(peer.peer_addr())));
    let socket = udp_client("0.0.0.0:0");
    let vip = || _ = ask(&socket, "10.96.0.10:53");
    show("sendmsg4 hit, sticky", ns_per_run(&program("sendmsg4"), vip));
    show("recvmsg4 hit", ns_per_run(&program("recvmsg4"), vip));
    let direct = udp[0].to_string();
    let miss = || _ = ask(&socket, &direct);
    show("sendmsg4 miss", ns_per_run(&program("sendmsg4"), miss));
    let fresh = || _ = ask(&udp_client("0.0.0.0:0"), "10.96.0.10:53");
    show("sendmsg4 hit, new socket", ns_per_run(&program("sendmsg4"), fresh));
}

/// Client and server on one CPU: the whole cost of both, and no wake-ups across CPUs that come and go.
fn stay_on_one_cpu() {
    // SAFETY: a set of zeros is valid; the kernel reads it only.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &raw const cpus);
    }
}

/// Connect and close: direct without programs, direct with programs, through a VIP.
fn ratios(bed: &Bed, other: &Path, services: u32) {
    let backend = tcp_backend("127.0.0.2:0");
    let vip = address("10.96.0.10:80");
    let mut times = [vec![], vec![], vec![]];
    for round in 0..ROUNDS {
        for what in [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2, 1, 0]][round % 4] {
            bed.join(if what == 0 { other } else { &bed.cgroup });
            std::thread::sleep(PAUSE);
            let to = if what == 2 { vip } else { backend };
            times[what].push(time(CONNECTS, || connect(to)));
        }
    }
    bed.join(&bed.cgroup);
    let [direct, attached, served] = times.map(median);
    println!(
        "connect/close, {services} services: direct {:.2} us, with programs {:.3}, through a VIP {:.3} of direct's rate",
        direct * 1e6,
        direct / attached,
        direct / served
    );
}

fn fill(maps: &mut impl Maps, services: u32) -> Duration {
    let begun = Instant::now();
    let backends = [address("192.0.2.1:80"), address("192.0.2.2:80")];
    for number in 0..services {
        let vip = format!("10.{}.{}.{}:80", 100 + (number >> 16), number >> 8 & 255, number & 255);
        let port = Port { index: number + 10, base: 64 + number * 2, backends: &backends, ..Port::TCP };
        Port { frontends: &[&vip], ..port }.serve(maps);
    }
    begun.elapsed()
}

fn main() {
    bed(|bed| {
        stay_on_one_cpu();
        let mut maps = bed.start();
        hooks(bed, &mut maps);
        let backend = [tcp_backend("127.0.0.2:0")];
        Port { frontends: &["10.96.0.10:80"], backends: &backend, ..Port::TCP }.serve(&mut maps);
        let other = bed.other_cgroup();
        ratios(bed, &other, 1);
        fill(&mut maps, 40_000);
        ratios(bed, &other, 40_000);
        bed::go_home();
    });
    let mut maps = KernelMaps::unattached(bed::CAPACITY).unwrap();
    let services = 49_000;
    let took = fill(&mut maps, services);
    println!(
        "programming {services} services from nothing: {:.3} s, {:.0} services/s, {} growths",
        took.as_secs_f64(),
        f64::from(services) / took.as_secs_f64(),
        maps.status().growths
    );
}
