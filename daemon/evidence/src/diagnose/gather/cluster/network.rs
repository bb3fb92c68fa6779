//! The slices of a Service, its Events, and what both depend on: controllers and nodes.
//!
//! Invariant: nodes are found by the checked names in slices. A node that its label does not find is queried by name
//! before it counts as gone. Only a few are; the others are listed as not queried, and nothing else is said of them.

use std::collections::BTreeSet;

use holdfast_diagnose::evidence::{Lease, Lookup, ObservedNode, ObservedSlice, ReceivedEvents};
use holdfast_diagnose::limits::PAGES_MAX;
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::api_query::{ApiQuery, ListFormat, QuerySession};
use super::event_cache::EventReader;
use super::paths::PathSegment;
use super::{ServiceNames, ServiceSubject, objects, paths, rbac_right};
use crate::diagnose::limits::{ENDPOINTS_MAX, NODES_BY_NAME_MAX, NODES_MAX};

#[derive(Debug, Default)]
pub(super) struct NetworkAnswers {
    pub(super) slices: Lookup<Vec<ObservedSlice>>,
    pub(super) events: ReceivedEvents,
    pub(super) leases: Lookup<Vec<Lease>>,
    pub(super) nodes: Lookup<Vec<ObservedNode>>,
    /// Nodes that no label names and that were not queried by name.
    pub(super) nodes_unasked: Vec<String>,
}

/// The query wants the Events of objects of these kinds: a Deployment may have the Service's name, too.
pub(super) const EVENT_KINDS: [&str; 3] = ["Service", "Endpoints", "EndpointSlice"];

pub(super) async fn query_network(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    names: ServiceNames<'_>,
    subject: ServiceSubject<'_>,
) -> NetworkAnswers {
    let slices = query_slices(lane, names).await;
    let fields = [("involvedObject.name", names.service.as_str())];
    let events = reading.query(lane, "events", names.namespace, &fields, PAGES_MAX).await;
    let events = events.filter_events(|event| EVENT_KINDS.contains(&event.object.kind.as_str()));
    let leases = query_leases(lane, subject.awaits_balancer()).await;
    let wanted = node_names(&slices, subject);
    let wanted: Vec<PathSegment<'_>> = wanted.iter().filter_map(|name| PathSegment::new(name)).collect();
    let nodes = query_nodes(lane, &wanted).await;
    let nodes_unasked = list_unqueried(&nodes, &wanted);
    let node_events = match first_unready_node(&nodes) {
        Some(name) => query_node_events(lane, reading, name).await,
        None => ReceivedEvents::default(),
    };
    NetworkAnswers { slices, events: events.merge(node_events), leases, nodes, nodes_unasked }
}

async fn query_slices(lane: &mut QuerySession<'_>, names: ServiceNames<'_>) -> Lookup<Vec<ObservedSlice>> {
    let path = paths::slices(names.service, names.namespace);
    let question =
        names.namespaced_query("slices", path, rbac_right("discovery.k8s.io", "endpointslices", "list"));
    let mut list = Vec::new();
    let mut endpoints = 0;
    let lookup = lane.list(&question, ListFormat::for_kind("EndpointSliceList"), |object| {
        let read = serde_json::from_slice::<EndpointSlice>(object).map(objects::to_slice);
        let is_read = read.is_ok();
        endpoints += read.as_ref().map_or(0, |slice| slice.endpoints.len());
        list.extend(read.ok().filter(|_| endpoints <= ENDPOINTS_MAX));
        is_read && endpoints <= ENDPOINTS_MAX
    });
    match lookup.await {
        // Slices are compared with those of this node, which needs all of them.
        Lookup::Answered(listing) if listing.more => {
            Lookup::Failed("it has more slices than are read, or one that cannot be read".into())
        }
        lookup => lookup.map(|_| list),
    }
}

/// The leases of the controllers that the service depends on. Some may run elsewhere.
async fn query_leases(lane: &mut QuerySession<'_>, awaits_balancer: bool) -> Lookup<Vec<Lease>> {
    let controllers = ["kube-controller-manager", "cloud-controller-manager"];
    let mut found = Vec::new();
    for controller in controllers.into_iter().take(if awaits_balancer { 2 } else { 1 }) {
        let mut right = rbac_right("coordination.k8s.io", "leases", "get");
        right.namespace = Some("kube-system".into());
        let question = ApiQuery { name: "lease", path: paths::lease(controller), right };
        match lane.get::<LeaseObject>(&question).await.map(|found| found.map(objects::to_lease)) {
            Lookup::Answered(lease) => found.extend(lease),
            other => return other.map(|_| Vec::new()),
        }
    }
    Lookup::Answered(found)
}

/// The nodes to query: this one first, then those of unready endpoints, then the others.
fn node_names(slices: &Lookup<Vec<ObservedSlice>>, subject: ServiceSubject<'_>) -> Vec<String> {
    let endpoints = || slices.answer().into_iter().flatten().flat_map(|slice| &slice.endpoints);
    let unready = endpoints().filter(|it| it.ready == Some(false));
    let listed = unready.chain(endpoints()).filter_map(|it| it.node.clone());
    let known = subject.views.iter().flat_map(|view| view.slices.iter());
    let known = known.flat_map(|slice| slice.endpoints.iter()).filter_map(|endpoint| endpoint.node);
    let known = known.map(|node| node.to_string());
    let known = known.take(if slices.answer().is_some() { 0 } else { ENDPOINTS_MAX });
    let mut seen = BTreeSet::new();
    let all = std::iter::once(subject.node.to_owned()).chain(listed).chain(known);
    let all = all.filter(|name| seen.insert(name.clone()) && PathSegment::new(name).is_some());
    all.take(NODES_MAX).collect()
}

const NODE: &str = "node";

/// Queries one node by name; several by their label, and by name those that the label did not find.
async fn query_nodes(lane: &mut QuerySession<'_>, names: &[PathSegment<'_>]) -> Lookup<Vec<ObservedNode>> {
    let mut found = match names {
        [_] => Vec::new(),
        several => match query_by_label(lane, several).await {
            Lookup::Answered(found) => found,
            other => return other,
        },
    };
    let lacking = missing_nodes(&found, names).take(NODES_BY_NAME_MAX);
    for name in lacking.collect::<Vec<_>>() {
        match query_node(lane, name).await {
            Lookup::Answered(node) => found.push(node),
            other if found.is_empty() => return other.map(|_| Vec::new()),
            // Some nodes are better than none.
            _ => break,
        }
    }
    Lookup::Answered(found)
}

/// Nodes that were not found, the most important first.
fn missing_nodes<'a>(
    found: &[ObservedNode],
    names: &[PathSegment<'a>],
) -> impl Iterator<Item = PathSegment<'a>> {
    names.iter().copied().filter(|name| found.iter().all(|node| node.name != name.as_str()))
}

fn list_unqueried(nodes: &Lookup<Vec<ObservedNode>>, names: &[PathSegment<'_>]) -> Vec<String> {
    let found = nodes.answer().into_iter();
    found.flat_map(|found| missing_nodes(found, names)).map(|name| name.as_str().to_owned()).collect()
}

async fn query_by_label(lane: &mut QuerySession<'_>, names: &[PathSegment<'_>]) -> Lookup<Vec<ObservedNode>> {
    let question =
        ApiQuery { name: "nodes", path: paths::nodes(names), right: rbac_right("", "nodes", "list") };
    let mut found = Vec::new();
    let lookup = lane.list(&question, ListFormat::for_kind("NodeList"), |object| {
        let read = serde_json::from_slice::<Node>(object).map(objects::to_node);
        let is_read = read.is_ok();
        found.extend(read.ok().filter(|node| names.iter().any(|name| name.as_str() == node.name)));
        is_read
    });
    lookup.await.map(|_| found)
}

async fn query_node(lane: &mut QuerySession<'_>, name: PathSegment<'_>) -> Lookup<ObservedNode> {
    let question = ApiQuery { name: NODE, path: paths::node(name), right: rbac_right("", "nodes", "get") };
    let gone = || ObservedNode { name: name.as_str().to_owned(), ..ObservedNode::default() };
    lane.get::<Node>(&question).await.map(|found| found.map_or_else(gone, objects::to_node))
}

/// The first node that exists and is not ready.
fn first_unready_node(nodes: &Lookup<Vec<ObservedNode>>) -> Option<&str> {
    let is_ill = |node: &&ObservedNode| node.ready.as_ref().is_some_and(|ready| !ready.is_true);
    nodes.answer()?.iter().find(is_ill).map(|node| node.name.as_str())
}

/// The Events about a node. Events of objects without a namespace are in `default`.
async fn query_node_events(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    name: &str,
) -> ReceivedEvents {
    let (Some(name), Some(namespace)) = (PathSegment::new(name), PathSegment::new("default")) else {
        return ReceivedEvents::default();
    };
    let fields = [("involvedObject.kind", "Node"), ("involvedObject.name", name.as_str())];
    reading.query(lane, "events of a node", namespace, &fields, 1).await
}
