//! Held addresses that another pod reuses.

use std::boxed::Box;

use super::*;
use crate::change::Cause;
use crate::facts::Target;
use crate::facts::endpoints::UidText;
use crate::hold::PodsAt;
use crate::op::FrontendType;
use crate::snapshot::{Reason, Verdict};

fn of_cluster(name: &str) -> ServiceKey {
    ServiceKey { source: Source::Kubernetes, ..service_key(name) }
}

/// The only slice of a service of the cluster, with targets of this kind at these addresses.
fn targets(service: &str, kind: &str, endpoints: &[(&str, &str)]) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for (address, uid) in endpoints {
        let target = Target { kind, namespace: "default", name: "p-1".into(), uid: UidText::parse(uid) };
        let endpoint = Endpoint {
            address: ip(address),
            conditions: Conditions::READY,
            node: None,
            zone: None,
            hints: None,
            target: Some(target),
        };
        builder.push(endpoint).unwrap();
    }
    let mut facts = SliceFacts { endpoints: builder.finish(), ..slice_facts(service, service, &[]) };
    facts.key.source = Source::Kubernetes;
    Event::SliceApplied(Arc::new(facts))
}

fn pods(service: &str, endpoints: &[(&str, &str)]) -> Event {
    targets(service, "Pod", endpoints)
}

fn heard(address: &str, uids: &[&str]) -> Event {
    let uids = uids.iter().map(|uid| Arc::from(*uid)).collect();
    Event::PodsObserved(Box::new(PodsAt { address: ip(address), uids }))
}

/// Two services of the cluster: `a` with two endpoints, which it will lose, and `b`.
fn rig(kind: &str) -> Rig {
    let mut rig = Rig::new();
    let mut events = vec![settings(OnEmpty::Auto)];
    for (name, address) in [("a", "10.0.0.1"), ("b", "10.0.0.2")] {
        events.push(applied(ServiceFacts { key: of_cluster(name), ..service(name, address, &[]) }));
    }
    events.push(targets("a", kind, &[("1.1.1.1", "a-1"), ("1.1.1.2", "a-2")]));
    events.push(pods("b", &[("1.1.1.3", "b-1")]));
    rig.turn(events);
    rig.now += 1_000;
    rig
}

#[track_caller]
fn check(snapshot: &Snapshot, expected: (Verdict, Option<Reason>, usize)) {
    let view = snapshot.services.iter().find(|view| view.key == of_cluster("a")).unwrap();
    let row = view.frontends.iter().find(|row| row.kind == FrontendType::ClusterIp).unwrap();
    assert_eq!((row.verdict, row.reason, view.backends(row).count()), expected);
}

const HELD: (Verdict, Option<Reason>, usize) = (Verdict::Held, Some(Reason::Vanished), 2);

#[test]
fn only_an_address_reused_by_another_pod_leaves_the_hold() {
    let mut rig = rig("Pod");
    check(&rig.turn(vec![pods("a", &[])]), HELD);
    check(&rig.turn(vec![heard("1.1.1.1", &["b-2"])]), HELD);
    // A claim alone ends nothing.
    check(&rig.turn(vec![pods("b", &[("1.1.1.1", "b-2"), ("1.1.1.3", "b-1")])]), HELD);
    for uids in [&["a-1"][..], &["a-1", "b-2"], &[]] {
        check(&rig.turn(vec![heard("1.1.1.1", uids)]), HELD);
    }
    check(&rig.turn(vec![heard("1.1.1.9", &["b-2"])]), HELD);

    check(&rig.turn(vec![heard("1.1.1.1", &["b-2"])]), (Verdict::Held, Some(Reason::Vanished), 1));
    let [change] = &rig.changes[..] else { panic!("{:?}", rig.changes) };
    assert!(change.service == of_cluster("a"), "{change:?}");
    assert!(matches!(change.causes[..], [Cause::AddressReused(_)]), "{change:?}");

    let more = [("1.1.1.1", "b-2"), ("1.1.1.2", "b-3"), ("1.1.1.3", "b-1")];
    rig.turn(vec![pods("b", &more)]);
    let refusing = (Verdict::Refusing, Some(Reason::AddressReused), 0);
    check(&rig.turn(vec![heard("1.1.1.2", &["b-3"])]), refusing);
    check(&rig.turn(vec![pods("a", &[("1.1.1.4", "a-4")])]), (Verdict::Serving, None, 1));
}

#[test]
fn a_non_pod_backend_stays_held_when_its_address_is_reused() {
    let mut rig = rig("VirtualMachine");
    check(&rig.turn(vec![targets("a", "VirtualMachine", &[])]), HELD);
    rig.turn(vec![pods("b", &[("1.1.1.1", "b-2")])]);
    check(&rig.turn(vec![heard("1.1.1.1", &["b-2"])]), HELD);
}

#[test]
fn the_apiservers_list_stays_held_when_its_addresses_are_reused() {
    let mut rig = rig("Pod");
    let bypass = ["1.1.1.1:8080".parse().unwrap()].into();
    let settings = Event::SettingsApplied(Arc::new(Settings { bypass, ..Settings::default() }));
    let control = (Verdict::Held, Some(Reason::Control), 2);
    check(&rig.turn(vec![settings, pods("a", &[])]), control);
    rig.turn(vec![pods("b", &[("1.1.1.1", "b-2")])]);
    check(&rig.turn(vec![heard("1.1.1.1", &["b-2"])]), control);
}

#[test]
fn a_mass_loss_releases_addresses_reused_by_other_pods() {
    let mut rig = rig("Pod");
    let names = ["c", "d", "e", "f"];
    for (name, number) in names.iter().zip(10..) {
        let facts = service(name, &std::format!("10.0.0.{number}"), &[]);
        rig.turn(vec![applied(facts), slice(name, &["1.1.2.1"])]);
    }
    let mut lost: Vec<_> = names.iter().map(|name| slice(name, &[])).collect();
    lost.extend([pods("a", &[]), pods("b", &[])]);
    check(&rig.turn(lost), (Verdict::Held, Some(Reason::MassLoss), 2));
    rig.turn(vec![pods("nobody", &[("1.1.1.1", "b-2")])]);
    let left = (Verdict::Held, Some(Reason::MassLoss), 1);
    check(&rig.turn(vec![heard("1.1.1.1", &["b-2"])]), left);
}
