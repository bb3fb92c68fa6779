//! Traces a client's first packet to an address step by step, without sending one.
//!
//! Invariant: admission and the backend list come from the maps, read back for this answer. If the maps could not be
//! read, the trace reports neither. The steps are in the order of the programs.

mod client;
mod prose;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::{Family, FrontendKey, Protocol, Transport};
use holdfast_core::list::{Scope, Slot, SlotState};
use holdfast_core::op::{FrontendEntry, FrontendType, Word, WordFlags};
use holdfast_core::snapshot::{FrontendView, PortView, ServiceView, Snapshot, Status, Verdict};
use holdfast_core::source_ranges;
use holdfast_core::source_ranges::SourceRange;
use holdfast_status::datapath::{
    DeviceSide, DeviceStatus, DsrTransports, FastPathState, PacketStatus, XdpState,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::query_match::{DialTarget, Subject};
use super::{ReadBack, details, unserved};
pub(crate) use client::may_dial_here;
use holdfast_status::schema_types::Code;
use holdfast_status::views::datapath::DatapathView;
pub use prose::{ClientAddress, Outcome};
use prose::{ClientClass, StepKind};

/// The most backends that are listed; `/backends` has the others.
const SHARES_MAX: usize = 100;

/// What a client's first packet meets, computed from the maps. No packet was sent.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Packet {
    pub from: IpAddr,
    pub protocol: Code<Transport>,
    /// The kind of client, by its address.
    pub client: Code<ClientClass>,
    pub outcome: Code<Outcome>,
    /// The answer in one sentence.
    pub sentence: String,
    pub steps: Vec<PacketStep>,
    /// The backends that may get the packet.
    pub backends: Vec<BackendShare>,
    /// Number of further backends that may get it.
    pub more_backends: usize,
}

/// One step, and its result.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PacketStep")]
pub struct PacketStep {
    pub step: Code<StepKind>,
    pub says: String,
}

/// A backend that may get the packet.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "PacketBackend")]
pub struct BackendShare {
    pub backend: String,
    /// The part of new connections that it gets: 1 is all.
    pub share: f64,
    /// Whether it is terminating, and selected because no backend is ready.
    pub draining: bool,
    /// The node that its endpoint names.
    pub node: Option<String>,
    pub seen_as: Code<ClientAddress>,
    /// Whether the kernel drops the packet on its way to it, for people.
    #[serde(skip)]
    pub is_loopback: bool,
}

/// The devices with programs that process packets.
pub(super) enum AttachedDevices {
    /// No device, and why.
    NotAttached(String),
    /// These devices.
    Attached { outer: Vec<String>, pods: Vec<String>, fast_path: FastPathDevices, dsr: DsrConfig },
}

/// The devices between which packets bypass the stack.
#[derive(Clone, Debug, Default)]
pub(super) struct FastPathDevices {
    /// Devices that lead to other hosts.
    pub(super) outer: Vec<String>,
    /// Devices that lead to pods of this node.
    pub(super) local: Vec<String>,
    /// The local devices with pods that are clients, too.
    pub(super) pods: Vec<String>,
    /// The outer devices with packets that take the fast path in the driver already.
    pub(super) drivers: Vec<String>,
}

/// Which packets reach the nodes of their backends unchanged (DSR).
#[derive(Clone, Debug, Default)]
pub(super) struct DsrConfig {
    /// The transports.
    encap: DsrTransports,
    /// Networks in which only nodes live.
    dsr_from: Vec<SourceRange>,
    /// The families of which a device for DSR has an address in such a network.
    families: Vec<Family>,
}

impl DsrConfig {
    fn from_status(packets: &PacketStatus) -> Self {
        let nodes = packets.switches.dsr_from.clone();
        let carries_dsr =
            |it: &&DeviceStatus| it.attached && it.device.side != DeviceSide::Pod && !it.device.has_ipsec;
        let devices = packets.devices.iter().filter(carries_dsr);
        let addresses =
            devices.flat_map(|it| [it.device.address4.map(IpAddr::V4), it.device.address6.map(IpAddr::V6)]);
        let own =
            addresses.flatten().filter(|address| nodes.iter().any(|network| network.contains(*address)));
        Self {
            encap: packets.switches.dsr_transports,
            families: own.map(Family::from_address).collect(),
            dsr_from: nodes,
        }
    }

    fn is_node(&self, address: IpAddr) -> bool {
        self.dsr_from.iter().any(|network| network.contains(address))
    }
}

impl AttachedDevices {
    pub(super) fn from_datapath(datapath: &DatapathView) -> Self {
        let Some(status) = datapath.status() else {
            return Self::NotAttached("this daemon's tables are in memory and touch no traffic".to_owned());
        };
        let Some(packets) = &status.packets else {
            return Self::NotAttached(
                "packets are not to be translated (`enabled` under [packets])".to_owned(),
            );
        };
        let attached = |is_meant: &dyn Fn(&DeviceStatus) -> bool| {
            let found = packets.devices.iter().filter(|it| it.attached && is_meant(it));
            found.map(|it| it.device.name.clone()).collect::<Vec<_>>()
        };
        let outer = attached(&|it| it.device.side == DeviceSide::Outer);
        let pods = attached(&|it| it.device.side == DeviceSide::Pod);
        let takes = |it: &DeviceStatus| it.fast_path == FastPathState::Active;
        let is_pods = |it: &DeviceStatus| it.device.side == DeviceSide::Pod;
        let is_of_pods = |it: &DeviceStatus| is_pods(it) || it.device.side == DeviceSide::LocalPods;
        let shortcut = FastPathDevices {
            outer: attached(&|it| takes(it) && !is_of_pods(it)),
            local: attached(&|it| takes(it) && is_of_pods(it)),
            pods: attached(&|it| takes(it) && is_pods(it)),
            drivers: attached(&|it| takes(it) && it.xdp == XdpState::Active),
        };
        if !(outer.is_empty() && pods.is_empty()) {
            return Self::Attached { outer, pods, fast_path: shortcut, dsr: DsrConfig::from_status(packets) };
        }
        let why = packets.failure.clone();
        Self::NotAttached(why.unwrap_or_else(|| prose::NO_OUTER_DEVICE.to_owned()))
    }
}

/// A packet on its path: its sender, and its steps so far.
struct PacketTrace<'a> {
    from: IpAddr,
    dialled: SocketAddr,
    transport: Transport,
    class: ClientClass,
    /// Whether the packet may come through the device of a pod that is no endpoint of any service. It then takes
    /// another path.
    may_be_pod: bool,
    fast_path: FastPathDevices,
    dsr: DsrConfig,
    snapshot: &'a Snapshot,
    steps: Vec<PacketStep>,
}

/// A frontend of the maps, and the service that owns it.
struct MatchedFrontend<'a> {
    key: FrontendKey,
    entry: &'a FrontendEntry,
    view: &'a ServiceView,
    row: &'a FrontendView,
}

impl MatchedFrontend<'_> {
    fn flags(&self) -> WordFlags {
        self.entry.port.word(Scope::Cluster).flags
    }

    fn port(&self) -> Option<&PortView> {
        self.view.ports.get(self.row.position?)
    }
}

/// Traces the client's first packet to the queried address.
pub(super) fn trace_packet(
    snapshot: &Snapshot,
    watched: &AttachedDevices,
    (dialled, from): (&DialTarget, IpAddr),
    subjects: &[Subject],
    read: &ReadBack,
) -> Packet {
    let keys = lookup_keys(snapshot, dialled);
    let found = keys.iter().find_map(|key| Some((*key, find_read_back(read, key)?.as_ref().ok()?.as_ref()?)));
    let asked = found.map(|(key, _)| key.transport).or_else(|| dialled.protocol.as_ref()?.transport());
    let walk = PacketTrace {
        from,
        dialled: dialled.address,
        transport: asked.unwrap_or(Transport::Tcp),
        class: client::classify_client(snapshot, from),
        may_be_pod: false,
        fast_path: FastPathDevices::default(),
        dsr: DsrConfig::default(),
        snapshot,
        steps: Vec::new(),
    };
    let walk = match walk.enter_device(watched) {
        Ok(walk) => walk,
        Err(packet) => return packet,
    };
    let unread = keys.iter().find_map(|key| find_read_back(read, key)?.as_ref().err());
    let met = found.and_then(|(key, entry)| {
        let (view, row) = find_owner(subjects, &key)?;
        Some(MatchedFrontend { key, entry, view, row })
    });
    match (met, unread) {
        (Some(met), _) => walk.match_frontend(&met),
        (None, Some(error)) => walk.finish_unknown(&format!("the maps could not be read: {error}")),
        (None, None) => walk.pass_unchanged(subjects),
    }
}

/// The keys that the programs look up, in order: the dialled address, then the node port if the address is the node's.
/// They look up nothing for a loopback address.
fn lookup_keys(snapshot: &Snapshot, dialled: &DialTarget) -> Vec<FrontendKey> {
    let address = dialled.address;
    let Ok(port) = address.port().try_into() else { return Vec::new() };
    if address.ip().is_loopback() {
        return Vec::new();
    }
    let is_asked =
        |it: &Transport| dialled.protocol.as_ref().is_none_or(|asked| *asked == Protocol::Transport(*it));
    let is_own = snapshot.node.node_port_addresses.contains(&address.ip());
    let any = is_own.then(|| Family::from_address(address.ip()).unspecified_address());
    let of = |transport| {
        let addresses = std::iter::once(address.ip()).chain(any);
        addresses.map(move |address| FrontendKey { address, port, transport })
    };
    Transport::ALL.into_iter().filter(is_asked).flat_map(of).collect()
}

fn find_read_back<'a>(
    read: &'a ReadBack,
    key: &FrontendKey,
) -> Option<&'a Result<Option<FrontendEntry>, String>> {
    read.iter().find(|(other, _)| other == key).map(|(_, entry)| entry)
}

/// The service that owns the frontend. One that only claims it does not count.
fn find_owner<'a>(subjects: &'a [Subject], key: &FrontendKey) -> Option<(&'a ServiceView, &'a FrontendView)> {
    let frontends = |subject: &'a Subject| subject.frontends().map(move |it| (&*subject.view, it));
    let is_it =
        |it: &FrontendView| details::frontend_key(it) == Some(*key) && it.verdict != Verdict::Conflict;
    subjects.iter().flat_map(frontends).find(|(_, it)| is_it(it))
}

impl<'a> PacketTrace<'a> {
    fn push_step(&mut self, step: StepKind, says: impl Into<String>) {
        self.steps.push(PacketStep { step: Code(step), says: says.into() });
    }

    /// Adds the first two steps. If no program processes this client's packets, the packet ends here.
    fn enter_device(mut self, watched: &AttachedDevices) -> Result<Self, Packet> {
        let (outer, pods, shortcut, direct) = match watched {
            AttachedDevices::NotAttached(why) => return Err(self.pass_unseen(why)),
            AttachedDevices::Attached { outer, pods, fast_path: shortcut, dsr: direct } => {
                (outer, pods, shortcut, direct)
            }
        };
        let is_pod = self.class == ClientClass::Pod;
        if is_pod {
            self.fast_path.pods.clone_from(&shortcut.pods);
        } else {
            self.fast_path.clone_from(shortcut);
            self.dsr.clone_from(direct);
        }
        let names = if is_pod { pods } else { outer };
        if names.is_empty() {
            return Err(self.pass_unseen(if is_pod { prose::NO_POD_DEVICE } else { prose::NO_OUTER_DEVICE }));
        }
        self.push_step(StepKind::Device, prose::describe_device(names, is_pod));
        let is_unplaced =
            self.class == ClientClass::Outside && client::is_unplaced_endpoint(self.snapshot, self.from);
        let client = match is_unplaced {
            true => prose::describe_unplaced_client(self.from),
            false => prose::describe_client(self.from, self.class, self.transport),
        };
        self.push_step(StepKind::Client, client);
        self.may_be_pod = is_unplaced;
        if self.class == ClientClass::Outside && !pods.is_empty() {
            self.may_be_pod = true;
            self.push_step(StepKind::Client, prose::describe_pod_exception(pods));
        }
        Ok(self)
    }

    fn pass_unseen(mut self, why: &str) -> Packet {
        self.push_step(StepKind::Device, format!("None looks at packets of this client: {why}."));
        self.finish(Outcome::Passed, &format!("goes on as it is, because {why}."))
    }

    /// The packet as the subject of a sentence: `A TCP packet from 203.0.113.9 to 10.0.0.5:30080`.
    fn describe_packet(&self, outcome: Outcome) -> String {
        let Self { from, dialled, transport, .. } = self;
        // Most pods of this node are served at their sockets, and no service needs to list them.
        let is_turned_away =
            matches!(outcome, Outcome::Dropped | Outcome::Refused) && self.class == ClientClass::Outside;
        let way = match self.class {
            ClientClass::Node => " that comes from outside",
            _ if self.may_be_pod || is_turned_away => ", if it comes from outside,",
            _ => "",
        };
        let own = match (self.class, transport) {
            (ClientClass::Node, Transport::Tcp | Transport::Udp) => {
                prose::describe_own_client(*from, *dialled)
            }
            _ => String::new(),
        };
        format!("{own}A {transport} packet from {from} to {dialled}{way}")
    }

    fn finish(self, outcome: Outcome, sentence: &str) -> Packet {
        Packet {
            from: self.from,
            protocol: Code(self.transport),
            client: Code(self.class),
            outcome: Code(outcome),
            sentence: format!("{} {sentence}", self.describe_packet(outcome)),
            steps: self.steps,
            backends: Vec::new(),
            more_backends: 0,
        }
    }

    fn finish_unknown(self, why: &str) -> Packet {
        self.finish(Outcome::Unknown, &format!("has an unknown outcome now: {why}."))
    }

    /// The end of a packet that no program changes.
    fn pass_unchanged(mut self, subjects: &[Subject]) -> Packet {
        let row = subjects.iter().find_map(|subject| Some((&subject.view, subject.frontends().next()?)));
        let why = match (row, self.cluster_ip_owner()) {
            (Some((view, it)), _) => {
                format!(
                    "{} asks for it, and it is not in the maps ({})",
                    view.key.name,
                    prose::absence_reason(it)
                )
            }
            (None, Some(view)) => return self.refuse_unknown_port(view),
            (None, None) => {
                let dialled = DialTarget::new(self.dialled, Some(Protocol::Transport(self.transport)));
                unserved::describe_absence(self.snapshot, &dialled)
            }
        };
        self.push_step(StepKind::Frontend, format!("{}: {why}.", self.dialled));
        self.finish(Outcome::Passed, &format!("goes on as it is, because {why}."))
    }

    /// The service that has the dialled cluster IP with other ports in the maps, but not with this one. `None` for a
    /// packet of the node itself.
    fn cluster_ip_owner(&self) -> Option<&'a ServiceView> {
        let is_one = |it: &FrontendView| {
            it.kind == FrontendType::ClusterIp
                && it.address == self.dialled.ip()
                && it.status == Status::Done
                && it.verdict.is_in_maps()
        };
        let views = self.snapshot.services.iter().map(AsRef::as_ref);
        let mut with_it = views.filter(|view: &&ServiceView| view.frontends.iter().any(is_one));
        with_it.next().filter(|_| self.class != ClientClass::Node)
    }

    /// The end of a packet to an unknown port of a cluster IP: it is refused, as kube-proxy refuses it.
    fn refuse_unknown_port(mut self, view: &ServiceView) -> Packet {
        let why =
            format!("{} is a cluster IP of {}, which has no such port", self.dialled.ip(), view.key.name);
        self.push_step(StepKind::Frontend, format!("{}: {why}.", self.dialled));
        let answer = prose::reject_message(self.transport);
        let says = format!("{answer} from {}, unless a process of this node has the address.", self.dialled);
        self.push_step(StepKind::Reject, prose::capitalise(&says));
        self.finish(Outcome::Refused, &format!("is refused by {answer}, because {why}."))
    }

    fn match_frontend(mut self, met: &MatchedFrontend<'_>) -> Packet {
        let MatchedFrontend { key, view, row, .. } = met;
        let port = if row.port_name.is_empty() { String::new() } else { format!(", port {}", row.port_name) };
        let what = if key.address.is_unspecified() {
            format!("{} is this node, and {}/{} a NodePort", self.dialled.ip(), key.port, key.transport)
        } else {
            format!("{key} is the {} address", row.kind.as_str())
        };
        self.push_step(StepKind::Frontend, format!("{what} of {}{port}.", view.key.name));
        if let Some(kept_out) = self.source_refusal(met) {
            self.push_step(StepKind::Reject, "None: it is dropped.");
            return self
                .finish(Outcome::Dropped, &format!("is dropped without an answer, because {kept_out}."));
        }
        let scope = self.select_list(met);
        let slots = met.entry.port.backends(scope);
        if slots.is_empty() {
            self.reject_without_backend(met, scope)
        } else {
            self.list_candidates(met, scope, &slots)
        }
    }

    /// Adds the source step. Returns the reason if the service denies the client's address.
    fn source_refusal(&mut self, met: &MatchedFrontend<'_>) -> Option<String> {
        let MatchedFrontend { key, entry, view, .. } = met;
        let facts = view.facts.as_ref().filter(|facts| !facts.source_ranges.is_empty())?;
        if entry.value.kind != FrontendType::LoadBalancer {
            self.push_step(StepKind::Source, prose::SOURCES_IGNORED);
            return None;
        }
        let ranges =
            source_ranges::allowed_ranges(facts, &self.snapshot.node, Family::from_address(key.address));
        let looked_for = met.flags().contains(WordFlags::SOURCES);
        let Some(ranges) = ranges.filter(|_| looked_for) else {
            self.push_step(
                StepKind::Source,
                if looked_for { prose::SOURCES_STALE } else { prose::SOURCES_ABSENT },
            );
            return None;
        };
        let from = self.from;
        if let Some(range) = ranges.iter().find(|range| range.contains(from)) {
            self.push_step(StepKind::Source, format!("{from} is in {range}, which the service allows."));
            return None;
        }
        let why = format!(
            "{from} is in none of the loadBalancerSourceRanges of {} ({})",
            view.key.name,
            prose::join_names(&ranges)
        );
        self.push_step(StepKind::Source, format!("{why}."));
        Some(why)
    }

    /// Adds the list step, and returns the list for the packet.
    fn select_list(&mut self, met: &MatchedFrontend<'_>) -> Scope {
        let flags = met.flags();
        let is_internal = met.entry.value.kind.is_internal();
        let scope = met.entry.value.kind.list_scope(flags, self.class != ClientClass::Pod);
        let policy = if is_internal { "internalTrafficPolicy" } else { "externalTrafficPolicy" };
        self.push_step(
            StepKind::List,
            if scope == Scope::Local {
                format!("The backends on this node alone: its {policy} is Local.")
            } else if !is_internal && flags.contains(WordFlags::EXTERNAL_LOCAL) {
                format!("All backends: its {policy} is Local, which does not bind pods of this node.")
            } else {
                "All backends of the cluster.".to_owned()
            },
        );
        scope
    }

    fn reject_without_backend(mut self, met: &MatchedFrontend<'_>, scope: Scope) -> Packet {
        if met.entry.port.word(scope).flags.contains(WordFlags::DROP) {
            self.push_step(
                StepKind::Reject,
                "None: it is dropped, because the endpoints are on other nodes.",
            );
            let why = "its traffic policy is Local and every usable endpoint is on another node";
            return self.finish(Outcome::Dropped, &format!("is dropped without an answer, because {why}."));
        }
        let answer = prose::reject_message(self.transport);
        let says = format!("{answer} from {}; in a flood only some get one.", self.dialled);
        self.push_step(StepKind::Reject, prose::capitalise(&says));
        let why = super::sentence::describe_reason(met.row.reason);
        self.finish(Outcome::Refused, &format!("is refused by {answer}, because {why}."))
    }

    fn list_candidates(
        mut self,
        met: &MatchedFrontend<'_>,
        scope: Scope,
        slots: &BTreeMap<Slot, u32>,
    ) -> Packet {
        let again = prose::describe_affinity(met.entry.port.facts, self.from);
        let share = |slot: (&Slot, &u32)| self.build_share(met, slot, met.entry.port.word(scope));
        let backends: Vec<BackendShare> = slots.iter().take(SHARES_MAX).map(share).collect();
        let is_even = met.port().is_none_or(|port| port.rows.is_even(scope));
        self.push_step(
            StepKind::Selection,
            prose::describe_selection(met.entry.port.word(scope), slots, is_even, again),
        );
        let more_backends = slots.len() - backends.len();
        let names = prose::describe_backends(&met.view.key.name.to_string(), &backends, slots.len());
        let packet = match prose::describe_loopback_loss(&backends) {
            Some(loss) if slots.keys().all(|slot| slot.address.is_loopback()) => {
                self.push_step(StepKind::Reject, format!("None: {loss}."));
                self.finish(Outcome::Dropped, &format!("is translated to {names}, and lost: {loss}."))
            }
            loss => self.deliver(&backends, scope, &names, loss),
        };
        Packet { backends, more_backends, ..packet }
    }

    /// The end of a packet that a backend gets.
    fn deliver(
        mut self,
        backends: &[BackendShare],
        scope: Scope,
        names: &str,
        loss: Option<String>,
    ) -> Packet {
        self.push_step(StepKind::ClientAddress, prose::describe_client_address(backends, self.class, scope));
        let return_path = prose::describe_return_path(self.dialled, backends, &self.fast_path);
        self.push_step(StepKind::ReturnPath, return_path);
        let loss = loss.map(|loss| prose::capitalise(&format!("{loss}.")));
        if let Some(loss) = &loss {
            self.push_step(StepKind::Reject, loss);
        }
        let here = if scope == Scope::Local { " on this node" } else { "" };
        let seen_as = prose::client_address_clause(backends, self.class);
        let loss = loss.map(|loss| format!(" {loss}")).unwrap_or_default();
        self.finish(Outcome::Served, &format!("is sent to {names}{here}, {seen_as}.{loss}"))
    }

    /// Whether packets to a backend of another node stay unchanged: see `can_encap` in `bpf/dsr.h`.
    fn uses_dsr(&self, met: &MatchedFrontend<'_>, backend: IpAddr) -> bool {
        let direct = &self.dsr;
        direct.encap.contains(self.transport)
            && met.entry.value.kind != FrontendType::NodePort
            && met.entry.port.facts.affinity_timeout == 0
            && !met.flags().contains(WordFlags::OFF_CLUSTER)
            && direct.families.contains(&Family::from_address(backend))
            && !direct.is_node(self.from)
            && !direct.is_node(backend)
    }

    fn build_share(
        &self,
        met: &MatchedFrontend<'_>,
        (slot, places): (&Slot, &u32),
        list: Word,
    ) -> BackendShare {
        let node = endpoint_node(met, slot);
        let is_here = slot.address.is_loopback()
            || self.snapshot.node.node_port_addresses.contains(&slot.address)
            || node.as_deref().is_some_and(|node| node == &*self.snapshot.node.name);
        let seen_as = match (&node, self.class) {
            (_, ClientClass::Pod) if slot.address == self.from => ClientAddress::Node,
            _ if is_here => ClientAddress::Client,
            (_, ClientClass::Pod) => ClientAddress::Client,
            (Some(_), _) if self.uses_dsr(met, slot.address) => ClientAddress::Dsr,
            (Some(_), _) => ClientAddress::Node,
            (None, _) => ClientAddress::Unknown,
        };
        BackendShare {
            backend: slot.backend().to_string(),
            share: f64::from(*places) / f64::from(list.count.max(1)),
            draining: slot.state == SlotState::Draining,
            node,
            seen_as: Code(seen_as),
            is_loopback: slot.address.is_loopback(),
        }
    }
}

/// The node that the slot's endpoint names.
fn endpoint_node(met: &MatchedFrontend<'_>, slot: &Slot) -> Option<String> {
    let port = met.port()?;
    let row = port.rows.find(slot.backend())?;
    let slice = port.row_slice(&row, &met.view.slices)?;
    slice.endpoints.get(usize::from(row.endpoint))?.node.map(|node| node.to_string())
}

#[cfg(test)]
mod tests;
