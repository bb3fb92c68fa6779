//! Backends with weights, from a service's annotation to a socket's connection. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, ServiceFacts, ServicePort, ServiceType,
    SliceFacts, SlicePort,
};
use holdfast_core::index::Seed;
use holdfast_core::keys::{Family, ObjectName, Protocol, ServiceKey, SliceKey, Source, Transport};
use holdfast_core::time::ClockReading;
use holdfast_core::weights::{Weight, WeightSetting, Weights};
use holdfast_datapath::KernelMaps;
use holdfast_fixtures::clock::wait_until;

use crate::bed::{ask, bed, udp_backend, udp_client};

const VIP: &str = "10.96.0.10:53";
const BACKENDS: [&str; 2] = ["127.0.0.2:5353", "127.0.0.3:5353"];
const UDP: Protocol = Protocol::Transport(Transport::Udp);

fn name() -> ObjectName {
    ObjectName::new("default", "dns").unwrap()
}

/// A service with an hour's affinity, whose backend of this address, if any, has no weight.
fn service(none: Option<SocketAddr>) -> Event {
    let key = ServiceKey { name: name(), source: Source::Config };
    let port = NonZeroU16::new(53).unwrap();
    let weights = Weights::from_backends(none.map(|it| (it, Weight::NONE)));
    Event::ServiceApplied(Arc::new(ServiceFacts {
        cluster_ips: vec!["10.96.0.10".parse().unwrap()],
        ports: vec![ServicePort { name: "".into(), protocol: UDP, port, node_port: None }],
        affinity_timeout: Some(3600),
        weights: Some(WeightSetting { weights, wrong: None }.into()),
        ..ServiceFacts::new(key, ServiceType::ClusterIp)
    }))
}

fn slice() -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for backend in BACKENDS {
        let address = backend.parse::<SocketAddr>().unwrap().ip();
        let conditions = Conditions::READY;
        let endpoint = Endpoint { address, conditions, node: None, zone: None, hints: None, target: None };
        builder.push(endpoint).unwrap();
    }
    let port = NonZeroU16::new(5353).unwrap();
    Event::SliceApplied(Arc::new(SliceFacts {
        key: SliceKey { name: name(), source: Source::Config },
        meta: Meta::default(),
        service: Some("dns".into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: UDP, port }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }))
}

fn bring_about(engine: &mut Engine<KernelMaps>, events: Vec<Event>) {
    events.into_iter().for_each(|event| engine.apply(event));
    wait_until("the maps are written", || {
        engine.step(ClockReading::default(), &mut drop);
        engine.is_written()
    });
}

#[test]
fn kernel_a_client_returns_to_its_backend_after_it_lost_its_weight() {
    bed(|bed| {
        for at in BACKENDS {
            udp_backend(at);
        }
        let (mut engine, _) = Engine::start(bed.start(), Seed(7), &[Source::Config]).unwrap();
        bring_about(&mut engine, vec![service(None), slice(), Event::Synced(Source::Config)]);
        let met = || ask(&udp_client("0.0.0.0:0"), VIP).0;
        let kept = met();
        bring_about(&mut engine, vec![service(Some(kept))]);
        for _ in 0..20 {
            assert_eq!(met(), kept);
        }
    });
}
