//! The whole daemon with the kernel's datapath: what an operator sees of a refused client.

use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, BedError, Location, Role};
use serde_json::Value;

const NOBODY: &str =
    "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.20:80\"]\nbackends = []\non_empty = \"refuse\"\n";

/// The entry of `holdfast refusals` for a process, if any.
fn refusal_of(daemon: &Daemon<'_>, process: u32) -> Result<Option<Value>, BedError> {
    let answer = daemon.ask(&["refusals"])?;
    let mut rows = answer["refusals"].as_array().into_iter().flatten();
    Ok(rows.find(|row| row["pid"] == process).cloned())
}

#[test]
fn kernel_holdfast_refusals_lists_a_refused_curl() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, NOBODY).unwrap();
    daemon.start().unwrap();
    let mut curl = bed.command(Location::NODE, "curl").unwrap();
    let mut curl = curl.args(["-s", "--max-time", "10", "http://10.96.0.20/"]).spawn().unwrap();
    assert_eq!(curl.wait().unwrap().code(), Some(7), "curl could not connect");
    daemon.wait_until(|it| Ok(refusal_of(it, curl.id())?.is_some())).unwrap();
    let row = refusal_of(&daemon, curl.id()).unwrap().unwrap();
    for (field, expected) in
        [("comm", "curl"), ("address", "10.96.0.20"), ("service", "static/web"), ("verdict", "refused")]
    {
        assert_eq!(row[field], expected, "{field} of {row}");
    }
}

const SOMEBODY: &str =
    "[[service]]\nname = \"some\"\nfrontends = [\"10.96.0.10:80\"]\nbackends = [\"127.0.0.9:8080\"]\n";

fn dial(bed: &Bed, address: &str) {
    let mut curl = bed.command(Location::NODE, "curl").unwrap();
    // The reply does not matter: the connect counts.
    curl.args(["-s", "--max-time", "10", address]).spawn().unwrap().wait().unwrap();
}

/// The clients of a service in `holdfast services` and `holdfast explain`: connected, refused, dropped.
#[track_caller]
fn check_clients(daemon: &Daemon<'_>, service: &str, expected: [u64; 3]) {
    let services = daemon.ask(&["services"]).unwrap();
    let mut rows = services["services"].as_array().unwrap().iter();
    let row = rows.find(|row| row["service"] == service).unwrap();
    let explained = daemon.ask(&["explain", service]).unwrap();
    for clients in [&row["clients"], &explained["services"][0]["frontends"][0]["applied"]["clients"]] {
        let counted = ["connects", "refused", "dropped"].map(|what| clients[what].as_u64().unwrap());
        assert_eq!(counted, expected, "{service}: {clients}");
    }
}

#[test]
fn kernel_client_counts_of_each_service_survive_a_restart() {
    let bed = Bed::new().unwrap();
    let backend = "127.0.0.9:8080".parse().unwrap();
    let _server = bed.serve(Location::OUTSIDE, Role::Accept, "one", backend).unwrap();
    let mut daemon = Daemon::new(&bed, &format!("{NOBODY}{SOMEBODY}")).unwrap();
    daemon.start().unwrap();
    (0..3).for_each(|_| dial(&bed, "10.96.0.10"));
    dial(&bed, "10.96.0.20");
    check_clients(&daemon, "static/some", [3, 0, 0]);
    check_clients(&daemon, "static/web", [0, 1, 0]);
    daemon.kill().unwrap();
    dial(&bed, "10.96.0.10");
    daemon.start().unwrap();
    check_clients(&daemon, "static/some", [4, 0, 0]);
    check_clients(&daemon, "static/web", [0, 1, 0]);
}

/// A thread that the allocator's settings request returns freed memory to the kernel.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
#[test]
fn kernel_the_daemon_runs_its_own_allocator_with_its_own_settings() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, NOBODY).unwrap();
    daemon.start().unwrap();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid().unwrap())).unwrap();
    let names = tasks.map(|it| std::fs::read_to_string(it.unwrap().path().join("comm")).unwrap());
    let names: Vec<_> = names.collect();
    assert!(names.iter().any(|name| name.starts_with("jemalloc")), "{names:?}");
}
