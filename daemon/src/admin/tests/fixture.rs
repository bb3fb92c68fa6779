//! A snapshot with every verdict, every state and every kind of rejection, and the API that shows it.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_core::drains::{Drain, Drains, Ordered};
use holdfast_core::facts::{
    AddressType, BalancerFacts, Conditions, Endpoint, EndpointsBuilder, Ingress, Meta, NodeFacts, ObjectKey,
    Rejection, ServiceFacts, ServicePort, ServiceType, SliceFacts, SlicePort, Target, Timestamp,
    TrafficPolicy, endpoints::UidText,
};
use holdfast_core::keys::{
    Family, FrontendKey, ObjectName, PortKey, Protocol, ServiceKey, SliceKey, Source, Transport,
};
use holdfast_core::list::{LastList, Row, Rows, Scope};
use holdfast_core::op::{FrontendType, PortIndex, ServiceId, Share};
use holdfast_core::snapshot::{
    Counters, Fill, FrontendView, PortView, Reason, Rejections, ServiceState, ServiceView, Snapshot, Status,
    Verdict,
};
use holdfast_datapath::{Arrival, Cause, Denial, LiveMaps, Refusal};
use holdfast_judgement::described::Code;
use holdfast_judgement::views::announced::{Announced, AnnouncedAddress};
use holdfast_judgement::views::apiserver::{
    ClusterId, CredentialsView, EndpointView, LearnedView, Standing, State, Tier, View, VipView,
};
use holdfast_judgement::views::datapath::DatapathView;
use holdfast_judgement::views::devices;
use holdfast_judgement::views::names::{AnswerSeen, NameSeen, NameState, TroubleSeen};
use holdfast_judgement::views::proxies::{Filter, FilterKind};
use holdfast_judgement::views::proxies::{OtherProxy, Trace};
use tokio::sync::{mpsc, watch};

use crate::admin::{Acts, Admin, Settings, start};
use crate::apiserver::Encoding;
use crate::datapath::RefusalLog;
use crate::diagnose::gather::Gatherer;
use crate::knowledge::Edition;
use crate::readings::{
    About, ClosedPort, ClosedPorts, EffectiveConfig, Liveness, Purpose, Readings, Verifications,
};
use crate::sources::config::Checks;
use crate::sources::kubernetes::{self as watching, LastError, Resource, View as Watches, Watch};
use crate::sources::names::Names;
use crate::state::Written;
use healthy::devices as decisions;
pub(crate) use healthy::status;

#[path = "../../../judgement/src/diagnose/checks/tests/healthy.rs"]
mod healthy;

/// At 2026-01-08T11:11:55Z, as it is shown.
pub(crate) const THEN: Timestamp = Timestamp(1_767_870_715);

fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name).unwrap()
}

fn key(text: &str) -> ServiceKey {
    ServiceKey { name: name(text), source: Source::Kubernetes }
}

fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).unwrap()
}

/// `RS- C`: ready, serving, terminating; in the cluster list, in the local list.
fn conditions(marks: &str) -> Conditions {
    Conditions { ready: marks.contains('R'), serving: marks.contains('S'), terminating: marks.contains('T') }
}

/// One service under construction.
struct Given {
    view: ServiceView,
    facts: ServiceFacts,
}

impl Given {
    fn new(text: &str, kind: ServiceType, state: ServiceState) -> Self {
        let key = key(text);
        let mut facts = ServiceFacts::new(key.clone(), kind);
        facts.meta = Meta {
            uid: Some("6f1c0a2e-0000-4000-8000-000000000001".into()),
            resource_version: Some("4711".into()),
            created: Some(Timestamp(THEN.0 - 3600)),
            origin: Some("services.yaml".into()),
            ..Meta::default()
        };
        let view = ServiceView {
            key,
            facts: None,
            slices: Arc::default(),
            state,
            ports: Box::default(),
            frontends: Box::default(),
            seen: None,
        };
        Self { view, facts }
    }

    fn source(mut self, source: Source) -> Self {
        self.view.key.source = source;
        self.facts.key.source = source;
        self
    }

    fn facts(mut self, change: impl FnOnce(&mut ServiceFacts)) -> Self {
        change(&mut self.facts);
        self
    }

    fn port(mut self, name: &str, protocol: &str, port: u16, node_port: Option<u16>) -> Self {
        let node_port = node_port.map(number);
        let protocol = Protocol::parse(protocol);
        self.facts.ports.push(ServicePort { name: name.into(), protocol, port: number(port), node_port });
        self
    }

    /// A slice of the port that was given last; endpoints are `(address, conditions, pod)`.
    fn slice(mut self, slice: &str, backend_port: u16, endpoints: &[(&str, &str, &str)]) -> Self {
        let addresses: Vec<IpAddr> = endpoints.iter().map(|(address, ..)| address.parse().unwrap()).collect();
        let family = addresses.first().map_or(Family::V4, |address| Family::of(*address));
        let mut builder = EndpointsBuilder::new(family);
        for (address, (_, marks, pod)) in addresses.iter().zip(endpoints) {
            let target = (!pod.is_empty()).then_some(Target {
                kind: "Pod",
                namespace: "default",
                name: (*pod).into(),
                uid: if *pod == "anonymous" { UidText::Text("") } else { UidText::Uuid([0xab; 16]) },
            });
            let (node, zone) = (target.map(|_| "node-1".into()), target.map(|_| "zone-a"));
            let conditions = conditions(marks);
            let endpoint = Endpoint { address: *address, conditions, node, zone, hints: None, target };
            builder.push(endpoint).unwrap();
        }
        let ports = self.facts.ports.iter().map(|port| SlicePort {
            name: Arc::clone(&port.name),
            protocol: port.protocol.clone(),
            port: number(backend_port),
        });
        let facts = SliceFacts {
            key: SliceKey { name: name(slice), source: self.view.key.source },
            meta: Meta::default(),
            service: Some(self.view.key.name.name().into()),
            headless: false,
            address_type: AddressType::Ip(family),
            ports: ports.collect(),
            endpoints: builder.finish(),
            endpoints_null: false,
            weights: None,
        };
        self.view.slices = self.view.slices.iter().cloned().chain([Arc::new(facts)]).collect();
        self
    }

    /// The rows of one port; rows are `(address, conditions and lists, slice, place)`.
    fn rows(mut self, port: &str, backend_port: u16, rows: &[(&str, &str, u16, u16)]) -> Self {
        let mut built = Vec::new();
        for (address, marks, slice, endpoint) in rows {
            let mut row = Row::new(
                address.parse().unwrap(),
                number(backend_port),
                conditions(marks),
                *slice,
                *endpoint,
            );
            if marks.contains('C') {
                row.choose(Scope::Cluster);
            }
            if marks.contains('L') {
                row.choose(Scope::Local);
            }
            built.push(row);
        }
        let family = built.first().map_or(Family::V4, |row| Family::of(row.address));
        let (port, protocol) = port.split_once('/').unwrap();
        let transport = Protocol::parse(protocol).transport().unwrap();
        let view = PortView {
            key: PortKey { name: port.into(), transport, family },
            index: None,
            rows: Arc::new(Rows::new(built, &Rows::default(), THEN)),
            last: LastList::default(),
            hold: None,
            ended: None,
            cluster_used: self.facts.internal_policy == TrafficPolicy::Cluster,
            local_used: self.facts.external_policy == TrafficPolicy::Local,
        };
        self.view.ports = self.view.ports.iter().cloned().chain([view]).collect();
        self
    }

    fn frontend(
        mut self,
        kind: FrontendType,
        address: &str,
        verdict: Verdict,
        reason: Option<Reason>,
        change: impl FnOnce(&mut FrontendView),
    ) -> Self {
        let address: SocketAddr = address.parse().unwrap();
        let family = Family::of(address.ip());
        let spec = self.facts.ports.iter().find(|port| {
            [Some(port.port), port.node_port].contains(&Some(number(address.port())))
                || kind == FrontendType::Static
        });
        let spec = spec.unwrap();
        let same = |port: &PortView| {
            port.key.name == spec.name
                && Some(port.key.transport) == spec.protocol.transport()
                && port.key.family == family
        };
        let mut frontend = FrontendView {
            address: address.ip(),
            port: number(address.port()),
            protocol: spec.protocol.clone(),
            kind,
            port_name: Arc::clone(&spec.name),
            position: self.view.ports.iter().position(same),
            scope: Scope::Cluster,
            external_local: false,
            verdict,
            reason,
            status: Status::Done,
            applied: None,
            owner: None,
            since: THEN,
        };
        change(&mut frontend);
        self.view.frontends = self.view.frontends.iter().cloned().chain([frontend]).collect();
        self
    }

    fn done(mut self) -> Arc<ServiceView> {
        if self.view.state != ServiceState::NoService {
            self.view.facts = Some(Arc::new(self.facts));
        }
        Arc::new(self.view)
    }
}

fn unchanged(_: &mut FrontendView) {}

fn intranet() -> Given {
    Given::new("default/kubernetes-intranet", ServiceType::LoadBalancer, ServiceState::Served)
        .facts(|facts| {
            let finalizers = ["service.kubernetes.io/load-balancer-cleanup".into()].into();
            let writers = ["cloud-controller-manager".into()].into();
            let class = Some("example.com/own".into());
            let balancer = BalancerFacts { finalizers, writers, class, ..BalancerFacts::default() };
            facts.balancer = Some(Box::new(balancer));
        })
        .port("https", "TCP", 443, None)
        .slice("default/kubernetes-intranet-qxgk4", 60002, &[("169.254.128.7", "RS", "")])
        .rows("https/TCP", 60002, &[("169.254.128.7", "RSC", 0, 0)])
        .frontend(FrontendType::LoadBalancer, "10.15.1.8:443", Verdict::Serving, None, unchanged)
}

/// Policy Local for clients outside, with no backend here; one address in two slices; one backend that is not ready.
fn web() -> Given {
    Given::new("default/web", ServiceType::LoadBalancer, ServiceState::Served)
        .facts(|facts| {
            facts.external_policy = TrafficPolicy::Local;
            facts.ingress = vec![Ingress { address: [192, 0, 2, 10].into(), proxied: false }];
            facts.affinity_timeout = Some(10_800);
            facts.affinity_prefix = Some("ipv4=24,ipv6=64".into());
            facts.source_ranges = vec!["10.0.0.0/8".into(), "192.168.0.0/16".into()];
            facts.health_check_node_port = Some(number(32000));
        })
        .port("http", "TCP", 80, Some(30080))
        .slice("default/web-a", 8080, &[("10.1.0.1", "RS", "web-1"), ("10.1.0.2", "", "anonymous")])
        .slice("default/web-b", 8080, &[("10.1.0.2", "", "web-2"), ("10.1.0.1", "RS", "web-1")])
        .rows("http/TCP", 8080, &[("10.1.0.1", "RSC", 0, 0), ("10.1.0.2", "", 0, 1)])
        .frontend(FrontendType::ClusterIp, "10.96.0.10:80", Verdict::Serving, None, unchanged)
        .frontend(FrontendType::NodePort, "0.0.0.0:30080", Verdict::Serving, None, |frontend| {
            frontend.external_local = true;
        })
        .frontend(FrontendType::LoadBalancer, "192.0.2.10:80", Verdict::Serving, None, |frontend| {
            frontend.external_local = true;
            frontend.status = Status::Error("the map of frontends is full".into());
        })
}

/// The same namespace and name in the configuration file.
fn web_static() -> Given {
    Given::new("default/web", ServiceType::Static, ServiceState::Served)
        .source(Source::Config)
        .port("http", "TCP", 8000, None)
        .slice("default/web", 9000, &[("fd00::1", "RS", "")])
        .rows("http/TCP", 9000, &[("fd00::1", "RSC", 0, 0)])
        .frontend(FrontendType::Static, "[fd00::80]:8000", Verdict::Serving, None, |frontend| {
            frontend.status = Status::Pending;
        })
}

fn dns() -> Given {
    Given::new("kube-system/kube-dns", ServiceType::ClusterIp, ServiceState::Served)
        .port("dns", "UDP", 53, None)
        .port("dns", "TCP", 53, None)
        .slice("kube-system/kube-dns-x", 53, &[("10.1.0.9", "ST", ""), ("10.1.0.8", "T", "")])
        .rows("dns/TCP", 53, &[("10.1.0.8", "T", 0, 1), ("10.1.0.9", "STC", 0, 0)])
        .rows("dns/UDP", 53, &[("10.1.0.8", "T", 0, 1), ("10.1.0.9", "STC", 0, 0)])
        .frontend(
            FrontendType::ClusterIp,
            "10.96.0.53:53",
            Verdict::Draining,
            Some(Reason::ScaledDown),
            unchanged,
        )
}

fn gone() -> Given {
    Given::new("default/gone", ServiceType::ClusterIp, ServiceState::Served)
        .port("", "TCP", 80, None)
        .slice("default/gone-x", 80, &[])
        .rows("/TCP", 80, &[])
        .frontend(
            FrontendType::ClusterIp,
            "10.96.0.20:80",
            Verdict::Refusing,
            Some(Reason::Vanished),
            unchanged,
        )
}

fn elsewhere() -> Given {
    Given::new("default/elsewhere", ServiceType::ClusterIp, ServiceState::Served)
        .facts(|facts| facts.internal_policy = TrafficPolicy::Local)
        .port("", "TCP", 80, None)
        .slice("default/elsewhere-x", 80, &[("10.2.0.1", "RS", "far-1")])
        .rows("/TCP", 80, &[("10.2.0.1", "RS", 0, 0)])
        .frontend(
            FrontendType::ClusterIp,
            "10.96.0.21:80",
            Verdict::Dropping,
            Some(Reason::LocalPolicy),
            |frontend| {
                frontend.scope = Scope::Local;
            },
        )
}

fn kubernetes() -> Given {
    Given::new("default/kubernetes", ServiceType::ClusterIp, ServiceState::Served)
        .port("https", "TCP", 443, None)
        .slice("default/kubernetes", 6443, &[("10.0.0.10", "RS", "")])
        .rows("https/TCP", 6443, &[("10.0.0.10", "RSC", 0, 0)])
        .frontend(
            FrontendType::ClusterIp,
            "10.96.0.1:443",
            Verdict::Bypassed,
            Some(Reason::Control),
            unchanged,
        )
}

fn thief() -> Given {
    Given::new("default/thief", ServiceType::ClusterIp, ServiceState::Served)
        .port("http", "TCP", 80, None)
        .frontend(
            FrontendType::ExternalIp,
            "10.96.0.10:80",
            Verdict::Conflict,
            Some(Reason::Claimed),
            |frontend| {
                frontend.owner = Some(key("default/web"));
            },
        )
}

fn signalling() -> Given {
    Given::new("telecom/signalling", ServiceType::NodePort, ServiceState::Served)
        .port("s1", "SCTP", 36412, None)
        .frontend(
            FrontendType::ClusterIp,
            "10.96.0.30:36412",
            Verdict::Unprogrammed,
            Some(Reason::Protocol),
            unchanged,
        )
}

fn unserved() -> [Given; 5] {
    [
        Given::new("default/headless", ServiceType::ClusterIp, ServiceState::Headless),
        Given::new("default/alias", ServiceType::ExternalName, ServiceState::ExternalName),
        Given::new("default/nowhere", ServiceType::ClusterIp, ServiceState::NoAddress),
        Given::new("default/other", ServiceType::ClusterIp, ServiceState::OtherProxy),
        Given::new("default/orphan", ServiceType::ClusterIp, ServiceState::NoService).slice(
            "default/orphan-x",
            80,
            &[],
        ),
    ]
}

fn rejections() -> Rejections {
    let rejection = |object: ObjectKey, origin: Option<&str>, reason: &str, partial| {
        (object.clone(), Rejection { object, origin: origin.map(Into::into), reason: reason.into(), partial })
    };
    let slice = SliceKey { name: name("default/web-a"), source: Source::Kubernetes };
    let named = [
        rejection(ObjectKey::Service(key("default/bad")), Some("bad.yaml"), "port 70000 is not legal", false),
        rejection(ObjectKey::Slice(slice), None, "endpoint 3: \"10.1.0.x\" is no address", true),
        rejection(
            ObjectKey::File(Source::Manifests, "half.yaml".into()),
            None,
            "line 3: unexpected end",
            false,
        ),
    ];
    Rejections { named: named.into(), more: 2, waiting: 1, dropped: 2, total: 17 }
}

/// Every verdict, every state, every kind of rejection.
/// Of an address that no service has.
fn drains() -> Drains {
    let mut drains = Drains::default();
    let drain = Drain::new("10.9.9.9".parse().unwrap(), None, Some(name("default/web")));
    drains.add(drain, Ordered { uid: 0, user: Some("root".into()), at: THEN }).unwrap();
    drains
}

pub(crate) fn everything() -> Snapshot {
    let given =
        [web(), thief(), web_static(), intranet(), dns(), gone(), elsewhere(), kubernetes(), signalling()];
    let mut snapshot = Snapshot {
        rejections: Arc::new(rejections()),
        node: Arc::new(NodeFacts { name: "node-1".into(), ..NodeFacts::default() }),
        sources: [(Source::Config, true), (Source::Kubernetes, true)].into(),
        counters: Counters {
            batches: 3,
            events: 20,
            ops: 41,
            ops_failed: 1,
            cross_service: 0,
            impossible: 0,
            drift: 6,
            changes: 12,
            changes_dropped: 2,
        },
        fill: Fill { frontends: 9, ports: 7, slots: [14, 2], members: 0, retries: 1, failing: 1 },
        programmed: true,
        published: THEN,
        drains: Arc::new(drains()),
        ..Snapshot::default()
    };
    for (id, given) in (0..).map(ServiceId).zip(given.into_iter().chain(unserved())) {
        snapshot.services.set(id, Some(given.done()));
    }
    snapshot
}

/// Many services of one cluster IP each.
pub(crate) fn many(services: usize, backends: u16) -> Snapshot {
    let sources = [(Source::Kubernetes, true)].into();
    let mut snapshot = Snapshot { published: THEN, programmed: true, sources, ..Snapshot::default() };
    for service in 0..services {
        let address = |network: u8, host: u16| {
            let [high, low] = host.to_be_bytes();
            format!("10.{network}.{high}.{low}")
        };
        let backends: Vec<String> = (0..backends).map(|backend| address(200, backend + 1)).collect();
        let endpoints: Vec<_> = backends.iter().map(|backend| (backend.as_str(), "RS", "pod-1")).collect();
        let rows: Vec<_> =
            (0..).zip(&backends).map(|(place, backend)| (backend.as_str(), "RSC", 0, place)).collect();
        let number = u16::try_from(service % 60_000).unwrap();
        let given = Given::new(
            &format!("default/service-{service:05}"),
            ServiceType::ClusterIp,
            ServiceState::Served,
        )
        .port("http", "TCP", 80, None)
        .slice(&format!("default/service-{service:05}-x"), 8080, &endpoints)
        .rows("http/TCP", 8080, &rows)
        .frontend(
            FrontendType::ClusterIp,
            &format!("{}:80", address(96, number)),
            Verdict::Serving,
            None,
            unchanged,
        );
        snapshot.services.set(ServiceId(u32::try_from(service).unwrap()), Some(given.done()));
    }
    snapshot
}

/// A running API over one snapshot.
pub(crate) struct Served {
    pub(crate) admin: Admin,
    pub(crate) socket: PathBuf,
    pub(crate) folder: Folder,
    // Readers see what was sent last, whether or not the sender lives; it is kept for tests that publish again.
    pub(crate) snapshots: watch::Sender<Arc<Snapshot>>,
}

/// A folder of its own for one test, removed at its end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("holdfast-admin-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Five clients, each a second after the one before: one refused twice, one dropped, one refused by a frontend that
/// serves by now, one refused at an address that no service has, and one outside.
fn refusals() -> Arc<RefusalLog> {
    let log = RefusalLog::none();
    let clients = [
        ("10.96.0.20:80", Transport::Tcp, "curl", Denial::Refused),
        ("10.96.0.21:80", Transport::Tcp, "wget", Denial::Dropped),
        ("192.0.2.5:30080", Transport::Tcp, "node\nprobe", Denial::Refused),
        ("[fd00::99]:53", Transport::Udp, "dig", Denial::Refused),
    ];
    for (second, (dialled, transport, comm, denial)) in (1..).zip(clients) {
        let dialled: SocketAddr = dialled.parse().unwrap();
        let refusal = Refusal {
            at: Duration::from_secs(600),
            process: 4_700 + second,
            thread: 4_710 + second,
            comm: comm.to_owned(),
            cgroup: 7_001,
            netns: 1,
            frontend: FrontendKey { address: dialled.ip(), port: number(dialled.port()), transport },
            port: PortIndex(second),
            share: Share(1),
            denial,
            arrival: None,
            cause: Cause::NoBackend,
        };
        let at = Timestamp(THEN.0 + i64::from(second));
        log.keep(at, refusal.clone());
        if second == 1 {
            log.keep(Timestamp(at.0 + 1), refusal);
        }
    }
    log.keep(Timestamp(THEN.0 + 5), turned_away_outside());
    log
}

/// Its packet came by the loopback, which has the same number everywhere.
fn turned_away_outside() -> Refusal {
    let dialled =
        FrontendKey { address: [192, 0, 2, 10].into(), port: number(80), transport: Transport::Tcp };
    Refusal {
        at: Duration::from_secs(600),
        arrival: Some(Arrival { source: "198.51.100.7:50000".parse().unwrap(), device: 1 }),
        process: 0,
        thread: 0,
        comm: String::new(),
        cgroup: 0,
        netns: 0,
        frontend: dialled,
        port: PortIndex(1),
        share: Share(1),
        denial: Denial::Dropped,
        cause: Cause::Source,
    }
}

/// The configured endpoint lost its name, the learned one serves, kubelet's token is gone.
fn apiserver() -> View {
    let endpoint = |address: &str, tier, state| EndpointView {
        address: address.parse().unwrap(),
        tier,
        state,
        since: THEN,
        active: false,
        preferred: false,
        connections: 0,
        last_error: None,
        seen: None,
        learned: None,
    };
    let wrong = "certificate is for other.example, not kubernetes".to_owned();
    View {
        endpoints: vec![
            EndpointView {
                last_error: Some((wrong, Timestamp(THEN.0 + 5))),
                ..endpoint("10.0.0.10:6443", Tier::Configured, State::Failed)
            },
            endpoint("10.0.0.11:6443", Tier::Kubelet, State::Unknown),
            EndpointView {
                active: true,
                preferred: true,
                connections: 3,
                seen: Some(THEN),
                learned: Some(LearnedView {
                    since: Some(Timestamp(THEN.0 - 60)),
                    slice: Some("kubernetes".into()),
                    standing: Standing::Listed,
                }),
                ..endpoint("[fd00::12]:6443", Tier::Learned, State::Healthy)
            },
        ],
        credentials: vec![
            CredentialsView {
                tier: Tier::Configured,
                kind: "client certificate",
                files: vec![("/etc/holdfast/client.crt".into(), Some(THEN))],
                expires: Some(Timestamp(THEN.0 + 86_400)),
                problem: None,
            },
            CredentialsView {
                tier: Tier::Kubelet,
                kind: "none",
                files: vec![("/etc/kubernetes/kubelet.conf".into(), Some(THEN))],
                expires: None,
                problem: Some(("/etc/kubernetes/kubelet.conf: is no kubeconfig".to_owned(), THEN)),
            },
        ],
        cluster: ClusterId::new("2f6d6a52-0001"),
        unverified: None,
        memory_problem: Some(
            "/var/lib/holdfast/apiserver.json: Read-only file system (os error 30)".to_owned(),
        ),
        failovers: 4,
        vip: Some(VipView {
            address: "169.254.20.1:6443".parse().unwrap(),
            leads_to: "[fd00::12]:6443".parse().ok(),
        }),
    }
}

/// The watch of Services has heard nothing yet.
fn watches() -> Watches {
    let now = Instant::now();
    let text = Arc::from("10.0.0.10:6443: connection refused");
    Watches::still(vec![Watch {
        what: Resource::Services,
        state: watching::State::Watching,
        since: now,
        endpoint: Some("[fd00::12]:6443".into()),
        encoding: Some(Encoding::Protobuf),
        resource_version: Some("4711".into()),
        heard: None,
        objects: 12,
        bad: 1,
        alone: 7,
        lists: 2,
        restarts: 3,
        page_retries: 6,
        events: 40,
        losses: 0,
        audits: 5,
        differences: 0,
        last_error: Some(LastError { text, at: now }),
    }])
}

fn filters() -> Arc<[Filter]> {
    let filter = |kind, place: &str, rule: &str| Filter {
        kind: Code(kind),
        place: place.to_owned(),
        rule: rule.to_owned(),
        about: Vec::new(),
    };
    [
        filter(
            FilterKind::Early,
            "table ip raw, chain PREROUTING (prerouting, priority -300)",
            "drops what is sent to port 30080, and sees it no more",
        ),
        filter(
            FilterKind::Forward,
            "table ip filter, chain FORWARD (forward, priority 0)",
            "policy drop: what no rule accepts is not forwarded to backends",
        ),
    ]
    .into()
}

/// One that is there, one that is not, and one that the kernel does not take.
fn routes() -> Announced {
    let one = |address: &str, announced, why: Option<&str>, error: Option<&str>| AnnouncedAddress {
        address: address.parse().unwrap(),
        table: 180,
        announced,
        why: why.map(str::to_owned),
        error: error.map(str::to_owned),
    };
    let lasts = "it is served, and announced once that has lasted";
    let addresses = vec![
        one("192.0.2.10", true, None, None),
        one("192.0.2.11", false, Some("static/mail is refusing (all-unready) at port 25"), None),
        one("2001:db8::10", false, Some(lasts), Some("Operation not permitted (os error 1)")),
    ];
    Announced { addresses, put: 3, taken: 2, refused: 7 }
}

fn proxies() -> Arc<[OtherProxy]> {
    let evidence = vec!["listens on port 10249".to_owned(), "nftables table kube-proxy".to_owned()];
    let pins = vec!["/sys/fs/bpf/cilium".to_owned()];
    let trace = |what: &str, remove: &str, translates| Trace {
        what: what.to_owned(),
        remove: remove.to_owned(),
        translates,
        has_clients: false,
    };
    let traces = vec![
        trace(
            "programs at the cgroup go on translating connects by a table that nobody writes",
            "rm -r /sys/fs/bpf/cilium/socketlb",
            true,
        ),
        trace("maps", "rm /sys/fs/bpf/tc/globals/cilium_*", false),
    ];
    [
        OtherProxy { proxy: "Cilium", evidence: pins, traces },
        OtherProxy { proxy: "kube-proxy", evidence, traces: Vec::new() },
    ]
    .into()
}

fn closed_ports() -> Arc<ClosedPorts> {
    let (address, why) = ("10.0.0.5:30123".parse().unwrap(), "another process listens there".to_owned());
    let port = ClosedPort { purpose: Purpose::Service, address, service: Some(name("default/web")), why };
    Arc::new(ClosedPorts::of(vec![port]))
}

/// The backend of the configuration's service speaks another protocol than its check.
fn checks() -> Arc<Checks> {
    let said = "\u{202e}</script>\r\nSMTP";
    let backend = "[fd00::1]:9000".parse().unwrap();
    Arc::new(Checks::of_one_that_is_not_http(&name("default/web"), backend, said, THEN.into()))
}

/// The name of the configuration's service was answered once, and cannot be resolved now.
fn names() -> Arc<Names> {
    let server = "192.0.2.53:53".parse().unwrap();
    let left_out = Some("left out: 127.0.0.1, which is no address of another host".to_owned());
    let answer = AnswerSeen { server, at: THEN.into(), ttl_seconds: 30, backends: 1, left_out };
    let why = "web.example.com: nothing came within 1 s".to_owned();
    let row = NameSeen {
        name: "web.example.com:9000".to_owned(),
        state: Code(NameState::Trouble),
        answer: Some(answer),
        trouble: Some(TroubleSeen { since: THEN.into(), server, why }),
    };
    Arc::new(Names::showing(&name("default/web"), row))
}

/// A file of the operator that is no TOML.
fn odd_knowledge() -> Edition {
    Edition::of(vec![("/etc/holdfast/events.d/ours.toml".to_owned(), "[[cause]\n".to_owned())], Vec::new())
}

pub(crate) fn readings(snapshots: watch::Receiver<Arc<Snapshot>>) -> Readings {
    let config = EffectiveConfig {
        text: "[admin]\nlisten = \"127.0.0.1:9890\"\n".to_owned(),
        json: r#"{"admin": {"listen": "127.0.0.1:9890"}}"#.to_owned(),
    };
    Readings {
        snapshots,
        config: watch::channel(Arc::new(config)).1,
        datapath: watch::channel(Arc::new(DatapathView::kernel(status()).with_devices(decisions().into()))).1,
        live_maps: watch::channel(LiveMaps::default()).1,
        apiserver: Some(watch::channel(Arc::new(apiserver())).1),
        watches: watches(),
        refusals: refusals(),
        probes: Arc::default(),
        checks: checks(),
        names: names(),
        more_services: watch::channel(Arc::default()).1,
        announced: Some(Arc::default()),
        overheard: Arc::default(),
        history: Arc::default(),
        written: watch::channel(Written::default()).1,
        engine: crate::engine::ask::channel().0,
        verifications: Verifications::default(),
        liveness: Liveness::new(|| None),
        proxies: watch::channel(proxies()).1,
        filters: watch::channel(filters()).1,
        routes: watch::channel(Arc::new(routes())).1,
        refused_reload: watch::channel(None).1,
        shut: watch::channel(Vec::new()).1,
        drains: watch::channel(crate::drains::Written::default()).1,
        closed_ports: closed_ports(),
        editions: watch::channel(Arc::new(odd_knowledge())).1,
        about: About { version: "0.1.0", started: Timestamp(THEN.0 - 60) },
    }
}

/// No apiserver to be asked, and no ear for wishes.
pub(crate) fn acts() -> Acts {
    Acts {
        gatherer: Gatherer::new(None, "node-1".into(), watch::channel(Arc::default()).1),
        reloads: mpsc::channel(1).0,
        forgets: mpsc::channel(1).0,
        drains: mpsc::channel(1).0,
    }
}

/// No programs, and no client turned away.
pub(crate) fn in_memory(readings: &mut Readings) {
    readings.datapath = watch::channel(Arc::new(DatapathView::memory())).1;
    readings.apiserver = None;
    readings.watches = Watches::default();
    readings.refusals = RefusalLog::none();
    readings.proxies = watch::channel(Arc::default()).1;
    readings.filters = watch::channel(Arc::default()).1;
    readings.routes = watch::channel(Arc::default()).1;
}

pub(crate) fn serve(snapshot: Snapshot) -> Served {
    serve_with(snapshot, |_| {})
}

pub(crate) fn serve_with(snapshot: Snapshot, change: impl FnOnce(&mut Readings)) -> Served {
    serve_all(snapshot, change, acts())
}

pub(crate) fn serve_to(snapshot: Snapshot, acts: Acts) -> Served {
    serve_all(snapshot, |_| {}, acts)
}

pub(crate) fn serve_all(snapshot: Snapshot, change: impl FnOnce(&mut Readings), acts: Acts) -> Served {
    let folder = Folder::new();
    let socket = folder.0.join("admin.sock");
    let (snapshots, receiver) = watch::channel(Arc::new(snapshot));
    let mut readings = readings(receiver);
    change(&mut readings);
    let settings = Settings { listen: "127.0.0.1:0".parse().unwrap(), socket: socket.clone() };
    let admin = start(&settings, (readings, acts), watch::channel(Vec::new()).0).unwrap();
    Served { admin, socket, folder, snapshots }
}
