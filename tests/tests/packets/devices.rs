//! A device changes its name or address, or another process removes its programs, while clients talk.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::clients::Client;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::{Bed, Location, succeed};
use holdfast_tests::packets::{Clients, Family, frontend, outside, sign};
use serde_json::Value;

use crate::node::{SERVED, last_lines, on_a_node};
use crate::talk::while_clients_talk;

const PLACES: [(&str, &str); 4] =
    [("here", "node"), ("here", "balancer"), ("away", "node"), ("away", "balancer")];

/// The `packets` of `/datapath`.
fn packets(daemon: &Daemon<'_>) -> Value {
    daemon.ask(&["datapath"]).unwrap()["kernel"]["packets"].take()
}

fn device(daemon: &Daemon<'_>, name: &str) -> Option<Value> {
    let answer = packets(daemon);
    answer["devices"].as_array().unwrap().iter().find(|it| it["name"] == name).cloned()
}

#[track_caller]
fn wait_until(daemon: &Daemon<'_>, what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + SERVED;
    while !holds() {
        assert!(
            Instant::now() < until,
            "{what} does not come about; the daemon said:\n{}",
            last_lines(daemon)
        );
        thread::sleep(Duration::from_millis(50));
    }
}

fn is_attached(daemon: &Daemon<'_>, name: &str) -> bool {
    device(daemon, name).is_some_and(|it| it["attached"] == true)
}

#[test]
fn a_renamed_device_goes_on_serving() {
    on_a_node(Switches::default(), "", |bed, daemon, _| {
        let before = device(daemon, "eth0").unwrap();
        while_clients_talk(bed, &PLACES, || {
            fabric::rename_uplink(bed, "up0").unwrap();
            wait_until(daemon, "the new name", || is_attached(daemon, "up0"));
        });
        let after = device(daemon, "up0").unwrap();
        assert_eq!(
            (after["index"].clone(), after["why"].clone()),
            (before["index"].clone(), before["why"].clone())
        );
        assert!(device(daemon, "eth0").is_none());
    });
}

/// A client of the removed address cannot go on, with any proxy.
#[test]
fn new_connections_to_other_nodes_use_the_changed_address() {
    on_a_node(Switches::default(), "", |bed, daemon, clients| {
        while_clients_talk(bed, &[("here", "balancer"), ("bridged", "external")], || {
            fabric::renumber_uplink(bed, "10.0.0.77").unwrap();
            let has_it = || device(daemon, "eth0").is_some_and(|it| it["address4"] == "10.0.0.77");
            // The former second address is now the first.
            let has_other = || device(daemon, "eth0").is_some_and(|it| it["address4"] == "10.0.0.55");
            wait_until(daemon, "the new address", || has_it() || has_other());
        });
        let question = Question::new(Transport::Tcp, frontend("away", "balancer", Family::V4).unwrap());
        let question = question.from(outside(Family::V4, 0));
        wait_until(daemon, "another address", || {
            let outcome = clients.client("outside").unwrap().ask(question.clone()).unwrap();
            matches!(outcome, Outcome::Answered { seen, .. } if seen.ip().to_string() != "10.0.0.5")
        });
    });
}

/// Removes the programs of one direction, or of both, from the uplink, by their kind of hook.
fn take_away(bed: &Bed, daemon: &Daemon<'_>, ways: &[&str]) {
    if packets(daemon)["hook"] == "clsact" {
        let mut command = bed.command(Location::OUTSIDE, "tc").unwrap();
        command.args(["qdisc", "delete", "dev", "eth0", "clsact"]);
        succeed(command, SERVED).unwrap();
        return;
    }
    let index = device(daemon, "eth0").unwrap()["index"].to_string();
    for way in ways {
        let mut command = Command::new(Client::unhook().unwrap().program());
        command.arg(daemon.pins().join("links/tc").join(&index).join(way));
        succeed(command, SERVED).unwrap();
    }
}

fn repaired(daemon: &Daemon<'_>) -> u64 {
    packets(daemon)["repaired"].as_u64().unwrap()
}

fn hold(clients: &mut Clients) {
    for ((service, address), family) in
        PLACES.iter().flat_map(|it| [Family::V4, Family::V6].map(|of| (*it, of)))
    {
        let to = frontend(service, address, family).unwrap();
        let held = clients.client("outside").unwrap().hold(to, None, 5).unwrap();
        assert_eq!(held, HeldConnections { alive: 5, ..HeldConnections::default() }, "{to}");
    }
}

#[test]
fn removed_programs_are_reattached_and_no_connection_breaks() {
    on_a_node(Switches::default(), "", |bed, daemon, clients| {
        hold(clients);
        take_away(bed, daemon, &["in", "out"]);
        wait_until(daemon, "the repair", || repaired(daemon) == 2);
        assert!(is_attached(daemon, "eth0"));
        let held = clients.client("outside").unwrap().try_held().unwrap();
        assert_eq!(held, HeldConnections { alive: 40, ..HeldConnections::default() });
        assert!(clients.wait_for(&sign(), SERVED).unwrap(), "{}", last_lines(daemon));
    });
}

/// Meanwhile, ingress packets to a virtual address stay untranslated and are sent again. The node itself replies only
/// to its own addresses: node ports, and replies of backends on other nodes.
#[test]
fn virtual_addresses_survive_a_missing_ingress_program() {
    on_a_node(Switches::default(), "", |bed, daemon, _| {
        while_clients_talk(bed, &[("here", "balancer"), ("bridged", "external")], || {
            take_away(bed, daemon, &["in"]);
            wait_until(daemon, "the repair", || repaired(daemon) > 0);
        });
    });
}

/// The devices of pods that are no clients. Each gets one program, which takes the kernel some ten milliseconds.
const PODS: usize = 400;

/// How many devices of this class have their programs.
fn attached(daemon: &Daemon<'_>, class: &str) -> usize {
    let answer = packets(daemon);
    let devices = answer["devices"].as_array().unwrap().iter();
    devices.filter(|it| it["class"] == class && it["attached"] == true).count()
}

/// Clients wait only for the uplink, which is the newest device.
#[test]
fn a_returning_uplink_is_served_before_many_pod_devices() {
    on_a_node(Switches::default(), "", |bed, daemon, _| {
        let before = device(daemon, "eth0").unwrap()["index"].clone();
        fabric::add_links(bed, PODS).unwrap();
        fabric::renew_uplink(bed).unwrap();
        wait_until(daemon, "the uplink", || {
            device(daemon, "eth0").is_some_and(|it| it["attached"] == true && it["index"] != before)
        });
        assert!(attached(daemon, "near") < PODS, "the devices of pods came first");
        wait_until(daemon, "all pods", || attached(daemon, "near") >= PODS);
    });
}
