//! What Istio's proxies in pods see as the destination that the pod dialled, for each setting of whose sockets are
//! served. Istio's own code makes the rules in the pod's network.
//!
//! Invariant: a row holds for both kinds of proxies, Istio's sidecar and ztunnel, unless the row says otherwise.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_fixtures::clock::try_wait_for;
use holdfast_tests::bed::ask::{Asker, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::sidecar::Known;
use holdfast_tests::bed::{Bed, Location, Server, succeed};

use crate::programs;

/// The daemon finds pods within a second; a busy machine takes longer.
const SERVED: Duration = Duration::from_secs(30);

const POD: Location<'static> = Location::pod("pod-a");

/// Two services, one with a backend in another pod, one of the meshed pod itself; and the cluster's DNS.
const SERVICES: &str = r#"
[[service]]
name = "web"
frontends = ["10.96.0.20:80", "[fd00:10:96::20]:80"]
backends = ["10.244.1.11:8080", "[fd00:244:1::11]:8080"]

[[service]]
name = "meshed"
frontends = ["10.96.0.30:80"]
backends = ["10.244.1.10:8080"]

[[service]]
name = "dns"
protocol = "UDP"
frontends = ["10.96.0.10:53"]
backends = ["10.244.1.11:53"]
"#;

/// The rules and the proxy of one mesh.
struct Mesh {
    known: Known,
    words: &'static [&'static str],
}

/// The arguments that Istio's injector gives to its init container, with DNS by the proxy.
const SIDECAR: Mesh = Mesh {
    known: Known::ByUser,
    words: &[
        "sidecar",
        "-p",
        "15001",
        "-z",
        "15006",
        "-u",
        "1337",
        "-m",
        "REDIRECT",
        "-i",
        "*",
        "-x",
        "",
        "-b",
        "*",
        "-d",
        "15090,15021,15020",
        "--dual-stack",
        "--redirect-dns",
    ],
};

const AMBIENT: Mesh = Mesh { known: Known::ByMark, words: &["ambient"] };

/// One setting of the daemon, and who answers what the pod asks. The proxy adds what it was told after `@`.
struct Case {
    datapath: &'static str,
    more: &'static str,
    /// Whether the pod is in an exempt cgroup.
    is_exempt: bool,
    /// To web's address of each family by TCP.
    web: [&'static str; 2],
    /// To the cluster's DNS by UDP: `proxy` where the rules take the question.
    dns: [&'static str; 2],
}

/// The proxy sees the service's address.
const SERVICE: [&str; 2] = ["pod-b@10.96.0.20:80", "pod-b@[fd00:10:96::20]:80"];

/// The proxy sees the backend's address.
const BACKEND: [&str; 2] = ["pod-b@10.244.1.11:8080", "pod-b@[fd00:244:1::11]:8080"];

/// The proxy sees the service's address and cannot reach it.
const UNSERVED: [&str; 2] = ["nobody@10.96.0.20:80", "nobody@[fd00:10:96::20]:80"];

const SERVED_BY_SOCKETS: Case = Case {
    datapath: "sockets = \"all\"\n",
    more: "",
    is_exempt: false,
    web: BACKEND,
    // A sidecar's rule has the address of the resolver, which the question no longer has. ztunnel's has the port.
    dns: ["pod-b", "proxy"],
};

const SERVED_BY_PACKETS: Case = Case {
    datapath: "sockets = \"host\"\n",
    more: "[packets]\npod_devices = \"auto\"\n",
    is_exempt: false,
    web: SERVICE,
    dns: ["proxy", "proxy"],
};

const NOT_SERVED: Case = Case {
    datapath: "sockets = \"host\"\n",
    more: "",
    is_exempt: false,
    web: UNSERVED,
    dns: ["proxy", "proxy"],
};

const EXEMPT: Case = Case {
    datapath: "sockets = \"all\"\n",
    more: "[packets]\npod_devices = \"auto\"\n",
    is_exempt: true,
    web: SERVICE,
    dns: ["proxy", "proxy"],
};

/// A meshed pod, a server in another pod, and clients in the pod and on the node.
struct Stage<'a> {
    daemon: Daemon<'a>,
    client: Asker,
    host: Asker,
    _servers: Vec<Server>,
}

impl<'a> Stage<'a> {
    #[track_caller]
    fn start(bed: &'a Bed, mesh: &Mesh, case: &Case) -> Self {
        let cgroup = bed.child_cgroup("meshed").unwrap();
        let mut daemon = Daemon::new(bed, &format!("{}{SERVICES}", case.more)).unwrap();
        configure(&daemon, case, &cgroup);
        resolve_by(bed, daemon.folder(), "10.96.0.10");
        apply_rules(bed, mesh);
        daemon.start().unwrap();
        let serve = |place, name, addresses: &[&str]| {
            let addresses: Vec<_> = addresses.iter().map(|it| it.parse().unwrap()).collect();
            bed.serve_seen_source(place, name, &addresses).unwrap()
        };
        let other = ["10.244.1.11:8080", "[fd00:244:1::11]:8080", "10.244.1.11:53"];
        let servers = vec![
            serve(Location::pod("pod-b"), "pod-b", &other),
            serve(POD, "app", &["10.244.1.10:8080"]),
            bed.sidecar(POD, &cgroup, mesh.known).unwrap(),
        ];
        let client = bed.asker_in(POD, &cgroup).unwrap();
        let host = bed.asker(Location::NODE).unwrap();
        Self { daemon, client, host, _servers: servers }
    }

    /// Asks until the pod's devices are served, and fails with what was answered instead.
    #[track_caller]
    fn check(asker: &mut Asker, daemon: &Daemon<'_>, transport: Transport, to: &str, expected: &str) {
        let mut last = None;
        let answered = try_wait_for(|| {
            let outcome = last.insert(asker.ask(Question::new(transport, to.parse().unwrap())).unwrap());
            matches!(outcome, Outcome::Answered { by, .. } if by == expected).then_some(())
        });
        assert!(answered.is_some(), "{to} is answered by {last:?}, not {expected}\n{}", daemon.logged());
    }
}

/// The daemon's configuration begins with the table of the datapath.
fn configure(daemon: &Daemon<'_>, case: &Case, cgroup: &Path) {
    let mut keys = format!("[datapath]\n{}", case.datapath);
    if case.is_exempt {
        keys.push_str(&format!("exempt_cgroups = [{:?}]\n", below_root(cgroup)));
    }
    let text = fs::read_to_string(daemon.config()).unwrap();
    fs::write(daemon.config(), text.replacen("[datapath]\n", &keys, 1)).unwrap();
}

/// The path of a cgroup from the root of its hierarchy.
fn below_root(cgroup: &Path) -> PathBuf {
    let root = cgroup.ancestors().filter(|it| it.join("cgroup.procs").exists()).last().unwrap();
    Path::new("/").join(cgroup.strip_prefix(root).unwrap())
}

/// Istio reads the pod's resolver from its file.
fn resolve_by(bed: &Bed, folder: &Path, address: &str) {
    let file = folder.join("resolv.conf");
    fs::write(&file, format!("nameserver {address}\n")).unwrap();
    let mut mount = bed.command(Location::OUTSIDE, "mount").unwrap();
    mount.arg("--bind").arg(&file).arg("/etc/resolv.conf");
    succeed(mount, SERVED).unwrap();
}

#[track_caller]
fn apply_rules(bed: &Bed, mesh: &Mesh) {
    let mut rules = bed.command(POD, programs::path("istio-rules")).unwrap();
    rules.args(mesh.words);
    succeed(rules, SERVED).unwrap();
}

#[track_caller]
fn check(mesh: &Mesh, case: &Case) {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut stage = Stage::start(&bed, mesh, case);
    let dns = case.dns[usize::from(mesh.known == Known::ByMark)];
    for (transport, to, expected) in [
        (Transport::Tcp, "10.96.0.20:80", case.web[0]),
        (Transport::Tcp, "[fd00:10:96::20]:80", case.web[1]),
        // Whatever is set, a backend's own address is what the pod dialled.
        (Transport::Tcp, "10.244.1.11:8080", BACKEND[0]),
        (Transport::Udp, "10.96.0.10:53", dns),
    ] {
        Stage::check(&mut stage.client, &stage.daemon, transport, to, expected);
    }
    // The way into the pod is the same for all: the proxy sees its own pod.
    Stage::check(&mut stage.host, &stage.daemon, Transport::Tcp, "10.96.0.30:80", "app@10.244.1.10:8080");
    stage.daemon.stop().unwrap();
}

macro_rules! meshes {
    ($($case:ident, $sidecar:ident, $ambient:ident;)*) => {
        $(
            #[test]
            fn $sidecar() {
                check(&SIDECAR, &$case);
            }

            #[test]
            fn $ambient() {
                check(&AMBIENT, &$case);
            }
        )*
    };
}

meshes! {
    SERVED_BY_SOCKETS, a_sidecar_sees_the_backend_with_sockets_all, ztunnel_sees_the_backend_with_sockets_all;
    SERVED_BY_PACKETS, a_sidecar_sees_the_service_with_pod_devices, ztunnel_sees_the_service_with_pod_devices;
    NOT_SERVED, a_sidecar_reaches_nobody_with_sockets_host_alone, ztunnel_reaches_nobody_with_sockets_host_alone;
    EXEMPT, an_exempt_sidecar_sees_the_service, an_exempt_ztunnel_sees_the_service;
}
