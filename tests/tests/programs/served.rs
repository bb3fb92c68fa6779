//! Real clients through the kernel's datapath: whatever call they use, they see the address that they dialled.

use std::time::Duration;

use holdfast_core::list::Scope;
use holdfast_tests::bed::clients::{Client, LastingClient};
use holdfast_tests::bed::{Bed, Location, Role, succeed};

use crate::clients::{check, shown};
use crate::facts::observe;
use crate::node::{Node, Port, UDP, tells_what_sockets_keep};

/// For commands that take milliseconds; in an emulated kernel a second.
const SOON: Duration = Duration::from_secs(120);

/// Frontends of both families and protocols, each with a backend of its own.
fn node() -> Node {
    let mut node = Node::start();
    for (index, port, role, name, frontend, backend) in [
        (1, Port::TCP, Role::Tcp, "web", "10.96.0.10:80", "192.0.2.1:8080"),
        (2, Port::TCP, Role::Tcp, "web6", "[fd00::10]:80", "[2001:db8::1]:8080"),
        (3, UDP, Role::Udp, "one", "10.96.0.10:53", "192.0.2.1:5353"),
        (4, UDP, Role::Udp, "two", "10.96.0.11:53", "192.0.2.2:5353"),
        (5, UDP, Role::Udp, "six", "[fd00::10]:53", "[2001:db8::1]:5353"),
    ] {
        let backends = [node.server(role, name, backend)];
        Port { index, base: index * 8, frontends: &[frontend], backends: &backends, ..port }
            .serve(&mut node.maps);
    }
    node
}

#[test]
fn kernel_c_client_reaches_tcp_frontends_by_each_call() {
    let (node, client) = (node(), Client::c().unwrap());
    for (address, shown, reply) in [
        ("10.96.0.10", "10.96.0.10:80", "web"),
        ("::ffff:10.96.0.10", "[::ffff:10.96.0.10]:80", "web"),
        ("fd00::10", "[fd00::10]:80", "web6"),
    ] {
        let connected = format!("connect - {shown} - -");
        let answered = format!("recvfrom - {shown} - {reply}");
        check(&node.bed, &client, &["tcp", address, "80"], &[&connected, &answered]);
        let begun = format!("connect EINPROGRESS {shown} - -");
        let connected = format!("SO_ERROR - {shown} - -");
        let expected = [begun.as_str(), &connected, &answered];
        check(&node.bed, &client, &["tcp-nonblocking", address, "80"], &expected);
    }
}

#[test]
fn kernel_c_client_reaches_udp_frontends_by_each_call() {
    let (node, client) = (node(), Client::c().unwrap());
    for (address, from, reply) in [
        ("10.96.0.10", "10.96.0.10:53", "one"),
        ("::ffff:10.96.0.10", "[::ffff:10.96.0.10]:53", "one"),
        ("fd00::10", "[fd00::10]:53", "six"),
    ] {
        let expected = [
            format!("connect - {from} - -"),
            format!("recvfrom - {from} {from} {reply}"),
            format!("sendto-connected - {from} {from} {reply}"),
        ];
        check(
            &node.bed,
            &client,
            &["udp-connected", address, "53"],
            &expected.each_ref().map(String::as_str),
        );
    }
    check_destinations(
        &node.bed,
        &client,
        &["10.96.0.10", "53", "10.96.0.11", "53"],
        &["- - 10.96.0.10:53 one", "- - 10.96.0.11:53 two"],
    );
    check_destinations(
        &node.bed,
        &client,
        &["::ffff:10.96.0.11", "53", "fd00::10", "53"],
        &["- - [::ffff:10.96.0.11]:53 two", "- - [fd00::10]:53 six"],
    );
}

/// Several destinations on one socket, by each call that takes a destination.
#[track_caller]
fn check_destinations(bed: &Bed, client: &Client, destinations: &[&str], expected: &[&str]) {
    for (mode, call) in [("udp-sendto", "recvfrom"), ("udp-sendmsg", "recvmsg"), ("udp-sendmmsg", "recvmsg")]
    {
        let answers = client.run(bed, Location::NODE, &[&[mode], destinations].concat()).unwrap();
        let mut found: Vec<String> = answers.iter().map(shown).collect();
        // Sent at once, replies come in any order.
        found.sort();
        let expected: Vec<String> = expected.iter().map(|row| format!("{call} {row}")).collect();
        assert_eq!(found, expected, "of {mode}");
    }
}

#[test]
fn kernel_go_client_reaches_frontends() {
    let (node, client) = (node(), Client::go().unwrap());
    for (network, to, reply) in [
        ("tcp", "10.96.0.10:80", "web"),
        ("tcp", "[fd00::10]:80", "web6"),
        ("udp", "10.96.0.10:53", "one"),
        ("udp", "[fd00::10]:53", "six"),
    ] {
        let expected = [format!("connect - {to} - -"), format!("read - {to} {to} {reply}")];
        check(&node.bed, &client, &[network, to], &[&expected[0], &expected[1]]);
    }
}

const DNS: &str = "10.96.0.53:53";

/// The address that `dig` gets for a name.
fn dig(node: &Node) -> String {
    let mut command = node.bed.command(Location::NODE, "dig").unwrap();
    command.args(["+short", "+tries=1", "+time=5", "@10.96.0.53", "any.example", "A"]);
    succeed(command, SOON).unwrap().trim().to_owned()
}

#[test]
fn kernel_dig_reaches_a_replaced_dns_server() {
    let mut node = Node::start();
    let mut old = None;
    for step in 0..4_u32 {
        let answer = format!("198.51.100.{step}");
        let server = node.server(Role::Dns, &answer, &format!("192.0.2.1:{}", 5300 + step));
        let port = Port { frontends: &[DNS], backends: &[server], base: step * 8, ..UDP };
        port.serve(&mut node.maps);
        if let Some(old) = old.replace(server) {
            node.kill_server(old);
        }
        assert_eq!(dig(&node), answer, "dig asks the server of now, and takes the answer as the frontend's");
    }
}

/// Lets a lasting client send one request; returns its steps up to the reply.
pub(crate) fn ask(client: &mut LastingClient) -> Vec<String> {
    client.ask().unwrap().iter().map(shown).collect()
}

#[test]
fn kernel_a_long_lived_udp_client_moves_when_its_backend_leaves() {
    if !tells_what_sockets_keep() {
        return;
    }
    let mut node = Node::start();
    let servers =
        [node.server(Role::Udp, "one", "192.0.2.1:5353"), node.server(Role::Udp, "two", "192.0.2.2:5353")];
    let port = Port { frontends: &[DNS], backends: &servers[..1], ..UDP };
    port.serve(&mut node.maps);
    let mut client = LastingClient::start(&node.bed, &["udp-lasting", "10.96.0.53", "53"]).unwrap();
    let first = format!("recvfrom - {DNS} {DNS} one");
    assert_eq!(ask(&mut client), [format!("connect - {DNS} - -"), first.clone()]);
    assert_eq!(ask(&mut client), std::slice::from_ref(&first), "it stays");
    assert_eq!(node.end_stale_sockets(), 0);
    assert_eq!(ask(&mut client), [first]);

    Port { backends: &servers[1..], base: 8, ..port }.publish(&mut node.maps, Scope::Cluster);
    assert_eq!(node.end_stale_sockets(), 1, "its backend has left");
    let second = format!("recvfrom - {DNS} {DNS} two");
    let steps = ask(&mut client);
    let (last, before) = steps.split_last().unwrap();
    assert_eq!(last, &second, "{steps:?}");
    assert!(
        before.iter().any(|step| step.starts_with("send EDESTADDRREQ") || step.contains("ECONNABORTED")),
        "{steps:?}"
    );
    assert_eq!(ask(&mut client), [second], "and stays there");
    observe("connected UDP sockets end when their backend leaves (`sock_diag`)", "yes");
}
