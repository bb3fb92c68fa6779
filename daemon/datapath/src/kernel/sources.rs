//! The sources of load-balancer addresses, which programs at devices alone read.
//!
//! Invariant: what the engine asked for is known here, so that it is in the maps before the first program looks for it,
//! however late programs are loaded. What a former daemon's programs read is never taken from them by a start. The
//! ranges of one namespace do not fill the maps: they may be at most [`QUOTA_REST_FACTOR`] times what is left, so a
//! namespace that has none finds room.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::keys::Family;
use holdfast_core::maps::MapError;
use holdfast_core::op::{PortIndex, QuotaId, SourceKey};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::abi::sources::{decode_key, encode_key};
use crate::abi::types::size;
use crate::error::StartError;
use crate::map::{self, Map, MapHandles, find_handle};

/// The value of each entry; only its key matters.
const PRESENT: u32 = 1;

fn family_map(maps: &MapHandles, family: Family) -> Result<&MapHandle, StartError> {
    find_handle(maps, if family == Family::V4 { Map::SourceRanges4 } else { Map::SourceRanges6 })
}

fn refuse_op(op: &'static str, cause: impl std::fmt::Display) -> MapError {
    MapError::Refused { op, cause: format!("{cause:#}") }
}

pub(super) fn insert_source(maps: &MapHandles, key: &SourceKey) -> Result<(), MapError> {
    let map = family_map(maps, key.range.family()).map_err(|error| refuse_op(INSERT, error))?;
    let inserted = map.update(&encode_key(key), &PRESENT.to_ne_bytes(), MapFlags::ANY);
    inserted.map_err(full_error)
}

/// The most sources of one family.
const SOURCES_MAX: usize = size::SOURCE_RANGES.0 as usize;

/// A namespace may have so many times the room that is left: one that is alone gets eight of nine parts.
const QUOTA_REST_FACTOR: usize = 8;

const INSERT: &str = "insert source";

fn full_error(cause: impl std::fmt::Display) -> MapError {
    refuse_op(INSERT, describe_limit(cause))
}

fn describe_limit(cause: impl std::fmt::Display) -> String {
    format!("{cause:#}; {SOURCES_MAX} of a family fit, each counted once for each port of its service")
}

pub(super) fn remove_source(maps: &MapHandles, key: &SourceKey) -> Result<(), MapError> {
    const OP: &str = "remove source";
    let map = family_map(maps, key.range.family()).map_err(|error| refuse_op(OP, error))?;
    match map.delete(&encode_key(key)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(refuse_op(OP, error)),
        _ => Ok(()),
    }
}

/// All sources in these maps, sorted. A key that no version of this daemon wrote is left out.
pub(super) fn read_sources(maps: &MapHandles) -> Result<Vec<SourceKey>, MapError> {
    let mut found = Vec::new();
    for family in Family::ALL {
        let map = family_map(maps, family).map_err(|error| refuse_op("read the maps", error))?;
        found.extend(map.keys().filter_map(|key| decode_key(family, &key)));
    }
    found.sort_unstable();
    Ok(found)
}

/// What the engine asked for, and the maps that hold it while packets are translated.
#[derive(Debug, Default)]
pub(super) struct SourceMaps {
    desired: BTreeMap<SourceKey, QuotaId>,
    /// How many of a family there are, in all and of each share.
    all: BTreeMap<Family, usize>,
    counts: BTreeMap<(Family, QuotaId), usize>,
    maps: Option<MapHandles>,
}

impl SourceMaps {
    /// Adopts what a former daemon left for programs that may still read it. Where it left nothing, there are no maps
    /// yet.
    pub(super) fn adopt(
        found: &MapHandles,
        shares: impl FnOnce() -> BTreeMap<PortIndex, QuotaId>,
    ) -> Result<Self, StartError> {
        let maps = source_maps(found)?;
        if maps.len() < MAPS.len() {
            return Ok(Self::default());
        }
        let told = read_sources(&maps)
            .map_err(|error| StartError::from_load(std::io::Error::other(error.to_string()).into()))?;
        let shares = if told.is_empty() { BTreeMap::new() } else { shares() };
        let mut this = Self { maps: Some(maps), ..Self::default() };
        told.into_iter()
            .for_each(|key| this.record_source(key, shares.get(&key.port).copied().unwrap_or_default()));
        Ok(this)
    }

    fn record_source(&mut self, key: SourceKey, share: QuotaId) {
        self.forget_source(&key);
        self.desired.insert(key, share);
        *self.all.entry(key.range.family()).or_default() += 1;
        *self.counts.entry((key.range.family(), share)).or_default() += 1;
    }

    fn forget_source(&mut self, key: &SourceKey) {
        let Some(share) = self.desired.remove(key) else { return };
        let place = (key.range.family(), share);
        *self.all.entry(place.0).or_default() -= 1;
        if let Some(count) = self.counts.get_mut(&place) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&place);
            }
        }
    }

    /// Why there is no room for another range of the services of a namespace; `None`: there is room.
    fn quota_error(&self, family: Family, share: QuotaId) -> Option<MapError> {
        let rest = SOURCES_MAX.saturating_sub(self.all.get(&family).copied().unwrap_or_default());
        let own = self.counts.get(&(family, share)).copied().unwrap_or_default();
        if rest == 0 {
            return Some(full_error("all are taken"));
        }
        let has_its_part = own >= QUOTA_REST_FACTOR * rest;
        has_its_part.then(|| {
            let cause = format!("the services of this namespace have {own}, and leave {rest} to the others");
            MapError::Quota { op: INSERT, cause: describe_limit(cause) }
        })
    }

    /// Begins to use these maps, in which programs look for sources from now on. Afterwards they hold what was asked
    /// for, and nothing else.
    pub(super) fn attach_maps(&mut self, given: &MapHandles) -> Result<(), StartError> {
        let failed = |error: MapError| StartError::from_load(std::io::Error::other(error.to_string()).into());
        let maps = source_maps(given)?;
        let found: BTreeSet<_> = read_sources(&maps).map_err(failed)?.into_iter().collect();
        let told: BTreeSet<_> = self.desired.keys().copied().collect();
        told.difference(&found).try_for_each(|key| insert_source(&maps, key)).map_err(failed)?;
        found.difference(&told).try_for_each(|key| remove_source(&maps, key)).map_err(failed)?;
        self.maps = Some(maps);
        Ok(())
    }

    /// Inserts a source. While there are no maps, no more are taken than the maps will hold, so that programs can begin
    /// with all of them.
    pub(super) fn insert(&mut self, key: &SourceKey, share: QuotaId) -> Result<(), MapError> {
        let no_room = || self.quota_error(key.range.family(), share);
        if let Some(why) = (!self.desired.contains_key(key)).then(no_room).flatten() {
            return Err(why);
        }
        self.maps.as_ref().map_or(Ok(()), |maps| insert_source(maps, key))?;
        self.record_source(*key, share);
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &SourceKey) -> Result<(), MapError> {
        self.maps.as_ref().map_or(Ok(()), |maps| remove_source(maps, key))?;
        self.forget_source(key);
        Ok(())
    }

    /// The sources in the maps that are of ports below this one; `None`: there are no maps.
    pub(super) fn read(&self, ports: u32) -> Result<Option<Vec<SourceKey>>, MapError> {
        let found = self.maps.as_ref().map(read_sources).transpose()?;
        Ok(found.map(|it| it.into_iter().filter(|key| key.port.0 < ports).collect()))
    }
}

const MAPS: [Map; 2] = [Map::SourceRanges4, Map::SourceRanges6];

fn source_maps(maps: &MapHandles) -> Result<MapHandles, StartError> {
    map::clone_handles(MAPS.iter().filter_map(|map| maps.get_key_value(map)))
}

#[cfg(test)]
mod tests;
