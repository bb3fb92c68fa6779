//! What is behind a device: pods of this node, those of others, a network, a bridge.

use super::{check, decided, listed};

/// Behind Cilium's link are this node's pods and, with an overlay, those of all other nodes. The link has one address
/// of this node's pods, as a host address. A device with an address of a whole network proves nothing: its neighbours
/// there are other hosts.
#[test]
fn local_pods_behind_a_shared_device_are_near() {
    check(
        "",
        "2 eth0 - 10.0.0.5 fd00::5 default net 10.0.0.0/24 net fd00::/64
         3 cilium_net veth here
         4 cilium_host veth here 10.244.1.7/32 fd01::7/128 gateway net 10.244.1.7/32 net 10.244.1.0/24@10.244.1.7 \
         net 10.0.0.0/8@10.244.1.7 net 0.0.0.0/0@10.244.1.7 net 10.244.2.0/24@10.244.1.7 net fd01::/112 net fd02::/112",
        "eth0 outer Gateway 10.0.0.5 fd00::5
         cilium_net none LocalPeer
         cilium_host outer Gateway 10.244.1.7 fd01::7 near 10.244.1.0/24 near fd01::/112",
    );
    for other in [
        "here 10.244.1.7/24 gateway net 10.244.1.0/24@10.244.1.7",
        "here 10.244.1.7/32 gateway net 10.244.1.0/24@10.244.1.1",
        "here 10.244.1.7/32 gateway net 10.244.2.0/24@10.244.1.7",
        "10.244.1.7/32 gateway net 10.244.1.0/24@10.244.1.7",
    ] {
        check("", &format!("2 way veth {other}"), "way outer Gateway 10.244.1.7");
    }
    check(
        "devices = [\"eth0\"]",
        "2 eth0 - 10.0.0.5 default
         4 cilium_host veth here 10.244.1.7/32 gateway net 10.244.1.0/24@10.244.1.7",
        "eth0 outer Configured 10.0.0.5
         cilium_host backends ExcludedUplink 10.244.1.7 near 10.244.1.0/24",
    );
}

/// As when a pod is a VPN for others, or speaks BGP with the node: the bridge's pods see a client as before.
#[test]
fn a_route_by_a_pod_keeps_its_bridges_other_pods_near() {
    check(
        "",
        "2 eth0 - 10.0.0.5 default
         6 cni0 bridge 10.244.1.1/24 fd01::1/64 gateway
         7 veth1 veth in 6
         8 br0 bridge 192.168.1.5/24 default",
        "eth0 outer Gateway 10.0.0.5 fd01::1
         cni0 outer Gateway 10.244.1.1 fd01::1 near 10.244.1.0/24 near fd01::/64
         veth1 none Member
         br0 outer Gateway 192.168.1.5 fd01::1",
    );
}

/// Antrea's gateway and Kube-OVN's port lead to pods; the port of a switch that has the network card is the uplink.
#[test]
fn a_virtual_switch_port_with_pods_is_no_uplink() {
    let world = listed(
        "2 eth0 - 10.0.0.5 default
         3 antrea-gw0 openvswitch 10.244.1.1 gateway net 10.244.1.0/24 net 10.244.2.0/24@10.244.2.1
         4 br-int openvswitch
         5 br0 bridge 192.168.1.5 gateway",
    );
    let with_card = listed("3 br-ex openvswitch 10.0.0.5 default");
    let switches = |world| decided("", world).into_iter().filter(|it| it.switch).map(|it| it.name);
    assert_eq!(switches(&world).collect::<Vec<_>>(), ["antrea-gw0"]);
    assert_eq!(switches(&with_card).count(), 0);
}

/// A frame for a keepalived with its own hardware address, or for a VLAN of the bridge, has passed the bridge before.
#[test]
fn a_device_on_a_bridge_gets_the_bridges_packets() {
    let world = listed(
        "2 eth0 - in 3
         3 br0 bridge 10.0.0.5 default
         4 vrrp.51 macvlan on 3 10.0.0.100/32
         5 br0.7 vlan on 3 10.7.0.5
         6 eth1 - 10.1.0.5
         7 eth1.7 vlan on 6 10.8.0.5",
    );
    let bridges = decided("", &world).into_iter().filter(|it| it.bridge).map(|it| it.name);
    assert_eq!(bridges.collect::<Vec<_>>(), ["br0", "vrrp.51", "br0.7"]);
}

/// ZeroTier, tinc and OpenVPN have other hosts of a network behind such a device; a virtual machine has a
/// point-to-point link.
#[test]
fn a_tap_with_a_network_leads_to_others() {
    for config in ["", "pod_devices = \"auto\""] {
        let fc0 = if config.is_empty() { "near LocalPodsOnly" } else { "pod LeadsToPod 172.16.0.1" };
        check(
            config,
            "2 eth0 - 192.0.2.5 default
             3 zt0 tap 10.147.0.5/24
             4 fc0 tap 172.16.0.1/30",
            &format!(
                "eth0 outer Gateway 192.0.2.5
                 zt0 outer Address 10.147.0.5
                 fc0 {fc0}"
            ),
        );
    }
}

/// Cilium has a link with both ends on the node, one of which leads to all other nodes' pods.
#[test]
fn a_link_with_both_ends_here_leads_to_no_pod() {
    check(
        "pod_devices = \"auto\"",
        "2 eth0 - 10.0.0.5 default
         3 cilium_net veth here
         4 cilium_host veth here 10.244.0.7/32 gateway
         5 lxc1 veth
         6 node0 veth here 10.9.0.1",
        "eth0 outer Gateway 10.0.0.5
         cilium_net none LocalPeer
         cilium_host outer Gateway 10.244.0.7
         lxc1 pod LeadsToPod 10.0.0.5
         node0 none LocalPeer",
    );
}
