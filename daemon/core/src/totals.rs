//! The numbers of services, frontends and endpoints by state, updated with each service that changes.
//!
//! Invariant: a view is subtracted exactly as it was added, so the numbers always equal a count over all views. A
//! change costs as much as its service is large, and reading costs nothing.

use crate::list::SlotState;
use crate::op::FrontendType;
use crate::service_view::{FrontendView, PortView, Reason, ServiceState, ServiceView, Status, Verdict};
use crate::work;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    services: [u64; ServiceState::ALL.len()],
    worst: [u64; Verdict::ALL.len()],
    frontends: [[u64; Verdict::ALL.len()]; FrontendType::ALL.len()],
    reasons: [u64; Reason::ALL.len()],
    statuses: StatusCounts,
    backends: BackendCounts,
}

/// Frontends by the status of their maps entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatusCounts {
    pub pending: u64,
    pub done: u64,
    pub error: u64,
}

/// Endpoints of all ports by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendCounts {
    pub active: u64,
    /// Terminating, and in a list because no ready one is left.
    pub draining: u64,
    pub held: u64,
    pub unused: u64,
    /// The drained ones of them: in no list, and in one.
    pub drained: [u64; 2],
}

impl BackendCounts {
    /// The endpoints in a list.
    pub const fn used(&self) -> u64 {
        self.active + self.draining + self.held
    }
}

/// Adds or subtracts one.
type Step = fn(u64) -> u64;

impl Totals {
    pub(crate) fn add(&mut self, view: &ServiceView) {
        self.count(view, |count| count.wrapping_add(1));
    }

    pub(crate) fn take(&mut self, view: &ServiceView) {
        self.count(view, |count| count.wrapping_sub(1));
    }

    pub fn services(&self) -> u64 {
        self.services.iter().sum()
    }

    pub fn states(&self) -> impl Iterator<Item = (ServiceState, u64)> {
        ServiceState::ALL.into_iter().zip(self.services)
    }

    /// Services with frontends, by their worst verdict.
    pub fn worst_verdicts(&self) -> impl Iterator<Item = (Verdict, u64)> {
        Verdict::ALL.into_iter().zip(self.worst)
    }

    pub fn frontends(&self) -> impl Iterator<Item = (FrontendType, Verdict, u64)> {
        let types = FrontendType::ALL.into_iter().zip(self.frontends);
        types.flat_map(|(kind, counts)| {
            Verdict::ALL.into_iter().zip(counts).map(move |(verdict, count)| (kind, verdict, count))
        })
    }

    /// Frontends by reason, if they have one.
    pub fn reasons(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().zip(self.reasons)
    }

    pub const fn statuses(&self) -> StatusCounts {
        self.statuses
    }

    pub const fn backends(&self) -> BackendCounts {
        self.backends
    }

    fn count(&mut self, view: &ServiceView, step: Step) {
        work::count_work(view.frontends.len());
        count_at(&mut self.services, &ServiceState::ALL, &view.state, step);
        if let Some(worst) = view.worst_frontend() {
            count_at(&mut self.worst, &Verdict::ALL, &worst.verdict, step);
        }
        view.frontends.iter().for_each(|frontend| self.count_frontend(frontend, step));
        for (position, port) in view.ports.iter().enumerate() {
            self.count_port(port, view.is_port_in_conflict(position), step);
        }
    }

    fn count_frontend(&mut self, frontend: &FrontendView, step: Step) {
        let types = FrontendType::ALL.iter().zip(&mut self.frontends);
        for (_, verdicts) in types.filter(|(kind, _)| **kind == frontend.kind) {
            count_at(verdicts, &Verdict::ALL, &frontend.verdict, step);
        }
        if let Some(reason) = &frontend.reason {
            count_at(&mut self.reasons, &Reason::ALL, reason, step);
        }
        let StatusCounts { pending, done, error } = &mut self.statuses;
        let status = match frontend.status {
            Status::Pending => pending,
            Status::Done => done,
            Status::Error(_) => error,
        };
        *status = step(*status);
    }

    /// Counts the endpoints of a port. In conflict, no client gets any of them.
    fn count_port(&mut self, port: &PortView, is_in_conflict: bool, step: Step) {
        work::count_work(port.rows.iter().len());
        let BackendCounts { active, draining, held, unused, drained: [unused_drained, drained] } =
            &mut self.backends;
        let has_drained = !port.rows.weights().has_no_drained();
        for row in port.rows.iter() {
            let is_used = row.is_chosen() && !is_in_conflict;
            let count = match row.state() {
                _ if !is_used => &mut *unused,
                _ if row.is_held() => &mut *held,
                SlotState::Active => &mut *active,
                SlotState::Draining => &mut *draining,
            };
            *count = step(*count);
            if has_drained && port.rows.weights().is_drained(row.backend()) {
                let count = if is_used { &mut *drained } else { &mut *unused_drained };
                *count = step(*count);
            }
        }
    }
}

/// Counts at the index of a variant.
fn count_at<T: PartialEq, const N: usize>(counts: &mut [u64; N], all: &[T; N], found: &T, step: Step) {
    all.iter().zip(counts).filter(|(known, _)| *known == found).for_each(|(_, count)| *count = step(*count));
}
