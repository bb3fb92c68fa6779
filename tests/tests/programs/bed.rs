//! The bed itself: its processes see their own world, and nothing of it remains.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use holdfast_tests::bed::{Bed, BedError, Layout, Location, Neighbour, Role, finish, succeed};

/// For commands that take milliseconds; in an emulated kernel a second.
const SOON: Duration = Duration::from_secs(120);

/// Set for a test that will be killed while it holds a bed.
const VICTIM: &str = "HOLDFAST_BED_VICTIM";

fn say(bed: &Bed, location: Location<'_>, words: &[&str]) -> String {
    let mut command = bed.command(location, words[0]).unwrap();
    command.args(&words[1..]);
    succeed(command, SOON).unwrap().trim().to_owned()
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn names(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[track_caller]
fn assert_goes_away(path: &Path) {
    let until = Instant::now() + SOON;
    while path.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!path.exists(), "{} is still there", path.display());
}

#[test]
fn a_command_runs_in_the_beds_cgroup_network_and_mounts() {
    let bed = Bed::new().unwrap();
    let name = bed.cgroup().strip_prefix(bed.cgroup().ancestors().nth(2).unwrap()).unwrap();
    let own = say(&bed, Location::NODE, &["cat", "/proc/self/cgroup"]);
    assert!(own.lines().any(|line| line == format!("0::/{}", name.display())), "{own} is not {name:?}");
    let beside = say(&bed, Location::OUTSIDE, &["cat", "/proc/self/cgroup"]);
    assert!(beside.contains("/outside"), "{beside}");
    let interfaces = say(&bed, Location::NODE, &["ip", "-o", "link"]);
    assert!(interfaces.lines().count() == 1 && interfaces.contains("lo: <LOOPBACK,UP"), "{interfaces}");
    let mounts = say(&bed, Location::NODE, &["cat", "/proc/self/mounts"]);
    assert!(mounts.lines().any(|line| line.contains(" /sys/fs/bpf bpf rw")), "{mounts}");
    let here = std::env::current_dir().unwrap();
    assert_eq!(say(&bed, Location::NODE, &["pwd"]), here.to_str().unwrap());
}

#[test]
fn a_bed_leaves_the_machine_unchanged() {
    let look = || (names("/proc/sys/net/ipv4/conf"), fs::read_to_string("/proc/self/mountinfo").unwrap());
    let (before, cgroups) = (look(), fs::read_to_string("/proc/self/cgroup").unwrap());
    let neighbours = vec![Neighbour { name: "pod", near: vec!["10.1.0.1/24"], far: vec!["10.1.0.2/24"] }];
    let bed = Bed::lay(&Layout { local: vec!["192.0.2.1/32"], neighbours, ..Layout::default() }).unwrap();
    let top = bed.cgroup().parent().unwrap().to_owned();
    let keeper = bed.bpffs();
    let mut sleeper = sleep_inside(&bed);
    bed.within(Location::NODE, || ()).unwrap();
    bed.child_cgroup("pods").unwrap();
    assert_eq!(look(), before);
    drop(bed);
    assert_eq!(look(), before);
    assert_eq!(fs::read_to_string("/proc/self/cgroup").unwrap(), cgroups);
    assert!(!top.exists() && !keeper.exists());
    assert_eq!(sleeper.wait().unwrap().signal(), Some(9), "what ran in the bed is killed");
}

#[test]
fn the_beds_own_bpffs_is_reachable_from_outside() {
    let (one, other) = (Bed::new().unwrap(), Bed::new().unwrap());
    fs::create_dir(one.bpffs().join("here")).unwrap();
    assert!(say(&one, Location::NODE, &["ls", "/sys/fs/bpf"]).contains("here"));
    assert!(!names(other.bpffs()).contains(&"here".to_owned()));
    assert!(!Path::new("/sys/fs/bpf/here").exists());
}

#[test]
fn servers_answer_with_their_own_name() {
    let bed =
        Bed::lay(&Layout { local: vec!["192.0.2.1/32", "2001:db8::1/128"], ..Layout::default() }).unwrap();
    let _v4 = bed.serve(Location::NODE, Role::Tcp, "four", address("192.0.2.1:80")).unwrap();
    let _v6 = bed.serve(Location::NODE, Role::Tcp, "six", address("[2001:db8::1]:80")).unwrap();
    let _udp = bed.serve(Location::OUTSIDE, Role::Udp, "datagram", address("192.0.2.1:80")).unwrap();
    let ask_tcp = |to: &str| bed.within(Location::NODE, || tcp_name(address(to))).unwrap();
    assert_eq!(ask_tcp("192.0.2.1:80"), "four");
    assert_eq!(ask_tcp("[2001:db8::1]:80"), "six");
    let reply = bed.within(Location::NODE, || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        socket.set_read_timeout(Some(SOON)).unwrap();
        socket.send_to(b"?", "192.0.2.1:80").unwrap();
        let mut buffer = [0; 64];
        let (count, from) = socket.recv_from(&mut buffer).unwrap();
        (String::from_utf8(buffer[..count].to_vec()).unwrap(), from)
    });
    assert_eq!(reply.unwrap(), ("datagram".to_owned(), address("192.0.2.1:80")));
}

fn tcp_name(to: SocketAddr) -> String {
    use std::io::Write;
    let mut stream = TcpStream::connect_timeout(&to, SOON).unwrap();
    stream.write_all(b"?").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

#[test]
fn a_dns_server_answers_with_its_address() {
    let bed = Bed::new().unwrap();
    let server = bed.serve(Location::NODE, Role::Dns, "198.51.100.7", address("127.0.0.1:53")).unwrap();
    let ask = ["dig", "+short", "+tries=1", "+time=5", "@127.0.0.1", "any.example", "A"];
    assert_eq!(say(&bed, Location::NODE, &ask), "198.51.100.7");
    drop(server);
    let _next = bed.serve(Location::NODE, Role::Dns, "198.51.100.8", address("127.0.0.1:53")).unwrap();
    assert_eq!(say(&bed, Location::NODE, &ask), "198.51.100.8");
}

#[test]
fn a_neighbour_is_one_link_away() {
    let neighbours = vec![
        Neighbour {
            name: "pod",
            near: vec!["10.1.0.1/24", "2001:db8:1::1/64"],
            far: vec!["10.1.0.2/24", "2001:db8:1::2/64"],
        },
        Neighbour { name: "machine", near: vec!["10.2.0.1/24"], far: vec!["10.2.0.2/24"] },
    ];
    let bed = Bed::lay(&Layout { local: vec!["192.0.2.1/32"], neighbours, ..Layout::default() }).unwrap();
    let _node = bed.serve(Location::NODE, Role::Tcp, "node", address("192.0.2.1:80")).unwrap();
    let _pod = bed.serve(Location::pod("pod"), Role::Tcp, "pod", address("10.1.0.2:80")).unwrap();
    let _pod6 = bed.serve(Location::pod("pod"), Role::Tcp, "pod6", address("[2001:db8:1::2]:80")).unwrap();
    let _far = bed.serve(Location::far("machine"), Role::Tcp, "machine", address("10.2.0.2:80")).unwrap();
    let ask = |location, to: &str| bed.within(location, || tcp_name(address(to))).unwrap();
    assert_eq!(ask(Location::NODE, "10.1.0.2:80"), "pod");
    assert_eq!(ask(Location::NODE, "[2001:db8:1::2]:80"), "pod6");
    assert_eq!(ask(Location::NODE, "10.2.0.2:80"), "machine");
    assert_eq!(ask(Location::pod("pod"), "192.0.2.1:80"), "node");
    assert_eq!(ask(Location::far("machine"), "192.0.2.1:80"), "node");
    let place = |place| say(&bed, place, &["cat", "/proc/self/cgroup"]);
    assert!(
        place(Location::pod("pod")).contains("/node") && place(Location::far("pod")).contains("/outside")
    );
    let unknown = bed.command(Location::far("nobody"), "true").unwrap_err();
    assert_eq!(unknown.to_string(), "the bed has no neighbour nobody");
}

#[test]
fn a_test_runs_again_as_a_process_inside() {
    if Bed::is_inside() {
        let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap();
        assert!(cgroup.contains("/node"), "{cgroup}");
        return;
    }
    let bed = Bed::new().unwrap();
    let name = "bed::a_test_runs_again_as_a_process_inside";
    let said = succeed(bed.rerun(Location::NODE, name).unwrap(), SOON).unwrap();
    assert!(said.contains("1 passed"), "{said}");
}

#[test]
fn a_command_that_takes_too_long_is_killed() {
    let bed = Bed::new().unwrap();
    let mut command = bed.command(Location::NODE, "sh").unwrap();
    command.args(["-c", "echo begun; exec sleep 1000"]);
    let error = finish(command, Duration::from_secs(3)).unwrap_err();
    assert!(matches!(&error, BedError::Late { said, .. } if said == "begun\n"), "{error}");
    let error = succeed(bed.command(Location::NODE, "false").unwrap(), SOON).unwrap_err();
    assert!(matches!(error, BedError::Failed { .. }), "{error}");
}

#[test]
fn a_server_that_cannot_listen_reports_an_error() {
    let bed = Bed::new().unwrap();
    let error = bed.serve(Location::NODE, Role::Tcp, "a", address("198.51.100.1:80")).unwrap_err();
    assert!(matches!(error, BedError::Unexpected { .. }), "{error}");
}

/// A process in the bed that would not end by itself.
fn sleep_inside(bed: &Bed) -> Child {
    let mut command = bed.command(Location::NODE, "sh").unwrap();
    command.args(["-c", "echo here; exec sleep 1000"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "here\n");
    child
}

/// Plays a test that holds a bed with a process in it until it is killed.
fn be_killed(bed: &Bed) {
    let mut sleeper = sleep_inside(bed);
    println!("bed {} {}", bed.cgroup().parent().unwrap().display(), bed.bpffs().display());
    sleeper.wait().unwrap();
}

/// Starts this test again as a victim; returns it, its cgroup and its keeper's process id.
fn victim(test: &str) -> (Child, String, i32) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(VICTIM, "1").stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.map(Result::unwrap).find(|line| line.contains("bed /")).unwrap();
    let words: Vec<&str> = line.split("bed /").nth(1).unwrap().split(' ').collect();
    let keeper = words[1].split('/').nth(2).unwrap().parse().unwrap();
    (child, format!("/{}", words[0]), keeper)
}

#[test]
fn a_killed_test_leaves_nothing() {
    if std::env::var_os(VICTIM).is_some() {
        return be_killed(&Bed::new().unwrap());
    }
    let (mut child, top, keeper) = victim("bed::a_killed_test_leaves_nothing");
    assert!(Path::new(&top).exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_goes_away(Path::new(&top));
    assert_goes_away(Path::new(&format!("/proc/{keeper}")));
}

#[test]
fn the_next_bed_removes_a_killed_keepers_leftovers() {
    if std::env::var_os(VICTIM).is_some() {
        return be_killed(&Bed::new().unwrap());
    }
    let (mut child, top, keeper) = victim("bed::the_next_bed_removes_a_killed_keepers_leftovers");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(keeper), nix::sys::signal::Signal::SIGKILL).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let _next = Bed::new().unwrap();
    assert!(!Path::new(&top).exists());
}
