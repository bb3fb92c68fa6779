//! The network around the node of crafted packets: a device to the outside, one to a pod, and ways beyond them.
//!
//! Invariant: it is laid in the network namespace of the thread, which is the caller's own.

use std::fs;
use std::process::Command;

/// The numbers of the two devices.
pub(crate) const OUTER: u32 = 70;
pub(crate) const PODS: u32 = 71;

/// The last byte of the hardware address of the first pod; the next pod has the next one.
pub(crate) const POD_LINK: u8 = 5;

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(status.success(), "ip {arguments}");
}

pub(crate) fn lay() {
    // Frames are for these hardware addresses.
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

/// Makes the routers known by which others are reached.
pub(crate) fn know_routers() {
    for router in ["192.0.2.2", "192.0.2.3", "2001:db8::2", "2001:db8::3"] {
        ip(&format!("neigh replace {router} lladdr 02:00:00:00:00:02 dev outer"));
    }
}

/// Has the routers' hardware addresses forgotten.
pub(crate) fn forget_routers() {
    ip("neigh flush dev outer nud permanent");
}

/// Makes the pods known to which the node's own pods' device leads.
pub(crate) fn know_pods() {
    for (pod, last) in
        [("10.1.0.5", POD_LINK), ("fd01::5", POD_LINK), ("10.1.0.6", POD_LINK + 1), ("fd01::6", POD_LINK + 1)]
    {
        ip(&format!("neigh replace {pod} lladdr 02:00:00:00:00:{last:02x} dev pods"));
    }
}

/// Makes the network of the outer device take packets of this length at most.
pub(crate) fn narrow(mtu: u32) {
    ip(&format!("link set outer mtu {mtu}"));
}

/// Has the outer device take router advertisements, as a host's would: what comes by it is sent on all the same.
pub(crate) fn hear_routers() {
    fs::write("/proc/sys/net/ipv6/conf/outer/forwarding", "0").unwrap();
}

/// Adds a route by the outer device.
pub(crate) fn lead_to_others(way: &str) {
    ip(&format!("route add {way} dev outer"));
}

/// Takes away the route to a network.
pub(crate) fn lose(network: &str) {
    ip(&format!("route del {network}"));
}

/// Replaces the route to a network by one by the device of pods.
pub(crate) fn lead_to_pods(network: &str, router: &str) {
    ip(&format!("route replace {network} via {router} dev pods"));
}

/// Has this node bear a host's address and another one, which it dials as that host.
pub(crate) fn bear(host: &str, dialled: &str) {
    ip("link set lo up");
    // By IPv6 only a device's own addresses are bound to without that.
    fs::write("/proc/sys/net/ipv6/ip_nonlocal_bind", "1").unwrap();
    let nodad = if host.contains(':') { " nodad" } else { "" };
    ip(&format!("addr add {host} dev lo{nodad}"));
    ip(&format!("route add local {dialled} dev lo table local src {host}"));
}

/// Has it bear them no more; connections stay.
pub(crate) fn bear_no_more(host: &str, dialled: &str) {
    ip(&format!("route del local {dialled} dev lo table local"));
    let length = if host.contains(':') { 128 } else { 32 };
    ip(&format!("addr del {host}/{length} dev lo"));
}

/// Makes routes on which packets get another header; `false`: this kernel has none.
pub(crate) fn lay_encapsulated() -> bool {
    let ways = [
        "route add 10.3.0.0/24 encap ip id 1 dst 192.0.2.9 via 192.0.2.2 dev outer",
        "route add fd03::/64 encap ip6 id 1 dst 2001:db8::9 via 2001:db8::2 dev outer",
    ];
    ways.iter().all(|way| Command::new("ip").args(way.split(' ')).status().unwrap().success())
}
