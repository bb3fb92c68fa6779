//! The structs that only the packet programs share.
//!
//! Invariant: as for [`super`]; its types are those of `packet.bpf.c`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeInclusive;

use holdfast_core::keys::Family;
use holdfast_core::source_ranges::SourceRange;

use super::{Abi, address4, address6, from_mapped};
pub(crate) use crate::skeleton::packet::types;

abi!(device { address4: u32, address6: [u32; 4], flags: u16, pod_prefix4: u8, pod_prefix6: u8 });
abi!(port_range { first: u16, count: u16 });
abi!(packet_settings { snat_ports: u32, snat: [types::port_range; 4], drains: u32 });
abi!(flow {
    client: [u32; 4],
    frontend: [u32; 4],
    backend: [u32; 4],
    nat: [u32; 4],
    client_port: u16,
    frontend_port: u16,
    backend_port: u16,
    nat_port: u16,
    translated_port: u16,
    transport: u8,
    state: u8,
    client_flags: u8,
    backend_flags: u8,
    v4: u8,
    unacked: u8,
    port_and_share: u32,
    serial: u32,
    seen: u32,
    began: u32,
});

/// Encodes the packet programs' settings with as many of these ranges as they hold.
pub(crate) fn encode_settings(ranges: &[RangeInclusive<u16>]) -> types::packet_settings {
    let mut settings = types::packet_settings::default();
    for (slot, range) in settings.snat.iter_mut().zip(ranges) {
        // The count of all 65,536 ports does not fit in 16 bits; SNAT never uses port 0.
        let count = range.end().saturating_sub(*range.start()).saturating_add(1);
        *slot = types::port_range { first: *range.start(), count };
        settings.snat_ports += u32::from(count);
    }
    settings
}

/// Encodes a network as address words, then mask words.
pub(crate) fn encode_network(network: SourceRange) -> Vec<u32> {
    let ones = match network.family() {
        Family::V4 => IpAddr::V4(Ipv4Addr::BROADCAST),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
    };
    let mask = SourceRange::new(ones, network.bits()).map_or(ones, SourceRange::address);
    let words = |address| match address {
        IpAddr::V4(address) => vec![address4(address)],
        IpAddr::V6(address) => address6(address).to_vec(),
    };
    [words(network.address()), words(mask)].concat()
}

/// Where packets of a flow arrive at this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowIngress {
    pub(crate) frontend: IpAddr,
    pub(crate) frontend_port: u16,
    /// The port to which a backend of another node replies; `None`: the backend replies to the client directly.
    pub(crate) nat_port: Option<u16>,
}

pub(crate) fn flow_ingress(flow: &types::flow) -> FlowIngress {
    FlowIngress {
        frontend: from_mapped(flow.frontend),
        frontend_port: u16::from_be(flow.frontend_port),
        nat_port: (flow.nat_port != 0).then(|| u16::from_be(flow.nat_port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges_are_encoded_as_first_port_and_count() {
        let settings = encode_settings(&[61_000..=65_535, 1024..=1024]);
        assert_eq!(settings.snat_ports, 4537);
        let pairs = settings.snat.map(|it| (it.first, it.count));
        assert_eq!(pairs, [(61_000, 4536), (1024, 1), (0, 0), (0, 0)]);
    }

    #[test]
    fn a_flow_arrives_at_its_frontend_and_at_its_snat_port() {
        let flow = types::flow {
            frontend: [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes([10, 0, 0, 5])],
            frontend_port: 30_080_u16.to_be(),
            ..types::flow::default()
        };
        let here = FlowIngress { frontend: [10, 0, 0, 5].into(), frontend_port: 30_080, nat_port: None };
        assert_eq!(flow_ingress(&flow), here);
        let fast_path = types::flow { nat: [7, 0, 0, 0], ..flow };
        assert_eq!(flow_ingress(&fast_path), here);
        let remote = types::flow { nat: flow.frontend, nat_port: 61_001_u16.to_be(), ..flow };
        assert_eq!(flow_ingress(&remote), FlowIngress { nat_port: Some(61_001), ..here });
    }
}
