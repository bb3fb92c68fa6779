//! Backends from DNS with the whole daemon and the kernel's datapath: clients while records change, when none are
//! left, and while the DNS server is down or lies.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::names::{DnsBehavior, Entry, NameServer, Zone};
use holdfast_tests::bed::{Bed, Layout, Location, Server};
use serde_json::Value;

const FRONTEND: &str = "10.96.0.10:80";
const RESOLVER: &str = "192.0.2.53:53";
const SRV: &str = "_web._tcp.example.internal";

const CONFIG: &str = "
[resolver]
servers = [\"192.0.2.53:53\"]

[hold]
limit = \"60s\"

[[service]]
name = \"web\"
frontends = [\"10.96.0.10:80\"]
resolve = { srv = \"_web._tcp.example.internal\" }
";

/// A node with three backends and an address for the DNS server.
fn bed() -> (Bed, Vec<Server>) {
    let local = vec!["192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32", "192.0.2.53/32"];
    let bed = Bed::lay(&Layout { local, ..Layout::default() }).unwrap();
    let server = |last: u8| {
        let address = SocketAddr::from(([192, 0, 2, last], 8080));
        bed.serve_seen_source(Location::NODE, &last.to_string(), &[address]).unwrap()
    };
    let servers = [1, 2, 3].map(server).into();
    (bed, servers)
}

/// A zone with the service at these hosts, each with its weight.
fn zone(hosts: &[(u8, u16)]) -> Zone {
    let host = |last: u8| format!("h{last}.example.internal");
    let srv = hosts.iter().map(|(last, weight)| Entry::Srv(0, *weight, 8080, host(*last))).collect();
    let mut names = BTreeMap::from([(SRV.to_owned(), srv)]);
    let address = |last: u8| vec![Entry::A([192, 0, 2, last].into())];
    names.extend(hosts.iter().map(|(last, _)| (host(*last), address(*last))));
    Zone { seconds: 1, names }
}

fn well(hosts: &[u8]) -> DnsBehavior {
    DnsBehavior::Well(zone(&hosts.iter().map(|last| (*last, 0)).collect::<Vec<_>>()))
}

fn name_server(bed: &Bed, mood: DnsBehavior) -> NameServer {
    NameServer::start(bed, Location::NODE, RESOLVER.parse().unwrap(), mood).unwrap()
}

fn explained(daemon: &Daemon<'_>) -> Value {
    daemon.ask(&["explain", "static/web"]).unwrap()["services"][0].clone()
}

/// The backends of a client, from the tables.
fn backends(daemon: &Daemon<'_>) -> Vec<String> {
    let backends = explained(daemon)["frontends"][0]["backends"].clone();
    serde_json::from_value(backends).unwrap()
}

fn verdict(daemon: &Daemon<'_>) -> (String, String) {
    let frontend = explained(daemon)["frontends"][0].clone();
    let word = |key: &str| frontend[key].as_str().unwrap_or_default().to_owned();
    (word("verdict"), word("reason"))
}

fn state(daemon: &Daemon<'_>) -> String {
    explained(daemon)["resolved"]["state"].as_str().unwrap_or_default().to_owned()
}

fn wait_for(daemon: &mut Daemon<'_>, lasts: &[u8]) {
    let expected: Vec<_> = lasts.iter().map(|last| format!("192.0.2.{last}:8080")).collect();
    daemon.wait_until(|it| Ok(backends(it) == expected)).unwrap();
}

fn is_served(bed: &Bed) -> bool {
    let question = Question::new(Transport::Tcp, FRONTEND.parse().unwrap());
    matches!(bed.asker(Location::NODE).unwrap().ask(question).unwrap(), Outcome::Answered { .. })
}

#[test]
fn kernel_backends_follow_dns_records_and_explain_names_their_origin() {
    let (bed, _servers) = bed();
    let resolver = name_server(&bed, well(&[1]));
    let mut daemon = Daemon::new(&bed, CONFIG).unwrap();
    daemon.start().unwrap();
    wait_for(&mut daemon, &[1]);
    assert!(is_served(&bed));
    let mut dialer = bed.dial(Location::NODE, FRONTEND.parse().unwrap()).unwrap();
    for lasts in [&[1, 2, 3][..], &[2, 3], &[1], &[1, 3]] {
        resolver.turn(well(lasts));
        wait_for(&mut daemon, lasts);
    }
    resolver.turn(DnsBehavior::Well(zone(&[(1, 10), (3, 30)])));
    let weights = |it: &Daemon<'_>| -> Vec<u64> {
        let endpoints = explained(it)["endpoints"].as_array().unwrap().clone();
        endpoints.iter().map(|row| row["weight"].as_u64().unwrap()).collect()
    };
    daemon.wait_until(|it| Ok(weights(it) == [10, 30])).unwrap();
    let tally = dialer.tally().unwrap();
    assert!(tally.failed.is_empty() && tally.connected > 100, "{tally}");
    let text = daemon.tell(&["explain", "static/web"]).unwrap();
    let expected = [
        "Backends by DNS: _web._tcp.example.internal (SRV): 2 backends by 192.0.2.53:53 at 2",
        ", TTL 1 s\n",
        "Configuration: the [[service]] block `web` in /",
    ];
    expected.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    daemon.stop().unwrap();
}

#[test]
fn kernel_no_client_fails_while_the_dns_server_is_down_silent_or_lies() {
    let (bed, _servers) = bed();
    let resolver = name_server(&bed, well(&[1, 2]));
    let mut daemon = Daemon::new(&bed, CONFIG).unwrap();
    daemon.start().unwrap();
    wait_for(&mut daemon, &[1, 2]);
    let history = |it: &Daemon<'_>| it.tell(&["history", "static/web", "-o", "json"]).unwrap();
    // The record follows the table by a moment.
    daemon.wait_until(|it| Ok(!history(it).is_empty())).unwrap();
    let before = history(&daemon);
    let mut dialer = bed.dial(Location::NODE, FRONTEND.parse().unwrap()).unwrap();
    let mut resolver = Some(resolver);
    for mood in [
        None,
        Some(DnsBehavior::Silent),
        Some(DnsBehavior::Code(2)),
        Some(DnsBehavior::Code(5)),
        Some(DnsBehavior::Noise),
    ] {
        match mood {
            None => resolver = None,
            Some(mood) => resolver.as_ref().unwrap().turn(mood),
        }
        daemon.wait_until(|it| Ok(state(it) == "trouble")).unwrap();
        assert_eq!(backends(&daemon), ["192.0.2.1:8080", "192.0.2.2:8080"]);
        let text = daemon.tell(&["explain", "static/web"]).unwrap();
        assert!(text.contains("; not resolved since 2") && text.contains("192.0.2.53:53: "), "{text}");
        let good = resolver.get_or_insert_with(|| name_server(&bed, DnsBehavior::Silent));
        good.turn(well(&[1, 2]));
        daemon.wait_until(|it| Ok(state(it) == "resolved")).unwrap();
    }
    let tally = dialer.tally().unwrap();
    assert!(tally.failed.is_empty() && tally.connected > 500, "{tally}");
    let told = daemon.logged().matches("name resolved again").count();
    assert_eq!(told, 5, "{}", daemon.logged());
    assert_eq!(daemon.logged().matches("last good version stays in force").count(), 5, "{}", daemon.logged());
    assert_eq!(history(&daemon), before, "nothing has changed");
    daemon.stop().unwrap();
}

#[test]
fn kernel_missing_records_are_held_and_withdrawn_ones_refused() {
    let (bed, _servers) = bed();
    let resolver = name_server(&bed, well(&[1, 2]));
    let mut daemon = Daemon::new(&bed, CONFIG).unwrap();
    daemon.start().unwrap();
    wait_for(&mut daemon, &[1, 2]);
    let mut dialer = bed.dial(Location::NODE, FRONTEND.parse().unwrap()).unwrap();
    // NXDOMAIN.
    resolver.turn(DnsBehavior::Well(Zone { seconds: 1, names: BTreeMap::new() }));
    // The reason depends on how long ago the daemon started.
    daemon.wait_until(|it| Ok(verdict(it).0 == "held")).unwrap();
    assert_eq!(state(&daemon), "empty");
    assert!(is_served(&bed));
    resolver.turn(well(&[2]));
    wait_for(&mut daemon, &[2]);
    let tally = dialer.tally().unwrap();
    assert!(tally.failed.is_empty() && tally.connected > 100, "{tally}");
    drop(dialer);
    let root = Entry::Srv(0, 0, 0, String::new());
    let names = BTreeMap::from([(SRV.to_owned(), vec![root])]);
    resolver.turn(DnsBehavior::Well(Zone { seconds: 1, names }));
    daemon.wait_until(|it| Ok(verdict(it) == ("refusing".to_owned(), "all-unready".to_owned()))).unwrap();
    assert_eq!(state(&daemon), "withdrawn");
    assert!(!is_served(&bed));
    // A restart undoes nothing of it, also without a DNS server.
    drop(resolver);
    daemon.stop().unwrap();
    daemon.start().unwrap();
    daemon.wait_until(|it| Ok(state(it) == "trouble")).unwrap();
    assert_eq!(verdict(&daemon), ("refusing".to_owned(), "all-unready".to_owned()));
    let _resolver = name_server(&bed, well(&[2]));
    wait_for(&mut daemon, &[2]);
    assert!(is_served(&bed));
    daemon.stop().unwrap();
}

#[test]
fn kernel_restarts_without_a_dns_server_fail_no_client() {
    let (bed, mut servers) = bed();
    let config = format!(
        "{CONFIG}health_check = {{ interval = \"100ms\", timeout = \"100ms\", rise = 1, fall = 1 }}\n"
    );
    let resolver = name_server(&bed, well(&[1, 2]));
    let mut daemon = Daemon::new(&bed, &config).unwrap();
    daemon.start().unwrap();
    wait_for(&mut daemon, &[1, 2]);
    let asked = resolver.asked();
    assert!((1..1_000).contains(&asked), "{asked}");
    drop(resolver);
    let mut dialer = bed.dial(Location::NODE, FRONTEND.parse().unwrap()).unwrap();
    for _ in 0..3 {
        daemon.stop().unwrap();
        daemon.start().unwrap();
        assert_eq!(backends(&daemon), ["192.0.2.1:8080", "192.0.2.2:8080"]);
        daemon.wait_until(|it| Ok(state(it) == "trouble")).unwrap();
        sleep(Duration::from_millis(500));
        assert_eq!(backends(&daemon), ["192.0.2.1:8080", "192.0.2.2:8080"]);
    }
    let tally = dialer.tally().unwrap();
    assert!(tally.failed.is_empty() && tally.connected > 300, "{tally}");
    drop(dialer);
    // Backends without a DNS server are still checked.
    drop(servers.remove(0));
    wait_for(&mut daemon, &[2]);
    daemon.stop().unwrap();
}
