//! A list that is held, with its deadline and what probes found.
//!
//! Invariant: times are those of the wall clock as it stood when the file was written, so that earlier steps of that
//! clock make no difference. The clock of the process cannot be used: after a restart it is another one.

use std::sync::Arc;

use holdfast_core::facts::SliceFacts;
use holdfast_core::hold::{Bound, HeldBackend, Hold};
use holdfast_core::keys::Source;
use holdfast_core::snapshot::Reason;
use holdfast_core::time::{ClockReading, Uptime};
use serde::{Deserialize, Serialize};

use super::with_source;

#[derive(Serialize, Deserialize)]
pub(super) struct HoldForm {
    reason: Reason,
    since: i64,
    asked: Option<i64>,
    bound: Bound,
    slices: Arc<[Arc<SliceFacts>]>,
    backends: Vec<HeldBackend>,
}

impl HoldForm {
    pub(super) fn new(hold: &Hold, clock: ClockReading) -> Self {
        Self {
            reason: hold.reason,
            since: clock.wall_at(hold.begun).0,
            asked: hold.first_probe.map(|at| clock.wall_at(at).0),
            bound: hold.bound,
            slices: Arc::clone(&hold.slices),
            backends: hold.backends.clone(),
        }
    }

    /// The hold on a process clock that has the seconds of the wall clock, as the one of [`ClockReading::default`] has.
    pub(super) fn into_hold(self, source: Source) -> Option<Hold> {
        let Self { reason, since, asked, bound, slices, backends } = self;
        let begun = Uptime(since);
        let asked = asked.map(Uptime);
        Some(Hold {
            reason,
            begun,
            first_probe: asked,
            bound_restarted: None,
            bound_reached: None,
            bound,
            slices: with_source(slices, source)?,
            backends,
        })
    }
}
