//! Limits the rate of log lines: more than people read at once, fewer than journald would drop.
//!
//! Invariant: no namespace takes the lines of another. Each has its own quota, and its first warnings in a window are
//! written whatever others log. Suppressed lines are counted by kind and by namespace, and every count is logged
//! once. The history still has their changes.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::messages;

/// The most lines of level info and below in one window. Together with twice [`WARNINGS_MAX`] this stays below the
/// 10,000 lines in 30 s after which journald drops a service's lines, warnings included.
pub(super) const LINES_MAX: u32 = 2_000;

/// The most warnings and errors in one window, on top of the lines above, so that a flood of those does not drown
/// them. The first ones of each namespace get as many again.
pub(super) const WARNINGS_MAX: u32 = 500;

/// A namespace gets a fifth of either limit, so that several may be loud at once.
const QUOTA_DIVISOR: u32 = 5;

/// How many warnings of a namespace are written although others have used up the window.
const FIRST_MAX: u32 = 10;

/// How long a window is.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// The most kinds of lines that are counted apart; the program has fewer.
const KINDS_MAX: usize = 64;

/// The most namespaces counted apart in one window; all others share one quota. Each takes some 100 bytes.
const NAMESPACES_MAX: usize = 4_096;

/// How many namespaces are named: those with the most suppressed lines.
const NAMED_MAX: usize = 3;

/// How many lines a window wrote and suppressed.
#[derive(Debug, Default)]
struct LineCount {
    lines: u32,
    warnings: u32,
    suppressed: u64,
}

/// The counts of this window, and of the lines suppressed since the last report.
#[derive(Debug)]
pub(super) struct RateWindow {
    since: Instant,
    all: LineCount,
    /// Lines without a namespace have their own entry, without a quota.
    namespaces: BTreeMap<String, LineCount>,
    suppressed: BTreeMap<String, u64>,
    loudest: BTreeMap<String, u64>,
}

/// How many lines were suppressed, of which kinds, and of which namespaces most.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SuppressedLines {
    pub(super) count: u64,
    pub(super) kinds: String,
    pub(super) namespaces: String,
}

impl RateWindow {
    pub(super) fn new(now: Instant) -> Self {
        let all = LineCount { lines: 0, warnings: 0, suppressed: 0 };
        let namespaces = BTreeMap::new();
        let left_out = BTreeMap::new();
        let loudest = BTreeMap::new();
        Self { since: now, all, namespaces, suppressed: left_out, loudest }
    }

    /// Whether to write this line; if not, it is counted. An empty namespace means none.
    pub(super) fn admits(&mut self, now: Instant, is_loud: bool, kind: &str, namespace: &str) -> bool {
        if now.duration_since(self.since) >= WINDOW {
            self.end_window(now);
        }
        if self.count_line(is_loud, namespace) {
            return true;
        }
        self.count_suppressed(kind);
        false
    }

    fn end_window(&mut self, now: Instant) {
        (self.since, self.all) = (now, LineCount::default());
        for (name, count) in std::mem::take(&mut self.namespaces) {
            if count.suppressed > 0
                && (self.loudest.len() < NAMESPACES_MAX || self.loudest.contains_key(&name))
            {
                *self.loudest.entry(name).or_default() += count.suppressed;
            }
        }
    }

    fn count_line(&mut self, is_loud: bool, namespace: &str) -> bool {
        let is_known = self.namespaces.contains_key(namespace) || self.namespaces.len() < NAMESPACES_MAX;
        let own = self.namespaces.entry(if is_known { namespace } else { "others" }.to_owned()).or_default();
        let most = if is_loud { WARNINGS_MAX } else { LINES_MAX };
        let share = if namespace.is_empty() { most } else { most / QUOTA_DIVISOR };
        let (own_count, all) = if is_loud {
            (&mut own.warnings, &mut self.all.warnings)
        } else {
            (&mut own.lines, &mut self.all.lines)
        };
        let is_first = is_loud && *own_count < FIRST_MAX && *all < WARNINGS_MAX * 2;
        let is_taken = is_first || (*own_count < share && *all < most);
        if is_taken {
            (*own_count, *all) = (*own_count + 1, *all + 1);
        } else {
            own.suppressed += 1;
        }
        is_taken
    }

    fn count_suppressed(&mut self, kind: &str) {
        let is_known = self.suppressed.contains_key(kind) || self.suppressed.len() < KINDS_MAX;
        let kind = if is_known { kind } else { "others" };
        *self.suppressed.entry(kind.to_owned()).or_default() += 1;
    }

    /// The lines suppressed since the last call.
    pub(super) fn take_suppressed(&mut self) -> Option<SuppressedLines> {
        let left_out = std::mem::take(&mut self.suppressed);
        let count = left_out.values().sum();
        if count == 0 {
            return None;
        }
        let mut of = std::mem::take(&mut self.loudest);
        for (name, own) in &mut self.namespaces {
            *of.entry(name.clone()).or_default() += std::mem::take(&mut own.suppressed);
        }
        let mut most: Vec<_> =
            of.into_iter().filter(|(name, count)| !name.is_empty() && *count > 0).collect();
        most.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        most.truncate(NAMED_MAX);
        Some(SuppressedLines { count, kinds: render_counts(left_out), namespaces: render_counts(most) })
    }
}

fn render_counts(all: impl IntoIterator<Item = (String, u64)>) -> String {
    let mut text = String::new();
    for (name, count) in all {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{name}: {count}", if text.is_empty() { "" } else { ", " });
    }
    text
}

/// The log's rate limit, wherever its lines go.
#[derive(Clone, Debug)]
pub(super) struct RateLimitLayer(Arc<Mutex<RateWindow>>);

impl RateLimitLayer {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(RateWindow::new(Instant::now()))))
    }

    fn lock_window(&self) -> MutexGuard<'_, RateWindow> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lines suppressed since the last call.
    pub(super) fn take_suppressed(&self) -> Option<SuppressedLines> {
        self.lock_window().take_suppressed()
    }
}

impl<S: Subscriber> Layer<S> for RateLimitLayer {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        if event.metadata().name() == messages::LEFT_OUT.id {
            return true;
        }
        let mut fields = LineFields::default();
        event.record(&mut fields);
        let is_loud = *event.metadata().level() <= Level::WARN;
        self.lock_window().admits(Instant::now(), is_loud, &fields.message, &fields.namespace)
    }
}

/// A line's message, and the namespace of its object.
#[derive(Debug, Default)]
struct LineFields {
    message: String,
    namespace: String,
}

impl LineFields {
    /// Objects are named `namespace/name`, after their kind or source.
    fn set_namespace(&mut self, text: &str) {
        let name = text.split_whitespace().find_map(|word| word.split_once('/'));
        if let Some((namespace, _)) = name.filter(|_| self.namespace.is_empty()) {
            namespace.clone_into(&mut self.namespace);
        }
    }
}

impl Visit for LineFields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "service" | "object" => self.set_namespace(&format!("{value:?}")),
            _ => {}
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            "service" | "object" => self.set_namespace(value),
            _ => {}
        }
    }
}
