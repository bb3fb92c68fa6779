//! Makes evidence of the fields of a file.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, Settings, Timestamp};
use holdfast_core::keys::{FrontendKey, ObjectName, Source, Transport};
use holdfast_core::maps::{Capacity, Maps as _, MemoryMaps};
use holdfast_core::op::{PortIndex, QuotaId, ServiceId};
use holdfast_core::snapshot::{Snapshot, Status, Verdict};
use holdfast_core::time::ClockReading;
use holdfast_knowledge::{ClusterEvent, Knowledge, Severity};
use holdfast_objects::{Defaulting, Provenance, from_value, parse_service, parse_slice};
use holdfast_status::datapath::{
    Arrival, Denial, DeviceStatus, DsrTransports, FastPathState, ForeignPrograms, KeptFailures, MapSizes,
    PacketStatus, PacketSwitches, Refusal, XdpState, XdpUse,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client_path::trace_client;
use crate::evidence::{
    Cluster, DaemonState, DiagnosisScope, DnsReplies, Evidence, ExternalSource, Flows, Host, HttpAnswer,
    HttpProbe, Lookup, MapRow, Probe, ProbeKind, ProbeOutcome, WatchStatus,
};
use crate::explain::{ClosedHealthPort, NewsObstacles};
use crate::focus::{Focus, HttpPath, PortSelector};
use crate::known_services::find_views;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::Code;
use holdfast_status::views::announcements::AnnouncedAddress;
use holdfast_status::views::apiserver::{ApiserverState, ApiserverView, EndpointView, Tier};
use holdfast_status::views::checks::{CheckResult, CheckStatus, LastCheck};
use holdfast_status::views::clients::ClientCounters;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::devices::{
    ClassReason as Why, DeviceClass, DeviceDecision, FastPathDecision, ReplyRouting,
};
use holdfast_status::views::node_ports::NodePortListener;
use holdfast_status::views::proxies::{Filter, FilterKind};
use holdfast_status::views::proxies::{OtherProxy, Trace};
use holdfast_status::views::refusals::{Cause, DeniedClient};

/// The time of every case: 2026-11-20T14:02:11Z.
pub(super) const TAKEN: Timestamp = Timestamp(1_795_183_331);

const CONFIG_FILE: &str = "/etc/holdfast/holdfast.toml";

/// The start of the engine.
const BEGUN: Duration = Duration::from_secs(10_000);

/// The fields of a file.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Given {
    /// `namespace/name` of the diagnosed service.
    service: String,
    /// Objects as the apiserver has them.
    objects: Vec<Value>,
    /// The file of manifests with all objects; absent: the apiserver has them.
    manifest: Option<Arc<str>>,
    /// The objects are `[[service]]` blocks.
    is_config: bool,
    /// Objects that replace those of the same name, one after the other.
    then: Vec<Value>,
    /// Age of the objects in seconds; a few by default.
    known_for: Option<i64>,
    node: Node,
    own: OwnGiven,
    /// Differences of the maps by frontend; empty: none.
    kernel: Vec<(String, String)>,
    /// Number of frontends whose map entries were not read.
    kernel_left: usize,
    cluster: Cluster,
    host: Host,
    /// The skipped sources.
    left_out: Vec<String>,
    /// Address with port, and the outcome. `local` before the address marks a backend here. `not tried: REASON` is no
    /// outcome.
    probes: Option<Vec<(String, String)>>,
    /// Address with port, and the status of its reply, or 0: none. Absent: no HTTP request was sent.
    http: Option<Vec<(std::net::SocketAddr, u16)>>,
    /// A path was named, and no backend may be asked for it.
    http_left_out: bool,
    /// The queried port.
    port: Option<String>,
    /// The queried client.
    client: Option<std::net::IpAddr>,
    /// Connections of outside clients; absent: they were not read.
    flows: Option<Flows>,
    /// Replies of name servers; absent: none was queried.
    names: Option<DnsReplies>,
    history: Vec<holdfast_status::record::Record>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Node {
    name: String,
    zone: Option<String>,
    addresses: Vec<std::net::IpAddr>,
}

impl Default for Node {
    fn default() -> Self {
        Self { name: "node-01".into(), zone: None, addresses: vec!["192.0.2.5".parse().unwrap()] }
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct OwnGiven {
    unready: Option<String>,
    stalled: Option<u64>,
    /// Silence of the watches in seconds; absent: one second.
    silent: Option<u64>,
    /// `down`, `unreached` or `fallback`; absent: all endpoints answer.
    apiserver: Option<String>,
    hooks_missing: Vec<String>,
    /// The hooks whose program serves without its pin, and why it has none.
    hooks_unpinned: Vec<String>,
    not_repaired: Option<String>,
    /// Programs of others at connect4, before and after ours.
    hooks_before: Vec<u32>,
    hooks_after: Vec<u32>,
    hooks_put_back: u64,
    /// Why the last reload was refused.
    refused_reload: Option<String>,
    /// Why the watch of slices is interrupted.
    interrupted: Option<String>,
    full: bool,
    /// Why the maps refused the last change.
    refused: Option<String>,
    /// `kube-proxy`, `Cilium` and others, each with its evidence.
    proxies: Vec<(String, String)>,
    /// Parts of Cilium that translate here, each with the command that removes it.
    cilium: Vec<(String, String)>,
    /// Outside clients that were dropped: the dialled address, the cause, the count, and the age in seconds.
    dropped: Vec<(SocketAddr, String, u64, i64)>,
    /// Processes of this node that were refused: the dialled address, the count, and the age in seconds.
    refused_processes: Vec<(SocketAddr, u64, i64)>,
    /// What clients dialled, the backend that refused them, and the age in seconds.
    refused_clients: Vec<(SocketAddr, SocketAddr, u32)>,
    /// What clients dialled, the backend that did not answer them, and the age in seconds.
    silent_clients: Vec<(SocketAddr, SocketAddr, u32)>,
    /// Backends with a health check of holdfast: whether each gets clients, the last result, and its error.
    checks: Vec<(SocketAddr, bool, String, Option<String>)>,
    /// Health check ports that are not open: the service, the port's address, and why.
    closed_ports: Vec<(String, SocketAddr, String)>,
    /// Processes at node ports: the service, where it listens, its name and number.
    node_port_listeners: Vec<(String, SocketAddr, String, u32)>,
    /// Tables are in memory only.
    in_memory: bool,
    /// Rules of a firewall, with the dialled addresses that each is about.
    filters: Vec<FilterGiven>,
    /// Addresses that this node should announce; one may have a reason or an error.
    announced: Vec<AnnouncedGiven>,
    drift: u64,
    stale: bool,
    /// This node's name is unknown.
    nameless: bool,
    /// DSR is on, between nodes in 192.0.2.0/24.
    dsr: bool,
    /// Devices that lead to other hosts.
    devices: Vec<DeviceGiven>,
}

fn client_refusal(
    (frontend, backend, age): &(SocketAddr, SocketAddr, u32),
    now: u32,
) -> (holdfast_status::datapath::BackendRefusal, u32) {
    let refusal = holdfast_status::datapath::BackendRefusal {
        quota: holdfast_core::op::QuotaId(1),
        frontend: *frontend,
        transport: holdfast_core::keys::Transport::Tcp,
        backend: *backend,
    };
    (refusal, now - age)
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceGiven {
    name: String,
    /// The configuration does not name it.
    #[serde(default)]
    left_out: bool,
    /// The address that backends see.
    address: Option<std::net::Ipv4Addr>,
    /// Why it has no program.
    error: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilterGiven {
    kind: String,
    place: String,
    rule: String,
    #[serde(default)]
    about: Vec<(Option<std::net::IpAddr>, u16)>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AnnouncedGiven {
    address: std::net::IpAddr,
    #[serde(default)]
    absent: bool,
    #[serde(default)]
    why: Option<String>,
    #[serde(default)]
    error: Option<String>,
}

impl AnnouncedGiven {
    fn announced(&self) -> AnnouncedAddress {
        let Self { address, absent, why, error } = self.clone();
        AnnouncedAddress { address, table: 104, announced: !absent, why, error }
    }
}

impl FilterGiven {
    fn filter(&self) -> Filter {
        let kind = FilterKind::ALL.into_iter().find(|it| it.as_str() == self.kind).unwrap();
        let (place, rule) = (self.place.clone(), self.rule.clone());
        Filter { kind: Code(kind), place, rule, targets: self.about.clone() }
    }
}

impl DeviceGiven {
    fn decision(&self, index: u32) -> DeviceDecision {
        DeviceDecision {
            index,
            name: self.name.clone(),
            class: if self.left_out { DeviceClass::Backends } else { DeviceClass::Outer },
            reason: if self.left_out { Why::ExcludedUplink } else { Why::Gateway },
            address4: self.address,
            address6: None,
            local_prefix4: 0,
            local_prefix6: 0,
            reply_routing: ReplyRouting::ByBackend,
            fast_path: FastPathDecision::Enabled,
            peer: false,
            xdp: XdpUse::Never,
            fib_ignores_ports: [true; 2],
            adopts_flows: false,
            has_ipsec: false,
            bridge: false,
            switch: false,
        }
    }
}

impl Given {
    pub(super) fn new(mut value: Value) -> Self {
        for part in ["objects", "then"] {
            if let Some(objects) = value.get_mut(part) {
                times(objects, &|at| Value::from(Rfc3339(at).to_string()));
            }
        }
        times(&mut value, &|at| Value::from(at.0));
        let shown = value.to_string();
        let mut given: Self =
            serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}: {shown}"));
        given.recognise();
        given
    }

    /// The catalogue decides what each Event reports about a load balancer.
    fn recognise(&mut self) {
        let Lookup::Answered(events) = &mut self.cluster.events else { return };
        for event in events {
            let object = json!({"kind": &event.object.kind, "name": &event.object.name});
            let (reason, message) = (&event.reason, &event.message);
            let source = json!({"component": &event.component});
            let event_json =
                json!({"reason": reason, "message": message, "source": source, "involvedObject": object});
            let known = ClusterEvent::from_json(&event_json);
            let recognised = Knowledge::built_in().recognise(&known);
            event.step = recognised.step;
            event.notice = recognised.reason.is_some() && recognised.severity < Severity::Warning;
        }
    }

    pub(super) fn evidence(&self) -> Evidence {
        let (snapshot, mut engine) = self.snapshot();
        let snapshot = Arc::new(snapshot);
        let (namespace, name) = self.service.split_once('/').unwrap();
        let name = ObjectName::new(namespace, name).unwrap();
        let focus = self.focus();
        let views = focus.narrow_views(&find_views(&name, &snapshot));
        let own = self.own.own();
        let narrowed = DiagnosisScope { client: self.client, focus, ..DiagnosisScope::default() };
        let keys = views.iter().flat_map(|view| &view.frontends).filter_map(crate::explain::frontend_key);
        let read = keys.map(|key| (key, Ok(engine.maps_mut().read(&key).unwrap()))).collect();
        let lookups = trace_client(&snapshot, &views, &own.datapath, (&read, self.client));
        Evidence {
            scope: narrowed,
            skipped_sources: ExternalSource::ALL
                .into_iter()
                .filter(|it| self.left_out.iter().any(|left| left == it.as_str()))
                .collect(),
            lookups,
            names: self.names.clone().map_or_else(Lookup::default, Lookup::Answered),
            flows: self.flows.clone().map_or_else(Lookup::default, Lookup::Answered),
            taken: TAKEN,
            kernel: Lookup::Answered(self.kernel(&views)),
            kernel_left: self.kernel_left,
            history: self.history.clone(),
            cluster: self.cluster.clone(),
            host: self.host.clone(),
            probes: self.probes(),
            http: self.http(),
            own,
            views,
            snapshot,
            name,
        }
    }

    fn focus(&self) -> Focus {
        let port = self.port.as_deref().map(|port| PortSelector::parse(port).unwrap());
        let is_http_named = self.http.is_some() || self.http_left_out;
        Focus { port, http: HttpPath::parse("/healthz").filter(|_| is_http_named) }
    }

    fn http(&self) -> Lookup<Vec<HttpProbe>> {
        let one = |(to, status): &(std::net::SocketAddr, u16)| {
            let answer = if *status == 0 { HttpAnswer::Silent } else { HttpAnswer::Status(*status) };
            HttpProbe { to: *to, answer, took: Duration::from_millis(3) }
        };
        let all = self.http.as_ref().map(|all| all.iter().map(one).collect());
        all.map_or_else(Lookup::default, Lookup::Answered)
    }

    /// The real engine's result for the objects.
    fn snapshot(&self) -> (Snapshot, Engine<MemoryMaps>) {
        let maps = MemoryMaps::new(Capacity { slots: 1_024, ports: 64, services: 64 });
        let (mut engine, _) = Engine::start(maps, holdfast_core::index::Seed(0), &[self.source()]).unwrap();
        engine.apply(Event::NodeApplied(Arc::new(self.node())));
        engine.apply(Event::SettingsApplied(Arc::new(Settings::default())));
        self.objects.iter().flat_map(|it| self.applied(it)).for_each(|event| engine.apply(event));
        engine.apply(Event::Synced(self.source()));
        let known_for = self.known_for.unwrap_or(8);
        let now = |second: i64| ClockReading {
            wall: Timestamp(TAKEN.0 - known_for + second),
            mono: BEGUN + Duration::from_secs(second.unsigned_abs()),
        };
        for second in 0..4 {
            engine.step(now(second), &mut |_| {});
        }
        for object in &self.then {
            self.applied(object).into_iter().for_each(|event| engine.apply(event));
            engine.step(now(4), &mut |_| {});
        }
        let mut snapshot = (5..9).map(|second| engine.step(now(second), &mut |_| {})).last().unwrap();
        self.own.disturb(Arc::make_mut(&mut snapshot));
        (Arc::unwrap_or_clone(snapshot), engine)
    }

    fn source(&self) -> Source {
        match (self.is_config, &self.manifest) {
            (true, _) => Source::Config,
            (false, Some(_)) => Source::Manifests,
            (false, None) => Source::Kubernetes,
        }
    }

    fn applied(&self, object: &Value) -> Vec<Event> {
        let (source, origin) = (self.source(), self.manifest.clone());
        applied(object, &Provenance { source, origin, defaulting: Defaulting::AsApiserver })
    }

    fn node(&self) -> NodeFacts {
        let Node { name, zone, addresses } = &self.node;
        NodeFacts {
            name: if self.own.nameless { "".into() } else { name.as_str().into() },
            zone: zone.as_deref().map(Into::into),
            node_port_addresses: addresses.iter().copied().collect(),
            addresses: [].into(),
            is_leaving: false,
        }
    }

    fn kernel(&self, views: &[Arc<holdfast_core::snapshot::ServiceView>]) -> Vec<MapRow> {
        let programmed =
            |verdict| !matches!(verdict, Verdict::Conflict | Verdict::Unprogrammed | Verdict::Bypassed);
        let frontends = views.iter().flat_map(|view| &view.frontends).filter(|it| programmed(it.verdict));
        let row = |it: &holdfast_core::snapshot::FrontendView| {
            let frontend = holdfast_core::keys::FrontendKey {
                address: it.address,
                port: it.port,
                transport: it.protocol.transport().unwrap(),
            };
            let shown = format!("{}:{}", it.address, it.port);
            let differs = self.kernel.iter().find(|(of, _)| *of == shown);
            MapRow { frontend, difference: differs.map(|(_, how)| how.clone()) }
        };
        frontends.map(row).collect()
    }

    fn probes(&self) -> Lookup<Vec<Probe>> {
        let Some(probes) = &self.probes else { return Lookup::default() };
        let one = |(to, outcome): &(String, String)| {
            let (of, to) = match to.split_once(' ') {
                None => (ProbeKind::Frontend, to.as_str()),
                Some((kind, to)) => (ProbeKind::Backend { local: kind == "local" }, to),
            };
            Probe {
                to: to.parse().unwrap(),
                kind: of,
                outcome: outcome_of(outcome),
                took: Duration::from_millis(1),
            }
        };
        Lookup::Answered(probes.iter().map(one).collect())
    }
}

fn outcome_of(text: &str) -> ProbeOutcome {
    match text {
        "ok" => ProbeOutcome::Connected,
        "refused" => ProbeOutcome::Refused,
        "timeout" => ProbeOutcome::TimedOut,
        "EPERM" => ProbeOutcome::NotPermitted,
        why if why.starts_with("not tried: ") => ProbeOutcome::NotTried(String::from(&why[11..]).leak()),
        at if at.starts_with("at ") => ProbeOutcome::Elsewhere(at[3..].parse().unwrap()),
        other => ProbeOutcome::Unreachable(other.to_owned()),
    }
}

fn applied(object: &Value, provenance: &Provenance) -> Vec<Event> {
    let rejected = |rejection| panic!("{rejection:?}");
    match object.get("kind").and_then(Value::as_str).unwrap() {
        "Service" => match parse_service(&from_value(object).unwrap(), provenance) {
            Ok(facts) => vec![Event::ServiceApplied(Arc::new(facts))],
            Err(rejection) => vec![Event::Rejected(rejection)],
        },
        "EndpointSlice" => {
            let (facts, partial) =
                parse_slice(&from_value(object).unwrap(), provenance).unwrap_or_else(rejected);
            [Event::SliceApplied(Arc::new(facts))].into_iter().chain(partial.map(Event::Rejected)).collect()
        }
        other => panic!("{other}"),
    }
}

/// Replaces times like `@10m`, which mean an age.
fn times(value: &mut Value, shown: &dyn Fn(Timestamp) -> Value) {
    match value {
        Value::String(text) => {
            if let Some(ago) = text.strip_prefix('@') {
                let millis = holdfast_status::rfc3339::Millis::from(TAKEN).ago(ago).unwrap();
                *value = shown(millis.seconds());
            }
        }
        Value::Array(list) => list.iter_mut().for_each(|it| times(it, shown)),
        Value::Object(fields) => fields.values_mut().for_each(|it| times(it, shown)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

fn denied((dialled, times, ago): (&SocketAddr, u64, i64), outside: Option<(u8, Cause)>) -> Arc<DeniedClient> {
    let source = |last| SocketAddr::from(([198, 51, 100, last], 40_000));
    let frontend = FrontendKey {
        address: dialled.ip(),
        port: dialled.port().try_into().unwrap(),
        transport: Transport::Tcp,
    };
    let refusal = Refusal {
        at: Duration::ZERO,
        arrival: outside.map(|(last, _)| Arrival { source: source(last), device: 2 }),
        process: 0,
        thread: 0,
        comm: String::new(),
        cgroup: 0,
        netns: 0,
        frontend,
        port: PortIndex(0),
        quota: QuotaId::default(),
        denial: if outside.is_some() { Denial::Dropped } else { Denial::Refused },
        cause: outside.map_or(Cause::NoBackend, |(_, cause)| cause),
    };
    let last = Timestamp(TAKEN.0 - ago);
    Arc::new(DeniedClient { first: last, last, count: times, refusal })
}

fn checked(
    (at, usable, result, error): &(SocketAddr, bool, String, Option<String>),
) -> (SocketAddr, CheckStatus) {
    let result = CheckResult::ALL.into_iter().find(|it| it.as_str() == result);
    let last = result.map(|result| LastCheck {
        result: Code(result),
        error: error.clone(),
        at: holdfast_status::rfc3339::Millis::from(TAKEN),
        took_microseconds: 900,
        in_a_row: 3,
    });
    (*at, CheckStatus { kind: "http", usable: *usable, last })
}

fn service_name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name).unwrap()
}

fn closed_port((service, address, reason): &(String, SocketAddr, String)) -> ClosedHealthPort {
    ClosedHealthPort { service: service_name(service), address: *address, reason: reason.clone() }
}

fn node_port_listener((service, at, process, pid): &(String, SocketAddr, String, u32)) -> NodePortListener {
    let (address, port) = (at.ip(), at.port().try_into().unwrap());
    NodePortListener {
        service: service_name(service),
        listener: holdfast_core::facts::Listener { address, port, transport: Transport::Tcp },
        process: Some((process.clone(), *pid)),
    }
}

impl OwnGiven {
    fn own(&self) -> DaemonState {
        let silent = self.silent.unwrap_or(1);
        let watch = |what: &str| WatchStatus {
            zone_problem: None,
            what: what.into(),
            state: "watching".into(),
            silent: (silent != u64::MAX).then(|| Duration::from_secs(silent)),
            error: self.interrupted.clone().filter(|_| what == "endpointslices"),
        };
        DaemonState {
            unready: self.unready.clone(),
            stalled: self.stalled.map(Duration::from_secs),
            watches: ["services", "endpointslices", "nodes"].map(watch).into(),
            apiserver: Some(Arc::new(self.apiserver())),
            datapath: Arc::new(match self.in_memory {
                true => DatapathView::for_memory(),
                false => DatapathView::for_kernel(self.status()).with_devices(self.decisions()),
            }),
            counters: ClientCounters::default(),
            proxies: self.proxies(),
            filters: self.filters.iter().map(FilterGiven::filter).collect(),
            announced: self.announced.iter().map(AnnouncedGiven::announced).collect(),
            denied: self.denied(),
            checks: self.checks.iter().map(checked).collect(),
            obstacles: NewsObstacles::new(
                self.refused_reload.clone().zip(Some(CONFIG_FILE.to_owned())),
                Some(&self.apiserver()),
            ),
            closed_ports: self.closed_ports.iter().map(closed_port).collect(),
            node_port_listeners: self.node_port_listeners.iter().map(node_port_listener).collect(),
        }
    }

    fn denied(&self) -> Vec<Arc<DeniedClient>> {
        let cause = |why: &str| Cause::ALL.into_iter().find(|it| it.as_str() == why).unwrap();
        let dropped = (1..).zip(&self.dropped).map(|(last, (dialled, why, times, ago))| {
            denied((dialled, *times, *ago), Some((last, cause(why))))
        });
        let processes = self.refused_processes.iter();
        dropped.chain(processes.map(|(dialled, times, ago)| denied((dialled, *times, *ago), None))).collect()
    }

    fn apiserver(&self) -> ApiserverView {
        let endpoint = |address: &str, tier, state| EndpointView {
            address: address.parse().unwrap(),
            tier,
            state,
            since: TAKEN,
            active: state == ApiserverState::Healthy,
            preferred: false,
            connections: 0,
            last_error: matches!(state, ApiserverState::Failed)
                .then(|| ("connection refused".to_owned(), TAKEN)),
            last_named: None,
            learned: None,
        };
        let (first, second) = match self.apiserver.as_deref() {
            Some("down") => (ApiserverState::Failed, ApiserverState::Failed),
            Some("unreached") => (ApiserverState::Unknown, ApiserverState::Unknown),
            Some("fallback") => (ApiserverState::Failed, ApiserverState::Healthy),
            _ => (ApiserverState::Healthy, ApiserverState::Healthy),
        };
        ApiserverView {
            endpoints: vec![
                endpoint("10.0.0.10:6443", Tier::Configured, first),
                endpoint("10.0.0.12:6443", Tier::Learned, second),
            ],
            credentials: Vec::new(),
            cluster: None,
            unverified_reason: None,
            memory_problem: None,
            failovers: 0,
            vip: None,
        }
    }

    fn decisions(&self) -> Arc<[DeviceDecision]> {
        (10..).zip(&self.devices).map(|(index, it)| it.decision(index)).collect()
    }

    fn device_statuses(&self) -> Vec<DeviceStatus> {
        let decisions = self.decisions();
        let with_devices = decisions.iter().filter_map(DeviceDecision::to_device).zip(&self.devices);
        let status = |(device, given): (_, &DeviceGiven)| DeviceStatus {
            device,
            attached: given.error.is_none(),
            unpinned: false,
            foreign_programs: 0,
            fast_path: FastPathState::Active,
            xdp: XdpState::Disabled,
            error: given.error.clone(),
        };
        with_devices.map(status).collect()
    }

    fn status(&self) -> holdfast_status::datapath::Status {
        let hook = |name: &String| if name == "connect4" { "connect4" } else { "connect6" };
        let few = MapSizes { frontends: [16; 2], ports: 16, slots: [64; 2], members: 16 };
        let status = holdfast_fixtures::healthy::status();
        holdfast_status::datapath::Status {
            broken_hooks: self.hooks_missing.iter().chain(&self.hooks_unpinned).map(hook).collect(),
            detached_hooks: self.hooks_missing.iter().map(hook).collect(),
            repair_failure: self.not_repaired.clone(),
            shared_hooks: [&self.hooks_before, &self.hooks_after]
                .iter()
                .any(|ids| !ids.is_empty())
                .then(|| ForeignPrograms {
                    hook: "connect4",
                    before: self.hooks_before.clone(),
                    after: self.hooks_after.clone(),
                })
                .into_iter()
                .collect(),
            hooks_restored: self.hooks_put_back,
            kept_failures: KeptFailures {
                refusals: self.refused_clients.iter().map(|it| client_refusal(it, status.now)).collect(),
                silences: self.silent_clients.iter().map(|it| client_refusal(it, status.now)).collect(),
            },
            frontends: [14, 14],
            limits: if self.full { few } else { status.limits },
            packets: status.packets.map(|packets| {
                let devices = packets.devices.iter().cloned().chain(self.device_statuses()).collect();
                let wraps = if self.dsr { DsrTransports::Tcp } else { DsrTransports::Off };
                let switches = PacketSwitches { dsr_transports: wraps, ..packets.switches };
                PacketStatus { devices, switches, ..packets }
            }),
            ..status
        }
    }

    fn proxies(&self) -> Arc<[OtherProxy]> {
        let known = |proxy: &str| {
            ["kube-proxy", "Cilium", "Calico", "kube-router", "Antrea"]
                .into_iter()
                .find(|it| *it == proxy)
                .unwrap()
        };
        self.proxies
            .iter()
            .map(|(proxy, evidence)| OtherProxy {
                proxy: known(proxy),
                evidence: vec![evidence.clone()],
                traces: self.traces().filter(|_| proxy == "Cilium").collect(),
            })
            .collect()
    }

    fn traces(&self) -> impl Iterator<Item = Trace> + '_ {
        let trace = |(what, remove): &(String, String)| Trace::new_translating(what, remove);
        self.cilium.iter().map(trace)
    }

    /// Sets the state that no object can cause.
    fn disturb(&self, snapshot: &mut Snapshot) {
        snapshot.counters.drift = self.drift;
        snapshot.stale_since = self.stale.then_some(TAKEN);
        if let Some(error) = &self.refused {
            let refused = |view: &Arc<holdfast_core::snapshot::ServiceView>| {
                let mut view = holdfast_core::snapshot::ServiceView::clone(view);
                view.frontends.iter_mut().for_each(|it| it.status = Status::Error(error.as_str().into()));
                Arc::new(view)
            };
            let changed: Vec<_> = snapshot.services.iter().map(refused).collect();
            for (id, view) in (0..).map(ServiceId).zip(changed) {
                snapshot.services.set(id, Some(view));
            }
        }
    }
}
