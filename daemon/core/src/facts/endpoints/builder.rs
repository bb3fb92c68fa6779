//! Packs the endpoints of one slice.
//!
//! Invariant: an endpoint that cannot be a backend is refused with its reason and does not affect the others. Equal
//! endpoints in equal order are packed alike. Names are in sorted maps: a slice's author chooses them, and a sorted map
//! has no hash key to attack.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{
    Addresses, Endpoint, Endpoints, HintSet, NODE_SHORT, PackedEndpoint, SharedParts, TARGET_SHORT, Target,
    TextSpan, UUID, UidText, pack_conditions,
};
use crate::keys::Family;
use crate::limits;
use crate::split_name::{ShortText, SplitName, UniquePart};

/// The longest name of a Kubernetes object.
const NAME_MAX: usize = 255;

/// Why an endpoint is refused; the slice's others count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
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

/// Adds endpoints one by one and refuses those that cannot be backends.
#[derive(Debug)]
pub struct EndpointsBuilder {
    family: Family,
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
    packed: Vec<PackedEndpoint>,
    parts: Vec<SharedParts>,
    hints: Vec<HintSet>,
    text: String,
    // Names in `text`; a slice's endpoints share few nodes and zones.
    names: BTreeMap<Box<str>, TextSpan>,
    // Indices in `parts`.
    places: BTreeMap<SharedParts, u16>,
}

fn has_hints(hints: &HintSet) -> bool {
    !(hints.zones.is_empty() && hints.nodes.is_empty())
}

impl EndpointsBuilder {
    pub fn new(family: Family) -> Self {
        Self {
            family,
            v4: Vec::new(),
            v6: Vec::new(),
            packed: Vec::new(),
            parts: Vec::new(),
            hints: Vec::new(),
            text: String::new(),
            names: BTreeMap::new(),
            places: BTreeMap::new(),
        }
    }

    /// Adds one endpoint, or returns why it cannot be a backend.
    pub fn push(&mut self, endpoint: Endpoint<'_>) -> Result<(), EndpointError> {
        self.check_address(endpoint.address)?;
        let node = endpoint.node.map(|node| node.0).unwrap_or_default();
        let target = endpoint.target.filter(|target| !target.name.0.is_empty());
        let name = target.map(|target| target.name.0).unwrap_or_default();
        let shared = self.intern_parts(&endpoint, &node, target)?;
        let (uid, uuid) = self.pack_uid(target)?;
        let (target, target_short) = self.pack_part(&name)?;
        let (node, node_short) = self.pack_part(&node)?;
        let short = u8::from(target_short) * TARGET_SHORT + u8::from(node_short) * NODE_SHORT;
        let flags = pack_conditions(endpoint.conditions) + uuid + short;
        self.packed.push(PackedEndpoint { uid, node, target, parts: shared, flags });
        match endpoint.address {
            IpAddr::V4(address) => self.v4.push(address),
            IpAddr::V6(address) => self.v6.push(address),
        }
        Ok(())
    }

    pub fn finish(self) -> Endpoints {
        Endpoints {
            // All are of one family; an empty slice may have either.
            addresses: if self.v6.is_empty() {
                Addresses::V4(self.v4.into())
            } else {
                Addresses::V6(self.v6.into())
            },
            packed: self.packed.into(),
            parts: self.parts.into(),
            hints: self.hints.into(),
            text: self.text.into(),
        }
    }

    fn check_address(&self, address: IpAddr) -> Result<(), EndpointError> {
        if Family::from_address(address) != self.family {
            return Err(EndpointError::Family(address));
        }
        if address.is_unspecified() || address.is_multicast() {
            return Err(EndpointError::NotUnicast(address));
        }
        if self.packed.len() >= limits::ENDPOINTS_PER_SLICE_MAX {
            return Err(EndpointError::TooMany);
        }
        Ok(())
    }

    /// The index of the parts that the endpoint shares with similar ones.
    fn intern_parts(
        &mut self,
        endpoint: &Endpoint<'_>,
        node: &SplitName<'_>,
        target: Option<Target<'_>>,
    ) -> Result<u16, EndpointError> {
        if let Some(place) = self.reuse_last_parts(endpoint, node, target) {
            return Ok(place);
        }
        let shared = SharedParts {
            zone: self.intern_name(endpoint.zone.unwrap_or_default())?,
            node_start: self.intern_name(node.start)?,
            node_end: self.intern_name(node.end)?,
            kind: self.intern_name(target.map_or("", |it| it.kind))?,
            namespace: self.intern_name(target.map_or("", |it| it.namespace))?,
            target_start: self.intern_name(target.map_or("", |it| it.name.0.start))?,
            hints: self.intern_hints(endpoint.hints)?,
        };
        self.insert_parts(shared)
    }

    /// The parts of the last endpoint, if this one has the same: most endpoints of a slice do, and comparing texts
    /// costs less than looking up each.
    fn reuse_last_parts(
        &self,
        endpoint: &Endpoint<'_>,
        node: &SplitName<'_>,
        target: Option<Target<'_>>,
    ) -> Option<u16> {
        let place = self.packed.last()?.parts;
        let shared = self.parts.get(usize::from(place))?;
        let is = |name: TextSpan, text: &str| name.text(&self.text) == text;
        let hints = self.hints.get(usize::from(shared.hints).wrapping_sub(1));
        let is_same = is(shared.zone, endpoint.zone.unwrap_or_default())
            && is(shared.node_start, node.start)
            && is(shared.node_end, node.end)
            && is(shared.kind, target.map_or("", |it| it.kind))
            && is(shared.namespace, target.map_or("", |it| it.namespace))
            && is(shared.target_start, target.map_or("", |it| it.name.0.start))
            && hints == endpoint.hints.filter(|it| has_hints(it));
        is_same.then_some(place)
    }

    fn insert_parts(&mut self, shared: SharedParts) -> Result<u16, EndpointError> {
        if let Some(place) = self.places.get(&shared) {
            return Ok(*place);
        }
        let place = u16::try_from(self.parts.len()).map_err(|_| EndpointError::TooMany)?;
        self.parts.push(shared);
        self.places.insert(shared, place);
        Ok(place)
    }

    /// Packs the unique part of a name: a short one as a number (`true`), otherwise as a span of the text.
    fn pack_part(&mut self, name: &SplitName<'_>) -> Result<(u32, bool), EndpointError> {
        if name.len() > NAME_MAX {
            return Err(EndpointError::NameTooLong(name.len()));
        }
        match name.unique {
            UniquePart::Short(short) => Ok((short.0, true)),
            UniquePart::Text(text) => match ShortText::new(text) {
                Some(short) => Ok((short.0, true)),
                None => Ok((self.intern_name(text)?.0, false)),
            },
        }
    }

    fn pack_uid(&mut self, target: Option<Target<'_>>) -> Result<([u8; 16], u8), EndpointError> {
        let text = match target.map(|target| target.uid) {
            Some(UidText::Uuid(uuid)) => return Ok((uuid, UUID)),
            Some(UidText::Text(text)) => self.intern_name(text)?,
            None => TextSpan::default(),
        };
        let mut uid = [0; 16];
        uid.iter_mut().zip(text.0.to_be_bytes()).for_each(|(position, byte)| *position = byte);
        Ok((uid, 0))
    }

    /// Appends a name to the text, unless the text has it.
    fn intern_name(&mut self, name: &str) -> Result<TextSpan, EndpointError> {
        if name.is_empty() {
            return Ok(TextSpan::default());
        }
        if let Some(position) = self.names.get(name) {
            return Ok(*position);
        }
        let position = self.append_name(name)?;
        self.names.insert(name.into(), position);
        Ok(position)
    }

    fn append_name(&mut self, name: &str) -> Result<TextSpan, EndpointError> {
        if name.len() > NAME_MAX {
            return Err(EndpointError::NameTooLong(name.len()));
        }
        let position = TextSpan::new(self.text.len(), name.len()).ok_or(EndpointError::TooMany)?;
        self.text.push_str(name);
        Ok(position)
    }

    fn intern_hints(&mut self, hints: Option<&HintSet>) -> Result<u16, EndpointError> {
        let Some(hints) = hints.filter(|hints| has_hints(hints)) else {
            return Ok(0);
        };
        let position = self.hints.iter().position(|known| known == hints).unwrap_or_else(|| {
            self.hints.push(hints.clone());
            self.hints.len() - 1
        });
        u16::try_from(position + 1).map_err(|_| EndpointError::TooMany)
    }
}
