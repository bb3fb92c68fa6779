//! Services: what kube-proxy reads of them.
//!
//! Invariant: a Service is taken whole or not at all; a wrong address or port rejects it, because half of what was asked
//! for would look like all of it. Deliberately absent: `targetPort`, `selector`, `appProtocol`, `trafficDistribution`,
//! which reach a proxy only through slices.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::facts::{Ingress, Rejection, ServiceFacts, ServicePort, ServiceType, TrafficPolicy};
use holdfast_core::keys::{Family, Protocol, ServiceKey};
use holdfast_core::limits;

use super::wire::{MetaWire, ServicePortWire, ServiceSpecWire, ServiceStatusWire, ServiceWire};
use super::{Defaulting, Kind, Provenance, Refusal, address, meta, refusal};

/// The apiserver's default for `sessionAffinity: ClientIP`, three hours.
const AFFINITY_TIMEOUT_DEFAULT: u32 = 10_800;

/// The apiserver's bound, one day.
const AFFINITY_TIMEOUT_MAX: u32 = 86_400;

/// DNS label, the bound that Kubernetes sets for a port's name.
pub(super) const PORT_NAME_LENGTH_MAX: usize = 63;

/// RFC 3986 has no longer protocol; Kubernetes knows three, of 3 and 4 letters.
pub(super) const PROTOCOL_LENGTH_MAX: usize = 32;

/// What a Service says, or why it cannot be taken.
pub fn service(wire: &ServiceWire, provenance: &Provenance) -> Result<ServiceFacts, Rejection> {
    let no_meta = MetaWire::default();
    let metadata = wire.metadata.as_ref().unwrap_or(&no_meta);
    let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
    let name = meta::object_name(namespace, name, provenance.defaulting).map_err(|refusal| {
        super::rejection(super::unnamed(Kind::Service, name, provenance), &refusal, provenance, false)
    })?;
    let key = ServiceKey { name, source: provenance.source };
    facts(key.clone(), metadata, wire, provenance).map_err(|refusal| {
        super::rejection(Kind::Service.key(key.name, key.source), &refusal, provenance, false)
    })
}

fn facts(
    key: ServiceKey,
    metadata: &MetaWire,
    wire: &ServiceWire,
    provenance: &Provenance,
) -> Result<ServiceFacts, Refusal> {
    let no_spec = ServiceSpecWire::default();
    let spec = wire.spec.as_ref().unwrap_or(&no_spec);
    let mut facts = ServiceFacts::new(key, service_type(spec)?);
    facts.meta = meta::meta(metadata, provenance)?;
    facts.proxy_name =
        metadata.labels.as_ref().and_then(|labels| labels.proxy_name.as_deref()).map(Into::into);
    facts.on_empty = metadata.annotations.as_ref().and_then(|notes| meta::text(notes.on_empty.as_ref()));
    addresses(&mut facts, spec, wire.status.as_ref(), provenance.defaulting)?;
    facts.ports = ports(spec.ports.as_deref().unwrap_or_default())?;
    facts.internal_policy = policy("spec.internalTrafficPolicy", spec.internal_traffic_policy.as_deref())?;
    facts.external_policy = policy("spec.externalTrafficPolicy", spec.external_traffic_policy.as_deref())?;
    facts.affinity_timeout = affinity_timeout(spec)?;
    facts.health_check_node_port = optional_port("spec.healthCheckNodePort", spec.health_check_node_port)?;
    Ok(facts)
}

fn addresses(
    facts: &mut ServiceFacts,
    spec: &ServiceSpecWire,
    status: Option<&ServiceStatusWire>,
    defaulting: Defaulting,
) -> Result<(), Refusal> {
    facts.headless = is_headless(spec);
    facts.cluster_ips = cluster_ips(spec, defaulting)?;
    facts.external_ips = unicasts("spec.externalIPs", spec.external_ips.as_deref().unwrap_or_default())?;
    facts.ingress = ingress(status)?;
    facts.source_ranges = source_ranges(spec.load_balancer_source_ranges.as_deref().unwrap_or_default())?;
    facts.ip_families = ip_families(spec.ip_families.as_deref().unwrap_or_default())?;
    if facts.ip_families.is_empty() && defaulting == Defaulting::AsApiserver {
        facts.ip_families = families_of_addresses(facts);
    }
    check_families(facts)
}

fn service_type(spec: &ServiceSpecWire) -> Result<ServiceType, Refusal> {
    match spec.kind.as_deref().unwrap_or_default() {
        "" | "ClusterIP" => Ok(ServiceType::ClusterIp),
        "NodePort" => Ok(ServiceType::NodePort),
        "LoadBalancer" => Ok(ServiceType::LoadBalancer),
        "ExternalName" => Ok(ServiceType::ExternalName),
        other => Err(Refusal::word("spec.type", other, "ClusterIP, NodePort, LoadBalancer and ExternalName")),
    }
}

fn is_headless(spec: &ServiceSpecWire) -> bool {
    let first = spec.cluster_ips.as_deref().unwrap_or_default().first();
    match spec.cluster_ip.as_deref().unwrap_or_default() {
        "" => first.is_some_and(|first| first == "None"),
        single => single == "None",
    }
}

/// The cluster IPs that count, each at the place of its family in `ipFamilies`.
fn cluster_ips(spec: &ServiceSpecWire, defaulting: Defaulting) -> Result<Vec<IpAddr>, Refusal> {
    let single = spec.cluster_ip.as_deref().unwrap_or_default();
    let several = spec.cluster_ips.as_deref().unwrap_or_default();
    let defaulted = defaulting == Defaulting::AsApiserver;
    if is_headless(spec) || (single.is_empty() && !defaulted) {
        return Ok(Vec::new());
    }
    // kube-proxy reads `clusterIPs` only through `ipFamilies`; an object that gives one alone has just the single IP.
    let several_count =
        !several.is_empty() && (defaulted || spec.ip_families.iter().flatten().next().is_some());
    if several_count {
        unicasts("spec.clusterIPs", several)
    } else if single.is_empty() {
        Ok(Vec::new())
    } else {
        Ok(vec![unicast("spec.clusterIP".to_owned(), single)?])
    }
}

fn ip_families(words: &[String]) -> Result<Vec<Family>, Refusal> {
    check_count("spec.ipFamilies", words.len(), limits::ADDRESSES_PER_SERVICE_MAX)?;
    let family = |word: &String| match word.as_str() {
        "IPv4" => Ok(Family::V4),
        "IPv6" => Ok(Family::V6),
        other => Err(Refusal::word("spec.ipFamilies", other, "IPv4 and IPv6")),
    };
    words.iter().map(family).collect()
}

/// The families that a service without `ipFamilies` has: those of its addresses, cluster IPs first.
fn families_of_addresses(facts: &ServiceFacts) -> Vec<Family> {
    let others =
        facts.external_ips.iter().copied().chain(facts.ingress.iter().map(|ingress| ingress.address));
    let cluster = facts.cluster_ips.iter().copied();
    let mut families = Vec::new();
    // The place of a family must stay the place of its cluster IP.
    let others = others.filter(|_| facts.cluster_ips.is_empty());
    for family in cluster.chain(others).map(Family::of) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}

fn check_families(facts: &ServiceFacts) -> Result<(), Refusal> {
    let pairs = facts.cluster_ips.iter().zip(&facts.ip_families).enumerate();
    match pairs.into_iter().find(|(_, (address, family))| Family::of(**address) != **family) {
        Some((place, (address, family))) => {
            Err(Refusal::FamilyMismatch { place, address: *address, family: *family })
        }
        None => Ok(()),
    }
}

fn unicasts(field: &'static str, texts: &[String]) -> Result<Vec<IpAddr>, Refusal> {
    check_count(field, texts.len(), limits::ADDRESSES_PER_SERVICE_MAX)?;
    texts.iter().enumerate().map(|(place, text)| unicast(format!("{field}[{place}]"), text)).collect()
}

fn unicast(field: String, text: &str) -> Result<IpAddr, Refusal> {
    match address::parse(text) {
        None => Err(Refusal::address(field, text)),
        Some(address) if address.is_unspecified() || address.is_multicast() => {
            Err(Refusal::NotUnicast { field, address })
        }
        Some(address) => Ok(address),
    }
}

/// Entries with an address; a host name alone is for the real balancer's clients, not for us.
fn ingress(status: Option<&ServiceStatusWire>) -> Result<Vec<Ingress>, Refusal> {
    let entries =
        status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_deref()).unwrap_or_default();
    check_count("status.loadBalancer.ingress", entries.len(), limits::ADDRESSES_PER_SERVICE_MAX)?;
    let mut ingress = Vec::new();
    for (place, entry) in entries.iter().enumerate() {
        let Some(ip) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) else { continue };
        let address = unicast(format!("status.loadBalancer.ingress[{place}].ip"), ip)?;
        ingress.push(Ingress { address, proxied: is_proxied(entry.ip_mode.as_deref())? });
    }
    Ok(ingress)
}

fn is_proxied(mode: Option<&str>) -> Result<bool, Refusal> {
    match mode.unwrap_or_default() {
        "" | "VIP" => Ok(false),
        "Proxy" => Ok(true),
        other => Err(Refusal::word("status.loadBalancer.ingress.ipMode", other, "VIP and Proxy")),
    }
}

/// A range that cannot be read rejects the service: skipping it could open what was meant to be closed.
fn source_ranges(texts: &[String]) -> Result<Vec<Arc<str>>, Refusal> {
    const FIELD: &str = "spec.loadBalancerSourceRanges";
    check_count(FIELD, texts.len(), limits::ADDRESSES_PER_SERVICE_MAX)?;
    let refusal = |place: usize, text: &String| Refusal::Cidr {
        field: format!("{FIELD}[{place}]"),
        shown: refusal::quoted(text),
    };
    let parse =
        |(place, text): (usize, &String)| address::parse_cidr(text).ok_or_else(|| refusal(place, text));
    texts.iter().enumerate().map(parse).collect()
}

fn ports(wires: &[ServicePortWire]) -> Result<Vec<ServicePort>, Refusal> {
    check_count("spec.ports", wires.len(), limits::PORTS_PER_SERVICE_MAX)?;
    let mut known = BTreeSet::new();
    let mut ports = Vec::with_capacity(wires.len());
    for (place, wire) in wires.iter().enumerate() {
        let port = port(place, wire)?;
        if !known.insert((Arc::clone(&port.name), port.protocol.clone())) {
            return Err(Refusal::PortRepeated { field: format!("spec.ports[{place}]") });
        }
        ports.push(port);
    }
    Ok(ports)
}

fn port(place: usize, wire: &ServicePortWire) -> Result<ServicePort, Refusal> {
    let field = |name| format!("spec.ports[{place}].{name}");
    let number =
        wire.port.ok_or_else(|| Refusal::Missing { field: field("port"), legal: "1 to 65535 is legal" })?;
    let missing = Refusal::Range { field: field("port"), value: number, legal: "1 to 65535" };
    Ok(ServicePort {
        name: short(wire.name.as_deref().unwrap_or_default(), PORT_NAME_LENGTH_MAX, || field("name"))?,
        protocol: protocol(wire.protocol.as_deref(), || field("protocol"))?,
        port: port_number(number).ok_or(missing)?,
        node_port: optional_port(&field("nodePort"), wire.node_port)?,
    })
}

pub(super) fn port_number(number: i64) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}

fn optional_port(field: &str, number: Option<i64>) -> Result<Option<NonZeroU16>, Refusal> {
    match number {
        None | Some(0) => Ok(None),
        Some(value) => port_number(value).map(Some).ok_or_else(|| Refusal::Range {
            field: field.to_owned(),
            value,
            legal: "0 (none) to 65535",
        }),
    }
}

pub(super) fn protocol(wire: Option<&str>, field: impl FnOnce() -> String) -> Result<Protocol, Refusal> {
    match wire.unwrap_or_default() {
        "" => Ok(Protocol::TCP),
        given => Ok(Protocol::parse(&short(given, PROTOCOL_LENGTH_MAX, field)?)),
    }
}

pub(super) fn short(
    text: &str,
    length_max: usize,
    field: impl FnOnce() -> String,
) -> Result<Arc<str>, Refusal> {
    if text.len() > length_max {
        return Err(Refusal::TooLong { field: field(), length: text.len(), length_max });
    }
    Ok(text.into())
}

pub(super) fn check_count(field: &'static str, count: usize, count_max: usize) -> Result<(), Refusal> {
    if count > count_max { Err(Refusal::TooMany { field, count, count_max }) } else { Ok(()) }
}

fn policy(field: &str, wire: Option<&str>) -> Result<TrafficPolicy, Refusal> {
    match wire.unwrap_or_default() {
        "" | "Cluster" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        other => Err(Refusal::word(field, other, "Cluster and Local")),
    }
}

fn affinity_timeout(spec: &ServiceSpecWire) -> Result<Option<u32>, Refusal> {
    match spec.session_affinity.as_deref().unwrap_or_default() {
        "" | "None" => Ok(None),
        "ClientIP" => client_ip_timeout(spec).map(Some),
        other => Err(Refusal::word("spec.sessionAffinity", other, "None and ClientIP")),
    }
}

fn client_ip_timeout(spec: &ServiceSpecWire) -> Result<u32, Refusal> {
    let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
    let Some(value) = config.and_then(|client_ip| client_ip.timeout_seconds) else {
        return Ok(AFFINITY_TIMEOUT_DEFAULT);
    };
    let legal = |seconds: &u32| (1..=AFFINITY_TIMEOUT_MAX).contains(seconds);
    u32::try_from(value).ok().filter(legal).ok_or_else(|| Refusal::Range {
        field: "spec.sessionAffinityConfig.clientIP.timeoutSeconds".to_owned(),
        value,
        legal: "1 to 86400",
    })
}
