//! The node's listening sockets, as the ports that are taken at each address.
//!
//! Invariant: an address has one bitmap per transport, so any number of sockets takes the memory of 65,536 bits. The
//! caller inserts sockets only at addresses of the node, because every user may open sockets at any other.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use crate::keys::{Family, FrontendKey, Transport};

/// A socket that listens at one address, or at all addresses of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    pub port: NonZeroU16,
    pub transport: Transport,
    pub address: IpAddr,
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", SocketAddr::new(self.address, self.port.get()), self.transport)
    }
}

/// A set of ports.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PortSet(Box<[u64; PortSet::WORDS]>);

impl PortSet {
    const WORDS: usize = 1 << 10;

    const fn bit(port: NonZeroU16) -> (usize, u64) {
        ((port.get() >> 6) as usize, 1 << (port.get() & 63))
    }

    fn insert(&mut self, port: NonZeroU16) {
        let (at, bit) = Self::bit(port);
        self.0.get_mut(at).into_iter().for_each(|word| *word |= bit);
    }

    pub(crate) fn contains(&self, port: NonZeroU16) -> bool {
        let (at, bit) = Self::bit(port);
        self.0.get(at).is_some_and(|word| word & bit != 0)
    }

    /// Adds the ports that are in only one of the other two sets.
    fn add_difference(&mut self, first: &Self, second: &Self) {
        let pairs = first.0.iter().zip(second.0.iter());
        self.0.iter_mut().zip(pairs).for_each(|(word, (first, second))| *word |= first ^ second);
    }
}

impl Default for PortSet {
    fn default() -> Self {
        Self(Box::new([0; Self::WORDS]))
    }
}

impl fmt::Debug for PortSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries((1..=u16::MAX).filter_map(NonZeroU16::new).filter(|port| self.contains(*port)))
            .finish()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners(BTreeMap<(IpAddr, Transport), PortSet>);

impl Listeners {
    pub fn insert(&mut self, listener: Listener) {
        self.0.entry((listener.address, listener.transport)).or_default().insert(listener.port);
    }

    pub fn contains(&self, listener: &Listener) -> bool {
        self.0.get(&(listener.address, listener.transport)).is_some_and(|ports| ports.contains(listener.port))
    }

    /// The socket that takes this frontend's clients if no program translates them.
    pub fn find_listener(&self, key: &FrontendKey) -> Option<Listener> {
        let everywhere = Family::from_address(key.address).unspecified_address();
        let at = |address| Listener { port: key.port, transport: key.transport, address };
        [key.address, everywhere].map(at).into_iter().find(|listener| self.contains(listener))
    }

    /// The ports at which only one of the two sets has a socket.
    pub(crate) fn changed_ports(&self, other: &Self) -> PortSet {
        let none = PortSet::default();
        let mut changed = PortSet::default();
        for (key, ports) in &self.0 {
            changed.add_difference(ports, other.0.get(key).unwrap_or(&none));
        }
        for (_, ports) in other.0.iter().filter(|(key, _)| !self.0.contains_key(key)) {
            changed.add_difference(ports, &none);
        }
        changed
    }
}

impl FromIterator<Listener> for Listeners {
    fn from_iter<T: IntoIterator<Item = Listener>>(all: T) -> Self {
        let mut listeners = Self::default();
        all.into_iter().for_each(|listener| listeners.insert(listener));
        listeners
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listener(address: &str, port: u16, transport: Transport) -> Listener {
        Listener { address: address.parse().unwrap(), port: port.try_into().unwrap(), transport }
    }

    #[test]
    fn a_socket_takes_clients_at_its_address_or_at_all_of_its_family() {
        let all = [
            listener("0.0.0.0", 22, Transport::Tcp),
            listener("192.0.2.7", 80, Transport::Tcp),
            listener("127.0.0.1", 81, Transport::Tcp),
            listener("::", 53, Transport::Udp),
        ];
        let listeners = Listeners::from_iter(all);
        for (address, port, transport, expected) in [
            ("192.0.2.7", 22, Transport::Tcp, Some(all[0])),
            ("192.0.2.7", 22, Transport::Udp, None),
            ("2001:db8::7", 22, Transport::Tcp, None),
            ("192.0.2.7", 80, Transport::Tcp, Some(all[1])),
            ("192.0.2.8", 80, Transport::Tcp, None),
            ("192.0.2.7", 81, Transport::Tcp, None),
            ("2001:db8::7", 53, Transport::Udp, Some(all[3])),
        ] {
            let key =
                FrontendKey { address: address.parse().unwrap(), port: port.try_into().unwrap(), transport };
            assert_eq!(listeners.find_listener(&key), expected, "{key}");
        }
    }

    #[test]
    fn every_port_of_an_address_may_be_taken() {
        let ports = || (1..=u16::MAX).map(|port| listener("192.0.2.7", port, Transport::Tcp));
        let listeners = Listeners::from_iter(ports());
        assert!(ports().all(|it| listeners.contains(&it)));
        assert!(!listeners.contains(&listener("192.0.2.7", 80, Transport::Udp)));
    }

    #[test]
    fn changed_ports_are_those_with_a_new_or_closed_socket() {
        let of = |ports: &[u16]| {
            Listeners::from_iter(ports.iter().map(|port| listener("0.0.0.0", *port, Transport::Tcp)))
        };
        for (former, now, changed) in [
            (&[22, 80][..], &[22, 443][..], "{80, 443}"),
            (&[], &[65_535], "{65535}"),
            (&[1], &[], "{1}"),
            (&[22], &[22], "{}"),
        ] {
            assert_eq!(alloc::format!("{:?}", of(former).changed_ports(&of(now))), changed);
        }
    }
}
