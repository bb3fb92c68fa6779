//! At which devices packets pass by the stack: those by which others are reached, and those that lead to pods of this
//! node.
//!
//! Invariant: a device that leads to pods takes part only where one by which clients come does, or where the pod is a
//! client itself, and only so many of them do that the programs have room to know of the pods that are clients.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_datapath::{POD_DEVICES_MAX, XdpUse};
use holdfast_status::views::devices::{Answers, Class, Reason, ShortcutDecision};

use super::super::listed::{Link, Listed};
use holdfast_config::{self as config, Packets, ShortcutUse};

/// How many devices that lead to pods take part, and fewer where pods that are clients need the room. Each costs an
/// open file, a pin, and some ten milliseconds in which the kernel changes no other device. As many of pods that are
/// clients take part, of which the programs know anyway.
const NEAR_MAX: usize = 512;

/// A device, and what it is to packets.
type Judged<'a> = (&'a Link, (Class, Reason));

/// What decides whether packets pass by the stack at a device.
pub(super) struct Shortcuts<'a> {
    listed: &'a Listed,
    config: &'a Packets,
    // Something on this node that is to see packets which the stack sends on, where the configuration heeds it.
    onlooker: Option<&'a Arc<str>>,
    // By how many devices others are reached.
    ways: usize,
    // Whether packets of clients pass by the stack at one of those.
    has_way_in: bool,
    // The devices that lead to pods, the lowest number first, and how many of them have room.
    near: Vec<u32>,
    near_max: usize,
    // The devices of pods that are clients, in that order.
    pods: Vec<u32>,
    // How answers to clients are routed.
    answers: Answers,
}

impl<'a> Shortcuts<'a> {
    pub(super) fn new(
        listed: &'a Listed,
        config: &'a Packets,
        onlooker: Option<&'a Arc<str>>,
        judged: &[Judged<'_>],
        answers: Answers,
    ) -> Self {
        let ways = judged.iter().filter(|(_, (class, _))| leads_on(*class)).count();
        let below: BTreeSet<u32> = listed.links.iter().filter_map(|link| link.stands_on).collect();
        let numbers = |is_meant: &dyn Fn(&Link, Class, Reason) -> bool| -> Vec<u32> {
            let meant = judged.iter().filter(|(link, (class, reason))| is_meant(link, *class, *reason));
            meant.map(|(link, _)| link.index).filter(|index| !below.contains(index)).collect()
        };
        let near = numbers(&|link, _, reason| leads_to_pods(link, reason));
        let pods = numbers(&|link, class, _| class == Class::Pod && leads_to_client(link));
        let clients = judged.iter().filter(|(_, (class, _))| *class == Class::Pod).count();
        let near_max = NEAR_MAX.min(POD_DEVICES_MAX.saturating_sub(clients));
        let onlooker = onlooker.filter(|_| config.shortcut != ShortcutUse::Always);
        let mut shortcuts =
            Self { listed, config, onlooker, ways, has_way_in: false, near, near_max, pods, answers };
        let mut clients = judged.iter().filter(|(_, (class, _))| *class == Class::Outer);
        shortcuts.has_way_in =
            clients.any(|(link, (class, _))| shortcuts.judge(link, *class) == ShortcutDecision::Wanted);
        shortcuts
    }

    pub(super) fn judge(&self, link: &Link, class: Class) -> ShortcutDecision {
        let in_the_way = if leads_on(class) {
            self.way_to_others(link, class)
        } else if let Ok(at) = self.near.binary_search(&link.index) {
            self.way_to_pods(link, at)
        } else if let Ok(at) = self.pods.binary_search(&link.index) {
            self.way_of_any(link).or_else(|| (at >= NEAR_MAX).then_some(ShortcutDecision::Many))
        } else {
            Some(ShortcutDecision::Inside)
        };
        let firewall = || self.onlooker.cloned().map(ShortcutDecision::Needed);
        in_the_way.or_else(firewall).unwrap_or(ShortcutDecision::Wanted)
    }

    /// What is in the way at a device by which others are reached. One with strict paths takes part if it is the only
    /// one: then each packet comes from where its answer goes.
    fn way_to_others(&self, link: &Link, class: Class) -> Option<ShortcutDecision> {
        let by_address = class == Class::Outer && self.answers == Answers::Dialled;
        let is_strict = || self.ways > 1 && self.listed.strict.contains(&link.index);
        self.way_of_any(link)
            .or_else(|| by_address.then_some(ShortcutDecision::ByAddress))
            .or_else(|| is_strict().then_some(ShortcutDecision::StrictPaths))
    }

    /// What is in the way at a device that leads to pods. Strict paths are not: the programs take an answer from the
    /// device alone that leads to the pod.
    fn way_to_pods(&self, link: &Link, at: usize) -> Option<ShortcutDecision> {
        self.way_of_any(link)
            .or_else(|| (!self.has_way_in && self.onlooker.is_none()).then_some(ShortcutDecision::NoWayIn))
            .or_else(|| (at >= self.near_max).then_some(ShortcutDecision::Many))
    }

    /// Whether packets can be given right away to what is behind a device that leads to pods; of a device by which
    /// clients come, whether its packets can be given away so. What comes by a bridge may bear what the bridge's own
    /// filter knows of connections, which a pod would take for its own.
    pub(super) fn gives_away(&self, link: &Link, class: Class) -> bool {
        match class {
            Class::Near | Class::Pod => link.kind == "veth" && !link.is_watched,
            Class::Outer => !self.is_bridge(link),
            _ => false,
        }
    }

    /// Whether packets are to pass by the stack at the device's driver. What comes and goes, such as a firewall, has no
    /// part in it: most drivers stop for a moment where a program comes or goes.
    pub(super) fn at_driver(&self, link: &Link, class: Class) -> XdpUse {
        match self.config.xdp {
            _ if !leads_on(class) || self.way_of_any(link).is_some() => XdpUse::Never,
            config::XdpUse::Never => XdpUse::Never,
            config::XdpUse::Native => XdpUse::Native,
        }
    }

    /// Whether the device is a bridge, or stands on one.
    pub(super) fn is_bridge(&self, link: &Link) -> bool {
        let is_below = |it: &&Link| link.stands_on == Some(it.index);
        let below = self.listed.links.iter().find(is_below);
        link.kind == "bridge" || below.is_some_and(|below| below.kind == "bridge")
    }

    fn way_of_any(&self, link: &Link) -> Option<ShortcutDecision> {
        if self.config.shortcut == ShortcutUse::Never {
            Some(ShortcutDecision::Never)
        } else if !link.is_ethernet {
            Some(ShortcutDecision::NoEthernet)
        } else {
            self.config.forward_mark.is_some().then_some(ShortcutDecision::Marked)
        }
    }
}

const fn leads_on(class: Class) -> bool {
    matches!(class, Class::Outer | Class::Backends)
}

/// Whether packets of the pod, which is a client, may pass by the stack there. What a pod at a port of a bridge is sent
/// comes by the bridge.
fn leads_to_client(link: &Link) -> bool {
    matches!(link.kind.as_str(), "veth" | "netkit" | "tun") && link.master.is_none()
}

/// Whether pods of this node may be behind the device. One that another device stands on has the packets of that one.
fn leads_to_pods(link: &Link, reason: Reason) -> bool {
    reason == Reason::PodSide && matches!(link.kind.as_str(), "veth" | "netkit" | "bridge" | "tun")
}
