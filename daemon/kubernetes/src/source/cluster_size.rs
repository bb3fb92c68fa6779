//! Estimates how many nodes may reach an apiserver together with this one, and over how long they should spread.
//!
//! Invariant: spreading costs a small cluster nothing. The count is a guess from objects that tenants write, so it is
//! bounded, and only waits depend on it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::Source;
use holdfast_core::snapshot::{ServiceView, Snapshot};
use tokio::sync::watch;
use tokio::time::Instant;

/// The most nodes that count: Kubernetes is tested with 5,000, and clusters three times as large have been seen.
const NODES_MAX: usize = 15_000;

/// How many nodes may restart their watches per second. Each node has three; each watch costs an apiserver a handshake
/// and two short requests: some milliseconds of CPU per node.
const NODES_WATCHING_PER_SECOND: u32 = 2_000;

/// How many nodes may list per second: a list costs an apiserver as much as dozens of new watches.
const NODES_LISTING_PER_SECOND: u32 = 500;

/// A round visits this many services at equal distances. A round without a new node is the last: a few thousand
/// services name almost all nodes of a cluster.
const SERVICES_PER_ROUND: usize = 1_024;

/// How long a count is reused. A failing watch retries often, and counting walks over endpoints, which blocks the loop.
const COUNT_TTL: Duration = Duration::from_secs(60);

/// Counts the nodes that endpoints name.
#[derive(Clone, Debug)]
pub(super) struct ClusterSize {
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
    cached: Option<(Instant, NodeCount)>,
}

impl ClusterSize {
    /// Counts nodes in these snapshots; without them the count is one.
    pub(super) const fn new(snapshots: Option<watch::Receiver<Arc<Snapshot>>>) -> Self {
        Self { snapshots, cached: None }
    }

    /// The count, at most a minute old. A result without nodes is not kept.
    pub(super) fn node_count(&mut self) -> NodeCount {
        let known = self.cached.filter(|(at, _)| at.elapsed() < COUNT_TTL);
        self.cached = known.or_else(|| Some((Instant::now(), self.count_nodes()?)));
        self.cached.map(|(_, nodes)| nodes).unwrap_or_default()
    }

    /// `None`: no endpoint names a node.
    fn count_nodes(&self) -> Option<NodeCount> {
        let snapshots = self.snapshots.as_ref()?;
        let snapshot = Arc::clone(&snapshots.borrow());
        let mut names = HashSet::new();
        let rounds = (snapshot.services.iter().count() / SERVICES_PER_ROUND).max(1);
        for round in 0..rounds {
            let before = names.len();
            let some = snapshot.services.iter().skip(round).step_by(rounds);
            // Slices of ServiceImports name nodes of other clusters.
            let own = some.filter(|service| service.key.source != Source::ClusterSet);
            own.for_each(|service| add_nodes(service, &mut names));
            if names.len() == before && before > 0 {
                break;
            }
        }
        (!names.is_empty()).then(|| NodeCount::new(names.len()))
    }
}

/// Adds the nodes of a service's endpoints, up to [`NODES_MAX`].
fn add_nodes(service: &ServiceView, names: &mut HashSet<String>) {
    let endpoints = service.slices.iter().flat_map(|slice| slice.endpoints.iter());
    for node in endpoints.filter_map(|endpoint| endpoint.node) {
        if names.len() >= NODES_MAX {
            break;
        }
        names.insert(node.to_string());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NodeCount(u32);

impl Default for NodeCount {
    fn default() -> Self {
        Self(1)
    }
}

impl NodeCount {
    fn new(nodes: usize) -> Self {
        Self(u32::try_from(nodes.clamp(1, NODES_MAX)).unwrap_or(1))
    }

    /// Over how long nodes spread that lost their watches at the same moment.
    pub(super) fn watch_spread(self) -> Duration {
        Duration::from_secs(1) * self.0 / NODES_WATCHING_PER_SECOND
    }

    /// Over how long nodes spread their lists after their versions expired at the same moment.
    pub(super) fn list_spread(self) -> Duration {
        Duration::from_secs(1) * self.0 / NODES_LISTING_PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::engine::Engine;
    use holdfast_core::event::Event;
    use holdfast_core::index::Seed;
    use holdfast_core::keys::Source;
    use holdfast_core::maps::MemoryMaps;
    use holdfast_core::time::ClockReading;
    use holdfast_laws::whole::step_whole;
    use holdfast_laws::worlds::Shape;

    use super::super::backoff::{Backoff, Chance, random_part};
    use super::*;

    const CLIENTS: usize = 10_000;
    const SECOND: Duration = Duration::from_secs(1);

    /// A deterministic xorshift.
    struct Chances(u64);

    impl Chances {
        fn next(&mut self) -> Chance {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            u32::try_from(self.0 >> 32).unwrap()
        }
    }

    /// When each node reaches a server that was away for so long, counted from its return.
    fn arrivals(nodes: NodeCount, away: Duration) -> Vec<Duration> {
        let mut chances = Chances(0x9e37_79b9_7f4a_7c15);
        let client = |_| {
            let (mut pace, mut at, mut lived) = (Backoff::default(), Duration::ZERO, Duration::from_secs(60));
            loop {
                at += pace.next_wait(lived, None, nodes.watch_spread(), chances.next());
                if at >= away {
                    return at - away;
                }
                lived = Duration::ZERO;
            }
        };
        (0..CLIENTS).map(client).collect()
    }

    /// The largest share that comes within a second, in percent.
    fn worst_second(mut arrivals: Vec<Duration>) -> usize {
        arrivals.sort();
        let within = |(at, from): (usize, &Duration)| {
            arrivals[at..].iter().take_while(|it| **it < *from + SECOND).count()
        };
        arrivals.iter().enumerate().map(within).max().unwrap() * 100 / CLIENTS
    }

    #[track_caller]
    fn check(what: &str, arrivals: Vec<Duration>, worst_most: usize, last_most: Duration) {
        let last = *arrivals.iter().max().unwrap();
        let worst = worst_second(arrivals);
        println!("{what}: {worst} % of {CLIENTS} in the worst second, the last one after {last:?}");
        assert!(worst <= worst_most && last <= last_most, "{what}: {worst} %, {last:?}");
    }

    #[test]
    fn ten_thousand_nodes_that_lose_an_apiserver_spread_over_seconds() {
        let nodes = NodeCount::new(CLIENTS);
        for away in [0, 1, 3, 4, 5, 10, 60, 600] {
            let what = format!("away for {away} s");
            check(&what, arrivals(nodes, away * SECOND), 30, Duration::from_secs(13));
        }
    }

    #[test]
    fn ten_thousand_nodes_with_expired_versions_spread_their_lists() {
        let (nodes, mut chances) = (NodeCount::new(CLIENTS), Chances(1));
        let lists = arrivals(nodes, 10 * SECOND)
            .into_iter()
            .map(|at| at + random_part(nodes.list_spread(), chances.next()));
        check("lists", lists.collect(), 7, Duration::from_secs(33));
    }

    #[test]
    fn a_small_cluster_waits_as_one_node_does() {
        let last = arrivals(NodeCount::new(20), Duration::ZERO).into_iter().max().unwrap();
        assert!(last <= Duration::from_millis(110), "{last:?}");
        assert_eq!(NodeCount::new(0), NodeCount::new(1));
    }

    fn snapshot(services: u32, endpoints: u32) -> Arc<Snapshot> {
        let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(1), &[Source::Kubernetes]).unwrap();
        Shape { services, endpoints }.events().into_iter().for_each(|event| engine.apply(event));
        engine.apply(Event::Synced(Source::Kubernetes));
        step_whole(&mut engine, ClockReading::default(), &mut drop)
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_are_counted_once_a_minute() {
        let (snapshots, seen) = watch::channel(snapshot(1, 1));
        let mut crowd = ClusterSize::new(Some(seen));
        assert_eq!(crowd.node_count(), NodeCount(1));
        snapshots.send_replace(snapshot(9, 9));
        let (now, later) = (NodeCount(1), ClusterSize::new(Some(snapshots.subscribe())).node_count());
        assert_ne!(later, now, "there is more than one node in it");
        for (seconds, expected) in [(59, now), (2, later)] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            assert_eq!(crowd.node_count(), expected);
        }
    }

    /// Walking over all endpoints would delay a start.
    #[test]
    fn rounds_over_some_services_find_all_nodes() {
        let snapshot = snapshot(5_000, 9);
        let mut all = HashSet::new();
        snapshot.services.iter().for_each(|service| add_nodes(service, &mut all));
        let (_snapshots, seen) = watch::channel(snapshot);
        assert_eq!(ClusterSize::new(Some(seen)).node_count(), NodeCount::new(all.len()));
    }

    #[test]
    fn a_snapshot_without_nodes_is_counted_again_at_once() {
        let (snapshots, seen) = watch::channel(Arc::new(Snapshot::default()));
        let mut crowd = ClusterSize::new(Some(seen));
        assert_eq!(crowd.node_count(), NodeCount(1));
        snapshots.send_replace(snapshot(9, 0));
        assert_eq!(crowd.node_count(), NodeCount(1));
        snapshots.send_replace(snapshot(9, 9));
        assert_ne!(crowd.node_count(), NodeCount(1));
    }

    #[test]
    fn many_node_names_of_tenants_delay_no_node_for_long() {
        let nodes = NodeCount::new(usize::MAX);
        assert_eq!((nodes.watch_spread(), nodes.list_spread()), (Duration::from_millis(7_500), 30 * SECOND));
    }
}
