//! What a service's address reserves besides its own frontends, so that no other service takes a part of it.
//!
//! Invariant: a cluster IP reserves all of its ports, and a node port reserves all addresses of the node, even if this
//! node does not serve the service there. The owner depends on no order of arrival. Every claim inside a reservation is
//! indexed by it, so the engine decides the claiming service again when the reservation appears or ends.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;

use super::{AddressOrigin, NameOrder};
use crate::facts::NodeFacts;
use crate::index::{Index, Seed};
use crate::keys::{Family, FrontendKey, Source, Transport};
use crate::op::{FrontendType, ServiceId};
use crate::resolve::DesiredFrontend;

/// A range that one service can keep from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reservation {
    /// All ports of a cluster IP.
    Address(IpAddr),
    /// A port number at all addresses of the node.
    NodePort(Family, NonZeroU16, Transport),
}

/// What one service reserves, and its claims that others may reserve. Both are sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ServiceReservations {
    reserved: Vec<Reservation>,
    enclosed: Vec<(Reservation, FrontendKey)>,
}

impl ServiceReservations {
    pub(crate) fn from_frontends<'a>(
        frontends: impl IntoIterator<Item = &'a DesiredFrontend>,
        node: &NodeFacts,
    ) -> Self {
        // Stored per service; nearly all have one cluster IP and nothing inside another reservation.
        let mut own = Self { reserved: Vec::with_capacity(1), enclosed: Vec::new() };
        for (it, key) in frontends.into_iter().filter_map(|it| Some((it, it.key()?))) {
            match it.kind {
                FrontendType::ClusterIp
                    if own.reserved.last() == Some(&Reservation::Address(key.address)) => {}
                FrontendType::ClusterIp => own.reserved.push(Reservation::Address(key.address)),
                FrontendType::NodePort => own.reserved.push(node_port_reservation(&key)),
                _ => own.enclosed.extend(
                    enclosing_reservations(&key, it.kind, node).map(|reservation| (reservation, key)),
                ),
            }
        }
        own.reserved.sort_unstable();
        own.reserved.dedup();
        own.enclosed.sort_unstable();
        // One key of each reservation is enough to mark the service dirty.
        own.enclosed.dedup_by_key(|(reservation, _)| *reservation);
        own.reserved.shrink_to_fit();
        own.enclosed.shrink_to_fit();
        own
    }
}

const fn node_port_reservation(key: &FrontendKey) -> Reservation {
    Reservation::NodePort(Family::from_address(key.address), key.port, key.transport)
}

/// The reservations that may enclose a frontend: none if the apiserver allocated it or the administrator wrote it.
fn enclosing_reservations(
    key: &FrontendKey,
    kind: FrontendType,
    node: &NodeFacts,
) -> impl Iterator<Item = Reservation> + use<> {
    let may_be = AddressOrigin::from_type(kind) != AddressOrigin::Allocated;
    let at_node = may_be && node.node_port_addresses.contains(&key.address);
    let address = may_be.then_some(Reservation::Address(key.address));
    address.into_iter().chain(at_node.then(|| node_port_reservation(key)))
}

/// The reservations of all services, and the claims inside them. Nearly every reservation has one owner and no claim
/// inside, so both are short sorted lists.
#[derive(Debug)]
pub(crate) struct Reservations {
    owners: Index<Reservation, Vec<(Source, ServiceId)>>,
    enclosed: Index<Reservation, Vec<(ServiceId, FrontendKey)>>,
}

impl Reservations {
    pub(crate) fn new(seed: Seed) -> Self {
        Self { owners: Index::new(seed), enclosed: Index::new(seed) }
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.owners.is_empty() && self.enclosed.is_empty()
    }

    /// The other service that reserves a frontend, of the same source or one that precedes it.
    pub(crate) fn reserving_service(
        &self,
        key: &FrontendKey,
        kind: FrontendType,
        node: &NodeFacts,
        (source, id): (Source, ServiceId),
        by_name: NameOrder<'_>,
    ) -> Option<ServiceId> {
        enclosing_reservations(key, kind, node).find_map(|reservation| {
            let others = self.owners.get(&reservation)?.iter().filter(|(of, it)| *of <= source && *it != id);
            // Among several owners the source and the name decide, not the order of arrival.
            let first = others.min_by(|a, b| a.0.cmp(&b.0).then_with(|| by_name(a.1, b.1)));
            first.map(|(_, owner)| *owner)
        })
    }

    /// Replaces a service's reservations and enclosed claims. Returns the other services with claims inside a
    /// reservation that it added or removed.
    pub(crate) fn replace(
        &mut self,
        (source, id): (Source, ServiceId),
        before: &ServiceReservations,
        now: &ServiceReservations,
    ) -> Vec<(ServiceId, FrontendKey)> {
        for (reservation, key) in &before.enclosed {
            remove_sorted(&mut self.enclosed, *reservation, &(id, *key));
        }
        for (reservation, key) in &now.enclosed {
            insert_sorted(&mut self.enclosed, *reservation, (id, *key));
        }
        let is_new = |reservation: &&Reservation| before.reserved.binary_search(reservation).is_err();
        let is_gone = |reservation: &&Reservation| now.reserved.binary_search(reservation).is_err();
        let new = now.reserved.iter().filter(is_new);
        let gone = before.reserved.iter().filter(is_gone);
        let mut affected = Vec::new();
        for reservation in gone {
            remove_sorted(&mut self.owners, *reservation, &(source, id));
            affected.extend(self.enclosed.get(reservation).into_iter().flatten());
        }
        for reservation in new {
            insert_sorted(&mut self.owners, *reservation, (source, id));
            affected.extend(self.enclosed.get(reservation).into_iter().flatten());
        }
        affected.retain(|(other, _)| *other != id);
        affected
    }
}

/// Inserts an element in sorted order under a reservation.
fn insert_sorted<V: Ord>(index: &mut Index<Reservation, Vec<V>>, reservation: Reservation, element: V) {
    let all = index.get_or_insert_with(reservation, || Vec::with_capacity(1));
    if let Err(position) = all.binary_search(&element) {
        all.insert(position, element);
    }
}

/// Removes an element from a reservation, and the reservation with its last element.
fn remove_sorted<V: Ord>(index: &mut Index<Reservation, Vec<V>>, reservation: Reservation, element: &V) {
    index.update(reservation, Vec::new, |all| {
        if let Ok(position) = all.binary_search(element) {
            all.remove(position);
        }
        !all.is_empty()
    });
}
