//! `[datapath]`: what carries the traffic, for which processes, and how much of it.

use std::path::PathBuf;

use holdfast_core::words;
pub use holdfast_status::views::datapath::DatapathKind;
use toml::de::DeValue;

use super::limits::{
    CGROUP_LEVELS_MAX, DATAPATH_BACKENDS, DATAPATH_FRONTENDS, DATAPATH_SERVICES, EXEMPT_CGROUPS_MAX,
};
use super::table::{Items, Table, WhenEmpty};
use super::value::{boolean, integer, path_text, quote, string, word};

/// The cgroup of the processes that get the services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroup {
    /// The root of the host's cgroup v2 hierarchy.
    Auto,
    Path(PathBuf),
}

words! {
    /// Which sockets are served.
    pub enum Sockets {
        /// The sockets of the host and of all pods.
        All = "all",
        /// The sockets of the host's network namespace.
        Host = "host",
    }
}

/// A cgroup by its path from the root of the hierarchy; never the root itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CgroupPath(String);

impl CgroupPath {
    /// The path as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// How much the datapath may hold. What comes beyond is refused by name; the rest goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatapathLimits {
    pub services: u32,
    /// Addresses and ports that clients dial.
    pub frontends: u32,
    /// Slots in the lists of all ports.
    pub backends: u32,
}

words! {
    /// In which network namespaces sockets are ended when their backend leaves.
    pub enum Namespaces {
        /// In that of the host.
        Host = "host",
        /// In those of pods too.
        All = "all",
    }
}

words! {
    /// A protocol of sockets that are served.
    #[derive(PartialOrd, Ord)]
    pub enum Protocol {
        Tcp = "TCP",
        Udp = "UDP",
    }
}

/// Which sockets are ended when their backend leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleSockets {
    /// Sockets of these protocols, in the order of the words; none: no socket is ended.
    pub protocols: Vec<Protocol>,
    /// Sockets in these network namespaces.
    pub namespaces: Namespaces,
}

impl Default for StaleSockets {
    fn default() -> Self {
        // A UDP client never notices by itself; a TCP connection may end well without help.
        Self { protocols: vec![Protocol::Udp], namespaces: Namespaces::Host }
    }
}

/// The table `[datapath]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datapath {
    /// What carries the traffic.
    pub kind: DatapathKind,
    /// The cgroup of the processes that get the services.
    pub cgroup: Cgroup,
    /// The folder on a BPF file system under which everything is pinned.
    pub bpffs: PathBuf,
    /// How much the datapath may hold.
    pub limits: DatapathLimits,
    /// Which sockets are ended when their backend leaves.
    pub stale_sockets: StaleSockets,
    /// Which sockets are served.
    pub sockets: Sockets,
    /// Whether datagrams are served by sockets.
    pub udp_sockets: bool,
    /// Processes in these cgroups and in those below them are left alone.
    pub exempt_cgroups: Vec<CgroupPath>,
}

impl Default for Datapath {
    fn default() -> Self {
        // Ten times what the largest clusters have that Kubernetes is tested with. Maps grow up to these limits, so
        // high limits cost nothing.
        let limits = DatapathLimits { services: 100_000, frontends: 500_000, backends: 4_000_000 };
        let bpffs = PathBuf::from("/sys/fs/bpf/holdfast");
        let stale_sockets = StaleSockets::default();
        Self {
            kind: DatapathKind::Kernel,
            cgroup: Cgroup::Auto,
            bpffs,
            limits,
            stale_sockets,
            sockets: Sockets::All,
            udp_sockets: true,
            exempt_cgroups: Vec::new(),
        }
    }
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Datapath {
    let default = Datapath::default();
    Datapath {
        kind: table.take("kind", word).unwrap_or(default.kind),
        cgroup: read_cgroup(table).unwrap_or(default.cgroup),
        bpffs: table.path("bpffs").map_or(default.bpffs, |found| found.value),
        sockets: table.take("sockets", word).unwrap_or(default.sockets),
        udp_sockets: table.take("udp_sockets", boolean).unwrap_or(default.udp_sockets),
        exempt_cgroups: read_exempt(table),
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

const EXEMPT: Items =
    Items { what: "cgroups such as \"/kata.slice\"", when_empty: WhenEmpty::Fine, most: EXEMPT_CGROUPS_MAX };

fn read_exempt(table: &mut Table<'_, '_, '_>) -> Vec<CgroupPath> {
    let found = table.list("exempt_cgroups", &EXEMPT, cgroup_path).unwrap_or_default();
    let mut distinct: Vec<_> = found.into_iter().map(|found| found.value).collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

fn cgroup_path(value: &DeValue<'_>) -> Result<CgroupPath, String> {
    let text = string(value, "a cgroup such as \"/kata.slice\"")?;
    let levels: Option<Vec<&str>> = text.strip_prefix('/').map(|rest| rest.split('/').collect());
    let is_level = |level: &str| !matches!(level, "" | "." | "..") && !level.contains('\0');
    match levels {
        Some(levels) if levels.iter().all(|level| is_level(level)) && levels.len() <= CGROUP_LEVELS_MAX => {
            Ok(CgroupPath(text.to_owned()))
        }
        _ => Err(format!(
            "{} is not a cgroup below the root: write its path from there, at most {CGROUP_LEVELS_MAX} levels, as in \
             \"/kata.slice\"",
            quote(text)
        )),
    }
}

fn read_limits(table: &mut Table<'_, '_, '_>, default: DatapathLimits) -> DatapathLimits {
    DatapathLimits {
        services: table.take("services", integer(DATAPATH_SERVICES)).unwrap_or(default.services),
        frontends: table.take("frontends", integer(DATAPATH_FRONTENDS)).unwrap_or(default.frontends),
        backends: table.take("backends", integer(DATAPATH_BACKENDS)).unwrap_or(default.backends),
    }
}

const PROTOCOLS: Items =
    Items { what: "the words TCP, UDP", when_empty: WhenEmpty::Fine, most: Protocol::ALL.len() };

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
