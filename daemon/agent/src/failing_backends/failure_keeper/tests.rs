//! How long a failure counts, and what ends it.

use std::num::NonZeroU16;

use holdfast_core::facts::{Conditions, Timestamp};
use holdfast_core::keys::Transport;
use holdfast_core::list::Row;
use holdfast_core::op::QuotaId;
use holdfast_status::datapath::{FlowSample, FlowStatus, FlowSweepProgress, RefusedConnects};

use super::super::tests::WEB;
use super::*;
use crate::state::tests::snapshot_from;

const REFUSAL_AT: u32 = 1_000;

fn refusal() -> BackendRefusal {
    BackendRefusal {
        quota: QuotaId(1),
        frontend: "10.96.0.10:80".parse().unwrap(),
        transport: Transport::Tcp,
        backend: "10.1.0.3:8080".parse().unwrap(),
    }
}

/// Dials of a port with one backend.
fn dialled(connects: u64) -> Evidence {
    Evidence { connects: Some(connects), dials_per_visit: Some(1), ..Evidence::default() }
}

/// The state after a client was refused as the last of 40, which the datapath forgets.
fn forgotten() -> LastFailures {
    let mut last = LastFailures::of_refusals();
    let current: BackendRefusals = [(refusal(), REFUSAL_AT)].into();
    for (now, connects) in [(REFUSAL_AT, 20), (REFUSAL_AT + 1, 40), (REFUSAL_AT + 300, 40)] {
        assert!(last.update(|_| dialled(connects), &current, now).is_empty(), "the datapath tells");
    }
    last
}

fn kept_at(last: &mut LastFailures, connects: Option<u64>, now: u32) -> usize {
    last.update(|_| Evidence { connects, ..dialled(0) }, &BackendRefusals::new(), now).len()
}

fn kept(last: &mut LastFailures, connects: Option<u64>) -> usize {
    kept_at(last, connects, REFUSAL_AT + 5_000)
}

#[test]
fn a_refusal_counts_until_a_client_has_dialled_again_and_that_went_well() {
    let mut last = forgotten();
    assert_eq!([kept(&mut last, Some(40)), kept(&mut last, Some(40))], [1, 1]);
    let again_at = REFUSAL_AT + 6_000;
    let settled_at = again_at + SETTLING_SECONDS;
    for (now, expected) in [(again_at, 1), (settled_at - 1, 1), (settled_at, 0), (settled_at + 1, 0)] {
        assert_eq!(kept_at(&mut last, Some(41), now), expected, "{now}");
    }
}

#[test]
fn a_refusal_counts_until_so_many_have_dialled_that_one_met_the_backend() {
    for (dials_per_visit, connects, expected) in
        [(Some(1), 41, 0), (Some(2), 47, 1), (Some(2), 48, 0), (Some(100), 439, 1), (None, 9_000, 1)]
    {
        let (mut last, evidence) = (forgotten(), Evidence { dials_per_visit, ..dialled(connects) });
        let mut keep = |now| last.update(|_| evidence, &BackendRefusals::new(), now).len();
        let dialled_at = REFUSAL_AT + 5_000;
        let kept = [keep(dialled_at), keep(dialled_at + SETTLING_SECONDS)];
        assert_eq!(kept, [1, expected], "{connects} of {dials_per_visit:?}");
    }
}

#[test]
fn a_refusal_ends_an_hour_after_a_dial_that_need_not_have_met_the_backend() {
    let (mut last, evidence) = (forgotten(), Evidence { dials_per_visit: None, ..dialled(41) });
    let mut keep = |now| last.update(|_| evidence, &BackendRefusals::new(), now).len();
    let dialled_at = REFUSAL_AT + 5_000;
    let settled_at = dialled_at + UNSEEN_SETTLING_SECONDS;
    assert_eq!([dialled_at, settled_at - 1, settled_at].map(&mut keep), [1, 1, 0]);
}

#[test]
fn a_client_without_an_answer_makes_the_dials_before_it_count_for_nothing() {
    let mut last = forgotten();
    let mut keep = |connects, unanswered_at, now| {
        let evidence = Evidence { dials_per_visit: Some(2), failed_at: unanswered_at, ..dialled(connects) };
        last.update(|_| evidence, &BackendRefusals::new(), now).len()
    };
    let hung_at = REFUSAL_AT + 5_000;
    assert_eq!(keep(43, Some(hung_at), hung_at + 5), 1, "one of three dials hangs");
    let later = [(50, hung_at + 4_000), (50, hung_at + 5_000), (51, hung_at + 6_000)];
    assert_eq!(later.map(|(connects, now)| keep(connects, Some(hung_at), now)), [1, 1, 1]);
    assert_eq!(keep(51, Some(hung_at), hung_at + 6_000 + SETTLING_SECONDS), 0);
}

/// How many dials there are for each one that meets 10.1.0.3, by what is set for the Service in [`WEB`].
#[track_caller]
fn check_dials(set: &[(&str, &str)], expected: Option<u64>) {
    let manifests = set.iter().fold(WEB.to_owned(), |all, (old, new)| all.replace(old, new));
    let found = find_ports(&snapshot_from(&manifests), &[refusal()].into());
    assert_eq!(found[&refusal()].1, expected, "{set:?}");
}

#[test]
fn dials_meet_a_backend_by_its_share_of_the_clients_that_may_get_it() {
    const KIND: &str = "{type: ClusterIP,";
    const NAME: &str = "{name: web, namespace: shop}";
    let weigh = |weights| {
        format!(
            "{{name: web, namespace: shop, annotations: {{holdfast.io/weights: \"10.1.0.2={weights}\"}}}}"
        )
    };
    check_dials(&[], Some(2));
    check_dials(&[(NAME, &weigh("99"))], Some(100));
    check_dials(&[(NAME, &weigh("2, 10.1.0.3=4"))], Some(2));
    let affine = (KIND, "{type: ClusterIP, sessionAffinity: ClientIP,");
    check_dials(&[affine], None);
    check_dials(&[affine, ("{addresses: [10.1.0.2]}, ", "")], Some(1));
}

#[test]
fn only_clients_that_may_get_a_backend_show_by_dials_that_one_met_it() {
    use Scope::{Cluster, Local};
    let conditions = Conditions { ready: true, serving: true, terminating: false };
    let dials = |lists: [&[Scope]; 3]| {
        let row = |(scopes, host): (&[Scope], u8)| {
            let mut row = Row::new([10, 1, 0, host].into(), NonZeroU16::MIN, conditions, 0, 0);
            scopes.iter().for_each(|scope| row.choose(*scope));
            row
        };
        let rows = lists.into_iter().zip(1..).map(row).collect();
        let rows = Rows::new(rows, &Rows::default(), Timestamp(0));
        [true, false].map(|is_by_chance| dials_per_visit(&rows, ([10, 1, 0, 1], 1).into(), is_by_chance))
    };
    assert_eq!(dials([&[Local], &[], &[]]), [Some(1), Some(1)]);
    assert_eq!(dials([&[Local], &[Local], &[Local]]), [Some(3), None]);
    assert_eq!(dials([&[Cluster, Local], &[Cluster], &[Cluster]]), [Some(3), None]);
    assert_eq!(dials([&[Cluster], &[Cluster, Local], &[]]), [None, None], "clients outside get another one");
    assert_eq!(dials([&[Local], &[Cluster], &[]]), [None, None], "pods get another one");
}

#[test]
fn a_refusal_ends_after_a_day() {
    for (seconds, expected) in [(REFUSAL_KEPT_SECONDS, 1), (REFUSAL_KEPT_SECONDS + 1, 0)] {
        assert_eq!(kept_at(&mut forgotten(), Some(40), REFUSAL_AT + seconds), expected, "{seconds}");
    }
}

#[test]
fn counts_that_begin_anew_end_no_refusal() {
    let mut last = forgotten();
    let again_at = REFUSAL_AT + 5_000;
    assert_eq!(kept_at(&mut last, Some(0), again_at), 1);
    assert_eq!(kept_at(&mut last, Some(0), again_at + SETTLING_SECONDS), 1);
    assert_eq!(kept_at(&mut last, Some(1), again_at + 200), 1);
    assert_eq!(kept_at(&mut last, Some(1), again_at + 200 + SETTLING_SECONDS), 0);
}

#[test]
fn a_refusal_of_a_port_that_clients_dial_ends_when_the_datapath_forgets_it() {
    let mut last = forgotten();
    let current: BackendRefusals = [(refusal(), REFUSAL_AT)].into();
    last.update(|_| dialled(41), &current, REFUSAL_AT + 100);
    assert_eq!(kept_at(&mut last, Some(90), REFUSAL_AT + 301), 0);
}

#[test]
fn a_dial_that_got_no_answer_ends_no_refusal() {
    let mut last = forgotten();
    let dialled_at = REFUSAL_AT + 5_000;
    let mut keep = |connects, unanswered_at, now| {
        let evidence = Evidence { failed_at: unanswered_at, ..dialled(connects) };
        let kept = last.update(|_| evidence, &BackendRefusals::new(), now).len();
        (kept, last.dials.get(&refusal()).is_some_and(|dials| dials.again_at.is_some()))
    };
    assert_eq!(keep(41, None, dialled_at + 1), (1, true));
    assert_eq!(keep(41, Some(REFUSAL_AT - 9), dialled_at + 2), (1, true), "it was before the refusal");
    assert_eq!(keep(41, Some(dialled_at), dialled_at + 9), (1, false));
    assert_eq!(keep(41, Some(dialled_at), dialled_at + 9_000), (1, false));
    assert_eq!(keep(42, Some(dialled_at), dialled_at + 9_000), (1, true));
    assert_eq!(keep(42, Some(dialled_at), dialled_at + 9_000 + SETTLING_SECONDS), (0, false));
}

#[test]
fn an_answer_to_a_later_client_from_outside_ends_a_failure_at_once() {
    for (answered_at, expected) in [(REFUSAL_AT, 1), (REFUSAL_AT + 1, 0)] {
        let evidence = Evidence { answered_at: Some(answered_at), ..dialled(41) };
        assert_eq!(
            forgotten().update(|_| evidence, &BackendRefusals::new(), REFUSAL_AT + 400).len(),
            expected
        );
    }
}

#[test]
fn a_refusal_after_another_dial_is_kept_anew() {
    let mut last = forgotten();
    assert_eq!(kept_at(&mut last, Some(41), REFUSAL_AT + 5_000), 1);
    let again: BackendRefusals = [(refusal(), REFUSAL_AT + 5_050)].into();
    last.update(|_| dialled(42), &again, REFUSAL_AT + 5_050);
    assert_eq!(kept_at(&mut last, Some(42), REFUSAL_AT + 9_000), 1);
}

#[test]
fn a_refusal_ends_with_its_service_or_the_use_of_its_backend() {
    let mut last = forgotten();
    assert_eq!([kept(&mut last, None), kept(&mut last, Some(40))], [0, 0]);
}

#[test]
fn a_namespace_with_many_refusals_displaces_none_of_another() {
    let forged = |port: u16| {
        let backend = ([10, 1, 0, 3], port).into();
        (BackendRefusal { quota: QuotaId(2), backend, ..refusal() }, REFUSAL_AT)
    };
    let mut last = LastFailures::of_refusals();
    last.update(|_| dialled(7), &(1..1_000).map(forged).collect(), REFUSAL_AT);
    let most = last.seconds.len();
    assert!(most < 999, "bounded");
    last.update(|_| dialled(7), &[(refusal(), REFUSAL_AT)].into(), REFUSAL_AT);
    last.update(|_| dialled(7), &(1..1_000).map(forged).collect(), REFUSAL_AT + 1);
    assert!(last.seconds.contains_key(&refusal()));
    assert_eq!((last.seconds.len(), last.dials.len()), (most, most));
}

/// What the datapath tells at a second of its clock.
fn status_at(now: u32, refusals: BackendRefusals, silent_backends: BackendRefusals) -> Status {
    let unanswered = silent_backends.iter().map(|(it, at)| (it.backend(), *at)).collect();
    let sweep = FlowSweepProgress { silent_backends, unanswered, ..FlowSweepProgress::default() };
    Status {
        now,
        refused_connects: RefusedConnects { refusals, failure: None },
        flows: Some(FlowStatus { sweep, sample: FlowSample::default() }),
        ..holdfast_fixtures::healthy::status()
    }
}

#[test]
fn dials_end_no_refusal_while_the_backend_refuses_clients_of_another_frontend() {
    let snapshot = Arc::new(snapshot_from(WEB));
    let (mut keeper, none) = (FailureKeeper::default(), BackendRefusals::new);
    let node_port = BackendRefusal { frontend: "192.0.2.1:30080".parse().unwrap(), ..refusal() };
    let mut tell = |now, refusals, connects| {
        let status = status_at(now, refusals, none());
        keeper.update(&status, &snapshot, |_| Some(connects), |_| ()).refusals.contains_key(&refusal())
    };
    assert!(!tell(REFUSAL_AT, [(refusal(), REFUSAL_AT)].into(), 1), "the datapath tells");
    for second in 1..900 {
        let now = REFUSAL_AT + second;
        assert!(second < 300 || tell(now, [(node_port, now)].into(), 1 + u64::from(second) * 9), "{second}");
    }
    let mended_at = REFUSAL_AT + 1_300;
    assert!(tell(mended_at, none(), 9_000));
    assert!(!tell(mended_at + SETTLING_SECONDS, none(), 9_900));
}

#[test]
fn a_silence_is_kept_as_a_refusal_is_and_ends_none() {
    let snapshot = Arc::new(snapshot_from(WEB));
    let (mut keeper, none) = (FailureKeeper::default(), BackendRefusals::new);
    let mut tell = |now, refusals, silences, connects| {
        let (status, mut watched) = (status_at(now, refusals, silences), 0);
        let kept = keeper.update(&status, &snapshot, |_| Some(connects), |all| watched = all.len());
        assert_eq!(watched, 1, "it looks for answers of the backend");
        (kept.refusals.len(), kept.silences.len())
    };
    let at = |second: u32| BackendRefusals::from([(refusal(), second)]);
    assert_eq!(tell(REFUSAL_AT, at(REFUSAL_AT), none(), 1), (0, 0), "the datapath tells");
    assert_eq!(tell(REFUSAL_AT + 400, none(), none(), 1), (1, 0));
    let dialled_at = REFUSAL_AT + 500;
    assert_eq!(tell(dialled_at, none(), none(), 9), (1, 0), "it may not know yet how that went");
    assert_eq!(tell(dialled_at + 30, none(), at(dialled_at), 9), (1, 0), "it tells of the silence");
    assert_eq!(tell(dialled_at + 400, none(), none(), 9), (1, 1), "nobody has dialled since");
    let again_at = dialled_at + 500;
    assert_eq!(tell(again_at, none(), none(), 16), (1, 1), "the other backend may have had these seven");
    assert_eq!(tell(again_at + SETTLING_SECONDS, none(), none(), 17), (1, 1));
    assert_eq!(tell(again_at + 2 * SETTLING_SECONDS, none(), none(), 17), (0, 1), "that went well");
    assert_eq!(tell(dialled_at + SILENCE_KEPT_SECONDS, none(), none(), 99), (0, 1), "dials show no answer");
    assert_eq!(tell(dialled_at + SILENCE_KEPT_SECONDS + 1, none(), none(), 99), (0, 0));
}
