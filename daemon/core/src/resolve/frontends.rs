//! Which addresses and ports a service is dialled at, per family.
//!
//! Invariant: one row for each address, port and protocol of a service. Deliberately absent: endpoints.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;

use super::DesiredFrontend;
use crate::dialable::is_barred;
use crate::facts::{ServiceFacts, ServicePort, ServiceType, Settings, TrafficPolicy};
use crate::keys::{Family, Source};
use crate::list::Scope;
use crate::op::FrontendType;
use crate::snapshot::ServiceState;

/// Whether the service is ours to serve.
pub(super) fn state(service: Option<&ServiceFacts>, settings: &Settings) -> ServiceState {
    let Some(service) = service else { return ServiceState::NoService };
    let ours = service.key.source == Source::Config || service.proxy_name == settings.service_proxy_name;
    match service.kind {
        _ if !ours => ServiceState::OtherProxy,
        ServiceType::ExternalName => ServiceState::ExternalName,
        _ if service.headless => ServiceState::Headless,
        _ => ServiceState::Served,
    }
}

/// `externalTrafficPolicy: Local` counts only for a service that can be reached from outside, of whatever family.
pub(super) fn is_external_local(service: &ServiceFacts) -> bool {
    let accessible = match service.kind {
        ServiceType::NodePort | ServiceType::LoadBalancer => true,
        ServiceType::ClusterIp => !service.external_ips.is_empty(),
        ServiceType::ExternalName | ServiceType::Static => false,
    };
    accessible && service.external_policy == TrafficPolicy::Local
}

/// All frontends, each once, in the order of the table.
pub(super) fn frontends(service: &ServiceFacts, settings: &Settings) -> Vec<DesiredFrontend> {
    let mut found = Vec::new();
    for family in Family::ALL {
        if is_visible(service, family) {
            for port in &service.ports {
                addresses(service, port, family, |kind, address, number| {
                    let barred = is_barred(service, kind, address, settings);
                    found.push(DesiredFrontend { barred, ..frontend(service, port, kind, address, number) });
                });
            }
        }
    }
    // One address claimed twice: one that can be dialled wins, then the first kind in the order of the type, then the
    // first port name.
    found.sort_by(|a, b| claim_order(a).cmp(&claim_order(b)));
    found.dedup_by(|a, b| (a.address, a.port, &a.protocol) == (b.address, b.port, &b.protocol));
    found.sort_by(|a, b| table_order(a).cmp(&table_order(b)));
    found
}

fn claim_order(it: &DesiredFrontend) -> impl Ord + '_ {
    (it.address, it.port, &it.protocol, it.barred, it.kind, &it.port_name)
}

fn table_order(it: &DesiredFrontend) -> impl Ord + '_ {
    (&it.port_name, it.kind.order(), it.address, &it.protocol, it.port)
}

fn frontend(
    service: &ServiceFacts,
    port: &ServicePort,
    kind: FrontendType,
    address: IpAddr,
    number: NonZeroU16,
) -> DesiredFrontend {
    let internal = kind == FrontendType::ClusterIp;
    let local = internal && service.internal_policy == TrafficPolicy::Local;
    DesiredFrontend {
        address,
        port: number,
        protocol: port.protocol.clone(),
        kind,
        port_name: Arc::clone(&port.name),
        barred: false,
        place: None,
        scope: if local { Scope::Local } else { Scope::Cluster },
        external_local: !internal && is_external_local(service),
        passes: false,
    }
}

/// Calls back with each address of one port in one family.
fn addresses(
    service: &ServiceFacts,
    port: &ServicePort,
    family: Family,
    mut found: impl FnMut(FrontendType, IpAddr, NonZeroU16),
) {
    let own = |address: &IpAddr| Family::of(*address) == family;
    if let Some(address) = cluster_ip(service, family) {
        found(FrontendType::ClusterIp, address, port.port);
    }
    for ingress in service.ingress.iter().filter(|ingress| !ingress.proxied && own(&ingress.address)) {
        found(FrontendType::LoadBalancer, ingress.address, port.port);
    }
    for address in service.external_ips.iter().copied().filter(own) {
        found(FrontendType::ExternalIp, address, port.port);
    }
    if let Some(number) = port.node_port {
        found(FrontendType::NodePort, family.unspecified(), number);
    }
    for address in service.static_frontends.iter().filter(|address| own(&address.ip())) {
        if let Some(number) = NonZeroU16::new(address.port()) {
            found(FrontendType::Static, address.ip(), number);
        }
    }
}

/// The cluster IP of one family: with `ipFamilies`, the address at that family's place; without, the first address alone
/// (manifests, which nobody has defaulted, may list one of each).
fn cluster_ip(service: &ServiceFacts, family: Family) -> Option<IpAddr> {
    let own = |address: &IpAddr| Family::of(*address) == family;
    if service.ip_families.is_empty() {
        let looked_at = if service.key.source == Source::Kubernetes { 1 } else { service.cluster_ips.len() };
        return service.cluster_ips.iter().take(looked_at).copied().find(own);
    }
    let place = service.ip_families.iter().position(|it| *it == family)?;
    service.cluster_ips.get(place).copied().filter(own)
}

/// A family without a cluster IP has no frontend at all, as in kube-proxy. A manifest without any cluster IP is served at
/// its other addresses.
fn is_visible(service: &ServiceFacts, family: Family) -> bool {
    let bare = service.cluster_ips.is_empty() && service.key.source != Source::Kubernetes;
    if !bare {
        return cluster_ip(service, family).is_some();
    }
    if !service.ip_families.is_empty() {
        return service.ip_families.contains(&family);
    }
    let ingress = service.ingress.iter().map(|ingress| ingress.address);
    let fixed = service.static_frontends.iter().map(core::net::SocketAddr::ip);
    let mut families =
        service.external_ips.iter().copied().chain(ingress).chain(fixed).map(Family::of).peekable();
    if families.peek().is_none() { family == Family::V4 } else { families.any(|it| it == family) }
}
