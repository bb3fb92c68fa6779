//! Converts objects of the apiserver into evidence.
//!
//! Invariant: this file cuts texts and bounds most lists. A Service's selector and ports, and a slice's endpoints and
//! ports, stay whole, within the bytes of an answer. Nothing else of an object is kept.

use std::net::IpAddr;

use holdfast_core::facts::Timestamp;
use holdfast_diagnose::evidence::{
    Condition, EndpointsObject, HostPort, Lease, ObservedEndpoint, ObservedIngress, ObservedIpAddress,
    ObservedNode, ObservedPort, ObservedService, ObservedSlice, ObservedSlicePort, ObservedTarget, Owner,
    Pod, PodPort, TargetPort, UnmatchedPod,
};
use holdfast_diagnose::limits::NAME_LENGTH_MAX;
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use k8s_openapi::api::core::v1::{
    Container, ContainerPort, Endpoints, Namespace, Node, NodeCondition, Pod as PodObject, PodCondition,
    PodStatus, Service, ServicePort,
};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use k8s_openapi::api::networking::v1::IPAddress;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta, OwnerReference, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Deserialize;

/// The most items of one list of an object: labels, container ports, finalizers, writers. Real objects have a few.
const ITEMS_MAX: usize = 64;

/// An object from a query for metadata alone.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct MetadataObject {
    metadata: ObjectMeta,
}

fn truncate_text(text: impl AsRef<str>) -> String {
    text.as_ref().chars().take(NAME_LENGTH_MAX).collect()
}

fn text_or_empty(text: Option<String>) -> String {
    text.map(truncate_text).unwrap_or_default()
}

fn to_timestamp(time: Option<Time>) -> Option<Timestamp> {
    time.map(|time| Timestamp(time.0.as_second()))
}

fn port_number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

fn map_items<T, U>(items: Option<Vec<T>>, read: impl FnMut(T) -> U) -> Vec<U> {
    items.into_iter().flatten().take(ITEMS_MAX).map(read).collect()
}

pub(super) fn to_service(object: Service) -> ObservedService {
    let mut meta = object.metadata;
    let spec = object.spec.unwrap_or_default();
    let proxy_name = take_label(&mut meta, "service.kubernetes.io/service-proxy-name");
    let ingress = object.status.and_then(|status| status.load_balancer).and_then(|it| it.ingress);
    ObservedService {
        uid: text_or_empty(meta.uid),
        resource_version: text_or_empty(meta.resource_version),
        generation: meta.generation,
        kind: text_or_empty(spec.type_),
        selector: spec.selector.unwrap_or_default(),
        class: spec.load_balancer_class.map(truncate_text),
        finalizers: map_items(meta.finalizers, truncate_text),
        deletion: to_timestamp(meta.deletion_timestamp),
        created: to_timestamp(meta.creation_timestamp),
        ports: spec.ports.into_iter().flatten().filter_map(to_service_port).collect(),
        families: map_items(spec.ip_families, truncate_text),
        cluster_ips: map_items(spec.cluster_ips, |it| it).iter().filter_map(|it| it.parse().ok()).collect(),
        ingress: map_items(ingress, |it| ObservedIngress {
            ip: it.ip.and_then(|ip| ip.parse().ok()),
            hostname: it.hostname.map(truncate_text),
            proxied: it.ip_mode.as_deref() == Some("Proxy"),
        }),
        proxy_name,
        balancer_writers: balancer_writers(meta.managed_fields.unwrap_or_default()),
        allocates_node_ports: spec.allocate_load_balancer_node_ports,
        external_name: text_or_empty(spec.external_name),
        publishes_not_ready: spec.publish_not_ready_addresses.unwrap_or_default(),
    }
}

fn to_service_port(port: ServicePort) -> Option<ObservedPort> {
    let own = port_number(port.port)?;
    let target = match port.target_port {
        Some(IntOrString::Int(target)) => TargetPort::Number(port_number(target)?),
        Some(IntOrString::String(name)) => TargetPort::Name(truncate_text(name)),
        None => TargetPort::Number(own),
    };
    let protocol = port.protocol.map_or_else(|| "TCP".to_owned(), truncate_text);
    let app_protocol = port.app_protocol.map(truncate_text);
    Some(ObservedPort { name: text_or_empty(port.name), protocol, port: own, target, app_protocol })
}

/// The managers that wrote `status.loadBalancer`.
fn balancer_writers(entries: Vec<ManagedFieldsEntry>) -> Vec<String> {
    let writes = |entry: &ManagedFieldsEntry| {
        entry.fields_v1.as_ref().is_some_and(|it| it.0.pointer("/f:status/f:loadBalancer").is_some())
    };
    let mut writers: Vec<String> = entries
        .into_iter()
        .filter(writes)
        .take(ITEMS_MAX)
        .filter_map(|it| it.manager.map(truncate_text))
        .collect();
    writers.sort_unstable();
    writers.dedup();
    writers
}

pub(super) fn to_slice(object: EndpointSlice) -> ObservedSlice {
    let mut meta = object.metadata;
    let trigger = "endpoints.kubernetes.io/last-change-trigger-time";
    let triggered = meta.annotations.as_mut().and_then(|all| all.remove(trigger));
    ObservedSlice {
        manager: take_label(&mut meta, "endpointslice.kubernetes.io/managed-by"),
        name: text_or_empty(meta.name),
        resource_version: text_or_empty(meta.resource_version),
        uid: text_or_empty(meta.uid),
        created: to_timestamp(meta.creation_timestamp),
        triggered: triggered.and_then(|it| holdfast_objects::parse_time(&it)),
        endpoints: object.endpoints.into_iter().flatten().map(to_endpoint).collect(),
        ports: object.ports.into_iter().flatten().map(to_slice_port).collect(),
    }
}

fn to_slice_port(port: EndpointPort) -> ObservedSlicePort {
    let protocol = port.protocol.map_or_else(|| "TCP".to_owned(), truncate_text);
    ObservedSlicePort { name: text_or_empty(port.name), protocol, port: port.port.and_then(port_number) }
}

fn take_label(meta: &mut ObjectMeta, name: &str) -> Option<String> {
    meta.labels.as_mut().and_then(|all| all.remove(name)).map(truncate_text)
}

fn to_endpoint(it: Endpoint) -> ObservedEndpoint {
    let conditions = it.conditions.unwrap_or_default();
    ObservedEndpoint {
        address: it.addresses.first().and_then(|address| address.parse().ok()),
        ready: conditions.ready,
        serving: conditions.serving,
        terminating: conditions.terminating,
        node: it.node_name.map(truncate_text),
        target: it.target_ref.map(|target| ObservedTarget {
            kind: text_or_empty(target.kind),
            name: text_or_empty(target.name),
            uid: text_or_empty(target.uid),
        }),
    }
}

pub(super) fn to_pod(object: PodObject) -> Pod {
    let meta = object.metadata;
    let spec = object.spec.unwrap_or_default();
    let status = object.status.unwrap_or_default();
    let gates = map_items(spec.readiness_gates, |gate| gate.condition_type);
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is_set = |gate: &String| conditions.iter().any(|it| it.type_ == *gate && it.status == "True");
    Pod {
        name: text_or_empty(meta.name),
        uid: text_or_empty(meta.uid),
        ips: pod_addresses(&status),
        phase: text_or_empty(status.phase.clone()),
        node: spec.node_name.map(truncate_text),
        ready: conditions.iter().find(|it| it.type_ == "Ready").map(pod_condition),
        reason: status.reason.as_ref().map(truncate_text),
        waiting: waiting_reason(&status),
        unset_gates: gates.into_iter().filter(|gate| !is_set(gate)).map(truncate_text).collect(),
        deletion: to_timestamp(meta.deletion_timestamp),
        ports: container_ports(&spec.containers),
        http_ports: http_ports(&spec.containers),
        shares_host: spec.host_network.unwrap_or_default(),
        owner: controller_owner(meta.owner_references.unwrap_or_default()),
    }
}

fn pod_addresses(status: &PodStatus) -> Vec<IpAddr> {
    let all = status.pod_ips.iter().flatten().map(|it| it.ip.as_str());
    all.take(ITEMS_MAX).filter_map(|ip| ip.parse().ok()).collect()
}

fn pod_condition(it: &PodCondition) -> Condition {
    Condition { is_true: it.status == "True", since: to_timestamp(it.last_transition_time.clone()) }
}

/// Why a container waits: the first reason other than `PodInitializing`, which is not worth reporting.
fn waiting_reason(status: &PodStatus) -> Option<String> {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let mut reasons = all.filter_map(|it| it.state.as_ref()?.waiting.as_ref()?.reason.as_ref());
    reasons.find(|reason| reason.as_str() != "PodInitializing").map(truncate_text)
}

fn container_ports(containers: &[Container]) -> Vec<PodPort> {
    let all = containers.iter().flat_map(|it| it.ports.iter().flatten());
    let read = |port: &ContainerPort| {
        let protocol = port.protocol.as_ref().map_or_else(|| "TCP".to_owned(), truncate_text);
        Some(PodPort {
            name: text_or_empty(port.name.clone()),
            number: port_number(port.container_port)?,
            protocol,
        })
    };
    all.take(ITEMS_MAX).filter_map(read).collect()
}

/// The ports that kubelet probes by HTTP without TLS, at the pod's own address.
fn http_ports(containers: &[Container]) -> Vec<u16> {
    let of = |it: &Container| {
        let probes = [&it.readiness_probe, &it.liveness_probe, &it.startup_probe];
        let http_gets = probes.into_iter().flatten().filter_map(|probe| probe.http_get.as_ref());
        let plain = http_gets.filter(|get| get.host.is_none() && get.scheme.as_deref() != Some("HTTPS"));
        let all: Vec<u16> = plain.filter_map(|get| probe_port(it, &get.port)).collect();
        all
    };
    containers.iter().take(ITEMS_MAX).flat_map(of).collect()
}

fn probe_port(container: &Container, port: &IntOrString) -> Option<u16> {
    match port {
        IntOrString::Int(port) => port_number(*port),
        IntOrString::String(name) => {
            let mut all = container.ports.iter().flatten().take(ITEMS_MAX);
            port_number(all.find(|port| port.name.as_ref() == Some(name))?.container_port)
        }
    }
}

fn controller_owner(references: Vec<OwnerReference>) -> Option<Owner> {
    let mut controllers = references.into_iter().filter(|it| it.controller == Some(true));
    controllers.next().map(|it| Owner { kind: truncate_text(it.kind), name: truncate_text(it.name) })
}

pub(super) fn host_ports(object: &PodObject) -> Vec<HostPort> {
    let name = |text: &Option<String>| text.as_deref().map(truncate_text).unwrap_or_default();
    let pod = format!("{}/{}", name(&object.metadata.namespace), name(&object.metadata.name));
    let containers = object.spec.iter().flat_map(|spec| &spec.containers);
    let all = containers.flat_map(|it| it.ports.iter().flatten());
    let read = |port: &ContainerPort| {
        let address = port.host_ip.as_ref().and_then(|ip| ip.parse().ok());
        Some(HostPort {
            pod: pod.clone(),
            port: port_number(port.host_port?)?,
            protocol: port.protocol.as_ref().map_or_else(|| "TCP".to_owned(), truncate_text),
            address: address.filter(|address: &IpAddr| !address.is_unspecified()),
        })
    };
    all.take(ITEMS_MAX).filter_map(read).collect()
}

/// Whether a pod has ended. Such a pod keeps no host ports.
pub(super) fn has_ended(object: &PodObject) -> bool {
    let phase = object.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

pub(super) fn to_unmatched_pod(object: MetadataObject) -> UnmatchedPod {
    let labels = object.metadata.labels.unwrap_or_default().into_iter().take(ITEMS_MAX);
    UnmatchedPod {
        name: text_or_empty(object.metadata.name),
        labels: labels.map(|(name, value)| (truncate_text(name), truncate_text(value))).collect(),
        running: None,
    }
}

pub(super) fn to_endpoints(object: Endpoints) -> EndpointsObject {
    let mut meta = object.metadata;
    let by_label = take_label(&mut meta, "endpoints.kubernetes.io/managed-by");
    let writers = meta.managed_fields.unwrap_or_default();
    let by_field = writers.iter().any(|it| it.manager.as_deref() == Some("kube-controller-manager"));
    let capacity =
        meta.annotations.as_mut().and_then(|it| it.remove("endpoints.kubernetes.io/over-capacity"));
    let count = |it: Option<Vec<_>>| it.map_or(0, |all| all.len());
    let subsets = object.subsets.into_iter().flatten();
    EndpointsObject {
        over_capacity: capacity.map(truncate_text),
        addresses: subsets.map(|it| count(it.addresses) + count(it.not_ready_addresses)).sum(),
        by_controller: by_field || by_label.as_deref() == Some("endpoint-controller"),
    }
}

pub(super) fn to_node(object: Node) -> ObservedNode {
    let mut meta = object.metadata;
    let conditions = object.status.and_then(|it| it.conditions).unwrap_or_default();
    let taints = object.spec.and_then(|it| it.taints).unwrap_or_default();
    ObservedNode {
        excluded: take_label(&mut meta, "node.kubernetes.io/exclude-from-external-load-balancers").is_some(),
        name: text_or_empty(meta.name),
        exists: true,
        ready: conditions.iter().find(|it| it.type_ == "Ready").map(node_condition),
        leaving: taints.iter().any(|it| it.key == "ToBeDeletedByClusterAutoscaler"),
    }
}

fn node_condition(it: &NodeCondition) -> Condition {
    Condition { is_true: it.status == "True", since: to_timestamp(it.last_transition_time.clone()) }
}

pub(super) fn to_lease(object: LeaseObject) -> Lease {
    let spec = object.spec.unwrap_or_default();
    Lease {
        name: text_or_empty(object.metadata.name),
        holder: spec.holder_identity.map(truncate_text),
        renewed: spec.renew_time.map(|time| Timestamp(time.0.as_second())),
    }
}

pub(super) fn to_ip_address(object: IPAddress) -> ObservedIpAddress {
    let parent = object.spec.parent_ref;
    ObservedIpAddress {
        address: text_or_empty(object.metadata.name),
        namespace: text_or_empty(parent.namespace),
        name: truncate_text(parent.name),
    }
}

pub(super) fn is_terminating(object: &Namespace) -> bool {
    let phase = object.status.as_ref().and_then(|status| status.phase.as_deref());
    object.metadata.deletion_timestamp.is_some() || phase == Some("Terminating")
}
