//! Which service is admitted next, and which objects are evicted.

use alloc::format;
use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;
use core::net::Ipv4Addr;

use super::*;
use crate::facts::{
    AddressType, Conditions, Endpoint, Endpoints, EndpointsBuilder, Meta, ServiceType, Timestamp,
};
use crate::keys::{Family, ObjectName};

fn key(name: &str, source: Source) -> ServiceKey {
    let (namespace, name) = name.split_once('/').unwrap();
    ServiceKey { name: ObjectName::new(namespace, name).unwrap(), source }
}

fn service(name: &str, created: i64, source: Source) -> Arc<ServiceFacts> {
    let meta = Meta { created: Some(Timestamp(created)), ..Meta::default() };
    Arc::new(ServiceFacts { meta, ..ServiceFacts::new(key(name, source), ServiceType::ClusterIp) })
}

fn slice(service: &ServiceKey, name: &str) -> Arc<SliceFacts> {
    Arc::new(SliceFacts {
        key: SliceKey {
            name: ObjectName::new(service.name.namespace(), name).unwrap(),
            source: service.source,
        },
        meta: Meta::default(),
        service: Some(service.name.name().into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [].into(),
        endpoints: Endpoints::default(),
        endpoints_null: false,
        weights: None,
    })
}

/// The order in which all waiting services are admitted; each counts for its namespace from then on.
fn order(mut waiting: AdmissionQueue) -> Vec<String> {
    let mut residents = QuotaIds::default();
    let mut order = Vec::new();
    while let Some(key) = waiting.next_service(&residents, &|_, _| true) {
        waiting.remove(&key).unwrap();
        residents.add_service(key.name.namespace());
        order.push(format!("{key}"));
    }
    assert_eq!((waiting.len(), waiting.bytes, waiting.has_queue()), (0, 0, false), "nothing is left");
    order
}

#[test]
fn namespaces_take_turns_and_within_one_the_oldest_comes_first() {
    use Source::{Config, Kubernetes};
    let mut waiting = AdmissionQueue::default();
    for (name, created, source) in [
        ("many/c", 1, Kubernetes),
        ("many/a", 2, Kubernetes),
        ("many/b", 2, Kubernetes),
        ("many/d", 3, Kubernetes),
        ("one/young", 99, Kubernetes),
        ("own/block", 100, Config),
    ] {
        waiting.put_service(service(name, created, source));
    }
    let bare = key("few/slices-only", Kubernetes);
    waiting.put_slice(&bare, slice(&bare, "s"), true);
    let expected = ["own/block", "many/c", "one/young", "many/a", "many/b", "many/d", "few/slices-only"];
    assert_eq!(order(waiting), expected);
}

#[test]
fn a_waiting_object_is_admitted_in_its_last_version() {
    let mut waiting = AdmissionQueue::default();
    let a = key("ns/a", Source::Kubernetes);
    waiting.put_service(service("ns/a", 1, Source::Kubernetes));
    waiting.put_slice(&a, slice(&a, "s1"), true);
    waiting.put_slice(&a, slice(&a, "s2"), true);
    waiting.take_slice(&slice(&a, "s1").key);
    waiting.take_service(&a);
    assert_eq!(waiting.len(), 1);
    waiting.put_service(service("ns/a", 5, Source::Kubernetes));
    assert_eq!(waiting.next_service(&QuotaIds::default(), &|_, _| true), Some(a.clone()));
    assert_eq!(waiting.next_service(&QuotaIds::default(), &|_, _| false), None, "no namespace has capacity");
    let guest = waiting.remove(&a).unwrap();
    assert_eq!(guest.slices.len(), 1);
    assert_eq!(guest.facts, Some(service("ns/a", 5, Source::Kubernetes)));
    waiting.take_slice(&slice(&a, "s2").key);
    waiting.take_service(&a);
    assert!(order(waiting).is_empty());
}

#[test]
fn surplus_slices_wait_at_their_service_and_are_admitted_by_name() {
    let mut waiting = AdmissionQueue::default();
    let a = key("ns/a", Source::Kubernetes);
    for name in ["s3", "s1", "s2"] {
        waiting.put_slice(&a, slice(&a, name), false);
    }
    assert!(!waiting.has_queue() && waiting.next_service(&QuotaIds::default(), &|_, _| true).is_none());
    assert!(waiting.next_slice(&key("ns/b", Source::Kubernetes)).is_none());
    let names: Vec<_> =
        core::iter::from_fn(|| waiting.next_slice(&a)).map(|it| String::from(it.key.name.name())).collect();
    assert_eq!(names, vec!["s1", "s2", "s3"]);
}

#[test]
fn invariant_10_the_admission_queue_is_bounded_and_evicts_the_largest_namespace() {
    let mut waiting = AdmissionQueue::default();
    waiting.put_service(service("quiet/only", 999, Source::Kubernetes));
    let many = limits::WAITING_BYTES_MAX / OBJECT_BYTES + 100;
    for number in 0..many {
        let created = i64::try_from(number).unwrap();
        waiting.put_service(service(&format!("noise/s{number:06}"), created, Source::Kubernetes));
        assert!(waiting.bytes <= limits::WAITING_BYTES_MAX);
    }
    assert!(waiting.find_waiting(&key("quiet/only", Source::Kubernetes)).is_some());
    assert!(waiting.find_waiting(&key("noise/s000000", Source::Kubernetes)).is_some(), "the oldest stay");
    assert!(waiting.find_waiting(&key(&format!("noise/s{:06}", many - 1), Source::Kubernetes)).is_none());
    assert!(waiting.sources_to_relist().is_empty(), "no source relists while the queue is full");
    while waiting.bytes > limits::WAITING_BYTES_MAX / 2 {
        let next = waiting.next_service(&QuotaIds::default(), &|_, _| true).unwrap();
        waiting.remove(&next).unwrap();
    }
    assert_eq!(waiting.sources_to_relist(), BTreeSet::from([Source::Kubernetes]));
    assert!(waiting.sources_to_relist().is_empty(), "each source is asked once");
}

/// A slice of 1,000 endpoints, each with a long node name.
fn large() -> SliceFacts {
    let of = key("noise/many", Source::Kubernetes);
    let mut endpoints = EndpointsBuilder::new(Family::V4);
    for number in 0..1_000_u32 {
        let (address, name) = (Ipv4Addr::from_bits(0x0b00_0000 + number).into(), format!("{number:0>250}"));
        let node = Some(name.as_str().into());
        let conditions = Conditions::READY;
        let one = Endpoint { address, conditions, node, zone: None, hints: None, target: None };
        endpoints.push(one).unwrap();
    }
    SliceFacts { endpoints: endpoints.finish(), ..(*slice(&of, "s")).clone() }
}

/// The evicted part is not relisted, because it would exceed the bound again.
#[test]
fn invariant_10_an_evicted_part_of_one_oversized_service_causes_no_relist() {
    let (of, large) = (key("noise/many", Source::Kubernetes), large());
    for without_room in [false, true] {
        let mut waiting = AdmissionQueue::default();
        for number in 0..400 {
            let named = slice(&of, &format!("s{number:03}")).key.clone();
            waiting.put_slice(&of, Arc::new(SliceFacts { key: named, ..large.clone() }), without_room);
            assert!(waiting.bytes <= limits::WAITING_BYTES_MAX);
        }
        assert!(waiting.bytes > limits::WAITING_BYTES_MAX / 2 && waiting.len() < 400, "{}", waiting.len());
        assert!(waiting.sources_to_relist().is_empty(), "{without_room}");
        assert_eq!(waiting.next_slice(&of).unwrap().key.name.name(), "s000", "the first by name stay");
        while waiting.next_slice(&of).is_some() {}
        assert_eq!((waiting.len(), waiting.bytes), (0, 0));
        assert_eq!(waiting.sources_to_relist(), BTreeSet::from([Source::Kubernetes]));
    }
}
