//! Parses names, versions and writers of objects.
//!
//! Invariant: the last writer is the entry of `managedFields` with the latest time; of equal times, the later entry.

use std::sync::Arc;

use holdfast_core::facts::balancer::sanitize_text;
use holdfast_core::facts::{Meta, Timestamp, TriggerTime, Writer};
use holdfast_core::keys::ObjectName;
use holdfast_core::rfc3339;

use super::error::quote_value;
use super::intern::intern_text;
use super::wire::{ManagedFieldsWire, MetaWire, Text, TimeWire};
use super::{Defaulting, ObjectError, Provenance};

/// The namespace of objects that name none.
const NAMESPACE_DEFAULT: &str = "default";

pub(super) fn object_name(
    namespace: Option<&str>,
    name: Option<&str>,
    defaulting: Defaulting,
) -> Result<ObjectName, ObjectError> {
    let namespace = match (namespace.unwrap_or_default(), defaulting) {
        ("", Defaulting::AsApiserver) => NAMESPACE_DEFAULT,
        (given, _) => given,
    };
    ObjectName::new(namespace, name.unwrap_or_default())
        .map_err(|error| ObjectError::Name { field: "metadata".to_owned(), error })
}

pub(super) fn parse_meta(wire: &MetaWire<'_>, provenance: &Provenance) -> Result<Meta, ObjectError> {
    Ok(Meta {
        uid: non_empty_text(wire.uid.as_ref()),
        resource_version: non_empty_text(wire.resource_version.as_ref()),
        generation: wire.generation,
        created: creation_time(wire)?,
        writer: wire.managed_fields.as_deref().and_then(last_writer),
        origin: provenance.origin.clone(),
        triggered: trigger_time(wire),
    })
}

/// The text, sanitized; `None` if it is empty. Every text that is shown but never served passes here.
pub(super) fn non_empty_text(wire: Option<&Text<'_>>) -> Option<Arc<str>> {
    wire.filter(|text| !text.is_empty()).map(|text| sanitize_text(text))
}

fn creation_time(wire: &MetaWire<'_>) -> Result<Option<Timestamp>, ObjectError> {
    match &wire.creation_timestamp {
        Some(TimeWire::Rfc3339(text)) => rfc3339::parse(text).map(Some).ok_or_else(|| ObjectError::Word {
            field: "metadata.creationTimestamp".to_owned(),
            shown: quote_value(text),
            legal: "times such as 2026-01-08T11:11:55Z",
        }),
        counted => Ok(counted.as_ref().and_then(TimeWire::timestamp)),
    }
}

/// As in kube-proxy, a time that cannot be parsed counts as none.
fn trigger_time(wire: &MetaWire<'_>) -> TriggerTime {
    let text = wire.annotations.as_ref().and_then(|annotations| annotations.triggered.as_deref());
    TriggerTime(text.and_then(rfc3339::parse_micros))
}

fn last_writer(entries: &[ManagedFieldsWire<'_>]) -> Option<Writer> {
    let timed = entries.iter().map(|entry| (entry.time.as_ref().and_then(TimeWire::timestamp), entry));
    let (at, last) = timed.max_by_key(|(at, _)| *at)?;
    let word = |text: Option<&Text<'_>>| self::non_empty_text(text).map(|text| intern_text(&text));
    Some(Writer {
        manager: word(last.manager.as_ref()).unwrap_or_default(),
        operation: word(last.operation.as_ref()).unwrap_or_default(),
        subresource: word(last.subresource.as_ref()),
        at,
    })
}
