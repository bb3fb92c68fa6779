//! A held list, with its deadline and the results of its probes.
//!
//! Invariant: times are on the wall clock as of the write, so earlier steps of that clock do not matter. The
//! process's clock is useless: it differs after a restart.

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

    /// The hold on a process clock that equals the wall clock, as that of [`ClockReading::default`] does.
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
