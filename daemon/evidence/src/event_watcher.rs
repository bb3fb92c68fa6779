//! Watches the cluster's Events on one node or a few, for the journal and the metrics.
//!
//! Invariant: any client with the right may write an Event, and its text is foreign. Events are recognised, counted and
//! shown, and trigger nothing. A client that writes many fills neither the journal nor memory, and no watch of objects
//! waits for a watch of Events.

mod balancer_causes;
mod event_counters;
mod topic_watch;

use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::knowledge::{self, Editions};
use holdfast_config::{Config, EventsRead};
use holdfast_kubernetes::apiserver::Access;

pub use event_counters::EventCounters;

/// This node's view of the cluster's Events, for the parts that show it.
#[derive(Clone, Debug)]
pub struct EventStatus {
    pub counters: Arc<EventCounters>,
    pub editions: Editions,
}

impl EventStatus {
    /// A status without any Event; these editions recognise Events.
    pub fn new(editions: Editions) -> Self {
        Self { counters: Arc::new(EventCounters::new(editions.clone())), editions }
    }
}

/// Recognises Events by the built-in knowledge alone.
impl Default for EventStatus {
    fn default() -> Self {
        Self::new(knowledge::built_in())
    }
}

/// Events that share a watch. An apiserver does not cache Events, so each topic costs it a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Topic {
    /// Its name in the metrics.
    name: &'static str,
    fields: &'static str,
    /// Whether only Events of this node's kubelet count.
    own_node_only: bool,
}

const TOPICS: [Topic; 7] = [
    Topic { name: "services", fields: "involvedObject.kind=Service", own_node_only: false },
    Topic { name: "endpoints", fields: "involvedObject.kind=Endpoints", own_node_only: false },
    Topic { name: "nodes", fields: "involvedObject.kind=Node", own_node_only: false },
    pod_topic("pods-sandbox", "involvedObject.kind=Pod,reason=FailedCreatePodSandBox"),
    pod_topic("pods-network", "involvedObject.kind=Pod,reason=NetworkNotReady"),
    pod_topic("pods-dns", "involvedObject.kind=Pod,reason=DNSConfigForming"),
    pod_topic("pods-ports", "involvedObject.kind=Pod,reason=NodePorts"),
];

const fn pod_topic(name: &'static str, fields: &'static str) -> Topic {
    Topic { name, fields, own_node_only: true }
}

/// Watches Events while the configuration enables it. Returns when the configuration's sender is gone.
pub async fn run(
    mut config: watch::Receiver<Arc<Config>>,
    access: Access,
    node: Arc<str>,
    counters: Arc<EventCounters>,
) {
    let mut editions = counters.editions();
    loop {
        let is_on = is_enabled(&config);
        counters.set_enabled(is_on);
        // Dropping this set ends the watches.
        let mut watches = JoinSet::new();
        if is_on {
            for topic in TOPICS {
                let access = access.clone();
                let node = Arc::clone(&node);
                watches.spawn(topic_watch::watch_topic(access, node, topic, Arc::clone(&counters)));
            }
        }
        while is_enabled(&config) == is_on {
            tokio::select! {
                changed = config.changed() => if changed.is_err() { return },
                Ok(()) = editions.changed() => counters.reload_series(),
            }
        }
    }
}

fn is_enabled(config: &watch::Receiver<Arc<Config>>) -> bool {
    config.borrow().kubernetes.events_read == EventsRead::Watch
}
