//! What each device is to packets, and why.
//!
//! Invariant: pure, and the same for equal lists in any order. A device is left alone where nothing shows that others,
//! or pods if the configuration asks for them, come by it.

mod shortcuts;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use holdfast_datapath::XdpUse;
use holdfast_status::views::devices::{Answers, Class, Decision, Reason, ShortcutDecision};

use super::Onlookers;
use super::listed::{Address, Link, Listed};
use super::rules;
use holdfast_config::{DeviceName, OuterDevices, Packets, PodDevices};
use shortcuts::Shortcuts;
use sources::Seen;

/// A network with so few bits for hosts, which has four addresses at most, is that of a link between two.
const POINT_TO_POINT_BITS: u8 = 2;

/// What each device is, in the order of their numbers; then the devices that the configuration names and that are not
/// there.
pub(super) fn decide(listed: &Listed, config: &Packets, onlookers: &Onlookers) -> Vec<Decision> {
    let world = World::new(listed);
    let mut links: Vec<&Link> = listed.links.iter().collect();
    links.sort_unstable_by_key(|link| link.index);
    let judged: Vec<_> = links.into_iter().map(|link| (link, world.judge(link, config))).collect();
    let outer = judged.iter().filter(|(_, (class, _))| *class == Class::Outer);
    let of_node = world.of_node(outer.map(|(link, _)| link.index));
    let is_told_apart = rules::tell_apart(&listed.rules, &listed.addresses);
    let answers = |class: Class| {
        if is_told_apart && class == Class::Outer { Answers::Dialled } else { Answers::Backend }
    };
    let shortcuts = Shortcuts::new(listed, config, onlookers.first.as_ref(), &judged, answers(Class::Outer));
    let there = judged.iter().map(|(link, (class, reason))| {
        let seen = world.seen_by(link, *class, of_node);
        let leads_on = matches!(class, Class::Outer | Class::Backends);
        let is_of_pods = leads_on && world.is_bridge_of_pods(link);
        let near4 = sources::near(listed, link, seen.v4.map(IpAddr::V4), is_of_pods);
        let near6 = sources::near(listed, link, seen.v6.map(IpAddr::V6), is_of_pods);
        let (answers, shortcut) = (answers(*class), shortcuts.judge(link, *class));
        let is_near = *class == Class::None && shortcut == ShortcutDecision::Wanted;
        let class = if is_near { Class::Near } else { *class };
        let (peer, xdp) = (shortcuts.gives_away(link, class), shortcuts.at_driver(link, class));
        let plain = listed.by_ports.map(|by_ports| !by_ports);
        let secured = onlookers.has_policies && leads_on;
        let bridge = shortcuts.is_bridge(link) && leads_on;
        let switch = link.kind == "openvswitch" && leads_on && !listed.defaults.contains(&link.index);
        Decision {
            answers,
            near4,
            near6,
            shortcut,
            peer,
            xdp,
            plain,
            secured,
            bridge,
            switch,
            ..decision(link, class, *reason, seen)
        }
    });
    there.chain(absent(listed, config)).collect()
}

fn decision(link: &Link, class: Class, reason: Reason, seen: Seen) -> Decision {
    let index = link.index;
    let name = link.name.clone();
    let (near4, near6, answers, shortcut) = (0, 0, Answers::Backend, ShortcutDecision::Inside);
    Decision {
        index,
        name,
        class,
        reason,
        address4: seen.v4,
        address6: seen.v6,
        near4,
        near6,
        answers,
        shortcut,
        peer: false,
        xdp: XdpUse::Never,
        plain: [false; 2],
        joins: false,
        secured: false,
        bridge: false,
        switch: false,
    }
}

fn absent<'a>(listed: &'a Listed, config: &'a Packets) -> impl Iterator<Item = Decision> + 'a {
    let named: &[DeviceName] = match &config.devices {
        OuterDevices::Auto => &[],
        OuterDevices::Named(names) => names,
    };
    let is_absent = |name: &&DeviceName| listed.links.iter().all(|link| link.name != name.as_str());
    named.iter().filter(is_absent).map(|name| {
        let link = Link { name: name.as_str().to_owned(), ..Link::default() };
        decision(&link, Class::None, Reason::Absent, Seen::default())
    })
}

/// What the kernel lists, ordered by device.
struct World<'a> {
    listed: &'a Listed,
    by_index: BTreeMap<u32, &'a Link>,
    addresses: BTreeMap<u32, Seen>,
    // Bridges to which a device belongs by which others come, and not one pod or virtual machine: hardware, a tunnel,
    // or whatever kind there will be.
    uplinks: BTreeSet<u32>,
}

impl<'a> World<'a> {
    fn new(listed: &'a Listed) -> Self {
        let by_index = listed.links.iter().map(|link| (link.index, link)).collect();
        let addresses = listed.links.iter().map(|link| link.index);
        let addresses = addresses.map(|index| (index, sources::seen(listed, index))).collect();
        let others = listed.links.iter().filter(|link| !leads_to_one(link) && link.kind != "dummy");
        let uplinks = others.filter_map(|link| link.master).collect();
        Self { listed, by_index, addresses, uplinks }
    }

    fn judge(&self, link: &Link, config: &Packets) -> (Class, Reason) {
        if link.is_loopback {
            return (Class::None, Reason::Loopback);
        }
        let (class, reason) = match &config.devices {
            OuterDevices::Named(names) if names.iter().any(|name| name.covers(&link.name)) => {
                (Class::Outer, Reason::Named)
            }
            OuterDevices::Named(_) => self.judge_left_out(link),
            OuterDevices::Auto => self.judge_by_routes(link),
        };
        if class == Class::Outer {
            return (class, reason);
        }
        self.pod(link, &config.pod_devices).map_or((class, reason), |reason| (Class::Pod, reason))
    }

    /// What a device is that the configuration's list leaves out. It serves no clients that come by it; but if others
    /// come by it, clients of other devices still reach the backends behind it.
    fn judge_left_out(&self, link: &Link) -> (Class, Reason) {
        match self.judge_by_routes(link) {
            (Class::Outer, Reason::Address) => (Class::Backends, Reason::NearLeftOut),
            (Class::Outer, _) => (Class::Backends, Reason::LeftOut),
            (Class::None, Reason::PodSide) => (Class::None, Reason::PodSide),
            _ => (Class::None, Reason::OthersNamed),
        }
    }

    fn judge_by_routes(&self, link: &Link) -> (Class, Reason) {
        let has_gateway = self.listed.gateways.contains(&link.index);
        let has_address = self.listed.addresses.iter().any(|it| it.index == link.index);
        if self.is_member(link) {
            (Class::None, Reason::Member)
        } else if link.kind == "dummy" {
            (Class::None, Reason::Dummy)
        } else if has_gateway {
            (Class::Outer, Reason::Gateway)
        } else if link.ends_here {
            (Class::None, Reason::EndsHere)
        } else if self.is_pod_side(link) {
            (Class::None, Reason::PodSide)
        } else if has_address {
            (Class::Outer, Reason::Address)
        } else if self.listed.routed.contains(&link.index) {
            (Class::Outer, Reason::Route)
        } else {
            (Class::None, Reason::NoAddress)
        }
    }

    /// Whether the device belongs to another one, by which its packets come as well, such as a bridge or a bond. A
    /// member of a VRF does not count: the VRF takes packets only after the hook, so they are met at the member.
    fn is_member(&self, link: &Link) -> bool {
        let master = link.master.map(|master| self.by_index.get(&master));
        master.is_some_and(|master| master.is_none_or(|master| master.kind != "vrf"))
    }

    /// Whether a device is of a kind that may lead to pods, without others behind it.
    fn is_pod_side(&self, link: &Link) -> bool {
        let is_pods = leads_to_one(link) && !self.leads_to_network(link);
        is_pods || (link.kind == "bridge" && !self.uplinks.contains(&link.index))
    }

    /// Whether a bridge leads to pods, although there is a route by one of them.
    fn is_bridge_of_pods(&self, link: &Link) -> bool {
        link.kind == "bridge" && self.is_pod_side(link) && !self.listed.defaults.contains(&link.index)
    }

    /// Whether a device of a kind that containers and virtual machines have has an address of a network with other
    /// hosts in it: so has one more way out of a node that is a container itself, and a TAP that is a network of its
    /// own. At the host's end of a pod's device such an address stands for itself.
    fn leads_to_network(&self, link: &Link) -> bool {
        let is_of_network = |it: &Address| {
            let all = if it.address.is_ipv4() { 32 } else { 128 };
            it.index == link.index && it.bits < all - POINT_TO_POINT_BITS
        };
        matches!(link.kind.as_str(), "veth" | "netkit" | "tun")
            && self.listed.addresses.iter().any(is_of_network)
    }

    fn pod(&self, link: &Link, config: &PodDevices) -> Option<Reason> {
        match config {
            PodDevices::None => None,
            // A device that leads to a gateway or has a network leads to others than one pod, even where it is a
            // container's.
            PodDevices::Auto => {
                let leads_on = self.listed.gateways.contains(&link.index) || self.leads_to_network(link);
                (!leads_on && leads_to_one(link)).then_some(Reason::LeadsToPod)
            }
            PodDevices::Named(patterns) => {
                let is_named = patterns.iter().any(|pattern| pattern.covers(&link.name));
                is_named.then_some(Reason::PodNamed)
            }
        }
    }

    fn seen(&self, index: u32) -> Seen {
        self.addresses.get(&index).copied().unwrap_or_default()
    }

    /// The addresses by which clients of a device are known to others. A pod's device has an address of its own, or the
    /// bridge to which it belongs has one; either is near to the pod.
    fn seen_by(&self, link: &Link, class: Class, of_node: Seen) -> Seen {
        let own = self.seen(link.index);
        match class {
            Class::Outer | Class::Backends => own.or(of_node),
            Class::Pod => own.or(link.master.map_or_else(Seen::default, |it| self.seen(it))).or(of_node),
            Class::Near | Class::None => Seen::default(),
        }
    }

    /// The node's own addresses: those of outer devices, a device with a default route first. Where no outer device has
    /// one, the loopback's counts, then that of a dummy device, which is there for nothing else, then any.
    fn of_node(&self, outer: impl Iterator<Item = u32> + Clone) -> Seen {
        let first = outer.clone().filter(|index| self.listed.defaults.contains(index));
        let kept = |is_kept: fn(&Link) -> bool| {
            self.by_index.values().filter(move |link| is_kept(link)).map(|link| link.index)
        };
        let besides =
            kept(|link| link.is_loopback).chain(kept(|link| link.kind == "dummy")).chain(kept(|_| true));
        first.chain(outer).chain(besides).map(|index| self.seen(index)).fold(Seen::default(), Seen::or)
    }
}

/// A device with one pod or virtual machine at its other end.
fn leads_to_one(link: &Link) -> bool {
    let is_one = matches!(link.kind.as_str(), "veth" | "netkit" | "macvtap");
    (is_one && !link.ends_here) || (link.kind == "tun" && link.is_ethernet)
}
