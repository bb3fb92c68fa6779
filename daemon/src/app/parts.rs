//! From the configuration to what each part wants, and the engine's own thread.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use holdfast_core::dialable::{AddressRange, ExternalIps};
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, Settings};
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::{Capacity, Maps};
use holdfast_core::snapshot::Snapshot;
use tokio::sync::{mpsc, oneshot, watch};

use super::AppError;
use super::maps::AppMaps;
use super::patience::{self, Holder};
use crate::admin;
use crate::apiserver::{self, Access};
use crate::config::{self, Config, Discovery, NodeName};
use crate::engine::ask::{self, Asker};
use crate::engine::run;
use crate::logging::messages::{self, say};
use crate::node::Described;
use crate::readings::{EffectiveConfig, Liveness};
use crate::recorder::{self, Recorder, Told};
use crate::sources::config::{Blocks, StaticService};
use crate::sources::kubernetes::{self, Kubernetes};
use crate::state;
use holdfast_core::engine::Engine;
use holdfast_core::time::Now;

/// Events that wait for so long do not move. An engine for which none waits looks at the time every second.
const STALLED: Duration = Duration::from_secs(5);

/// Kubelet's kubeconfig where kubeadm puts it.
const KUBELET: &str = "/etc/kubernetes/kubelet.conf";

/// `known_cluster` is the one that the snapshot is from.
fn access(config: &Config, seed: u64, known_cluster: Option<&str>) -> Result<Access, AppError> {
    let settings = apiserver::Settings {
        sources: apiserver_sources(config),
        state: config.state.path.clone(),
        known_cluster: known_cluster.and_then(apiserver::ClusterId::new),
        seed,
    };
    Ok(Access::new(&settings)?)
}

pub(super) fn apiserver_sources(config: &Config) -> apiserver::Sources {
    let discovers = |tier| config.apiserver.discover.contains(&tier);
    apiserver::Sources {
        apiserver: config.apiserver.clone(),
        kubelet: discovers(Discovery::Kubelet).then(|| KUBELET.into()),
        learns: discovers(Discovery::Learned),
    }
}

/// By the configuration in force; `apiservers` are the addresses that are an apiserver's beside the configured ones.
pub(super) fn settings(config: &Config, apiservers: BTreeSet<SocketAddr>) -> Settings {
    let configured = config.apiserver.endpoints.iter().map(|endpoint| endpoint.address());
    Settings {
        service_proxy_name: config.kubernetes.service_proxy_name.as_deref().map(Into::into),
        bypass: configured.chain(apiservers).collect(),
        frontends_max: usize::try_from(config.datapath.limits.frontends).ok(),
        external_ips: external_ips(&config.kubernetes.external_ips),
        hold: config.hold.policy(),
        keeps_tcp_members: config.datapath.stale_sockets.protocols.contains(&config::Protocol::Tcp),
    }
}

fn external_ips(allowed: &config::ExternalIps) -> ExternalIps {
    let range = |cidr: &config::Cidr| AddressRange { first: cidr.network(), last: cidr.last() };
    match allowed {
        config::ExternalIps::All => ExternalIps::All,
        config::ExternalIps::None => ExternalIps::None,
        config::ExternalIps::Cidrs(cidrs) => ExternalIps::Within(cidrs.iter().map(range).collect()),
    }
}

/// The addresses that are an apiserver's now.
pub(super) fn apiservers(access: Option<&Access>) -> BTreeSet<SocketAddr> {
    access.map(|access| access.addresses().borrow().clone()).unwrap_or_default()
}

/// An engine that knows what it must know before it may write anything. What is remembered is decided by the settings and on
/// the node of now: an apiserver's address is no frontend, not even for a moment.
pub(super) fn engine(
    maps: AppMaps,
    seed: u64,
    sources: &[Source],
    now: (Settings, NodeFacts),
    kept: Option<state::Kept>,
) -> Result<Engine<AppMaps>, AppError> {
    let (mut engine, found) = Engine::start(maps, Seed(seed), sources)?;
    for error in found {
        tracing::warn!(%error, "the maps hold something strange; it is written anew");
    }
    if let Some(kept) = kept {
        // The engine's own clock begins with its loop.
        engine.remember(kept.remembered, Now { wall: super::now(), mono: Duration::ZERO });
    }
    engine.apply(Event::SettingsApplied(Arc::new(now.0)));
    engine.apply(Event::NodeApplied(Arc::new(now.1)));
    Ok(engine)
}

/// The way to the apiserver and what is watched there; none where no object comes from there.
pub(super) fn cluster(
    config: &Config,
    node: &NodeName,
    seed: u64,
    kept: Option<&state::Kept>,
) -> Result<(Option<Access>, Option<Kubernetes>), AppError> {
    if !config.kubernetes.enabled {
        return Ok((None, None));
    }
    let access = access(config, seed, kept.and_then(|kept| kept.context.cluster.as_deref()))?;
    Ok((Some(access.clone()), Some(kubernetes(config, node, access, kept))))
}

/// What is watched there, from where a former process was. One that asked for other Services knows nothing of these.
fn kubernetes(config: &Config, node: &NodeName, access: Access, kept: Option<&state::Kept>) -> Kubernetes {
    let asked_for = config.kubernetes.service_proxy_name.as_deref();
    let start = kept.filter(|kept| kept.context.proxy_name.as_deref() == asked_for);
    let settings = kubernetes::Settings {
        service_proxy_name: config.kubernetes.service_proxy_name.clone(),
        node: Some(node.clone()),
        start: start
            .map(|kept| kubernetes::Start::of(&kept.remembered, &kept.context.odd))
            .unwrap_or_default(),
        ..kubernetes::Settings::default()
    };
    Kubernetes::new(access, settings)
}

/// A list takes the next power of two, so twice the slots hold that many backends whatever their lists are.
pub(super) fn capacity(config: &Config) -> Capacity {
    let limits = config.datapath.limits;
    let most = Capacity::default();
    Capacity {
        slots: limits
            .backends
            .saturating_mul(2)
            .checked_next_power_of_two()
            .map_or(most.slots, |it| it.min(most.slots)),
        ports: limits.frontends.min(most.ports),
        services: usize::try_from(limits.services).unwrap_or(most.services).min(most.services),
    }
}

/// What is held for the cluster's word on this node until it speaks: the zone of before, and the addresses at which NodePorts are
/// answered, so that a restart does not move them there and back. Nobody speaks where there is no cluster.
pub(super) fn described(config: &Config, maps: &AppMaps, kept: Option<&state::Kept>) -> Described {
    let zone = kept.and_then(|kept| kept.context.zone.clone());
    let addresses = if config.kubernetes.enabled { maps.node_addresses() } else { Vec::new() };
    Described { zone, addresses }
}

pub(super) fn admin_settings(config: &Config) -> admin::Settings {
    admin::Settings { listen: config.admin.listen.address(), socket: config.admin.socket.clone() }
}

pub(super) fn effective(config: &Config) -> EffectiveConfig {
    EffectiveConfig { text: config.effective_text(), json: config.effective_json() }
}

pub(super) fn blocks(config: &Config, path: &Path) -> Result<Blocks, AppError> {
    let services = config.services.iter().map(StaticService::from).collect();
    Blocks::new(services, &path.to_string_lossy()).map_err(AppError::Services)
}

/// What writes the table down, and where it tells how it goes.
pub(super) fn keeper(
    folder: state::Folder,
    engine: &EngineThread,
    (access, kubernetes): (&Option<Access>, &Option<Kubernetes>),
    history: &Arc<recorder::History>,
) -> (state::Keeper, watch::Receiver<state::Written>) {
    let clusters = access.as_ref().map_or_else(|| watch::channel(None).1, Access::clusters);
    let (snapshots, odd) = (engine.snapshots.clone(), kubernetes.as_ref().map(Kubernetes::oddities));
    state::Keeper::new(folder, snapshots, clusters, odd, Arc::clone(history))
}

/// The folder for this process alone, and what a former one wrote down. Without that the daemon starts as it would on a new node.
pub(super) fn kept(folder: &state::Folder) -> Result<(state::Claim, Option<state::Kept>), AppError> {
    let taken = |_: &state::Taken| Some(Holder(None));
    let claim = patience::until_free(patience::MOST, "the state", || folder.claim(), taken)?;
    let kept = match folder.load() {
        Ok(kept) => kept,
        Err(error) => {
            say!(warn, messages::SNAPSHOT_NOT_USED, %error);
            None
        }
    };
    Ok((claim, kept))
}

/// Spreads hash tables and health checks. Without randomness they are merely easier to guess.
pub(super) fn seed() -> u64 {
    getrandom::u64().unwrap_or(0)
}

/// The engine on a thread of its own, so that nothing else can hold it up.
pub(super) struct EngineThread {
    pub(super) asker: Asker,
    pub(super) snapshots: watch::Receiver<Arc<Snapshot>>,
    progress: Arc<AtomicU64>,
    started: Instant,
    stop: watch::Sender<bool>,
    thread: JoinHandle<()>,
}

impl EngineThread {
    pub(super) fn start<M: Maps + 'static>(
        engine: Engine<M>,
        events: mpsc::Receiver<Vec<Event>>,
        look_after: impl FnMut(&mut Engine<M>) + Send + 'static,
    ) -> Result<(Self, mpsc::Receiver<Told>), AppError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(AppError::Runtime)?;
        let (changes, changed) = mpsc::channel(run::CHANGES_WAITING_MAX);
        let (snapshots_out, snapshots) = watch::channel(Arc::default());
        let (stop, stopping) = watch::channel(false);
        let progress = Arc::new(AtomicU64::new(0));
        let (asker, asks) = ask::channel();
        let ends = run::Ends {
            events,
            asks,
            snapshots: snapshots_out,
            changes,
            progress: Arc::clone(&progress),
            stop: stopping,
        };
        let work = move || drop(runtime.block_on(run::run(engine, ends, look_after)));
        let thread =
            std::thread::Builder::new().name("engine".to_owned()).spawn(work).map_err(AppError::Runtime)?;
        Ok((Self { asker, snapshots, progress, started: Instant::now(), stop, thread }, changed))
    }

    /// Tells for how long no event has moved.
    pub(super) fn liveness(&self) -> Liveness {
        let (progress, started) = (Arc::clone(&self.progress), self.started);
        Liveness::new(move || {
            let last = Duration::from_millis(progress.load(Ordering::Relaxed));
            Some(started.elapsed().saturating_sub(last)).filter(|still| *still > STALLED)
        })
    }

    /// Ends the engine's loop; the maps stay as they are.
    pub(super) fn stop(self) {
        self.stop.send_replace(true);
        // A panic there has ended the process already.
        let _ = self.thread.join();
    }
}

/// The recorder on a thread of its own, because it formats and may wait for the journal; and what tells that it has ended.
pub(super) fn record(
    state: &Path,
    numbers_below: u64,
    changes: mpsc::Receiver<Told>,
    engine: &EngineThread,
) -> Result<(Arc<recorder::History>, oneshot::Receiver<()>), AppError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(AppError::Runtime)?;
    let (recorder, history) =
        Recorder::new(changes, engine.snapshots.clone(), Some(&state.join(recorder::FOLDER)));
    let recorder = recorder.remembering(numbers_below);
    let (end, ended) = oneshot::channel();
    let work = move || {
        runtime.block_on(recorder.run());
        // Nobody may be waiting.
        let _ = end.send(());
    };
    std::thread::Builder::new().name("recorder".to_owned()).spawn(work).map_err(AppError::Runtime)?;
    Ok((history, ended))
}
