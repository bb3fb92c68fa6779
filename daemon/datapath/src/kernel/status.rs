//! What the datapath says of itself.

use std::path::PathBuf;

use holdfast_core::keys::Family;
use libbpf_rs::MapHandle;

use super::{FlowsSeen, KernelMaps, PacketStatus, Served, Swept};
use crate::counts::Counts;
use crate::error::StartError;
use crate::features::Features;
use crate::flows::FlowTable;
use crate::links::{Beside, Look};
use crate::map::{Map, handle};
use crate::refusals::Refusals;
use crate::shape::Shape;
use holdfast_core::maps::Maps;

/// The state of programs and maps at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What this kernel offers.
    pub features: Features,
    /// Where the programs are attached; `None`: nowhere.
    pub cgroup: Option<PathBuf>,
    /// Where everything is pinned.
    pub pins: Option<PathBuf>,
    /// Whether another daemon's programs still serve, until this one's maps are filled.
    pub waiting: bool,
    /// Which generation of maps is in use; 0 without pins.
    pub generation: u32,
    /// How often the maps have grown since the daemon started.
    pub growths: u32,
    /// How large the maps are.
    pub shape: Shape,
    /// How large they may become.
    pub limits: Shape,
    /// Frontends of IPv4 and IPv6 in use.
    pub frontends: [u32; 2],
    /// How many members are in use, of both families.
    pub members: u32,
    /// Refusals that found no room in the ring buffer.
    pub refusals_lost: u64,
    /// Whether this daemon's cgroup is exempt. If not, only its mark is.
    pub own_cgroup_exempt: bool,
    /// Hooks from which the program was detached, or the pin removed, from outside.
    pub broken_hooks: Vec<&'static str>,
    /// Those of them that have no program of ours, so that clients there meet no service. The others serve until the
    /// daemon ends.
    pub bare_hooks: Vec<&'static str>,
    /// Why programs or pins that were taken away could not be put back when that was tried last.
    pub repair_failure: Option<String>,
    /// Hooks with a program that reads maps which are no longer written; it is put right as soon as that works.
    pub behind_hooks: Vec<&'static str>,
    /// Why maps are still pinned that no program uses.
    pub leftover: Option<String>,
    /// Whether the cgroup is the root of a cgroup namespace and not of the host's hierarchy, though the configuration
    /// names no cgroup.
    pub in_cgroup_namespace: bool,
    /// The sockets that are served.
    pub served: Served,
    /// Subtrees that would be left alone, and are not there.
    pub absent_cgroups: Vec<PathBuf>,
    /// Hooks where others have programs too. They are kept.
    pub shared_hooks: Vec<Beside>,
    /// How often a detached program was put back since the start.
    pub hooks_put_back: u64,
    /// Why grace periods do not end: nothing is reused meanwhile.
    pub grace_failure: Option<String>,
    /// What was done about sockets that have lost their backend; `None`: nothing is to be done.
    pub stale_sockets: Option<Swept>,
    /// How packets are translated; `None`: they are not to be.
    pub packets: Option<PacketStatus>,
    /// What is known of clients and their backends, where packets are translated; `None`: they are not.
    pub flows: Option<FlowsSeen>,
}

/// Maps that programs go on writing while readers look into them. Maps that grow are replaced, so a reader takes these
/// anew for each answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LiveMaps {
    /// The counts of the clients of all ports.
    pub port_counts: Counts,
    /// Clients and their backends; `None`: packets are not translated.
    pub flow_table: Option<FlowTable>,
}

impl KernelMaps {
    /// The state of programs and maps.
    pub fn status(&self) -> Status {
        let attached = self.attached.as_ref();
        self.status_with(&attached.map(|it| it.links.look(&it.pins)).unwrap_or_default())
    }

    /// The state of programs and maps, with the hooks as [`Self::repair`] last saw them, if it has looked at them.
    pub fn seen(&self) -> Status {
        let seen = self.attached.as_ref().and_then(|it| it.seen.as_ref());
        seen.map_or_else(|| self.status(), |look| self.status_with(look))
    }

    fn status_with(&self, hooks: &Look) -> Status {
        let attached = self.attached.as_ref();
        let control = self.shared.control();
        Status {
            features: self.features,
            cgroup: attached.map(|it| it.links.site().path().to_owned()),
            pins: attached.map(|it| it.pins.root().to_owned()),
            waiting: self.is_waiting(),
            generation: attached.map_or(0, |it| it.pins.generation()),
            growths: self.growths,
            shape: self.generation.shape,
            limits: self.limits,
            frontends: Family::ALL.map(|family| self.generation.frontends(family).used()),
            members: self.generation.members.used(),
            refusals_lost: control.refusals_lost,
            own_cgroup_exempt: control.exempt_cgroup != 0,
            broken_hooks: hooks.broken.clone(),
            bare_hooks: hooks.bare.clone(),
            repair_failure: attached.and_then(|it| it.failure.clone()),
            behind_hooks: attached.map(|it| it.links.behind().to_vec()).unwrap_or_default(),
            leftover: attached.and_then(|it| it.pins.leftover().map(ToOwned::to_owned)),
            in_cgroup_namespace: attached.is_some_and(|it| it.links.site().is_of_namespace()),
            served: self.exempt.served().clone(),
            absent_cgroups: self.exempt.absent(),
            shared_hooks: hooks.shared.clone(),
            hooks_put_back: attached.map_or(0, |it| it.put_back),
            grace_failure: self.grace.failure(),
            stale_sockets: self.stale.as_ref().map(super::stale::Stale::swept),
            packets: self.packets.status(),
            flows: self.flows(),
        }
    }

    /// The maps that readers look into by themselves.
    pub fn live_maps(&self) -> LiveMaps {
        let flow_table = self.flows.as_ref().map(|flows| flows.table.clone());
        LiveMaps { port_counts: self.generation.counts(), flow_table }
    }

    /// Where refused clients are reported.
    pub fn refusals(&self) -> Result<Refusals, StartError> {
        let map = handle(self.shared.handles(), Map::Refusals)?;
        Ok(Refusals::new(MapHandle::try_from(map).map_err(StartError::loading)?))
    }
}
