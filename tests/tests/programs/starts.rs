//! The real daemon where it cannot or must not start, and where it takes over.

use std::fs;
use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use holdfast_core::keys::{FrontendKey, Transport};
use holdfast_core::list::Scope;
use holdfast_core::maps::{Capacity, Maps};
use holdfast_core::op::{Action, FrontendType, FrontendValue, MapGrowth, PortIndex, QuotaId, Word};
use holdfast_datapath::{KernelMaps, PINS_VERSION, ServedSockets, StaleSockets, StartOptions, cleanup};
use holdfast_host::logging::messages::{READY, TOOK_OVER};
use holdfast_tests::bed::clients::Client;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::deaf::listen_deaf;
use holdfast_tests::bed::load::Kind;
use holdfast_tests::bed::{Bed, Layout, Location, Role, Server, succeed};

/// The ephemeral ports of the bed, so few that each can be a node port.
const PORTS: std::ops::RangeInclusive<u16> = 40_000..=40_063;

const SOON: Duration = Duration::from_secs(120);

fn narrow_ephemeral_ports(bed: &Bed) {
    let mut command = bed.command(Location::OUTSIDE, "sh").unwrap();
    let write = format!("echo {} {} > /proc/sys/net/ipv4/ip_local_port_range", PORTS.start(), PORTS.end());
    command.args(["-c", &write]);
    succeed(command, SOON).unwrap();
}

/// Foreign programs that refuse every loopback port of the self-test.
fn refuse_all(bed: &Bed) -> KernelMaps {
    let options = StartOptions {
        cgroup: Some(bed.cgroup().to_owned()),
        bpffs: bed.bpffs().join("others"),
        capacity: Capacity { slots: 1024, ports: 1024, services: 1 },
        expected: MapGrowth::default(),
        mark: 1,
        stale_sockets: StaleSockets::default(),
        served: ServedSockets::default(),
        packets: None,
    };
    let mut others = KernelMaps::start(&options).unwrap();
    others.execute(&Action::PublishWord(PortIndex(1), Scope::Cluster, Word::EMPTY)).unwrap();
    // A node port is served at the loopback only if that is one of the node's addresses.
    others.execute(&Action::InsertNodeAddress(Ipv4Addr::LOCALHOST.into())).unwrap();
    for port in PORTS {
        let key = FrontendKey {
            address: "0.0.0.0".parse().unwrap(),
            port: port.try_into().unwrap(),
            transport: Transport::Tcp,
        };
        let value =
            FrontendValue { port: PortIndex(1), kind: FrontendType::NodePort, quota: QuotaId::default() };
        others.execute(&Action::InsertFrontend(key, value)).unwrap();
    }
    others
}

const SERVED: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec: {type: ClusterIP, clusterIP: 10.96.0.10, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [192.0.2.1]}]
";

const VIP: &str = "10.96.0.10:80";

fn bed() -> (Bed, Server) {
    let bed = Bed::lay(&Layout { local: vec!["192.0.2.1/32"], ..Layout::default() }).unwrap();
    let backend =
        bed.serve(Location::OUTSIDE, Role::Accept, "backend", "192.0.2.1:8080".parse().unwrap()).unwrap();
    (bed, backend)
}

fn daemon(bed: &Bed) -> Daemon<'_> {
    let daemon = Daemon::new(bed, "").unwrap();
    daemon.write_manifest("web.yaml", SERVED).unwrap();
    daemon
}

/// Whether a client of the node is served.
fn is_served(bed: &Bed) -> bool {
    let mut load = bed.load(Location::NODE, Kind::Connect, VIP.parse().unwrap()).unwrap();
    load.turn(Duration::from_millis(50)).is_ok_and(|turn| turn.count > 0)
}

#[track_caller]
fn check_in_vain(daemon: &Daemon<'_>, wrapper: &[&str], expected: &str) {
    check_ends(daemon, wrapper, (1, expected));
}

/// The host lacks what the daemon needs; it exits with 69, so that systemd does not restart it again and again.
#[track_caller]
fn check_lacking(daemon: &Daemon<'_>, wrapper: &[&str], expected: &str) {
    check_ends(daemon, wrapper, (69, expected));
}

#[track_caller]
fn check_ends(daemon: &Daemon<'_>, wrapper: &[&str], (code, expected): (i32, &str)) {
    let (found, said) = daemon.start_and_fail(wrapper).unwrap();
    assert!(said.contains(&format!("holdfast: {expected}")), "{said}");
    assert_eq!(found, Some(code), "{said}");
    assert!(!daemon.is_ready());
}

fn not_translated(bed: &Bed) -> String {
    let cgroup = bed.cgroup().display();
    format!(
        "the datapath failed its self-test: a client in {cgroup} is not translated; another program may decide before ours"
    )
}

#[test]
fn a_first_start_whose_self_test_fails_ends_and_leaves_nothing() {
    let (bed, _backend) = bed();
    narrow_ephemeral_ports(&bed);
    let others = bed.within(Location::NODE, || refuse_all(&bed)).unwrap();
    let daemon = daemon(&bed);
    check_in_vain(&daemon, &[], &not_translated(&bed));
    assert!(!daemon.pins().exists());
    assert_eq!(others.status().shared_hooks, [], "nothing but the others' programs is attached");
}

#[test]
fn a_restart_whose_self_test_fails_ends_and_leaves_clients_served() {
    let (bed, _backend) = bed();
    let mut daemon = daemon(&bed);
    daemon.start().unwrap();
    daemon.kill().unwrap();
    narrow_ephemeral_ports(&bed);
    let others = bed.within(Location::NODE, || refuse_all(&bed)).unwrap();
    check_in_vain(&daemon, &[], &not_translated(&bed));
    assert_eq!(others.status().shared_hooks.len(), 8, "what was there is there");
    drop(others);
    assert!(cleanup(&bed.bpffs().join("others")).unwrap().errors.is_empty());
    assert!(is_served(&bed));
    daemon.start().unwrap();
    assert!(is_served(&bed));
}

#[test]
fn a_second_daemon_on_the_same_pins_ends_and_cuts_no_client() {
    let (bed, _backend) = bed();
    let (mut first, second) = (daemon(&bed), daemon(&bed));
    first.start().unwrap();
    let begun = Instant::now();
    check_ends(
        &second,
        &[],
        (75, "another holdfast runs with the pins in /sys/fs/bpf/holdfast; stop it first (it is process "),
    );
    assert!(begun.elapsed() >= Duration::from_secs(10), "the first may have been about to end");
    assert!(first.is_ready() && is_served(&bed));
}

#[test]
fn a_start_waits_for_the_daemon_that_holds_the_pins() {
    let (bed, _backend) = bed();
    let (mut first, mut second) = (daemon(&bed), daemon(&bed));
    first.start().unwrap();
    second.launch().unwrap();
    second.wait_until(|it| Ok(it.logged().contains("waiting for it to end"))).unwrap();
    first.kill().unwrap();
    second.wait_until(|it| Ok(it.is_ready())).unwrap();
    assert!(is_served(&bed));
}

const STATIC: &str =
    "[[service]]\nname = \"one\"\nfrontends = [\"10.96.0.30:80\"]\nbackends = [\"192.0.2.1:8080\"]\n";

fn names(daemon: &Daemon<'_>) -> Vec<String> {
    let answer = daemon.ask(&["frontends"]).unwrap_or_default();
    let rows = answer["frontends"].as_array().into_iter().flatten();
    rows.filter_map(|row| row["service"].as_str().map(str::to_owned)).collect()
}

/// A missing folder of manifests, half a kubeconfig, and a state folder that does not exist yet.
#[test]
fn a_missing_folder_or_half_kubeconfig_delays_no_other_source() {
    let (bed, _backend) = bed();
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    fs::write(&kubeconfig, "apiVersion: v1\nkind: Config\nclusters: [{name: a, clu").unwrap();
    let mut daemon =
        Daemon::new(&bed, &format!("{STATIC}[apiserver]\nkubeconfig = {:?}\n", kubeconfig.display()))
            .unwrap();
    let manifests = daemon.manifests();
    fs::remove_dir(&manifests).unwrap();
    daemon.launch().unwrap();
    daemon.wait_until(|it| Ok(names(it) == ["static/one"])).unwrap();
    assert!(!daemon.is_ready(), "not all that clients may count on");
    let (rejected, end) = (|| daemon.ask(&["services"]).unwrap().to_string(), Instant::now() + SOON);
    while !rejected().contains("the folder cannot be read") {
        assert!(Instant::now() < end, "{}", rejected());
        sleep(Duration::from_millis(50));
    }
    fs::create_dir(&manifests).unwrap();
    daemon.write_manifest("web.yaml", SERVED).unwrap();
    daemon.wait_until(|it| Ok(names(it) == ["default/web", "static/one"])).unwrap();
    assert!(is_served(&bed));
}

/// Another program owns the folder, and may never create it.
#[test]
fn a_missing_manifests_folder_delays_no_static_service() {
    let (bed, _backend) = bed();
    let folder = tempfile::tempdir().unwrap();
    let services = folder.path().join("services.d");
    let config = format!("{}[services]\npath = {services:?}\n", STATIC.replace("10.96.0.30", "10.96.0.10"));
    let mut daemon = Daemon::new(&bed, &config).unwrap();
    daemon.launch().unwrap();
    daemon.wait_until(|it| Ok(names(it) == ["static/one"])).unwrap();
    assert!(is_served(&bed));
    daemon.wait_until(|it| Ok(it.state().join("snapshot").exists())).unwrap();
    fs::create_dir(&services).unwrap();
    let two = STATIC.replace("one", "two").replace("10.96.0.30", "10.96.0.31");
    fs::write(services.join("two.toml"), two).unwrap();
    daemon.wait_until(|it| Ok(names(it) == ["static/one", "static/two"])).unwrap();
    daemon.wait_until(|it| Ok(it.is_ready())).unwrap();
    assert!(is_served(&bed));
}

/// The state is lost or of another version, and the manifests' folder never appears.
#[test]
fn a_takeover_waits_for_no_folder_for_ever() {
    let (bed, _backend) = bed();
    let mut daemon = Daemon::new(&bed, STATIC).unwrap();
    daemon.start().unwrap();
    daemon.kill().unwrap();
    fs::remove_dir(daemon.manifests()).unwrap();
    fs::remove_dir_all(daemon.state()).unwrap();
    fs::remove_dir_all(daemon.pins().join(format!("v{PINS_VERSION}/g1"))).unwrap();
    let begun = Instant::now();
    daemon.launch().unwrap();
    daemon.wait_until(|it| Ok(it.logged().contains(TOOK_OVER.text))).unwrap();
    assert!(begun.elapsed() > Duration::from_secs(50), "what the folder may have is served for a while");
}

#[test]
fn a_daemon_without_privileges_ends_and_lists_them() {
    let (bed, _backend) = bed();
    let missing =
        "loading programs is not permitted; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON";
    check_lacking(&daemon(&bed), &["setpriv", "--bounding-set=-all", "--inh-caps=-all"], missing);
}

#[test]
fn a_host_that_refuses_programs_ends_the_daemon_and_cuts_no_client() {
    let (bed, _backend) = bed();
    let mut daemon = daemon(&bed);
    daemon.start().unwrap();
    daemon.kill().unwrap();
    let refusing = Client::refusing().unwrap();
    let refusing = refusing.program().to_str().unwrap();
    for (errno, expected) in [
        // The errors of a locked-down kernel, and of a verifier that rejects the program.
        (
            "EPERM",
            "loading programs is not permitted; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON",
        ),
        (
            "EACCES",
            "the kernel does not load the programs; Linux 5.10 or newer with CONFIG_CGROUP_BPF is needed: ",
        ),
    ] {
        check_lacking(&daemon, &[refusing, errno], expected);
        assert!(is_served(&bed), "{errno}");
    }
    daemon.start().unwrap();
    assert!(is_served(&bed));
}

#[test]
fn little_locked_memory_is_enough() {
    let (bed, _backend) = bed();
    let mut daemon = daemon(&bed);
    daemon.start_by(&["prlimit", "--memlock=65536:65536"]).unwrap();
    assert!(is_served(&bed));
}

#[test]
fn the_open_file_limit_is_raised_to_its_hard_limit() {
    let (bed, _backend) = bed();
    let mut daemon = daemon(&bed);
    daemon.start_by(&["prlimit", "--nofile=1024:"]).unwrap();
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.pid().unwrap())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let [soft, hard] = [3, 4].map(|at| files.split_whitespace().nth(at).unwrap());
    // The daemon may raise its limit as far as its parent allows.
    let allowed = hard.parse().unwrap_or(24_576_u64).min(24_576);
    assert_eq!(soft, allowed.to_string());
    assert_ne!(soft, "1024");
}

#[test]
fn former_programs_serve_until_the_new_maps_are_filled() {
    let (bed, _backend) = bed();
    let mut daemon = daemon(&bed);
    daemon.start().unwrap();
    let mut load = bed.load(Location::NODE, Kind::Connect, VIP.parse().unwrap()).unwrap();
    daemon.kill().unwrap();
    fs::remove_dir_all(daemon.pins().join(format!("v{PINS_VERSION}/g1"))).unwrap();
    let turn = std::thread::scope(|scope| {
        let turn = scope.spawn(|| load.turn(Duration::from_secs(4)));
        daemon.start().unwrap();
        turn.join().unwrap()
    });
    assert!(turn.unwrap().count > 100);
    assert!(daemon.logged().contains(TOOK_OVER.text), "{}", daemon.logged());
    assert!(daemon.pins().join(format!("v{PINS_VERSION}/g1/frontends4")).exists());
}

/// The first call of a process in a trace: its line, and the process id.
#[track_caller]
fn first(trace: &str, call: &str) -> (usize, i32) {
    let (location, line) = trace.lines().enumerate().find(|(_, line)| line.contains(call)).unwrap();
    (location, line.split_whitespace().next().unwrap().parse().unwrap())
}

#[test]
fn sigterm_ends_a_daemon_once_it_is_reachable() {
    let (bed, _backend) = bed();
    let mut daemon = daemon(&bed);
    let trace = tempfile::NamedTempFile::new().unwrap();
    let path = trace.path().to_str().unwrap();
    daemon.start_by(&["strace", "-f", "-o", path, "-e", "trace=rt_sigaction,bind"]).unwrap();
    let seen = fs::read_to_string(path).unwrap();
    let (heeds, pid) = first(&seen, "rt_sigaction(SIGTERM, {sa_handler");
    let (answers, _) = first(&seen, "admin.sock");
    assert!(heeds < answers, "{seen}");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGTERM).unwrap();
    let until = Instant::now() + SOON;
    let traced = || fs::read_to_string(path).unwrap();
    // strace pads short process ids.
    let ended = |line: &str| {
        line.split_once(' ')
            .is_some_and(|(who, what)| who == pid.to_string() && what.trim() == "+++ exited with 0 +++")
    };
    while !traced().lines().any(ended) {
        assert!(Instant::now() < until, "{}\n{}", daemon.logged(), traced());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The address does not answer, not even with a refusal, so that a check times out.
const SILENT: &str = "[[service]]\nname = \"silent\"\nfrontends = [\"10.96.0.31:80\"]\nbackends = [\"127.0.0.9:8080\"]\n\
    health_check = { kind = \"tcp\", timeout = \"5s\", interval = \"5s\", fall = 1 }\n";

#[test]
fn ready_does_not_wait_for_health_checks() {
    let (bed, _backend) = bed();
    let _deaf =
        bed.within(Location::NODE, || listen_deaf("127.0.0.9:8080".parse().unwrap())).unwrap().unwrap();
    let mut daemon = Daemon::new(&bed, SILENT).unwrap();
    daemon.launch().unwrap();
    daemon.wait_until(|it| Ok(it.logged().contains("backend unready"))).unwrap();
    let log = daemon.logged();
    let place = |what: &str| log.lines().position(|line| line.contains(what));
    assert!(place(READY.text).is_some_and(|it| Some(it) < place("backend unready")), "{log}");
}
