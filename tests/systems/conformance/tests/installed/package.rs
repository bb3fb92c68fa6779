//! The package on nodes with systemd as their first process: from its installation to its purge.
//!
//! Invariant: the unit is the package's own. Each node has one of the page's two kinds of credentials.

use holdfast_conformance::{Cluster, Init};

use super::clients::Clients;
use super::page::blocks;
use super::stage::{
    APISERVER, CLONE, FIRST, NEXT, NODES, SOMEBODYS, eventually, next_version, package_version, reaches,
    start, typed, wait_for_service,
};

const CONFIG: &str = "/etc/holdfast/holdfast.toml";

/// The table in which the page's keys go.
const TABLE: &str = "\n[apiserver]\n";

/// Installs the CA file of the page's configuration, as in kubeadm.
const CA: &str = "install -D -m 644 /etc/kubernetes/ca.pem /etc/kubernetes/pki/ca.crt";

/// The page's blocks for a node of a cluster with packages.
struct Page {
    /// The block for this distribution.
    install: String,
    rights: [String; 3],
    token: String,
    /// A configuration with kubelet's credential, and one with a token.
    configs: [String; 2],
    start: String,
    back: String,
    purge: String,
}

impl Page {
    fn read() -> Self {
        let [_make, install, _compare] = blocks("From packages");
        let [rights, nodes, token, kubelet, by_token, start, diagnose, back, purge, _kubeadm] =
            blocks("On a node of a cluster");
        let with_apt = |block: &str| block.lines().find(|line| line.starts_with("apt ")).unwrap().to_owned();
        let own = format!("[\"{SOMEBODYS}\", \"https://10.0.0.11:6443\"]");
        let filled = |block: String| format!("\n{}", block.replace(&own, &format!("[\"{APISERVER}\"]")));
        Self {
            install: with_apt(&install),
            rights: [rights, nodes, diagnose],
            token,
            configs: [kubelet, by_token].map(filled),
            start,
            back: with_apt(&back),
            purge,
        }
    }
}

/// Runs a line in the folder of that version's package.
#[track_caller]
fn typed_in(cluster: &Cluster, node: &str, folder: &str, line: &str) -> String {
    typed(cluster, node, &format!("cd {folder} && DEBIAN_FRONTEND=noninteractive {line}"))
}

#[track_caller]
fn installed(page: &Page) -> Cluster {
    let cluster = start(Init::Systemd);
    page.rights.iter().for_each(|line| drop(typed_in(&cluster, "cp", CLONE, line)));
    for (node, config) in NODES.into_iter().zip(&page.configs) {
        typed_in(&cluster, node, FIRST, &page.install);
        let unit =
            typed(&cluster, node, "systemctl is-enabled holdfast; systemctl is-active holdfast || true");
        assert_eq!(unit, "enabled\ninactive\n", "{node}");
        typed(&cluster, node, CA);
        cluster.on(node).unwrap().write("/etc/holdfast/token", typed(&cluster, "cp", &page.token)).unwrap();
        typed(&cluster, node, "chmod 600 /etc/holdfast/token");
        let shipped = typed(&cluster, node, &format!("cat {CONFIG}"));
        assert!(shipped.contains(TABLE), "{shipped}");
        cluster.on(node).unwrap().write(CONFIG, shipped.replacen(TABLE, config, 1)).unwrap();
        let status = typed(&cluster, node, &page.start);
        assert!(status.contains("ready      yes"), "{node}: {status}");
    }
    wait_for_service(&cluster);
    cluster
}

/// Replaces the running version.
#[track_caller]
fn replace(cluster: &Cluster, node: &str, (folder, version): (&str, &str), line: &str) {
    let before = main_pid(cluster, node);
    typed_in(cluster, node, folder, line);
    let installed = typed(cluster, node, "dpkg-query --show --showformat '${Version}' holdfast");
    assert_eq!(installed, package_version(version));
    assert_ne!(main_pid(cluster, node), before, "{node}: the service runs on as it was");
    let status = typed(cluster, node, "holdfast status");
    assert!(status.contains("ready      yes"), "{node}: {status}");
}

fn main_pid(cluster: &Cluster, node: &str) -> String {
    typed(cluster, node, "systemctl show -P MainPID holdfast")
}

#[test]
fn no_connect_fails_during_package_upgrade_downgrade_kill_and_removal() {
    let page = Page::read();
    let cluster = installed(&page);
    let (first, next) = (env!("CARGO_PKG_VERSION"), next_version());
    for (line, folder, version, what) in
        [(&page.install, NEXT, next.as_str(), "the upgrade"), (&page.back, FIRST, first, "the way back")]
    {
        let clients = Clients::start(&cluster);
        NODES.iter().for_each(|node| replace(&cluster, node, (folder, version), line));
        clients.end_without_a_failure(what);
    }

    let clients = Clients::start(&cluster);
    NODES.iter().for_each(|node| kill(&cluster, node));
    clients.end_without_a_failure("the end of both daemons");

    let clients = Clients::start(&cluster);
    for node in NODES {
        typed_in(&cluster, node, CLONE, "apt remove --yes holdfast");
        assert_eq!(typed(&cluster, node, "pgrep -x holdfast || true"), "", "{node}: stopped");
        assert_ne!(typed(&cluster, node, "ls /sys/fs/bpf/holdfast"), "", "{node}: and its programs stay");
    }
    clients.end_without_a_failure("the removal");

    let _clients = Clients::start(&cluster);
    NODES.iter().for_each(|node| purge(&cluster, node, &page.purge));
}

/// Kills the daemon, and waits until systemd has started it again.
#[track_caller]
fn kill(cluster: &Cluster, node: &str) {
    let running = || main_pid(cluster, node);
    let before = running();
    typed(cluster, node, "systemctl kill --signal KILL holdfast");
    eventually("started again", || running() != before && running().trim() != "0");
    eventually("ready", || typed(cluster, node, "holdfast status || true").contains("ready      yes"));
}

/// The kernel objects of holdfast, each as words for bpftool. Links keep the programs.
fn kept(cluster: &Cluster, node: &str) -> Vec<String> {
    let script = "find /sys/fs/bpf/holdfast -type f | while read -r pin; do
        bpftool link show pinned $pin 2>/dev/null |
            sed -n 's/^\\([0-9]*\\):.* prog \\([0-9]*\\).*/link show id \\1\\nprog show id \\2/p'
        bpftool map show pinned $pin 2>/dev/null | sed -n 's/^\\([0-9]*\\):.*/map show id \\1/p'
    done";
    typed(cluster, node, script).lines().map(ToOwned::to_owned).collect()
}

/// Purges the package while clients continue, and no longer reach the Service.
#[track_caller]
fn purge(cluster: &Cluster, node: &str, line: &str) {
    let kept = kept(cluster, node);
    for kind in ["link", "prog", "map"] {
        assert!(kept.iter().any(|one| one.starts_with(kind)), "{node} keeps no {kind}: {kept:?}");
    }
    typed_in(cluster, node, CLONE, line);
    let left = "ls -d /sys/fs/bpf/holdfast /run/holdfast /var/lib/holdfast /etc/holdfast/holdfast.toml \
                /usr/bin/holdfast 2>/dev/null; getent group holdfast; systemctl list-unit-files \
                | grep holdfast; true";
    assert_eq!(typed(cluster, node, left), "", "{node}");
    for one in &kept {
        eventually(&format!("{one} is gone"), || {
            typed(cluster, node, &format!("bpftool {one} 2>/dev/null || true")).is_empty()
        });
    }
    assert!(!reaches(cluster, node, "10.96.7.7"), "{node}");
}

/// Checks that the unit's sandbox is complete on a real node.
#[track_caller]
fn assert_sandbox(cluster: &Cluster, node: &str) {
    let status = typed(cluster, node, "cat /proc/$(pgrep -x holdfast)/status");
    // CAP_NET_ADMIN, CAP_PERFMON, CAP_BPF.
    for line in ["CapEff:\t000000c000001000", "CapBnd:\t000000c000001000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{line}: {status}");
    }
    let forbidden = ["touch /etc/it", "touch /usr/it", "touch /var/it"];
    for order in forbidden.into_iter().chain(["test -e ~root/.bashrc", "test -e /dev/kmsg"]) {
        let inside = format!("nsenter --target $(pgrep -x holdfast) --mount {order} || echo no");
        assert_eq!(typed(cluster, node, &inside), "no\n", "{node}: {order}");
        typed(cluster, node, order);
    }
    let datapath = typed(cluster, node, "holdfast datapath");
    assert!(datapath.contains("own cgroup exempt   yes"), "{node}: {datapath}");
}

#[test]
fn a_node_with_the_package_serves_after_a_reboot_without_an_apiserver() {
    let cluster = installed(&Page::read());
    NODES.iter().for_each(|node| assert_sandbox(&cluster, node));
    cluster.restart("kubelet").unwrap();
    cluster.restart("containerd").unwrap();
    eventually("nodes again", || cluster.wait_for_nodes().is_ok());
    wait_for_service(&cluster);

    let control_plane = cluster.on("cp").unwrap();
    control_plane.stop("apiserver").unwrap();
    cluster.stop_machine("n1").unwrap();
    cluster.boot_machine("n1").unwrap();
    let frontends = "holdfast frontends 2>/dev/null | grep -c default/web || true";
    eventually("served from memory", || {
        typed(&cluster, "n1", frontends).trim().parse::<u8>().is_ok_and(|rows| rows >= 2)
    });
    let ordered = typed(&cluster, "n1", "systemctl show -P After kubelet.service");
    assert!(ordered.contains("holdfast.service"), "kubelet finds it served: {ordered}");
    control_plane.start("apiserver").unwrap();
    eventually("nodes again", || cluster.wait_for_nodes().is_ok());
    wait_for_service(&cluster);
}
