//! The network between machines: one shared segment, and routes to the pods of each node.
//!
//! Invariant: all of it is in network namespaces whose names begin with the cluster's.

use std::process::Command;

use crate::ClusterError;
use crate::program::said;
use crate::topology::{BALANCED_CLIENT, MachineName, SECOND_APISERVER, Topology};

/// The namespace of the segment itself, which is no machine.
const SEGMENT: &str = "segment";

/// The network of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct Wires {
    cluster: String,
    topology: Topology,
}

impl Wires {
    /// Creates the segment; machines are attached one by one.
    pub(crate) fn lay(cluster: &str, topology: &Topology) -> Result<Self, ClusterError> {
        let wires = Self { cluster: cluster.to_owned(), topology: topology.clone() };
        let segment = wires.namespace(SEGMENT);
        said(Command::new("ip").args(["netns", "add", &segment]), "")?;
        // Keeps firewall modules from filtering bridged frames.
        wires.set(
            &segment,
            &["net.bridge.bridge-nf-call-iptables=0", "net.bridge.bridge-nf-call-ip6tables=0"],
        )?;
        wires.set(&segment, &["net.ipv6.conf.all.disable_ipv6=1"])?;
        wires.ip(&segment, &["link add br0 type bridge".to_owned(), "link set br0 up".to_owned()])?;
        Ok(wires)
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
        let pair = format!("link add v-{machine} type veth peer name eth0 netns {own}");
        self.ip(&segment, &[pair, format!("link set v-{machine} master br0 up")])?;
        if self.topology.cards {
            have(&own, "eth0", ["tx", "off"])?;
            have(&segment, &format!("v-{machine}"), ["gro", "on"])?;
        }
        self.ip(&own, &self.orders(machine))?;
        self.set(&own, settings(machine))
    }

    /// Removes a machine's network.
    pub(crate) fn detach(&self, machine: MachineName) -> Result<(), ClusterError> {
        said(Command::new("ip").args(["netns", "del", &self.namespace(machine.as_str())]), "")?;
        // The other end goes with it, but later; a machine that boots at once needs its name.
        let _ = self.ip(&self.namespace(SEGMENT), &[format!("link del v-{machine}")]);
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
            let out = MachineName::Outside.addresses();
            orders.extend(["default", "::/0"].iter().zip(out).map(route));
        }
        if machine == MachineName::ControlPlane {
            orders.push(format!("addr add {BALANCED_CLIENT}/32 dev lo"));
            orders.push(format!("addr add {SECOND_APISERVER}/24 dev eth0"));
        }
        if machine.is_node() {
            let [gateway, _] = MachineName::ControlPlane.addresses();
            orders.push(format!("route add {BALANCED_CLIENT}/32 via {gateway}"));
        }
        orders
    }

    /// The nodes whose pods a machine reaches by a route of ours. Between nodes, some pod networks lead.
    fn reached_by_routes(&self, machine: MachineName) -> impl Iterator<Item = MachineName> {
        let leads_itself = self.topology.cni.supply().is_some() && machine.is_node();
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
    use crate::topology::Cni;

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
