//! The rows that readers see, after every step: what they claim must be what clients meet, and their times must be true.
//!
//! Deliberately absent: what the rows should be; that is compared at rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{FrontendKey, ServiceKey};
use holdfast_core::list::{Row, Slot};
use holdfast_core::snapshot::{FrontendView, Reason, ServiceView, Snapshot, Status, Verdict};
use holdfast_datapath::Answer;

use super::watch::Watch;

/// What a row says, but for its time.
pub(super) type Said = (Verdict, Option<Reason>, Vec<Slot>, Option<Vec<Slot>>);

/// What readers saw last.
#[derive(Debug, Default)]
pub(super) struct Rows {
    views: BTreeMap<ServiceKey, Arc<ServiceView>>,
}

/// What a row says.
pub(super) fn said(view: &ServiceView, row: &FrontendView) -> Said {
    let backends = view.backends(row).map(Row::slot).collect();
    let external = view.external_backends(row).map(|rows| rows.map(Row::slot).collect());
    (row.verdict, row.reason, backends, external)
}

impl Rows {
    /// Looks at every service that shows something new.
    pub(super) fn look(&mut self, snapshot: &Snapshot, now: Timestamp, watch: &mut Watch) {
        let mut views = BTreeMap::new();
        for view in snapshot.services.iter() {
            let before = self.views.remove(&view.key);
            if before.as_ref().is_none_or(|before| !Arc::ptr_eq(before, view)) {
                for row in &view.frontends {
                    look_at_time(before.as_deref(), view, row, now, watch);
                    look_at_answer(view, row, watch);
                }
            }
            views.insert(view.key.clone(), Arc::clone(view));
        }
        self.views = views;
    }
}

/// `since` moves when verdict, reason or a list of the row changed, and at no other time.
fn look_at_time(
    before: Option<&ServiceView>,
    view: &ServiceView,
    row: &FrontendView,
    now: Timestamp,
    watch: &mut Watch,
) {
    let same_place = |old: &&FrontendView| {
        (old.address, old.port, &old.protocol) == (row.address, row.port, &row.protocol)
    };
    let old = before.and_then(|before| Some((before, before.frontends.iter().find(same_place)?)));
    let unchanged = old.filter(|(before, old)| said(before, old) == said(view, row));
    let wanted = unchanged.map_or(now, |(_, old)| old.since);
    if row.since != wanted {
        let was = old.map(|(before, old)| (said(before, old), old.since));
        watch.blame(|| {
            format!(
                "since of {} is {:?}, not {wanted:?}: {:?}, was {was:?}",
                view.key,
                row.since,
                said(view, row)
            )
        });
    }
}

/// What a row that is done says is what a client of this node meets, and one outside.
fn look_at_answer(view: &ServiceView, row: &FrontendView, watch: &mut Watch) {
    let Some(transport) = row.protocol.transport() else { return };
    let key = FrontendKey { address: row.address, port: row.port, transport };
    let Some(dialled) = watch.dialled.iter().find(|it| it.key == key) else { return };
    let [local, outside] = &dialled.actual;
    let (verdict, _, backends, external) = said(view, row);
    let empty = match verdict {
        Verdict::Dropping => Answer::Dropped,
        _ => Answer::Refused,
    };
    let from_here = if backends.is_empty() { empty } else { Answer::Served(backends) };
    let from_there = match external {
        Some(slots) if slots.is_empty() => Answer::Dropped,
        Some(slots) => Answer::Served(slots),
        None => from_here.clone(),
    };
    let served = !matches!(verdict, Verdict::Bypassed | Verdict::Conflict | Verdict::Unprogrammed);
    if served && row.status == Status::Done && (&from_here, &from_there) != (local, outside) {
        let what = format!(
            "{key} of {} shows {:?}, but clients meet {local:?} and {outside:?}",
            view.key,
            said(view, row)
        );
        watch.blame(|| what);
    }
}
