//! The composition root: builds every part from the configuration, connects them, and shuts them down.
//!
//! Invariant: modules reach each other only through the channels that they are given here.

mod background;
mod client_requests;
mod foundation;
mod readings;
mod reload;
mod settings;
mod sources;
mod start;
#[cfg(test)]
mod tests;

use std::io::PipeWriter;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::Source;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::devices::DeviceDecision;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};

use holdfast_agent::engine::run::{GROUPS_WAITING_MAX, Upkeep};
use holdfast_agent::readings::{EffectiveConfig, Readings, RefusedReload};
use holdfast_agent::state::{self, SnapshotWriter};
use holdfast_agent::{hostname_watch, systemd};
use holdfast_api as admin;
use holdfast_config::{Config, ConfigFile, DatapathKind, NodeName};
use holdfast_core::engine::Engine;
use holdfast_evidence::diagnose::gather::Gatherer;
use holdfast_evidence::event_watcher::EventStatus;
use holdfast_evidence::knowledge::{self, Edition};
use holdfast_host::logging;
use holdfast_host::logging::Logging;
use holdfast_host::logging::messages::{self, say};
use holdfast_kubernetes::apiserver::Access;
use holdfast_kubernetes::own_node;
use holdfast_standalone::blocks::Blocks;

use client_requests::ClientRequests;
use holdfast_agent::descriptors;
use holdfast_agent::engine_thread::EngineThread;
pub use holdfast_agent::error::AppError;
use holdfast_agent::maps::{AppMaps, MapCoverage};
use holdfast_agent::paced_receiver::PacedReceiver;

use background::BackgroundTasks;
use foundation::{Foundation, MapSenders, required_sources};
use readings::{ReadingParts, build_readings};
use sources::{SourceContext, Sources};
use start::{build_snapshot_writer, start_recorder};

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
    descriptors::raise_limit();
    start::warn_about_missing(&config);
    // Subscribe to signals before anything answers, because a process that sees the daemon may signal it at once.
    let signals = Signals::subscribe()?;
    let app = App::start(file, &config, logging)?;
    drop(inside);
    let ended = runtime.block_on(app.run(signals));
    // A thread that hangs in a file system must not keep the daemon from ending.
    runtime.shutdown_background();
    ended
}

/// The signals that request a reload or the end of the daemon; they get no response.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn subscribe() -> Result<Self, AppError> {
        let heed = |kind| signal(kind).map_err(AppError::Runtime);
        Ok(Self {
            hangup: heed(SignalKind::hangup())?,
            terminate: heed(SignalKind::terminate())?,
            interrupt: heed(SignalKind::interrupt())?,
        })
    }
}

/// How long a stopping daemon waits for the disk; systemd allows longer.
const LAST_WRITE_WAIT: Duration = Duration::from_secs(10);

/// The shortest time between two changes of the apiservers' addresses. Each change decides every service again, and
/// any client that may write a slice of `default/kubernetes` can cause one.
const APISERVERS_PACE: Duration = Duration::from_secs(5);

/// Reloads the configuration, and hands each change to the parts that need it.
struct Reload {
    file: ConfigFile,
    logging: Arc<Logging>,
    // The last reload, if it was refused.
    refusal: watch::Sender<Option<RefusedReload>>,
    /// Since when the configuration in force is.
    in_force_since: Mutex<Timestamp>,
    /// The configuration in force: the last accepted file, except the keys that need a restart.
    config: watch::Sender<Arc<Config>>,
    editions: watch::Sender<Arc<Edition>>,
    effective: watch::Sender<Arc<EffectiveConfig>>,
    blocks: watch::Sender<Arc<Blocks>>,
    access: Option<Access>,
    events: mpsc::Sender<Vec<Event>>,
}

/// A valid configuration that a reload has read.
struct LoadedConfig {
    config: Config,
    blocks: Blocks,
    edition: Edition,
}

/// Where a reload sends the configuration in force and the knowledge about Events.
type ConfigSenders = (watch::Sender<Arc<Config>>, watch::Sender<Arc<Edition>>);

/// Where a reload sends the effective configuration, the blocks, and why a new configuration was refused.
type EffectiveSenders =
    (watch::Sender<Arc<EffectiveConfig>>, watch::Sender<Arc<Blocks>>, watch::Sender<Option<RefusedReload>>);

/// The channel by which a task ends the daemon with an error.
type FailureChannel = (mpsc::Sender<AppError>, mpsc::Receiver<AppError>);

struct App {
    reload: Reload,
    sources: Sources,
    // With the description from the snapshot.
    node: (NodeName, own_node::NodeDescription),
    engine: EngineThread,
    admin: admin::AdminServer,
    background: BackgroundTasks,
    // The claim is held until the last write is done.
    persistence: (oneshot::Receiver<()>, SnapshotWriter, state::Claim),
    seed: u64,
    // The channel for errors that end the daemon, and the pipe that closes at the stop, for the thread that waits for
    // refusals.
    shutdown: (FailureChannel, PipeWriter),
}

impl App {
    /// Does everything that can fail at the start, in the order in which an operator would look for the cause.
    fn start(file: &ConfigFile, config: &Config, logging: Arc<Logging>) -> Result<Self, AppError> {
        let (blocks_out, blocks) = watch_channel(settings::parse_blocks(config, &file.path)?);
        let base = Foundation::open(config)?;
        let ((events, incoming), (fail, failures)) = (mpsc::channel(GROUPS_WAITING_MAX), mpsc::channel(1));
        let (decisions, devices) = device_channels();
        let (in_force, gatherer) = config_channels(&file.path, config, base.access.as_ref(), &base.node.0);
        let upkeep = build_upkeep(base.map_senders, &fail, devices, &in_force);
        let (engine, changes) = EngineThread::start(base.engine, incoming, upkeep)?;
        let (history, recorded) = start_recorder(&config.state.path, base.numbers_below, changes, &engine)?;
        let cluster = (&base.access, &base.kubernetes);
        let (keeper, written) = build_snapshot_writer((base.folder, base.damage), &engine, cluster, &history);
        let event_readings = EventStatus::new(gatherer.editions());
        let (acts, requests, draining) = client_requests::channels(gatherer, base.drains, &config.state.path);
        let (readings, senders) = build_readings(ReadingParts {
            config: (&file.path, config),
            cluster: (base.access.as_ref(), base.kubernetes.as_ref()),
            engine: &engine,
            maps: base.map_receivers,
            refusals: base.refusals,
            history,
            last_write: written,
            drains: draining.last_write(),
        });
        let shown = (readings.clone(), event_readings.clone(), acts);
        let admin = admin::start(&settings::admin_settings(config), shown, senders.closed_listeners);
        let in_force_ends = (senders.effective, blocks_out, senders.reload_refusal);
        Ok(Self {
            admin: admin.map_err(|error| AppError::Admin(error.to_string()))?,
            reload: Reload::new(file, in_force, logging, base.access, events, in_force_ends),
            sources: Sources::new(config, base.kubernetes, (blocks, senders.active_blocks), base.sets),
            node: base.node,
            engine,
            background: BackgroundTasks {
                readings,
                events: event_readings,
                proxies: senders.proxies,
                devices: decisions,
                filters: senders.filters,
                routes: senders.routes,
                observed: (senders.node_port_listeners, senders.kept_failures),
                requests,
                drain_orders: draining,
            },
            persistence: (recorded, keeper, base.claim),
            seed: base.seed,
            shutdown: ((fail, failures), base.refusals_end),
        })
    }

    async fn run(self, signals: Signals) -> Result<(), AppError> {
        let Self {
            reload,
            sources,
            node: (node, described),
            engine,
            admin,
            background: background_tasks,
            persistence: (recorded, keeper, _claim),
            seed,
            shutdown: ((fail, failures), refused_no_more),
        } = self;
        let named = node.clone();
        let (stop, stopping) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let readings = background_tasks.readings.clone();
        let keeping = tokio::spawn(keeper.run(stopping.clone()));
        watch_hostname(&mut tasks, &reload, &node, &readings, fail);
        let requests = background_tasks.start(&mut tasks, &reload, &node, stopping.clone());
        sources.start(
            &mut tasks,
            SourceContext { reload: &reload, readings: &readings, seed, stopping },
            (node, described),
        );
        if let Some(access) = reload.access.clone() {
            tasks.spawn(access.run_maintenance());
        }
        report_start(&reload.config.borrow(), &named, admin.address());
        let ended = serve_signals(signals, &reload, requests, failures).await;
        if !matches!(ended, Ok(()) | Err(AppError::Renamed(_))) {
            return ended;
        }
        report_stop(&readings.datapath());
        stop.send_replace(true);
        drop(refused_no_more);
        drop(reload);
        engine.stop();
        wait_for_disk(recorded, keeping).await;
        // Blocks until the last responses are sent, at most two seconds; nothing else runs here by now.
        admin.stop();
        ended
    }
}

/// Watches the host's name if the configuration names no node.
fn watch_hostname(
    tasks: &mut JoinSet<()>,
    reload: &Reload,
    node: &NodeName,
    readings: &Readings,
    fail: mpsc::Sender<AppError>,
) {
    if reload.config.borrow().node.name.is_some() {
        return;
    }
    let renamed = hostname_watch::run(node.clone(), readings.watches.clone(), readings.datapath.clone());
    tasks.spawn(async move { drop(fail.send(renamed.await.into()).await) });
}

/// Logs what runs, on which node, and from where its services come.
fn report_start(config: &Config, node: &NodeName, address: SocketAddr) {
    let datapath = match config.datapath.kind {
        DatapathKind::Kernel => "kernel",
        DatapathKind::Memory => "memory",
    };
    let has_blocks = !config.services.is_empty() || config.more_services.path.is_some();
    let sources = required_sources(config).into_iter().filter(|it| has_blocks || *it != Source::Config);
    let sources = sources.map(Source::as_str).collect::<Vec<_>>().join(", ");
    let version = env!("CARGO_PKG_VERSION");
    say!(info, messages::STARTED, version, node = node.as_str(), datapath, sources, %address);
}

/// Logs the stop, and which hooks and devices lose their program by it: a program without a pin ends with its
/// process.
fn report_stop(datapath: &DatapathView) {
    let bare = datapath.status().map_or(&[][..], |status| &status.detached_hooks);
    let broken = [bare, &datapath.unpinned_hooks()].concat();
    if broken.is_empty() {
        systemd::notify_stopping(messages::STOPPING.text);
        say!(info, messages::STOPPING);
    } else {
        systemd::notify_stopping(messages::STOPPING_UNPINNED.text);
        say!(error, messages::STOPPING_UNPINNED, hooks = broken.join(", "));
    }
}

/// A channel of a value with an initial state.
fn watch_channel<T>(now: T) -> (watch::Sender<Arc<T>>, watch::Receiver<Arc<T>>) {
    watch::channel(Arc::new(now))
}

/// The decision for each device, and the notice that a driver changed.
type DeviceReceivers = (watch::Receiver<Arc<[DeviceDecision]>>, watch::Receiver<()>);

type DeviceSenders = (watch::Sender<Arc<[DeviceDecision]>>, watch::Sender<()>);

fn device_channels() -> (DeviceSenders, DeviceReceivers) {
    let ((decisions, decided), (looks, looked)) = (default_channel(), default_channel());
    ((decisions, looks), (decided, looked))
}

fn default_channel<T: Default>() -> (watch::Sender<T>, watch::Receiver<T>) {
    watch::channel(T::default())
}

/// Waits until the last records and the snapshot are on disk, or time is up.
async fn wait_for_disk(recorded: oneshot::Receiver<()>, keeping: JoinHandle<()>) {
    let (records, snapshot) = tokio::join!(
        tokio::time::timeout(LAST_WRITE_WAIT, recorded),
        tokio::time::timeout(LAST_WRITE_WAIT, keeping)
    );
    if records.is_err() {
        tracing::warn!("the last changes were not written to the history in time");
    }
    if snapshot.is_err() {
        tracing::warn!("the last snapshot was not written in time; the previous one stays");
    }
}

/// The engine thread's work besides its events: it maintains the maps and publishes their state. The closure returns
/// whether work is left.
fn build_upkeep(
    (views, live_maps): MapSenders,
    fail: &mpsc::Sender<AppError>,
    (mut devices, mut drivers): DeviceReceivers,
    (config, _): &ConfigSenders,
) -> impl FnMut(&mut Engine<AppMaps>, Upkeep) -> bool + Send + 'static + use<> {
    let (mut config, fail) = (config.subscribe(), fail.clone());
    let mut look = move |engine: &mut Engine<AppMaps>| {
        if devices.has_changed().unwrap_or(false) {
            let decisions = Arc::clone(&devices.borrow_and_update());
            engine.maps_mut().set_devices(&decisions);
        }
        if drivers.has_changed().unwrap_or(false) {
            drivers.mark_unchanged();
            engine.maps_mut().check_drivers();
        }
        if config.has_changed().unwrap_or(false) {
            let packets = config.borrow_and_update().packets.clone();
            engine.maps_mut().apply_config(&packets);
        }
        let held = MapCoverage::from_engine(engine);
        if let Err(error) = engine.maps_mut().run_upkeep(held) {
            // The first error ends the daemon.
            let _ = fail.try_send(error);
        }
    };
    move |engine, upkeep| {
        if upkeep == Upkeep::Inspect {
            look(engine);
        }
        let is_more = engine.maps_mut().continue_devices();
        live_maps.send_replace(engine.maps().live_maps());
        views.send_replace(Arc::new(engine.maps().view()));
        is_more
    }
}

/// Reloads on SIGHUP or on request, and returns on the signals that end the daemon, or on its failure.
async fn serve_signals(
    mut signals: Signals,
    reload: &Reload,
    mut requests: ClientRequests,
    mut failures: mpsc::Receiver<AppError>,
) -> Result<(), AppError> {
    let mut apiservers = PacedReceiver::new(reload.access.as_ref().map(Access::addresses), APISERVERS_PACE);
    loop {
        tokio::select! {
            // The sender of a signal gets no response; the log has the outcome.
            _ = signals.hangup.recv() => drop(reload.reload_config(None, || true).await),
            Some(request) = requests.reloads.recv() => reload.answer_reload(request).await,
            Some(request) = requests.forgets.recv() => reload.answer_forget(request).await,
            () = apiservers.wait_for_change() => reload.send_settings().await,
            _ = signals.terminate.recv() => return Ok(()),
            _ = signals.interrupt.recv() => return Ok(()),
            Some(error) = failures.recv() => return Err(error),
        }
    }
}

/// The channels of the configuration in force and of the knowledge about Events, and the gatherer that reads both.
fn config_channels(
    path: &Path,
    config: &Config,
    access: Option<&Access>,
    node: &NodeName,
) -> (ConfigSenders, Gatherer) {
    let in_force = watch::channel(Arc::new(config.clone())).0;
    let editions = watch::channel(Arc::new(load_edition(path))).0;
    let gatherer = Gatherer::new(access.cloned(), node.as_str().into(), in_force.subscribe());
    let gatherer = gatherer.with_editions(editions.subscribe());
    ((in_force, editions), gatherer)
}

/// Loads the knowledge about Events, with the files next to this configuration. Faults in them are logged and stop
/// nothing.
fn load_edition(config: &Path) -> Edition {
    let edition = Edition::read(&knowledge::knowledge_folder(config));
    for fault in edition.faults() {
        say!(warn, messages::KNOWLEDGE_LEFT_OUT, %fault);
    }
    edition
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
}
