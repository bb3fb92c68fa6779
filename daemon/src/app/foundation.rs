//! What a start opens and reads before the engine's thread runs.
//!
//! Invariant: nothing is written to the maps here but by the engine, which knows by then what it has to know.

use std::io::PipeWriter;
use std::sync::Arc;

use holdfast_agent::datapath::RefusalLog;
use holdfast_agent::maps::AppMaps;
use holdfast_agent::state::{self, Saved};
use holdfast_agent::{drains, node};
use holdfast_config::{Config, NodeName};
use holdfast_core::drains::Drains;
use holdfast_core::engine::Engine;
use holdfast_core::keys::Source;
use holdfast_datapath::LiveMaps;
use holdfast_kubernetes::apiserver::Access;
use holdfast_kubernetes::own_node;
use holdfast_kubernetes::source::Kubernetes;
use holdfast_standalone::blocks::Sets;
use holdfast_status::views::datapath::DatapathView;
use tokio::sync::watch;

use super::{AppError, known, settings, start};

/// The ends by which the engine's thread shows its maps, and by which others read them.
pub(super) type MapSenders = (watch::Sender<Arc<DatapathView>>, watch::Sender<LiveMaps>);
pub(super) type MapReceivers = (watch::Receiver<Arc<DatapathView>>, watch::Receiver<LiveMaps>);

/// The two ends of what is shown of the maps.
fn map_ends(maps: &AppMaps) -> (MapSenders, MapReceivers) {
    let ((views, views_now), (live, live_now)) = (known(maps.view()), watch::channel(maps.live_maps()));
    ((views, live), (views_now, live_now))
}

/// What there is before the engine's thread runs.
pub(super) struct Foundation {
    /// The node's name, with what a former process knew of it.
    pub(super) node: (NodeName, own_node::Described),
    /// The backends that the configuration's services had.
    pub(super) sets: Sets,
    /// It spreads what many nodes do at once.
    pub(super) seed: u64,
    /// The folder of what survives a restart, and the claim on it.
    pub(super) folder: state::Folder,
    pub(super) claim: state::Claim,
    pub(super) access: Option<Access>,
    pub(super) kubernetes: Option<Kubernetes>,
    pub(super) engine: Engine<AppMaps>,
    pub(super) drains: drains::Kept,
    pub(super) refusals: Arc<RefusalLog>,
    /// It is closed when the daemon stops, for the thread that waits for refusals.
    pub(super) refusals_end: PipeWriter,
    pub(super) map_senders: MapSenders,
    pub(super) map_receivers: MapReceivers,
    /// Numbers of records from this one on were never given out.
    pub(super) numbers_below: u64,
    pub(super) damage: Option<Arc<state::Damage>>,
}

impl Foundation {
    /// Opens maps and state, and begins the engine with what a former process left.
    pub(super) fn open(config: &Config) -> Result<Self, AppError> {
        let (seed, folder) = (start::seed(), settings::state(config));
        let node = node::name(config)?;
        let (claim, maps, kept) = start::opened(config, &folder)?;
        let (access, kubernetes) = start::cluster(config, &node, seed, kept.as_ref())?;
        let (numbers_below, damage) = start::known_of(kept.as_ref());
        let drains = drains::kept(&config.state.path);
        let (refusals, refusals_end) = maps.refusals()?;
        let (map_senders, map_receivers) = map_ends(&maps);
        let described = start::described(config, &maps, kept.as_ref());
        let sets = start::sets(kept.as_ref());
        let engine = engine(config, (&node, &described, access.as_ref()), maps, (kept, &drains.drains))?;
        Ok(Self {
            node: (node, described),
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

/// The sources that must deliver before anything is removed.
fn sources_of(config: &Config) -> Vec<Source> {
    let manifests = config.manifests.path.is_some().then_some(Source::Manifests);
    let kubernetes = config.kubernetes.enabled.then_some(Source::Kubernetes);
    let imports = kubernetes.filter(|_| config.kubernetes.service_imports).map(|_| Source::ClusterSet);
    [Source::Config].into_iter().chain(manifests).chain(kubernetes).chain(imports).collect()
}
