//! The objects as plain facts: services, slices, the node, the settings.
//!
//! Invariant: facts are immutable once built; the tables and every snapshot share them as `Arc`s. Facts do not decide
//! which endpoint gets traffic.

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

/// When the change behind an object's version happened, in microseconds since the Unix epoch, if the object has it. All
/// trigger times are equal, so two versions that differ only here are equal.
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
    /// Unique over time: distinguishes a re-created object from the old one of the same name.
    pub uid: Option<Arc<str>>,
    /// The apiserver's version; opaque except for equality.
    pub resource_version: Option<Arc<str>>,
    /// Counts changes of the specification.
    pub generation: Option<i64>,
    /// When it was created; decides which of two services owns an address that both claim.
    pub created: Option<Timestamp>,
    /// The last entry of `managedFields`.
    pub writer: Option<Writer>,
    /// The file or apiserver endpoint that it comes from.
    pub origin: Option<Arc<str>>,
    /// When the change behind this version happened. The state file omits it, because a restored object is no new
    /// change.
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
    /// `status`, if a subresource was written.
    pub subresource: Option<Arc<str>>,
    pub at: Option<Timestamp>,
}

words! {
    pub enum ServiceType {
        /// Reached at its cluster IPs.
        ClusterIp = "ClusterIP",
        /// Also at a port of every node.
        NodePort = "NodePort",
        /// Also at the addresses of a load balancer.
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
    /// TCP, UDP, SCTP, or a protocol that the maps never hold.
    pub protocol: Protocol,
    /// The port that clients dial.
    pub port: NonZeroU16,
    /// The port on every node; used for every type, as kube-proxy does.
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

/// A Service object or a `[[service]]` block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ServiceFacts {
    #[cfg_attr(feature = "serde", serde(with = "crate::serde_impls::name_alone"))]
    pub key: ServiceKey,
    pub meta: Meta,
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
    /// The addresses of a `[[service]]` block, for its one port; empty for all others.
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
    /// The annotation `holdfast.io/maglev` or the setting of the block, as written. The state file has it at the end of
    /// the service.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub maglev: Option<Arc<str>>,
    /// The annotation `holdfast.io/session-affinity-prefix` or the setting of the block, as written. The state file has
    /// it there too.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub affinity_prefix: Option<Arc<str>>,
    /// The annotation `holdfast.io/weights`, or the weights of the block's backends. The state file has it there too.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub weights: Option<Box<WeightSetting>>,
    /// Facts on the service's load balancer and deletion; most services have neither. The state file has them in a
    /// section of its own.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub balancer: Option<Box<BalancerFacts>>,
}

impl ServiceFacts {
    /// Whether the service uses Maglev, if its setting is valid.
    pub(crate) fn maglev_setting(&self) -> Option<bool> {
        self.maglev.as_deref()?.parse().ok()
    }

    /// The affinity prefixes of the service, if its setting is valid.
    pub fn affinity_prefixes(&self) -> Option<Prefixes> {
        Prefixes::parse(self.affinity_prefix.as_deref()?).ok()
    }

    /// A service with a name, a type and nothing else; the parser fills in the rest.
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
    /// Approximate memory in bytes.
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

/// The kind of a slice's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Option<Family>", into = "Option<Family>"))]
pub enum AddressType {
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
    /// Part of the join.
    pub protocol: Protocol,
    /// The port of the backends.
    pub port: NonZeroU16,
}

/// An `EndpointSlice`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SliceFacts {
    #[cfg_attr(feature = "serde", serde(with = "crate::serde_impls::name_alone"))]
    pub key: SliceKey,
    pub meta: Meta,
    /// The label `kubernetes.io/service-name`, or `multicluster.kubernetes.io/service-name` for slices of
    /// ServiceImports; the service is in the slice's own namespace.
    pub service: Option<Arc<str>>,
    /// The label `service.kubernetes.io/headless`: not for proxies.
    pub headless: bool,
    pub address_type: AddressType,
    /// The ports of every endpoint.
    pub ports: Box<[SlicePort]>,
    pub endpoints: Endpoints,
    /// The object has `endpoints: null`, not `[]`.
    pub endpoints_null: bool,
    /// The annotation `holdfast.io/weights`, for the slice's own endpoints. The state file has it at the end of the
    /// service.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub weights: Option<Box<WeightSetting>>,
}

impl SliceFacts {
    /// Approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let (texts, weights) = self.weights.as_ref().map_or((0, 0), |asked| asked.size());
        self.endpoints.bytes() + (self.ports.len() + weights) * ENTRY_BYTES + texts
    }
}

/// The own node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The name that kubelet registered.
    pub name: Arc<str>,
    /// The label `topology.kubernetes.io/zone`; an empty one never matches a hint.
    pub zone: Option<Arc<str>>,
    /// The local addresses that serve NodePorts; the first loopback address of a family represents its whole loopback
    /// range.
    pub node_port_addresses: BTreeSet<IpAddr>,
    /// All addresses that the node has or reports, except loopback and link-local ones: no pod can have them.
    pub addresses: BTreeSet<IpAddr>,
    /// The node is being deleted, so load balancers must send it no new connections. It serves as before.
    pub is_leaving: bool,
}

impl NodeFacts {
    /// Whether a client on the host reaches NodePorts at this address.
    pub fn has_node_ports_at(&self, address: IpAddr) -> bool {
        let known =
            if address.is_loopback() { Family::from_address(address).loopback_address() } else { address };
        self.node_port_addresses.contains(&known)
    }

    /// Whether a socket of the host that listens at this address and the port of a NodePort gets some of its clients:
    /// those who dial an address of the node at which NodePorts do not answer.
    pub fn takes_node_port_clients(&self, listening: IpAddr) -> bool {
        let family = Family::from_address(listening);
        let loopback = family.loopback_address();
        let mut own = self.addresses.iter().chain([&loopback]);
        listening.is_unspecified()
            && own.any(|it| Family::from_address(*it) == family && !self.has_node_ports_at(*it))
    }

    /// Whether the host has or reports the address.
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.node_port_addresses.contains(&address) || self.addresses.contains(&address)
    }

    /// The addresses at which other hosts reach its NodePorts.
    pub fn external_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.node_port_addresses.iter().copied().filter(|address| !address.is_loopback())
    }
}

/// The configuration for all services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Serve only services with this `service-proxy-name`; `None`: only services without the label.
    pub service_proxy_name: Option<Arc<str>>,
    /// Addresses of the apiserver: never TCP frontends, so that the agent's own path to it stays direct.
    pub bypass: BTreeSet<SocketAddr>,
    /// Addresses that the cluster reports for an apiserver: treated alike, except a Service's cluster IP. No host has a
    /// cluster IP, and an author of the cluster's list could otherwise disable any Service.
    pub reported_apiservers: BTreeSet<SocketAddr>,
    /// The most frontends that the maps may hold; an excess frontend shows the error. `None`: only the maps limit it.
    pub frontends_max: Option<usize>,
    /// Which addresses external IPs of the cluster's services may claim.
    pub external_ips: ExternalIps,
    /// What happens to a list that would become empty.
    pub hold: Policy,
    /// The maps hold the serving backends of TCP ports too, because the agent ends connections by them, or other nodes
    /// choose among them for their clients. They always hold those of UDP ports.
    pub keeps_tcp_members: bool,
    /// Nodes forward clients' packets unchanged (DSR), so the maps mark the ports that have backends without a node.
    pub has_dsr_from: bool,
    /// The programs translate packets at devices; otherwise no SCTP is served.
    pub serves_sctp: bool,
    /// Services without a setting of their own use Maglev.
    pub maglev: bool,
}

impl Settings {
    pub fn apiservers(&self) -> impl Iterator<Item = &SocketAddr> {
        self.bypass.iter().chain(&self.reported_apiservers)
    }

    /// Whether an apiserver may have this address.
    pub fn is_apiserver(&self, address: &SocketAddr) -> bool {
        self.bypass.contains(address) || self.reported_apiservers.contains(address)
    }
}

impl Settings {
    /// The transport of a port with this protocol in the maps; `None`: the maps never hold such a port.
    pub(crate) fn transport(&self, protocol: &Protocol) -> Option<Transport> {
        protocol.transport().filter(|it| *it != Transport::Sctp || self.serves_sctp)
    }

    /// Whether a service uses Maglev: its own setting if valid, otherwise the default.
    pub fn uses_maglev(&self, service: &ServiceFacts) -> bool {
        service.maglev_setting().unwrap_or(self.maglev)
    }
}

/// The subject of a rejection: an object, a whole file, or a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ObjectKey {
    Service(ServiceKey),
    Slice(SliceKey),
    /// A file that cannot be read at all, by its name.
    File(Source, Arc<str>),
    /// An object without a readable kind or name, by its position.
    Unnamed(Source, Arc<str>),
    /// Every object of a kind that the agent does not read, by the kind's name and version.
    Kind(Source, Arc<str>),
}

impl ObjectKey {
    /// The values of [`Self::kind`].
    pub const KINDS: [&str; 6] = ["Service", "EndpointSlice", "File", "Object", "Kind", "ServiceImport"];

    /// One of [`Self::KINDS`].
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

    pub const fn source(&self) -> Source {
        match self {
            Self::Service(key) => key.source,
            Self::Slice(key) => key.source,
            Self::File(source, _) | Self::Unnamed(source, _) | Self::Kind(source, _) => *source,
        }
    }

    /// Namespace and name, if it has them.
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

/// The prefix of the reason for a valid object that exceeds a limit.
pub(crate) const WAITING_PREFIX: &str = "waits for room";

impl Rejection {
    /// Whether it only says that a kind of a manifest is not read, as is usual for a cluster's files.
    pub const fn is_ignored_kind(&self) -> bool {
        matches!(self.object, ObjectKey::Kind(..))
    }

    /// Whether the object is valid and waits only until it fits.
    pub fn is_waiting(&self) -> bool {
        self.reason.starts_with(WAITING_PREFIX)
    }
}

/// An object, or a part of one, that was not understood. Its last good version stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub object: ObjectKey,
    /// The file or endpoint that it comes from.
    pub origin: Option<Arc<str>>,
    /// What is wrong and what is legal, at most [`crate::limits::REJECTION_REASON_LENGTH_MAX`] characters.
    pub reason: Arc<str>,
    /// Only a part was skipped (a bad endpoint, a duplicate); the rest of the object counts.
    pub partial: bool,
}
