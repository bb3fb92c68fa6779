//! A VPC between the nodes: two cards for each node, the network that leads to their addresses, and what EC2's instance
//! metadata says about them.
//!
//! Invariant: the network leads to an address by the hardware address of its card, whatever machines say in ARP, and
//! takes from a node's card only packets of this card's addresses, as EC2 does with its check of sources.

use std::net::Ipv4Addr;
use std::path::Path;

use crate::ClusterError;
use crate::control_plane::service;
use crate::error::write;
use crate::topology::{BALANCED_CLIENT, MachineName, Topology};

/// The VPC's router: the first address of the subnet.
pub(crate) const ROUTER: &str = "172.30.0.1";
const ROUTER_HARDWARE: &str = "02:00:00:00:ff:01";

const SUBNET: &str = "172.30.0.0/24";
const VPC: &str = "172.30.0.0/16";

/// The address of the instance metadata, on `out`.
const METADATA: &str = "169.254.169.254";
const METADATA_FOLDER: &str = "srv/metadata";

/// The frames that instances send in a VPC.
pub(crate) const MTU: u16 = 9001;

/// Instances of this type have up to 15 cards with 50 addresses each.
const INSTANCE_TYPE: &str = "m5.24xlarge";

/// The cards of a node, and the addresses of a card for pods and, on the second, for itself.
const CARDS: u8 = 2;
const ADDRESSES: u8 = 35;

/// The first of each node's addresses: between those of machines.
const FIRST: [u8; 3] = [30, 101, 171];

/// A node's card, an elastic network interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Card {
    /// 1 and on.
    node: u8,
    /// From 0.
    number: u8,
}

impl Card {
    /// The cards of a machine, the first one first; none if it is no node.
    pub(crate) fn all(machine: MachineName) -> Vec<Self> {
        match machine {
            MachineName::Node(node) => (0..CARDS).map(|number| Self { node, number }).collect(),
            MachineName::ControlPlane | MachineName::Outside => Vec::new(),
        }
    }

    /// The device on the node.
    pub(crate) fn device(self) -> String {
        format!("eth{}", self.number)
    }

    /// The other end, in the network. That of the first card has the name that it has in any network.
    pub(crate) fn port(self) -> String {
        let first = format!("v-n{}", self.node);
        if self.number == 0 { first } else { format!("{first}-{}", self.number) }
    }

    pub(crate) fn hardware(self) -> String {
        format!("02:00:00:00:{:02x}:{:02x}", self.number, self.node)
    }

    /// Its own address, and those of its pods.
    pub(crate) fn addresses(self) -> Vec<Ipv4Addr> {
        let first = FIRST.get(usize::from(self.node - 1)).copied().unwrap_or_default();
        let first = first + self.number * ADDRESSES;
        let own = (self.number == 0).then(|| MachineName::Node(self.node).number());
        own.into_iter().chain(first..first + ADDRESSES).map(|last| Ipv4Addr::new(172, 30, 0, last)).collect()
    }

    /// The `ip` commands by which the network leads to its addresses.
    pub(crate) fn neighbours(self) -> Vec<String> {
        let hardware = self.hardware();
        let port = format!("link set {} type bridge_slave proxy_arp_wifi on", self.port());
        let neighbour = |address| format!("neigh replace {address} lladdr {hardware} dev br0 nud permanent");
        [port].into_iter().chain(self.addresses().into_iter().map(neighbour)).collect()
    }

    /// What the network drops of what the card sends.
    fn check(self) -> String {
        let (port, hardware) = (self.port(), self.hardware());
        let addresses = self.addresses().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        format!(
            "iifname \"{port}\" ether saddr != {hardware} counter drop\n\
             iifname \"{port}\" arp saddr ip != {{ {addresses} }} drop\n\
             iifname \"{port}\" ip saddr != {{ {addresses} }} counter drop\n"
        )
    }

    /// Its part of the metadata: file and text.
    fn metadata(self) -> Vec<(String, String)> {
        let hardware = self.hardware();
        let addresses: Vec<String> = self.addresses().iter().map(ToString::to_string).collect();
        let entries = [
            ("device-number", self.number.to_string()),
            ("interface-id", format!("eni-{:08x}{:09x}", self.node, self.number)),
            ("local-ipv4s", addresses.join("\n")),
            ("mac", hardware.clone()),
            ("security-group-ids", "sg-00000000000000001".to_owned()),
            ("subnet-id", "subnet-00000000000000001".to_owned()),
            ("subnet-ipv4-cidr-block", SUBNET.to_owned()),
            ("vpc-id", "vpc-00000000000000001".to_owned()),
            ("vpc-ipv4-cidr-block", VPC.to_owned()),
            ("vpc-ipv4-cidr-blocks", VPC.to_owned()),
        ];
        let folder = format!("meta-data/network/interfaces/macs/{hardware}");
        entries.map(|(name, text)| (format!("{folder}/{name}"), text)).to_vec()
    }
}

/// The `ip` commands for the network's router, which has the bridge as its device. A bridge without an address of its
/// own takes one of its ports', and forgets its neighbours.
pub(crate) fn router_orders() -> Vec<String> {
    let [out, _] = MachineName::Outside.addresses();
    let [balancer, _] = MachineName::ControlPlane.addresses();
    [
        format!("link add br0 address {ROUTER_HARDWARE} type bridge"),
        "link set br0 up".to_owned(),
        format!("addr add {ROUTER}/24 dev br0"),
        format!("route add default via {out}"),
        format!("route add {BALANCED_CLIENT}/32 via {balancer}"),
    ]
    .to_vec()
}

/// The router's sysctls. It sends packets back where they came from, and says nothing about that.
pub(crate) const ROUTER_SETTINGS: [&str; 3] =
    ["net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.default.send_redirects=0"];

/// The network's check of sources, for nftables.
pub(crate) fn source_check(topology: &Topology) -> String {
    let rules: String = topology.node_names().flat_map(Card::all).map(Card::check).collect();
    format!("table bridge vpc {{\nchain sources {{\ntype filter hook prerouting priority 0;\n{rules}}}\n}}\n")
}

/// The number of packets that the check has dropped, by what `nft list` says.
pub(crate) fn dropped(listed: &str) -> u64 {
    let counts = listed.lines().filter_map(|line| line.split_once("counter packets ")?.1.split(' ').next());
    counts.filter_map(|count| count.parse::<u64>().ok()).sum()
}

/// Writes the files of `out`, which answers for the instance metadata, before it boots.
pub(crate) fn equip(root: &Path, topology: &Topology) -> Result<(), ClusterError> {
    for node in topology.node_names() {
        let [own, _] = node.addresses();
        let folder = root.join(METADATA_FOLDER).join(&own).join("latest");
        for (name, text) in metadata(node, &own) {
            write(&folder.join(name), text)?;
        }
    }
    let serve = format!("exec /opt/vpc-cni/metadata /{METADATA_FOLDER} {METADATA}:80\n");
    service(root, "metadata", &format!("ip address replace {METADATA}/32 dev lo\n{serve}"))
}

/// An instance's metadata: file and text.
fn metadata(node: MachineName, own: &str) -> Vec<(String, String)> {
    let cards = Card::all(node);
    let hardware = cards.first().map(|card| card.hardware()).unwrap_or_default();
    let own = [
        ("dynamic/instance-identity/document", r#"{"region": "us-west-2"}"#.to_owned()),
        ("meta-data/instance-id", format!("i-{:017x}", node.number())),
        ("meta-data/instance-type", INSTANCE_TYPE.to_owned()),
        ("meta-data/local-ipv4", own.to_owned()),
        ("meta-data/mac", hardware),
        ("meta-data/placement/availability-zone", "us-west-2a".to_owned()),
        ("meta-data/placement/region", "us-west-2".to_owned()),
    ];
    let own = own.map(|(name, text)| (name.to_owned(), text));
    own.into_iter().chain(cards.into_iter().flat_map(Card::metadata)).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::topology::NODES_MAX;

    #[test]
    fn no_two_cards_or_machines_share_an_address() {
        let topology = Topology { nodes: NODES_MAX, ..Topology::default() };
        let cards: Vec<Card> = topology.node_names().flat_map(Card::all).collect();
        let mut all: Vec<String> =
            cards.iter().flat_map(|card| card.addresses()).map(|it| it.to_string()).collect();
        let others = [MachineName::ControlPlane, MachineName::Outside].map(|it| it.addresses()[0].clone());
        all.extend(others.into_iter().chain([ROUTER, crate::topology::SECOND_APISERVER].map(str::to_owned)));
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "{all:?}");
        let nodes = topology.node_names().map(|node| node.addresses()[0].clone());
        assert!(nodes.into_iter().all(|own| all.contains(&own)), "{all:?}");
    }

    #[test]
    fn the_check_names_each_card_with_its_addresses() {
        let text = source_check(&Topology::default());
        assert_eq!(text.matches("counter drop").count(), 8, "{text}");
        assert!(text.contains("iifname \"v-n2-1\" ip saddr != { 172.30.0.136, 172.30.0.137,"), "{text}");
        assert!(text.contains("iifname \"v-n1\" ip saddr != { 172.30.0.11, 172.30.0.30,"), "{text}");
    }

    #[test]
    fn dropped_packets_are_added_up() {
        let listed = "iifname \"a\" ip saddr != 1.2.3.4 counter packets 3 bytes 180 drop\n\
                      iifname \"b\" ip saddr != 1.2.3.5 counter packets 4 bytes 240 drop\n";
        assert_eq!(dropped(listed), 7);
    }

    #[test]
    fn the_metadata_has_both_cards() {
        let texts = metadata(MachineName::Node(1), "172.30.0.11");
        let of =
            |name: &str| texts.iter().find(|(path, _)| path.ends_with(name)).map(|(_, text)| text.as_str());
        assert_eq!(of("meta-data/mac"), Some("02:00:00:00:00:01"));
        assert_eq!(of("macs/02:00:00:00:01:01/device-number"), Some("1"));
        assert!(of("macs/02:00:00:00:01:01/local-ipv4s").unwrap().starts_with("172.30.0.65\n172.30.0.66\n"));
    }
}
