//! A node's services: containerd, kubelet, and the proxy.
//!
//! Invariant: kubelet and containerd differ from their defaults only where a machine in a namespace needs it, and each
//! such line gives the reason.

use std::path::Path;

use crate::control_plane::{becoming, service};
use crate::credentials::Authority;
use crate::error::write;
use crate::topology::{
    APISERVER_PORT, Cni, DNS_SERVICE, Family, MachineName, PODS, Proxy, SECOND_APISERVER, SERVICES, Topology,
    VIRTUAL_ADDRESS,
};
use crate::{Built, ClusterError};

/// Writes the machine's files before it boots.
pub(crate) fn equip(
    root: &Path,
    node: MachineName,
    topology: &Topology,
    authority: &Authority,
    built: &Built,
) -> Result<(), ClusterError> {
    authority.equip_node(root, node, topology)?;
    if let Some(network) = pod_network(node, topology) {
        write(&root.join("etc/cni/net.d/10-pods.conflist"), network)?;
    }
    write(&root.join("etc/containerd/config.toml"), containerd(&built.pause))?;
    write(&root.join("etc/kubernetes/kubelet.yaml"), kubelet_config())?;
    service(root, "containerd", "exec containerd\n")?;
    service(root, "kubelet", &kubelet(node, topology))?;
    match &topology.proxy {
        Proxy::KubeProxy(mode) => {
            write(
                &root.join("etc/kubernetes/kube-proxy.yaml"),
                kube_proxy(node, topology, &mode.to_string()),
            )?;
            service(root, "proxy", "exec kube-proxy --config=/etc/kubernetes/kube-proxy.yaml -v=2\n")
        }
        Proxy::Holdfast { config } => {
            write(&root.join("etc/holdfast/config.toml"), holdfast(node, topology, config))?;
            service(root, "proxy", HOLDFAST)
        }
        Proxy::Nobody => Ok(()),
    }
}

/// Folders that a package or systemd would create.
const HOLDFAST: &str =
    "mkdir -p /var/lib/holdfast /run/holdfast\nexec holdfast run --config /etc/holdfast/config.toml\n";

fn holdfast(node: MachineName, topology: &Topology, more: &str) -> String {
    let virtual_address = if topology.virtual_address { virtual_address() } else { String::new() };
    format!(
        "[node]\nname = \"{node}\"\n\n[apiserver]\nkubeconfig = \"/etc/kubernetes/holdfast.conf\"\n{virtual_address}\n\
         {more}\n"
    )
}

/// Prefers the second apiserver, because tests end that one: the controllers and the tests use the first.
fn virtual_address() -> String {
    let [first, _] = MachineName::ControlPlane.addresses();
    let endpoint = |address: &str| format!("\"https://{address}:{APISERVER_PORT}\"");
    format!(
        "endpoints = [{}, {}]\ntls_server_name = \"kubernetes\"\nvip = \"{VIRTUAL_ADDRESS}:{APISERVER_PORT}\"\n",
        endpoint(SECOND_APISERVER),
        endpoint(&first)
    )
}

/// Both elements in a dual-stack cluster, else the first.
fn each_family<T>(topology: &Topology, both: [T; 2]) -> Vec<T> {
    let families = if topology.family == Family::Dual { 2 } else { 1 };
    both.into_iter().take(families).collect()
}

/// Pods keep their addresses: nothing is masqueraded here, so that the proxy's work shows.
fn pod_network(node: MachineName, topology: &Topology) -> Option<String> {
    let links = match topology.cni {
        Cni::Bridge => r#""type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true"#,
        Cni::PointToPoint => r#""type": "ptp""#,
        Cni::Flannel | Cni::FlannelHostGateway | Cni::KubeRouter | Cni::Calico | Cni::Vpc | Cni::Nobody => {
            return None;
        }
    };
    let ranges = each_family(topology, node.pods().map(|range| format!(r#"[{{"subnet": "{range}"}}]"#)));
    let routes = each_family(topology, ["0.0.0.0/0", "::/0"].map(|to| format!(r#"{{"dst": "{to}"}}"#)));
    Some(format!(
        r#"{{"cniVersion": "1.0.0", "name": "pods", "plugins": [
	{{{links}, "ipMasq": false, "ipam": {{"type": "host-local", "dataDir": "/run/cni-ipam",
		"ranges": [{}], "routes": [{}]}}}},
	{{"type": "portmap", "capabilities": {{"portMappings": true}}, "snat": true}}
]}}
"#,
        ranges.join(", "),
        routes.join(", ")
    ))
}

/// Not every machine lets its root lower an OOM score, at which runc would fail, so none is asked to. A test may add
/// plug-ins in the second folder.
fn containerd(pause: &str) -> String {
    format!(
        r#"version = 3
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["/opt/cni/bin", "/opt/pods/bin"]
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
SystemdCgroup = false
"#
    )
}

/// The image store is filled before kubelet starts, so no test pulls anything.
fn kubelet(node: MachineName, topology: &Topology) -> String {
    let flags = [
        "config=/etc/kubernetes/kubelet.yaml".to_owned(),
        "kubeconfig=/etc/kubernetes/kubelet.conf".to_owned(),
        format!("hostname-override={node}"),
        format!("node-ip={}", topology.of_family(&node.addresses())),
        // Tests of zones need nodes in several.
        format!("node-labels=topology.kubernetes.io/zone=zone-{node}"),
        "v=2".to_owned(),
    ];
    let images = "until ctr version >/dev/null 2>&1; do sleep 0.1; done\n\
                  if [[ ! -e /var/lib/containerd/imported ]]; then\n\
                  \tctr -n k8s.io images import /opt/images.tar && touch /var/lib/containerd/imported\n\
                  fi\n";
    format!("{images}{}", becoming("kubelet", &flags))
}

/// Disks and memory belong to the outer machine, so their use must not evict pods here. Eviction stays on, because a
/// test of Services needs it.
fn kubelet_config() -> String {
    format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /
authentication:
  anonymous: {{enabled: false}}
  webhook: {{enabled: true}}
  x509: {{clientCAFile: /etc/kubernetes/ca.pem}}
authorization: {{mode: Webhook}}
tlsCertFile: /etc/kubernetes/kubelet-server.pem
tlsPrivateKeyFile: /etc/kubernetes/kubelet-server.key
clusterDNS: [{DNS_SERVICE}]
clusterDomain: cluster.local
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
oomScoreAdj: 0
imageGCHighThresholdPercent: 100
evictionHard:
  nodefs.available: 0%
  nodefs.inodesFree: 0%
  imagefs.available: 0%
  imagefs.inodesFree: 0%
  memory.available: 100Mi
syncFrequency: 10s
fileCheckFrequency: 5s
nodeStatusUpdateFrequency: 5s
serializeImagePulls: false
resolvConf: /etc/resolv.conf
"
    )
}

/// The size of conntrack's table belongs to the kernel's first network namespace.
fn kube_proxy(node: MachineName, topology: &Topology, mode: &str) -> String {
    // Pods of a VPC have addresses of the nodes' network.
    let pods = if topology.cni == Cni::Vpc { "\"\"".to_owned() } else { topology.of_family(&PODS) };
    format!(
        "apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: {mode}
hostnameOverride: {node}
clientConnection: {{kubeconfig: /etc/kubernetes/kube-proxy.conf}}
clusterCIDR: {pods}
conntrack: {{maxPerCore: 0, min: 0}}
oomScoreAdj: 0
"
    )
}

/// The Node objects, created before kubelet would, because the pod ranges are set here.
pub(crate) fn objects(topology: &Topology) -> String {
    let object = |node: MachineName| {
        let ranges = if topology.cni == Cni::Vpc { String::new() } else { pod_ranges(node, topology) };
        format!(
            "apiVersion: v1\nkind: Node\nmetadata: {{name: {node}, labels: {{kubernetes.io/hostname: {node}}}}}\n\
             spec: {{{ranges}}}\n---\n"
        )
    };
    topology.node_names().map(object).collect()
}

fn pod_ranges(node: MachineName, topology: &Topology) -> String {
    let ranges = each_family(topology, node.pods());
    let (first, all) = (ranges.first().cloned().unwrap_or_default(), ranges.join("\", \""));
    format!("podCIDR: \"{first}\", podCIDRs: [\"{all}\"]")
}

/// The pod network that objects of the cluster install.
pub(crate) fn network_objects(topology: &Topology) -> String {
    match topology.cni {
        Cni::KubeRouter => kube_router(topology),
        Cni::Calico => calico(topology),
        Cni::Vpc => include_str!("../manifests/vpc-cni.yaml").to_owned(),
        cni => cni.flannel_backend().map(|backend| flannel(topology, backend)).unwrap_or_default(),
    }
}

/// kube-router for pod networks and policies.
fn kube_router(topology: &Topology) -> String {
    include_str!("../manifests/kube-router.yaml")
        .replace("=DUAL\n", &format!("={}\n", topology.family == Family::Dual))
        .replace("=SERVICES\n", &format!("={}\n", topology.of_family(&SERVICES)))
}

/// Calico, with pools for each node.
fn calico(topology: &Topology) -> String {
    let dual = topology.family == Family::Dual;
    let manifest = include_str!("../manifests/calico.yaml")
        .replace("ASSIGN6", &dual.to_string())
        .replace("\"IP6\"", if dual { "autodetect" } else { "none" })
        .replace("\"DUAL\"", &format!("\"{dual}\""));
    let pools = topology.node_names().flat_map(|node| {
        let families = each_family(topology, ["v4", "v6"]);
        families.into_iter().zip(node.pods()).map(move |(family, range)| pool(node, family, &range))
    });
    [manifest].into_iter().chain(pools).collect::<Vec<_>>().join("\n---\n")
}

fn pool(node: MachineName, family: &str, range: &str) -> String {
    let block = if family == "v4" { 26 } else { 122 };
    format!(
        "apiVersion: crd.projectcalico.org/v1\nkind: IPPool\nmetadata: {{name: {node}-{family}}}\n\
         spec: {{cidr: \"{range}\", blockSize: {block}, vxlanMode: Always, ipipMode: Never, natOutgoing: true, \
         nodeSelector: \"kubernetes.io/hostname == '{node}'\"}}"
    )
}

/// Each of Flannel's backends here has one of its kinds of rules.
fn flannel(topology: &Topology, backend: &str) -> String {
    let (dual, nftables) = (topology.family == Family::Dual, topology.cni == Cni::FlannelHostGateway);
    include_str!("../manifests/flannel.yaml")
        .replace("\"BACKEND\"", &format!("\"{backend}\""))
        .replace("DUAL,", &format!("{dual},"))
        .replace("NFTABLES,", &format!("{nftables},"))
}

/// Cluster DNS. Without a proxy, it gets the apiserver's address.
pub(crate) fn cluster_dns(topology: &Topology) -> String {
    let manifest = include_str!("../manifests/coredns.yaml");
    if topology.proxy != Proxy::Nobody {
        return manifest.to_owned();
    }
    let [server, _] = MachineName::ControlPlane.addresses();
    let image = "        image: holdfast.test/coredns:1\n";
    let direct = format!(
        "{image}        env:\n        - {{name: KUBERNETES_SERVICE_HOST, value: {server}}}\n\
         {:8}- {{name: KUBERNETES_SERVICE_PORT, value: \"{APISERVER_PORT}\"}}\n",
        ""
    );
    manifest.replace(image, &direct)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_network_has_the_ranges_of_its_node_and_family() {
        let topology = Topology { family: Family::Ipv4, cni: Cni::PointToPoint, ..Topology::default() };
        let text = pod_network(MachineName::Node(2), &topology).unwrap();
        let network: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(network["plugins"][0]["ipam"]["ranges"].to_string(), r#"[[{"subnet":"10.244.2.0/24"}]]"#);
        assert_eq!(network["plugins"][0]["type"], "ptp");
        let dual = pod_network(MachineName::Node(1), &Topology::default()).unwrap();
        assert!(dual.contains("fd00:10:244:1::/64") && dual.contains("cni0"), "{dual}");
    }

    #[test]
    fn cluster_dns_dials_the_apiserver_directly_only_without_a_proxy() {
        assert!(!cluster_dns(&Topology::default()).contains("KUBERNETES_SERVICE_HOST"));
        let nobody = Topology { proxy: Proxy::Nobody, ..Topology::default() };
        assert!(
            cluster_dns(&nobody).contains("        - {name: KUBERNETES_SERVICE_PORT, value: \"6443\"}\n")
        );
    }

    #[test]
    fn flannel_has_the_chosen_backend_rules_and_families() {
        assert_eq!(network_objects(&Topology::default()), "");
        let topology = Topology { cni: Cni::FlannelHostGateway, family: Family::Ipv4, ..Topology::default() };
        let text = network_objects(&topology);
        assert!(text.contains(r#""Type": "host-gw""#) && text.contains(r#""EnableIPv6": false"#), "{text}");
        assert!(text.contains(r#""EnableNFTables": true,"#), "{text}");
        assert_eq!(pod_network(MachineName::Node(1), &topology), None);
    }

    #[test]
    fn kube_router_has_the_families_and_ranges_of_the_cluster() {
        let topology = Topology { cni: Cni::KubeRouter, ..Topology::default() };
        let text = network_objects(&topology);
        assert!(text.contains("--enable-ipv6=true\n"), "{text}");
        assert!(text.contains("--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112\n"), "{text}");
        assert_eq!(pod_network(MachineName::Node(1), &topology), None);
    }

    #[test]
    fn calico_has_the_families_of_the_cluster_and_pools_for_each_node() {
        let topology = Topology { cni: Cni::Calico, ..Topology::default() };
        let text = network_objects(&topology);
        assert!(
            text.contains(r#""assign_ipv6": "true""#) && text.contains("name: IP6, value: autodetect}"),
            "{text}"
        );
        assert!(text.contains("{name: n2-v6}\nspec: {cidr: \"fd00:10:244:2::/64\""), "{text}");
        let four = network_objects(&Topology { family: Family::Ipv4, ..topology });
        assert!(four.contains("FELIX_IPV6SUPPORT, value: \"false\"") && !four.contains("n1-v6"), "{four}");
    }

    #[test]
    fn node_objects_carry_their_ranges() {
        let text = objects(&Topology { nodes: 1, ..Topology::default() });
        assert!(text.contains(r#"podCIDRs: ["10.244.1.0/24", "fd00:10:244:1::/64"]"#), "{text}");
        let text = objects(&Topology { cni: Cni::Vpc, ..Topology::default() });
        assert!(!text.contains("podCIDR") && text.contains("name: n2"), "{text}");
    }
}
