//! Connected sockets whose backend has left the list.
//!
//! Invariant: only a socket that dialled a frontend is ended, and only if no list of that frontend has its backend any more.
//! A socket that dialled a backend directly is nobody's business. Deliberately absent: sockets that are not connected; a
//! datagram chooses anew by itself.

use std::net::SocketAddr;
use std::num::NonZeroU16;

use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::list::Scope;
use holdfast_core::op::{Action, PortIndex};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::KernelMaps;
use crate::abi::{self, FrontendBytes};
use crate::diag::Connected;
use crate::error::StartError;
use crate::generation::{Generation, handle};
use crate::shared::Shared;
use crate::sweep::{Judge, Sweeper, Swept};

/// A client may have read the list before it changed, and its socket is connected after the first sweep: the second one meets
/// it. What a start finds may have changed before.
const SWEEPS_AFTER_A_CHANGE: u32 = 2;

/// How often a socket must look stale in a row. The engine writes meanwhile, so one look may be at something torn.
const LOOKS: usize = 3;

/// Where sockets are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// In the daemon's own network namespace: the host's.
    Host,
    /// In that of every process. Needs CAP_SYS_ADMIN and CAP_SYS_PTRACE.
    All,
}

/// Which sockets are ended when their backend has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleSockets {
    /// Connected UDP sockets, which do not notice by themselves.
    pub udp: bool,
    /// TCP connections, which may end well without that.
    pub tcp: bool,
    /// Where.
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

/// Who ends stale sockets, and when.
#[derive(Debug)]
pub(super) struct Stale {
    sweeper: Sweeper<Lists>,
    // Sweeps to come.
    due: u32,
}

impl Stale {
    /// `None`: nobody's sockets are ended.
    pub(super) fn start(which: StaleSockets) -> Result<Option<Self>, StartError> {
        if which.transports().is_empty() {
            return Ok(None);
        }
        let sweeper = Sweeper::start(which).map_err(|error| StartError::Load(error.into()))?;
        Ok(Some(Self { sweeper, due: SWEEPS_AFTER_A_CHANGE }))
    }

    /// An op that may take a backend from a frontend.
    pub(super) fn note(&mut self, action: &Action) {
        use Action::{InsertFrontend, PublishWord, RemoveFrontend};
        if matches!(action, PublishWord(..) | InsertFrontend(..) | RemoveFrontend(..)) {
            self.due = SWEEPS_AFTER_A_CHANGE;
        }
    }

    pub(super) fn swept(&self) -> Swept {
        self.sweeper.swept()
    }
}

impl KernelMaps {
    /// Has sockets ended whose backend has left, so that their owners connect anew: those see ECONNABORTED. To be called
    /// about once a second; it does not wait, and does nothing if no list has changed.
    pub fn end_stale_sockets(&mut self) -> Result<(), StartError> {
        let Some(stale) = self.stale.as_mut().filter(|stale| stale.due > 0) else { return Ok(()) };
        if stale.sweeper.sweep(Lists::of(&self.generation, &self.shared)?) {
            stale.due -= 1;
        }
        Ok(())
    }
}

/// The same maps as the engine's, for another thread to read.
#[derive(Debug)]
struct Lists {
    generation: Generation,
    reverse: MapHandle,
    udp_reverse: MapHandle,
}

impl Lists {
    fn of(generation: &Generation, shared: &Shared) -> Result<Self, StartError> {
        let copy = |map| MapHandle::try_from(handle(shared.handles(), map)?).map_err(StartError::Load);
        Ok(Self {
            generation: generation.for_reading()?,
            reverse: copy("reverse")?,
            udp_reverse: copy("udp_reverse")?,
        })
    }

    /// What a socket dialled when it got that backend; `None`: it was not translated.
    fn dialled(&self, socket: &Connected) -> Option<FrontendKey> {
        let (cookie, backend, transport) = (socket.cookie, socket.peer, socket.transport);
        let dialled = match transport {
            Transport::Tcp => {
                let found = self.reverse.lookup(&abi::reverse_index(cookie).to_ne_bytes(), MapFlags::ANY);
                abi::dialled_over_tcp(&found.ok()??, cookie, backend)?
            }
            Transport::Udp => {
                let key = abi::udp_key(cookie, backend);
                abi::udp_place(&self.udp_reverse.lookup(abi::bytes(&key), MapFlags::ANY).ok()??)?
            }
        };
        Some(FrontendKey { address: dialled.ip(), port: NonZeroU16::new(dialled.port())?, transport })
    }

    /// A list that is replaced meanwhile counts as one that has it: there is another sweep after that.
    fn is_listed(&self, dialled: &FrontendKey, backend: SocketAddr) -> bool {
        let family = Family::of(dialled.address);
        let wildcard = FrontendKey { address: family.unspecified(), ..*dialled };
        let Some(index) = self.index_of(dialled).or_else(|| self.index_of(&wildcard)) else { return false };
        Scope::ALL.into_iter().any(|scope| {
            let word = self.generation.word(index, scope);
            let has = self.generation.list(family, word).iter().any(|slot| slot.backend() == backend);
            has || self.generation.word(index, scope) != word
        })
    }

    fn index_of(&self, key: &FrontendKey) -> Option<PortIndex> {
        let family = Family::of(key.address);
        let bytes = FrontendBytes::new(key);
        let found = self.generation.frontends(family).get(bytes.key())?;
        abi::frontend_of(family, bytes.key(), &found).map(|(_, value)| value.port)
    }
}

impl Judge for Lists {
    fn has_left(&self, socket: &Connected) -> bool {
        let looks_stale =
            || self.dialled(socket).is_some_and(|dialled| !self.is_listed(&dialled, socket.peer));
        // Asked last: what was read before is what clients get.
        (0..LOOKS).all(|_| looks_stale()) && !self.generation.is_outgrown()
    }
}

#[cfg(test)]
mod tests {
    use super::super::bed::{CAPACITY, Port, address, bed, udp_client};
    use super::*;
    use crate::diag::Diag;

    #[test]
    fn kernel_maps_that_were_outgrown_meanwhile_say_of_no_socket_that_its_backend_has_left() {
        bed(|bed| {
            let mut maps = bed.start();
            let vip = "10.96.0.10:53";
            let backends = [address("127.0.0.2:5353")];
            let port =
                Port { transport: Transport::Udp, frontends: &[vip], backends: &backends, ..Port::TCP };
            port.serve(&mut maps);
            let client = udp_client("0.0.0.0:0");
            client.connect(address(vip)).unwrap();
            let mut sockets = Vec::new();
            let listed = Diag::open().unwrap().connected(Transport::Udp, |socket| sockets.push(socket));
            listed.unwrap();
            assert_eq!(sockets.len(), 1);
            let lists = Lists::of(&maps.generation, &maps.shared).unwrap();
            assert!(!lists.has_left(&sockets[0]));
            Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
            assert!(lists.has_left(&sockets[0]));
            maps.make_room_for_port("grow", PortIndex(CAPACITY.ports - 1)).unwrap();
            assert!(!lists.has_left(&sockets[0]), "the list of today is elsewhere");
            assert!(Lists::of(&maps.generation, &maps.shared).unwrap().has_left(&sockets[0]));
        });
    }
}
