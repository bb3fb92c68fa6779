//! Drains: backends that get no new clients until the operator of this node ends the drain.
//!
//! Invariant: a drain holds its address in canonical form and a service by its exact name or not at all, so it never
//! matches a service with a similar name. There are at most [`limits::DRAINS_MAX`]. A drain has the effect of a weight
//! of 0, so drains never empty a list.

pub(crate) mod scan;

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use crate::facts::Timestamp;
use crate::keys::ObjectName;
use crate::limits;

/// Backends that get no new clients: at an address or one port of it, of one service or of all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Drain {
    address: IpAddr,
    extent: DrainScope,
}

/// The port and the service; `None` means all.
type DrainScope = (Option<NonZeroU16>, Option<ObjectName>);

impl Drain {
    /// Takes any spelling of the address.
    pub const fn new(address: IpAddr, port: Option<NonZeroU16>, service: Option<ObjectName>) -> Self {
        Self { address: address.to_canonical(), extent: (port, service) }
    }

    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// `None`: every port.
    pub const fn port(&self) -> Option<NonZeroU16> {
        self.extent.0
    }

    /// `None`: every service.
    pub const fn service(&self) -> Option<&ObjectName> {
        self.extent.1.as_ref()
    }

    /// Whether one backend can match both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let meet = |a: bool, b: bool, same: bool| !a || !b || same;
        self.address == other.address
            && meet(self.port().is_some(), other.port().is_some(), self.port() == other.port())
            && meet(self.service().is_some(), other.service().is_some(), self.service() == other.service())
    }

    /// Whether the drain matches this backend of any service.
    pub(crate) fn matches_backend(&self, backend: SocketAddr) -> bool {
        self.address == backend.ip() && self.port().is_none_or(|port| port.get() == backend.port())
    }

    /// Whether the drain matches this backend of this service.
    pub fn applies_to(&self, service: &ObjectName, backend: SocketAddr) -> bool {
        self.matches_backend(backend) && self.service().is_none_or(|named| named == service)
    }
}

/// The drained address without the service: `10.0.0.5`, `[fd00::5]:80`.
impl fmt::Display for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port() {
            Some(port) => SocketAddr::new(self.address, port.get()).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

/// Which user of this node ordered something, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainOrder {
    pub uid: u32,
    /// The user's name at that time, if it is known.
    pub user: Option<Arc<str>>,
    pub at: Timestamp,
}

/// `root (uid 0)`, or `uid 1000` if the name is unknown.
impl fmt::Display for DrainOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.user {
            Some(user) => write!(f, "{user} (uid {})", self.uid),
            None => write!(f, "uid {}", self.uid),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} drains are in force, which is the limit", limits::DRAINS_MAX)]
pub struct TooManyDrains;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drains {
    /// By address first, because nearly every backend that is looked up has none.
    by_address: BTreeMap<IpAddr, BTreeMap<DrainScope, DrainOrder>>,
    len: usize,
}

impl Drains {
    pub const fn len(&self) -> usize {
        self.len
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Each drain with its order, by address and port.
    pub fn iter(&self) -> impl Iterator<Item = (Drain, &DrainOrder)> {
        self.by_address.iter().flat_map(|(address, extents)| {
            extents.iter().map(|(extent, by)| (Drain { address: *address, extent: extent.clone() }, by))
        })
    }

    pub fn at_address(&self, address: IpAddr) -> impl Iterator<Item = Drain> {
        let extents = self.by_address.get(&address).into_iter().flat_map(BTreeMap::keys);
        extents.map(move |extent| Drain { address, extent: extent.clone() })
    }

    /// The order of exactly this drain.
    pub fn get(&self, drain: &Drain) -> Option<&DrainOrder> {
        self.by_address.get(&drain.address)?.get(&drain.extent)
    }

    /// Adds a drain; one that exists keeps its first order.
    pub fn add(&mut self, drain: Drain, by: DrainOrder) -> Result<(), TooManyDrains> {
        if self.get(&drain).is_some() {
            return Ok(());
        }
        if self.len >= limits::DRAINS_MAX {
            return Err(TooManyDrains);
        }
        self.len += 1;
        self.by_address.entry(drain.address).or_default().insert(drain.extent, by);
        Ok(())
    }

    /// Removes exactly this drain, and returns its order.
    pub fn remove(&mut self, drain: &Drain) -> Option<DrainOrder> {
        let extents = self.by_address.get_mut(&drain.address)?;
        let by = extents.remove(&drain.extent)?;
        self.len = self.len.saturating_sub(1);
        if extents.is_empty() {
            self.by_address.remove(&drain.address);
        }
        Some(by)
    }

    /// The narrowest drain that matches this backend of this service, and its order.
    pub fn find_drain(&self, service: &ObjectName, backend: SocketAddr) -> Option<(Drain, &DrainOrder)> {
        let extents = self.by_address.get(&backend.ip())?;
        let port = NonZeroU16::new(backend.port());
        let named = || Some(service.clone());
        let narrow_first = [(port, named()), (None, named()), (port, None), (None, None)];
        let found = narrow_first.into_iter().find_map(|extent| extents.get_key_value(&extent));
        found.map(|(extent, by)| (Drain { address: backend.ip(), extent: extent.clone() }, by))
    }

    /// Whether a drain matches this backend of this service.
    pub(crate) fn is_drained(&self, service: &ObjectName, backend: SocketAddr) -> bool {
        !self.is_empty() && self.find_drain(service, backend).is_some()
    }

    /// The drains that only one of the two has.
    pub(crate) fn difference<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Drain> {
        let lacks = |of: &'a Self| move |(drain, _): &(Drain, &DrainOrder)| of.get(drain).is_none();
        let differing = self.iter().filter(lacks(other)).chain(other.iter().filter(lacks(self)));
        differing.map(|(drain, _)| drain)
    }
}

/// A drain that began or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainChange {
    pub drain: Drain,
    /// `true`: the drain began; `false`: it ended.
    pub is_on: bool,
    /// The user who ordered the change, and when.
    pub by: DrainOrder,
}

#[cfg(test)]
mod tests;
