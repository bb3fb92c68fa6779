//! Lists with weights: their slots, and the writes of a changed weight.

use super::*;
use crate::op::WordFlags;

const PLACES: u32 = 16_381;

fn weighing(text: &str) -> Event {
    let facts = service("a", "10.0.0.1", &[]);
    applied(ServiceFacts { weights: Some(asked(text)), ..facts })
}

fn asked(text: &str) -> alloc::boxed::Box<crate::weights::WeightSetting> {
    let (weights, wrong) = match crate::weights::Weights::parse(text) {
        Ok(weights) => (weights, None),
        Err(wrong) => (crate::weights::Weights::default(), Some(wrong.into())),
    };
    alloc::boxed::Box::new(crate::weights::WeightSetting { weights, wrong })
}

fn rig() -> Rig {
    Rig::with(Capacity { slots: 1 << 18, ports: 64, ..Capacity::default() })
}

/// Each backend's share of the cluster list's slots, in thousandths.
fn shares(rig: &Rig) -> Vec<(IpAddr, u32)> {
    let dump = rig.dump();
    let port = &dump.ports[0];
    let all = port.word(Scope::Cluster).count;
    port.backends(Scope::Cluster).iter().map(|(slot, places)| (slot.address, places * 1_000 / all)).collect()
}

fn two() -> Event {
    slice("a", &["1.1.1.1", "1.1.1.2"])
}

#[test]
fn the_slots_of_a_list_follow_the_weights() {
    let mut rig = rig();
    rig.turn(vec![weighing("1.1.1.1=70,1.1.1.2=30"), two()]);
    assert_eq!(shares(&rig), [(ip("1.1.1.1"), 700), (ip("1.1.1.2"), 299)]);
    rig.turn(vec![weighing("1.1.1.1=30,1.1.1.2=30")]);
    assert_eq!(rig.dump().ports[0].word(Scope::Cluster).count, 2, "equal weights need no table");
}

#[test]
fn a_backend_of_weight_zero_gets_no_clients_while_another_has_weight() {
    let mut rig = rig();
    rig.turn(vec![weighing("1.1.1.1=0"), two()]);
    assert_eq!(shares(&rig), [(ip("1.1.1.2"), 1_000)]);
    let snapshot = rig.turn(vec![weighing("1.1.1.1=0,1.1.1.2=0")]);
    assert_eq!(shares(&rig), [(ip("1.1.1.1"), 500), (ip("1.1.1.2"), 500)]);
    assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").verdict, crate::snapshot::Verdict::Serving);
}

#[test]
fn a_backend_of_weight_zero_differs_from_an_unready_one() {
    let mut rig = rig();
    let snapshot = rig.turn(vec![weighing("1.1.1.1=0"), two()]);
    let service = view(&snapshot, "a");
    let port = &service.ports[0];
    let because = |text: &str| port.unused_reason(&port.rows.find(text.parse().unwrap()).unwrap());
    assert_eq!(because("1.1.1.1:8080"), Some(crate::snapshot::UnusedReason::Weight));
    assert_eq!(because("1.1.1.2:8080"), None);
}

/// How many of two backends with these conditions serve by UDP; the first has weight 0.
fn serving_of_two(conditions: Conditions) -> usize {
    let mut rig = rig();
    let facts = service("a", "10.0.0.1", &[]);
    let protocol = Protocol::Transport(crate::keys::Transport::Udp);
    let port = ServicePort { protocol, ..facts.ports[0].clone() };
    let facts = ServiceFacts { ports: vec![port], weights: Some(asked("1.1.1.1=0")), ..facts };
    let mut endpoints = EndpointsBuilder::new(Family::V4);
    for address in ["1.1.1.1", "1.1.1.2"].map(ip) {
        let none = Endpoint { address, conditions, node: None, zone: None, hints: None, target: None };
        endpoints.push(none).unwrap();
    }
    let of_udp = slice_facts("a", "a", &[]);
    let protocol = Protocol::Transport(crate::keys::Transport::Udp);
    let ports = [SlicePort { protocol, ..of_udp.ports[0].clone() }].into();
    let endpoints = endpoints.finish();
    rig.turn(vec![applied(facts), Event::SliceApplied(Arc::new(SliceFacts { ports, endpoints, ..of_udp }))]);
    let serving = |(member, _): &&(MemberKey, SlotState)| member.membership == Membership::Serving;
    rig.dump().members.iter().filter(serving).count()
}

/// A client's flow stays with a serving backend of any weight.
#[test]
fn a_backend_of_weight_zero_counts_as_serving() {
    assert_eq!(serving_of_two(Conditions::READY), 2);
}

/// Services that publish unready addresses have endpoints that are ready but not serving.
#[test]
fn an_unready_published_backend_of_weight_zero_counts_as_serving() {
    assert_eq!(serving_of_two(Conditions { serving: false, ..Conditions::READY }), 2);
}

/// The members of the cluster list in the maps, and whether its word is a table's.
fn listed(rig: &Rig) -> (Vec<IpAddr>, bool) {
    let dump = rig.dump();
    let own = dump.members.iter().filter(|(it, _)| it.membership == Membership::List(Scope::Cluster));
    let flags = dump.ports[0].word(Scope::Cluster).flags;
    (own.map(|(it, _)| it.backend.ip()).collect(), flags.contains(WordFlags::TABLE))
}

/// No program can search a table, so it looks up the member.
#[test]
fn the_backends_of_a_table_are_members_while_it_exists() {
    let mut rig = rig();
    rig.turn(vec![weighing("1.1.1.1=70,1.1.1.2=30"), two()]);
    assert_eq!(listed(&rig), (vec![ip("1.1.1.1"), ip("1.1.1.2")], true));
    let names: Vec<_> = rig.log.iter().map(|op| op.action.name()).collect();
    let order = ["insert member", "insert member", "write range", "publish word", "insert frontend"];
    assert_eq!(names, order, "before a client can look them up");
    rig.turn(vec![weighing("1.1.1.1=30,1.1.1.2=30")]);
    assert_eq!(listed(&rig), (vec![], false));
}

fn sticky(text: &str) -> Event {
    let facts = service("a", "10.0.0.1", &[]);
    applied(ServiceFacts { weights: Some(asked(text)), affinity_timeout: Some(60), ..facts })
}

/// Its clients with affinity return to it, and it gets no others.
#[test]
fn with_affinity_a_backend_of_weight_zero_stays_a_member() {
    let mut rig = rig();
    rig.turn(vec![sticky("1.1.1.1=1"), two()]);
    let both = vec![ip("1.1.1.1"), ip("1.1.1.2")];
    assert_eq!(listed(&rig), (both.clone(), false));
    rig.turn(vec![sticky("1.1.1.1=0")]);
    assert_eq!(listed(&rig), (both, false));
    assert_eq!(shares(&rig), [(ip("1.1.1.2"), 1_000)]);
    rig.turn(vec![slice("a", &["1.1.1.2"])]);
    assert_eq!(listed(&rig), (vec![ip("1.1.1.2")], false), "a removed backend is no member");
}

/// Without affinity, clients are sent by the list alone, which no program searches.
#[test]
fn without_affinity_a_backend_of_weight_zero_is_no_member() {
    let mut rig = rig();
    rig.turn(vec![weighing("1.1.1.1=0"), two()]);
    assert_eq!(listed(&rig), (vec![], false));
}

#[test]
fn an_unready_backend_of_weight_zero_is_no_member() {
    let mut rig = rig();
    let mut endpoints = EndpointsBuilder::new(Family::V4);
    for (address, ready) in [("1.1.1.1", false), ("1.1.1.2", true)] {
        let conditions = Conditions { ready, ..Conditions::READY };
        let address = ip(address);
        let one = Endpoint { address, conditions, node: None, zone: None, hints: None, target: None };
        endpoints.push(one).unwrap();
    }
    let slice = SliceFacts { endpoints: endpoints.finish(), ..slice_facts("a", "a", &[]) };
    rig.turn(vec![sticky("1.1.1.1=0"), Event::SliceApplied(Arc::new(slice))]);
    assert_eq!(listed(&rig), (vec![ip("1.1.1.2")], false));
}

#[test]
fn invalid_weights_keep_the_previous_ones() {
    let mut rig = rig();
    rig.turn(vec![weighing("1.1.1.1=0"), two()]);
    let snapshot = rig.turn(vec![weighing("1.1.1.1=zero")]);
    assert_eq!(shares(&rig), [(ip("1.1.1.2"), 1_000)]);
    let rejection = snapshot.rejections.named.values().next().unwrap();
    assert!(rejection.reason.starts_with("its weights stay as they were: \"1.1.1.1=zero\" is no weight"));
    rig.turn(vec![weighing("1.1.1.1=2")]);
    assert_eq!(shares(&rig), [(ip("1.1.1.1"), 666), (ip("1.1.1.2"), 333)]);
}

/// A slice of the service `a` with these weights.
fn slice_weighing(slice: &str, endpoints: &[&str], text: &str) -> Event {
    Event::SliceApplied(Arc::new(SliceFacts {
        weights: Some(asked(text)),
        ..slice_facts(slice, "a", endpoints)
    }))
}

#[test]
fn a_slices_weights_apply_only_to_its_own_endpoints() {
    let mut rig = rig();
    let plain = applied(service("a", "10.0.0.1", &[]));
    let other = Event::SliceApplied(Arc::new(slice_facts("a-1", "a", &["1.1.1.1"])));
    // It names the endpoint of another slice and that of another service.
    let own = slice_weighing("a-2", &["1.1.1.2", "1.1.1.3"], "1.1.1.1=0,1.1.1.2=0,1.1.1.9=0");
    rig.turn(vec![
        plain,
        other,
        own,
        applied(service("b", "10.0.0.2", &[])),
        slice("b", &["1.1.1.2", "1.1.1.9"]),
    ]);
    assert_eq!(shares(&rig), [(ip("1.1.1.1"), 500), (ip("1.1.1.3"), 500)]);
    let all: Vec<_> = rig.dump().ports[1].backends(Scope::Cluster).keys().map(|slot| slot.address).collect();
    assert_eq!(all, [ip("1.1.1.2"), ip("1.1.1.9")], "another service");
}

#[test]
fn the_services_weights_win_over_the_slices() {
    let mut rig = rig();
    rig.turn(vec![
        weighing("1.1.1.1=70"),
        slice_weighing("a", &["1.1.1.1", "1.1.1.2"], "1.1.1.1=0,1.1.1.2=30"),
    ]);
    assert_eq!(shares(&rig), [(ip("1.1.1.1"), 700), (ip("1.1.1.2"), 299)]);
}

#[test]
fn invalid_weights_of_a_slice_keep_the_previous_ones() {
    let mut rig = rig();
    let slice = |text| slice_weighing("a", &["1.1.1.1", "1.1.1.2"], text);
    rig.turn(vec![applied(service("a", "10.0.0.1", &[])), slice("1.1.1.1=0")]);
    rig.turn(vec![slice("1.1.1.1=zero")]);
    assert_eq!(shares(&rig), [(ip("1.1.1.2"), 1_000)]);
    rig.turn(vec![slice("1.1.1.1=zero")]);
    assert_eq!(rig.log, [], "delivered again");
    rig.turn(vec![two()]);
    assert_eq!(shares(&rig), [(ip("1.1.1.1"), 500), (ip("1.1.1.2"), 500)], "it has no weights any more");
}

/// An address in two slices has one row, from one of them.
#[test]
fn an_endpoint_in_two_slices_has_the_winning_slices_weight() {
    let mut rig = rig();
    let plain = applied(service("a", "10.0.0.1", &[]));
    let first = slice_weighing("a-1", &["1.1.1.1", "1.1.1.2"], "1.1.1.1=3");
    rig.turn(vec![plain, first, slice_weighing("a-2", &["1.1.1.1"], "1.1.1.1=0")]);
    assert_eq!(shares(&rig), [(ip("1.1.1.1"), 750), (ip("1.1.1.2"), 249)]);
}

#[test]
fn a_held_list_keeps_its_weights_and_is_not_rewritten() {
    let mut rig = rig();
    rig.turn(vec![settings(OnEmpty::Hold), weighing("1.1.1.1=70,1.1.1.2=30"), two()]);
    let snapshot = rig.turn(vec![Event::SliceApplied(Arc::new(slice_facts("a", "a", &[])))]);
    assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").verdict, crate::snapshot::Verdict::Held);
    assert_eq!(rig.log, []);
    assert_eq!(shares(&rig), [(ip("1.1.1.1"), 700), (ip("1.1.1.2"), 299)]);
}

#[test]
fn the_list_of_this_node_has_weights_too() {
    let mut rig = rig();
    let facts = ServiceFacts {
        weights: Some(asked("1.1.1.1=3")),
        internal_policy: local(),
        ..service("a", "10.0.0.1", &[])
    };
    rig.turn(vec![applied(facts), slice("a", &["@1.1.1.1", "@1.1.1.2", "1.1.1.3"])]);
    let dump = rig.dump();
    assert_eq!(dump.ports[0].word(Scope::Local).count, PLACES);
    assert_eq!(dump.ports[0].backends(Scope::Local).len(), 2);
}

/// A start finds the slots but not the weights behind them.
#[test]
fn a_start_keeps_serving_a_weighted_list_and_rewrites_it() {
    let mut before = rig();
    before.turn(vec![weighing("1.1.1.1=3"), two()]);
    let mut again = rig();
    assert_eq!(again.world.adopt(&before.dump()), []);
    again.turn(vec![weighing("1.1.1.1=3"), two()]);
    let names: Vec<_> = again.log.iter().map(|op| op.action.name()).collect();
    assert_eq!(names, ["write range", "publish word"]);
    assert_eq!(shares(&again), shares(&before));
}
