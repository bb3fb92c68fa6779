//! Parses ServiceImports of the Multi-Cluster Services API.
//!
//! Invariant: a ServiceImport is accepted whole or not at all, by the rules of a Service. Its only addresses are those
//! in `spec.ips`: no node ports, external IPs or load balancer, whatever its author writes. `ipFamilies` and
//! `trafficDistribution` are not read: each address implies its family, and slices bring hints.

use holdfast_core::facts::{Rejection, ServiceFacts, ServicePort, ServiceType};
use holdfast_core::keys::ServiceKey;

use super::service::{self, addresses};
use super::wire::{ImportSpecWire, ImportWire, MetaWire};
use super::{ObjectError, Provenance};

/// Parses a ServiceImport, or rejects it.
pub fn parse_import(wire: &ImportWire<'_>, provenance: &Provenance) -> Result<ServiceFacts, Rejection> {
    let read = |key, metadata: &MetaWire<'_>| import_facts(key, metadata, wire, provenance);
    service::parse_whole(wire.metadata.as_ref(), provenance, read)
}

fn import_facts(
    key: ServiceKey,
    metadata: &MetaWire<'_>,
    wire: &ImportWire<'_>,
    provenance: &Provenance,
) -> Result<ServiceFacts, ObjectError> {
    let no_spec = ImportSpecWire::default();
    let spec = wire.spec.as_ref().unwrap_or(&no_spec);
    let mut facts = ServiceFacts::new(key, ServiceType::ClusterSetIp);
    facts.headless = is_headless(spec)?;
    service::read_metadata(&mut facts, metadata, provenance)?;
    facts.cluster_ips = addresses::parse_addresses("spec.ips", spec.ips.as_deref().unwrap_or_default())?;
    facts.ports = import_ports(spec)?;
    facts.internal_policy =
        service::traffic_policy("spec.internalTrafficPolicy", spec.internal_traffic_policy.as_deref())?;
    facts.affinity_timeout =
        service::affinity_timeout(spec.session_affinity.as_ref(), spec.session_affinity_config.as_ref())?;
    Ok(facts)
}

/// Whether clients find the pods by name alone, so that there is nothing to serve.
fn is_headless(spec: &ImportSpecWire<'_>) -> Result<bool, ObjectError> {
    match spec.kind.as_deref().unwrap_or_default() {
        "ClusterSetIP" => Ok(false),
        "Headless" => Ok(true),
        other => Err(ObjectError::word("spec.type", other, "ClusterSetIP and Headless")),
    }
}

/// Parses the ports without node ports, which the API does not have: no apiserver would allocate them.
fn import_ports(spec: &ImportSpecWire<'_>) -> Result<Vec<ServicePort>, ObjectError> {
    let ports = service::parse_ports(spec.ports.as_deref().unwrap_or_default())?;
    Ok(ports.into_iter().map(|port| ServicePort { node_port: None, ..port }).collect())
}
