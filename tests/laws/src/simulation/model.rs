//! Computes each frontend's answer again from the facts: a second, naive implementation of kube-proxy's rules.
//!
//! Invariant: it uses no rule of the core, only its plain types. Simple and slow on purpose.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::address_policy::ExternalIps;
use holdfast_core::affinity::Prefixes;
use holdfast_core::facts::{
    AddressType, Endpoint, NodeFacts, ServiceFacts, ServiceType, Settings, SliceFacts, TrafficPolicy,
};
use holdfast_core::keys::{Family, FrontendKey, Protocol, ServiceKey, SliceKey, Source, Transport};
use holdfast_core::list::{Slot, SlotState};
use holdfast_core::maps::{Client, DialOutcome};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::Reason;
use holdfast_core::time::ClockReading;

use super::history::{History, Member, Memory, asks_to_pass};
use super::policy::Rule;
use super::population;

/// The facts of all sources.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub services: BTreeMap<ServiceKey, Arc<ServiceFacts>>,
    pub slices: BTreeMap<SliceKey, Arc<SliceFacts>>,
    /// The own node.
    pub node: Arc<NodeFacts>,
    pub settings: Arc<Settings>,
}

/// A port of a service in one family.
pub type PortName = (Arc<str>, Transport, Family);

/// The lists of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpectedPort {
    /// The cluster list; `None`: nothing uses it.
    pub cluster: Option<Vec<Slot>>,
    /// The local list; `None`: nothing uses it.
    pub local: Option<Vec<Slot>>,
    /// At least one endpoint is usable.
    pub has_any: bool,
    /// The listed endpoints, usable or not.
    pub listed: BTreeSet<SocketAddr>,
    /// Those that are in a list.
    pub chosen: Arc<[Member]>,
    /// Those that are terminating.
    pub terminating: BTreeSet<SocketAddr>,
    /// The backends that sockets may stay with, by state; `None`: the maps keep none for this port.
    pub serving: Option<BTreeMap<SocketAddr, SlotState>>,
    /// Why the lists are held, if they are.
    pub held: Option<Reason>,
    /// The reasons that the engine may give while the list is empty.
    pub nobody: Vec<Reason>,
}

/// One row of a service's frontends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedFrontend {
    pub address: IpAddr,
    pub number: core::num::NonZeroU16,
    /// As the service spells it.
    pub protocol: Protocol,
    pub kind: FrontendType,
    /// The name of the service's port.
    pub port_name: Arc<str>,
    /// No service may have this address.
    pub barred: bool,
    /// Its protocol is not served.
    pub unserved: bool,
}

/// One decided service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    pub frontends: Vec<ExpectedFrontend>,
    pub ports: BTreeMap<PortName, ExpectedPort>,
    /// Cluster IPs get the local list.
    pub internal_local: bool,
    /// Outside traffic gets the local list.
    pub external_local: bool,
    /// Seconds of affinity, or 0.
    pub affinity: u32,
    /// The prefixes of session affinity, if the service has both.
    pub prefixes: Option<Prefixes>,
    /// Shared addresses pass to the real balancer while the service has no backend.
    pub passes: bool,
    /// Families whose load-balancer addresses deny [`population::SOURCE`].
    pub keeps_out: Vec<Family>,
}

impl ExpectedFrontend {
    /// Its key, if the datapath can have it.
    pub fn key(&self) -> Option<FrontendKey> {
        let transport = self.protocol.transport().filter(|_| !self.barred && !self.unserved)?;
        Some(FrontendKey { address: self.address, port: self.number, transport })
    }

    /// Its port, if the datapath can have it.
    pub fn port(&self) -> Option<PortName> {
        let transport = self.protocol.transport().filter(|_| !self.barred && !self.unserved)?;
        Some((Arc::clone(&self.port_name), transport, Family::from_address(self.address)))
    }
}

impl ExpectedPort {
    /// Whether neither list has a backend.
    pub fn is_empty(&self) -> bool {
        self.cluster.iter().chain(&self.local).all(Vec::is_empty)
    }

    /// What a client gets from one of the lists; `None`: nothing uses that list.
    pub fn answer(&self, local: bool) -> Option<DialOutcome> {
        let list = if local { self.local.as_ref() } else { self.cluster.as_ref() }?;
        Some(match list.as_slice() {
            [] if local && self.has_any => DialOutcome::Dropped,
            [] => DialOutcome::Refused,
            slots => DialOutcome::Served(slots.to_vec()),
        })
    }
}

impl Expected {
    /// Whether a client of a kind of frontend gets the local list.
    pub fn is_local(&self, kind: FrontendType, client: Client) -> bool {
        match kind {
            kind if is_internal(kind) => self.internal_local,
            _ => client != Client::Local && self.external_local,
        }
    }

    /// Decides for one service.
    pub fn of(key: &ServiceKey, facts: &Facts) -> Self {
        let Some(service) = facts.services.get(key) else { return Self::default() };
        let other_proxy =
            key.source != Source::Config && service.proxy_name != facts.settings.service_proxy_name;
        if other_proxy || service.headless || service.kind == ServiceType::ExternalName {
            return Self::default();
        }
        let mut expected = Self {
            frontends: frontends(service, &facts.settings),
            internal_local: service.internal_policy == TrafficPolicy::Local,
            external_local: service.external_policy == TrafficPolicy::Local && is_accessible(service),
            affinity: service.affinity_timeout.unwrap_or(0),
            prefixes: service.affinity_timeout.and(service.affinity_prefixes()),
            ports: BTreeMap::new(),
            passes: asks_to_pass(key, facts),
            keeps_out: Family::ALL.into_iter().filter(|family| keeps_out(service, *family)).collect(),
        };
        for port in expected.frontends.iter().filter_map(ExpectedFrontend::port) {
            let external = expected
                .frontends
                .iter()
                .any(|it| it.port().as_ref() == Some(&port) && !is_internal(it.kind));
            let chosen = expected.choose(&port, external, facts, key);
            expected.ports.insert(port, chosen);
        }
        expected
    }

    fn choose(&self, port: &PortName, external: bool, facts: &Facts, key: &ServiceKey) -> ExpectedPort {
        let endpoints = endpoints(port, facts, key);
        let uses_cluster = !self.internal_local || external;
        let uses_local = self.internal_local || (self.external_local && external);
        let usable = |it: &&Listed<'_>| it.is_ready() || it.is_fallback();
        let cluster = uses_cluster.then(|| slots(cluster(&endpoints, &facts.node)));
        let local = uses_local.then(|| slots(local(&endpoints, &facts.node)));
        let terminating = endpoints.iter().filter(|it| it.endpoint.conditions.terminating);
        ExpectedPort {
            has_any: endpoints.iter().any(|it| usable(&it)),
            listed: endpoints.iter().map(Listed::backend).collect(),
            chosen: members(&endpoints, cluster.as_deref(), local.as_deref()),
            terminating: terminating.map(Listed::backend).collect(),
            serving: keeps_members(port, facts).then(|| serving(&endpoints, [&cluster, &local])),
            held: None,
            nobody: Vec::new(),
            cluster,
            local,
        }
    }

    /// Whether this kind of address passes to the real balancer now.
    pub fn is_passing(&self, kind: FrontendType, port: &PortName) -> bool {
        let shared = matches!(kind, FrontendType::LoadBalancer | FrontendType::ExternalIp);
        let nobody = |port: &ExpectedPort| port.held.is_some() || !port.has_any;
        self.passes && shared && self.ports.get(port).is_some_and(nobody)
    }
}

/// Whether there are ranges, none covers every client, and none has the client.
fn keeps_out(service: &ServiceFacts, family: Family) -> bool {
    let of_family = |text: &&Arc<str>| text.contains(':') == (family == Family::V6);
    let mut own = service.source_ranges.iter().filter(of_family).peekable();
    own.peek().is_some() && own.all(|text| !text.ends_with("/0") && **text != *population::OWN_RANGE)
}

fn keeps_members((_, transport, _): &PortName, facts: &Facts) -> bool {
    *transport == Transport::Udp || (*transport == Transport::Tcp && facts.settings.keeps_tcp_members)
}

/// Backends that are listed, serve in any slice, or are published as ready without serving: weights and hints remove
/// them from the lists, but keep their clients.
fn serving(endpoints: &[Listed<'_>], lists: [&Option<Vec<Slot>>; 2]) -> BTreeMap<SocketAddr, SlotState> {
    let listed: BTreeSet<_> = lists.into_iter().flatten().flatten().map(Slot::backend).collect();
    let stays = |it: &&Listed<'_>| it.serves || it.is_ready() || listed.contains(&it.backend());
    let state = |it: &Listed<'_>| if it.is_ready() { SlotState::Active } else { SlotState::Draining };
    endpoints.iter().filter(stays).map(|it| (it.backend(), state(it))).collect()
}

fn members(endpoints: &[Listed<'_>], cluster: Option<&[Slot]>, local: Option<&[Slot]>) -> Arc<[Member]> {
    let slot = |list: Option<&[Slot]>, it: &Listed<'_>| {
        list.into_iter().flatten().find(|slot| slot.backend() == it.backend()).copied()
    };
    let member = |it: &Listed<'_>| {
        let (cluster, local) = (slot(cluster, it), slot(local, it));
        Some(Member {
            slot: cluster.or(local)?,
            cluster: cluster.is_some(),
            local: local.is_some(),
            terminating: it.endpoint.conditions.terminating,
            uid: it.endpoint.target.map(|target| target.uid.to_string()).unwrap_or_default(),
        })
    };
    endpoints.iter().filter_map(member).collect()
}

/// Whether the API counts clients of this kind of frontend as internal.
pub(super) const fn is_internal(kind: FrontendType) -> bool {
    matches!(kind, FrontendType::ClusterIp | FrontendType::ClusterSetIp)
}

/// Whether the author of an object of the cluster chose the address, and no apiserver checked it.
fn is_chosen(service: &ServiceKey, kind: FrontendType) -> bool {
    match kind {
        FrontendType::ExternalIp => service.source == Source::Kubernetes,
        kind => kind == FrontendType::ClusterSetIp,
    }
}

fn is_accessible(service: &ServiceFacts) -> bool {
    match service.kind {
        ServiceType::NodePort | ServiceType::LoadBalancer => true,
        ServiceType::ClusterIp => !service.external_ips.is_empty(),
        ServiceType::ExternalName | ServiceType::Static | ServiceType::ClusterSetIp => false,
    }
}

/// Whether an apiserver may be at this frontend. A cluster IP never counts, because no host has one.
pub(super) fn is_bypassed(key: FrontendKey, kind: FrontendType, settings: &Settings) -> bool {
    let dialled = SocketAddr::new(key.address, key.port.get());
    let is_named = settings.reported_apiservers.contains(&dialled) && kind != FrontendType::ClusterIp;
    key.transport == Transport::Tcp && (settings.bypass.contains(&dialled) || is_named)
}

/// An address of no host or of all hosts, of the host itself or its link, or a chosen one that is not allowed. A
/// NodePort is never denied: its `0.0.0.0` stands for the node's addresses.
fn is_barred(service: &ServiceFacts, kind: FrontendType, address: IpAddr, settings: &Settings) -> bool {
    let text = address.to_string();
    let begins = |with: &[&str]| with.iter().any(|it| text.starts_with(it));
    let nobodys = begins(&["0.", "255.255.255.255"]) && address.is_ipv4() || text == "::";
    let nobodys = nobodys || text.starts_with("ff") && address.is_ipv6();
    let here = begins(&["127.", "169.254.", "fe8", "fe9", "fea", "feb"]) || text == "::1";
    let refused = is_chosen(&service.key, kind)
        && match &settings.external_ips {
            ExternalIps::All => false,
            ExternalIps::None => true,
            ExternalIps::Within(ranges) => !ranges.iter().any(|it| it.first <= address && address <= it.last),
        };
    kind != FrontendType::NodePort && (nobodys || refused || here && service.key.source != Source::Config)
}

/// No program sees the destination of SCTP sockets, so without programs at devices SCTP is served nowhere.
fn is_unserved(protocol: &Protocol, settings: &Settings) -> bool {
    match protocol.transport() {
        Some(Transport::Tcp | Transport::Udp) => false,
        Some(Transport::Sctp) => !settings.serves_sctp,
        None => true,
    }
}

fn frontends(service: &ServiceFacts, settings: &Settings) -> Vec<ExpectedFrontend> {
    let mut rows: Vec<ExpectedFrontend> = Vec::new();
    for family in [Family::V4, Family::V6].into_iter().filter(|family| serves(service, *family)) {
        for port in &service.ports {
            let mut addresses: Vec<(FrontendType, IpAddr, core::num::NonZeroU16)> = Vec::new();
            let ingress = service.ingress.iter().filter(|it| !it.proxied).map(|it| it.address);
            let own = match service.kind {
                ServiceType::ClusterSetIp => FrontendType::ClusterSetIp,
                _ => FrontendType::ClusterIp,
            };
            let vips = cluster_ip(service, family).into_iter().map(|ip| (own, ip));
            let vips = vips.chain(ingress.map(|ip| (FrontendType::LoadBalancer, ip)));
            let vips = vips.chain(service.external_ips.iter().map(|ip| (FrontendType::ExternalIp, *ip)));
            addresses.extend(vips.map(|(kind, ip)| (kind, ip, port.port)));
            addresses
                .extend(port.node_port.map(|it| (FrontendType::NodePort, family.unspecified_address(), it)));
            for address in &service.static_frontends {
                let number = core::num::NonZeroU16::new(address.port());
                addresses.extend(number.map(|it| (FrontendType::Static, address.ip(), it)));
            }
            for (kind, address, number) in
                addresses.into_iter().filter(|it| Family::from_address(it.1) == family)
            {
                let protocol = port.protocol.clone();
                let port_name = Arc::clone(&port.name);
                let barred = is_barred(service, kind, address, settings);
                let unserved = !barred && is_unserved(&protocol, settings);
                let row = ExpectedFrontend { address, number, protocol, kind, port_name, barred, unserved };
                enter(&mut rows, row);
            }
        }
    }
    rows
}

/// If one service lists an address twice, an allowed one wins, then the first kind, then the first port name.
fn enter(rows: &mut Vec<ExpectedFrontend>, new: ExpectedFrontend) {
    let rank = |it: &ExpectedFrontend| (it.barred, precedence(it.kind), Arc::clone(&it.port_name));
    let twin = rows
        .iter_mut()
        .find(|it| (it.address, it.number, &it.protocol) == (new.address, new.number, &new.protocol));
    match twin {
        Some(twin) if rank(&new) < rank(twin) => *twin = new,
        Some(_) => {}
        None => rows.push(new),
    }
}

fn precedence(kind: FrontendType) -> usize {
    let order = ["ClusterIP", "LoadBalancer", "ExternalIP", "NodePort", "Static", "ClusterSetIP"];
    order.iter().position(|it| *it == kind.as_str()).unwrap_or(order.len())
}

fn cluster_ip(service: &ServiceFacts, family: Family) -> Option<IpAddr> {
    let fits = |ip: &IpAddr| Family::from_address(*ip) == family;
    if service.ip_families.is_empty() {
        let mut all = service.cluster_ips.iter().copied();
        return if service.key.source == Source::Kubernetes {
            all.next().filter(fits)
        } else {
            all.find(fits)
        };
    }
    let mut pairs = service.ip_families.iter().zip(&service.cluster_ips);
    pairs.find(|(it, _)| **it == family).map(|(_, ip)| *ip).filter(fits)
}

fn serves(service: &ServiceFacts, family: Family) -> bool {
    if service.key.source == Source::Kubernetes || !service.cluster_ips.is_empty() {
        return cluster_ip(service, family).is_some();
    }
    if !service.ip_families.is_empty() {
        return service.ip_families.contains(&family);
    }
    let mut all: Vec<IpAddr> = service.external_ips.clone();
    all.extend(service.ingress.iter().map(|it| it.address));
    all.extend(service.static_frontends.iter().map(std::net::SocketAddr::ip));
    let own = all.iter().any(|ip| Family::from_address(*ip) == family);
    own || (all.is_empty() && family == Family::V4)
}

/// An endpoint with its port.
struct Listed<'a> {
    port: core::num::NonZeroU16,
    endpoint: Endpoint<'a>,
    // It serves in some slice.
    serves: bool,
}

impl Listed<'_> {
    fn backend(&self) -> SocketAddr {
        SocketAddr::new(self.endpoint.address, self.port.get())
    }

    fn is_ready(&self) -> bool {
        self.endpoint.conditions.ready
    }

    fn is_fallback(&self) -> bool {
        self.endpoint.conditions.serving && self.endpoint.conditions.terminating
    }

    fn is_here(&self, node: &NodeFacts) -> bool {
        self.endpoint.node.is_some_and(|it| it == *node.name)
    }

    fn hinted(&self, nodes: bool) -> &[Arc<str>] {
        self.endpoint.hints.map_or(&[], |it| if nodes { &it.nodes } else { &it.zones })
    }
}

pub(super) fn is_of(slice: &SliceFacts, service: &ServiceKey) -> bool {
    slice.key.source == service.source
        && slice.key.name.namespace() == service.name.namespace()
        && slice.service.as_deref() == Some(service.name.name())
}

/// Addresses that a label hides from proxies.
pub fn hidden(facts: &Facts, service: &ServiceKey) -> BTreeSet<IpAddr> {
    let headless = facts.slices.values().filter(|slice| slice.headless && is_of(slice, service));
    headless.flat_map(|slice| slice.endpoints.iter().map(|it| it.address)).collect()
}

/// If a label hides an endpoint of the family, `Hidden` replaces the less specific reasons.
fn tell_hidden(port: &mut ExpectedPort, family: Family, service: &ServiceKey, facts: &Facts) {
    let hidden = hidden(facts, service).into_iter().any(|address| Family::from_address(address) == family);
    if port.nobody.is_empty() {
        port.nobody.push(Reason::NoEndpoints);
    }
    let tells_less = [Reason::NoEndpoints, Reason::ScaledDown, Reason::Vanished, Reason::HoldExpired];
    let is_told = |reason: &&mut Reason| tells_less.contains(reason);
    port.nobody.iter_mut().filter(is_told).filter(|_| hidden).for_each(|reason| *reason = Reason::Hidden);
}

fn endpoints<'a>(port: &PortName, facts: &'a Facts, service: &ServiceKey) -> Vec<Listed<'a>> {
    let mut found: BTreeMap<(IpAddr, core::num::NonZeroU16), Listed<'a>> = BTreeMap::new();
    let (name, transport, family) = port;
    let own = |slice: &&Arc<SliceFacts>| {
        is_of(slice, service) && slice.address_type == AddressType::Ip(*family) && !slice.headless
    };
    for slice in facts.slices.values().filter(own) {
        let joins = |it: &&holdfast_core::facts::SlicePort| {
            it.name == *name && it.protocol == Protocol::Transport(*transport)
        };
        for port in slice.ports.iter().filter(joins) {
            for endpoint in slice.endpoints.iter() {
                let serves = endpoint.conditions.serving;
                let mut new = Listed { port: port.port, endpoint, serves };
                let rank = |it: &Listed<'_>| {
                    let it = it.endpoint.conditions;
                    (it.terminating, !it.ready, !it.serving)
                };
                let position = (endpoint.address, new.port);
                match found.get_mut(&position) {
                    Some(old) if rank(old) <= rank(&new) => old.serves |= serves,
                    old => {
                        new.serves |= old.is_some_and(|old| old.serves);
                        found.insert(position, new);
                    }
                }
            }
        }
    }
    found.into_values().collect()
}

fn cluster<'a>(all: &'a [Listed<'a>], node: &NodeFacts) -> Vec<&'a Listed<'a>> {
    let ready: Vec<_> = all.iter().filter(|it| it.is_ready()).collect();
    let zone: &str = node.zone.as_deref().unwrap_or("");
    for (nodes, own) in [(true, &*node.name), (false, zone)] {
        let named = |it: &&&Listed<'a>| it.hinted(nodes).iter().any(|name| !own.is_empty() && **name == *own);
        let everybody = ready.iter().all(|it| !it.hinted(nodes).is_empty());
        if everybody && ready.iter().any(|it| named(&it)) {
            return ready.iter().filter(named).copied().collect();
        }
    }
    if ready.is_empty() { all.iter().filter(|it| it.is_fallback()).collect() } else { ready }
}

fn local<'a>(all: &'a [Listed<'a>], node: &NodeFacts) -> Vec<&'a Listed<'a>> {
    let here: Vec<_> = all.iter().filter(|it| it.is_here(node)).collect();
    let ready: Vec<_> = here.iter().copied().filter(|it| it.is_ready()).collect();
    if ready.is_empty() { here.into_iter().filter(|it| it.is_fallback()).collect() } else { ready }
}

fn slots(chosen: Vec<&Listed<'_>>) -> Vec<Slot> {
    let slot = |it: &Listed<'_>| Slot {
        address: it.endpoint.address,
        port: it.port,
        state: if it.is_ready() { SlotState::Active } else { SlotState::Draining },
    };
    chosen.into_iter().map(slot).collect()
}

/// The owner of a frontend, and its kind of address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub service: ServiceKey,
    pub port: PortName,
    pub kind: FrontendType,
}

/// All decided services, and the owners of all frontends.
#[derive(Clone, Debug)]
pub struct Model {
    /// The facts of all sources.
    pub facts: Facts,
    /// Each existing service, with holds applied.
    pub services: BTreeMap<ServiceKey, Expected>,
    /// The owner of each frontend.
    pub owners: BTreeMap<FrontendKey, Holder>,
    pub history: History,
    // Each service without holds.
    listed: BTreeMap<ServiceKey, Expected>,
    touched: BTreeSet<ServiceKey>,
}

impl Model {
    pub fn new(rule: Rule) -> Self {
        Self {
            facts: Facts::default(),
            services: BTreeMap::new(),
            owners: BTreeMap::new(),
            history: History::new(rule, Memory::default()),
            listed: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Marks a service whose facts or slices changed.
    pub fn touch(&mut self, key: &ServiceKey) {
        self.touched.insert(key.clone());
    }

    /// Marks all services, because the node or the settings changed.
    pub fn touch_all(&mut self) {
        self.touched.extend(self.facts.services.keys().chain(self.listed.keys()).cloned());
    }

    /// A new process starts with the saved history, and decides everything.
    pub fn restart(&mut self, memory: Memory, now: ClockReading) {
        self.touched.extend(memory.services().cloned());
        self.history.restart(memory, now);
        self.touch_all();
    }

    /// The engine decides the marked services and those with holds.
    pub fn decide(&mut self, now: ClockReading) {
        let mut touched = std::mem::take(&mut self.touched);
        let anew = !touched.is_empty();
        for key in &touched {
            self.listed.remove(key);
            if self.facts.services.contains_key(key) {
                self.listed.insert(key.clone(), Expected::of(key, &self.facts));
            }
        }
        touched.extend(self.history.held().cloned());
        self.history.begin(now);
        for key in &touched {
            self.history.conclude(key, self.listed.get(key), &self.facts);
        }
        self.history.end();
        self.history.judge_mass(&self.facts.settings.hold, &self.listed);
        for key in &touched {
            self.take_effect(key);
        }
        if anew {
            self.decide_owners();
        }
    }

    fn take_effect(&mut self, key: &ServiceKey) {
        let Some(listed) = self.listed.get(key) else {
            self.services.remove(key);
            return;
        };
        let mut expected = listed.clone();
        for (name, port) in &mut expected.ports {
            *port = self.history.effective(key, name, port);
            tell_hidden(port, name.2, key, &self.facts);
        }
        self.services.insert(key.clone(), expected);
    }

    fn decide_owners(&mut self) {
        self.owners.clear();
        let mut best = BTreeMap::new();
        for (service, expected) in &self.services {
            for frontend in &expected.frontends {
                let (Some(key), Some(port)) = (frontend.key(), frontend.port()) else { continue };
                if is_bypassed(key, frontend.kind, &self.facts.settings) {
                    continue;
                }
                if self.is_nodes(service, frontend) || self.coverer(service, frontend).is_some() {
                    continue;
                }
                let created = self.facts.services.get(service).and_then(|it| it.meta.created);
                let source = Source::ALL.iter().position(|it| *it == service.source);
                let given = match frontend.kind {
                    FrontendType::LoadBalancer => 1,
                    FrontendType::ExternalIp | FrontendType::ClusterSetIp => 2,
                    _ => 0,
                };
                let rank = (source, given, created.map_or(i64::MAX, |it| it.0), &service.name);
                if best.get(&key).is_none_or(|old| rank < *old) {
                    best.insert(key, rank);
                    let holder = Holder { service: service.clone(), port, kind: frontend.kind };
                    self.owners.insert(key, holder);
                }
            }
        }
    }

    /// Whether a tenant chose an address of the node.
    pub fn is_nodes(&self, service: &ServiceKey, frontend: &ExpectedFrontend) -> bool {
        let node = &self.facts.node;
        let is_main = node.node_port_addresses.contains(&frontend.address);
        let is_own = is_main || node.addresses.contains(&frontend.address);
        let is_own_port = [10_250, 10_256].contains(&frontend.number.get());
        match frontend.kind {
            kind if is_chosen(service, kind) => {
                let is_control = [6_443, 2_379, 2_380].contains(&frontend.number.get());
                is_main || is_own && (is_own_port || is_control)
            }
            FrontendType::LoadBalancer => service.source == Source::Kubernetes && is_own && is_own_port,
            _ => false,
        }
    }

    /// The other service whose cluster IP or node port reserves this frontend.
    pub fn coverer(&self, service: &ServiceKey, frontend: &ExpectedFrontend) -> Option<&ServiceKey> {
        if matches!(frontend.kind, FrontendType::ClusterIp | FrontendType::NodePort | FrontendType::Static) {
            return None;
        }
        let at_node = self.facts.node.node_port_addresses.contains(&frontend.address);
        let family = Family::from_address(frontend.address);
        let place = |of: &ServiceKey| Source::ALL.iter().position(|it| *it == of.source);
        let covering = |all: &Expected, node: bool| {
            all.frontends.iter().any(|it| match it.kind {
                FrontendType::ClusterIp => !node && it.address == frontend.address && it.key().is_some(),
                FrontendType::NodePort => {
                    let same = (it.number, &it.protocol) == (frontend.number, &frontend.protocol);
                    node && at_node && same && Family::from_address(it.address) == family
                }
                _ => false,
            })
        };
        let others = || self.services.iter().filter(|(of, _)| *of != service && place(of) <= place(service));
        let first = |node| {
            let all = others().filter(|(_, expected)| covering(expected, node));
            all.map(|(of, _)| of).min_by_key(|of| (place(of), *of))
        };
        first(false).or_else(|| first(true))
    }

    /// The owner of a dialled address: of its own key, or of the wildcard of a NodePort. An exact owner that passes an
    /// address of the node passes it to a NodePort first.
    pub fn owner(&self, dialled: FrontendKey) -> Option<&Holder> {
        let wildcard =
            FrontendKey { address: Family::from_address(dialled.address).unspecified_address(), ..dialled };
        let is_node = self.facts.node.node_port_addresses.contains(&dialled.address);
        let behind = self.owners.get(&wildcard).filter(|_| is_node);
        let exact = self.owners.get(&dialled);
        if exact.is_some_and(|holder| self.is_left(holder)) { behind.or(exact) } else { exact.or(behind) }
    }

    fn is_left(&self, holder: &Holder) -> bool {
        self.services.get(&holder.service).is_some_and(|it| it.is_passing(holder.kind, &holder.port))
    }

    /// What a client must get.
    pub fn answer(&self, dialled: FrontendKey, client: Client) -> DialOutcome {
        let Some(holder) = self.owner(dialled) else { return DialOutcome::Passed };
        self.answer_of(holder, client).unwrap_or(DialOutcome::Passed)
    }

    /// Whether a holder's addresses deny [`population::SOURCE`].
    pub fn keeps_out(&self, holder: &Holder) -> bool {
        let (_, _, family) = holder.port;
        let expected = self.services.get(&holder.service);
        holder.kind == FrontendType::LoadBalancer && expected.is_some_and(|it| it.keeps_out.contains(&family))
    }

    /// What a holder's lists give a client; `None`: the list is not used, or the address passes to another.
    pub fn answer_of(&self, holder: &Holder, client: Client) -> Option<DialOutcome> {
        let expected = self.services.get(&holder.service)?;
        if expected.is_passing(holder.kind, &holder.port) {
            return None;
        }
        if matches!(client, Client::From(_)) && self.keeps_out(holder) {
            return Some(DialOutcome::Dropped);
        }
        expected.ports.get(&holder.port)?.answer(expected.is_local(holder.kind, client))
    }
}
