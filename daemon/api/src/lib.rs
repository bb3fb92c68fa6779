//! The admin API: the daemon's state, over HTTP on loopback and on a unix socket.
//!
//! Invariant: the API only reads, except for requests to reload the configuration, forget an address and drain
//! backends. It works on its own threads, on snapshots, and its queries to the engine wait within bounds until the
//! engine has time, so no client, however slow or hostile, can delay the engine. Each of the two listeners has its own
//! thread, so clients that fill one do not block the other. Nothing here changes the table, and loopback, the socket's
//! permissions and the users at its other end are the only authentication.

#![forbid(unsafe_code)]

pub mod about;
mod absent_service;
mod admin_listener;
mod affinity;
mod apiserver;
mod backends;
mod bare_name;
mod client_requests;
mod datapath;
mod denied_clients;
mod diagnose;
mod drains;
mod events;
mod explain;
mod failing_backends;
#[cfg(any(test, feature = "testing"))]
#[path = "tests/fixture.rs"]
pub mod fixture;
mod flows;
mod footer;
mod forget;
pub mod form;
mod frontends;
mod guard;
pub mod health;
pub mod hint;
mod history;
pub mod limits;
mod listen;
mod metrics;
mod openapi;
mod page;
pub mod parameters;
mod path;
pub mod query;
mod record_stream;
mod refusals;
mod rejection_list;
mod reload;
mod response;
mod response_schema;
mod routes;
mod serve;
mod services;
mod stale;
mod table;
#[cfg(test)]
mod tests;
mod text_table;
pub mod totals;
mod trouble;
mod unwritten;
pub mod verify;
mod write_timeout;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::Runtime;
use tokio::sync::watch;

use admin_listener::ServerContext;
use holdfast_agent::readings::Readings;
use holdfast_evidence::event_watcher::EventStatus;
use serve::OpenRetry;

pub use client_requests::{
    FORGETS_WAITING_MAX, ForgetOutcome, ForgetRequest, Peer, RELOADS_WAITING_MAX, ReloadOutcome,
    ReloadRequest, RequestSenders,
};
pub use listen::AdminError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// A loopback address. Port 0 lets the kernel choose.
    pub listen: SocketAddr,
    /// The unix socket; its folder must exist.
    pub socket: PathBuf,
}

/// The threads that serve the API while this lives.
#[derive(Debug)]
pub struct AdminServer {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<()>>,
}

/// Opens the address and the socket, then serves each from its own thread.
///
/// When this returns, clients can connect, unless the address or the socket cannot be opened: `shut` then has the
/// reason, and the daemon tries again, because services are served without the admin API, too.
pub fn start(
    settings: &Settings,
    (readings, events, acts): (Readings, EventStatus, RequestSenders),
    shut: watch::Sender<Vec<String>>,
) -> Result<AdminServer, AdminError> {
    let loopback = build_runtime()?;
    let local = build_runtime()?;
    let tcp = enter_runtime(&loopback, || listen::open_tcp(settings.listen));
    let socket = enter_runtime(&local, || listen::open_socket(&settings.socket));
    let address = tcp.as_ref().map_or(settings.listen, |tcp| tcp.address);
    let inside = ServerContext { readings: Arc::new(readings), events, actions: Arc::new(acts) };
    let (stop, stopping) = watch::channel(false);
    let shut = OpenRetry::new(shut, stopping);
    let mut admin = AdminServer { address, stop, threads: Vec::new() };
    let serving = serve::serve_tcp(tcp, settings.listen, inside.clone(), shut.clone());
    admin.spawn("admin", loopback, serving)?;
    admin.spawn("admin-socket", local, serve::serve_socket(socket, settings.socket.clone(), inside, shut))?;
    Ok(admin)
}

fn build_runtime() -> Result<Runtime, AdminError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AdminError::Runtime)
}

fn enter_runtime<T>(runtime: &Runtime, act: impl FnOnce() -> T) -> T {
    let _entered = runtime.enter();
    act()
}

impl AdminServer {
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

    /// The TCP address as bound, or as configured if it could not be bound at the start.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting clients, lets running answers finish for at most two seconds, then returns.
    ///
    /// It blocks; asynchronous callers hand it to a thread.
    pub fn stop(mut self) {
        self.stop_threads();
    }

    fn stop_threads(&mut self) {
        self.stop.send_replace(true);
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the admin api panicked");
            }
        }
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        self.stop_threads();
    }
}
