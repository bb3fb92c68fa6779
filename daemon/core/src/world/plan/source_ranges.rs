//! The ops for the source ranges of a port.
//!
//! Invariant: a client in a range both before and after a change is always allowed, if the ranges fit. A client in no
//! range is never allowed once the word has clients looked up.

use crate::op::{Action, PortIndex, QuotaId, SourceKey, WordFlags};
use crate::service::Port;
use crate::source_ranges::SourceRange;
use crate::work;

/// Plans the sources of a port. New sources precede the word that has clients looked up. The ranges that they replace
/// go once all new ones are written, even before any lookup: they would admit clients after it. A port that needs no
/// sources any more drops them later, when no client in flight can look them up.
pub(super) fn plan_sources(port: &Port, (index, quota): (PortIndex, QuotaId), push: &mut dyn FnMut(Action)) {
    let new = port.sources().iter().filter(|range| !port.has_realized_source(range));
    new.for_each(|range| push(Action::InsertSource(SourceKey { port: index, range: *range }, quota)));
    if port.sources.is_some() {
        let replaced = stale_sources(port).filter(|range| overlaps_any(*range, port.sources()));
        replaced.for_each(|range| push(Action::RemoveSource(SourceKey { port: index, range })));
    }
}

/// Removes ranges that no new range overlaps. They go first, even if a new range does not fit.
pub(super) fn plan_revoked_sources(port: &Port, index: PortIndex, push: &mut dyn FnMut(Action)) {
    if port.sources.is_some() {
        let revoked = stale_sources(port).filter(|range| !overlaps_any(*range, port.sources()));
        revoked.for_each(|range| push(Action::RemoveSource(SourceKey { port: index, range })));
    }
}

pub(super) fn checks_sources(port: &Port) -> bool {
    let cluster = &port.realized.cluster;
    !cluster.uncertain && cluster.word.flags.contains(WordFlags::SOURCES)
}

/// Whether a range shares clients with one of these sorted ranges.
fn overlaps_any(range: SourceRange, sorted: &[SourceRange]) -> bool {
    let mut around = (0..=range.bits()).filter_map(|bits| SourceRange::new(range.address(), bits));
    let is_within = around.any(|around| sorted.binary_search(&around).is_ok());
    let next = sorted.partition_point(|other| other.address() < range.address());
    is_within || sorted.get(next).is_some_and(|other| range.contains(other.address()))
}

pub(super) fn plan_stale_sources(port: &Port, index: PortIndex, push: &mut dyn FnMut(Action)) {
    stale_sources(port).for_each(|range| push(Action::RemoveSource(SourceKey { port: index, range })));
}

fn stale_sources(port: &Port) -> impl Iterator<Item = SourceRange> {
    let realized = &port.realized;
    let known = realized.sources.union(&realized.uncertain_sources);
    let stale = known.filter(|range| port.sources().binary_search(range).is_err());
    stale.inspect(|_| work::count_work(1)).copied()
}
