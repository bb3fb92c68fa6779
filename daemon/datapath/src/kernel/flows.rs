//! The flows of these maps, while packets are translated.
//!
//! Invariant: the flows are swept as long as these maps are open, except while a table of another size replaces theirs
//! (`resize`).

use std::time::Instant;

use holdfast_core::op::{MemberKey, Membership};
use holdfast_status::datapath::{FlowSample, FlowStatus, FlowSweepProgress};

use super::KernelMaps;
use crate::abi;
use crate::error::StartError;
use crate::flows::{FlowTable, ReservedPorts, SweepThread};

/// Flows sampled per second: a fraction of a millisecond of the engine's time.
const SAMPLE: u32 = 32;

/// The table, its sweep thread, and the last sample.
#[derive(Debug)]
pub(super) struct FlowTracking {
    pub(super) table: FlowTable,
    pub(super) sweep: SweepThread,
    sample: FlowSample,
}

impl FlowTracking {
    /// Sweeps the table of these reserved ports, and continues the given progress.
    pub(super) fn start(reserved_ports: ReservedPorts, swept: FlowSweepProgress) -> Result<Self, StartError> {
        let table = reserved_ports.table().clone();
        let failed = |error: std::io::Error| StartError::from_load(error.into());
        let sweep = SweepThread::start(table.clone(), reserved_ports, swept).map_err(failed)?;
        Ok(Self { table, sweep, sample: FlowSample::default() })
    }
}

impl KernelMaps {
    /// The status of the flows; `None`: no packets are translated.
    pub fn flow_status(&self) -> Option<FlowStatus> {
        let FlowTracking { sweep, sample, .. } = self.flows.as_ref()?;
        Some(FlowStatus { sweep: sweep.progress(), sample: sample.clone() })
    }

    /// Opens the flow table once packets are translated, samples some flows, and continues a resize. Call it about once
    /// a second.
    pub fn update_flows(&mut self) -> Result<(), StartError> {
        if self.flows.is_none()
            && let Some(handles) = self.packets.handles()
        {
            let table = FlowTable::new(handles)?;
            let reserved_ports = ReservedPorts::start(table, self.packets.snat_ports(), Instant::now());
            self.flows = Some(FlowTracking::start(reserved_ports, FlowSweepProgress::default())?);
        }
        if let Some(adopted) = self.flows.as_mut().and_then(|flows| flows.sweep.take_adopted()) {
            self.record_adopted(adopted);
        }
        self.update_size();
        let Self { flows: Some(flows), generation, .. } = self else { return Ok(()) };
        let serves = |port, backend| {
            let key = MemberKey { port, membership: Membership::Serving, backend };
            generation.members.get(abi::as_bytes(&abi::encode_member(&key))).is_some()
        };
        flows.sample = flows.table.sample_flows(flows.sample.next, SAMPLE, serves);
        Ok(())
    }
}
