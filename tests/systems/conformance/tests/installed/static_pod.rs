//! The static pod: before any apiserver starts, and through upgrades.

use holdfast_conformance::{Cluster, Init};

use super::clients::Clients;
use super::page::blocks;
use super::stage::{
    FIRST, NEXT, NODES, eventually, follow, load, next_version, reaches, start, typed, wait_for_service,
};

/// As in kubeadm: static pods, and a kubeconfig with a file that kubelet renews.
const AS_KUBEADM: &str = "set -e
    grep -q staticPodPath /etc/kubernetes/kubelet.yaml || echo 'staticPodPath: /etc/kubernetes/manifests' \
        >>/etc/kubernetes/kubelet.yaml
    mkdir -p /etc/kubernetes/manifests /var/lib/kubelet/pki
    cd /etc/kubernetes
    cat kubelet.pem kubelet.key >/var/lib/kubelet/pki/kubelet-client-current.pem
    sed -i -e \"s#certificate-authority: [^,}]*#certificate-authority-data: $(base64 -w0 ca.pem)#\" \
        -e 's#/etc/kubernetes/kubelet.\\(pem\\|key\\)#/var/lib/kubelet/pki/kubelet-client-current.pem#g' kubelet.conf";

fn is_good(cluster: &Cluster, node: &str, path: &str) -> bool {
    typed(cluster, node, &format!("curl -s 127.0.0.1:9890/{path} || true")) == "ok\n"
}

/// The versions of all containers there: a pod has an init container and the daemon's.
fn version(cluster: &Cluster, node: &str) -> String {
    typed(cluster, node, "ctr -n k8s.io containers ls | grep -o 'holdfast.io/holdfast:[0-9a-z.-]*' | sort -u")
}

/// Puts the version into the file, as the page says.
fn put(cluster: &Cluster, node: &str, install: &str, to: &str) {
    let file = "contrib/kubernetes/static-pod.yaml";
    follow(cluster, node, &format!("sed -i 's#holdfast:[0-9a-z.-]*#holdfast:{to}#' {file}"));
    follow(cluster, node, install);
}

#[test]
fn a_static_pod_serves_before_any_apiserver_and_upgrades_without_failures() {
    let [config, install, rights] = blocks("As a static pod");
    let [_make, import, ..] = blocks::<9>("As a DaemonSet");
    let cluster = start(Init::Script);
    load(&cluster, &import, FIRST);
    follow(&cluster, "cp", &rights);
    for node in NODES {
        typed(&cluster, node, AS_KUBEADM);
        let config = config.replace("https://10.0.0.10:6443", "https://172.30.0.10:6443");
        cluster.on(node).unwrap().write("/etc/holdfast/holdfast.toml", config).unwrap();
    }

    let control_plane = cluster.on("cp").unwrap();
    control_plane.stop("apiserver").unwrap();
    NODES.iter().for_each(|node| drop(follow(&cluster, node, &install)));
    cluster.restart("kubelet").unwrap();
    for node in NODES {
        eventually("there without an apiserver", || is_good(&cluster, node, "livez"));
        assert!(!is_good(&cluster, node, "readyz"), "nobody has told it of a service yet");
    }
    control_plane.start("apiserver").unwrap();
    eventually("nodes again", || cluster.wait_for_nodes().is_ok());
    wait_for_service(&cluster);

    load(&cluster, &import, NEXT);
    for (to, what) in
        [(next_version(), "the upgrade"), (env!("CARGO_PKG_VERSION").to_owned(), "the way back")]
    {
        let clients = Clients::start(&cluster);
        for node in NODES {
            put(&cluster, node, &install, &to);
            eventually("the other version alone", || {
                let found = version(&cluster, node);
                found.trim().ends_with(&format!(":{to}")) && found.lines().count() == 1
            });
            eventually("ready", || is_good(&cluster, node, "readyz"));
        }
        clients.end_without_a_failure(what);
    }

    // A power cut: after it the node has its services from saved state.
    control_plane.stop("apiserver").unwrap();
    cluster.stop_machine("n1").unwrap();
    cluster.boot_machine("n1").unwrap();
    eventually("served from memory after a reboot", || {
        is_good(&cluster, "n1", "readyz") && frontends(&cluster) >= 2
    });
    control_plane.start("apiserver").unwrap();
    eventually("served", || reaches(&cluster, "n1", "10.96.7.7"));
}

/// How many frontends of the service the first node has.
fn frontends(cluster: &Cluster) -> usize {
    typed(cluster, "n1", "curl -s '127.0.0.1:9890/frontends?service=default/web' || true").lines().count()
}
