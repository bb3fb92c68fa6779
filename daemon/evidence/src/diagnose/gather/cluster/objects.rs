//! Turns objects of the apiserver into what checks look at.
//!
//! Invariant: texts are cut, and most lists are bounded, by what this file says. A Service's selector and ports, and a
//! slice's endpoints and ports, are kept whole, within the bytes of an answer. Nothing else of an object is kept.

use std::net::IpAddr;

use holdfast_core::facts::Timestamp;
use holdfast_diagnose::limits::NAME_LENGTH_MAX;
use holdfast_diagnose::material::{
    AddressSeen, Condition, EndpointSeen, EndpointsSeen, HostPort, IngressSeen, Lease, NearPod, NodeSeen,
    Owner, Pod, PodPort, PortSeen, ServiceSeen, SlicePortSeen, SliceSeen, TargetPort, TargetSeen,
};
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

/// The most items that are kept of one list of an object: labels, ports of containers, finalizers, writers. Objects
/// that people write have a few.
const ITEMS_MAX: usize = 64;

/// An object of which nothing but its metadata was asked for.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Named {
    metadata: ObjectMeta,
}

fn cut(text: impl AsRef<str>) -> String {
    text.as_ref().chars().take(NAME_LENGTH_MAX).collect()
}

fn text(text: Option<String>) -> String {
    text.map(cut).unwrap_or_default()
}

fn time(time: Option<Time>) -> Option<Timestamp> {
    time.map(|time| Timestamp(time.0.as_second()))
}

fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port != 0)
}

fn list<T, U>(items: Option<Vec<T>>, read: impl FnMut(T) -> U) -> Vec<U> {
    items.into_iter().flatten().take(ITEMS_MAX).map(read).collect()
}

pub(super) fn service(object: Service) -> ServiceSeen {
    let mut meta = object.metadata;
    let spec = object.spec.unwrap_or_default();
    let proxy_name = label(&mut meta, "service.kubernetes.io/service-proxy-name");
    let ingress = object.status.and_then(|status| status.load_balancer).and_then(|it| it.ingress);
    ServiceSeen {
        uid: text(meta.uid),
        resource_version: text(meta.resource_version),
        generation: meta.generation,
        kind: text(spec.type_),
        selector: spec.selector.unwrap_or_default(),
        class: spec.load_balancer_class.map(cut),
        finalizers: list(meta.finalizers, cut),
        deletion: time(meta.deletion_timestamp),
        created: time(meta.creation_timestamp),
        ports: spec.ports.into_iter().flatten().filter_map(service_port).collect(),
        families: list(spec.ip_families, cut),
        cluster_ips: list(spec.cluster_ips, |it| it).iter().filter_map(|it| it.parse().ok()).collect(),
        ingress: list(ingress, |it| IngressSeen {
            ip: it.ip.and_then(|ip| ip.parse().ok()),
            hostname: it.hostname.map(cut),
            proxied: it.ip_mode.as_deref() == Some("Proxy"),
        }),
        proxy_name,
        balancer_writers: balancer_writers(meta.managed_fields.unwrap_or_default()),
        allocates_node_ports: spec.allocate_load_balancer_node_ports,
        external_name: text(spec.external_name),
        publishes_not_ready: spec.publish_not_ready_addresses.unwrap_or_default(),
    }
}

fn service_port(port: ServicePort) -> Option<PortSeen> {
    let own = number(port.port)?;
    let target = match port.target_port {
        Some(IntOrString::Int(target)) => TargetPort::Number(number(target)?),
        Some(IntOrString::String(name)) => TargetPort::Name(cut(name)),
        None => TargetPort::Number(own),
    };
    let protocol = port.protocol.map_or_else(|| "TCP".to_owned(), cut);
    let app_protocol = port.app_protocol.map(cut);
    Some(PortSeen { name: text(port.name), protocol, port: own, target, app_protocol })
}

/// The managers that wrote `status.loadBalancer`.
fn balancer_writers(entries: Vec<ManagedFieldsEntry>) -> Vec<String> {
    let writes = |entry: &ManagedFieldsEntry| {
        entry.fields_v1.as_ref().is_some_and(|it| it.0.pointer("/f:status/f:loadBalancer").is_some())
    };
    let mut writers: Vec<String> =
        entries.into_iter().filter(writes).take(ITEMS_MAX).filter_map(|it| it.manager.map(cut)).collect();
    writers.sort_unstable();
    writers.dedup();
    writers
}

pub(super) fn slice(object: EndpointSlice) -> SliceSeen {
    let mut meta = object.metadata;
    let trigger = "endpoints.kubernetes.io/last-change-trigger-time";
    let triggered = meta.annotations.as_mut().and_then(|all| all.remove(trigger));
    SliceSeen {
        manager: label(&mut meta, "endpointslice.kubernetes.io/managed-by"),
        name: text(meta.name),
        resource_version: text(meta.resource_version),
        uid: text(meta.uid),
        created: time(meta.creation_timestamp),
        triggered: triggered.and_then(|it| holdfast_objects::parse_time(&it)),
        endpoints: object.endpoints.into_iter().flatten().map(endpoint).collect(),
        ports: object.ports.into_iter().flatten().map(slice_port).collect(),
    }
}

fn slice_port(port: EndpointPort) -> SlicePortSeen {
    let protocol = port.protocol.map_or_else(|| "TCP".to_owned(), cut);
    SlicePortSeen { name: text(port.name), protocol, port: port.port.and_then(number) }
}

fn label(meta: &mut ObjectMeta, name: &str) -> Option<String> {
    meta.labels.as_mut().and_then(|all| all.remove(name)).map(cut)
}

fn endpoint(it: Endpoint) -> EndpointSeen {
    let conditions = it.conditions.unwrap_or_default();
    EndpointSeen {
        address: it.addresses.first().and_then(|address| address.parse().ok()),
        ready: conditions.ready,
        serving: conditions.serving,
        terminating: conditions.terminating,
        node: it.node_name.map(cut),
        target: it.target_ref.map(|target| TargetSeen {
            kind: text(target.kind),
            name: text(target.name),
            uid: text(target.uid),
        }),
    }
}

pub(super) fn pod(object: PodObject) -> Pod {
    let meta = object.metadata;
    let spec = object.spec.unwrap_or_default();
    let status = object.status.unwrap_or_default();
    let gates = list(spec.readiness_gates, |gate| gate.condition_type);
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let is_set = |gate: &String| conditions.iter().any(|it| it.type_ == *gate && it.status == "True");
    Pod {
        name: text(meta.name),
        uid: text(meta.uid),
        ips: addresses(&status),
        phase: text(status.phase.clone()),
        node: spec.node_name.map(cut),
        ready: conditions.iter().find(|it| it.type_ == "Ready").map(pod_condition),
        reason: status.reason.as_ref().map(cut),
        waiting: waiting(&status),
        unset_gates: gates.into_iter().filter(|gate| !is_set(gate)).map(cut).collect(),
        deletion: time(meta.deletion_timestamp),
        ports: ports(&spec.containers),
        http_ports: http_ports(&spec.containers),
        shares_host: spec.host_network.unwrap_or_default(),
        owner: owner(meta.owner_references.unwrap_or_default()),
    }
}

fn addresses(status: &PodStatus) -> Vec<IpAddr> {
    let all = status.pod_ips.iter().flatten().map(|it| it.ip.as_str());
    all.take(ITEMS_MAX).filter_map(|ip| ip.parse().ok()).collect()
}

fn pod_condition(it: &PodCondition) -> Condition {
    Condition { is_true: it.status == "True", since: time(it.last_transition_time.clone()) }
}

/// Why a container waits: the first one that gives another reason than that it is to begin soon, which is not worth
/// telling.
fn waiting(status: &PodStatus) -> Option<String> {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let mut reasons = all.filter_map(|it| it.state.as_ref()?.waiting.as_ref()?.reason.as_ref());
    reasons.find(|reason| reason.as_str() != "PodInitializing").map(cut)
}

fn ports(containers: &[Container]) -> Vec<PodPort> {
    let all = containers.iter().flat_map(|it| it.ports.iter().flatten());
    let read = |port: &ContainerPort| {
        let protocol = port.protocol.as_ref().map_or_else(|| "TCP".to_owned(), cut);
        Some(PodPort { name: text(port.name.clone()), number: number(port.container_port)?, protocol })
    };
    all.take(ITEMS_MAX).filter_map(read).collect()
}

/// The ports at which kubelet asks the pod itself by HTTP without TLS.
fn http_ports(containers: &[Container]) -> Vec<u16> {
    let of = |it: &Container| {
        let probes = [&it.readiness_probe, &it.liveness_probe, &it.startup_probe];
        let asked = probes.into_iter().flatten().filter_map(|probe| probe.http_get.as_ref());
        let plain = asked.filter(|get| get.host.is_none() && get.scheme.as_deref() != Some("HTTPS"));
        let all: Vec<u16> = plain.filter_map(|get| probed(it, &get.port)).collect();
        all
    };
    containers.iter().take(ITEMS_MAX).flat_map(of).collect()
}

fn probed(container: &Container, port: &IntOrString) -> Option<u16> {
    match port {
        IntOrString::Int(port) => number(*port),
        IntOrString::String(name) => {
            let mut all = container.ports.iter().flatten().take(ITEMS_MAX);
            number(all.find(|port| port.name.as_ref() == Some(name))?.container_port)
        }
    }
}

fn owner(references: Vec<OwnerReference>) -> Option<Owner> {
    let mut controllers = references.into_iter().filter(|it| it.controller == Some(true));
    controllers.next().map(|it| Owner { kind: cut(it.kind), name: cut(it.name) })
}

/// The ports of its host that a pod takes.
pub(super) fn host_ports(object: &PodObject) -> Vec<HostPort> {
    let name = |text: &Option<String>| text.as_deref().map(cut).unwrap_or_default();
    let pod = format!("{}/{}", name(&object.metadata.namespace), name(&object.metadata.name));
    let containers = object.spec.iter().flat_map(|spec| &spec.containers);
    let all = containers.flat_map(|it| it.ports.iter().flatten());
    let read = |port: &ContainerPort| {
        let address = port.host_ip.as_ref().and_then(|ip| ip.parse().ok());
        Some(HostPort {
            pod: pod.clone(),
            port: number(port.host_port?)?,
            protocol: port.protocol.as_ref().map_or_else(|| "TCP".to_owned(), cut),
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

pub(super) fn near(object: Named) -> NearPod {
    let labels = object.metadata.labels.unwrap_or_default().into_iter().take(ITEMS_MAX);
    NearPod {
        name: text(object.metadata.name),
        labels: labels.map(|(name, value)| (cut(name), cut(value))).collect(),
        running: None,
    }
}

pub(super) fn endpoints(object: Endpoints) -> EndpointsSeen {
    let mut meta = object.metadata;
    let by_label = label(&mut meta, "endpoints.kubernetes.io/managed-by");
    let writers = meta.managed_fields.unwrap_or_default();
    let by_field = writers.iter().any(|it| it.manager.as_deref() == Some("kube-controller-manager"));
    let capacity =
        meta.annotations.as_mut().and_then(|it| it.remove("endpoints.kubernetes.io/over-capacity"));
    let count = |it: Option<Vec<_>>| it.map_or(0, |all| all.len());
    let subsets = object.subsets.into_iter().flatten();
    EndpointsSeen {
        over_capacity: capacity.map(cut),
        addresses: subsets.map(|it| count(it.addresses) + count(it.not_ready_addresses)).sum(),
        by_controller: by_field || by_label.as_deref() == Some("endpoint-controller"),
    }
}

pub(super) fn node(object: Node) -> NodeSeen {
    let mut meta = object.metadata;
    let conditions = object.status.and_then(|it| it.conditions).unwrap_or_default();
    let taints = object.spec.and_then(|it| it.taints).unwrap_or_default();
    NodeSeen {
        excluded: label(&mut meta, "node.kubernetes.io/exclude-from-external-load-balancers").is_some(),
        name: text(meta.name),
        exists: true,
        ready: conditions.iter().find(|it| it.type_ == "Ready").map(node_condition),
        leaving: taints.iter().any(|it| it.key == "ToBeDeletedByClusterAutoscaler"),
    }
}

fn node_condition(it: &NodeCondition) -> Condition {
    Condition { is_true: it.status == "True", since: time(it.last_transition_time.clone()) }
}

pub(super) fn lease(object: LeaseObject) -> Lease {
    let spec = object.spec.unwrap_or_default();
    Lease {
        name: text(object.metadata.name),
        holder: spec.holder_identity.map(cut),
        renewed: spec.renew_time.map(|time| Timestamp(time.0.as_second())),
    }
}

pub(super) fn ip_address(object: IPAddress) -> AddressSeen {
    let parent = object.spec.parent_ref;
    AddressSeen {
        address: text(object.metadata.name),
        namespace: text(parent.namespace),
        name: cut(parent.name),
    }
}

pub(super) fn is_terminating(object: &Namespace) -> bool {
    let phase = object.status.as_ref().and_then(|status| status.phase.as_deref());
    object.metadata.deletion_timestamp.is_some() || phase == Some("Terminating")
}
