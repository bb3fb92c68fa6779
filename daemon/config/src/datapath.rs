//! `[datapath]`: the carrier of the traffic, its processes and its limits.

use std::path::PathBuf;

use holdfast_core::words;
pub use holdfast_status::views::datapath::DatapathKind;
use toml::Value;
use toml::de::DeValue;

use super::keys::{Keys as _, show_table, table, take, take_path, take_table};
use super::limits::{
    CGROUP_LEVELS_MAX, DATAPATH_BACKENDS, DATAPATH_FRONTENDS, DATAPATH_SERVICES, EXEMPT_CGROUPS_MAX,
};
use super::show;
use super::table::{ListRule, LocatedValue, Table, WhenEmpty};
use super::value::{boolean, integer, path_text, quote, string, word};

/// The cgroup of the processes that use the services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cgroup {
    /// The root of the host's cgroup v2 hierarchy.
    Auto,
    Path(PathBuf),
}

words! {
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
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for CgroupPath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

table! {
    /// The capacity of the datapath. Entries beyond it are rejected by name; the rest goes on.
    // The defaults are ten times the largest clusters with which Kubernetes is tested. Maps grow up to these limits, so
    // high limits cost nothing.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct DatapathLimits "datapath.limits" {
        services: u32 = 100_000, take(integer(DATAPATH_SERVICES)), show::scalar, restart;
        /// Addresses and ports that clients dial.
        frontends: u32 = 500_000, take(integer(DATAPATH_FRONTENDS)), show::scalar, restart;
        /// Slots in the lists of all ports.
        backends: u32 = 4_000_000, take(integer(DATAPATH_BACKENDS)), show::scalar, restart;
    }
}

words! {
    /// The daemon ends sockets in these network namespaces when their backend leaves.
    pub enum Namespaces {
        /// In that of the host.
        Host = "host",
        /// In those of pods too.
        All = "all",
    }
}

words! {
    /// A protocol of served sockets.
    #[derive(PartialOrd, Ord)]
    pub enum Protocol {
        Tcp = "TCP",
        Udp = "UDP",
    }
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct StaleSockets "datapath.stale_sockets" {
        /// Sockets of these protocols, in the order of the words; empty: no socket is ended.
        // A UDP client never notices by itself; a TCP connection may end well without help.
        protocols: Vec<Protocol> = vec![Protocol::Udp], take_protocols, show::list, restart;
        namespaces: Namespaces = Namespaces::Host, take(word), show::word, restart;
    }
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Datapath "datapath" {
        kind: DatapathKind = DatapathKind::Kernel, take(word), show::word, restart;
        cgroup: Cgroup = Cgroup::Auto, take_cgroup, show_cgroup, restart;
        /// The folder on a BPF file system for all pins.
        bpffs: PathBuf = "/sys/fs/bpf/holdfast".into(), take_path, show::path, restart;
        limits: DatapathLimits = DatapathLimits::default(), take_table, show_table, inner;
        stale_sockets: StaleSockets = StaleSockets::default(), take_table, show_table, inner;
        sockets: Sockets = Sockets::All, take(word), show::word, restart;
        /// Whether UDP sockets are served.
        udp_sockets: bool = true, take(boolean), show::scalar, restart;
        /// Processes in these cgroups and below are not served.
        exempt_cgroups: Vec<CgroupPath> = Vec::new(), take_exempt, show::filled_list, restart;
    }
}

/// Reads the table. Messages list its subtables last.
pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Datapath {
    table.list_keys_first(&["kind", "cgroup", "bpffs", "sockets", "udp_sockets", "exempt_cgroups"]);
    Datapath::read(table)
}

fn take_cgroup(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<Cgroup> {
    let text = table.take(key, path_text)?;
    Some(match text.as_str() {
        "auto" => Cgroup::Auto,
        path => Cgroup::Path(table.report().resolve_path(path)),
    })
}

fn show_cgroup(cgroup: &Cgroup) -> Option<Value> {
    match cgroup {
        Cgroup::Auto => show::text("auto"),
        Cgroup::Path(folder) => show::path(folder),
    }
}

const EXEMPT: ListRule = ListRule {
    what: "cgroups such as \"/kata.slice\"",
    when_empty: WhenEmpty::Fine,
    most: EXEMPT_CGROUPS_MAX,
};

fn take_exempt(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<Vec<CgroupPath>> {
    table.list(key, &EXEMPT, cgroup_path).map(sort_distinct)
}

fn sort_distinct<T: Ord>(found: Vec<LocatedValue<T>>) -> Vec<T> {
    let mut distinct: Vec<T> = found.into_iter().map(|found| found.value).collect();
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

const PROTOCOLS: ListRule =
    ListRule { what: "the words TCP, UDP", when_empty: WhenEmpty::Fine, most: Protocol::ALL.len() };

fn take_protocols(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<Vec<Protocol>> {
    table.list(key, &PROTOCOLS, word).map(sort_distinct)
}
