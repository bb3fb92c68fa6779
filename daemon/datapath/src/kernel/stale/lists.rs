//! Which sockets have lost their backend, by the maps that clients are served from.
//!
//! Invariant: what cannot be read, or may be out of date, is no reason to end a socket. Nothing is written.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::list::Scope;
use holdfast_core::op::{MemberKey, Membership, PortIndex, WordFlags};
use libbpf_rs::{MapCore, MapFlags, MapHandle};

use super::Stale;
use super::diag::Connected;
use super::kept::{Connections, Reader};
use super::sweep::Judge;
use crate::abi::Connection;
use crate::abi::{self, FrontendBytes};
use crate::error::StartError;
use crate::generation::Generation;
use crate::map::{Map, handle};
use crate::shared::Shared;

/// How often a socket must look stale in a row. The engine writes meanwhile, so a single look may see something half
/// written.
const LOOKS: usize = 3;

/// The same maps as the engine's, for another thread to read.
#[derive(Debug)]
pub(super) struct Lists {
    generation: Generation,
    reverse: MapHandle,
    kept: Option<Result<Reader, Arc<str>>>,
    // The one network namespace in which sockets are ended; `None`: all, or it cannot be told.
    netns: Option<u64>,
    // Of the connections that UDP sockets keep, those that seemed to have lost their backend when they were read.
    leaving: Connections,
    is_whole: bool,
}

impl Lists {
    pub(super) fn of(generation: &Generation, shared: &Shared, stale: &Stale) -> Result<Self, StartError> {
        let reverse = handle(shared.handles(), Map::Reverse)?;
        Ok(Self {
            generation: generation.for_reading()?,
            reverse: MapHandle::try_from(reverse).map_err(StartError::loading)?,
            kept: stale.kept.clone(),
            netns: stale.netns,
            leaving: Connections::default(),
            is_whole: stale.is_whole,
        })
    }

    /// What a socket dialled when it got that backend; `None`: it was not translated.
    fn dialled(&self, socket: &Connected) -> Option<FrontendKey> {
        let cookie = socket.cookie;
        let backend = socket.peer;
        let transport = socket.transport;
        let dialled = match transport {
            Transport::Tcp => {
                let found = self.reverse.lookup(&abi::reverse_index(cookie).to_ne_bytes(), MapFlags::ANY);
                abi::dialled_over_tcp(&found.ok()??, cookie, backend)?
            }
            Transport::Udp => self.leaving.get(&cookie).filter(|it| it.backend == backend)?.dialled,
            Transport::Sctp => return None,
        };
        frontend(dialled, transport)
    }

    /// Whether a connected UDP socket is worth a closer look. Where sockets of pods are not ended, they are left out,
    /// because they would leave no room for others.
    fn may_leave(&self, connection: &Connection) -> bool {
        let is_here = self.netns.is_none_or(|own| own == connection.netns);
        let dialled = frontend(connection.dialled, Transport::Udp);
        is_here && dialled.is_some_and(|dialled| !self.may_serve(&dialled, connection.backend))
    }

    /// Whether the backend serves in the service that the dialled address leads to now, as far as is known.
    fn may_serve(&self, dialled: &FrontendKey, backend: SocketAddr) -> bool {
        let family = Family::from_address(dialled.address);
        let wildcard = FrontendKey { address: family.unspecified_address(), ..*dialled };
        let Some(port) = self.index_of(dialled).or_else(|| self.index_of(&wildcard)) else {
            return !self.is_whole;
        };
        let says_who_serves = self.generation.word(port, Scope::Cluster).flags.contains(WordFlags::MEMBERS);
        let member = abi::member_bytes(&MemberKey { port, membership: Membership::Serving, backend });
        !says_who_serves || self.generation.members.get(abi::bytes(&member)).is_some()
    }

    fn index_of(&self, key: &FrontendKey) -> Option<PortIndex> {
        let family = Family::from_address(key.address);
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
        // Asked last: if the maps are not outgrown now, what was read from them is what clients get.
        (0..LOOKS).all(|_| !self.may_serve(&dialled, socket.peer)) && !self.generation.is_outgrown()
    }
}

fn frontend(dialled: SocketAddr, transport: Transport) -> Option<FrontendKey> {
    Some(FrontendKey { address: dialled.ip(), port: NonZeroU16::new(dialled.port())?, transport })
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, UdpSocket};

    use holdfast_core::op::{Action, Word};

    use super::super::super::bed::{
        CAPACITY, Port, ThreadBed, address, bed, in_pod, knows_its_netns, sweep, tells_what_sockets_keep,
        udp_client,
    };
    use super::super::diag::Diag;
    use super::*;
    use crate::kernel::KernelMaps;
    use holdfast_core::maps::Maps;

    const VIP: &str = "10.96.0.10:53";

    const BACKENDS: [SocketAddr; 1] = [SocketAddr::new(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2)), 5353)];

    /// Maps with a port of one backend, and a socket that has dialled it.
    fn served(bed: &ThreadBed) -> (KernelMaps, Port<'static>, UdpSocket) {
        let mut maps = bed.start();
        let port = Port { frontends: &[VIP], backends: &BACKENDS, ..Port::UDP };
        port.serve(&mut maps);
        (maps, port, client())
    }

    fn client() -> UdpSocket {
        let client = udp_client("0.0.0.0:0");
        client.connect(address(VIP)).unwrap();
        client
    }

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
        if !tells_what_sockets_keep() {
            return;
        }
        bed(|bed| {
            let (mut maps, port, _client) = served(bed);
            let left = |maps: &mut KernelMaps, is_whole| left(&mut lists(maps, is_whole));
            Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
            assert_eq!(left(&mut maps, false), [true], "nobody serves, and the port says so");
            let silent = Action::PublishWord(PortIndex(port.index), Scope::Cluster, Word::EMPTY);
            maps.execute(&silent).unwrap();
            assert_eq!(left(&mut maps, true), [false], "the port does not say who serves");
            maps.execute(&Action::RemoveFrontend(port.key(VIP))).unwrap();
            assert_eq!(left(&mut maps, true), [true], "the frontend has gone");
            assert_eq!(left(&mut maps, false), [false], "it may be about to come");
        });
    }

    #[test]
    fn kernel_sockets_of_pods_take_no_room_where_only_those_of_the_host_are_ended() {
        if !tells_what_sockets_keep() {
            return;
        }
        bed(|bed| {
            let (mut maps, port, _here) = served(bed);
            in_pod(|| {
                let _there = client();
                Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
                let mut lists = lists(&mut maps, true);
                assert!(!lists.read().unwrap(), "there is no more");
                assert_eq!(lists.leaving.len(), if knows_its_netns() { 1 } else { 2 });
            });
        });
    }

    /// A process with as many of them as one read finds would keep all others from being found.
    #[test]
    fn kernel_sockets_that_are_connected_no_more_take_no_room() {
        if !tells_what_sockets_keep() {
            return;
        }
        bed(|bed| {
            let (mut maps, port, ended) = served(bed);
            let failed = udp_client("0.0.0.0:0");
            Port { backends: &[address("192.0.2.77:53")], ..port }.publish(&mut maps, Scope::Cluster);
            assert!(failed.connect(address(VIP)).is_err(), "there is no way");
            Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
            let left = |maps: &mut KernelMaps| {
                let mut lists = lists(maps, true);
                lists.read().unwrap();
                lists.leaving.len()
            };
            assert_eq!(left(&mut maps), 1, "one is connected");
            assert_eq!(sweep(&mut maps), 1);
            assert_eq!(left(&mut maps), 0, "it was ended");
            drop((ended, failed));
        });
    }

    #[test]
    fn kernel_maps_that_were_outgrown_meanwhile_say_of_no_socket_that_its_backend_has_left() {
        if !tells_what_sockets_keep() {
            return;
        }
        bed(|bed| {
            let (mut maps, port, _client) = served(bed);
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
