//! Opens and reads what the engine thread needs before it runs.
//!
//! Invariant: only the engine writes to the maps, after it has everything that it decides by.

use std::io::PipeWriter;
use std::sync::Arc;

use holdfast_agent::datapath::RefusalLog;
use holdfast_agent::maps::AppMaps;
use holdfast_agent::state::{self, SavedState};
use holdfast_agent::{drains, node};
use holdfast_config::{Config, NodeName};
use holdfast_core::drains::Drains;
use holdfast_core::engine::Engine;
use holdfast_core::keys::Source;
use holdfast_datapath::LiveMaps;
use holdfast_kubernetes::apiserver::Access;
use holdfast_kubernetes::own_node;
use holdfast_kubernetes::source::Kubernetes;
use holdfast_standalone::blocks::SavedSets;
use holdfast_status::views::datapath::DatapathView;
use tokio::sync::watch;

use super::{AppError, settings, start, watch_channel};

/// The channels by which the engine thread publishes its maps to readers.
pub(super) type MapSenders = (watch::Sender<Arc<DatapathView>>, watch::Sender<LiveMaps>);
pub(super) type MapReceivers = (watch::Receiver<Arc<DatapathView>>, watch::Receiver<LiveMaps>);

fn map_channels(maps: &AppMaps) -> (MapSenders, MapReceivers) {
    let ((views, views_now), (live, live_now)) =
        (watch_channel(maps.view()), watch::channel(maps.live_maps()));
    ((views, live), (views_now, live_now))
}

/// The parts that exist before the engine thread runs.
pub(super) struct Foundation {
    /// The node's name, and its description from the snapshot.
    pub(super) node: (NodeName, own_node::NodeDescription),
    /// The saved backends of the configuration's services.
    pub(super) sets: SavedSets,
    /// It spreads in time what many nodes do at once.
    pub(super) seed: u64,
    pub(super) folder: state::StateFolder,
    pub(super) claim: state::Claim,
    pub(super) access: Option<Access>,
    pub(super) kubernetes: Option<Kubernetes>,
    pub(super) engine: Engine<AppMaps>,
    pub(super) drains: drains::RestoredDrains,
    pub(super) refusals: Arc<RefusalLog>,
    /// It closes when the daemon stops, for the thread that waits for refusals.
    pub(super) refusals_end: PipeWriter,
    pub(super) map_senders: MapSenders,
    pub(super) map_receivers: MapReceivers,
    /// No record was ever numbered this or higher.
    pub(super) numbers_below: u64,
    pub(super) damage: Option<Arc<state::Damage>>,
}

impl Foundation {
    /// Opens maps and state, and builds the engine from the snapshot.
    pub(super) fn open(config: &Config) -> Result<Self, AppError> {
        let (seed, folder) = (start::random_seed(), settings::state_folder(config));
        let node = node::name(config)?;
        let (claim, maps, saved) = start::open_state(config, &folder)?;
        let (access, kubernetes) = start::open_cluster(config, &node, seed, saved.as_ref())?;
        let (numbers_below, damage) = start::saved_numbers(saved.as_ref());
        let drains = drains::load_drains(&config.state.path);
        let (refusals, refusals_end) = maps.refusals()?;
        let (map_senders, map_receivers) = map_channels(&maps);
        let description = start::describe_node(config, &maps, saved.as_ref());
        let sets = start::restored_sets(saved.as_ref());
        let engine =
            build_engine(config, (&node, &description, access.as_ref()), maps, (saved, &drains.drains))?;
        Ok(Self {
            node: (node, description),
            sets,
            seed,
            folder,
            claim,
            access,
            kubernetes,
            engine,
            drains,
            refusals,
            refusals_end,
            map_senders,
            map_receivers,
            numbers_below,
            damage,
        })
    }
}

/// Builds the engine over these maps, with everything that its rules need before their first decision.
fn build_engine(
    config: &Config,
    (node, described, access): (&NodeName, &own_node::NodeDescription, Option<&Access>),
    maps: AppMaps,
    kept: (Option<SavedState>, &Arc<Drains>),
) -> Result<Engine<AppMaps>, AppError> {
    let settings = settings::engine_settings(config, settings::apiserver_addresses(access));
    let facts = node::facts(config, node, described).map_err(AppError::Addresses)?;
    start::build_engine(maps, &required_sources(config), (settings, facts), kept)
}

/// The sources that must deliver before anything is removed.
pub(super) fn required_sources(config: &Config) -> Vec<Source> {
    let manifests = config.manifests.path.is_some().then_some(Source::Manifests);
    let kubernetes = config.kubernetes.enabled.then_some(Source::Kubernetes);
    let imports = kubernetes.filter(|_| config.kubernetes.service_imports).map(|_| Source::ClusterSet);
    [Source::Config].into_iter().chain(manifests).chain(kubernetes).chain(imports).collect()
}
