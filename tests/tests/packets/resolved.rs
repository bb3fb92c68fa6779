//! Backends from a real DNS server: Debian's dnsmasq, at another address than the node's.

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::speakers::Speakers;
use holdfast_tests::bed::{Bed, Location};

const CONFIG: &str = r#"
[resolver]
servers = ["10.244.9.10:53"]

[[service]]
name = "web"
frontends = ["203.0.113.77:80"]
resolve = { srv = "_web._tcp.example.internal" }
"#;

const FRONTEND: &str = "203.0.113.77:80";

/// The places of the servers, and their addresses.
const SERVERS: [(&str, &str); 2] = [("pod-a", "10.244.1.10"), ("pod-r", "10.244.9.10")];

/// More servers than fit into a datagram, so that the resolver retries over TCP.
const MANY: usize = 90;

/// A zone whose service has this many servers at one address.
fn zone(address: &str, servers: usize) -> String {
    let mut text = "no-resolv\nno-hosts\nlocal=/example.internal/\nlocal-ttl=1\n".to_owned();
    for number in 0..servers {
        let host = format!("host-{number:02}.example.internal");
        text +=
            &format!("srv-host=_web._tcp.example.internal,{host},8080,0,10\nhost-record={host},{address}\n");
    }
    text
}

fn state(daemon: &Daemon<'_>) -> String {
    let explained = daemon.ask(&["explain", "static/web"]).unwrap();
    explained["services"][0]["resolved"]["state"].as_str().unwrap_or_default().to_owned()
}

/// Waits until the service has this state and a client reaches this server.
#[track_caller]
fn wait_for(bed: &Bed, daemon: &mut Daemon<'_>, expected: &str, server: &str) {
    let question = Question::new(Transport::Tcp, FRONTEND.parse().unwrap());
    let answers = || bed.asker(Location::far("client"))?.ask(question.clone());
    let is_there = |outcome: Outcome| matches!(outcome, Outcome::Answered { by, .. } if by == server);
    daemon.wait_until(|it| Ok(state(it) == expected && is_there(answers()?))).unwrap();
}

#[test]
fn backends_follow_dnsmasq_and_stay_while_it_is_down() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let speakers = Speakers::lay(&bed).unwrap();
    let at = Location::far("pod-r");
    let _servers = SERVERS.map(|(place, address)| {
        let address = format!("{address}:8080").parse().unwrap();
        bed.serve_seen_source(Location::far(place), place, &[address]).unwrap()
    });
    let [(here, first), (there, second)] = SERVERS;
    let mut daemon = Daemon::new(&bed, CONFIG).unwrap();
    let name_server = speakers.dnsmasq(at, &zone(first, 1)).unwrap();
    daemon.start().unwrap();
    wait_for(&bed, &mut daemon, "resolved", here);
    drop(name_server);
    wait_for(&bed, &mut daemon, "trouble", here);
    // Without a zone it refuses the question, which says nothing about the service.
    let stranger = speakers.dnsmasq(at, "no-resolv\nno-hosts\n").unwrap();
    daemon.wait_until(|it| Ok(it.tell(&["explain", "static/web"])?.contains("REFUSED"))).unwrap();
    wait_for(&bed, &mut daemon, "trouble", here);
    drop(stranger);
    let _name_server = speakers.dnsmasq(at, &zone(second, MANY)).unwrap();
    wait_for(&bed, &mut daemon, "resolved", there);
    daemon.stop().unwrap();
}
