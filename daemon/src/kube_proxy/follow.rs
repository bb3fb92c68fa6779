//! Looks at each snapshot: whether all is well, and which ports Services want.
//!
//! Invariant: this runs on a thread that serves no client of a port, so clients cannot keep it from looking. What has
//! not changed is not looked at again.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use holdfast_core::facts::NodeFacts;
use holdfast_core::snapshot::{ServiceViews, Snapshot};
use holdfast_judgement::views::datapath::DatapathView;
use holdfast_judgement::views::devices::{Class, Decision, Reason};
use tokio::sync::watch;

use super::health::{Health, Well};
use super::limits;
use super::service_ports::{Plan, Planner};
use crate::beat;
use crate::config::{Config, NodePortAddresses};
use crate::readings::Readings;

/// Tells the ports what they are to answer.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) readings: Readings,
    pub(super) config: watch::Receiver<Arc<Config>>,
    pub(super) health: watch::Sender<Health>,
    pub(super) plans: watch::Sender<Plan>,
}

/// Whether packets from outside are translated at each device by which load balancers come, where the configuration
/// asks for that. Another device that cannot be served does not make the node unhealthy.
pub(super) fn translates_packets(view: &DatapathView) -> bool {
    let Some(packets) = view.status().and_then(|status| status.packets.as_ref()) else { return true };
    let is_attached = |it: &Decision| {
        packets.devices.iter().any(|status| status.attached && status.device.index == it.index)
    };
    packets.hooks.is_some() && ways_in(view.devices()).into_iter().all(is_attached)
}

/// The devices by which load balancers come: those that the administrator named, and those that lead to a gateway;
/// where there are none of these, all by which others come.
fn ways_in(devices: &[Decision]) -> Vec<&Decision> {
    let leads = |it: &&Decision| matches!(it.reason, Reason::Named | Reason::Absent | Reason::Gateway);
    let found: Vec<_> = devices.iter().filter(leads).collect();
    if found.is_empty() { devices.iter().filter(|it| it.class == Class::Outer).collect() } else { found }
}

/// What a plan was made of, beside the services.
#[derive(Debug, PartialEq)]
struct Basis {
    node: Arc<NodeFacts>,
    addresses: NodePortAddresses,
}

impl Follower {
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
                    Ok(()) => tokio::time::sleep(limits::LOOK).await,
                    Err(_) => return,
                },
                () = beat::next() => {}
            }
        }
    }

    fn judge(&self, snapshot: &Snapshot) {
        let moves = self.readings.liveness.stalled().is_none();
        let serves =
            self.readings.unready_by(snapshot).is_none() || self.readings.serves_what_it_can(snapshot);
        let is_well = moves && serves && translates_packets(&self.readings.datapath());
        let now = Well { at: SystemTime::now(), seen: Instant::now() };
        self.health.send_modify(|health| {
            health.well = if is_well { Some(now) } else { health.well };
            health.is_leaving = snapshot.node.is_leaving;
        });
    }

    fn plan(&self, snapshot: &Snapshot, planner: &mut Planner, planned: &mut Option<(ServiceViews, Basis)>) {
        let addresses = self.config.borrow().node.node_port_addresses.clone();
        let basis = Basis { node: Arc::clone(&snapshot.node), addresses };
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
