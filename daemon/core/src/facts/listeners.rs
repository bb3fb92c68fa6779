//! The node's listening sockets.
//!
//! Invariant: there are at most [`limits::LISTENERS_MAX`]. If the node has more, the set is unknown: a partial set
//! would report a taken port as free.

use alloc::collections::BTreeSet;
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;

use crate::keys::{Family, FrontendKey, Transport};
use crate::limits;

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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listeners(BTreeSet<Listener>);

impl Listeners {
    /// `None` if there are too many.
    pub fn new(all: impl IntoIterator<Item = Listener>) -> Option<Self> {
        let all: BTreeSet<_> = all.into_iter().take(limits::LISTENERS_MAX + 1).collect();
        (all.len() <= limits::LISTENERS_MAX).then_some(Self(all))
    }

    /// The socket that takes this frontend's clients if no program translates them.
    pub fn find_listener(&self, key: &FrontendKey) -> Option<Listener> {
        let everywhere = Family::from_address(key.address).unspecified_address();
        let at = |address| Listener { port: key.port, transport: key.transport, address };
        [key.address, everywhere].map(at).into_iter().find(|it| self.0.contains(it))
    }

    /// The ports at which only one of the two sets has a socket.
    pub(crate) fn changed_ports(&self, other: &Self) -> BTreeSet<NonZeroU16> {
        self.0.symmetric_difference(&other.0).map(|it| it.port).collect()
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
        let listeners = Listeners::new(all).unwrap();
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
    fn more_sockets_than_the_limit_are_unknown() {
        let all = |count: usize| {
            (0..count).map(|at| Listener {
                address: core::net::Ipv4Addr::from_bits(u32::try_from(at).unwrap()).into(),
                ..listener("0.0.0.0", 80, Transport::Tcp)
            })
        };
        assert!(Listeners::new(all(limits::LISTENERS_MAX)).is_some());
        assert_eq!(Listeners::new(all(limits::LISTENERS_MAX + 1)), None);
    }

    #[test]
    fn changed_ports_are_those_with_a_new_or_closed_socket() {
        let of = |ports: &[u16]| {
            Listeners::new(ports.iter().map(|port| listener("0.0.0.0", *port, Transport::Tcp))).unwrap()
        };
        let turned = of(&[22, 80]).changed_ports(&of(&[22, 443]));
        assert_eq!(turned.into_iter().map(NonZeroU16::get).collect::<alloc::vec::Vec<_>>(), [80, 443]);
    }
}
