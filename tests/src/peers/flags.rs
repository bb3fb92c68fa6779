//! The program and the flags of each server.
//!
//! Invariant: the setup is realistic where clients can tell the difference (TLS, certificates, authorization, service
//! accounts), and fast where they cannot (no fsync, no leader election).

use std::path::Path;

use super::server::Server;
use super::{
    ADVERTISED, APISERVER_PORT, Authority, ETCD, NODE, Part, PeersError, SERVICE_CIDRS, apiserver, audit,
};

/// The controllers that write slices, finish namespaces and their accounts, and enable further ranges.
const CONTROLLERS: &str = "endpointslice-controller,endpointslice-mirroring-controller,endpoints-controller,\
    namespace-controller,serviceaccount-controller,service-cidr-controller";

/// The controllers that mark nodes and their pods as lost.
const NODE_CONTROLLERS: &str = "node-lifecycle-controller,taint-eviction-controller,node-ipam-controller";

/// The controllers that create and replace pods, and delete the pods of deleted owners.
const WORKLOAD_CONTROLLERS: &str = "deployment-controller,replicaset-controller,statefulset-controller,\
    garbage-collector-controller,pod-garbage-collector-controller";

/// The controllers that create load balancers and delete nodes without a machine.
const CLOUD_CONTROLLERS: &str = "service-lb-controller,cloud-node-lifecycle-controller";

/// 0 leaves the kernel's conntrack settings unchanged.
const CONNTRACK: [&str; 4] = [
    "conntrack-max-per-core",
    "conntrack-min",
    "conntrack-tcp-timeout-established",
    "conntrack-tcp-timeout-close-wait",
];

/// A server of the cluster, not started yet.
pub(super) fn server(
    part: Part,
    folder: &Path,
    authority: &Authority,
    apiservers: usize,
    pods: Option<&str>,
) -> Result<Server, PeersError> {
    let (program, flags) = match part {
        Part::Etcd => ("etcd", etcd(folder)),
        Part::Apiserver(index) => ("kube-apiserver", kube_apiserver(index, folder, authority)?),
        Part::Controllers => ("kube-controller-manager", controllers(authority, apiservers, CONTROLLERS)?),
        Part::NodeControllers => ("kube-controller-manager", node_controllers(authority, apiservers)?),
        Part::WorkloadControllers => {
            ("kube-controller-manager", controllers(authority, apiservers, WORKLOAD_CONTROLLERS)?)
        }
        Part::CloudControllers => ("cloud-controller-manager", cloud_controllers(authority, apiservers)?),
        Part::Scheduler => ("kube-scheduler", scheduler(authority, apiservers)?),
        Part::Proxy => ("kube-proxy", kube_proxy(authority, apiservers, pods, "nftables")?),
        Part::IptablesProxy => ("kube-proxy", kube_proxy(authority, apiservers, pods, "iptables")?),
    };
    Ok(Server::new(part, program, arguments(flags), folder))
}

pub(super) fn arguments(flags: Flags) -> Vec<String> {
    flags.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

pub(super) type Flags = Vec<(&'static str, String)>;

fn etcd(folder: &Path) -> Flags {
    etcd_at(&format!("http://{ETCD}"), "http://127.0.0.1:2380", folder)
}

/// The flags of an etcd with one member.
pub(super) fn etcd_at(clients: &str, peers: &str, folder: &Path) -> Flags {
    vec![
        ("data-dir", folder.join("etcd").display().to_string()),
        ("listen-client-urls", clients.to_owned()),
        ("advertise-client-urls", clients.to_owned()),
        ("listen-peer-urls", peers.to_owned()),
        ("initial-advertise-peer-urls", peers.to_owned()),
        ("initial-cluster", format!("default={peers}")),
        // Tests cut no power, so etcd need not sync.
        ("unsafe-no-fsync", "true".to_owned()),
    ]
}

fn kube_apiserver(index: usize, folder: &Path, authority: &Authority) -> Result<Flags, PeersError> {
    let credential = authority.server(index)?;
    let tokens = authority.tokens();
    let (audit_policy, audit_log) = (audit::policy(folder)?, audit::log(folder, index));
    Ok(vec![
        ("etcd-servers", format!("http://{ETCD}")),
        ("bind-address", apiserver(index)?.ip().to_string()),
        ("secure-port", APISERVER_PORT.to_string()),
        ("advertise-address", ADVERTISED.to_string()),
        ("tls-cert-file", credential.certificate.display().to_string()),
        ("tls-private-key-file", credential.key.display().to_string()),
        ("client-ca-file", authority.file().display().to_string()),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("service-account-issuer", "https://kubernetes.default.svc".to_owned()),
        ("service-account-key-file", tokens.certificate.display().to_string()),
        ("service-account-signing-key-file", tokens.key.display().to_string()),
        ("service-cluster-ip-range", SERVICE_CIDRS.to_owned()),
        ("audit-policy-file", audit_policy.display().to_string()),
        ("audit-log-path", audit_log.display().to_string()),
        // A pod need not wait for an account that it never uses.
        ("disable-admission-plugins", "ServiceAccount".to_owned()),
    ])
}

/// Controllers use the last apiserver, so that tests can stop an earlier one.
fn controllers(authority: &Authority, apiservers: usize, names: &str) -> Result<Flags, PeersError> {
    let credential = authority.client("system:kube-controller-manager", &[])?;
    let kubeconfig = authority.kubeconfig(apiservers.saturating_sub(1), &credential)?;
    Ok(vec![
        ("kubeconfig", kubeconfig.display().to_string()),
        ("controllers", names.to_owned()),
        ("use-service-account-credentials", "true".to_owned()),
        ("leader-elect", "false".to_owned()),
        // No client dials this server.
        ("secure-port", "0".to_owned()),
        // The default rate limits slow tests down.
        ("kube-api-qps", "1000".to_owned()),
        ("kube-api-burst", "1000".to_owned()),
    ])
}

/// Detects a lost node within seconds, instead of a real cluster's minute. The pod range has addresses for one node
/// only, so that other nodes get none.
fn node_controllers(authority: &Authority, apiservers: usize) -> Result<Flags, PeersError> {
    let mut flags = controllers(authority, apiservers, NODE_CONTROLLERS)?;
    flags.push(("node-monitor-period", "1s".to_owned()));
    flags.push(("node-monitor-grace-period", "2s".to_owned()));
    flags.push(("allocate-node-cidrs", "true".to_owned()));
    flags.push(("cluster-cidr", "10.9.0.0/24".to_owned()));
    Ok(flags)
}

/// Holds the same lease as a cluster's own controller, which shows whether it is alive.
fn cloud_controllers(authority: &Authority, apiservers: usize) -> Result<Flags, PeersError> {
    let credential = authority.client("system:cloud-controller-manager", &["system:masters"])?;
    let kubeconfig = authority.kubeconfig(apiservers.saturating_sub(1), &credential)?;
    Ok(vec![
        ("kubeconfig", kubeconfig.display().to_string()),
        ("cloud-provider", "test".to_owned()),
        ("controllers", CLOUD_CONTROLLERS.to_owned()),
        ("use-service-account-credentials", "true".to_owned()),
        ("leader-elect", "true".to_owned()),
        ("secure-port", "0".to_owned()),
        ("webhook-secure-port", "0".to_owned()),
        ("node-monitor-period", "1s".to_owned()),
        ("kube-api-qps", "1000".to_owned()),
        ("kube-api-burst", "1000".to_owned()),
    ])
}

fn scheduler(authority: &Authority, apiservers: usize) -> Result<Flags, PeersError> {
    let credential = authority.client("system:kube-scheduler", &[])?;
    let kubeconfig = authority.kubeconfig(apiservers.saturating_sub(1), &credential)?;
    Ok(vec![
        ("kubeconfig", kubeconfig.display().to_string()),
        ("leader-elect", "false".to_owned()),
        ("secure-port", "0".to_owned()),
    ])
}

/// Changes no kernel setting, and uses the last apiserver as an administrator. Without pod ranges it cannot tell pods
/// from other clients.
fn kube_proxy(
    authority: &Authority,
    apiservers: usize,
    pods: Option<&str>,
    mode: &str,
) -> Result<Flags, PeersError> {
    let kubeconfig = authority.kubeconfig(apiservers.saturating_sub(1), authority.admin())?;
    let mut flags = vec![
        ("kubeconfig", kubeconfig.display().to_string()),
        ("proxy-mode", mode.to_owned()),
        // The default changes a kernel setting.
        ("iptables-localhost-nodeports", "false".to_owned()),
        ("hostname-override", NODE.to_owned()),
        ("healthz-bind-address", "127.0.0.1:10256".to_owned()),
    ];
    flags.extend(pods.map(|pods| ("cluster-cidr", pods.to_owned())));
    flags.extend(CONNTRACK.map(|name| (name, "0".to_owned())));
    Ok(flags)
}
