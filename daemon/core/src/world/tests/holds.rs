//! Holds of lists that would become empty: begin, end and restart.

use std::boxed::Box;

use super::*;
use crate::hold::{OnEmpty, Policy, ProbeAnswer, ProbeResult};
use crate::keys::{Family, PortKey, Transport};
use crate::list::Scope;
use crate::op::FrontendType;
use crate::snapshot::{Reason, Verdict};
use crate::weights::{WeightSetting, Weights};

/// A world in which the evidence decides, with two services that have a list: tests check `a`; `b` only adds to the
/// node's services.
pub(super) fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.turn(vec![
        super::settings(OnEmpty::Auto),
        applied(service("a", "10.0.0.1", &["10.0.0.9"])),
        applied(service("b", "10.0.0.2", &[])),
        slice("a", &["1.1.1.1", "1.1.1.2"]),
        slice("b", &["1.1.1.3"]),
    ]);
    rig.now += 1_000;
    rig
}

pub(super) fn gone(name: &str) -> Event {
    let name = ObjectName::new("default", name).unwrap();
    Event::SliceDeleted(SliceKey { name, source: SOURCE }, None)
}

#[track_caller]
pub(super) fn check(snapshot: &Snapshot, name: &str, expected: (Verdict, Option<Reason>, usize)) {
    let view = view(snapshot, name);
    let row = view.frontends.iter().find(|row| row.kind == FrontendType::ClusterIp).unwrap();
    assert_eq!((row.verdict, row.reason, view.backends(row).count()), expected, "{name}");
    let is_held = view.ports.iter().any(|port| port.hold.is_some());
    assert_eq!(is_held, !snapshot.held.is_empty() && row.verdict == Verdict::Held);
}

pub(super) fn probed(backend: &str, answer: ProbeAnswer) -> Event {
    let port = PortKey { name: "".into(), transport: Transport::Tcp, family: Family::V4 };
    let backend = backend.parse().unwrap();
    Event::Probed(Box::new(ProbeResult { service: service_key("a"), port, backend, answer }))
}

#[test]
fn a_lost_list_is_held_and_the_maps_are_not_touched() {
    for lost in [slice("a", &[]), gone("a")] {
        let mut rig = rig();
        let snapshot = rig.turn(vec![lost]);
        check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 2));
        check(&snapshot, "b", (Verdict::Serving, None, 1));
        assert_eq!(rig.log, []);
        let view = view(&snapshot, "a");
        let port = &view.ports[0];
        let slices: Vec<_> = port.rows.iter().map(|row| port.row_slice(&row, &view.slices)).collect();
        assert!(slices.iter().all(|slice| slice.is_some_and(|slice| slice.endpoints.len() == 2)));
    }
}

#[test]
fn a_list_that_returns_ends_its_hold_with_nothing_written() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    let snapshot = rig.turn(vec![slice("a", &["1.1.1.1", "1.1.1.2"])]);
    check(&snapshot, "a", (Verdict::Serving, None, 2));
    assert_eq!((rig.log.len(), snapshot.held.len()), (0, 0));
}

#[test]
fn a_hold_ends_at_its_bound_and_not_before() {
    let mut rig = rig();
    rig.turn(vec![gone("a"), probed("1.1.1.1:8080", ProbeAnswer::Accepted)]);
    // Only backends of held lists are probed.
    rig.now += 118;
    check(&rig.turn(vec![]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    check(&rig.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
    check(
        &rig.turn(vec![applied(service("a", "10.0.0.1", &[]))]),
        "a",
        (Verdict::Refusing, Some(Reason::HoldExpired), 0),
    );
}

#[test]
fn silence_counts_from_the_first_probe_once_all_backends_were_probed() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    rig.now += 49;
    check(&rig.turn(vec![]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    rig.turn(vec![probed("1.1.1.1:8080", ProbeAnswer::Silent)]);
    rig.now += 40;
    check(&rig.turn(vec![]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    let snapshot = rig.turn(vec![probed("1.1.1.2:8080", ProbeAnswer::Silent)]);
    check(&snapshot, "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn thirty_seconds_of_silence_begin_with_the_first_probe() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    rig.now += 60;
    rig.turn(vec![probed("1.1.1.1:8080", ProbeAnswer::Silent), probed("1.1.1.2:8080", ProbeAnswer::Silent)]);
    rig.now += 28;
    check(&rig.turn(vec![]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    check(&rig.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn steps_of_the_wall_clock_end_no_hold_and_prolong_none() {
    for step in [3_600, -3_600, i64::MAX, i64::MIN] {
        let mut rig = rig();
        rig.turn(vec![Event::Interrupted(SOURCE), gone("a")]);
        rig.ahead = step;
        let snapshot = rig.turn(vec![gone("b")]);
        check(&snapshot, "b", (Verdict::Held, Some(Reason::Resync), 1));
        let hold = view(&snapshot, "a").ports[0].hold.clone().unwrap();
        assert_eq!(snapshot.hold_until(&hold), Some(Timestamp(snapshot.published.0.saturating_add(119))));
        rig.now += 117;
        check(&rig.turn(vec![]), "a", (Verdict::Held, Some(Reason::Resync), 2));
        check(&rig.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
    }
}

#[test]
fn an_answer_keeps_the_hold_up_to_the_limit() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    rig.turn(vec![probed("1.1.1.2:8080", ProbeAnswer::Accepted)]);
    rig.now += 117;
    check(&rig.turn(vec![]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    check(&rig.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn failed_probes_drop_backend_after_backend_and_the_last_ends_the_hold() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    let refused = |backend| vec![probed(backend, ProbeAnswer::Refused); 3];
    check(&rig.turn(refused("1.1.1.1:8080")), "a", (Verdict::Held, Some(Reason::Vanished), 1));
    check(&rig.turn(refused("1.1.1.2:8080")), "a", (Verdict::Refusing, Some(Reason::ProbesFailed), 0));
}

/// A service with a backend that gets clients only when the other one is gone.
fn with_standby() -> Event {
    let asked = WeightSetting { weights: Weights::parse("1.1.1.2=0").unwrap(), wrong: None };
    applied(ServiceFacts { weights: Some(asked.into()), ..service("a", "10.0.0.1", &["10.0.0.9"]) })
}

pub(super) fn chosen(snapshot: &Snapshot) -> Vec<IpAddr> {
    view(snapshot, "a").ports[0].rows.list(Scope::Cluster).map(|row| row.address).collect()
}

/// Weights never make a list empty.
#[test]
fn a_standby_of_a_held_list_serves_when_all_others_fail_probes() {
    let refused = |backend| vec![probed(backend, ProbeAnswer::Refused); 3];
    let held = || {
        let mut rig = rig();
        rig.turn(vec![with_standby()]);
        let snapshot = rig.turn(vec![gone("a")]);
        check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 1));
        assert_eq!((chosen(&snapshot), rig.log.as_slice()), (vec![ip("1.1.1.1")], &[][..]));
        (rig, snapshot)
    };
    let (before, snapshot) = held();
    let mut later = restarted(&before, &snapshot);
    let confirmed = vec![with_standby(), slice("b", &["1.1.1.3"]), Event::Synced(SOURCE)];
    assert_eq!(chosen(&later.turn(confirmed)), [ip("1.1.1.1")]);
    for mut rig in [before, later] {
        let snapshot = rig.turn(refused("1.1.1.1:8080"));
        check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 1));
        assert_eq!(chosen(&snapshot), [ip("1.1.1.2")]);
        check(&rig.turn(refused("1.1.1.2:8080")), "a", (Verdict::Refusing, Some(Reason::ProbesFailed), 0));
    }
    let (mut rig, _) = held();
    let snapshot = rig.turn(refused("1.1.1.2:8080"));
    assert_eq!(chosen(&snapshot), [ip("1.1.1.1")], "a standby that fails its probes ends nothing");
    check(&rig.turn(refused("1.1.1.1:8080")), "a", (Verdict::Refusing, Some(Reason::ProbesFailed), 0));
}

pub(super) const SICK: Conditions = Conditions { ready: false, serving: false, terminating: false };
pub(super) const GOING: Conditions = Conditions { ready: false, serving: false, terminating: true };

/// A slice of the service `a`.
pub(super) fn listed(slice: &str, endpoints: &[(&str, Conditions)]) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for (address, conditions) in endpoints {
        let (address, conditions) = (ip(address), *conditions);
        builder
            .push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None })
            .unwrap();
    }
    Event::SliceApplied(Arc::new(SliceFacts { endpoints: builder.finish(), ..slice_facts(slice, "a", &[]) }))
}

#[test]
fn endpoints_that_come_back_unready_end_a_hold() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    let snapshot = rig.turn(vec![listed("a", &[("1.1.1.1", SICK)])]);
    check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 1));
    assert_eq!(chosen(&snapshot), [ip("1.1.1.2")], "the other endpoint is unready");
    let snapshot = rig.turn(vec![listed("a", &[("1.1.1.1", SICK), ("1.1.1.2", SICK)])]);
    check(&snapshot, "a", (Verdict::Refusing, Some(Reason::AllUnready), 0));
    check(&rig.turn(vec![gone("a")]), "a", (Verdict::Refusing, Some(Reason::Vanished), 0));
}

#[test]
fn a_list_that_was_empty_before_is_not_held() {
    let mut rig = rig();
    rig.turn(vec![super::settings(OnEmpty::Refuse), gone("a")]);
    let snapshot = rig.turn(vec![super::settings(OnEmpty::Auto)]);
    check(&snapshot, "a", (Verdict::Refusing, Some(Reason::Vanished), 0));
}

#[test]
fn a_deleted_service_is_removed_at_once_and_returns_without_a_list() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    let snapshot = rig.turn(vec![deleted("a")]);
    assert_eq!((snapshot.held.len(), rig.log.len()), (0, 2), "both frontends are removed");
    let snapshot = rig.turn(vec![applied(service("a", "10.0.0.1", &[]))]);
    assert_ne!(view(&snapshot, "a").frontends[0].verdict, Verdict::Held);
}

/// The service `a` with this UID.
fn created(uid: &str) -> Event {
    let meta = Meta { uid: Some(uid.into()), ..Meta::default() };
    applied(ServiceFacts { meta, ..service("a", "10.0.0.1", &["10.0.0.9"]) })
}

#[test]
fn invariant_07_a_recreated_service_holds_nothing_of_the_former_one() {
    for turns in [1, 2, 3] {
        let mut rig = rig();
        rig.turn(vec![created("1")]);
        let mut events = vec![gone("a"), deleted("a"), created("2")];
        let last = events.split_off(4 - turns).into_iter();
        let first = rig.turn(events);
        let snapshot = last.fold(first, |_, event| rig.turn(vec![event]));
        let verdict = row(&view(&snapshot, "a"), "10.0.0.1").verdict;
        assert_eq!((verdict, snapshot.held.len()), (Verdict::Refusing, 0), "{turns}");
    }
}

#[test]
fn invariant_08_a_service_recreated_without_a_running_process_holds_nothing() {
    let mut rig = rig();
    let snapshot = rig.turn(vec![created("1")]);
    for (uid, verdict) in [("1", Verdict::Held), ("2", Verdict::Refusing)] {
        let mut next = restarted(&rig, &snapshot);
        let snapshot = next.turn(vec![created(uid), slice("b", &["1.1.1.3"]), Event::Synced(SOURCE)]);
        assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").verdict, verdict, "{uid}");
    }
}

#[test]
fn a_loss_shortly_after_an_interruption_has_its_own_reason() {
    let mut rig = rig();
    rig.turn(vec![Event::Interrupted(SOURCE)]);
    check(&rig.turn(vec![gone("a")]), "a", (Verdict::Held, Some(Reason::Resync), 2));
    rig.now += 60;
    check(&rig.turn(vec![gone("b")]), "b", (Verdict::Held, Some(Reason::Vanished), 1));
}

/// A fault that empties slices may also stop the apiserver, and then the repair is not delivered.
#[test]
fn no_hold_expires_while_its_source_is_silent() {
    let held = |rig: &mut Rig| check(&rig.turn(vec![]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    rig.turn(vec![Event::Silent(SOURCE)]);
    for _ in 0..100 {
        rig.now += 29;
        held(&mut rig);
    }
    rig.turn(vec![Event::Recovered(SOURCE)]);
    rig.now += 57;
    held(&mut rig);
    // By then the source has delivered again for a minute plus the time of a hold, without these endpoints.
    rig.now += 122;
    check(&rig.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
    let refused = |backend| vec![probed(backend, ProbeAnswer::Refused); 3];
    rig.turn(vec![slice("a", &["1.1.1.1"])]);
    rig.turn(vec![Event::Silent(SOURCE), gone("a")]);
    check(&rig.turn(refused("1.1.1.1:8080")), "a", (Verdict::Refusing, Some(Reason::ProbesFailed), 0));
}

/// For example when an apiserver's address is forgotten or removed from `endpoints` under [apiserver].
#[test]
fn a_hold_starts_when_a_list_stops_being_the_apiservers() {
    let mut rig = rig();
    let bypass = |addresses: &[&str]| {
        let bypass = addresses.iter().map(|text| text.parse().unwrap()).collect();
        let hold = Policy { on_empty: OnEmpty::Auto, ..Policy::default() };
        Event::SettingsApplied(Arc::new(Settings { bypass, hold, ..Settings::default() }))
    };
    rig.turn(vec![bypass(&["1.1.1.1:8080"])]);
    check(&rig.turn(vec![gone("a")]), "a", (Verdict::Held, Some(Reason::Control), 2));
    rig.now += 10_000;
    let snapshot = rig.turn(vec![bypass(&[])]);
    check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 2));
    rig.now += 118;
    check(&rig.turn(vec![]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    check(&rig.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn the_apiservers_list_is_held_until_it_returns() {
    let mut rig = rig();
    let bypass = ["1.1.1.1:8080".parse().unwrap()].into();
    let settings = Event::SettingsApplied(Arc::new(Settings { bypass, ..Settings::default() }));
    rig.turn(vec![
        settings,
        applied(service("kubernetes", "10.0.0.3", &[])),
        slice("kubernetes", &["1.1.1.7"]),
    ]);
    let snapshot = rig.turn(vec![gone("a"), gone("kubernetes")]);
    for (name, left) in [("a", 2), ("kubernetes", 1)] {
        check(&snapshot, name, (Verdict::Held, Some(Reason::Control), left));
    }
    rig.now += 1_000_000;
    check(
        &rig.turn(vec![probed("1.1.1.1:8080", ProbeAnswer::Refused)]),
        "a",
        (Verdict::Held, Some(Reason::Control), 2),
    );
}

/// The only slice of a service, in which 1.1.1.1 is the pod with this UID.
fn with_target(service: &str, uid: &str) -> Event {
    let target = crate::facts::Target {
        kind: "Pod",
        namespace: "default",
        name: "p-1".into(),
        uid: crate::facts::endpoints::UidText::parse(uid),
    };
    let mut builder = EndpointsBuilder::new(Family::V4);
    let endpoint = Endpoint {
        address: ip("1.1.1.1"),
        conditions: Conditions::READY,
        node: None,
        zone: None,
        hints: None,
        target: Some(target),
    };
    builder.push(endpoint).unwrap();
    Event::SliceApplied(Arc::new(SliceFacts {
        endpoints: builder.finish(),
        ..slice_facts(service, service, &[])
    }))
}

#[test]
fn many_services_that_lose_their_lists_at_once_are_held_longer() {
    let mut rig = rig();
    let names = ["b", "c", "d"];
    for (name, number) in names[1..].iter().zip(10..) {
        let facts = service(name, &std::format!("10.0.0.{number}"), &[]);
        rig.turn(vec![applied(facts), slice(name, &["1.1.1.1"])]);
    }
    for name in names {
        check(&rig.turn(vec![gone(name)]), name, (Verdict::Held, Some(Reason::Vanished), 1));
    }
    let snapshot = rig.turn(vec![gone("a")]);
    for name in names {
        check(&snapshot, name, (Verdict::Held, Some(Reason::MassLoss), 1));
    }
    assert_eq!(rig.changes.len(), 4, "earlier losers change too");
    rig.now += 500;
    check(&rig.turn(vec![]), "c", (Verdict::Held, Some(Reason::MassLoss), 1));
    rig.now += 100;
    check(&rig.turn(vec![]), "c", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn losses_far_apart_are_no_mass_loss() {
    let mut rig = rig();
    for (name, number) in ["c", "d", "e", "f"].iter().zip(10..) {
        let facts = service(name, &std::format!("10.0.0.{number}"), &[]);
        rig.turn(vec![applied(facts), slice(name, &["1.1.1.1"])]);
    }
    for name in ["c", "d", "e", "f"] {
        rig.now += 11;
        check(&rig.turn(vec![gone(name)]), name, (Verdict::Held, Some(Reason::Vanished), 1));
    }
}

#[test]
fn a_passing_frontend_leaves_the_maps_and_returns_with_a_backend() {
    let mut rig = rig();
    let facts = ServiceFacts { on_empty: Some("pass".into()), ..service("a", "10.0.0.1", &["10.0.0.9"]) };
    let snapshot = rig.turn(vec![applied(facts), gone("a")]);
    check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 2));
    let passing = view(&snapshot, "a");
    let passing = row(&passing, "10.0.0.9");
    assert_eq!((passing.verdict, passing.reason), (Verdict::Passing, Some(Reason::Vanished)));
    assert_eq!(rig.log.len(), 1, "the external address is removed: {:?}", rig.log);
    let snapshot = rig.turn(vec![slice("a", &["1.1.1.5"])]);
    assert_eq!(row(&view(&snapshot, "a"), "10.0.0.9").verdict, Verdict::Serving);
    assert!(rig.log.iter().any(is_insert));
}

#[test]
fn a_passing_frontend_leaves_the_maps_before_its_list() {
    let mut rig = rig();
    let facts = ServiceFacts { on_empty: Some("pass".into()), ..service("a", "10.0.0.1", &["10.0.0.9"]) };
    rig.turn(vec![applied(facts), slice("a", &["1.1.1.1"])]);
    let mut unready = EndpointsBuilder::new(Family::V4);
    let conditions = Conditions { ready: false, serving: false, terminating: false };
    let address = ip("1.1.1.1");
    unready
        .push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None })
        .unwrap();
    let facts = SliceFacts { endpoints: unready.finish(), ..slice_facts("a", "a", &[]) };
    rig.turn(vec![Event::SliceApplied(Arc::new(facts))]);
    let removed = rig.log.iter().position(|op| matches!(op.action, Action::RemoveFrontend(_))).unwrap();
    let emptied = rig.log.iter().position(|op| matches!(op.action, Action::PublishWord(..))).unwrap();
    assert!(removed < emptied, "{:?}", rig.log);
}

#[test]
fn a_passing_winner_removes_the_former_owners_frontend() {
    let mut rig = rig();
    let other = ServiceFacts {
        meta: Meta { created: Some(Timestamp(5)), ..Meta::default() },
        ..service("b", "10.0.0.2", &["10.0.0.8"])
    };
    rig.turn(vec![applied(other)]);
    let older = Meta { created: Some(Timestamp(1)), ..Meta::default() };
    let facts = ServiceFacts {
        on_empty: Some("pass".into()),
        meta: older,
        ..service("c", "10.0.0.3", &["10.0.0.8"])
    };
    rig.turn(vec![applied(facts)]);
    let snapshot = rig.turn(vec![]);
    let passing = view(&snapshot, "c");
    let passing = row(&passing, "10.0.0.8");
    assert_eq!((passing.verdict, &passing.status), (Verdict::Passing, &crate::snapshot::Status::Done));
    let key =
        FrontendKey { address: ip("10.0.0.8"), port: 80.try_into().unwrap(), transport: Transport::Tcp };
    assert_eq!(rig.world.owners.frontends.get(&key).and_then(|entry| entry.realized), None);
}

#[test]
fn an_empty_local_list_alone_is_not_held() {
    let mut rig = rig();
    let facts = || ServiceFacts { internal_policy: local(), ..service("a", "10.0.0.1", &[]) };
    rig.turn(vec![applied(facts()), slice("a", &["@1.1.1.1", "1.1.1.2"])]);
    check(&rig.turn(vec![slice("a", &["1.1.1.2"])]), "a", (Verdict::Dropping, Some(Reason::LocalPolicy), 0));
    rig.turn(vec![slice("a", &["@1.1.1.1", "1.1.1.2"])]);
    let snapshot = rig.turn(vec![gone("a")]);
    check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 1));
    assert!(
        view(&snapshot, "a").ports[0].rows.list(Scope::Local).eq(view(&snapshot, "a").ports[0].rows.iter())
    );
}

/// A new process that starts from the saved state of the former one.
pub(super) fn restarted(rig: &Rig, snapshot: &Snapshot) -> Rig {
    let mut next = Rig::new();
    next.world = World::new(Seed(0), Capacity { slots: 256, ports: 64, ..Capacity::default() }, &[SOURCE]);
    next.world.restore_services(
        SavedSnapshot::from(snapshot),
        ClockReading { mono: Duration::ZERO, ..rig.clock() },
    );
    (next.now, next.booted, next.ahead) = (rig.now, rig.now, rig.ahead);
    next
}

#[test]
fn invariant_08_a_restart_turns_few_losses_into_no_mass_loss() {
    for (stays, expected) in [(true, Reason::Resync), (false, Reason::MassLoss)] {
        let mut rig = rig();
        let settings = super::settings(OnEmpty::Auto);
        let names = ["c", "d", "e", "f"];
        for (name, number) in names.iter().zip(10..) {
            let facts = service(name, &std::format!("10.0.0.{number}"), &[]);
            rig.turn(vec![settings.clone(), applied(facts), slice(name, &["1.1.1.1"])]);
        }
        rig.turn(vec![Event::Interrupted(SOURCE)]);
        let snapshot = rig.turn(names[..3].iter().map(|name| gone(name)).collect());
        let mut next = restarted(&rig, &snapshot);
        let mut events = vec![settings];
        if stays {
            events.extend([applied(service("a", "10.0.0.1", &[])), slice("a", &["1.1.1.1"])]);
            events.extend([applied(service("b", "10.0.0.2", &[])), slice("b", &["1.1.1.3"])]);
        }
        for (name, number) in names.iter().zip(10..) {
            events.push(applied(service(name, &std::format!("10.0.0.{number}"), &[])));
        }
        events.extend([slice("f", &["1.1.1.1"]), Event::Synced(SOURCE)]);
        check(&next.turn(events), "c", (Verdict::Held, Some(Reason::Resync), 1));
        let snapshot = next.turn(vec![gone("f")]);
        for name in names {
            check(&snapshot, name, (Verdict::Held, Some(expected), 1));
        }
    }
}

#[test]
fn an_address_claimed_while_no_process_ran_stays_held() {
    let mut rig = rig();
    rig.turn(vec![with_target("a", "one")]);
    let snapshot = rig.turn(vec![gone("a")]);
    let mut next = restarted(&rig, &snapshot);
    let events = vec![with_target("b", "two"), applied(service("a", "10.0.0.1", &[])), Event::Synced(SOURCE)];
    let snapshot = next.turn(events);
    check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 1));
    let hold = view(&snapshot, "a").ports[0].hold.clone().unwrap();
    assert_eq!(hold.urgent_probe_targets(Transport::Tcp).count(), 1, "and probed out of turn");
}

/// Checks that a list is held for `left` more seconds after a restart, if the wall clock stepped by `before` ahead of
/// the restart and by `between` during it.
#[track_caller]
fn check_restart(before: i64, between: i64, left: i64) {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    rig.now += 99;
    rig.ahead = before;
    let snapshot = rig.turn(vec![]);
    rig.ahead += between;
    let mut next = restarted(&rig, &snapshot);
    next.now += left - 2;
    let confirmed = vec![applied(service("a", "10.0.0.1", &[])), Event::Synced(SOURCE)];
    check(&next.turn(confirmed), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    check(&next.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn a_wall_clock_step_counts_only_while_no_process_ran() {
    check_restart(0, 0, 20);
    check_restart(3_600, 0, 20);
    check_restart(-3_600, 0, 20);
    check_restart(0, 10, 10);
    check_restart(0, -50, 70);
    check_restart(0, -3_600, 120);
}

#[test]
fn a_silence_that_began_before_a_restart_goes_on() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    let silent = |backend| probed(backend, ProbeAnswer::Silent);
    let snapshot = rig.turn(vec![silent("1.1.1.1:8080"), silent("1.1.1.2:8080")]);
    let mut next = restarted(&rig, &snapshot);
    next.now += 28;
    let confirmed = vec![applied(service("a", "10.0.0.1", &[])), Event::Synced(SOURCE)];
    check(&next.turn(confirmed), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    check(&next.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn a_hold_survives_a_restart_with_its_deadline() {
    let mut rig = rig();
    let snapshot = rig.turn(vec![gone("a")]);
    let mut next = restarted(&rig, &snapshot);
    next.now = rig.now + 117;
    check(&next.turn(vec![]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    let confirmed =
        vec![applied(service("a", "10.0.0.1", &[])), slice("b", &["1.1.1.3"]), Event::Synced(SOURCE)];
    check(&next.turn(confirmed), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    check(&next.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn an_invalid_on_empty_setting_is_reported_and_ignored() {
    let with = |word: &str, external: &[&str]| ServiceFacts {
        on_empty: Some(word.into()),
        ..service("a", "10.0.0.1", external)
    };
    for (facts, expected) in [
        (with("hold", &[]), None),
        (with("pass", &["10.0.0.9"]), None),
        (
            with("pass", &[]),
            Some("on-empty \"pass\" is for load-balancer and external addresses, and this service has none"),
        ),
        (with("Hold", &[]), Some("on-empty \"Hold\" is ignored: legal are auto, refuse, hold and pass")),
    ] {
        let mut rig = rig();
        let snapshot = rig.turn(vec![applied(facts)]);
        let named: Vec<_> = snapshot.rejections.named.values().map(|it| (&*it.reason, it.partial)).collect();
        assert_eq!(named, expected.map(|reason| (reason, true)).into_iter().collect::<Vec<_>>());
        check(&rig.turn(vec![gone("a")]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    }
}

/// A reload during a hold, with another policy.
fn reloaded(policy: Policy) -> Event {
    Event::SettingsApplied(Arc::new(Settings { hold: policy, ..Settings::default() }))
}

#[test]
fn a_reload_with_equal_settings_during_a_hold_changes_nothing() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    let snapshot = rig.turn(vec![super::settings(OnEmpty::Auto)]);
    check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 2));
    assert_eq!((rig.log.len(), rig.changes.iter().filter(|it| it.visible).count()), (0, 0));
    rig.now += 117;
    check(&rig.turn(vec![]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    check(&rig.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn a_reload_during_a_hold_moves_its_end_but_not_its_begin() {
    let mut rig = rig();
    rig.turn(vec![gone("a"), probed("1.1.1.2:8080", ProbeAnswer::Accepted)]);
    rig.turn(vec![probed("1.1.1.2:8080", ProbeAnswer::Accepted)]);
    let shorter = Policy { limit: 10, ..Policy::default() };
    check(&rig.turn(vec![reloaded(shorter)]), "a", (Verdict::Held, Some(Reason::Vanished), 2));
    rig.now += 7;
    check(&rig.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
}

#[test]
fn a_reload_during_a_hold_that_forbids_holds_ends_it() {
    let mut rig = rig();
    rig.turn(vec![gone("a")]);
    let snapshot = rig.turn(vec![super::settings(OnEmpty::Refuse)]);
    let view = view(&snapshot, "a");
    let row = view.frontends.iter().find(|row| row.kind == FrontendType::ClusterIp).unwrap();
    assert_eq!((row.verdict, view.backends(row).count()), (Verdict::Refusing, 0), "{:?}", row.reason);
    assert!(snapshot.held.is_empty());
    check(&snapshot, "b", (Verdict::Serving, None, 1));
}
