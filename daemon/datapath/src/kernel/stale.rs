//! Ends connected sockets that have lost their backend, so that their owners connect again.
//!
//! The steps after an op has removed a backend:
//!
//! 1. This module notes ops that may take a backend from a frontend. About once a second, if there were any, it hands
//!    the maps for the next steps to a separate thread (`sweep`). The thread ends sockets and never blocks the engine.
//! 2. Programs record what each socket dialled as they translate. The thread reads the UDP sockets of all network
//!    namespaces at once (`udp_peers`). For each TCP socket it looks up the map `reverse`.
//! 3. The maps that programs read tell which backends serve nowhere (`backend_lookup`).
//! 4. In the daemon's network namespace, or in those of all processes (`netns`), the kernel lists the connected
//!    sockets. The thread destroys stale ones by their cookies (`sock_diag`), and their owners see ECONNABORTED.
//!
//! Invariant: the thread ends a socket only if it dialled a frontend, and the frontend's service has no slice with that
//! backend or no service has the frontend any more. Missing data ends no socket: before the first complete table no
//! frontend counts as gone, and a port without its list of serving backends loses no socket. Sockets that dialled a
//! backend directly are left alone. An unconnected socket need not be ended: its next datagram selects a backend anew.

mod backend_lookup;
mod netns;
mod sock_diag;
mod sweep;
mod udp_peers;

use std::sync::Arc;

use holdfast_core::keys::Transport;
use holdfast_core::list::Scope;
use holdfast_core::op::{Action, Membership, WordFlags};
use holdfast_status::datapath::SocketSweepProgress;

use super::KernelMaps;
use crate::error::StartError;
use crate::map::{Map, find_handle};
use crate::shared_maps::SharedMaps;
use crate::sys;

use backend_lookup::BackendLookup;
use sweep::Sweeper;
use udp_peers::UdpPeerReader;

/// A client may select its backend before the backend leaves, and connect its socket after the first sweep: the second
/// one finds it. A start also sweeps this often, because a change may precede it.
const SWEEPS_PER_CHANGE: u32 = 2;

/// The thread ends sockets in these namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// The daemon's own network namespace: the host's.
    Host,
    /// The network namespaces of all processes. Needs CAP_SYS_ADMIN and CAP_SYS_PTRACE.
    All,
}

/// Which sockets are ended once their backend is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleSockets {
    /// Connected UDP sockets, which do not notice by themselves.
    pub udp: bool,
    /// TCP connections, which might still end normally.
    pub tcp: bool,
    /// The namespaces of these sockets.
    pub namespaces: Namespaces,
}

impl Default for StaleSockets {
    fn default() -> Self {
        Self { udp: true, tcp: false, namespaces: Namespaces::Host }
    }
}

impl StaleSockets {
    pub(crate) fn transports(&self) -> &'static [Transport] {
        match (self.udp, self.tcp) {
            (true, true) => &[Transport::Udp, Transport::Tcp],
            (true, false) => &[Transport::Udp],
            (false, true) => &[Transport::Tcp],
            (false, false) => &[],
        }
    }
}

/// Schedules sweeps of stale sockets.
#[derive(Debug)]
pub(super) struct StaleSweep {
    sweeper: Sweeper<BackendLookup>,
    // Reads what UDP sockets dialled, or why it cannot. `None`: UDP sockets are left alone.
    udp_reader: Option<Result<UdpPeerReader, Arc<str>>>,
    // The only network namespace in which the thread ends sockets; `None`: all, or it is unknown.
    netns: Option<u64>,
    due: u32,
    // Whether the maps have held every frontend, except refused ones.
    is_complete: bool,
}

impl StaleSweep {
    /// Starts the thread; `None`: no sockets are to be ended.
    pub(super) fn start(which: StaleSockets, shared: &SharedMaps) -> Result<Option<Self>, StartError> {
        if which.transports().is_empty() {
            return Ok(None);
        }
        let sweeper = Sweeper::start(which).map_err(|error| StartError::from_load(error.into()))?;
        let sockets = find_handle(shared.handles(), Map::UdpSockets)?;
        let udp_reader =
            which.udp.then(|| UdpPeerReader::for_map(sockets).map_err(|error| unreadable_reason(&error)));
        let netns = (which.namespaces == Namespaces::Host).then(sys::own_netns_cookie).flatten();
        Ok(Some(Self { sweeper, udp_reader, netns, due: SWEEPS_PER_CHANGE, is_complete: false }))
    }

    /// Notes an op that may take a backend from a frontend.
    pub(super) fn record_action(&mut self, action: &Action) {
        let may_take = match action {
            Action::InsertFrontend(..) | Action::RemoveFrontend(..) => true,
            Action::RemoveMember(key) => key.membership == Membership::Serving,
            // This may be the first word with a list of serving backends.
            Action::PublishWord(_, scope, word) => {
                *scope == Scope::Cluster && word.flags.contains(WordFlags::MEMBERS)
            }
            _ => false,
        };
        if may_take {
            self.due = SWEEPS_PER_CHANGE;
        }
    }

    /// Marks the maps as complete: from now on a frontend missing from them counts as gone.
    fn mark_complete(&mut self) {
        if !self.is_complete {
            (self.is_complete, self.due) = (true, SWEEPS_PER_CHANGE);
        }
    }

    pub(super) fn progress(&self) -> SocketSweepProgress {
        self.sweeper.progress()
    }
}

impl KernelMaps {
    /// Lets the thread end sockets that have lost their backend: their owners see ECONNABORTED and reconnect. Call it
    /// about once a second; it never waits, and does nothing unless a backend has left. `is_complete`: the maps have
    /// held the objects of all sources.
    pub fn end_stale_sockets(&mut self, is_complete: bool) -> Result<(), StartError> {
        let Some(stale) = &mut self.stale else { return Ok(()) };
        if is_complete {
            stale.mark_complete();
        }
        if stale.due > 0
            && stale.sweeper.try_sweep(BackendLookup::new(&self.generation, &self.shared, stale)?)
        {
            stale.due -= 1;
        }
        Ok(())
    }
}

fn unreadable_reason(error: &libbpf_rs::Error) -> Arc<str> {
    let needs = "it needs the kernel's own types (CONFIG_DEBUG_INFO_BTF) and CAP_PERFMON";
    format!("cannot see what UDP sockets dialled, so they are left alone: {error:#}; {needs}").into()
}
