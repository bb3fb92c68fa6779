//! The programs' counts per port: connects, and clients that were not served.
//!
//! Invariant: a count only grows until its port is reassigned or its facts change; then all counts of the port start at
//! zero. A few may be missing: of simultaneous connects, and while the maps grow.

use std::mem::offset_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use holdfast_core::op::PortIndex;

use crate::abi::{port_words, types};
use crate::mapped_array::MappedArray;

/// The clients of one port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounts {
    /// Clients that got a backend: by connect(), or by the first datagram of a flow.
    pub connects: u64,
    /// Clients refused with ECONNREFUSED, because no backend serves.
    pub refused: u64,
    /// Clients that got no reply.
    pub dropped: u64,
}

/// The live counts of all ports.
#[derive(Clone, Debug, Default)]
pub struct PortCounters(Option<Arc<MappedArray>>);

struct PortCells<'a> {
    connects: &'a [AtomicU64],
    refused: &'a AtomicU64,
    dropped: &'a AtomicU64,
}

impl PortCounters {
    pub(crate) fn for_ports(ports: &Arc<MappedArray>) -> Self {
        Self(Some(Arc::clone(ports)))
    }

    /// Reads the counts of a port.
    pub fn read_port(&self, index: PortIndex) -> PortCounts {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        self.port_cells(index).map_or_else(PortCounts::default, |cells| PortCounts {
            connects: cells.connects.iter().map(read).fold(0, u64::wrapping_add),
            refused: read(cells.refused),
            dropped: read(cells.dropped),
        })
    }

    /// Resets the counts of an index for another port, or for new facts.
    pub(crate) fn reset_port(&self, index: PortIndex) {
        if let Some(PortCells { connects, refused, dropped }) = self.port_cells(index) {
            connects.iter().chain([refused, dropped]).for_each(|cell| cell.store(0, Ordering::Relaxed));
        }
    }

    fn port_cells(&self, index: PortIndex) -> Option<PortCells<'_>> {
        let words = port_words(self.0.as_ref()?, index)?;
        Some(PortCells {
            connects: words.get(offset_of!(types::port, connects) / 8..)?,
            refused: words.get(offset_of!(types::port, refused) / 8)?,
            dropped: words.get(offset_of!(types::port, dropped) / 8)?,
        })
    }
}

/// Counts of the same map are equal.
impl PartialEq for PortCounters {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl Eq for PortCounters {}
