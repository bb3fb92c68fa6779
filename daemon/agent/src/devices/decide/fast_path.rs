//! Decides which devices use the fast path: those that lead to other hosts, and those that lead to pods of this node.
//!
//! Invariant: a device that leads to pods takes part only if an uplink does, or if its pod is a client itself, and
//! only as many take part as the programs have entries for besides the client pods.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_datapath::{POD_DEVICES_MAX, XdpUse};
use holdfast_status::views::devices::{ClassReason, DeviceClass, FastPathDecision, ReplyRouting};

use super::super::listing::{KernelListing, Link};
use holdfast_config::{self as config, FastPathUse, Packets};

/// The most pod devices that take part, and fewer if client pods need the entries. Each costs an open file, a pin,
/// and some ten milliseconds in which the kernel changes no other device. As many client pods take part, since the
/// programs have their devices anyway.
const POD_FAST_PATHS_MAX: usize = 512;

type ClassifiedLink<'a> = (&'a Link, (DeviceClass, ClassReason));

pub(super) struct FastPaths<'a> {
    listing: &'a KernelListing,
    config: &'a Packets,
    // What on this node must see forwarded packets, if the configuration respects it.
    observer: Option<&'a Arc<str>>,
    // How many devices lead to other hosts.
    uplinks: usize,
    // Whether one of those has a fast path for clients' packets.
    has_fast_uplink: bool,
    // The devices that lead to pods, lowest number first, and how many of them may take part.
    pod_links: Vec<u32>,
    pod_links_max: usize,
    // The devices of client pods, in the same order.
    client_pods: Vec<u32>,
    answers: ReplyRouting,
}

impl<'a> FastPaths<'a> {
    pub(super) fn new(
        listed: &'a KernelListing,
        config: &'a Packets,
        onlooker: Option<&'a Arc<str>>,
        judged: &[ClassifiedLink<'_>],
        answers: ReplyRouting,
    ) -> Self {
        let ways = judged.iter().filter(|(_, (class, _))| is_uplink(*class)).count();
        let below: BTreeSet<u32> = listed.links.iter().filter_map(|link| link.lower_link).collect();
        let numbers = |is_meant: &dyn Fn(&Link, DeviceClass, ClassReason) -> bool| -> Vec<u32> {
            let meant = judged.iter().filter(|(link, (class, reason))| is_meant(link, *class, *reason));
            meant.map(|(link, _)| link.index).filter(|index| !below.contains(index)).collect()
        };
        let near = numbers(&|link, _, reason| leads_to_pods(link, reason));
        let pods = numbers(&|link, class, _| class == DeviceClass::Pod && leads_to_client(link));
        let clients = judged.iter().filter(|(_, (class, _))| *class == DeviceClass::Pod).count();
        let near_max = POD_FAST_PATHS_MAX.min(POD_DEVICES_MAX.saturating_sub(clients));
        let onlooker = onlooker.filter(|_| config.shortcut != FastPathUse::Always);
        let mut shortcuts = Self {
            listing: listed,
            config,
            observer: onlooker,
            uplinks: ways,
            has_fast_uplink: false,
            pod_links: near,
            pod_links_max: near_max,
            client_pods: pods,
            answers,
        };
        let mut clients = judged.iter().filter(|(_, (class, _))| *class == DeviceClass::Outer);
        shortcuts.has_fast_uplink =
            clients.any(|(link, (class, _))| shortcuts.decide(link, *class) == FastPathDecision::Enabled);
        shortcuts
    }

    pub(super) fn decide(&self, link: &Link, class: DeviceClass) -> FastPathDecision {
        let in_the_way = if is_uplink(class) {
            self.uplink_obstacle(link, class)
        } else if let Ok(at) = self.pod_links.binary_search(&link.index) {
            self.pod_obstacle(link, at)
        } else if let Ok(at) = self.client_pods.binary_search(&link.index) {
            self.common_obstacle(link)
                .or_else(|| (at >= POD_FAST_PATHS_MAX).then_some(FastPathDecision::TooManyDevices))
        } else {
            Some(FastPathDecision::NoOutsideFlows)
        };
        let firewall = || self.observer.cloned().map(FastPathDecision::ObserverPresent);
        in_the_way.or_else(firewall).unwrap_or(FastPathDecision::Enabled)
    }

    /// What prevents the fast path at an uplink. A device with strict `rp_filter` takes part if it is the only
    /// uplink: then each packet comes from where its reply goes.
    fn uplink_obstacle(&self, link: &Link, class: DeviceClass) -> Option<FastPathDecision> {
        let by_address = class == DeviceClass::Outer && self.answers == ReplyRouting::ByFrontend;
        let is_strict = || self.uplinks > 1 && self.listing.strict.contains(&link.index);
        self.common_obstacle(link)
            .or_else(|| by_address.then_some(FastPathDecision::RoutedByAddress))
            .or_else(|| is_strict().then_some(FastPathDecision::StrictRpFilter))
    }

    /// What prevents the fast path at a device that leads to pods. Strict `rp_filter` does not: the programs take a
    /// reply only from the device that leads to the pod.
    fn pod_obstacle(&self, link: &Link, at: usize) -> Option<FastPathDecision> {
        self.common_obstacle(link)
            .or_else(|| {
                (!self.has_fast_uplink && self.observer.is_none()).then_some(FastPathDecision::NoClientDevice)
            })
            .or_else(|| (at >= self.pod_links_max).then_some(FastPathDecision::TooManyDevices))
    }

    /// Whether packets can go straight to the pod behind a device; for a device with clients, whether its packets
    /// can. A bridge's packets may carry its own filter's conntrack state, which a pod would take for its own.
    pub(super) fn can_deliver_directly(&self, link: &Link, class: DeviceClass) -> bool {
        match class {
            DeviceClass::LocalPods | DeviceClass::Pod => link.kind == "veth" && !link.is_observed,
            DeviceClass::Outer => !self.is_bridge(link),
            _ => false,
        }
    }

    /// Whether packets use the fast path at the device's driver. Passing conditions such as a firewall do not count:
    /// most drivers stop for a moment when a program is attached or detached.
    pub(super) fn xdp_use(&self, link: &Link, class: DeviceClass) -> XdpUse {
        match self.config.xdp {
            _ if !is_uplink(class) || self.common_obstacle(link).is_some() => XdpUse::Never,
            config::XdpUse::Never => XdpUse::Never,
            config::XdpUse::Native => XdpUse::Native,
        }
    }

    pub(super) fn is_bridge(&self, link: &Link) -> bool {
        let is_below = |it: &&Link| link.lower_link == Some(it.index);
        let below = self.listing.links.iter().find(is_below);
        link.kind == "bridge" || below.is_some_and(|below| below.kind == "bridge")
    }

    fn common_obstacle(&self, link: &Link) -> Option<FastPathDecision> {
        if self.config.shortcut == FastPathUse::Never {
            Some(FastPathDecision::DisabledByConfig)
        } else if !link.is_ethernet {
            Some(FastPathDecision::NoEthernet)
        } else {
            self.config.forward_mark.is_some().then_some(FastPathDecision::ForwardMark)
        }
    }
}

const fn is_uplink(class: DeviceClass) -> bool {
    matches!(class, DeviceClass::Outer | DeviceClass::Backends)
}

/// Whether packets of a client pod may use the fast path there. Packets to a pod at a port of a bridge come by the
/// bridge.
fn leads_to_client(link: &Link) -> bool {
    matches!(link.kind.as_str(), "veth" | "netkit" | "tun") && link.master.is_none()
}

/// Whether pods of this node may be behind the device. A device under another one has that one's packets.
fn leads_to_pods(link: &Link, reason: ClassReason) -> bool {
    reason == ClassReason::LocalPodsOnly && matches!(link.kind.as_str(), "veth" | "netkit" | "bridge" | "tun")
}
