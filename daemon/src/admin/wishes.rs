//! What a client may set going, and where the outcome goes: others are asked for a diagnosis, the configuration is read
//! again, an address is forgotten.
//!
//! Invariant: nothing else is. Few wishes may wait, and each names the peer that asks.

use std::net::SocketAddr;

use tokio::sync::{mpsc, oneshot};

use crate::apiserver::NotForgotten;
use crate::diagnose::gather::Gatherer;

/// Reloads that may wait; each takes milliseconds.
pub const RELOADS_WAITING_MAX: usize = 4;

/// Wishes to forget an address that may wait; each waits for a disk at most.
pub const FORGETS_WAITING_MAX: usize = 4;

/// Where what a client sets going is done.
#[derive(Clone, Debug)]
pub struct Acts {
    /// Asks the apiserver, this host and backends, for a diagnosis.
    pub gatherer: Gatherer,
    /// Where a wish for a reload goes.
    pub reloads: mpsc::Sender<ReloadWish>,
    /// Where a wish goes that an apiserver's address be forgotten.
    pub forgets: mpsc::Sender<ForgetWish>,
}

/// The process at the other end of the unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The user that its process runs as.
    pub uid: u32,
    /// Its process, while that lives.
    pub pid: Option<i32>,
}

/// What a reload led to.
#[derive(Debug)]
pub struct Reloaded {
    /// Keys with new values that wait for a restart.
    pub waiting: Vec<&'static str>,
}

/// A wish for a reload.
#[derive(Debug)]
pub struct ReloadWish {
    pub peer: Peer,
    /// Where the outcome goes: what is in force now, or why the old configuration stays.
    pub answer: oneshot::Sender<Result<Reloaded, String>>,
}

/// What is wrong with the disk, or why the address stays.
pub type Forgotten = Result<Option<String>, NotForgotten>;

/// A wish that an address be forgotten.
#[derive(Debug)]
pub struct ForgetWish {
    pub peer: Peer,
    /// The address that is to be forgotten.
    pub address: SocketAddr,
    /// Where the outcome goes.
    pub answer: oneshot::Sender<Forgotten>,
}
