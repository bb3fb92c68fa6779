//! The thread that ends sockets which have lost their backend.
//!
//! Invariant: the thread works only after lists have changed, rests most of the time, and never blocks the caller.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use holdfast_core::keys::Transport;
use holdfast_status::datapath::SocketSweepProgress;

use super::netns::HomeNamespace;
use super::sock_diag::{ConnectedSocket, SockDiag};
use super::{Namespaces, StaleSockets};

/// After a sweep the thread rests so many times as long: it takes at most a twentieth of a processor.
const REST: u32 = 19;

/// The most sockets collected at a time, some 8 MB. Another listing finds the rest.
const STALE_MAX: usize = 1 << 16;

/// Decides whether a socket's backend has left.
pub(crate) trait StaleJudge: Send {
    /// Reads the data for all namespaces at once; returns whether more is left to read after these sockets are ended.
    /// An error: sockets of some protocol are left alone.
    fn read_sockets(&mut self) -> io::Result<bool>;

    /// Whether the sockets of that protocol must be checked one by one.
    fn may_end_any(&self, transport: Transport) -> bool;

    fn is_stale(&self, socket: &ConnectedSocket) -> bool;
}

#[derive(Debug)]
pub(crate) struct Sweeper<J> {
    jobs: Option<SyncSender<J>>,
    swept: Arc<Mutex<SocketSweepProgress>>,
    // Dropping it wakes the thread from its rest and ends it.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl<J: StaleJudge + 'static> Sweeper<J> {
    pub(crate) fn start(which: StaleSockets) -> io::Result<Self> {
        // A thread that works or rests takes no job.
        let (jobs, job) = sync_channel(0);
        let (stop, stopped) = sync_channel(0);
        let swept = Arc::<Mutex<SocketSweepProgress>>::default();
        let work = SweepWorker { which, swept: Arc::clone(&swept) };
        let thread = std::thread::Builder::new()
            .name("stale-sockets".to_owned())
            .spawn(move || work.run(&job, &stopped))?;
        Ok(Self { jobs: Some(jobs), swept, stop: Some(stop), thread: Some(thread) })
    }

    /// Hands a sweep to the thread. `false`: it works or rests; try again later.
    pub(crate) fn try_sweep(&self, judge: J) -> bool {
        self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(judge).is_ok())
    }

    pub(crate) fn progress(&self) -> SocketSweepProgress {
        lock_progress(&self.swept).clone()
    }
}

impl<J> Drop for Sweeper<J> {
    fn drop(&mut self) {
        self.jobs = None;
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock_progress(swept: &Mutex<SocketSweepProgress>) -> MutexGuard<'_, SocketSweepProgress> {
    // No update can panic half-way, so the progress is whole.
    swept.lock().unwrap_or_else(PoisonError::into_inner)
}

struct SweepWorker {
    which: StaleSockets,
    swept: Arc<Mutex<SocketSweepProgress>>,
}

impl SweepWorker {
    fn run(&self, jobs: &Receiver<impl StaleJudge>, stopped: &Receiver<()>) {
        let home = match self.open_home() {
            Ok(home) => home,
            Err(failure) => {
                lock_progress(&self.swept).failure = Some(failure);
                return;
            }
        };
        while let Ok(mut judge) = jobs.recv() {
            let began = Instant::now();
            let (ended, failure) = self.sweep_rounds(&home, &mut judge);
            {
                let mut swept = lock_progress(&self.swept);
                swept.sweeps += 1;
                swept.ended += ended;
                swept.failure = failure;
            }
            if stopped.recv_timeout(began.elapsed() * REST) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Opens the thread's own namespace, if the kernel can destroy sockets.
    fn open_home(&self) -> Result<HomeNamespace, String> {
        let can_end = |transport: &Transport| SockDiag::open()?.can_destroy(*transport);
        for transport in self.which.transports() {
            match can_end(transport) {
                Ok(true) => {}
                Ok(false) => {
                    return Err("this kernel cannot end sockets (CONFIG_INET_DIAG_DESTROY)".to_owned());
                }
                Err(error) => return Err(format!("cannot ask this kernel to end sockets: {error}")),
            }
        }
        HomeNamespace::open().map_err(|error| format!("cannot open this thread's network namespace: {error}"))
    }

    /// Sweeps again while more is left to read and the last round ended some sockets.
    fn sweep_rounds(&self, home: &HomeNamespace, judge: &mut impl StaleJudge) -> (u64, Option<String>) {
        let mut ended = 0;
        loop {
            let (has_more, read_error) = match judge.read_sockets() {
                Ok(has_more) => (has_more, None),
                Err(error) => (false, Some(error.to_string())),
            };
            let (now, failure) = self.sweep_all(home, judge);
            ended += now;
            if !has_more || now == 0 {
                return (ended, failure.or(read_error));
            }
        }
    }

    fn sweep_all(&self, home: &HomeNamespace, judge: &impl StaleJudge) -> (u64, Option<String>) {
        let mut ended = 0;
        let mut failure = None;
        let mut note = |result: io::Result<u64>| match result {
            Ok(more) => ended += more,
            Err(error) => failure = Some(error.to_string()),
        };
        note(self.sweep_namespace(judge));
        if self.which.namespaces == Namespaces::All {
            match home.list_namespaces() {
                Ok(found) => {
                    for namespace in &found.namespaces {
                        let visited = home.run_in(namespace, || self.sweep_namespace(judge));
                        note(visited.and_then(|ended| ended.unwrap_or(Ok(0))));
                    }
                    // A process that may not list namespaces may not enter them either. The list's error comes first.
                    failure = found.failure.or(failure);
                }
                Err(error) => failure = Some(format!("cannot see other processes: {error}")),
            }
        }
        (ended, failure)
    }

    fn sweep_namespace(&self, judge: &impl StaleJudge) -> io::Result<u64> {
        let mut diag = SockDiag::open()?;
        let mut ended = 0;
        for transport in self.which.transports().iter().filter(|transport| judge.may_end_any(**transport)) {
            loop {
                let stale = find_stale(&mut diag, *transport, judge)?;
                for socket in &stale {
                    ended += u64::from(diag.destroy_socket(socket)?);
                }
                if stale.len() < STALE_MAX {
                    break;
                }
            }
        }
        Ok(ended)
    }
}

fn find_stale(
    diag: &mut SockDiag,
    transport: Transport,
    judge: &impl StaleJudge,
) -> io::Result<Vec<ConnectedSocket>> {
    let mut stale = Vec::new();
    diag.for_each_connected(transport, |socket| {
        if stale.len() < STALE_MAX && judge.is_stale(&socket) {
            stale.push(socket);
        }
    })?;
    Ok(stale)
}
