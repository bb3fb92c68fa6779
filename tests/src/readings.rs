//! The inputs of an admin API that serves only snapshots: maps in memory, no apiserver, an engine that never stalls.

use std::sync::Arc;

use holdfast_agent::datapath::RefusalLog;
use holdfast_agent::drains;
use holdfast_agent::readings::{About, EffectiveConfig, Liveness, NodeFiles, Readings, Verifications};
use holdfast_agent::state::SnapshotWrite;
use holdfast_api::RequestSenders;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::LiveMaps;
use holdfast_evidence::diagnose::gather::Gatherer;
use holdfast_kubernetes::source::View;
use holdfast_status::views::datapath::DatapathView;
use tokio::sync::{mpsc, watch};

/// Readings of these snapshots and of nothing else.
pub fn from_snapshots(snapshots: watch::Receiver<Arc<Snapshot>>, about: About) -> Readings {
    let config = EffectiveConfig { text: String::new(), json: "{}".to_owned() };
    Readings {
        snapshots,
        config: watch::channel(Arc::new(config)).1,
        datapath: watch::channel(Arc::new(DatapathView::for_memory())).1,
        live_maps: watch::channel(LiveMaps::default()).1,
        apiserver: None,
        watches: View::default(),
        refusals: RefusalLog::none(),
        probes: Arc::default(),
        checks: Arc::default(),
        names: Arc::default(),
        more_services: watch::channel(Arc::default()).1,
        announced: None,
        history: Arc::default(),
        last_write: watch::channel(SnapshotWrite::default()).1,
        engine: holdfast_agent::engine::query::channel().0,
        verifications: Verifications::default(),
        liveness: Liveness::new(|| None),
        proxies: watch::channel(Arc::default()).1,
        filters: watch::channel(Arc::default()).1,
        routes: watch::channel(Arc::default()).1,
        refused_reload: watch::channel(None).1,
        closed_listeners: watch::channel(Vec::new()).1,
        node_port_listeners: watch::channel(Arc::default()).1,
        kept_failures: watch::channel(Arc::default()).1,
        drains: watch::channel(drains::DrainsWrite::default()).1,
        closed_ports: Arc::default(),
        files: NodeFiles::default(),
        about,
        clock: holdfast_host::clock::now,
    }
}

/// Request senders without an apiserver; requests to reload or to forget an address reach no receiver.
pub fn acts() -> RequestSenders {
    RequestSenders {
        gatherer: Gatherer::new(None, "node-1".into(), watch::channel(Arc::default()).1),
        reloads: mpsc::channel(1).0,
        forgets: mpsc::channel(1).0,
        drains: mpsc::channel(1).0,
    }
}
