//! The device through which this host reaches an address, and the MTU there: the kernel's own answer.
//!
//! Invariant: only the kernel is queried, and nothing is sent. A missing route is an answer, too.

use std::io;
use std::net::IpAddr;

use holdfast_datapath::netlink::{NetlinkFamily, NetlinkSocket, attribute, attributes, encode_attribute};
use holdfast_diagnose::evidence::Route;
use nix::libc;
use nix::net::if_::if_indextoname;

/// Kinds of messages and attributes, from `linux/rtnetlink.h`.
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_METRICS: u16 = 8;
const RTAX_MTU: u16 = 2;
const RTM_GETLINK: u16 = 18;
const IFLA_MTU: u16 = 4;
/// The lengths of `rtmsg` and `ifinfomsg`.
const ROUTE: usize = 12;
const LINK: usize = 16;

pub(super) fn find_routes(addresses: &[IpAddr]) -> io::Result<Vec<Route>> {
    let mut kernel = NetlinkSocket::open(NetlinkFamily::Route)?;
    addresses.iter().map(|address| find_route(&mut kernel, *address)).collect()
}

fn find_route(kernel: &mut NetlinkSocket, to: IpAddr) -> io::Result<Route> {
    let none = Route { to, device: None, mtu: None, unreachable: None };
    kernel.request(RTM_GETROUTE, 0, &route_request(to))?;
    let (index, mtu) = match kernel.read_one()? {
        Ok(body) => parse_route(&body),
        Err(error) => return Ok(Route { unreachable: Some(error.to_string()), ..none }),
    };
    let Some(index) = index else { return Ok(none) };
    kernel.request(RTM_GETLINK, 0, &link_request(index))?;
    let of_device = kernel.read_one()?.ok().and_then(|body| parse_link_mtu(&body));
    Ok(Route { device: device_name(index), mtu: mtu.or(of_device), ..none })
}

fn route_request(to: IpAddr) -> Vec<u8> {
    let (family, address) = match to {
        IpAddr::V4(to) => (libc::AF_INET, to.octets().to_vec()),
        IpAddr::V6(to) => (libc::AF_INET6, to.octets().to_vec()),
    };
    let bits = u8::try_from(address.len() * 8).unwrap_or_default();
    let mut request = vec![u8::try_from(family).unwrap_or_default(), bits];
    request.resize(ROUTE, 0);
    request.extend(encode_attribute(RTA_DST, &address));
    request
}

fn link_request(index: u32) -> Vec<u8> {
    [&[0; 4][..], &index.to_ne_bytes(), &[0; LINK - 8]].concat()
}

/// The device of an `rtmsg`, and the route's own MTU, if any.
fn parse_route(body: &[u8]) -> (Option<u32>, Option<u32>) {
    let mut index = None;
    let mut mtu = None;
    for (kind, value) in attributes(body.get(ROUTE..).unwrap_or_default()) {
        match kind {
            RTA_OIF => index = parse_u32(value),
            RTA_METRICS => {
                mtu = attribute(value, RTAX_MTU).and_then(parse_u32).filter(|mtu| *mtu != 0);
            }
            _ => {}
        }
    }
    (index, mtu)
}

fn parse_link_mtu(body: &[u8]) -> Option<u32> {
    attribute(body.get(LINK..)?, IFLA_MTU).and_then(parse_u32)
}

fn parse_u32(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|four| u32::from_ne_bytes(*four))
}

fn device_name(index: u32) -> Option<String> {
    Some(if_indextoname(index).ok()?.to_string_lossy().replace(char::is_control, "?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_the_route_to_loopback_is_the_loopback_device() {
        let found = find_routes(&[IpAddr::from([127, 0, 0, 1])]).unwrap();
        assert_eq!((found[0].device.as_deref(), found[0].unreachable.as_deref()), (Some("lo"), None));
        assert!(found[0].mtu.is_some_and(|mtu| mtu > 1_000), "{found:?}");
    }

    #[test]
    fn a_truncated_route_does_not_panic() {
        for length in 0..40 {
            let _ = (parse_route(&vec![4; length]), parse_link_mtu(&vec![4; length]));
        }
    }
}
