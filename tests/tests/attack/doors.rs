//! The rights of an unprivileged process at the daemon's listeners.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use holdfast_fixtures::clock::wait_until;
use holdfast_tests::bed::crowd::{ApiClients, Question};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::fake::{Kind, RequestFilter};

use crate::stage::{Apiserver, Bystander, NOBODY, TCP, nobody_asks};

fn statuses(crowd: &mut ApiClients) -> BTreeMap<u16, u64> {
    let answers = crowd.answers().unwrap();
    assert_eq!(answers.failed, BTreeMap::new());
    answers.by_status
}

/// Waits until the crowd gets answers.
fn at_it(crowd: &mut ApiClients, status: u16) {
    wait_until("at it", || statuses(crowd).contains_key(&status));
}

/// Waits until the crowd has got this many more answers.
fn await_answers(crowd: &mut ApiClients, count: u64) {
    let mut answers = 0;
    wait_until("answered", || {
        answers += statuses(crowd).values().sum::<u64>();
        answers >= count
    });
}

#[test]
fn unprivileged_verify_requests_delay_no_change() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.start().unwrap();
    let mut bystander = Bystander::arrive(&daemon);
    let mut crowd = nobody_asks(&bed, 40, "/verify");
    at_it(&mut crowd, 200);
    bystander.check_undelayed();
    let answered = statuses(&mut crowd);
    assert!(answered.keys().all(|status| matches!(status, 200 | 503)), "{answered:?}");
    assert!(daemon.is_ready());
}

/// How many log lines are not about the bystander's changes.
fn lines_of_others(daemon: &Daemon<'_>) -> usize {
    daemon.logged().lines().filter(|line| !line.contains("service=default/bystander")).count()
}

#[test]
fn unprivileged_diagnose_requests_delay_no_change_and_fill_no_log() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.start().unwrap();
    let mut bystander = Bystander::arrive(&daemon);
    let mut crowd = nobody_asks(&bed, 40, "/diagnose?service=default/bystander");
    at_it(&mut crowd, 200);
    bystander.check_undelayed();
    let answered = statuses(&mut crowd);
    let lines = lines_of_others(&daemon);
    await_answers(&mut crowd, 500);
    assert_eq!(lines_of_others(&daemon), lines, "a question is no news");
    assert!(answered.keys().all(|status| matches!(status, 200 | 503)), "{answered:?}");
    assert!(answered.contains_key(&503), "no bound was met: {answered:?}");
    assert!(daemon.tell(&["diagnose", "default/bystander"]).unwrap().contains("default/bystander"));
    assert!(daemon.is_ready());
}

/// How many answers share a comparison at least. It is shared for ten seconds, and there are hundreds in a second.
const ANSWERS_PER_COMPARISON: u64 = 10;

const ANSWERS: u64 = 200;

/// How many audits and how many lists the apiserver answered.
fn compared(apiserver: &Apiserver, kind: Kind) -> (u64, u64) {
    (
        apiserver.server.request_count(RequestFilter::audit(kind)),
        apiserver.server.request_count(RequestFilter::list(kind)),
    )
}

#[test]
fn unprivileged_verify_requests_share_one_query_of_the_apiserver() {
    let bed = Bed::new().unwrap();
    let apiserver = Apiserver::start(&bed);
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.configure(&apiserver.configure(&daemon)).unwrap();
    daemon.start().unwrap();
    // The watch misses this change, so that the comparison finds something.
    apiserver.cluster.apply_without_event(Apiserver::slice("10.0.0.2")).unwrap();
    let mut crowd = nobody_asks(&bed, 8, "/verify?format=json");
    at_it(&mut crowd, 200);
    await_answers(&mut crowd, ANSWERS);
    // Slices of ServiceImports have a list of their own.
    for (kind, first) in [(Kind::Services, 1), (Kind::Slices, 2)] {
        let (compared, listed) = compared(&apiserver, kind);
        // A comparison asks twice.
        let most = 2 * ANSWERS / ANSWERS_PER_COMPARISON;
        assert!((1..=most).contains(&compared), "{kind:?}: {compared} for {ANSWERS} answers");
        assert_eq!(listed, first, "{kind:?}: nobody makes a watch list anew");
    }
    assert!(daemon.tell(&["verify"]).unwrap().contains("default/web-1"), "root sees what they see");
    wait_until("listed anew by root's question", || compared(&apiserver, Kind::Slices).1 == 3);
    drop(crowd);
}

#[test]
fn a_full_tcp_listener_leaves_the_socket_to_root() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.start().unwrap();
    let mut watchers = nobody_asks(&bed, 70, "/watch");
    at_it(&mut watchers, 503);
    let mut bystander = Bystander::arrive(&daemon);
    let mut readers = nobody_asks(&bed, 120, "/explain");
    at_it(&mut readers, 503);
    bystander.check_undelayed();
    for words in [&["status"][..], &["explain", "default/bystander"], &["history", "default/bystander"]] {
        let told = daemon.tell(words).unwrap();
        assert!(!told.is_empty() && !told.contains("does not answer now"), "{words:?}: {told}");
    }
    assert!(daemon.is_ready());
}

#[test]
fn an_unprivileged_process_changes_nothing_by_tcp_or_socket() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.start().unwrap();
    let reload = Question { uid: NOBODY, clients: 2, door: TCP, method: "POST", path: "/reload" };
    let mut by_tcp = bed.crowd(Location::NODE, &reload).unwrap();
    at_it(&mut by_tcp, 403);
    // Only the socket's own mode blocks access, not that of the test's folder.
    fs::set_permissions(daemon.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = daemon.socket();
    let by_socket = Question { door: socket.to_str().unwrap(), ..reload };
    let mut by_socket = bed.crowd(Location::NODE, &by_socket).unwrap();
    wait_until("refused", || by_socket.answers().unwrap().failed.keys().any(|errno| errno == "EACCES"));
    let answers = by_socket.answers().unwrap();
    assert_eq!(answers.by_status, BTreeMap::new());
    assert!(!daemon.logged().contains("a client requested a reload"), "{}", daemon.logged());
}

/// A member of the socket's group may read, and may not drain.
#[test]
fn an_unprivileged_process_drains_no_backend_by_tcp_or_open_socket() {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.start().unwrap();
    let path = "/drain?backend=127.0.0.9";
    let order = Question { uid: NOBODY, clients: 2, door: TCP, method: "POST", path };
    at_it(&mut bed.crowd(Location::NODE, &order).unwrap(), 403);
    fs::set_permissions(daemon.folder(), fs::Permissions::from_mode(0o755)).unwrap();
    let socket = daemon.socket();
    let by_socket = Question { door: socket.to_str().unwrap(), ..order };
    let mut shut_out = bed.crowd(Location::NODE, &by_socket).unwrap();
    wait_until("refused", || shut_out.answers().unwrap().failed.keys().any(|errno| errno == "EACCES"));
    drop(shut_out);
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o666)).unwrap();
    at_it(&mut bed.crowd(Location::NODE, &by_socket).unwrap(), 403);
    assert_eq!(daemon.ask(&["drain"]).unwrap()["drains"], serde_json::json!([]));
}
