//! The composition root: builds every part from the configuration, joins them, and takes them apart again.
//!
//! Invariant: modules know each other only by the channels that they are given here.

mod reload;
mod settings;
mod start;
#[cfg(test)]
mod tests;
mod wishes;

use std::io::PipeWriter;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_core::drains::Drains;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::Source;
use holdfast_datapath::LiveMaps;
use holdfast_status::views::announced::Announced;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::devices::Decision;
use holdfast_status::views::proxies::{Filter, OtherProxy};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinError, JoinHandle, JoinSet};

use holdfast_agent::datapath::RefusalLog;
use holdfast_agent::devices;
use holdfast_agent::engine::run::{GROUPS_WAITING_MAX, Upkeep};
use holdfast_agent::proxies::filters::{self, onlookers};
use holdfast_agent::readings::{About, EffectiveConfig, Readings, Verifications};
use holdfast_agent::recorder::History;
use holdfast_agent::state::{self, Keeper, Saved};
use holdfast_agent::{
    drains, host_routes, kube_proxy, listeners, node, probes, proxies, rejections, renamed, systemd,
};
use holdfast_api as admin;
use holdfast_config::{Config, ConfigFile, DatapathKind, Mark, NodeName};
use holdfast_core::engine::Engine;
use holdfast_evidence::diagnose::gather::Gatherer;
use holdfast_evidence::knowledge::{self, Edition};
use holdfast_evidence::overheard::{self, EventReadings};
use holdfast_host::logging;
use holdfast_host::logging::Logging;
use holdfast_host::logging::messages::{self, say};
use holdfast_kubernetes::apiserver::Access;
use holdfast_kubernetes::source::Kubernetes;
use holdfast_kubernetes::{announce, own_node, pod_lookup};
use holdfast_standalone::blocks::{self, Blocks, BlocksFolder, FolderNews, NamesEnds, Read, Sets};
use holdfast_standalone::manifests::Manifests;
use holdfast_standalone::names::{self, Names};

use holdfast_agent::descriptors;
use holdfast_agent::engine_thread::EngineThread;
pub use holdfast_agent::error::AppError;
use holdfast_agent::maps::{AppMaps, Held};
use holdfast_agent::paced::Paced;
use wishes::{Draining, Wishes};

/// Runs the daemon until a signal ends it.
pub fn run(file: &ConfigFile) -> Result<(), AppError> {
    let (config, warnings) = file.load()?;
    let logging = Arc::new(logging::start(&config.log));
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(AppError::Runtime)?;
    let inside = runtime.enter();
    descriptors::raise();
    start::tell_what_is_missing(&config);
    // Signals are heeded before anything answers, because a process that sees the daemon may signal it at once.
    let signals = Signals::heed()?;
    let app = App::start(file, &config, logging)?;
    drop(inside);
    let ended = runtime.block_on(app.run(signals));
    // A thread that hangs in a file system must not keep the daemon from ending.
    runtime.shutdown_background();
    ended
}

/// The signals by which others ask the daemon for a reload or for its end; nothing answers them.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn heed() -> Result<Self, AppError> {
        let heed = |kind| signal(kind).map_err(AppError::Runtime);
        Ok(Self {
            hangup: heed(SignalKind::hangup())?,
            terminate: heed(SignalKind::terminate())?,
            interrupt: heed(SignalKind::interrupt())?,
        })
    }
}

/// How long the daemon waits for the disk when it stops; systemd gives it longer.
const LAST_WRITE_WAIT: Duration = Duration::from_secs(10);

/// The shortest time between two changes of the apiservers' addresses. Each change decides every service anew, and any
/// client that may write a slice of `default/kubernetes` can cause it.
const APISERVERS_PACE: Duration = Duration::from_secs(5);

/// Reads the configuration again, and hands each change to the parts that need it.
struct Reload {
    file: ConfigFile,
    logging: Arc<Logging>,
    // Why the last reload was refused; `None` if it was not.
    refused: watch::Sender<Option<String>>,
    /// What is in force: what the last accepted file says, but for the keys that are read once.
    config: watch::Sender<Arc<Config>>,
    editions: watch::Sender<Arc<Edition>>,
    effective: watch::Sender<Arc<EffectiveConfig>>,
    blocks: watch::Sender<Arc<Blocks>>,
    access: Option<Access>,
    events: mpsc::Sender<Vec<Event>>,
}

/// What a reload has read, all of it good.
struct Reread {
    config: Config,
    blocks: Blocks,
    edition: Edition,
}

/// What other parts follow while the daemon runs: the configuration in force, and what is known of Events.
type Followed = (watch::Sender<Arc<Config>>, watch::Sender<Arc<Edition>>);

/// Where a reload tells what is in force now, and why a new configuration is not.
type InForce =
    (watch::Sender<Arc<EffectiveConfig>>, watch::Sender<Arc<Blocks>>, watch::Sender<Option<String>>);

/// The sources, before they run.
struct Sources {
    manifests: Option<Manifests>,
    kubernetes: Option<Kubernetes>,
    blocks: watch::Receiver<Arc<Blocks>>,
    /// The folder of further blocks, its path, and where those go that count.
    folder: Option<(BlocksFolder, Arc<str>)>,
    counting: watch::Sender<Arc<[Arc<Read>]>>,
    /// The backends of the configuration's services as a former process had them.
    kept: Sets,
}

/// What other modules are given of the blocks, and told of them.
type BlocksEnds = (watch::Receiver<Arc<Blocks>>, watch::Sender<Arc<[Arc<Read>]>>);

impl Sources {
    fn new(
        config: &Config,
        kubernetes: Option<Kubernetes>,
        (blocks, counting): BlocksEnds,
        kept: Sets,
    ) -> Self {
        let manifests = config.manifests.path.as_deref().map(Manifests::new);
        Self { manifests, kubernetes, blocks, folder: settings::folder(config), counting, kept }
    }
}

/// What runs beside the engine and the sources: probes, Events, kube-proxy's ports, the service manager, devices, the
/// search for other proxies; and the wishes of clients.
struct Beside {
    readings: Readings,
    events: EventReadings,
    proxies: watch::Sender<Arc<[OtherProxy]>>,
    devices: DeviceNewsSenders,
    filters: watch::Sender<Arc<[Filter]>>,
    routes: watch::Sender<Arc<Announced>>,
    wishes: Wishes,
    draining: Draining,
}

impl Beside {
    /// Starts all of these parts, and gives back the wishes, which another task fulfils.
    fn start(
        self,
        tasks: &mut JoinSet<()>,
        reload: &Reload,
        node: &NodeName,
        stopping: watch::Receiver<bool>,
    ) -> Wishes {
        let Readings { snapshots, probes, announced, .. } = self.readings.clone();
        let config = reload.config.subscribe();
        let events = reload.events.clone();
        let engine = self.readings.engine.clone();
        self.readings.refusals.name_services(snapshots.clone());
        tasks.spawn(self.draining.run(events.clone()));
        tasks.spawn(probes::run(snapshots.clone(), config, events, probes));
        tasks.spawn(rejections::run(snapshots.clone()));
        if let (Some(access), Some(announced)) = (reload.access.clone(), announced) {
            tasks.spawn(announce::run(snapshots, access, node.as_str().into(), announced));
        }
        if let Some(access) = reload.access.clone() {
            tasks.spawn(pod_lookup::run(
                self.readings.snapshots.clone(),
                access.clone(),
                reload.events.clone(),
            ));
            let config = reload.config.subscribe();
            let overheard = Arc::clone(&self.events.overheard);
            tasks.spawn(overheard::run(config, access, node.as_str().into(), overheard));
        }
        let in_force = reload.config.subscribe();
        let ports = in_force.borrow().kube_proxy;
        let closed = Arc::clone(&self.readings.closed_ports);
        tasks.spawn(kube_proxy::run(in_force, self.readings.clone()));
        let config = reload.config.subscribe();
        if config.borrow().datapath.kind == DatapathKind::Kernel {
            tasks.spawn(host_routes::run(config, self.readings.clone(), self.routes));
        }
        let proxies = self.proxies.subscribe();
        tasks.spawn(proxies::run(self.proxies, move || closed.own_metrics_port(ports)));
        let snapshots = self.readings.snapshots.clone();
        let live_maps = self.readings.live_maps.clone();
        let watched = systemd::Watched { readings: self.readings, logging: Arc::clone(&reload.logging) };
        tasks.spawn(systemd::run(watched, stopping));
        let config = reload.config.subscribe();
        if translates_packets(&config.borrow()) {
            let (seen, looked) = watch::channel(onlookers::not_looked_yet());
            tasks.spawn(onlookers::run(seen));
            let (decisions, looks) = self.devices;
            tasks.spawn(devices::drivers::run(config.clone(), looks, engine.clone()));
            tasks.spawn(devices::run(config.clone(), (looked, proxies), (decisions, live_maps), engine));
            let accepted = config.borrow().packets.forward_mark.map_or(0, Mark::bit);
            tasks.spawn(filters::run(self.filters, snapshots, accepted));
        }
        self.wishes
    }
}

/// The channel by which a task says what ends the daemon.
type Failing = (mpsc::Sender<AppError>, mpsc::Receiver<AppError>);

struct App {
    reload: Reload,
    sources: Sources,
    // With what a former process knew of it.
    node: (NodeName, own_node::Described),
    engine: EngineThread,
    admin: admin::Admin,
    beside: Beside,
    // The claim is held until the last write is done.
    written: (oneshot::Receiver<()>, Keeper, state::Claim),
    seed: u64,
    // The channel for what ends the daemon; and the pipe that is closed when the daemon stops, for the thread that
    // waits for refusals.
    ends: (Failing, PipeWriter),
}

/// Where parts tell what the readings show.
struct ReadingSenders {
    effective: watch::Sender<Arc<EffectiveConfig>>,
    counting: watch::Sender<Arc<[Arc<Read>]>>,
    proxies: watch::Sender<Arc<[OtherProxy]>>,
    filters: watch::Sender<Arc<[Filter]>>,
    routes: watch::Sender<Arc<Announced>>,
    refused: watch::Sender<Option<String>>,
    shut: watch::Sender<Vec<String>>,
}

/// The parts that the readings are taken from.
struct ReadParts<'a> {
    config: &'a Config,
    cluster: (Option<&'a Access>, Option<&'a Kubernetes>),
    engine: &'a EngineThread,
    maps: MapReceivers,
    refusals: Arc<RefusalLog>,
    history: Arc<History>,
    written: watch::Receiver<state::Written>,
    drains: watch::Receiver<drains::Written>,
}

impl ReadParts<'_> {
    /// The readings, and where what they show beside these parts is told.
    fn read(self) -> (Readings, ReadingSenders) {
        let (datapath, live_maps) = self.maps;
        let (access, kubernetes) = self.cluster;
        let (effective, effective_now) = known(settings::effective(self.config));
        let (counting, more_services) = none_yet();
        let (proxies, proxies_now) = none_yet();
        let (filters, filters_now) = none_yet();
        let (routes, routes_now) = none_yet();
        let (refused, refused_reload) = none_yet();
        let (shut, shut_now) = none_yet();
        let readings = Readings {
            snapshots: self.engine.snapshots.clone(),
            config: effective_now,
            datapath,
            live_maps,
            apiserver: access.map(Access::views),
            watches: kubernetes.map(Kubernetes::view).unwrap_or_default(),
            refusals: naming_services(self.refusals, self.engine),
            probes: Arc::default(),
            checks: Arc::default(),
            names: Arc::default(),
            more_services,
            announced: self.config.kubernetes.events.then(Arc::default),
            history: self.history,
            written: self.written,
            engine: self.engine.asker.clone(),
            verifications: Verifications::default(),
            liveness: self.engine.liveness(),
            proxies: proxies_now,
            filters: filters_now,
            routes: routes_now,
            refused_reload,
            shut: shut_now,
            drains: self.drains,
            closed_ports: Arc::default(),
            about: About { version: env!("CARGO_PKG_VERSION"), started: now() },
        };
        (readings, ReadingSenders { effective, counting, proxies, filters, routes, refused, shut })
    }
}

impl App {
    /// Does everything that can fail at the start, in the order in which an operator would look for the cause.
    fn start(file: &ConfigFile, config: &Config, logging: Arc<Logging>) -> Result<Self, AppError> {
        let node = node::name(config)?;
        let (seed, folder) = (start::seed(), settings::state(config));
        let (blocks_out, blocks) = known(settings::blocks(config, &file.path)?);
        let (claim, maps, kept) = start::opened(config, &folder)?;
        let (access, kubernetes) = start::cluster(config, &node, seed, kept.as_ref())?;
        let (below, damage) = start::known_of(kept.as_ref());
        let drains = drains::kept(&config.state.path);
        let (refusals, refused_no_more) = maps.refusals()?;
        let (map_senders, map_receivers) = map_ends(&maps);
        let (described, sets) = (start::described(config, &maps, kept.as_ref()), start::sets(kept.as_ref()));
        let engine = engine(config, (&node, &described, access.as_ref()), maps, (kept, &drains.drains))?;
        let (events, incoming) = mpsc::channel(GROUPS_WAITING_MAX);
        let (fail, failures) = mpsc::channel(1);
        let (decisions, devices) = device_ends();
        let (in_force, gatherer) = in_force(&file.path, config, access.as_ref(), &node);
        let upkeep = tend(map_senders, &fail, devices, &in_force);
        let (engine, told) = EngineThread::start(engine, incoming, upkeep)?;
        let (history, recorded) = start::record(&config.state.path, below, told, &engine)?;
        let (keeper, written) = start::keeper((folder, damage), &engine, (&access, &kubernetes), &history);
        let event_readings = EventReadings::new(gatherer.editions());
        let (acts, wishes, draining) = wishes::channels(gatherer, drains, &config.state.path);
        let (readings, senders) = ReadParts {
            config,
            cluster: (access.as_ref(), kubernetes.as_ref()),
            engine: &engine,
            maps: map_receivers,
            refusals,
            history,
            written,
            drains: draining.written(),
        }
        .read();
        let ReadingSenders { effective, counting, proxies, filters, routes, refused, shut } = senders;
        let shown = (readings.clone(), event_readings.clone(), acts);
        let admin = admin::start(&settings::admin_settings(config), shown, shut);
        Ok(Self {
            admin: admin.map_err(|error| AppError::Admin(error.to_string()))?,
            reload: Reload::new(file, in_force, logging, access, events, (effective, blocks_out, refused)),
            sources: Sources::new(config, kubernetes, (blocks, counting), sets),
            node: (node, described),
            engine,
            beside: Beside {
                readings,
                events: event_readings,
                proxies,
                devices: decisions,
                filters,
                routes,
                wishes,
                draining,
            },
            written: (recorded, keeper, claim),
            seed,
            ends: ((fail, failures), refused_no_more),
        })
    }

    async fn run(self, signals: Signals) -> Result<(), AppError> {
        let Self {
            reload,
            sources,
            node: (node, described),
            engine,
            admin,
            beside,
            written: (recorded, keeper, _claim),
            seed,
            ends: ((fail, failures), refused_no_more),
        } = self;
        let Sources { manifests, kubernetes, blocks, folder, counting, kept } = sources;
        let (stop, stopping) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let events = reload.events.clone();
        let datapath = beside.readings.datapath.clone();
        let checks = Arc::clone(&beside.readings.checks);
        let named = resolving(&mut tasks, Arc::clone(&beside.readings.names), kept, seed);
        let keeping = tokio::spawn(keeper.run(stopping.clone()));
        look_for_another_name(&mut tasks, &reload, &node, &beside.readings, fail);
        let wishes = beside.start(&mut tasks, &reload, &node, stopping.clone());
        let (nodes, nodes_told) = mpsc::channel(1);
        tasks.spawn(node::run(reload.config.subscribe(), node, described, nodes_told, events.clone()));
        let led = reload.access.as_ref().map_or_else(|| watch::channel(None).1, Access::led);
        let folder = folder.map(|(folder, path)| (path, told_by(&mut tasks, folder, &stopping), counting));
        tasks.spawn(blocks::run(
            blocks,
            led,
            (folder, Some(named)),
            events.clone(),
            datapath.clone(),
            (seed, checks),
        ));
        if let Some(kubernetes) = kubernetes {
            tasks.spawn(listeners::run(engine.snapshots.clone(), events.clone()));
            let kubernetes = kubernetes.heeding(engine.snapshots.clone());
            tasks.spawn(kubernetes.run(events.clone(), nodes));
        }
        if let Some(access) = reload.access.clone() {
            tasks.spawn(access.patrol());
        }
        if let Some(manifests) = manifests.map(|it| it.heeding(engine.snapshots.clone())) {
            tasks.spawn(follow(manifests.run(events, stopping), "manifests"));
        }
        say!(info, messages::STARTED, address = %admin.address(), version = env!("CARGO_PKG_VERSION"));
        let ended = serve_signals(signals, &reload, wishes, failures).await;
        if !matches!(ended, Ok(()) | Err(AppError::Renamed(_))) {
            return ended;
        }
        tell_of_stop(&datapath.borrow());
        stop.send_replace(true);
        drop(refused_no_more);
        drop(reload);
        engine.stop();
        wait_for_the_disk(recorded, keeping).await;
        // Blocks until the last answers are out, at most two seconds; nothing else runs here any more.
        admin.stop();
        ended
    }
}

/// Starts to ask for the backends that have names.
fn resolving(tasks: &mut JoinSet<()>, seen: Arc<Names>, kept: Sets, seed: u64) -> NamesEnds {
    let (wanted, wishes) = watch::channel(Arc::default());
    let (told, news) = mpsc::channel(1);
    tasks.spawn(names::run(wishes, told, seen, seed));
    NamesEnds { wanted, news, kept }
}

/// Follows the folder of further blocks, and gives what it tells.
fn told_by(
    tasks: &mut JoinSet<()>,
    folder: BlocksFolder,
    stopping: &watch::Receiver<bool>,
) -> mpsc::Receiver<Vec<FolderNews>> {
    let (news, told) = mpsc::channel(1);
    tasks.spawn(follow(folder.run(news, stopping.clone()), "files of services"));
    told
}

/// Looks whether the host has got another name, where the configuration gives the node none.
fn look_for_another_name(
    tasks: &mut JoinSet<()>,
    reload: &Reload,
    node: &NodeName,
    readings: &Readings,
    fail: mpsc::Sender<AppError>,
) {
    if reload.config.borrow().node.name.is_some() {
        return;
    }
    let renamed = renamed::run(node.clone(), readings.watches.clone(), readings.datapath.clone());
    tasks.spawn(async move { drop(fail.send(renamed.await.into()).await) });
}

/// Follows a folder until it is told to stop.
async fn follow(folder: impl Future<Output = Result<(), JoinError>>, named: &'static str) {
    if let Err(error) = folder.await {
        tracing::error!(%error, "the {named} are no longer read");
    }
}

/// Tells that the daemon stops, and which hooks and devices lose their program by that: a program without a pin ends
/// with the process that has it open.
fn tell_of_stop(datapath: &DatapathView) {
    let bare = datapath.status().map_or(&[][..], |status| &status.bare_hooks);
    let broken = [bare, &datapath.unpinned()].concat();
    if broken.is_empty() {
        systemd::stopping(messages::STOPPING.text);
        say!(info, messages::STOPPING);
    } else {
        systemd::stopping(messages::STOPPING_UNPINNED.text);
        say!(error, messages::STOPPING_UNPINNED, hooks = broken.join(", "));
    }
}

/// The two ends of a value that is known from the start, and may become another one later.
fn known<T>(now: T) -> (watch::Sender<Arc<T>>, watch::Receiver<Arc<T>>) {
    watch::channel(Arc::new(now))
}

/// The log of clients that are turned away, which names services by what the engine knows.
fn naming_services(refusals: Arc<RefusalLog>, engine: &EngineThread) -> Arc<RefusalLog> {
    refusals.name_services(engine.snapshots.clone());
    refusals
}

/// What each device is to packets, and that a driver has changed.
type DeviceNews = (watch::Receiver<Arc<[Decision]>>, watch::Receiver<()>);

/// Where that is told.
type DeviceNewsSenders = (watch::Sender<Arc<[Decision]>>, watch::Sender<()>);

/// The ends by which the engine's thread shows its maps, and by which others read them.
type MapSenders = (watch::Sender<Arc<DatapathView>>, watch::Sender<LiveMaps>);
type MapReceivers = (watch::Receiver<Arc<DatapathView>>, watch::Receiver<LiveMaps>);

/// The two ends of what is shown of the maps.
fn map_ends(maps: &AppMaps) -> (MapSenders, MapReceivers) {
    let ((views, views_now), (live, live_now)) = (known(maps.view()), watch::channel(maps.live_maps()));
    ((views, live), (views_now, live_now))
}

/// The two ends of what is told of devices.
fn device_ends() -> (DeviceNewsSenders, DeviceNews) {
    let ((decisions, decided), (looks, looked)) = (none_yet(), none_yet());
    ((decisions, looks), (decided, looked))
}

/// The two ends of a value that is not known yet.
fn none_yet<T: Default>() -> (watch::Sender<T>, watch::Receiver<T>) {
    watch::channel(T::default())
}

/// Whether packets are translated, which is all that devices are needed for.
fn translates_packets(config: &Config) -> bool {
    config.packets.enabled && config.datapath.kind == DatapathKind::Kernel
}

/// Begins the engine over these maps, with what the rules have to know before they decide anything.
fn engine(
    config: &Config,
    (node, described, access): (&NodeName, &own_node::Described, Option<&Access>),
    maps: AppMaps,
    kept: (Option<Saved>, &Arc<Drains>),
) -> Result<Engine<AppMaps>, AppError> {
    let settings = settings::settings(config, settings::apiservers(access));
    let facts = node::facts(config, node, described).map_err(AppError::Addresses)?;
    start::engine(maps, &sources_of(config), (settings, facts), kept)
}

/// Waits until everything is written down, or the disk has had its time.
async fn wait_for_the_disk(recorded: oneshot::Receiver<()>, keeping: JoinHandle<()>) {
    let (records, snapshot) = tokio::join!(
        tokio::time::timeout(LAST_WRITE_WAIT, recorded),
        tokio::time::timeout(LAST_WRITE_WAIT, keeping)
    );
    if records.is_err() {
        tracing::warn!("the last changes were not written to the history in time");
    }
    if snapshot.is_err() {
        tracing::warn!("the last snapshot was not written in time; the one before stays");
    }
}

/// What the engine's thread does beside its events: it keeps the maps well, and shows how they are. The function
/// returns whether there is more to do.
fn tend(
    (views, live_maps): MapSenders,
    fail: &mpsc::Sender<AppError>,
    (mut devices, mut drivers): DeviceNews,
    (config, _): &Followed,
) -> impl FnMut(&mut Engine<AppMaps>, Upkeep) -> bool + Send + 'static + use<> {
    let (mut config, fail) = (config.subscribe(), fail.clone());
    let mut look = move |engine: &mut Engine<AppMaps>| {
        if devices.has_changed().unwrap_or(false) {
            let decisions = Arc::clone(&devices.borrow_and_update());
            engine.maps_mut().set_devices(&decisions);
        }
        if drivers.has_changed().unwrap_or(false) {
            drivers.mark_unchanged();
            engine.maps_mut().look_at_drivers();
        }
        if config.has_changed().unwrap_or(false) {
            let packets = config.borrow_and_update().packets.clone();
            engine.maps_mut().follow(&packets);
        }
        let held = Held::by(engine);
        if let Err(error) = engine.maps_mut().look_after(held) {
            // The first error ends the daemon.
            let _ = fail.try_send(error);
        }
    };
    move |engine, upkeep| {
        if upkeep == Upkeep::Look {
            look(engine);
        }
        let is_more = engine.maps_mut().tend_devices();
        live_maps.send_replace(engine.maps().live_maps());
        views.send_replace(Arc::new(engine.maps().view()));
        is_more
    }
}

/// The sources that must deliver before anything is removed.
fn sources_of(config: &Config) -> Vec<Source> {
    let manifests = config.manifests.path.is_some().then_some(Source::Manifests);
    let kubernetes = config.kubernetes.enabled.then_some(Source::Kubernetes);
    let imports = kubernetes.filter(|_| config.kubernetes.service_imports).map(|_| Source::ClusterSet);
    [Source::Config].into_iter().chain(manifests).chain(kubernetes).chain(imports).collect()
}

/// Reloads on SIGHUP or on a wish, and returns on the signals that end the daemon, or when it cannot go on.
async fn serve_signals(
    mut signals: Signals,
    reload: &Reload,
    mut wishes: Wishes,
    mut failures: mpsc::Receiver<AppError>,
) -> Result<(), AppError> {
    let mut apiservers = Paced::new(reload.access.as_ref().map(Access::addresses), APISERVERS_PACE);
    loop {
        tokio::select! {
            // The sender of a signal gets no answer; the outcome is in the log.
            _ = signals.hangup.recv() => drop(reload.now(|| true).await),
            Some(wish) = wishes.reloads.recv() => reload.fulfil(wish).await,
            Some(wish) = wishes.forgets.recv() => reload.forget(wish).await,
            () = apiservers.changed() => reload.tell_settings().await,
            _ = signals.terminate.recv() => return Ok(()),
            _ = signals.interrupt.recv() => return Ok(()),
            Some(error) = failures.recv() => return Err(error),
        }
    }
}

/// The configuration in force and what is known of Events, for their followers; and the gatherer, which asks by both.
fn in_force(path: &Path, config: &Config, access: Option<&Access>, node: &NodeName) -> (Followed, Gatherer) {
    let in_force = watch::channel(Arc::new(config.clone())).0;
    let editions = watch::channel(Arc::new(edition(path))).0;
    let gatherer = Gatherer::new(access.cloned(), node.as_str().into(), in_force.subscribe());
    let gatherer = gatherer.recognising_by(editions.subscribe());
    ((in_force, editions), gatherer)
}

/// What is known of Events, with the files beside this configuration. What is wrong in them is in the log, and keeps
/// nothing from being served.
fn edition(config: &Path) -> Edition {
    let edition = Edition::read(&knowledge::folder(config));
    for fault in edition.faults() {
        say!(warn, messages::KNOWLEDGE_LEFT_OUT, %fault);
    }
    edition
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
