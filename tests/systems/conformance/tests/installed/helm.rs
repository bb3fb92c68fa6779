//! The Helm chart with the real Helm, from its installation to its end.
//!
//! Invariant: the commands are the page's. Only the reader's values are filled in, in `values.yaml`.

use std::path::Path;
use std::{env, fs};

use holdfast_conformance::{Cluster, Init};

use super::chart;
use super::clients::Clients;
use super::page::blocks;
use super::stage::{
    APISERVER, CLONE, FIRST, NEXT, NODES, SOMEBODYS, bring, cgroup_folder, eventually, follow, load,
    next_version, start, typed, wait_for_service,
};

/// The page's blocks.
struct Page {
    values: String,
    install: String,
    upgrade: String,
    back: String,
    uninstall: String,
}

impl Page {
    fn read() -> Self {
        let [values, install, upgrade, back, _cleanup, _logs, uninstall] = blocks("With Helm");
        Self { values, install, upgrade, back, uninstall }
    }

    /// Writes the reader's values, with this version and more keys of the configuration.
    fn write_values(&self, cluster: &Cluster, version: &str, config: &str) {
        let page = self.values.replace(SOMEBODYS, APISERVER);
        let own = format!("image: {{tag: {version}}}\nhost: {{cgroup: {}}}\n", cgroup_folder(cluster));
        cluster
            .on("cp")
            .unwrap()
            .write(&format!("{CLONE}/values.yaml"), format!("{page}{config}{own}"))
            .unwrap();
    }
}

/// Brings Helm and the chart to the machine with the administrator.
fn bring_helm(cluster: &Cluster) {
    let helm = env::var_os("HOLDFAST_HELM").expect("HOLDFAST_HELM, the folder that scripts/helm.sh fills");
    bring(cluster, "cp", &Path::new(&helm).join("helm"), "/usr/bin/helm");
    typed(cluster, "cp", "chmod 755 /usr/bin/helm");
    bring_folder(cluster, &chart::folder(), &format!("{CLONE}/contrib/helm/holdfast"));
}

fn bring_folder(cluster: &Cluster, from: &Path, to: &str) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = format!("{to}/{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() { bring_folder(cluster, &path, &to) } else { bring(cluster, "cp", &path, &to) }
    }
}

/// The images of all daemons.
fn images(cluster: &Cluster) -> String {
    let all = "jsonpath={.items[*].spec.containers[*].image} {.items[*].status.containerStatuses[*].image}";
    let label = "app.kubernetes.io/name=holdfast";
    cluster.kubectl(&["--namespace", "kube-system", "get", "pods", "-l", label, "-o", all]).unwrap()
}

/// Whether the value of the second version is in force.
fn has_next_values(cluster: &Cluster) -> bool {
    typed(cluster, "n1", "curl -s 127.0.0.1:9890/config").contains("flows = 100000\n")
}

/// The notes say what to check; their commands work.
fn follow_notes(cluster: &Cluster) {
    let notes = typed(cluster, "cp", "helm get notes holdfast --namespace kube-system");
    let commands: Vec<&str> = notes.lines().filter(|line| line.starts_with("  kubectl ")).collect();
    assert_eq!(commands.len(), 3, "{notes}");
    let said: Vec<_> = commands.iter().map(|command| typed(cluster, "cp", command)).collect();
    assert!(said[1].contains("ready      yes"), "{said:#?}");
}

/// Helm refuses the one address that only holdfast makes reachable.
fn refuse_the_cluster_ip(cluster: &Cluster, install: &str) {
    let line = install.lines().next().unwrap();
    let own = "--set 'config.apiserver.endpoints={https://10.96.0.1:443}'";
    let said = typed(cluster, "cp", &format!("cd {CLONE} && ! {line} {own} 2>&1"));
    assert!(said.contains("is the ClusterIP of default/kubernetes"), "{said}");
}

/// The apiserver knows every field that values can render; kinds of others' are left out.
fn every_field_is_known(cluster: &Cluster) {
    cluster.on("cp").unwrap().write(&format!("{CLONE}/everything.yaml"), chart::EVERYTHING).unwrap();
    let render =
        "helm template holdfast contrib/helm/holdfast --namespace kube-system --values everything.yaml";
    let check = "kubectl apply --dry-run=server --validate=strict --filename -";
    typed(cluster, "cp", &format!("cd {CLONE} && {render} --set prometheusRule.enabled=false | {check}"));
}

fn pins(cluster: &Cluster, node: &str) -> String {
    typed(cluster, node, "ls /sys/fs/bpf/holdfast")
}

#[test]
fn no_connect_fails_while_helm_installs_upgrades_rolls_back_and_uninstalls() {
    let [_make, import, _endpoints, apply, ..] = blocks::<9>("As a DaemonSet");
    let (page, first, next) = (Page::read(), env!("CARGO_PKG_VERSION"), next_version());
    let cluster = start(Init::Script);
    bring_helm(&cluster);
    load(&cluster, &import, FIRST);
    load(&cluster, &import, NEXT);

    page.write_values(&cluster, first, "");
    refuse_the_cluster_ip(&cluster, &page.install);
    every_field_is_known(&cluster);
    let said = follow(&cluster, "cp", &page.install);
    assert!(said.last().unwrap().contains("ready      yes"), "{said:#?}");
    follow_notes(&cluster);
    wait_for_service(&cluster);

    let clients = Clients::start(&cluster);
    page.write_values(&cluster, &next, "  packets: {flows: 100000}\n");
    follow(&cluster, "cp", &page.upgrade);
    assert!(images(&cluster).contains(&next) && !images(&cluster).contains(first), "{}", images(&cluster));
    assert!(has_next_values(&cluster));
    clients.end_without_a_failure("the upgrade");

    let clients = Clients::start(&cluster);
    follow(&cluster, "cp", &page.back);
    assert!(images(&cluster).contains(first) && !images(&cluster).contains(&next), "{}", images(&cluster));
    assert!(!has_next_values(&cluster));
    clients.end_without_a_failure("the way back");

    page.write_values(&cluster, first, "");
    let clients = Clients::start(&cluster);
    follow(&cluster, "cp", &page.uninstall);
    eventually("no pod", || images(&cluster).trim().is_empty());
    NODES.iter().for_each(|node| assert_ne!(pins(&cluster, node), "", "{node}: the kernel serves on"));
    follow(&cluster, "cp", &apply);
    follow(&cluster, "cp", &page.install.replacen("\n", " --take-ownership --server-side=false\n", 1));
    clients.end_without_a_failure("an end without cleanup, the manifests, and Helm in their place");
}
