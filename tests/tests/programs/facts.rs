//! Observes the kernel's features and their effect on clients. A run in several kernels makes a table of these lines,
//! and compares it with the guide.

use std::fs;
use std::io::Write;

use holdfast_core::list::Scope;
use holdfast_core::maps::Maps;
use holdfast_tests::bed::clients::Client;
use holdfast_tests::bed::{Location, Role};

use crate::denied;
use crate::node::{Node, Port, UDP, knows_its_netns};

/// Prints a line for the comparison of kernels, past the test framework, which hides a passing test's output.
pub(crate) fn observe(name: &str, value: &str) {
    writeln!(std::io::stdout(), "\nobserved\t{name}\t{value}").unwrap();
}

fn yes(it: bool) -> &'static str {
    if it { "yes" } else { "no" }
}

/// The first failing call, and its errno.
fn first_failure(node: &Node, mode: &str, address: &str) -> String {
    let answers = Client::c().unwrap().run(&node.bed, Location::NODE, &[mode, address, "80"]).unwrap();
    let failed = answers.iter().filter(|answer| answer.errno.as_deref() != Some("EINPROGRESS"));
    let failed = failed.filter_map(|answer| Some((&answer.call, answer.errno.as_ref()?))).next();
    let (call, errno) = failed.expect("nobody serves there");
    assert_ne!(errno, "EPERM");
    if errno == "EAGAIN" { "no answer".to_owned() } else { format!("{call}: {errno}") }
}

#[test]
fn kernel_observed_errors() {
    let node = denied::node();
    for (verdict, address) in [("refusing", "10.96.0.20"), ("dropping", "10.96.0.21")] {
        for (mode, call) in [
            ("tcp", "TCP"),
            ("tcp-nonblocking", "TCP without waiting"),
            ("udp-connected", "connected UDP"),
            ("udp-sendto", "unconnected UDP"),
        ] {
            observe(&format!("{verdict}, {call}"), &first_failure(&node, mode, address));
        }
    }
}

#[test]
fn kernel_observed_features() {
    let mut node = Node::start();
    let servers =
        [node.server(Role::Udp, "one", "192.0.2.1:5353"), node.server(Role::Udp, "two", "192.0.2.2:5353")];
    let port = Port { frontends: &["10.96.0.10:53"], backends: &servers[..1], ..UDP };
    port.serve(&mut node.maps);
    let features = node.maps.status().features;
    observe("`bpf_set_retval`: a program chooses the errno", yes(features.set_retval));
    observe("`SO_NETNS_COOKIE`: a daemon knows its network namespace", yes(knows_its_netns()));
    let hooks = fs::read_dir(node.bed.bpffs().join("holdfast/links")).unwrap().count();
    observe("hooks with a pinned link", &hooks.to_string());
    let dump = node.maps.dump().unwrap();
    observe("maps read in batches", yes(dump.frontends.len() == 1));
    observe_moving_client(&mut node, &port, &servers);
    observe("kernel's own types (BTF)", yes(fs::exists("/sys/kernel/btf/vmlinux").unwrap()));
    let symbols = fs::read_to_string("/proc/kallsyms").unwrap();
    let has_destroy = symbols.lines().any(|line| line.split(' ').nth(2) == Some("bpf_sock_destroy"));
    observe("`bpf_sock_destroy`, not needed", yes(has_destroy));
}

/// The hardening settings during the test; a kernel without one prints that.
#[test]
fn kernel_observed_hardening() {
    let read =
        |path: &str| fs::read_to_string(path).map_or_else(|_| "none".to_owned(), |it| it.trim().to_owned());
    for name in ["kernel/unprivileged_bpf_disabled", "net/core/bpf_jit_harden"] {
        observe(&format!("in force: `{}`", name.replace('/', ".")), &read(&format!("/proc/sys/{name}")));
    }
    let lockdown = read("/sys/kernel/security/lockdown");
    let chosen = lockdown.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(word, _)| word);
    observe("in force: lockdown", chosen.unwrap_or("none"));
}

/// One store publishes a list to clients, and a socket is ended when its backend has left.
fn observe_moving_client(node: &mut Node, port: &Port<'_>, servers: &[std::net::SocketAddr]) {
    let client = Client::c().unwrap();
    let reply = |node: &Node| {
        let answers = client.run(&node.bed, Location::NODE, &["udp-connected", "10.96.0.10", "53"]).unwrap();
        answers.last().unwrap().reply.clone().unwrap()
    };
    assert_eq!(reply(node), "one");
    Port { backends: &servers[1..], base: 8, ..*port }.publish(&mut node.maps, Scope::Cluster);
    observe("a list replaced without a system call (mmap)", yes(reply(node) == "two"));
}
