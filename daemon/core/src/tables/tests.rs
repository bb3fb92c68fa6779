//! Which objects touch which services.

use std::format;
use std::string::String;
use std::vec;

use super::*;
use crate::facts::{AddressType, Endpoints, ServiceType};
use crate::keys::Family;

fn name(text: &str) -> ObjectName {
    ObjectName::new("ns", text).unwrap()
}

fn service(text: &str, uid: &str) -> Event {
    let key = ServiceKey { name: name(text), source: Source::Manifests };
    let meta = Meta { uid: Some(uid.into()), ..Meta::default() };
    Event::ServiceApplied(Arc::new(ServiceFacts { meta, ..ServiceFacts::new(key, ServiceType::ClusterIp) }))
}

fn service_deleted(text: &str) -> Event {
    Event::ServiceDeleted(ServiceKey { name: name(text), source: Source::Manifests }, None)
}

fn slice_facts(text: &str, service: &str, source: Source) -> SliceFacts {
    SliceFacts {
        key: SliceKey { name: name(text), source },
        meta: Meta::default(),
        service: (!service.is_empty()).then(|| service.into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [].into(),
        endpoints: Endpoints::default(),
        endpoints_null: false,
    }
}

fn slice(text: &str, service: &str) -> Event {
    Event::SliceApplied(Arc::new(slice_facts(text, service, Source::Manifests)))
}

fn slice_deleted(text: &str) -> Event {
    Event::SliceDeleted(SliceKey { name: name(text), source: Source::Manifests }, None)
}

fn tables() -> Tables {
    Tables::new(Seed::default(), &[], limits::SERVICES_MAX)
}

/// `name:slices` of each service that the event touches, as it is afterwards.
#[track_caller]
fn check(tables: &mut Tables, event: Event, touched: &[&str]) {
    let what = format!("{event:?}");
    let mut ids = Vec::new();
    tables.apply(event, &mut |id, _| ids.push(id));
    let shown = |id: &ServiceId| {
        let known = tables.get(*id).unwrap();
        let object = if known.facts.is_some() { "" } else { "?" };
        let slices: Vec<_> = known.slices.iter().map(|it| it.key.name.name()).collect();
        format!("{}{object}:{}", known.key.name.name(), slices.join(","))
    };
    let found: Vec<String> = ids.iter().map(shown).collect();
    assert_eq!(found, touched, "{what}");
}

#[test]
fn a_slice_may_come_before_its_service_and_stay_after_it() {
    let mut tables = tables();
    check(&mut tables, slice("s", "a"), &["a?:s"]);
    check(&mut tables, service("a", "1"), &["a:s"]);
    check(&mut tables, service_deleted("a"), &["a?:s"]);
    check(&mut tables, slice_deleted("s"), &["a?:"]);
    assert!(tables.forget(ServiceId(0)));
}

#[test]
fn names_that_contain_each_other_do_not_meet() {
    let mut tables = tables();
    for text in ["a", "a-b", "a-", "a0", "b"] {
        check(&mut tables, service(text, "1"), &[&format!("{text}:")]);
        check(&mut tables, slice(&format!("{text}-1"), text), &[&format!("{text}:{text}-1")]);
    }
    check(&mut tables, slice_deleted("a-1"), &["a:"]);
    check(&mut tables, service("a-b", "2"), &["a-b:a-b-1"]);
}

#[test]
fn a_slice_that_changes_its_label_leaves_the_old_service() {
    let mut tables = tables();
    check(&mut tables, slice("s", "a"), &["a?:s"]);
    check(&mut tables, slice("s", "b"), &["a?:", "b?:s"]);
    check(&mut tables, slice("s", ""), &["b?:"]);
    check(&mut tables, slice("s", "a"), &["a?:s"]);
    check(&mut tables, slice_deleted("s"), &["a?:"]);
    check(&mut tables, slice_deleted("s"), &[]);
}

#[test]
fn what_is_unchanged_touches_nothing() {
    let mut tables = tables();
    check(&mut tables, service("a", "1"), &["a:"]);
    check(&mut tables, service("a", "1"), &[]);
    check(&mut tables, slice("s", "a"), &["a:s"]);
    check(&mut tables, slice("s", "a"), &[]);
    check(&mut tables, service_deleted("b"), &[]);
    let node = Arc::new(NodeFacts { name: "n".into(), ..NodeFacts::default() });
    check(&mut tables, Event::NodeApplied(Arc::clone(&node)), &["a:s"]);
    let address = ["192.0.2.1".parse().unwrap()].into();
    let other_address = NodeFacts { node_port_addresses: address, ..(*node).clone() };
    check(&mut tables, Event::NodeApplied(Arc::new(other_address)), &[]);
    check(&mut tables, Event::SettingsApplied(Arc::default()), &[]);
}

#[test]
fn another_uid_is_another_object_under_one_name() {
    let mut tables = tables();
    check(&mut tables, service("a", "1"), &["a:"]);
    check(&mut tables, service("a", "2"), &["a:"]);
}

#[test]
fn a_slice_belongs_to_a_service_of_its_own_source() {
    let mut tables = tables();
    check(&mut tables, service("a", "1"), &["a:"]);
    let foreign = Event::SliceApplied(Arc::new(slice_facts("s", "a", Source::Kubernetes)));
    check(&mut tables, foreign, &["a?:s"]);
    assert_eq!(tables.get(ServiceId(0)).unwrap().slices.len(), 0);
}

#[test]
fn invariant_10_services_past_the_limit_are_named_and_their_ids_are_reused() {
    let mut tables = Tables::new(Seed::default(), &[], 1);
    check(&mut tables, service("a", "1"), &["a:"]);
    check(&mut tables, service("b", "1"), &[]);
    let b = ObjectKey::Service(ServiceKey { name: name("b"), source: Source::Manifests });
    assert_eq!(tables.rejections.named.keys().collect::<Vec<_>>(), vec![&b]);
    check(&mut tables, slice("s", "c"), &[]);
    let s = ObjectKey::Slice(SliceKey { name: name("s"), source: Source::Manifests });
    assert!(tables.rejections.named.contains_key(&s), "a slice that fits nowhere is named too");
    assert!(!tables.forget(ServiceId(0)), "something is known of it");
    check(&mut tables, service_deleted("a"), &["a?:"]);
    assert!(tables.forget(ServiceId(0)));
    check(&mut tables, service("b", "1"), &["b:"]);
    assert!(!tables.rejections.named.contains_key(&b));
}
