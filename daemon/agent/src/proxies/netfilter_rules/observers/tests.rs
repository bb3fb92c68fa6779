//! Which rules, loaded by common tools, keep packets off the fast path.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use holdfast_fixtures::network_namespace;

use super::{FAILED_MAX, find_observers, has_legacy_tables, merge_look, rest_after};
use crate::devices::Observers;

/// The first observer in a network namespace in which these commands have run, each with its input.
#[track_caller]
fn found(commands: &[(&[&str], &str)]) -> Option<String> {
    all_found(commands).first.map(|it| it.to_string())
}

#[track_caller]
fn all_found(commands: &[(&[&str], &str)]) -> Observers {
    network_namespace::run_inside(|| {
        for (command, input) in commands {
            let mut child =
                Command::new(command[0]).args(&command[1..]).stdin(Stdio::piped()).spawn().unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            assert!(child.wait().unwrap().success(), "{command:?} refuses:\n{input}");
        }
        find_observers(Path::new("/nowhere")).unwrap()
    })
}

#[track_caller]
fn nft(rules: &str) -> Option<String> {
    found(&[(&["nft", "-f", "-"], rules)])
}

#[track_caller]
fn iptables(rules: &str) -> Option<String> {
    found(&[(&["iptables-nft-restore"], rules)])
}

#[test]
fn kernel_a_node_without_a_firewall_has_no_observer() {
    assert_eq!(found(&[]), None);
    assert_eq!(iptables("*filter\n:FORWARD ACCEPT [0:0]\n:INPUT DROP [0:0]\nCOMMIT\n"), None);
}

/// As the portmap plug-in and kubelet write them, and a firewall that only counts and accepts.
#[test]
fn kernel_rules_that_leave_forwarded_packets_unchanged_are_no_observers() {
    let rules = "*nat
:PREROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp --dport 8080 -j DNAT --to-destination 10.244.0.5:80
COMMIT
*mangle
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:FLANNEL-FWD - [0:0]
:KUBE-FIREWALL - [0:0]
-A FORWARD -m comment --comment \"flannel\" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -j ACCEPT
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -j KUBE-FIREWALL
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -j DROP
COMMIT
";
    assert_eq!(iptables(rules), None);
}

/// Their conntrack would take the replies of flows that it has not seen for new connections.
#[test]
fn kernel_snat_rules_are_observers() {
    for rule in [
        "-s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully",
        "! -s 10.244.0.0/16 -d 10.244.0.0/16 -j MASQUERADE",
        "-s 10.244.0.0/16 -j SNAT --to-source 192.0.2.1",
    ] {
        let rules = format!("*nat\n:POSTROUTING ACCEPT [0:0]\n-A POSTROUTING {rule}\nCOMMIT\n");
        let found = iptables(&rules).unwrap();
        assert!(
            found.starts_with("table ip nat, chain POSTROUTING (postrouting, priority 100): a rule"),
            "{found}"
        );
    }
}

/// A rule of iptables, in a chain that sees forwarded packets, and its description.
const SEEN: [(&str, &str, &str, &str); 8] = [
    ("filter", "FORWARD", "-p tcp --dport 25 -j DROP", "forward, priority 0): a rule that drops"),
    ("filter", "FORWARD", "-j REJECT", "forward, priority 0): a rule with the target REJECT"),
    ("filter", "FORWARD", "-j LOG", "forward, priority 0): a rule with the target LOG"),
    ("mangle", "FORWARD", "-j MARK --set-mark 5", "forward, priority -150): a rule with the target MARK"),
    (
        "filter",
        "FORWARD",
        "-m recent --set --name seen --rsource",
        "forward, priority 0): a rule with the match recent",
    ),
    (
        "mangle",
        "FORWARD",
        "-p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu",
        "forward, priority -150): a rule with the target TCPMSS",
    ),
    (
        "nat",
        "PREROUTING",
        "-p tcp --dport 80 -j REDIRECT --to-ports 3128",
        "prerouting, priority -100): a rule with the target REDIRECT",
    ),
    (
        "nat",
        "PREROUTING",
        "-m addrtype ! --dst-type LOCAL -p tcp -j DNAT --to-destination 10.0.0.1",
        "prerouting, priority -100): a rule with the target DNAT",
    ),
];

#[test]
fn kernel_iptables_rules_that_affect_forwarded_packets_are_observers() {
    for (table, chain, rule, said) in SEEN {
        let rules = format!("*{table}\n:{chain} ACCEPT [0:0]\n-A {chain} {rule}\nCOMMIT\n");
        assert_eq!(iptables(&rules), Some(format!("table ip {table}, chain {chain} ({said}")), "{rule}");
    }
    let dropping = iptables("*filter\n:FORWARD DROP [0:0]\nCOMMIT\n");
    assert_eq!(dropping.as_deref(), Some("table ip filter, chain FORWARD (forward, priority 0): its policy"));
}

/// A rule of nftables, and whether it keeps packets off the fast path.
const RULES: [(&str, bool); 17] = [
    ("ct state established,related accept", false),
    ("counter", false),
    ("ct mark 5 counter accept", false),
    ("jump more", false),
    ("goto more", false),
    ("ip saddr 10.0.0.0/8 masquerade", true),
    ("meta mark set 7", true),
    ("ct mark set 5 goto more", true),
    ("meta priority set 1:1 jump more", true),
    ("log jump more", true),
    ("ct state invalid drop", true),
    ("tcp dport 22 reject", true),
    ("ip dscp set 4", true),
    ("reset tcp option sack-perm", true),
    ("tcp dport vmap { 22 : drop, 80 : accept }", true),
    ("log", true),
    ("jump worse", true),
];

#[test]
fn kernel_nftables_rules_that_do_more_than_accept_are_observers() {
    for (rule, is_onlooker) in RULES {
        let (kind, hook) =
            if rule.contains("masquerade") { ("nat", "postrouting") } else { ("filter", "forward") };
        let rules = format!(
            "table inet guard {{
 chain more {{
  accept
 }}
 chain worse {{
  ip saddr 192.0.2.1 drop
 }}
 chain everything {{
  type {kind} hook {hook} priority 0;
  {rule}
 }}
}}
"
        );
        assert_eq!(nft(&rules).is_some(), is_onlooker, "{rule}");
    }
}

#[test]
fn kernel_an_ipsec_policy_is_an_observer() {
    let policy = "xfrm policy add src 10.1.0.0/24 dst 10.2.0.0/24 dir fwd tmpl proto esp mode tunnel";
    for words in [policy, "xfrm policy setdefault fwd block"] {
        let command: Vec<&str> = std::iter::once("ip").chain(words.split(' ')).collect();
        let expected = Observers { first: Some("a policy of IPsec".into()), has_policies: true };
        assert_eq!(all_found(&[(&command, "")]), expected, "{words}");
    }
}

/// The kernel may be briefly short of memory.
#[test]
fn a_failed_scan_changes_nothing_until_several_fail() {
    let failed = || Err(std::io::Error::other("no room"));
    assert_eq!(merge_look(Ok(Observers::default()), 0, true), Some(Observers::default()));
    assert_eq!((merge_look(failed(), 1, true), merge_look(failed(), FAILED_MAX - 1, true)), (None, None));
    for has_policies in [false, true] {
        let first = Some("a firewall that cannot be read (no room)".into());
        assert_eq!(merge_look(failed(), FAILED_MAX, has_policies), Some(Observers { first, has_policies }));
    }
}

#[test]
fn a_firewall_with_unreadable_rules_is_an_observer() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("proc/net");
    std::fs::create_dir_all(&path).unwrap();
    std::fs::write(path.join("ip_tables_names"), "").unwrap();
    assert!(!has_legacy_tables(root.path()), "the kernel supports them and has none");
    std::fs::write(path.join("ip6_tables_names"), "filter\n").unwrap();
    assert!(has_legacy_tables(root.path()));
}

#[test]
fn a_firewall_that_comes_is_seen_within_a_second_of_the_last_scan() {
    let slow = Duration::from_millis(400);
    assert_eq!(rest_after(slow, false), Duration::from_secs(1));
    assert_eq!(rest_after(slow, true), Duration::from_secs(8), "what observes is there already");
    let quick = Duration::from_millis(10);
    assert_eq!(rest_after(quick, false), rest_after(quick, true));
}
