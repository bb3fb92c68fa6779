//! The order of ops: nothing that clients can still reach is emptied.

use super::*;
use crate::change::Cause;
use crate::list::Scope;
use crate::op::{Membership, WordFlags};

/// The positions in the log of the op that empties a list, and of the op that removes or moves the shared frontend.
fn positions(log: &[Op], scope: Scope) -> (Option<usize>, Option<usize>) {
    let empties =
        |op: &Op| matches!(op.action, Action::PublishWord(_, it, word) if it == scope && word.count == 0);
    let moves = |op: &Op| match op.action {
        Action::InsertFrontend(key, _) | Action::RemoveFrontend(key) => key.address == ip("10.0.0.9"),
        _ => false,
    };
    (log.iter().position(empties), log.iter().position(moves))
}

fn internal(name: &str, cluster_ip: &str, external_ips: &[&str]) -> ServiceFacts {
    ServiceFacts { internal_policy: local(), ..service(name, cluster_ip, external_ips) }
}

#[test]
fn invariant_04_a_list_outlives_the_last_frontend_that_reads_it() {
    let mut rig = Rig::new();
    let endpoints = slice("a", &["@1.1.1.1", "1.1.1.2"]);
    rig.turn(vec![applied(internal("a", "10.0.0.1", &["10.0.0.9"])), endpoints]);
    rig.turn(vec![applied(internal("a", "10.0.0.1", &[]))]);
    let (emptied, removed) = positions(&rig.log, Scope::Cluster);
    assert!(removed.is_some() && emptied.is_none(), "a reader may have found the frontend: {:?}", rig.log);
    rig.turn(vec![applied(internal("a", "10.0.0.1", &[]))]);
    assert_eq!(positions(&rig.log, Scope::Cluster).0, None, "and may still be there: {:?}", rig.log);
    rig.grace();
    assert!(positions(&rig.log, Scope::Cluster).0.is_some(), "{:?}", rig.log);
}

#[test]
fn invariant_04_a_list_outlives_a_frontend_that_another_service_takes_over() {
    let mut rig = Rig::new();
    let heir = ServiceFacts { meta: Meta::default(), ..service("b", "10.0.0.2", &["10.0.0.9"]) };
    let meta = Meta { created: Some(Timestamp(1)), ..Meta::default() };
    let first = ServiceFacts { meta: meta.clone(), ..internal("a", "10.0.0.1", &["10.0.0.9"]) };
    rig.turn(vec![applied(first), applied(heir), slice("a", &["1.1.1.1"]), slice("b", &["1.1.1.2"])]);
    let next = ServiceFacts { meta, ..internal("a", "10.0.0.1", &[]) };
    rig.refuse = is_insert;
    rig.turn(vec![applied(next)]);
    assert_eq!(positions(&rig.log, Scope::Cluster), (None, None), "the heir's op was refused: {:?}", rig.log);
    rig.refuse = |_| false;
    rig.retry(rig.id("b"));
    let mut log = Vec::new();
    for _ in 0..3 {
        rig.turn(vec![]);
        log.append(&mut rig.log);
    }
    let (emptied, moved) = positions(&log, Scope::Cluster);
    assert!(moved.is_some() && emptied.is_none(), "{log:?}");
    rig.grace();
    assert!(positions(&rig.log, Scope::Cluster).0.is_some(), "{:?}", rig.log);
}

#[test]
fn invariant_04_outside_clients_keep_the_local_list_until_their_frontend_goes() {
    let mut rig = Rig::new();
    let kind = ServiceType::LoadBalancer;
    let facts = |external: &[&str]| ServiceFacts {
        kind,
        external_policy: local(),
        ..service("a", "10.0.0.1", external)
    };
    rig.turn(vec![applied(facts(&["10.0.0.9"])), slice("a", &["@1.1.1.1", "1.1.1.2"])]);
    rig.turn(vec![applied(facts(&[]))]);
    let redirects = |op: &Op| {
        let flag = WordFlags::EXTERNAL_LOCAL;
        matches!(op.action, Action::PublishWord(_, Scope::Cluster, word) if !word.flags.contains(flag))
    };
    let (_, removed) = positions(&rig.log, Scope::Local);
    assert!(removed.is_some() && !rig.log.iter().any(redirects), "{:?}", rig.log);
    rig.grace();
    let (emptied, _) = positions(&rig.log, Scope::Local);
    assert!(rig.log.iter().any(redirects) && emptied.is_none(), "some were sent there: {:?}", rig.log);
    rig.grace();
    assert!(positions(&rig.log, Scope::Local).0.is_some(), "{:?}", rig.log);
}

#[test]
fn invariant_04_range_then_word_then_frontend() {
    let mut rig = Rig::new();
    rig.turn(vec![applied(service("a", "10.0.0.1", &[])), slice("a", &["1.1.1.1"])]);
    let names: Vec<_> = rig.log.iter().map(|op| op.action.name()).collect();
    assert_eq!(names, ["write range", "publish word", "insert frontend"]);
    rig.turn(vec![deleted("a")]);
    let names: Vec<_> = rig.log.iter().map(|op| op.action.name()).collect();
    assert_eq!(names, ["remove frontend"]);
    assert!(
        rig.world.space.freed.has_new(),
        "the word waits until every reader has left that found the frontend"
    );
    rig.grace();
    let names: Vec<_> = rig.log.iter().map(|op| op.action.name()).collect();
    assert_eq!(names, ["publish word"]);
    assert!(rig.world.space.freed.has_new(), "the range waits as well");
}

#[test]
fn invariant_04_clients_leaving_the_local_list_never_read_another() {
    let mut rig = Rig::new();
    let facts = |internal_policy| ServiceFacts {
        internal_policy,
        external_policy: local(),
        ..service("a", "10.0.0.1", &["10.0.0.9"])
    };
    rig.turn(vec![applied(facts(local())), slice("a", &["@1.1.1.1", "1.1.1.2"])]);
    rig.turn(vec![applied(facts(TrafficPolicy::Cluster)), slice("a", &["@1.1.1.3", "1.1.1.4"])]);
    let published = rig.log.iter().filter_map(|op| match op.action {
        Action::PublishWord(_, scope, _) => Some(scope),
        _ => None,
    });
    assert_eq!(published.collect::<Vec<_>>(), [Scope::Cluster, Scope::Local]);
    rig.turn(vec![applied(facts(local())), slice("a", &["@1.1.1.1", "1.1.1.2"])]);
    let published = rig.log.iter().filter_map(|op| match op.action {
        Action::PublishWord(_, scope, _) => Some(scope),
        _ => None,
    });
    assert_eq!(
        published.collect::<Vec<_>>(),
        [Scope::Local, Scope::Cluster],
        "the other order when turning to Local"
    );
}

#[test]
fn invariant_04_clients_turning_to_the_local_list_read_no_stale_one() {
    let mut rig = Rig::new();
    let facts = |internal_policy, external_policy, external: &[&str]| ServiceFacts {
        kind: ServiceType::LoadBalancer,
        internal_policy,
        external_policy,
        ..service("a", "10.0.0.1", external)
    };
    let cluster = TrafficPolicy::Cluster;
    rig.turn(vec![applied(facts(cluster, local(), &["10.0.0.9"])), slice("a", &["@1.1.1.1", "1.1.1.2"])]);
    // Readers may still use the removed frontend, so its flag stays; its list is no longer written.
    rig.turn(vec![applied(facts(cluster, local(), &[])), slice("a", &["@1.1.1.3", "1.1.1.4"])]);
    rig.turn(vec![applied(facts(local(), cluster, &["10.0.0.9"]))]);
    let published = rig.log.iter().filter_map(|op| match op.action {
        Action::PublishWord(_, scope, _) => Some(scope),
        _ => None,
    });
    assert_eq!(published.collect::<Vec<_>>(), [Scope::Local, Scope::Cluster], "{:?}", rig.log);
}

#[test]
fn invariant_04_a_renamed_port_keeps_its_list_until_readers_leave() {
    let mut rig = Rig::new();
    rig.turn(vec![applied(service("a", "10.0.0.9", &[])), slice("a", &["1.1.1.1"])]);
    let mut renamed = service("a", "10.0.0.9", &[]);
    renamed.ports.iter_mut().for_each(|port| port.name = "web".into());
    rig.turn(vec![applied(renamed)]);
    let (emptied, moved) = positions(&rig.log, Scope::Cluster);
    assert!(moved.is_some() && emptied.is_none(), "{:?}", rig.log);
    rig.grace();
    assert!(positions(&rig.log, Scope::Cluster).0.is_some(), "{:?}", rig.log);
}

#[test]
fn invariant_04_the_local_list_stays_while_readers_are_sent_there() {
    let mut rig = Rig::new();
    rig.turn(vec![applied(internal("a", "10.0.0.9", &[])), slice("a", &["@1.1.1.1", "1.1.1.2"])]);
    rig.turn(vec![applied(service("a", "10.0.0.9", &[]))]);
    assert_eq!(positions(&rig.log, Scope::Local).0, None, "{:?}", rig.log);
    rig.grace();
    assert!(positions(&rig.log, Scope::Local).0.is_some(), "{:?}", rig.log);
    let causes: Vec<_> = rig.changes.iter().flat_map(|change| &change.causes).collect();
    assert!(matches!(causes[..], [Cause::ReadersLeft]), "{causes:?}");
}

/// As `slice`, over UDP; `first`: the first endpoint terminates, serving or not.
fn udp_slice(first: Option<bool>, others: &[&str]) -> Event {
    let mut facts = slice_facts("a", "a", others);
    let mut builder = EndpointsBuilder::new(Family::V4);
    if let Some(serving) = first {
        let conditions = Conditions { ready: false, serving, terminating: true };
        let endpoint = Endpoint {
            address: ip("1.1.1.1"),
            conditions,
            node: None,
            zone: None,
            hints: None,
            target: None,
        };
        builder.push(endpoint).unwrap();
    }
    facts.endpoints.iter().for_each(|endpoint| builder.push(endpoint).unwrap());
    facts.endpoints = builder.finish();
    facts.ports = [SlicePort { protocol: Protocol::UDP, ..facts.ports[0].clone() }].into();
    Event::SliceApplied(Arc::new(facts))
}

#[test]
fn a_serving_backend_is_a_member_before_its_word_until_it_stops() {
    let mut rig = Rig::new();
    let mut facts = service("a", "10.0.0.1", &[]);
    facts.ports[0].protocol = Protocol::UDP;
    let is_about = |op: &Op, inserted: bool, backend: &str| match op.action {
        Action::InsertMember(key, _) => inserted && key.backend.ip() == ip(backend),
        Action::RemoveMember(key) => !inserted && key.backend.ip() == ip(backend),
        _ => false,
    };
    rig.turn(vec![applied(facts), udp_slice(None, &["1.1.1.1", "1.1.1.2"])]);
    let says = |op: &Op| match op.action {
        Action::PublishWord(_, Scope::Cluster, word) => word.flags.contains(WordFlags::MEMBERS),
        _ => false,
    };
    let said = rig.log.iter().position(says).unwrap();
    for backend in ["1.1.1.1", "1.1.1.2"] {
        let known = rig.log.iter().position(|op| is_about(op, true, backend)).unwrap();
        assert!(known < said, "{:?}", rig.log);
    }
    let no_list = |op: &Op| match op.action {
        Action::InsertMember(key, _) | Action::RemoveMember(key) => key.membership == Membership::Serving,
        _ => true,
    };
    assert!(rig.log.iter().all(no_list), "no list without affinity: {:?}", rig.log);

    rig.turn(vec![udp_slice(Some(true), &["1.1.1.2"])]);
    assert!(!rig.log.iter().any(|op| is_about(op, false, "1.1.1.1")), "it serves: {:?}", rig.log);
    rig.turn(vec![udp_slice(Some(false), &["1.1.1.2"])]);
    assert!(rig.log.iter().any(|op| is_about(op, false, "1.1.1.1")), "it serves nowhere: {:?}", rig.log);
    let gone = rig.turn(vec![udp_slice(None, &["1.1.1.2"])]);
    assert_eq!(view(&gone, "a").ports[0].rows.iter().len(), 1);
    assert_eq!(rig.log.len(), 0, "nothing of it is left to remove: {:?}", rig.log);
}

/// A client with affinity whose backend is no member would be given another one.
#[test]
fn invariant_04_members_are_written_before_their_list_and_removed_after() {
    let mut rig = Rig::new();
    let sticky = ServiceFacts { affinity_timeout: Some(60), ..service("a", "10.0.0.1", &[]) };
    rig.turn(vec![applied(sticky), slice("a", &["1.1.1.1", "1.1.1.2"])]);
    rig.turn(vec![slice("a", &["1.1.1.2", "1.1.1.3"])]);
    let names: Vec<_> = rig.log.iter().map(|op| op.action.name()).collect();
    assert_eq!(names, ["insert member", "write range", "publish word", "remove member"]);
}
