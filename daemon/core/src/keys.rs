//! The names of things: services, slices, ports, frontends, backends.
//!
//! Invariant: equality is exact. Two keys are equal only if every part is equal, so no key of one service can ever find
//! another service's entry. Nothing is found by a prefix, and no key is made of joined strings.

use alloc::sync::Arc;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::net::IpAddr;
use core::num::NonZeroU16;

use crate::limits;
use crate::siphash::write_text;
use crate::words;
use crate::work::counted_key;

words! {
    /// Where objects come from. The order is the precedence when two services claim one address.
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
    /// Whether the objects are those of an apiserver, which tenants of the cluster may write.
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
    /// Nothing between the quotes.
    #[error("{what} is empty")]
    Empty { what: &'static str },
    /// Longer than Kubernetes allows.
    #[error("{what} has {length} characters; at most {length_max} are legal")]
    TooLong {
        what: &'static str,
        /// How long it is.
        length: usize,
        /// How long it may be.
        length_max: usize,
    },
    /// A character that is not a letter, a digit, `-`, `.` or `_`.
    #[error("{what} has the character {character:?}; letters, digits, '-', '.' and '_' are legal")]
    Character {
        what: &'static str,
        /// The first illegal one.
        character: char,
    },
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
    /// Checks both parts: length and characters, as Kubernetes bounds them.
    pub fn new(namespace: &str, name: &str) -> Result<Self, InvalidName> {
        check_name("the namespace", namespace, limits::NAMESPACE_LENGTH_MAX)?;
        check_name("the name", name, limits::NAME_LENGTH_MAX)?;
        Ok(Self { namespace: namespace.into(), name: name.into() })
    }

    /// The name of another object in the same namespace; both parts are shared with what says them.
    pub(crate) fn sibling(&self, name: &Arc<str>) -> Result<Self, InvalidName> {
        check_name("the name", name, limits::NAME_LENGTH_MAX)?;
        Ok(Self { namespace: Arc::clone(&self.namespace), name: Arc::clone(name) })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The namespace, shared.
    pub(crate) const fn shared_namespace(&self) -> &Arc<str> {
        &self.namespace
    }

    /// The name within the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// In whole words, which a hash takes faster than bytes. The lengths go first, so that the same text is another name
/// where it is cut elsewhere.
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

/// One service of one source.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ServiceKey {
    /// `namespace/name`; first, so that the order is that of the tables shown.
    pub name: ObjectName,
    /// The source that has this service.
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
    /// Shown as `namespace/name`.
    pub name: ObjectName,
    /// The source that has this slice.
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
        /// Served by packets alone: no kernel asks programs where a socket of SCTP dials.
        Sctp = "SCTP",
    }
}

/// The protocol that a service's or slice's port names; it may be one that the datapath does not translate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// A protocol that the datapath translates.
    Transport(Transport),
    /// Not even known to Kubernetes: reported as `unprogrammed`.
    Other(Arc<str>),
}

impl Protocol {
    /// TCP, what Kubernetes assumes when nothing is said.
    pub const TCP: Self = Self::Transport(Transport::Tcp);
    pub const UDP: Self = Self::Transport(Transport::Udp);
    pub const SCTP: Self = Self::Transport(Transport::Sctp);

    /// Reads Kubernetes' spelling; anything unknown is kept as it was written.
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
    /// The number of the protocol in headers of IP.
    pub const fn protocol_number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

words! {
    /// IPv4 or IPv6. Every service is decided once per family, as kube-proxy does.
    #[derive(PartialOrd, Ord, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
    pub enum Family {
        V4 = "IPv4",
        V6 = "IPv6",
    }
}

impl Family {
    /// The family of an address.
    pub const fn from_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// `127.0.0.1` or `::1`, which stands for all of the host's loopback.
    pub const fn loopback_address(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(core::net::Ipv4Addr::LOCALHOST),
            Self::V6 => IpAddr::V6(core::net::Ipv6Addr::LOCALHOST),
        }
    }

    /// `0.0.0.0` or `::`, the address that a NodePort frontend is shown with.
    pub const fn unspecified_address(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(core::net::Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(core::net::Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// What a client dials. NodePorts have the unspecified address of their family.
#[derive(Clone, Copy, Debug)]
pub struct FrontendKey {
    /// The destination address.
    pub address: IpAddr,
    /// The destination port.
    pub port: NonZeroU16,
    /// TCP, UDP or SCTP.
    pub transport: Transport,
}

counted_key!(FrontendKey { address, port, transport });

/// In as few words as hold all of it, because nothing is hashed more often. An IPv4 address and an IPv6 one may share
/// their words, but no more than two keys do.
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
        write!(f, "{}/{}", core::net::SocketAddr::new(self.address, self.port.get()), self.transport)
    }
}

/// A port of a service in one family: what has a port index and lists in the datapath.
///
/// The port number is no part of it: endpoints join by name and protocol alone.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PortKey {
    /// The port's name; empty if it has none.
    pub name: Arc<str>,
    /// TCP, UDP or SCTP.
    pub transport: Transport,
    /// The family of its frontends and backends.
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
