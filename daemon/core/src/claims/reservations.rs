//! What a service's address covers beside its own frontends, so that no other service takes anything of it.
//!
//! Invariant: a cluster IP covers all of its ports, and a node port all addresses of the node, whether its service is
//! served there or not; the owner of a cover depends on no order of arrival. Each address inside is known by the cover
//! around it, so its service is decided anew when that cover comes or goes.

use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;

use super::{AddressOrigin, NameOrder};
use crate::facts::NodeFacts;
use crate::index::{Index, Seed};
use crate::keys::{Family, FrontendKey, Source, Transport};
use crate::op::{FrontendType, ServiceId};
use crate::resolve::DesiredFrontend;

/// What one service can keep from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reservation {
    /// All ports of a cluster IP.
    Address(IpAddr),
    /// A port number at all addresses of the node.
    NodePort(Family, NonZeroU16, Transport),
}

/// What one service covers, and what it asks for that others may cover. Both are sorted.
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
        // Kept for each service, and nearly all have one cluster IP and nothing inside of another cover.
        let mut coverage = Self { reserved: Vec::with_capacity(1), enclosed: Vec::new() };
        for (it, key) in frontends.into_iter().filter_map(|it| Some((it, it.key()?))) {
            match it.kind {
                FrontendType::ClusterIp
                    if coverage.reserved.last() == Some(&Reservation::Address(key.address)) => {}
                FrontendType::ClusterIp => coverage.reserved.push(Reservation::Address(key.address)),
                FrontendType::NodePort => coverage.reserved.push(node_port_reservation(&key)),
                _ => coverage
                    .enclosed
                    .extend(enclosing_reservations(&key, it.kind, node).map(|cover| (cover, key))),
            }
        }
        coverage.reserved.sort_unstable();
        coverage.reserved.dedup();
        coverage.enclosed.sort_unstable();
        // One key of each cover is enough to have the service told of a change.
        coverage.enclosed.dedup_by_key(|(cover, _)| *cover);
        coverage.reserved.shrink_to_fit();
        coverage.enclosed.shrink_to_fit();
        coverage
    }
}

const fn node_port_reservation(key: &FrontendKey) -> Reservation {
    Reservation::NodePort(Family::from_address(key.address), key.port, key.transport)
}

/// The covers that a frontend may be inside of: none, if the apiserver gave it out or the administrator wrote it.
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

/// The covers of all services, and what services ask for inside of them. Nearly every cover has one owner and nothing
/// inside, so both are kept as short lists, sorted.
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

    /// The other service that covers a frontend, of the same source or one that goes before it.
    pub(crate) fn reserving_service(
        &self,
        key: &FrontendKey,
        kind: FrontendType,
        node: &NodeFacts,
        (source, id): (Source, ServiceId),
        by_name: NameOrder<'_>,
    ) -> Option<ServiceId> {
        enclosing_reservations(key, kind, node).find_map(|cover| {
            let others = self.owners.get(&cover)?.iter().filter(|(of, it)| *of <= source && *it != id);
            // Of several owners the source and the name decide which one is given, and no order of arrival.
            let first = others.min_by(|a, b| a.0.cmp(&b.0).then_with(|| by_name(a.1, b.1)));
            first.map(|(_, owner)| *owner)
        })
    }

    /// Replaces what a service covers, and what it asks for inside of covers. Returns the other services that ask for
    /// something inside of what it began or ceased to cover.
    pub(crate) fn replace(
        &mut self,
        (source, id): (Source, ServiceId),
        before: &ServiceReservations,
        now: &ServiceReservations,
    ) -> Vec<(ServiceId, FrontendKey)> {
        for (cover, key) in &before.enclosed {
            remove_sorted(&mut self.enclosed, *cover, &(id, *key));
        }
        for (cover, key) in &now.enclosed {
            insert_sorted(&mut self.enclosed, *cover, (id, *key));
        }
        let is_new = |cover: &&Reservation| before.reserved.binary_search(cover).is_err();
        let is_gone = |cover: &&Reservation| now.reserved.binary_search(cover).is_err();
        let new = now.reserved.iter().filter(is_new);
        let gone = before.reserved.iter().filter(is_gone);
        let mut told = Vec::new();
        for cover in gone {
            remove_sorted(&mut self.owners, *cover, &(source, id));
            told.extend(self.enclosed.get(cover).into_iter().flatten());
        }
        for cover in new {
            insert_sorted(&mut self.owners, *cover, (source, id));
            told.extend(self.enclosed.get(cover).into_iter().flatten());
        }
        told.retain(|(other, _)| *other != id);
        told
    }
}

/// Puts an element where it belongs among those of a cover.
fn insert_sorted<V: Ord>(index: &mut Index<Reservation, Vec<V>>, cover: Reservation, element: V) {
    let all = index.get_or_insert_with(cover, || Vec::with_capacity(1));
    if let Err(position) = all.binary_search(&element) {
        all.insert(position, element);
    }
}

/// Takes an element from those of a cover, and the cover itself with its last one.
fn remove_sorted<V: Ord>(index: &mut Index<Reservation, Vec<V>>, cover: Reservation, element: &V) {
    index.update(cover, Vec::new, |all| {
        if let Ok(position) = all.binary_search(element) {
            all.remove(position);
        }
        !all.is_empty()
    });
}
