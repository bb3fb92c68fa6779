//! Finds other proxies by their traces on a node.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use holdfast_datapath::netlink::encode_attribute;
use holdfast_status::views::proxies::OtherProxy;

use super::rules::{Object, identify_proxies};
use super::{PORTS, PROXY_NAMES, TRACES, find_proxies};

/// An object of IPv4 with one attribute.
fn object(kind: u16, text: &str) -> Object {
    Object { family: 2, attributes: encode_attribute(kind, &[text.as_bytes(), &[0]].concat()) }
}

#[track_caller]
fn check(tables: &[&str], chains: &[&str], expected: &[&str]) {
    let tables: Vec<Object> = tables.iter().map(|name| object(1, name)).collect();
    let chains: Vec<Object> = chains.iter().map(|name| object(3, name)).collect();
    let found: Vec<String> =
        identify_proxies(&tables, &chains).into_iter().map(|(_, evidence)| evidence).collect();
    assert_eq!(found, expected);
}

#[test]
fn proxies_are_identified_by_names_of_tables_and_chains() {
    check(&[], &[], &[]);
    check(&["nat", "filter"], &["PREROUTING", "KUBE-SERVICES-NOT"], &[]);
    check(&["filter", "kube-proxy"], &["services"], &["nftables table kube-proxy"]);
    check(&["nat"], &["PREROUTING", "KUBE-SERVICES"], &["iptables chain KUBE-SERVICES"]);
    check(&["nat"], &["ANTREA-OUTPUT", "ANTREA-PREROUTING"], &["iptables chain ANTREA-OUTPUT"]);
    check(&["nat"], &["OLD_CILIUM_PRE_nat", "CILIUM_POST_nat"], &["iptables chain CILIUM_POST_nat"]);
}

#[test]
fn each_proxy_that_may_be_found_is_in_the_list_of_names() {
    let by_port = PORTS.map(|(_, proxy)| proxy);
    let by_trace = TRACES.map(|(_, proxy)| proxy);
    let chains = [object(3, "KUBE-SERVICES"), object(3, "ANTREA-OUTPUT"), object(3, "CILIUM_POST_nat")];
    let by_rules = identify_proxies(&[], &chains).into_iter().map(|(proxy, _)| proxy);
    for proxy in by_port.into_iter().chain(by_trace).chain(by_rules) {
        assert!(PROXY_NAMES.contains(&proxy), "{proxy}");
    }
}

#[test]
fn an_answer_that_is_cut_or_garbage_is_no_rule() {
    let of = |attributes: &[u8]| [Object { family: 2, attributes: attributes.to_vec() }];
    let whole = object(1, "kube-proxy").attributes;
    for length in 0..whole.len() {
        assert!(identify_proxies(&of(&whole[..length]), &[]).len() <= 1);
    }
    assert!(identify_proxies(&of(&[0xff; 64]), &of(&[0; 64])).is_empty());
}

/// As the kernel prints it: 10249 listens (0A), 9879 is only a connection's own port (01).
const SOCKETS: &str =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:2809 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:2697 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
";

#[test]
fn listeners_devices_and_pins_of_a_proxy_are_named_together() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("proc/net")).unwrap();
    fs::write(root.path().join("proc/net/tcp"), SOCKETS).unwrap();
    fs::create_dir_all(root.path().join("sys/class/net/kube-ipvs0")).unwrap();
    fs::create_dir_all(root.path().join("sys/fs/bpf/calico")).unwrap();
    let rules = vec![("kube-proxy", "nftables table kube-proxy".to_owned())];
    let named = |proxy, evidence: &[&str]| OtherProxy {
        proxy,
        evidence: evidence.iter().map(|&it| it.to_owned()).collect(),
        traces: Vec::new(),
    };
    let look = |root: &Path, rules, own| find_proxies(root, rules, own, &BTreeSet::new());
    let shown = ["listens on port 10249", "nftables table kube-proxy", "/sys/class/net/kube-ipvs0"];
    assert_eq!(
        look(root.path(), rules, None),
        [named("Calico", &["/sys/fs/bpf/calico"]), named("kube-proxy", &shown)]
    );
    let own = look(root.path(), Vec::new(), Some(10249));
    let shown = ["/sys/class/net/kube-ipvs0"];
    assert_eq!(
        own,
        [named("Calico", &["/sys/fs/bpf/calico"]), named("kube-proxy", &shown)],
        "its port is ours"
    );
    assert_eq!(look(&root.path().join("nothing"), Vec::new(), None), []);
}

/// kube-proxy has no traces besides its findings.
#[test]
fn only_cilium_has_traces_and_a_listening_agent_runs() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("sys/fs/bpf/cilium/socketlb/links/cgroup");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("cil_sock4_connect"), "").unwrap();
    let rules = || vec![("Cilium", "iptables chain CILIUM_POST_nat".to_owned())];
    let whats = |found: &[OtherProxy]| -> Vec<String> {
        found.iter().flat_map(|it| &it.traces).map(|it| it.remove.clone()).collect()
    };
    let gone = find_proxies(root.path(), rules(), None, &BTreeSet::from([(2004, true)]));
    let chains = "for i in iptables ip6tables; do $i-save | grep -v CILIUM_ | $i-restore; done";
    let pins = "rm -r /sys/fs/bpf/cilium";
    let removed = ["rm -r /sys/fs/bpf/cilium/socketlb", pins, chains, "ip -4 rule delete lookup 2004"];
    assert_eq!(whats(&gone), removed);
    assert!(gone.iter().all(OtherProxy::is_abandoned), "{gone:?}");
    fs::create_dir_all(root.path().join("proc/net")).unwrap();
    fs::write(root.path().join("proc/net/tcp"), SOCKETS.replace("0100007F:2809", "0100007F:2697")).unwrap();
    let there = find_proxies(root.path(), rules(), None, &BTreeSet::new());
    assert_eq!(whats(&there), ["socketLB.enabled: false"]);
    assert!(!there.iter().any(OtherProxy::is_abandoned), "{there:?}");
    assert!(!there.iter().any(OtherProxy::has_clients), "it translates connects alone");
    let at_device = root.path().join("sys/fs/bpf/cilium/devices/eth0/links");
    fs::create_dir_all(&at_device).unwrap();
    fs::write(at_device.join("cil_from_netdev"), "").unwrap();
    fs::write(folder.join("cil_sock4_post_bind"), "").unwrap();
    for rules in [rules(), Vec::new()] {
        assert!(find_proxies(root.path(), rules, None, &BTreeSet::new()).iter().any(OtherProxy::has_clients));
    }
}

/// Its connections are in the kernel's conntrack table, and outlive its process by the rules that it leaves.
#[test]
fn a_kube_proxy_may_have_clients_while_any_trace_remains() {
    let root = tempfile::tempdir().unwrap();
    let of = |rules| find_proxies(root.path(), rules, None, &BTreeSet::new());
    assert!(!of(Vec::new()).iter().any(OtherProxy::has_clients));
    assert!(
        of(vec![("kube-proxy", "nftables table kube-proxy".to_owned())]).iter().any(OtherProxy::has_clients)
    );
    fs::create_dir_all(root.path().join("sys/class/net/antrea-gw0")).unwrap();
    assert!(!of(Vec::new()).iter().any(OtherProxy::has_clients), "the pod network");
    fs::create_dir_all(root.path().join("sys/class/net/kube-ipvs0")).unwrap();
    assert!(of(Vec::new()).iter().any(OtherProxy::has_clients));
}
