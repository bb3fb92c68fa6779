//! Worlds of any size, as events: services with slices as a cluster's controllers would write them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, ServiceFacts, ServicePort, ServiceType,
    SliceFacts, SlicePort, Target, Timestamp, endpoints::UidText,
};
use holdfast_core::keys::{Family, ObjectName, Protocol, ServiceKey, SliceKey, Source};

/// Endpoints of one slice, as the slice controller fills them.
const ENDPOINTS_PER_SLICE: u32 = 100;

/// The nodes that endpoints are spread over.
const NODES: u32 = 100;

/// So many services with so many endpoints each.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub services: u32,
    /// Endpoints of each.
    pub endpoints: u32,
}

impl Shape {
    /// Each service, followed by its slices.
    pub fn events(self) -> Vec<Event> {
        (0..self.services).flat_map(|service| self.service_events(service)).collect()
    }

    /// One service with its slices.
    pub fn service_events(self, service: u32) -> Vec<Event> {
        let slices =
            (0..self.endpoints.div_ceil(ENDPOINTS_PER_SLICE)).map(|slice| self.slice(service, slice, 0));
        let applied = applied(service_key(service), cluster_ip(service), NonZeroU16::MIN);
        std::iter::once(applied).chain(slices).collect()
    }

    /// One slice at a version. The first endpoint's address differs from version to version.
    pub fn slice(self, service: u32, slice: u32, version: u32) -> Event {
        let first = slice * ENDPOINTS_PER_SLICE;
        let count = (self.endpoints - first).min(ENDPOINTS_PER_SLICE);
        let mut builder = EndpointsBuilder::new(Family::V4);
        for position in 0..count {
            let pod = format!("web-{service:05}-7d4b9c6f5d-{position:05x}");
            let node = format!("node-{:03}", (service + position) % NODES);
            let zone = format!("zone-{}", (service + position) % 3);
            let endpoint = Endpoint {
                address: address(service, first + position, if position == 0 { version } else { 0 }),
                conditions: Conditions::READY,
                node: Some(node.as_str().into()),
                zone: Some(&zone),
                hints: None,
                target: Some(Target {
                    kind: "Pod",
                    namespace: "default",
                    name: pod.as_str().into(),
                    uid: UidText::Uuid(
                        (u128::from(service) << 32 | u128::from(first + position)).to_be_bytes(),
                    ),
                }),
            };
            // Only an illegal address is refused, and none of these is.
            let _ = builder.push(endpoint);
        }
        Event::SliceApplied(Arc::new(SliceFacts {
            key: slice_key(service, slice),
            meta: meta(version),
            service: Some(service_name(service).name().into()),
            headless: false,
            address_type: AddressType::Ip(Family::V4),
            ports: [SlicePort { name: "http".into(), protocol: Protocol::TCP, port: NonZeroU16::MIN }].into(),
            endpoints: builder.finish(),
            endpoints_null: false,
            weights: None,
        }))
    }

    /// The deletion of everything.
    pub fn deletions(self) -> Vec<Event> {
        let slices = self.endpoints.div_ceil(ENDPOINTS_PER_SLICE);
        let of = |service| {
            let slices = (0..slices).map(move |slice| Event::SliceDeleted(slice_key(service, slice), None));
            slices.chain([Event::ServiceDeleted(service_key(service), None)])
        };
        (0..self.services).flat_map(of).collect()
    }
}

/// The cluster IP of a service.
pub fn cluster_ip(service: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0a60_0000 + 1 + service))
}

/// The address and port of the service of [`served_by`].
pub const SERVED: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 95, 0, 1)), 80);

/// One more service, at [`SERVED`], with a real backend.
pub fn served_by(backend: SocketAddr) -> [Event; 2] {
    let number = |port| NonZeroU16::new(port).unwrap_or(NonZeroU16::MIN);
    let mut builder = EndpointsBuilder::new(Family::from_address(backend.ip()));
    let (conditions, address) = (Conditions::READY, backend.ip());
    // As above: only an illegal address is refused.
    let _ = builder.push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None });
    let name = name("served");
    let slice = SliceFacts {
        key: SliceKey { name: name.clone(), source: Source::Kubernetes },
        meta: meta(0),
        service: Some(name.name().into()),
        headless: false,
        address_type: AddressType::Ip(Family::from_address(backend.ip())),
        ports: [SlicePort { name: "http".into(), protocol: Protocol::TCP, port: number(backend.port()) }]
            .into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    };
    let key = ServiceKey { name, source: Source::Kubernetes };
    [applied(key, SERVED.ip(), number(SERVED.port())), Event::SliceApplied(Arc::new(slice))]
}

fn applied(key: ServiceKey, cluster_ip: IpAddr, port: NonZeroU16) -> Event {
    let port = ServicePort { name: "http".into(), protocol: Protocol::TCP, port, node_port: None };
    Event::ServiceApplied(Arc::new(ServiceFacts {
        meta: meta(0),
        cluster_ips: vec![cluster_ip],
        ip_families: vec![Family::from_address(cluster_ip)],
        ports: vec![port],
        ..ServiceFacts::new(key, ServiceType::ClusterIp)
    }))
}

fn meta(version: u32) -> Meta {
    Meta {
        uid: Some("00000000-0000-4000-8000-000000000000".into()),
        resource_version: Some(format!("{}", 1_000 + version).into()),
        created: Some(Timestamp(1_700_000_000)),
        ..Meta::default()
    }
}

fn address(service: u32, endpoint: u32, version: u32) -> IpAddr {
    let bits = 0x1400_0000 + (service << 12) + (endpoint << 2) + version % 4;
    IpAddr::V4(Ipv4Addr::from_bits(bits))
}

#[allow(clippy::expect_used)]
fn name(text: &str) -> ObjectName {
    ObjectName::new("default", text).expect("letters, digits and dashes only")
}

fn service_name(service: u32) -> ObjectName {
    name(&format!("web-{service:05}"))
}

fn service_key(service: u32) -> ServiceKey {
    ServiceKey { name: service_name(service), source: Source::Kubernetes }
}

fn slice_key(service: u32, slice: u32) -> SliceKey {
    SliceKey { name: name(&format!("web-{service:05}-{slice:03}")), source: Source::Kubernetes }
}
