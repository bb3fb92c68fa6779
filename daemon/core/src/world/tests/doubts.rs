//! The traces of refused ops, and their removal.

use super::*;
use crate::keys::Transport;
use crate::op::{FrontendType, FrontendValue, Owner, QuotaId, Word};
use crate::snapshot::Status;

fn created(name: &str, at: i64) -> Event {
    let meta = Meta { created: Some(Timestamp(at)), ..Meta::default() };
    let own = std::format!("10.0.0.{at}");
    applied(ServiceFacts { meta, ..service(name, &own, &["10.0.0.9"]) })
}

fn touches_shared(op: &Op) -> bool {
    match op.action {
        Action::InsertFrontend(key, _) | Action::RemoveFrontend(key) => key.address == ip("10.0.0.9"),
        _ => false,
    }
}

#[test]
fn a_failed_claimant_keeps_nothing_once_the_owner_has_written() {
    let mut rig = Rig::new();
    rig.turn(vec![created("b", 2)]);
    rig.refuse = touches_shared;
    rig.turn(vec![created("a", 1)]);
    rig.refuse = |_| false;
    rig.turn(vec![deleted("a")]);
    while rig.world.has_dirty() {
        rig.turn(vec![]);
    }
    assert_eq!(rig.world.tables.ids().count(), 1, "the failed claimant is forgotten");
    rig.turn(vec![deleted("b")]);
    rig.turn(vec![]);
    assert_eq!(rig.world.tables.ids().count(), 0);
}

#[test]
fn a_row_is_not_done_while_its_facts_are_refused() {
    let mut rig = Rig::new();
    let facts = |timeout| ServiceFacts { affinity_timeout: Some(timeout), ..service("a", "10.0.0.1", &[]) };
    rig.turn(vec![applied(facts(60)), slice("a", &["1.1.1.1"])]);
    rig.refuse = |op| matches!(op.action, Action::WriteFacts(..));
    let snapshot = rig.turn(vec![applied(facts(120))]);
    assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").status, Status::Error("refused".into()));
}

#[test]
fn an_unpublished_range_is_released_whatever_the_other_family_publishes() {
    let mut rig = Rig::new();
    // Both families begin at slot 0, so their words are the same.
    let addresses = vec![ip("10.0.0.1"), ip("fd00::1")];
    let facts = ServiceFacts { cluster_ips: addresses, ..service("a", "10.0.0.1", &[]) };
    let mut builder = EndpointsBuilder::new(Family::V6);
    let address = ip("fd00::9");
    let conditions = Conditions::READY;
    builder
        .push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None })
        .unwrap();
    let six = SliceFacts {
        address_type: AddressType::Ip(Family::V6),
        endpoints: builder.finish(),
        ..slice_facts("a-6", "a", &[])
    };
    rig.refuse = |op| matches!(op.action, Action::WriteRange(range, ..) if range.family == Family::V6);
    rig.turn(vec![applied(facts), slice("a", &["1.1.1.1"]), Event::SliceApplied(Arc::new(six))]);
    assert_eq!(Family::ALL.map(|family| rig.world.space.used(family)), [1, 0]);
}

#[test]
fn invariant_03_an_op_for_an_unknown_port_is_counted_and_ignored() {
    let mut rig = Rig::new();
    rig.turn(vec![applied(service("a", "10.0.0.1", &[])), slice("a", &["1.1.1.1"])]);
    let owner = Owner::Service(rig.id("a"));
    let unknown = PortIndex(7);
    let before = rig.dump();
    let action = Action::PublishWord(unknown, Scope::Cluster, Word { base: 3, count: 1, ..Word::EMPTY });
    rig.world.record_accepted(&Op { owner, action });
    let frontend = FrontendKey {
        address: ip("10.0.0.9"),
        port: NonZeroU16::new(80).unwrap(),
        transport: Transport::Tcp,
    };
    let value = FrontendValue { port: unknown, kind: FrontendType::ClusterIp, quota: QuotaId::default() };
    rig.world.record_accepted(&Op { owner: Owner::Nobody, action: Action::InsertFrontend(frontend, value) });
    assert_eq!(rig.turn(vec![]).counters.impossible, 2);
    assert_eq!(rig.dump(), before);
}
