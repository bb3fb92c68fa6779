//! The test clients themselves, on direct connections, without attached programs.

use std::net::SocketAddr;

use holdfast_tests::bed::clients::{Answer, Client, traced};
use holdfast_tests::bed::{Bed, Layout, Location, Role, Server};

struct ServerBed {
    bed: Bed,
    _servers: Vec<Server>,
}

/// Two servers of each protocol, and closed ports next to them.
fn start_servers() -> ServerBed {
    let local = vec!["192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128"];
    let bed = Bed::lay(&Layout { local, ..Layout::default() }).unwrap();
    let serve = |role, name, address: &str| {
        let address: SocketAddr = address.parse().unwrap();
        bed.serve(Location::NODE, role, name, address).unwrap()
    };
    let servers = vec![
        serve(Role::Tcp, "tcp", "192.0.2.1:80"),
        serve(Role::Tcp, "tcp6", "[2001:db8::1]:80"),
        serve(Role::Udp, "one", "192.0.2.1:53"),
        serve(Role::Udp, "two", "192.0.2.2:53"),
        serve(Role::Udp, "six", "[2001:db8::1]:53"),
    ];
    ServerBed { bed, _servers: servers }
}

/// `call errno peer from reply`, with `-` for what is null.
pub(crate) fn shown(answer: &Answer) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or("-".to_owned());
    let parts = [&answer.errno, &answer.peer, &answer.from, &answer.reply].map(or_dash);
    format!("{} {}", answer.call, parts.join(" "))
}

#[track_caller]
pub(crate) fn check(bed: &Bed, client: &Client, words: &[&str], expected: &[&str]) {
    let answers = client.run(bed, Location::NODE, words).unwrap();
    let lines: Vec<String> = answers.iter().map(shown).collect();
    assert_eq!(lines, expected, "of {words:?}");
}

#[test]
fn the_c_client_shows_each_tcp_call() {
    let (servers, client) = (start_servers(), Client::c().unwrap());
    for (address, shown, reply) in [
        ("192.0.2.1", "192.0.2.1:80", "tcp"),
        ("::ffff:192.0.2.1", "[::ffff:192.0.2.1]:80", "tcp"),
        ("2001:db8::1", "[2001:db8::1]:80", "tcp6"),
    ] {
        let connected = format!("connect - {shown} - -");
        // A stream has no sender address.
        let answered = format!("recvfrom - {shown} - {reply}");
        check(&servers.bed, &client, &["tcp", address, "80"], &[&connected, &answered]);
    }
    check(&servers.bed, &client, &["tcp", "192.0.2.1", "81"], &["connect ECONNREFUSED - - -"]);
    // Over loopback, the handshake completes before connect returns EINPROGRESS.
    check(
        &servers.bed,
        &client,
        &["tcp-nonblocking", "192.0.2.1", "80"],
        &[
            "connect EINPROGRESS 192.0.2.1:80 - -",
            "SO_ERROR - 192.0.2.1:80 - -",
            "recvfrom - 192.0.2.1:80 - tcp",
        ],
    );
    check(
        &servers.bed,
        &client,
        &["tcp-nonblocking", "192.0.2.1", "81"],
        &["connect EINPROGRESS - - -", "SO_ERROR ECONNREFUSED - - -"],
    );
}

#[test]
fn the_c_client_shows_each_udp_call() {
    let (servers, client) = (start_servers(), Client::c().unwrap());
    let one = "192.0.2.1:53";
    check(
        &servers.bed,
        &client,
        &["udp-connected", "192.0.2.1", "53"],
        &[
            &format!("connect - {one} - -"),
            &format!("recvfrom - {one} {one} one"),
            &format!("sendto-connected - {one} {one} one"),
        ],
    );
    let both = ["192.0.2.1", "53", "192.0.2.2", "53"];
    for (mode, call) in [("udp-sendto", "recvfrom"), ("udp-sendmsg", "recvmsg"), ("udp-sendmmsg", "recvmsg")]
    {
        let expected = [format!("{call} - - 192.0.2.1:53 one"), format!("{call} - - 192.0.2.2:53 two")];
        let mut found: Vec<String> = client
            .run(&servers.bed, Location::NODE, &[&[mode], both.as_slice()].concat())
            .unwrap()
            .iter()
            .map(shown)
            .collect();
        // Sent one by one, replies keep the order of the requests; sent at once, they do not.
        if mode == "udp-sendmmsg" {
            found.sort();
        }
        assert_eq!(found, expected, "of {mode}");
    }
    check(
        &servers.bed,
        &client,
        &["udp-sendto", "::ffff:192.0.2.1", "53", "2001:db8::1", "53"],
        &["recvfrom - - [::ffff:192.0.2.1]:53 one", "recvfrom - - [2001:db8::1]:53 six"],
    );
}

#[test]
fn go_client_shows_dial_and_reply() {
    let (servers, client) = (start_servers(), Client::go().unwrap());
    for (network, to, reply) in
        [("tcp", "192.0.2.1:80", "tcp"), ("tcp", "[2001:db8::1]:80", "tcp6"), ("udp", "192.0.2.1:53", "one")]
    {
        let expected = [format!("connect - {to} - -"), format!("read - {to} {to} {reply}")];
        check(&servers.bed, &client, &[network, to], &[&expected[0], &expected[1]]);
    }
    check(&servers.bed, &client, &["tcp", "192.0.2.1:81"], &["connect ECONNREFUSED - - -"]);
}

#[test]
fn strace_shows_the_result_of_curls_connect() {
    let servers = start_servers();
    let lines =
        traced(&servers.bed, Location::NODE, "connect", &["curl", "-s", "http://192.0.2.1:81/"]).unwrap();
    let dialled: Vec<&String> = lines.iter().filter(|line| line.contains("htons(81)")).collect();
    assert_eq!(dialled.len(), 1, "{lines:?}");
    assert!(dialled[0].contains("EINPROGRESS"), "{lines:?}");
}
