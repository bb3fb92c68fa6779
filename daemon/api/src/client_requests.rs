//! The actions that a client may request, and the paths of their outcomes: a diagnosis queries other systems, the
//! configuration is reloaded, an address is forgotten, a backend is drained.
//!
//! Invariant: a client can request no other action. Few requests may wait, and each names its peer, except for a
//! diagnosis.

use std::net::SocketAddr;

use tokio::sync::{mpsc, oneshot};

use holdfast_agent::drains::Order;
use holdfast_evidence::diagnose::gather::Gatherer;
use holdfast_kubernetes::apiserver::ForgetError;

/// Reloads that may wait; each takes milliseconds.
pub const RELOADS_WAITING_MAX: usize = 4;

/// Requests to forget an address that may wait; each takes no longer than a write to disk.
pub const FORGETS_WAITING_MAX: usize = 4;

/// The parts of the daemon that execute clients' requests.
#[derive(Clone, Debug)]
pub struct RequestSenders {
    /// Queries the apiserver, this host and backends for a diagnosis.
    pub gatherer: Gatherer,
    pub reloads: mpsc::Sender<ReloadRequest>,
    pub forgets: mpsc::Sender<ForgetRequest>,
    pub drains: mpsc::Sender<Order>,
}

/// The process at the other end of the unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user of the process.
    pub uid: u32,
    /// The process id, if the system reports it; another process may have it once this one has ended.
    pub pid: Option<i32>,
}

#[derive(Debug)]
pub struct ReloadOutcome {
    /// Keys with new values that wait for a restart.
    pub restart_keys: Vec<&'static str>,
}

#[derive(Debug)]
pub struct ReloadRequest {
    pub peer: Peer,
    /// Receives the outcome: what is in force now, or why the old configuration stays.
    pub answer: oneshot::Sender<Result<ReloadOutcome, String>>,
}

/// The outcome of forgetting an address: done, with an error of the disk if there is one; or why the address stays.
pub type ForgetOutcome = Result<Option<String>, ForgetError>;

#[derive(Debug)]
pub struct ForgetRequest {
    pub peer: Peer,
    pub address: SocketAddr,
    pub answer: oneshot::Sender<ForgetOutcome>,
}
