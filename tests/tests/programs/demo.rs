//! `make run` and `make try` as root: the demo is a machine of its own, and nothing of it stays.
//!
//! Each test runs the real scripts with the programs of this build, in a bed that stands for a user's machine.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use holdfast_tests::bed::{Bed, Layout, Location, Neighbour, finish, succeed};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Far more than the demo takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// A user's machine: an uplink with a default route, and a firewall.
fn machine() -> Bed {
    let neighbours = vec![Neighbour { name: "up0", near: vec!["192.0.2.9/24"], far: vec!["192.0.2.10/24"] }];
    let bed = Bed::lay(&Layout { neighbours, ..Layout::default() }).unwrap();
    say(
        &bed,
        // Without IPv6 there: its own addresses come a second after the device. Its carrier comes a moment after it.
        "for _ in $(seq 200); do ! ip -o link show up0 | grep -q 'state UP' || break; sleep 0.05; done
        echo 1 >/proc/sys/net/ipv6/conf/up0/disable_ipv6
        ip route add default via 192.0.2.10 && nft add table inet users && ip rule add priority 77 lookup 77",
    );
    bed
}

fn say(bed: &Bed, script: &str) -> String {
    let mut command = bed.command(Location::OUTSIDE, "sh").unwrap();
    command.args(["-c", script]);
    succeed(command, LIMIT).unwrap()
}

/// What the demo may not change, as the machine's own tools list it.
fn observe(bed: &Bed) -> String {
    say(
        bed,
        "ip -d -o link; ip -o address; ip route show table all; ip rule; ip -6 rule; ip neighbour show nud permanent
        for device in $(ls /proc/sys/net/ipv4/conf); do
            tc filter show dev $device ingress; tc filter show dev $device egress
        done 2>/dev/null
        tc qdisc; nft list ruleset; cat /proc/self/mountinfo; ls /sys/fs/bpf; ls /run/netns 2>/dev/null
        grep -r . /proc/sys/net/ipv4 /proc/sys/net/ipv6 /proc/sys/net/core 2>/dev/null | grep -v 'random\\|tcp_fastopen_key'",
    )
}

#[track_caller]
fn check_unchanged(bed: &Bed, before: &str) {
    let now = observe(bed);
    let missing = |lines: &str, other: &str| {
        let is_missing = |line: &&str| !other.lines().any(|it| it == *line);
        lines.lines().filter(is_missing).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!((missing(before, &now), missing(&now, before)), (Vec::new(), Vec::new()), "gone, and new");
}

/// One `make run`, in a process group of its own as in a terminal.
struct Demo<'a> {
    bed: &'a Bed,
    shell: Child,
    lines: Receiver<String>,
    folder: TempDir,
}

impl<'a> Demo<'a> {
    fn start(bed: &'a Bed) -> Self {
        Self::start_in(bed, folder(), &[])
    }

    /// A demo of a user who is not root: a namespace of users maps root to another number.
    fn start_without_root(bed: &'a Bed) -> Self {
        Self::start_in(bed, folder(), &USER)
    }

    /// A demo whose temporary files are in this folder.
    fn start_in(bed: &'a Bed, folder: TempDir, by: &[&str]) -> Self {
        // A background runner makes its children ignore Ctrl-C, and a shell cannot undo that.
        let words = ["env", "--default-signal=INT,HUP,PIPE"].iter().chain(by).chain(&["scripts/run.sh"]);
        let mut command = script(bed, folder.path(), &words.copied().collect::<Vec<_>>());
        let mut shell =
            command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap();
        let (sender, lines) = channel();
        let output = BufReader::new(shell.stdout.take().unwrap());
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { bed, shell, lines, folder }
    }

    /// Waits for a line that begins so, and returns it.
    fn wait_for(&self, beginning: &str) -> String {
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let line =
                self.lines.recv_timeout(left).unwrap_or_else(|error| panic!("no {beginning}: {error}"));
            if line.trim_start().starts_with(beginning) {
                return line;
            }
        }
    }

    fn wait_until_ready(&self) {
        self.wait_for("Ctrl-C ends it");
    }

    /// The folders of demos, running or left.
    fn folders(&self) -> Vec<PathBuf> {
        paths(self.folder.path())
    }

    fn make_try(&self) -> String {
        succeed(script(self.bed, self.folder.path(), &["scripts/try.sh"]), LIMIT).unwrap()
    }

    fn make_try_without_root(&self) -> String {
        let words = [USER.as_slice(), &["scripts/try.sh"]].concat();
        succeed(script(self.bed, self.folder.path(), &words), LIMIT).unwrap()
    }

    /// A command of a user on the demo's node, or at its client.
    fn run(&self, place: &str, words: &str) -> String {
        let folders = self.folders();
        let mut command = self.bed.command(Location::OUTSIDE, folders[0].join(place)).unwrap();
        command.args(["sh", "-c", words]);
        succeed(command, LIMIT).unwrap()
    }

    /// Presses Ctrl-C until the demo has ended, and checks that nothing of it is left.
    fn interrupt(mut self) {
        let folders = self.folders();
        self.signal_until_end(Signal::SIGINT);
        self.check_gone(&folders);
    }

    fn signal_until_end(&mut self, signal: Signal) {
        let group = Pid::from_raw(i32::try_from(self.shell.id()).unwrap());
        let begun = Instant::now();
        while self.shell.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < LIMIT, "the demo does not end");
            // A process that has ended needs no signal.
            let _ = killpg(group, signal);
            sleep(Duration::from_millis(300));
        }
    }

    fn check_gone(&self, folders: &[PathBuf]) {
        assert_eq!(self.folders(), Vec::<PathBuf>::new());
        assert_eq!(cgroups(folders), Vec::<PathBuf>::new());
        self.check_no_process();
    }

    /// Every process of the demo has its folder for temporary files in its environment.
    fn check_no_process(&self) {
        let begun = Instant::now();
        while !processes(self.folder.path()).is_empty() {
            assert!(begun.elapsed() < LIMIT, "these processes are left: {:?}", processes(self.folder.path()));
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Demo<'_> {
    fn drop(&mut self) {
        self.signal_until_end(Signal::SIGTERM);
    }
}

const USER: [&str; 3] = ["unshare", "--user", "--map-user=1000"];

/// A folder for temporary files, with blanks in its name.
fn folder() -> TempDir {
    tempfile::Builder::new().prefix("a demo ").tempdir().unwrap()
}

/// A script of the repository on the bed's machine, with the programs of this build.
fn script(bed: &Bed, temporary: &Path, words: &[&str]) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut command = bed.command(Location::OUTSIDE, words[0]).unwrap();
    command.args(&words[1..]).current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    command.env("TMPDIR", temporary).env("HOLDFAST_PROGRAMS", own.ancestors().nth(2).unwrap());
    command
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The cgroups of these demos that are there.
fn cgroups(folders: &[PathBuf]) -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>()).find(|it| it[2] == "cgroup2");
    let root = root.expect("no cgroup2 is mounted")[1].to_owned();
    let cgroup = |folder: &PathBuf| Path::new(&root).join(folder.file_name().unwrap());
    folders.iter().map(cgroup).filter(|cgroup| cgroup.exists()).collect()
}

/// The processes whose environment names this folder, with their names.
fn processes(folder: &Path) -> Vec<(i32, String)> {
    let all = paths(Path::new("/proc")).into_iter();
    let numbers = all.filter_map(|path| path.file_name()?.to_str()?.parse::<i32>().ok());
    let is_of_demo = |pid: &i32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|it| it.ends_with(folder.as_os_str().as_encoded_bytes()))
    };
    let name = |pid: i32| (pid, fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default());
    numbers.filter(is_of_demo).map(name).collect()
}

fn namespace(pid: &str, kind: &str) -> PathBuf {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap()
}

/// The daemon can attach programs only to devices of its own network, and mount only where nobody else looks.
fn check_daemon_is_apart(demo: &Demo<'_>, machine: &Bed) {
    let shell = say(machine, "readlink /proc/self/ns/net /proc/self/ns/mnt");
    let daemons = processes(demo.folder.path()).into_iter().filter(|(_, name)| name == "holdfast\n");
    let pids: Vec<String> = daemons.map(|(pid, _)| pid.to_string()).collect();
    assert_eq!(pids.len(), 1);
    for kind in ["net", "mnt"] {
        let own = namespace(&pids[0], kind);
        assert!(!shell.contains(own.to_str().unwrap()), "{kind}");
    }
    let attached = demo.run("node", "holdfast -o json datapath");
    let name = demo.folders()[0].file_name().unwrap().to_str().unwrap().to_owned();
    let attached: serde_json::Value = serde_json::from_str(&attached).unwrap();
    let kernel = &attached["kernel"];
    assert!(kernel["cgroup"].as_str().unwrap().ends_with(&name), "{attached}");
    let devices = kernel["packets"]["devices"].as_array().unwrap();
    let mut names: Vec<&str> = devices.iter().filter_map(|device| device["name"].as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["api", "blue", "eth0", "lo", "red"]);
}

#[test]
fn the_demo_changes_nothing_of_its_machine_and_tells_the_incident_twice() {
    let machine = machine();
    let before = observe(&machine);
    let demo = Demo::start(&machine);
    demo.wait_until_ready();
    check_unchanged(&machine, &before);
    check_daemon_is_apart(&demo, &machine);
    let page = say(&machine, "curl --silent --show-error --max-time 60 localhost:9890/frontends");
    assert!(page.contains("10.96.0.80:80/TCP"), "{page}");
    let table = demo.run("node", "holdfast frontends");
    for _ in 0..2 {
        check_story(&demo.make_try());
        check_unchanged(&machine, &before);
        assert_eq!(demo.run("node", "holdfast frontends"), table);
    }
    demo.interrupt();
    check_unchanged(&machine, &before);
}

/// Each part of the story, in its order.
const STORY: [&str; 12] = [
    "client$ curl 192.0.2.80",
    "node$ holdfast backends static/colours",
    "static/colours  -     10.244.2.2:18080/TCP  unused",
    "client$ curl 192.168.0.1:443 10.15.1.8:443\napiserver apiserver\n",
    "192.168.0.1:443/TCP (ClusterIP of default/kubernetes, port https) is held: ",
    "10.15.1.8:443/TCP (LoadBalancer of default/kubernetes-intranet, port https) is served by 169.254.128.7:60002",
    "curl: (7) Failed to connect to 192.0.2.80 port 80",
    "192.0.2.80:80/TCP (LoadBalancer of demo/web, port http) refuses every connection (ECONNREFUSED)",
    "node$ kill -9 ",
    " in all, 0 failed\n",
    "2 of 2 backends fail: 10.244.1.2:18088 refused",
    "The demo is as before.",
];

fn check_story(told: &str) {
    check_parts(told, &STORY);
    let answers = told.lines().nth(2).unwrap();
    assert!(answers.contains("red") && answers.contains("blue"), "{told}");
}

#[track_caller]
fn check_parts(told: &str, parts: &[&str]) {
    let mut rest = told;
    for part in parts {
        let at = rest.find(part).unwrap_or_else(|| panic!("no {part:?} after the part before it:\n{told}"));
        rest = &rest[at + part.len()..];
    }
    assert!(told.lines().count() <= 40, "{told}");
}

#[test]
fn without_root_the_demo_says_what_it_needs_and_shows_its_table() {
    let machine = machine();
    let before = observe(&machine);
    let demo = Demo::start_without_root(&machine);
    demo.wait_for("run: not root, which network namespaces and BPF programs need (sudo make run)");
    demo.wait_until_ready();
    let page = say(&machine, "curl --silent --show-error --max-time 60 localhost:9890/frontends");
    assert!(page.contains("10.96.0.80:80/TCP"), "{page}");
    for _ in 0..2 {
        check_parts(&demo.make_try_without_root(), &STORY_OF_MEMORY);
    }
    check_unchanged(&machine, &before);
    demo.interrupt();
    check_unchanged(&machine, &before);
}

/// Backends are addresses of the loopback there.
const STORY_OF_MEMORY: [&str; 6] = [
    "Without root ",
    "127.244.1.2:18080,127.244.2.2:18080",
    "192.168.0.1:443/TCP (ClusterIP of default/kubernetes, port https) is held: ",
    "192.0.2.80:80/TCP (LoadBalancer of demo/web, port http) refuses every connection (ECONNREFUSED)",
    "2 of 2 backends fail: 127.244.1.2:18088 refused",
    "The demo is as before.",
];

#[test]
fn ctrl_c_at_any_moment_leaves_nothing() {
    let machine = machine();
    let before = observe(&machine);
    for milliseconds in [0, 30, 60, 100, 150, 250, 400, 700, 1_200, 2_000] {
        let demo = Demo::start(&machine);
        sleep(Duration::from_millis(milliseconds));
        demo.interrupt();
    }
    check_unchanged(&machine, &before);
}

#[test]
fn the_end_of_a_terminal_ends_the_demo_also_under_a_story() {
    let machine = machine();
    let mut demo = Demo::start(&machine);
    demo.wait_until_ready();
    let mut story = script(&machine, demo.folder.path(), &["scripts/try.sh"]);
    let mut story = story.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sleep(Duration::from_secs(1));
    let folders = demo.folders();
    demo.signal_until_end(Signal::SIGHUP);
    demo.check_gone(&folders);
    assert!(!story.wait().unwrap().success());
}

#[test]
fn a_killed_shell_leaves_no_process_and_the_next_demo_removes_its_files() {
    let machine = machine();
    let mut killed = Demo::start(&machine);
    killed.wait_until_ready();
    let folders = killed.folders();
    kill(Pid::from_raw(i32::try_from(killed.shell.id()).unwrap()), Signal::SIGKILL).unwrap();
    killed.shell.wait().unwrap();
    killed.check_no_process();
    assert_eq!(killed.folders(), folders);
    let empty = tempfile::tempdir().unwrap();
    let next = Demo::start_in(&machine, std::mem::replace(&mut killed.folder, empty), &[]);
    next.wait_until_ready();
    assert!(!folders[0].exists() && cgroups(&folders).is_empty());
    next.interrupt();
}

#[test]
fn two_demos_run_at_once_with_a_page_each() {
    let machine = machine();
    let first = Demo::start(&machine);
    let page = first.wait_for("open http://localhost:");
    assert!(page.contains("http://localhost:9890/"), "{page}");
    let second = Demo::start(&machine);
    let page = second.wait_for("open http://localhost:");
    assert!(page.contains("http://localhost:9891/"), "{page}");
    let curl = "curl --silent --show-error --fail --max-time 60";
    say(&machine, &format!("{curl} localhost:9890/livez && {curl} localhost:9891/livez"));
    second.wait_until_ready();
    check_story(&second.make_try());
    second.interrupt();
    first.wait_until_ready();
    assert_eq!(first.run("client", "curl --silent --max-time 60 10.15.1.8:443"), "apiserver\n");
    first.interrupt();
}

#[test]
fn a_story_that_is_interrupted_leaves_the_demo_as_it_was() {
    let machine = machine();
    let demo = Demo::start(&machine);
    demo.wait_until_ready();
    let manifests = |demo: &Demo<'_>| {
        let folder = demo.folders()[0].join("manifests");
        ["empty", "incident", "web"]
            .map(|name| fs::read_to_string(folder.join(format!("{name}.yaml"))).unwrap())
    };
    let before = manifests(&demo);
    for milliseconds in [100, 1_500, 3_000, 5_000] {
        let mut story =
            script(&machine, demo.folder.path(), &["env", "--default-signal=INT", "scripts/try.sh"]);
        let mut story = story.process_group(0).stdout(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(milliseconds));
        let _ = killpg(Pid::from_raw(i32::try_from(story.id()).unwrap()), Signal::SIGINT);
        story.wait().unwrap();
        assert_eq!(manifests(&demo), before, "after {milliseconds} ms");
    }
    // What one leaves that is interrupted while it copies the manifests.
    let _ = fs::create_dir(demo.folders()[0].join("before.new"));
    check_story(&demo.make_try());
    demo.interrupt();
}

#[test]
fn make_try_without_a_demo_says_what_to_start() {
    let machine = machine();
    let nowhere = tempfile::tempdir().unwrap();
    let told = finish(script(&machine, nowhere.path(), &["scripts/try.sh"]), LIMIT).unwrap();
    assert!(!told.status.success());
    let told = String::from_utf8(told.stderr).unwrap();
    assert!(told.contains("start `make run` in another terminal"), "{told}");
}
