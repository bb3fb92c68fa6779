//! Objects of the apiserver, read for one diagnosis.
//!
//! Invariant: plain data. It holds only what a check reads, bounded when it was read; `requests` lists the queries.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::IpAddr;

use holdfast_core::facts::Timestamp;
use holdfast_knowledge::Step;

use super::Lookup;
use crate::focus::PortSelector;

/// The apiserver's answers, one field for each query.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Cluster {
    /// `None`: the apiserver has no such Service.
    pub service: Lookup<Option<ObservedService>>,
    pub slices: Lookup<Vec<ObservedSlice>>,
    pub pods: Lookup<Pods>,
    /// Other pods of the namespace; queried only if the selector matches none.
    pub near: Lookup<Vec<UnmatchedPod>>,
    /// The Endpoints object (the old API) of the Service's name. `None`: it does not exist.
    pub endpoints: Lookup<Option<EndpointsObject>>,
    /// Host ports of pods on this node.
    pub hosted: Lookup<Vec<HostPort>>,
    /// The nodes of endpoints, and this one; at most ten.
    pub nodes: Lookup<Vec<ObservedNode>>,
    /// Nodes that endpoints name, that no label names, and that were not queried by name.
    pub nodes_unasked: Vec<String>,
    /// The existing leases of `kube-controller-manager` and, while an address is pending, `cloud-controller-manager`.
    pub leases: Lookup<Vec<Lease>>,
    /// The `IPAddress` object of the first cluster IP. `None`: it does not exist.
    pub address: Lookup<Option<ObservedIpAddress>>,
    /// Number of NetworkPolicies in the namespace.
    pub policies: Lookup<usize>,
    /// Whether the namespace is terminating. `None`: it does not exist.
    pub namespace: Lookup<Option<bool>>,
    /// Events about the service, its Endpoints and slices, its pods and their nodes.
    pub events: Lookup<Vec<RecognisedEvent>>,
    pub more_events: bool,
    /// The requests that were sent, in order.
    #[cfg_attr(test, serde(skip))]
    pub requests: Vec<Request>,
}

/// One query to the apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The subject of the query: `service`, `pods`, …
    pub what: String,
    pub took: Duration,
    pub error: Option<String>,
}

/// A Service as the apiserver has it, with fields that this node's tables lack.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ObservedService {
    pub uid: String,
    pub resource_version: String,
    pub generation: Option<i64>,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub kind: String,
    pub selector: BTreeMap<String, String>,
    /// Kubernetes calls it `spec.loadBalancerClass`.
    pub class: Option<String>,
    pub finalizers: Vec<String>,
    pub deletion: Option<Timestamp>,
    pub created: Option<Timestamp>,
    pub ports: Vec<ObservedPort>,
    /// `spec.ipFamilies`: `IPv4`, `IPv6`.
    pub families: Vec<String>,
    pub cluster_ips: Vec<IpAddr>,
    pub ingress: Vec<ObservedIngress>,
    /// The label `service.kubernetes.io/service-proxy-name`: the proxy that serves the Service instead. Holdfast does
    /// not watch such a Service.
    pub proxy_name: Option<String>,
    /// The managers in `managedFields` that wrote `status.loadBalancer`.
    pub balancer_writers: Vec<String>,
    /// `spec.allocateLoadBalancerNodePorts`; absent means true.
    pub allocates_node_ports: Option<bool>,
    /// Kubernetes calls it `spec.externalName`; empty: it is no alias.
    pub external_name: String,
    /// Kubernetes calls it `spec.publishNotReadyAddresses`.
    pub publishes_not_ready: bool,
}

impl ObservedService {
    /// Keeps only the queried port.
    pub fn retain_port(&mut self, wanted: &PortSelector) {
        self.ports.retain(|it| wanted.matches(&it.name, it.port));
    }
}

/// One of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub struct ObservedPort {
    #[cfg_attr(test, serde(default))]
    pub name: String,
    pub protocol: String,
    pub port: u16,
    pub target: TargetPort,
    /// Kubernetes calls it `appProtocol`.
    #[cfg_attr(test, serde(default))]
    pub app_protocol: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(untagged))]
pub enum TargetPort {
    Number(u16),
    Name(String),
}

/// One of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ObservedIngress {
    pub ip: Option<IpAddr>,
    pub hostname: Option<String>,
    /// Kubernetes calls it `ipMode: Proxy`.
    pub proxied: bool,
}

#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ObservedSlice {
    pub name: String,
    pub resource_version: String,
    pub uid: String,
    /// The label `endpointslice.kubernetes.io/managed-by`.
    pub manager: Option<String>,
    pub created: Option<Timestamp>,
    /// The annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub triggered: Option<Timestamp>,
    pub endpoints: Vec<ObservedEndpoint>,
    pub ports: Vec<ObservedSlicePort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ObservedSlicePort {
    pub name: String,
    pub protocol: String,
    pub port: Option<u16>,
}

/// One endpoint. An absent condition stays `None`; the checks read it as Kubernetes does, an absent `ready` as true.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ObservedEndpoint {
    /// `None`: the endpoint names a host, or no valid address.
    pub address: Option<IpAddr>,
    pub ready: Option<bool>,
    pub serving: Option<bool>,
    pub terminating: Option<bool>,
    pub node: Option<String>,
    pub target: Option<ObservedTarget>,
}

/// Kubernetes calls it `targetRef`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ObservedTarget {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Pods {
    pub list: Vec<Pod>,
    pub more: bool,
}

#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub ips: Vec<IpAddr>,
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    pub phase: String,
    pub node: Option<String>,
    /// The condition `Ready`. `None`: the pod does not have it.
    pub ready: Option<Condition>,
    /// Why the pod is as it is: `status.reason`, `Evicted` or `NodePorts`.
    pub reason: Option<String>,
    /// Why a container waits: `CrashLoopBackOff`, `ImagePullBackOff`.
    pub waiting: Option<String>,
    /// Readiness gates without a true condition.
    pub unset_gates: Vec<String>,
    pub deletion: Option<Timestamp>,
    pub ports: Vec<PodPort>,
    /// The ports that kubelet probes by plain HTTP.
    pub http_ports: Vec<u16>,
    /// Whether the pod has the address of its node.
    pub shares_host: bool,
    pub owner: Option<Owner>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Condition {
    pub is_true: bool,
    pub since: Option<Timestamp>,
}

/// A port that a container declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct PodPort {
    pub name: String,
    pub number: u16,
    pub protocol: String,
}

/// The object that made a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Owner {
    pub kind: String,
    pub name: String,
}

/// A pod of the namespace that the selector does not match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct UnmatchedPod {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Whether the pod runs. `None`: only its metadata was read.
    pub running: Option<bool>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct EndpointsObject {
    /// The annotation `endpoints.kubernetes.io/over-capacity`.
    pub over_capacity: Option<String>,
    pub addresses: usize,
    /// Whether endpoint-controller wrote it, by its label or its `managedFields`.
    pub by_controller: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub struct HostPort {
    /// Namespace and name of the pod.
    pub pod: String,
    pub port: u16,
    pub protocol: String,
    /// The requested address. `None`: every address.
    #[cfg_attr(test, serde(default))]
    pub address: Option<IpAddr>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ObservedNode {
    pub name: String,
    pub exists: bool,
    /// The condition `Ready`.
    pub ready: Option<Condition>,
    /// The label `node.kubernetes.io/exclude-from-external-load-balancers`.
    pub excluded: bool,
    /// The taint `ToBeDeletedByClusterAutoscaler`.
    pub leaving: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct Lease {
    pub name: String,
    pub holder: Option<String>,
    pub renewed: Option<Timestamp>,
}

/// An `IPAddress` object, with its owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct ObservedIpAddress {
    pub address: String,
    pub namespace: String,
    pub name: String,
}

/// A recognised Event.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct RecognisedEvent {
    /// The knowledge's id of the reason. `None`: not recognised.
    pub entry: Option<String>,
    pub reason: String,
    pub component: String,
    pub object: EventSubject,
    /// Whether its type is `Warning`.
    pub warning: bool,
    /// Whether the knowledge ranks it below a warning: it repairs itself, or harms no client.
    pub notice: bool,
    /// The knowledge's id of the cause that fits the message.
    pub cause: Option<String>,
    /// The step of a load balancer's life that the Event reports, if any.
    pub step: Option<Step>,
    /// The knowledge's meaning of the Event; empty if not recognised.
    pub meaning: String,
    pub remedies: Vec<CauseRemedy>,
    pub count: u32,
    /// When the Event first occurred. `None`: unknown.
    pub first: Option<Timestamp>,
    pub last: Option<Timestamp>,
    /// Whether no later Event resolved it.
    pub open: bool,
    /// The message as its writer worded it.
    pub message: String,
}

/// What an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct EventSubject {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub struct CauseRemedy {
    pub text: String,
    /// `safe`, `disruptive` or `destructive`.
    pub risk: String,
}
