//! The admin API: what the daemon knows, over HTTP on loopback and on a unix socket.
//!
//! Invariant: it only reads, but for the wishes that a configuration be read again and that an address be forgotten. It has
//! threads and runtimes of its own and sees nothing but snapshots, so no client, however slow or hostile, can delay the engine; and
//! each of the two doors has its own, so that nobody who fills one is in the way of the other. Deliberately absent: anything that
//! changes the table, and any authentication
//! beyond what loopback and the socket's permissions give.

mod answer;
mod apiserver;
mod backends;
mod clients;
mod datapath;
mod door;
mod explain;
mod forget;
mod form;
mod frontends;
mod guard;
pub(crate) mod hint;
mod history;
pub(crate) mod limits;
mod listen;
mod live;
mod metrics;
mod openapi;
mod page;
mod process;
mod query;
mod refusals;
mod rejected;
mod reload;
mod routes;
mod serve;
mod services;
mod shown;
mod stale;
mod stall;
#[cfg(test)]
pub(crate) mod tests;
mod verify;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use holdfast_core::facts::Timestamp;
use holdfast_core::snapshot::Snapshot;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use crate::announce::Announced;
use crate::apiserver::View as ApiserverView;
use crate::datapath::{DatapathView, RefusalLog};
use crate::engine::ask::Asker;
use crate::probes::Probes;
use crate::proxies::OtherProxy;
use crate::recorder::History;
use crate::sources::kubernetes::View as Watches;
use crate::state::Written;
use serve::Shut;

pub use forget::{FORGETS_WAITING_MAX, ForgetWish, Forgotten};
pub use listen::AdminError;
pub use reload::{Peer, RELOADS_WAITING_MAX, ReloadWish, Reloaded};
pub use verify::Verifications;

/// Where the API listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A loopback address. Port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// The unix socket; its folder must exist.
    pub socket: PathBuf,
}

/// What does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct About {
    /// The daemon's version.
    pub version: &'static str,
    /// When the daemon started.
    pub started: Timestamp,
}

/// The configuration in force, every key with its value.
#[derive(Clone, Debug)]
pub struct EffectiveConfig {
    /// As TOML.
    pub text: String,
    /// As one JSON value.
    pub json: String,
}

/// Tells for how long an event has waited for the engine, if that is too long.
#[derive(Clone)]
pub struct Liveness(Arc<dyn Fn() -> Option<Duration> + Send + Sync>);

impl Liveness {
    /// `stalled` answers `None` while events move or none waits. It must not block.
    pub fn new(stalled: impl Fn() -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self(Arc::new(stalled))
    }

    pub(crate) fn stalled(&self) -> Option<Duration> {
        (self.0)()
    }
}

impl fmt::Debug for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Liveness").field(&self.stalled()).finish()
    }
}

/// Everything that the API can show.
#[derive(Clone, Debug)]
pub struct Readings {
    /// The newest view of everything.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The newest configuration.
    pub config: watch::Receiver<Arc<EffectiveConfig>>,
    /// The newest view of programs and maps.
    pub datapath: watch::Receiver<Arc<DatapathView>>,
    /// The newest view of the way to the apiserver; none where none is used.
    pub apiserver: Option<watch::Receiver<Arc<ApiserverView>>>,
    /// How each watch of the apiserver is doing.
    pub watches: Watches,
    /// The latest clients that were not served.
    pub refusals: Arc<RefusalLog>,
    /// How held backends met their probes.
    pub probes: Arc<Probes>,
    /// What became of the Events for the cluster; none where none are written.
    pub announced: Option<Arc<Announced>>,
    /// Every change with its cause.
    pub history: Arc<History>,
    /// How the last write of the snapshot went.
    pub written: watch::Receiver<Written>,
    /// What only the engine can answer.
    pub engine: Asker,
    /// The last comparison of all that is held twice.
    pub verifications: Verifications,
    /// Whether events move.
    pub liveness: Liveness,
    /// Other proxies that serve on this node.
    pub proxies: watch::Receiver<Arc<[OtherProxy]>>,
    /// Why the last reload was refused, until one is not.
    pub refused_reload: watch::Receiver<Option<String>>,
    /// Why nobody can ask at the TCP address or at the socket now.
    pub shut: watch::Receiver<Vec<String>>,
    /// Where a wish for a reload goes.
    pub reloads: mpsc::Sender<ReloadWish>,
    /// Where a wish goes that an apiserver's address be forgotten.
    pub forgets: mpsc::Sender<ForgetWish>,
    /// What does not change.
    pub about: About,
}

impl Readings {
    fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    fn datapath(&self) -> Arc<DatapathView> {
        Arc::clone(&self.datapath.borrow())
    }

    /// Why clients do not meet what the rules ask for yet.
    pub(crate) fn unready(&self) -> Option<String> {
        routes::unready(self, &self.snapshot())
    }

    /// Whether all that is missing is the first list of sources that cannot be read now.
    pub(crate) fn serves_what_it_can(&self) -> bool {
        routes::serves_what_it_can(&self.snapshot())
    }

    fn apiserver(&self) -> Option<Arc<ApiserverView>> {
        self.apiserver.as_ref().map(|views| Arc::clone(&views.borrow()))
    }
}

/// The running API.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

/// Takes the address and the socket, then serves each from a thread of its own.
///
/// When this returns, clients can connect, unless somebody else has the address or the socket: that is told through `shut` and
/// tried again, because a daemon that nobody can ask still serves.
pub fn start(
    settings: &Settings,
    readings: Readings,
    shut: watch::Sender<Vec<String>>,
) -> Result<Admin, AdminError> {
    let (loopback, local) = (runtime()?, runtime()?);
    let tcp = within(&loopback, || listen::open_tcp(settings.listen));
    let socket = within(&local, || listen::open_socket(&settings.socket));
    let address = tcp.as_ref().map_or(settings.listen, |tcp| tcp.address);
    let (readings, (stop, stopping)) = (Arc::new(readings), watch::channel(false));
    let shut = Shut::new(shut, stopping);
    let mut admin = Admin { address, stop, threads: Vec::new() };
    let serving = serve::tcp(tcp, settings.listen, Arc::clone(&readings), shut.clone());
    admin.spawn("admin", loopback, serving)?;
    admin.spawn("admin-socket", local, serve::socket(socket, settings.socket.clone(), readings, shut))?;
    Ok(admin)
}

fn runtime() -> Result<Runtime, AdminError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AdminError::Runtime)
}

fn within<T>(runtime: &Runtime, act: impl FnOnce() -> T) -> T {
    let _entered = runtime.enter();
    act()
}

impl Admin {
    fn spawn(
        &mut self,
        name: &str,
        runtime: Runtime,
        serving: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), AdminError> {
        let work = move || runtime.block_on(serving);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        self.threads.push(thread.map_err(AdminError::Runtime)?);
        Ok(())
    }

    /// The TCP address, with the port that was bound if it was free.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more clients, lets answers under way finish for at most two seconds, and returns then.
    ///
    /// It blocks; asynchronous callers hand it to a thread.
    pub fn stop(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the admin api panicked");
            }
        }
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.finish();
    }
}
