//! Events of the cluster as they come, for one node or a few: into the journal and the metrics.
//!
//! Invariant: an Event is the text of any client that may write one. It is recognised, counted and shown, and nothing
//! is done because of it. A client that writes many fills neither the journal nor memory, and no watch of objects waits
//! for a watch of Events.

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

/// What this node knows of the cluster's Events, for the parts that show it.
#[derive(Clone, Debug)]
pub struct EventStatus {
    /// What the Events said that were followed.
    pub counters: Arc<EventCounters>,
    /// The editions by which Events are recognised.
    pub editions: Editions,
}

impl EventStatus {
    /// Nothing has been followed yet; Events are recognised by these editions.
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

/// Events that are followed together. An apiserver keeps no cache of Events, so each topic costs it a watch of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Topic {
    /// As it is spelled in the metrics.
    name: &'static str,
    fields: &'static str,
    /// Whether only Events count that this node's kubelet wrote.
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

/// Follows while the configuration asks for it, until the configuration's sender is gone.
pub async fn run(
    mut config: watch::Receiver<Arc<Config>>,
    access: Access,
    node: Arc<str>,
    overheard: Arc<EventCounters>,
) {
    let mut editions = overheard.editions();
    loop {
        let is_on = is_enabled(&config);
        overheard.set_enabled(is_on);
        // The watches end when this set is dropped.
        let mut following = JoinSet::new();
        if is_on {
            for topic in TOPICS {
                let access = access.clone();
                let node = Arc::clone(&node);
                following.spawn(topic_watch::watch_topic(access, node, topic, Arc::clone(&overheard)));
            }
        }
        while is_enabled(&config) == is_on {
            tokio::select! {
                changed = config.changed() => if changed.is_err() { return },
                Ok(()) = editions.changed() => overheard.reload_series(),
            }
        }
    }
}

fn is_enabled(config: &watch::Receiver<Arc<Config>>) -> bool {
    config.borrow().kubernetes.events_read == EventsRead::Watch
}
