//! The fabric without a proxy: which clients reach which servers, and what its switches do.

use std::time::Duration;

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::{Bed, Location, succeed};
use holdfast_tests::packets::{BACKENDS, Backend, Family, outside, serve};

const SOON: Duration = Duration::from_secs(20);

fn say(bed: &Bed, place: Location<'_>, words: &[&str]) -> String {
    let mut command = bed.command(place, words[0]).unwrap();
    command.args(&words[1..]);
    succeed(command, SOON).unwrap()
}

/// Requests to each backend's own address from outside, in both families and by both transports.
fn directly() -> Vec<Question> {
    let sockets = BACKENDS.iter().flat_map(Backend::sockets);
    let questions = sockets.map(|to| {
        let family = if to.is_ipv4() { Family::V4 } else { Family::V6 };
        [Transport::Tcp, Transport::Udp].map(|it| Question::new(it, to).from(outside(family, 0)))
    });
    questions.flatten().collect()
}

#[track_caller]
fn check_direct(switches: Switches) -> Bed {
    let bed = fabric::bed(switches).unwrap();
    let _servers = serve(&bed).unwrap();
    let questions = directly();
    let outcomes = bed.asker(Location::far("client")).unwrap().ask_all(&questions).unwrap();
    for (question, outcome) in questions.iter().zip(outcomes) {
        let own = question.from.unwrap().ip();
        let seen = matches!(&outcome, Outcome::Answered { seen, .. } if seen.ip() == own);
        assert!(seen, "{question:?}: {outcome:?}");
    }
    bed
}

#[test]
fn clients_reach_every_backend_at_its_own_address() {
    let bed = check_direct(Switches::default());
    let refused = Question::new(Transport::Tcp, "10.0.0.5:1".parse().unwrap());
    let mut asker = bed.asker(Location::far("client")).unwrap();
    assert_eq!(asker.ask(refused).unwrap(), Outcome::Refused);
    let nobody = Question::new(Transport::Udp, "10.0.0.5:1".parse().unwrap());
    assert_eq!(asker.ask(nobody).unwrap(), Outcome::Refused);
}

#[test]
fn clients_reach_every_backend_through_a_firewall_and_with_checksums_computed() {
    let all =
        Switches { strict_rp_filter: true, guarded: true, tracked: true, no_offload: true, narrow: false };
    let bed = check_direct(all);
    assert_eq!(fabric::invalid(&bed).unwrap(), 0);
    let features = say(&bed, Location::pod("pod-a"), &["ethtool", "-k", "eth0"]);
    assert!(features.contains("tx-checksumming: off"), "{features}");
    let rules = say(&bed, Location::OUTSIDE, &["nft", "list", "ruleset"]);
    assert!(rules.contains("policy drop") && rules.contains("table inet tracked"), "{rules}");
    let filter = say(&bed, Location::OUTSIDE, &["cat", "/proc/sys/net/ipv4/conf/eth0/rp_filter"]);
    assert_eq!(filter.trim(), "1");
}

#[test]
fn a_narrow_path_reports_too_large_packets() {
    let bed = fabric::bed(Switches { narrow: true, ..Switches::default() }).unwrap();
    let _servers = serve(&bed).unwrap();
    let tcp = directly().into_iter().filter(|question| question.transport == Transport::Tcp);
    let questions: Vec<Question> = tcp.map(|question| question.sized(100_000, 100_000)).collect();
    let outcomes = bed.asker(Location::far("client")).unwrap().ask_all(&questions).unwrap();
    assert!(outcomes.iter().all(|it| matches!(it, Outcome::Answered { .. })), "{outcomes:?}");
    for (place, to) in [(Location::pod("pod-a"), "10.20.0.2"), (Location::far("client"), "10.244.1.10")] {
        let route = say(&bed, place, &["ip", "route", "get", to]);
        assert!(to == "10.244.1.10" || route.contains("mtu 1400"), "{route}");
    }
}

#[test]
fn a_recreated_uplink_reaches_the_same_places() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let _servers = serve(&bed).unwrap();
    fabric::renew_uplink(&bed).unwrap();
    let outcomes = bed.asker(Location::far("client")).unwrap().ask_all(&directly()).unwrap();
    assert!(outcomes.iter().all(|it| matches!(it, Outcome::Answered { .. })), "{outcomes:?}");
}
