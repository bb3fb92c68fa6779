//! The endpoints of one slice, packed: two million of them must fit in a small daemon.
//!
//! Invariant: what goes in by [`EndpointsBuilder::push`] comes out by [`Endpoints::iter`] unchanged. Names are kept
//! once per slice in one text; an endpoint refers to them by offset.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::index::{Index, Seed};
use crate::keys::Family;
use crate::limits;

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
    /// Ready, serving, not terminating: also what an endpoint without conditions is.
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

/// The object that an endpoint stands for, usually a Pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Nearly always `Pod`.
    pub kind: &'a str,
    pub namespace: &'a str,
    pub name: TargetName<'a>,
    /// Its uid; empty if the slice does not say.
    pub uid: UidText<'a>,
}

/// A name in two parts: the pods of one controller share the first one, so a slice keeps it once.
#[derive(Clone, Copy, Debug)]
pub struct TargetName<'a> {
    start: &'a str,
    end: &'a str,
}

impl<'a> From<&'a str> for TargetName<'a> {
    /// The end begins behind the last dash.
    fn from(name: &'a str) -> Self {
        let (start, end) = name.split_at(name.rfind('-').map_or(0, |dash| dash + 1));
        Self { start, end }
    }
}

impl TargetName<'_> {
    const fn is_empty(&self) -> bool {
        self.start.is_empty() && self.end.is_empty()
    }
}

impl PartialEq for TargetName<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.start.bytes().chain(self.end.bytes()).eq(other.start.bytes().chain(other.end.bytes()))
    }
}

impl Eq for TargetName<'_> {}

impl core::fmt::Display for TargetName<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.start)?;
        f.write_str(self.end)
    }
}

/// A uid as text, whether it is kept as 16 bytes or as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UidText<'a> {
    /// The usual form, `8-4-4-4-12` hexadecimal digits in lower case.
    Uuid([u8; 16]),
    /// Any other text.
    Text(&'a str),
}

impl<'a> UidText<'a> {
    /// Whether the slice does not say it.
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Text(""))
    }

    /// Keeps the usual form as bytes, anything else as it is.
    pub fn parse(text: &'a str) -> Self {
        parse_uuid(text).map_or(Self::Text(text), Self::Uuid)
    }
}

impl core::fmt::Display for UidText<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Uuid(bytes) => {
                for (position, byte) in bytes.iter().enumerate() {
                    let dash = if matches!(position, 4 | 6 | 8 | 10) { "-" } else { "" };
                    write!(f, "{dash}{byte:02x}")?;
                }
                Ok(())
            }
        }
    }
}

fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let well_formed = text.len() == 36
        && text.bytes().enumerate().all(|(position, byte)| match position {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        });
    if !well_formed {
        return None;
    }
    let mut digits = text.bytes().filter_map(|byte| (byte as char).to_digit(16));
    let mut uuid = [0_u8; 16];
    for byte in &mut uuid {
        *byte = u8::try_from(digits.next()? * 16 + digits.next()?).ok()?;
    }
    Some(uuid)
}

/// `hints.forZones` and `hints.forNodes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct HintSet {
    /// Zones that this endpoint is meant for.
    pub zones: Box<[Arc<str>]>,
    /// Nodes that this endpoint is meant for.
    pub nodes: Box<[Arc<str>]>,
}

/// One endpoint, going in or coming out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint<'a> {
    /// The first of its addresses, the only one that counts.
    pub address: IpAddr,
    /// Ready, serving, terminating.
    pub conditions: Conditions,
    /// The node that it runs on.
    pub node: Option<&'a str>,
    /// The zone that it runs in.
    pub zone: Option<&'a str>,
    pub hints: Option<&'a HintSet>,
    /// What it stands for.
    pub target: Option<Target<'a>>,
}

/// Why an endpoint cannot be taken. The slice's others can.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointRefused {
    /// Not of the slice's family.
    #[error("address {0} is not of the slice's address type")]
    Family(IpAddr),
    /// No backend can have it.
    #[error("address {0} cannot be a backend: it is unspecified or multicast")]
    NotUnicast(IpAddr),
    /// A name longer than any Kubernetes name.
    #[error("a node, zone or target name has {0} characters; at most 255 are legal")]
    NameTooLong(usize),
    /// See [`limits::ENDPOINTS_PER_SLICE_MAX`] and [`limits::SLICE_TEXT_BYTES_MAX`].
    #[error(
        "the slice has more endpoints, zones, kinds or text than fit ({} endpoints)",
        limits::ENDPOINTS_PER_SLICE_MAX
    )]
    TooMany,
}

/// A name in the slice's text: 24 bits of offset, 8 bits of length. Length 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Name(u32);

impl Name {
    fn new(offset: usize, length: usize) -> Option<Self> {
        let offset = u32::try_from(offset).ok().filter(|offset| *offset < 1 << 24)?;
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

/// What all endpoints of one controller in a slice share of their targets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Origin {
    kind: Name,
    namespace: Name,
    name_start: Name,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    // The bytes of a usual uid; else, without `UUID`, the offset and length of its text.
    uid: [u8; 16],
    node: Name,
    name_end: Name,
    // 0: no hints; else one more than the place in `hints`.
    hints: u16,
    // The place in `zones`.
    zone: u16,
    // 0: no target; else one more than the place in `origins`.
    origin: u16,
    flags: u8,
}

const READY: u8 = 1;
const SERVING: u8 = 2;
const TERMINATING: u8 = 4;
const UUID: u8 = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Addresses {
    V4(Box<[Ipv4Addr]>),
    V6(Box<[Ipv6Addr]>),
}

/// The endpoints of one slice, in the order in which the object lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    addresses: Addresses,
    packed: Box<[Packed]>,
    zones: Box<[Name]>,
    origins: Box<[Origin]>,
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
    /// How many there are.
    pub fn len(&self) -> usize {
        self.packed.len()
    }

    /// About how much memory they take.
    pub(crate) const fn bytes(&self) -> usize {
        self.packed.len() * ENDPOINT_BYTES + self.text.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.packed.is_empty()
    }

    /// The family of all of them, if there are any.
    pub fn family(&self) -> Option<Family> {
        self.address(0).map(Family::of)
    }

    /// The endpoint at a place, if there is one.
    pub fn get(&self, position: usize) -> Option<Endpoint<'_>> {
        Some(self.unpack(self.address(position)?, self.packed.get(position)?))
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = Endpoint<'_>> {
        (0..self.len()).filter_map(|position| self.get(position))
    }

    /// Addresses and conditions alone, in order: all that choosing needs where no endpoint has hints.
    pub fn iter_brief(&self) -> impl Iterator<Item = (IpAddr, Conditions)> {
        (0..self.len()).filter_map(|position| {
            Some((self.address(position)?, unpack_conditions(self.packed.get(position)?.flags)))
        })
    }

    /// The hints of the endpoint at a place, without looking at anything else of it.
    pub fn hints_of(&self, position: usize) -> Option<&HintSet> {
        if self.hints.is_empty() {
            return None;
        }
        let hints = self.packed.get(position)?.hints;
        self.hints.get(usize::from(hints).checked_sub(1)?)
    }

    fn address(&self, position: usize) -> Option<IpAddr> {
        match &self.addresses {
            Addresses::V4(addresses) => addresses.get(position).copied().map(IpAddr::V4),
            Addresses::V6(addresses) => addresses.get(position).copied().map(IpAddr::V6),
        }
    }

    fn unpack(&self, address: IpAddr, packed: &Packed) -> Endpoint<'_> {
        Endpoint {
            address,
            conditions: unpack_conditions(packed.flags),
            node: packed.node.optional(&self.text),
            zone: self.zones.get(usize::from(packed.zone)).and_then(|zone| zone.optional(&self.text)),
            hints: usize::from(packed.hints).checked_sub(1).and_then(|position| self.hints.get(position)),
            target: self.target(packed),
        }
    }

    fn target(&self, packed: &Packed) -> Option<Target<'_>> {
        let origin = self.origins.get(usize::from(packed.origin).checked_sub(1)?)?;
        Some(Target {
            kind: origin.kind.text(&self.text),
            namespace: origin.namespace.text(&self.text),
            name: TargetName {
                start: origin.name_start.text(&self.text),
                end: packed.name_end.text(&self.text),
            },
            uid: match packed.uid {
                uuid if packed.flags & UUID != 0 => UidText::Uuid(uuid),
                [a, b, c, d, ..] => UidText::Text(Name(u32::from_be_bytes([a, b, c, d])).text(&self.text)),
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

/// Takes endpoints one by one and refuses those that cannot be backends.
#[derive(Debug)]
pub struct EndpointsBuilder {
    family: Family,
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
    packed: Vec<Packed>,
    zones: Vec<Name>,
    origins: Vec<Origin>,
    hints: Vec<HintSet>,
    text: String,
    // Names already in `text`; a slice's endpoints share few nodes and zones.
    names: Index<Box<str>, Name>,
}

impl EndpointsBuilder {
    /// For a slice of one family.
    pub fn new(family: Family) -> Self {
        Self {
            family,
            v4: Vec::new(),
            v6: Vec::new(),
            packed: Vec::new(),
            zones: Vec::new(),
            origins: Vec::new(),
            hints: Vec::new(),
            text: String::new(),
            names: Index::new(Seed::default()),
        }
    }

    /// Adds one endpoint, or says why it cannot be a backend.
    pub fn push(&mut self, endpoint: Endpoint<'_>) -> Result<(), EndpointRefused> {
        self.check(endpoint.address)?;
        let target = endpoint.target.filter(|target| !target.name.is_empty());
        let (uid, uuid) = self.uid(target)?;
        let zone = self.shared(endpoint.zone)?;
        let packed = Packed {
            uid,
            node: self.shared(endpoint.node)?,
            name_end: self.own(target.map(|target| target.name.end))?,
            hints: self.hint(endpoint.hints)?,
            zone: position_of(&mut self.zones, zone)?,
            origin: self.origin(target)?,
            flags: pack_conditions(endpoint.conditions) + uuid,
        };
        self.packed.push(packed);
        match endpoint.address {
            IpAddr::V4(address) => self.v4.push(address),
            IpAddr::V6(address) => self.v6.push(address),
        }
        Ok(())
    }

    /// The endpoints, packed for good.
    pub fn finish(self) -> Endpoints {
        Endpoints {
            // All are of one family; without any, it does not matter which.
            addresses: if self.v6.is_empty() {
                Addresses::V4(self.v4.into())
            } else {
                Addresses::V6(self.v6.into())
            },
            packed: self.packed.into(),
            zones: self.zones.into(),
            origins: self.origins.into(),
            hints: self.hints.into(),
            text: self.text.into(),
        }
    }

    fn check(&self, address: IpAddr) -> Result<(), EndpointRefused> {
        if Family::of(address) != self.family {
            return Err(EndpointRefused::Family(address));
        }
        if address.is_unspecified() || address.is_multicast() {
            return Err(EndpointRefused::NotUnicast(address));
        }
        if self.packed.len() >= limits::ENDPOINTS_PER_SLICE_MAX {
            return Err(EndpointRefused::TooMany);
        }
        Ok(())
    }

    fn origin(&mut self, target: Option<Target<'_>>) -> Result<u16, EndpointRefused> {
        let Some(target) = target else { return Ok(0) };
        let origin = Origin {
            kind: self.shared(Some(target.kind))?,
            namespace: self.shared(Some(target.namespace))?,
            name_start: self.shared(Some(target.name.start))?,
        };
        Ok(position_of(&mut self.origins, origin)? + 1)
    }

    fn uid(&mut self, target: Option<Target<'_>>) -> Result<([u8; 16], u8), EndpointRefused> {
        let text = match target.map(|target| target.uid) {
            Some(UidText::Uuid(uuid)) => return Ok((uuid, UUID)),
            Some(UidText::Text(text)) => self.own(Some(text))?,
            None => Name::default(),
        };
        let mut uid = [0; 16];
        uid.iter_mut().zip(text.0.to_be_bytes()).for_each(|(position, byte)| *position = byte);
        Ok((uid, 0))
    }

    fn own(&mut self, name: Option<&str>) -> Result<Name, EndpointRefused> {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return Ok(Name::default());
        };
        if name.len() > 255 {
            return Err(EndpointRefused::NameTooLong(name.len()));
        }
        let position = Name::new(self.text.len(), name.len()).ok_or(EndpointRefused::TooMany)?;
        self.text.push_str(name);
        Ok(position)
    }

    fn shared(&mut self, name: Option<&str>) -> Result<Name, EndpointRefused> {
        let Some(text) = name else {
            return Ok(Name::default());
        };
        if let Some(position) = self.names.get(text) {
            return Ok(*position);
        }
        let position = self.own(name)?;
        self.names.insert(text.into(), position);
        Ok(position)
    }

    fn hint(&mut self, hints: Option<&HintSet>) -> Result<u16, EndpointRefused> {
        let Some(hints) = hints.filter(|hints| !(hints.zones.is_empty() && hints.nodes.is_empty())) else {
            return Ok(0);
        };
        let position = self.hints.iter().position(|known| known == hints).unwrap_or_else(|| {
            self.hints.push(hints.clone());
            self.hints.len() - 1
        });
        u16::try_from(position + 1).map_err(|_| EndpointRefused::TooMany)
    }
}

/// The place of an element in a short table, added if it is new.
fn position_of<T: PartialEq>(table: &mut Vec<T>, element: T) -> Result<u16, EndpointRefused> {
    let position = table.iter().position(|known| *known == element).unwrap_or(table.len());
    let short = u16::try_from(position).map_err(|_| EndpointRefused::TooMany)?;
    if position == table.len() {
        table.push(element);
    }
    Ok(short)
}

#[cfg(test)]
mod tests;
