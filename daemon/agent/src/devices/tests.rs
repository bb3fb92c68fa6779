//! The classes of devices, from tables of links, addresses and routes; and the kernel's listing of a network
//! namespace.

mod behind;
mod shortcuts;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use holdfast_datapath::LiveMaps;
use holdfast_status::views::devices::{DeviceClass, DeviceDecision};
use holdfast_status::views::proxies::OtherProxy;
use tokio::sync::watch;

use super::decide::decide;
use super::listing::{Address, GatewayRoute, KernelListing, Link, Network};
use super::snat::{find_overlap, free_ranges, parse_waiting_ports};
use super::{Observers, RELIST_EVERY};
use crate::engine::query;
use holdfast_config::Config;
use holdfast_fixtures::clock::{Stopwatch, await_event};
use holdfast_fixtures::network_namespace;

/// A listing in lines: `INDEX NAME KIND [here] [watched] [in MASTER] [on BELOW] [ADDRESS[/BITS] …]
/// [route|gateway|default] [via GATEWAY] [from SOURCE] [net NETWORK/BITS[@GATEWAY] …] [strict]`. A kind of "-" is
/// hardware, "tap" a "tun" with an Ethernet header. `here` puts the link's other end on this node too; `via` and
/// `from` are of default routes.
fn listed(text: &str) -> KernelListing {
    let mut listed = KernelListing::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let mut words = line.split(' ');
        let index: u32 = words.next().unwrap().parse().unwrap();
        let name = words.next().unwrap().to_owned();
        let kind = words.next().unwrap();
        let mut link = Link {
            index,
            name,
            kind: kind.replace('-', "").replace("tap", "tun").replace("loopback", ""),
            is_loopback: kind == "loopback",
            is_ethernet: !matches!(kind, "tun" | "wireguard" | "loopback"),
            master: None,
            is_peer_local: false,
            lower_link: None,
            is_observed: false,
        };
        while let Some(word) = words.next() {
            match word {
                "here" => link.is_peer_local = true,
                "watched" => link.is_observed = true,
                "on" => link.lower_link = words.next().map(|below| below.parse().unwrap()),
                "in" => link.master = words.next().map(|master| master.parse().unwrap()),
                "route" => _ = listed.routed.insert(index),
                "strict" => _ = listed.strict.insert(index),
                "gateway" => _ = listed.gateways.insert(index),
                "default" => {
                    listed.gateways.insert(index);
                    listed.defaults.insert(index);
                }
                "net" => {
                    let (network, gateway) =
                        words.next().map(|it| it.split_once('@').unwrap_or((it, ""))).unwrap();
                    let (address, bits) = network.split_once('/').unwrap();
                    let (address, bits) = (address.parse().unwrap(), bits.parse().unwrap());
                    let gateway = gateway.parse().ok();
                    listed.networks.insert(Network { index, address, bits, gateway });
                }
                "via" | "from" => {
                    let address = words.next().map(|address| address.parse().unwrap());
                    let way = GatewayRoute { index, is_default: true, gateway: None, source: None };
                    listed.gateway_routes.insert(if word == "via" {
                        GatewayRoute { gateway: address, ..way }
                    } else {
                        GatewayRoute { source: address, ..way }
                    });
                }
                address => {
                    let (address, bits) = address.split_once('/').unwrap_or((address, "24"));
                    let (address, bits) = (address.parse().unwrap(), bits.parse().unwrap());
                    listed.addresses.push(Address { index, address, bits });
                }
            }
        }
        listed.links.push(link);
    }
    listed
}

fn decided(packets: &str, world: &KernelListing) -> Vec<DeviceDecision> {
    decided_beside(packets, world, &Observers::default())
}

fn decided_beside(packets: &str, world: &KernelListing, onlookers: &Observers) -> Vec<DeviceDecision> {
    let text = format!("[manifests]\npath = \"/m\"\n[packets]\n{packets}\n");
    let (config, _) = Config::parse(&text, "config.toml").unwrap();
    decide(world, &config.packets, onlookers)
}

/// The decisions in lines: `NAME CLASS REASON [ADDRESS …] [near NETWORK …]`, with the reason's name in the code.
fn shown(decisions: &[DeviceDecision]) -> String {
    decisions.iter().fold(String::new(), |mut out, it| {
        write!(out, "{} {} {:?}", it.name, it.class.as_str(), it.reason).unwrap();
        it.address4.iter().for_each(|address| write!(out, " {address}").unwrap());
        it.address6.iter().for_each(|address| write!(out, " {address}").unwrap());
        it.local_networks().iter().for_each(|network| write!(out, " near {network}").unwrap());
        out + "\n"
    })
}

#[track_caller]
fn check(packets: &str, world: &str, expected: &str) {
    let trimmed =
        |text: &str| text.lines().map(str::trim).filter(|it| !it.is_empty()).collect::<Vec<_>>().join("\n");
    let mut world = listed(world);
    assert_eq!(trimmed(&shown(&decided(packets, &world))), trimmed(expected), "{packets}");
    world.links.reverse();
    assert_eq!(trimmed(&shown(&decided(packets, &world))), trimmed(expected), "in another order");
}

#[test]
fn a_plain_node_has_one_outer_device() {
    check(
        "",
        "1 lo loopback
         2 eth0 - 10.0.0.5 fd00::5 fd00::6 default
         3 eth1 -
         4 kube-ipvs0 dummy 10.96.0.1
         5 docker0 bridge 172.17.0.1
         6 cni0 bridge 10.244.0.1
         7 veth1 veth in 6
         8 veth2 veth 10.244.0.1/32",
        "lo none Loopback
         eth0 outer Gateway 10.0.0.5 fd00::5
         eth1 none NoAddress
         kube-ipvs0 none Dummy
         docker0 near LocalPodsOnly
         cni0 near LocalPodsOnly
         veth1 none Member
         veth2 near LocalPodsOnly",
    );
}

#[test]
fn a_device_of_any_kind_that_leads_to_others_is_outer() {
    check(
        "",
        "1 lo loopback 10.9.9.9
         2 eth0 - in 4
         3 eth1 - in 4
         4 bond0 bond
         5 bond0.100 vlan 10.0.0.5 default
         6 br0 bridge 192.168.1.5
         7 eth2 - in 6
         8 tap0 tap in 6
         9 wg0 wireguard 10.8.0.1
         10 tun0 tun 10.7.0.1
         11 flannel.1 vxlan 10.244.0.0 gateway
         12 eth3 - 10.1.0.5 in 13
         13 red vrf
         14 macvlan0 macvlan fd00::9",
        "lo none Loopback
         eth0 none Member
         eth1 none Member
         bond0 none NoAddress
         bond0.100 outer Gateway 10.0.0.5 fd00::9
         br0 outer Address 192.168.1.5 fd00::9
         eth2 none Member
         tap0 none Member
         wg0 outer Address 10.8.0.1 fd00::9
         tun0 outer Address 10.7.0.1 fd00::9
         flannel.1 outer Gateway 10.244.0.0 fd00::9
         eth3 outer Address 10.1.0.5 fd00::9
         red none NoAddress
         macvlan0 outer Address 10.0.0.5 fd00::9",
    );
}

#[test]
fn a_veth_or_bridge_with_a_gateway_is_outer() {
    check(
        "",
        "2 eth0 veth 172.18.0.2 default
         3 br0 bridge 10.0.0.5 gateway",
        "eth0 outer Gateway 172.18.0.2
         br0 outer Gateway 10.0.0.5 near 10.0.0.0/24",
    );
}

/// Weave and other layer 2 networks have the pods of all nodes behind one bridge, and EVPN or Proxmox the machines of
/// all hosts. Replies of pods elsewhere return by this node only if it uses its own address as source.
#[test]
fn a_bridge_with_a_member_other_than_pods_is_outer() {
    for member in ["vxlan", "geneve", "gretap", "macsec", "dsa", "vlan", "macvlan", "veth here", "bond", "-"]
    {
        let (kind, here) = member.split_once(' ').unwrap_or((member, ""));
        let here = if here.is_empty() { String::new() } else { format!(" {here}") };
        check(
            "",
            &format!(
                "2 eth0 - 192.0.2.5 default
                 3 weave bridge 10.32.0.1/12
                 4 veth1 veth in 3
                 5 up {kind}{here} in 3"
            ),
            "eth0 outer Gateway 192.0.2.5
             weave outer Address 10.32.0.1
             veth1 none Member
             up none Member",
        );
    }
    for member in ["veth", "netkit", "tap", "dummy"] {
        check(
            "",
            &format!(
                "2 eth0 - 192.0.2.5 default
                 3 cni0 bridge 10.244.0.1
                 5 pod {member} in 3"
            ),
            "eth0 outer Gateway 192.0.2.5
             cni0 near LocalPodsOnly
             pod none Member",
        );
    }
}

#[test]
fn a_device_without_an_address_uses_the_default_routes_address() {
    check(
        "",
        "2 eth0 - 10.0.0.5
         3 eth1 - 10.1.0.5 default
         4 eth2 - gateway",
        "eth0 outer Address 10.0.0.5
         eth1 outer Gateway 10.1.0.5
         eth2 outer Gateway 10.1.0.5",
    );
}

#[test]
fn configured_names_override_everything_but_the_loopback() {
    check("devices = [\"lo\"]", "1 lo loopback 10.9.9.9", "lo none Loopback");
    check(
        "devices = [\"eth1\", \"eth9\"]\npod_devices = [\"veth*\", \"eth1\"]",
        "1 lo loopback
         2 eth0 - 10.0.0.5 default
         3 eth1 -
         4 veth7 veth",
        "lo none Loopback
         eth0 backends ExcludedUplink 10.0.0.5
         eth1 outer Configured 10.0.0.5
         veth7 pod PodConfigured 10.0.0.5
         eth9 none Absent",
    );
}

#[test]
fn pods_are_served_at_each_device_that_leads_to_one() {
    check(
        "pod_devices = \"auto\"",
        "1 lo loopback
         2 eth0 - 10.0.0.5 default
         3 cni0 bridge 10.244.0.9
         4 veth1 veth in 3
         5 ptp1 veth 10.244.0.1/32
         6 tap7 tap
         7 nk0 netkit
         8 up veth 172.18.0.2 gateway",
        "lo none Loopback
         eth0 outer Gateway 10.0.0.5
         cni0 near LocalPodsOnly
         veth1 pod LeadsToPod 10.244.0.9
         ptp1 pod LeadsToPod 10.244.0.1
         tap7 pod LeadsToPod 10.0.0.5
         nk0 pod LeadsToPod 10.0.0.5
         up outer Gateway 172.18.0.2",
    );
}

/// kube-vip and keepalived set such addresses, and the kernel may list one first: it lists IPv6 addresses newest
/// first, IPv4 addresses oldest first.
#[test]
fn a_floating_address_is_a_source_only_without_another() {
    check(
        "",
        "1 lo loopback
         2 eth0 - 10.0.0.99/32 10.0.0.5/24 fd00::99/128 fd00::5/64 default",
        "lo none Loopback
         eth0 outer Gateway 10.0.0.5 fd00::5",
    );
    check("", "2 eth0 - 10.0.0.99/32 fd00::99/128 default", "eth0 outer Gateway 10.0.0.99 fd00::99");
}

#[test]
fn backends_see_the_source_address_of_the_route() {
    check(
        "",
        "2 eth0 - 10.9.0.5/24 10.0.0.5/24 fd00::55/64 fd00::5/64 default via 10.0.0.1 via fe80::1 from fd00::5",
        "eth0 outer Gateway 10.0.0.5 fd00::5",
    );
    check(
        "",
        "2 eth0 - 10.128.0.99/32 10.128.0.5/32 default from 10.128.0.5",
        "eth0 outer Gateway 10.128.0.5",
    );
}

/// Pods of other nodes may be behind an overlay that the configuration does not name.
#[test]
fn an_excluded_uplink_serves_backends_only_and_its_reason_says_so() {
    check(
        "devices = [\"eth0\"]",
        "2 eth0 - 10.0.0.5 default
         3 flannel.1 vxlan 10.244.0.0 gateway
         4 docker0 bridge 172.17.0.1
         5 wg0 wireguard route
         6 eth1 - 10.1.0.5
         7 eth2 - in 8
         8 bond0 bond
         9 veth7 veth route",
        "eth0 outer Configured 10.0.0.5
         flannel.1 backends ExcludedUplink 10.244.0.0
         docker0 near LocalPodsOnly
         wg0 backends ExcludedUplink 10.0.0.5
         eth1 backends ExcludedLocalPods 10.1.0.5
         eth2 none NotConfigured
         bond0 none NotConfigured
         veth7 near LocalPodsOnly",
    );
}

/// As Calico and Cilium route by WireGuard: without a gateway or an address at the device.
#[test]
fn a_routed_tunnel_is_outer_without_gateway_or_address() {
    check(
        "",
        "2 eth0 - 10.0.0.5 default
         3 wg0 wireguard route
         4 veth7 veth route",
        "eth0 outer Gateway 10.0.0.5
         wg0 outer Route 10.0.0.5
         veth7 near LocalPodsOnly",
    );
}

/// Routing on the host: the uplink has no address, and the node's is elsewhere.
#[test]
fn an_uplink_without_an_address_uses_the_nodes_other_address() {
    check(
        "",
        "1 lo loopback 10.0.0.99/32 10.0.0.5/32 fd00::5/128
         2 eth0 - default from 10.0.0.5",
        "lo none Loopback
         eth0 outer Gateway 10.0.0.5 fd00::5",
    );
    check(
        "",
        "1 lo loopback
         2 eth0 - default
         3 node0 dummy 10.0.0.5/32 fd00::5/128",
        "lo none Loopback
         eth0 outer Gateway 10.0.0.5 fd00::5
         node0 none Dummy",
    );
}

/// A containerized node in two networks of its host, one of them without a gateway.
#[test]
fn a_veth_with_a_network_address_leads_to_more_than_one_pod() {
    for pods in ["", "pod_devices = \"auto\""] {
        check(
            pods,
            "2 eth0 veth 172.18.0.2 default
             3 eth1 veth 10.9.0.2 fd00:9::2/64
             4 ptp1 veth 10.244.0.1/32 fd00:244::1/128
             5 ptp2 netkit 10.244.0.1/30",
            &format!(
                "eth0 outer Gateway 172.18.0.2 fd00:9::2
                 eth1 outer Address 10.9.0.2 fd00:9::2
                 {}",
                if pods.is_empty() {
                    "ptp1 near LocalPodsOnly\nptp2 near LocalPodsOnly"
                } else {
                    "ptp1 pod LeadsToPod 10.244.0.1 fd00:244::1\nptp2 pod LeadsToPod 10.244.0.1 fd00:9::2"
                }
            ),
        );
    }
}

/// A container's only uplink is a veth too.
#[test]
fn a_device_with_a_gateway_leads_to_no_pod() {
    check(
        "devices = [\"eth1\"]\npod_devices = \"auto\"",
        "2 eth0 veth 172.18.0.2 default
         3 eth1 veth 172.19.0.2
         4 veth7 veth",
        "eth0 backends ExcludedUplink 172.18.0.2
         eth1 outer Configured 172.19.0.2
         veth7 pod LeadsToPod 172.19.0.2",
    );
}

#[test]
fn snat_ports_that_overlap_ephemeral_ports_are_found() {
    let ranges = [61_000..=65_535, 40_000..=40_010];
    assert_eq!(find_overlap(&ranges, "32768\t60999\n", ""), Some(40_000..=40_010));
    assert_eq!(find_overlap(&ranges[..1], "32768\t60999\n", ""), None);
    assert_eq!(find_overlap(&ranges[..1], "1024 65535", ""), Some(61_000..=65_535));
    assert_eq!(find_overlap(&ranges[..1], "1024 62000", "61000-61998\n"), Some(61_999..=62_000));
    assert_eq!(find_overlap(&ranges[..1], "1024 65535", "8080,61000-65535"), None);
    assert_eq!(find_overlap(&ranges, "", ""), None);
}

#[test]
fn the_kernel_lists_this_network_namespace_whole() {
    let listed = super::netlink::list().unwrap();
    let indices: BTreeSet<u32> = listed.links.iter().map(|link| link.index).collect();
    assert_eq!(indices.len(), listed.links.len(), "each once");
    assert!(listed.links.iter().any(|link| link.is_loopback && link.name == "lo"));
    assert!(listed.addresses.iter().all(|it| indices.contains(&it.index)));
    assert!(listed.gateways.is_superset(&listed.defaults) && listed.gateways.is_subset(&indices));
}

fn ip(arguments: &str) {
    let done = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Runs a test while the devices of this thread's network namespace are followed, and checks that the engine is
/// notified.
async fn follow(
    test: impl AsyncFnOnce(&mut watch::Receiver<Arc<[DeviceDecision]>>, &watch::Sender<Arc<Config>>),
) {
    let (config, configs) = watch::channel(Arc::new(Config::default()));
    let (decisions, mut now) = watch::channel(Arc::default());
    // Nothing scans for a firewall here.
    let ((_, onlookers), (_, proxies)) =
        (watch::channel(Observers::default()), watch::channel(Arc::default()));
    let (engine, mut asked) = query::channel();
    let told = (decisions, watch::channel(LiveMaps::default()).1);
    let following = tokio::spawn(super::run(configs, (onlookers, proxies), told, engine));
    test(&mut now, &config).await;
    assert!(asked.try_recv().is_ok(), "the engine is notified at once");
    following.abort();
}

/// Waits for a decision.
async fn until(now: &mut watch::Receiver<Arc<[DeviceDecision]>>, expected: &str) {
    let (last, holds) = (now.clone(), now.wait_for(|decisions| shown(decisions).contains(expected)));
    let what = std::fmt::from_fn(|f| write!(f, "{expected:?}; there is:\n{}", shown(&last.borrow())));
    await_event(what, holds).await.unwrap();
}

#[test]
fn kernel_added_changed_and_removed_devices_are_followed() {
    network_namespace::block_on_inside(async || {
        // Without the kernel's notice, this clock jumps to the next listing.
        tokio::time::pause();
        follow(async |now, config| {
            until(now, "lo none Loopback\n").await;
            ip("link add near type veth peer name away");
            until(now, "near none LocalPeer\n").await;
            ip("address add 10.9.0.1/24 dev near");
            ip("address add 10.9.0.9/24 dev near");
            ip("link set near up");
            ip("route add default via 10.9.0.2 dev near");
            let changed = Stopwatch::start();
            until(now, "near outer Gateway 10.9.0.1\n").await;
            assert!(changed.read() < RELIST_EVERY, "no notice of the kernel came");
            ip("link set near name uplink");
            until(now, "uplink outer Gateway 10.9.0.1\n").await;
            let (named, _) = Config::parse("[packets]\npod_devices = [\"aw*\"]\n", "config.toml").unwrap();
            config.send_replace(Arc::new(named));
            until(now, "away pod PodConfigured 10.9.0.1\n").await;
            ip("route delete default");
            until(now, "uplink none LocalPeer\n").await;
            ip("route add 10.8.0.0/16 nexthop via 10.9.0.3 dev uplink nexthop via 10.9.0.4 dev uplink");
            until(now, "uplink outer Gateway 10.9.0.1\n").await;
            ip("address add 10.244.1.7/32 dev away");
            ip("link set away up");
            ip("route add 10.244.1.0/24 via 10.244.1.7 dev away src 10.244.1.7");
            until(now, "away outer Gateway 10.244.1.7 near 10.244.1.0/24\n").await;
            ip("link delete uplink");
            let gone = now.wait_for(|decisions| !shown(decisions).contains("uplink"));
            await_event("the device is gone", gone).await.unwrap();
        })
        .await;
    });
}

/// Connections between the same hosts may share a route look-up only without either.
#[test]
fn kernel_port_rules_and_multipath_routes_are_found_in_each_family() {
    network_namespace::run_inside(|| {
        for arguments in [
            "link add near type veth peer name away",
            "address add 10.9.0.1/24 dev near",
            "address add fd09::1/64 dev near nodad",
            "link set near up",
            "link set away up",
            "rule add from 10.7.0.0/16 ipproto udp lookup 100",
            "rule add tos 0x10 fwmark 7 lookup 100",
            "route add 10.7.0.0/16 via 10.9.0.2",
        ] {
            ip(arguments);
        }
        for (arguments, expected) in [
            ("rule show", [false, false]),
            ("rule add dport 22 lookup 100", [true, false]),
            ("rule delete dport 22 lookup 100", [false, false]),
            ("-6 rule add sport 53-54 lookup 100", [false, true]),
            ("-6 rule delete sport 53-54 lookup 100", [false, false]),
            (
                "-6 route add fd08::/64 nexthop via fd09::3 dev near nexthop via fd09::4 dev near",
                [false, true],
            ),
            (
                "route add 10.8.0.0/16 nexthop via 10.9.0.3 dev near nexthop via 10.9.0.4 dev near",
                [true, true],
            ),
        ] {
            ip(arguments);
            let listed = super::netlink::list().unwrap();
            assert_eq!(listed.port_rules, expected, "{arguments}");
            let plain = expected.map(|by_ports| !by_ports);
            let decided = decide(&listed, &Config::default().packets, &Observers::default());
            assert!(decided.iter().all(|decision| decision.fib_ignores_ports == plain), "{arguments}");
        }
    });
}

/// A segment that starts no flow and matches none may belong to another proxy's connection, until the search for
/// proxies has found none.
#[test]
fn kernel_flows_are_not_adopted_while_another_proxy_may_have_clients() {
    network_namespace::block_on_inside(async || {
        ip("link add near type veth peer name away");
        ip("address add 10.9.0.1/24 dev near");
        ip("link set near up");
        ip("route add default via 10.9.0.2 dev near");
        let (_config, configs) = watch::channel(Arc::new(Config::default()));
        let (decisions, mut now) = watch::channel::<Arc<[DeviceDecision]>>(Arc::default());
        let (_seen, onlookers) = watch::channel(Observers::default());
        let (found, proxies) = watch::channel(Arc::default());
        let told = (decisions, watch::channel(LiveMaps::default()).1);
        let following = tokio::spawn(super::run(configs, (onlookers, proxies), told, query::channel().0));
        until(&mut now, "near outer").await;
        assert!(now.borrow().iter().all(|it| !it.adopts_flows), "no scan has run yet");
        for (there, expected) in [("", true), ("kube-proxy", false), ("Antrea", true)] {
            let proxy = OtherProxy { proxy: there, evidence: Vec::new(), traces: Vec::new() };
            found.send_replace([proxy].into_iter().filter(|it| !it.proxy.is_empty()).collect());
            let joins = |it: &DeviceDecision| it.adopts_flows;
            let turned = now.wait_for(|all| all.iter().any(joins) == expected);
            await_event(there, turned).await.unwrap();
            let of_clients = |it: &DeviceDecision| it.class == DeviceClass::Outer;
            assert!(now.borrow().iter().all(|it| !it.adopts_flows || of_clients(it)), "{there:?}");
        }
        following.abort();
    });
}

#[test]
fn snat_uses_the_largest_free_port_ranges() {
    let usual = 32_768..=60_999;
    assert_eq!(free_ranges(&usual, &[]), [1_024..=23_999, 61_000..=65_535]);
    let taken = [6_443..=6_443, 10_248..=10_260, 2_379..=2_380, 61_000..=61_000, 9_890..=9_890];
    let four = [2_381..=6_442, 6_444..=9_889, 10_261..=23_999, 61_001..=65_535];
    assert_eq!(free_ranges(&usual, &taken), four, "the largest free ranges");
    assert_eq!(free_ranges(&(1_024..=65_535), &[]), [61_000..=65_535], "the fallback range");
}

#[test]
fn waiting_ports_are_parsed_from_a_list_of_sockets() {
    let list = "  sl  local_address rem_address   st tx_queue rx_queue\n\
        \x20  0: 0100007F:26A2 00000000:0000 0A 00000000:00000000 00:00000000 00000000\n\
        \x20  1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000\n\
        \x20  2: 00000000000000000000000000000000:14E9 00000000000000000000000000000000:0000 07 0:0\n\
        \x20  3: strange\n";
    assert_eq!(parse_waiting_ports(list), [0x26a2, 0x14e9]);
}
