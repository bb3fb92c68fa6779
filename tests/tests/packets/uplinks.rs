//! Uplinks other than one plain Ethernet device: what is reached, and with which source.
//!
//! If the kernel lacks a kind of device, its test prints that to standard error and passes.

use std::io::Write;

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::uplinks::{
    ASYMMETRIC, BOND, BRIDGE, GRE, IP6TNL, MACVLAN, OVERLAY, SIT, TUN, Tunnel, Uplink, VLAN, VXLAN,
};
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::packets::{Clients, Expected, Family, Proxy, Row, frontend, outside, rows};

use crate::node::{ip, on_this};
use crate::talk::while_clients_talk;

/// Pods here and on another node, at an address of the node and at one of a load balancer.
const PLACES: [(&str, &str); 4] =
    [("here", "node"), ("here", "balancer"), ("away", "node"), ("away", "balancer")];

/// Rows without silence, which the plain network covers.
fn quick_rows() -> Vec<Row> {
    let is_quick = |row: &Row| !matches!(row.expected(Proxy::Holdfast), Expected::Silent | Expected::Lost);
    rows().into_iter().filter(|row| row.client == "outside" && is_quick(row)).collect()
}

/// The network with that uplink; `None`: the kernel does not support it.
fn lay(switches: Switches, uplink: &Uplink) -> Option<Bed> {
    let bed = Bed::lay(&fabric::layout()).unwrap();
    if !uplink.is_known(&bed).unwrap() {
        // Writes directly to standard error: the test harness hides a passing test's output.
        let kind = uplink.kind;
        writeln!(std::io::stderr(), "not tried: this kernel has no devices of the kind {kind}").unwrap();
        return None;
    }
    fabric::lay_by(&bed, switches, uplink).unwrap();
    Some(bed)
}

/// `br0 outer: why`, in the order of the names.
fn shown(daemon: &Daemon<'_>, names: &[&str]) -> Vec<String> {
    let answer = daemon.ask(&["datapath"]).unwrap();
    let devices = answer["kernel"]["packets"]["devices"].as_array().unwrap();
    let of = |name: &&str| {
        let found = devices.iter().find(|it| it["name"] == *name);
        found.map_or_else(
            || format!("{name} is not there"),
            |it| {
                let text = |key: &str| it[key].as_str().unwrap_or_default().to_owned();
                let attached = if it["attached"] == true { ", attached" } else { "" };
                format!("{name} {}{attached}: {}", text("class"), text("why"))
            },
        )
    };
    names.iter().map(of).collect()
}

#[track_caller]
fn check_rows(clients: &mut Clients) {
    let lines = clients.differences(&quick_rows(), Proxy::Holdfast).unwrap();
    assert!(lines.is_empty(), "{} answers are not as expected:\n{}", lines.len(), lines.join("\n"));
}

/// Checks that all servers are reached, and that `/datapath` describes the devices as expected.
#[track_caller]
fn check(uplink: &Uplink, expected: &[&str]) {
    check_with(Switches::default(), uplink, expected, |_, _, _| ());
}

#[track_caller]
fn check_with(
    switches: Switches,
    uplink: &Uplink,
    expected: &[&str],
    more: impl FnOnce(&Bed, &mut Daemon<'_>, &mut Clients),
) {
    let Some(bed) = lay(switches, uplink) else { return };
    let _tunnel = (uplink.kind == "tun").then(|| Tunnel::start(&bed).unwrap());
    on_this(&bed, "", |bed, daemon, clients| {
        let names: Vec<&str> = expected.iter().filter_map(|it| it.split(' ').next()).collect();
        assert_eq!(shown(daemon, &names), expected);
        check_rows(clients);
        more(bed, daemon, clients);
    });
}

/// A bed's cable is a veth such as pods have, so the daemon takes it for one if no route uses it.
const BELOW: &str = "eth0 none: it leads to pods of this node alone: no route leads to a gateway by it";

/// The cable below a tunnel has an address in a network, so hosts other than a pod may be behind it.
const CARRIER: &str = "eth0 outer, attached: it has a global address";

const MEMBER: &str = "none: it is part of another device, which counts instead";

#[test]
fn a_vlan_serves_and_the_device_below_it_is_left_alone() {
    check(&VLAN, &["eth0.10 outer, attached: a route leads to a gateway by it", BELOW]);
}

#[test]
fn a_bond_serves_and_goes_on_when_its_active_member_is_pulled() {
    let member = [format!("eth0 {MEMBER}"), format!("eth1 {MEMBER}")];
    let expected =
        ["bond0 outer, attached: a route leads to a gateway by it", member[0].as_str(), member[1].as_str()];
    check_with(Switches::default(), &BOND, &expected, |bed, daemon, clients| {
        while_clients_talk(bed, &PLACES, || ip(bed, "router", "link set node down"));
        assert_eq!(shown(daemon, &["bond0"]), expected[..1]);
        check_rows(clients);
    });
}

#[test]
fn a_bridge_with_the_uplink_in_it_serves() {
    let member = format!("eth0 {MEMBER}");
    check(&BRIDGE, &["br0 outer, attached: a route leads to a gateway by it", member.as_str()]);
}

/// Filters see ingress packets at the bridge's port before translation, and conntrack records them there.
#[test]
fn a_bridge_with_the_uplink_serves_with_port_filters() {
    let switches = Switches { strict_rp_filter: true, guarded: true, ..Switches::default() };
    let Some(bed) = lay(switches, &BRIDGE) else { return };
    for name in ["bridge/bridge-nf-call-iptables", "bridge/bridge-nf-call-ip6tables"] {
        fabric::set(&bed, Location::OUTSIDE, name, "1").unwrap();
    }
    on_this(&bed, "", |bed, _, clients| {
        check_rows(clients);
        assert_eq!(fabric::invalid(bed).unwrap(), 0, "tracking knows client and backend, both ways");
    });
}

#[test]
fn a_macvlan_serves_and_the_device_below_it_is_left_alone() {
    check(&MACVLAN, &["mac0 outer, attached: a route leads to a gateway by it", BELOW]);
}

#[test]
fn a_vxlan_uplink_serves() {
    check(&VXLAN, &["vx0 outer, attached: a route leads to a gateway by it", CARRIER]);
}

const NEAR: &str = "near0 outer, attached: a route leads to a gateway by it";

/// cilium#12304, #12317: devices without a hardware address were skipped.
#[test]
fn a_tun_serves_though_it_has_no_hardware_address() {
    check_with(Switches::default(), &TUN, &[NEAR], |bed, _, _| while_clients_talk(bed, &PLACES, || ()));
}

#[test]
fn a_sit_tunnel_serves() {
    check(&SIT, &[NEAR, CARRIER]);
}

#[test]
fn a_gre_tunnel_serves() {
    check(&GRE, &[NEAR, CARRIER]);
}

#[test]
fn a_tunnel_over_ipv6_serves() {
    check(&IP6TNL, &[NEAR, CARRIER]);
}

/// Backends of the other node see the tunnel's local address, so that replies return through it.
#[test]
fn an_overlay_reaches_remote_backends() {
    let overlay = "flannel.1 outer, attached: a route leads to a gateway by it";
    check_with(Switches::default(), &OVERLAY, &[overlay], |bed, _, clients| {
        for (family, address) in [(Family::V4, "10.244.200.1"), (Family::V6, "fd00:244:200::1")] {
            let question = Question::new(Transport::Tcp, frontend("away", "balancer", family).unwrap());
            let outcome = clients.client("outside").unwrap().ask(question.from(outside(family, 0))).unwrap();
            let Outcome::Answered { seen, .. } = outcome else { panic!("{outcome:?}") };
            assert_eq!(seen.ip().to_string(), address);
        }
        while_clients_talk(bed, &PLACES, || ());
    });
}

/// Pods of the other node are behind a device that the configuration leaves out: it names the uplink alone.
#[test]
fn backends_behind_a_left_out_device_are_reached_and_reported() {
    let Some(bed) = lay(Switches::default(), &OVERLAY) else { return };
    let why = "packets.devices does not name it, though a route to other hosts uses it: backends behind it are \
               reachable, but clients that arrive there are not served";
    on_this(&bed, "[packets]\ndevices = [\"eth0\"]\n", |bed, daemon, clients| {
        assert_eq!(shown(daemon, &["flannel.1"]), [format!("flannel.1 backends, attached: {why}")]);
        let status = daemon.tell(&["status"]).unwrap();
        assert!(status.contains(&format!("left out   flannel.1 ({why})")), "{status}");
        check_rows(clients);
        while_clients_talk(bed, &PLACES, || ());
        let found = daemon.tell(&["diagnose", "default/away", "--no-probe", "-o", "json"]).unwrap();
        assert!(found.contains("packets.devices leaves out flannel.1, which leads to"), "{found}");
    });
}

const BOTH_OUTER: [&str; 2] = [
    "eth0 outer, attached: a route leads to a gateway by it",
    "eth1 outer, attached: a route leads to a gateway by it",
];

fn set_rp_filter(bed: &Bed, value: &str) {
    for name in ["all", "eth0", "eth1", "pod-a", "cni0"] {
        fabric::set(bed, Location::OUTSIDE, &format!("ipv4/conf/{name}/rp_filter"), value).unwrap();
    }
}

/// calico#4942, #9675, #10511: a request arrives on one uplink, and its reply leaves on the other.
#[test]
fn replies_may_leave_on_another_uplink() {
    check_with(Switches::default(), &ASYMMETRIC, &BOTH_OUTER, |bed, _, clients| {
        set_rp_filter(bed, "2");
        check_rows(clients);
        while_clients_talk(bed, &PLACES, || ());
    });
}

/// A strict filter drops packets that arrive on another device than their replies would use, with any proxy; clients
/// of pods themselves are dropped as well.
#[test]
fn strict_rp_filter_drops_requests_on_the_wrong_uplink() {
    check_with(Switches::default(), &ASYMMETRIC, &BOTH_OUTER, |bed, _, clients| {
        set_rp_filter(bed, "1");
        let direct = "10.244.1.10:8080".parse().unwrap();
        let asked = [frontend("here", "node", Family::V4).unwrap(), direct];
        let questions = asked.map(|to| Question::new(Transport::Tcp, to).from(outside(Family::V4, 0)));
        let outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
        assert_eq!(outcomes, [Outcome::Silent, Outcome::Silent]);
    });
}

/// With symmetric routing, the strict filter accepts clients. On a bridge and on a link, it checks the pods' own
/// devices too.
#[test]
fn rp_filter_accepts_clients_on_the_right_uplink() {
    for uplink in [BRIDGE, MACVLAN, OVERLAY] {
        check_with(
            Switches { strict_rp_filter: true, ..Switches::default() },
            &uplink,
            &[],
            |bed, _, clients| {
                fabric::set(bed, Location::OUTSIDE, "ipv4/conf/all/rp_filter", "2").unwrap();
                check_rows(clients);
            },
        );
    }
}
