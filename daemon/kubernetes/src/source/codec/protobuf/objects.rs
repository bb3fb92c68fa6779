//! Decodes Services, `EndpointSlice`s and Nodes from protobuf, as far as their fields are used.
//!
//! Invariant: each type has the same fields as in JSON, and an empty value that JSON omits counts as omitted here; so
//! an object yields the same facts in both encodings. As in protobuf, the last of a repeated scalar field counts,
//! messages merge, and lists append.

use std::borrow::Cow;

use holdfast_objects::{
    AffinityConfigWire, AffinityWire, AnnotationsWire, ConditionsWire, EndpointWire, HintWire, HintsWire,
    IngressWire, LabelsWire, LoadBalancerWire, ManagedFieldsWire, MetaWire, ServicePortWire, ServiceSpecWire,
    ServiceStatusWire, ServiceWire, SlicePortWire, SliceWire, TargetWire, Text, TimeWire,
};

use crate::source::codec::node::NodeWire;
use holdfast_objects::protobuf::{DecodeError, Field, Fields};

/// A message to decode.
pub(super) trait ProtobufMessage<'a>: Default {
    /// Merges one field; unknown ones are skipped.
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError>;

    /// Merges all fields of a message over the earlier ones.
    fn merge_fields(&mut self, mut fields: Fields<'a>) -> Result<(), DecodeError> {
        while let Some(field) = fields.next_field()? {
            self.merge_field(field)?;
        }
        Ok(())
    }

    fn decode(message: &'a [u8]) -> Result<Self, DecodeError> {
        let mut read = Self::default();
        read.merge_fields(Fields::new(message))?;
        Ok(read)
    }
}

/// Merges a message that may come in parts.
fn merge_message<'a, M: ProtobufMessage<'a>>(
    into: &mut Option<M>,
    field: Field<'a>,
) -> Result<(), DecodeError> {
    into.get_or_insert_default().merge_fields(field.message()?)
}

/// Appends to a list of messages.
fn push_message<'a, M: ProtobufMessage<'a>>(
    into: &mut Option<Vec<M>>,
    field: Field<'a>,
) -> Result<(), DecodeError> {
    into.get_or_insert_default().push(M::decode(field.bytes()?)?);
    Ok(())
}

/// Appends to a list of texts.
fn push_text<'a>(into: &mut Option<Vec<Text<'a>>>, field: Field<'a>) -> Result<(), DecodeError> {
    into.get_or_insert_default().push(field.text()?.into());
    Ok(())
}

/// A text that may be empty: if protobuf has it, JSON has it too.
fn optional_text(field: Field<'_>) -> Result<Option<Text<'_>>, DecodeError> {
    field.text().map(|text| Some(text.into()))
}

/// A text of a field that is always present, and empty where JSON omits it.
fn non_empty_text(field: Field<'_>) -> Result<Option<Text<'_>>, DecodeError> {
    field.text().map(|text| Some(text).filter(|text| !text.is_empty()).map(Text::from))
}

/// A number of a field that is always present, and 0 where JSON omits it.
fn non_zero(field: Field<'_>) -> Result<Option<i64>, DecodeError> {
    field.number().map(|number| Some(number).filter(|number| *number != 0))
}

/// A time; a message without fields is none.
fn decode_time(field: Field<'_>) -> Result<Option<TimeWire<'_>>, DecodeError> {
    const SECONDS: u32 = 1;
    let mut fields = field.message()?;
    let mut seconds = None;
    while let Some(field) = fields.next_field()? {
        seconds = if field.number == SECONDS { Some(field.number()?) } else { seconds.or(Some(0)) };
    }
    Ok(seconds.map(TimeWire::UnixSeconds))
}

/// An entry of a map of strings.
fn decode_entry(field: Field<'_>) -> Result<(Cow<'_, str>, Text<'_>), DecodeError> {
    let (mut key, mut value) = (Cow::Borrowed(""), Cow::Borrowed(""));
    let mut fields = field.message()?;
    while let Some(field) = fields.next_field()? {
        match field.number {
            1 => key = field.text()?,
            2 => value = field.text()?,
            _ => {}
        }
    }
    Ok((key, value.into()))
}

impl<'a> ProtobufMessage<'a> for ServiceWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => merge_message(&mut self.metadata, field),
            2 => merge_message(&mut self.spec, field),
            3 => merge_message(&mut self.status, field),
            _ => Ok(()),
        }
    }
}

impl<'a> ProtobufMessage<'a> for SliceWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => merge_message(&mut self.metadata, field)?,
            2 => push_message(self.endpoints.get_or_insert_default(), field)?,
            3 => push_message(&mut self.ports, field)?,
            4 => self.address_type = optional_text(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for MetaWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => self.name = non_empty_text(field)?,
            3 => self.namespace = non_empty_text(field)?,
            5 => self.uid = non_empty_text(field)?,
            6 => self.resource_version = non_empty_text(field)?,
            7 => self.generation = non_zero(field)?,
            8 => self.creation_timestamp = decode_time(field)?,
            9 => self.deletion_timestamp = decode_time(field)?,
            11 => set_label(self.labels.get_or_insert_default(), field)?,
            12 => set_annotation(self.annotations.get_or_insert_default(), field)?,
            14 => push_text(&mut self.finalizers, field)?,
            17 => push_message(&mut self.managed_fields, field)?,
            _ => {}
        }
        Ok(())
    }
}

fn set_label<'a>(labels: &mut LabelsWire<'a>, field: Field<'a>) -> Result<(), DecodeError> {
    let (key, value) = decode_entry(field)?;
    match &*key {
        "kubernetes.io/service-name" => labels.service_name = Some(value),
        "multicluster.kubernetes.io/service-name" => labels.import_name = Some(value),
        "service.kubernetes.io/service-proxy-name" => labels.proxy_name = Some(value),
        "service.kubernetes.io/headless" => labels.headless = Some(value),
        _ => {}
    }
    Ok(())
}

fn set_annotation<'a>(annotations: &mut AnnotationsWire<'a>, field: Field<'a>) -> Result<(), DecodeError> {
    let (key, value) = decode_entry(field)?;
    match &*key {
        "holdfast.io/on-empty" => annotations.on_empty = Some(value),
        "holdfast.io/maglev" => annotations.maglev = Some(value),
        "holdfast.io/session-affinity-prefix" => annotations.affinity_prefix = Some(value),
        "holdfast.io/weights" => annotations.weights = Some(value),
        "endpoints.kubernetes.io/last-change-trigger-time" => annotations.triggered = Some(value),
        _ => {}
    }
    Ok(())
}

impl<'a> ProtobufMessage<'a> for ManagedFieldsWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => self.manager = non_empty_text(field)?,
            2 => self.operation = non_empty_text(field)?,
            4 => self.time = decode_time(field)?,
            8 => self.subresource = non_empty_text(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for ServiceSpecWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => push_message(&mut self.ports, field)?,
            3 => self.cluster_ip = non_empty_text(field)?,
            4 => self.kind = non_empty_text(field)?,
            5 => push_text(&mut self.external_ips, field)?,
            7 => self.session_affinity = non_empty_text(field)?,
            9 => push_text(&mut self.load_balancer_source_ranges, field)?,
            11 => self.external_traffic_policy = non_empty_text(field)?,
            12 => self.health_check_node_port = non_zero(field)?,
            14 => merge_message(&mut self.session_affinity_config, field)?,
            18 => push_text(&mut self.cluster_ips, field)?,
            19 => push_text(&mut self.ip_families, field)?,
            20 => self.allocate_load_balancer_node_ports = Some(field.flag()?),
            21 => self.load_balancer_class = optional_text(field)?,
            22 => self.internal_traffic_policy = optional_text(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for AffinityConfigWire {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        if field.number == 1 { merge_message(&mut self.client_ip, field) } else { Ok(()) }
    }
}

impl<'a> ProtobufMessage<'a> for AffinityWire {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        if field.number == 1 {
            self.timeout_seconds = Some(field.number()?);
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for ServicePortWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => self.name = non_empty_text(field)?,
            2 => self.protocol = non_empty_text(field)?,
            3 => self.port = Some(field.number()?),
            5 => self.node_port = non_zero(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for ServiceStatusWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        if field.number == 1 { merge_message(&mut self.load_balancer, field) } else { Ok(()) }
    }
}

impl<'a> ProtobufMessage<'a> for LoadBalancerWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        if field.number == 1 { push_message(&mut self.ingress, field) } else { Ok(()) }
    }
}

impl<'a> ProtobufMessage<'a> for IngressWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => self.ip = non_empty_text(field)?,
            2 => self.hostname = non_empty_text(field)?,
            3 => self.ip_mode = optional_text(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for SlicePortWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => self.name = optional_text(field)?,
            2 => self.protocol = optional_text(field)?,
            3 => self.port = Some(field.number()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for EndpointWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => push_text(&mut self.addresses, field)?,
            2 => merge_message(&mut self.conditions, field)?,
            4 => merge_message(&mut self.target_ref, field)?,
            6 => self.node_name = optional_text(field)?,
            7 => self.zone = optional_text(field)?,
            8 => merge_message(&mut self.hints, field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for ConditionsWire {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => self.ready = Some(field.flag()?),
            2 => self.serving = Some(field.flag()?),
            3 => self.terminating = Some(field.flag()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for HintsWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => push_message(&mut self.for_zones, field),
            2 => push_message(&mut self.for_nodes, field),
            _ => Ok(()),
        }
    }
}

impl<'a> ProtobufMessage<'a> for HintWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        if field.number == 1 {
            self.name = optional_text(field)?;
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for TargetWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        match field.number {
            1 => self.kind = non_empty_text(field)?,
            2 => self.namespace = non_empty_text(field)?,
            3 => self.name = non_empty_text(field)?,
            4 => self.uid = non_empty_text(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> ProtobufMessage<'a> for NodeWire<'a> {
    fn merge_field(&mut self, field: Field<'a>) -> Result<(), DecodeError> {
        let mut fields = field.message()?;
        while let Some(inner) = fields.next_field()? {
            match (field.number, inner.number) {
                (1, 9) => self.is_deleted = decode_time(inner)?.is_some(),
                (1, 11) => {
                    let (key, value) = (first_text(inner, 1)?, first_text(inner, 2)?);
                    self.add_label(key, value);
                }
                (2, 5) => self.add_taint(first_text(inner, 1)?),
                (3, 5) => self.add_address(first_text(inner, 1)?, first_text(inner, 2)?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The text of a message's field; empty if it is missing or not UTF-8: nothing that is read of a Node is either.
fn first_text(message: Field<'_>, number: u32) -> Result<&str, DecodeError> {
    let mut found = "";
    let mut fields = message.message()?;
    while let Some(field) = fields.next_field()? {
        if field.number == number {
            found = if let Cow::Borrowed(text) = field.text()? { text } else { "" };
        }
    }
    Ok(found)
}
