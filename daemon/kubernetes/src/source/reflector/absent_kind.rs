//! Handles ServiceImports that the apiserver lacks, as in most clusters, or denies.
//!
//! Invariant: nothing waits for an absent kind, and no known object goes because an apiserver lacks the kind: one that
//! has just started may not have loaded it yet. An absent kind is requested again after one to two minutes, after up to
//! sixteen if no object of it was ever known, in each version by turns.

use std::time::Duration;

use super::{REFUSALS_MIN, Reflector};
use crate::source::backoff::{random_chance, random_part};
use crate::source::event_sink::SinkClosed;
use crate::source::resource::Resource;
use crate::source::view::State;
use crate::source::watch_error::WatchError;

/// Absences in a row until no version of the kind exists: each version was requested.
const VERSIONS: u32 = 2;

/// Refusals in a row until a kind with known objects is requested less often: they take a minute and a half, in which a
/// starting apiserver loads all its kinds.
const KNOWN_REFUSALS_MIN: u32 = 32;

/// The most doublings of the pause if no object was ever known: most clusters never have the kind, and each request of
/// each node is a wasted connection.
const DOUBLINGS_MAX: u32 = 3;

impl Reflector {
    /// Whether the error means that the cluster lacks or denies ServiceImports.
    pub(super) fn is_absence(&self, ending: &WatchError) -> bool {
        self.selection.what == Resource::Imports && ending.is_absence()
    }

    /// Switches to the other version of the kind after a refusal without any object.
    pub(super) fn try_other_version(&self, ending: &WatchError) {
        let is_refused = self.version.is_none() && ending.is_refusal();
        let other = self.selection.current().in_other_version().filter(|_| is_refused);
        if let Some(other) = other {
            self.selection.set(other);
        }
    }

    /// Handles an absence; returns the wait, `paced` for other errors. Deletions during the absence send no event, so a
    /// list follows in any case: at once only after a refused list, because a role may allow lists but no watches.
    pub(super) async fn handle_absence(
        &self,
        (paced, was_list): (Duration, bool),
        (refusals, absences): (u32, u32),
    ) -> Result<Duration, SinkClosed> {
        if absences < VERSIONS {
            // No herd effect: the other version is a new request.
            return Ok(if was_list { Duration::ZERO } else { paced });
        }
        self.sink.give_up_sync().await?;
        let is_known = self.cache.lock().len() > 0;
        let refusals_min = if is_known { KNOWN_REFUSALS_MIN } else { REFUSALS_MIN };
        let Some(beyond) = refusals.checked_sub(refusals_min) else { return Ok(paced) };
        let doublings = if is_known { 0 } else { beyond.min(DOUBLINGS_MAX) };
        let rest = self.timing.absent_retry.saturating_mul(1 << doublings);
        Ok(paced.max(rest + random_part(rest, random_chance())))
    }

    /// Shows that the kind is absent, and logs it unless `is_told`.
    pub(super) fn log_absent(&self, ending: &WatchError, is_told: bool) {
        self.view.send_modify(|view| {
            view.set_state(State::Absent);
            view.record_error(ending);
        });
        if !is_told {
            tracing::info!(
                reason = %ending,
                "no ServiceImport is served: the cluster has none, or the daemon's role denies them; they are requested \
                 again from time to time"
            );
        }
    }
}
