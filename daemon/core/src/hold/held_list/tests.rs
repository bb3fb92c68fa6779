//! How a hold ends, and the effect of probes.

use std::vec;

use super::*;
use crate::facts::{AddressType, Conditions, EndpointsBuilder, Meta, Timestamp};
use crate::keys::{Family, ObjectName, SliceKey, Source};
use crate::weights::{BackendWeights, Weight};

const A: &str = "192.0.2.1:80";
const B: &str = "192.0.2.2:80";

fn hold(bound: Bound) -> Hold {
    hold_of(bound, Transport::Tcp)
}

fn hold_of(bound: Bound, transport: Transport) -> Hold {
    let row = |text: &str| {
        let backend: SocketAddr = text.parse().unwrap();
        let port = backend.port().try_into().unwrap();
        let mut row = Row::new(backend.ip(), port, Conditions::READY, 0, 0);
        row.choose(crate::list::Scope::Cluster);
        row
    };
    let rows = Rows::new(vec![row(A), row(B)], &Rows::default(), Timestamp(90));
    let hold = Hold::new(&rows, Arc::default(), (Uptime(100), transport), (Reason::Vanished, bound));
    let mut hold = Arc::new(hold);
    Hold::set_probeable(&mut hold, |_| true);
    Arc::unwrap_or_clone(hold)
}

#[track_caller]
fn end(hold: &mut Hold, now: i64) -> Option<Reason> {
    if hold.needs_probe_time() {
        hold.first_probe = Some(Uptime(now));
    }
    hold.end_reason(&Policy::default(), Uptime(now))
}

#[test]
fn every_bound_ends_its_hold() {
    for (bound, last) in [(Bound::Guarded, 219), (Bound::Limit, 219), (Bound::MassLoss, 699)] {
        assert_eq!(end(&mut hold(bound), last), None, "{bound:?}");
        assert_eq!(end(&mut hold(bound), last + 1), Some(Reason::HoldExpired), "{bound:?}");
    }
    assert_eq!(end(&mut hold(Bound::Unlimited), i64::MAX), None);
}

#[test]
fn a_list_that_takes_a_probe_is_held_to_the_limit() {
    let mut hold = hold(Bound::Guarded);
    assert!(hold.record_probe(A.parse().unwrap(), ProbeAnswer::Accepted));
    assert_eq!((end(&mut hold, 219), end(&mut hold, 220)), (None, Some(Reason::HoldExpired)));
}

#[test]
fn a_hidden_list_is_held_for_a_minute_although_it_takes_probes() {
    let mut hold = Hold { reason: Reason::Hidden, ..hold(Bound::Guarded) };
    assert!(hold.record_probe(A.parse().unwrap(), ProbeAnswer::Accepted));
    assert_eq!((end(&mut hold, 159), end(&mut hold, 160)), (None, Some(Reason::HoldExpired)));
    let policy = Policy { limit: 20, ..Policy::default() };
    assert_eq!(hold.deadline(&policy), Some(Uptime(120)), "the operator's shorter limit counts");
    hold.bound = Bound::Limit;
    assert_eq!(end(&mut hold, 219), None, "the service requests the whole limit");
}

/// Checks how long a list is held whose backends were probed at these seconds, without an answer.
#[track_caller]
fn check_silence(probed: &[(&str, i64)], last: i64) {
    let mut hold = hold(Bound::Guarded);
    for (backend, at) in probed {
        hold.record_probe(backend.parse().unwrap(), ProbeAnswer::Silent);
        assert_eq!(end(&mut hold, *at), None, "{probed:?}");
    }
    let ends = (end(&mut hold, last), end(&mut hold, last + 1));
    assert_eq!(ends, (None, Some(Reason::HoldExpired)), "{probed:?}");
}

#[test]
fn a_backend_that_awaits_its_first_probe_is_not_silent() {
    check_silence(&[], 219);
    check_silence(&[(A, 101)], 219);
    check_silence(&[(A, 101), (B, 101)], 130);
    check_silence(&[(A, 110), (B, 112)], 139);
    check_silence(&[(A, 110), (B, 139)], 139);
    check_silence(&[(A, 200), (B, 201)], 219);
}

#[test]
fn a_udp_list_is_held_for_thirty_seconds() {
    let mut udp = hold_of(Bound::Guarded, Transport::Udp);
    assert_eq!((end(&mut udp, 129), end(&mut udp, 130)), (None, Some(Reason::HoldExpired)));
}

#[test]
fn a_dropped_backend_does_not_delay_the_end_of_the_hold() {
    let mut hold = hold(Bound::Guarded);
    hold.record_probe(A.parse().unwrap(), ProbeAnswer::Silent);
    assert_eq!(end(&mut hold, 100), None);
    hold.backends[1].lost = Some(Reason::ProbesFailed);
    assert_eq!((end(&mut hold, 129), end(&mut hold, 130)), (None, Some(Reason::HoldExpired)));
}

/// Probes both backends; checks how many are left in the list, and why the hold ends if it does.
#[track_caller]
fn check_probes(name: &str, a: &[ProbeAnswer], b: &[ProbeAnswer], left: usize, expected: Option<Reason>) {
    let mut hold = hold(Bound::Guarded);
    for (backend, answers) in [(A, a), (B, b)] {
        for answer in answers {
            hold.record_probe(backend.parse().unwrap(), *answer);
        }
    }
    assert_eq!(hold.rows().count(), left, "{name}");
    assert_eq!(end(&mut hold, 101), expected, "{name}");
}

#[test]
fn three_failures_drop_a_backend_and_the_last_backend_ends_the_hold() {
    use ProbeAnswer::{Accepted as Y, Refused as N, Silent as S};
    check_probes("none", &[], &[], 2, None);
    check_probes("two are not enough", &[N, N], &[], 2, None);
    check_probes("refused thrice", &[N, N, N], &[], 1, None);
    check_probes("not in a row", &[N, N, Y, N, N], &[], 2, None);
    check_probes("silence of a backend that never answered", &[S, S, S, S], &[], 2, None);
    check_probes("silence of a backend that answered", &[Y, S, S, S], &[], 1, None);
    check_probes("all of them", &[N, N, N], &[Y, S, N, S], 0, Some(Reason::ProbesFailed));
    check_probes("a dropped backend does not come back", &[N, N, N, Y], &[], 1, None);
}

#[test]
fn only_ready_tcp_backends_are_probed_and_none_of_an_unlimited_hold() {
    let count = |bound, transport| hold_of(bound, transport).probe_targets(transport).count();
    assert_eq!(count(Bound::Guarded, Transport::Tcp), 2);
    assert_eq!(count(Bound::Guarded, Transport::Udp), 0);
    assert_eq!(count(Bound::Unlimited, Transport::Tcp), 0);
}

/// A backend of a last list: its node, its weight, its lists, and its lists in a hold.
type Member = (&'static str, &'static str, u16, &'static [Scope], &'static [Scope]);

#[test]
fn a_hold_adds_weighted_out_rows_to_lists_that_would_use_them() {
    use crate::list::Scope::{Cluster, Local};

    let case: [Member; 5] = [
        ("192.0.2.1:80", "here", 1, &[Cluster, Local], &[Cluster, Local]),
        ("192.0.2.2:80", "here", 0, &[], &[Cluster, Local]),
        ("192.0.2.3:80", "there", 1, &[Cluster], &[Cluster]),
        ("192.0.2.4:80", "there", 0, &[], &[Cluster]),
        ("192.0.2.5:80", "there", 1, &[], &[]),
    ];
    let mut endpoints = EndpointsBuilder::new(Family::V4);
    let (mut rows, mut weights) = (vec![], vec![]);
    for (position, (text, node, weight, lists, _)) in case.iter().enumerate() {
        let backend: SocketAddr = text.parse().unwrap();
        let (address, conditions) = (backend.ip(), Conditions::READY);
        let node = Some((*node).into());
        endpoints
            .push(Endpoint { address, conditions, node, zone: None, hints: None, target: None })
            .unwrap();
        let port = backend.port().try_into().unwrap();
        let mut row = Row::new(address, port, conditions, 0, position.try_into().unwrap());
        lists.iter().for_each(|scope| row.choose(*scope));
        rows.push(row);
        weights.push((backend, Weight::new(*weight).unwrap()));
    }
    let rows = Rows::new(rows, &Rows::default(), Timestamp(90));
    let rows = rows.with_weights(BackendWeights::new(weights.into_iter()));
    let slice = SliceFacts {
        key: SliceKey { name: ObjectName::new("default", "a").unwrap(), source: Source::Manifests },
        meta: Meta::default(),
        service: None,
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [].into(),
        endpoints: endpoints.finish(),
        endpoints_null: false,
        weights: None,
    };
    let found: Vec<_> = list_members(&rows, &[Arc::new(slice)])
        .map(|row| {
            (row.backend(), Scope::ALL.into_iter().filter(|scope| row.is_in(*scope)).collect::<Vec<_>>())
        })
        .collect();
    let expected = case.iter().filter(|(.., lists)| !lists.is_empty());
    let expected: Vec<_> =
        expected.map(|(text, .., lists)| (text.parse().unwrap(), lists.to_vec())).collect();
    assert_eq!(found, expected);
}
