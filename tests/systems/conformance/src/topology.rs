//! The description of a cluster: how many nodes, which pod network, which families, which proxy.
//!
//! Invariant: every address of a cluster is defined here, and nowhere else.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::ClusterError;

/// The limit by addresses and zones; tests with more nodes need other machines.
pub(crate) const NODES_MAX: u8 = 3;

/// The ranges of addresses, for IPv4 and IPv6.
pub(crate) const SERVICES: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];
pub(crate) const PODS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/48"];
/// The first address of the services' range: the apiserver's own Service.
pub(crate) const APISERVER_SERVICE: &str = "10.96.0.1";
/// The address of cluster DNS.
pub(crate) const DNS_SERVICE: &str = "10.96.0.10";
pub(crate) const APISERVER_PORT: u16 = 6443;
/// The address of the second apiserver, on `cp` too.
pub(crate) const SECOND_APISERVER: &str = "172.30.0.20";
/// The address at which holdfast leads to a serving apiserver.
pub(crate) const VIRTUAL_ADDRESS: &str = "169.254.20.1";
/// The source of load-balanced clients: outside of the nodes' network, so that source ranges can tell them apart.
pub(crate) const BALANCED_CLIENT: &str = "192.168.77.10";

/// The kind of the pods' links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cni {
    /// All pods of a node behind one bridge.
    Bridge,
    /// A separate link for each pod.
    PointToPoint,
    /// Flannel's DaemonSet, which carries what pods send to other nodes in VXLAN, with rules of iptables.
    Flannel,
    /// The same, with routes to the other nodes, and rules of nftables.
    FlannelHostGateway,
    /// kube-router's DaemonSet, which leads to the other nodes by routes, and enforces network policies.
    KubeRouter,
    /// Calico's DaemonSet, which carries what pods send to other nodes in VXLAN, and enforces network policies.
    Calico,
    /// The AWS VPC CNI's DaemonSet: pods have addresses of their node's two cards, to which a VPC leads. IPv4 alone.
    Vpc,
    /// None, until a test installs one. Nodes are not ready before, and the start does not wait for them.
    Nobody,
}

impl Cni {
    /// Flannel's name of its backend, if Flannel is the pod network.
    pub(crate) fn flannel_backend(self) -> Option<&'static str> {
        match self {
            Self::Flannel => Some("vxlan"),
            Self::FlannelHostGateway => Some("host-gw"),
            Self::Bridge
            | Self::PointToPoint
            | Self::KubeRouter
            | Self::Calico
            | Self::Vpc
            | Self::Nobody => None,
        }
    }

    /// The name of the script that builds its programs, and of the folder that has them. Such a pod network also leads
    /// from node to node by itself.
    pub(crate) fn supply(self) -> Option<&'static str> {
        match self {
            Self::Flannel | Self::FlannelHostGateway => Some("flannel"),
            Self::KubeRouter => Some("kube-router"),
            Self::Calico => Some("calico"),
            Self::Vpc => Some("vpc-cni"),
            Self::Bridge | Self::PointToPoint | Self::Nobody => None,
        }
    }
}

/// The address families of nodes, pods and services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Ipv4,
    Dual,
}

/// kube-proxy's mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Nftables,
    Iptables,
}

/// The proxy of each node's Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// The real kube-proxy, as a process of the host.
    KubeProxy(Mode),
    /// holdfast as a process of the host.
    Holdfast {
        /// The configuration besides the node's name and the apiserver, as TOML.
        config: String,
    },
    /// None, until a test applies a manifest or installs something. Cluster DNS then asks the apiserver directly.
    Nobody,
}

/// The program that starts and restarts a node's services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// A script of our own, without other services.
    Script,
    /// The distribution's systemd, with its journal and its bus. Services are units.
    Systemd,
}

/// The description of a cluster.
#[derive(Clone, Debug)]
pub struct Topology {
    /// From 1 to `NODES_MAX`.
    pub nodes: u8,
    pub cni: Cni,
    pub family: Family,
    pub proxy: Proxy,
    /// Whether there are two apiservers, of which nodes prefer the second one, and kubelets use only holdfast's
    /// virtual address.
    pub virtual_address: bool,
    /// The first process of nodes; `cp` and `out` always have the script.
    pub init: Init,
    /// Whether Services of type LoadBalancer get addresses, and clients on `cp` and `out` reach them.
    pub balancer: bool,
    /// Whether the machines' links behave like network cards: checksums are computed before a frame leaves, and NAPI
    /// is on, so that programs at drivers may redirect.
    pub cards: bool,
    /// Files that machines have before they boot: machine, path, content.
    pub files: Vec<(MachineName, String, String)>,
    /// Folders over the common root of all machines, the topmost first. Machines cannot change them.
    pub layers: Vec<PathBuf>,
}

impl Default for Topology {
    fn default() -> Self {
        let proxy = Proxy::Holdfast { config: String::new() };
        let (cni, family, init) = (Cni::Bridge, Family::Dual, Init::Script);
        let (files, layers) = (Vec::new(), Vec::new());
        let (balancer, cards, virtual_address) = (true, false, false);
        Self { nodes: 2, cni, family, proxy, virtual_address, init, balancer, cards, files, layers }
    }
}

impl Topology {
    /// Rejects what cannot be built.
    pub(crate) fn check(&self) -> Result<(), ClusterError> {
        if self.cni == Cni::Vpc && self.family == Family::Dual {
            return Err(ClusterError::OneFamily);
        }
        if (1..=NODES_MAX).contains(&self.nodes) {
            return Ok(());
        }
        Err(ClusterError::Nodes { asked: self.nodes })
    }

    /// The name for results of such a cluster. It leaves out the proxy, so that results of proxies can be compared.
    pub fn id(&self) -> String {
        format!("{}-nodes-{}-{}", self.nodes, self.cni, self.family)
    }

    pub(crate) fn node_names(&self) -> impl Iterator<Item = MachineName> + Clone {
        (1..=self.nodes).map(MachineName::Node)
    }

    /// All machines, the control plane first.
    pub(crate) fn machine_names(&self) -> impl Iterator<Item = MachineName> + Clone {
        let ends = [MachineName::ControlPlane, MachineName::Outside];
        ends.into_iter().chain(self.node_names())
    }

    /// The program that starts the services of a machine.
    pub(crate) fn init_of(&self, machine: MachineName) -> Init {
        if machine.is_node() { self.init } else { Init::Script }
    }

    /// The elements of this cluster's families, separated by commas.
    pub(crate) fn of_family(&self, both: &[impl AsRef<str>; 2]) -> String {
        let [four, six] = both.each_ref().map(AsRef::as_ref);
        match self.family {
            Family::Ipv4 => four.to_owned(),
            Family::Dual => format!("{four},{six}"),
        }
    }
}

/// A machine of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MachineName {
    /// `cp`: etcd, apiserver, controllers, scheduler, the load balancer; the tests run on it.
    ControlPlane,
    /// `n1` and so on.
    Node(u8),
    /// `out`: a client without pods or proxy, and the end of all machines' default route.
    Outside,
}

impl MachineName {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ControlPlane => "cp",
            Self::Node(1) => "n1",
            Self::Node(2) => "n2",
            Self::Node(_) => "n3",
            Self::Outside => "out",
        }
    }

    /// The last part of each of its addresses.
    pub(crate) fn number(self) -> u8 {
        match self {
            Self::ControlPlane => 10,
            Self::Node(number) => 10 + number,
            Self::Outside => 100,
        }
    }

    /// Its addresses in the shared network, of both families.
    pub fn addresses(self) -> [String; 2] {
        [format!("172.30.0.{}", self.number()), format!("fd30::{}", self.number())]
    }

    /// The ranges of a node's pods, of both families.
    pub(crate) fn pods(self) -> [String; 2] {
        let number = self.number() % 10;
        [format!("10.244.{number}.0/24"), format!("fd00:10:244:{number}::/64")]
    }

    pub(crate) fn is_node(self) -> bool {
        matches!(self, Self::Node(_))
    }
}

impl FromStr for MachineName {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, ClusterError> {
        let all = [Self::ControlPlane, Self::Outside].into_iter().chain((1..=NODES_MAX).map(Self::Node));
        all.into_iter()
            .find(|name| name.as_str() == text)
            .ok_or_else(|| ClusterError::NoMachine(text.to_owned()))
    }
}

impl fmt::Display for MachineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Converts between values and the words of the command line and of file names.
macro_rules! words {
    ($kind:ident: $($variant:ident $word:literal),+) => {
        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word),+ })
            }
        }

        impl FromStr for $kind {
            type Err = ClusterError;

            fn from_str(text: &str) -> Result<Self, ClusterError> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(ClusterError::Malformed {
                        from: format!("`{text}`"),
                        why: format!("one of{}", concat!($(" ", $word),+)),
                    }),
                }
            }
        }
    };
}

words!(Init: Script "script", Systemd "systemd");
words!(
    Cni: Bridge "bridge", PointToPoint "ptp", Flannel "flannel", FlannelHostGateway "flannel-host-gw",
    KubeRouter "kube-router", Calico "calico", Vpc "vpc", Nobody "nobody"
);
words!(Family: Ipv4 "ipv4", Dual "dual");
words!(Mode: Nftables "nftables", Iptables "iptables");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_has_one_to_three_nodes() {
        let of = |nodes| Topology { nodes, ..Topology::default() };
        assert!(of(1).check().is_ok() && of(3).check().is_ok());
        assert!(of(0).check().is_err() && of(4).check().is_err());
    }

    #[test]
    fn a_vpc_has_one_family() {
        let of = |family| Topology { cni: Cni::Vpc, family, ..Topology::default() };
        assert!(of(Family::Ipv4).check().is_ok() && of(Family::Dual).check().is_err());
    }

    #[test]
    fn results_of_all_proxies_are_filed_under_the_same_name() {
        let of = |proxy| Topology { proxy, ..Topology::default() }.id();
        assert_eq!(of(Proxy::Nobody), "2-nodes-bridge-dual");
        assert_eq!(of(Proxy::KubeProxy(Mode::Iptables)), of(Proxy::Nobody));
    }

    #[test]
    fn no_two_machines_share_an_address_or_a_name() {
        let topology = Topology { nodes: NODES_MAX, ..Topology::default() };
        let names: Vec<MachineName> = topology.machine_names().collect();
        for name in &names {
            assert_eq!(name.as_str().parse::<MachineName>().unwrap(), *name);
            let same = names.iter().filter(|other| other.addresses() == name.addresses());
            assert_eq!(same.count(), 1, "{name}");
        }
    }

    #[test]
    fn an_ipv4_cluster_has_no_second_family() {
        let four = Topology { family: Family::Ipv4, ..Topology::default() };
        assert_eq!(four.of_family(&SERVICES), "10.96.0.0/16");
        assert_eq!(Topology::default().of_family(&["a", "b"]), "a,b");
    }

    #[test]
    fn words_round_trip() {
        assert_eq!("ptp".parse::<Cni>().unwrap().to_string(), "ptp");
        assert_eq!(
            "ptpx".parse::<Cni>().unwrap_err().to_string(),
            "`ptpx` is not understood: one of bridge ptp flannel flannel-host-gw kube-router calico vpc nobody"
        );
    }
}
