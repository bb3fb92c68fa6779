//! Which losses were intended: the last conditions of the lost backends decide, and no other endpoint's.

use super::holds::{GOING, SICK, check, gone, listed, probed, restarted, rig};
use super::*;
use crate::hold::ProbeAnswer;
use crate::snapshot::{Reason, Verdict};

/// The endpoints of a service with 1.1.1.1 and 1.1.1.2 in the slice `a`, before and when its list becomes empty; and
/// the result.
type Loss<'a> = (&'a str, Vec<Event>, Vec<Event>, (Verdict, Option<Reason>, usize));

/// An unready endpoint is a rollout or a crash loop, and says nothing of the lost backends.
#[test]
fn only_backends_seen_unready_or_terminating_count_as_scaled_down() {
    let beside = |conditions| listed("beside", &[("1.1.1.7", conditions)]);
    let held = |left| (Verdict::Held, Some(Reason::Vanished), left);
    let refused = |reason| (Verdict::Refusing, Some(reason), 0);
    let both = |a, b| listed("a", &[("1.1.1.1", a), ("1.1.1.2", b)]);
    let cases: Vec<Loss<'_>> = vec![
        ("deleted alongside an unready one", vec![beside(SICK)], vec![gone("a")], held(2)),
        ("emptied alongside an unready one", vec![beside(SICK)], vec![listed("a", &[])], held(2)),
        ("alongside a terminating one", vec![beside(GOING)], vec![gone("a")], held(2)),
        ("the unready one comes with the loss", vec![], vec![beside(SICK), gone("a")], held(2)),
        ("another one is listed in its place", vec![], vec![listed("a", &[("1.1.1.7", SICK)])], held(2)),
        ("one unready, one gone", vec![], vec![listed("a", &[("1.1.1.1", SICK)])], held(1)),
        ("both are unready", vec![beside(SICK)], vec![both(SICK, SICK)], refused(Reason::AllUnready)),
        (
            "unready in another slice",
            vec![],
            vec![listed("beside", &[("1.1.1.1", SICK), ("1.1.1.2", SICK)]), gone("a")],
            refused(Reason::AllUnready),
        ),
        ("unready and terminating", vec![], vec![both(SICK, GOING)], refused(Reason::AllUnready)),
        (
            "terminated alongside an unready one",
            vec![beside(SICK)],
            vec![both(GOING, GOING), gone("a")],
            refused(Reason::AllUnready),
        ),
        ("terminated", vec![], vec![both(GOING, GOING), gone("a")], refused(Reason::ScaledDown)),
    ];
    for (name, before, then, expected) in cases {
        let mut rig = rig();
        rig.turn(before);
        check_named(&rig.turn(then), name, expected);
    }
}

#[track_caller]
fn check_named(snapshot: &Snapshot, name: &str, expected: (Verdict, Option<Reason>, usize)) {
    let view = view(snapshot, "a");
    let row = row(&view, "10.0.0.1");
    assert_eq!((row.verdict, row.reason, view.backends(row).count()), expected, "{name}");
}

#[test]
fn an_unready_endpoint_alongside_a_held_list_does_not_end_the_hold() {
    let refused = |backend| vec![probed(backend, ProbeAnswer::Refused); 3];
    let held = || {
        let mut rig = rig();
        rig.turn(vec![gone("a")]);
        let snapshot = rig.turn(vec![listed("beside", &[("1.1.1.7", SICK)])]);
        check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 2));
        (rig, snapshot)
    };
    let (mut rig, snapshot) = held();
    let mut later = restarted(&rig, &snapshot);
    let confirmed = vec![listed("beside", &[("1.1.1.7", SICK)]), slice("b", &["1.1.1.3"])];
    let own = vec![applied(service("a", "10.0.0.1", &["10.0.0.9"])), Event::Synced(SOURCE)];
    let snapshot = later.turn(confirmed.into_iter().chain(own).collect());
    check(&snapshot, "a", (Verdict::Held, Some(Reason::Vanished), 2));
    rig.turn(refused("1.1.1.1:8080"));
    let snapshot = rig.turn(refused("1.1.1.2:8080"));
    check(&snapshot, "a", (Verdict::Refusing, Some(Reason::ProbesFailed), 0));
    let (mut rig, _) = held();
    rig.now += 120;
    check(&rig.turn(vec![]), "a", (Verdict::Refusing, Some(Reason::HoldExpired), 0));
    let back = rig.turn(vec![listed("a", &[("1.1.1.1", SICK), ("1.1.1.2", SICK)])]);
    check(&back, "a", (Verdict::Refusing, Some(Reason::AllUnready), 0));
}

#[test]
fn a_service_with_on_empty_refuse_reports_vanished_backends() {
    let mut rig = rig();
    rig.turn(vec![super::settings(OnEmpty::Refuse), listed("beside", &[("1.1.1.7", SICK)])]);
    check(&rig.turn(vec![gone("a")]), "a", (Verdict::Refusing, Some(Reason::Vanished), 0));
}

#[test]
fn losses_alongside_unready_endpoints_count_as_a_mass_loss() {
    let mut rig = rig();
    let names = ["c", "d", "e", "f"];
    let service = |name: &&str| applied(service(name, &std::format!("10.0.1.{}", name.as_bytes()[0]), &[]));
    rig.turn(names.iter().map(service).chain(names.iter().map(|name| slice(name, &["1.1.1.4"]))).collect());
    let unready = |name: &&str| {
        let mut builder = EndpointsBuilder::new(Family::V4);
        let address = ip("1.1.1.7");
        let endpoint =
            Endpoint { address, conditions: SICK, node: None, zone: None, hints: None, target: None };
        builder.push(endpoint).unwrap();
        let facts = SliceFacts { endpoints: builder.finish(), ..slice_facts(name, name, &[]) };
        Event::SliceApplied(Arc::new(facts))
    };
    let lost = names.iter().map(unready).chain([gone("a"), gone("b")]).collect();
    let snapshot = rig.turn(lost);
    for name in names {
        check(&snapshot, name, (Verdict::Held, Some(Reason::MassLoss), 1));
    }
}
