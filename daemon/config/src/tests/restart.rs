//! The keys that need a restart.

use crate::Config;

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let (changed, _) = Config::parse(text, "config.toml").unwrap_or_else(|refused| panic!("{refused}"));
    let runs = Config::default();
    let (in_force, waiting) = runs.merge_reload(changed.clone());
    assert_eq!(waiting, expected, "{text}");
    assert_eq!(changed.merge_reload(runs.clone()).1, expected, "{text}, the other way");
    assert_eq!(in_force.merge_reload(changed.clone()).1, expected, "{text}: a second reload names the same");
    assert!(runs.merge_reload(in_force).1.is_empty(), "{text}: what waits is not in force");
}

#[test]
fn only_keys_read_at_the_start_need_a_restart() {
    check("", &[]);
    check("[admin]\nlisten = \"127.0.0.1:9890\"", &[]);
    check("[admin]\nlisten = \"127.0.0.1:9891\"", &["admin.listen"]);
    check("[admin]\nsocket = \"/run/h.sock\"", &["admin.socket"]);
    check("[datapath]\nkind = \"memory\"\ncgroup = \"/c\"", &["datapath.kind", "datapath.cgroup"]);
    check("[datapath]\nbpffs = \"/b\"", &["datapath.bpffs"]);
    check(
        "[datapath]\nsockets = \"host\"\nudp_sockets = false\nexempt_cgroups = [\"/kata.slice\"]",
        &["datapath.sockets", "datapath.udp_sockets", "datapath.exempt_cgroups"],
    );
    check("[packets]\nmark = 0x20", &["packets.mark"]);
    check("[kube_proxy]\nhealth = \"[::]:10256\"", &["kube_proxy.health"]);
    check("[kube_proxy]\nmetrics = \"127.0.0.1:10249\"", &["kube_proxy.metrics"]);
    check("[packets]\nmark = \"0x40\"\nforward_mark = \"none\"", &[]);
    check("[packets]\nforward_mark = \"0x4000\"", &["packets.forward_mark"]);
    check("[packets]\ndsr = \"tcp\"\ndsr_from = [\"10.0.0.0/24\"]", &["packets.dsr", "packets.dsr_from"]);
    check(
        "[packets]\nenabled = false\nflows = 2048\nsnat_ports = [\"61000-62000\", \"63000\"]",
        &["packets.enabled", "packets.snat_ports"],
    );
    check("[packets]\ndevices = [\"eth0\"]\npod_devices = \"auto\"", &[]);
    check("[datapath.limits]\nservices = 1", &["datapath.limits.services"]);
    check(
        "[datapath.limits]\nfrontends = 1\nbackends = 1",
        &["datapath.limits.frontends", "datapath.limits.backends"],
    );
    check("[datapath.stale_sockets]\nprotocols = [\"UDP\"]", &[]);
    check(
        "[datapath.stale_sockets]\nprotocols = [\"UDP\", \"TCP\"]\nnamespaces = \"all\"",
        &["datapath.stale_sockets.protocols", "datapath.stale_sockets.namespaces"],
    );
    check("[state]\npath = \"/s\"", &["state.path"]);
    check("[manifests]\npath = \"/m\"", &["manifests.path"]);
    check("[services]\npath = \"/s\"", &["services.path"]);
    check("[node]\nname = \"n\"", &["node.name"]);
    check("[kubernetes]\nservice_proxy_name = \"p\"", &["kubernetes.service_proxy_name"]);
    check("[kubernetes]\nservice_imports = false", &["kubernetes.service_imports"]);
    check("[apiserver]\nkubeconfig = \"/k\"", &["apiserver.kubeconfig"]);
    check(
        "[apiserver]\nkubeconfig = \"/k\"\n[kubernetes]\nevents = true",
        &["apiserver.kubeconfig", "kubernetes.events"],
    );
    let written =
        "[apiserver]\nkubeconfig = \"/k\"\n[kubernetes]\nenabled = true\n[kube_proxy]\nhealth = \"[::]:1\"";
    check(written, &["kubernetes.enabled", "kube_proxy.health"]);
    check("[log]\nformat = \"json\"\nlevel = \"debug\"", &["log.format"]);
    check("[node]\nzone = \"z\"\nnode_port_addresses = [\"all\"]", &[]);
    check("[hold]\nlimit = \"1m\"\n[apiserver]\ndiscover = []", &[]);
    check("[announce]\ntable = 7", &[]);
    check("[[service]]\nname = \"a\"\nfrontends = [\"10.0.0.1:80\"]\nbackends = []", &[]);
}

/// The page for operators lists exactly these keys.
#[test]
fn the_guide_lists_the_keys_that_need_a_restart() {
    const GUIDE: &str = include_str!("../../../../docs/configure.md");
    let (_, chapter) = GUIDE.split_once("## Reload and restart").expect("the chapter");
    let listed = chapter.lines().filter_map(|line| line.strip_prefix("- `")?.strip_suffix('`'));
    let keys = Config::default().keep(&Config::default()).into_iter().map(|key| key.name);
    assert!(listed.eq(keys), "{chapter}");
}
