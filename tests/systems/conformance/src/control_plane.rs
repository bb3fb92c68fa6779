//! The services of the machine `cp`: etcd, the apiserver, the controllers, the scheduler, and the load balancer
//! outside the nodes.
//!
//! Invariant: the servers run with Kubernetes' defaults, except for addresses, credentials, and settings that only
//! cost time (leader election and fsync are off).

use std::path::Path;

use crate::ClusterError;
use crate::credentials::Authority;
use crate::error::write;
use crate::topology::{APISERVER_PORT, BALANCED_CLIENT, MachineName, SECOND_APISERVER, SERVICES, Topology};

/// The folder of a machine's service scripts, below its root.
pub(crate) const SERVICES_FOLDER: &str = "etc/machine/services";

/// How long one of several apiservers keeps serving before it ends, as in such installations.
const LAME: &str = "shutdown-delay-duration=15s";

const ETCD: &str = "http://127.0.0.1:2379";

/// Writes the machine's files before it boots.
pub(crate) fn equip(root: &Path, topology: &Topology, authority: &Authority) -> Result<(), ClusterError> {
    authority.equip_control_plane(root)?;
    let [own, _] = MachineName::ControlPlane.addresses();
    let mut services = vec![
        ("etcd", etcd()),
        ("apiserver", apiserver(topology, &own)),
        ("controller-manager", controllers(topology)),
        ("scheduler", scheduler()),
    ];
    if topology.virtual_address {
        services.push(("apiserver-2", apiserver(topology, SECOND_APISERVER)));
    }
    if topology.balancer {
        services.push(("load-balancer", load_balancer()));
    }
    services.iter().try_for_each(|(name, script)| service(root, name, script))
}

/// Writes the script of a service, which the machine's first process runs and restarts.
pub(crate) fn service(root: &Path, name: &str, script: &str) -> Result<(), ClusterError> {
    write(&root.join(SERVICES_FOLDER).join(name), script)
}

/// A script that execs a program, with one flag a line.
pub(crate) fn becoming(program: &str, flags: &[String]) -> String {
    let flags: String = flags.iter().map(|flag| format!(" \\\n\t--{flag}")).collect();
    format!("exec {program}{flags}\n")
}

fn etcd() -> String {
    let flags = [
        "data-dir=/var/lib/etcd".to_owned(),
        "unsafe-no-fsync".to_owned(),
        format!("listen-client-urls={ETCD}"),
        format!("advertise-client-urls={ETCD}"),
        "listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "log-level=warn".to_owned(),
    ];
    becoming("etcd", &flags)
}

fn apiserver(topology: &Topology, own: &str) -> String {
    let file = |name: &str| format!("/etc/kubernetes/{name}");
    let mut flags = vec![
        format!("etcd-servers={ETCD}"),
        format!("secure-port={APISERVER_PORT}"),
        format!("advertise-address={own}"),
        format!("service-cluster-ip-range={}", topology.of_family(&SERVICES)),
        "allow-privileged=true".to_owned(),
        "authorization-mode=Node,RBAC".to_owned(),
        "enable-admission-plugins=NodeRestriction".to_owned(),
        "kubelet-preferred-address-types=InternalIP".to_owned(),
        "service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        "requestheader-allowed-names=front-proxy-client".to_owned(),
        "requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        "requestheader-group-headers=X-Remote-Group".to_owned(),
        "requestheader-username-headers=X-Remote-User".to_owned(),
    ];
    let files = [
        ("client-ca-file", "ca.pem"),
        ("requestheader-client-ca-file", "ca.pem"),
        ("tls-cert-file", "apiserver.pem"),
        ("tls-private-key-file", "apiserver.key"),
        ("kubelet-client-certificate", "kubelet-client.pem"),
        ("kubelet-client-key", "kubelet-client.key"),
        ("service-account-key-file", "tokens.pub"),
        ("service-account-signing-key-file", "tokens.key"),
        ("proxy-client-cert-file", "front-proxy.pem"),
        ("proxy-client-key-file", "front-proxy.key"),
    ];
    flags.extend(files.map(|(flag, name)| format!("{flag}={}", file(name))));
    if topology.virtual_address {
        flags.extend([format!("bind-address={own}"), LAME.to_owned()]);
    }
    becoming("kube-apiserver", &flags)
}

/// The flags of a client of the apiserver that serves the apiserver's users.
fn client(name: &str) -> Vec<String> {
    let config = format!("/etc/kubernetes/{name}.conf");
    let mut flags = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"]
        .map(|flag| format!("{flag}={config}"))
        .to_vec();
    flags.push("leader-elect=false".to_owned());
    flags
}

fn controllers(topology: &Topology) -> String {
    let name = "kube-controller-manager";
    let mut flags = client(name);
    flags.extend([
        "use-service-account-credentials".to_owned(),
        "root-ca-file=/etc/kubernetes/ca.pem".to_owned(),
        "service-account-private-key-file=/etc/kubernetes/tokens.key".to_owned(),
        "cluster-signing-cert-file=/etc/kubernetes/signer.pem".to_owned(),
        "cluster-signing-key-file=/etc/kubernetes/signer.key".to_owned(),
        format!("service-cluster-ip-range={}", topology.of_family(&SERVICES)),
    ]);
    becoming(name, &flags)
}

fn scheduler() -> String {
    becoming("kube-scheduler", &client("kube-scheduler"))
}

fn load_balancer() -> String {
    format!("export KUBECONFIG=/etc/kubernetes/admin.conf SOURCE={BALANCED_CLIENT}\nexec load-balancer\n")
}
