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
use holdfast_status::datapath::KeptFailures;
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
    pub(super) kept_failures: watch::Sender<Arc<KeptFailures>>,
}

/// Where the readings see that state.
struct ReadingReceivers {
    effective: watch::Receiver<Arc<EffectiveConfig>>,
    active_blocks: watch::Receiver<Arc<[Arc<ParsedBlock>]>>,
    proxies: watch::Receiver<Arc<[OtherProxy]>>,
    filters: watch::Receiver<Arc<[Filter]>>,
    routes: watch::Receiver<Arc<AnnouncementStatus>>,
    reload_refusal: watch::Receiver<Option<RefusedReload>>,
    closed_listeners: watch::Receiver<Vec<String>>,
    node_port_listeners: watch::Receiver<NodePortListeners>,
    kept_failures: watch::Receiver<Arc<KeptFailures>>,
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

fn open_channels(config: &Config) -> (ReadingSenders, ReadingReceivers) {
    let (effective, effective_now) = watch_channel(settings::effective_config(config));
    let (active_blocks, active_blocks_now) = default_channel();
    let ((proxies, proxies_now), (filters, filters_now)) = (default_channel(), default_channel());
    let (routes, routes_now) = default_channel();
    let (reload_refusal, reload_refusal_now) = default_channel();
    let (closed_listeners, closed_listeners_now) = default_channel();
    let (node_port_listeners, node_port_listeners_now) = default_channel();
    let (kept_failures, kept_failures_now) = default_channel();
    let senders = ReadingSenders {
        effective,
        active_blocks,
        proxies,
        filters,
        routes,
        reload_refusal,
        closed_listeners,
        node_port_listeners,
        kept_failures,
    };
    let receivers = ReadingReceivers {
        effective: effective_now,
        active_blocks: active_blocks_now,
        proxies: proxies_now,
        filters: filters_now,
        routes: routes_now,
        reload_refusal: reload_refusal_now,
        closed_listeners: closed_listeners_now,
        node_port_listeners: node_port_listeners_now,
        kept_failures: kept_failures_now,
    };
    (senders, receivers)
}

/// The readings, and the senders for the rest of their state.
pub(super) fn build_readings(parts: ReadingParts<'_>) -> (Readings, ReadingSenders) {
    let ((datapath, live_maps), (access, kubernetes)) = (parts.maps, parts.cluster);
    let (senders, shown) = open_channels(parts.config.1);
    let readings = Readings {
        snapshots: parts.engine.snapshots.clone(),
        config: shown.effective,
        datapath,
        live_maps,
        apiserver: access.map(Access::views),
        watches: kubernetes.map(Kubernetes::view).unwrap_or_default(),
        refusals: with_service_names(parts.refusals, parts.engine),
        probes: Arc::default(),
        checks: Arc::default(),
        names: Arc::default(),
        more_services: shown.active_blocks,
        announced: parts.config.1.kubernetes.events.then(Arc::default),
        history: parts.history,
        last_write: parts.last_write,
        engine: parts.engine.client.clone(),
        verifications: Verifications::default(),
        liveness: parts.engine.liveness(),
        proxies: shown.proxies,
        filters: shown.filters,
        routes: shown.routes,
        refused_reload: shown.reload_refusal,
        closed_listeners: shown.closed_listeners,
        node_port_listeners: shown.node_port_listeners,
        kept_failures: shown.kept_failures,
        drains: parts.drains,
        closed_ports: Arc::default(),
        files: node_files(parts.config),
        about: About { version: env!("CARGO_PKG_VERSION"), started: now() },
        clock: holdfast_host::clock::now,
    };
    (readings, senders)
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
