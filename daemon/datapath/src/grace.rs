//! Grace periods: they end when every running program has ended.
//!
//! Invariant: a period is over only once the kernel has waited for all programs that ran when it began. Replacing a map
//! in a map of maps returns only after that wait, as the kernel promises, so a separate thread makes this call.
//! `membarrier` does not promise it on a single CPU. The caller never waits.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast_core::op::Grace;
use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys};

/// One wait covers all periods that began before it, so one queued wait is enough.
const WAITING_MAX: usize = 1;

/// The pause before a retry: the kernel fails to wait only when out of memory.
const RETRY_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct GracePeriods {
    begun: Arc<AtomicU64>,
    over: Arc<AtomicU64>,
    failure: Arc<RwLock<Option<String>>>,
    wake: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl GracePeriods {
    pub(crate) fn start() -> Result<Self, libbpf_rs::Error> {
        let waiter = GraceWaiter::new()?;
        let begun = Arc::new(AtomicU64::new(0));
        let over = Arc::new(AtomicU64::new(0));
        let failure = Arc::default();
        let (wake, woken) = sync_channel(WAITING_MAX);
        let state =
            GraceState { begun: Arc::clone(&begun), over: Arc::clone(&over), failure: Arc::clone(&failure) };
        let thread = std::thread::Builder::new()
            .name("grace".to_owned())
            .spawn(move || run_waiter(&waiter, &woken, &state))
            .map_err(libbpf_rs::Error::from)?;
        Ok(Self { begun, over, failure, wake: Some(wake), thread: Some(thread) })
    }

    pub(crate) fn begin(&self) -> Grace {
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(wake) = &self.wake {
            // Full: a wait is queued already, and begins after this.
            let _ = wake.try_send(());
        }
        Grace(number)
    }

    pub(crate) fn is_over(&self, grace: Grace) -> bool {
        self.over.load(Ordering::Acquire) >= grace.0
    }

    /// Why the kernel could not wait. Nothing is reused meanwhile.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for GracePeriods {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct GraceState {
    begun: Arc<AtomicU64>,
    over: Arc<AtomicU64>,
    failure: Arc<RwLock<Option<String>>>,
}

fn run_waiter(waiter: &GraceWaiter, woken: &Receiver<()>, state: &GraceState) {
    let mut failed = false;
    while wait_for_work(woken, failed) {
        let number = state.begun.load(Ordering::Acquire);
        let waited = waiter.wait_for_programs();
        if waited.is_ok() {
            state.over.store(number, Ordering::Release);
        }
        failed = waited.is_err();
        *state.failure.write().unwrap_or_else(PoisonError::into_inner) =
            waited.err().map(|error| format!("{error:#}"));
    }
}

/// Waits for work or a retry. `false`: the owner has stopped.
fn wait_for_work(woken: &Receiver<()>, failed: bool) -> bool {
    if failed {
        woken.recv_timeout(RETRY_WAIT) != Err(RecvTimeoutError::Disconnected)
    } else {
        woken.recv().is_ok()
    }
}

/// A map of maps that no program reads.
#[derive(Debug)]
struct GraceWaiter {
    outer: MapHandle,
    inner: MapHandle,
}

impl GraceWaiter {
    fn new() -> Result<Self, libbpf_rs::Error> {
        let mut options = libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_sys::bpf_map_create_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let inner = MapHandle::create(MapType::Array, Some("holdfast_grace"), 4, 4, 1, &options)?;
        options.inner_map_fd = u32::try_from(inner.as_fd().as_raw_fd()).unwrap_or_default();
        let outer = MapHandle::create(MapType::ArrayOfMaps, Some("holdfast_graces"), 4, 4, 1, &options)?;
        Ok(Self { outer, inner })
    }

    fn wait_for_programs(&self) -> Result<(), libbpf_rs::Error> {
        let inner = self.inner.as_fd().as_raw_fd().to_ne_bytes();
        self.outer.update(&0_u32.to_ne_bytes(), &inner, MapFlags::ANY)
    }
}
