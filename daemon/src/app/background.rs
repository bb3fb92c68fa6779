//! The tasks that run besides the engine and the sources.
//!
//! Invariant: the maps serve clients without any of these tasks.

use std::sync::Arc;

use holdfast_agent::devices;
use holdfast_agent::node_port_listeners::{self, NodePortListeners};
use holdfast_agent::proxies::netfilter_rules::{self, observers};
use holdfast_agent::readings::Readings;
use holdfast_agent::{failing_backends, host_routes, kube_proxy, probes, proxies, rejections, systemd};
use holdfast_config::{Config, DatapathKind, Mark, NodeName};
use holdfast_evidence::event_watcher::{self, EventStatus};
use holdfast_kubernetes::{event_recorder, pod_lookup};
use holdfast_status::datapath::KeptFailures;
use holdfast_status::views::announcements::AnnouncementStatus;
use holdfast_status::views::proxies::{Filter, OtherProxy};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::client_requests::{ClientRequests, DrainOrders};
use super::{DeviceSenders, Reload};

/// Probes, Events, kube-proxy's ports, the service manager, devices, the search for other proxies, and clients'
/// requests.
pub(super) struct BackgroundTasks {
    pub(super) readings: Readings,
    pub(super) events: EventStatus,
    pub(super) proxies: watch::Sender<Arc<[OtherProxy]>>,
    pub(super) devices: DeviceSenders,
    pub(super) filters: watch::Sender<Arc<[Filter]>>,
    pub(super) routes: watch::Sender<Arc<AnnouncementStatus>>,
    pub(super) observed: ObservationSenders,
    pub(super) requests: ClientRequests,
    pub(super) drain_orders: DrainOrders,
}

impl BackgroundTasks {
    /// Starts all of these parts, and returns the requests, which another task serves.
    pub(super) fn start(
        self,
        tasks: &mut JoinSet<()>,
        reload: &Reload,
        node: &NodeName,
        stopping: watch::Receiver<bool>,
    ) -> ClientRequests {
        let Readings { snapshots, probes, announced, .. } = self.readings.clone();
        let config = reload.config.subscribe();
        let events = reload.events.clone();
        let engine = self.readings.engine.clone();
        self.readings.refusals.name_services(snapshots.clone());
        tasks.spawn(self.drain_orders.run(events.clone()));
        tasks.spawn(probes::run(snapshots.clone(), config, events, probes));
        spawn_observers(tasks, &self.readings, self.observed);
        if let (Some(access), Some(announced)) = (reload.access.clone(), announced) {
            tasks.spawn(event_recorder::run(snapshots, access, node.as_str().into(), announced));
        }
        if let Some(access) = reload.access.clone() {
            tasks.spawn(pod_lookup::run(
                self.readings.snapshots.clone(),
                access.clone(),
                reload.events.clone(),
            ));
            let config = reload.config.subscribe();
            let overheard = Arc::clone(&self.events.counters);
            tasks.spawn(event_watcher::run(config, access, node.as_str().into(), overheard));
        }
        let in_force = reload.config.subscribe();
        let ports = in_force.borrow().kube_proxy;
        let closed = Arc::clone(&self.readings.closed_ports);
        tasks.spawn(kube_proxy::run(in_force, self.readings.clone()));
        let config = reload.config.subscribe();
        if config.borrow().datapath.kind == DatapathKind::Kernel {
            tasks.spawn(host_routes::run(config, self.readings.clone(), self.routes));
        }
        let proxies = self.proxies.subscribe();
        tasks.spawn(proxies::run(self.proxies, move || closed.own_metrics_port(ports)));
        let snapshots = self.readings.snapshots.clone();
        let live_maps = self.readings.live_maps.clone();
        let watched = systemd::StatusInput { readings: self.readings, logging: Arc::clone(&reload.logging) };
        tasks.spawn(systemd::run(watched, stopping));
        let config = reload.config.subscribe();
        if translates_packets(&config.borrow()) {
            let (seen, looked) = watch::channel(observers::initial_observers());
            tasks.spawn(observers::run(seen));
            let (decisions, looks) = self.devices;
            tasks.spawn(devices::drivers::run(config.clone(), looks, engine.clone()));
            tasks.spawn(devices::run(config.clone(), (looked, proxies), (decisions, live_maps), engine));
            let accepted = config.borrow().packets.forward_mark.map_or(0, Mark::bit);
            tasks.spawn(netfilter_rules::run(self.filters, snapshots, accepted));
        }
        self.requests
    }
}

/// Where processes at node ports are published, and failures that no client has shown to be over.
pub(super) type ObservationSenders = (watch::Sender<NodePortListeners>, watch::Sender<Arc<KeptFailures>>);

/// Starts what watches objects, ports and backends for people.
fn spawn_observers(tasks: &mut JoinSet<()>, readings: &Readings, (ports, kept): ObservationSenders) {
    tasks.spawn(rejections::run(readings.snapshots.clone()));
    tasks.spawn(node_port_listeners::run(readings.snapshots.clone(), ports));
    tasks.spawn(failing_backends::run(readings.clone(), kept));
}

/// Whether packets are translated; devices matter only then.
fn translates_packets(config: &Config) -> bool {
    config.packets.enabled && config.datapath.kind == DatapathKind::Kernel
}
