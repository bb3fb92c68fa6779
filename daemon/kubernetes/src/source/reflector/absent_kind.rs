//! ServiceImports, which most clusters do not have: what follows when the apiserver says that there is no such kind, or
//! does not let it be read.
//!
//! Invariant: nothing waits for a kind that is absent, and nothing that is known goes because an apiserver does not
//! have the kind: one that has just started may not have loaded it yet. A kind that is absent is asked for again after
//! a minute or two, and where nothing of it was ever known after up to sixteen, by turns in each version that it may
//! have.

use std::time::Duration;

use super::{REFUSALS_MIN, Reflector};
use crate::source::backoff::{random_chance, random_part};
use crate::source::event_sink::SinkClosed;
use crate::source::resource::Resource;
use crate::source::view::State;
use crate::source::watch_error::WatchError;

/// How many such answers say that no version of the kind is there: each version was asked for.
const VERSIONS: u32 = 2;

/// How many refusals in a row it takes until a kind is asked for less often of which objects are known: they come in a
/// minute and a half, within which an apiserver that starts has loaded all of its kinds.
const KNOWN_REFUSALS_MIN: u32 = 32;

/// How often the rest between two requests doubles at most where nothing was ever known of the kind: most clusters
/// never have it, and each request of each of their nodes is a connection for nothing.
const DOUBLINGS_MAX: u32 = 3;

impl Reflector {
    /// Whether this says that the cluster does not have ServiceImports, or does not let them be read.
    pub(super) fn is_absence(&self, ending: &WatchError) -> bool {
        self.selection.what == Resource::Imports && ending.is_absence()
    }

    /// Asks for another version of the kind from now on: this one is refused, and nothing has come in it.
    pub(super) fn try_other_version(&self, ending: &WatchError) {
        let is_refused = self.version.is_none() && ending.is_refusal();
        let other = self.selection.current().in_other_version().filter(|_| is_refused);
        if let Some(other) = other {
            self.selection.set(other);
        }
    }

    /// Takes an absence in; returns how long it is until the next request, where that is `paced` for other endings.
    /// What went while the kind was not there went without an event, so a list follows in any case: at once only where
    /// one was refused, because a role may let lists be read and no watch.
    pub(super) async fn handle_absence(
        &self,
        (paced, was_list): (Duration, bool),
        (refusals, absences): (u32, u32),
    ) -> Result<Duration, SinkClosed> {
        if absences < VERSIONS {
            // No crowd asks again because of this: the other version is another question.
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

    /// Shows that the kind is absent, and logs it unless that `is_told`.
    pub(super) fn log_absent(&self, ending: &WatchError, is_told: bool) {
        self.view.send_modify(|view| {
            view.set_state(State::Absent);
            view.record_error(ending);
        });
        if !is_told {
            tracing::info!(
                reason = %ending,
                "no ServiceImport is served: the cluster has none, or the role of this daemon does not let it read \
                 them; they are asked for again from time to time"
            );
        }
    }
}
