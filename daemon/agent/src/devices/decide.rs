//! Decides the class of each device, and why.
//!
//! Invariant: pure, and the same for equal lists in any order. A device is left alone unless something shows that
//! other hosts, or pods if the configuration asks for them, send packets by it.

mod fast_path;
mod source_addresses;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use holdfast_datapath::XdpUse;
use holdfast_status::views::devices::{
    ClassReason, DeviceClass, DeviceDecision, FastPathDecision, ReplyRouting,
};

use super::Observers;
use super::listing::{Address, KernelListing, Link};
use super::routing_rules;
use fast_path::FastPaths;
use holdfast_config::{DeviceName, OuterDevices, Packets, PodDevices};
use source_addresses::SourceAddresses;

/// A network with this few host bits, so at most four addresses, is a point-to-point link.
const POINT_TO_POINT_BITS: u8 = 2;

/// The decision for each device, ordered by number; then for the configured devices that do not exist.
pub(super) fn decide(listed: &KernelListing, config: &Packets, onlookers: &Observers) -> Vec<DeviceDecision> {
    let world = LinkIndex::new(listed);
    let mut links: Vec<&Link> = listed.links.iter().collect();
    links.sort_unstable_by_key(|link| link.index);
    let judged: Vec<_> = links.into_iter().map(|link| (link, world.classify(link, config))).collect();
    let outer = judged.iter().filter(|(_, (class, _))| *class == DeviceClass::Outer);
    let of_node = world.node_sources(outer.map(|(link, _)| link.index));
    let routes_by_source = routing_rules::routes_by_source(&listed.rules, &listed.addresses);
    let answers = |class: DeviceClass| {
        if routes_by_source && class == DeviceClass::Outer {
            ReplyRouting::ByFrontend
        } else {
            ReplyRouting::ByBackend
        }
    };
    let shortcuts =
        FastPaths::new(listed, config, onlookers.first.as_ref(), &judged, answers(DeviceClass::Outer));
    let there = judged.iter().map(|(link, (class, reason))| {
        let seen = world.client_sources(link, *class, of_node);
        let leads_on = matches!(class, DeviceClass::Outer | DeviceClass::Backends);
        let is_of_pods = leads_on && world.is_bridge_of_pods(link);
        let near4 = source_addresses::shared_prefix_bits(listed, link, seen.v4.map(IpAddr::V4), is_of_pods);
        let near6 = source_addresses::shared_prefix_bits(listed, link, seen.v6.map(IpAddr::V6), is_of_pods);
        let (answers, shortcut) = (answers(*class), shortcuts.decide(link, *class));
        let is_near = *class == DeviceClass::None && shortcut == FastPathDecision::Enabled;
        let class = if is_near { DeviceClass::LocalPods } else { *class };
        let (peer, xdp) = (shortcuts.can_deliver_directly(link, class), shortcuts.xdp_use(link, class));
        let plain = listed.port_rules.map(|by_ports| !by_ports);
        let secured = onlookers.has_policies && leads_on;
        let bridge = shortcuts.is_bridge(link) && leads_on;
        let switch = link.kind == "openvswitch" && leads_on && !listed.defaults.contains(&link.index);
        DeviceDecision {
            reply_routing: answers,
            local_prefix4: near4,
            local_prefix6: near6,
            fast_path: shortcut,
            peer,
            xdp,
            fib_ignores_ports: plain,
            has_ipsec: secured,
            bridge,
            switch,
            ..build_decision(link, class, *reason, seen)
        }
    });
    there.chain(missing_devices(listed, config)).collect()
}

fn build_decision(
    link: &Link,
    class: DeviceClass,
    reason: ClassReason,
    seen: SourceAddresses,
) -> DeviceDecision {
    let index = link.index;
    let name = link.name.clone();
    let (near4, near6, answers, shortcut) = (0, 0, ReplyRouting::ByBackend, FastPathDecision::NoOutsideFlows);
    DeviceDecision {
        index,
        name,
        class,
        reason,
        address4: seen.v4,
        address6: seen.v6,
        local_prefix4: near4,
        local_prefix6: near6,
        reply_routing: answers,
        fast_path: shortcut,
        peer: false,
        xdp: XdpUse::Never,
        fib_ignores_ports: [false; 2],
        adopts_flows: false,
        has_ipsec: false,
        bridge: false,
        switch: false,
    }
}

fn missing_devices<'a>(
    listed: &'a KernelListing,
    config: &'a Packets,
) -> impl Iterator<Item = DeviceDecision> + 'a {
    let named: &[DeviceName] = match &config.devices {
        OuterDevices::Auto => &[],
        OuterDevices::Named(names) => names,
    };
    let is_absent = |name: &&DeviceName| listed.links.iter().all(|link| link.name != name.as_str());
    named.iter().filter(is_absent).map(|name| {
        let link = Link { name: name.as_str().to_owned(), ..Link::default() };
        build_decision(&link, DeviceClass::None, ClassReason::Absent, SourceAddresses::default())
    })
}

/// The kernel's listing, ordered by device.
struct LinkIndex<'a> {
    listing: &'a KernelListing,
    by_index: BTreeMap<u32, &'a Link>,
    addresses: BTreeMap<u32, SourceAddresses>,
    // Bridges with a member that leads to other hosts instead of one pod or virtual machine: hardware, a tunnel, or a
    // kind yet unknown.
    uplinks: BTreeSet<u32>,
}

impl<'a> LinkIndex<'a> {
    fn new(listed: &'a KernelListing) -> Self {
        let by_index = listed.links.iter().map(|link| (link.index, link)).collect();
        let addresses = listed.links.iter().map(|link| link.index);
        let addresses =
            addresses.map(|index| (index, source_addresses::select_sources(listed, index))).collect();
        let others = listed.links.iter().filter(|link| !leads_to_single_host(link) && link.kind != "dummy");
        let uplinks = others.filter_map(|link| link.master).collect();
        Self { listing: listed, by_index, addresses, uplinks }
    }

    fn classify(&self, link: &Link, config: &Packets) -> (DeviceClass, ClassReason) {
        if link.is_loopback {
            return (DeviceClass::None, ClassReason::Loopback);
        }
        let (class, reason) = match &config.devices {
            OuterDevices::Named(names) if names.iter().any(|name| name.matches_device(&link.name)) => {
                (DeviceClass::Outer, ClassReason::Configured)
            }
            OuterDevices::Named(_) => self.classify_unlisted(link),
            OuterDevices::Auto => self.classify_by_routes(link),
        };
        if class == DeviceClass::Outer {
            return (class, reason);
        }
        self.pod_reason(link, &config.pod_devices)
            .map_or((class, reason), |reason| (DeviceClass::Pod, reason))
    }

    /// The class of a device that the configuration's list omits. It serves no clients that come by it; but if it
    /// leads to other hosts, clients of other devices still reach the backends behind it.
    fn classify_unlisted(&self, link: &Link) -> (DeviceClass, ClassReason) {
        match self.classify_by_routes(link) {
            (DeviceClass::Outer, ClassReason::Address) => {
                (DeviceClass::Backends, ClassReason::ExcludedLocalPods)
            }
            (DeviceClass::Outer, _) => (DeviceClass::Backends, ClassReason::ExcludedUplink),
            (DeviceClass::None, ClassReason::LocalPodsOnly) => {
                (DeviceClass::None, ClassReason::LocalPodsOnly)
            }
            _ => (DeviceClass::None, ClassReason::NotConfigured),
        }
    }

    fn classify_by_routes(&self, link: &Link) -> (DeviceClass, ClassReason) {
        let has_gateway = self.listing.gateways.contains(&link.index);
        let has_address = self.listing.addresses.iter().any(|it| it.index == link.index);
        if self.is_member(link) {
            (DeviceClass::None, ClassReason::Member)
        } else if link.kind == "dummy" {
            (DeviceClass::None, ClassReason::Dummy)
        } else if has_gateway {
            (DeviceClass::Outer, ClassReason::Gateway)
        } else if link.is_peer_local {
            (DeviceClass::None, ClassReason::LocalPeer)
        } else if self.is_pod_side(link) {
            (DeviceClass::None, ClassReason::LocalPodsOnly)
        } else if has_address {
            (DeviceClass::Outer, ClassReason::Address)
        } else if self.listing.routed.contains(&link.index) {
            (DeviceClass::Outer, ClassReason::Route)
        } else {
            (DeviceClass::None, ClassReason::NoAddress)
        }
    }

    /// Whether the device's packets also come by its master, such as a bridge or a bond. A member of a VRF does not
    /// count: the VRF gets packets only after the hook, so the programs see them at the member.
    fn is_member(&self, link: &Link) -> bool {
        let master = link.master.map(|master| self.by_index.get(&master));
        master.is_some_and(|master| master.is_none_or(|master| master.kind != "vrf"))
    }

    /// Whether a device's kind may lead to pods, and no other hosts are behind it.
    fn is_pod_side(&self, link: &Link) -> bool {
        let is_pods = leads_to_single_host(link) && !self.leads_to_network(link);
        is_pods || (link.kind == "bridge" && !self.uplinks.contains(&link.index))
    }

    /// Whether a bridge leads to pods although one of them is the gateway of a route.
    fn is_bridge_of_pods(&self, link: &Link) -> bool {
        link.kind == "bridge" && self.is_pod_side(link) && !self.listing.defaults.contains(&link.index)
    }

    /// Whether a device of a container's or virtual machine's kind has an address in a network of several hosts, as a
    /// second uplink of a containerized node does, or a TAP with its own network. At the host's end of a pod's
    /// device, the address has a host's prefix.
    fn leads_to_network(&self, link: &Link) -> bool {
        let is_of_network = |it: &Address| {
            let all = if it.address.is_ipv4() { 32 } else { 128 };
            it.index == link.index && it.bits < all - POINT_TO_POINT_BITS
        };
        matches!(link.kind.as_str(), "veth" | "netkit" | "tun")
            && self.listing.addresses.iter().any(is_of_network)
    }

    fn pod_reason(&self, link: &Link, config: &PodDevices) -> Option<ClassReason> {
        match config {
            PodDevices::None => None,
            // A device that leads to a gateway or has a network leads to more than one pod, even if it is a
            // container's.
            PodDevices::Auto => {
                let leads_on = self.listing.gateways.contains(&link.index) || self.leads_to_network(link);
                (!leads_on && leads_to_single_host(link)).then_some(ClassReason::LeadsToPod)
            }
            PodDevices::Named(patterns) => {
                let is_named = patterns.iter().any(|pattern| pattern.matches_device(&link.name));
                is_named.then_some(ClassReason::PodConfigured)
            }
        }
    }

    fn source_addresses(&self, index: u32) -> SourceAddresses {
        self.addresses.get(&index).copied().unwrap_or_default()
    }

    /// The source addresses of a device's clients. A pod's device has its own address, or its bridge has one; either
    /// is near to the pod.
    fn client_sources(&self, link: &Link, class: DeviceClass, of_node: SourceAddresses) -> SourceAddresses {
        let own = self.source_addresses(link.index);
        match class {
            DeviceClass::Outer | DeviceClass::Backends => own.or(of_node),
            DeviceClass::Pod => own
                .or(link.master.map_or_else(SourceAddresses::default, |it| self.source_addresses(it)))
                .or(of_node),
            DeviceClass::LocalPods | DeviceClass::None => SourceAddresses::default(),
        }
    }

    /// The node's own addresses: those of outer devices, first of one with a default route. If no outer device has one,
    /// the loopback's counts, then that of a dummy device, which has no other purpose, then any.
    fn node_sources(&self, outer: impl Iterator<Item = u32> + Clone) -> SourceAddresses {
        let first = outer.clone().filter(|index| self.listing.defaults.contains(index));
        let candidates = |is_candidate: fn(&Link) -> bool| {
            self.by_index.values().filter(move |link| is_candidate(link)).map(|link| link.index)
        };
        let besides = candidates(|link| link.is_loopback)
            .chain(candidates(|link| link.kind == "dummy"))
            .chain(candidates(|_| true));
        first
            .chain(outer)
            .chain(besides)
            .map(|index| self.source_addresses(index))
            .fold(SourceAddresses::default(), SourceAddresses::or)
    }
}

/// A device with one pod or virtual machine at its other end.
fn leads_to_single_host(link: &Link) -> bool {
    let is_one = matches!(link.kind.as_str(), "veth" | "netkit" | "macvtap");
    (is_one && !link.is_peer_local) || (link.kind == "tun" && link.is_ethernet)
}
