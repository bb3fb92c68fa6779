//! The task over an engine with maps in memory.

use std::num::NonZeroU16;

use holdfast_core::event::Event;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, ServiceFacts, ServicePort, ServiceType,
    SliceFacts, SlicePort,
};
use holdfast_core::keys::{Family, FrontendKey, ObjectName, Protocol, ServiceKey, SliceKey, Source};
use std::sync::Arc;

use holdfast_core::engine::Engine;
use holdfast_core::index::Seed;
use holdfast_core::maps::{Capacity, MapError, Maps, MemoryMaps};
use holdfast_core::op::Grace;
use holdfast_core::snapshot::Snapshot;

mod loops;
mod pace;

const PORT: NonZeroU16 = NonZeroU16::new(80).unwrap();

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name).unwrap()
}

fn service(service: &str, cluster_ip: &str) -> Event {
    Event::ServiceApplied(Arc::new(facts(service, cluster_ip)))
}

fn facts(service: &str, cluster_ip: &str) -> ServiceFacts {
    let key = ServiceKey { name: name(service), source: Source::Manifests };
    let port = ServicePort { name: "".into(), protocol: Protocol::TCP, port: PORT, node_port: None };
    let cluster_ips = vec![cluster_ip.parse().unwrap()];
    ServiceFacts {
        cluster_ips,
        ports: vec![port],
        on_empty: Some("refuse".into()),
        ..ServiceFacts::new(key, ServiceType::ClusterIp)
    }
}

fn slice(service: &str, endpoints: &[&str]) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for address in endpoints {
        let address = address.parse().unwrap();
        let conditions = Conditions::READY;
        builder
            .push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None })
            .unwrap();
    }
    Event::SliceApplied(Arc::new(SliceFacts {
        key: SliceKey { name: name(&format!("{service}-1")), source: Source::Manifests },
        meta: Meta::default(),
        service: Some(service.into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port: PORT }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }))
}
