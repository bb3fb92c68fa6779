//! The slices of a Service, the Events about it, and what both depend on: controllers and nodes.
//!
//! Invariant: nodes are found by the names in slices, each of which is checked. A node that its label did not find is
//! asked for by its name before it is called gone. Only a few are asked for so; of the others it is said that they were
//! not asked for, and nothing else.

use std::collections::BTreeSet;

use holdfast_diagnose::limits::PAGES_MAX;
use holdfast_diagnose::material::{Asked, Heard, Lease, NodeSeen, SliceSeen};
use k8s_openapi::api::coordination::v1::Lease as LeaseObject;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::ask::{Form, Lane, Question};
use super::events::Reading;
use super::paths::Name;
use super::{Names, Subject, objects, paths, right};
use crate::diagnose::limits::{ENDPOINTS_MAX, NODES_BY_NAME_MAX, NODES_MAX};

/// The answers about slices, controllers and nodes.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) slices: Asked<Vec<SliceSeen>>,
    pub(super) events: Heard,
    pub(super) leases: Asked<Vec<Lease>>,
    pub(super) nodes: Asked<Vec<NodeSeen>>,
    /// Nodes that no label names and that were not asked for by name.
    pub(super) nodes_unasked: Vec<String>,
}

/// The kinds of objects that an Event about a name is wanted for: a Deployment may have the same name as the Service.
pub(super) const KINDS: [&str; 3] = ["Service", "Endpoints", "EndpointSlice"];

pub(super) async fn ask(
    lane: &mut Lane<'_>,
    reading: &Reading<'_>,
    names: Names<'_>,
    subject: Subject<'_>,
) -> Network {
    let slices = slices(lane, names).await;
    let fields = [("involvedObject.name", names.service.as_str())];
    let events = reading.ask(lane, "events", names.namespace, &fields, PAGES_MAX).await;
    let events = events.only(|event| KINDS.contains(&event.object.kind.as_str()));
    let leases = leases(lane, subject.awaits_balancer()).await;
    let wanted = node_names(&slices, subject);
    let wanted: Vec<Name<'_>> = wanted.iter().filter_map(|name| Name::new(name)).collect();
    let nodes = nodes(lane, &wanted).await;
    let nodes_unasked = unasked(&nodes, &wanted);
    let of_node = match ill(&nodes) {
        Some(name) => of_node(lane, reading, name).await,
        None => Heard::default(),
    };
    Network { slices, events: events.with(of_node), leases, nodes, nodes_unasked }
}

async fn slices(lane: &mut Lane<'_>, names: Names<'_>) -> Asked<Vec<SliceSeen>> {
    let path = paths::slices(names.service, names.namespace);
    let question = names.question("slices", path, right("discovery.k8s.io", "endpointslices", "list"));
    let mut list = Vec::new();
    let mut endpoints = 0;
    let asked = lane.list(&question, Form::whole("EndpointSliceList"), |object| {
        let read = serde_json::from_slice::<EndpointSlice>(object).map(objects::slice);
        let is_read = read.is_ok();
        endpoints += read.as_ref().map_or(0, |slice| slice.endpoints.len());
        list.extend(read.ok().filter(|_| endpoints <= ENDPOINTS_MAX));
        is_read && endpoints <= ENDPOINTS_MAX
    });
    match asked.await {
        // Slices are compared with what this node has, which needs all of them.
        Asked::Answered(listing) if listing.more => {
            Asked::Failed("it has more slices than are read, or one that cannot be read".into())
        }
        asked => asked.map(|_| list),
    }
}

/// The leases of the controllers that the service depends on, of which some may run elsewhere.
async fn leases(lane: &mut Lane<'_>, awaits_balancer: bool) -> Asked<Vec<Lease>> {
    let controllers = ["kube-controller-manager", "cloud-controller-manager"];
    let mut found = Vec::new();
    for controller in controllers.into_iter().take(if awaits_balancer { 2 } else { 1 }) {
        let mut right = right("coordination.k8s.io", "leases", "get");
        right.namespace = Some("kube-system".into());
        let question = Question { name: "lease", path: paths::lease(controller), right };
        match lane.get::<LeaseObject>(&question).await.map(|found| found.map(objects::lease)) {
            Asked::Answered(lease) => found.extend(lease),
            other => return other.map(|_| Vec::new()),
        }
    }
    Asked::Answered(found)
}

/// The names of the nodes to ask for: the own one first, then those of endpoints that are not ready, then the others.
fn node_names(slices: &Asked<Vec<SliceSeen>>, subject: Subject<'_>) -> Vec<String> {
    let endpoints = || slices.answer().into_iter().flatten().flat_map(|slice| &slice.endpoints);
    let unready = endpoints().filter(|it| it.ready == Some(false));
    let listed = unready.chain(endpoints()).filter_map(|it| it.node.clone());
    let known = subject.views.iter().flat_map(|view| view.slices.iter());
    let known = known.flat_map(|slice| slice.endpoints.iter()).filter_map(|endpoint| endpoint.node);
    let known = known.map(|node| node.to_string());
    let known = known.take(if slices.answer().is_some() { 0 } else { ENDPOINTS_MAX });
    let mut seen = BTreeSet::new();
    let all = std::iter::once(subject.node.to_owned()).chain(listed).chain(known);
    let all = all.filter(|name| seen.insert(name.clone()) && Name::new(name).is_some());
    all.take(NODES_MAX).collect()
}

const NODE: &str = "node";

/// Asks for one node by its name; for several by their label, and by their names for those that the label did not find.
async fn nodes(lane: &mut Lane<'_>, names: &[Name<'_>]) -> Asked<Vec<NodeSeen>> {
    let mut found = match names {
        [_] => Vec::new(),
        several => match labelled(lane, several).await {
            Asked::Answered(found) => found,
            other => return other,
        },
    };
    let lacking = lacking(&found, names).take(NODES_BY_NAME_MAX);
    for name in lacking.collect::<Vec<_>>() {
        match one(lane, name).await {
            Asked::Answered(node) => found.push(node),
            other if found.is_empty() => return other.map(|_| Vec::new()),
            // The nodes that are known by now are worth more than none.
            _ => break,
        }
    }
    Asked::Answered(found)
}

/// Nodes that were not found, in the order in which they matter.
fn lacking<'a>(found: &[NodeSeen], names: &[Name<'a>]) -> impl Iterator<Item = Name<'a>> {
    names.iter().copied().filter(|name| found.iter().all(|node| node.name != name.as_str()))
}

fn unasked(nodes: &Asked<Vec<NodeSeen>>, names: &[Name<'_>]) -> Vec<String> {
    let found = nodes.answer().into_iter();
    found.flat_map(|found| lacking(found, names)).map(|name| name.as_str().to_owned()).collect()
}

async fn labelled(lane: &mut Lane<'_>, names: &[Name<'_>]) -> Asked<Vec<NodeSeen>> {
    let question = Question { name: "nodes", path: paths::nodes(names), right: right("", "nodes", "list") };
    let mut found = Vec::new();
    let asked = lane.list(&question, Form::whole("NodeList"), |object| {
        let read = serde_json::from_slice::<Node>(object).map(objects::node);
        let is_read = read.is_ok();
        found.extend(read.ok().filter(|node| names.iter().any(|name| name.as_str() == node.name)));
        is_read
    });
    asked.await.map(|_| found)
}

async fn one(lane: &mut Lane<'_>, name: Name<'_>) -> Asked<NodeSeen> {
    let question = Question { name: NODE, path: paths::node(name), right: right("", "nodes", "get") };
    let gone = || NodeSeen { name: name.as_str().to_owned(), ..NodeSeen::default() };
    lane.get::<Node>(&question).await.map(|found| found.map_or_else(gone, objects::node))
}

/// The first node that is there and not ready.
fn ill(nodes: &Asked<Vec<NodeSeen>>) -> Option<&str> {
    let is_ill = |node: &&NodeSeen| node.ready.as_ref().is_some_and(|ready| !ready.is_true);
    nodes.answer()?.iter().find(is_ill).map(|node| node.name.as_str())
}

/// The Events about a node. Objects without a namespace have their Events in `default`.
async fn of_node(lane: &mut Lane<'_>, reading: &Reading<'_>, name: &str) -> Heard {
    let (Some(name), Some(namespace)) = (Name::new(name), Name::new("default")) else {
        return Heard::default();
    };
    let fields = [("involvedObject.kind", "Node"), ("involvedObject.name", name.as_str())];
    reading.ask(lane, "events of a node", namespace, &fields, 1).await
}
