//! Readings with every state, for the tests of the parts that show them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_imports,
    reason = "it is for tests"
)]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::facts::{Listener, Timestamp};
use holdfast_core::keys::{FrontendKey, Transport};
use holdfast_core::op::{PortIndex, QuotaId};
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::{Arrival, Cause, Denial, LiveMaps, Refusal};
use holdfast_fixtures::{THEN, clock, name, number};
use holdfast_status::schema_types::Code;
use holdfast_status::views::announcements::{AnnouncedAddress, AnnouncementStatus};
use holdfast_status::views::apiserver::{
    ApiserverState, ApiserverView, ClusterId, CredentialsView, EndpointView, LearnedState, LearnedView, Tier,
    VipView,
};
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::names::{LastNameAnswer, NameState, NameStatus, NameTrouble};
use holdfast_status::views::node_ports::NodePortListener;
use holdfast_status::views::proxies::{Filter, FilterKind};
use holdfast_status::views::proxies::{OtherProxy, Trace};
use tokio::sync::watch;

use super::{
    About, ClosedPort, ClosedPorts, EffectiveConfig, Liveness, NodeFiles, Purpose, Readings, Verifications,
};
use crate::datapath::RefusalLog;
use crate::node_port_listeners::NodePortListeners;
use crate::state::SnapshotWrite;
use holdfast_fixtures::healthy::devices as decisions;
pub use holdfast_fixtures::healthy::status;
use holdfast_kubernetes::apiserver::Encoding;
use holdfast_kubernetes::source::{self as watching, LastError, Resource, View as Watches, Watch};
use holdfast_standalone::blocks::CheckStats;
use holdfast_standalone::names::NameTable;

/// Five clients, each a second after the previous: one refused twice, one dropped, one refused by a frontend that
/// serves by now, one refused at an address without a service, and one outside.
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
            quota: QuotaId(1),
            denial,
            arrival: None,
            cause: Cause::NoBackend,
        };
        let at = Timestamp(THEN.0 + i64::from(second));
        log.record(at, refusal.clone());
        if second == 1 {
            log.record(Timestamp(at.0 + 1), refusal);
        }
    }
    log.record(Timestamp(THEN.0 + 5), turned_away_outside());
    log
}

/// The log of a client outside that was dropped for this cause.
pub fn dropped_for(cause: Cause) -> Arc<RefusalLog> {
    dropped_at(turned_away_outside().frontend, cause)
}

/// The same, of a client that dialled this.
pub fn dropped_at(frontend: FrontendKey, cause: Cause) -> Arc<RefusalLog> {
    let log = RefusalLog::none();
    log.record(Timestamp(THEN.0 + 5), Refusal { cause, frontend, ..turned_away_outside() });
    log
}

/// Its packet came by the loopback, which has the same number everywhere.
pub fn turned_away_outside() -> Refusal {
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
        quota: QuotaId(1),
        denial: Denial::Dropped,
        cause: Cause::Source,
    }
}

/// The configured endpoint's name no longer resolves, the learned one serves, kubelet's token is gone.
fn apiserver() -> ApiserverView {
    let endpoint = |address: &str, tier, state| EndpointView {
        address: address.parse().unwrap(),
        tier,
        state,
        since: THEN,
        active: false,
        preferred: false,
        connections: 0,
        last_error: None,
        last_named: None,
        learned: None,
    };
    let wrong = "certificate is for other.example, not kubernetes".to_owned();
    ApiserverView {
        endpoints: vec![
            EndpointView {
                last_error: Some((wrong, Timestamp(THEN.0 + 5))),
                ..endpoint("10.0.0.10:6443", Tier::Configured, ApiserverState::Failed)
            },
            endpoint("10.0.0.11:6443", Tier::Kubelet, ApiserverState::Unknown),
            EndpointView {
                active: true,
                preferred: true,
                connections: 3,
                last_named: Some(THEN),
                learned: Some(LearnedView {
                    since: Some(Timestamp(THEN.0 - 60)),
                    slice: Some("kubernetes".into()),
                    state: LearnedState::Listed,
                }),
                ..endpoint("[fd00::12]:6443", Tier::Learned, ApiserverState::Healthy)
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
        unverified_reason: None,
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

/// The watch of Services has received nothing yet.
fn watches() -> Watches {
    let now = clock::now();
    let text = Arc::from("10.0.0.10:6443: connection refused");
    Watches::from_watches(vec![Watch {
        what: Resource::Services,
        state: watching::State::Watching,
        since: now,
        endpoint: Some("[fd00::12]:6443".into()),
        encoding: Some(Encoding::Protobuf),
        resource_version: Some("4711".into()),
        last_received: None,
        objects: 12,
        bad: 1,
        refetched: 7,
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
        targets: Vec::new(),
    };
    [
        filter(
            FilterKind::Early,
            "table ip raw, chain PREROUTING (prerouting, priority -300)",
            "drops packets to port 30080, but no longer sees them",
        ),
        filter(
            FilterKind::Forward,
            "table ip filter, chain FORWARD (forward, priority 0)",
            "policy drop: packets that no rule accepts are not forwarded to backends",
        ),
    ]
    .into()
}

/// One installed route, one missing, and one that the kernel refuses.
fn routes() -> AnnouncementStatus {
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
    AnnouncementStatus { addresses, added: 3, removed: 2, failures: 7 }
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
            "programs at the cgroup keep translating connects by a stale table",
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
    let port =
        ClosedPort { purpose: Purpose::Service, address, service: Some(name("default/web")), reason: why };
    Arc::new(ClosedPorts::from_ports(vec![port]))
}

/// The backend of the configuration's service speaks another protocol than its check.
fn checks() -> Arc<CheckStats> {
    let said = "\u{202e}</script>\r\nSMTP";
    let backend = "[fd00::1]:9000".parse().unwrap();
    Arc::new(CheckStats::with_non_http_backend(&name("default/web"), backend, said, THEN.into()))
}

/// The name of the configuration's service was resolved once, and cannot be resolved now.
fn names() -> Arc<NameTable> {
    let server = "192.0.2.53:53".parse().unwrap();
    let left_out = Some("left out: 127.0.0.1, which is no address of another host".to_owned());
    let answer = LastNameAnswer { server, at: THEN.into(), ttl_seconds: 30, backends: 1, left_out };
    let why = "web.example.com: nothing came within 1 s".to_owned();
    let row = NameStatus {
        name: "web.example.com:9000".to_owned(),
        state: Code(NameState::Failing),
        answer: Some(answer),
        trouble: Some(NameTrouble { since: THEN.into(), server, why }),
    };
    Arc::new(NameTable::with_row(&name("default/web"), row))
}

/// A process at a node port of `default/web`.
fn node_port_listeners() -> NodePortListeners {
    let address = Ipv4Addr::UNSPECIFIED.into();
    let listener = Listener { port: number(30_080), transport: Transport::Tcp, address };
    [NodePortListener { service: name("default/web"), listener, process: Some(("nginx".to_owned(), 4_811)) }]
        .into()
}

pub fn readings(snapshots: watch::Receiver<Arc<Snapshot>>) -> Readings {
    let config = EffectiveConfig {
        text: "[admin]\nlisten = \"127.0.0.1:9890\"\n".to_owned(),
        json: r#"{"admin": {"listen": "127.0.0.1:9890"}}"#.to_owned(),
    };
    Readings {
        snapshots,
        config: watch::channel(Arc::new(config)).1,
        datapath: watch::channel(Arc::new(
            DatapathView::for_kernel(status()).with_devices(decisions().into()),
        ))
        .1,
        live_maps: watch::channel(LiveMaps::default()).1,
        apiserver: Some(watch::channel(Arc::new(apiserver())).1),
        watches: watches(),
        refusals: refusals(),
        probes: Arc::default(),
        checks: checks(),
        names: names(),
        more_services: watch::channel(Arc::default()).1,
        announced: Some(Arc::default()),
        history: Arc::default(),
        last_write: watch::channel(SnapshotWrite::default()).1,
        engine: crate::engine::query::channel().0,
        verifications: Verifications::default(),
        liveness: Liveness::new(|| None),
        proxies: watch::channel(proxies()).1,
        filters: watch::channel(filters()).1,
        routes: watch::channel(Arc::new(routes())).1,
        refused_reload: watch::channel(None).1,
        closed_listeners: watch::channel(Vec::new()).1,
        node_port_listeners: watch::channel(node_port_listeners()).1,
        kept_failures: watch::channel(Arc::default()).1,
        drains: watch::channel(crate::drains::DrainsWrite::default()).1,
        closed_ports: closed_ports(),
        files: NodeFiles { config: "/etc/holdfast/holdfast.toml".into(), state: "/var/lib/holdfast".into() },
        about: About { version: "0.1.0", started: Timestamp(THEN.0 - 60) },
        clock: || Timestamp(THEN.0 + 180).into(),
    }
}

/// No programs, no denied client, and no process at a node port.
pub fn in_memory(readings: &mut Readings) {
    readings.datapath = watch::channel(Arc::new(DatapathView::for_memory())).1;
    readings.apiserver = None;
    readings.watches = Watches::default();
    readings.refusals = RefusalLog::none();
    readings.node_port_listeners = watch::channel(NodePortListeners::default()).1;
    readings.proxies = watch::channel(Arc::default()).1;
    readings.filters = watch::channel(Arc::default()).1;
    readings.routes = watch::channel(Arc::default()).1;
}
