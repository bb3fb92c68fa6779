//! The sources of load-balancer addresses, which programs at devices alone read.
//!
//! Invariant: what the engine asked for is known here, so that it is in the maps before the first program looks for it,
//! however late programs are loaded. What a former daemon's programs read is never taken from them by a start.

use std::collections::BTreeSet;

use holdfast_core::keys::Family;
use holdfast_core::maps::MapError;
use holdfast_core::op::SourceKey;
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::abi::sources::{key_bytes, key_of};
use crate::abi::types::size;
use crate::error::StartError;
use crate::map::{self, Handles, Map, handle};

/// What stands behind each key.
const IS_THERE: u32 = 1;

fn map_of(maps: &Handles, family: Family) -> Result<&MapHandle, StartError> {
    handle(maps, if family == Family::V4 { Map::SourceRanges4 } else { Map::SourceRanges6 })
}

fn refused(op: &'static str, cause: impl std::fmt::Display) -> MapError {
    MapError::Refused { op, cause: format!("{cause:#}") }
}

pub(super) fn insert(maps: &Handles, key: &SourceKey) -> Result<(), MapError> {
    let map = map_of(maps, key.range.family()).map_err(|error| refused(INSERT, error))?;
    let inserted = map.update(&key_bytes(key), &IS_THERE.to_ne_bytes(), MapFlags::ANY);
    inserted.map_err(full)
}

/// The most sources of one family.
const MOST: usize = size::SOURCE_RANGES.0 as usize;

const INSERT: &str = "insert source";

fn full(cause: impl std::fmt::Display) -> MapError {
    let counted = format!("{MOST} of a family fit, each counted once for each port of its service");
    refused(INSERT, format!("{cause:#}; {counted}"))
}

pub(super) fn remove(maps: &Handles, key: &SourceKey) -> Result<(), MapError> {
    const OP: &str = "remove source";
    let map = map_of(maps, key.range.family()).map_err(|error| refused(OP, error))?;
    match map.delete(&key_bytes(key)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(refused(OP, error)),
        _ => Ok(()),
    }
}

/// All that are there, sorted. What no version of this daemon wrote is left out.
pub(super) fn all(maps: &Handles) -> Result<Vec<SourceKey>, MapError> {
    let mut found = Vec::new();
    for family in Family::ALL {
        let map = map_of(maps, family).map_err(|error| refused("read the maps", error))?;
        found.extend(map.keys().filter_map(|key| key_of(family, &key)));
    }
    found.sort_unstable();
    Ok(found)
}

/// What the engine asked for, and the maps that hold it while packets are translated.
#[derive(Debug, Default)]
pub(super) struct Sources {
    told: BTreeSet<SourceKey>,
    maps: Option<Handles>,
}

impl Sources {
    /// What a former daemon left for programs that may still read it. Where it left nothing, there are no maps yet.
    pub(super) fn adopt(found: &Handles) -> Result<Self, StartError> {
        let maps = own(found)?;
        if maps.len() < MAPS.len() {
            return Ok(Self::default());
        }
        let told =
            all(&maps).map_err(|error| StartError::Load(std::io::Error::other(error.to_string()).into()))?;
        Ok(Self { told: told.into_iter().collect(), maps: Some(maps) })
    }

    /// From now on programs look for them here. Afterwards the maps hold what was asked for, and nothing else.
    pub(super) fn begin(&mut self, given: &Handles) -> Result<(), StartError> {
        let failed = |error: MapError| StartError::Load(std::io::Error::other(error.to_string()).into());
        let maps = own(given)?;
        let found: BTreeSet<_> = all(&maps).map_err(failed)?.into_iter().collect();
        self.told.difference(&found).try_for_each(|key| insert(&maps, key)).map_err(failed)?;
        found.difference(&self.told).try_for_each(|key| remove(&maps, key)).map_err(failed)?;
        self.maps = Some(maps);
        Ok(())
    }

    /// Without maps no more is taken than they will hold, so that programs can begin with all of it.
    pub(super) fn insert(&mut self, key: &SourceKey) -> Result<(), MapError> {
        match &self.maps {
            Some(maps) => insert(maps, key)?,
            None if self.told.len() >= MOST => {
                return Err(full("as many as there is room for wait for the maps"));
            }
            None => {}
        }
        self.told.insert(*key);
        Ok(())
    }

    pub(super) fn remove(&mut self, key: &SourceKey) -> Result<(), MapError> {
        self.maps.as_ref().map_or(Ok(()), |maps| remove(maps, key))?;
        self.told.remove(key);
        Ok(())
    }

    /// What the maps hold of ports below this one; `None`: there are none.
    pub(super) fn read(&self, ports: u32) -> Result<Option<Vec<SourceKey>>, MapError> {
        let found = self.maps.as_ref().map(all).transpose()?;
        Ok(found.map(|it| it.into_iter().filter(|key| key.port.0 < ports).collect()))
    }
}

const MAPS: [Map; 2] = [Map::SourceRanges4, Map::SourceRanges6];

fn own(maps: &Handles) -> Result<Handles, StartError> {
    map::copies(MAPS.iter().filter_map(|map| maps.get_key_value(map)))
}

#[cfg(test)]
mod tests;
