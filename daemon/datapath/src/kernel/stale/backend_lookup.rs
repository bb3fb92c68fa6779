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

use super::StaleSweep;
use super::sock_diag::ConnectedSocket;
use super::sweep::StaleJudge;
use super::udp_peers::{UdpConnections, UdpPeerReader};
use crate::abi::UdpConnection;
use crate::abi::{self, FrontendBytes};
use crate::error::StartError;
use crate::generation::Generation;
use crate::map::{Map, find_handle};
use crate::shared_maps::SharedMaps;

/// How often a socket must look stale in a row. The engine writes meanwhile, so a single look may see something half
/// written.
const LOOKS: usize = 3;

/// The same maps as the engine's, for another thread to read.
#[derive(Debug)]
pub(super) struct BackendLookup {
    generation: Generation,
    reverse: MapHandle,
    udp_reader: Option<Result<UdpPeerReader, Arc<str>>>,
    // The one network namespace in which sockets are ended; `None`: all, or it cannot be told.
    netns: Option<u64>,
    // Of the connections that UDP sockets keep, those that seemed to have lost their backend when they were read.
    suspects: UdpConnections,
    is_complete: bool,
}

impl BackendLookup {
    pub(super) fn new(
        generation: &Generation,
        shared: &SharedMaps,
        stale: &StaleSweep,
    ) -> Result<Self, StartError> {
        let reverse = find_handle(shared.handles(), Map::Reverse)?;
        Ok(Self {
            generation: generation.for_reading()?,
            reverse: MapHandle::try_from(reverse).map_err(StartError::from_load)?,
            udp_reader: stale.udp_reader.clone(),
            netns: stale.netns,
            suspects: UdpConnections::default(),
            is_complete: stale.is_complete,
        })
    }

    /// What a socket dialled when it got that backend; `None`: it was not translated.
    fn dial_target(&self, socket: &ConnectedSocket) -> Option<FrontendKey> {
        let cookie = socket.cookie;
        let backend = socket.peer;
        let transport = socket.transport;
        let dialled = match transport {
            Transport::Tcp => {
                let found =
                    self.reverse.lookup(&abi::sock_rev_nat_index(cookie).to_ne_bytes(), MapFlags::ANY);
                abi::tcp_dial_target(&found.ok()??, cookie, backend)?
            }
            Transport::Udp => self.suspects.get(&cookie).filter(|it| it.backend == backend)?.dialled,
            Transport::Sctp => return None,
        };
        frontend_key(dialled, transport)
    }

    /// Whether a connected UDP socket is worth a closer look. Where sockets of pods are not ended, they are left out,
    /// because they would leave no room for others.
    fn may_be_stale(&self, connection: &UdpConnection) -> bool {
        let is_here = self.netns.is_none_or(|own| own == connection.netns);
        let dialled = frontend_key(connection.dialled, Transport::Udp);
        is_here && dialled.is_some_and(|dialled| !self.may_serve(&dialled, connection.backend))
    }

    /// Whether the backend serves in the service that the dialled address leads to now, as far as is known.
    fn may_serve(&self, dialled: &FrontendKey, backend: SocketAddr) -> bool {
        let family = Family::from_address(dialled.address);
        let wildcard = FrontendKey { address: family.unspecified_address(), ..*dialled };
        let Some(port) = self.find_port(dialled).or_else(|| self.find_port(&wildcard)) else {
            return !self.is_complete;
        };
        let says_who_serves = self.generation.word(port, Scope::Cluster).flags.contains(WordFlags::MEMBERS);
        let member = abi::encode_member(&MemberKey { port, membership: Membership::Serving, backend });
        !says_who_serves || self.generation.members.get(abi::as_bytes(&member)).is_some()
    }

    fn find_port(&self, key: &FrontendKey) -> Option<PortIndex> {
        let family = Family::from_address(key.address);
        let bytes = FrontendBytes::new(key);
        let found = self.generation.frontends(family).get(bytes.key())?;
        abi::decode_frontend(family, bytes.key(), &found).map(|(_, value)| value.port)
    }
}

impl StaleJudge for BackendLookup {
    fn read_sockets(&mut self) -> io::Result<bool> {
        let (leaving, has_more) = match &self.udp_reader {
            None => return Ok(false),
            Some(Ok(kept)) => kept.read_connections(|connection| self.may_be_stale(connection))?,
            Some(Err(unseen)) => return Err(io::Error::other(unseen.to_string())),
        };
        self.suspects = leaving;
        Ok(has_more)
    }

    fn may_end_any(&self, transport: Transport) -> bool {
        transport == Transport::Tcp || !self.suspects.is_empty()
    }

    fn is_stale(&self, socket: &ConnectedSocket) -> bool {
        let Some(dialled) = self.dial_target(socket) else { return false };
        // Asked last: if the maps are not outgrown now, what was read from them is what clients get.
        (0..LOOKS).all(|_| !self.may_serve(&dialled, socket.peer)) && !self.generation.is_outgrown()
    }
}

fn frontend_key(dialled: SocketAddr, transport: Transport) -> Option<FrontendKey> {
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
    use super::super::sock_diag::SockDiag;
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
    fn left(lists: &mut BackendLookup) -> Vec<bool> {
        lists.read_sockets().unwrap();
        let mut said = Vec::new();
        let listed = SockDiag::open()
            .unwrap()
            .for_each_connected(Transport::Udp, |socket| said.push(lists.is_stale(&socket)));
        listed.unwrap();
        said
    }

    fn lists(maps: &mut KernelMaps, is_whole: bool) -> BackendLookup {
        let stale = maps.stale.as_mut().unwrap();
        stale.is_complete = is_whole;
        BackendLookup::new(&maps.generation, &maps.shared, stale).unwrap()
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
                assert!(!lists.read_sockets().unwrap(), "there is no more");
                assert_eq!(lists.suspects.len(), if knows_its_netns() { 1 } else { 2 });
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
                lists.read_sockets().unwrap();
                lists.suspects.len()
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
            maps.ensure_port_capacity("grow", PortIndex(CAPACITY.ports - 1)).unwrap();
            assert_eq!(left(&mut before), [false], "the members of today are elsewhere");
            assert_eq!(left(&mut lists(&mut maps, true)), [true]);
        });
    }
}
