//! A restart: which indices of the maps are adopted, and which leftovers are removed.

use super::*;
use crate::keys::{FrontendKey, Transport};
use crate::list::{Slot, SlotState};
use crate::op::{Dump, DumpPort, FrontendType, FrontendValue, PortFacts, PortIndex, Word};

const INDEX: PortIndex = PortIndex(3);

/// Maps in which 10.0.0.9:80 is a frontend of this kind.
fn found(kind: FrontendType) -> Rig {
    found_all(kind, &["10.0.0.9"])
}

/// Maps in which port 80 of all these addresses has the same index.
fn found_all(kind: FrontendType, addresses: &[&str]) -> Rig {
    let port = NonZeroU16::new(80).unwrap();
    let key = |text: &&str| FrontendKey { address: ip(text), port, transport: Transport::Tcp };
    let slot = Slot {
        address: "1.1.1.1".parse().unwrap(),
        port: 8080.try_into().unwrap(),
        state: SlotState::Active,
    };
    let word = Word { base: 0, count: 1, ..Word::EMPTY };
    let port = DumpPort {
        index: INDEX,
        family: Family::V4,
        facts: PortFacts::default(),
        cluster: (word, vec![slot]),
        local: (Word::EMPTY, vec![]),
    };
    let frontends =
        addresses.iter().map(|it| (key(it), FrontendValue { port: INDEX, kind, quota: share() })).collect();
    let mut rig = Rig::new();
    assert_eq!(rig.world.adopt(&Dump { frontends, ports: vec![port], ..Dump::default() }), []);
    rig
}

fn names(rig: &Rig) -> Vec<&'static str> {
    rig.log.iter().map(|op| op.action.name()).collect()
}

#[test]
fn invariant_08_an_unchanged_port_is_found_again_without_an_op() {
    let mut rig = found(FrontendType::ClusterIp);
    let snapshot = rig.turn(vec![applied(service("a", "10.0.0.9", &[])), slice("a", &["1.1.1.1"])]);
    assert_eq!(names(&rig), [] as [&str; 0]);
    assert_eq!(view(&snapshot, "a").ports[0].index, Some(INDEX));
}

#[test]
fn an_index_with_another_kind_of_frontend_is_not_adopted() {
    // Until the frontend is rewritten, its clients would read the new lists by the rules of the old kind.
    let mut rig = found(FrontendType::ExternalIp);
    let snapshot = rig.turn(vec![applied(service("a", "10.0.0.9", &[])), slice("a", &["1.1.1.1"])]);
    assert_eq!(names(&rig), ["write range", "publish word", "insert frontend"]);
    assert_ne!(view(&snapshot, "a").ports[0].index, Some(INDEX));
    rig.grace();
    assert_eq!(names(&rig), ["publish word"], "the old index is wiped");
}

/// Any tenant may list any external IP, and could otherwise take over another namespace's quota.
#[test]
fn a_start_restores_a_namespaces_number_from_frontends_of_the_same_kind() {
    for (kind, keeps) in [
        (FrontendType::ClusterIp, true),
        (FrontendType::ExternalIp, false),
        (FrontendType::LoadBalancer, false),
    ] {
        let mut rig = found(kind);
        rig.turn(vec![applied(service("a", "10.0.0.9", &[]))]);
        let id = rig.id("a");
        assert_eq!(rig.world.tables.quota(id) == share(), keeps, "{kind:?}");
    }
}

#[test]
fn leftovers_that_no_service_adopts_are_removed() {
    let mut rig = found(FrontendType::ClusterIp);
    rig.turn(vec![]);
    assert_eq!(names(&rig), ["remove frontend"]);
    rig.turn(vec![]);
    assert_eq!(names(&rig), [] as [&str; 0], "a reader may have found the frontend");
    rig.grace();
    assert_eq!(names(&rig), ["publish word"]);
}

#[test]
fn an_index_that_lost_a_frontend_is_not_adopted() {
    // A client that has read that frontend may not have read the word yet.
    let mut rig = found_all(FrontendType::ClusterIp, &["10.0.0.8", "10.0.0.9"]);
    rig.refuse = |op| matches!(op.action, Action::RemoveFrontend(_));
    rig.turn(vec![applied(service("a", "10.0.0.8", &[])), slice("a", &["1.1.1.2"])]);
    let snapshot = rig.turn(vec![applied(service("b", "10.0.0.9", &[])), slice("b", &["1.1.1.3"])]);
    assert_ne!(view(&snapshot, "b").ports[0].index, Some(INDEX));
}

#[test]
fn an_index_of_another_policy_is_not_adopted() {
    let mut rig = found(FrontendType::ExternalIp);
    let facts = service("a", "10.0.0.1", &["10.0.0.9"]);
    let snapshot = rig.turn(vec![applied(ServiceFacts { external_policy: local(), ..facts })]);
    assert_ne!(view(&snapshot, "a").ports[0].index, Some(INDEX));
}
