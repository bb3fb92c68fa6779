//! A small cluster's network around a bed's node: clients behind a router, two nodes on a segment, both kinds of pods.
//!
//! ```text
//! client ── router ──┬── node ──┬── pod-a, pod-b   each on a link of its own (CNI ptp)
//! (.2 .3 .9) (lan)   │          └── pod-c, pod-d   behind a bridge
//!                    └── node2 ───── pod-r
//! ```
//!
//! Invariant: each place is a network of the bed; no interface, route, rule or setting of the machine is touched. Each
//! address has the same last number in both families.

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::links::{batch, feed};
use super::uplinks::{PLAIN as DIRECT, Uplink};
use super::{Bed, BedError, Layout, Location, at, succeed};

/// The networks other than the node's own.
const PLACES: [&str; 8] = ["router", "client", "node2", "pod-a", "pod-b", "pod-c", "pod-d", "pod-r"];

/// The cluster CIDRs of all pods, as kube-proxy gets them.
pub const POD_CIDRS: &str = "10.244.0.0/16,fd00:244::/32";

/// The node's own addresses, the first of each family as in its Node object.
pub const NODE_ADDRESSES: [&str; 2] = ["10.0.0.5", "fd00:a::5"];

/// Ranges that the router sends to the node because another machine announced them: virtual addresses of any kind.
const ANNOUNCED: [&str; 6] = [
    "192.168.0.0/16",
    "203.0.113.0/24",
    "198.51.100.0/24",
    "fd00:192:168::/112",
    "2001:db8:113::/64",
    "2001:db8:51::/64",
];

/// The ranges of this node's pods. Clients may dial them directly.
const PODS: [&str; 4] = ["10.244.1.0/24", "10.244.2.0/24", "fd00:244:1::/64", "fd00:244:2::/64"];

/// Settings of every place: no duplicate address detection and no rate limit for ICMP errors, which would drop answers
/// to simultaneous requests.
const PLAIN: [(&str, &str); 4] = [
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv4/icmp_ratemask", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    // Limits only a type that does not exist.
    ("ipv6/icmp/ratemask", "255"),
];

/// Commands of `ip` and `ethtool` take milliseconds; a busy machine has taken half a minute.
pub(super) const SOON: Duration = Duration::from_secs(120);

/// Differences of the node, or of its path, from a plain router.
#[derive(Clone, Copy, Debug, Default)]
pub struct Switches {
    /// A packet must arrive on the interface that routes its reply.
    pub strict_rp_filter: bool,
    /// FORWARD drops packets that are not of pods or nodes, and those that conntrack calls invalid: Docker next to a
    /// CNI.
    pub guarded: bool,
    /// A rule matches on the connection's state, so conntrack tracks all connections.
    pub tracked: bool,
    /// Each sender computes its checksums, so that a wrong one shows.
    pub no_offload: bool,
    /// The path between clients and nodes has an MTU of 1400.
    pub narrow: bool,
}

/// A layout with the places of a fabric, for `lay`.
pub fn layout() -> Layout {
    Layout { apart: PLACES.to_vec(), ..Layout::default() }
}

/// A bed with this network.
pub fn bed(switches: Switches) -> Result<Bed, BedError> {
    let bed = Bed::lay(&layout())?;
    lay(&bed, switches)?;
    Ok(bed)
}

/// Adds links, addresses, routes and settings to a bed with this layout.
pub fn lay(bed: &Bed, switches: Switches) -> Result<(), BedError> {
    lay_by(bed, switches, &DIRECT)
}

/// The same with another uplink between the node and its network.
pub fn lay_by(bed: &Bed, switches: Switches, uplink: &Uplink) -> Result<(), BedError> {
    for place in PLACES.map(Location::far).into_iter().chain([Location::OUTSIDE]) {
        PLAIN.iter().try_for_each(|(name, value)| set(bed, place, name, value))?;
    }
    for place in [Location::OUTSIDE, Location::far("router"), Location::far("node2")] {
        set(bed, place, "ipv4/ip_forward", "1")?;
        set(bed, place, "ipv6/conf/all/forwarding", "1")?;
    }
    // An upper device has the addresses, and the lower one must not answer ARP for them.
    set(bed, Location::OUTSIDE, "ipv4/conf/all/arp_ignore", "1")?;
    let strict = if switches.strict_rp_filter { "1" } else { "0" };
    set(bed, Location::OUTSIDE, "ipv4/conf/all/rp_filter", strict)?;
    set(bed, Location::OUTSIDE, "ipv4/conf/default/rp_filter", strict)?;
    batch(bed, Location::far("router"), &router(bed, uplink)?)?;
    batch(bed, Location::OUTSIDE, &node(bed, uplink)?)?;
    batch(bed, Location::far("node2"), &other_node(bed, uplink)?)?;
    batch(bed, Location::far("client"), &client())?;
    for (name, number) in [("pod-a", "1::10"), ("pod-b", "1::11"), ("pod-r", "9::10")] {
        batch(bed, Location::far(name), &routed_pod(number))?;
    }
    for (name, last) in [("pod-c", 10), ("pod-d", 11)] {
        batch(bed, Location::far(name), &bridged_pod(last))?;
    }
    switches.apply(bed)
}

impl Switches {
    fn apply(self, bed: &Bed) -> Result<(), BedError> {
        if self.guarded {
            rules(bed, GUARDED)?;
        }
        if self.tracked {
            rules(bed, TRACKED)?;
        }
        if self.narrow {
            narrow_path(bed)?;
        }
        if self.no_offload {
            compute_checksums(bed)?;
        }
        Ok(())
    }
}

/// Docker's policy together with the rules of a CNI.
const GUARDED: &str = "table inet guard {
 counter invalid { }
 chain forward {
  type filter hook forward priority filter; policy drop;
  ct state invalid counter name invalid drop
  ct state established,related accept
  ip saddr { 10.244.0.0/16, 10.0.0.0/24 } accept
  ip daddr { 10.244.0.0/16, 10.0.0.0/24 } accept
  ip6 saddr { fd00:244::/32, fd00:a::/64 } accept
  ip6 daddr { fd00:244::/32, fd00:a::/64 } accept
 }
}
";

const TRACKED: &str = "table inet tracked {
 chain prerouting {
  type filter hook prerouting priority filter;
  ct state new counter
 }
}
";

/// Adds nft rules to the node.
pub fn rules(bed: &Bed, text: &str) -> Result<(), BedError> {
    add_rules_at(bed, Location::OUTSIDE, text)
}

/// Adds nft rules to a place.
pub fn add_rules_at(bed: &Bed, place: Location<'_>, text: &str) -> Result<(), BedError> {
    feed(bed, place, &["nft", "-f", "-"], text)
}

/// How many packets the guarded node has dropped as invalid by conntrack.
pub fn invalid(bed: &Bed) -> Result<u64, BedError> {
    let mut nft = bed.command(Location::OUTSIDE, "nft")?;
    nft.args(["list", "counter", "inet", "guard", "invalid"]);
    let said = succeed(nft, SOON)?;
    let count = said.split_whitespace().skip_while(|word| *word != "packets").nth(1);
    let count = count.and_then(|count| count.parse().ok());
    count.ok_or_else(|| BedError::Unexpected { who: "nft".to_owned(), said })
}

/// Writes a sysctl below /proc/sys/net in a place.
pub fn set(bed: &Bed, place: Location<'_>, name: &str, value: &str) -> Result<(), BedError> {
    let path = Path::new("/proc/sys/net").join(name);
    bed.within(place, || fs::write(&path, value).map_err(at("write", &path)))?
}

fn lines(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

pub(super) fn pid(bed: &Bed, place: Location<'_>) -> Result<u32, BedError> {
    bed.netns(place).map(super::Keeper::pid)
}

/// Creates a link between the node and a place, which has its end as `eth0`.
fn link(bed: &Bed, name: &str, place: Location<'_>) -> Result<[String; 2], BedError> {
    let pid = pid(bed, place)?;
    Ok([format!("link add {name} type veth peer name eth0 netns {pid}"), format!("link set {name} up")])
}

fn router(bed: &Bed, uplink: &Uplink) -> Result<Vec<String>, BedError> {
    let mut words =
        lines(&["link set lo up", "link add lan type bridge mcast_snooping 0", "link set lan up"]);
    words.extend(link(bed, "client", Location::far("client"))?);
    words.extend(link(bed, "node", Location::OUTSIDE)?);
    words.extend(link(bed, "node2", Location::far("node2"))?);
    words.extend(lines(&[
        "link set node master lan",
        "link set node2 master lan",
        "address add 10.20.0.1/24 dev client",
        "address add fd00:20::1/64 dev client nodad",
    ]));
    words.extend(uplink.lines(bed, uplink.router)?);
    words.extend(at_device(uplink.segment, &["10.0.0.1/24", "fd00:a::1/64"]));
    words.extend(lines(uplink.router_besides));
    words.extend(
        PODS.iter().chain(&ANNOUNCED).map(|range| format!("route add {range} via {}", gateway(range))),
    );
    words.extend(lines(&["route add 10.244.9.0/24 via 10.0.0.6", "route add fd00:244:9::/64 via fd00:a::6"]));
    Ok(words)
}

fn gateway(range: &str) -> &'static str {
    let [v4, v6] = NODE_ADDRESSES;
    if range.contains(':') { v6 } else { v4 }
}

/// A path with a narrow middle: the router rejects larger packets with "fragmentation needed" at 1400 bytes.
pub fn narrow_path(bed: &Bed) -> Result<(), BedError> {
    let mut words = lines(&[
        "route replace 10.20.0.0/24 dev client mtu lock 1400",
        "route replace fd00:20::/64 dev client metric 256 mtu lock 1400",
        "route replace 10.0.0.0/24 dev lan mtu lock 1400",
        "route replace fd00:a::/64 dev lan metric 256 mtu lock 1400",
    ]);
    let narrow = |range: &&str| format!("route replace {range} via {} mtu lock 1400", gateway(range));
    words.extend(PODS.iter().chain(&ANNOUNCED).map(narrow));
    words.extend(
        ["10.244.9.0/24 via 10.0.0.6", "fd00:244:9::/64 via fd00:a::6"]
            .map(|route| format!("route replace {route} mtu lock 1400")),
    );
    batch(bed, Location::far("router"), &words)
}

/// Gives the other node a second uplink for clients; the first one then reaches only nodes.
pub fn part_clients_from_nodes(bed: &Bed) -> Result<(), BedError> {
    let pid = pid(bed, Location::far("node2"))?;
    let mut router = vec![format!("link add clients type veth peer name eth1 netns {pid}")];
    router.extend(at_device("clients", &["10.0.9.1/24", "fd00:9::1/64"]));
    batch(bed, Location::far("router"), &router)?;
    let mut node = at_device("eth1", &["10.0.9.6/24", "fd00:9::6/64"]);
    node.extend(lines(&["route replace default via 10.0.9.1", "route replace default via fd00:9::1"]));
    batch(bed, Location::far("node2"), &node)
}

/// Adds further links between the node and one of its pods.
pub fn add_links(bed: &Bed, count: usize) -> Result<(), BedError> {
    let pid = pid(bed, Location::far("pod-a"))?;
    let link = |at| format!("link add many{at} type veth peer name far{at} netns {pid}");
    batch(bed, Location::OUTSIDE, &(0..count).map(link).collect::<Vec<_>>())
}

/// Deletes the node's uplink and creates it again with the same name, addresses and routes.
pub fn renew_uplink(bed: &Bed) -> Result<(), BedError> {
    let mut words = lines(&["link delete node"]);
    words.extend(link(bed, "node", Location::OUTSIDE)?);
    words.extend(lines(&["link set node master lan"]));
    batch(bed, Location::far("router"), &words)?;
    batch(bed, Location::OUTSIDE, &[lines(&["link set eth0 address 02:00:00:00:00:05"]), by("eth0")].concat())
}

/// Renames the uplink, as a udev rule does: it goes down, and loses its routes and its IPv6 addresses.
pub fn rename_uplink(bed: &Bed, name: &str) -> Result<(), BedError> {
    let renamed = ["link set eth0 down".to_owned(), format!("link set eth0 name {name}")];
    let is_kept = |line: &String| line.starts_with("address add 10.");
    let lost = by(name).into_iter().filter(|line| !is_kept(line));
    batch(bed, Location::OUTSIDE, &renamed.into_iter().chain(lost).collect::<Vec<_>>())
}

/// Replaces the node's first address and announces the new one to all neighbours.
pub fn renumber_uplink(bed: &Bed, address: &str) -> Result<(), BedError> {
    set(bed, Location::OUTSIDE, "ipv4/conf/all/promote_secondaries", "1")?;
    let own =
        [format!("address add {address}/24 dev eth0"), "address delete 10.0.0.5/24 dev eth0".to_owned()];
    batch(bed, Location::OUTSIDE, &own)?;
    let ranges = PODS.iter().chain(&ANNOUNCED).filter(|range| !range.contains(':'));
    let routes: Vec<String> = ranges.map(|range| format!("route replace {range} via {address}")).collect();
    batch(bed, Location::far("node2"), &routes)?;
    batch(bed, Location::far("router"), &routes)
}

fn client() -> Vec<String> {
    lines(&[
        "link set lo up",
        "link set eth0 up",
        "address add 10.20.0.2/24 dev eth0",
        "address add 10.20.0.3/24 dev eth0",
        "address add fd00:20::2/64 dev eth0 nodad",
        "address add fd00:20::3/64 dev eth0 nodad",
        "address add 10.20.0.9/24 dev eth0",
        "address add fd00:20::9/64 dev eth0 nodad",
        "route add default via 10.20.0.1",
        "route add default via fd00:20::1 src fd00:20::2",
    ])
}

fn at_device(device: &str, addresses: &[&str]) -> Vec<String> {
    let at_once = |address: &str| if address.contains(':') { " nodad" } else { "" };
    let add = |address: &&str| format!("address add {address} dev {device}{}", at_once(address));
    std::iter::once(format!("link set {device} up")).chain(addresses.iter().map(add)).collect()
}

/// The node's addresses at a device, and its routes through it.
fn by(device: &str) -> Vec<String> {
    let mut words = at_device(device, &["10.0.0.5/24", "10.0.0.55/24", "fd00:a::55/64", "fd00:a::5/64"]);
    words.extend(lines(&[
        "route add default via 10.0.0.1",
        "route add default via fd00:a::1 src fd00:a::5",
        "route add 10.244.9.0/24 via 10.0.0.6",
        "route add fd00:244:9::/64 via fd00:a::6",
    ]));
    words
}

fn node(bed: &Bed, uplink: &Uplink) -> Result<Vec<String>, BedError> {
    // A new link has the same hardware address, because other hosts remember it for a minute.
    let mut words = lines(&["link set lo up", "link set eth0 address 02:00:00:00:00:05", "link set eth0 up"]);
    words.extend(uplink.lines(bed, uplink.node)?);
    words.extend(by(uplink.device));
    words.extend(lines(uplink.node_besides));
    words.extend(lines(&[
        // No port has this hardware address, so a port sees frames from pods as frames for another host.
        "link add cni0 address 02:00:00:00:02:01 type bridge mcast_snooping 0",
        "link set cni0 up",
        "address add 10.244.2.1/24 dev cni0",
        "address add fd00:244:2::1/64 dev cni0 nodad",
    ]));
    for name in ["pod-a", "pod-b", "pod-c", "pod-d"] {
        words.extend(link(bed, name, Location::far(name))?);
    }
    words.extend(host_side("pod-a", "1::10"));
    words.extend(host_side("pod-b", "1::11"));
    words.extend(lines(&["link set pod-c master cni0", "link set pod-d master cni0"]));
    Ok(words)
}

fn other_node(bed: &Bed, uplink: &Uplink) -> Result<Vec<String>, BedError> {
    let mut words = lines(&["link set lo up", "link set eth0 up"]);
    words.extend(uplink.lines(bed, uplink.other)?);
    words.extend(at_device(uplink.other_device, &["10.0.0.6/24", "fd00:a::6/64"]));
    words.extend(lines(&["route add default via 10.0.0.1", "route add default via fd00:a::1"]));
    if !uplink.is_behind_router {
        words.extend(
            PODS.iter().chain(&ANNOUNCED).map(|range| format!("route add {range} via {}", gateway(range))),
        );
    }
    words.extend(lines(uplink.other_besides));
    words.extend(link(bed, "pod-r", Location::far("pod-r"))?);
    words.extend(host_side("pod-r", "9::10"));
    Ok(words)
}

/// `1::10` is 10.244.1.10 and fd00:244:1::10; both gateways are the first address of their range.
fn addresses(number: &str) -> [(String, String); 2] {
    let (range, last) = number.split_once("::").unwrap_or(("1", number));
    [
        (format!("10.244.{range}.{last}/32"), format!("10.244.{range}.1/32")),
        (format!("fd00:244:{range}::{last}/128"), format!("fd00:244:{range}::1/128")),
    ]
}

/// Configures the node's end as CNI ptp does: the gateway's address without a range, and a route to the one pod.
fn host_side(name: &str, number: &str) -> Vec<String> {
    let both = addresses(number).map(|(pod, gateway)| {
        let at_once = if gateway.contains(':') { " nodad" } else { "" };
        [format!("address add {gateway} dev {name}{at_once}"), format!("route add {pod} dev {name}")]
    });
    both.concat()
}

fn routed_pod(number: &str) -> Vec<String> {
    let mut words = lines(&["link set lo up", "link set eth0 up"]);
    for (pod, gateway) in addresses(number) {
        let at_once = if gateway.contains(':') { " nodad" } else { "" };
        let via = gateway.split('/').next().unwrap_or_default();
        words.push(format!("address add {pod} dev eth0{at_once}"));
        words.push(format!("route add {gateway} dev eth0"));
        words.push(format!("route add default via {via}"));
    }
    words
}

fn bridged_pod(last: u8) -> Vec<String> {
    let mut words = lines(&["link set lo up", "link set eth0 up"]);
    words.push(format!("address add 10.244.2.{last}/24 dev eth0"));
    words.push(format!("address add fd00:244:2::{last}/64 dev eth0 nodad"));
    words.extend(lines(&["route add default via 10.244.2.1", "route add default via fd00:244:2::1"]));
    words
}

/// Turns checksum offload off. A veth otherwise leaves checksums to the receiver, which trusts the sender.
fn compute_checksums(bed: &Bed) -> Result<(), BedError> {
    let ends = ["client", "node2", "pod-a", "pod-b", "pod-c", "pod-d", "pod-r"];
    for place in ends.map(Location::far).into_iter().chain([Location::OUTSIDE]) {
        let mut ethtool = bed.command(place, "ethtool")?;
        ethtool.args(["-K", "eth0", "tx", "off", "rx", "off"]);
        succeed(ethtool, SOON)?;
    }
    Ok(())
}
