//! Interruptions, claims, and the index of holds by what may end them.

use std::vec;

use super::*;
use crate::hold::HeldBackend;
use crate::hold::held_list::ProbeState;
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
    let backends = vec![HeldBackend::new(row, ProbeState::Due)];
    let (begun, slices) = (Uptime(begun), Arc::default());
    Hold {
        reason: Reason::Vanished,
        begun,
        first_probe: None,
        bound_restarted: None,
        bound_reached: None,
        bound,
        slices,
        backends,
    }
}

#[test]
fn a_hold_is_found_by_address_and_deadline_until_it_ends() {
    let (mut ledger, id, address) = (Ledger::default(), ServiceId(0), A.parse::<SocketAddr>().unwrap());
    let (namespace, lists) = (Arc::from("default"), (ListPresence::default(), ListPresence::default()));
    let hold = hold(100, Bound::Guarded);
    ledger.account_decision((id, &namespace), [&hold].into_iter(), lists, (&POLICY, Uptime(100)));
    assert_eq!(ledger.look_up_holders(address.ip(), &"default".into()), Some(vec![(address, id)]));
    assert_eq!((ledger.take_due(Uptime(219)), ledger.take_due(Uptime(220))), (None, Some(id)));
    assert_eq!(ledger.take_due(Uptime(220)), None);
    ledger.account_decision((id, &namespace), [].iter(), lists, (&POLICY, Uptime(220)));
    assert!(ledger.is_empty() && ledger.held_services().is_empty());
    assert_eq!(ledger.take_due(Uptime(i64::MAX)), None);
}

#[test]
fn an_interruption_counts_from_the_decision_after_it_and_for_a_minute() {
    let mut ledger = Ledger::default();
    ledger.record_interruption(Source::Kubernetes);
    assert!(!ledger.is_resync(Source::Kubernetes, Uptime(10)));
    ledger.begin_decision(Uptime(10));
    let is_resync = |source, now| ledger.is_resync(source, Uptime(now));
    assert!(is_resync(Source::Kubernetes, 69) && !is_resync(Source::Kubernetes, 70));
    assert!(!is_resync(Source::Manifests, 10));
}

#[test]
fn invariant_10_claims_of_a_namespace_beyond_its_budget_are_ignored() {
    let (mut ledger, one, other) = (Ledger::default(), Arc::from("one"), Arc::from("other"));
    ledger.begin_decision(Uptime(100));
    let accepted = (0..100).filter(|_| ledger.accept_claim(&one)).count();
    assert_eq!((accepted, ledger.accept_claim(&other)), (CLAIMS_MAX, true));
    ledger.begin_decision(Uptime(100 + CLAIMS_WINDOW - 1));
    assert!(!ledger.accept_claim(&one));
    ledger.begin_decision(Uptime(100 + CLAIMS_WINDOW));
    assert!(ledger.accept_claim(&one) && ledger.claims.len() == 1, "other namespaces are dropped");
}
