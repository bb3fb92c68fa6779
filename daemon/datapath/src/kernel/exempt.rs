//! The sockets that programs do not serve: of pods, of UDP, of subtrees of cgroups.
//!
//! Invariant: programs exempt only the configured subtrees, each from the first refresh after its creation. The kernel
//! never reuses an id, so an outdated id exempts no other cgroup.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use holdfast_status::datapath::ServedSockets;

use crate::abi::types::restriction;
use crate::cgroup;
use crate::error::StartError;
use crate::generation::open_counted_table;
use crate::map::{Map, MapHandles};
use crate::table::Table;

/// The bits that restrict which sockets programs serve.
pub(super) fn restriction_bits(served: &ServedSockets) -> u32 {
    let all = [
        (!served.pods, restriction::ONLY_HOST),
        (!served.udp, restriction::NOT_UDP),
        (!served.exempt_cgroups.is_empty(), restriction::NOT_SUBTREES),
    ];
    all.into_iter().filter(|(holds, _)| *holds).fold(0, |sum, (_, bit)| sum | bit.0)
}

#[derive(Debug)]
pub(super) struct ExemptSubtrees {
    served: ServedSockets,
    // The cgroup id of each path; `None`: there is no such cgroup.
    ids: Vec<Option<u64>>,
    map: Table,
}

impl ExemptSubtrees {
    pub(super) fn new(served: &ServedSockets, maps: &MapHandles) -> Result<Self, StartError> {
        Ok(Self {
            served: served.clone(),
            ids: Vec::new(),
            map: open_counted_table(maps, Map::ExemptCgroups)?,
        })
    }

    /// Finds the existing subtrees and writes their ids for the programs.
    pub(super) fn refresh(&mut self) -> Result<(), StartError> {
        let paths = &self.served.exempt_cgroups;
        if paths.is_empty() && self.map.used() == 0 {
            return Ok(());
        }
        let root = if paths.is_empty() { None } else { cgroup::hierarchy_root() };
        self.ids = paths.iter().map(|path| cgroup_id(root.as_deref()?, path)).collect();
        let map = Map::ExemptCgroups.name();
        let failed = |source| StartError::Map { attempt: "write", map, source };
        self.write_ids().map_err(|error| failed(std::io::Error::other(format!("{error:#}"))))
    }

    /// Writes the ids into the map, and removes all others.
    fn write_ids(&mut self) -> Result<(), libbpf_rs::Error> {
        let wanted: BTreeSet<_> = self.ids.iter().flatten().map(|id| id.to_ne_bytes()).collect();
        let entries = self.map.entries().map_err(libbpf_rs::Error::from)?;
        let found: BTreeSet<[u8; 8]> =
            entries.iter().filter_map(|(key, _)| key.as_ref().try_into().ok()).collect();
        for id in found.difference(&wanted) {
            self.map.remove(id)?;
        }
        for id in wanted.difference(&found) {
            self.map.put(id, &1_u32.to_ne_bytes())?;
        }
        Ok(())
    }

    pub(super) const fn served_sockets(&self) -> &ServedSockets {
        &self.served
    }

    /// The paths without a cgroup.
    pub(super) fn absent_cgroups(&self) -> Vec<PathBuf> {
        let paths = self.served.exempt_cgroups.iter().zip(&self.ids);
        paths.filter(|(_, id)| id.is_none()).map(|(path, _)| path.clone()).collect()
    }
}

fn cgroup_id(root: &Path, path: &Path) -> Option<u64> {
    let found = fs::metadata(root.join(path.strip_prefix("/").unwrap_or(path))).ok()?;
    let is_cgroup = found.is_dir() && found.dev() == fs::metadata(root).ok()?.dev();
    is_cgroup.then(|| found.ino())
}
