//! Selects the source address of packets that leave by a device, as `ip route get` does, and the prefix that this
//! node's own pods share with it.
//!
//! Invariant: a host address (/32, /128), which may move to another node at any moment, is selected only if there is
//! no other.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Address, KernelListing, Link};
use crate::devices::listing::{Network, share_prefix};

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SourceAddresses {
    pub(super) v4: Option<Ipv4Addr>,
    pub(super) v6: Option<Ipv6Addr>,
}

impl SourceAddresses {
    pub(super) fn or(self, other: Self) -> Self {
        Self { v4: self.v4.or(other.v4), v6: self.v6.or(other.v6) }
    }

    fn with(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.or(Self { v4: Some(address), v6: None }),
            IpAddr::V6(address) => self.or(Self { v4: None, v6: Some(address) }),
        }
    }
}

/// The source addresses of a device's clients. Candidates are the device's own addresses and those that its routes
/// name as source, whichever device has these. The source of its default route goes first, then that of another
/// route, then one in a network with a gateway, then the first in the kernel's order; a host address goes last.
pub(super) fn select_sources(listed: &KernelListing, index: u32) -> SourceAddresses {
    let ways = || listed.gateway_routes.iter().filter(|way| way.index == index);
    let is_named = |it: &Address| ways().any(|way| way.source == Some(it.address));
    let is_near =
        |it: &Address| ways().filter_map(|way| way.gateway).any(|gateway| contains_address(it, gateway));
    let is_of_all = |it: &Address| ways().any(|way| way.is_default && way.source == Some(it.address));
    let candidates = listed.addresses.iter().filter(|it| it.index == index || is_named(it));
    let mut ranked: Vec<&Address> = candidates.collect();
    ranked.sort_by_key(|it| (is_host(it), !is_of_all(it), !is_named(it), !is_near(it)));
    ranked.into_iter().fold(SourceAddresses::default(), |seen, it| seen.with(it.address))
}

/// How many leading bits this node's pods share with `address`, if it belongs to a device that leads to pods of this
/// node and of others; 0 for any other device.
///
/// Cilium gives its own device one address of the node's pods, and routes all of them by it. An overlay sends pods of
/// other nodes the same way, but the device has no address of theirs. An address of a wider network proves nothing,
/// nor does a device with its other end elsewhere: a host in such a network may be another node. A bridge of pods
/// (`is_of_pods`) has an address of their network; a route by one of the pods makes it lead to others.
pub(super) fn shared_prefix_bits(
    listed: &KernelListing,
    link: &Link,
    address: Option<IpAddr>,
    is_of_pods: bool,
) -> u8 {
    let of_device = |it: &&Address| it.index == link.index && Some(it.address) == address;
    let Some(own) = listed.addresses.iter().find(of_device) else { return 0 };
    match (is_host(own), is_of_pods, link.is_peer_local) {
        (false, true, _) => own.bits,
        (true, _, true) => {
            let networks =
                listed.networks.iter().filter(|it| it.index == link.index && is_behind_device(it, own));
            networks.map(|it| it.bits).max().unwrap_or(0)
        }
        _ => 0,
    }
}

/// Whether a pod network with this address is behind the device itself: a gateway other than the device's own address
/// is a router.
fn is_behind_device(network: &Network, own: &Address) -> bool {
    let is_several = (1..own.bits).contains(&network.bits);
    is_several
        && network.contains(own.address)
        && network.gateway.is_none_or(|gateway| gateway == own.address)
}

fn is_host(it: &Address) -> bool {
    u32::from(it.bits) >= if it.address.is_ipv4() { Ipv4Addr::BITS } else { Ipv6Addr::BITS }
}

fn contains_address(it: &Address, other: IpAddr) -> bool {
    share_prefix(it.address, other, it.bits)
}
