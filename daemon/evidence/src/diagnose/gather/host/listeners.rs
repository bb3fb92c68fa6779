//! The sockets that listen at some ports of this host, as the kernel lists them (sock_diag), and their processes.
//!
//! Invariant: bounded in bytes and time. A list that the kernel did not end is an error.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::Path;

use holdfast_core::keys::Transport;
use holdfast_datapath::netlink::listeners::{self, ListeningSocket};
use holdfast_diagnose::evidence::Listener;
use holdfast_host::socket_owners::{SocketOwner, find_owners};

use crate::diagnose::limits::NETLINK_BYTES_MAX;

/// The most sockets at given addresses, at whatever port.
const AT_HOSTS_MAX: usize = 64;

/// TCP and UDP sockets at these ports, and some TCP sockets at these addresses, with their processes as far as visible.
/// SCTP sockets are not queried: the kernel lists them only with a module for that.
pub(super) fn find_listeners(
    root: &Path,
    ports: &BTreeSet<(Transport, u16)>,
    hosts: &BTreeSet<IpAddr>,
) -> io::Result<Vec<Listener>> {
    let mut found = Vec::new();
    for transport in [Transport::Tcp, Transport::Udp] {
        let sockets = listeners::list_sockets(transport, NETLINK_BYTES_MAX)?;
        let mut at_hosts = 0;
        let wanted = sockets.into_iter().filter(|it| {
            let is_at_host = transport == Transport::Tcp && hosts.contains(&it.address);
            at_hosts += usize::from(is_at_host);
            ports.contains(&(transport, it.port)) || is_at_host && at_hosts <= AT_HOSTS_MAX
        });
        found.extend(wanted.map(|socket| (transport, socket)));
    }
    let inodes: BTreeSet<u32> = found.iter().map(|(_, socket)| socket.inode).collect();
    let owners = if inodes.is_empty() { BTreeMap::new() } else { find_owners(&root.join("proc"), &inodes) };
    let listeners = |(transport, socket): (Transport, ListeningSocket)| {
        let owner = owners.get(&socket.inode);
        socket.addresses().map(move |address| to_listener(transport, socket.port, address, owner))
    };
    Ok(found.into_iter().flat_map(listeners).collect())
}

/// A socket at one of its addresses: a dual one listens at an address of each family.
fn to_listener(transport: Transport, port: u16, address: IpAddr, owner: Option<&SocketOwner>) -> Listener {
    Listener {
        port,
        protocol: transport.as_str().to_owned(),
        address,
        process: owner.map(|it| it.name.clone()),
        pid: owner.map(|it| it.pid),
        own: owner.is_some_and(SocketOwner::is_own),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn kernel_own_listeners_are_found_with_process_and_family() {
        let four = TcpListener::bind("127.0.0.1:0").unwrap();
        let six = UdpSocket::bind("[::1]:0").unwrap();
        let ports = [four.local_addr().unwrap(), six.local_addr().unwrap()];
        let wanted = BTreeSet::from([(Transport::Tcp, ports[0].port()), (Transport::Udp, ports[1].port())]);
        let found = find_listeners(Path::new("/"), &wanted, &BTreeSet::new()).unwrap();
        let seen: Vec<_> = found.iter().map(|it| (it.address, it.port, it.protocol.as_str())).collect();
        let expected = [(ports[0].ip(), ports[0].port(), "TCP"), (ports[1].ip(), ports[1].port(), "UDP")];
        assert_eq!(seen, expected);
        assert!(found.iter().all(|it| it.own && it.pid == Some(std::process::id())), "{found:?}");
        let other = BTreeSet::from([(Transport::Udp, ports[0].port())]);
        let found = find_listeners(Path::new("/"), &other, &BTreeSet::new()).unwrap();
        assert_eq!(found, [], "TCP is not UDP");
    }

    #[test]
    fn kernel_a_listener_at_a_given_address_is_found_at_any_port() {
        let own = TcpListener::bind("127.0.0.77:0").unwrap();
        let hosts = BTreeSet::from([own.local_addr().unwrap().ip()]);
        let found = find_listeners(Path::new("/"), &BTreeSet::new(), &hosts).unwrap();
        let at: Vec<_> = found.iter().map(|it| (it.address, it.port)).collect();
        assert!(at.contains(&(own.local_addr().unwrap().ip(), own.local_addr().unwrap().port())), "{at:?}");
        assert!(found.iter().all(|it| hosts.contains(&it.address)), "{found:?}");
    }
}
