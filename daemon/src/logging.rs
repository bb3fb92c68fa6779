//! Where log lines go.
//!
//! Invariant: nobody waits for the log; lines are written by whoever logs, to a stream that the service manager reads.
//! Deliberately absent: files and rotation, which the journal does better.

use std::io::IsTerminal;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::{Registry, layer::SubscriberExt, util::SubscriberInitExt};

use crate::config::{Log, LogFormat, LogLevel};

/// Changes the level while the daemon runs.
#[derive(Debug)]
pub struct Level(Handle<LevelFilter, Registry>);

impl Level {
    /// From now on, this level counts.
    pub fn set(&self, level: LogLevel) {
        // The only error is a subscriber that is gone, and then nobody logs.
        let _ = self.0.reload(filter(level));
    }
}

/// Begins to log as the configuration says. To be called once.
pub fn start(log: &Log) -> Level {
    let (level, handle) = reload::Layer::new(filter(log.level));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry().with(level);
    match log.format {
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
        LogFormat::Auto | LogFormat::Text | LogFormat::Journald => {
            registry.with(lines.with_ansi(std::io::stderr().is_terminal())).init();
        }
    }
    Level(handle)
}

fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
