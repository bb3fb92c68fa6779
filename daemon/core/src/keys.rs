//! The keys of services, slices, ports, frontends and backends.
//!
//! Invariant: equality is exact. Two keys are equal only if every part is equal, so no key of one service ever finds
//! another service's entry. No look-up uses a prefix, and no key joins strings.

use alloc::sync::Arc;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use crate::limits;
use crate::siphash::write_text;
use crate::words;
use crate::work::counted_key;

words! {
    /// The origin of objects. The order is the precedence if two services claim one address.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Source {
        /// `[[service]]` blocks of the configuration.
        Config = "config",
        /// A folder of Kubernetes manifests.
        Manifests = "manifests",
        Kubernetes = "kubernetes",
        /// ServiceImports of the Multi-Cluster Services API. No apiserver checks their addresses, so they come last.
        ClusterSet = "clusterset",
    }
}

impl Source {
    /// Whether the objects come from an apiserver, where tenants of the cluster may write them.
    pub const fn is_tenant_writable(self) -> bool {
        match self {
            Self::Kubernetes | Self::ClusterSet => true,
            Self::Config | Self::Manifests => false,
        }
    }
}

/// A name that no object can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidName {
    #[error("{what} is empty")]
    Empty { what: &'static str },
    #[error("{what} has {length} characters; at most {length_max} are legal")]
    TooLong { what: &'static str, length: usize, length_max: usize },
    /// A character that is not a letter, a digit, `-`, `.` or `_`.
    #[error("{what} has the character {character:?}; letters, digits, '-', '.' and '_' are legal")]
    Character { what: &'static str, character: char },
}

fn check_name(what: &'static str, name: &str, length_max: usize) -> Result<(), InvalidName> {
    if name.is_empty() {
        return Err(InvalidName::Empty { what });
    }
    if name.len() > length_max {
        return Err(InvalidName::TooLong { what, length: name.len(), length_max });
    }
    let illegal = |c: &char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
    match name.chars().find(illegal) {
        Some(character) => Err(InvalidName::Character { what, character }),
        None => Ok(()),
    }
}

/// Namespace and name of an object of one kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "crate::serde_impls::UncheckedName"))]
pub struct ObjectName {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl ObjectName {
    /// Checks the length and the characters of both parts, as Kubernetes limits them.
    pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidName> {
        check_name("the namespace", namespace, limits::NAMESPACE_LENGTH_MAX)?;
        check_name("the name", name, limits::NAME_LENGTH_MAX)?;
        Ok(Self { namespace: namespace.into(), name: name.into() })
    }

    /// The name of another object in the same namespace; shares the texts of both parts.
    pub(crate) fn sibling(&self, name: &Arc<str>) -> Result<Self, InvalidName> {
        check_name("the name", name, limits::NAME_LENGTH_MAX)?;
        Ok(Self { namespace: Arc::clone(&self.namespace), name: Arc::clone(name) })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) const fn shared_namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Hashes whole words, which is faster than bytes. The lengths go first, so that the same text split elsewhere is
/// another name.
impl Hash for ObjectName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64((self.namespace.len() as u64) << 32 | self.name.len() as u64);
        [&self.namespace, &self.name].into_iter().for_each(|text| write_text(text.as_bytes(), state));
    }
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ServiceKey {
    /// `namespace/name`; first, so that keys sort as in the printed tables.
    pub name: ObjectName,
    pub source: Source,
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

/// One `EndpointSlice` of one source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceKey {
    pub name: ObjectName,
    pub source: Source,
}

impl fmt::Display for SliceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

words! {
    /// A protocol that the datapath translates.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum Transport {
        Tcp = "TCP",
        Udp = "UDP",
        /// Served only as packets: no kernel runs programs when an SCTP socket connects.
        Sctp = "SCTP",
    }
}

/// The protocol of a service's or slice's port; the datapath may not translate it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A protocol that the datapath translates.
    Transport(Transport),
    /// Unknown even to Kubernetes: reported as `unprogrammed`.
    Other(Arc<str>),
}

impl Protocol {
    /// TCP, the default of Kubernetes.
    pub const TCP: Self = Self::Transport(Transport::Tcp);
    pub const UDP: Self = Self::Transport(Transport::Udp);
    pub const SCTP: Self = Self::Transport(Transport::Sctp);

    /// Parses Kubernetes' spelling; keeps an unknown one as written.
    pub fn parse(text: &str) -> Self {
        match text {
            "TCP" => Self::TCP,
            "UDP" => Self::UDP,
            "SCTP" => Self::SCTP,
            other => Self::Other(other.into()),
        }
    }

    /// The transport, if the datapath translates this protocol.
    pub fn transport(&self) -> Option<Transport> {
        match self {
            Self::Transport(transport) => Some(*transport),
            Self::Other(_) => None,
        }
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Transport(transport) => transport.as_str(),
            Self::Other(other) => other,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Transport {
    /// The protocol number in IP headers.
    pub const fn protocol_number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

words! {
    /// IPv4 or IPv6. Every service is decided once per family, as in kube-proxy.
    #[derive(PartialOrd, Ord, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub enum Family {
        V4 = "IPv4",
        V6 = "IPv6",
    }
}

impl Family {
    pub const fn from_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// `127.0.0.1` or `::1`, which represents all of the host's loopback.
    pub const fn loopback_address(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(core::net::Ipv4Addr::LOCALHOST),
            Self::V6 => IpAddr::V6(core::net::Ipv6Addr::LOCALHOST),
        }
    }

    /// `0.0.0.0` or `::`, the address shown for a NodePort frontend.
    pub const fn unspecified_address(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// The address that a client dials. NodePorts have the unspecified address of their family.
#[derive(Clone, Copy, Debug)]
pub struct FrontendKey {
    pub address: IpAddr,
    pub port: NonZeroU16,
    pub transport: Transport,
}

counted_key!(FrontendKey { address, port, transport });

impl FrontendKey {
    /// The frontend at this address; `None`: no client can dial port 0.
    pub fn from_socket(at: SocketAddr, transport: Transport) -> Option<Self> {
        Some(Self { address: at.ip(), port: NonZeroU16::new(at.port())?, transport })
    }
}

/// Hashes as few words as hold the key, because no key is hashed more often. An IPv4 and an IPv6 key may share their
/// words, but no more than two keys do.
impl Hash for FrontendKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let end = u64::from(self.port.get()) << 8 | u64::from(self.transport.protocol_number());
        match self.address {
            IpAddr::V4(address) => state.write_u64(u64::from(address.to_bits()) << 32 | end),
            IpAddr::V6(address) => {
                let octets = address.octets();
                let (halves, _) = octets.as_chunks();
                halves.iter().for_each(|half| state.write_u64(u64::from_be_bytes(*half)));
                state.write_u64(end);
            }
        }
    }
}

impl fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", SocketAddr::new(self.address, self.port.get()), self.transport)
    }
}

/// A port of a service in one family: has a port index and lists in the datapath. Endpoints join by name and protocol
/// alone, so the port number is not part of it.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PortKey {
    /// Empty if the port has no name.
    pub name: Arc<str>,
    pub transport: Transport,
    pub family: Family,
}

counted_key!(PortKey { name, transport, family });

/// Shows an unnamed port as `*`, for messages; tables show the empty name.
impl fmt::Display for PortKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = if self.name.is_empty() { "*" } else { &self.name };
        write!(f, "{name}/{}", self.transport)
    }
}
