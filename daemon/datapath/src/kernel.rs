//! The kernel's maps behind [`Maps`]: executes the engine's ops on the maps that programs read.
//!
//! Invariant: an op takes effect completely or not at all for programs; an endpoint change needs no system call. Core
//! decides which ops come in which order.

mod batch;
mod cluster_ips;
mod dump;
mod exempt;
mod flows;
mod grow;
mod growth_failures;
mod packet_load_thread;
mod packets;
mod prebuild;
mod refused_connects;
mod repair;
mod resize;
mod self_test;
mod sources;
mod stale;
mod start;
mod status;

use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::list::SlotState;
use holdfast_core::maps::{Capacity, MapError, Maps};
use holdfast_core::op::{
    Action, Dump, DumpPort, FrontendValue, Grace, MapGrowth, MemberKey, Op, PortFacts, PortIndex, SlotRange,
    Word,
};
use holdfast_status::datapath::{Features, MapSizes};
use libbpf_rs::ErrorKind;

use crate::abi::{self, FrontendBytes, types};
use crate::cgroup::Cgroup;
use crate::error::StartError;
use crate::generation::Generation;
use crate::grace::GracePeriods;
use crate::links::{HookReport, Links};
use crate::pins::Pins;
use crate::shared_maps::SharedMaps;

pub use repair::{RepairError, RepairReport};
pub use self_test::SelfTestError;
pub use stale::{Namespaces, StaleSockets};
pub use start::{StartOptions, TakeOverError};
pub use status::LiveMaps;

/// The kernel's maps, with all that reads and writes them.
#[derive(Debug)]
pub struct KernelMaps {
    generation: Generation,
    shared: SharedMaps,
    grace: GracePeriods,
    features: Features,
    capacity: Capacity,
    limits: MapSizes,
    // The highest port index and slot written, plus one.
    high_water: MapSizes,
    growths: u32,
    prebuild: prebuild::Prebuild,
    growth_failures: growth_failures::GrowthFailures,
    attached: Option<Attachment>,
    stale: Option<stale::StaleSweep>,
    // `None`: the maps have no programs.
    refused_connects: Option<refused_connects::RefusedConnectReader>,
    exempt: exempt::ExemptSubtrees,
    packets: packets::PacketTranslation,
    // `Some` while packets are translated.
    flows: Option<flows::FlowTracking>,
    sources: sources::SourceMaps,
    cluster_ips: cluster_ips::ClusterIps,
    // The rest of the dump in progress.
    pending_parts: Vec<dump::DumpPart>,
}

/// The pins and links, which outlive the daemon, and their state.
#[derive(Debug)]
struct Attachment {
    pins: Pins,
    links: Links<Cgroup>,
    // The control values of this daemon, and those of the former one.
    control: types::control,
    former_control: types::control,
    last_look: Option<HookReport>,
    // How many detached programs were attached again.
    put_back: u64,
    failure: Option<String>,
}

/// The setting that limits frontends and ports.
const FRONTENDS_SETTING: &str = "datapath.limits.frontends";
/// The setting that limits slots and members.
const BACKENDS_SETTING: &str = "datapath.limits.backends";

impl KernelMaps {
    fn insert_frontend(&mut self, key: &FrontendKey, value: FrontendValue) -> Result<(), MapError> {
        let family = Family::from_address(key.address);
        self.ensure_port_capacity("insert frontend", value.port)?;
        self.ensure_frontend_capacity(family)?;
        let bytes = FrontendBytes::new(key);
        let put = self.generation.frontends_mut(family).put(bytes.key(), &bytes.value_bytes(value));
        put.map_err(|error| map_error("insert frontend", FRONTENDS_SETTING, &error))?;
        self.note_inserted(key, value);
        Ok(())
    }

    fn note_inserted(&mut self, key: &FrontendKey, value: FrontendValue) {
        self.shared.note_inserted(key);
        self.packets.note_inserted(key);
        self.cluster_ips.note_inserted(key, value);
    }

    fn remove_frontend(&mut self, key: &FrontendKey) -> Result<(), MapError> {
        self.cluster_ips.note_removed([key]);
        let bytes = FrontendBytes::new(key);
        let removed = self.generation.frontends_mut(Family::from_address(key.address)).remove(bytes.key());
        removed.map_err(|error| map_error("remove frontend", FRONTENDS_SETTING, &error))?;
        self.shared.note_removed(key);
        Ok(())
    }

    fn insert_member(&mut self, key: &MemberKey, state: SlotState) -> Result<(), MapError> {
        self.ensure_member_capacity()?;
        let put = self
            .generation
            .members
            .put(abi::as_bytes(&abi::encode_member(key)), &abi::state_number(state).to_ne_bytes());
        put.map_err(|error| map_error("insert member", BACKENDS_SETTING, &error))
    }

    fn remove_member(&mut self, key: &MemberKey) -> Result<(), MapError> {
        let removed = self.generation.members.remove(abi::as_bytes(&abi::encode_member(key)));
        removed.map(drop).map_err(|error| map_error("remove member", BACKENDS_SETTING, &error))
    }

    fn insert_node_address(&mut self, address: IpAddr) -> Result<(), MapError> {
        let key = abi::encode_node_address(address);
        let put = self.shared.node_addresses_mut(address).put(&key, &1_u32.to_ne_bytes());
        put.map_err(|error| map_error("insert node address", "node.node_port_addresses", &error))
    }

    fn remove_node_address(&mut self, address: IpAddr) -> Result<(), MapError> {
        let key = abi::encode_node_address(address);
        let removed = self.shared.node_addresses_mut(address).remove(&key);
        removed
            .map(drop)
            .map_err(|error| map_error("remove node address", "node.node_port_addresses", &error))
    }

    fn write_facts(&mut self, index: PortIndex, facts: PortFacts) -> Result<(), MapError> {
        if facts != PortFacts::default() {
            self.ensure_port_capacity("write facts", index)?;
        }
        self.generation.write_facts(index, facts);
        Ok(())
    }

    fn free_range(&mut self, range: SlotRange) {
        self.generation.fill_range(range, std::iter::empty());
    }
}

fn map_error(op: &'static str, setting: &'static str, error: &libbpf_rs::Error) -> MapError {
    match error.kind() {
        ErrorKind::TooBig => MapError::Full { op, setting },
        _ => MapError::Refused { op, cause: format!("{error:#}") },
    }
}

impl Maps for KernelMaps {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        if let Some(stale) = &mut self.stale {
            stale.record_action(action);
        }
        match action {
            Action::WriteRange(range, scope, rows) => {
                self.ensure_range_capacity(*range)?;
                self.generation.fill_range(*range, rows.slots_in_range(*scope, range.count));
                Ok(())
            }
            Action::FreeRange(range) => {
                self.free_range(*range);
                Ok(())
            }
            Action::PublishWord(index, scope, word) => {
                if *word != Word::EMPTY {
                    self.ensure_port_capacity("publish word", *index)?;
                }
                self.generation.publish_word(*index, *scope, *word);
                Ok(())
            }
            Action::WriteFacts(index, facts) => self.write_facts(*index, *facts),
            Action::InsertFrontend(key, value) => self.insert_frontend(key, *value),
            Action::RemoveFrontend(key) => self.remove_frontend(key),
            Action::InsertMember(key, state) => self.insert_member(key, *state),
            Action::RemoveMember(key) => self.remove_member(key),
            Action::InsertSource(key, share) => self.sources.insert(key, *share),
            Action::RemoveSource(key) => self.sources.remove(key),
            Action::InsertNodeAddress(address) => self.insert_node_address(*address),
            Action::RemoveNodeAddress(address) => self.remove_node_address(*address),
        }
    }

    fn execute_batch(&mut self, ops: &[Op]) -> Result<usize, MapError> {
        match self.insert_batch(ops).max(self.remove_batch(ops)) {
            0 => ops.first().map_or(Ok(0), |op| self.execute(&op.action).map(|()| 1)),
            accepted => Ok(accepted),
        }
    }

    fn prepare(&mut self, coming: &MapGrowth) {
        self.prebuild_capacity(coming);
    }

    fn reserve_capacity(&mut self, coming: &MapGrowth) -> Result<(), MapError> {
        self.ensure_capacity(coming)
    }

    fn begin_grace(&mut self) -> Grace {
        self.grace.begin()
    }

    fn is_grace_over(&self, grace: Grace) -> bool {
        self.grace.is_over(grace)
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        self.dump_all()
    }

    fn read_piece(&mut self, anew: bool) -> Result<Option<Dump>, MapError> {
        self.dump_piece(anew)
    }

    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        Ok(self.frontend_value(key))
    }

    fn read_port(&mut self, index: PortIndex, family: Family) -> Result<Option<DumpPort>, MapError> {
        Ok(Some(self.dump_port(index, family)))
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// A former daemon's programs and maps serve clients until [`Self::take_over`].
    fn is_predecessor_serving(&self) -> bool {
        self.attached.as_ref().is_some_and(|attached| !attached.links.are_attached())
    }
}

fn growth_error(op: &'static str) -> impl FnOnce(Arc<StartError>) -> MapError {
    move |error| MapError::Refused { op, cause: format!("the maps cannot grow: {error}") }
}

#[cfg(test)]
#[path = "../tests/kernel/bed.rs"]
pub(crate) mod bed;

#[cfg(test)]
impl KernelMaps {
    /// All maps, for programs that a test runs by hand.
    pub(crate) fn handles_for_tests(
        &self,
    ) -> impl Iterator<Item = (&crate::map::Map, &libbpf_rs::MapHandle)> {
        self.shared.handles().iter().chain(self.generation.handles())
    }
}

#[cfg(test)]
mod tests;
