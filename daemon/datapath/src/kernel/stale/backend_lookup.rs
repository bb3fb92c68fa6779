//! Decides which sockets have lost their backend, by the maps that serve clients.
//!
//! Invariant: data that is unreadable or may be outdated ends no socket. Nothing is written.

use std::io;
use std::net::SocketAddr;
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

/// How often in a row a socket must look stale. The engine writes meanwhile, so a single look may see a half-written
/// state.
const LOOKS: usize = 3;

/// The engine's maps, opened for another thread to read.
#[derive(Debug)]
pub(super) struct BackendLookup {
    generation: Generation,
    reverse: MapHandle,
    udp_reader: Option<Result<UdpPeerReader, Arc<str>>>,
    // The only network namespace in which the thread ends sockets; `None`: all, or it is unknown.
    netns: Option<u64>,
    // UDP connections that seemed to have lost their backend when they were read.
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

    /// The frontend that a socket dialled when it got its backend; `None`: it was not translated.
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
        FrontendKey::from_socket(dialled, transport)
    }

    /// Whether a connected UDP socket may be stale. It excludes pods' sockets if those are not ended, because they
    /// would take the space of others.
    fn may_be_stale(&self, connection: &UdpConnection) -> bool {
        let is_own_netns = self.netns.is_none_or(|own| own == connection.netns);
        let dialled = FrontendKey::from_socket(connection.dialled, Transport::Udp);
        is_own_netns && dialled.is_some_and(|dialled| !self.may_serve(&dialled, connection.backend))
    }

    /// Whether the backend serves the service behind the dialled address now, or may.
    fn may_serve(&self, dialled: &FrontendKey, backend: SocketAddr) -> bool {
        let family = Family::from_address(dialled.address);
        let wildcard = FrontendKey { address: family.unspecified_address(), ..*dialled };
        let Some(port) = self.find_port(dialled).or_else(|| self.find_port(&wildcard)) else {
            return !self.is_complete;
        };
        let lists_members = self.generation.word(port, Scope::Cluster).flags.contains(WordFlags::MEMBERS);
        let member = abi::encode_member(&MemberKey { port, membership: Membership::Serving, backend });
        !lists_members || self.generation.members.get(abi::as_bytes(&member)).is_some()
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
        let (suspects, has_more) = match &self.udp_reader {
            None => return Ok(false),
            Some(Ok(reader)) => reader.read_connections(|connection| self.may_be_stale(connection))?,
            Some(Err(reason)) => return Err(io::Error::other(reason.to_string())),
        };
        self.suspects = suspects;
        Ok(has_more)
    }

    fn may_end_any(&self, transport: Transport) -> bool {
        transport == Transport::Tcp || !self.suspects.is_empty()
    }

    fn is_stale(&self, socket: &ConnectedSocket) -> bool {
        let Some(dialled) = self.dial_target(socket) else { return false };
        // Checked last: if the maps are not outgrown now, programs read the same ones.
        (0..LOOKS).all(|_| !self.may_serve(&dialled, socket.peer)) && !self.generation.is_outgrown()
    }
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

    /// Whether each connected UDP socket is stale.
    fn find_stale(lists: &mut BackendLookup) -> Vec<bool> {
        lists.read_sockets().unwrap();
        let mut stale = Vec::new();
        let listed = SockDiag::open()
            .unwrap()
            .for_each_connected(Transport::Udp, |socket| stale.push(lists.is_stale(&socket)));
        listed.unwrap();
        stale
    }

    fn lists(maps: &mut KernelMaps, is_complete: bool) -> BackendLookup {
        let stale = maps.stale.as_mut().unwrap();
        stale.is_complete = is_complete;
        BackendLookup::new(&maps.generation, &maps.shared, stale).unwrap()
    }

    #[test]
    fn kernel_maps_without_members_or_incomplete_end_no_socket() {
        if !tells_what_sockets_keep() {
            return;
        }
        bed(|bed| {
            let (mut maps, port, _client) = served(bed);
            let stale = |maps: &mut KernelMaps, is_complete| find_stale(&mut lists(maps, is_complete));
            Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
            assert_eq!(stale(&mut maps, false), [true], "the port lists no serving backend");
            let without_list = Action::PublishWord(PortIndex(port.index), Scope::Cluster, Word::EMPTY);
            maps.execute(&without_list).unwrap();
            assert_eq!(stale(&mut maps, true), [false], "the port has no list");
            maps.execute(&Action::RemoveFrontend(port.key(VIP))).unwrap();
            assert_eq!(stale(&mut maps, true), [true], "the frontend has gone");
            assert_eq!(stale(&mut maps, false), [false], "the frontend may come later");
        });
    }

    #[test]
    fn kernel_sockets_of_pods_are_not_read_if_only_the_hosts_are_ended() {
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

    /// A process with as many sockets as one read returns would hide all others.
    #[test]
    fn kernel_sockets_that_are_not_connected_any_more_are_not_read() {
        if !tells_what_sockets_keep() {
            return;
        }
        bed(|bed| {
            let (mut maps, port, ended) = served(bed);
            let failed = udp_client("0.0.0.0:0");
            Port { backends: &[address("192.0.2.77:53")], ..port }.publish(&mut maps, Scope::Cluster);
            assert!(failed.connect(address(VIP)).is_err(), "there is no route");
            Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
            let count = |maps: &mut KernelMaps| {
                let mut lists = lists(maps, true);
                lists.read_sockets().unwrap();
                lists.suspects.len()
            };
            assert_eq!(count(&mut maps), 1, "one is connected");
            assert_eq!(sweep(&mut maps), 1);
            assert_eq!(count(&mut maps), 0, "it was ended");
            drop((ended, failed));
        });
    }

    #[test]
    fn kernel_maps_that_were_outgrown_end_no_socket() {
        if !tells_what_sockets_keep() {
            return;
        }
        bed(|bed| {
            let (mut maps, port, _client) = served(bed);
            let mut before = lists(&mut maps, true);
            assert_eq!(find_stale(&mut before), [false]);
            Port { backends: &[], ..port }.publish(&mut maps, Scope::Cluster);
            assert_eq!(find_stale(&mut before), [true]);
            maps.ensure_port_capacity("grow", PortIndex(CAPACITY.ports - 1)).unwrap();
            assert_eq!(find_stale(&mut before), [false], "the current members are in other maps");
            assert_eq!(find_stale(&mut lists(&mut maps, true)), [true]);
        });
    }
}
