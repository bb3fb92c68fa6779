//! What the objects say, as plain facts: services, slices, the node, the settings.
//!
//! Invariant: facts are immutable once built; they are shared as `Arc`s between the tables and every snapshot. Nothing
//! here knows which endpoint gets traffic.

pub mod balancer;
pub mod endpoints;
mod listeners;

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use crate::address_policy::ExternalIps;
use crate::affinity::Prefixes;
use crate::hold::Policy;
use crate::keys::{Family, ObjectName, Protocol, ServiceKey, SliceKey, Source, Transport};
use crate::weights::WeightSetting;
use crate::words;
pub use balancer::BalancerFacts;
pub use endpoints::{
    Conditions, Endpoint, Endpoints, EndpointsBuilder, HintSet, NodeName, Target, TargetName,
};
pub use listeners::{Listener, Listeners};

/// Seconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timestamp(pub i64);

/// When that happened of which a version of an object tells, in microseconds since the Unix epoch, if the object says
/// so. It is equal to any other: a version that differs from another one by this alone says the same.
#[derive(Clone, Copy, Debug, Default)]
pub struct TriggerTime(pub Option<i64>);

impl PartialEq for TriggerTime {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for TriggerTime {}

/// An object's identity, its version and its last writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Meta {
    /// Unique over time: tells a re-created object from the old one of the same name.
    pub uid: Option<Arc<str>>,
    /// The apiserver's version; opaque except for equality.
    pub resource_version: Option<Arc<str>>,
    /// Counts changes of the specification.
    pub generation: Option<i64>,
    /// When it was created; decides which of two services owns an address that both claim.
    pub created: Option<Timestamp>,
    /// The last one in `managedFields`.
    pub writer: Option<Writer>,
    /// The file or apiserver endpoint that it was read from.
    pub origin: Option<Arc<str>>,
    /// When that happened of which this version tells. The state's file does not have it: what a former process served
    /// was no news to it.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub triggered: TriggerTime,
}

/// The last entry of `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Writer {
    /// `kube-controller-manager`, `kubectl-edit`, …
    pub manager: Arc<str>,
    /// `Update` or `Apply`.
    pub operation: Arc<str>,
    /// `status`, where a subresource was written.
    pub subresource: Option<Arc<str>>,
    pub at: Option<Timestamp>,
}

words! {
    /// What kind of service this is.
    pub enum ServiceType {
        /// Reached at its cluster IPs.
        ClusterIp = "ClusterIP",
        /// … and at a port of every node.
        NodePort = "NodePort",
        /// … and at the addresses of a load balancer.
        LoadBalancer = "LoadBalancer",
        /// A DNS alias: nothing to serve.
        ExternalName = "ExternalName",
        /// A `[[service]]` block.
        Static = "Static",
        /// A ServiceImport: reached at addresses that all clusters of a set share.
        ClusterSetIp = "ClusterSetIP",
    }
}

words! {
    /// `internalTrafficPolicy` or `externalTrafficPolicy`.
    #[derive(Default)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub enum TrafficPolicy {
        /// Any endpoint of the cluster.
        #[default]
        Cluster = "Cluster",
        /// Only endpoints of this node.
        Local = "Local",
    }
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ServicePort {
    /// Empty if unnamed.
    pub name: Arc<str>,
    /// TCP, UDP, SCTP, or a protocol that is never programmed.
    pub protocol: Protocol,
    /// The port that clients dial.
    pub port: NonZeroU16,
    /// The port on every node, used whatever the type says, as kube-proxy does.
    pub node_port: Option<NonZeroU16>,
}

/// One entry of `status.loadBalancer.ingress` that has an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Ingress {
    pub address: IpAddr,
    /// `ipMode: Proxy`: traffic must reach the real balancer, so it is no frontend.
    pub proxied: bool,
}

/// What a Service object or a `[[service]]` block says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ServiceFacts {
    /// Its exact key.
    #[cfg_attr(feature = "serde", serde(with = "crate::serde_impls::name_alone"))]
    pub key: ServiceKey,
    /// Which version of the object.
    pub meta: Meta,
    /// The kind of service.
    pub kind: ServiceType,
    /// Kubernetes calls it `clusterIP: None`.
    pub headless: bool,
    /// `spec.clusterIPs`, or the single `clusterIP`; `spec.ips` of a ServiceImport.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.ipFamilies`; empty if not given.
    pub ip_families: Vec<Family>,
    /// Kubernetes calls it `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// Kubernetes calls it `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
    /// Kubernetes calls it `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// The addresses of a `[[service]]` block; empty for all others. They belong to its one port.
    pub static_frontends: Vec<SocketAddr>,
    /// Kubernetes calls it `spec.internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// Kubernetes calls it `spec.externalTrafficPolicy`.
    pub external_policy: TrafficPolicy,
    /// `sessionAffinity: ClientIP` with its timeout in seconds.
    pub affinity_timeout: Option<u32>,
    /// `spec.loadBalancerSourceRanges`, canonical, blanks trimmed.
    pub source_ranges: Vec<Arc<str>>,
    /// Kubernetes calls it `spec.healthCheckNodePort`.
    pub health_check_node_port: Option<NonZeroU16>,
    /// The label `service.kubernetes.io/service-proxy-name`.
    pub proxy_name: Option<Arc<str>>,
    /// The annotation `holdfast.io/on-empty` or the setting of the block, as written.
    pub on_empty: Option<Arc<str>>,
    /// The annotation `holdfast.io/maglev` or the setting of the block, as written. The state's file has it at the end
    /// of the service.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub maglev: Option<Arc<str>>,
    /// The annotation `holdfast.io/session-affinity-prefix` or the setting of the block, as written. The state's file
    /// has it likewise.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub affinity_prefix: Option<Arc<str>>,
    /// The annotation `holdfast.io/weights`, or the weights of the block's backends. The state's file has it likewise.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub weights: Option<Box<WeightSetting>>,
    /// What is to be known of the service's load balancer and of its deletion; most services have neither. The state's
    /// file has it in a place of its own.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub balancer: Option<Box<BalancerFacts>>,
}

impl ServiceFacts {
    /// Whether it has its clients' places computed, if it says so in a word that can be read.
    pub(crate) fn maglev_setting(&self) -> Option<bool> {
        self.maglev.as_deref()?.parse().ok()
    }

    /// How much of a client's address counts for affinity, if it says so in words that can be read.
    pub fn affinity_prefixes(&self) -> Option<Prefixes> {
        Prefixes::parse(self.affinity_prefix.as_deref()?).ok()
    }

    /// A service with a name, a kind and nothing else; the reader of the object fills in the rest.
    pub fn new(key: ServiceKey, kind: ServiceType) -> Self {
        Self {
            key,
            meta: Meta::default(),
            kind,
            headless: false,
            cluster_ips: Vec::new(),
            ip_families: Vec::new(),
            external_ips: Vec::new(),
            ingress: Vec::new(),
            ports: Vec::new(),
            static_frontends: Vec::new(),
            internal_policy: TrafficPolicy::Cluster,
            external_policy: TrafficPolicy::Cluster,
            affinity_timeout: None,
            source_ranges: Vec::new(),
            health_check_node_port: None,
            proxy_name: None,
            on_empty: None,
            maglev: None,
            affinity_prefix: None,
            weights: None,
            balancer: None,
        }
    }
}

impl ServiceFacts {
    /// About how much memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        let Self { cluster_ips, external_ips, ingress, ports, static_frontends, source_ranges, .. } = self;
        let addresses = cluster_ips.len() + external_ips.len() + ingress.len() + static_frontends.len();
        let balancer = self.balancer.as_ref().map_or(0, |balancer| balancer.bytes());
        let (texts, weights) = self.weights.as_ref().map_or((0, 0), |asked| asked.size());
        let words = [&self.maglev, &self.affinity_prefix];
        let texts = texts + words.into_iter().flatten().map(|word| word.len()).sum::<usize>();
        (addresses + ports.len() + source_ranges.len() + weights) * ENTRY_BYTES + balancer + texts
    }
}

/// An address, a port or a range with its names, rounded up.
const ENTRY_BYTES: usize = 64;

/// What the addresses of a slice are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Option<Family>", into = "Option<Family>"))]
pub enum AddressType {
    /// Addresses of one family.
    Ip(Family),
    /// Host names: never backends, as in kube-proxy.
    Fqdn,
}

/// One entry of a slice's `ports` that has a name and a number.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SlicePort {
    /// Empty if unnamed; joins the service's port of the same name and protocol.
    pub name: Arc<str>,
    /// The protocol, which is a part of that join.
    pub protocol: Protocol,
    /// The port of the backends.
    pub port: NonZeroU16,
}

/// What an `EndpointSlice` says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SliceFacts {
    /// Its exact key.
    #[cfg_attr(feature = "serde", serde(with = "crate::serde_impls::name_alone"))]
    pub key: SliceKey,
    /// Which version of the object.
    pub meta: Meta,
    /// The label `kubernetes.io/service-name`, or `multicluster.kubernetes.io/service-name` where the source is that of
    /// ServiceImports; the service is in the slice's own namespace.
    pub service: Option<Arc<str>>,
    /// The label `service.kubernetes.io/headless`: not for proxies.
    pub headless: bool,
    /// The family of its addresses.
    pub address_type: AddressType,
    /// The ports of every endpoint in it.
    pub ports: Box<[SlicePort]>,
    pub endpoints: Endpoints,
    /// The object said `endpoints: null`, not `[]`.
    pub endpoints_null: bool,
    /// The annotation `holdfast.io/weights`, which holds for the slice's own endpoints. The state's file has it at the
    /// end of the service.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub weights: Option<Box<WeightSetting>>,
}

impl SliceFacts {
    /// About how much memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        let (texts, weights) = self.weights.as_ref().map_or((0, 0), |asked| asked.size());
        self.endpoints.bytes() + (self.ports.len() + weights) * ENTRY_BYTES + texts
    }
}

/// The own node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// As kubelet registered it.
    pub name: Arc<str>,
    /// The label `topology.kubernetes.io/zone`; an empty one never matches a hint.
    pub zone: Option<Arc<str>>,
    /// The local addresses that answer NodePorts; the first loopback address of a family stands for its whole loopback.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// All addresses that the node has, or is said to have, except loopback and link-local ones: no pod can have them.
    pub addresses: BTreeSet<IpAddr>,
    /// The node is to be deleted, so load balancers are to send it no new connections. What it serves stays as it is.
    pub is_leaving: bool,
}

impl NodeFacts {
    /// Whether a client of the host that dials this address gets NodePorts.
    pub fn has_node_ports_at(&self, address: IpAddr) -> bool {
        let known =
            if address.is_loopback() { Family::from_address(address).loopback_address() } else { address };
        self.node_port_addresses.contains(&known)
    }

    /// Whether the host has the address, or is said to have it.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.node_port_addresses.contains(&address) || self.addresses.contains(&address)
    }

    /// Where others reach its NodePorts.
    pub fn external_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.node_port_addresses.iter().copied().filter(|address| !address.is_loopback())
    }
}

/// What the configuration decides for all services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Serve only services that carry this `service-proxy-name`; none: only services without the label.
    pub service_proxy_name: Option<Arc<str>>,
    /// Addresses of the apiserver: never programmed as TCP frontends, so that the direct path stays direct.
    pub bypass: BTreeSet<SocketAddr>,
    /// Addresses that others say are an apiserver's: the same, but where one is a Service's cluster IP. No host has
    /// such an address, and an author of the cluster's list could take any Service away.
    pub reported_apiservers: BTreeSet<SocketAddr>,
    /// The most frontends that may be programmed; past it the row shows the error. `None`: only the maps bound it.
    pub frontends_max: Option<usize>,
    /// Which addresses external IPs of the cluster's services may claim.
    pub external_ips: ExternalIps,
    /// What becomes of lists that would become empty.
    pub hold: Policy,
    /// The maps know the serving backends of TCP ports too, because connections are ended by that, or other nodes
    /// choose for their clients among them. Those of UDP ports they always know.
    pub keeps_tcp_members: bool,
    /// Clients' packets go between nodes as they came (DSR), so the maps say of which ports some backends are on none.
    pub has_dsr_from: bool,
    /// Packets are translated at devices; without that, SCTP is not served at all.
    pub serves_sctp: bool,
    /// Services that say nothing of it have their clients' places computed by Maglev.
    pub maglev: bool,
}

impl Settings {
    /// All addresses at which an apiserver may be.
    pub fn apiservers(&self) -> impl Iterator<Item = &SocketAddr> {
        self.bypass.iter().chain(&self.reported_apiservers)
    }

    /// Whether an apiserver may be there.
    pub fn is_apiserver(&self, address: &SocketAddr) -> bool {
        self.bypass.contains(address) || self.reported_apiservers.contains(address)
    }
}

impl Settings {
    /// The transport by which a port of this protocol is programmed; `None`: such a port is not programmed.
    pub(crate) fn transport(&self, protocol: &Protocol) -> Option<Transport> {
        protocol.transport().filter(|it| *it != Transport::Sctp || self.serves_sctp)
    }

    /// Whether a service has its clients' places computed: by its own word, if that can be read.
    pub fn uses_maglev(&self, service: &ServiceFacts) -> bool {
        service.maglev_setting().unwrap_or(self.maglev)
    }
}

/// What a rejection is about: an object, a whole file, or a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    Service(ServiceKey),
    Slice(SliceKey),
    /// A file that cannot be read at all, by its name.
    File(Source, Arc<str>),
    /// An object without a kind or a name that can be told: where it was found.
    Unnamed(Source, Arc<str>),
    /// Every object of a kind that is not read, by the kind's name and version.
    Kind(Source, Arc<str>),
}

impl ObjectKey {
    /// What [`Self::type_parameter`] may say.
    pub const KINDS: [&str; 6] = ["Service", "EndpointSlice", "File", "Object", "Kind", "ServiceImport"];

    /// One of [`Self::EVENT_KINDS`].
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Service(ServiceKey { source: Source::ClusterSet, .. }) => "ServiceImport",
            Self::Service(_) => "Service",
            Self::Slice(_) => "EndpointSlice",
            Self::File(..) => "File",
            Self::Unnamed(..) => "Object",
            Self::Kind(..) => "Kind",
        }
    }

    /// The source that it came from.
    pub const fn source(&self) -> Source {
        match self {
            Self::Service(key) => key.source,
            Self::Slice(key) => key.source,
            Self::File(source, _) | Self::Unnamed(source, _) | Self::Kind(source, _) => *source,
        }
    }

    /// Namespace and name, where it has them.
    pub const fn name(&self) -> Option<&ObjectName> {
        match self {
            Self::Service(key) => Some(&key.name),
            Self::Slice(key) => Some(&key.name),
            Self::File(..) | Self::Unnamed(..) | Self::Kind(..) => None,
        }
    }
}

impl core::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Service(ServiceKey { name, .. }) | Self::Slice(SliceKey { name, .. }) => {
                write!(f, "{} {name}", self.kind())
            }
            Self::File(_, file) => write!(f, "file {file}"),
            Self::Unnamed(_, position) => write!(f, "object in {position}"),
            Self::Kind(_, kind) => write!(f, "kind {kind}"),
        }
    }
}

/// How the reason begins for an object that is understood and has no room.
pub(crate) const WAITING_PREFIX: &str = "waits for room";

impl Rejection {
    /// Whether the object is understood, and is taken as soon as there is room for it.
    pub fn is_waiting(&self) -> bool {
        self.reason.starts_with(WAITING_PREFIX)
    }
}

/// An object, or a part of one, that could not be understood. Its last good version stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub object: ObjectKey,
    /// The file or endpoint that it came from.
    pub origin: Option<Arc<str>>,
    /// What was wrong and what is legal, at most [`crate::from_capacity::REJECTION_REASON_LENGTH_MAX`] characters.
    pub reason: Arc<str>,
    /// Only a part was skipped (a bad endpoint, a duplicate); the rest of the object counts.
    pub partial: bool,
}
