//! Measures how long changes of endpoints take to reach the maps, counted as kube-proxy counts them.
//!
//! Invariant: nothing is kept between steps. A step's change names its slices, and each version of a slice carries
//! the time of its trigger. Any writer of slices may set that time, by any clock: a time before the daemon's start
//! does not count, a future one counts as now, and none for more than [`LATENCY_MAX`].

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_core::change::{Cause, Change};
use holdfast_core::facts::{AddressType, SliceFacts};
use holdfast_core::keys::{Family, Source};
use holdfast_core::snapshot::ServiceView;

use super::Histogram;

/// The longest latency that counts, far beyond the last bucket. The sum can hold five thousand million of these, so
/// slices that claim long times do not overflow it within weeks.
const LATENCY_MAX: Duration = Duration::from_secs(3_600);

/// The bounds below kube-proxy's first, each half of the next one, in milliseconds.
const FINE_BOUNDS: [u64; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// The latencies by the family of the slice.
#[derive(Debug)]
pub(crate) struct ProgrammingLatency {
    histograms: [(Family, Histogram); Family::ALL.len()],
}

impl Default for ProgrammingLatency {
    fn default() -> Self {
        Self { histograms: Family::ALL.map(|family| (family, Histogram::new(bounds()))) }
    }
}

/// Kube-proxy's buckets, with finer ones below. The first also gets future times.
fn bounds() -> impl Iterator<Item = Duration> {
    let fine = FINE_BOUNDS.into_iter().chain([250, 500]).map(Duration::from_millis);
    let seconds = (1..60).chain((60..120).step_by(5)).chain((120..=300).step_by(30));
    std::iter::once(Duration::ZERO).chain(fine).chain(seconds.map(Duration::from_secs))
}

impl ProgrammingLatency {
    /// Counts the slices of a step's change to a service, if the maps now hold them. The daemon has run for `uptime`.
    pub(crate) fn record_change(&self, change: &Change, now: SystemTime, uptime: Duration) {
        let is_ours = change.service.source == Source::Kubernetes && change.error.is_none();
        for (family, since) in
            change.after.iter().filter(|_| is_ours).flat_map(|view| trigger_times(change, view))
        {
            let took = age(since, now, uptime);
            let of_family = self.histograms.iter().find(|(it, _)| *it == family);
            took.zip(of_family).into_iter().for_each(|(took, (_, counts))| counts.add(took));
        }
    }

    pub(crate) fn by_family(&self) -> impl Iterator<Item = (Family, &Histogram)> {
        self.histograms.iter().map(|(family, counts)| (*family, counts))
    }
}

/// The trigger time of each slice version in a change, if the slice has one. Held slices are left out: the maps omit
/// them by decision, not by delay.
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

/// The slice versions of a change that the service still has: all that its causes name, and if the causes exceed a
/// change's limit, the last version of each other new slice.
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

fn find_slice<'a>(view: &'a ServiceView, slice: &SliceFacts) -> Option<&'a Arc<SliceFacts>> {
    let place = view.slices.binary_search_by(|it| it.key.cmp(&slice.key)).ok()?;
    view.slices.get(place)
}

/// The time since `since`; `None` if it is before the daemon's start. A monotonic clock measures the uptime, so on a
/// host that sets its clock late, old times do not count and new ones do.
fn age(since: i64, now: SystemTime, uptime: Duration) -> Option<Duration> {
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    let age = u64::try_from(now.saturating_sub(since)).unwrap_or(0);
    let age = Duration::from_micros(age);
    (age < uptime).then(|| age.min(LATENCY_MAX))
}

#[cfg(test)]
mod tests;
