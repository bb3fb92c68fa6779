//! `[datapath]`: what carries the traffic, for whom, and how much of it.

use std::path::PathBuf;

use super::limits::{DATAPATH_BACKENDS, DATAPATH_FRONTENDS, DATAPATH_SERVICES};
use super::service::Protocol;
use super::table::{Items, Table, WhenEmpty};
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

/// Whose sockets are ended when their backend leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// Those of the host's network namespace.
    Host,
    /// Those of pods too.
    All,
}

impl Word for Namespaces {
    const WORDS: &'static [(&'static str, Self)] = &[("host", Self::Host), ("all", Self::All)];
}

/// Which sockets are ended when their backend leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleSockets {
    /// Of these protocols, in the order of the words; none: no socket.
    pub protocols: Vec<Protocol>,
    /// In these network namespaces.
    pub namespaces: Namespaces,
}

impl Default for StaleSockets {
    fn default() -> Self {
        // A UDP client never notices by itself; a TCP connection may end well without help.
        Self { protocols: vec![Protocol::Udp], namespaces: Namespaces::Host }
    }
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
    /// Which sockets are ended when their backend leaves.
    pub stale_sockets: StaleSockets,
}

impl Default for Datapath {
    fn default() -> Self {
        // Ten times the largest clusters that Kubernetes is tested with; maps grow up to it, so it costs nothing.
        let limits = DatapathLimits { services: 100_000, frontends: 500_000, backends: 4_000_000 };
        let bpffs = PathBuf::from("/sys/fs/bpf/holdfast");
        let stale_sockets = StaleSockets::default();
        Self { kind: DatapathKind::Kernel, cgroup: Cgroup::Auto, bpffs, limits, stale_sockets }
    }
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Datapath {
    let default = Datapath::default();
    Datapath {
        kind: table.take("kind", word).unwrap_or(default.kind),
        cgroup: read_cgroup(table).unwrap_or(default.cgroup),
        bpffs: table.path("bpffs").map_or(default.bpffs, |found| found.value),
        limits: table.table("limits", |limits| read_limits(limits, default.limits)),
        stale_sockets: table.table("stale_sockets", |sockets| read_sockets(sockets, default.stale_sockets)),
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

const PROTOCOLS: Items =
    Items { what: "the words TCP, UDP", when_empty: WhenEmpty::Fine, most: Protocol::WORDS.len() };

fn read_sockets(table: &mut Table<'_, '_, '_>, default: StaleSockets) -> StaleSockets {
    let protocols = table.list("protocols", &PROTOCOLS, word).map(|found| {
        let mut distinct: Vec<Protocol> = found.into_iter().map(|found| found.value).collect();
        distinct.sort_unstable();
        distinct.dedup();
        distinct
    });
    StaleSockets {
        protocols: protocols.unwrap_or(default.protocols),
        namespaces: table.take("namespaces", word).unwrap_or(default.namespaces),
    }
}
