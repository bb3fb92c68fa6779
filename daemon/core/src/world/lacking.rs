//! What the plan of a service found no room for.
//!
//! Invariant: no frontend is led to a port of which nothing is there, and nothing is emptied that clients still reach,
//! until a later plan of the service finds room. All else of the service is carried out: what one port lacks keeps no
//! other port from following its backends, and nothing from leaving.

use alloc::collections::{BTreeMap, BTreeSet};

use super::World;
use super::plan::PlanError;
use crate::keys::FrontendKey;
use crate::list::Scope;
use crate::op::{PortIndex, ServiceId};
use crate::resolve::DesiredFrontend;
use crate::service::Service;
use crate::work;

/// The services that lack something, each since its last plan began.
#[derive(Debug, Default)]
pub(super) struct Lacking {
    services: BTreeMap<ServiceId, Lacks>,
}

#[derive(Debug)]
struct Lacks {
    /// Which ports of the service have no index, or lists that are not whole, by their places.
    ports: BTreeSet<usize>,
    /// Why something was left out first.
    why: PlanError,
}

impl Lacking {
    /// A plan of the service begins.
    pub(super) fn begin(&mut self, id: ServiceId) {
        self.services.remove(&id);
    }

    /// Notes what is left out: a port, or frontends.
    pub(super) fn note(&mut self, id: ServiceId, port: Option<usize>, why: PlanError) {
        let lacks = self.services.entry(id).or_insert_with(|| Lacks { ports: BTreeSet::new(), why });
        lacks.ports.extend(port);
    }

    /// Why the plan of a service is not whole; `None`: it is.
    pub(super) fn why(&self, id: ServiceId) -> Option<&PlanError> {
        self.services.get(&id).map(|lacks| &lacks.why)
    }

    /// Whether the plan left the port at this place out.
    pub(super) fn has(&self, id: ServiceId, port: usize) -> bool {
        self.services.get(&id).is_some_and(|lacks| lacks.ports.contains(&port))
    }
}

impl World {
    /// Gives a port for which there is no index the one of a port that leaves, where that has led to nothing but what
    /// this one is to lead to: as where a port has another name. Its lists are replaced as those of any port that
    /// changes.
    pub(super) fn inherit(&mut self, id: ServiceId, position: usize) -> Option<PortIndex> {
        let service = self.services.get(id)?;
        let heir = service.ports.get(position)?;
        let policy = heir.flags(Scope::Cluster).policy();
        // Under another policy the two words could not be replaced without a moment that fits neither.
        let is_alike = |place: &usize| {
            service.ports.get(*place).is_some_and(|port| {
                port.key.family == heir.key.family && port.realized.cluster.word.flags.policy() == policy
            })
        };
        let mut leaving = (service.wanted..service.ports.len()).filter(is_alike);
        let place = leaving.find(|place| self.is_heir(service, (id, position), *place))?;
        let Self { services, space, .. } = self;
        let service = services.get_mut(id)?;
        let left = service.ports.remove(place);
        let port = service.ports.get_mut(position)?;
        (port.index, port.tables, port.realized) = (left.index, left.tables, left.realized);
        space.indices.put_all(&service.ports);
        left.index
    }

    /// Whether each frontend that leads to a port that leaves is one of the port at `position`, or of no service.
    fn is_heir(&self, service: &Service, (id, position): (ServiceId, usize), place: usize) -> bool {
        let Some(index) = service.ports.get(place).and_then(|port| port.index) else { return false };
        let own: BTreeSet<FrontendKey> =
            service.desired_of(position).filter_map(DesiredFrontend::key).collect();
        let leads_there = |key: &&FrontendKey| {
            work::done(1);
            let entry = self.frontends.get(key);
            entry.is_some_and(|it| it.uncertain || it.realized.is_some_and(|it| it.value.port == index))
        };
        service.frontends.iter().filter(leads_there).all(|key| {
            let winner = self.frontends.winner(key);
            winner.is_none() || (winner == Some(id) && own.contains(key))
        })
    }
}
