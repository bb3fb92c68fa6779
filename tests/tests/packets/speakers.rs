//! FRR, BIRD and keepalived announce the addresses that a node serves, configured as in `docs/outside.md`.

use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Asker, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, Switches};
use holdfast_tests::bed::speakers::{Speaker, Speakers};
use holdfast_tests::bed::{Bed, BedError, Location, Server};

use crate::node::{SERVED, ip, last_lines, location, run};
use crate::notices::Notices;
use crate::page::{self, V4, V6, wait_for_gateways};

/// How long a route may stay on the node and in the router's table after the last backend is drained.
const WITHDRAWN: Duration = Duration::from_millis(100);
const HEARD: Duration = Duration::from_millis(500);

/// How many rounds; the fastest counts, because a busy machine may take the processor away.
const ROUNDS: usize = 3;

/// The page's backends by their frontends' address; the last one is drained last.
const BACKENDS: [(&str, &[&str]); 2] = [(V4, &["10.244.9.10", "10.244.1.10"]), (V6, &["fd00:244:9::10"])];

/// The page's service with its servers, on one node.
struct Node<'a> {
    bed: &'a Bed,
    daemon: Daemon<'a>,
    client: Asker,
    servers: Vec<Server>,
}

fn servers(bed: &Bed) -> Vec<Server> {
    let tell = |place, addresses: &[&str]| {
        let addresses: Vec<_> = addresses.iter().map(|it| it.parse().unwrap()).collect();
        bed.serve_seen_source(Location::far(place), place, &addresses).unwrap()
    };
    vec![tell("pod-a", &["10.244.1.10:8443"]), tell("pod-r", &["10.244.9.10:8443", "[fd00:244:9::10]:8443"])]
}

fn ask(client: &mut Asker, address: &str) -> Outcome {
    let to = Question::new(Transport::Tcp, (address.parse::<std::net::IpAddr>().unwrap(), 443).into());
    client.ask(to).unwrap()
}

impl<'a> Node<'a> {
    fn start(bed: &'a Bed) -> Self {
        let mut daemon = Daemon::new(bed, &page::block("Who has the address", 0)).unwrap();
        daemon.start().unwrap();
        let client = bed.asker(Location::far("client")).unwrap();
        Self { bed, daemon, client, servers: Vec::new() }
    }

    #[track_caller]
    fn wait_until_routed(&self, address: &str, is_there: bool) {
        wait_for_gateways(self.bed, address, |gateways| gateways.is_empty() != is_there);
    }

    /// Checks that the router's routes follow the served addresses.
    #[track_caller]
    fn check_followed(&mut self, address: &str, backends: &[&str]) {
        let [node, router] = ["node", "router"].map(|place| Notices::subscribe(self.bed, place));
        let (last, others) = backends.split_last().unwrap();
        others.iter().for_each(|backend| drop(self.daemon.tell(&["drain", backend]).unwrap()));
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            let outcome = ask(&mut self.client, address);
            assert!(matches!(outcome, Outcome::Answered { .. }), "{outcome:?}\n{}", last_lines(&self.daemon));
            let begun = Instant::now();
            self.daemon.tell(&["drain", last]).unwrap();
            took.push((node.taken_out(address, begun), router.taken_out(address, begun)));
            assert_eq!(ask(&mut self.client, address), Outcome::Unreachable);
            self.daemon.tell(&["undrain", last]).unwrap();
            self.wait_until_routed(address, true);
        }
        println!(
            "{address}: from the order to drain until the node's, and the router's table had it: {took:?}"
        );
        assert!(took.iter().any(|(node, _)| *node < WITHDRAWN), "{took:?}");
        assert!(took.iter().any(|(_, router)| *router < HEARD), "{took:?}");
        others.iter().for_each(|backend| drop(self.daemon.tell(&["undrain", backend]).unwrap()));
    }
}

/// Checks the routes of a node's routing daemon to the addresses in its configuration.
#[track_caller]
fn check_speaker(
    speak: impl FnOnce(&Speakers<'_>) -> Result<Speaker, BedError>,
    announced: &[(&str, &[&str])],
) {
    let bed = fabric::bed(Switches::default()).unwrap();
    let speakers = Speakers::lay(&bed).unwrap();
    let _router = speakers.frr(location("router"), &page::router(&NODE_ADDRESSES[..1])).unwrap();
    let _speaker = speak(&speakers).unwrap();
    let mut node = Node::start(&bed);
    announced.iter().for_each(|(address, _)| node.wait_until_routed(address, false));
    node.servers = servers(&bed);
    for (address, backends) in announced {
        node.wait_until_routed(address, true);
        node.check_followed(address, backends);
    }
    node.servers.clear();
    announced.iter().for_each(|(address, _)| node.wait_until_routed(address, false));
}

#[test]
fn frr_announces_an_address_while_the_node_serves_it() {
    let config = page::block("FRR", 0);
    check_speaker(|speakers| speakers.frr(location("node"), &config), &BACKENDS[..1]);
}

#[test]
fn bird_announces_addresses_of_both_families_while_the_node_serves_them() {
    let config = page::block("BIRD 2", 0);
    check_speaker(|speakers| speakers.bird(location("node"), &config), &BACKENDS);
}

/// The nodes that have the page's address at their network.
fn owners(bed: &Bed) -> Vec<&'static str> {
    let has = |place: &&str| run(bed, place, "ip", "-4 address show dev eth0").contains(V4);
    ["node", "node2"].into_iter().filter(has).collect()
}

/// Waits until only one node has the address and serves clients; returns how long that took.
#[track_caller]
fn wait_for_owner(bed: &Bed, client: &mut Asker, owner: &'static str) -> Duration {
    let begun = Instant::now();
    while owners(bed) != [owner] || !matches!(ask(client, V4), Outcome::Answered { .. }) {
        assert!(begun.elapsed() < SERVED, "{owner} is to have the address, and {:?} have it", owners(bed));
    }
    begun.elapsed()
}

#[test]
fn keepalived_moves_the_address_to_a_node_that_serves() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let speakers = Speakers::lay(&bed).unwrap();
    ip(&bed, "router", &format!("route add {V4}/32 dev lan"));
    let _servers = servers(&bed);
    let config = page::block("Who has the address", 0);
    let mut here = Daemon::new(&bed, &config).unwrap();
    let mut there = Daemon::at(&bed, "node2", &config).unwrap();
    here.start().unwrap();
    there.start().unwrap();
    speakers.script("/usr/local/sbin/serves-web", &page::block("keepalived", 0)).unwrap();
    let config = page::block("keepalived", 1);
    let second = page::with(&config, "priority 100", "priority 90");
    let _first = speakers.keepalived(location("node"), &config).unwrap();
    let _second = speakers.keepalived(location("node2"), &second).unwrap();
    let mut client = bed.asker(Location::far("client")).unwrap();
    wait_for_owner(&bed, &mut client, "node");
    for backend in BACKENDS[0].1 {
        here.tell(&["drain", backend]).unwrap();
    }
    let took = wait_for_owner(&bed, &mut client, "node2");
    println!("from the order to drain until the other node had the address and served: {took:?}");
    for backend in BACKENDS[0].1 {
        here.tell(&["undrain", backend]).unwrap();
    }
    wait_for_owner(&bed, &mut client, "node");
}
