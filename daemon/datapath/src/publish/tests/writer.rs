//! The writer over the explored maps: the real engine.

use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, NodeFacts, ServiceFacts, ServicePort,
    ServiceType, SliceFacts, SlicePort, TrafficPolicy,
};
use holdfast_core::index::Seed;
use holdfast_core::keys::{Family, ObjectName, Protocol, ServiceKey, SliceKey, Source};
use holdfast_core::time::ClockReading;

use super::memory::{Fault, Memory, ModelMaps};

const SOURCE: Source = Source::Manifests;

/// The engine over the explored maps.
pub(super) struct Writer(Engine<ModelMaps>);

impl Writer {
    pub(super) fn new(memory: &Arc<Memory>, fault: Fault) -> Self {
        let (mut engine, _) = Engine::start(ModelMaps::new(memory, fault), Seed(7), &[SOURCE]).unwrap();
        let node = NodeFacts { name: "here".into(), ..NodeFacts::default() };
        engine.apply(Event::NodeApplied(Arc::new(node)));
        engine.apply(Event::Synced(SOURCE));
        Self(engine)
    }

    pub(super) fn step(&mut self, events: Vec<Event>) {
        events.into_iter().for_each(|event| self.0.apply(event));
        self.0.step(ClockReading::default(), &mut |_| {});
    }
}

fn key(name: &str) -> ServiceKey {
    ServiceKey { name: ObjectName::new("default", name).unwrap(), source: SOURCE }
}

fn facts(name: &str, address: &str, port_name: &str) -> ServiceFacts {
    let port = NonZeroU16::new(80).unwrap();
    ServiceFacts {
        cluster_ips: vec![address.parse().unwrap()],
        ports: vec![ServicePort { name: port_name.into(), protocol: Protocol::TCP, port, node_port: None }],
        ..ServiceFacts::new(key(name), ServiceType::ClusterIp)
    }
}

/// A service with a cluster IP.
pub(super) fn service(name: &str, address: &str) -> Event {
    named(name, address, "")
}

/// The same with a named port.
pub(super) fn named(name: &str, address: &str, port_name: &str) -> Event {
    Event::ServiceApplied(Arc::new(facts(name, address, port_name)))
}

/// The same with only backends of this node.
pub(super) fn internal(name: &str, address: &str) -> Event {
    let internal_policy = TrafficPolicy::Local;
    Event::ServiceApplied(Arc::new(ServiceFacts { internal_policy, ..facts(name, address, "") }))
}

pub(super) fn deleted(name: &str) -> Event {
    Event::ServiceDeleted(key(name), None)
}

/// A service's slice with ready endpoints; `@` marks this node's.
pub(super) fn slice(service: &str, endpoints: &[&str]) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for text in endpoints {
        let address = text.trim_start_matches('@').parse().unwrap();
        let node = text.starts_with('@').then(|| "here".into());
        let conditions = Conditions::READY;
        builder.push(Endpoint { address, conditions, node, zone: None, hints: None, target: None }).unwrap();
    }
    let port = NonZeroU16::new(8080).unwrap();
    Event::SliceApplied(Arc::new(SliceFacts {
        key: SliceKey { name: ObjectName::new("default", service).unwrap(), source: SOURCE },
        meta: Meta::default(),
        service: Some(service.into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: ["", "web"].map(|name| SlicePort { name: name.into(), protocol: Protocol::TCP, port }).into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }))
}
