//! What tests may not change on the machine: devices, addresses, routes, rules, the firewall, settings of the network,
//! and the programs at devices and cgroups.
//!
//! Invariant: it only reads. What a tool would list that this machine lacks is not compared.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::attached::{CGROUP_HOOKS, DEVICE_HOOKS, cgroup_programs, device_programs};
use crate::report::{FailedTest, PartReport};

/// The name of the check in the report.
const TEST: &str = "suite/run/the_machine_is_as_it_was";

/// The kernel removes a namespace and its devices some time after its last process.
const SETTLE: Duration = Duration::from_secs(20);

/// Each list, and the command that prints it.
const LISTS: [(&str, &[&str]); 8] = [
    ("device", &["ip", "-o", "link", "show"]),
    ("address", &["ip", "-o", "address", "show"]),
    ("IPv4 route", &["ip", "-4", "-o", "route", "show", "table", "all"]),
    ("IPv6 route", &["ip", "-6", "-o", "route", "show", "table", "all"]),
    ("IPv4 rule", &["ip", "-4", "rule", "show"]),
    ("IPv6 rule", &["ip", "-6", "rule", "show"]),
    ("queueing", &["tc", "qdisc", "show"]),
    ("nftables", &["nft", "--stateless", "list", "ruleset"]),
];

/// The kernel makes these devices itself when it first loads the module for a kind of device.
const OF_MODULES: [&str; 13] = [
    "tunl0", "gre0", "gretap0", "erspan0", "sit0", "ip6tnl0", "ip6gre0", "ip_vti0", "ip6_vti0", "bond0",
    "dummy0", "ifb0", "ifb1",
];

/// The folders below `/proc/sys/net` whose settings are compared.
const SETTINGS: [&str; 3] = ["core", "ipv4", "ipv6"];

/// The state of the machine at one moment.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// Nothing may be added to these or removed.
    lists: BTreeMap<&'static str, Vec<String>>,
    /// Settings, and the programs of each hook. They may come and go with their device or cgroup.
    values: BTreeMap<String, String>,
}

impl Machine {
    pub(crate) fn observe() -> Self {
        let lists = LISTS.iter().filter_map(|(name, command)| Some((*name, list(command)?)));
        let mut machine = Self { lists: lists.collect(), values: BTreeMap::new() };
        machine.add_filters();
        SETTINGS.iter().for_each(|folder| machine.add_settings(&Path::new("/proc/sys/net").join(folder)));
        machine.add_device_programs();
        for root in cgroup_roots() {
            machine.add_cgroup_programs(&root);
        }
        machine
    }

    /// The filters of the devices that have any.
    fn add_filters(&mut self) {
        let queueing = self.lists.get("queueing").map_or(&[][..], Vec::as_slice);
        let with_filters = queueing.iter().filter(|line| line.starts_with("qdisc clsact"));
        let devices =
            with_filters.filter_map(|line| line.split(' ').skip_while(|word| *word != "dev").nth(1));
        let filters = |device: &str| {
            let show = |side| list(&["tc", "filter", "show", "dev", device, side]);
            let told = |line: String| format!("{device} {line}");
            ["ingress", "egress"].into_iter().filter_map(show).flatten().map(told).collect::<Vec<_>>()
        };
        let filters = devices.flat_map(filters).collect();
        self.lists.insert("filter", filters);
    }

    /// Each setting of a folder, and those of its devices.
    fn add_settings(&mut self, folder: &Path) {
        for path in paths_in(folder) {
            if path.is_dir() && path.iter().any(|name| name == "conf") {
                self.add_settings(&path);
            } else if let Some(value) = setting(&path) {
                self.values.insert(path.display().to_string(), value);
            }
        }
    }

    fn add_device_programs(&mut self) {
        let devices = nix::net::if_::if_nameindex();
        for device in devices.iter().flatten() {
            for (name, hook) in DEVICE_HOOKS {
                let place = format!("programs at {name} of {}", device.name().to_string_lossy());
                self.add_programs(place, device_programs(device.index(), hook));
            }
        }
    }

    fn add_cgroup_programs(&mut self, folder: &Path) {
        let Ok(cgroup) = File::open(folder) else { return };
        for (name, hook) in CGROUP_HOOKS {
            let place = format!("programs at {name} of {}", folder.display());
            self.add_programs(place, cgroup_programs(cgroup.as_fd(), hook));
        }
        let children = paths_in(folder).into_iter().filter(|path| path.is_dir() && !is_of_bed(path));
        children.for_each(|child| self.add_cgroup_programs(&child));
    }

    fn add_programs(&mut self, place: String, programs: Option<Vec<u32>>) {
        if let Some(programs) = programs {
            self.values.insert(place, format!("{programs:?}"));
        }
    }

    /// A line for each difference to an earlier state.
    pub(crate) fn differences(&self, before: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, now) in &self.lists {
            let Some(before) = before.lists.get(name) else { continue };
            let tell = |sign: &str, line: &String| format!("{sign} {name}: {line}");
            lines.extend(missing(before, now).map(|line| tell("-", line)));
            lines.extend(missing(now, before).map(|line| tell("+", line)));
        }
        for (name, now) in &self.values {
            if let Some(before) = before.values.get(name).filter(|before| *before != now) {
                lines.push(format!("{name}: {before} before, {now} now"));
            }
        }
        lines
    }

    /// Compares the machine with its state before a run, and reports that as a test.
    pub(crate) fn check(before: &Self) -> PartReport {
        let begun = Instant::now();
        let mut differences = Self::observe().differences(before);
        while !differences.is_empty() && begun.elapsed() < SETTLE {
            thread::sleep(Duration::from_millis(500));
            differences = Self::observe().differences(before);
        }
        let how = "the machine differs from before the run".to_owned();
        let output = differences.join("\n");
        let failed = (!output.is_empty()).then(|| FailedTest { test: TEST.to_owned(), how, output });
        let (name, wall) = ("afterwards".to_owned(), begun.elapsed());
        let (passed, failed) = (usize::from(failed.is_none()), Vec::from_iter(failed));
        PartReport { name, wall, passed, failed, ..PartReport::default() }
    }
}

/// The lines of one list that another one lacks.
fn missing<'a>(lines: &'a [String], other: &'a [String]) -> impl Iterator<Item = &'a String> {
    lines.iter().filter(|line| !other.contains(line))
}

/// What a command prints, without what counts down and what modules make; `None`: it is not here, or fails.
fn list(command: &[&str]) -> Option<Vec<String>> {
    let (program, arguments) = command.split_first()?;
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output
        .status
        .success()
        .then(|| text.lines().filter(|line| !is_of_module(line)).map(without_times).collect())
}

fn is_of_module(line: &str) -> bool {
    let mut words = line.split([' ', ':', '@']).filter(|word| !word.is_empty()).take(6);
    words.any(|word| OF_MODULES.contains(&word))
}

/// The cgroups of beds, of this run or another one beside it.
fn is_of_bed(cgroup: &Path) -> bool {
    cgroup.file_name().is_some_and(|name| name.to_string_lossy().starts_with("holdfast-"))
}

/// Lifetimes of addresses and routes are printed as `86012sec`.
fn without_times(line: &str) -> String {
    let is_time = |word: &&str| word.strip_suffix("sec").is_some_and(|it| it.parse::<u64>().is_ok());
    line.split_whitespace().filter(|word| !is_time(word)).collect::<Vec<_>>().join(" ")
}

/// The value of a setting that only people change; `None` for others, and those that cannot be read.
fn setting(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let is_of_kernel = name.starts_with("tcp_available") || name == "tcp_fastopen_key";
    if is_of_kernel || !path.is_file() {
        return None;
    }
    fs::read_to_string(path).ok().map(|value| value.trim().to_owned())
}

fn paths_in(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

/// The mount points of the cgroup v2 hierarchy.
pub(crate) fn cgroup_roots() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/thread-self/mountinfo").unwrap_or_default();
    let mounted = mounts.lines().filter(|line| line.contains(" - cgroup2 "));
    mounted.filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Changes a network of its own, and compares it with its state before.
    #[track_caller]
    fn check_found(commands: &[&str], expected: &[&str]) {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests need root");
            run("ip link add kept type veth peer name other");
            let before = Machine::observe();
            // The cgroups are those of the whole machine, where other tests run.
            let differences = || {
                let all = Machine::observe().differences(&before).into_iter();
                all.filter(|line| !line.starts_with("programs at ")).collect::<Vec<_>>()
            };
            assert_eq!(differences(), Vec::<String>::new());
            commands.iter().for_each(|command| run(command));
            differences()
        };
        let found = thread::scope(|scope| scope.spawn(inside).join().unwrap()).join("\n");
        for line in expected {
            assert!(found.contains(line), "{commands:?}: {line}:\n{found}");
        }
        assert_eq!(found.is_empty(), expected.is_empty(), "{commands:?}:\n{found}");
    }

    fn run(command: &str) {
        let status = Command::new("sh").args(["-c", command]).status().unwrap();
        assert!(status.success(), "{command}");
    }

    #[test]
    fn kernel_devices_and_addresses_that_came_or_went_are_found() {
        check_found(&["ip link add new type veth peer name newer"], &["+ device: 5: new@newer:"]);
        check_found(&["ip link del kept"], &["- device: 3: kept@other:"]);
        check_found(&["ip link set kept mtu 1400"], &["- device: 3: kept@other:", "mtu 1400"]);
        check_found(&["ip address add 192.0.2.1/24 dev kept"], &["+ address: 3: kept inet 192.0.2.1/24"]);
        check_found(&["ip link add new type veth peer name newer", "ip link del new"], &[]);
    }

    #[test]
    fn kernel_changed_routes_rules_and_settings_are_found() {
        check_found(
            &["ip link set lo up", "ip route add 192.0.2.0/24 dev lo"],
            &["+ IPv4 route: 192.0.2.0/24"],
        );
        check_found(&["ip rule add priority 77 lookup 7"], &["+ IPv4 rule: 77: from all lookup 7"]);
        check_found(&["ip -6 rule add priority 77 lookup 7"], &["+ IPv6 rule: 77: from all lookup 7"]);
        check_found(&["echo 1 > /proc/sys/net/ipv4/ip_forward"], &["ipv4/ip_forward: 0 before, 1 now"]);
        check_found(
            &["echo 2 > /proc/sys/net/ipv4/conf/kept/rp_filter"],
            &["ipv4/conf/kept/rp_filter: ", " before, 2 now"],
        );
    }

    #[test]
    fn kernel_changed_firewalls_and_queueing_are_found() {
        check_found(&["nft add table ip left"], &["+ nftables: table ip left"]);
        let filter = "tc filter add dev kept ingress bpf bytecode '1,6 0 0 0'";
        check_found(
            &["tc qdisc add dev kept clsact", filter],
            &["+ queueing: qdisc clsact", "+ filter: kept filter"],
        );
    }

    #[test]
    fn a_program_at_a_hook_that_was_there_before_is_found() {
        let machine = |values: &[(&str, &str)]| Machine {
            values: values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..Machine::default()
        };
        let before = machine(&[("connect4 of /", "[]"), ("connect4 of /gone", "[7]")]);
        let after = machine(&[("connect4 of /", "[9]"), ("connect4 of /new", "[9]")]);
        assert_eq!(after.differences(&before), ["connect4 of /: [] before, [9] now"]);
    }

    #[test]
    fn times_devices_of_modules_and_cgroups_of_beds_are_no_difference() {
        assert_eq!(
            without_times("valid_lft 86012sec preferred_lft forever"),
            "valid_lft preferred_lft forever"
        );
        assert!(is_of_module("5: sit0@NONE: <NOARP> mtu 1480"));
        assert!(is_of_module("qdisc noop 0: dev sit0 root"));
        assert!(!is_of_module("2: eth0: <UP> mtu 1500"));
        assert!(is_of_bed(Path::new("/sys/fs/cgroup/holdfast-7-0")));
        assert!(!is_of_bed(Path::new("/sys/fs/cgroup/system.slice/holdfast.service")));
    }
}
