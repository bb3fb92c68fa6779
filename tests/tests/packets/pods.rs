//! Pods with no program in their cgroup: the devices that lead to them translate their packets, on links of their own
//! and behind a bridge.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::packets::{Clients, Family, Proxy, frontend, rows, rows_of_pods};

use crate::node::{SERVED, ip, last_lines, on_a_node, on_this};

const SERVE_PODS: &str = "[packets]\npod_devices = \"auto\"\n";

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Many times what is in flight at once.
const TRANSFER_BYTES: usize = 200_000;

/// Three fragments on an ordinary link.
const DATAGRAM_BYTES: usize = 4000;

/// The daemon finds pods a moment after it serves the outer devices.
#[track_caller]
fn wait_until_pods_are_served(daemon: &Daemon<'_>, clients: &mut Clients) {
    let until = Instant::now() + SERVED;
    for pod in ["bare-a", "bare-b", "bare-c", "bare-d"] {
        let question = Question::new(Transport::Udp, frontend("away", "cluster", Family::V6).unwrap());
        while !is_answered(&clients.client(pod).unwrap().ask(question.clone()).unwrap()) {
            assert!(Instant::now() < until, "{pod} is not served; the daemon said:\n{}", last_lines(daemon));
            thread::sleep(Duration::from_millis(50));
        }
    }
    // Programs refuse a cluster IP's missing port only once they have the address, which is a moment later.
    let refused: Vec<_> = rows_of_pods().into_iter().filter(|row| row.address == "cluster:81").collect();
    while !clients.differences(&refused, Proxy::Holdfast).unwrap().is_empty() && Instant::now() < until {
        thread::sleep(Duration::from_millis(50));
    }
}

fn is_answered(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered { .. })
}

#[track_caller]
fn with_pods<T>(switches: Switches, run: impl FnOnce(&Bed, &mut Daemon<'_>, &mut Clients) -> T) -> T {
    on_a_node(switches, SERVE_PODS, |bed, daemon, clients| {
        wait_until_pods_are_served(daemon, clients);
        run(bed, daemon, clients)
    })
}

#[track_caller]
fn check_rows(clients: &mut Clients, when: &str) {
    let lines = clients.differences(&rows_of_pods(), Proxy::Holdfast).unwrap();
    assert!(lines.is_empty(), "{when}: {} answers are not as expected:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn pods_without_socket_programs_reach_all_backends_and_themselves() {
    with_pods(Switches::default(), |_, _, clients| check_rows(clients, "on a plain network"));
}

#[test]
fn pods_reach_all_backends_behind_a_firewall_with_checksums() {
    let switches =
        Switches { strict_rp_filter: true, guarded: true, no_offload: true, ..Switches::default() };
    with_pods(switches, |bed, _, clients| {
        check_rows(clients, "behind a firewall");
        assert_eq!(fabric::invalid(bed).unwrap(), 0, "conntrack cannot place what holdfast sends on");
    });
}

/// The host's firewall need not see packets between two pods of a bridge, so the reply never leaves the bridge.
/// kube-proxy needs the opposite.
#[test]
fn pods_behind_a_bridge_need_no_netfilter_of_bridges() {
    let names = ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"];
    if !Path::new("/proc/sys/net").join(names[0]).exists() {
        println!("this kernel has no br_netfilter, so every test here is without it");
    }
    let bed = fabric::bed(Switches::default()).unwrap();
    for name in names.iter().filter(|name| Path::new("/proc/sys/net").join(name).exists()) {
        fabric::set(&bed, Location::OUTSIDE, name, "0").unwrap();
    }
    on_this(&bed, SERVE_PODS, |_, daemon, clients| {
        wait_until_pods_are_served(daemon, clients);
        check_rows(clients, "without br_netfilter");
    });
}

/// Outside clients get the same results as without.
#[test]
fn the_table_holds_with_pods_served_at_devices() {
    let lines = with_pods(Switches::default(), |_, _, clients| {
        let outside: Vec<_> = rows().into_iter().filter(|row| row.client.starts_with("outside")).collect();
        clients.differences(&outside, Proxy::Holdfast).unwrap()
    });
    assert!(lines.is_empty(), "{} answers are not as expected:\n{}", lines.len(), lines.join("\n"));
}

/// From each kind of pod to itself, to another pod, and to another node.
const WAYS: [(&str, &str, &str); 8] = [
    ("bare-b", "here", "cluster"),
    ("bare-b", "here", "node"),
    ("bare-a", "here", "cluster"),
    ("bare-a", "bridged", "balancer"),
    ("bare-c", "bridged", "node"),
    ("bare-c", "away", "cluster"),
    ("bare-d", "bridged", "cluster"),
    ("bare-d", "host", "node"),
];

#[test]
fn pods_transfer_large_streams_and_fragments() {
    with_pods(Switches { no_offload: true, ..Switches::default() }, |_, _, clients| {
        for ((pod, service, address), family) in WAYS.iter().flat_map(|way| FAMILIES.map(|it| (*way, it))) {
            let to = frontend(service, address, family).unwrap();
            let questions = [
                Question::new(Transport::Tcp, to).sized(TRANSFER_BYTES, 0),
                Question::new(Transport::Tcp, to).sized(0, TRANSFER_BYTES),
                Question::new(Transport::Udp, to).sized(DATAGRAM_BYTES, DATAGRAM_BYTES),
            ];
            let outcomes = clients.client(pod).unwrap().ask_all(&questions).unwrap();
            assert!(outcomes.iter().all(is_answered), "{pod} to {service} at {to}: {outcomes:?}");
        }
    });
}

#[test]
fn invariant_14_connections_of_pods_outlive_the_daemon() {
    with_pods(Switches::default(), |_, daemon, clients| {
        for ((pod, service, address), family) in WAYS.iter().flat_map(|way| FAMILIES.map(|it| (*way, it))) {
            let to = frontend(service, address, family).unwrap();
            let held = clients.client(pod).unwrap().hold(to, None, 5).unwrap();
            assert_eq!(
                held,
                HeldConnections { alive: 5, ..HeldConnections::default() },
                "{pod} to {service} at {to}"
            );
        }
        daemon.kill().unwrap();
        check_alive(clients, "the daemon is dead");
        check_rows(clients, "the daemon is dead");
        daemon.start().unwrap();
        check_alive(clients, "the daemon is back");
    });
}

#[track_caller]
fn check_alive(clients: &mut Clients, when: &str) {
    for pod in ["bare-a", "bare-b", "bare-c", "bare-d"] {
        let held = clients.client(pod).unwrap().try_held().unwrap();
        assert_eq!(held, HeldConnections { alive: 20, ..HeldConnections::default() }, "{pod}: {when}");
    }
}

/// These devices produce the rows above.
#[test]
fn pod_devices_are_served_only_if_configured() {
    let classes = |more: &str| {
        on_a_node(Switches::default(), more, |_, daemon, _| {
            let answer = daemon.ask(&["datapath"]).unwrap();
            let devices = answer["kernel"]["packets"]["devices"].as_array().unwrap().clone();
            let pods = devices.into_iter().filter(|it| it["class"] == "pod");
            pods.map(|it| format!("{} {} {}", it["name"], it["why"], it["address4"])).collect::<Vec<_>>()
        })
    };
    assert_eq!(classes(""), Vec::<String>::new());
    let named = classes("[packets]\npod_devices = [\"pod-a\", \"pod-c\"]\n");
    let why = "\"packets.pod_devices names it\"";
    assert_eq!(named, [format!("\"pod-a\" {why} \"10.244.1.1\""), format!("\"pod-c\" {why} \"10.244.2.1\"")]);
}

/// A pod reaches a cluster IP by its node alone, which may have no route to it.
#[test]
fn pods_are_refused_at_a_missing_port_without_a_default_route() {
    with_pods(Switches::default(), |bed, _, clients| {
        ip(bed, "node", "route delete default");
        ip(bed, "node", "-6 route delete default");
        let missed = rows_of_pods().into_iter().filter(|row| row.address == "cluster:81").collect::<Vec<_>>();
        let lines = clients.differences(&missed, Proxy::Holdfast).unwrap();
        assert!(!missed.is_empty() && lines.is_empty(), "{}", lines.join("\n"));
    });
}
