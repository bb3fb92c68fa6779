//! The tables that say how the host is used: `[manifests]`, `[datapath]`, `[hold]`, `[state]`, `[admin]`, `[log]`.

use std::path::PathBuf;
use std::time::Duration;

use toml::de::DeValue;

use super::address::{ListenAddress, listen_address};
use super::limits::{
    DATAPATH_BACKENDS, DATAPATH_FRONTENDS, DATAPATH_SERVICES, HOLD, INTERVAL, MASS_LOSS_WINDOW,
    SOCKET_PATH_BYTES_MAX,
};
use super::table::{Found, Table};
use super::value::{Share, Word, duration, integer, path_text, share, show_duration, word};

/// `[manifests]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifests {
    /// The folder of Kubernetes YAML and JSON files; none means that there is no such source.
    pub path: Option<PathBuf>,
}

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

/// What happens when a list of backends would become empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnEmpty {
    /// Decide by the evidence: what was lost by mistake is held, what was scaled down is refused.
    Auto,
    /// Refuse at once.
    Refuse,
    /// Hold the last list, bounded and probed.
    Hold,
    /// Let the packet leave untouched; for load-balancer and external addresses only.
    Pass,
}

impl Word for OnEmpty {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("refuse", Self::Refuse), ("hold", Self::Hold), ("pass", Self::Pass)];
}

/// `[hold]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The policy of every service that has none of its own.
    pub on_empty: OnEmpty,
    /// How long a list is held.
    pub limit: Duration,
    /// How often each held backend is probed.
    pub probe_interval: Duration,
    /// Which share of the services must be losing everything to make it a mass loss.
    pub mass_loss_share: Share,
    /// Within which time.
    pub mass_loss_window: Duration,
    /// How long a list is held in a mass loss.
    pub mass_loss_limit: Duration,
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            on_empty: OnEmpty::Auto,
            limit: Duration::from_secs(120),
            probe_interval: Duration::from_secs(2),
            mass_loss_share: Share::QUARTER,
            mass_loss_window: Duration::from_secs(30),
            mass_loss_limit: Duration::from_secs(600),
        }
    }
}

/// `[state]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The folder of the snapshot and the history.
    pub path: PathBuf,
}

impl Default for State {
    fn default() -> Self {
        Self { path: PathBuf::from("/var/lib/holdfast") }
    }
}

/// `[admin]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Where reads are answered over TCP.
    pub listen: ListenAddress,
    /// The unix socket that answers reads and takes changes.
    pub socket: PathBuf,
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: ListenAddress::DEFAULT, socket: PathBuf::from("/run/holdfast/admin.sock") }
    }
}

/// From which level on something is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// A person must act.
    Error,
    /// Degraded, and being retried.
    Warn,
    /// Life cycle and every change.
    Info,
    /// Each object.
    Debug,
    /// Each write to a map.
    Trace,
}

impl Word for LogLevel {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("error", Self::Error),
        ("warn", Self::Warn),
        ("info", Self::Info),
        ("debug", Self::Debug),
        ("trace", Self::Trace),
    ];
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// To the journal when systemd started the daemon, else as text.
    Auto,
    /// To the journal, with fields.
    Journald,
    /// Lines for people, on standard error.
    Text,
    /// One JSON object per line, on standard error.
    Json,
}

impl Word for LogFormat {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Self::Auto), ("journald", Self::Journald), ("text", Self::Text), ("json", Self::Json)];
}

/// `[log]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// From which level on.
    pub level: LogLevel,
    /// How.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self { level: LogLevel::Info, format: LogFormat::Auto }
    }
}

pub(super) fn read_manifests(table: &mut Table<'_, '_, '_>) -> Manifests {
    Manifests { path: table.path("path").map(|found| found.value) }
}

pub(super) fn read_datapath(table: &mut Table<'_, '_, '_>) -> Datapath {
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

pub(super) fn read_hold(table: &mut Table<'_, '_, '_>) -> Hold {
    let default = Hold::default();
    let mass_loss_limit = table.find("mass_loss_limit", duration(HOLD));
    let hold = Hold {
        on_empty: table.take("on_empty", word).unwrap_or(default.on_empty),
        limit: table.take("limit", duration(HOLD)).unwrap_or(default.limit),
        probe_interval: table.take("probe_interval", duration(INTERVAL)).unwrap_or(default.probe_interval),
        mass_loss_share: table.take("mass_loss_share", share).unwrap_or(default.mass_loss_share),
        mass_loss_window: table
            .take("mass_loss_window", duration(MASS_LOSS_WINDOW))
            .unwrap_or(default.mass_loss_window),
        mass_loss_limit: mass_loss_limit.as_ref().map_or(default.mass_loss_limit, |found| found.value),
    };
    check_mass_loss(table, &hold, mass_loss_limit.as_ref());
    hold
}

fn check_mass_loss(table: &mut Table<'_, '_, '_>, hold: &Hold, found: Option<&Found<Duration>>) {
    if hold.mass_loss_limit >= hold.limit {
        return;
    }
    let site = found.map_or_else(|| table.site().clone(), |found| found.site.clone());
    let (mass, single) = (show_duration(hold.mass_loss_limit), show_duration(hold.limit));
    let message = format!("a mass loss is held for {mass}, less than a single loss (limit = {single:?})");
    table.report().warning(&site, message);
}

pub(super) fn read_state(table: &mut Table<'_, '_, '_>) -> State {
    State { path: table.path("path").map_or(State::default().path, |found| found.value) }
}

pub(super) fn read_admin(table: &mut Table<'_, '_, '_>) -> Admin {
    let default = Admin::default();
    Admin {
        listen: table.take("listen", listen_address).unwrap_or(default.listen),
        socket: read_socket(table).unwrap_or(default.socket),
    }
}

fn read_socket(table: &mut Table<'_, '_, '_>) -> Option<PathBuf> {
    let Found { value, site } = table.path("socket")?;
    let bytes = value.as_os_str().len();
    if bytes <= SOCKET_PATH_BYTES_MAX {
        return Some(value);
    }
    let message = format!("the path has {bytes} bytes: a unix socket's has at most {SOCKET_PATH_BYTES_MAX}");
    table.report().error(&site, message);
    None
}

pub(super) fn read_log(table: &mut Table<'_, '_, '_>) -> Log {
    let default = Log::default();
    Log {
        level: table.take("level", word).unwrap_or(default.level),
        format: table.take("format", word).unwrap_or(default.format),
    }
}

/// What a service may say about itself: `pass` needs an address that somebody else balances too.
pub(super) fn static_on_empty(value: &DeValue<'_>) -> Result<OnEmpty, String> {
    match word(value)? {
        OnEmpty::Pass => {
            Err("\"pass\" is for load-balancer and external addresses, which a [[service]] has none \
             of; legal here: auto, refuse, hold"
                .to_owned())
        }
        other => Ok(other),
    }
}
