//! What the first packet of a client meets at an address, step by step, without sending one.
//!
//! Invariant: whether the packet is let in, and which list is meant for it, is what the maps say, read back for this
//! answer. Where they could not be read, nothing is said of either. The steps come in the order in which programs take
//! them.

mod words;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::{Family, FrontendKey, Protocol, Transport};
use holdfast_core::list::{Scope, Slot, SlotState};
use holdfast_core::op::{Entry, FrontendType, Word, WordFlags};
use holdfast_core::snapshot::{FrontendView, PortView, ServiceView, Snapshot, Status, Verdict};
use holdfast_core::sources;
use holdfast_core::sources::SourceRange;
use holdfast_status::datapath::{DeviceStatus, PacketStatus, ShortcutState, Side, Wraps, XdpState};
use schemars::JsonSchema;
use serde::Serialize;

use super::find::{Dialled, Subject};
use super::{ReadBack, details};
use holdfast_status::described::Code;
use holdfast_status::views::datapath::DatapathView;
use words::{Class, StepKind};
pub use words::{Outcome, SeenAs};

/// Backends that are named; `/backends` has the others.
const SHARES_MAX: usize = 100;

/// What the first packet of a client meets, as computed from the maps. No packet was sent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Packet {
    pub from: IpAddr,
    pub protocol: Code<Transport>,
    /// What kind of client it is, by its address.
    pub client: Code<Class>,
    pub outcome: Code<Outcome>,
    /// The whole answer in one sentence.
    pub sentence: String,
    pub steps: Vec<Step>,
    /// The backends that may get the packet.
    pub backends: Vec<Share>,
    /// How many more backends may get it and are not named.
    pub more_backends: usize,
}

/// One thing that is looked at, and what is found.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PacketStep")]
pub struct Step {
    pub step: Code<StepKind>,
    pub says: String,
}

/// A backend that may get the packet.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PacketBackend")]
pub struct Share {
    pub backend: String,
    /// The part of new connections that it gets: 1 is all.
    pub share: f64,
    /// Whether it is terminating, and chosen because no backend is ready.
    pub draining: bool,
    /// The node that its endpoint names.
    pub node: Option<String>,
    pub seen_as: Code<SeenAs>,
}

/// The devices at which programs look at packets.
pub(super) enum Watched {
    /// At no device, and why.
    Nowhere(String),
    /// At these devices.
    At { outer: Vec<String>, pods: Vec<String>, shortcut: Shortcut, direct: Direct },
}

/// The devices between which packets pass by the stack.
#[derive(Clone, Debug, Default)]
pub(super) struct Shortcut {
    /// Those by which others are reached.
    pub(super) others: Vec<String>,
    /// Those that lead to pods of this node.
    pub(super) near: Vec<String>,
    /// Those of them by which pods are clients, too.
    pub(super) pods: Vec<String>,
    /// The devices that lead to others at which packets do so at the driver already.
    pub(super) drivers: Vec<String>,
}

/// Which packets go to the nodes of their backends as they came (DSR).
#[derive(Clone, Debug, Default)]
pub(super) struct Direct {
    /// By which transports.
    wraps: Wraps,
    /// Networks in which only nodes live.
    nodes: Vec<SourceRange>,
    /// The families of which a device that leads to others has an address in such a network.
    families: Vec<Family>,
}

impl Direct {
    fn of(packets: &PacketStatus) -> Self {
        let nodes = packets.switches.nodes.clone();
        let is_way = |it: &&DeviceStatus| it.attached && it.device.side != Side::Pod && !it.device.secured;
        let leads = packets.devices.iter().filter(is_way);
        let of_devices =
            leads.flat_map(|it| [it.device.address4.map(IpAddr::V4), it.device.address6.map(IpAddr::V6)]);
        let own = of_devices.flatten().filter(|address| nodes.iter().any(|network| network.has(*address)));
        Self { wraps: packets.switches.wraps, families: own.map(Family::of).collect(), nodes }
    }

    fn has_node(&self, address: IpAddr) -> bool {
        self.nodes.iter().any(|network| network.has(address))
    }
}

impl Watched {
    pub(super) fn of(datapath: &DatapathView) -> Self {
        let Some(status) = datapath.status() else {
            return Self::Nowhere("this daemon's tables are in memory and touch no traffic".to_owned());
        };
        let Some(packets) = &status.packets else {
            return Self::Nowhere("packets are not to be translated (`enabled` under [packets])".to_owned());
        };
        let attached = |is_meant: &dyn Fn(&DeviceStatus) -> bool| {
            let found = packets.devices.iter().filter(|it| it.attached && is_meant(it));
            found.map(|it| it.device.name.clone()).collect::<Vec<_>>()
        };
        let outer = attached(&|it| it.device.side == Side::Outer);
        let pods = attached(&|it| it.device.side == Side::Pod);
        let takes = |it: &DeviceStatus| it.shortcut == ShortcutState::Taken;
        let is_pods = |it: &DeviceStatus| it.device.side == Side::Pod;
        let is_of_pods = |it: &DeviceStatus| is_pods(it) || it.device.side == Side::Near;
        let shortcut = Shortcut {
            others: attached(&|it| takes(it) && !is_of_pods(it)),
            near: attached(&|it| takes(it) && is_of_pods(it)),
            pods: attached(&|it| takes(it) && is_pods(it)),
            drivers: attached(&|it| takes(it) && it.xdp == XdpState::Taken),
        };
        if !(outer.is_empty() && pods.is_empty()) {
            return Self::At { outer, pods, shortcut, direct: Direct::of(packets) };
        }
        let why = packets.failure.clone();
        Self::Nowhere(why.unwrap_or_else(|| words::NO_OUTER.to_owned()))
    }
}

/// A packet on its way: its sender, and what it has met so far.
struct Walk<'a> {
    from: IpAddr,
    dialled: SocketAddr,
    transport: Transport,
    class: Class,
    /// Whether the packet may come by the device of a pod that is no endpoint of any service; it then goes another way.
    may_be_pod: bool,
    shortcut: Shortcut,
    direct: Direct,
    snapshot: &'a Snapshot,
    steps: Vec<Step>,
}

/// A frontend as the maps have it, and the service that has it.
struct Met<'a> {
    key: FrontendKey,
    entry: &'a Entry,
    view: &'a ServiceView,
    row: &'a FrontendView,
}

impl Met<'_> {
    fn flags(&self) -> WordFlags {
        self.entry.port.word(Scope::Cluster).flags
    }

    fn port(&self) -> Option<&PortView> {
        self.view.ports.get(self.row.position?)
    }
}

/// What the client's first packet to the address in question meets.
pub(super) fn follow(
    snapshot: &Snapshot,
    watched: &Watched,
    (dialled, from): (&Dialled, IpAddr),
    subjects: &[Subject],
    read: &ReadBack,
) -> Packet {
    let keys = keys(snapshot, dialled);
    let found = keys.iter().find_map(|key| Some((*key, read_as(read, key)?.as_ref().ok()?.as_ref()?)));
    let asked = found.map(|(key, _)| key.transport).or_else(|| dialled.protocol.as_ref()?.transport());
    let walk = Walk {
        from,
        dialled: dialled.address,
        transport: asked.unwrap_or(Transport::Tcp),
        class: class(snapshot, from),
        may_be_pod: false,
        shortcut: Shortcut::default(),
        direct: Direct::default(),
        snapshot,
        steps: Vec::new(),
    };
    let walk = match walk.began(watched) {
        Ok(walk) => walk,
        Err(packet) => return packet,
    };
    let unread = keys.iter().find_map(|key| read_as(read, key)?.as_ref().err());
    let met = found.and_then(|(key, entry)| {
        let (view, row) = owner(subjects, &key)?;
        Some(Met { key, entry, view, row })
    });
    match (met, unread) {
        (Some(met), _) => walk.meets(&met),
        (None, Some(error)) => walk.unknown(&format!("the maps could not be read: {error}")),
        (None, None) => walk.passes(subjects),
    }
}

/// The keys that programs look up, in their order: the dialled address itself, then the node port if the address is the
/// node's. For an address of the loopback they look up nothing.
fn keys(snapshot: &Snapshot, dialled: &Dialled) -> Vec<FrontendKey> {
    let address = dialled.address;
    let Ok(port) = address.port().try_into() else { return Vec::new() };
    if address.ip().is_loopback() {
        return Vec::new();
    }
    let is_asked =
        |it: &Transport| dialled.protocol.as_ref().is_none_or(|asked| *asked == Protocol::Transport(*it));
    let is_own = snapshot.node.node_port_addresses.contains(&address.ip());
    let any = is_own.then(|| Family::of(address.ip()).unspecified());
    let of = |transport| {
        let addresses = std::iter::once(address.ip()).chain(any);
        addresses.map(move |address| FrontendKey { address, port, transport })
    };
    Transport::ALL.into_iter().filter(is_asked).flat_map(of).collect()
}

fn read_as<'a>(read: &'a ReadBack, key: &FrontendKey) -> Option<&'a Result<Option<Entry>, String>> {
    read.iter().find(|(other, _)| other == key).map(|(_, entry)| entry)
}

/// The service that has the frontend; a service that only claims it does not count.
fn owner<'a>(subjects: &'a [Subject], key: &FrontendKey) -> Option<(&'a ServiceView, &'a FrontendView)> {
    let of_subject = |subject: &'a Subject| subject.frontends().map(move |it| (&*subject.view, it));
    let is_it = |it: &FrontendView| details::key(it) == Some(*key) && it.verdict != Verdict::Conflict;
    subjects.iter().flat_map(of_subject).find(|(_, it)| is_it(it))
}

/// What kind of client has this address.
fn class(snapshot: &Snapshot, from: IpAddr) -> Class {
    if snapshot.node.node_port_addresses.contains(&from) || from.is_loopback() {
        return Class::Node;
    }
    let name = &*snapshot.node.name;
    let slices = snapshot.services.iter().flat_map(|view| view.slices.iter());
    let has = |slice: &holdfast_core::facts::SliceFacts| {
        let at = slice.endpoints.iter_brief().enumerate().filter(|(_, (address, _))| *address == from);
        let mut found = at.filter_map(|(place, _)| slice.endpoints.get(place));
        found.any(|it| it.node.is_some_and(|node| node == *name))
    };
    if slices.into_iter().any(|slice| has(slice)) { Class::Pod } else { Class::Outside }
}

impl<'a> Walk<'a> {
    fn note(&mut self, step: StepKind, says: impl Into<String>) {
        self.steps.push(Step { step: Code(step), says: says.into() });
    }

    /// Notes the first two steps. Where no program looks at packets of this client, the packet is at its end already.
    fn began(mut self, watched: &Watched) -> Result<Self, Packet> {
        let (outer, pods, shortcut, direct) = match watched {
            Watched::Nowhere(why) => return Err(self.unseen(why)),
            Watched::At { outer, pods, shortcut, direct } => (outer, pods, shortcut, direct),
        };
        let is_pod = self.class == Class::Pod;
        if is_pod {
            self.shortcut.pods.clone_from(&shortcut.pods);
        } else {
            self.shortcut.clone_from(shortcut);
            self.direct.clone_from(direct);
        }
        let names = if is_pod { pods } else { outer };
        if names.is_empty() {
            return Err(self.unseen(if is_pod { words::NO_PODS } else { words::NO_OUTER }));
        }
        self.note(StepKind::Device, words::device(names, is_pod));
        self.note(StepKind::Client, words::client(self.from, self.class, self.transport));
        if self.class == Class::Outside && !pods.is_empty() {
            self.may_be_pod = true;
            self.note(StepKind::Client, words::unless_pod(pods));
        }
        Ok(self)
    }

    fn unseen(mut self, why: &str) -> Packet {
        self.note(StepKind::Device, format!("None looks at packets of this client: {why}."));
        self.ends(Outcome::Passed, &format!("goes on as it is, because {why}."))
    }

    /// The packet as the subject of a sentence: `A TCP packet from 203.0.113.9 to 10.0.0.5:30080`.
    fn named(&self) -> String {
        let way = if self.may_be_pod { ", if it comes from outside," } else { "" };
        format!("A {} packet from {} to {}{way}", self.transport.as_str(), self.from, self.dialled)
    }

    fn ends(self, outcome: Outcome, sentence: &str) -> Packet {
        Packet {
            from: self.from,
            protocol: Code(self.transport),
            client: Code(self.class),
            outcome: Code(outcome),
            sentence: format!("{} {sentence}", self.named()),
            steps: self.steps,
            backends: Vec::new(),
            more_backends: 0,
        }
    }

    fn unknown(self, why: &str) -> Packet {
        self.ends(Outcome::Unknown, &format!("meets what cannot be told now: {why}."))
    }

    /// The end of a packet that no program changes.
    fn passes(mut self, subjects: &[Subject]) -> Packet {
        let row = subjects.iter().find_map(|subject| Some((&subject.view, subject.frontends().next()?)));
        let why = match (row, self.lacking()) {
            (Some((view, it)), _) => {
                format!("{} asks for it, and it is not in the maps ({})", view.key.name, words::absent(it))
            }
            (None, Some(view)) => return self.misses(view),
            (None, None) => "no service has that frontend".to_owned(),
        };
        self.note(StepKind::Frontend, format!("{}: {why}.", self.dialled));
        self.ends(Outcome::Passed, &format!("goes on as it is, because {why}."))
    }

    /// The service that has the dialled cluster IP with other ports in the maps, but not with this one. None for a
    /// packet of the node itself.
    fn lacking(&self) -> Option<&'a ServiceView> {
        let is_one = |it: &FrontendView| {
            it.kind == FrontendType::ClusterIp
                && it.address == self.dialled.ip()
                && it.status == Status::Done
                && !matches!(
                    it.verdict,
                    Verdict::Conflict | Verdict::Unprogrammed | Verdict::Bypassed | Verdict::Passing
                )
        };
        let views = self.snapshot.services.iter().map(AsRef::as_ref);
        let mut with_it = views.filter(|view: &&ServiceView| view.frontends.iter().any(is_one));
        with_it.next().filter(|_| self.class != Class::Node)
    }

    /// The end of a packet to a port that a cluster IP does not have: it is refused, as kube-proxy refuses it.
    fn misses(mut self, view: &ServiceView) -> Packet {
        let why =
            format!("{} is a cluster IP of {}, which has no such port", self.dialled.ip(), view.key.name);
        self.note(StepKind::Frontend, format!("{}: {why}.", self.dialled));
        let answer = words::refusal(self.transport);
        let says = format!("{answer} from {}, unless a process of this node has the address.", self.dialled);
        self.note(StepKind::Answer, words::capital(&says));
        self.ends(Outcome::Refused, &format!("is refused by {answer}, because {why}."))
    }

    fn meets(mut self, met: &Met<'_>) -> Packet {
        let Met { key, view, row, .. } = met;
        let port = if row.port_name.is_empty() { String::new() } else { format!(", port {}", row.port_name) };
        let what = if key.address.is_unspecified() {
            format!("{} is this node, and {}/{} a NodePort", self.dialled.ip(), key.port, key.transport)
        } else {
            format!("{key} is the {} address", row.kind.as_str())
        };
        self.note(StepKind::Frontend, format!("{what} of {}{port}.", view.key.name));
        if let Some(kept_out) = self.source(met) {
            self.note(StepKind::Answer, "None: it is dropped.");
            return self
                .ends(Outcome::Dropped, &format!("is dropped without an answer, because {kept_out}."));
        }
        let scope = self.list(met);
        let slots = met.entry.port.backends(scope);
        if slots.is_empty() { self.finds_nobody(met, scope) } else { self.served(met, scope, &slots) }
    }

    /// Notes whether the service lets the client's address in; gives the reason if it does not.
    fn source(&mut self, met: &Met<'_>) -> Option<String> {
        let Met { key, entry, view, .. } = met;
        let facts = view.facts.as_ref().filter(|facts| !facts.source_ranges.is_empty())?;
        if entry.value.kind != FrontendType::LoadBalancer {
            self.note(StepKind::Source, words::SOURCES_OF_OTHERS);
            return None;
        }
        let ranges = sources::allowed(facts, &self.snapshot.node, Family::of(key.address));
        let looked_for = met.flags().has(WordFlags::SOURCES);
        let Some(ranges) = ranges.filter(|_| looked_for) else {
            self.note(
                StepKind::Source,
                if looked_for { words::SOURCES_OF_BEFORE } else { words::NO_SOURCES },
            );
            return None;
        };
        let from = self.from;
        if let Some(range) = ranges.iter().find(|range| range.has(from)) {
            self.note(StepKind::Source, format!("{from} is in {range}, which the service allows."));
            return None;
        }
        let why = format!(
            "{from} is in none of the loadBalancerSourceRanges of {} ({})",
            view.key.name,
            words::some(&ranges)
        );
        self.note(StepKind::Source, format!("{why}."));
        Some(why)
    }

    /// Notes and gives which list is meant for the packet.
    fn list(&mut self, met: &Met<'_>) -> Scope {
        let flags = met.flags();
        let is_internal = met.entry.value.kind.is_internal();
        let scope = met.entry.value.kind.list(flags, self.class != Class::Pod);
        let policy = if is_internal { "internalTrafficPolicy" } else { "externalTrafficPolicy" };
        self.note(
            StepKind::List,
            if scope == Scope::Local {
                format!("The backends on this node alone: its {policy} is Local.")
            } else if !is_internal && flags.has(WordFlags::EXTERNAL_LOCAL) {
                format!("All backends: its {policy} is Local, which does not bind pods of this node.")
            } else {
                "All backends of the cluster.".to_owned()
            },
        );
        scope
    }

    fn finds_nobody(mut self, met: &Met<'_>, scope: Scope) -> Packet {
        if met.entry.port.word(scope).flags.has(WordFlags::DROP) {
            self.note(StepKind::Answer, "None: it is dropped, because somebody is on another node.");
            let why = "its traffic policy is Local and every usable endpoint is on another node";
            return self.ends(Outcome::Dropped, &format!("is dropped without an answer, because {why}."));
        }
        let answer = words::refusal(self.transport);
        let says = format!("{answer} from {}; in a flood only some get one.", self.dialled);
        self.note(StepKind::Answer, words::capital(&says));
        let why = super::sentence::why(met.row.reason);
        self.ends(Outcome::Refused, &format!("is refused by {answer}, because {why}."))
    }

    fn served(mut self, met: &Met<'_>, scope: Scope, slots: &BTreeMap<Slot, u32>) -> Packet {
        let again = words::again(met.entry.port.facts, self.from);
        let share = |slot: (&Slot, &u32)| self.share(met, slot, met.entry.port.word(scope));
        let backends: Vec<Share> = slots.iter().take(SHARES_MAX).map(share).collect();
        let is_even = met.port().is_none_or(|port| port.rows.is_even(scope));
        self.note(StepKind::Choice, words::choice(met.entry.port.word(scope), slots, is_even, again));
        self.note(StepKind::SeenAs, words::seen(&backends, self.class, scope));
        self.note(StepKind::WayBack, words::way_back(self.dialled, &backends, &self.shortcut));
        let here = if scope == Scope::Local { " on this node" } else { "" };
        let sentence = format!(
            "is sent to {}{here}, {}.",
            words::to_whom(&met.view.key.name.to_string(), &backends, slots.len()),
            words::seen_clause(&backends, self.class)
        );
        let more_backends = slots.len() - backends.len();
        Packet { backends, more_backends, ..self.ends(Outcome::Served, &sentence) }
    }

    /// Whether packets for a backend of another node go there as they came: see `can_encap` in `bpf/dsr.h`.
    fn goes_directly(&self, met: &Met<'_>, backend: IpAddr) -> bool {
        let direct = &self.direct;
        direct.wraps.has(self.transport)
            && met.entry.value.kind != FrontendType::NodePort
            && met.entry.port.facts.affinity_timeout == 0
            && !met.flags().has(WordFlags::OUTSIDE)
            && direct.families.contains(&Family::of(backend))
            && !direct.has_node(self.from)
            && !direct.has_node(backend)
    }

    fn share(&self, met: &Met<'_>, (slot, places): (&Slot, &u32), list: Word) -> Share {
        let node = node_of(met, slot);
        let is_here = self.snapshot.node.node_port_addresses.contains(&slot.address)
            || node.as_deref().is_some_and(|node| node == &*self.snapshot.node.name);
        let seen_as = match (&node, self.class) {
            (_, Class::Pod) if slot.address == self.from => SeenAs::Node,
            _ if is_here => SeenAs::Client,
            (_, Class::Pod) => SeenAs::Client,
            (Some(_), _) if self.goes_directly(met, slot.address) => SeenAs::Direct,
            (Some(_), _) => SeenAs::Node,
            (None, _) => SeenAs::Unknown,
        };
        Share {
            backend: slot.backend().to_string(),
            share: f64::from(*places) / f64::from(list.count.max(1)),
            draining: slot.state == SlotState::Draining,
            node,
            seen_as: Code(seen_as),
        }
    }
}

/// The node that the endpoint behind a slot names.
fn node_of(met: &Met<'_>, slot: &Slot) -> Option<String> {
    let port = met.port()?;
    let row = port.rows.find(slot.backend())?;
    let slice = port.slice_of(&row, &met.view.slices)?;
    slice.endpoints.get(usize::from(row.endpoint))?.node.map(|node| node.to_string())
}

#[cfg(test)]
mod tests;
