//! What this daemon says of itself to a diagnosis.
//!
//! Invariant: no process outside the daemon is asked.

use std::sync::Arc;
use std::time::Instant;

use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::Denial;
use holdfast_judgement::diagnose::material::{Dropped, Own, WatchSeen};
use holdfast_judgement::views::refusals::Denied;

use crate::readings::Readings;
use crate::sources::kubernetes::{State, Watch};

pub(crate) fn own(readings: &Readings, snapshot: &Snapshot) -> Own {
    let now = Instant::now();
    let watch = |it: Watch| WatchSeen {
        what: it.what.as_str().to_owned(),
        state: it.state.as_str().to_owned(),
        silent: it.heard.map(|heard| now.saturating_duration_since(heard)),
        // A watch that is up has got over its last error.
        error: it.last_error.filter(|_| it.state != State::Watching).map(|error| error.text.to_string()),
    };
    Own {
        unready: readings.unready_by(snapshot),
        stalled: readings.liveness.stalled(),
        watches: readings.watches.now().into_iter().map(watch).collect(),
        apiserver: readings.apiserver(),
        datapath: readings.datapath(),
        proxies: Arc::clone(&readings.proxies.borrow()),
        filters: Arc::clone(&readings.filters.borrow()),
        announced: readings.routes.borrow().addresses.clone(),
        dropped: dropped(readings),
    }
}

fn dropped(readings: &Readings) -> Vec<Dropped> {
    let all = readings.refusals.latest().latest;
    let outside =
        all.iter().filter(|it| it.refusal.arrival.is_some() && it.refusal.denial == Denial::Dropped);
    let dropped = |it: &Arc<Denied>| Dropped {
        frontend: it.refusal.frontend,
        cause: it.refusal.cause,
        times: it.count,
        last: it.last,
    };
    outside.map(dropped).collect()
}
