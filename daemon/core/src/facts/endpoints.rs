//! The endpoints of one slice, packed: two million of them must fit in a small daemon.
//!
//! Invariant: [`Endpoints::iter`] returns exactly what [`EndpointsBuilder::push`] took. Each slice stores shared parts
//! once and names in one text; an endpoint refers to them by index.

mod builder;
mod uid;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use self::builder::{EndpointError, EndpointsBuilder};
pub use self::uid::UidText;
use crate::keys::Family;
use crate::limits;
pub use crate::split_name::{NodeName, TargetName};
use crate::split_name::{ShortText, SplitName, UniquePart};

/// The three conditions of an endpoint, with Kubernetes' meaning of absent values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Conditions {
    /// May get new connections.
    pub ready: bool,
    /// Answers, though it may be terminating.
    pub serving: bool,
    /// Its pod is being deleted.
    pub terminating: bool,
}

impl Conditions {
    /// Ready, serving, not terminating: the default of an endpoint without conditions.
    pub const READY: Self = Self { ready: true, serving: true, terminating: false };

    /// Absent means ready, serving and not terminating.
    pub fn from_optional(ready: Option<bool>, serving: Option<bool>, terminating: Option<bool>) -> Self {
        Self {
            ready: ready.unwrap_or(true),
            serving: serving.unwrap_or(true),
            terminating: terminating.unwrap_or(false),
        }
    }
}

/// The object behind an endpoint, usually a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Nearly always `Pod`.
    pub kind: &'a str,
    pub namespace: &'a str,
    pub name: TargetName<'a>,
    /// Empty if the slice has none.
    pub uid: UidText<'a>,
}

/// `hints.forZones` and `hints.forNodes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HintSet {
    /// The zones that shall use this endpoint.
    pub zones: Box<[Arc<str>]>,
    /// The nodes that shall use this endpoint.
    pub nodes: Box<[Arc<str>]>,
}

/// One endpoint, unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// The first of its addresses; Kubernetes ignores the others.
    pub address: IpAddr,
    pub conditions: Conditions,
    pub node: Option<NodeName<'a>>,
    pub zone: Option<&'a str>,
    pub hints: Option<&'a HintSet>,
    pub target: Option<Target<'a>>,
}

/// A name in the slice's text: 24 bits of offset, 8 bits of length. Length 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct TextSpan(u32);

impl TextSpan {
    fn new(offset: usize, length: usize) -> Option<Self> {
        let offset = Some(offset).filter(|offset| *offset < limits::SLICE_TEXT_BYTES_MAX)?;
        let offset = u32::try_from(offset).ok()?;
        let length = u8::try_from(length).ok()?;
        Some(Self(offset << 8 | u32::from(length)))
    }

    fn text(self, text: &str) -> &str {
        let offset = (self.0 >> 8) as usize;
        let length = (self.0 & 0xff) as usize;
        text.get(offset..offset + length).unwrap_or_default()
    }

    fn optional(self, text: &str) -> Option<&str> {
        (self.0 & 0xff != 0).then(|| self.text(text))
    }
}

/// The parts that similar endpoints share: the common parts of names, and fields with few values per slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct SharedParts {
    zone: TextSpan,
    node_start: TextSpan,
    node_end: TextSpan,
    kind: TextSpan,
    namespace: TextSpan,
    target_start: TextSpan,
    // 0: no hints; otherwise the index in `hints` plus one.
    hints: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PackedEndpoint {
    // The bytes of a usual uid; without the flag `UUID`, the offset and length of its text.
    uid: [u8; 16],
    // The unique parts of the names of node and target: a short one with its flag, otherwise offset and length of a
    // text.
    node: u32,
    target: u32,
    // The index in `parts`.
    parts: u16,
    flags: u8,
}

const READY: u8 = 1;
const SERVING: u8 = 2;
const TERMINATING: u8 = 4;
const UUID: u8 = 8;
const NODE_SHORT: u8 = 16;
const TARGET_SHORT: u8 = 32;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Addresses {
    V4(Box<[Ipv4Addr]>),
    V6(Box<[Ipv6Addr]>),
}

/// The endpoints of one slice, in the order in which the object lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    addresses: Addresses,
    packed: Box<[PackedEndpoint]>,
    parts: Box<[SharedParts]>,
    hints: Box<[HintSet]>,
    text: Box<str>,
}

/// An endpoint with its address, rounded up.
const ENDPOINT_BYTES: usize = 64;

impl Default for Endpoints {
    fn default() -> Self {
        EndpointsBuilder::new(Family::V4).finish()
    }
}

impl Endpoints {
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    /// Approximate memory in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.packed.len() * ENDPOINT_BYTES + self.text.len()
    }

    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// The family of all endpoints, if there are any.
    pub fn family(&self) -> Option<Family> {
        self.address(0).map(Family::from_address)
    }

    pub fn get(&self, position: usize) -> Option<Endpoint<'_>> {
        Some(self.unpack_endpoint(self.address(position)?, self.packed.get(position)?))
    }

    pub fn iter(&self) -> impl Iterator<Item = Endpoint<'_>> {
        (0..self.len()).filter_map(|position| self.get(position))
    }

    /// Addresses and conditions in order: enough to select endpoints if none has hints.
    pub fn iter_brief(&self) -> impl Iterator<Item = (IpAddr, Conditions)> {
        (0..self.len()).filter_map(|position| {
            Some((self.address(position)?, unpack_conditions(self.packed.get(position)?.flags)))
        })
    }

    /// The hints of one endpoint, without unpacking the rest.
    pub fn hints_for(&self, position: usize) -> Option<&HintSet> {
        if self.hints.is_empty() {
            return None;
        }
        self.hints_at(self.shared_parts(self.packed.get(position)?).hints)
    }

    fn hints_at(&self, place: u16) -> Option<&HintSet> {
        self.hints.get(usize::from(place).checked_sub(1)?)
    }

    fn address(&self, position: usize) -> Option<IpAddr> {
        match &self.addresses {
            Addresses::V4(addresses) => addresses.get(position).copied().map(IpAddr::V4),
            Addresses::V6(addresses) => addresses.get(position).copied().map(IpAddr::V6),
        }
    }

    fn unpack_endpoint(&self, address: IpAddr, packed: &PackedEndpoint) -> Endpoint<'_> {
        let shared = self.shared_parts(packed);
        let node = SplitName {
            start: shared.node_start.text(&self.text),
            unique: self.unpack_part(packed.node, packed.flags & NODE_SHORT != 0),
            end: shared.node_end.text(&self.text),
        };
        Endpoint {
            address,
            conditions: unpack_conditions(packed.flags),
            node: (!node.is_empty()).then_some(NodeName(node)),
            zone: shared.zone.optional(&self.text),
            hints: self.hints_at(shared.hints),
            target: self.unpack_target(packed, &shared),
        }
    }

    fn shared_parts(&self, packed: &PackedEndpoint) -> SharedParts {
        self.parts.get(usize::from(packed.parts)).copied().unwrap_or_default()
    }

    fn unpack_part(&self, number: u32, is_short: bool) -> UniquePart<'_> {
        if is_short {
            UniquePart::Short(ShortText(number))
        } else {
            UniquePart::Text(TextSpan(number).text(&self.text))
        }
    }

    fn unpack_target(&self, packed: &PackedEndpoint, shared: &SharedParts) -> Option<Target<'_>> {
        let own = self.unpack_part(packed.target, packed.flags & TARGET_SHORT != 0);
        let name = SplitName { start: shared.target_start.text(&self.text), unique: own, end: "" };
        (!name.is_empty()).then(|| Target {
            kind: shared.kind.text(&self.text),
            namespace: shared.namespace.text(&self.text),
            name: TargetName(name),
            uid: match packed.uid {
                uuid if packed.flags & UUID != 0 => UidText::Uuid(uuid),
                [a, b, c, d, ..] => {
                    UidText::Text(TextSpan(u32::from_be_bytes([a, b, c, d])).text(&self.text))
                }
            },
        })
    }
}

fn pack_conditions(conditions: Conditions) -> u8 {
    u8::from(conditions.ready) * READY
        + u8::from(conditions.serving) * SERVING
        + u8::from(conditions.terminating) * TERMINATING
}

fn unpack_conditions(bits: u8) -> Conditions {
    Conditions {
        ready: bits & READY != 0,
        serving: bits & SERVING != 0,
        terminating: bits & TERMINATING != 0,
    }
}

#[cfg(test)]
mod tests;
