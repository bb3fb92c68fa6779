//! One line on everything, for `systemctl status`.
//!
//! Invariant: services are counted only when one of them has changed, so an idle daemon does nothing for it.

use crate::readings::Readings;
use holdfast_core::list::Row;
use holdfast_core::snapshot::{ServiceState, Snapshot, Verdict};
use holdfast_judgement::views::apiserver::View;

/// The last count, and the state of the tables that was counted.
#[derive(Debug, Default)]
pub(super) struct Summary {
    as_of: Option<(u64, bool)>,
    counts: Counts,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    services: usize,
    backends: usize,
    held: usize,
}

impl Summary {
    /// The line: how many services, backends and services with a held list there are, and the apiserver in use.
    pub(super) fn line(&mut self, readings: &Readings, snapshot: &Snapshot) -> String {
        self.count(snapshot);
        let Counts { services, backends, held } = self.counts;
        let apiserver = readings.apiserver.as_ref().map(|views| in_use(&views.borrow())).unwrap_or_default();
        format!("{services} services, {backends} backends, {held} held{apiserver}")
    }

    fn count(&mut self, snapshot: &Snapshot) {
        let now = Some((snapshot.counters.changes, snapshot.programmed));
        if self.as_of != now {
            self.counts = Counts::of(snapshot);
            self.as_of = now;
        }
    }
}

impl Counts {
    fn of(snapshot: &Snapshot) -> Self {
        let mut counts = Self::default();
        for view in snapshot.services.iter().filter(|view| view.state == ServiceState::Served) {
            let chosen =
                |port: &holdfast_core::snapshot::PortView| port.rows.all().filter(Row::is_chosen).count();
            counts.services += 1;
            counts.backends += view.ports.iter().map(chosen).sum::<usize>();
            counts.held += usize::from(view.frontends.iter().any(|row| row.verdict == Verdict::Held));
        }
        counts
    }
}

/// The apiserver in use; without one, why, as far as that is known.
fn in_use(view: &View) -> String {
    let used = view.endpoints.iter().find(|it| it.active && it.preferred);
    let used = used.or_else(|| view.endpoints.iter().find(|it| it.active));
    let credentials = view.credentials.iter().filter_map(|it| it.problem.as_ref());
    let endpoints = view.endpoints.iter().filter_map(|it| it.last_error.as_ref());
    match (used, credentials.chain(endpoints).next()) {
        (Some(used), _) => format!("; apiserver {}", used.address),
        (None, Some((why, _))) => format!("; no apiserver in use: {why}"),
        (None, None) => "; no apiserver in use".to_owned(),
    }
}
