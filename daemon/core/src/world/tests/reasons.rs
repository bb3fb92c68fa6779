//! Why there is no backend: the endpoints before decide.

use alloc::collections::BTreeSet;

use super::*;
use crate::snapshot::{Reason, Verdict};

const READY: Conditions = Conditions::READY;
const LEAVING: Conditions = Conditions { ready: false, serving: true, terminating: true };
const GOING: Conditions = Conditions { ready: false, serving: false, terminating: true };
const SICK: Conditions = Conditions { ready: false, serving: false, terminating: false };

fn with(endpoints: &[(&str, Conditions)]) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for (text, conditions) in endpoints {
        let endpoint = Endpoint {
            address: ip(text),
            conditions: *conditions,
            node: None,
            zone: None,
            hints: None,
            target: None,
        };
        builder.push(endpoint).unwrap();
    }
    Event::SliceApplied(Arc::new(SliceFacts { endpoints: builder.finish(), ..slice_facts("a", "a", &[]) }))
}

/// Each step is a state of the slice; the last row is checked.
#[track_caller]
fn check(name: &str, steps: &[&[(&str, Conditions)]], expected: (Verdict, Option<Reason>)) {
    let mut rig = Rig::new();
    let mut last = rig.turn(vec![applied(service("a", "10.0.0.1", &[]))]);
    for step in steps {
        last = rig.turn(vec![with(step)]);
    }
    let view = view(&last, "a");
    let row = row(&view, "10.0.0.1");
    assert_eq!((row.verdict, row.reason), expected, "{name}");
}

/// Every backend fails its health check: the service's own setting decides.
#[test]
fn an_all_unready_list_follows_its_own_setting() {
    let refused = (Verdict::Refusing, Some(Reason::AllUnready));
    for (on_empty, expected) in [
        (None, refused),
        (Some("auto"), refused),
        (Some("refuse"), refused),
        (Some("hold"), (Verdict::Held, Some(Reason::AllUnready))),
    ] {
        let mut rig = Rig::new();
        let facts = ServiceFacts { on_empty: on_empty.map(Into::into), ..service("a", "10.0.0.1", &[]) };
        rig.turn(vec![applied(facts), with(&[("1.1.1.1", READY)])]);
        for (conditions, expected) in [(SICK, expected), (READY, (Verdict::Serving, None))] {
            let view = view(&rig.turn(vec![with(&[("1.1.1.1", conditions)])]), "a");
            let row = row(&view, "10.0.0.1");
            assert_eq!((row.verdict, row.reason), expected, "{on_empty:?}");
        }
    }
}

#[test]
fn reasons_follow_the_observed_endpoints() {
    let refused = |reason| (Verdict::Refusing, Some(reason));
    let a = |conditions| ("1.1.1.1", conditions);
    let b = |conditions| ("1.1.1.2", conditions);
    check("no slice", &[], refused(Reason::NoEndpoints));
    check("an empty slice", &[&[]], refused(Reason::NoEndpoints));
    check("never ready", &[&[a(SICK)]], refused(Reason::AllUnready));
    check("never ready, then gone", &[&[a(SICK)], &[]], refused(Reason::NoEndpoints));
    check("ready", &[&[a(READY)]], (Verdict::Serving, None));
    check("draining", &[&[a(READY)], &[a(LEAVING)]], (Verdict::Draining, Some(Reason::ScaledDown)));
    check("vanished", &[&[a(READY)], &[]], refused(Reason::Vanished));
    check("sick, then gone, is vanished", &[&[a(READY)], &[a(SICK)], &[]], refused(Reason::Vanished));
    check("going counts as unready while listed", &[&[a(READY)], &[a(GOING)]], refused(Reason::AllUnready));
    check("scaled down", &[&[a(READY)], &[a(GOING)], &[]], refused(Reason::ScaledDown));
    check("scaled down by draining", &[&[a(READY)], &[a(LEAVING)], &[]], refused(Reason::ScaledDown));
    let one_of_two: [&[_]; 3] = [&[a(READY), b(READY)], &[a(GOING), b(SICK)], &[]];
    check("every member must have been seen", &one_of_two, refused(Reason::Vanished));
    let one_by_one: [&[_]; 4] = [&[a(READY), b(READY)], &[a(LEAVING), b(READY)], &[b(LEAVING)], &[]];
    check("the last list counts, not those before", &one_by_one, refused(Reason::ScaledDown));
    let other: [&[_]; 2] = [&[a(READY), b(SICK)], &[b(SICK)]];
    check("another unready endpoint does not count", &other, refused(Reason::Vanished));
    let not_a_member: [&[_]; 3] = [&[a(READY), b(LEAVING)], &[b(GOING)], &[]];
    check("a backend that was no member does not count", &not_a_member, refused(Reason::Vanished));
    let back: [&[_]; 4] = [&[a(READY)], &[a(GOING)], &[a(READY)], &[]];
    check("a mark is taken back by being ready again", &back, refused(Reason::Vanished));
}

/// Only a controller labels the slices of a served service, so the label shows no intent.
#[test]
fn endpoints_of_a_newly_hidden_slice_are_held_with_reason_hidden() {
    let labelled = |endpoints: &[&str]| {
        Event::SliceApplied(Arc::new(SliceFacts { headless: true, ..slice_facts("a", "a", endpoints) }))
    };
    for (setting, endpoints, expected) in [
        (OnEmpty::Auto, &["1.1.1.1", "1.1.1.2"][..], (Verdict::Held, Some(Reason::Hidden), 2)),
        (OnEmpty::Auto, &["1.1.1.1"], (Verdict::Held, Some(Reason::Hidden), 2)),
        (OnEmpty::Auto, &["1.1.1.7"], (Verdict::Held, Some(Reason::Resync), 2)),
        (OnEmpty::Auto, &[], (Verdict::Held, Some(Reason::Resync), 2)),
        (OnEmpty::Refuse, &["1.1.1.1"], (Verdict::Refusing, Some(Reason::Hidden), 0)),
    ] {
        let mut rig = Rig::new();
        let facts = service("a", "10.0.0.1", &[]);
        rig.turn(vec![settings(setting), applied(facts), slice("a", &["1.1.1.1", "1.1.1.2"])]);
        let snapshot = rig.turn(vec![labelled(endpoints)]);
        let view = view(&snapshot, "a");
        let row = row(&view, "10.0.0.1");
        assert_eq!((row.verdict, row.reason, view.backends(row).count()), expected, "{endpoints:?}");
    }
}

#[test]
fn a_hold_for_a_hidden_slice_expires_with_reason_hidden() {
    let mut rig = Rig::new();
    let facts = service("a", "10.0.0.1", &[]);
    rig.turn(vec![settings(OnEmpty::Auto), applied(facts), slice("a", &["1.1.1.1"])]);
    let facts = SliceFacts { headless: true, ..slice_facts("a", "a", &["1.1.1.1"]) };
    rig.turn(vec![Event::SliceApplied(Arc::new(facts))]);
    rig.now += 120;
    let snapshot = rig.turn(vec![]);
    let view = view(&snapshot, "a");
    let row = row(&view, "10.0.0.1");
    assert_eq!((row.verdict, row.reason), (Verdict::Refusing, Some(Reason::Hidden)));
}

/// An operator who reads "scaled down" looks no further.
#[test]
fn endpoints_only_in_hidden_slices_give_the_reason_hidden() {
    let hidden = |endpoints: &[&str]| {
        Event::SliceApplied(Arc::new(SliceFacts { headless: true, ..slice_facts("a", "a", endpoints) }))
    };
    let six = |endpoints: &[&str]| {
        let facts = SliceFacts { headless: true, ..slice_facts("b", "a", endpoints) };
        Event::SliceApplied(Arc::new(SliceFacts { address_type: AddressType::Ip(Family::V6), ..facts }))
    };
    let gone = || with(&[("1.1.1.1", SICK)]);
    for (what, slices, expected) in [
        ("from the beginning", vec![hidden(&["1.1.1.1"])], Reason::Hidden),
        ("no endpoint is hidden", vec![hidden(&[])], Reason::NoEndpoints),
        ("those of the other family", vec![six(&["1.1.1.1"])], Reason::NoEndpoints),
        ("a listed endpoint is not hidden", vec![gone(), hidden(&["1.1.1.2"]), gone()], Reason::AllUnready),
    ] {
        let mut rig = Rig::new();
        let mut last = rig.turn(vec![applied(service("a", "10.0.0.1", &[]))]);
        for slice in slices {
            last = rig.turn(vec![slice]);
        }
        let view = view(&last, "a");
        let row = row(&view, "10.0.0.1");
        assert_eq!((row.verdict, row.reason), (Verdict::Refusing, Some(expected)), "{what}");
    }
}

#[test]
fn only_remote_backends_under_local_policy_drop_instead_of_refusing() {
    let mut rig = Rig::new();
    let facts = ServiceFacts { internal_policy: local(), ..service("a", "10.0.0.1", &[]) };
    let snapshot = rig.turn(vec![applied(facts), slice("a", &["1.1.1.1"])]);
    let view = view(&snapshot, "a");
    let row = row(&view, "10.0.0.1");
    assert_eq!((row.verdict, row.reason), (Verdict::Dropping, Some(Reason::LocalPolicy)));
}

#[test]
fn external_lists_are_null_empty_or_another_list() {
    let mut rig = Rig::new();
    let facts = |external_policy| ServiceFacts { external_policy, ..service("a", "10.0.0.1", &["10.0.0.9"]) };
    let mut external = |policy, endpoints: &[&str]| {
        let snapshot = rig.turn(vec![applied(facts(policy)), slice("a", endpoints)]);
        let view = view(&snapshot, "a");
        assert!(view.external_backends(row(&view, "10.0.0.1")).is_none(), "never on a cluster IP");
        view.external_backends(row(&view, "10.0.0.9")).map(Iterator::count)
    };
    assert_eq!(external(TrafficPolicy::Cluster, &["1.1.1.1", "@1.1.1.2"]), None);
    assert_eq!(external(local(), &["1.1.1.1", "@1.1.1.2"]), Some(1));
    assert_eq!(external(local(), &["1.1.1.1"]), Some(0), "dropped outside");
    assert_eq!(external(local(), &["@1.1.1.2"]), None, "the same list");
    assert_eq!(external(local(), &[]), None, "no backend anywhere");
}

/// The author of the apiservers' slice could otherwise bypass any Service on every node.
#[test]
fn a_cluster_ip_never_counts_as_a_reported_apiserver() {
    let mut rig = Rig::new();
    let named: BTreeSet<SocketAddr> = ["10.0.0.1:80", "10.0.0.9:80"].map(|it| it.parse().unwrap()).into();
    let settings = crate::facts::Settings { reported_apiservers: named, ..Default::default() };
    let facts = service("a", "10.0.0.1", &["10.0.0.9"]);
    let snapshot = rig.turn(vec![Event::SettingsApplied(Arc::new(settings)), applied(facts)]);
    let view = view(&snapshot, "a");
    let verdicts: Vec<_> = view.frontends.iter().map(|row| row.verdict).collect();
    assert_eq!(verdicts, [Verdict::Refusing, Verdict::Bypassed]);
}

#[test]
fn an_address_of_the_apiserver_is_bypassed_for_tcp_alone() {
    let mut rig = Rig::new();
    let bypass = ["10.0.0.1:80".parse().unwrap()].into();
    let settings = crate::facts::Settings { bypass, ..Default::default() };
    let mut facts = service("a", "10.0.0.1", &[]);
    facts.ports.push(ServicePort { protocol: Protocol::UDP, name: "u".into(), ..facts.ports[0].clone() });
    let snapshot = rig.turn(vec![Event::SettingsApplied(Arc::new(settings)), applied(facts)]);
    let view = view(&snapshot, "a");
    let verdicts: Vec<_> = view.frontends.iter().map(|row| row.verdict).collect();
    assert_eq!(verdicts, [Verdict::Bypassed, Verdict::Refusing]);
    assert_eq!(rig.log.iter().filter(|op| is_insert(op)).count(), 1);
}
