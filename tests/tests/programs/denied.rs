//! Refused clients: the result of each call, and which clients are recorded.

use std::process::Stdio;

use holdfast_core::op::WordFlags;
use holdfast_datapath::Denial;
use holdfast_tests::bed::clients::{Client, traced};
use holdfast_tests::bed::{Bed, Location};

use crate::clients::check;
use crate::facts::observe;
use crate::node::{Node, Port, UDP};

/// Frontends with empty lists, for TCP and UDP: two addresses that refuse, one of each family, and one that drops.
pub(crate) fn node() -> Node {
    let mut node = Node::start();
    for (index, port, frontend, flags) in [
        (1, Port::TCP, "10.96.0.20:80", WordFlags::default()),
        (2, UDP, "10.96.0.20:80", WordFlags::default()),
        (3, Port::TCP, "10.96.0.21:80", WordFlags::DROP),
        (4, UDP, "10.96.0.21:80", WordFlags::DROP),
        (5, Port::TCP, "[fd00::20]:80", WordFlags::default()),
        (6, UDP, "[fd00::20]:80", WordFlags::default()),
    ] {
        Port { index, frontends: &[frontend], flags, ..port }.serve(&mut node.maps);
    }
    node
}

#[test]
fn kernel_c_client_gets_the_refusal_from_each_call() {
    let (node, client) = (node(), Client::c().unwrap());
    for (address, closed, errno) in [
        ("10.96.0.20", "127.0.0.1:1", "ECONNREFUSED"),
        ("::ffff:10.96.0.20", "[::ffff:127.0.0.1]:1", "ECONNREFUSED"),
        ("fd00::20", "[::1]:1", "ECONNREFUSED"),
        ("10.96.0.21", "127.0.0.1:1", "ETIMEDOUT"),
    ] {
        if node.sets_errno() {
            check_told(&node.bed, &client, address, errno);
        } else {
            check_led_away(&node.bed, &client, address, closed);
        }
    }
}

/// If a program sets the errno of its refusal, every call fails at once with it.
#[track_caller]
fn check_told(bed: &Bed, client: &Client, address: &str, errno: &str) {
    for (mode, call) in [
        ("tcp", "connect"),
        ("tcp-nonblocking", "connect"),
        ("udp-connected", "connect"),
        ("udp-sendto", "sendto"),
        ("udp-sendmsg", "sendmsg"),
        ("udp-sendmmsg", "sendmmsg"),
    ] {
        check(bed, client, &[mode, address, "80"], &[&format!("{call} {errno} - - -")]);
    }
}

/// Otherwise the program redirects the client to a closed port, and a connected socket gets its kernel's error.
#[track_caller]
fn check_led_away(bed: &Bed, client: &Client, address: &str, closed: &str) {
    check(bed, client, &["tcp", address, "80"], &["connect ECONNREFUSED - - -"]);
    let later = ["connect EINPROGRESS - - -", "SO_ERROR ECONNREFUSED - - -"];
    check(bed, client, &["tcp-nonblocking", address, "80"], &later);
    let connected = format!("connect - {closed} - -");
    let answers = ["recvfrom", "sendto-connected"].map(|call| format!("{call} ECONNREFUSED {closed} - -"));
    check(bed, client, &["udp-connected", address, "80"], &[&connected, &answers[0], &answers[1]]);
    check(bed, client, &["udp-sendto", address, "80"], &["recvfrom EAGAIN - - -"]);
}

#[test]
fn kernel_go_client_gets_the_refusal() {
    let (node, client) = (node(), Client::go().unwrap());
    check(&node.bed, &client, &["tcp", "10.96.0.20:80"], &["connect ECONNREFUSED - - -"]);
    check(&node.bed, &client, &["tcp", "[fd00::20]:80"], &["connect ECONNREFUSED - - -"]);
    if node.sets_errno() {
        check(&node.bed, &client, &["udp", "10.96.0.20:80"], &["connect ECONNREFUSED - - -"]);
        check(&node.bed, &client, &["tcp", "10.96.0.21:80"], &["connect ETIMEDOUT - - -"]);
    }
}

/// The strace line of the call that dials a frontend.
#[track_caller]
fn traced_connect(bed: &Bed, address: &str, words: &[&str]) -> String {
    let lines = traced(bed, Location::NODE, "connect", words).unwrap();
    let dials = |line: &&String| line.contains(&format!("\"{address}\""));
    lines.iter().find(dials).unwrap_or_else(|| panic!("nobody dialled {address}: {lines:?}")).clone()
}

#[test]
fn kernel_strace_of_curl_shows_the_refusal() {
    let node = node();
    let curl = |address| {
        let url = format!("http://{address}/");
        traced_connect(&node.bed, address, &["curl", "-s", "--max-time", "10", &url])
    };
    // Curl does not wait: the closed port answers it later.
    let (refused, dropped) = match node.sets_errno() {
        true => ("= -1 ECONNREFUSED (Connection refused)", "= -1 ETIMEDOUT (Connection timed out)"),
        false => {
            ("= -1 EINPROGRESS (Operation now in progress)", "= -1 EINPROGRESS (Operation now in progress)")
        }
    };
    for (address, expected) in [("10.96.0.20", refused), ("10.96.0.21", dropped)] {
        let line = curl(address);
        assert!(line.contains("htons(80)") && line.ends_with(expected), "{line}");
    }
}

#[test]
fn kernel_strace_of_the_c_client_shows_the_refusal() {
    let (node, client) = (node(), Client::c().unwrap());
    let program = client.program().to_str().unwrap();
    let dropped = if node.sets_errno() { "ETIMEDOUT" } else { "ECONNREFUSED" };
    for (address, errno) in
        [("10.96.0.20", "ECONNREFUSED"), ("fd00::20", "ECONNREFUSED"), ("10.96.0.21", dropped)]
    {
        let line = traced_connect(&node.bed, address, &[program, "tcp", address, "80"]);
        assert!(line.contains(&format!(") = -1 {errno} (")), "{line}");
    }
}

#[test]
fn kernel_a_refused_curl_is_recorded_with_its_dialled_address() {
    let node = node();
    let mut dialled = Vec::new();
    for (address, denial) in [("10.96.0.20", Denial::Refused), ("10.96.0.21", Denial::Dropped)] {
        let mut command = node.bed.command(Location::NODE, "curl").unwrap();
        command.args(["-s", "--max-time", "10", &format!("http://{address}/")]).stdout(Stdio::null());
        let mut curl = command.spawn().unwrap();
        dialled.push((curl.id(), "curl".to_owned(), format!("{address}:80/TCP"), denial));
        let code = curl.wait().unwrap().code().unwrap();
        // 7: could not connect; 28: it timed out.
        assert!([7, 28].contains(&code), "curl ended with {code}");
    }
    let told = node.refusals(dialled.len()).into_iter();
    let told: Vec<_> = told.map(|it| (it.process, it.comm, it.frontend.to_string(), it.denial)).collect();
    assert_eq!(told, dialled);
    observe("refusals name process and frontend (ring buffer)", "yes");
}
