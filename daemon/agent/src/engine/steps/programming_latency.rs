//! How long changes of endpoints take until the maps show them, counted as kube-proxy counts them.
//!
//! Invariant: nothing is kept from step to step. What a step did to a service names the slices that it was about, and
//! each version of a slice says when that happened of which it tells. Any writer of slices may say so, by any clock: a
//! time before the daemon's start counts for nothing, one that lies ahead as now, and none for more than [`LATENCY_MAX`].

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use holdfast_core::change::{Cause, Change};
use holdfast_core::facts::{AddressType, SliceFacts};
use holdfast_core::keys::{Family, Source};
use holdfast_core::snapshot::ServiceView;

use super::Histogram;

/// The longest time that a change is counted with, far beyond the last bucket. The sum has room for five thousand
/// million of these, so slices that say long times do not make it run over within weeks.
const LATENCY_MAX: Duration = Duration::from_secs(3_600);

/// The bounds before the first of kube-proxy, each half of the next one, in milliseconds.
const FINE_BOUNDS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// How long changes took, by the family of the slice.
#[derive(Debug)]
pub(crate) struct ProgrammingLatency {
    started: Instant,
    histograms: [(Family, Histogram); Family::ALL.len()],
}

impl Default for ProgrammingLatency {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            histograms: Family::ALL.map(|family| (family, Histogram::new(bounds()))),
        }
    }
}

/// Kube-proxy's buckets, with the finer ones. The first has what is no time at all, or says a time that lies ahead.
fn bounds() -> impl Iterator<Item = Duration> {
    let fine = FINE_BOUNDS.into_iter().chain([250, 500]).map(Duration::from_millis);
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    std::iter::once(Duration::ZERO).chain(fine).chain(seconds.map(Duration::from_secs))
}

impl ProgrammingLatency {
    /// Counts the slices that a step was about for a service, if the maps now hold what these say.
    pub(crate) fn record_change(&self, change: &Change) {
        let is_ours = change.service.source == Source::Kubernetes && change.error.is_none();
        for (family, since) in
            change.after.iter().filter(|_| is_ours).flat_map(|view| trigger_times(change, view))
        {
            let took = age(since, SystemTime::now(), self.started.elapsed());
            let of_family = self.histograms.iter().find(|(it, _)| *it == family);
            took.zip(of_family).into_iter().for_each(|(took, (_, counts))| counts.add(took));
        }
    }

    /// The counts of each family.
    pub(crate) fn by_family(&self) -> impl Iterator<Item = (Family, &Histogram)> {
        self.histograms.iter().map(|(family, counts)| (*family, counts))
    }
}

/// When each version of a slice began that a step was about, as far as the slice says so. What is held is left out:
/// that the maps do not show it is no delay but a decision.
fn trigger_times<'a>(change: &'a Change, now: &'a ServiceView) -> impl Iterator<Item = (Family, i64)> + 'a {
    changed_slices(change, now).filter_map(move |slice| {
        let since = slice.meta.triggered.0?;
        let AddressType::Ip(family) = slice.address_type else { return None };
        (!slice.headless && !is_held(now, family)).then_some((family, since))
    })
}

fn is_held(view: &ServiceView, family: Family) -> bool {
    view.ports.iter().any(|port| port.key.family == family && port.hold.is_some())
}

/// The versions that a step was about of slices that the service still has: all that its causes name, and where there
/// were more causes than a change names, the last version of each other slice that is new.
fn changed_slices<'a>(change: &'a Change, now: &'a ServiceView) -> impl Iterator<Item = &'a Arc<SliceFacts>> {
    let named = change.causes.iter().filter_map(move |cause| match cause {
        Cause::SliceApplied(slice) => find_slice(now, slice).map(|_| slice),
        _ => None,
    });
    let is_named = {
        let named = named.clone();
        move |slice: &Arc<SliceFacts>| named.clone().any(|it| Arc::ptr_eq(it, slice))
    };
    let was_there = |slice: &Arc<SliceFacts>| {
        let before = change.before.as_deref().and_then(|before| find_slice(before, slice));
        before.is_some_and(|it| Arc::ptr_eq(it, slice))
    };
    let all: &[_] = if change.suppressed > 0 { &now.slices } else { &[] };
    named.chain(all.iter().filter(move |slice| !is_named(slice) && !was_there(slice)))
}

/// The version of a slice that a view shows.
fn find_slice<'a>(view: &'a ServiceView, slice: &SliceFacts) -> Option<&'a Arc<SliceFacts>> {
    let place = view.slices.binary_search_by(|it| it.key.cmp(&slice.key)).ok()?;
    view.slices.get(place)
}

/// For how long that has been so; `None`: since before the daemon's start. The start is told by a clock that does not
/// step, so a host that gets the time late neither counts what is old nor leaves out what is new.
fn age(since: i64, now: SystemTime, uptime: Duration) -> Option<Duration> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    let age = u64::try_from(now.saturating_sub(since)).unwrap_or(0);
    let age = Duration::from_micros(age);
    (age < uptime).then(|| age.min(LATENCY_MAX))
}

#[cfg(test)]
mod tests;
