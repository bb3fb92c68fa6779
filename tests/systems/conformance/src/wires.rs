//! The network between machines: one shared segment, and routes to the pods of each node.
//!
//! Invariant: all of it is in network namespaces whose names begin with the cluster's.

use std::process::Command;

use crate::ClusterError;
use crate::program::said;
use crate::topology::{BALANCED_CLIENT, Cni, MachineName, SECOND_APISERVER, Topology};
use crate::vpc::{self, Card};

/// The namespace of the segment itself, which is no machine.
const SEGMENT: &str = "segment";

/// The longest packets of a link, if it is in no VPC.
const MTU: u16 = 1500;

/// The network of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Wires {
    cluster: String,
    topology: Topology,
}

impl Wires {
    /// Creates the segment; machines are attached one by one.
    pub(crate) fn lay(cluster: &str, topology: &Topology) -> Result<Self, ClusterError> {
        let wires = Self::find(cluster, topology);
        let segment = wires.namespace(SEGMENT);
        said(Command::new("ip").args(["netns", "add", &segment]), "")?;
        // Keeps firewall modules from filtering bridged frames.
        wires.set(
            &segment,
            &["net.bridge.bridge-nf-call-iptables=0", "net.bridge.bridge-nf-call-ip6tables=0"],
        )?;
        wires.set(&segment, &["net.ipv6.conf.all.disable_ipv6=1"])?;
        if topology.cni == Cni::Vpc {
            wires.lay_vpc(&segment)?;
        } else {
            wires.ip(&segment, &["link add br0 type bridge".to_owned(), "link set br0 up".to_owned()])?;
        }
        Ok(wires)
    }

    fn lay_vpc(&self, segment: &str) -> Result<(), ClusterError> {
        self.set(segment, &vpc::ROUTER_SETTINGS)?;
        self.ip(segment, &vpc::router_orders())?;
        let check = ["netns", "exec", segment, "nft", "-f", "-"];
        said(Command::new("ip").args(check), &vpc::source_check(&self.topology)).map(drop)
    }

    /// The network that was laid for this cluster.
    pub(crate) fn find(cluster: &str, topology: &Topology) -> Self {
        Self { cluster: cluster.to_owned(), topology: topology.clone() }
    }

    /// The number of packets that a VPC has dropped by their sources.
    pub(crate) fn foreign_sources(&self) -> Result<u64, ClusterError> {
        let segment = self.namespace(SEGMENT);
        let list = ["netns", "exec", &segment, "nft", "list", "table", "bridge", "vpc"];
        said(Command::new("ip").args(list), "").map(|listed| vpc::dropped(&listed))
    }

    /// The path of a machine's network namespace.
    pub(crate) fn file(&self, machine: MachineName) -> String {
        format!("/run/netns/{}", self.namespace(machine.as_str()))
    }

    /// Creates a machine's network, new at each boot.
    pub(crate) fn attach(&self, machine: MachineName) -> Result<(), ClusterError> {
        let (own, segment) = (self.namespace(machine.as_str()), self.namespace(SEGMENT));
        said(Command::new("ip").args(["netns", "add", &own]), "")?;
        self.set(&own, &["net.ipv6.conf.default.accept_dad=0", "net.ipv6.conf.all.accept_dad=0"])?;
        for link in self.links(machine) {
            self.ip(&segment, &link.orders(&own))?;
            if self.topology.cards {
                have(&own, &link.device, ["tx", "off"])?;
                have(&segment, &link.port, ["gro", "on"])?;
            }
        }
        self.lead_to_cards(machine)?;
        self.ip(&own, &self.orders(machine))?;
        self.set(&own, settings(machine))
    }

    /// Removes a machine's network.
    pub(crate) fn detach(&self, machine: MachineName) -> Result<(), ClusterError> {
        said(Command::new("ip").args(["netns", "del", &self.namespace(machine.as_str())]), "")?;
        // The other end goes with it, but later; a machine that boots at once needs its name.
        for link in self.links(machine) {
            let _ = self.ip(&self.namespace(SEGMENT), &[format!("link del {}", link.port)]);
        }
        Ok(())
    }

    /// The links of a machine, the first one first.
    fn links(&self, machine: MachineName) -> Vec<Link> {
        let cards = if self.topology.cni == Cni::Vpc { Card::all(machine) } else { Vec::new() };
        let mtu = if self.topology.cni == Cni::Vpc { vpc::MTU } else { MTU };
        if cards.is_empty() {
            let (device, port) = ("eth0".to_owned(), format!("v-{machine}"));
            return vec![Link { device, port, mtu, hardware: None }];
        }
        let link = |card: Card| {
            let (device, port, hardware) = (card.device(), card.port(), Some(card.hardware()));
            Link { device, port, mtu, hardware }
        };
        cards.into_iter().map(link).collect()
    }

    /// Makes the VPC lead to the cards of a node.
    fn lead_to_cards(&self, machine: MachineName) -> Result<(), ClusterError> {
        if self.topology.cni != Cni::Vpc {
            return Ok(());
        }
        let segment = self.namespace(SEGMENT);
        for card in Card::all(machine) {
            self.ip(&segment, &card.neighbours())?;
            let (hardware, port) = (card.hardware(), card.port());
            let entry = ["-n", &segment, "fdb", "replace", &hardware, "dev", &port, "master", "static"];
            said(Command::new("bridge").args(entry), "")?;
        }
        Ok(())
    }

    /// The `ip` commands for a machine's network.
    fn orders(&self, machine: MachineName) -> Vec<String> {
        let [four, six] = machine.addresses();
        let mut orders = vec![
            "link set lo up".to_owned(),
            "link set eth0 up".to_owned(),
            format!("addr add {four}/24 dev eth0"),
            format!("addr add {six}/64 dev eth0 nodad"),
        ];
        for node in self.reached_by_routes(machine) {
            orders.extend(node.pods().iter().zip(node.addresses()).map(route));
        }
        if machine != MachineName::Outside {
            orders.extend(["default", "::/0"].iter().zip(self.gateways(machine)).map(route));
        }
        if machine == MachineName::ControlPlane {
            orders.push(format!("addr add {BALANCED_CLIENT}/32 dev lo"));
            orders.push(format!("addr add {SECOND_APISERVER}/24 dev eth0"));
        }
        if machine.is_node() && self.topology.cni != Cni::Vpc {
            let [gateway, _] = MachineName::ControlPlane.addresses();
            orders.push(format!("route add {BALANCED_CLIENT}/32 via {gateway}"));
        }
        orders
    }

    /// The ends of a machine's default routes: nodes of a VPC have its router.
    fn gateways(&self, machine: MachineName) -> [String; 2] {
        let [four, six] = MachineName::Outside.addresses();
        let by_router = self.topology.cni == Cni::Vpc && machine.is_node();
        [if by_router { vpc::ROUTER.to_owned() } else { four }, six]
    }

    /// The nodes whose pods a machine reaches by a route of ours. Between nodes, some pod networks lead; pods of a VPC
    /// are on everybody's link.
    fn reached_by_routes(&self, machine: MachineName) -> impl Iterator<Item = MachineName> {
        let cni = self.topology.cni;
        let leads_itself = cni == Cni::Vpc || (cni.supply().is_some() && machine.is_node());
        self.topology.node_names().filter(move |node| *node != machine && !leads_itself)
    }

    fn namespace(&self, place: &str) -> String {
        format!("{}-{place}", self.cluster)
    }

    fn ip(&self, namespace: &str, orders: &[String]) -> Result<(), ClusterError> {
        said(Command::new("ip").args(["-netns", namespace, "-batch", "-"]), &orders.join("\n")).map(drop)
    }

    fn set(&self, namespace: &str, settings: &[&str]) -> Result<(), ClusterError> {
        let sysctl = ["netns", "exec", namespace, "sysctl", "-q", "-w"];
        if settings.is_empty() {
            return Ok(());
        }
        said(Command::new("ip").args(sysctl).args(settings), "").map(drop)
    }
}

/// A machine's device, and its other end in the segment.
struct Link {
    device: String,
    port: String,
    mtu: u16,
    hardware: Option<String>,
}

impl Link {
    /// The `ip` commands in the segment that lead into the machine's network.
    fn orders(&self, own: &str) -> [String; 2] {
        let Self { device, port, mtu, hardware } = self;
        let address = hardware.as_ref().map(|hardware| format!(" address {hardware}")).unwrap_or_default();
        [
            format!("link add {port} mtu {mtu} type veth peer name {device} mtu {mtu}{address} netns {own}"),
            format!("link set {port} master br0 up"),
        ]
    }
}

/// Sets an offload feature of a device.
fn have(namespace: &str, device: &str, feature: [&str; 2]) -> Result<(), ClusterError> {
    let ethtool = ["netns", "exec", namespace, "ethtool", "-K", device];
    said(Command::new("ip").args(ethtool).args(feature), "").map(drop)
}

fn route((to, via): (impl std::fmt::Display, String)) -> String {
    format!("route add {to} via {via}")
}

/// The sysctls that an administrator sets for kubelet and a proxy on a node, and for a multipath router on `cp`.
fn settings(machine: MachineName) -> &'static [&'static str] {
    match machine {
        MachineName::Node(_) => &[
            "net.ipv4.ip_forward=1",
            "net.ipv6.conf.all.forwarding=1",
            "net.bridge.bridge-nf-call-iptables=1",
            "net.bridge.bridge-nf-call-ip6tables=1",
        ],
        MachineName::ControlPlane => {
            &["net.ipv4.fib_multipath_hash_policy=1", "net.ipv6.fib_multipath_hash_policy=1"]
        }
        MachineName::Outside => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_has_routes_to_the_others_pods() {
        let wires = Wires { cluster: "c".to_owned(), topology: Topology::default() };
        let orders = wires.orders(MachineName::Node(1));
        assert!(orders.contains(&"route add 10.244.2.0/24 via 172.30.0.12".to_owned()), "{orders:?}");
        assert!(orders.contains(&"route add fd00:10:244:2::/64 via fd30::12".to_owned()), "{orders:?}");
        assert!(!orders.iter().any(|order| order.contains("10.244.1.")), "its own are on links: {orders:?}");
        let flannel = Topology { cni: Cni::Flannel, ..Topology::default() };
        let flannel = Wires { topology: flannel, ..wires.clone() };
        let (node, control) =
            (flannel.orders(MachineName::Node(1)), flannel.orders(MachineName::ControlPlane));
        assert!(!node.iter().any(|order| order.contains("10.244.")), "Flannel leads there: {node:?}");
        assert!(control.iter().any(|order| order.contains("10.244.2.")), "{control:?}");
        let outside = wires.orders(MachineName::Outside);
        assert!(!outside.iter().any(|order| order.contains("default")), "ways end there: {outside:?}");
    }
}
