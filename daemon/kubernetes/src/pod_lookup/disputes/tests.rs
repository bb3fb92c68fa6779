//! The schedule of requests, in simulated time.

use super::*;

fn address(last: u8) -> IpAddr {
    [10, 1, 0, last].into()
}

struct Lab {
    disputes: Disputes,
    began: Instant,
}

impl Lab {
    fn new() -> Self {
        Self { disputes: Disputes::default(), began: holdfast_fixtures::clock::now().into() }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.began + Duration::from_secs(seconds)
    }

    /// Adds a dispute as a snapshot would.
    fn dispute(&mut self, namespace: &str, last: u8, seconds: u64) {
        let now = self.at(seconds);
        self.disputes.add_query(address(last), namespace.into(), (now, &|| Duration::ZERO));
    }

    fn ask(&mut self, seconds: u64) -> Option<IpAddr> {
        self.disputes.take_due(self.at(seconds))
    }
}

#[test]
fn requests_for_an_address_become_rarer_and_then_stop() {
    let mut lab = Lab::new();
    lab.dispute("shop", 1, 0);
    let asked: Vec<u64> = (0..600).filter(|seconds| lab.ask(*seconds).is_some()).collect();
    assert_eq!(asked, [0, 3, 13, 43, 103]);
    assert_eq!(lab.disputes.next_due(), None);
}

#[test]
fn a_repeated_dispute_keeps_its_request_count() {
    let mut lab = Lab::new();
    lab.dispute("shop", 1, 0);
    assert_eq!(lab.ask(0), Some(address(1)));
    let nothing = Snapshot::default();
    for seconds in 1..3 {
        let now = lab.at(seconds);
        lab.disputes.update_disputes(&nothing, now, &|| Duration::ZERO);
        assert_eq!(lab.disputes.next_due(), None, "nothing is disputed");
        lab.dispute("shop", 1, seconds);
        assert_eq!(lab.ask(seconds), None);
    }
    let now = lab.at(121);
    lab.disputes.update_disputes(&nothing, now, &|| Duration::ZERO);
    assert!(lab.disputes.queries.is_empty() && lab.disputes.turns.is_empty(), "it is forgotten");
}

#[test]
fn namespaces_take_turns_despite_many_addresses() {
    let mut lab = Lab::new();
    (1..=200).for_each(|last| lab.dispute("crowd", last, 0));
    lab.dispute("shop", 201, 0);
    assert_eq!(lab.disputes.queries.len(), NAMESPACE_ADDRESSES_MAX + 1);
    let first: Vec<_> = (0..2).filter_map(|_| lab.ask(0)).collect();
    assert!(first.contains(&address(201)), "{first:?}");
}
