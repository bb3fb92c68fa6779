//! A list that is held, with its deadline and what probes found.
//!
//! Invariant: times are those of the wall clock as it stood when the file was written, so that earlier steps of that
//! clock make no difference. The clock of the process cannot be used: after a restart it is another one.

use std::sync::Arc;

use holdfast_core::facts::SliceFacts;
use holdfast_core::hold::{Asked, Bound, HeldBackend, Hold};
use holdfast_core::keys::{Source, Transport};
use holdfast_core::list::Row;
use holdfast_core::snapshot::Reason;
use holdfast_core::time::{Now, Uptime};
use serde::{Deserialize, Serialize};

use super::sourced;

#[derive(Serialize, Deserialize)]
pub(crate) struct HoldForm {
    reason: Reason,
    since: i64,
    asked: Option<i64>,
    bound: Bound,
    slices: Arc<[Arc<SliceFacts>]>,
    backends: Vec<HeldBackend>,
}

/// A form of a hold, of this version or a former one.
pub(crate) trait Held {
    /// Turns the form into the hold of a port of this transport.
    fn into_hold(self, source: Source, transport: Transport) -> Option<Hold>;
}

/// A hold as version 3 of the format has it.
#[derive(Serialize, Deserialize)]
pub(crate) struct HoldForm3 {
    reason: Reason,
    since: i64,
    bound: Bound,
    slices: Arc<[Arc<SliceFacts>]>,
    backends: Vec<HeldBackend3>,
}

#[derive(Serialize, Deserialize)]
struct HeldBackend3 {
    row: Row,
    answered: bool,
    failures: u8,
    lost: Option<Reason>,
}

impl Held for HoldForm3 {
    fn into_hold(self, source: Source, transport: Transport) -> Option<Hold> {
        let Self { reason, since, bound, slices, backends } = self;
        let backends = backends.into_iter().map(|it| it.now(transport)).collect();
        HoldForm { reason, since, asked: None, bound, slices, backends }.into_hold(source, transport)
    }
}

impl HeldBackend3 {
    /// The backend as a hold has it now. Of version 3 only backends that answered are known to have been asked.
    fn now(self, transport: Transport) -> HeldBackend {
        let Self { row, answered, failures, lost } = self;
        let asked = if answered { Asked::Done } else { Asked::before(&row, transport) };
        HeldBackend { answered, failures, lost, ..HeldBackend::new(row, asked) }
    }
}

impl HoldForm {
    pub(super) fn new(hold: &Hold, clock: Now) -> Self {
        Self {
            reason: hold.reason,
            since: clock.wall_at(hold.begun).0,
            asked: hold.asked.map(|at| clock.wall_at(at).0),
            bound: hold.bound,
            slices: Arc::clone(&hold.slices),
            backends: hold.backends.clone(),
        }
    }
}

impl Held for HoldForm {
    /// The hold on a process clock that has the seconds of the wall clock, as the one of [`Now::default`] has.
    fn into_hold(self, source: Source, _: Transport) -> Option<Hold> {
        let Self { reason, since, asked, bound, slices, backends } = self;
        let begun = Uptime(since);
        let asked = asked.map(Uptime);
        Some(Hold {
            reason,
            begun,
            asked,
            anew: None,
            unheard: None,
            bound,
            slices: sourced(slices, source)?,
            backends,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Version 3 says which backends answered, and not which of the others were asked.
    #[test]
    fn of_a_hold_of_version_3_only_who_answered_was_asked() {
        let backend = |answered, failures| HeldBackend3 { row: ready(), answered, failures, lost: None };
        for (transport, expected) in
            [(Transport::Tcp, [Asked::Done, Asked::Due]), (Transport::Udp, [Asked::Done, Asked::Never])]
        {
            let form = HoldForm3 {
                reason: Reason::Vanished,
                since: 1_000,
                bound: Bound::Guarded,
                slices: Arc::default(),
                backends: vec![backend(true, 0), backend(false, 2)],
            };
            let hold = form.into_hold(Source::Manifests, transport).unwrap();
            assert_eq!((hold.begun, hold.asked), (Uptime(1_000), None));
            assert_eq!(hold.backends.iter().map(|it| it.asked).collect::<Vec<_>>(), expected);
            assert_eq!(hold.backends.iter().map(|it| it.failures).collect::<Vec<_>>(), [0, 2]);
        }
    }

    /// A row as the file has it: held, ready and serving.
    fn ready() -> Row {
        let parts: (std::net::IpAddr, u16, u8, u16, u16, u32) = ([192, 0, 2, 9].into(), 80, 75, 0, 0, 1_000);
        postcard::from_bytes(&postcard::to_extend(&parts, Vec::new()).unwrap()).unwrap()
    }
}
