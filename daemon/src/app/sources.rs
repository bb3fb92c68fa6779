//! The sources: made from the configuration, and started when the engine runs.
//!
//! Invariant: each source tells the engine by the one queue of events, and knows no other source.

use std::sync::Arc;

use holdfast_agent::readings::Readings;
use holdfast_agent::{listeners, node};
use holdfast_config::{Config, NodeName};
use holdfast_kubernetes::apiserver::Access;
use holdfast_kubernetes::own_node;
use holdfast_kubernetes::source::Kubernetes;
use holdfast_standalone::blocks::{self, Blocks, BlocksFolder, FolderNews, NamesEnds, Read, Sets};
use holdfast_standalone::manifests::Manifests;
use holdfast_standalone::names::{self, Names};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

use super::{Reload, settings};

/// The sources, before they run.
pub(super) struct Sources {
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
pub(super) type BlocksEnds = (watch::Receiver<Arc<Blocks>>, watch::Sender<Arc<[Arc<Read>]>>);

impl Sources {
    pub(super) fn new(
        config: &Config,
        kubernetes: Option<Kubernetes>,
        (blocks, counting): BlocksEnds,
        kept: Sets,
    ) -> Self {
        let manifests = config.manifests.path.as_deref().map(Manifests::new);
        Self { manifests, kubernetes, blocks, folder: settings::folder(config), counting, kept }
    }

    /// Starts all of them, and the task that tells the engine of the node.
    pub(super) fn start(
        self,
        tasks: &mut JoinSet<()>,
        ends: SourceEnds<'_>,
        node: (NodeName, own_node::Described),
    ) {
        let Self { manifests, kubernetes, blocks, folder, counting, kept } = self;
        let SourceEnds { reload, readings, seed, stopping } = ends;
        let events = reload.events.clone();
        let (nodes, nodes_told) = mpsc::channel(1);
        tasks.spawn(node::run(reload.config.subscribe(), node.0, node.1, nodes_told, events.clone()));
        let named = resolving(tasks, Arc::clone(&readings.names), kept, seed);
        let led = reload.access.as_ref().map_or_else(|| watch::channel(None).1, Access::led);
        let folder = folder.map(|(folder, path)| (path, told_by(tasks, folder, &stopping), counting));
        let checking = (seed, Arc::clone(&readings.checks));
        let datapath = readings.datapath.clone();
        tasks.spawn(blocks::run(blocks, led, (folder, Some(named)), events.clone(), datapath, checking));
        if let Some(kubernetes) = kubernetes {
            tasks.spawn(listeners::run(readings.snapshots.clone(), events.clone()));
            let kubernetes = kubernetes.heeding(readings.snapshots.clone());
            tasks.spawn(kubernetes.run(events.clone(), nodes));
        }
        if let Some(manifests) = manifests.map(|it| it.heeding(readings.snapshots.clone())) {
            tasks.spawn(follow(manifests.run(events, stopping), "manifests"));
        }
    }
}

/// What the sources need of the rest of the daemon.
pub(super) struct SourceEnds<'a> {
    pub(super) reload: &'a Reload,
    pub(super) readings: &'a Readings,
    pub(super) seed: u64,
    pub(super) stopping: watch::Receiver<bool>,
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

/// Follows a folder until it is told to stop.
async fn follow(folder: impl Future<Output = Result<(), JoinError>>, named: &'static str) {
    if let Err(error) = folder.await {
        tracing::error!(%error, "the {named} are no longer read");
    }
}
