//! Connected sockets whose backend has left.
//!
//! Invariant: only a socket that dialled a frontend is ended, and only if its backend serves in no slice of the service that the
//! frontend leads to, or nobody has that frontend any more. What is not known is no reason: before the first whole table no frontend
//! counts as gone, and a port that does not say who serves loses nobody. A socket that dialled a backend directly is nobody's
//! business. Deliberately absent: sockets that are not connected; a datagram chooses anew by itself.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::list::Scope;
use holdfast_core::op::{Action, MemberKey, Membership, PortIndex, WordFlags};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::KernelMaps;
use crate::abi::{self, FrontendBytes};
use crate::diag::Connected;
use crate::error::StartError;
use crate::generation::{Generation, handle};
use crate::kept::{Connection, Connections, Kept};
use crate::shared::Shared;
use crate::sweep::{Judge, Sweeper, Swept};
use crate::sys;

/// A client may have chosen before its backend left, and its socket is connected after the first sweep: the second one meets
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
    // Of UDP sockets, or why it cannot be read. `None`: they are left alone.
    kept: Option<Result<Kept, Arc<str>>>,
    // The one namespace whose sockets are ended; `None`: all, or it cannot be told.
    netns: Option<u64>,
    // Sweeps to come.
    due: u32,
    // Every frontend has been in the maps, but for those that were refused.
    is_whole: bool,
}

impl Stale {
    /// `None`: nobody's sockets are ended.
    pub(super) fn start(which: StaleSockets, shared: &Shared) -> Result<Option<Self>, StartError> {
        if which.transports().is_empty() {
            return Ok(None);
        }
        let sweeper = Sweeper::start(which).map_err(|error| StartError::Load(error.into()))?;
        let sockets = handle(shared.handles(), "udp_sockets")?;
        let kept = which.udp.then(|| Kept::over(sockets).map_err(|error| unseen(&error)));
        let netns = (which.namespaces == Namespaces::Host).then(sys::own_netns_cookie).flatten();
        Ok(Some(Self { sweeper, kept, netns, due: SWEEPS_AFTER_A_CHANGE, is_whole: false }))
    }

    /// An op that may take a backend from a frontend.
    pub(super) fn note(&mut self, action: &Action) {
        let may_take = match action {
            Action::InsertFrontend(..) | Action::RemoveFrontend(..) => true,
            Action::RemoveMember(key) => key.membership == Membership::Serving,
            // It may be the first to say who serves.
            Action::PublishWord(_, scope, word) => {
                *scope == Scope::Cluster && word.flags.has(WordFlags::MEMBERS)
            }
            _ => false,
        };
        if may_take {
            self.due = SWEEPS_AFTER_A_CHANGE;
        }
    }

    /// From now on a frontend that is missing has gone.
    fn note_whole(&mut self) {
        if !self.is_whole {
            (self.is_whole, self.due) = (true, SWEEPS_AFTER_A_CHANGE);
        }
    }

    pub(super) fn swept(&self) -> Swept {
        self.sweeper.swept()
    }
}

impl KernelMaps {
    /// Has sockets ended whose backend has left, so that their owners connect anew: those see ECONNABORTED. To be called
    /// about once a second; it does not wait, and does nothing if nobody has left. `is_whole`: the maps have held all that
    /// every source tells.
    pub fn end_stale_sockets(&mut self, is_whole: bool) -> Result<(), StartError> {
        let Some(stale) = &mut self.stale else { return Ok(()) };
        if is_whole {
            stale.note_whole();
        }
        if stale.due > 0 && stale.sweeper.sweep(Lists::of(&self.generation, &self.shared, stale)?) {
            stale.due -= 1;
        }
        Ok(())
    }
}

fn unseen(error: &libbpf_rs::Error) -> Arc<str> {
    let needs = "it needs the kernel's own types (CONFIG_DEBUG_INFO_BTF) and CAP_PERFMON";
    format!("cannot see what UDP sockets dialled, so they are left alone: {error:#}; {needs}").into()
}

/// The same maps as the engine's, for another thread to read.
#[derive(Debug)]
struct Lists {
    generation: Generation,
    reverse: MapHandle,
    kept: Option<Result<Kept, Arc<str>>>,
    // The one namespace whose sockets are ended; `None`: all, or it cannot be told.
    netns: Option<u64>,
    // Of those the ones whose backend seemed to have left when they were read.
    leaving: Connections,
    is_whole: bool,
}

impl Lists {
    fn of(generation: &Generation, shared: &Shared, stale: &Stale) -> Result<Self, StartError> {
        let reverse = handle(shared.handles(), "reverse")?;
        Ok(Self {
            generation: generation.for_reading()?,
            reverse: MapHandle::try_from(reverse).map_err(StartError::Load)?,
            kept: stale.kept.clone(),
            netns: stale.netns,
            leaving: Connections::default(),
            is_whole: stale.is_whole,
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
            Transport::Udp => self.leaving.get(&cookie).filter(|it| it.backend == backend)?.dialled,
        };
        frontend(dialled, transport)
    }

    /// Whether a connected UDP socket is worth a closer look. Those of pods that nobody ends would leave no room for others.
    fn may_leave(&self, connection: &Connection) -> bool {
        let is_here = self.netns.is_none_or(|own| own == connection.netns);
        let dialled = frontend(connection.dialled, Transport::Udp);
        is_here && dialled.is_some_and(|dialled| !self.may_serve(&dialled, connection.backend))
    }

    /// Whether the backend serves in the service that whoever dials this gets now, as far as is known.
    fn may_serve(&self, dialled: &FrontendKey, backend: SocketAddr) -> bool {
        let family = Family::of(dialled.address);
        let wildcard = FrontendKey { address: family.unspecified(), ..*dialled };
        let Some(port) = self.index_of(dialled).or_else(|| self.index_of(&wildcard)) else {
            return !self.is_whole;
        };
        let says_who_serves = self.generation.word(port, Scope::Cluster).flags.has(WordFlags::MEMBERS);
        let member = abi::member_bytes(&MemberKey { port, membership: Membership::Serving, backend });
        !says_who_serves || self.generation.members.get(abi::bytes(&member)).is_some()
    }

    fn index_of(&self, key: &FrontendKey) -> Option<PortIndex> {
        let family = Family::of(key.address);
        let bytes = FrontendBytes::new(key);
        let found = self.generation.frontends(family).get(bytes.key())?;
        abi::frontend_of(family, bytes.key(), &found).map(|(_, value)| value.port)
    }
}

impl Judge for Lists {
    fn read(&mut self) -> io::Result<bool> {
        let (leaving, has_more) = match &self.kept {
            None => return Ok(false),
            Some(Ok(kept)) => kept.read(|connection| self.may_leave(connection))?,
            Some(Err(unseen)) => return Err(io::Error::other(unseen.to_string())),
        };
        self.leaving = leaving;
        Ok(has_more)
    }

    fn may_end_any(&self, transport: Transport) -> bool {
        transport == Transport::Tcp || !self.leaving.is_empty()
    }

    fn has_left(&self, socket: &Connected) -> bool {
        let Some(dialled) = self.dialled(socket) else { return false };
        // Asked last: what was read before is what clients get.
        (0..LOOKS).all(|_| !self.may_serve(&dialled, socket.peer)) && !self.generation.is_outgrown()
    }
}

fn frontend(dialled: SocketAddr, transport: Transport) -> Option<FrontendKey> {
    Some(FrontendKey { address: dialled.ip(), port: NonZeroU16::new(dialled.port())?, transport })
}

#[cfg(test)]
mod tests {
    use super::super::bed::{CAPACITY, Port, address, bed, in_pod, knows_its_netns, udp_client};
    use holdfast_core::op::Word;

    use super::*;
    use crate::diag::Diag;
    use crate::maps::Maps;

    /// What is said of each connected UDP socket.
    fn left(lists: &mut Lists) -> Vec<bool> {
        lists.read().unwrap();
        let mut said = Vec::new();
        let listed =
            Diag::open().unwrap().connected(Transport::Udp, |socket| said.push(lists.has_left(&socket)));
        listed.unwrap();
        said
    }

    fn lists(maps: &mut KernelMaps, is_whole: bool) -> Lists {
        let stale = maps.stale.as_mut().unwrap();
        stale.is_whole = is_whole;
        Lists::of(&maps.generation, &maps.shared, stale).unwrap()
    }

    #[test]
    fn kernel_maps_that_do_not_say_who_serves_or_are_not_whole_end_no_socket() {
        bed(|bed| {
            let mut maps = bed.start();
            let vip = "10.96.0.10:53";
            let backends = [address("127.0.0.2:5353")];
            let port = Port { frontends: &[vip], backends: &backends, ..Port::UDP };
            port.serve(&mut maps);
            let client = udp_client("0.0.0.0:0");
            client.connect(address(vip)).unwrap();
            let left = |maps: &mut KernelMaps, is_whole| left(&mut lists(maps, is_whole));
            Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
            assert_eq!(left(&mut maps, false), [true], "nobody serves, and the port says so");
            let silent = Action::PublishWord(PortIndex(port.index), Scope::Cluster, Word::EMPTY);
            maps.execute(&silent).unwrap();
            assert_eq!(left(&mut maps, true), [false], "the port does not say who serves");
            maps.execute(&Action::RemoveFrontend(port.key(vip))).unwrap();
            assert_eq!(left(&mut maps, true), [true], "the frontend has gone");
            assert_eq!(left(&mut maps, false), [false], "it may be about to come");
        });
    }

    #[test]
    fn kernel_sockets_of_pods_take_no_room_where_only_those_of_the_host_are_ended() {
        bed(|bed| {
            let mut maps = bed.start();
            let vip = "10.96.0.10:53";
            let backends = [address("127.0.0.2:5353")];
            let port = Port { frontends: &[vip], backends: &backends, ..Port::UDP };
            port.serve(&mut maps);
            let client = || {
                let client = udp_client("0.0.0.0:0");
                client.connect(address(vip)).unwrap();
                client
            };
            let _here = client();
            in_pod(|| {
                let _there = client();
                Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
                let mut lists = lists(&mut maps, true);
                assert!(!lists.read().unwrap(), "there is no more");
                assert_eq!(lists.leaving.len(), if knows_its_netns() { 1 } else { 2 });
            });
        });
    }

    #[test]
    fn kernel_maps_that_were_outgrown_meanwhile_say_of_no_socket_that_its_backend_has_left() {
        bed(|bed| {
            let mut maps = bed.start();
            let vip = "10.96.0.10:53";
            let backends = [address("127.0.0.2:5353")];
            let port = Port { frontends: &[vip], backends: &backends, ..Port::UDP };
            port.serve(&mut maps);
            let client = udp_client("0.0.0.0:0");
            client.connect(address(vip)).unwrap();
            let mut before = lists(&mut maps, true);
            assert_eq!(left(&mut before), [false]);
            Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
            assert_eq!(left(&mut before), [true]);
            maps.make_room_for_port("grow", PortIndex(CAPACITY.ports - 1)).unwrap();
            assert_eq!(left(&mut before), [false], "the members of today are elsewhere");
            assert_eq!(left(&mut lists(&mut maps, true)), [true]);
        });
    }
}
