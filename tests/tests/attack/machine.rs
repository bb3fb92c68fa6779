//! The machine denies the daemon disk space, memory, CPU time, or its cgroup.
//!
//! Another process on the node causes each of these, or a tenant that makes the daemon use its limits.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use holdfast_fixtures::clock::{pause, wait_until};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::limits::Limit;
use holdfast_tests::bed::{Bed, Layout, Location, Role, Server, succeed};

use crate::stage::{Bystander, nobody_dials, service};

const VIP: &str = "10.96.0.10:80";
const BACKEND: &str = "192.0.2.1";

fn bed_with_server() -> (Bed, Server) {
    let bed = Bed::lay(&Layout { local: vec!["192.0.2.1/32"], ..Layout::default() }).unwrap();
    let server = bed.serve(Location::NODE, Role::Tcp, "web", "192.0.2.1:8080".parse().unwrap()).unwrap();
    (bed, server)
}

/// Mounts inside the bed, where no other process sees it.
fn mount(bed: &Bed, words: &[&str]) {
    let mut command = bed.command(Location::NODE, "mount").unwrap();
    command.args(words);
    succeed(command, Duration::from_secs(20)).unwrap();
}

/// A tenant's services, each with this many ports at one address.
fn crowd(services: u16, ports: u16) -> String {
    (0..services).fold(String::new(), |mut text, number| {
        write!(
            text,
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: crowd-{number}, namespace: tenant}}\n\
             spec:\n  clusterIP: 10.98.{}.{}\n  externalIPs: [198.18.0.1]\n  ports:\n",
            number / 250,
            number % 250 + 1
        )
        .unwrap();
        for port in 1..=ports {
            writeln!(text, "  - {{name: p{port}, port: {port}}}").unwrap();
        }
        text
    })
}

#[test]
fn a_full_or_read_only_disk_costs_no_change_and_no_restart() {
    let (bed, _server) = bed_with_server();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    let state = daemon.state();
    fs::create_dir_all(&state).unwrap();
    let place = state.to_str().unwrap();
    mount(&bed, &["-t", "tmpfs", "-o", "size=64k", "none", place]);
    daemon.write_manifest("web.yaml", &service("web", "10.96.0.10", BACKEND)).unwrap();
    daemon.start().unwrap();
    let error_of = |daemon: &Daemon<'_>, what: &str| daemon.status().unwrap()[what]["error"].clone();
    let mut bystander = Bystander::arrive(&daemon);
    daemon.write_manifest("crowd.yaml", &crowd(200, 4)).unwrap();
    wait_until("full", || !error_of(&daemon, "history").is_null());
    bystander.check_undelayed();
    let quiet = bystander.quiet;
    drop(bystander);
    daemon.stop().unwrap();
    mount(&bed, &["-o", "remount,ro", place]);
    daemon.start().unwrap();
    wait_until("served by the next start", || nobody_dials(&bed, VIP) == "web");
    let mut bystander = Bystander::arrive(&daemon);
    bystander.quiet = quiet;
    bystander.check_undelayed();
    mount(&bed, &["-o", "remount,rw,size=16m", place]);
    wait_until("written again", || {
        bystander.change();
        error_of(&daemon, "history").is_null()
    });
    let lines = daemon
        .logged()
        .lines()
        .filter(|line| line.contains("No space") || line.contains("Read-only"))
        .count();
    assert!(lines < 20, "{lines} lines about one disk");
}

#[test]
fn a_daemon_killed_at_its_memory_limit_cuts_no_client_and_restarts() {
    let (bed, _server) = bed_with_server();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.write_manifest("web.yaml", &service("web", "10.96.0.10", BACKEND)).unwrap();
    daemon.start().unwrap();
    wait_until("served", || nobody_dials(&bed, VIP) == "web");
    let quiet = Bystander::arrive(&daemon).quiet;
    let limit = Limit::memory(32 << 20).unwrap();
    limit.take(daemon.pid().unwrap()).unwrap();
    daemon.write_manifest("crowd.yaml", &crowd(1_000, 50)).unwrap();
    wait_until("killed", || !daemon.is_running());
    assert!(limit.kills().unwrap() > 0, "{}", daemon.logged());
    assert_eq!(nobody_dials(&bed, VIP), "web", "the kernel goes on");
    fs::remove_file(daemon.manifests().join("crowd.yaml")).unwrap();
    daemon.start().unwrap();
    assert_eq!(nobody_dials(&bed, VIP), "web");
    let mut bystander = Bystander::arrive(&daemon);
    bystander.quiet = quiet;
    bystander.check_undelayed();
}

#[test]
fn a_twentieth_of_a_processor_serves_a_bystander_during_an_attack() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.start().unwrap();
    let limit = Limit::cpu(5).unwrap();
    limit.take(daemon.pid().unwrap()).unwrap();
    let mut bystander = Bystander::arrive(&daemon);
    daemon.write_manifest("crowd.yaml", &crowd(100, 10)).unwrap();
    bystander.check_undelayed();
    assert!(daemon.is_running(), "{}", daemon.logged());
}

/// The reply that a process in a cgroup gets from an address.
fn dials_in(bed: &Bed, cgroup: &Path, address: &str) -> Option<String> {
    let (ip, port) = address.split_once(':').unwrap();
    let mut command = bed.command_in(cgroup, "timeout");
    let script = format!("exec 3<>/dev/tcp/{ip}/{port} && echo ? >&3 && read -r line <&3 && echo $line");
    command.args(["2", "bash", "-c", &script]);
    succeed(command, Duration::from_secs(20)).ok().map(|said| said.trim().to_owned())
}

#[test]
fn a_removed_cgroup_is_reported_and_served_again_once_recreated() {
    let (bed, _server) = bed_with_server();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    let served = bed.child_cgroup("served").unwrap();
    let text = fs::read_to_string(daemon.config()).unwrap();
    let path = |path: &Path| format!("cgroup = {:?}", path.display().to_string());
    let replaced = text.replace(&path(bed.cgroup()), &path(&served));
    assert_ne!(text, replaced);
    fs::write(daemon.config(), replaced).unwrap();
    daemon.write_manifest("web.yaml", &service("web", "10.96.0.10", BACKEND)).unwrap();
    daemon.start().unwrap();
    let gets = || dials_in(&bed, &served, VIP);
    wait_until("served", || gets().as_deref() == Some("web"));
    wait_until("removed", || fs::remove_dir(&served).is_ok());
    let datapath = || daemon.tell(&["datapath"]).unwrap();
    wait_until("named", || datapath().contains(served.to_str().unwrap()) && datapath().contains("connect4"));
    let said = || daemon.logged().lines().filter(|line| line.contains("WARN")).count();
    let before = said();
    // The daemon looks for it each second.
    pause(Duration::from_secs(5));
    assert!(said() <= before + 1, "said once, not each second: {}", daemon.logged());
    bed.child_cgroup("served").unwrap();
    wait_until("served again", || gets().as_deref() == Some("web"));
    assert!(daemon.is_ready(), "{}", daemon.logged());
}
