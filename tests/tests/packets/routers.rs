//! Routers around a node: one that packets pass twice, hops with a small MTU, and addresses that move.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, Switches};
use holdfast_tests::bed::raw::{Unknown, send_unknown};
use holdfast_tests::bed::tracked::untrack;
use holdfast_tests::bed::uplinks::{ONE_GATEWAY, UNNUMBERED};
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::packets::{Clients, Family, frontend, outside};

use crate::associations::{PORT, SERVICES};
use crate::changes::wait_until;
use crate::direct::counted;
use crate::node::{Around, SERVED, daemon, ip, on_a_node, on_this, run, write};
use crate::talk::while_clients_talk;

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// A stream of some thousand segments.
const MUCH: usize = 3 << 20;

/// Fits a device, and no hop of 1400 bytes.
const LARGE: usize = 1440;

/// A short timeout: what is lost before the path MTU is known is sent again.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

#[track_caller]
fn is_answered(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered { .. })
}

/// The first large datagram is lost; a later one is fragmented, once the ICMP error has reached the sender.
pub(crate) fn is_answered_in_time(clients: &mut Clients, question: &Question) -> bool {
    let until = Instant::now() + SERVED;
    while Instant::now() < until {
        if is_answered(&clients.client("outside").unwrap().ask(question.clone()).unwrap()) {
            return true;
        }
    }
    false
}

/// A node with one gateway, which has these routes with an MTU of 1400: larger packets pass in both directions.
#[track_caller]
fn check_narrow(narrow: &[&str]) {
    let bed = Bed::lay(&fabric::layout()).unwrap();
    fabric::lay_by(&bed, Switches::default(), &ONE_GATEWAY).unwrap();
    narrow.iter().for_each(|route| ip(&bed, "router", &format!("route replace {route} mtu lock 1400")));
    on_this(&bed, "", |_, _, clients| {
        for family in FAMILIES {
            let from = outside(family, 0);
            let [node, balancer] = ["node", "balancer"].map(|it| frontend("away", it, family).unwrap());
            let sizes = [(MUCH, 0), (0, MUCH)];
            let stream = |(take, give)| Question::new(Transport::Tcp, node).from(from).sized(take, give);
            let outcomes = clients.client("outside").unwrap().ask_all(&sizes.map(stream)).unwrap();
            assert!(outcomes.iter().all(is_answered), "{family:?}: {outcomes:?}");
            for (take, give) in [(LARGE, 0), (0, LARGE)] {
                let question = Question::new(Transport::Udp, balancer).from(from).sized(take, give);
                let question = Question { patience: SHORT, ..question };
                assert!(is_answered_in_time(clients, &question), "{family:?}: {take} there, {give} back");
            }
        }
    });
}

/// The ICMP error is about a reply to a client. Forwarded with the router's own source address, the router would drop
/// it.
#[test]
fn a_twice_passed_router_reports_a_narrow_hop_to_backends() {
    check_narrow(&["10.20.0.0/24 dev client", "fd00:20::/64 dev client metric 256"]);
}

#[test]
fn a_twice_passed_router_reports_a_narrow_hop_to_clients() {
    check_narrow(&["10.244.9.0/24 via 10.0.0.6", "fd00:244:9::/64 via fd00:a::6"]);
}

/// Another proxy, which forwards clients of two load balancers to a backend here and to one of another node.
const OTHER_PROXY: &str = "table inet other {
 chain pre {
  type nat hook prerouting priority dstnat;
  ip daddr 203.0.113.1 tcp dport 80 dnat ip to 10.244.1.10:8080
  ip daddr 203.0.113.3 tcp dport 80 dnat ip to 10.244.9.10:8080
  ip6 daddr 2001:db8:113::1 tcp dport 80 dnat ip6 to [fd00:244:1::10]:8080
  ip6 daddr 2001:db8:113::3 tcp dport 80 dnat ip6 to [fd00:244:9::10]:8080
 }
 chain post {
  type nat hook postrouting priority srcnat;
  ip daddr 10.244.9.10 ct status dnat masquerade
  ip6 daddr fd00:244:9::10 ct status dnat masquerade
 }
}
";

/// Connections of each client, to one place, in one family.
const EACH: usize = 2;

/// Clients have connections through another proxy, which last as long as their conntrack entries. Then this node loses
/// the entries, as after a reboot, or as if the address had just moved here.
#[track_caller]
fn check_strangers(switches: Switches) {
    let bed = fabric::bed(switches).unwrap();
    let mut around = Around::start(&bed);
    fabric::rules(&bed, OTHER_PROXY).unwrap();
    let outside = around.clients.client("outside").unwrap();
    for (service, family) in ["here", "away"].into_iter().flat_map(|it| FAMILIES.map(|of| (it, of))) {
        let held = outside.hold(frontend(service, "balancer", family).unwrap(), None, EACH).unwrap();
        assert_eq!(
            held,
            HeldConnections { alive: EACH, ..HeldConnections::default() },
            "{service} {family:?}"
        );
    }
    let mut daemon = daemon(&bed, "");
    daemon.start().unwrap();
    around.wait_until_served(&daemon);
    let mut tried = || around.clients.client("outside").unwrap().try_held().unwrap();
    assert_eq!(
        tried(),
        HeldConnections { alive: 4 * EACH, ..HeldConnections::default() },
        "conntrack has them"
    );
    fabric::rules(&bed, "delete table inet other").unwrap();
    untrack(&bed, Location::OUTSIDE).unwrap();
    assert_eq!(
        tried(),
        HeldConnections { alive: 0, broken: [("Reset".to_owned(), 4 * EACH)].into() },
        "nobody has them"
    );
}

#[test]
fn an_unknown_connection_is_reset_and_another_proxys_goes_on() {
    check_strangers(Switches::default());
}

#[test]
fn an_unknown_connection_is_reset_with_checksums_computed() {
    check_strangers(Switches { no_offload: true, tracked: true, ..Switches::default() });
}

/// Counts what returns to the router on its way to the addresses of load balancers.
const RETURNED: &str = "table inet returned {
 counter back { }
 chain forward {
  type filter hook forward priority filter;
  iifname lan ip daddr { 203.0.113.0/24, 192.168.0.0/16 } counter name back
  iifname lan ip6 daddr { 2001:db8:113::/64, fd00:192:168::/112 } counter name back
 }
}
";

fn returned(bed: &Bed) -> usize {
    let listed = run(bed, "router", "nft", "list counter inet returned back");
    listed.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

/// Packets of no connection, and fragments without their first one, would circle between node and router.
#[test]
fn what_belongs_to_no_flow_does_not_go_back_to_its_router() {
    const EACH: u16 = 10;
    on_a_node(Switches::default(), "", |bed, daemon, _| {
        let [signalling, _] = &SERVICES;
        write(daemon, "signalling", &signalling.objects());
        fabric::add_rules_at(bed, Location::far("router"), RETURNED).unwrap();
        for (family, kind) in FAMILIES.into_iter().flat_map(|of| {
            [Unknown::Data, Unknown::Reset, Unknown::End, Unknown::Fragment].map(|kind| (of, kind))
        }) {
            let from = SocketAddr::new(outside(family, 0).ip(), 45_000);
            let association = SocketAddr::new(family.of(signalling.balancer).parse().unwrap(), PORT);
            let to = match kind {
                Unknown::Data => association,
                _ => frontend("here", "balancer", family).unwrap(),
            };
            let send = || bed.within(Location::far("client"), || send_unknown(from, to, kind, EACH));
            let event = if matches!(kind, Unknown::Fragment) { "fragment" } else { "mid-stream" };
            let before = counted(daemon, event);
            wait_until(|| {
                send().unwrap().unwrap();
                counted(daemon, event) > before
            });
            let (back, dropped) = (returned(bed), counted(daemon, "reject-failed"));
            send().unwrap().unwrap();
            wait_until(|| counted(daemon, "reject-failed") >= dropped + u64::from(EACH));
            assert_eq!(returned(bed), back, "{family:?} {kind:?}");
        }
    });
}

/// A backend of another node sees the node's own address, so that its replies return through the node.
#[track_caller]
fn check_seen(clients: &mut Clients) {
    for (family, transport) in
        FAMILIES.into_iter().flat_map(|of| [(of, Transport::Tcp), (of, Transport::Udp)])
    {
        let question = Question::new(transport, frontend("away", "balancer", family).unwrap());
        let outcome = clients.client("outside").unwrap().ask(question).unwrap();
        let own: IpAddr = family.of(NODE_ADDRESSES).parse().unwrap();
        let is_own = matches!(&outcome, Outcome::Answered { seen, .. } if seen.ip() == own);
        assert!(is_own, "{family:?} {transport:?}: {outcome:?}");
    }
}

/// Adds a device: once the daemon lists it, it has processed everything before.
#[track_caller]
fn wait_until_followed(bed: &Bed, daemon: &Daemon<'_>) {
    ip(bed, "node", "link add later type veth peer name later-far");
    let until = Instant::now() + SERVED;
    while !daemon.ask(&["datapath"]).unwrap()["kernel"]["packets"]["devices"]
        .to_string()
        .contains("\"later\"")
    {
        assert!(Instant::now() < until, "a new device is not listed");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// As kube-vip and keepalived do: the kernel lists the newest IPv6 address first, and the IPv4 address that existed
/// when the node's was set again.
#[test]
fn connections_survive_a_moving_floating_address() {
    on_this(&fabric::bed(Switches::default()).unwrap(), "", |bed, daemon, clients| {
        for words in [
            "address delete 10.0.0.5/24 dev eth0",
            "address add 10.0.0.77/32 dev eth0",
            "address add 10.0.0.5/24 dev eth0",
            "route replace default via 10.0.0.1",
            "route replace 10.244.9.0/24 via 10.0.0.6",
            "address add fd00:a::77/128 dev eth0 nodad",
        ] {
            ip(bed, "node", words);
        }
        wait_until_followed(bed, daemon);
        check_seen(clients);
        while_clients_talk(bed, &[("away", "balancer")], || {
            ip(bed, "node", "address delete 10.0.0.77/32 dev eth0");
            ip(bed, "node", "address delete fd00:a::77/128 dev eth0");
        });
    });
}

#[test]
fn remote_backends_are_reached_through_an_unnumbered_uplink() {
    let bed = Bed::lay(&fabric::layout()).unwrap();
    fabric::lay_by(&bed, Switches::default(), &UNNUMBERED).unwrap();
    on_this(&bed, "", |_, _, clients| check_seen(clients));
}
