//! The readings: what each part shows of itself, put together once.
//!
//! Invariant: a reader gets receivers and shared values alone, so it can change nothing.

use std::sync::Arc;

use holdfast_agent::datapath::RefusalLog;
use holdfast_agent::drains;
use holdfast_agent::engine_thread::EngineThread;
use holdfast_agent::readings::{About, EffectiveConfig, Readings, Verifications};
use holdfast_agent::recorder::History;
use holdfast_agent::state::{self};
use holdfast_config::Config;
use holdfast_kubernetes::apiserver::Access;
use holdfast_kubernetes::source::Kubernetes;
use holdfast_standalone::blocks::Read;
use holdfast_status::views::announced::Announced;
use holdfast_status::views::proxies::{Filter, OtherProxy};
use tokio::sync::watch;

use super::foundation::MapReceivers;
use super::{known, none_yet, now, settings};

/// Where parts tell what the readings show.
pub(super) struct ReadingSenders {
    pub(super) effective: watch::Sender<Arc<EffectiveConfig>>,
    pub(super) counting: watch::Sender<Arc<[Arc<Read>]>>,
    pub(super) proxies: watch::Sender<Arc<[OtherProxy]>>,
    pub(super) filters: watch::Sender<Arc<[Filter]>>,
    pub(super) routes: watch::Sender<Arc<Announced>>,
    pub(super) refused: watch::Sender<Option<String>>,
    pub(super) shut: watch::Sender<Vec<String>>,
}

/// The parts that the readings are taken from.
pub(super) struct ReadParts<'a> {
    pub(super) config: &'a Config,
    pub(super) cluster: (Option<&'a Access>, Option<&'a Kubernetes>),
    pub(super) engine: &'a EngineThread,
    pub(super) maps: MapReceivers,
    pub(super) refusals: Arc<RefusalLog>,
    pub(super) history: Arc<History>,
    pub(super) written: watch::Receiver<state::Written>,
    pub(super) drains: watch::Receiver<drains::Written>,
}

impl ReadParts<'_> {
    /// The readings, and where what they show beside these parts is told.
    pub(super) fn read(self) -> (Readings, ReadingSenders) {
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

/// The log of clients that are turned away, which names services by what the engine knows.
fn naming_services(refusals: Arc<RefusalLog>, engine: &EngineThread) -> Arc<RefusalLog> {
    refusals.name_services(engine.snapshots.clone());
    refusals
}
