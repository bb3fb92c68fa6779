//! Losses within their window, interruptions, and holds by what may end them.

use std::vec;

use super::*;
use crate::hold::HeldBackend;
use crate::hold::held::Asked;
use crate::list::Row;
use crate::snapshot::Reason;

const POLICY: Policy = Policy {
    mass_loss_window: 30,
    mass_loss_share: 250_000,
    limit: 120,
    mass_loss_limit: 600,
    on_empty: ON_EMPTY,
};
const ON_EMPTY: crate::hold::OnEmpty = crate::hold::OnEmpty::Auto;
const A: &str = "192.0.2.1:80";

fn hold(begun: i64, bound: Bound) -> Hold {
    let backend: SocketAddr = A.parse().unwrap();
    let row =
        Row::new(backend.ip(), backend.port().try_into().unwrap(), crate::facts::Conditions::READY, 0, 0);
    let backends = vec![HeldBackend { row, asked: Asked::Due, answered: false, failures: 0, lost: None }];
    let (begun, slices) = (Uptime(begun), Arc::default());
    Hold { reason: Reason::Vanished, begun, asked: None, bound, slices, backends }
}

/// Services that had lists, of which the first ones lose theirs at a time of their own.
fn ledger(populated: u32, lost: &[i64]) -> Ledger {
    let mut ledger = Ledger::default();
    for id in 0..populated {
        ledger.account(ServiceId(id), [].iter(), (false, true), (&POLICY, Uptime(0)));
    }
    for (id, at) in (0..).zip(lost) {
        let hold = hold(*at, Bound::Guarded);
        ledger.account(ServiceId(id), [&hold].into_iter(), (true, true), (&POLICY, Uptime(*at)));
    }
    ledger
}

fn ids(ids: &[u32]) -> vec::Vec<ServiceId> {
    ids.iter().copied().map(ServiceId).collect()
}

#[test]
fn losses_within_the_window_are_a_mass_loss_whatever_their_order() {
    for lost in [[100, 110, 120, 130], [130, 100, 120, 110]] {
        let mass = ledger(12, &lost).judge_mass(&POLICY, Uptime(130));
        let expected = MassLoss { lost: 4, populated: 12, services: ids(&[0, 1, 2, 3]) };
        assert_eq!(mass, Some(expected), "{lost:?}");
    }
}

#[test]
fn losses_before_the_window_count_no_more() {
    let lost = [100, 110, 120, 130];
    assert!(ledger(12, &lost).judge_mass(&POLICY, Uptime(131)).is_none());
    assert!(ledger(16, &lost).judge_mass(&POLICY, Uptime(130)).is_none(), "not more than the share");
}

#[test]
fn a_mass_loss_is_told_once_and_again_with_each_that_joins() {
    let mut ledger = ledger(12, &[100, 100, 100, 100]);
    assert!(ledger.judge_mass(&POLICY, Uptime(100)).is_some());
    assert!(ledger.judge_mass(&POLICY, Uptime(101)).is_none());
    let hold = hold(102, Bound::Guarded);
    ledger.account(ServiceId(4), [&hold].into_iter(), (true, true), (&POLICY, Uptime(102)));
    let told = ledger.judge_mass(&POLICY, Uptime(102)).map(|mass| mass.services);
    assert_eq!(told, Some(ids(&[0, 1, 2, 3, 4])));
}

#[test]
fn what_is_held_by_right_is_no_loss() {
    let mut ledger = ledger(4, &[100, 100, 100]);
    for bound in [Bound::Limit, Bound::Unlimited] {
        let hold = hold(100, bound);
        ledger.account(ServiceId(3), [&hold].into_iter(), (true, true), (&POLICY, Uptime(100)));
        assert!(ledger.judge_mass(&POLICY, Uptime(100)).is_none(), "{bound:?}");
    }
}

#[test]
fn a_hold_is_found_by_its_address_and_by_its_deadline_as_long_as_it_is_there() {
    let (mut ledger, id, address) = (ledger(1, &[100]), ServiceId(0), A.parse().unwrap());
    assert_eq!(ledger.holders(address), Some(&BTreeSet::from([id])));
    assert_eq!((ledger.take_due(Uptime(219)), ledger.take_due(Uptime(220))), (None, Some(id)));
    assert_eq!(ledger.take_due(Uptime(220)), None);
    ledger.account(id, [].iter(), (true, false), (&POLICY, Uptime(220)));
    assert!(ledger.is_empty() && ledger.held().is_empty());
    assert_eq!(ledger.take_due(Uptime(i64::MAX)), None);
}

#[test]
fn an_interruption_counts_from_the_decision_after_it_and_for_a_minute() {
    let mut ledger = Ledger::default();
    ledger.interrupt(Source::Kubernetes);
    assert!(!ledger.is_resync(Source::Kubernetes, Uptime(10)));
    ledger.begin(Uptime(10));
    let is_resync = |source, now| ledger.is_resync(source, Uptime(now));
    assert!(is_resync(Source::Kubernetes, 69) && !is_resync(Source::Kubernetes, 70));
    assert!(!is_resync(Source::Manifests, 10));
}
