//! Held lists, and results of probes and checks.
//!
//! Invariant: as for all metrics, see the parent; and a scrape reads held services only. A hold that ended without a
//! list shows in `holdfast_frontends_not_serving`, as the reason of its frontends.

use holdfast_core::hold::{Bound, Hold, Judgement};
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::Uptime;

use super::count_value;
use holdfast_agent::exposition::Exposition;
use holdfast_agent::probes::ProbeCounts;
use holdfast_standalone::blocks::CheckStats;

#[derive(Debug, Default)]
struct HoldCounts {
    reasons: [u64; Judgement::REASONS.len()],
    oldest: Option<Uptime>,
    is_mass_loss: bool,
}

impl HoldCounts {
    fn from_snapshot(snapshot: &Snapshot) -> Self {
        let mut counts = Self::default();
        let views = snapshot.held.iter().filter_map(|id| snapshot.services.get(*id));
        let holds = views.flat_map(|view| view.ports.iter().filter_map(|port| port.hold.as_deref()));
        holds.for_each(|hold| counts.add_hold(hold));
        counts
    }

    fn add_hold(&mut self, hold: &Hold) {
        count_value(&mut self.reasons, &Judgement::REASONS, &hold.reason);
        self.oldest = Some(self.oldest.map_or(hold.begun, |oldest| oldest.min(hold.begun)));
        self.is_mass_loss |= hold.bound == Bound::MassLoss;
    }
}

/// Writes which lists are held, for which reasons and how long.
pub(super) fn write(out: &mut Exposition, snapshot: &Snapshot, probes: &ProbeCounts) {
    let counts = HoldCounts::from_snapshot(snapshot);
    let help = "Services with a held list.";
    out.gauge("holdfast_services_held", help, snapshot.held.len());
    let of_reasons = Judgement::REASONS.into_iter().zip(counts.reasons);
    out.labelled_metric(
        "holdfast_holds",
        "gauge",
        "Ports whose list is held, by reason.",
        "reason",
        of_reasons,
    );
    let age = counts.oldest.map_or(0, |begun| snapshot.clock().uptime().since(begun).max(0));
    out.gauge(
        "holdfast_hold_oldest_seconds",
        "For how long the oldest hold has lasted; 0: there is none.",
        age,
    );
    let help = "Whether lists are held because many were lost at once.";
    out.gauge("holdfast_mass_loss", help, u8::from(counts.is_mass_loss));
    let help = "Probes of held backends, by answer.";
    out.labelled_metric("holdfast_probes_total", "counter", help, "answer", probes.totals());
}

/// Writes the results of checks of the configuration's backends.
pub(super) fn write_checks(out: &mut Exposition, checks: &CheckStats) {
    let help = "Health checks of the configuration's backends, by result.";
    out.labelled_metric("holdfast_checks_total", "counter", help, "result", checks.totals());
    let help = "Checked backends of the configuration, by state.";
    out.labelled_metric("holdfast_checked_backends", "gauge", help, "state", checks.backends());
    let help = "Backends that were checked out of turn because they had refused clients.";
    out.counter("holdfast_checks_out_of_turn_total", help, checks.refusal_rechecks());
}
