//! Which port that leaves gives its index to one that finds no room.
//!
//! Invariant: an index goes over only where clients who come by it meet what they dialled: each frontend that leads
//! there is the heir's own, or none leads there and no reader is on the way.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem;

use super::World;
use crate::keys::Family;
use crate::list::Scope;
use crate::op::{PortIndex, ServiceId};
use crate::service::{Port, RealizedPort, Service};
use crate::work;

/// What the ports of one service that leave can give to others of it.
#[derive(Debug)]
pub(super) struct Heirs {
    of: ServiceId,
    /// By the place of the one port that all frontends are of which lead there.
    led: BTreeMap<usize, PortIndex>,
    /// Those to which nothing leads, by their family.
    idle: [Vec<PortIndex>; 2],
}

impl Heirs {
    const fn none(of: ServiceId) -> Self {
        Self { of, led: BTreeMap::new(), idle: [Vec::new(), Vec::new()] }
    }
}

/// Which port the frontends are of that lead to an index, and how many they are; `None`: they are of several ports.
type Own = Option<(usize, usize)>;

impl World {
    /// Gives a port that finds no room the index of a port that leaves, with all that is there of it: as where a port
    /// has another name, or another number once no frontend has the former one. The lists are replaced as those of any
    /// port that changes.
    pub(super) fn inherit(&mut self, id: ServiceId, position: usize) -> Option<PortIndex> {
        if self.space.freed.leads_to(id) {
            return None;
        }
        let known = self.shortage.lacking.heirs.take().filter(|heirs| heirs.of == id);
        let mut heirs = known.unwrap_or_else(|| self.heirs(id));
        let left =
            self.services.get(id).and_then(|service| heirs.left_to(service, position, &self.space.indices));
        self.shortage.lacking.heirs = Some(heirs);
        self.hand_over(id, left?, position)
    }

    /// One look at each frontend, however many ports leave.
    fn heirs(&self, id: ServiceId) -> Heirs {
        let mut heirs = Heirs::none(id);
        let Some(service) = self.services.get(id) else { return heirs };
        let mut leading = BTreeMap::<PortIndex, usize>::new();
        for key in service.frontends.iter() {
            work::done(1);
            match self.owners.frontends.get(key) {
                // It may lead to any of them.
                Some(entry) if entry.uncertain => return heirs,
                entry => {
                    let index = entry.and_then(|entry| entry.realized).map(|it| it.value.port);
                    index.into_iter().for_each(|index| *leading.entry(index).or_default() += 1);
                }
            }
        }
        let own = self.own_by_index(id, service);
        for port in service.ports.iter().skip(service.wanted) {
            let Some(index) = port.index else { continue };
            match (own.get(&index), leading.get(&index)) {
                (Some(Some((position, own))), Some(all)) if own == all => {
                    heirs.led.entry(*position).or_insert(index);
                }
                (None, None) => heirs.idle_mut(port.key.family).push(index),
                _ => {}
            }
        }
        heirs
    }

    /// Where the frontends lead now that the service is to have and has won.
    fn own_by_index(&self, id: ServiceId, service: &Service) -> BTreeMap<PortIndex, Own> {
        let mut own = BTreeMap::<PortIndex, Own>::new();
        for frontend in &service.desired {
            work::done(1);
            let (Some(position), Some(key)) = (frontend.position, frontend.key()) else { continue };
            let entry = self.owners.frontends.get(&key).filter(|entry| entry.winner() == Some(id));
            let Some(realized) = entry.and_then(|entry| entry.realized) else { continue };
            let counted = own.entry(realized.value.port).or_insert(Some((position, 0)));
            *counted = counted.filter(|(of, _)| *of == position).map(|(of, count)| (of, count + 1));
        }
        own
    }

    fn hand_over(&mut self, id: ServiceId, index: PortIndex, position: usize) -> Option<PortIndex> {
        let Self { services, space, .. } = self;
        let (place, nothing) = (space.indices.position(index)?, services.nothing());
        let service = services.get_mut(id)?;
        let leaving = service.ports.get_mut(place).filter(|port| port.index == Some(index))?;
        leaving.index = None;
        let tables = mem::take(&mut leaving.tables);
        let realized = mem::replace(&mut leaving.realized, RealizedPort::unused(&nothing));
        let heir = service.ports.get_mut(position)?;
        // Nothing leads to one that found no place for its lists.
        heir.index.take().into_iter().for_each(|fresh| space.give_back_index(fresh));
        (heir.index, heir.tables, heir.realized) = (Some(index), tables, realized);
        space.indices.put(index, position);
        Some(index)
    }

    /// Whether nothing of the port is in the maps.
    pub(super) fn has_nothing(&self, id: ServiceId, position: usize) -> bool {
        let port = self.services.get(id).and_then(|service| service.ports.get(position));
        port.is_none_or(|port| port.realized.is_wiped())
    }
}

impl Heirs {
    const fn idle_mut(&mut self, family: Family) -> &mut Vec<PortIndex> {
        let [v4, v6] = &mut self.idle;
        match family {
            Family::V4 => v4,
            Family::V6 => v6,
        }
    }

    /// What is left to the port at that place.
    fn left_to(
        &mut self,
        service: &Service,
        position: usize,
        indices: &super::space::Indices,
    ) -> Option<PortIndex> {
        let heir = service.ports.get(position)?;
        let leaving = |index: &PortIndex| service.ports.get(indices.position(*index)?);
        let led = self.led.remove(&position);
        let led = led.filter(|index| leaving(index).is_some_and(|port| is_alike(port, heir)));
        led.or_else(|| self.idle_mut(heir.key.family).pop())
    }
}

/// Under another policy the two words could not be replaced without a moment that fits neither.
fn is_alike(leaving: &Port, heir: &Port) -> bool {
    leaving.key.family == heir.key.family
        && leaving.realized.cluster.word.flags.policy() == heir.flags(Scope::Cluster).policy()
}
