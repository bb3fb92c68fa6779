//! The latest denied clients. A client that retries is one entry with a count, so it does not evict the others; nor
//! do many clients of one namespace's frontends.
//!
//! Invariant: the writer waits for a reader at most as long as copying a bounded list of pointers takes. A refusal
//! that fell out of the list is still counted. A restart begins with an empty list.

use std::io::{self, PipeReader};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_core::facts::Timestamp;
use holdfast_core::snapshot::{Reason, Snapshot};
use holdfast_core::words;
use holdfast_datapath::{Arrival, Denial, Refusal, RefusalReader};
use holdfast_status::views::refusals::{DeniedClient, denial_word, find_denied_owner};
use nix::net::if_::if_indextoname;
use tokio::sync::watch;

use super::line_limiter::LineLimiter;
use super::pace::ReadPacer;
use super::recent_refusals::RecentRefusals;
use holdfast_host::clock::since_boot;
use holdfast_host::logging::messages::{self, say};

/// The log as a reader gets it, copied at one instant.
#[derive(Clone, Debug, Default)]
pub struct RefusalSnapshot {
    /// The latest refusals; the latest client is last.
    pub latest: Vec<Arc<DeniedClient>>,
    /// How many tries failed with ECONNREFUSED since the start.
    pub refused: u64,
    /// How many tries were dropped since the start.
    pub dropped: u64,
    /// Why reading refusals stopped.
    pub failure: Option<String>,
}

#[derive(Debug, Default)]
struct RefusalState {
    latest: RecentRefusals,
    refused: u64,
    dropped: u64,
    failure: Option<String>,
}

#[derive(Debug, Default)]
pub struct RefusalLog {
    state: Mutex<RefusalState>,
    /// Where to find the service of a frontend; empty until the engine runs.
    snapshots: OnceLock<watch::Receiver<Arc<Snapshot>>>,
}

impl RefusalLog {
    /// The log of a daemon that touches no traffic, and so denies no client.
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    /// Reads the programs' ring buffer on its own thread until the other end of `stop` closes.
    pub fn start(refusals: RefusalReader, stop: PipeReader) -> io::Result<Arc<Self>> {
        let log = Self::none();
        let own = Arc::clone(&log);
        std::thread::Builder::new()
            .name("refusals".to_owned())
            .spawn(move || own.read_refusals(&refusals, &stop))?;
        Ok(log)
    }

    /// Uses these snapshots from now on to name services in the log.
    pub fn name_services(&self, snapshots: watch::Receiver<Arc<Snapshot>>) {
        // Only the start sets it, once.
        let _ = self.snapshots.set(snapshots);
    }

    /// A copy of the log.
    pub fn snapshot(&self) -> RefusalSnapshot {
        let kept = self.lock_state();
        RefusalSnapshot {
            latest: kept.latest.all(),
            refused: kept.refused,
            dropped: kept.dropped,
            failure: kept.failure.clone(),
        }
    }

    /// How many tries were refused and dropped since the start.
    pub fn totals(&self) -> [(Denial, u64); 2] {
        let state = self.lock_state();
        [(Denial::Refused, state.refused), (Denial::Dropped, state.dropped)]
    }

    pub(crate) fn record(&self, at: Timestamp, refusal: Refusal) {
        let mut kept = self.lock_state();
        match refusal.denial {
            Denial::Refused => kept.refused += 1,
            Denial::Dropped => kept.dropped += 1,
        }
        kept.latest.record(at, refusal);
    }

    /// Records why reading refusals stopped.
    pub fn record_failure(&self, why: String) {
        self.lock_state().failure = Some(why);
    }

    fn read_refusals(&self, refusals: &RefusalReader, stop: &PipeReader) {
        let mut lines = LineLimiter::default();
        let mut pace = ReadPacer::default();
        let listened = refusals.read_refusals(stop, |refusal| {
            let now = since_boot();
            if let Some(count) = lines.count_due(refusal.frontend, refusal.at) {
                self.write_line(&refusal, count);
            }
            self.record(wall_time(now.saturating_sub(refusal.at)), refusal);
            if let Some(pause) = pace.pause(now) {
                std::thread::sleep(pause);
            }
        });
        if let Err(error) = listened {
            tracing::error!(%error, "cannot list refusals any more; clients are refused as before");
            self.record_failure(format!("{error:#}"));
        }
    }

    /// Writes one line. Lines are rare, so a search of all services is cheap enough.
    fn write_line(&self, refusal: &Refusal, count: u64) {
        let snapshot = self.snapshots.get().map(|snapshots| Arc::clone(&snapshots.borrow()));
        let found = snapshot.as_deref().and_then(|snapshot| find_denied_owner(snapshot, refusal));
        let service = found.map(|(view, _)| tracing::field::display(&view.key.name));
        let reason = found.and_then(|(_, frontend)| frontend.reason).map(Reason::as_str);
        if let Some(arrival) = refusal.arrival {
            say!(info, messages::CLIENT_NOT_SERVED, service, frontend = %refusal.frontend,
                denial = denial_word(refusal.denial),
                cause = refusal.cause.as_str(),
                reason,
                source = %arrival.source,
                device = %device_name(arrival),
                count);
            return;
        }
        say!(info, messages::CLIENT_NOT_SERVED, service, frontend = %refusal.frontend,
            denial = denial_word(refusal.denial),
            cause = refusal.cause.as_str(),
            reason,
            pid = refusal.process,
            comm = %refusal.comm.escape_debug(),
            count);
    }

    fn lock_state(&self) -> MutexGuard<'_, RefusalState> {
        // No change can panic half-way, so the state is consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

words! {
    /// The kind of program that denied a client.
    pub enum Stage {
        /// A program at its socket: the client is a process of this node.
        Socket = "socket",
        /// A program at a device: only the packet identifies the client.
        Packet = "packet",
    }
}

impl Stage {
    pub const fn from_refusal(refusal: &Refusal) -> Self {
        if refusal.arrival.is_some() { Self::Packet } else { Self::Socket }
    }
}

/// The name of a device, or its number if it has gone.
pub fn device_name(arrival: Arrival) -> String {
    let name = if_indextoname(arrival.device).ok().and_then(|name| name.into_string().ok());
    // The name of a missing device may be empty.
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| format!("device {}", arrival.device))
}

/// The wall-clock time `ago` before now: a refusal may be older than this daemon, if a former one did not read it.
fn wall_time(ago: Duration) -> Timestamp {
    let then = SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH);
    let since = then.duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use holdfast_core::keys::{FrontendKey, Transport};
    use holdfast_core::op::{PortIndex, QuotaId};

    use super::*;
    use holdfast_fixtures::everything;

    const NOW: Timestamp = Timestamp(5);

    fn refusal(process: u32, denial: Denial) -> Refusal {
        let frontend =
            FrontendKey { address: [10, 96, 0, 10].into(), port: NonZeroU16::MIN, transport: Transport::Tcp };
        Refusal {
            at: Duration::from_secs(5),
            process,
            thread: process,
            comm: "curl".to_owned(),
            cgroup: 1,
            netns: 1,
            frontend,
            port: PortIndex(0),
            quota: QuotaId(1),
            denial,
            arrival: None,
            cause: holdfast_datapath::Cause::NoBackend,
        }
    }

    fn packet(source: &str, cause: holdfast_datapath::Cause) -> Refusal {
        let arrival = Some(Arrival { source: source.parse().unwrap(), device: 1 });
        Refusal { arrival, cause, comm: String::new(), cgroup: 0, netns: 0, ..refusal(0, Denial::Dropped) }
    }

    #[test]
    fn clients_outside_are_distinguished_by_address_and_not_by_port() {
        use holdfast_datapath::Cause::{NoBackend, Source};

        let log = RefusalLog::none();
        let tries = [
            ("203.0.113.9:1", Source),
            ("203.0.113.8:1", Source),
            ("203.0.113.9:2", Source),
            ("203.0.113.9:3", NoBackend),
        ];
        tries.into_iter().for_each(|(source, cause)| log.record(NOW, packet(source, cause)));
        let kept = log.snapshot().latest;
        let kept = kept.iter().map(|it| (it.refusal.arrival.unwrap().source.to_string(), it.count));
        let expected = [("203.0.113.8:1", 1), ("203.0.113.9:2", 2), ("203.0.113.9:3", 1)];
        assert_eq!(kept.collect::<Vec<_>>(), expected.map(|(source, count)| (source.to_owned(), count)));
    }

    /// The text of a log line.
    fn line(log: &RefusalLog, refusal: &Refusal) -> String {
        #[derive(Clone, Default)]
        struct Written(Arc<Mutex<Vec<u8>>>);
        impl io::Write for Written {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.lock().unwrap().extend(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(lines, || log.write_line(refusal, 3));
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_log_line_of_a_denied_client_names_the_service() {
        let log = RefusalLog::none();
        let at = |last, port| FrontendKey {
            address: [10, 96, 0, last].into(),
            port: NonZeroU16::new(port).unwrap(),
            transport: Transport::Tcp,
        };
        let process = Refusal { frontend: at(20, 80), ..refusal(7, Denial::Refused) };
        let outside = packet("203.0.113.9:1", holdfast_datapath::Cause::NoBackend);
        let outside = Refusal { frontend: at(20, 80), ..outside };
        assert!(!line(&log, &process).contains("service="), "no engine runs yet");
        log.name_services(watch::channel(Arc::new(everything())).1);
        for refusal in [&process, &outside] {
            let line = line(&log, refusal);
            assert!(line.contains("service=default/gone frontend=10.96.0.20:80/TCP"), "{line}");
            assert!(line.contains("reason=") && line.contains("count=3"), "{line}");
        }
        let elsewhere = Refusal { frontend: at(99, 80), ..process };
        assert!(!line(&log, &elsewhere).contains("service="), "no service has this address");
    }

    #[test]
    fn a_missing_device_is_shown_by_its_number() {
        let source = "203.0.113.9:1".parse().unwrap();
        assert_eq!(device_name(Arrival { source, device: 1 }), "lo");
        assert_eq!(device_name(Arrival { source, device: u32::MAX }), "device 4294967295");
    }

    #[test]
    fn the_latest_refusals_are_kept_and_all_are_counted() {
        let log = RefusalLog::none();
        for process in 0..1_500 {
            let denial = if process % 3 == 0 { Denial::Dropped } else { Denial::Refused };
            log.record(NOW, refusal(process, denial));
        }
        let snapshot = log.snapshot();
        assert_eq!((snapshot.refused, snapshot.dropped), (1_000, 500));
        assert_eq!(log.totals(), [(Denial::Refused, 1_000), (Denial::Dropped, 500)]);
        let kept: Vec<u32> = snapshot.latest.iter().map(|denied| denied.refusal.process).collect();
        assert_eq!(kept, (500..1_500).collect::<Vec<_>>());
    }

    #[test]
    fn a_client_that_retries_is_one_entry_with_a_count() {
        let log = RefusalLog::none();
        let tries = [
            (5, 1, Denial::Refused),
            (6, 2, Denial::Refused),
            (9, 1, Denial::Refused),
            (9, 1, Denial::Dropped),
        ];
        for (at, process, denial) in tries {
            log.record(Timestamp(at), refusal(process, denial));
        }
        let snapshot = log.snapshot();
        let kept = snapshot.latest.iter().map(|it| (it.refusal.process, it.first.0, it.last.0, it.count));
        assert_eq!(kept.collect::<Vec<_>>(), [(2, 6, 6, 1), (1, 5, 9, 2), (1, 9, 9, 1)]);
        assert_eq!((snapshot.refused, snapshot.dropped), (3, 1), "each try is counted");
    }

    #[test]
    fn one_client_in_a_loop_evicts_no_other() {
        let log = RefusalLog::none();
        log.record(NOW, refusal(1, Denial::Refused));
        (0..2_000).for_each(|_| log.record(NOW, refusal(2, Denial::Refused)));
        assert_eq!(log.snapshot().latest.iter().map(|it| it.count).collect::<Vec<_>>(), [1, 2_000]);
    }

    /// The crowd is like processes that try once each, or a sender that changes its address each time.
    #[test]
    fn many_clients_of_one_namespace_evict_no_refusal_of_another() {
        let log = RefusalLog::none();
        let at = |share, process| Refusal { quota: QuotaId(share), ..refusal(process, Denial::Dropped) };
        (0..300).for_each(|process| log.record(NOW, at(2, process)));
        log.record(NOW, packet("203.0.113.9:1", holdfast_datapath::Cause::Flows));
        for process in 1_000..9_000 {
            log.record(NOW, at(3, process));
        }
        let kept = log.snapshot().latest;
        let of = |share| kept.iter().filter(|it| it.refusal.quota == QuotaId(share)).count();
        assert_eq!((of(1), of(2), of(3), kept.len()), (1, 300, 699, 1_000));
        assert_eq!(kept[999].refusal.process, 8_999, "the latest is last");
        assert_eq!(kept[301].refusal.process, 8_301, "the namespace keeps its latest");
    }

    /// Refusals at ports without a service are their own group: a scan of all ports concerns no namespace.
    #[test]
    fn a_scan_of_unused_ports_evicts_no_other_refusal() {
        let log = RefusalLog::none();
        log.record(NOW, refusal(1, Denial::Refused));
        for at in 0..3_000 {
            let source = format!("198.18.{}.{}:1", at >> 8, at & 255);
            log.record(NOW, packet(&source, holdfast_datapath::Cause::NoSuchPort));
        }
        let kept = log.snapshot().latest;
        assert_eq!((kept.len(), kept[0].refusal.process), (1_000, 1));
    }

    #[test]
    fn a_read_failure_is_reported_with_the_earlier_refusals() {
        let log = RefusalLog::none();
        log.record(NOW, refusal(1, Denial::Refused));
        assert_eq!(log.snapshot().failure, None);
        log.record_failure("EPERM".to_owned());
        let snapshot = log.snapshot();
        assert_eq!((snapshot.failure.as_deref(), snapshot.latest.len()), (Some("EPERM"), 1));
    }

    #[test]
    fn a_readers_snapshot_does_not_change() {
        let log = RefusalLog::none();
        log.record(NOW, refusal(1, Denial::Refused));
        let snapshot = log.snapshot();
        log.record(NOW, refusal(2, Denial::Refused));
        assert_eq!((snapshot.latest.len(), log.snapshot().latest.len()), (1, 2));
    }

    #[test]
    fn times_since_boot_become_wall_time() {
        let seconds = |ago| wall_time(Duration::from_secs(ago)).0;
        let now = seconds(0);
        let before = seconds(3_600);
        assert!((3_599..=3_601).contains(&(now - before)), "{now} {before}");
        assert!(since_boot() > Duration::ZERO);
        assert_eq!(wall_time(Duration::MAX), Timestamp(0));
    }
}
