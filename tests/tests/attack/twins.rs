//! Two daemons that compete for one resource: the second reports what it lacks and ends if it must, and the first goes
//! on undisturbed.

use std::fs;

use holdfast_tests::bed::Bed;
use holdfast_tests::bed::daemon::Daemon;

use crate::stage::Bystander;

#[test]
fn a_second_daemon_waits_for_a_taken_port_and_serves() {
    let bed = Bed::new().unwrap();
    let mut first = Daemon::new(&bed, "").unwrap();
    first.start().unwrap();
    let mut bystander = Bystander::arrive(&first);
    let mut second = Daemon::new(&bed, "").unwrap();
    second.move_pins("second", "").unwrap();
    second.launch().unwrap();
    let said = "cannot listen on 127.0.0.1:9890: another process does";
    second.wait_until(|second| Ok(second.logged().contains(said) && second.status().is_some())).unwrap();
    bystander.change();
    assert!(first.is_ready());
    second.stop().unwrap();
    bystander.change();
}

#[test]
fn a_second_daemon_on_the_same_state_ends_and_changes_nothing() {
    let bed = Bed::new().unwrap();
    let mut first = Daemon::new(&bed, "").unwrap();
    first.start().unwrap();
    let mut bystander = Bystander::arrive(&first);
    let second = Daemon::new(&bed, "").unwrap();
    let state = first.folder().join("state/holdfast");
    let config = fs::read_to_string(second.config()).unwrap();
    let own = second.folder().join("state/holdfast").display().to_string();
    assert!(config.contains(&own), "{config}");
    let config = config
        .replace(&own, &state.display().to_string())
        .replace("/sys/fs/bpf/holdfast", "/sys/fs/bpf/second");
    fs::write(second.config(), config.replace("[admin]\n", "[admin]\nlisten = \"127.0.0.1:9891\"\n"))
        .unwrap();
    let (code, said) = second.start_and_fail(&[]).unwrap();
    assert_eq!(code, Some(75), "another try may find it free: {said}");
    assert!(
        said.contains(&format!("holdfast: another holdfast runs with the state in {}", state.display())),
        "{said}"
    );
    bystander.change();
    first.stop().unwrap();
    first.start().unwrap();
    assert!(first.tell(&["history", "default/bystander"]).unwrap().contains("bystander"));
}

#[test]
fn a_new_daemon_waits_for_the_end_of_a_killed_one() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.start().unwrap();
    daemon.kill().unwrap();
    daemon.start().unwrap();
    Bystander::arrive(&daemon);
}
