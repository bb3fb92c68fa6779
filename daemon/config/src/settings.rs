//! The tables of a few keys each: `[manifests]`, `[services]`, `[state]`, `[admin]`, `[log]`.

use std::path::PathBuf;

use holdfast_core::words;

use super::address::{ListenAddress, listen_address};
use super::limits::SOCKET_PATH_BYTES_MAX;
use super::table::{Found, Table};
use super::value::word;

/// The table `[manifests]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifests {
    /// The folder of Kubernetes YAML and JSON files; none means that there is no such source.
    pub path: Option<PathBuf>,
}

/// The table `[services]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    /// The folder of TOML files with further `[[service]]` blocks; none means that there are no others.
    pub path: Option<PathBuf>,
}

/// The table `[state]`.
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

/// The table `[admin]`.
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

words! {
    /// From which level on something is logged.
    #[derive(PartialOrd, Ord)]
    pub enum LogLevel {
        /// A person must act.
        Error = "error",
        /// Something is degraded and is being tried again.
        Warn = "warn",
        /// The life cycle of the daemon, and every change.
        Info = "info",
        /// Each object that a source delivers.
        Debug = "debug",
        /// Each write to a map.
        Trace = "trace",
    }
}

words! {
    /// How the log is written.
    pub enum LogFormat {
        /// To the journal when systemd started the daemon, else as text.
        Auto = "auto",
        /// To the journal, with fields.
        Journald = "journald",
        /// Lines for people, on standard error.
        Text = "text",
        /// One JSON object per line, on standard error.
        Json = "json",
    }
}

/// The table `[log]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// The level from which on something is logged.
    pub level: LogLevel,
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

pub(super) fn read_services(table: &mut Table<'_, '_, '_>) -> Services {
    Services { path: table.path("path").map(|found| found.value) }
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
