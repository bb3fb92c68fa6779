//! Whether the daemon may be restarted while the disk is full: what `holdfast status` says, and what happens then.
//!
//! Invariant: status calls a restart safe only if no client notices it, and names what is lost.

use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Location, Tally};

use super::cases::{DISK, MORE};
use super::setup::{self, Datapath, Held, Stage};

const SOON: Duration = Duration::from_secs(30);

const VIP: &str = "10.96.0.12:80";

/// The daemon on the kernel's datapath, with a full disk and a service that the disk lacks.
fn fill_disk<'a>(stage: &'a Stage) -> (Daemon<'a>, Held) {
    let mut daemon = stage.daemon(&DISK, Datapath::Kernel);
    let held = stage.bring_about(&DISK, &mut daemon, Datapath::Kernel);
    wait_for_status(&daemon, &["takes no write since", "1 serving"]);
    (daemon, held)
}

#[track_caller]
fn wait_for_status(daemon: &Daemon<'_>, words: &[&str]) -> String {
    let until = Instant::now() + SOON;
    loop {
        let (_, said) = setup::answer(daemon, &["status"]);
        if words.iter().all(|it| said.contains(it)) {
            return said;
        }
        assert!(Instant::now() < until, "{words:?}\n{said}\n{}", daemon.logged());
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn dial_once(stage: &Stage) -> Outcome {
    let question = Question::new(Transport::Tcp, VIP.parse().unwrap());
    stage.bed().asker(Location::NODE).unwrap().ask_all(&[question]).unwrap().remove(0)
}

#[test]
fn kernel_a_restart_with_a_full_disk_loses_what_status_names_and_no_client() {
    let stage = Stage::new();
    let (mut daemon, _held) = fill_disk(&stage);
    setup::answer(&daemon, &["drain", "10.1.0.2"]);
    let said = wait_for_status(&daemon, &["It loses the drain of 10.1.0.2, "]);
    assert!(said.contains("a restart is safe for clients: the kernel serves meanwhile"), "{said}");
    let mut dialer = stage.bed().dial(Location::NODE, VIP.parse().unwrap()).unwrap();
    daemon.stop().unwrap();
    daemon.start().unwrap();
    wait_for_status(&daemon, &["1 serving"]);
    let Tally { connected, failed } = dialer.tally().unwrap();
    assert!(connected > 0 && failed.is_empty(), "{connected} {failed:?}");
    assert_eq!(setup::answer(&daemon, &["drain"]).1, "nothing is drained\n");
    daemon.stop().unwrap();
}

/// Two orders that cancel each other leave the disk as it is.
#[test]
fn memory_a_drain_that_was_taken_back_is_no_loss() {
    let stage = Stage::new();
    let mut daemon = stage.daemon(&DISK, Datapath::Memory);
    let _held = stage.bring_about(&DISK, &mut daemon, Datapath::Memory);
    let order = |words: &[&str]| setup::answer(&daemon, words);
    assert_eq!(order(&["drain", "10.1.0.2"]).0, Some(1));
    let (exit, said) = order(&["undrain", "10.1.0.2"]);
    assert!(exit == Some(0) && !said.contains("not on disk"), "{said}");
    let said = wait_for_status(&daemon, &["takes no write since"]);
    assert!(!said.contains("orders to drain"), "{said}");
    daemon.stop().unwrap();
}

#[test]
fn kernel_status_warns_of_a_restart_that_would_refuse_clients_of_a_held_list() {
    let stage = Stage::new();
    let (mut daemon, _held) = fill_disk(&stage);
    let service = MORE.split("---").next().unwrap();
    daemon.write_manifest("more.yaml", service).unwrap();
    wait_for_status(&daemon, &["a restart is not safe: it may refuse the clients of shop/more, "]);
    assert!(matches!(dial_once(&stage), Outcome::Answered { .. }));
    daemon.stop().unwrap();
    daemon.start().unwrap();
    wait_for_status(&daemon, &["1 refusing"]);
    assert_eq!(dial_once(&stage), Outcome::Refused);
    daemon.stop().unwrap();
}
