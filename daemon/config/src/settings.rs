//! The tables of a few keys each: `[manifests]`, `[services]`, `[state]`, `[admin]`, `[log]`.

use std::path::PathBuf;

use holdfast_core::words;

use toml::Value;

use super::address::{ListenAddress, listen_address};
use super::keys::{table, take, take_path, take_some_path};
use super::limits::SOCKET_PATH_BYTES_MAX;
use super::show;
use super::table::{LocatedValue, Table};
use super::value::word;

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Manifests "manifests" {
        /// The folder of Kubernetes YAML and JSON files; `None`: no such source.
        path: Option<PathBuf> = None, take_some_path, show::optional(show::path), restart;
    }
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Services "services" {
        /// The folder of TOML files with further `[[service]]` blocks; `None`: no others.
        path: Option<PathBuf> = None, take_some_path, show::optional(show::path), restart;
    }
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct State "state" {
        /// The folder of the snapshot and the history.
        path: PathBuf = "/var/lib/holdfast".into(), take_path, show::path, restart;
    }
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Admin "admin" {
        /// The TCP address for reads.
        listen: ListenAddress = ListenAddress::DEFAULT, take(listen_address), show_listen, restart;
        /// The unix socket for reads and changes.
        socket: PathBuf = "/run/holdfast/admin.sock".into(), take_socket, show::path, restart;
    }
}

words! {
    /// The least severe level that is logged.
    #[derive(PartialOrd, Ord)]
    pub enum LogLevel {
        /// A person must act.
        Error = "error",
        /// Something is degraded, and the daemon is retrying.
        Warn = "warn",
        /// The life cycle of the daemon, and every change.
        Info = "info",
        /// Each object from a source.
        Debug = "debug",
        /// Each write to a map.
        Trace = "trace",
    }
}

words! {
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

table! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Log "log" {
        level: LogLevel = LogLevel::Info, take(word), show::word, reload;
        format: LogFormat = LogFormat::Auto, take(word), show::word, restart;
    }
}

fn show_listen(listen: &ListenAddress) -> Option<Value> {
    show::text(&listen.address())
}

fn take_socket(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<PathBuf> {
    let LocatedValue { value, site } = table.path(key)?;
    let bytes = value.as_os_str().len();
    if bytes <= SOCKET_PATH_BYTES_MAX {
        return Some(value);
    }
    let message = format!("the path has {bytes} bytes: a unix socket's has at most {SOCKET_PATH_BYTES_MAX}");
    table.report().add_error(&site, message);
    None
}
