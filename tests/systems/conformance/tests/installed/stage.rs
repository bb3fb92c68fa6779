//! A cluster without a proxy, and what the page's reader has: a clone of the repository, and the images and packages
//! of two versions.

use std::path::PathBuf;
use std::{env, fs};

use holdfast_conformance::{Cluster, Init, Proxy, Topology};

use super::clients::OBJECTS;
use super::page::repository;
pub(crate) use super::typing::{eventually, typed};

pub(crate) const NODES: [&str; 2] = ["n1", "n2"];

/// The reader's clone of the repository.
pub(crate) const CLONE: &str = "/srv/holdfast";

/// The folder with each version's image, and its package from `make deb`.
pub(crate) const FIRST: &str = "/srv/first";
pub(crate) const NEXT: &str = "/srv/next";

pub(crate) const APISERVER: &str = "https://172.30.0.10:6443";

/// The placeholder in the page.
pub(crate) const SOMEBODYS: &str = "https://10.0.0.10:6443";

/// A path from `scripts/installed.sh`.
fn from_environment(name: &str) -> PathBuf {
    let value = env::var_os(name);
    value
        .map(PathBuf::from)
        .unwrap_or_else(|| panic!("{name} is not set: run scripts/installed.sh, which sets it"))
}

/// The number of the second version in `scripts/installed.sh`.
pub(crate) fn next_version() -> String {
    let (major, patch) = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap();
    format!("{major}.{}", patch.parse::<u32>().unwrap() + 1)
}

/// A version as packages write it: by this sign a candidate comes before its release.
pub(crate) fn package_version(version: &str) -> String {
    version.replacen('-', "~", 1)
}

/// Starts the cluster, and brings the reader's files.
pub(crate) fn start(init: Init) -> Cluster {
    let topology = Topology { nodes: 2, proxy: Proxy::Nobody, init, ..Topology::default() };
    let cluster = Cluster::start(&topology).unwrap();
    let agnhost = image(&cluster, "agnhost");
    cluster.apply(&OBJECTS.replace("AGNHOST", &agnhost)).unwrap();
    for machine in NODES.into_iter().chain(["cp", "out"]) {
        bring(&cluster, machine, &from_environment("HOLDFAST_DIALER"), "/opt/dialer/bed_child");
        typed(&cluster, machine, "chmod 755 /opt/dialer/bed_child");
    }
    for machine in NODES.into_iter().chain(["cp"]) {
        bring_clone(&cluster, machine);
    }
    for node in NODES {
        bring_packages(&cluster, node);
    }
    cluster
}

pub(crate) fn bring(cluster: &Cluster, machine: &str, from: &std::path::Path, to: &str) {
    cluster.on(machine).unwrap().write(to, fs::read(from).unwrap()).unwrap();
}

/// Brings the folder that the page uses, with the reader's values.
fn bring_clone(cluster: &Cluster, machine: &str) {
    let here = repository().join("contrib/kubernetes");
    for entry in fs::read_dir(here).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let own = format!("path: {},", cgroup_folder(cluster));
        let text = text.replace(SOMEBODYS, APISERVER).replace("path: /sys/fs/cgroup,", &own);
        let to = format!("{CLONE}/contrib/kubernetes/{}", path.file_name().unwrap().to_str().unwrap());
        cluster.on(machine).unwrap().write(&to, text).unwrap();
    }
}

/// Brings both versions from `make image` and `make deb`.
fn bring_packages(cluster: &Cluster, node: &str) {
    let packages = from_environment("HOLDFAST_PACKAGES");
    for (version, to) in [(env!("CARGO_PKG_VERSION").to_owned(), FIRST), (next_version(), NEXT)] {
        let image = format!("holdfast-{version}-amd64.oci.tar");
        bring(cluster, node, &packages.join(&image), &format!("{to}/{image}"));
        let package = format!("holdfast_{}_amd64.deb", package_version(&version));
        bring(cluster, node, &packages.join(&package), &format!("{to}/target/packages/{package}"));
    }
}

/// The mount of cgroup v2 on this machine's nodes.
pub(crate) fn cgroup_folder(cluster: &Cluster) -> &'static str {
    let hybrid = cluster.on("n1").unwrap().run(&["test", "-e", "/sys/fs/cgroup/unified"]).unwrap();
    if hybrid.status.success() { "/sys/fs/cgroup/unified" } else { "/sys/fs/cgroup" }
}

/// The full name of an image, of which nodes have several versions.
fn image(cluster: &Cluster, short: &str) -> String {
    let names = typed(cluster, "n1", "until ctr -n k8s.io images ls -q 2>/dev/null; do sleep 0.2; done");
    let is_it = |name: &&str| name.contains(&format!("/{short}:"));
    names.lines().rfind(is_it).unwrap_or_else(|| panic!("no {short}: {names}")).to_owned()
}

/// Runs the lines of a block of the page, in the clone.
#[track_caller]
pub(crate) fn follow(cluster: &Cluster, machine: &str, block: &str) -> Vec<String> {
    block.lines().map(|line| typed(cluster, machine, &format!("cd {CLONE} && {line}"))).collect()
}

/// Loads the image of that folder, as the page says.
pub(crate) fn load(cluster: &Cluster, line: &str, folder: &str) {
    for node in NODES {
        typed(cluster, node, &format!("cd {folder} && {}", line.trim()));
    }
}

/// Waits until the service and the clients are ready, and each client reaches it.
#[track_caller]
pub(crate) fn wait_for_service(cluster: &Cluster) {
    cluster.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).unwrap();
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s"]).unwrap();
    for (node, address) in NODES.into_iter().zip(["172.30.0.11", "172.30.0.12"]) {
        eventually("served", || {
            reaches(cluster, node, "10.96.7.7") && reaches(cluster, "out", &format!("{address}:30080"))
        });
    }
}

pub(crate) fn reaches(cluster: &Cluster, machine: &str, address: &str) -> bool {
    let ask = ["curl", "-s", "--max-time", "2", &format!("http://{address}/hostname")];
    cluster.on(machine).unwrap().run(&ask).is_ok_and(|said| said.status.success())
}
