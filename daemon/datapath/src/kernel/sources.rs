//! The source ranges of load balancers, which only programs at devices read.
//!
//! Invariant: this module keeps the engine's ranges, so the maps hold them before the first program reads them, however
//! late programs load. A start never takes ranges from a former daemon's programs. One quota cannot fill the maps: it
//! holds at most [`QUOTA_REST_FACTOR`] times the free space, so others find space.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::keys::Family;
use holdfast_core::maps::MapError;
use holdfast_core::op::{PortIndex, QuotaId, SourceKey};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::abi::sources::{decode_key, encode_key};
use crate::abi::types::size;
use crate::error::StartError;
use crate::map::{self, Map, MapHandles, find_handle};

/// The value of each entry; only the key matters.
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

const SOURCES_MAX: usize = size::SOURCE_RANGES.0 as usize;

/// A quota may hold so many times the free space: one that is alone gets eight ninths.
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

/// All sources in these maps, sorted. Keys that this daemon did not write are left out.
pub(super) fn read_sources(maps: &MapHandles) -> Result<Vec<SourceKey>, MapError> {
    let mut found = Vec::new();
    for family in Family::ALL {
        let map = family_map(maps, family).map_err(|error| refuse_op("read the maps", error))?;
        found.extend(map.keys().filter_map(|key| decode_key(family, &key)));
    }
    found.sort_unstable();
    Ok(found)
}

/// The engine's sources, and the maps that hold them while packets are translated.
#[derive(Debug, Default)]
pub(super) struct SourceMaps {
    desired: BTreeMap<SourceKey, QuotaId>,
    /// The number of sources of a family, in total and per quota.
    all: BTreeMap<Family, usize>,
    counts: BTreeMap<(Family, QuotaId), usize>,
    maps: Option<MapHandles>,
}

impl SourceMaps {
    /// Adopts the maps of a former daemon; its programs may still read them. Without them, it starts without maps.
    pub(super) fn adopt(
        found: &MapHandles,
        quotas: impl FnOnce() -> BTreeMap<PortIndex, QuotaId>,
    ) -> Result<Self, StartError> {
        let maps = source_maps(found)?;
        if maps.len() < MAPS.len() {
            return Ok(Self::default());
        }
        let found = read_sources(&maps)
            .map_err(|error| StartError::from_load(std::io::Error::other(error.to_string()).into()))?;
        let quotas = if found.is_empty() { BTreeMap::new() } else { quotas() };
        let mut this = Self { maps: Some(maps), ..Self::default() };
        found
            .into_iter()
            .for_each(|key| this.record_source(key, quotas.get(&key.port).copied().unwrap_or_default()));
        Ok(this)
    }

    fn record_source(&mut self, key: SourceKey, quota: QuotaId) {
        self.forget_source(&key);
        self.desired.insert(key, quota);
        *self.all.entry(key.range.family()).or_default() += 1;
        *self.counts.entry((key.range.family(), quota)).or_default() += 1;
    }

    fn forget_source(&mut self, key: &SourceKey) {
        let Some(quota) = self.desired.remove(key) else { return };
        let family = key.range.family();
        *self.all.entry(family).or_default() -= 1;
        if let Some(count) = self.counts.get_mut(&(family, quota)) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&(family, quota));
            }
        }
    }

    /// Why a quota gets no further range; `None`: there is space.
    fn quota_error(&self, family: Family, quota: QuotaId) -> Option<MapError> {
        let rest = SOURCES_MAX.saturating_sub(self.all.get(&family).copied().unwrap_or_default());
        let own = self.counts.get(&(family, quota)).copied().unwrap_or_default();
        if rest == 0 {
            return Some(full_error("all are taken"));
        }
        let is_over_quota = own >= QUOTA_REST_FACTOR * rest;
        is_over_quota.then(|| {
            let cause = format!("the services of this namespace have {own}, and leave {rest} to the others");
            MapError::Quota { op: INSERT, cause: describe_limit(cause) }
        })
    }

    /// Writes the desired sources into these maps, and removes all others. Programs read them from now on.
    pub(super) fn attach_maps(&mut self, given: &MapHandles) -> Result<(), StartError> {
        let failed = |error: MapError| StartError::from_load(std::io::Error::other(error.to_string()).into());
        let maps = source_maps(given)?;
        let found: BTreeSet<_> = read_sources(&maps).map_err(failed)?.into_iter().collect();
        let desired: BTreeSet<_> = self.desired.keys().copied().collect();
        desired.difference(&found).try_for_each(|key| insert_source(&maps, key)).map_err(failed)?;
        found.difference(&desired).try_for_each(|key| remove_source(&maps, key)).map_err(failed)?;
        self.maps = Some(maps);
        Ok(())
    }

    /// Inserts a source. Without maps it accepts only as many as they will hold, so that programs can start with all.
    pub(super) fn insert(&mut self, key: &SourceKey, quota: QuotaId) -> Result<(), MapError> {
        let quota_error = || self.quota_error(key.range.family(), quota);
        if let Some(why) = (!self.desired.contains_key(key)).then(quota_error).flatten() {
            return Err(why);
        }
        self.maps.as_ref().map_or(Ok(()), |maps| insert_source(maps, key))?;
        self.record_source(*key, quota);
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &SourceKey) -> Result<(), MapError> {
        self.maps.as_ref().map_or(Ok(()), |maps| remove_source(maps, key))?;
        self.forget_source(key);
        Ok(())
    }

    /// The sources of ports below `ports` in the maps; `None`: there are no maps.
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
