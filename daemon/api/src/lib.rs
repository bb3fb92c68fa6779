//! The admin API: what the daemon knows, over HTTP on loopback and on a unix socket.
//!
//! Invariant: the API only reads, but for the wishes that a configuration be read again, that an address be forgotten
//! and that backends be drained. It works on threads of its own, on snapshots, and what it asks of the engine waits
//! within bounds until the engine has time, so no client, however slow or hostile, can delay the engine. Each of the
//! two doors has its own thread, so clients that fill one do not block the other. Nothing here changes the table, and
//! loopback, the socket's permissions and the users at its other end are all the authentication there is.

#![forbid(unsafe_code)]

pub mod about;
mod affinity;
mod answer;
mod answers;
mod apiserver;
mod backends;
mod datapath;
mod diagnose;
mod door;
mod drains;
mod events;
mod explain;
#[cfg(any(test, feature = "testing"))]
#[path = "tests/fixture.rs"]
pub mod fixture;
mod flows;
mod forget;
pub mod form;
mod frontends;
mod guard;
pub mod health;
pub mod hint;
mod history;
pub mod limits;
mod listen;
mod live;
mod metrics;
mod openapi;
mod page;
pub mod parameters;
mod path;
pub mod query;
mod refusals;
mod rejected;
mod reload;
mod routes;
mod serve;
mod services;
mod shown;
mod stale;
mod stall;
mod table;
#[cfg(test)]
mod tests;
pub mod totals;
pub mod verify;
mod wishes;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::Runtime;
use tokio::sync::watch;

use door::Inside;
use holdfast_agent::readings::Readings;
use holdfast_evidence::event_watcher::EventStatus;
use serve::Shut;

pub use listen::AdminError;
pub use wishes::{
    Acts, FORGETS_WAITING_MAX, ForgetWish, Forgotten, Peer, RELOADS_WAITING_MAX, ReloadWish, Reloaded,
};

/// Where the API listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A loopback address. Port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// The unix socket; its folder must exist.
    pub socket: PathBuf,
}

/// The threads that serve the API, as long as this lives.
#[derive(Debug)]
pub struct Admin {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

/// Takes the address and the socket, then serves each from a thread of its own.
///
/// When this returns, clients can connect, unless the address or the socket cannot be taken: `shut` then says why, and
/// the daemon tries again, because services are served without the admin API, too.
pub fn start(
    settings: &Settings,
    (readings, events, acts): (Readings, EventStatus, Acts),
    shut: watch::Sender<Vec<String>>,
) -> Result<Admin, AdminError> {
    let loopback = runtime()?;
    let local = runtime()?;
    let tcp = within(&loopback, || listen::open_tcp(settings.listen));
    let socket = within(&local, || listen::open_socket(&settings.socket));
    let address = tcp.as_ref().map_or(settings.listen, |tcp| tcp.address);
    let inside = Inside { readings: Arc::new(readings), events, acts: Arc::new(acts) };
    let (stop, stopping) = watch::channel(false);
    let shut = Shut::new(shut, stopping);
    let mut admin = Admin { address, stop, threads: Vec::new() };
    let serving = serve::tcp(tcp, settings.listen, inside.clone(), shut.clone());
    admin.spawn("admin", loopback, serving)?;
    admin.spawn("admin-socket", local, serve::socket(socket, settings.socket.clone(), inside, shut))?;
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

    /// The TCP address as it was bound, or as it is configured if it could not be bound at the start.
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
