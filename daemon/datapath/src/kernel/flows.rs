//! The flows of these maps, where packets are translated.
//!
//! Invariant: the flows are swept as long as these maps are open, but for the moment in which their table is replaced
//! by one of another size (`resize`).

use std::time::Instant;

use holdfast_core::op::{MemberKey, Membership};
use holdfast_status::datapath::{FlowsSeen, FlowsSwept, Sampled};

use super::KernelMaps;
use crate::abi;
use crate::error::StartError;
use crate::flows::{FlowTable, KeptFree, Sweeping};

/// Flows that are looked at each second: a fraction of a millisecond of the engine's time.
const SAMPLE: u32 = 32;

/// The table, the thread that sweeps it, and what the last look at a few of the flows has shown.
#[derive(Debug)]
pub(super) struct Flows {
    pub(super) table: FlowTable,
    pub(super) sweeping: Sweeping,
    sampled: Sampled,
}

impl Flows {
    /// Sweeps the table in which these ports are kept free, and goes on counting what was swept.
    pub(super) fn start(kept_free: KeptFree, swept: FlowsSwept) -> Result<Self, StartError> {
        let table = kept_free.table().clone();
        let failed = |error: std::io::Error| StartError::loading(error.into());
        let sweeping = Sweeping::start(table.clone(), kept_free, swept).map_err(failed)?;
        Ok(Self { table, sweeping, sampled: Sampled::default() })
    }
}

impl KernelMaps {
    /// What is known of the flows; `None`: no packets are translated.
    pub fn flows(&self) -> Option<FlowsSeen> {
        let Flows { sweeping, sampled, .. } = self.flows.as_ref()?;
        Some(FlowsSeen { swept: sweeping.swept(), sampled: sampled.clone() })
    }

    /// Opens the table of flows once packets are translated, looks at a few of its flows, and goes on with a change of
    /// its size. To be called about once a second.
    pub fn follow_flows(&mut self) -> Result<(), StartError> {
        if self.flows.is_none()
            && let Some(handles) = self.packets.handles()
        {
            let table = FlowTable::new(handles)?;
            let kept_free = KeptFree::start(table, self.packets.ports(), Instant::now());
            self.flows = Some(Flows::start(kept_free, FlowsSwept::default())?);
        }
        if let Some(adopted) = self.flows.as_mut().and_then(|flows| flows.sweeping.adopted()) {
            self.note_adopted(adopted);
        }
        self.follow_size();
        let Self { flows: Some(flows), generation, .. } = self else { return Ok(()) };
        let serves = |port, backend| {
            let key = MemberKey { port, membership: Membership::Serving, backend };
            generation.members.get(abi::bytes(&abi::member_bytes(&key))).is_some()
        };
        flows.sampled = flows.table.sample(flows.sampled.next, SAMPLE, serves);
        Ok(())
    }
}
