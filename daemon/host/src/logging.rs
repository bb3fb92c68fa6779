//! Sends log lines to the journal if systemd started the daemon, else to standard error.
//!
//! Invariant: no thread waits for the journal. Lines that it does not take at once are counted, and the count is
//! logged. The number of lines is bounded, wherever they go.

mod entry;
mod journal;
pub mod line_limit;
pub mod messages;
mod rate_limit;
#[cfg(test)]
mod tests;

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use holdfast_status::printable::Printable;
use nix::sys::stat::fstat;
use tracing::Subscriber;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::{MakeWriter, format::debug_fn};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::{Layer, Registry, layer::SubscriberExt, util::SubscriberInitExt};

use holdfast_config::{Log, LogFormat, LogLevel};
use journal::{Journal, JournalLayer};
use messages::say;
use rate_limit::{RateLimitLayer, SuppressedLines};

/// The running log: its level can change, and it reports suppressed lines.
#[derive(Debug)]
pub struct Logging {
    level: Handle<LevelFilter, Registry>,
    journal: Option<Arc<Journal>>,
    rate_limit: RateLimitLayer,
}

impl Logging {
    /// A log that writes nothing, for tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn silent(log: &Log) -> Self {
        Self {
            level: reload::Layer::new(level_filter(log.level)).1,
            journal: None,
            rate_limit: RateLimitLayer::new(),
        }
    }

    pub fn set_level(&self, level: LogLevel) {
        // The only error is a missing subscriber, and then nothing is logged.
        let _ = self.level.reload(level_filter(level));
    }

    /// Logs how many lines were suppressed since the last call. Call it about once a second.
    pub fn report_suppressed(&self) {
        if let Some(SuppressedLines { count, kinds, namespaces }) = self.rate_limit.take_suppressed() {
            say!(warn, messages::LEFT_OUT, count, kinds, namespaces);
        }
        if let Some(journal) = &self.journal {
            journal.report_lost();
        }
    }
}

/// Starts the log as configured. Call it once.
pub fn start(log: &Log) -> Logging {
    let (level, handle) = reload::Layer::new(level_filter(log.level));
    let journal = journal_for(log.format);
    let bound = RateLimitLayer::new();
    let registry = tracing_subscriber::registry().with(level).with(bound.clone());
    match (&journal, log.format) {
        (Some(journal), _) => registry.with(JournalLayer(Arc::clone(journal))).init(),
        (None, LogFormat::Json) => {
            let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_target(false);
            registry.with(lines.json().flatten_event(true)).init();
        }
        (None, LogFormat::Auto | LogFormat::Text | LogFormat::Journald) => {
            registry.with(text_layer(io::stderr, io::stderr().is_terminal())).init();
        }
    }
    Logging { level: handle, journal, rate_limit: bound }
}

/// Writes one line per event, whatever foreign texts the event contains.
fn text_layer<S, W>(writer: W, in_colours: bool) -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: for<'a> MakeWriter<'a> + 'static,
{
    let fields = debug_fn(|line, field, value| match field.name() {
        "message" => write!(line, "{}", Printable(format_args!("{value:?}"))),
        name => write!(line, "{name}={}", Printable(format_args!("{value:?}"))),
    });
    let lines = tracing_subscriber::fmt::layer().fmt_fields(fields.delimited(" "));
    lines.with_writer(writer).with_target(false).with_ansi(in_colours)
}

/// The journal, if the format asks for it. Without its socket, lines go to standard error.
fn journal_for(format: LogFormat) -> Option<Arc<Journal>> {
    let wanted = match format {
        LogFormat::Journald => true,
        LogFormat::Auto => stderr_is_the_journal(),
        LogFormat::Text | LogFormat::Json => false,
    };
    wanted.then(Journal::open)?.ok().map(Arc::new)
}

/// Whether systemd connected standard error to the journal, and nothing has redirected it since.
fn stderr_is_the_journal() -> bool {
    let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
    fstat(io::stderr()).is_ok_and(|found| stream_matches(&stream, found.st_dev, found.st_ino))
}

fn stream_matches(stream: &str, device: u64, inode: u64) -> bool {
    stream == format!("{device}:{inode}")
}

/// Writes why the daemon ends to standard error, even under systemd: the journal maps that stream to the unit even
/// after the process has gone, and takes `<3>` for the priority.
pub fn write_fatal_error(why: &str, err: &mut impl Write) {
    let level = if stderr_is_the_journal() { "<3>" } else { "" };
    for line in why.lines() {
        // If this fails, no other output is left.
        let _ = writeln!(err, "{level}holdfast: {line}");
    }
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}
