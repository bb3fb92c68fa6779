//! Judges each snapshot's health, and plans the ports that Services want.
//!
//! Invariant: this runs on a thread that serves no client of a port, so clients cannot delay it. It skips unchanged
//! services.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use holdfast_core::facts::NodeFacts;
use holdfast_core::snapshot::{ServiceViews, Snapshot};
use tokio::sync::watch;

use super::health::{Health, HealthyTime};
use super::limits;
use super::service_ports::{Plan, Planner};
use crate::readings::{Readings, translates_packets};
use holdfast_config::{Config, NodePortAddresses};
use holdfast_host::ticker;

#[derive(Debug)]
pub(super) struct HealthPublisher {
    pub(super) readings: Readings,
    pub(super) config: watch::Receiver<Arc<Config>>,
    pub(super) health: watch::Sender<Health>,
    pub(super) plans: watch::Sender<Plan>,
}

#[derive(Debug, PartialEq)]
struct PlanInput {
    node: Arc<NodeFacts>,
    addresses: NodePortAddresses,
}

impl HealthPublisher {
    /// Judges and plans until the publisher of snapshots is gone.
    pub(super) async fn run(mut self) {
        let mut planner = Planner::default();
        let mut planned = None;
        loop {
            let snapshot = Arc::clone(&self.readings.snapshots.borrow_and_update());
            self.judge(&snapshot);
            self.plan(&snapshot, &mut planner, &mut planned);
            tokio::select! {
                changed = self.readings.snapshots.changed() => match changed {
                    Ok(()) => tokio::time::sleep(limits::CHECK_GAP).await,
                    Err(_) => return,
                },
                () = ticker::next_tick() => {}
            }
        }
    }

    fn judge(&self, snapshot: &Snapshot) {
        let moves = self.readings.liveness.stalled_for().is_none();
        let serves =
            self.readings.unready_reason(snapshot).is_none() || self.readings.serves_all_readable(snapshot);
        let is_well = moves && serves && translates_packets(&self.readings.datapath());
        let now = HealthyTime { at: SystemTime::now(), instant: Instant::now() };
        self.health.send_modify(|health| {
            health.last_healthy = if is_well { Some(now) } else { health.last_healthy };
            health.is_leaving = snapshot.node.is_leaving;
        });
    }

    fn plan(
        &self,
        snapshot: &Snapshot,
        planner: &mut Planner,
        planned: &mut Option<(ServiceViews, PlanInput)>,
    ) {
        let addresses = self.config.borrow().node.node_port_addresses.clone();
        let basis = PlanInput { node: Arc::clone(&snapshot.node), addresses };
        if planned.as_ref().is_some_and(|(services, of)| services.is_same(&snapshot.services) && *of == basis)
        {
            return;
        }
        let plan = planner.plan(snapshot, &basis.addresses);
        self.plans.send_if_modified(|before| {
            let changed = *before != plan;
            if changed {
                *before = plan;
            }
            changed
        });
        *planned = Some((snapshot.services.clone(), basis));
    }
}
