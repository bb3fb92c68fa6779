//! The services without capacity in the maps, and their retries when capacity comes free.
//!
//! Invariant: each freed unit of capacity allows one retry. Served services that want a Maglev table wait in a queue of
//! their own, so that they take no turn from the others; only those with a table that would fit are retried.

use alloc::vec::Vec;

use super::placement::PlacementError;
use super::plan_shortfall::{PlanError, PlanShortfalls};
use super::retry_queue::{RetryQueue, retry_turn};
use super::services::Services;
use super::space::Space;
use crate::limits;
use crate::op::ServiceId;
use crate::service::Service;
use crate::tables::Tables;
use crate::work;

#[derive(Debug, Default)]
pub(super) struct Shortage {
    pub(super) shortfalls: PlanShortfalls,
    /// The services without capacity in the maps.
    pub(super) without_room: RetryQueue,
    /// The services with a list that waits for its Maglev table.
    pub(super) tableless: RetryQueue,
}

impl Shortage {
    pub(super) fn record_plan<T>(
        &mut self,
        id: ServiceId,
        planned: &Result<T, PlanError>,
        tables: &Tables,
        services: &mut Services,
    ) {
        match planned {
            Err(
                PlanError::Place(
                    PlacementError::Slots(_) | PlacementError::Quota { .. } | PlacementError::Members(_),
                )
                | PlanError::Index(_)
                | PlanError::Frontends(_)
                | PlanError::Quota { .. }
                | PlanError::ExternalIps(_),
            ) => {
                let Some(known) = tables.get(id) else { return services.count_impossible() };
                self.without_room.put(retry_turn(known, id));
            }
            Ok(_) | Err(PlanError::Place(PlacementError::List(_))) => self.without_room.remove(id),
        }
        // The last piece of a service decides for all of its ports.
        if !services.is_unfinished(id) {
            self.record_tables(id, tables, services);
        }
    }

    fn record_tables(&mut self, id: ServiceId, tables: &Tables, services: &Services) {
        let lacks =
            |service: &Service| service.ports.iter().any(|port| port.missing_tables().next().is_some());
        match tables.get(id).filter(|_| services.get(id).is_some_and(lacks)) {
            Some(known) => self.tableless.put(retry_turn(known, id)),
            None => self.tableless.remove(id),
        }
    }

    /// Retries one service, in turn, per freed unit of capacity.
    pub(super) fn retry_waiting(&mut self, tables: &Tables, services: &mut Services, space: &Space) {
        let room = self.without_room.take_freed().min(limits::RETRIED_PER_BATCH);
        let retried: Vec<ServiceId> = (0..room).map_while(|_| self.without_room.next()).collect();
        retried.into_iter().for_each(|id| services.retry(id, tables));
        self.retry_tables(tables, services, space);
    }

    fn retry_tables(&mut self, tables: &Tables, services: &mut Services, space: &Space) {
        if self.tableless.take_freed() == 0 {
            return;
        }
        let waiting: Vec<_> = (0..limits::RETRIED_PER_BATCH).map_while(|_| self.tableless.next()).collect();
        for id in waiting {
            let quota = tables.quota(id);
            let ports = services.get(id).map_or(&[][..], |service| &service.ports);
            if ports.iter().inspect(|_| work::count_work(1)).any(|port| space.has_table_capacity(port, quota))
            {
                services.retry(id, tables);
            }
            self.record_tables(id, tables, services);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Seed;
    use crate::maps::Capacity;
    use crate::world::tests::{retried, tables_with};

    #[test]
    fn each_freed_unit_of_capacity_retries_one_service() {
        let (tables, mut services) = tables_with(&["a", "b", "c"]);
        let space = Space::new(Seed(0), Capacity::default());
        let mut shortage = Shortage::default();
        shortage.without_room.record_freed(9);
        for id in (0..3).map(ServiceId) {
            shortage.record_plan::<()>(id, &Err(PlanError::Frontends(1)), &tables, &mut services);
        }
        shortage.retry_waiting(&tables, &mut services, &space);
        assert_eq!(retried(&services), [], "capacity freed before any shortage retries nothing");
        shortage.without_room.record_freed(2);
        shortage.retry_waiting(&tables, &mut services, &space);
        assert_eq!(retried(&services), [ServiceId(0), ServiceId(1)]);
    }
}
