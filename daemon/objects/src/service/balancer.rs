//! Parses a Service's load balancer and deletion.
//!
//! Invariant: no value here rejects an object, because none is served. A value that cannot be parsed counts as unknown,
//! and entries beyond a limit are dropped.

use std::sync::Arc;

use holdfast_core::facts::balancer::sanitize_text;
use holdfast_core::facts::{BalancerFacts, ServiceType};
use holdfast_core::limits;

use crate::wire::{
    IngressWire, ManagedFieldsWire, MetaWire, ServiceSpecWire, ServiceStatusWire, Text, TimeWire,
};

/// Reads the load balancer of a Service; `None` if the Service requests none, has no finalizers and is not being
/// deleted.
pub(super) fn read_balancer(
    kind: ServiceType,
    metadata: &MetaWire<'_>,
    spec: &ServiceSpecWire<'_>,
    status: Option<&ServiceStatusWire<'_>>,
) -> Option<Box<BalancerFacts>> {
    let finalizers = bounded_texts(metadata.finalizers.iter().flatten(), limits::FINALIZERS_MAX);
    let deleted = metadata.deletion_timestamp.as_ref().and_then(TimeWire::timestamp);
    if kind != ServiceType::LoadBalancer && finalizers.is_empty() && deleted.is_none() {
        return None;
    }
    let ingress = status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_deref());
    let entries = metadata.managed_fields.as_deref().unwrap_or_default();
    Some(Box::new(BalancerFacts {
        deleted,
        finalizers,
        class: spec.load_balancer_class.as_deref().filter(|class| !class.is_empty()).map(sanitize_text),
        without_node_ports: spec.allocate_load_balancer_node_ports == Some(false),
        hostnames: bounded_texts(
            ingress.unwrap_or_default().iter().filter_map(hostname),
            limits::HOSTNAMES_MAX,
        ),
        writers: status_writers(entries),
        written: status_entries(entries).filter_map(|entry| entry.time.as_ref()?.timestamp()).max(),
    }))
}

/// The host name of an entry without an address.
fn hostname<'a>(entry: &'a IngressWire<'_>) -> Option<&'a Text<'a>> {
    let has_address = entry.ip.as_deref().is_some_and(|ip| !ip.is_empty());
    entry.hostname.as_ref().filter(|_| !has_address)
}

fn bounded_texts<'a>(texts: impl Iterator<Item = &'a Text<'a>>, most: usize) -> Box<[Arc<str>]> {
    texts.filter(|text| !text.is_empty()).take(most).map(|text| sanitize_text(text)).collect()
}

/// The entries of the status' writers, which are controllers of load balancers. Which fields they wrote is in a part of
/// the entry that is not read.
fn status_entries<'a, 'w>(
    entries: &'a [ManagedFieldsWire<'w>],
) -> impl Iterator<Item = &'a ManagedFieldsWire<'w>> {
    entries.iter().filter(|entry| entry.subresource.as_deref() == Some("status"))
}

fn status_writers(entries: &[ManagedFieldsWire<'_>]) -> Box<[Arc<str>]> {
    let mut names: Vec<Arc<str>> = Vec::new();
    for manager in status_entries(entries).filter_map(|entry| entry.manager.as_deref()) {
        let name = sanitize_text(manager);
        if names.len() < limits::STATUS_WRITERS_MAX && !names.contains(&name) {
            names.push(name);
        }
    }
    names.into()
}
