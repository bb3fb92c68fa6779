//! A list that is held, with its deadline and what probes found.

use std::sync::Arc;

use holdfast_core::hold::{Asked, Bound, HeldBackend, Hold};
use holdfast_core::keys::Source;
use holdfast_core::list::Row;
use holdfast_core::snapshot::Reason;
use holdfast_core::time::{Now, Uptime};
use serde::{Deserialize, Serialize};

use super::rows::RowForm;
use super::slice::SliceForm;
use super::spelled;

#[derive(Serialize, Deserialize)]
pub(super) struct HoldForm {
    reason: Arc<str>,
    /// By the wall clock as it stood when this was written, so that steps of it before that make no difference.
    since: i64,
    asked: Option<i64>,
    bound: Arc<str>,
    slices: Vec<SliceForm>,
    backends: Vec<BackendForm>,
}

#[derive(Serialize, Deserialize)]
struct BackendForm {
    row: RowForm,
    asked: Arc<str>,
    answered: bool,
    failures: u8,
    lost: Option<Arc<str>>,
}

impl HoldForm {
    pub(super) fn new(hold: &Hold, clock: Now) -> Self {
        let backend = |it: &HeldBackend| BackendForm {
            row: RowForm::from(&it.row),
            asked: it.asked.as_str().into(),
            answered: it.answered,
            failures: it.failures,
            lost: it.lost.map(|reason| reason.as_str().into()),
        };
        Self {
            reason: hold.reason.as_str().into(),
            since: clock.wall_at(hold.begun).0,
            asked: hold.asked.map(|at| clock.wall_at(at).0),
            bound: hold.bound.as_str().into(),
            slices: hold.slices.iter().map(|slice| SliceForm::from(&**slice)).collect(),
            backends: hold.backends.iter().map(backend).collect(),
        }
    }

    /// On a clock whose seconds are those of the wall clock, as [`Now::default`] is one.
    pub(super) fn into_hold(self, source: Source) -> Option<Hold> {
        let slices = self.slices.into_iter().map(|slice| Some(Arc::new(slice.into_facts(source)?)));
        Some(Hold {
            reason: reason(&self.reason)?,
            begun: Uptime(self.since),
            asked: self.asked.map(Uptime),
            bound: spelled(&Bound::ALL, Bound::as_str, &self.bound)?,
            slices: slices.collect::<Option<_>>()?,
            backends: self.backends.into_iter().map(BackendForm::into_backend).collect::<Option<_>>()?,
        })
    }
}

impl BackendForm {
    fn into_backend(self) -> Option<HeldBackend> {
        let lost = match self.lost {
            Some(text) => Some(reason(&text)?),
            None => None,
        };
        let Self { row, answered, failures, .. } = self;
        let asked = spelled(&Asked::ALL, Asked::as_str, &self.asked)?;
        Some(HeldBackend { row: Row::from(row), asked, answered, failures, lost })
    }
}

pub(super) fn reason(text: &str) -> Option<Reason> {
    spelled(&Reason::ALL, Reason::as_str, text)
}
