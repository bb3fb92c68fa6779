//! What a client may set going, and where the outcome goes: others are asked for a diagnosis, the configuration is read
//! again, an address is forgotten, a backend is drained.
//!
//! Invariant: a client can set nothing else going. Few wishes may wait, and each one names the peer that asks, but for
//! a diagnosis.

use std::net::SocketAddr;

use tokio::sync::{mpsc, oneshot};

use holdfast_agent::drains::Order;
use holdfast_evidence::diagnose::gather::Gatherer;
use holdfast_kubernetes::apiserver::ForgetError;

/// Reloads that may wait; each takes milliseconds.
pub const RELOADS_WAITING_MAX: usize = 4;

/// Wishes to forget an address that may wait; each takes no longer than a write to disk.
pub const FORGETS_WAITING_MAX: usize = 4;

/// The parts of the daemon that do what a client sets going.
#[derive(Clone, Debug)]
pub struct RequestSenders {
    /// Asks the apiserver, this host and backends, for a diagnosis.
    pub gatherer: Gatherer,
    /// Where a wish for a reload goes.
    pub reloads: mpsc::Sender<ReloadRequest>,
    /// Where a wish goes that an apiserver's address be forgotten.
    pub forgets: mpsc::Sender<ForgetRequest>,
    /// Where an order goes to drain backends, or to take that back.
    pub drains: mpsc::Sender<Order>,
}

/// The process at the other end of the unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user that the process runs as.
    pub uid: u32,
    /// The number of the process, as far as the system tells; another process may have it once this one has ended.
    pub pid: Option<i32>,
}

/// What a reload led to.
#[derive(Debug)]
pub struct ReloadOutcome {
    /// Keys with new values that wait for a restart.
    pub restart_keys: Vec<&'static str>,
}

/// A wish for a reload.
#[derive(Debug)]
pub struct ReloadRequest {
    pub peer: Peer,
    /// Where the outcome goes: what is in force now, or why the old configuration stays.
    pub answer: oneshot::Sender<Result<ReloadOutcome, String>>,
}

/// How forgetting an address ended: done, with what is wrong with the disk if anything is; or why the address stays.
pub type ForgetOutcome = Result<Option<String>, ForgetError>;

/// A wish that an address be forgotten.
#[derive(Debug)]
pub struct ForgetRequest {
    pub peer: Peer,
    /// The address that is to be forgotten.
    pub address: SocketAddr,
    /// Where the outcome goes.
    pub answer: oneshot::Sender<ForgetOutcome>,
}
