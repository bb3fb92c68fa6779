//! Parses Services: what kube-proxy reads, and what else is served or shown.
//!
//! Invariant: a Service is accepted whole or not at all; a wrong address or port rejects it, because half of a request
//! would look like all of it. `targetPort`, `selector`, `appProtocol` and `trafficDistribution` are not read; they
//! reach a proxy only through slices.

pub(super) mod addresses;
mod balancer;

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::facts::balancer::sanitize_text;
use holdfast_core::facts::{Rejection, ServiceFacts, ServicePort, ServiceType, TrafficPolicy};
use holdfast_core::keys::{Protocol, ServiceKey};
use holdfast_core::limits;
use holdfast_core::weights::{WeightSetting, Weights};

use super::intern::intern_text;
use super::wire::{
    AffinityConfigWire, AnnotationsWire, MetaWire, ServicePortWire, ServiceSpecWire, ServiceWire, Text,
};
use super::{ObjectError, ObjectKind, Provenance, meta};

/// The apiserver's default for `sessionAffinity: ClientIP`, three hours.
const AFFINITY_TIMEOUT_DEFAULT: u32 = 10_800;

/// The apiserver's limit, one day.
const AFFINITY_TIMEOUT_MAX: u32 = 86_400;

/// The length of a DNS label, Kubernetes' limit for a port's name.
pub(super) const PORT_NAME_LENGTH_MAX: usize = 63;

/// Longer than any protocol's name: Kubernetes has three, of 3 and 4 letters.
pub(super) const PROTOCOL_LENGTH_MAX: usize = 32;

/// Parses a Service, or rejects it.
pub fn parse_service(wire: &ServiceWire<'_>, provenance: &Provenance) -> Result<ServiceFacts, Rejection> {
    parse_whole(wire.metadata.as_ref(), provenance, |key, metadata| {
        service_facts(key, metadata, wire, provenance)
    })
}

/// Parses an object that becomes a service with `service_facts`, or rejects it.
pub(super) fn parse_whole(
    metadata: Option<&MetaWire<'_>>,
    provenance: &Provenance,
    facts: impl FnOnce(ServiceKey, &MetaWire<'_>) -> Result<ServiceFacts, ObjectError>,
) -> Result<ServiceFacts, Rejection> {
    let no_meta = MetaWire::default();
    let metadata = metadata.unwrap_or(&no_meta);
    let name = super::require_name(ObjectKind::Service, metadata, provenance)?;
    let key = ServiceKey { name, source: provenance.source };
    facts(key.clone(), metadata).map_err(|error| {
        super::build_rejection(
            ObjectKind::Service.object_key(key.name, key.source),
            &error,
            provenance,
            false,
        )
    })
}

fn service_facts(
    key: ServiceKey,
    metadata: &MetaWire<'_>,
    wire: &ServiceWire<'_>,
    provenance: &Provenance,
) -> Result<ServiceFacts, ObjectError> {
    let no_spec = ServiceSpecWire::default();
    let spec = wire.spec.as_ref().unwrap_or(&no_spec);
    let mut facts = ServiceFacts::new(key, service_type(spec)?);
    read_metadata(&mut facts, metadata, provenance)?;
    addresses::read_addresses(&mut facts, spec, wire.status.as_ref(), provenance.defaulting)?;
    facts.ports = parse_ports(spec.ports.as_deref().unwrap_or_default())?;
    facts.internal_policy =
        traffic_policy("spec.internalTrafficPolicy", spec.internal_traffic_policy.as_deref())?;
    facts.external_policy =
        traffic_policy("spec.externalTrafficPolicy", spec.external_traffic_policy.as_deref())?;
    facts.affinity_timeout =
        affinity_timeout(spec.session_affinity.as_ref(), spec.session_affinity_config.as_ref())?;
    facts.health_check_node_port = optional_port("spec.healthCheckNodePort", spec.health_check_node_port)?;
    facts.balancer = balancer::read_balancer(facts.kind, metadata, spec, wire.status.as_ref());
    Ok(facts)
}

/// Reads the labels and annotations of a Service or a ServiceImport.
pub(super) fn read_metadata(
    facts: &mut ServiceFacts,
    metadata: &MetaWire<'_>,
    provenance: &Provenance,
) -> Result<(), ObjectError> {
    facts.meta = meta::parse_meta(metadata, provenance)?;
    facts.proxy_name =
        metadata.labels.as_ref().and_then(|labels| labels.proxy_name.as_deref()).map(sanitize_text);
    if let Some(notes) = &metadata.annotations {
        facts.on_empty = meta::non_empty_text(notes.on_empty.as_ref());
        facts.maglev = meta::non_empty_text(notes.maglev.as_ref());
        facts.affinity_prefix = meta::non_empty_text(notes.affinity_prefix.as_ref());
        facts.weights = parse_weights(notes);
    }
    Ok(())
}

/// The weights of a Service or a slice, or why they cannot be parsed; `None` without the annotation.
pub(super) fn parse_weights(notes: &AnnotationsWire<'_>) -> Option<Box<WeightSetting>> {
    const MAX: usize = limits::WEIGHTS_BYTES_MAX;
    let text = notes.weights.as_deref().filter(|text| !text.is_empty())?;
    let read =
        if text.len() > MAX { Err(format!("they have more than {MAX} bytes")) } else { Weights::parse(text) };
    Some(Box::new(match read {
        Ok(weights) => WeightSetting { weights, wrong: None },
        Err(wrong) => WeightSetting { weights: Weights::default(), wrong: Some(wrong.into()) },
    }))
}

fn service_type(spec: &ServiceSpecWire<'_>) -> Result<ServiceType, ObjectError> {
    match spec.kind.as_deref().unwrap_or_default() {
        "" | "ClusterIP" => Ok(ServiceType::ClusterIp),
        "NodePort" => Ok(ServiceType::NodePort),
        "LoadBalancer" => Ok(ServiceType::LoadBalancer),
        "ExternalName" => Ok(ServiceType::ExternalName),
        other => {
            Err(ObjectError::word("spec.type", other, "ClusterIP, NodePort, LoadBalancer and ExternalName"))
        }
    }
}

pub(super) fn parse_ports(wires: &[ServicePortWire<'_>]) -> Result<Vec<ServicePort>, ObjectError> {
    check_count("spec.ports", wires.len(), limits::PORTS_PER_SERVICE_MAX)?;
    let mut known = BTreeSet::new();
    let mut ports = Vec::with_capacity(wires.len());
    for (index, wire) in wires.iter().enumerate() {
        let port = parse_port(index, wire)?;
        if !known.insert((Arc::clone(&port.name), port.protocol.clone())) {
            return Err(ObjectError::PortRepeated { field: format!("spec.ports[{index}]") });
        }
        ports.push(port);
    }
    Ok(ports)
}

fn parse_port(index: usize, wire: &ServicePortWire<'_>) -> Result<ServicePort, ObjectError> {
    let field = |name| format!("spec.ports[{index}].{name}");
    let number = wire
        .port
        .ok_or_else(|| ObjectError::Missing { field: field("port"), legal: "1 to 65535 is legal" })?;
    let missing = ObjectError::Range { field: field("port"), value: number, legal: "1 to 65535" };
    Ok(ServicePort {
        name: bounded_text(wire.name.as_deref().unwrap_or_default(), PORT_NAME_LENGTH_MAX, || field("name"))?,
        protocol: parse_protocol(wire.protocol.as_deref(), || field("protocol"))?,
        port: port_number(number).ok_or(missing)?,
        node_port: optional_port(&field("nodePort"), wire.node_port)?,
    })
}

pub(super) fn port_number(number: i64) -> Option<NonZeroU16> {
    u16::try_from(number).ok().and_then(NonZeroU16::new)
}

fn optional_port(field: &str, number: Option<i64>) -> Result<Option<NonZeroU16>, ObjectError> {
    match number {
        None | Some(0) => Ok(None),
        Some(value) => port_number(value).map(Some).ok_or_else(|| ObjectError::Range {
            field: field.to_owned(),
            value,
            legal: "0 (none) to 65535",
        }),
    }
}

pub(super) fn parse_protocol(
    wire: Option<&str>,
    field: impl FnOnce() -> String,
) -> Result<Protocol, ObjectError> {
    match wire.unwrap_or_default() {
        "" => Ok(Protocol::TCP),
        given => Ok(Protocol::parse(&bounded_text(given, PROTOCOL_LENGTH_MAX, field)?)),
    }
}

pub(super) fn bounded_text(
    text: &str,
    length_max: usize,
    field: impl FnOnce() -> String,
) -> Result<Arc<str>, ObjectError> {
    if text.len() > length_max {
        return Err(ObjectError::TooLong { field: field(), length: text.len(), length_max });
    }
    Ok(intern_text(text))
}

pub(super) fn check_count(field: &'static str, count: usize, count_max: usize) -> Result<(), ObjectError> {
    if count > count_max { Err(ObjectError::TooMany { field, count, count_max }) } else { Ok(()) }
}

pub(super) fn traffic_policy(field: &str, wire: Option<&str>) -> Result<TrafficPolicy, ObjectError> {
    match wire.unwrap_or_default() {
        "" | "Cluster" => Ok(TrafficPolicy::Cluster),
        "Local" => Ok(TrafficPolicy::Local),
        other => Err(ObjectError::word(field, other, "Cluster and Local")),
    }
}

pub(super) fn affinity_timeout(
    affinity: Option<&Text<'_>>,
    config: Option<&AffinityConfigWire>,
) -> Result<Option<u32>, ObjectError> {
    match affinity.map(|text| &**text).unwrap_or_default() {
        "" | "None" => Ok(None),
        "ClientIP" => client_ip_timeout(config).map(Some),
        other => Err(ObjectError::word("spec.sessionAffinity", other, "None and ClientIP")),
    }
}

fn client_ip_timeout(config: Option<&AffinityConfigWire>) -> Result<u32, ObjectError> {
    let client_ip = config.and_then(|config| config.client_ip.as_ref());
    let Some(value) = client_ip.and_then(|client_ip| client_ip.timeout_seconds) else {
        return Ok(AFFINITY_TIMEOUT_DEFAULT);
    };
    let legal = |seconds: &u32| (1..=AFFINITY_TIMEOUT_MAX).contains(seconds);
    u32::try_from(value).ok().filter(legal).ok_or_else(|| ObjectError::Range {
        field: "spec.sessionAffinityConfig.clientIP.timeoutSeconds".to_owned(),
        value,
        legal: "1 to 86400",
    })
}
