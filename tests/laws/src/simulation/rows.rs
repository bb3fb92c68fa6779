//! Checks the rows that readers see after every step: they must show what clients get, and their times must be right.
//!
//! Rows that are not done yet are compared at rest.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::engine::SavedSnapshot;
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{FrontendKey, ServiceKey};
use holdfast_core::list::{Row, Slot};
use holdfast_core::maps::DialOutcome;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceView, Snapshot, Status, Verdict};

use super::model::Expected;
use super::rest::{agree, position, shown};
use super::watch::Watch;

/// The content of a row, without its time.
pub(super) type Said = (Verdict, Option<Reason>, Vec<Slot>, Option<Vec<Slot>>);

/// What readers last saw.
#[derive(Debug, Default)]
pub(super) struct Rows {
    views: BTreeMap<ServiceKey, Arc<ServiceView>>,
    /// The times of later steps that readers did not see, because a start was not done.
    unseen: Vec<Timestamp>,
    /// How often a row changed to a verdict and reason.
    pub(super) turned: Turned,
}

/// By verdict and reason.
pub type Turned = BTreeMap<(&'static str, &'static str), u64>;

/// The content of a row.
pub(super) fn said(view: &ServiceView, row: &FrontendView) -> Said {
    let backends = view.backends(row).map(Row::slot).collect();
    let external = view.external_backends(row).map(|rows| rows.map(Row::slot).collect());
    (row.verdict, row.reason, backends, external)
}

impl Rows {
    /// Readers of a new process start with the restored state.
    pub(super) fn restart(&mut self, remembered: Option<&SavedSnapshot>) {
        let views = remembered.into_iter().flat_map(|it| &it.services);
        self.views = views.map(|view| (view.key.clone(), Arc::clone(view))).collect();
    }

    /// Records a step that readers do not see.
    pub(super) fn pass_by(&mut self, now: Timestamp) {
        self.unseen.push(now);
    }

    /// Checks every service that changed.
    pub(super) fn look(&mut self, snapshot: &Snapshot, now: Timestamp, watch: &mut Watch) {
        let mut views = BTreeMap::new();
        self.unseen.push(now);
        let decided = std::mem::take(&mut self.unseen);
        for view in snapshot.services.iter() {
            let before = self.views.remove(&view.key);
            if before.as_ref().is_none_or(|before| !Arc::ptr_eq(before, view)) {
                for row in &view.frontends {
                    look_at_time(before.as_deref(), view, row, &decided, watch);
                    look_at_answer(view, row, watch);
                }
                self.count(before.as_deref(), view);
                look_at_reasons(view, watch);
            }
            views.insert(view.key.clone(), Arc::clone(view));
        }
        self.views = views;
        look_at_held(snapshot, watch);
    }

    /// Counts the changes of rows.
    fn count(&mut self, before: Option<&ServiceView>, view: &ServiceView) {
        let old = |row: &FrontendView| {
            let mut rows = before.into_iter().flat_map(|before| &before.frontends);
            rows.any(|old| {
                position(old) == position(row) && (old.verdict, old.reason) == (row.verdict, row.reason)
            })
        };
        for row in view.frontends.iter().filter(|row| !old(row)) {
            let reason = row.reason.map_or("", Reason::as_str);
            *self.turned.entry((row.verdict.as_str(), reason)).or_default() += 1;
        }
    }
}

/// No list becomes empty or held except for a reason in the history: each row that is done shows exactly that.
fn look_at_reasons(view: &ServiceView, watch: &mut Watch) {
    let model = &watch.model;
    let nothing = Expected::default();
    let expected = model.services.get(&view.key).unwrap_or(&nothing);
    let mut wrong = model.history.compare(view).err();
    for row in view.frontends.iter().filter(|row| row.status == Status::Done) {
        let found = (position(row), said(view, row), row.owner.clone());
        let wanted = shown(&position(row), &view.key, expected, model);
        if !agree(&found, &wanted, expected) {
            wrong = Some(format!("{} shows {found:?}, not {wanted:?}", view.key));
        }
    }
    if let Some(what) = wrong {
        watch.blame(|| what);
    }
}

/// No hold outlives its bound: at every step, the services held are those of the history.
fn look_at_held(snapshot: &Snapshot, watch: &mut Watch) {
    let wanted = watch.model.history.held().count();
    if snapshot.held.len() != wanted {
        let held: Vec<_> = watch.model.history.held().map(ToString::to_string).collect();
        let found = snapshot.held.len();
        watch.blame(|| format!("{found} services are held, and it should be {wanted}: {held:?}"));
    }
}

/// `since` changes only if the verdict, the reason or a list of the row does.
fn look_at_time(
    before: Option<&ServiceView>,
    view: &ServiceView,
    row: &FrontendView,
    decided: &[Timestamp],
    watch: &mut Watch,
) {
    let same_place = |old: &&FrontendView| {
        (old.address, old.port, &old.protocol) == (row.address, row.port, &row.protocol)
    };
    let old = before.and_then(|before| Some((before, before.frontends.iter().find(same_place)?)));
    let unchanged = old.filter(|(before, old)| said(before, old) == said(view, row));
    let wanted = unchanged.map_or_else(|| decided.to_vec(), |(_, old)| vec![old.since]);
    if !wanted.contains(&row.since) {
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

/// A row that is done shows what a client of this node and one outside get.
fn look_at_answer(view: &ServiceView, row: &FrontendView, watch: &mut Watch) {
    let Some(transport) = row.protocol.transport() else { return };
    let key = FrontendKey { address: row.address, port: row.port, transport };
    let Some(dialled) = watch.dialled.iter().find(|it| it.key == key) else { return };
    let [local, outside, _] = &dialled.actual;
    let (verdict, _, backends, external) = said(view, row);
    let empty = match verdict {
        Verdict::Dropping => DialOutcome::Dropped,
        Verdict::Passing => DialOutcome::Passed,
        _ => DialOutcome::Refused,
    };
    let from_here = if backends.is_empty() { empty } else { DialOutcome::Served(backends) };
    let from_there = match external {
        Some(slots) if slots.is_empty() => DialOutcome::Dropped,
        Some(slots) => DialOutcome::Served(slots),
        None => from_here.clone(),
    };
    // A NodePort may have an address that passes.
    if verdict == Verdict::Passing && local != &DialOutcome::Passed {
        let owner = watch.model.owner(key);
        if owner.is_some_and(|holder| holder.kind == FrontendType::NodePort) {
            return;
        }
    }
    let served = !matches!(verdict, Verdict::Bypassed | Verdict::Conflict | Verdict::Unprogrammed);
    if served && row.status == Status::Done && (&from_here, &from_there) != (local, outside) {
        let what = format!(
            "{key} of {} shows {:?}, but clients get {local:?} and {outside:?}",
            view.key,
            said(view, row)
        );
        watch.blame(|| what);
    }
}
