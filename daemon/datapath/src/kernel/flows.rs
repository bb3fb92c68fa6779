//! The flows of these maps, where packets are translated.
//!
//! Invariant: the flows are swept as long as these maps are open, but for the moment in which their table is replaced
//! by one of another size (`resize`).

use std::time::Instant;

use holdfast_core::op::{MemberKey, Membership};
use holdfast_status::datapath::{FlowSample, FlowStatus, FlowSweepProgress};

use super::KernelMaps;
use crate::abi;
use crate::error::StartError;
use crate::flows::{FlowTable, ReservedPorts, SweepThread};

/// Flows that are looked at each second: a fraction of a millisecond of the engine's time.
const SAMPLE: u32 = 32;

/// The table, the thread that sweeps it, and what the last look at a few of the flows has shown.
#[derive(Debug)]
pub(super) struct FlowTracking {
    pub(super) table: FlowTable,
    pub(super) sweep: SweepThread,
    sample: FlowSample,
}

impl FlowTracking {
    /// Sweeps the table in which these ports are kept free, and goes on counting what was swept.
    pub(super) fn start(kept_free: ReservedPorts, swept: FlowSweepProgress) -> Result<Self, StartError> {
        let table = kept_free.table().clone();
        let failed = |error: std::io::Error| StartError::from_load(error.into());
        let sweeping = SweepThread::start(table.clone(), kept_free, swept).map_err(failed)?;
        Ok(Self { table, sweep: sweeping, sample: FlowSample::default() })
    }
}

impl KernelMaps {
    /// What is known of the flows; `None`: no packets are translated.
    pub fn flow_status(&self) -> Option<FlowStatus> {
        let FlowTracking { sweep: sweeping, sample: sampled, .. } = self.flows.as_ref()?;
        Some(FlowStatus { sweep: sweeping.progress(), sample: sampled.clone() })
    }

    /// Opens the table of flows once packets are translated, looks at a few of its flows, and goes on with a change of
    /// its size. To be called about once a second.
    pub fn update_flows(&mut self) -> Result<(), StartError> {
        if self.flows.is_none()
            && let Some(handles) = self.packets.handles()
        {
            let table = FlowTable::new(handles)?;
            let kept_free = ReservedPorts::start(table, self.packets.snat_ports(), Instant::now());
            self.flows = Some(FlowTracking::start(kept_free, FlowSweepProgress::default())?);
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
