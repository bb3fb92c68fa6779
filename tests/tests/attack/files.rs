//! Files of another user, unreadable files, and objects that only look like files.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use holdfast_fixtures::clock::wait_until;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, succeed};

use crate::stage::{Bystander, NOBODY, SOON, service};

/// The daemon's sandbox under systemd: root without the capability to read others' files, and with those that it
/// needs.
const SANDBOX: [&str; 3] = ["setpriv", "--bounding-set=-all,+bpf,+net_admin,+perfmon", "--inh-caps=-all"];

/// The exit code and the output of a daemon in the sandbox that must not start.
fn in_vain(daemon: &Daemon<'_>) -> (Option<i32>, String) {
    daemon.start_and_fail(&SANDBOX).unwrap()
}

/// Gives the file to the unprivileged user, and hides it from all others.
fn take_away(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

#[test]
fn an_unreadable_configuration_is_reported() {
    let bed = Bed::new().unwrap();
    let daemon = Daemon::new(&bed, "").unwrap();
    take_away(&daemon.config());
    let (code, said) = in_vain(&daemon);
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("the file may not be read: let the user that holdfast runs as read it"), "{said}");
}

#[test]
fn an_unreadable_manifest_rejects_only_itself() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.write_manifest("closed.yaml", &service("closed", "10.96.0.7", "192.0.2.7")).unwrap();
    take_away(&daemon.manifests().join("closed.yaml"));
    daemon.start_by(&SANDBOX).unwrap();
    let mut bystander = Bystander::arrive(&daemon);
    let services = daemon.tell(&["services"]).unwrap();
    assert!(services.contains("closed.yaml") && !services.contains("10.96.0.7"), "{services}");
    let path = daemon.manifests().join("closed.yaml");
    chown(&path, Some(0), Some(0)).unwrap();
    daemon.write_manifest("closed.yaml", &service("closed", "10.96.0.7", "192.0.2.7")).unwrap();
    wait_until("served", || daemon.tell(&["frontends"]).unwrap().contains("10.96.0.7"));
    bystander.change();
}

#[test]
fn unusable_event_files_are_reported_and_services_are_served() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    let events = daemon.config().with_file_name("events.d");
    fs::create_dir(&events).unwrap();
    fs::write(events.join("closed.toml"), "").unwrap();
    take_away(&events.join("closed.toml"));
    make_fifo(&events.join("pipe.toml"));
    fs::write(events.join("odd.toml"), "\n[[cause]\n").unwrap();
    daemon.start_by(&SANDBOX).unwrap();
    Bystander::arrive(&daemon).change();
    let status = daemon.tell(&["status"]).unwrap();
    for says in ["closed.toml: may not be read", "pipe.toml: is no file", "odd.toml:2: "] {
        assert!(status.contains(says), "{says}: {status}");
    }
    assert!(daemon.logged().contains("left out of the knowledge about Events"), "{}", daemon.logged());
    fs::remove_dir_all(&events).unwrap();
    daemon.tell(&["reload"]).unwrap();
    assert!(!daemon.tell(&["status"]).unwrap().contains("files about Events"));
}

fn make_fifo(path: &Path) {
    let mut command = Command::new("mkfifo");
    command.arg(path);
    succeed(command, SOON).unwrap();
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

#[test]
fn a_fifo_among_manifests_is_reported_and_blocks_nothing() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    make_fifo(&daemon.manifests().join("early.yaml"));
    daemon.write_manifest("swapped.yaml", &service("swapped", "10.96.0.7", "192.0.2.7")).unwrap();
    daemon.start().unwrap();
    let mut bystander = Bystander::arrive(&daemon);
    let is_served = || daemon.tell(&["frontends"]).unwrap().contains("10.96.0.7");
    wait_until("served", is_served);
    let late = daemon.folder().join("late");
    make_fifo(&late);
    fs::rename(&late, daemon.manifests().join("swapped.yaml")).unwrap();
    bystander.check_undelayed();
    let named = || daemon.tell(&["services"]).unwrap();
    wait_until("named", || ["early.yaml", "swapped.yaml"].iter().all(|name| named().contains(name)));
    assert!(is_served(), "what was in a file before stays");
    bystander.change();
}

#[test]
fn an_unreadable_kubeconfig_is_reported_and_other_sources_are_served() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    let kubeconfig = daemon.folder().join("kubeconfig");
    fs::write(&kubeconfig, "apiVersion: v1\nkind: Config\n").unwrap();
    take_away(&kubeconfig);
    let more = format!("[apiserver]\nkubeconfig = {:?}\ndiscover = []\n", kubeconfig.display().to_string());
    daemon.configure(&more).unwrap();
    daemon.launch_by(&SANDBOX).unwrap();
    wait_until("reached", || daemon.status().is_some());
    let is_named = || {
        let told = daemon.tell(&["apiserver"]).unwrap();
        told.contains(&kubeconfig.display().to_string()) && told.contains("may not be read")
    };
    wait_until("named", is_named);
}

#[test]
fn another_users_state_is_reported_and_the_daemon_serves() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    let state = daemon.folder().join("state");
    fs::create_dir_all(state.join("holdfast")).unwrap();
    for path in [state.join("holdfast"), state] {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    daemon.start_by(&SANDBOX).unwrap();
    Bystander::arrive(&daemon).change();
    let told = daemon.logged();
    assert!(told.contains("state/holdfast") && told.contains("Permission denied"), "{told}");
}

#[test]
fn a_foreign_file_at_the_sockets_path_is_reported_and_kept() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    fs::write(daemon.socket(), "nobody was here").unwrap();
    chown(daemon.socket(), Some(NOBODY), Some(NOBODY)).unwrap();
    daemon.launch().unwrap();
    daemon.wait_until(|it| Ok(it.logged().contains("it is not a socket; remove it"))).unwrap();
    assert_eq!(fs::read_to_string(daemon.socket()).unwrap(), "nobody was here");
    fs::remove_file(daemon.socket()).unwrap();
    daemon.wait_until(|it| Ok(it.is_ready())).unwrap();
}
