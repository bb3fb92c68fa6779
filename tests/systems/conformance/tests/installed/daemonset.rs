//! The DaemonSet: from its first start to its end.

use holdfast_conformance::{Cluster, Init};

use super::clients::Clients;
use super::guide;
use super::page::blocks;
use super::stage::{
    FIRST, NEXT, NODES, eventually, follow, load, next_version, reaches, start, typed, wait_for_service,
};

const KUBE_SYSTEM: [&str; 2] = ["--namespace", "kube-system"];

/// Runs kubectl on objects of the system.
fn system(cluster: &Cluster, arguments: &[&str]) -> String {
    cluster.kubectl(&[&KUBE_SYSTEM, arguments].concat()).unwrap()
}

/// The desired and the actual image of each pod's daemon.
fn images(cluster: &Cluster) -> String {
    let both = "jsonpath={.items[*].spec.containers[*].image} {.items[*].status.containerStatuses[*].image}";
    system(cluster, &["get", "pods", "-l", "app.kubernetes.io/name=holdfast", "-o", both])
}

/// As the page says: the version in `daemonset.yaml`, and the commands that started it.
fn upgrade(cluster: &Cluster, apply: &str) {
    let (first, next) = (env!("CARGO_PKG_VERSION"), next_version());
    let file = "/srv/holdfast/contrib/kubernetes/daemonset.yaml";
    typed(cluster, "cp", &format!("sed -i 's#holdfast:{first}#holdfast:{next}#' {file}"));
    let first_two: Vec<&str> = apply.lines().take(2).collect();
    follow(cluster, "cp", &first_two.join("\n"));
}

/// Deletes the pods by force.
fn kill_pods(cluster: &Cluster) {
    let all = ["delete", "pods", "-l", "app.kubernetes.io/name=holdfast", "--grace-period=0", "--force"];
    system(cluster, &all);
    eventually("two other pods", || images(cluster).split_whitespace().count() >= 4);
    system(cluster, &["rollout", "status", "daemonset/holdfast", "--timeout=120s"]);
}

#[test]
fn no_connect_fails_during_daemonset_upgrade_rollback_and_kill() {
    let [_make, import, _endpoints, apply, back, _label, patch, logs, delete] = blocks("As a DaemonSet");
    let cluster = start(Init::Script);
    load(&cluster, &import, FIRST);
    let said = follow(&cluster, "cp", &apply);
    assert!(said.last().unwrap().contains("ready      yes"), "{said:#?}");
    wait_for_service(&cluster);

    load(&cluster, &import, NEXT);
    let clients = Clients::start(&cluster);
    upgrade(&cluster, &apply);
    assert!(images(&cluster).contains(&next_version()), "{}", images(&cluster));
    clients.end_without_a_failure("the upgrade");

    let clients = Clients::start(&cluster);
    follow(&cluster, "cp", &back);
    assert!(!images(&cluster).contains(&next_version()), "{}", images(&cluster));
    clients.end_without_a_failure("the way back");

    let clients = Clients::start(&cluster);
    kill_pods(&cluster);
    clients.end_without_a_failure("the end of all pods");

    take_out(&cluster, &patch, &logs, &delete);
}

/// Removes the DaemonSet: no client of the node reaches the Service any more.
fn take_out(cluster: &Cluster, patch: &str, logs: &str, delete: &str) {
    follow(cluster, "cp", patch);
    for node in NODES {
        eventually("all pins are gone", || typed(cluster, node, "ls /sys/fs/bpf/holdfast").is_empty());
        assert!(!reaches(cluster, node, "10.96.7.7"), "{node}");
    }
    follow(cluster, "cp", logs);
    follow(cluster, "cp", delete);
}

/// The pod has only the privileges that it needs, and they are in force.
#[test]
fn an_unprivileged_pod_serves() {
    let [_, import, _, apply, _, label, _, _, _] = blocks("As a DaemonSet");
    let cluster = start(Init::Script);
    load(&cluster, &import, FIRST);
    follow(&cluster, "cp", &apply);
    let status = typed(&cluster, "n1", "cat /proc/$(pgrep -x holdfast)/status");
    // CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF.
    for line in ["CapEff:\t000000c000001000", "CapBnd:\t000000c000001000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let datapath =
        typed(&cluster, "cp", "kubectl -n kube-system exec daemonset/holdfast -- holdfast datapath");
    assert!(datapath.contains("own cgroup exempt   yes") && datapath.contains("/host/cgroup"), "{datapath}");
    wait_for_service(&cluster);
    follow(&cluster, "cp", &label.replace("NODE", "n2"));
    eventually("no pod on n2", || images(&cluster).split_whitespace().count() == 2);
    assert!(reaches(&cluster, "n2", "10.96.7.7"), "what is in the kernel serves on");
    clean_one_node(&cluster);
}

/// The way back for n2 alone, as docs/migrate-from-kube-proxy.md says it. n1 goes on.
fn clean_one_node(cluster: &Cluster) {
    let [_package, pod] = guide::blocks("migrate-from-kube-proxy.md", "The way back");
    follow(cluster, "cp", &pod.replace("NODE", "n2"));
    assert_eq!(typed(cluster, "n2", "ls /sys/fs/bpf/holdfast"), "", "n2 is clean");
    assert!(!reaches(cluster, "n2", "10.96.7.7"), "nothing serves on n2");
    assert!(reaches(cluster, "n1", "10.96.7.7"), "n1 goes on");
}
