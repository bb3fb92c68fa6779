//! Events that established flows survive: a restart or kill of the daemon, growing maps, a flood, a full table,
//! exhausted ports, a recreated device. With `LONG` in the environment, numbers are larger.

use std::net::Ipv4Addr;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::{self, Deadline};
use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::packets::{Clients, Family, frontend, frontend_v4, outside, sign};

use crate::node::{CONFIG, SERVED, last_lines, on_a_node, write};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Established flows, half of them to another node, with SNAT.
fn live() -> usize {
    if is_long() { 10_000 } else { 1000 }
}

/// As many SYNs as the network sends in a few seconds, far more than the table of unanswered flows holds.
fn flood() -> u32 {
    if is_long() { 1_000_000 } else { 300_000 }
}

/// The pause between two clients. Each takes a SNAT port for two minutes, and there are a few thousand.
const BETWEEN: Duration = Duration::from_millis(50);

/// After ten seconds, a client that needs a port may take that of an answered request.
const SILENT_ENOUGH: Duration = Duration::from_secs(12);

fn is_long() -> bool {
    std::env::var_os("LONG").is_some()
}

fn hold(clients: &mut Clients, count: usize) {
    for (family, service) in FAMILIES.into_iter().flat_map(|family| [(family, "here"), (family, "away")]) {
        let to = frontend(service, "node", family).unwrap();
        let held = clients.client("outside").unwrap().hold(to, None, count / 4).unwrap();
        assert_eq!(held, HeldConnections { alive: count / 4, ..HeldConnections::default() }, "{to}");
    }
}

#[track_caller]
fn check_alive(clients: &mut Clients, count: usize, when: &str) {
    let held = clients.client("outside").unwrap().try_held().unwrap();
    assert_eq!(held, HeldConnections { alive: count, ..HeldConnections::default() }, "{when}");
}

#[track_caller]
fn check_new(clients: &mut Clients, when: &str) {
    check_new_by(clients, when, false);
}

/// A UDP request may be sent several times: no system repeats a dropped datagram.
#[track_caller]
fn check_new_by(clients: &mut Clients, when: &str, may_repeat: bool) {
    for (family, service) in FAMILIES.into_iter().flat_map(|family| [(family, "here"), (family, "away")]) {
        let to = frontend(service, "balancer", family).unwrap();
        let questions =
            [Transport::Tcp, Transport::Udp].map(|it| Question::new(it, to).from(outside(family, 0)));
        let mut outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
        let [tcp, udp] = &mut outcomes[..] else { panic!("{outcomes:?}") };
        let deadline = Deadline::after(TEST_TIMEOUT);
        while may_repeat && *udp == Outcome::Silent && !deadline.is_over() {
            *udp = clients.client("outside").unwrap().ask_all(&questions[1..]).unwrap().remove(0);
        }
        for it in [tcp, udp] {
            assert!(matches!(it, Outcome::Answered { .. }), "{when}, {to}: {it:?}");
        }
    }
}

/// Sets the flag when it is dropped, also by a panic.
struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Runs new clients one after the other during an act; all of them must be answered.
#[track_caller]
fn while_they_come<T>(clients: &mut Clients, when: &str, act: impl FnOnce() -> T) -> T {
    while_they_ask(clients, when, false, act)
}

/// The same, with clients that may repeat a UDP request.
#[track_caller]
fn while_they_ask<T>(clients: &mut Clients, when: &str, may_repeat: bool, act: impl FnOnce() -> T) -> T {
    let is_going_on = AtomicBool::new(true);
    thread::scope(|scope| {
        let coming = scope.spawn(|| {
            while is_going_on.load(Ordering::Relaxed) {
                check_new_by(clients, when, may_repeat);
                clock::pause(BETWEEN);
            }
        });
        let ended = Ended(&is_going_on);
        let done = act();
        drop(ended);
        coming.join().unwrap_or_else(|panic| resume_unwind(panic));
        done
    })
}

/// Services with more frontends than the maps have space for.
fn many_services() -> Vec<serde_json::Value> {
    let named = (0..1500_u16).map(|number| {
        let [high, low] = number.to_be_bytes();
        serde_json::json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": format!("more-{number}"), "namespace": "default"},
            "spec": {
                "type": "ClusterIP", "clusterIP": format!("10.97.{high}.{low}"),
                "clusterIPs": [format!("10.97.{high}.{low}")],
                "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}, {"name": "c", "port": 82}],
            },
        })
    });
    named.collect()
}

#[test]
fn invariant_14_maps_that_grow_break_no_flow() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        hold(clients, live());
        let growths = |daemon: &Daemon<'_>| daemon.ask(&["datapath"]).unwrap()["kernel"]["growths"].as_u64();
        let before = growths(daemon);
        while_they_come(clients, "the maps grow", || {
            write(daemon, "more", &many_services());
            daemon.wait_until(|daemon| Ok(growths(daemon) > before)).unwrap();
        });
        check_alive(clients, live(), "the maps have grown");
    });
}

#[test]
fn invariant_14_a_resized_flow_table_breaks_no_flow() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        hold(clients, live());
        let table = |daemon: &Daemon<'_>| daemon.ask(&["datapath"]).unwrap()["kernel"]["packets"].clone();
        for flows in [16_384, 131_072] {
            let when = format!("the table gets room for {flows}");
            // No flow begins while the table is copied; clients repeat their SYN.
            while_they_ask(clients, &when, true, || {
                daemon.configure(&format!("{CONFIG}[packets]\nflows = {flows}\n")).unwrap();
                let said = daemon.tell(&["reload"]).unwrap();
                assert!(!said.contains("packets.flows"), "{said}");
                daemon.wait_until(|daemon| Ok(table(daemon)["flows"] == flows)).unwrap();
            });
            check_alive(clients, live(), &when);
            check_new(clients, &when);
        }
        assert_eq!(table(daemon)["flows_given_up"], 0);
    });
}

#[test]
fn invariant_14_a_killed_daemon_breaks_no_old_or_new_flow() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        hold(clients, live());
        while_they_come(clients, "the daemon is killed", || daemon.kill().unwrap());
        check_alive(clients, live(), "the daemon is dead");
        while_they_come(clients, "the daemon comes back", || daemon.start().unwrap());
        check_alive(clients, live(), "the daemon is back");
        check_new(clients, "the daemon is back");
    });
}

#[test]
fn invariant_14_a_restart_breaks_no_flow() {
    on_a_node(Switches::default(), "", |_, daemon, clients| {
        hold(clients, live());
        while_they_come(clients, "the daemon starts again", || {
            daemon.stop().unwrap();
            daemon.start().unwrap();
        });
        check_alive(clients, live(), "the daemon is back");
        check_new(clients, "the daemon is back");
    });
}

#[test]
fn a_flood_of_syns_leaves_live_flows_alone() {
    on_a_node(Switches::default(), "", |_, _, clients| {
        hold(clients, 100);
        let (range, to) = (Ipv4Addr::new(10, 20, 7, 0), frontend_v4("here", "balancer").unwrap());
        let sent = clients.client("outside").unwrap().flood(range, to, flood()).unwrap();
        assert!(sent > flood() / 2, "only {sent} SYNs went out");
        check_alive(clients, 100, "after the flood");
        check_new(clients, "after the flood");
    });
}

/// The table holds 1024 flows; a further flow is not served and evicts no other.
#[test]
fn a_full_table_keeps_live_flows() {
    on_a_node(Switches::default(), "[packets]\nflows = 1024\n", |_, _, clients| {
        hold(clients, 400);
        let to = frontend("here", "node", Family::V4).unwrap();
        let questions: Vec<Question> = (0..1000_u16)
            .map(|number| Question::new(Transport::Udp, to).from(outside(Family::V4, 20_000 + number)))
            .collect();
        let outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
        let answered = outcomes.iter().filter(|it| matches!(it, Outcome::Answered { .. })).count();
        assert!((400..1000).contains(&answered), "{answered} of 1000 found room beside 400");
        check_alive(clients, 400, "the table is full");
    });
}

/// Eight ports, one for each client of another node's backend: the ninth gets no reply, and later the port of an idle
/// client.
#[test]
fn exhausted_snat_ports_are_reported_and_freed() {
    let ports = "[packets]\nsnat_ports = \"61000-61007\"\n";
    on_a_node(Switches::default(), ports, |_, daemon, clients| {
        let to = frontend("away", "node", Family::V4).unwrap();
        let ask = |clients: &mut Clients, from: u16, count: u16| {
            let question = |at| Question::new(Transport::Udp, to).from(outside(Family::V4, from + at));
            let questions: Vec<Question> = (0..count).map(question).collect();
            let outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
            outcomes.iter().filter(|it| matches!(it, Outcome::Answered { .. })).count()
        };
        assert!(ask(clients, 20_000, 40) <= 8, "a port is one client's");
        let dropped = |daemon: &Daemon<'_>| {
            let flows = daemon.ask(&["flows"]).unwrap();
            let reasons = flows["dropped"].as_array().unwrap().iter();
            reasons.filter(|it| it["reason"] == "ports").filter_map(|it| it["count"].as_u64()).sum::<u64>()
        };
        assert!(dropped(daemon) > 0);
        let refused = daemon.tell(&["refusals"]).unwrap();
        assert!(refused.contains("port"), "{refused}");
        let held =
            clients.client("outside").unwrap().hold(frontend("away", "node", Family::V4).unwrap(), None, 1);
        assert_eq!(held.unwrap().alive, 1, "ports of UDP are not those of TCP");
        clock::pause(SILENT_ENOUGH);
        assert!(ask(clients, 21_000, 4) > 0, "they come back by themselves");
    });
}

#[test]
fn a_recreated_device_is_served() {
    on_a_node(Switches::default(), "", |bed, daemon, clients| {
        hold(clients, live());
        fabric::renew_uplink(bed).unwrap();
        assert!(clients.wait_for(&sign(), SERVED).unwrap(), "{}", last_lines(daemon));
        check_alive(clients, live(), "the device is back");
        check_new(clients, "the device is back");
    });
}
