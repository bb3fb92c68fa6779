//! The ops for the source ranges of a port.
//!
//! Invariant: a client that is in a range before and after a change gets in all the time, where there is room for the
//! ranges; one that is in no range never does, once the word has clients look for them.

use crate::op::{Action, PortIndex, QuotaId, SourceKey, WordFlags};
use crate::service::Port;
use crate::source_ranges::SourceRange;
use crate::work;

/// Ops for the sources of a port. New sources come before the word that has clients look for them, and the former ones
/// that they replace go when all new ones have come, even if no word has clients look for sources yet: the former ones
/// would let clients in once it does. Where the port needs no sources any more, they go later, when no client can be on
/// its way to look for them.
pub(super) fn plan_sources(port: &Port, (index, share): (PortIndex, QuotaId), push: &mut dyn FnMut(Action)) {
    let new = port.sources().iter().filter(|range| !port.has_realized_source(range));
    new.for_each(|range| push(Action::InsertSource(SourceKey { port: index, range: *range }, share)));
    if port.sources.is_some() {
        let replaced = stale_sources(port).filter(|range| overlaps_any(*range, port.sources()));
        replaced.for_each(|range| push(Action::RemoveSource(SourceKey { port: index, range })));
    }
}

/// Ops that remove ranges that no new range takes the place of. They come first, so that these ranges go even if a new
/// one finds no room.
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

/// Whether a range has clients in common with one of these, which are in order.
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
