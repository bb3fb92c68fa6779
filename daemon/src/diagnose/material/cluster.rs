//! What the apiserver says now, read for one diagnosis.
//!
//! Invariant: only what a check looks at, bounded when it was read; [`Material`](super::Material) says what was asked.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use holdfast_core::facts::Timestamp;
use holdfast_knowledge::Step;

use super::Asked;
use crate::diagnose::focus::PortWanted;

/// What the apiserver says; each is one request.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Cluster {
    /// None: the apiserver has no such Service.
    pub(crate) service: Asked<Option<ServiceSeen>>,
    /// The slices that carry its name.
    pub(crate) slices: Asked<Vec<SliceSeen>>,
    /// The pods that the selector matches.
    pub(crate) pods: Asked<Pods>,
    /// Other pods of the namespace; asked only if none matches.
    pub(crate) near: Asked<Vec<NearPod>>,
    /// The object of the old API of the same name.
    pub(crate) endpoints: Asked<Option<EndpointsSeen>>,
    /// Host ports of pods on this node.
    pub(crate) hosted: Asked<Vec<HostPort>>,
    /// The nodes of endpoints, this one included, at most ten.
    pub(crate) nodes: Asked<Vec<NodeSeen>>,
    /// Nodes that endpoints name, that no label names and that were not asked for by their names.
    pub(crate) nodes_unasked: Vec<String>,
    /// The leases of `kube-controller-manager` and, while an address is awaited, `cloud-controller-manager` that exist.
    pub(crate) leases: Asked<Vec<Lease>>,
    /// The `IPAddress` object of the first cluster IP; none: there is no such object.
    pub(crate) address: Asked<Option<AddressSeen>>,
    /// How many NetworkPolicies the namespace has.
    pub(crate) policies: Asked<usize>,
    /// Whether the namespace is terminating; none: there is no such namespace.
    pub(crate) namespace: Asked<Option<bool>>,
    /// Events about the service, its Endpoints and slices, pods behind it and nodes of it.
    pub(crate) events: Asked<Vec<EventSeen>>,
    /// Whether there are more of them than were read.
    pub(crate) more_events: bool,
    /// What was asked, in order.
    #[cfg_attr(test, serde(skip))]
    pub(crate) requests: Vec<Request>,
}

/// One question to the apiserver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// What was asked for: `service`, `pods`, …
    pub(crate) what: String,
    pub(crate) took: Duration,
    /// Why it brought nothing.
    pub(crate) error: Option<String>,
}

/// A Service as the apiserver has it, with what this node's tables do not keep.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct ServiceSeen {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: Option<i64>,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub(crate) kind: String,
    pub(crate) selector: BTreeMap<String, String>,
    /// Kubernetes calls it `spec.loadBalancerClass`.
    pub(crate) class: Option<String>,
    pub(crate) finalizers: Vec<String>,
    pub(crate) deletion: Option<Timestamp>,
    pub(crate) created: Option<Timestamp>,
    pub(crate) ports: Vec<PortSeen>,
    /// `spec.ipFamilies`: `IPv4`, `IPv6`.
    pub(crate) families: Vec<String>,
    pub(crate) cluster_ips: Vec<IpAddr>,
    pub(crate) ingress: Vec<IngressSeen>,
    /// The label `service.kubernetes.io/service-proxy-name`: the proxy that serves it instead. Such a Service is not
    /// watched.
    pub(crate) proxy_name: Option<String>,
    /// The managers in `managedFields` that wrote `status.loadBalancer`.
    pub(crate) balancer_writers: Vec<String>,
    /// `spec.allocateLoadBalancerNodePorts`; absent means true.
    pub(crate) allocates_node_ports: Option<bool>,
    /// Kubernetes calls it `spec.externalName`; empty: it is no alias.
    pub(crate) external_name: String,
    /// Kubernetes calls it `spec.publishNotReadyAddresses`.
    pub(crate) publishes_not_ready: bool,
}

impl ServiceSeen {
    /// Leaves nothing but the port that a question is about.
    pub(crate) fn narrow(&mut self, wanted: &PortWanted) {
        self.ports.retain(|it| wanted.is(&it.name, it.port));
    }
}

/// One of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(crate) struct PortSeen {
    #[cfg_attr(test, serde(default))]
    pub(crate) name: String,
    pub(crate) protocol: String,
    pub(crate) port: u16,
    pub(crate) target: TargetPort,
    /// Kubernetes calls it `appProtocol`.
    #[cfg_attr(test, serde(default))]
    pub(crate) app_protocol: Option<String>,
}

/// Where a port leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(untagged))]
pub(crate) enum TargetPort {
    Number(u16),
    Name(String),
}

/// One of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct IngressSeen {
    pub(crate) ip: Option<IpAddr>,
    pub(crate) hostname: Option<String>,
    /// Kubernetes calls it `ipMode: Proxy`.
    pub(crate) proxied: bool,
}

/// An EndpointSlice as the apiserver has it.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct SliceSeen {
    pub(crate) name: String,
    pub(crate) resource_version: String,
    pub(crate) uid: String,
    /// The label `endpointslice.kubernetes.io/managed-by`.
    pub(crate) manager: Option<String>,
    pub(crate) created: Option<Timestamp>,
    /// The annotation `endpoints.kubernetes.io/last-change-trigger-time`.
    pub(crate) triggered: Option<Timestamp>,
    pub(crate) endpoints: Vec<EndpointSeen>,
    pub(crate) ports: Vec<SlicePortSeen>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct SlicePortSeen {
    pub(crate) name: String,
    pub(crate) protocol: String,
    pub(crate) port: Option<u16>,
}

/// One endpoint; absent conditions are none, as Kubernetes reads them.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct EndpointSeen {
    /// None: a host name, or not an address.
    pub(crate) address: Option<IpAddr>,
    pub(crate) ready: Option<bool>,
    pub(crate) serving: Option<bool>,
    pub(crate) terminating: Option<bool>,
    pub(crate) node: Option<String>,
    pub(crate) target: Option<TargetSeen>,
}

/// Kubernetes calls it `targetRef`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct TargetSeen {
    pub(crate) kind: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// Pods that the selector matches.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Pods {
    pub(crate) list: Vec<Pod>,
    /// Whether there are more than were read.
    pub(crate) more: bool,
}

#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) ips: Vec<IpAddr>,
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    pub(crate) phase: String,
    pub(crate) node: Option<String>,
    /// The condition `Ready`; none: it is not set.
    pub(crate) ready: Option<Condition>,
    /// Why the pod is as it is: `status.reason`, `Evicted` or `NodePorts`.
    pub(crate) reason: Option<String>,
    /// Why a container waits: `CrashLoopBackOff`, `ImagePullBackOff`.
    pub(crate) waiting: Option<String>,
    /// Readiness gates without a true condition.
    pub(crate) unset_gates: Vec<String>,
    pub(crate) deletion: Option<Timestamp>,
    pub(crate) ports: Vec<PodPort>,
    /// Where its kubelet asks by HTTP whether it is well.
    pub(crate) http_ports: Vec<u16>,
    /// Whether its address is that of its node.
    pub(crate) shares_host: bool,
    pub(crate) owner: Option<Owner>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Condition {
    pub(crate) is_true: bool,
    pub(crate) since: Option<Timestamp>,
}

/// A port that a container declares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct PodPort {
    pub(crate) name: String,
    pub(crate) number: u16,
    pub(crate) protocol: String,
}

/// The object that made a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Owner {
    pub(crate) kind: String,
    pub(crate) name: String,
}

/// A pod of the namespace that the selector does not match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct NearPod {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// None: only its metadata was read.
    pub(crate) running: Option<bool>,
}

/// An Endpoints object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct EndpointsSeen {
    /// The annotation `endpoints.kubernetes.io/over-capacity`.
    pub(crate) over_capacity: Option<String>,
    pub(crate) addresses: usize,
    /// Whether endpoint-controller wrote it, by its label or its `managedFields`.
    pub(crate) by_controller: bool,
}

/// A port of the host that a pod on this node asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(deny_unknown_fields))]
pub(crate) struct HostPort {
    /// Namespace and name of the pod that has it.
    pub(crate) pod: String,
    pub(crate) port: u16,
    pub(crate) protocol: String,
    /// None: every address.
    #[cfg_attr(test, serde(default))]
    pub(crate) address: Option<IpAddr>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct NodeSeen {
    pub(crate) name: String,
    /// Whether the apiserver has such a node.
    pub(crate) exists: bool,
    /// The condition `Ready`.
    pub(crate) ready: Option<Condition>,
    /// The label `node.kubernetes.io/exclude-from-external-load-balancers`.
    pub(crate) excluded: bool,
    /// The taint `ToBeDeletedByClusterAutoscaler`.
    pub(crate) leaving: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct Lease {
    pub(crate) name: String,
    pub(crate) holder: Option<String>,
    pub(crate) renewed: Option<Timestamp>,
}

/// An `IPAddress` object, with the object that it belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct AddressSeen {
    pub(crate) address: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// An Event, recognised.
#[derive(Clone, Debug, Default)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct EventSeen {
    /// The id of the entry of the catalogue; none: not recognised.
    pub(crate) entry: Option<String>,
    pub(crate) reason: String,
    pub(crate) component: String,
    pub(crate) object: ObjectSeen,
    /// Whether its type is `Warning`.
    pub(crate) warning: bool,
    /// The id of the cause that its message names.
    pub(crate) cause: Option<String>,
    /// What it says about the life of a load balancer, if anything.
    pub(crate) step: Option<Step>,
    /// What the catalogue says it means; empty if not recognised.
    pub(crate) meaning: String,
    pub(crate) remedies: Vec<RemedySeen>,
    pub(crate) count: u32,
    /// None: it is not known.
    pub(crate) first: Option<Timestamp>,
    pub(crate) last: Option<Timestamp>,
    /// Whether nothing that came later resolved it.
    pub(crate) open: bool,
    /// As its writer worded it.
    pub(crate) message: String,
}

/// What an Event is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct ObjectSeen {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// What may be done against a cause.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Deserialize), serde(default, deny_unknown_fields))]
pub(crate) struct RemedySeen {
    pub(crate) text: String,
    /// `safe`, `disruptive` or `destructive`.
    pub(crate) risk: String,
}
