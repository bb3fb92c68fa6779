//! Which objects affect which services.

use std::format;
use std::string::String;
use std::vec;

use super::*;
use crate::facts::{AddressType, Endpoints, ServiceType};
use crate::keys::{Family, ObjectName};
use crate::limits;
use crate::snapshot::ServiceView;

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
        weights: None,
    }
}

fn slice(text: &str, service: &str) -> Event {
    Event::SliceApplied(Arc::new(slice_facts(text, service, Source::Manifests)))
}

fn slice_deleted(text: &str) -> Event {
    Event::SliceDeleted(SliceKey { name: name(text), source: Source::Manifests }, None)
}

fn tables() -> Tables {
    Tables::new(Seed(0), &[], limits::SERVICES_MAX)
}

/// Checks which services the event marks dirty, and their state afterwards: `name:slices`, or `name?:slices` without
/// the Service.
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
fn services_with_similar_names_share_no_slices() {
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
fn an_unchanged_object_marks_nothing_dirty() {
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

/// Admits waiting services, and shows each as `check` does.
fn admitted(tables: &mut Tables) -> Vec<String> {
    let mut ids = Vec::new();
    tables.admit(&mut |id, _| ids.push(id));
    ids.dedup();
    let shown = |id: &ServiceId| {
        let known = tables.get(*id).unwrap();
        let object = if known.facts.is_some() { "" } else { "?" };
        let slices: Vec<_> = known.slices.iter().map(|it| it.key.name.name()).collect();
        format!("{}{object}:{}", known.key.name.name(), slices.join(","))
    };
    ids.iter().map(shown).collect()
}

#[test]
fn invariant_07_the_first_slices_by_name_are_used_in_any_order_of_arrival() {
    let name = |number: usize| format!("s{number:05}");
    let most = limits::SLICES_PER_SERVICE_MAX;
    let orders: [Vec<usize>; 3] = [
        (0..most + 3).collect(),
        (0..most + 3).rev().collect(),
        (0..most + 3).map(|number| (number * 7) % (most + 3)).collect(),
    ];
    for order in orders {
        let mut tables = tables();
        for number in order {
            tables.apply(slice(&name(number), "a"), &mut |_, _| ());
        }
        let used = |tables: &Tables| -> Vec<String> {
            let known = tables.get(ServiceId(0)).unwrap();
            known.slices.iter().map(|it| it.key.name.name().into()).collect()
        };
        assert_eq!(used(&tables), (0..most).map(name).collect::<Vec<_>>());
        let rejections = tables.rejections();
        let named: Vec<_> =
            rejections.named.keys().map(|it| String::from(it.name().unwrap().name())).collect();
        assert_eq!(named, [name(most), name(most + 1), name(most + 2)]);
        assert!(rejections.named.values().all(|it| it.reason.contains("of one service")), "the right limit");
        for gone in [0, 5, most] {
            tables.apply(slice_deleted(&name(gone)), &mut |_, _| ());
        }
        let left = (0..most + 3).filter(|number| ![0, 5, most].contains(number));
        assert_eq!(used(&tables), left.map(name).collect::<Vec<_>>(), "each freed position is filled");
        assert!(tables.rejections().named.is_empty() && tables.rejections().waiting == 0);
    }
}

#[test]
fn a_slice_relabelled_to_a_waiting_service_leaves_its_old_service() {
    let mut tables = Tables::new(Seed(0), &[], 1);
    check(&mut tables, slice("s", "a"), &["a?:s"]);
    check(&mut tables, slice("s", "b"), &["a?:"]);
    assert!(tables.forget(ServiceId(0)));
    assert_eq!(admitted(&mut tables), ["b?:s"]);
}

#[test]
fn invariant_08_a_waiting_object_is_dropped_when_its_source_deletes_it() {
    let mut tables = Tables::new(Seed(0), &[Source::Manifests], 1);
    check(&mut tables, service("a", "1"), &["a:"]);
    let facts = |name: &str| Arc::new(slice_facts(name, "b", Source::Manifests));
    let view = ServiceView {
        key: ServiceKey { name: name("b"), source: Source::Manifests },
        facts: None,
        slices: [facts("s1"), facts("s2")].into(),
        state: crate::snapshot::ServiceState::NoService,
        ports: Box::default(),
        frontends: Box::default(),
        balancer_history: None,
    };
    assert!(tables.restore_service(&view).is_none(), "there is no capacity");
    assert_eq!(tables.rejections().waiting, 2);
    check(&mut tables, slice("s2", "b"), &[]);
    check(&mut tables, Event::Synced(Source::Manifests), &[]);
    check(&mut tables, service_deleted("a"), &["a?:"]);
    assert!(tables.forget(ServiceId(0)));
    assert_eq!(admitted(&mut tables), ["b?:s2"]);
}

#[test]
fn invariant_10_services_beyond_the_limit_are_named_and_ids_are_reused() {
    let mut tables = Tables::new(Seed(0), &[], 1);
    check(&mut tables, service("a", "1"), &["a:"]);
    check(&mut tables, service("b", "1"), &[]);
    let b = ObjectKey::Service(ServiceKey { name: name("b"), source: Source::Manifests });
    assert_eq!(tables.rejections().named.keys().collect::<Vec<_>>(), vec![&b]);
    check(&mut tables, slice("s", "c"), &[]);
    let s = ObjectKey::Slice(SliceKey { name: name("s"), source: Source::Manifests });
    assert!(tables.rejections().named.contains_key(&s), "a slice that fits nowhere is named too");
    assert!(!tables.forget(ServiceId(0)), "the Service is still known");
    check(&mut tables, service_deleted("a"), &["a?:"]);
    assert!(tables.forget(ServiceId(0)));
    check(&mut tables, service("b", "2"), &[]);
    assert_eq!(admitted(&mut tables), ["b:"], "it waited, and gets the freed id");
    let rejections = tables.rejections();
    assert_eq!(rejections.named.keys().collect::<Vec<_>>(), vec![&s]);
    assert_eq!(rejections.waiting, 1);
}

/// A Service of a tenant's namespace that no client can dial.
fn unserved(namespace: &str, number: usize) -> (ServiceKey, Event) {
    let name = ObjectName::new(namespace, &format!("s{number:05}")).unwrap();
    let key = ServiceKey { name, source: Source::Kubernetes };
    let facts = ServiceFacts::new(key.clone(), ServiceType::ExternalName);
    (key, Event::ServiceApplied(Arc::new(facts)))
}

#[test]
fn invariant_10_a_namespace_with_many_services_leaves_ids_to_others() {
    let most = limits::QUOTA_CAPACITY_MIN as usize;
    let part = most * limits::QUOTA_REST_FACTOR as usize / (limits::QUOTA_REST_FACTOR as usize + 1);
    let mut tables = Tables::new(Seed(0), &[], most);
    let apply = |tables: &mut Tables, event| tables.apply(event, &mut |_, _| ());
    for number in 0..most + 5 {
        apply(&mut tables, unserved("tenant", number).1);
    }
    let had = |tables: &Tables, namespace: &str| {
        tables.ids().filter(|id| tables.get(*id).unwrap().key.name.namespace() == namespace).count()
    };
    assert!(had(&tables, "tenant").abs_diff(part) <= 1, "{}", had(&tables, "tenant"));
    let reason = Arc::clone(&tables.rejections().named.values().next().unwrap().reason);
    assert!(reason.contains("of its services are known and leave 1"), "{reason}");
    // Others' objects are admitted at once although the tenant's services wait.
    (0..50).for_each(|number| apply(&mut tables, unserved("others", number).1));
    assert_eq!(had(&tables, "others"), 50);
    // A redelivered object that waits is not admitted twice.
    apply(&mut tables, unserved("tenant", most + 4).1);
    let before = had(&tables, "tenant");
    tables.admit(&mut |_, _| ());
    assert_eq!(had(&tables, "tenant"), before, "nothing came free");
    let (gone, _) = unserved("tenant", 0);
    let id = tables.find_id(&gone).unwrap();
    apply(&mut tables, Event::ServiceDeleted(gone, None));
    assert!(tables.forget(id));
    tables.admit(&mut |_, _| ());
    assert!(had(&tables, "tenant") < before, "others were admitted meanwhile, and its quota is smaller");
    // The last ids go to namespaces that have none.
    for namespace in 0..most {
        apply(&mut tables, unserved(&format!("n{namespace}"), 0).1);
    }
    assert_eq!(tables.ids().count(), most);
}

#[test]
fn the_administrators_services_get_ids_while_any_are_free() {
    let most = limits::QUOTA_CAPACITY_MIN as usize;
    let mut tables = Tables::new(Seed(0), &[], most);
    (0..most).for_each(|number| tables.apply(service(&format!("s{number}"), "1"), &mut |_, _| ()));
    assert_eq!((tables.ids().count(), tables.rejections().waiting), (most, 0));
}

#[test]
fn restored_services_keep_their_ids_beyond_their_namespaces_quota() {
    let most = limits::QUOTA_CAPACITY_MIN as usize;
    let mut tables = Tables::new(Seed(0), &[Source::Kubernetes], most);
    for number in 0..most {
        let (key, event) = unserved("tenant", number);
        let Event::ServiceApplied(facts) = event else { unreachable!() };
        let view = ServiceView {
            key,
            facts: Some(facts),
            slices: Arc::default(),
            state: crate::snapshot::ServiceState::ExternalName,
            ports: Box::default(),
            frontends: Box::default(),
            balancer_history: None,
        };
        assert!(tables.restore_service(&view).is_some(), "{number}");
    }
}
