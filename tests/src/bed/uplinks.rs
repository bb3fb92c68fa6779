//! Uplinks between a fabric's node and its network other than one plain Ethernet device.
//!
//! Invariant: each is a list of lines for `ip`, so that one can lay it by hand. With each of them the node has the
//! same addresses and reaches the same places.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Stdio};

use super::clients::Client;
use super::fabric::pid;
use super::{Bed, BedError, Location, finish, spawn};

/// One uplink. Lines may contain `{node}`, which stands for the node's network.
#[derive(Clone, Copy, Debug)]
pub struct Uplink {
    /// The kernel's name for the required kind of device.
    pub kind: &'static str,
    /// The device with the node's addresses.
    pub device: &'static str,
    /// The device of the router, and of the other node, on the segment of the nodes.
    pub(super) segment: &'static str,
    pub(super) other_device: &'static str,
    /// Whether the other node reaches this one only through the router.
    pub(super) is_behind_router: bool,
    /// Links, set before the addresses.
    pub(super) router: &'static [&'static str],
    pub(super) node: &'static [&'static str],
    pub(super) other: &'static [&'static str],
    /// Lines after the common addresses; for the nodes also after the routes.
    pub(super) router_besides: &'static [&'static str],
    pub(super) node_besides: &'static [&'static str],
    pub(super) other_besides: &'static [&'static str],
}

/// One Ethernet device.
pub const PLAIN: Uplink = Uplink {
    kind: "veth",
    device: "eth0",
    segment: "lan",
    other_device: "eth0",
    is_behind_router: false,
    router: &[],
    node: &[],
    other: &[],
    router_besides: &[],
    node_besides: &[],
    other_besides: &[],
};

/// VLAN: all frames on the segment have a tag.
pub const VLAN: Uplink = Uplink {
    kind: "vlan",
    device: "eth0.10",
    segment: "lan.10",
    other_device: "eth0.10",
    router: &["link add link lan name lan.10 type vlan id 10"],
    node: &["link add link eth0 name eth0.10 type vlan id 10"],
    other: &["link add link eth0 name eth0.10 type vlan id 10"],
    ..PLAIN
};

/// Bond: two devices, one of them active.
pub const BOND: Uplink = Uplink {
    kind: "bond",
    device: "bond0",
    router: SECOND_LINK,
    node: &[
        "link add bond0 type bond mode active-backup miimon 50",
        "link set eth0 down",
        "link set eth0 master bond0",
        "link set eth1 master bond0",
    ],
    ..PLAIN
};

/// A second link from the node to the segment.
const SECOND_LINK: &[&str] = &[
    "link add node-b type veth peer name eth1 netns {node}",
    "link set node-b master lan",
    "link set node-b up",
];

/// Bridge: the device is a port, and the bridge has the addresses.
pub const BRIDGE: Uplink = Uplink {
    kind: "bridge",
    device: "br0",
    node: &["link add br0 type bridge mcast_snooping 0", "link set eth0 master br0"],
    ..PLAIN
};

/// A device above another one, as a VLAN is, with a hardware address of its own.
pub const MACVLAN: Uplink = Uplink {
    kind: "macvlan",
    device: "mac0",
    node: &["link add link eth0 name mac0 type macvlan mode bridge"],
    ..PLAIN
};

/// The segment is a tunnel of Ethernet frames.
pub const VXLAN: Uplink = Uplink {
    kind: "vxlan",
    device: "vx0",
    router: &[
        "address add 172.31.0.1/24 dev lan",
        "link add vx0 type vxlan id 7 local 172.31.0.1 remote 172.31.0.5 dstport 4789",
        "link set vx0 master lan",
        "link set vx0 up",
    ],
    node: &[
        "address add 172.31.0.5/24 dev eth0",
        "link add vx0 type vxlan id 7 local 172.31.0.5 remote 172.31.0.1 dstport 4789",
    ],
    ..PLAIN
};

/// A device without Ethernet headers; `Tunnel` forwards its packets.
pub const TUN: Uplink = Uplink {
    kind: "tun",
    router: &["tuntap add name far0 mode tun"],
    node: &["tuntap add name near0 mode tun"],
    ..TUNNELLED
};

/// IPv4 and IPv6 in IPv4.
pub const SIT: Uplink = Uplink {
    kind: "sit",
    router: &[
        "address add 172.31.0.1/24 dev lan",
        "link add far0 type sit mode any local 172.31.0.1 remote 172.31.0.5",
    ],
    node: &[
        "address add 172.31.0.5/24 dev eth0",
        "link add near0 type sit mode any local 172.31.0.5 remote 172.31.0.1",
    ],
    ..TUNNELLED
};

/// IPv4 and IPv6 in GRE.
pub const GRE: Uplink = Uplink {
    kind: "gre",
    router: &[
        "address add 172.31.0.1/24 dev lan",
        "link add far0 type gre local 172.31.0.1 remote 172.31.0.5",
    ],
    node: &[
        "address add 172.31.0.5/24 dev eth0",
        "link add near0 type gre local 172.31.0.5 remote 172.31.0.1",
    ],
    ..TUNNELLED
};

/// IP in IPv6.
pub const IP6TNL: Uplink = Uplink {
    kind: "ip6tnl",
    router: &[
        "address add fd00:b::1/64 dev lan nodad",
        "link add far0 type ip6tnl mode any local fd00:b::1 remote fd00:b::5",
    ],
    node: &[
        "address add fd00:b::5/64 dev eth0 nodad",
        "link add near0 type ip6tnl mode any local fd00:b::5 remote fd00:b::1",
    ],
    ..TUNNELLED
};

const TUNNELLED: Uplink = Uplink {
    device: "near0",
    is_behind_router: true,
    router_besides: &[
        "link set far0 up",
        "route add 10.0.0.5 dev far0",
        "route add 10.0.0.55 dev far0",
        "route add fd00:a::5 dev far0",
        "route add fd00:a::55 dev far0",
    ],
    other_besides: &[
        "route add 10.0.0.5 via 10.0.0.1",
        "route add 10.0.0.55 via 10.0.0.1",
        "route add fd00:a::5 via fd00:a::1",
        "route add fd00:a::55 via fd00:a::1",
    ],
    ..PLAIN
};

/// An overlay: pods of the other node are reached through a tunnel.
pub const OVERLAY: Uplink = Uplink {
    kind: "vxlan",
    node_besides: &[
        "link add flannel.1 type vxlan id 1 local 10.0.0.5 remote 10.0.0.6 dstport 8472",
        "link set flannel.1 up",
        "address add 10.244.200.1/24 dev flannel.1",
        "address add fd00:244:200::1/64 dev flannel.1 nodad",
        "route replace 10.244.9.0/24 via 10.244.200.2",
        "route replace fd00:244:9::/64 via fd00:244:200::2",
    ],
    other_besides: &[
        "link add flannel.1 type vxlan id 1 local 10.0.0.6 remote 10.0.0.5 dstport 8472",
        "link set flannel.1 up",
        "address add 10.244.200.2/24 dev flannel.1",
        "address add fd00:244:200::2/64 dev flannel.1 nodad",
        "route replace 10.244.1.0/24 via 10.244.200.1",
        "route replace 10.244.2.0/24 via 10.244.200.1",
        "route replace fd00:244:1::/64 via fd00:244:200::1",
        "route replace fd00:244:2::/64 via fd00:244:200::1",
    ],
    ..PLAIN
};

/// Asymmetric routing: requests arrive on the first link, and replies to clients leave on the second one.
pub const ASYMMETRIC: Uplink = Uplink {
    router: &[
        "link add node-b type veth peer name eth1 netns {node}",
        "link set node-b up",
        "address add 10.1.0.1/24 dev node-b",
        "address add fd00:c::1/64 dev node-b nodad",
    ],
    node_besides: &[
        "link set eth1 up",
        "address add 10.1.0.5/24 dev eth1",
        "address add fd00:c::5/64 dev eth1 nodad",
        "route add 10.20.0.0/24 via 10.1.0.1",
        "route add fd00:20::/64 via fd00:c::1",
    ],
    ..PLAIN
};

/// A second network card with source routing: `ip rule` alone selects `TABLE_OF_SECOND`.
pub const SECOND_CARD: Uplink = Uplink {
    router: ASYMMETRIC.router,
    node_besides: &[
        "link set eth1 up",
        "address add 10.1.0.5/24 dev eth1",
        "address add fd00:c::5/64 dev eth1 nodad",
        "route add default via 10.1.0.1 dev eth1 table 2",
        "route add default via fd00:c::1 dev eth1 table 2",
    ],
    ..PLAIN
};

/// The routing table of the second card.
pub const TABLE_OF_SECOND: &str = "2";

/// Every node has one gateway and reaches the other node's pods through it, so forwarded packets pass that router
/// twice.
pub const ONE_GATEWAY: Uplink = Uplink {
    is_behind_router: true,
    node_besides: &[
        "route replace 10.244.9.0/24 via 10.0.0.1",
        "route replace fd00:244:9::/64 via fd00:a::1",
        "route add 10.0.0.6 via 10.0.0.1",
        "route add fd00:a::6 via fd00:a::1",
    ],
    other_besides: &["route add 10.0.0.5 via 10.0.0.1", "route add fd00:a::5 via fd00:a::1"],
    ..PLAIN
};

/// Unnumbered uplink: the outgoing device has no address, and the node's addresses are on a dummy device.
pub const UNNUMBERED: Uplink = Uplink {
    router_besides: &[
        "neighbour add 10.0.0.5 lladdr 02:00:00:00:00:05 dev lan",
        "neighbour add fd00:a::5 lladdr 02:00:00:00:00:05 dev lan",
    ],
    node: &["link add node0 type veth peer name nowhere", "link set node0 up"],
    node_besides: &[
        "address add 10.0.0.5/32 dev node0",
        "address add fd00:a::5/128 dev node0 nodad",
        "address delete 10.0.0.5/24 dev eth0",
        "address delete fd00:a::5/64 dev eth0",
        "address delete fd00:a::55/64 dev eth0",
        "route replace default via 10.0.0.1 dev eth0 onlink",
        "route replace default via fd00:a::1 dev eth0 onlink",
        "route replace 10.244.9.0/24 via 10.0.0.6 dev eth0 onlink",
        "route replace fd00:244:9::/64 via fd00:a::6 dev eth0 onlink",
    ],
    other_besides: &[
        "neighbour add 10.0.0.5 lladdr 02:00:00:00:00:05 dev eth0",
        "neighbour add fd00:a::5 lladdr 02:00:00:00:00:05 dev eth0",
    ],
    ..PLAIN
};

/// IPv4 routes with IPv6 next hops, as in BGP unnumbered.
pub const BY_IPV6: Uplink = Uplink {
    node_besides: &[
        "route replace default via inet6 fd00:a::1 dev eth0",
        "route replace 10.244.9.0/24 via inet6 fd00:a::6 dev eth0",
    ],
    ..PLAIN
};

impl Uplink {
    /// These lines with the numbers of this bed's networks.
    pub(super) fn lines(&self, bed: &Bed, lines: &[&str]) -> Result<Vec<String>, BedError> {
        let node = pid(bed, Location::OUTSIDE)?.to_string();
        Ok(lines.iter().map(|line| line.replace("{node}", &node)).collect())
    }

    /// Whether this kernel supports such devices. `ip` asks the kernel only if no argument is missing.
    pub fn is_known(&self, bed: &Bed) -> Result<bool, BedError> {
        if self.kind == "tun" {
            return Ok(Path::new("/dev/net/tun").exists());
        }
        let ip = |words: &[&str]| {
            let mut command = bed.command(Location::far("client"), "ip")?;
            command.args(words);
            finish(command, super::fabric::SOON)
        };
        let more: &[&str] = match self.kind {
            "vlan" => &["id", "10"],
            "vxlan" => &["id", "7", "dstport", "4789"],
            _ => &[],
        };
        let words: &[&str] = &["link", "add", "link", "lo", "name", "probe", "type", self.kind];
        let made = ip(&[words, more].concat())?;
        let said = String::from_utf8_lossy(&made.stderr);
        if made.status.success() {
            ip(&["link", "delete", "probe"])?;
        }
        Ok(!["Unknown device type", "Operation not supported"].iter().any(|it| said.contains(it)))
    }
}

/// Forwards packets between the node's end of `TUN` and the router's, until dropped.
#[derive(Debug)]
pub struct Tunnel {
    child: Child,
}

impl Tunnel {
    pub fn start(bed: &Bed) -> Result<Self, BedError> {
        let router = format!("/proc/{}/ns/net", pid(bed, Location::far("router"))?);
        let mut command = bed.command(Location::OUTSIDE, Client::tunnel()?.program())?;
        command.args(["near0", &router, "far0"]);
        let mut child = spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let mut said = [0; 1];
        let read = child.stdout.take().map(|mut pipe| pipe.read_exact(&mut said));
        if read.is_some_and(|read| read.is_ok()) {
            return Ok(Self { child });
        }
        let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        Err(BedError::Unexpected { who: "a tunnel".to_owned(), said: status })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
