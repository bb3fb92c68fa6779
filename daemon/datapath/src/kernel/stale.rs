//! Notices, finds, judges and ends connected sockets that have lost their backend, so that their owners dial anew.
//!
//! The steps, from the op that took a backend away:
//!
//! 1. This module notes ops that may take a backend from a frontend. About once a second, if it has noted any, it hands
//!    the maps that the next steps read to a thread of its own (`sweep`). The thread ends sockets and never keeps the
//!    engine waiting.
//! 2. Programs write down which socket dialled what as they translate. The thread reads this at once for the UDP
//!    sockets of all network namespaces (`udp_reader`). For a TCP socket it looks up the entry of the map `reverse` when it
//!    meets the socket.
//! 3. The same maps that programs read say which backend serves nowhere (`lists`).
//! 4. In the daemon's own network namespace, or in that of every process (`netns`), the kernel lists the connected
//!    sockets. Those that have lost their backend are ended by their cookies (`diag`), and their owners see
//!    ECONNABORTED.
//!
//! Invariant: only a socket that dialled a frontend is ended, and only if its backend serves in no slice of the service
//! that the frontend leads to, or no service has that frontend any more. Missing knowledge ends no socket: before the
//! first whole table no frontend counts as gone, and a port that does not say which backends serve loses no socket. A
//! socket that dialled a backend directly is left alone. A socket that is not connected need not be ended: its next
//! datagram chooses a backend anew.

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

/// A client may choose its backend before the backend leaves, and connect its socket after the first sweep: the second
/// one meets it. A start sweeps as often, because a change may have come before it.
const SWEEPS_PER_CHANGE: u32 = 2;

/// Where sockets are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// In the daemon's own network namespace: the host's.
    Host,
    /// In the network namespace of every process. Needs CAP_SYS_ADMIN and CAP_SYS_PTRACE.
    All,
}

/// Which sockets are ended when their backend has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleSockets {
    /// Connected UDP sockets, which do not notice by themselves.
    pub udp: bool,
    /// TCP connections, which may still come to a good end.
    pub tcp: bool,
    /// Where they are looked for.
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

/// Has stale sockets ended, and knows when that is due.
#[derive(Debug)]
pub(super) struct StaleSweep {
    sweeper: Sweeper<BackendLookup>,
    // What UDP sockets dialled, or why it cannot be read. `None`: UDP sockets are left alone.
    udp_reader: Option<Result<UdpPeerReader, Arc<str>>>,
    // The one network namespace in which sockets are ended; `None`: all, or it cannot be told.
    netns: Option<u64>,
    // Sweeps to come.
    due: u32,
    // Whether every frontend has been in the maps, except those that were refused.
    is_complete: bool,
}

impl StaleSweep {
    /// Starts the thread that ends sockets; `None`: no sockets are to be ended.
    pub(super) fn start(which: StaleSockets, shared: &SharedMaps) -> Result<Option<Self>, StartError> {
        if which.transports().is_empty() {
            return Ok(None);
        }
        let sweeper = Sweeper::start(which).map_err(|error| StartError::from_load(error.into()))?;
        let sockets = find_handle(shared.handles(), Map::UdpSockets)?;
        let kept =
            which.udp.then(|| UdpPeerReader::for_map(sockets).map_err(|error| unreadable_reason(&error)));
        let netns = (which.namespaces == Namespaces::Host).then(sys::own_netns_cookie).flatten();
        Ok(Some(Self { sweeper, udp_reader: kept, netns, due: SWEEPS_PER_CHANGE, is_complete: false }))
    }

    /// Notes an op if it may take a backend from a frontend.
    pub(super) fn record_action(&mut self, action: &Action) {
        let may_take = match action {
            Action::InsertFrontend(..) | Action::RemoveFrontend(..) => true,
            Action::RemoveMember(key) => key.membership == Membership::Serving,
            // This may be the first word that says which backends serve.
            Action::PublishWord(_, scope, word) => {
                *scope == Scope::Cluster && word.flags.contains(WordFlags::MEMBERS)
            }
            _ => false,
        };
        if may_take {
            self.due = SWEEPS_PER_CHANGE;
        }
    }

    /// Notes that the maps are whole: from now on a frontend that is not in them counts as gone.
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
    /// Has the thread end sockets that have lost their backend: their owners see ECONNABORTED and connect anew. To be
    /// called about once a second; it does not wait, and does nothing if no backend has left. `is_complete`: the maps have
    /// held all that every source tells.
    pub fn end_stale_sockets(&mut self, is_whole: bool) -> Result<(), StartError> {
        let Some(stale) = &mut self.stale else { return Ok(()) };
        if is_whole {
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
