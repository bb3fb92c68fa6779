//! `[datapath]`: what carries the traffic, for whom, and how much of it.

use std::path::PathBuf;

use super::limits::{DATAPATH_BACKENDS, DATAPATH_FRONTENDS, DATAPATH_SERVICES};
use super::table::Table;
use super::value::{Word, integer, path_text, word};

/// What carries the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatapathKind {
    /// eBPF programs in the kernel.
    Kernel,
    /// Tables in memory: everything is computed and shown, no traffic is touched.
    Memory,
}

impl Word for DatapathKind {
    const WORDS: &'static [(&'static str, Self)] = &[("kernel", Self::Kernel), ("memory", Self::Memory)];
}

/// The cgroup whose processes get the services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroup {
    /// The root of the host's cgroup v2 hierarchy.
    Auto,
    /// This folder.
    Path(PathBuf),
}

/// How much the datapath may hold. What comes beyond is refused by name; the rest goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatapathLimits {
    /// Services.
    pub services: u32,
    /// Addresses and ports that clients dial.
    pub frontends: u32,
    /// Places in the lists of all ports.
    pub backends: u32,
}

/// `[datapath]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datapath {
    /// What carries the traffic.
    pub kind: DatapathKind,
    /// The cgroup whose processes get the services.
    pub cgroup: Cgroup,
    /// The folder on a BPF file system under which everything is pinned.
    pub bpffs: PathBuf,
    /// How much the datapath may hold.
    pub limits: DatapathLimits,
}

impl Default for Datapath {
    fn default() -> Self {
        // Ten times the largest clusters that Kubernetes is tested with; maps grow up to it, so it costs nothing.
        let limits = DatapathLimits { services: 100_000, frontends: 500_000, backends: 4_000_000 };
        let bpffs = PathBuf::from("/sys/fs/bpf/holdfast");
        Self { kind: DatapathKind::Kernel, cgroup: Cgroup::Auto, bpffs, limits }
    }
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Datapath {
    let default = Datapath::default();
    Datapath {
        kind: table.take("kind", word).unwrap_or(default.kind),
        cgroup: read_cgroup(table).unwrap_or(default.cgroup),
        bpffs: table.path("bpffs").map_or(default.bpffs, |found| found.value),
        limits: table.table("limits", |limits| read_limits(limits, default.limits)),
    }
}

fn read_cgroup(table: &mut Table<'_, '_, '_>) -> Option<Cgroup> {
    let text = table.take("cgroup", path_text)?;
    Some(match text.as_str() {
        "auto" => Cgroup::Auto,
        path => Cgroup::Path(table.report().resolve(path)),
    })
}

fn read_limits(table: &mut Table<'_, '_, '_>, default: DatapathLimits) -> DatapathLimits {
    DatapathLimits {
        services: table.take("services", integer(DATAPATH_SERVICES)).unwrap_or(default.services),
        frontends: table.take("frontends", integer(DATAPATH_FRONTENDS)).unwrap_or(default.frontends),
        backends: table.take("backends", integer(DATAPATH_BACKENDS)).unwrap_or(default.backends),
    }
}
