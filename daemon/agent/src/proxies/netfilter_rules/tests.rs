//! Finds rules like those of real firewalls, loaded by common tools.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use holdfast_fixtures::network_namespace;
use holdfast_status::views::proxies::{DialTargets, Filter};

use super::{find_conntrack_limit, find_filters};

const NFT: [&str; 3] = ["nft", "-f", "-"];
const IPTABLES: [&str; 1] = ["iptables-nft-restore"];

fn dialled() -> DialTargets {
    let addresses = ["203.0.113.7", "2001:db8::7"].map(|address| (address.parse().unwrap(), 443));
    DialTargets { node_ports: BTreeSet::from([30_080, 30_090]), addresses: addresses.into() }
}

fn spelled(filter: &Filter) -> String {
    format!("{} {}: {}", filter.kind, filter.place, filter.rule)
}

/// Compares the findings in a network namespace with these rules.
#[track_caller]
fn check(program: &[&str], rules: &str, accepted: u32, expected: &[&str]) {
    let found = network_namespace::run_inside(|| {
        let mut command = Command::new(program[0]);
        let mut child = command.args(&program[1..]).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "{program:?} refuses:\n{rules}");
        find_filters(Path::new("/nowhere"), &dialled(), accepted).unwrap()
    });
    assert_eq!(found.iter().map(spelled).collect::<Vec<_>>(), expected, "{rules}");
}

#[test]
fn kernel_nftables_rules_that_drop_dialled_ports_are_named() {
    let rules = "table inet guard {
 set bad { type inet_service; elements = { 22, 30090 }; }
 chain more {
  ip6 daddr 2001:db8::7 drop
 }
 chain early {
  type filter hook prerouting priority raw; policy accept;
  tcp dport 30080 ip saddr 192.0.2.0/24 drop
  tcp dport 23 drop
  tcp dport 30080 accept
  udp dport 30000-32767 counter drop
  meta l4proto { tcp, udp } th dport @bad drop
  ip daddr 203.0.113.7 tcp dport 443 drop
  ip daddr 203.0.113.8 tcp dport 443 drop
  jump more
 }
 chain late {
  type filter hook prerouting priority filter;
  tcp dport 30080 drop
 }
}
";
    let place = "early table inet guard, chain";
    let of = |chain: &str, what: &str| {
        format!(
            "{place} {chain} (prerouting, priority -300): drops packets to {what}, but no longer sees them"
        )
    };
    let expected = [
        of("early", "port 30080"),
        of("early", "port 30000-32767"),
        of("early", "port 22, 30090"),
        of("early", "203.0.113.7 port 443"),
        of("more", "2001:db8::7"),
    ];
    check(&NFT, rules, 0, &expected.each_ref().map(String::as_str));
}

#[test]
fn kernel_iptables_rules_that_drop_dialled_ports_are_named() {
    let rules = "*raw
:PREROUTING ACCEPT [0:0]
:OURS - [0:0]
-A PREROUTING -p tcp --dport 30080 -s 192.0.2.0/24 -j DROP
-A PREROUTING -p tcp --dport 22 -j DROP
-A PREROUTING -p udp -j OURS
-A OURS -p udp -m multiport --dports 53,30085:30095 -j DROP
COMMIT
*mangle
:PREROUTING ACCEPT [0:0]
-A PREROUTING -d 203.0.113.7/32 -p tcp --dport 443 -j DROP
COMMIT
";
    let of = |place: &str, what: &str| {
        format!("early table ip {place}: drops packets to {what}, but no longer sees them")
    };
    let expected = [
        of("raw, chain PREROUTING (prerouting, priority -300)", "port 30080"),
        of("raw, chain OURS (prerouting, priority -300)", "port 53, 30085-30095"),
        of("mangle, chain PREROUTING (prerouting, priority -150)", "203.0.113.7 port 443"),
    ];
    check(&IPTABLES, rules, 0, &expected.each_ref().map(String::as_str));
}

/// Docker's policy with the rule that kube-proxy added, and without it.
#[test]
fn kernel_a_forward_drop_policy_is_named_unless_it_accepts_the_mark() {
    let chain = |rules: &str| format!("*filter\n:FORWARD DROP [0:0]\n{rules}COMMIT\n");
    let place = "forward table ip filter, chain FORWARD (forward, priority 0): policy drop";
    let none = format!("{place}: packets that no rule accepts are not forwarded to backends");
    let unmarked = format!("{place}, and no rule accepts the mark 0x4000");
    let (docker, marked) =
        ("-A FORWARD -i docker0 -j ACCEPT\n", "-A FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n");
    check(&IPTABLES, &chain(docker), 0, &[&none]);
    check(&IPTABLES, &chain(docker), 1 << 14, &[&unmarked]);
    check(&IPTABLES, &chain(&format!("{docker}{marked}")), 1 << 14, &[]);
    check(&IPTABLES, &chain(marked), 1 << 6, &[&unmarked.replace("0x4000", "0x40")]);
    check(&IPTABLES, &chain("-A FORWARD -j ACCEPT\n"), 0, &[]);
    check(&IPTABLES, "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n", 0, &[]);
}

/// A chain that ends as firewalld's does.
#[test]
fn kernel_a_forward_chain_whose_last_rule_drops_everything_is_named() {
    let chain = |mark: &str| {
        format!(
            "table inet firewalld {{
 chain filter_FORWARD {{
  type filter hook forward priority filter + 10;
  ct state established,related accept
  {mark}
  reject with icmpx admin-prohibited
 }}
}}
"
        )
    };
    let place = "forward table inet firewalld, chain filter_FORWARD (forward, priority 10): its last rule drops \
                 everything";
    check(
        &NFT,
        &chain(""),
        0,
        &[&format!("{place}: packets that no rule accepts are not forwarded to backends")],
    );
    check(&NFT, &chain("meta mark & 0x4000 == 0x4000 accept"), 1 << 14, &[]);
    check(&NFT, &chain("meta mark 0x4000 accept"), 1 << 14, &[]);
}

#[test]
fn a_conntrack_limit_below_kube_proxys_is_named() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("proc/sys/net/netfilter");
    std::fs::create_dir_all(&path).unwrap();
    let found = |most: &str| {
        std::fs::write(path.join("nf_conntrack_max"), most).unwrap();
        find_conntrack_limit(root.path()).map(|it| it.place)
    };
    assert_eq!(found("65536\n").as_deref(), Some("net.netfilter.nf_conntrack_max"));
    assert_eq!(found("100000000\n"), None);
    assert_eq!(found("many\n"), None);
    assert_eq!(find_conntrack_limit(Path::new("/nowhere")), None);
}
