//! Builds the sources from the configuration, and starts them once the engine runs.
//!
//! Invariant: each source sends the engine events through the one queue, and depends on no other source.

use std::sync::Arc;

use holdfast_agent::readings::Readings;
use holdfast_agent::{listeners, node};
use holdfast_config::{Config, NodeName};
use holdfast_kubernetes::apiserver::Access;
use holdfast_kubernetes::own_node;
use holdfast_kubernetes::source::Kubernetes;
use holdfast_standalone::blocks::{
    self, Blocks, BlocksFolder, FolderNews, NameChannels, ParsedBlock, SavedSets,
};
use holdfast_standalone::manifests::Manifests;
use holdfast_standalone::names::{self, NameTable};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use super::{Reload, settings};

pub(super) struct Sources {
    manifests: Option<Manifests>,
    kubernetes: Option<Kubernetes>,
    blocks: watch::Receiver<Arc<Blocks>>,
    /// The folder of further blocks, its path, and where the active blocks go.
    folder: Option<(BlocksFolder, Arc<str>)>,
    active_blocks: watch::Sender<Arc<[Arc<ParsedBlock>]>>,
    /// The saved backends of the configuration's services.
    restored_sets: SavedSets,
}

/// The channels by which other modules receive the blocks and report the active ones.
pub(super) type BlocksChannels = (watch::Receiver<Arc<Blocks>>, watch::Sender<Arc<[Arc<ParsedBlock>]>>);

impl Sources {
    pub(super) fn new(
        config: &Config,
        kubernetes: Option<Kubernetes>,
        (blocks, counting): BlocksChannels,
        kept: SavedSets,
    ) -> Self {
        let manifests = config.manifests.path.as_deref().map(Manifests::new);
        Self {
            manifests,
            kubernetes,
            blocks,
            folder: settings::blocks_folder(config),
            active_blocks: counting,
            restored_sets: kept,
        }
    }

    /// Starts all of them, and the task that sends the node's state to the engine.
    pub(super) fn start(
        self,
        tasks: &mut JoinSet<()>,
        ends: SourceContext<'_>,
        node: (NodeName, own_node::NodeDescription),
    ) {
        let Self { manifests, kubernetes, blocks, folder, active_blocks: counting, restored_sets: kept } =
            self;
        let SourceContext { reload, readings, seed, stopping } = ends;
        let events = reload.events.clone();
        let (nodes, nodes_told) = mpsc::channel(1);
        tasks.spawn(node::run(reload.config.subscribe(), node.0, node.1, nodes_told, events.clone()));
        let named = start_resolver(tasks, Arc::clone(&readings.names), kept, seed);
        let led = reload.access.as_ref().map_or_else(|| watch::channel(None).1, Access::vip_target);
        let folder = folder.map(|(folder, path)| (path, watch_folder(tasks, folder, &stopping), counting));
        let checking = (seed, Arc::clone(&readings.checks));
        let datapath = readings.datapath.clone();
        tasks.spawn(blocks::run(blocks, led, (folder, Some(named)), events.clone(), datapath, checking));
        if let Some(kubernetes) = kubernetes {
            tasks.spawn(listeners::run(readings.snapshots.clone(), events.clone()));
            let kubernetes = kubernetes.with_snapshots(readings.snapshots.clone());
            tasks.spawn(kubernetes.run(events.clone(), nodes));
        }
        if let Some(manifests) = manifests.map(|it| it.with_snapshots(readings.snapshots.clone())) {
            tasks.spawn(run_folder(manifests.run(events, stopping), "manifests"));
        }
    }
}

/// What the sources use of the rest of the daemon.
pub(super) struct SourceContext<'a> {
    pub(super) reload: &'a Reload,
    pub(super) readings: &'a Readings,
    pub(super) seed: u64,
    pub(super) stopping: watch::Receiver<bool>,
}

/// Starts to resolve the backends that have names.
fn start_resolver(tasks: &mut JoinSet<()>, seen: Arc<NameTable>, sets: SavedSets, seed: u64) -> NameChannels {
    let (queries, wishes) = watch::channel(Arc::default());
    let (news_out, news) = mpsc::channel(1);
    tasks.spawn(names::run(wishes, news_out, seen, seed));
    NameChannels { queries, news, saved: sets }
}

/// Follows the folder of further blocks, and returns its table of files.
fn watch_folder(
    tasks: &mut JoinSet<()>,
    folder: BlocksFolder,
    stopping: &watch::Receiver<bool>,
) -> mpsc::Receiver<Vec<FolderNews>> {
    let (news, received) = mpsc::channel(1);
    tasks.spawn(run_folder(folder.run(news, stopping.clone()), "files of services"));
    received
}

/// Follows a folder until the daemon stops.
async fn run_folder(folder: impl Future<Output = Result<(), JoinError>>, named: &'static str) {
    if let Err(error) = folder.await {
        tracing::error!(%error, "the {named} are no longer read");
    }
}
