//! All maps of the programs: name, scope, size.
//!
//! Invariant: these are exactly the maps of `bpf/maps.h`, `bpf/packet_maps.h` and the other headers. Their names appear
//! nowhere else in this crate.

use std::collections::BTreeMap;
use std::io;

use holdfast_status::datapath::MapSizes;
use libbpf_rs::MapHandle;

use crate::abi::types;
use crate::error::StartError;
use crate::shape::PROBE_ENTRIES;

/// Where a map is pinned, which decides how long it lives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapScope {
    /// In one generation: growth creates it anew with so many entries.
    Generation(fn(&MapSizes) -> u32),
    /// For all generations of a version, sized by `bpf/maps.h`.
    Shared,
    /// With sockets, across versions of the other maps.
    Sockets,
    /// For packets, for all generations of a version.
    Packets,
    /// With flows, across versions of the other maps; sized for so many flows.
    Flows(fn(u32) -> u32),
    /// In the set of their programs: temporary state.
    Programs,
}

/// The sizes of maps to create.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MapSize {
    Generation(MapSizes),
    Flows(u32),
}

/// The entries per flow with a backend on another node; other flows have one less.
const ENTRIES_PER_FLOW: u32 = 3;

macro_rules! maps {
    ($($map:ident, $name:literal, $scope:expr;)+) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub(crate) enum Map {
            $($map),+
        }

        impl Map {
            const ALL: &[Self] = &[$(Self::$map),+];

            /// The name of the map in `bpf/`, and of its pin.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$map => $name),+
                }
            }

            fn scope(self) -> MapScope {
                match self {
                    $(Self::$map => $scope),+
                }
            }
        }
    };
}

maps! {
    Frontends4, "frontends4", MapScope::Generation(|shape| shape.frontends[0]);
    Frontends6, "frontends6", MapScope::Generation(|shape| shape.frontends[1]);
    Ports, "ports", MapScope::Generation(|shape| shape.ports + PROBE_ENTRIES);
    Backends4, "backends4", MapScope::Generation(|shape| shape.slots[0] + PROBE_ENTRIES);
    Backends6, "backends6", MapScope::Generation(|shape| shape.slots[1] + PROBE_ENTRIES);
    Members, "members", MapScope::Generation(|shape| shape.members);
    NodeAddresses4, "node_addresses4", MapScope::Shared;
    NodeAddresses6, "node_addresses6", MapScope::Shared;
    ClusterIps4, "cluster_ips4", MapScope::Shared;
    ClusterIps6, "cluster_ips6", MapScope::Shared;
    ExemptCgroups, "exempt_cgroups", MapScope::Shared;
    NodePorts, "node_ports", MapScope::Shared;
    FrontendBlocks, "frontend_blocks", MapScope::Shared;
    Affinity, "affinity", MapScope::Shared;
    Reverse, "reverse", MapScope::Shared;
    Refusals, "refusals", MapScope::Shared;
    RefusalPaces, "refusal_paces", MapScope::Shared;
    Control, "control", MapScope::Shared;
    UdpSockets, "udp_sockets", MapScope::Sockets;
    Fragments, "fragments", MapScope::Packets;
    Devices, "devices", MapScope::Packets;
    SourceRanges4, "source_ranges4", MapScope::Packets;
    SourceRanges6, "source_ranges6", MapScope::Packets;
    OwnTalks, "own_talks", MapScope::Packets;
    PacketPorts, "packet_ports", MapScope::Packets;
    PacketSettings, "packet_settings", MapScope::Packets;
    PacketCounts, "packet_counts", MapScope::Packets;
    PacketPace, "packet_pace", MapScope::Packets;
    Clients, "clients", MapScope::Packets;
    FlowCounts, "flow_counts", MapScope::Packets;
    Scratch, "scratch_map", MapScope::Programs;
    FlowPaths, "flow_paths", MapScope::Programs;
    XdpDropHints, "xdp_drop_hints", MapScope::Programs;
    FibCache, "fib_cache", MapScope::Programs;
    EncapMtus, "encap_mtus", MapScope::Programs;
    UnknownSegments, "unknown_segments", MapScope::Programs;
    Flows, "flow_table", MapScope::Flows(|flows| flows);
    Entries4, "entries4", MapScope::Flows(|flows| flows.saturating_mul(ENTRIES_PER_FLOW));
    Entries6, "entries6", MapScope::Flows(|flows| flows.saturating_mul(ENTRIES_PER_FLOW));
    FreeFlows, "free_flows", MapScope::Flows(|flows| flows);
    BackendPorts, "backend_ports", MapScope::Flows(|_| 1);
    OpeningFlows, "opening_flows", MapScope::Flows(|_| types::size::OPENING_FLOWS.0);
}

impl Map {
    /// The map of that name; `None`: it is libbpf's own, for constants.
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|map| map.name() == name)
    }

    /// The number of entries to create; `None`: as in its header.
    pub(crate) fn max_entries(self, size: MapSize) -> Option<u32> {
        match (self.scope(), size) {
            (MapScope::Generation(entries), MapSize::Generation(shape)) => Some(entries(&shape)),
            (MapScope::Flows(entries), MapSize::Flows(flows)) => Some(entries(flows)),
            _ => None,
        }
    }

    pub(crate) fn generation_maps() -> impl Iterator<Item = Self> {
        Self::in_scopes(|scope| matches!(scope, MapScope::Generation(_)))
    }

    /// The maps that all generations of a version share.
    pub(crate) fn shared_maps() -> impl Iterator<Item = Self> {
        Self::in_scopes(|scope| matches!(scope, MapScope::Shared))
    }

    /// The maps that all versions share, kept with sockets.
    pub(crate) fn socket_maps() -> impl Iterator<Item = Self> {
        Self::in_scopes(|scope| matches!(scope, MapScope::Sockets))
    }

    pub(crate) fn packet_maps() -> impl Iterator<Item = Self> {
        Self::in_scopes(|scope| matches!(scope, MapScope::Packets))
    }

    /// The maps of flows and their entries.
    pub(crate) fn flow_maps() -> impl Iterator<Item = Self> {
        Self::in_scopes(|scope| matches!(scope, MapScope::Flows(_)))
    }

    /// The maps that end with the programs which use them.
    pub(crate) fn program_maps() -> impl Iterator<Item = Self> {
        Self::in_scopes(|scope| matches!(scope, MapScope::Programs))
    }

    pub(crate) fn is_flow_map(self) -> bool {
        matches!(self.scope(), MapScope::Flows(_))
    }

    fn in_scopes(wanted: fn(MapScope) -> bool) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |map| wanted(map.scope()))
    }
}

pub(crate) type MapHandles = BTreeMap<Map, MapHandle>;

pub(crate) fn clone_handles<'a>(
    maps: impl IntoIterator<Item = (&'a Map, &'a MapHandle)>,
) -> Result<MapHandles, StartError> {
    let copy = |(map, handle): (&Map, &MapHandle)| Ok((*map, MapHandle::try_from(handle)?));
    maps.into_iter().map(copy).collect::<Result<_, libbpf_rs::Error>>().map_err(StartError::from_load)
}

/// The handle of one map, or an error.
pub(crate) fn find_handle(maps: &MapHandles, map: Map) -> Result<&MapHandle, StartError> {
    let source = || io::ErrorKind::NotFound.into();
    maps.get(&map).ok_or_else(|| StartError::Map { attempt: "find", map: map.name(), source: source() })
}

#[cfg(test)]
mod tests {
    mod layouts;

    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::load;

    #[test]
    fn the_table_lists_exactly_the_maps_of_the_programs() {
        let names: BTreeSet<_> = Map::ALL.iter().map(|map| map.name().to_owned()).collect();
        assert_eq!(names.len(), Map::ALL.len(), "a duplicate name");
        assert_eq!(names, load::map_names().unwrap());
        assert!(Map::ALL.iter().all(|map| Map::from_name(map.name()) == Some(*map)));
        let pinned = Map::generation_maps().chain(Map::shared_maps()).chain(Map::socket_maps());
        let pinned = pinned.chain(Map::packet_maps()).chain(Map::flow_maps());
        assert_eq!(
            pinned.chain(Map::program_maps()).count(),
            Map::ALL.len(),
            "each is pinned in one folder, or with its programs"
        );
    }

    #[test]
    fn a_map_of_a_generation_has_the_size_of_its_shape() {
        let shape = MapSizes { frontends: [1, 2], ports: 3, slots: [4, 5], members: 6 };
        let entries: Vec<_> =
            Map::generation_maps().filter_map(|map| map.max_entries(MapSize::Generation(shape))).collect();
        assert_eq!(entries, [1, 2, 3 + PROBE_ENTRIES, 4 + PROBE_ENTRIES, 5 + PROBE_ENTRIES, 6]);
        assert!(
            Map::shared_maps().all(|map| map.max_entries(MapSize::Generation(shape)).is_none()),
            "shared maps keep their size"
        );
    }

    #[test]
    fn entry_maps_hold_three_entries_per_flow() {
        for entries in [Map::Entries4, Map::Entries6] {
            assert_eq!(entries.max_entries(MapSize::Flows(1_000)), Some(3_000));
        }
    }

    fn sources(folder: &Path) -> Vec<PathBuf> {
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        paths.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] }).collect()
    }

    /// Whether a line may name a map: some reasons of dropped packets have the same names.
    fn may_name_map(line: &str) -> bool {
        !line.contains("packet_count::") && !line.trim_start().starts_with("Ports = ")
    }

    #[test]
    fn no_other_file_contains_the_name_of_a_map() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let is_other = |path: &&PathBuf| {
            !path.ends_with("src/map.rs")
                && !path.ends_with("flows/tests/found.rs")
                && !path.ends_with("map/tests/layouts.rs")
        };
        for path in sources(&folder).iter().filter(is_other) {
            let text = std::fs::read_to_string(path).unwrap();
            let names_map = |map: &&Map| {
                let name = format!("\"{}\"", map.name());
                text.lines().any(|line| may_name_map(line) && line.contains(&name))
            };
            assert_eq!(Map::ALL.iter().find(names_map), None, "in {}", path.display());
        }
    }
}
