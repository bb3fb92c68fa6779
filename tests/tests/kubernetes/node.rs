//! A node: source, engine and memory maps on one thread, a cluster's servers next to it, and a guard in the maps.
//!
//! The node's tasks run only while a test waits, so all that a test does to the servers in between is one moment for
//! the node.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_agent::engine::run::{CHANGES_WAITING_MAX, EngineChannels, GROUPS_WAITING_MAX, run};
use holdfast_agent::engine::steps::StepMetrics;
use holdfast_agent::kube_proxy;
use holdfast_agent::readings::{About, Liveness, Readings};
use holdfast_agent::recorder::Recorder;
use holdfast_agent::rejections;
use holdfast_config::{
    Apiserver, ApiserverUrl, ClientIdentity, Config, Encodings, EventsRead, KubeProxy,
    Kubernetes as KubernetesTable,
};
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::{Source, Transport};
use holdfast_core::maps::{Client, DialOutcome, MemoryMaps};
use holdfast_core::op::Action;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use holdfast_evidence::event_watcher::{self, EventCounters};
use holdfast_fixtures::clock::{pause_async, wait_until_async};
use holdfast_kubernetes::apiserver::{self, Access, AccessSources};
use holdfast_kubernetes::event_recorder::{self, EventCounts};
use holdfast_kubernetes::own_node::NodeReport;
use holdfast_kubernetes::source::{Kubernetes, Resource, SourceSettings, State, Timing, View, Watch};
use holdfast_laws::observing::{ObservingMaps, Witness};
use holdfast_laws::scenario::{difference, frontends};
use holdfast_objects::{
    Defaulting, Provenance, ServiceWire, SliceWire, from_value, parse_service, parse_slice,
};
use holdfast_tests::fake::{Authority, Cluster, Kind, Names, Server};
use holdfast_tests::readings;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};
use tracing::subscriber::DefaultGuard;

/// The uid of the node's own cluster.
pub(crate) const OUR_CLUSTER: &str = "7c8d4a2e-0000-4000-8000-000000000001";

/// The name in an apiserver's certificate.
pub(crate) const KUBERNETES: &str = "kubernetes.default.svc";

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// The daemon's timeouts, with those shortened that end a pause. A watch may be silent as long as in operation: tests
/// count watches, and a slow machine pauses too.
pub(crate) fn quick() -> Timing {
    Timing { list_idle: Duration::from_secs(4), list_spread: ms(50), ..Timing::default() }
}

/// The interval of bookmarks, short enough for tests of silence.
const BOOKMARKS: Duration = Duration::from_millis(100);

/// A cluster with its servers, and the folder with this node's credentials.
pub(crate) struct Setup {
    pub(crate) cluster: Cluster,
    pub(crate) authority: Authority,
    pub(crate) servers: Vec<Server>,
    pub(crate) folder: TempDir,
}

impl Setup {
    pub(crate) fn new(servers: usize) -> Self {
        let cluster = Cluster::new(OUR_CLUSTER);
        let authority = Authority::new().unwrap();
        let folder = TempDir::new().unwrap();
        let mut setup = Self { cluster, authority, servers: Vec::new(), folder };
        setup.write("ca.pem", &setup.authority.pem());
        setup.write("token", "first");
        for _ in 0..servers {
            setup.add_server();
        }
        setup
    }

    fn add_server(&mut self) {
        let identity = self.authority.server(&Names::Kubernetes).unwrap();
        let server = Server::start(&self.cluster, &identity).unwrap();
        server.set_bookmarks(Some(BOOKMARKS));
        self.servers.push(server);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes atomically, as a rotation of credentials does.
    pub(crate) fn write(&self, name: &str, text: &str) {
        let new = self.path(&format!("{name}.new"));
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.path(name)).unwrap();
    }

    /// `[apiserver]` for these servers in order, with a token.
    pub(crate) fn apiserver(&self) -> Apiserver {
        Apiserver {
            endpoints: self.servers.iter().map(|it| ApiserverUrl::parse(&it.url()).unwrap()).collect(),
            tls_server_name: Some(KUBERNETES.to_owned()),
            ca_file: Some(self.path("ca.pem")),
            identity: Some(ClientIdentity::TokenFile(self.path("token"))),
            ..Apiserver::default()
        }
    }

    pub(crate) fn access(&self, apiserver: Apiserver) -> Access {
        let sources = AccessSources { apiserver, kubelet: None, learns: true };
        let state = self.path("state");
        std::fs::create_dir_all(&state).unwrap();
        let settings = apiserver::AccessSettings { sources, state, known_cluster: None, seed: 1 };
        Access::new(&settings).unwrap()
    }

    /// Writes services `web-0`, `web-1`… with a backend each.
    pub(crate) fn services(&self, count: u8) {
        for number in 0..count {
            self.cluster.apply(service_object(&web(number), vip(number))).unwrap();
            self.cluster.apply(slice_object(&web(number), &[backend(number)])).unwrap();
        }
    }
}

pub(crate) fn web(number: u8) -> String {
    format!("web-{number}")
}

pub(crate) fn vip(number: u8) -> IpAddr {
    IpAddr::from([10, 96, 0, number])
}

pub(crate) fn backend(number: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, number])
}

pub(crate) fn service_object(name: &str, address: IpAddr) -> Value {
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {"namespace": "default", "name": name},
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080}],
        },
    })
}

pub(crate) fn slice_object(service: &str, backends: &[IpAddr]) -> Value {
    let endpoints: Vec<Value> = backends
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true, "serving": true}}))
        .collect();
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {
            "namespace": "default", "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    })
}

/// Checks after each operation that each guarded service has a backend.
#[derive(Clone, Default)]
struct Guard(Arc<Mutex<Guarded>>);

#[derive(Default)]
struct Guarded {
    addresses: BTreeSet<IpAddr>,
    looks: u64,
    violations: Vec<String>,
}

impl Witness<MemoryMaps> for Guard {
    fn before(&mut self, _maps: &MemoryMaps, _action: &Action) {}

    fn after(&mut self, maps: &MemoryMaps, action: &Action) {
        let mut guarded = self.0.lock().unwrap();
        guarded.looks += 1;
        let lost: Vec<String> = guarded
            .addresses
            .iter()
            .map(|address| (address, maps.lookup(*address, 80, Transport::Tcp, Client::Local)))
            .filter(|(_, answer)| !matches!(answer, DialOutcome::Served(slots) if !slots.is_empty()))
            .map(|(address, answer)| format!("{address}: {answer:?} after {action:?}"))
            .collect();
        guarded.violations.extend(lost);
    }
}

/// The daemon's log.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

thread_local! {
    /// Whether this test's nodes request JSON alone.
    static IN_JSON: Cell<bool> = const { Cell::new(false) };
}

/// Runs a test with nodes that request JSON alone.
pub(crate) fn in_json(test: fn()) {
    IN_JSON.set(true);
    test();
}

/// Runs the named tests for JSON too; by themselves, their nodes request protobuf.
macro_rules! in_json_too {
    ($($test:ident,)+) => {
        mod in_json {
            $(
                #[test]
                fn $test() {
                    crate::node::in_json(super::$test);
                }
            )+
        }
    };
}

pub(crate) use in_json_too;

/// A node of a [`Setup`].
pub(crate) struct Node {
    pub(crate) setup: Setup,
    pub(crate) access: Access,
    pub(crate) snapshots: watch::Receiver<Arc<Snapshot>>,
    runtime: Runtime,
    view: View,
    steps: Arc<StepMetrics>,
    guard: Guard,
    lines: Lines,
    zones: Arc<Mutex<Vec<Option<Arc<str>>>>>,
    // Dropping it ends the engine.
    _stop: watch::Sender<bool>,
    // The log of this thread, on which the whole node runs.
    _log: DefaultGuard,
}

impl Node {
    /// A node of this setup with short timeouts.
    pub(crate) fn start(setup: Setup) -> Self {
        Self::start_with(setup, SourceSettings { timing: quick(), ..SourceSettings::default() })
    }

    pub(crate) fn start_with(setup: Setup, settings: SourceSettings) -> Self {
        let access = setup.access(setup.apiserver());
        Self::start_over(setup, access, settings)
    }

    pub(crate) fn start_over(setup: Setup, access: Access, settings: SourceSettings) -> Self {
        let encodings = if IN_JSON.get() { Encodings::Json } else { settings.encodings };
        let settings = SourceSettings { encodings, ..settings };
        let lines = Lines::default();
        let log = start_log(&lines);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let guard = Guard::default();
        let maps = ObservingMaps::new(MemoryMaps::default(), guard.clone());
        let imports = settings.service_imports.then_some(Source::ClusterSet);
        let sources: Vec<_> = [Source::Kubernetes].into_iter().chain(imports).collect();
        let (engine, _) = Engine::start(maps, Seed(0), &sources).unwrap();
        let (events_out, events) = mpsc::channel(GROUPS_WAITING_MAX);
        let (changes, changed) = mpsc::channel(CHANGES_WAITING_MAX);
        let (snapshots_out, snapshots) = watch::channel(Arc::default());
        let (stop, stopping) = watch::channel(false);
        let progress = Arc::new(AtomicU64::new(0));
        let asks = holdfast_agent::engine::query::channel().1;
        let steps = Arc::<StepMetrics>::default();
        let ends = EngineChannels {
            events,
            queries: asks,
            snapshots: snapshots_out,
            changes,
            progress,
            steps: Arc::clone(&steps),
            stop: stopping,
        };
        let (recorder, _) = Recorder::new(changed, snapshots.clone(), None);
        runtime.spawn(run(engine, ends, |_, _| false));
        runtime.spawn(recorder.run());
        runtime.spawn(rejections::run(snapshots.clone()));
        runtime.spawn(access.clone().run_maintenance());
        let source = Kubernetes::new(access.clone(), settings).with_snapshots(snapshots.clone());
        let view = source.view();
        let zones = Arc::new(Mutex::new(Vec::new()));
        let (nodes_out, nodes_in) = mpsc::channel(1);
        runtime.spawn(source.run(events_out, nodes_out));
        runtime.spawn(hear_zones(nodes_in, Arc::clone(&zones)));
        Self { setup, access, snapshots, runtime, view, steps, guard, lines, zones, _stop: stop, _log: log }
    }

    /// A node that serves this many services from one apiserver.
    pub(crate) fn serving(services: u8) -> Self {
        let setup = Setup::new(1);
        setup.services(services);
        let mut node = Self::start(setup);
        node.wait_until_synced();
        node
    }

    /// From now on, this node writes Events about its troubles.
    pub(crate) fn announce(&self) -> Arc<EventCounts> {
        let counts = Arc::new(EventCounts::default());
        let (snapshots, access) = (self.snapshots.clone(), self.access.clone());
        self.runtime.spawn(event_recorder::run(snapshots, access, "n1".into(), Arc::clone(&counts)));
        counts
    }

    /// From now on, this node watches the cluster's Events.
    pub(crate) fn watch_events(&self) -> Arc<EventCounters> {
        let overheard = Arc::new(EventCounters::default());
        let kubernetes = KubernetesTable { events_read: EventsRead::Watch, ..KubernetesTable::default() };
        let config = Config { kubernetes, ..Config::default() };
        let (keep, config) = watch::channel(Arc::new(config));
        let following = event_watcher::run(config, self.access.clone(), "n1".into(), Arc::clone(&overheard));
        self.runtime.spawn(async move {
            let _keep = keep;
            following.await;
        });
        overheard
    }

    /// From now on, this node serves kube-proxy's metrics at the returned address.
    pub(crate) fn answer_at_the_port_for_metrics(&self) -> SocketAddr {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap();
        let about = About { version: "0.1.0", started: Timestamp(1) };
        let readings = Readings {
            watches: self.view.clone(),
            liveness: Liveness::new(|| None).with_steps(Arc::clone(&self.steps)),
            ..readings::from_snapshots(self.snapshots.clone(), about)
        };
        let kube_proxy = KubeProxy { health: None, metrics: Some(address) };
        let (keep, config) = watch::channel(Arc::new(Config { kube_proxy, ..Config::default() }));
        self.runtime.spawn(async move {
            let _keep = keep;
            kube_proxy::run(config, readings).await;
        });
        address
    }

    pub(crate) fn server(&self) -> &Server {
        &self.setup.servers[0]
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        &self.setup.cluster
    }

    /// From now on, this service must always have a backend.
    pub(crate) fn guard(&self, number: u8) {
        self.guard.0.lock().unwrap().addresses.insert(vip(number));
    }

    /// Runs the node until this future completes.
    pub(crate) fn run<T>(&self, doing: impl Future<Output = T>) -> T {
        self.runtime.block_on(doing)
    }

    /// Runs the node for a while.
    pub(crate) fn live(&self, time: Duration) {
        self.runtime.block_on(pause_async(time));
    }

    /// Runs the node until a condition holds.
    #[track_caller]
    pub(crate) fn wait(&mut self, what: &str, mut seen: impl FnMut(&Self) -> bool) {
        let node = &*self;
        let message = std::fmt::from_fn(|f| write!(f, "{what}\n{}", node.log()));
        node.run(wait_until_async(message, || seen(node)));
    }

    #[track_caller]
    pub(crate) fn wait_until_synced(&mut self) {
        self.wait("synced", |node| node.snapshots.borrow().is_synced());
        self.wait("both are watched", |node| {
            [Resource::Services, Resource::Slices]
                .iter()
                .all(|what| node.watch(*what).state == State::Watching)
                && node.is_watched()
        });
    }

    /// Whether both kinds are watched, by the servers' own count.
    pub(crate) fn is_watched(&self) -> bool {
        let watched = |kind| self.setup.servers.iter().map(|it| it.watches(kind)).sum::<usize>() == 1;
        watched(Kind::Services) && watched(Kind::Slices)
    }

    /// The backends of a service for a process of this node.
    pub(crate) fn backends(&self, number: u8) -> Vec<SocketAddr> {
        let snapshot = self.snapshots.borrow();
        let found = snapshot.services.iter().find_map(|service| {
            let frontend = service.frontends.iter().find(|frontend| frontend.address == vip(number))?;
            Some(service.backends(frontend).map(|row| row.slot().backend()).collect())
        });
        found.unwrap_or_default()
    }

    pub(crate) fn serves(&self, number: u8, backends: &[IpAddr]) -> bool {
        let seen: BTreeSet<SocketAddr> = self.backends(number).into_iter().collect();
        seen == backends.iter().map(|address| SocketAddr::new(*address, 8080)).collect()
    }

    /// Refuses an empty list of that service at once: there are no probes here that could find its backends alive.
    pub(crate) fn hold_nothing(&mut self, number: u8) {
        let mut object = service_object(&web(number), vip(number));
        object["metadata"]["annotations"] = json!({"holdfast.io/on-empty": "refuse"});
        self.cluster().apply(object).unwrap();
        self.wait("told what to do when it is empty", |node| {
            let snapshot = node.snapshots.borrow();
            let own =
                snapshot.services.iter().find(|it| it.frontends.iter().any(|row| row.address == vip(number)));
            own.is_some_and(|it| it.facts.as_ref().is_some_and(|facts| facts.on_empty.is_some()))
        });
    }

    pub(crate) fn has(&self, number: u8) -> bool {
        self.snapshots
            .borrow()
            .services
            .iter()
            .any(|service| service.frontends.iter().any(|frontend| frontend.address == vip(number)))
    }

    /// The rejected objects by name.
    pub(crate) fn rejected(&self) -> Vec<(String, String)> {
        let snapshot = self.snapshots.borrow();
        let named = snapshot.rejections.named.values();
        named.map(|it| (it.object.to_string(), it.reason.to_string())).collect()
    }

    pub(crate) fn watch(&self, what: Resource) -> Watch {
        self.view.current().into_iter().find(|watch| watch.what == what).unwrap()
    }

    /// The last error of a watch.
    pub(crate) fn last_error(&self, what: Resource) -> String {
        self.watch(what).last_error.map_or(String::new(), |error| error.text.to_string())
    }

    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&self.lines.0.lock().unwrap()).into_owned()
    }

    pub(crate) fn zones(&self) -> Vec<Option<Arc<str>>> {
        self.zones.lock().unwrap().clone()
    }

    /// Checks that the table equals that of a node which reads the cluster's objects now, and that no guarded service
    /// was ever without a backend.
    #[track_caller]
    pub(crate) fn check(&mut self) {
        let expected = from_scratch(&self.setup.cluster);
        let message = std::fmt::from_fn(|f| {
            write!(f, "a table as from scratch:\n{}\n{}", difference(&expected, &self.table()), self.log())
        });
        self.run(wait_until_async(message, || self.table() == expected));
        self.check_guard();
    }

    fn table(&self) -> String {
        frontends(&self.snapshots.borrow())
    }

    /// How often a guarded service had no backend.
    pub(crate) fn violations(&self) -> usize {
        self.guard.0.lock().unwrap().violations.len()
    }

    #[track_caller]
    pub(crate) fn check_guard(&self) {
        let guarded = self.guard.0.lock().unwrap();
        assert!(guarded.violations.is_empty(), "{:#?}", guarded.violations);
        assert!(guarded.looks > 0, "the witness has seen nothing");
    }
}

async fn hear_zones(mut nodes: mpsc::Receiver<NodeReport>, heard: Arc<Mutex<Vec<Option<Arc<str>>>>>) {
    while let Some(NodeReport { node, applied }) = nodes.recv().await {
        heard.lock().unwrap().extend(node.map(|node| node.zone));
        let _ = applied.send(());
    }
}

fn start_log(lines: &Lines) -> DefaultGuard {
    let lines = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .with_writer(move || lines.clone())
        .finish();
    tracing::subscriber::set_default(subscriber)
}

/// The frontends of a world that gets the cluster's objects in one group.
fn from_scratch(cluster: &Cluster) -> String {
    let provenance = Provenance { source: Source::Kubernetes, origin: None, defaulting: Defaulting::Done };
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Kubernetes]).unwrap();
    for object in cluster.objects(Kind::Services) {
        let wire: ServiceWire = from_value(&object).unwrap();
        engine.apply(Event::ServiceApplied(Arc::new(parse_service(&wire, &provenance).unwrap())));
    }
    for object in cluster.objects(Kind::Slices) {
        let wire: SliceWire = from_value(&object).unwrap();
        engine.apply(Event::SliceApplied(Arc::new(parse_slice(&wire, &provenance).unwrap().0)));
    }
    engine.apply(Event::Synced(Source::Kubernetes));
    let mut now = ClockReading { wall: Timestamp(1), mono: Duration::ZERO };
    loop {
        let snapshot = engine.step(now, &mut |_| ());
        match engine.next_due(now.mono) {
            Some(due) => now.mono = now.mono.max(due),
            None => return frontends(&snapshot),
        }
    }
}

/// The content of a file.
pub(crate) fn file(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}
