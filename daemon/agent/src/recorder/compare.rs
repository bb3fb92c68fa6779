//! Compares two lists, two slices or two services.
//!
//! Invariant: the work is linear in the two lists except for one sort. A difference is bounded in size, and counts the
//! rest. Fields that affect neither clients nor a load balancer's life cycle, such as labels, are not compared.

use std::collections::BTreeMap;
use std::net::IpAddr;

use holdfast_core::facts::{BalancerFacts, Conditions, ServiceFacts, SliceFacts};
use holdfast_core::list::{Row, SlotState};
use holdfast_status::record::{Diff, Word};

/// Compares two lists of the datapath; both are sorted by address and port.
pub(super) fn diff_lists(before: impl Iterator<Item = Row>, after: impl Iterator<Item = Row>) -> Diff {
    let mut diff = Diff::default();
    let mut before = before.peekable();
    for row in after {
        while let Some(gone) = before.next_if(|old| old.backend() < row.backend()) {
            diff.remove(gone.backend());
        }
        match before.next_if(|old| old.backend() == row.backend()) {
            Some(old) => diff.add_common(row.backend(), row_state(&old), row_state(&row)),
            None => diff.add(row.backend()),
        }
    }
    before.for_each(|gone| diff.remove(gone.backend()));
    diff
}

fn row_state(row: &Row) -> &'static str {
    match row.state() {
        SlotState::Active => "active",
        SlotState::Draining => "draining",
    }
}

/// Compares the endpoints of two versions of a slice; `None` means that the slice did not exist or no longer exists.
pub(super) fn diff_slices(before: Option<&SliceFacts>, after: Option<&SliceFacts>) -> Diff {
    let mut diff = Diff::default();
    let mut old = conditions_by_address(before);
    for (address, conditions) in conditions_by_address(after) {
        match old.remove(&address) {
            Some(known) => {
                diff.add_common(address, describe_conditions(known), describe_conditions(conditions));
            }
            None => diff.add(address),
        }
    }
    old.keys().for_each(|address| diff.remove(address));
    diff
}

fn conditions_by_address(slice: Option<&SliceFacts>) -> BTreeMap<IpAddr, Conditions> {
    slice.into_iter().flat_map(|slice| slice.endpoints.iter_brief()).collect()
}

const fn describe_conditions(conditions: Conditions) -> &'static str {
    match (conditions.ready, conditions.serving, conditions.terminating) {
        (true, _, false) => "ready",
        (true, _, true) => "ready and terminating",
        (false, true, true) => "serving and terminating",
        (false, false, true) => "terminating",
        (false, _, false) => "unready",
    }
}

/// The names of a slice's changed fields, `endpoints` among them.
pub(super) fn slice_fields(before: Option<&SliceFacts>, after: &SliceFacts) -> Vec<Word> {
    let Some(before) = before else { return Vec::new() };
    let differing = [
        ("service", before.service != after.service),
        ("headless", before.headless != after.headless),
        ("addressType", before.address_type != after.address_type),
        ("ports", before.ports != after.ports),
        ("endpoints", before.endpoints != after.endpoints || before.endpoints_null != after.endpoints_null),
        ("weights", before.weights != after.weights),
    ];
    differing_names(&differing)
}

/// The names of a service's changed fields.
pub(super) fn service_fields(before: Option<&ServiceFacts>, after: &ServiceFacts) -> Vec<Word> {
    let Some(before) = before else { return Vec::new() };
    let none = BalancerFacts::default();
    let [old, new] = [before, after].map(|facts| facts.balancer.as_deref().unwrap_or(&none));
    let differing = [
        ("type", before.kind != after.kind),
        ("clusterIPs", before.cluster_ips != after.cluster_ips || before.headless != after.headless),
        ("ipFamilies", before.ip_families != after.ip_families),
        ("externalIPs", before.external_ips != after.external_ips),
        ("ingress", before.ingress != after.ingress || old.hostnames != new.hostnames),
        ("ports", before.ports != after.ports),
        ("frontends", before.static_frontends != after.static_frontends),
        ("internalTrafficPolicy", before.internal_policy != after.internal_policy),
        ("externalTrafficPolicy", before.external_policy != after.external_policy),
        ("sessionAffinity", before.affinity_timeout != after.affinity_timeout),
        ("session-affinity-prefix", before.affinity_prefix != after.affinity_prefix),
        ("loadBalancerSourceRanges", before.source_ranges != after.source_ranges),
        ("healthCheckNodePort", before.health_check_node_port != after.health_check_node_port),
        ("service-proxy-name", before.proxy_name != after.proxy_name),
        ("on-empty", before.on_empty != after.on_empty),
        ("maglev", before.maglev != after.maglev),
        ("weights", before.weights != after.weights),
        ("loadBalancerClass", old.class != new.class),
        ("deletionTimestamp", old.deleted != new.deleted),
        ("finalizers", old.finalizers != new.finalizers),
    ];
    differing_names(&differing)
}

fn differing_names(fields: &[(&'static str, bool)]) -> Vec<Word> {
    fields.iter().filter(|(_, differs)| *differs).map(|(name, _)| (*name).into()).collect()
}

#[cfg(test)]
mod tests {
    use holdfast_core::facts::{ServiceType, Timestamp};
    use holdfast_core::keys::{ObjectName, ServiceKey, Source};

    use super::*;

    #[test]
    fn changed_fields_of_a_load_balancer_are_named() {
        let name = ObjectName::new("shop", "web").unwrap();
        let key = ServiceKey { name, source: Source::Kubernetes };
        let before = ServiceFacts::new(key, ServiceType::LoadBalancer);
        for (balancer, expected) in [
            (BalancerFacts::default(), None),
            (BalancerFacts { hostnames: ["a".into()].into(), ..Default::default() }, Some("ingress")),
            (BalancerFacts { class: Some("a".into()), ..Default::default() }, Some("loadBalancerClass")),
            (BalancerFacts { deleted: Some(Timestamp(5)), ..Default::default() }, Some("deletionTimestamp")),
            (BalancerFacts { finalizers: ["a".into()].into(), ..Default::default() }, Some("finalizers")),
            // Each change carries the last writer and its time.
            (BalancerFacts { written: Some(Timestamp(5)), ..Default::default() }, None),
        ] {
            let after = ServiceFacts { balancer: Some(Box::new(balancer)), ..before.clone() };
            let found = service_fields(Some(&before), &after);
            assert_eq!(found, expected.into_iter().map(Word::from).collect::<Vec<_>>());
        }
    }
}
