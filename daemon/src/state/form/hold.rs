//! A list that is held, with its deadline and what probes found.

use std::sync::Arc;

use holdfast_core::hold::{Asked, Bound, HeldBackend, Hold};
use holdfast_core::keys::{Source, Transport};
use holdfast_core::list::Row;
use holdfast_core::snapshot::Reason;
use holdfast_core::time::{Now, Uptime};
use serde::{Deserialize, Serialize};

use super::rows::RowForm;
use super::slice::SliceForm;
use super::spelled;

#[derive(Serialize, Deserialize)]
pub(in crate::state) struct HoldForm {
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

/// A form of a hold, of this version or a former one.
pub(in crate::state) trait Held {
    /// The hold of a port of this transport, as it is now.
    fn into_hold(self, source: Source, transport: Transport) -> Option<Hold>;
}

/// As version 3 has it.
#[derive(Serialize, Deserialize)]
pub(in crate::state) struct HoldForm3 {
    reason: Arc<str>,
    since: i64,
    bound: Arc<str>,
    slices: Vec<SliceForm>,
    backends: Vec<BackendForm3>,
}

#[derive(Serialize, Deserialize)]
struct BackendForm3 {
    row: RowForm,
    answered: bool,
    failures: u8,
    lost: Option<Arc<str>>,
}

impl Held for HoldForm3 {
    fn into_hold(self, source: Source, transport: Transport) -> Option<Hold> {
        let Self { reason, since, bound, slices, backends } = self;
        let backends = backends.into_iter().map(|it| it.now(transport)).collect();
        HoldForm { reason, since, asked: None, bound, slices, backends }.into_hold(source, transport)
    }
}

impl BackendForm3 {
    /// Only who answered is known to have been asked: nobody else has failed to answer yet.
    fn now(self, transport: Transport) -> BackendForm {
        let Self { row, answered, failures, lost } = self;
        let row = Row::from(row);
        let asked = if answered { Asked::Done } else { Asked::before(&row, transport) };
        BackendForm { row: RowForm::from(&row), asked: asked.as_str().into(), answered, failures, lost }
    }
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
}

impl Held for HoldForm {
    /// On a clock whose seconds are those of the wall clock, as [`Now::default`] is one.
    fn into_hold(self, source: Source, _: Transport) -> Option<Hold> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 3 says who answered, and of nobody else whether they were asked.
    #[test]
    fn of_a_hold_of_version_3_only_who_answered_was_asked() {
        let backend = |answered, failures| BackendForm3 { row: ready(), answered, failures, lost: None };
        for (transport, expected) in
            [(Transport::Tcp, [Asked::Done, Asked::Due]), (Transport::Udp, [Asked::Done, Asked::Never])]
        {
            let form = HoldForm3 {
                reason: "vanished".into(),
                since: 1_000,
                bound: "guarded".into(),
                slices: Vec::new(),
                backends: vec![backend(true, 0), backend(false, 2)],
            };
            let hold = form.into_hold(Source::Manifests, transport).unwrap();
            assert_eq!((hold.begun, hold.asked), (Uptime(1_000), None));
            assert_eq!(hold.backends.iter().map(|it| it.asked).collect::<Vec<_>>(), expected);
            assert_eq!(hold.backends.iter().map(|it| it.failures).collect::<Vec<_>>(), [0, 2]);
        }
    }

    /// A row as the file has it: held, ready and serving.
    fn ready() -> RowForm {
        let parts: (std::net::IpAddr, u16, u8, u16, u16, u32) = ([192, 0, 2, 9].into(), 80, 75, 0, 0, 1_000);
        postcard::from_bytes(&postcard::to_extend(&parts, Vec::new()).unwrap()).unwrap()
    }
}
