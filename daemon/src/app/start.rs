//! Builds the modules from their settings and from a former process's state.
//!
//! Invariant: the log names whatever is missing or incomplete, and the rest still starts. Only a part that the daemon
//! cannot start without is an error.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::drains::Drains;
use holdfast_core::engine::{Engine, estimate_service_growth};
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, Settings};
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::op::MapGrowth;
use holdfast_core::time::ClockReading;
use holdfast_status::views::apiserver::ClusterId;
use tokio::sync::{mpsc, oneshot, watch};

use super::{AppError, settings};
use holdfast_agent::engine_thread::EngineThread;
use holdfast_agent::listeners;
use holdfast_agent::lock_wait::{self, Holder};
use holdfast_agent::maps::AppMaps;
use holdfast_agent::recorder::{self, Recorder, TimedChange};
use holdfast_agent::state;
use holdfast_config::{Config, NodeName};
use holdfast_host::logging::messages::{self, say};
use holdfast_kubernetes::apiserver::{self, Access};
use holdfast_kubernetes::own_node::NodeDescription;
use holdfast_kubernetes::source::{self as kubernetes, Kubernetes};
use holdfast_standalone::blocks::{self as config, BlocksFolder, SavedSets};
use holdfast_standalone::manifests::Manifests;

/// The seed that spreads checks and queries of many nodes. Without randomness they only become easier to guess.
pub(super) fn random_seed() -> u64 {
    getrandom::u64().unwrap_or(0)
}

/// The secret key of the tables' hashes. It has no other use: an apiserver sees when it is queried, which must not
/// reveal the key. Without randomness, authors of objects could choose colliding keys, so the start fails.
fn random_hash_seed() -> Result<Seed, AppError> {
    let mut key = [0; 16];
    getrandom::fill(&mut key).map_err(|error| AppError::Runtime(std::io::Error::other(error.to_string())))?;
    Ok(Seed(u128::from_ne_bytes(key)))
}

/// Claims the folder for this process, and opens the maps while it reads the snapshot: after a boot, clients wait for
/// both.
pub(super) fn open_state(
    config: &Config,
    folder: &state::StateFolder,
) -> Result<(state::Claim, AppMaps, Option<state::SavedState>), AppError> {
    let taken = |taken: &state::StateInUse| Some(Holder(taken.holder));
    let claim = lock_wait::wait_until_free(lock_wait::WAIT_MAX, "the state", || folder.claim(), taken)?;
    std::thread::scope(|scope| {
        let reading = std::thread::Builder::new().name("state".to_owned());
        let reading = reading.spawn_scoped(scope, || load_state(folder));
        let maps = AppMaps::open(config, expected_demand(config, folder))?;
        let kept = match reading {
            Ok(reading) => reading.join().unwrap_or_else(|broken| std::panic::resume_unwind(broken)),
            // The system cannot start a thread.
            Err(_) => load_state(folder),
        };
        Ok((claim, maps, kept))
    })
}

/// How much of empty maps the snapshot would take, estimated from a sample. It is nothing if the snapshot has few
/// services or cannot be read.
fn expected_demand(config: &Config, folder: &state::StateFolder) -> MapGrowth {
    let settings = settings::engine_settings(config, settings::apiserver_addresses(None));
    folder
        .sample()
        .map(|sample| sample.extrapolate(|view| estimate_service_growth(view, &settings)))
        .unwrap_or_default()
}

/// Logs what is missing or incomplete now. The daemon retries it, and serves everything else meanwhile. A file system
/// may hang, so the start does not wait for this.
pub(super) fn warn_about_missing(config: &Config) {
    let manifests = config.manifests.path.clone();
    let services = config.more_services.path.clone();
    let kubernetes = config.kubernetes.enabled;
    let apiserver = config.apiserver.clone();
    drop(tokio::task::spawn_blocking(move || {
        if let Some(Err(error)) = manifests.as_deref().map(Manifests::check_folder) {
            tracing::warn!(%error, "cannot read the manifests yet; retrying, and everything else is served");
        }
        if let Some(Err(error)) = services.as_deref().map(BlocksFolder::check_folder) {
            tracing::warn!(%error, "cannot read the files of services yet; retrying, and everything else is served");
        }
        // The part that reads the credentials logs files that are merely missing.
        if let Some(Err(error)) = kubernetes.then(|| Access::check_files(&apiserver)) {
            tracing::warn!(%error, "cannot use an apiserver yet; retrying, and everything else is served");
        }
    }));
}

/// Loads the snapshot. If it cannot be used, the daemon starts as on a new node.
fn load_state(folder: &state::StateFolder) -> Option<state::SavedState> {
    match folder.load() {
        Ok(saved) => {
            saved.iter().filter_map(|saved| saved.damage.as_deref()).for_each(log_damage);
            saved
        }
        Err(error) => {
            say!(warn, messages::SNAPSHOT_NOT_USED, %error);
            None
        }
    }
}

/// Which numbers of records may be in use, and the damage of the snapshot.
pub(super) fn saved_numbers(saved: Option<&state::SavedState>) -> (u64, Option<Arc<state::Damage>>) {
    saved.map_or((0, None), |saved| (saved.context.numbers_below, saved.damage.clone()))
}

/// The saved backends of the configuration's services.
pub(super) fn restored_sets(saved: Option<&state::SavedState>) -> SavedSets {
    saved.map(|saved| config::saved_sets(&saved.remembered.services)).unwrap_or_default()
}

fn log_damage(damage: &state::Damage) {
    let state::Damage { error, older, lost } = damage;
    let older = older.join_names();
    let lost = lost.join_names();
    say!(warn, messages::SNAPSHOT_DAMAGED, %error, older, lost);
}

/// Opens the access to the apiserver. `known_cluster` is the cluster that the snapshot is from.
fn open_access(config: &Config, seed: u64, known_cluster: Option<&str>) -> Result<Access, AppError> {
    let settings = apiserver::AccessSettings {
        sources: settings::apiserver_sources(config),
        state: config.state.path.clone(),
        known_cluster: known_cluster.and_then(ClusterId::new),
        seed,
    };
    Ok(Access::new(&settings)?)
}

/// The access to the apiserver and its watches; neither if no object comes from an apiserver.
pub(super) fn open_cluster(
    config: &Config,
    node: &NodeName,
    seed: u64,
    kept: Option<&state::SavedState>,
) -> Result<(Option<Access>, Option<Kubernetes>), AppError> {
    if !config.kubernetes.enabled {
        return Ok((None, None));
    }
    let access = open_access(config, seed, kept.and_then(|kept| kept.context.cluster.as_deref()))?;
    Ok((Some(access.clone()), Some(build_kubernetes(config, node, access, kept))))
}

/// Builds the watches, from the version that a former process had reached. If that process selected Services of
/// another proxy name, the watch starts again, because the process never saw these Services.
fn build_kubernetes(
    config: &Config,
    node: &NodeName,
    access: Access,
    kept: Option<&state::SavedState>,
) -> Kubernetes {
    let asked_for = config.kubernetes.service_proxy_name.as_deref();
    let is_as_ever = |kept: &state::SavedState| kept.context.proxy_name.as_deref() == asked_for;
    let start = |kept: &state::SavedState| {
        let start = kubernetes::ResumeState::from_table(&kept.remembered, &kept.context.oddities);
        let start = if is_as_ever(kept) { start } else { start.only_imports() };
        kubernetes::ResumeState { age: state::StateFolder::new(&config.state.path).age(), ..start }
    };
    let settings = kubernetes::SourceSettings {
        service_proxy_name: config.kubernetes.service_proxy_name.clone(),
        encodings: config.apiserver.encoding,
        node: Some(node.clone()),
        service_imports: config.kubernetes.service_imports,
        start: kept.map(start).unwrap_or_default(),
        ..kubernetes::SourceSettings::default()
    };
    Kubernetes::new(access, settings)
}

/// The node's description until the cluster delivers one: the zone from the snapshot, and the addresses that answer
/// NodePorts, so that a restart does not remove and restore these. Without a cluster there is neither.
pub(super) fn describe_node(
    config: &Config,
    maps: &AppMaps,
    kept: Option<&state::SavedState>,
) -> NodeDescription {
    let zone = kept.and_then(|kept| kept.context.zone.clone());
    let addresses = if config.kubernetes.enabled { maps.node_addresses() } else { Vec::new() };
    NodeDescription { zone, addresses, is_leaving: false }
}

/// Builds an engine that has everything it needs before it may write. It decides the remembered frontends again by
/// the present settings, drains and node: so an apiserver's address is no frontend, not even for a moment.
pub(super) fn build_engine(
    maps: AppMaps,
    sources: &[Source],
    now: (Settings, NodeFacts),
    (saved, drains): (Option<state::SavedState>, &Arc<Drains>),
) -> Result<Engine<AppMaps>, AppError> {
    let (mut engine, found) = Engine::start(maps, random_hash_seed()?, sources)?;
    for error in found {
        tracing::warn!(%error, "the maps hold entries that holdfast cannot have written; rewriting them");
    }
    engine.restore_drains(Arc::clone(drains));
    if let Some(saved) = saved {
        // The engine's own clock begins with its loop.
        engine.restore(saved.remembered, ClockReading { wall: super::now(), mono: Duration::ZERO });
    }
    engine.apply(Event::SettingsApplied(Arc::new(now.0)));
    engine.apply(Event::NodeApplied(Arc::new(now.1)));
    if sources.contains(&Source::Kubernetes) {
        listeners::current_listeners().into_iter().for_each(|it| engine.apply(Event::ListenersApplied(it)));
    }
    Ok(engine)
}

/// The snapshot writer, and the outcome of its last write.
pub(super) fn build_snapshot_writer(
    (folder, damage): (state::StateFolder, Option<Arc<state::Damage>>),
    engine: &EngineThread,
    (access, kubernetes): (&Option<Access>, &Option<Kubernetes>),
    history: &Arc<recorder::History>,
) -> (state::SnapshotWriter, watch::Receiver<state::SnapshotWrite>) {
    let clusters = access.as_ref().map_or_else(|| watch::channel(None).1, Access::watch_cluster_uid);
    let snapshots = engine.snapshots.clone();
    let odd = kubernetes.as_ref().map(Kubernetes::untabled_view);
    let (keeper, written) = state::SnapshotWriter::new(folder, snapshots, clusters, odd, Arc::clone(history));
    (keeper.with_damage(damage), written)
}

/// The recorder on its own thread, because it formats and may wait for the journal; and the signal that it has ended.
pub(super) fn start_recorder(
    state: &Path,
    numbers_below: u64,
    changes: mpsc::Receiver<TimedChange>,
    engine: &EngineThread,
) -> Result<(Arc<recorder::History>, oneshot::Receiver<()>), AppError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(AppError::Runtime)?;
    let (recorder, history) =
        Recorder::new(changes, engine.snapshots.clone(), Some(&state.join(recorder::FOLDER)));
    let recorder = recorder.with_remembered(numbers_below);
    let (end, ended) = oneshot::channel();
    let work = move || {
        runtime.block_on(recorder.run());
        // The receiver may be gone.
        let _ = end.send(());
    };
    std::thread::Builder::new().name("recorder".to_owned()).spawn(work).map_err(AppError::Runtime)?;
    Ok((history, ended))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_start_draws_another_secret() {
        let [one, other] = [(); 2].map(|()| random_hash_seed().unwrap());
        assert_ne!(one, other);
        assert_ne!(one, Seed(0), "no key was drawn");
    }
}
