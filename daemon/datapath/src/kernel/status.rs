//! The datapath's status.

use holdfast_core::keys::Family;
use holdfast_core::maps::Maps;
use holdfast_status::datapath::{KeptFailures, Status};
use libbpf_rs::MapHandle;

use super::KernelMaps;
use super::refused_connects::RefusedConnectReader;
use crate::error::StartError;
use crate::flows::FlowTable;
use crate::links::HookReport;
use crate::map::{Map, find_handle};
use crate::port_counts::PortCounters;
use crate::refusals::RefusalReader;

/// Maps that programs keep writing while readers read them. Growing maps are replaced, so a reader takes these anew for
/// each reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveMaps {
    /// The counts of clients at all ports.
    pub port_counts: PortCounters,
    /// Clients and their backends; `None`: packets are not translated.
    pub flow_table: Option<FlowTable>,
}

impl KernelMaps {
    /// The state of programs and maps.
    pub fn status(&self) -> Status {
        let attached = self.attached.as_ref();
        self.status_with(&attached.map(|it| it.links.inspect_hooks(&it.pins)).unwrap_or_default())
    }

    /// The state of programs and maps, with the hooks as [`Self::repair`] last saw them, if it has.
    pub fn last_status(&self) -> Status {
        let last_look = self.attached.as_ref().and_then(|it| it.last_look.as_ref());
        last_look.map_or_else(|| self.status(), |look| self.status_with(look))
    }

    fn status_with(&self, hooks: &HookReport) -> Status {
        let attached = self.attached.as_ref();
        let control = self.shared.control();
        let (read_at, booted) = FlowTable::read_clocks();
        Status {
            features: self.features,
            cgroup: attached.map(|it| it.links.site().path().to_owned()),
            pins: attached.map(|it| it.pins.root().to_owned()),
            waiting: self.is_predecessor_serving(),
            generation: attached.map_or(0, |it| it.pins.generation()),
            growths: self.growths,
            map_sizes: self.generation.shape,
            limits: self.limits,
            frontends: Family::ALL.map(|family| self.generation.frontends(family).used()),
            members: self.generation.members.used(),
            refusals_lost: control.refusals_lost,
            own_cgroup_exempt: control.exempt_cgroup != 0,
            broken_hooks: hooks.broken.clone(),
            detached_hooks: hooks.bare.clone(),
            repair_failure: attached.and_then(|it| it.failure.clone()),
            behind_hooks: attached.map(|it| it.links.behind_hooks().to_vec()).unwrap_or_default(),
            leftover: attached.and_then(|it| it.pins.leftover().map(ToOwned::to_owned)),
            in_cgroup_namespace: attached.is_some_and(|it| it.links.site().is_namespace_root()),
            served_sockets: self.exempt.served_sockets().clone(),
            absent_cgroups: self.exempt.absent_cgroups(),
            shared_hooks: hooks.shared.clone(),
            hooks_restored: attached.map_or(0, |it| it.put_back),
            grace_failure: self.grace.failure(),
            stale_sockets: self.stale.as_ref().map(super::stale::StaleSweep::progress),
            kept_failures: KeptFailures::default(),
            refused_connects: self
                .refused_connects
                .as_ref()
                .map(RefusedConnectReader::status)
                .unwrap_or_default(),
            now: FlowTable::monotonic_seconds(),
            read_at,
            booted,
            packets: self.packets.status(),
            flows: self.flow_status(),
        }
    }

    /// The maps that readers read by themselves.
    pub fn live_maps(&self) -> LiveMaps {
        let flow_table = self.flows.as_ref().map(|flows| flows.table.clone());
        LiveMaps { port_counts: self.generation.counts(), flow_table }
    }

    /// Opens the ring of refused clients.
    pub fn refusals(&self) -> Result<RefusalReader, StartError> {
        let map = find_handle(self.shared.handles(), Map::Refusals)?;
        Ok(RefusalReader::new(MapHandle::try_from(map).map_err(StartError::from_load)?))
    }
}
