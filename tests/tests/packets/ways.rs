//! Nodes whose network cards and routing rules send a pod's packets on another path than the client's: each as a CNI
//! or a cloud sets it up. The network accepts from each card only packets with that card's addresses.
//!
//! A reference for comparison is the kernel's own translation with masquerading, as in kube-proxy.

use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::uplinks::{BRIDGE, SECOND_CARD, TABLE_OF_SECOND, Uplink};
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::packets::{Clients, Family, frontend, outside};

use crate::node::{Around, ip, on_this, run};
use crate::shortcut::check_asked_by_two_ways;
use crate::talk::while_clients_talk;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Many times what is in flight at once.
const MUCH: usize = 200_000;

/// The pod behind the service `here`.
const POD: [&str; 2] = ["10.244.1.10", "fd00:244:1::10"];

/// A cloud network's source filter for each of the node's cards.
const STRICT: &str = "table inet strict {
 chain pre {
  type filter hook prerouting priority raw;
  iifname \"node-b\" ip saddr != 10.1.0.0/24 counter drop
  iifname \"node-b\" ip6 saddr != { fd00:c::/64, fe80::/10 } counter drop
  iifname \"lan\" ip saddr 10.1.0.0/24 counter drop
  iifname \"lan\" ip6 saddr fd00:c::/64 counter drop
 }
}
";

/// kube-proxy's translation of two NodePorts.
const REFERENCE: &str = "table inet reference {
 chain pre {
  type nat hook prerouting priority dstnat;
  ip daddr 10.0.0.5 meta l4proto { tcp, udp } th dport 30001 dnat ip to 10.244.1.10:8080
  ip6 daddr fd00:a::5 meta l4proto { tcp, udp } th dport 30001 dnat ip6 to [fd00:244:1::10]:8080
  ip daddr 10.0.0.5 meta l4proto { tcp, udp } th dport 30002 dnat ip to 10.244.2.10:8080
  ip6 daddr fd00:a::5 meta l4proto { tcp, udp } th dport 30002 dnat ip6 to [fd00:244:2::10]:8080
 }
 chain post {
  type nat hook postrouting priority srcnat;
  ct status dnat masquerade
 }
}
";

/// A node with that uplink, in front of such a network.
fn lay(uplink: &Uplink) -> Bed {
    let bed = Bed::lay(&fabric::layout()).unwrap();
    fabric::lay_by(&bed, Switches::default(), uplink).unwrap();
    fabric::add_rules_at(&bed, Location::far("router"), STRICT).unwrap();
    bed
}

fn is_answered(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered { .. })
}

/// Requests by TCP, by TCP with much data, and by UDP, in both families, at addresses of that kind.
fn asked(service: &str, address: &str) -> Vec<Question> {
    let of = |family: Family| {
        let to = frontend(service, address, family).unwrap();
        let question = move |transport| Question::new(transport, to).from(outside(family, 0));
        [question(Transport::Tcp), question(Transport::Tcp).sized(MUCH, MUCH), question(Transport::Udp)]
    };
    FAMILIES.map(of).concat()
}

#[track_caller]
fn check_answered(clients: &mut Clients, questions: &[Question], who: &str) {
    let outcomes = clients.client("outside").unwrap().ask_all(questions).unwrap();
    let bad: Vec<_> = questions.iter().zip(&outcomes).filter(|(_, outcome)| !is_answered(outcome)).collect();
    assert!(bad.is_empty(), "{who}: {} of {} fail: {bad:?}", bad.len(), questions.len());
}

#[track_caller]
fn check_reference(bed: &Bed, service: &str) {
    let mut around = Around::start(bed);
    fabric::rules(bed, REFERENCE).unwrap();
    check_answered(&mut around.clients, &asked(service, "node"), "the kernel's own translation");
    fabric::rules(bed, "delete table inet reference").unwrap();
}

/// The AWS VPC CNI: pods have addresses of a second card, and rules route their packets through it. Connections to the
/// node's own address get a mark, so that their replies leave on the first card.
fn aws(bed: &Bed) {
    for (family, pod) in ["-4", "-6"].iter().zip(POD) {
        ip(bed, "node", &format!("{family} rule add pref 512 to {pod} lookup main"));
        ip(bed, "node", &format!("{family} rule add pref 1024 fwmark 0x80/0x80 lookup main"));
        ip(bed, "node", &format!("{family} rule add pref 1536 from {pod} lookup {TABLE_OF_SECOND}"));
    }
    fabric::rules(bed, AWS).unwrap();
}

/// That CNI's `CONNMARK` rules, with `--dst-type LOCAL` written out.
const AWS: &str = "table inet aws {
 chain pre {
  type filter hook prerouting priority mangle;
  iifname \"eth0\" ip daddr { 10.0.0.5, 10.0.0.55 } ct mark set ct mark | 0x80
  iifname \"eth0\" ip6 daddr { fd00:a::5, fd00:a::55 } ct mark set ct mark | 0x80
  iifname \"pod-a\" meta mark set ct mark & 0x80
 }
}
";

/// How `/datapath` says that replies to clients of a device are routed.
fn answers(daemon: &holdfast_tests::bed::daemon::Daemon<'_>, device: &str) -> String {
    let answer = daemon.ask(&["datapath"]).unwrap();
    let devices = answer["kernel"]["packets"]["devices"].as_array().unwrap();
    devices.iter().find(|it| it["name"] == device).unwrap()["answers"].to_string()
}

#[test]
fn pods_of_a_second_card_reply_on_the_dialled_card() {
    let bed = lay(&SECOND_CARD);
    aws(&bed);
    check_reference(&bed, "here");
    on_this(&bed, "", |bed, daemon, clients| {
        assert_eq!(answers(daemon, "eth0"), "\"dialled\"");
        for address in ["node", "balancer", "external"] {
            check_answered(clients, &asked("here", address), address);
        }
        for service in ["away", "host", "bridged"] {
            check_answered(clients, &asked(service, "node"), service);
        }
        for family in FAMILIES {
            // No socket listens there: the pod's own ICMP error must return the same way.
            let closed = Question::new(Transport::Udp, frontend("closed", "node", family).unwrap());
            let outcome = clients.client("outside").unwrap().ask(closed.from(outside(family, 0))).unwrap();
            assert_eq!(outcome, Outcome::Refused, "{family:?}");
        }
        while_clients_talk(bed, &[("here", "node"), ("away", "node")], || ());
    });
}

/// Later packets of a flow are answered like the first ones.
#[test]
fn a_udp_flow_with_a_second_cards_pod_keeps_its_path() {
    let bed = lay(&SECOND_CARD);
    aws(&bed);
    on_this(&bed, "", |_, _, clients| {
        for family in FAMILIES {
            let to = frontend("here", "node", family).unwrap();
            let question = Question::new(Transport::Udp, to).from(outside(family, 40_123));
            for round in 0..4 {
                let outcome = clients.client("outside").unwrap().ask(question.clone()).unwrap();
                assert!(is_answered(&outcome), "{family:?}, round {round}: {outcome:?}");
            }
            let held = clients.client("outside").unwrap().hold(to, None, 5).unwrap();
            assert_eq!(held, HeldConnections { alive: 5, ..HeldConnections::default() });
        }
    });
}

/// A reply that leaves on the first card equals that of another service's backend.
#[test]
fn a_reply_on_the_dialled_card_is_not_another_services() {
    let bed = lay(&SECOND_CARD);
    aws(&bed);
    on_this(&bed, "", |_, daemon, clients| check_asked_by_two_ways(daemon, clients, "here"));
}

/// As cloud images do: packets with the second card's address leave on that card. The kernel's own translation fails
/// here, because it routes a reply as a packet of the pod.
#[test]
fn a_dialled_second_card_replies_itself() {
    let bed = lay(&SECOND_CARD);
    for (family, address) in [("-4", "10.1.0.5"), ("-6", "fd00:c::5")] {
        ip(&bed, "node", &format!("{family} rule add pref 1000 from {address} lookup {TABLE_OF_SECOND}"));
    }
    on_this(&bed, "node_port_addresses = [\"10.0.0.0/15\", \"fd00::/16\"]\n", |_, daemon, clients| {
        assert_eq!(answers(daemon, "eth1"), "\"dialled\"");
        for (family, own) in FAMILIES.into_iter().zip(["10.1.0.5", "fd00:c::5"]) {
            for (service, port) in [("here", 30_001), ("bridged", 30_002), ("away", 30_003), ("host", 30_004)]
            {
                let to = (own.parse::<std::net::IpAddr>().unwrap(), port).into();
                let question = |transport| Question::new(transport, to).from(outside(family, 0));
                let questions = [
                    question(Transport::Tcp),
                    question(Transport::Tcp).sized(MUCH, MUCH),
                    question(Transport::Udp),
                ];
                check_answered(clients, &questions, service);
            }
        }
        check_answered(clients, &asked("here", "node"), "the first card");
    });
}

/// Azure CNI in bridge mode: card and pods are ports of one bridge. Pods have addresses of the card's network and the
/// router as gateway, so their replies to a client would bypass the node.
#[test]
fn pods_on_the_uplinks_bridge_reply_through_the_node() {
    let bed = lay(&BRIDGE);
    for (place, words) in [
        ("node", "address delete 10.244.2.1/24 dev cni0"),
        ("node", "address delete fd00:244:2::1/64 dev cni0"),
        ("node", "link set pod-c nomaster"),
        ("node", "link set pod-c master br0"),
        ("node", "route add 10.244.2.0/24 dev br0"),
        ("node", "route add fd00:244:2::/64 dev br0"),
        ("router", "route delete 10.244.2.0/24"),
        ("router", "route delete fd00:244:2::/64"),
        ("router", "address add 10.244.2.1/24 dev lan"),
        ("router", "address add fd00:244:2::1/64 dev lan nodad"),
    ] {
        ip(&bed, place, words);
    }
    check_reference(&bed, "bridged");
    on_this(&bed, "", |_, _, clients| {
        for address in ["node", "balancer"] {
            check_answered(clients, &asked("bridged", address), address);
        }
    });
}

/// Cilium: its own device has an address of the node's pods, and routes to pods use it. A program there redirects
/// packets to the pod's device, and the pod replies through that one.
fn cilium(bed: &Bed) {
    for words in [
        "link add cilium_host address 02:00:00:00:01:10 type veth peer name cilium_net",
        "link set cilium_host arp off up",
        "link set cilium_net arp off up",
        "address add 10.244.1.7/32 dev cilium_host",
        "address add fd00:244:1::7/128 dev cilium_host nodad",
        "route delete 10.244.1.10 dev pod-a",
        "route delete fd00:244:1::10 dev pod-a",
        "route add 10.244.1.0/24 via 10.244.1.7 dev cilium_host src 10.244.1.7",
        "route add fd00:244:1::/64 dev cilium_host src fd00:244:1::7",
    ] {
        ip(bed, "node", words);
    }
    // The program writes the pod's hardware address.
    ip(bed, "pod-a", "link set eth0 address 02:00:00:00:01:10");
    for words in [
        "qdisc add dev cilium_host clsact",
        "filter add dev cilium_host egress u32 match u32 0 0 action mirred egress redirect dev pod-a",
    ] {
        run(bed, "node", "tc", words);
    }
}

#[test]
fn local_pods_behind_a_shared_device_reply_to_their_clients() {
    let bed = fabric::bed(Switches::default()).unwrap();
    cilium(&bed);
    on_this(&bed, "", |bed, daemon, clients| {
        let answer = daemon.ask(&["datapath"]).unwrap();
        let devices = answer["kernel"]["packets"]["devices"].as_array().unwrap();
        let near = &devices.iter().find(|it| it["name"] == "cilium_host").unwrap()["near"];
        assert_eq!(near.to_string(), "[\"10.244.1.0/24\",\"fd00:244:1::/64\"]");
        for address in ["node", "balancer", "external"] {
            check_answered(clients, &asked("here", address), address);
        }
        while_clients_talk(bed, &[("here", "node")], || ());
    });
}

/// Azure CNI in transparent mode, and any node with one card: all paths are equal, and no packet pays for a look-up.
#[test]
fn a_node_with_one_path_routes_replies_as_the_kernel_does() {
    on_this(&fabric::bed(Switches::default()).unwrap(), "", |_, daemon, clients| {
        assert_eq!(answers(daemon, "eth0"), "\"backend\"");
        check_answered(clients, &asked("here", "node"), "here");
    });
}
