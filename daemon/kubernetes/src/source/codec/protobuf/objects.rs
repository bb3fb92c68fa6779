//! Services, `EndpointSlice`s and Nodes in protobuf, as far as they are read.
//!
//! Invariant: each type has the fields, by the same names, that the reader of JSON has, and a value that JSON leaves
//! out because it is empty counts as left out here; so an object leads to the same facts in either encoding. As
//! protobuf has it, of a field that comes twice the last one counts, messages are merged, and lists go on.

use std::borrow::Cow;

use holdfast_objects::{
    AffinityConfigWire, AffinityWire, AnnotationsWire, ConditionsWire, EndpointWire, HintWire, HintsWire,
    IngressWire, LabelsWire, LoadBalancerWire, ManagedFieldsWire, MetaWire, ServicePortWire, ServiceSpecWire,
    ServiceStatusWire, ServiceWire, SlicePortWire, SliceWire, TargetWire, Text, TimeWire,
};

use crate::source::codec::node::NodeWire;
use holdfast_objects::protobuf::{Field, Fields, Malformed};

/// A message that is read.
pub(super) trait Message<'a>: Default {
    /// Takes one field in; one that is not read is passed over.
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed>;

    /// Takes all fields of a message in, after those that came before.
    fn merge(&mut self, mut fields: Fields<'a>) -> Result<(), Malformed> {
        while let Some(field) = fields.next_field()? {
            self.take(field)?;
        }
        Ok(())
    }

    fn of(message: &'a [u8]) -> Result<Self, Malformed> {
        let mut read = Self::default();
        read.merge(Fields::of(message))?;
        Ok(read)
    }
}

/// Sets a message that may come in parts.
fn merge<'a, M: Message<'a>>(into: &mut Option<M>, field: Field<'a>) -> Result<(), Malformed> {
    into.get_or_insert_default().merge(field.message()?)
}

/// Adds to a list of messages.
fn push<'a, M: Message<'a>>(into: &mut Option<Vec<M>>, field: Field<'a>) -> Result<(), Malformed> {
    into.get_or_insert_default().push(M::of(field.bytes()?)?);
    Ok(())
}

/// Adds to a list of texts.
fn push_text<'a>(into: &mut Option<Vec<Text<'a>>>, field: Field<'a>) -> Result<(), Malformed> {
    into.get_or_insert_default().push(field.text()?.into());
    Ok(())
}

/// A text that may be empty: where that is written, JSON has it too.
fn text(field: Field<'_>) -> Result<Option<Text<'_>>, Malformed> {
    field.text().map(|text| Some(text.into()))
}

/// A text of a field that is always written, and is empty where JSON leaves it out.
fn filled(field: Field<'_>) -> Result<Option<Text<'_>>, Malformed> {
    field.text().map(|text| Some(text).filter(|text| !text.is_empty()).map(Text::from))
}

/// A number of a field that is always written, and is 0 where JSON leaves it out.
fn count(field: Field<'_>) -> Result<Option<i64>, Malformed> {
    field.number().map(|number| Some(number).filter(|number| *number != 0))
}

/// A moment; one without any field is none.
fn time(field: Field<'_>) -> Result<Option<TimeWire<'_>>, Malformed> {
    const SECONDS: u32 = 1;
    let mut fields = field.message()?;
    let mut seconds = None;
    while let Some(field) = fields.next_field()? {
        seconds = if field.number == SECONDS { Some(field.number()?) } else { seconds.or(Some(0)) };
    }
    Ok(seconds.map(TimeWire::Counted))
}

/// An entry of a map of texts.
fn entry(field: Field<'_>) -> Result<(Cow<'_, str>, Text<'_>), Malformed> {
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

impl<'a> Message<'a> for ServiceWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => merge(&mut self.metadata, field),
            2 => merge(&mut self.spec, field),
            3 => merge(&mut self.status, field),
            _ => Ok(()),
        }
    }
}

impl<'a> Message<'a> for SliceWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => merge(&mut self.metadata, field)?,
            2 => push(self.endpoints.get_or_insert_default(), field)?,
            3 => push(&mut self.ports, field)?,
            4 => self.address_type = text(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for MetaWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => self.name = filled(field)?,
            3 => self.namespace = filled(field)?,
            5 => self.uid = filled(field)?,
            6 => self.resource_version = filled(field)?,
            7 => self.generation = count(field)?,
            8 => self.creation_timestamp = time(field)?,
            9 => self.deletion_timestamp = time(field)?,
            11 => label(self.labels.get_or_insert_default(), field)?,
            12 => annotation(self.annotations.get_or_insert_default(), field)?,
            14 => push_text(&mut self.finalizers, field)?,
            17 => push(&mut self.managed_fields, field)?,
            _ => {}
        }
        Ok(())
    }
}

fn label<'a>(labels: &mut LabelsWire<'a>, field: Field<'a>) -> Result<(), Malformed> {
    let (key, value) = entry(field)?;
    match &*key {
        "kubernetes.io/service-name" => labels.service_name = Some(value),
        "multicluster.kubernetes.io/service-name" => labels.import_name = Some(value),
        "service.kubernetes.io/service-proxy-name" => labels.proxy_name = Some(value),
        "service.kubernetes.io/headless" => labels.headless = Some(value),
        _ => {}
    }
    Ok(())
}

fn annotation<'a>(annotations: &mut AnnotationsWire<'a>, field: Field<'a>) -> Result<(), Malformed> {
    let (key, value) = entry(field)?;
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

impl<'a> Message<'a> for ManagedFieldsWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => self.manager = filled(field)?,
            2 => self.operation = filled(field)?,
            4 => self.time = time(field)?,
            8 => self.subresource = filled(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for ServiceSpecWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => push(&mut self.ports, field)?,
            3 => self.cluster_ip = filled(field)?,
            4 => self.kind = filled(field)?,
            5 => push_text(&mut self.external_ips, field)?,
            7 => self.session_affinity = filled(field)?,
            9 => push_text(&mut self.load_balancer_source_ranges, field)?,
            11 => self.external_traffic_policy = filled(field)?,
            12 => self.health_check_node_port = count(field)?,
            14 => merge(&mut self.session_affinity_config, field)?,
            18 => push_text(&mut self.cluster_ips, field)?,
            19 => push_text(&mut self.ip_families, field)?,
            20 => self.allocate_load_balancer_node_ports = Some(field.flag()?),
            21 => self.load_balancer_class = text(field)?,
            22 => self.internal_traffic_policy = text(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for AffinityConfigWire {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        if field.number == 1 { merge(&mut self.client_ip, field) } else { Ok(()) }
    }
}

impl<'a> Message<'a> for AffinityWire {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        if field.number == 1 {
            self.timeout_seconds = Some(field.number()?);
        }
        Ok(())
    }
}

impl<'a> Message<'a> for ServicePortWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => self.name = filled(field)?,
            2 => self.protocol = filled(field)?,
            3 => self.port = Some(field.number()?),
            5 => self.node_port = count(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for ServiceStatusWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        if field.number == 1 { merge(&mut self.load_balancer, field) } else { Ok(()) }
    }
}

impl<'a> Message<'a> for LoadBalancerWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        if field.number == 1 { push(&mut self.ingress, field) } else { Ok(()) }
    }
}

impl<'a> Message<'a> for IngressWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => self.ip = filled(field)?,
            2 => self.hostname = filled(field)?,
            3 => self.ip_mode = text(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for SlicePortWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => self.name = text(field)?,
            2 => self.protocol = text(field)?,
            3 => self.port = Some(field.number()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for EndpointWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => push_text(&mut self.addresses, field)?,
            2 => merge(&mut self.conditions, field)?,
            4 => merge(&mut self.target_ref, field)?,
            6 => self.node_name = text(field)?,
            7 => self.zone = text(field)?,
            8 => merge(&mut self.hints, field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for ConditionsWire {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => self.ready = Some(field.flag()?),
            2 => self.serving = Some(field.flag()?),
            3 => self.terminating = Some(field.flag()?),
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for HintsWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => push(&mut self.for_zones, field),
            2 => push(&mut self.for_nodes, field),
            _ => Ok(()),
        }
    }
}

impl<'a> Message<'a> for HintWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        if field.number == 1 {
            self.name = text(field)?;
        }
        Ok(())
    }
}

impl<'a> Message<'a> for TargetWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        match field.number {
            1 => self.kind = filled(field)?,
            2 => self.namespace = filled(field)?,
            3 => self.name = filled(field)?,
            4 => self.uid = filled(field)?,
            _ => {}
        }
        Ok(())
    }
}

impl<'a> Message<'a> for NodeWire<'a> {
    fn take(&mut self, field: Field<'a>) -> Result<(), Malformed> {
        let mut fields = field.message()?;
        while let Some(inner) = fields.next_field()? {
            match (field.number, inner.number) {
                (1, 9) => self.is_deleted = time(inner)?.is_some(),
                (1, 11) => {
                    let (key, value) = (first(inner, 1)?, first(inner, 2)?);
                    self.label(key, value);
                }
                (2, 5) => self.taint(first(inner, 1)?),
                (3, 5) => self.address(first(inner, 1)?, first(inner, 2)?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// The text of a field of a message, empty if it has none, or one that is no UTF-8: nothing that is read of a Node is.
fn first(message: Field<'_>, number: u32) -> Result<&str, Malformed> {
    let mut found = "";
    let mut fields = message.message()?;
    while let Some(field) = fields.next_field()? {
        if field.number == number {
            found = if let Cow::Borrowed(text) = field.text()? { text } else { "" };
        }
    }
    Ok(found)
}
