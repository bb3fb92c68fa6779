//! Reports to the service manager: that the daemon is ready, its status, and that it is alive.
//!
//! Invariant: the daemon counts as alive while the engine makes progress. If the engine hangs, the watchdog expires,
//! and the kernel's programs serve until the next daemon takes over. Without a service manager nothing is sent and
//! nothing fails. Listening sockets are not taken from the service manager, because that would need a second unit for
//! one port.

mod summary;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_core::snapshot::{Snapshot, Verdict};
use sd_notify::NotifyState;
use tokio::sync::watch;

use crate::readings::{Purpose, Readings};
use holdfast_host::logging::Logging;
use holdfast_host::logging::messages::{self, say};
use holdfast_host::ticker::{self, TICK};

/// How often readiness is checked during a start, which takes some tens of milliseconds.
const STARTING_PACE: Duration = Duration::from_millis(10);

/// How long the sources' first lists may delay readiness. On a control plane node kubelet starts the very apiserver
/// that the daemon waits for, and kubelet starts after this service is ready.
const FIRST_LISTS_WAIT: Duration = Duration::from_secs(10);

/// The daemon reports at least this often per watchdog timeout, because systemd kills a process that needs all of it.
const WATCHDOG_SHARE: u32 = 3;

#[derive(Debug)]
pub struct StatusInput {
    /// The state of the daemon.
    pub readings: Readings,
    /// The log, which reports its suppressed lines at the same pace.
    pub logging: Arc<Logging>,
}

/// Reports to the service manager until the daemon stops.
pub async fn run(watched: StatusInput, mut stopping: watch::Receiver<bool>) {
    let limit = sd_notify::watchdog_enabled();
    let pace = limit.map_or(TICK, |limit| limit / WATCHDOG_SHARE);
    let mut teller = Notifier::new(watched, Instant::now(), notify);
    loop {
        teller.report(Instant::now());
        tokio::select! {
            _ = stopping.changed() => return,
            () = wait_for_report(teller.ready, pace) => {}
        }
    }
}

/// Waits until the next report: a tick once the daemon is ready, because the status line may change with each tick,
/// or less if the watchdog needs it.
async fn wait_for_report(is_ready: bool, pace: Duration) {
    match is_ready {
        true if pace >= TICK => ticker::next_tick().await,
        true => tokio::time::sleep(pace).await,
        false => tokio::time::sleep(STARTING_PACE).await,
    }
}

/// Sends one message to the service manager, if there is one.
fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager did not take a message");
    }
}

pub fn notify_reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!(%error, "the service manager did not take a message"),
    }
}

/// Reports that the reload is over: the new configuration is in force, or the former one still is.
pub fn notify_reloaded() {
    notify(&[NotifyState::Ready]);
}

/// Reports that the daemon ends.
pub fn notify_stopping(status: &str) {
    notify(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Reports that another daemon still holds a needed resource.
pub fn notify_waiting(process: Option<u32>) {
    let who = process
        .map_or_else(|| "another holdfast".to_owned(), |it| format!("another holdfast (process {it})"));
    notify(&[NotifyState::Status(&format!("starting: waiting for {who} to end"))]);
}

/// Reports why the daemon does not start, or cannot continue.
pub fn notify_failed(why: &str) {
    let first = why.lines().next().unwrap_or_default();
    let more = why.lines().count().saturating_sub(1);
    let more = if more == 0 { String::new() } else { format!(" (and {more} more lines in the journal)") };
    notify(&[NotifyState::Status(&format!("{first}{more}"))]);
}

/// The last report, so that no state and no status line is sent twice.
struct Notifier<N> {
    watched: StatusInput,
    started: Instant,
    notify: N,
    ready: bool,
    line: String,
}

/// How many frontends there are, as `holdfast status` counts them, and at how many of them clients get a backend.
fn count_frontends(snapshot: &Snapshot) -> (u64, u64) {
    let count = |is_counted: fn(Verdict) -> bool| {
        let all = snapshot.services.totals().frontends();
        all.filter(|(_, verdict, _)| is_counted(*verdict)).map(|(.., count)| count).sum()
    };
    (count(|_| true), count(Verdict::serves_clients))
}

impl<N: Fn(&[NotifyState<'_>])> Notifier<N> {
    fn new(watched: StatusInput, started: Instant, notify: N) -> Self {
        Self { watched, started, notify, ready: false, line: String::new() }
    }

    fn report(&mut self, now: Instant) {
        let snapshot = self.watched.readings.snapshot();
        let unready = self.watched.readings.unready_reason(&snapshot);
        self.report_ready(&snapshot, unready.as_deref(), now.duration_since(self.started));
        self.report_status(&snapshot, unready.as_deref());
        if self.watched.readings.liveness.stalled_for().is_none() {
            (self.notify)(&[NotifyState::Watchdog]);
        }
        self.watched.logging.report_suppressed();
    }

    fn report_ready(&mut self, snapshot: &Snapshot, unready: Option<&str>, since: Duration) {
        let waits = unready.is_some() && !self.watched.readings.serves_all_readable(snapshot);
        if self.ready || (waits && since < FIRST_LISTS_WAIT) {
            return;
        }
        self.ready = true;
        (self.notify)(&[NotifyState::Ready]);
        let milliseconds = since.as_millis();
        let (frontends, served) = count_frontends(snapshot);
        match unready {
            None if self.watched.readings.datapath().status().is_none() => {
                say!(info, messages::READY_IN_MEMORY, milliseconds, frontends, served);
            }
            None => say!(info, messages::READY, milliseconds, frontends, served),
            Some(missing) => say!(warn, messages::READY, milliseconds, frontends, served, missing),
        }
    }

    fn report_status(&mut self, snapshot: &Snapshot, unready: Option<&str>) {
        let StatusInput { readings, .. } = &self.watched;
        let mut line = summary::status_line(readings, snapshot);
        if let Some(why) = unready {
            line = format!("{line}; not ready: {why}");
        }
        for why in &*readings.closed_listeners.borrow() {
            line = format!("{line}; {why}");
        }
        // Ports of Services are left out, because any client that may write a Service controls them.
        let (closed, _) = readings.closed_ports.named_ports();
        for port in closed.iter().filter(|it| it.purpose != Purpose::Service) {
            line = format!("{line}; port {} cannot be opened: {}", port.address, port.reason);
        }
        if let Some(refused) = &*readings.refused_reload.borrow() {
            line = format!("{line}; the last reload was refused: {}", refused.why);
        }
        if line != self.line {
            (self.notify)(&[NotifyState::Status(&line)]);
            self.line = line;
        }
    }
}
