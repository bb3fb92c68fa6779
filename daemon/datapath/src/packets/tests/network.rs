//! The network around the node of crafted packets: an outer device, a pods' device, and routes beyond them.
//!
//! Invariant: it is built in the network namespace of the calling thread, which is its own.

use std::fs;
use std::process::Command;

/// The indices of the two devices.
pub(crate) const OUTER: u32 = 70;
pub(crate) const PODS: u32 = 71;

/// The last byte of the first pod's hardware address; the next pod has the next one.
pub(crate) const POD_LINK: u8 = 5;

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

pub(crate) fn lay() {
    // Frames go to these hardware addresses.
    ip(&format!("link add outer index {OUTER} address 02:00:00:00:00:01 type veth peer name fabric"));
    ip(&format!("link add pods index {PODS} address 02:00:00:00:00:01 type veth peer name pod"));
    for arguments in [
        "addr add 192.0.2.1/24 dev outer",
        "addr add 2001:db8::1/64 dev outer nodad",
        "addr add 10.1.0.1/24 dev pods",
        "addr add fd01::1/64 dev pods nodad",
        "link set outer up",
        "link set pods up",
        "link set fabric up",
        "link set pod up",
        "route add 10.2.0.0/24 via 192.0.2.2 dev outer",
        "route add fd02::/64 via 2001:db8::2 dev outer",
        "route add 198.51.100.0/24 via 192.0.2.3 dev outer",
        "route add 2001:db8:1::/48 via 2001:db8::3 dev outer",
    ] {
        ip(arguments);
    }
    for switch in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"] {
        fs::write(format!("/proc/sys/{switch}"), "1").unwrap();
    }
}

/// Adds neighbour entries of the routers.
pub(crate) fn know_routers() {
    for router in ["192.0.2.2", "192.0.2.3", "2001:db8::2", "2001:db8::3"] {
        ip(&format!("neigh replace {router} lladdr 02:00:00:00:00:02 dev outer"));
    }
}

/// Flushes the routers' neighbour entries.
pub(crate) fn forget_routers() {
    ip("neigh flush dev outer nud permanent");
}

/// Adds neighbour entries of the pods behind the local pods' device.
pub(crate) fn know_pods() {
    for (pod, last) in
        [("10.1.0.5", POD_LINK), ("fd01::5", POD_LINK), ("10.1.0.6", POD_LINK + 1), ("fd01::6", POD_LINK + 1)]
    {
        ip(&format!("neigh replace {pod} lladdr 02:00:00:00:00:{last:02x} dev pods"));
    }
}

/// Sets the MTU of the outer device.
pub(crate) fn narrow(mtu: u32) {
    ip(&format!("link set outer mtu {mtu}"));
}

/// Lets the outer device accept router advertisements, as a host does, with forwarding still on.
pub(crate) fn hear_routers() {
    fs::write("/proc/sys/net/ipv6/conf/outer/forwarding", "0").unwrap();
}

/// Adds a route by the outer device.
pub(crate) fn lead_to_others(way: &str) {
    ip(&format!("route add {way} dev outer"));
}

/// Deletes the route to a network.
pub(crate) fn lose(network: &str) {
    ip(&format!("route del {network}"));
}

/// Replaces the route to a network by one by the pods' device.
pub(crate) fn lead_to_pods(network: &str, router: &str) {
    ip(&format!("route replace {network} via {router} dev pods"));
}

/// Adds a host's address and a dialled one to this node, which dials the latter from the former.
pub(crate) fn bear(host: &str, dialled: &str) {
    ip("link set lo up");
    // IPv6 sockets may otherwise bind only to a device's own addresses.
    fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").unwrap();
    let nodad = if host.contains(':') { " nodad" } else { "" };
    ip(&format!("addr add {host} dev lo{nodad}"));
    ip(&format!("route add local {dialled} dev lo table local src {host}"));
}

/// Removes them; connections stay.
pub(crate) fn bear_no_more(host: &str, dialled: &str) {
    ip(&format!("route del local {dialled} dev lo table local"));
    let length = if host.contains(':') { 128 } else { 32 };
    ip(&format!("addr del {host}/{length} dev lo"));
}

/// Adds routes with encapsulation; `false`: this kernel has none.
pub(crate) fn lay_encapsulated() -> bool {
    let ways = [
        "route add 10.3.0.0/24 encap ip id 1 dst 192.0.2.9 via 192.0.2.2 dev outer",
        "route add fd03::/64 encap ip6 id 1 dst 2001:db8::9 via 2001:db8::2 dev outer",
    ];
    ways.iter().all(|way| Command::new("ip").args(way.split(' ')).status().unwrap().success())
}
