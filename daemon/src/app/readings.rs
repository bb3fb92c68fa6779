//! Assembles the readings from each part's published state.
//!
//! Invariant: a reader gets only receivers and shared values, so it can change nothing.

use std::path::Path;
use std::sync::Arc;

use holdfast_agent::datapath::RefusalLog;
use holdfast_agent::drains;
use holdfast_agent::engine_thread::EngineThread;
use holdfast_agent::node_port_listeners::NodePortListeners;
use holdfast_agent::readings::{About, EffectiveConfig, NodeFiles, Readings, RefusedReload, Verifications};
use holdfast_agent::recorder::History;
use holdfast_agent::state::{self};
use holdfast_config::Config;
use holdfast_kubernetes::apiserver::Access;
use holdfast_kubernetes::source::Kubernetes;
use holdfast_standalone::blocks::ParsedBlock;
use holdfast_status::views::announcements::AnnouncementStatus;
use holdfast_status::views::proxies::{Filter, OtherProxy};
use tokio::sync::watch;

use super::foundation::MapReceivers;
use super::{default_channel, now, settings, watch_channel};

/// Where parts publish the state that the readings show.
pub(super) struct ReadingSenders {
    pub(super) effective: watch::Sender<Arc<EffectiveConfig>>,
    pub(super) active_blocks: watch::Sender<Arc<[Arc<ParsedBlock>]>>,
    pub(super) proxies: watch::Sender<Arc<[OtherProxy]>>,
    pub(super) filters: watch::Sender<Arc<[Filter]>>,
    pub(super) routes: watch::Sender<Arc<AnnouncementStatus>>,
    pub(super) reload_refusal: watch::Sender<Option<RefusedReload>>,
    pub(super) closed_listeners: watch::Sender<Vec<String>>,
    pub(super) node_port_listeners: watch::Sender<NodePortListeners>,
}

pub(super) struct ReadingParts<'a> {
    /// The file and its content.
    pub(super) config: (&'a Path, &'a Config),
    pub(super) cluster: (Option<&'a Access>, Option<&'a Kubernetes>),
    pub(super) engine: &'a EngineThread,
    pub(super) maps: MapReceivers,
    pub(super) refusals: Arc<RefusalLog>,
    pub(super) history: Arc<History>,
    pub(super) last_write: watch::Receiver<state::SnapshotWrite>,
    pub(super) drains: watch::Receiver<drains::DrainsWrite>,
}

impl ReadingParts<'_> {
    /// The readings, and the senders for the rest of their state.
    pub(super) fn into_readings(self) -> (Readings, ReadingSenders) {
        let ((datapath, live_maps), (access, kubernetes)) = (self.maps, self.cluster);
        let (effective, effective_now) = watch_channel(settings::effective_config(self.config.1));
        let (counting, more_services) = default_channel();
        let ((proxies, proxies_now), (filters, filters_now)) = (default_channel(), default_channel());
        let (routes, routes_now) = default_channel();
        let (refused, refused_reload) = default_channel();
        let (shut, shut_now) = default_channel();
        let (at_node_ports, at_node_ports_now) = default_channel();
        let readings = Readings {
            snapshots: self.engine.snapshots.clone(),
            config: effective_now,
            datapath,
            live_maps,
            apiserver: access.map(Access::views),
            watches: kubernetes.map(Kubernetes::view).unwrap_or_default(),
            refusals: with_service_names(self.refusals, self.engine),
            probes: Arc::default(),
            checks: Arc::default(),
            names: Arc::default(),
            more_services,
            announced: self.config.1.kubernetes.events.then(Arc::default),
            history: self.history,
            last_write: self.last_write,
            engine: self.engine.client.clone(),
            verifications: Verifications::default(),
            liveness: self.engine.liveness(),
            proxies: proxies_now,
            filters: filters_now,
            routes: routes_now,
            refused_reload,
            closed_listeners: shut_now,
            node_port_listeners: at_node_ports_now,
            drains: self.drains,
            closed_ports: Arc::default(),
            files: node_files(self.config),
            about: About { version: env!("CARGO_PKG_VERSION"), started: now() },
            clock: holdfast_host::clock::now,
        };
        let senders = ReadingSenders {
            effective,
            active_blocks: counting,
            proxies,
            filters,
            routes,
            reload_refusal: refused,
            closed_listeners: shut,
            node_port_listeners: at_node_ports,
        };
        (readings, senders)
    }
}

/// Where the files are, as seen from any folder.
fn node_files((file, config): (&Path, &Config)) -> NodeFiles {
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    NodeFiles { config: absolute, state: config.state.path.clone() }
}

/// The log of denied clients, which gets the services' names from the engine.
fn with_service_names(refusals: Arc<RefusalLog>, engine: &EngineThread) -> Arc<RefusalLog> {
    refusals.name_services(engine.snapshots.clone());
    refusals
}
