//! Hands the index of a leaving port to one that found no capacity.
//!
//! Invariant: clients of the index reach what they dialled: every frontend that points to it is the heir's own, or none
//! points to it and no reader is left.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;

use super::services::Services;
use super::space::{Indices, Space};
use crate::claims::Frontends;
use crate::keys::Family;
use crate::list::Scope;
use crate::op::{PortIndex, ServiceId};
use crate::service::{Port, RealizedPort, Service};
use crate::work;

/// The indices that a service's leaving ports can hand to its other ports.
#[derive(Debug)]
pub(super) struct IndexHandover {
    pub(super) service_id: ServiceId,
    /// By the position of the one port that owns all frontends of the index.
    by_position: BTreeMap<usize, PortIndex>,
    /// Indices without frontends, by family.
    idle: [Vec<PortIndex>; 2],
}

impl IndexHandover {
    const fn empty(of: ServiceId) -> Self {
        Self { service_id: of, by_position: BTreeMap::new(), idle: [Vec::new(), Vec::new()] }
    }
}

/// The port that owns an index's frontends, and their number; `None`: several ports own them.
type PortFrontends = Option<(usize, usize)>;

/// The desired frontends that the service has won, by the index to which they point in the maps.
fn frontends_by_index(
    id: ServiceId,
    service: &Service,
    frontends: &Frontends,
) -> BTreeMap<PortIndex, PortFrontends> {
    let mut own = BTreeMap::<PortIndex, PortFrontends>::new();
    for frontend in &service.desired {
        work::count_work(1);
        let (Some(position), Some(key)) = (frontend.position, frontend.key()) else { continue };
        let entry = frontends.get(&key).filter(|entry| entry.winner() == Some(id));
        let Some(realized) = entry.and_then(|entry| entry.realized) else { continue };
        let counted = own.entry(realized.value.port).or_insert(Some((position, 0)));
        *counted = counted.filter(|(of, _)| *of == position).map(|(of, count)| (of, count + 1));
    }
    own
}

/// Hands over the index with all that the leaving port has realized.
pub(super) fn hand_over_index(
    id: ServiceId,
    index: PortIndex,
    position: usize,
    services: &mut Services,
    space: &mut Space,
) -> Option<PortIndex> {
    let (place, nothing) = (space.indices.position(index)?, services.empty_rows());
    let service = services.get_mut(id)?;
    let leaving = service.ports.get_mut(place).filter(|port| port.index == Some(index))?;
    leaving.index = None;
    let tables = mem::take(&mut leaving.tables);
    let realized = mem::replace(&mut leaving.realized, RealizedPort::empty(&nothing));
    let heir = service.ports.get_mut(position)?;
    // If a port's lists found no slots, its index has no frontends.
    heir.index.take().into_iter().for_each(|fresh| space.release_port_index(fresh));
    (heir.index, heir.tables, heir.realized) = (Some(index), tables, realized);
    space.indices.set_position(index, position);
    Some(index)
}

impl IndexHandover {
    /// Visits each frontend once, however many ports leave.
    pub(super) fn find_handover(id: ServiceId, services: &Services, frontends: &Frontends) -> Self {
        let mut heirs = Self::empty(id);
        let Some(service) = services.get(id) else { return heirs };
        let mut leading = BTreeMap::<PortIndex, usize>::new();
        for key in service.frontends.iter() {
            work::count_work(1);
            match frontends.get(key) {
                // It may point to any of them.
                Some(entry) if entry.uncertain => return heirs,
                entry => {
                    let index = entry.and_then(|entry| entry.realized).map(|it| it.value.port);
                    index.into_iter().for_each(|index| *leading.entry(index).or_default() += 1);
                }
            }
        }
        let own = frontends_by_index(id, service, frontends);
        for port in service.ports.iter().skip(service.desired_count) {
            let Some(index) = port.index else { continue };
            match (own.get(&index), leading.get(&index)) {
                (Some(Some((position, own))), Some(all)) if own == all => {
                    heirs.by_position.entry(*position).or_insert(index);
                }
                (None, None) => heirs.idle_mut(port.key.family).push(index),
                _ => {}
            }
        }
        heirs
    }

    const fn idle_mut(&mut self, family: Family) -> &mut Vec<PortIndex> {
        let [v4, v6] = &mut self.idle;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// Takes the index for the port at that position.
    pub(super) fn take_index_for(
        &mut self,
        service: &Service,
        position: usize,
        indices: &Indices,
    ) -> Option<PortIndex> {
        let heir = service.ports.get(position)?;
        let leaving = |index: &PortIndex| service.ports.get(indices.position(*index)?);
        let led = self.by_position.remove(&position);
        let led = led.filter(|index| leaving(index).is_some_and(|port| has_same_policy(port, heir)));
        led.or_else(|| self.idle_mut(heir.key.family).pop())
    }
}

/// Under another policy, no order of replacing the two words is safe.
fn has_same_policy(leaving: &Port, heir: &Port) -> bool {
    leaving.key.family == heir.key.family
        && leaving.realized.cluster.word.flags.policy() == heir.flags(Scope::Cluster).policy()
}
