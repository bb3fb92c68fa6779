//! Parses `EndpointSlice`s as kube-proxy reads them.
//!
//! Invariant: an endpoint that cannot be a backend is skipped, reported and counted, and the others are read. A fault
//! of the whole slice (address type, ports, labels) rejects it. Only the first address of an endpoint is read;
//! `appProtocol` and `hostname` are not.

use std::sync::Arc;

use holdfast_core::facts::endpoints::UidText;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, Endpoints, EndpointsBuilder, HintSet, NodeName, Rejection, SliceFacts,
    SlicePort, Target,
};
use holdfast_core::keys::{Family, ObjectName, SliceKey, Source};
use holdfast_core::limits;

use super::service::{
    PORT_NAME_LENGTH_MAX, bounded_text, check_count, parse_protocol, parse_weights, port_number,
};
use super::wire::{EndpointWire, HintWire, LabelsWire, MetaWire, SlicePortWire, SliceWire, TargetWire};
use super::{Defaulting, ObjectError, ObjectKind, Provenance, address, meta};

/// How many skipped endpoints a rejection names with their reasons.
const SKIPPED_NAMED_MAX: usize = 3;

/// Parses a slice, with a rejection of skipped endpoints and wrong weights; `Err` rejects the whole slice.
pub fn parse_slice(
    wire: &SliceWire<'_>,
    provenance: &Provenance,
) -> Result<(SliceFacts, Option<Rejection>), Rejection> {
    let no_meta = MetaWire::default();
    let metadata = wire.metadata.as_ref().unwrap_or(&no_meta);
    let name = super::require_name(ObjectKind::Slice, metadata, provenance)?;
    let key = SliceKey { name, source: provenance.source };
    let object = ObjectKind::Slice.object_key(key.name.clone(), key.source);
    match slice_facts(key, metadata, wire, provenance) {
        Ok((facts, skipped)) => {
            let reasons: Vec<String> =
                [skipped.reason(), weights_error(&facts)].into_iter().flatten().collect();
            let reason = Some(reasons.join("; ")).filter(|reason| !reason.is_empty());
            let partial = reason.map(|reason| super::build_rejection(object, &reason, provenance, true));
            Ok((facts, partial))
        }
        Err(error) => Err(super::build_rejection(object, &error, provenance, false)),
    }
}

fn slice_facts(
    key: SliceKey,
    metadata: &MetaWire<'_>,
    wire: &SliceWire<'_>,
    provenance: &Provenance,
) -> Result<(SliceFacts, SkippedEndpoints), ObjectError> {
    let labels = metadata.labels.clone().unwrap_or_default();
    let address_type = address_type(wire.address_type.as_deref())?;
    let ports = parse_ports(wire.ports.as_deref().unwrap_or_default(), provenance.defaulting)?;
    let wires = wire.endpoints.iter().flatten().flatten();
    let (endpoints, skipped) = parse_endpoints(address_type, wires, ports.len())?;
    let facts = SliceFacts {
        service: service_name(&key, &labels)?,
        key,
        meta: meta::parse_meta(metadata, provenance)?,
        headless: labels.headless.is_some(),
        address_type,
        ports,
        endpoints,
        endpoints_null: matches!(wire.endpoints, Some(None)),
        weights: metadata.annotations.as_ref().and_then(parse_weights),
    };
    Ok((facts, skipped))
}

/// Weights that cannot be parsed; the previous ones stay.
fn weights_error(facts: &SliceFacts) -> Option<String> {
    let wrong = facts.weights.as_ref()?.wrong.as_ref()?;
    Some(format!("its weights stay as they were: {wrong}"))
}

/// The service named by the label of the slice's source. A slice may have both labels: for its ServiceImport, and for
/// the Service that a controller derived from it.
fn service_name(key: &SliceKey, labels: &LabelsWire<'_>) -> Result<Option<Arc<str>>, ObjectError> {
    let (label, field) = match key.source {
        Source::ClusterSet => (&labels.import_name, "the label multicluster.kubernetes.io/service-name"),
        _ => (&labels.service_name, "the label kubernetes.io/service-name"),
    };
    let Some(name) = label.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    ObjectName::new(key.name.namespace(), name)
        .map_err(|error| ObjectError::Name { field: field.to_owned(), error })?;
    Ok(Some(name.into()))
}

fn address_type(wire: Option<&str>) -> Result<AddressType, ObjectError> {
    const LEGAL: &str = "IPv4, IPv6 and FQDN";
    match wire.unwrap_or_default() {
        "IPv4" => Ok(AddressType::Ip(Family::V4)),
        "IPv6" => Ok(AddressType::Ip(Family::V6)),
        "FQDN" => Ok(AddressType::Fqdn),
        other => Err(ObjectError::word("addressType", other, LEGAL)),
    }
}

fn parse_ports(wires: &[SlicePortWire<'_>], defaulting: Defaulting) -> Result<Box<[SlicePort]>, ObjectError> {
    check_count("ports", wires.len(), limits::PORTS_PER_SLICE_MAX)?;
    let ports = wires.iter().enumerate().map(|(index, wire)| parse_port(index, wire, defaulting));
    ports.filter_map(Result::transpose).collect()
}

/// `None` for a port that kube-proxy ignores, because it has no name or no number.
fn parse_port(
    index: usize,
    wire: &SlicePortWire<'_>,
    defaulting: Defaulting,
) -> Result<Option<SlicePort>, ObjectError> {
    let field = |name| format!("ports[{index}].{name}");
    let name = match (wire.name.as_deref(), defaulting) {
        (Some(name), _) => name,
        (None, Defaulting::AsApiserver) => "",
        (None, Defaulting::Done) => return Ok(None),
    };
    let Some(value) = wire.port.filter(|number| *number != 0) else {
        return Ok(None);
    };
    let error = || ObjectError::Range { field: field("port"), value, legal: "1 to 65535" };
    Ok(Some(SlicePort {
        name: bounded_text(name, PORT_NAME_LENGTH_MAX, || field("name"))?,
        protocol: parse_protocol(wire.protocol.as_deref(), || field("protocol"))?,
        port: port_number(value).ok_or_else(error)?,
    }))
}

#[derive(Debug, Default)]
struct SkippedEndpoints {
    count: usize,
    examples: Vec<ObjectError>,
}

impl SkippedEndpoints {
    fn push(&mut self, error: ObjectError) {
        self.push_many(1, error);
    }

    fn push_many(&mut self, count: usize, error: ObjectError) {
        self.count += count;
        if self.examples.len() < SKIPPED_NAMED_MAX {
            self.examples.push(error);
        }
    }

    fn reason(&self) -> Option<String> {
        let names: Vec<String> = self.examples.iter().map(ToString::to_string).collect();
        let more = if self.count > names.len() { "; …" } else { "" };
        let plural = if self.count == 1 { "endpoint" } else { "endpoints" };
        (self.count > 0).then(|| format!("{} {plural} skipped: {}{more}", self.count, names.join("; ")))
    }
}

fn parse_endpoints<'a>(
    address_type: AddressType,
    wires: impl Iterator<Item = &'a EndpointWire<'a>> + Clone,
    ports: usize,
) -> Result<(Endpoints, SkippedEndpoints), ObjectError> {
    let count = wires.clone().count();
    check_count("endpoints", count, limits::ENDPOINTS_PER_SLICE_MAX)?;
    let AddressType::Ip(family) = address_type else {
        return Ok((Endpoints::default(), SkippedEndpoints::default()));
    };
    let mut builder = EndpointsBuilder::new(family);
    let mut skipped = SkippedEndpoints::default();
    let mut hints = HintSet::default();
    let count_max = limits::ROWS_PER_SLICE_MAX / ports.max(1);
    if count > count_max {
        skipped.push_many(count - count_max, ObjectError::TooManyAtPorts { count, count_max, ports });
    }
    for (index, wire) in wires.take(count_max).enumerate() {
        if let Err(error) = parse_endpoint(index, wire, &mut hints, &mut builder) {
            skipped.push(error);
        }
    }
    Ok((builder.finish(), skipped))
}

/// `hints` are the previous endpoint's: equal ones are shared, not copied.
fn parse_endpoint(
    index: usize,
    wire: &EndpointWire<'_>,
    hints: &mut HintSet,
    builder: &mut EndpointsBuilder,
) -> Result<(), ObjectError> {
    let field = || format!("endpoints[{index}]");
    let Some(text) = wire.addresses.as_deref().unwrap_or_default().first() else {
        return Err(ObjectError::Missing {
            field: field() + ".addresses",
            legal: "an endpoint needs one address",
        });
    };
    let address =
        address::parse(text).ok_or_else(|| ObjectError::address(field() + ".addresses[0]", text))?;
    let conditions = wire.conditions.clone().unwrap_or_default();
    if let Some(wire) = &wire.hints {
        set_names(&mut hints.zones, wire.for_zones.as_deref());
        set_names(&mut hints.nodes, wire.for_nodes.as_deref());
    }
    builder
        .push(Endpoint {
            address,
            conditions: Conditions::from_optional(
                conditions.ready,
                conditions.serving,
                conditions.terminating,
            ),
            node: wire.node_name.as_deref().map(NodeName::from),
            zone: wire.zone.as_deref(),
            hints: wire.hints.is_some().then_some(&*hints),
            target: wire.target_ref.as_ref().and_then(parse_target),
        })
        .map_err(|error| ObjectError::Endpoint { field: field(), error })
}

fn set_names(names: &mut Box<[Arc<str>]>, wires: Option<&[HintWire<'_>]>) {
    let given = || wires.unwrap_or_default().iter().filter_map(|hint| hint.name.as_deref());
    let given = || given().filter(|name| !name.is_empty());
    if !given().eq(names.iter().map(|name| &**name)) {
        *names = given().map(Arc::from).collect();
    }
}

fn parse_target<'a>(wire: &'a TargetWire<'_>) -> Option<Target<'a>> {
    Some(Target {
        kind: wire.kind.as_deref().unwrap_or_default(),
        namespace: wire.namespace.as_deref().unwrap_or_default(),
        name: wire.name.as_deref().filter(|name| !name.is_empty())?.into(),
        uid: UidText::parse(wire.uid.as_deref().unwrap_or_default()),
    })
}
