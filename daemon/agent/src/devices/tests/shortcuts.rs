//! Which devices use the fast path, and how soon a firewall takes effect.

use std::sync::Arc;
use std::time::Duration;

use holdfast_datapath::{DeviceSide, LiveMaps, XdpUse};
use holdfast_status::views::devices::DeviceDecision;
use holdfast_status::views::devices::FastPathDecision::{
    self, DisabledByConfig, Enabled, ForwardMark, NoClientDevice, NoEthernet, NoOutsideFlows,
    ObserverPresent, RoutedByAddress, StrictRpFilter, TooManyDevices,
};

use tokio::sync::watch;

use super::super::conntrack::Conntrack;
use super::super::listing::{RoutingRule, RuleSelector};
use super::super::{DeviceFollower, Observers, netlink};
use super::{decided_beside, ip, listed};
use crate::engine::query;
use holdfast_config::Config;
use holdfast_fixtures::clock::Stopwatch;
use holdfast_fixtures::network_namespace;

const ONE_WAY: &str = "2 eth0 - 10.0.0.5 default";
const TWO_WAYS: &str = "2 eth0 - 10.0.0.5 default\n3 eth1 - 10.1.0.5 strict";

fn from_node() -> RoutingRule {
    RoutingRule {
        priority: 1,
        selector: RuleSelector::Source([10, 0, 0, 5].into(), 32),
        table: 100,
        is_v4: true,
    }
}

fn beside(first: Option<&str>) -> Observers {
    Observers { first: first.map(Into::into), has_policies: false }
}

#[track_caller]
fn check(
    packets: &str,
    world: &str,
    rules: &[RoutingRule],
    onlooker: Option<&str>,
    expected: &[FastPathDecision],
) {
    let mut world = listed(world);
    world.rules = rules.to_vec();
    let decided = decided_beside(packets, &world, &beside(onlooker));
    let decided: Vec<_> = decided.into_iter().map(|it| it.fast_path).collect();
    assert_eq!(decided, expected, "{packets} {world:?} {onlooker:?}");
}

#[test]
fn packets_take_the_fast_path_unless_an_observer_needs_them() {
    check("", ONE_WAY, &[], None, &[Enabled]);
    check(
        "",
        "1 lo loopback\n2 eth0 - 10.0.0.5 default\n3 eth1 -",
        &[],
        None,
        &[NoOutsideFlows, Enabled, NoOutsideFlows],
    );
    check("", ONE_WAY, &[], Some("a policy of IPsec"), &[ObserverPresent("a policy of IPsec".into())]);
    check("", ONE_WAY, &[from_node()], None, &[RoutedByAddress]);
    check("", "2 wg0 wireguard 10.0.0.5 default", &[], None, &[NoEthernet]);
    let overlay = "2 eth0 - 10.0.0.5\n3 flannel.1 vxlan gateway";
    check("devices = [\"eth0\"]", overlay, &[], None, &[Enabled, Enabled]);
}

/// A node with a pod behind its own link, one behind a bridge, and one with observed packets.
const PODS: &str = "2 eth0 - 10.0.0.5 default
7 veth1 veth
8 cni0 bridge 10.244.0.1
9 veth2 veth in 8
10 veth3 veth watched
11 macvtap1 macvtap
12 br0 bridge
13 vlan5 vlan on 12";

#[test]
fn pods_packets_take_the_fast_path_if_clients_packets_do() {
    check(
        "",
        PODS,
        &[],
        None,
        &[Enabled, Enabled, Enabled, NoOutsideFlows, Enabled, NoOutsideFlows, NoOutsideFlows, NoOutsideFlows],
    );
    let needed = || ObserverPresent("a policy of IPsec".into());
    let expected = [
        needed(),
        needed(),
        needed(),
        NoOutsideFlows,
        needed(),
        NoOutsideFlows,
        NoOutsideFlows,
        NoOutsideFlows,
    ];
    check("", PODS, &[], Some("a policy of IPsec"), &expected);
    check(
        "shortcut = \"never\"",
        PODS,
        &[],
        None,
        &[
            DisabledByConfig,
            DisabledByConfig,
            DisabledByConfig,
            NoOutsideFlows,
            DisabledByConfig,
            NoOutsideFlows,
            NoOutsideFlows,
            NoOutsideFlows,
        ],
    );
    let expected = [
        RoutedByAddress,
        NoClientDevice,
        NoClientDevice,
        NoOutsideFlows,
        NoClientDevice,
        NoOutsideFlows,
        NoOutsideFlows,
        NoOutsideFlows,
    ];
    check("", PODS, &[from_node()], None, &expected);
    let expected =
        [Enabled, Enabled, Enabled, NoOutsideFlows, Enabled, NoOutsideFlows, NoOutsideFlows, NoOutsideFlows];
    check("devices = [\"eth0\"]", PODS, &[], None, &expected);
    check("pod_devices = [\"veth*\"]", PODS, &[], None, &expected);
    let expected = [
        RoutedByAddress,
        Enabled,
        NoClientDevice,
        NoOutsideFlows,
        Enabled,
        NoOutsideFlows,
        NoOutsideFlows,
        NoOutsideFlows,
    ];
    check("pod_devices = [\"veth*\"]", PODS, &[from_node()], None, &expected);
}

/// If clients' packets go to other nodes unchanged, the stack sees none of them.
#[test]
fn ipsec_policies_reach_each_uplink_whatever_the_shortcut_setting() {
    for packets in ["", "shortcut = \"always\"", "devices = [\"eth0\"]"] {
        let world = listed(&format!("1 lo loopback\n{TWO_WAYS}\n4 eth2 -"));
        for has_policies in [false, true] {
            let decided = decided_beside(packets, &world, &Observers { first: None, has_policies });
            let decided: Vec<_> = decided.iter().map(|it| it.has_ipsec).collect();
            assert_eq!(decided, [false, has_policies, has_policies, false], "{packets}");
        }
    }
}

/// Passing conditions such as a firewall do not count: the program at a driver stays.
#[test]
fn uplink_drivers_run_xdp_if_configured() {
    let check = |packets: &str, world: &str, onlooker: Option<&str>, expected: &[XdpUse]| {
        let decided = decided_beside(packets, &listed(world), &beside(onlooker));
        let decided: Vec<_> = decided.into_iter().map(|it| it.xdp).collect();
        assert_eq!(decided, expected, "{packets} {world} {onlooker:?}");
    };
    const ASKED: &str = "xdp = \"native\"";
    let (never, native) = (XdpUse::Never, XdpUse::Native);
    check("", ONE_WAY, None, &[never]);
    check(ASKED, ONE_WAY, None, &[native]);
    check(ASKED, ONE_WAY, Some("a policy of IPsec"), &[native]);
    check(ASKED, TWO_WAYS, None, &[native, native]);
    check("xdp = \"native\"\nshortcut = \"never\"", ONE_WAY, None, &[never]);
    check("xdp = \"native\"\nforward_mark = \"0x4000\"", ONE_WAY, None, &[never]);
    check(ASKED, "2 wg0 wireguard 10.0.0.5 default", None, &[never]);
    check(ASKED, "1 lo loopback\n2 eth0 - 10.0.0.5 default\n7 veth1 veth", None, &[never, native, never]);
    let overlay = "2 eth0 - 10.0.0.5\n3 flannel.1 vxlan gateway";
    check("xdp = \"native\"\ndevices = [\"eth0\"]", overlay, None, &[native, native]);
}

/// Packets must wait in a device's queue, usually for a pod's bandwidth limit.
#[test]
fn packets_go_directly_to_the_peer_of_a_link_without_a_queue() {
    let decided = decided_beside("", &listed(PODS), &Observers::default());
    let told = |it: &DeviceDecision| (it.peer, it.to_device().map(|device| device.side));
    let near = |peer| (peer, Some(DeviceSide::LocalPods));
    let nothing = (false, None);
    let outer = (true, Some(DeviceSide::Outer));
    let expected = [outer, near(true), near(false), nothing, near(false), nothing, nothing, nothing];
    assert_eq!(decided.iter().map(told).collect::<Vec<_>>(), expected);
    let decided = decided_beside("pod_devices = [\"veth*\"]", &listed(PODS), &Observers::default());
    let pods = decided.iter().map(told).filter(|it| it.1 == Some(DeviceSide::Pod)).collect::<Vec<_>>();
    let pod = |peer| (peer, Some(DeviceSide::Pod));
    assert_eq!(pods, [pod(true), pod(true), pod(false)]);
}

/// The programs need entries for the devices of client pods.
#[test]
fn fast_paths_of_pods_leave_entries_for_client_pods() {
    let pods = (0..600).map(|at| format!("{} veth{at} veth\n", 10 + at)).collect::<String>();
    let decided =
        decided_beside("", &listed(&format!("2 eth0 - 10.0.0.5 default\n{pods}")), &Observers::default());
    let count = |wanted: FastPathDecision| decided.iter().filter(|it| it.fast_path == wanted).count();
    assert_eq!((count(Enabled), count(TooManyDevices)), (1 + 512, 88));
    let taps = (0..3_500).map(|at| format!("{} tap{at} tap\n", 1000 + at)).collect::<String>();
    let world = listed(&format!("2 eth0 - 10.0.0.5 default\n{pods}{taps}"));
    let decided = decided_beside("pod_devices = [\"tap*\"]", &world, &Observers::default());
    let count = |wanted: FastPathDecision| decided.iter().filter(|it| it.fast_path == wanted).count();
    let expected = (1 + 340 + 512, 260 + 2_988);
    assert_eq!(
        (count(Enabled), count(TooManyDevices)),
        expected,
        "3,840 minus 3,500 client pods, 512 of them with a fast path"
    );
}

/// A bridge's filter has this node's conntrack state.
#[test]
fn packets_from_a_bridge_never_go_directly_to_a_pod() {
    let world = "2 br0 bridge 10.0.0.5 default\n3 vlan5 vlan on 2 10.1.0.5 default\n7 veth1 veth";
    let decided = decided_beside("", &listed(world), &Observers::default());
    assert_eq!(decided.iter().map(|it| it.peer).collect::<Vec<_>>(), [false, false, true]);
}

#[test]
fn strict_rp_filter_matters_with_more_than_one_uplink() {
    check("", &format!("{ONE_WAY} strict"), &[], None, &[Enabled]);
    check("", TWO_WAYS, &[], None, &[Enabled, StrictRpFilter]);
}

/// The operator answers for the firewall, and not for what packets cannot do.
#[test]
fn the_configuration_overrides_only_the_firewall() {
    check("shortcut = \"never\"", ONE_WAY, &[], None, &[DisabledByConfig]);
    check("shortcut = \"always\"", ONE_WAY, &[], Some("a policy of IPsec"), &[Enabled]);
    check("shortcut = \"always\"", TWO_WAYS, &[], None, &[Enabled, StrictRpFilter]);
    check("shortcut = \"always\"", ONE_WAY, &[from_node()], None, &[RoutedByAddress]);
    check("shortcut = \"always\"\nforward_mark = \"0x4000\"", ONE_WAY, &[], None, &[ForwardMark]);
}

/// A router with a million routes is listed again only after ten seconds.
#[tokio::test(start_paused = true)]
async fn a_new_firewall_takes_effect_before_the_next_listing() {
    let world = listed(ONE_WAY);
    let (_config, config) = watch::channel(Arc::new(Config::default()));
    let (seen, onlookers) = watch::channel(Observers::default());
    let (decisions, mut now) = watch::channel(Arc::default());
    let (engine, _asked) = query::channel();
    let (_, proxies) = watch::channel(Arc::default());
    let conntrack = Conntrack::new(watch::channel(LiveMaps::default()).1);
    let mut follower = DeviceFollower {
        config,
        observers: onlookers,
        proxies,
        proxies_known: false,
        decisions,
        engine,
        conntrack,
    };
    follower.publish(Some(&world));
    assert_eq!(now.borrow_and_update()[0].fast_path, Enabled);
    let (rest, resting) = (Duration::from_secs(10), Stopwatch::start());
    let heeded = async {
        seen.send_replace(beside(Some("a policy of IPsec")));
        now.changed().await.unwrap();
        assert!(resting.read() < rest);
        assert_eq!(now.borrow()[0].fast_path, ObserverPresent("a policy of IPsec".into()));
    };
    let mut notices = None;
    tokio::select! {
        _ = follower.wait_for_change(Some(&world), rest, &mut notices) => panic!("it rests for ten seconds"),
        () = heeded => {}
    }
}

/// The greater number of the device and `all` counts, and 2 is loose.
#[test]
fn kernel_strict_rp_filter_is_read_from_the_kernel() {
    network_namespace::run_inside(|| {
        ip("link add strict type veth peer name loose");
        let set = |device: &str, value: &str| {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{device}/rp_filter"), value).unwrap();
        };
        [("all", "0"), ("strict", "1"), ("loose", "0")].into_iter().for_each(|(device, it)| set(device, it));
        let strict = || {
            let listed = netlink::list().unwrap();
            let is_strict = |it: &&super::super::listing::Link| listed.strict.contains(&it.index);
            listed.links.iter().filter(is_strict).map(|it| it.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(strict(), ["strict"]);
        set("loose", "2");
        set("all", "1");
        assert!(!strict().contains(&"loose".to_owned()));
        set("all", "2");
        assert!(strict().is_empty());
    });
}
