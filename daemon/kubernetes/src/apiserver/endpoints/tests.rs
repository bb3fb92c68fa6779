//! The state machine step by step. Endpoints are named a, b, c … in the operator's order.

use std::collections::BTreeMap;

use holdfast_status::views::apiserver::{ApiserverState, Tier};

use super::*;

struct EndpointsHarness {
    table: Endpoints,
    start: Instant,
    now: Instant,
}

fn addresses(names: &str) -> Vec<SocketAddr> {
    names.bytes().map(|name| SocketAddr::from(([10, 0, 0, name], 443))).collect()
}

fn letter(row: &Endpoint) -> char {
    match row.address.ip() {
        std::net::IpAddr::V4(address) => address.octets()[3].into(),
        std::net::IpAddr::V6(_) => '?',
    }
}

impl EndpointsHarness {
    fn new(configured: &str) -> Self {
        let now = holdfast_fixtures::clock::now();
        let mut table = Endpoints::new(1);
        table.set_tier(Tier::Configured, &addresses(configured), now);
        Self { table, start: now, now }
    }

    fn id(&self, name: char) -> EndpointId {
        self.table.rows().iter().find(|row| letter(row) == name).unwrap().id
    }

    fn names(&self, ids: &[EndpointId]) -> String {
        ids.iter().map(|id| letter(self.table.get(*id).unwrap())).collect()
    }

    /// Parses `+a` served, `-a` dial failed, `!a` check failed, `>a` and `<a` connected and disconnected, `5s` time
    /// passes.
    fn step(&mut self, step: &str) {
        if let Some(seconds) = step.strip_suffix('s') {
            self.now += Duration::from_secs(seconds.parse().unwrap());
            return;
        }
        let mut letters = step.chars();
        let (what, id) = (letters.next().unwrap(), self.id(letters.next().unwrap()));
        match what {
            '+' => self.table.record_success(id, self.now),
            '-' => self.table.record_dial_failure(id, EndpointError::Refused, self.now),
            '!' => self.table.record_check_failure(id, EndpointError::Silent, self.now),
            '>' => self.table.add_connection(id),
            '<' => self.table.remove_connection(id),
            _ => panic!("{step}"),
        }
    }

    fn run(&mut self, steps: &str) {
        steps.split_whitespace().for_each(|step| self.step(step));
    }

    fn order(&self) -> String {
        self.names(&self.table.dial_order(self.now))
    }

    fn states(&self) -> BTreeMap<char, &'static str> {
        self.table.rows().iter().map(|row| (letter(row), row.state.as_str())).collect()
    }
}

/// Checks the dial order and a's state after these steps.
#[track_caller]
fn check(name: &str, steps: &str, order: &str, state: &str) {
    let mut fixture = EndpointsHarness::new("abc");
    fixture.run(steps);
    assert_eq!((fixture.order().as_str(), fixture.states()[&'a']), (order, state), "{name}");
}

#[test]
fn the_order_is_the_operators_and_failures_go_last() {
    check("nothing is known", "", "abc", "unknown");
    check("it served", "+a", "abc", "healthy");
    check("one dial is enough", "+a -a", "bca", "failed");
    check("one check is not", "+a !a", "abc", "healthy");
    check("two are", "+a !a !a", "bca", "failed");
    check("a good one between them resets the count", "+a !a +a !a", "abc", "healthy");
    check("a check that fails leaves an unknown one unknown", "!a", "abc", "unknown");
    check("back once goes behind those that never failed", "-a +a", "bca", "recovering");
    check("back twice goes first again", "-a +a +a", "abc", "healthy");
    check("a recovering one that misses a check has failed", "-a +a !a", "bca", "failed");
    check("all failed: all are asked in order", "-c -b -a", "abc", "failed");
    check("the one whose penalty is over goes before", "-a -a -a -a -b -c 2s", "bca", "failed");
    check("a recovering one goes before the failed", "-a -b -c +b", "bac", "failed");
}

#[test]
fn penalties_grow_to_a_bound_and_are_spread() {
    for (failures, least, most) in
        [(0, 750, 1250), (1, 1500, 2500), (4, 12_000, 20_000), (5, 22_500, 30_000), (99, 22_500, 30_000)]
    {
        let found: Vec<_> =
            (0..200_u64).map(|noise| penalty_duration(failures, noise * 7_919).as_millis()).collect();
        assert!(found.iter().all(|it| (least..=most).contains(it)), "{failures}: {found:?}");
        assert!(found.iter().collect::<std::collections::BTreeSet<_>>().len() > 20, "spread");
    }
}

/// Checks the due checks after these steps.
#[track_caller]
fn check_due(name: &str, steps: &str, due: &str) {
    let mut fixture = EndpointsHarness::new("abc");
    fixture.run(steps);
    assert_eq!(fixture.names(&fixture.table.due_checks(fixture.now)), due, "{name}");
}

#[test]
fn endpoints_preferred_to_one_in_use_are_checked() {
    check_due("nothing in use, the next request finds out", "-a -b 60s", "");
    check_due("a better one that failed", "-a >b 60s", "a");
    check_due("not before its penalty is over", "-a >b", "");
    check_due("worse ones are not of interest", "-c >b 60s", "");
    check_due("all that are better", "-a -b >c 60s", "ab");
    check_due("healthy ones get the next connection anyway", "+a >b 60s", "");
    check_due("the second check follows soon", "-a >b 60s +a 3s", "a");
    check_due("but not at once", "-a >b 60s +a", "");
    check_due("a failed check is repeated", "-a >b 60s !a 10s", "");
    check_due("after about 15 s", "-a >b 60s !a 19s", "a");
    check_due("until nothing worse is in use", "-a >b 60s <b", "");
}

#[test]
fn a_changed_tier_keeps_the_state_of_remaining_endpoints() {
    let mut fixture = EndpointsHarness::new("ab");
    fixture.table.set_tier(Tier::Learned, &addresses("xy"), fixture.now);
    fixture.table.set_tier(Tier::Kubelet, &addresses("k"), fixture.now);
    assert_eq!(fixture.order(), "abkxy");
    fixture.run("-a >b -x 60s");
    fixture.table.set_tier(Tier::Learned, &addresses("zyx"), fixture.now);
    fixture.table.set_tier(Tier::Configured, &addresses("ba"), fixture.now);
    assert_eq!(fixture.order(), "bkzyax");
    let row = fixture.table.get(fixture.id('b')).unwrap();
    assert_eq!((row.connections, row.since), (1, fixture.start));
}

#[test]
fn a_removed_endpoint_cannot_be_changed() {
    let mut fixture = EndpointsHarness::new("a");
    let gone = fixture.id('a');
    fixture.table.set_tier(Tier::Configured, &addresses("b"), fixture.now);
    fixture.table.record_dial_failure(gone, EndpointError::Refused, fixture.now);
    fixture.table.remove_connection(gone);
    assert_eq!(fixture.states(), BTreeMap::from([('b', "unknown")]));
    assert_ne!(fixture.id('b'), gone);
}

#[test]
fn a_throttling_endpoint_is_skipped_and_has_not_failed() {
    let mut fixture = EndpointsHarness::new("ab");
    let (a, wait) = (fixture.id('a'), Duration::from_secs(8));
    fixture.run("+a +b");
    fixture.table.record_throttle(a, EndpointError::Throttled { status: 429, wait }, wait, fixture.now);
    assert_eq!(fixture.table.get(a).unwrap().state, ApiserverState::Throttled);
    fixture.run("8s");
    assert_eq!(fixture.names(&fixture.table.dial_order(fixture.now)), "b", "not a moment earlier");
    assert_eq!(fixture.table.throttled_endpoints(fixture.now).len(), 1);
    fixture.run("2s");
    assert_eq!(fixture.names(&fixture.table.dial_order(fixture.now)), "ab", "it keeps its place");
    fixture.run("+a");
    assert_eq!(fixture.table.get(a).unwrap().state, ApiserverState::Healthy);
}
