//! servicelb of k3s: the pods that it makes for each Service of type LoadBalancer, and the status that it writes.
//!
//! Invariant: the tests write what servicelb's controller would, because that controller is a part of `k3s`.

use std::collections::BTreeMap;

use holdfast_conformance::Cluster;

const DAEMON_SET: &str = include_str!("svclb.yaml");

/// The program of its pods, and its path on nodes.
pub(crate) const RULES: (&str, &str) = ("/opt/servicelb/klipper.sh", include_str!("klipper.sh"));

/// A Service: its name, its port, and its NodePort.
pub(crate) type Service = (&'static str, u16, u16);

pub(crate) const SERVICES: [Service; 3] =
    [("one", 8_001, 30_701), ("two", 8_002, 30_702), ("local", 8_003, 30_703)];

/// The nodes' own addresses, which servicelb writes if no node has an external one.
pub(crate) const NODES: [&str; 4] = ["172.30.0.11", "172.30.0.12", "fd30::11", "fd30::12"];

/// For a Service with the policy Local, servicelb writes the addresses of the nodes that have a backend.
const NODES_OF_LOCAL: [&str; 2] = ["172.30.0.11", "fd30::11"];

/// Addresses that a NAT outside has, as with `node-external-ip`.
pub(crate) const NAT: [&str; 2] = ["203.0.113.7", "2001:db8::7"];

/// Prints how many packets the rules of a pod have sent on. Rules see the first packet of a connection.
const COUNT: &str = "for tables in iptables ip6tables; do $tables -t nat -nvxL PREROUTING; done | \
     awk '/DNAT/ {all += $1} END {print all + 0}'";

/// The addresses that are in the status of Services.
#[derive(Clone, Copy)]
pub(crate) enum Status {
    Nodes,
    Nat,
}

/// Starts the pods of servicelb, and waits for them.
pub(crate) fn start(cluster: &Cluster) {
    let manifests: Vec<String> = SERVICES.iter().map(|service| daemon_set(cluster, service)).collect();
    cluster.apply(&manifests.join("---\n")).unwrap();
    for (name, _, _) in SERVICES {
        let daemon_set = format!("daemonset/svclb-{name}");
        cluster.kubectl(&["-n", "kube-system", "rollout", "status", &daemon_set, "--timeout=180s"]).unwrap();
    }
}

/// With the policy Local, the rules lead to the NodePort of their own node, else to the ClusterIPs.
fn daemon_set(cluster: &Cluster, (name, port, node_port): &Service) -> String {
    let path = "jsonpath={.spec.clusterIPs[0]},{.spec.clusterIPs[1]}";
    let cluster_ips = cluster.kubectl(&["get", "service", name, "-o", path]).unwrap();
    let (destination, to) = if *name == "local" {
        ("valueFrom: {fieldRef: {fieldPath: status.hostIPs}}".to_owned(), node_port)
    } else {
        (format!("value: \"{cluster_ips}\""), port)
    };
    let text = DAEMON_SET.replace("SERVICE", name).replace("DESTINATION", &destination);
    text.replace("\"DEST_PORT\"", &format!("\"{to}\""))
        .replace(" PORT", &format!(" {port}"))
        .replace("\"PORT\"", &format!("\"{port}\""))
}

/// Writes the status of each Service.
pub(crate) fn write_status(cluster: &Cluster, status: Status) {
    for (name, _, _) in SERVICES {
        let addresses = match status {
            Status::Nat => NAT.as_slice(),
            Status::Nodes if name == "local" => NODES_OF_LOCAL.as_slice(),
            Status::Nodes => NODES.as_slice(),
        };
        let ingress: Vec<String> =
            addresses.iter().map(|address| format!(r#"{{"ip":"{address}"}}"#)).collect();
        let patch = format!(r#"{{"status":{{"loadBalancer":{{"ingress":[{}]}}}}}}"#, ingress.join(","));
        let order = ["patch", "service", name, "--subresource=status", "--type=merge", "-p", &patch];
        cluster.kubectl(&order).unwrap();
    }
}

/// Ends the pods of servicelb.
pub(crate) fn end(cluster: &Cluster) {
    for (name, _, _) in SERVICES {
        let daemon_set = format!("daemonset/svclb-{name}");
        cluster.kubectl(&["-n", "kube-system", "delete", &daemon_set]).unwrap();
    }
}

/// The names of the pods in tables, by their addresses.
pub(crate) fn names(cluster: &Cluster) -> Vec<(String, String)> {
    let each = "{.metadata.labels.app}-{.spec.nodeName} {.status.podIPs[0].ip} {.status.podIPs[1].ip}";
    let listed = list_pods(cluster, each);
    let words = listed.lines().flat_map(|line| {
        let (name, addresses) = line.split_once(' ').unwrap();
        addresses.split(' ').map(|address| (address.to_owned(), name.to_owned())).collect::<Vec<_>>()
    });
    words.collect()
}

/// How many connections each pod has sent on, by the names in tables.
pub(crate) fn clients(cluster: &Cluster) -> BTreeMap<String, u64> {
    let each = "{.metadata.name} {.metadata.labels.app}-{.spec.nodeName}";
    let pods = list_pods(cluster, each);
    let counts = pods.lines().map(|line| {
        let (pod, name) = line.split_once(' ').unwrap();
        let inside = ["-n", "kube-system", "exec", pod, "-c", "lb-tcp", "--", "sh", "-c", COUNT];
        (name.to_owned(), cluster.kubectl(&inside).unwrap().trim().parse().unwrap())
    });
    counts.collect()
}

/// A line for each pod of servicelb.
fn list_pods(cluster: &Cluster, each: &str) -> String {
    let path = format!("jsonpath={{range .items[*]}}{each}{{\"\\n\"}}{{end}}");
    let selector = "svccontroller.k3s.cattle.io/svcname";
    cluster.kubectl(&["-n", "kube-system", "get", "pods", "-l", selector, "-o", &path]).unwrap()
}
