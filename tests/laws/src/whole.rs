//! A step of the engine for callers without events between two pieces.

use std::sync::Arc;

use holdfast_core::change::Change;
use holdfast_core::engine::Engine;
use holdfast_core::maps::Maps;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;

/// Steps until nothing is left to do now.
pub fn step_whole<M: Maps>(
    engine: &mut Engine<M>,
    now: ClockReading,
    changed: &mut dyn FnMut(Change),
) -> Arc<Snapshot> {
    loop {
        let snapshot = engine.step(now, changed);
        if engine.next_due(now.mono) != Some(now.mono) {
            return snapshot;
        }
    }
}
