//! Events on their own: about one service and its pods, or about what all services depend on.
//!
//! Invariant: three queries at most, over one connection that no watch uses, within the bounds and the pace of a
//! diagnosis. A failed query is named, and never counts as "there is none".

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::ServiceView;
use holdfast_diagnose::evidence::{Lookup, ReceivedEvents};
use holdfast_diagnose::limits::PAGES_MAX;
use tokio::time::Instant;

use super::api_query::{QuerySession, RequestBudget};
use super::default_namespace;
use super::event_cache::{EventCache, EventReader};
use super::network::EVENT_KINDS;
use super::paths::PathSegment;
use crate::diagnose::limits::{ENDPOINTS_MAX, REQUESTS_MAX};
use holdfast_kubernetes::apiserver::Access;

/// Field selectors that exclude Events about objects on which no Service depends. Most Events of a cluster are about
/// those.
const SERVICE_FIELDS: &str = "involvedObject.kind!=Pod,involvedObject.kind!=ReplicaSet,involvedObject.kind!=Deployment,\
                         involvedObject.kind!=StatefulSet,involvedObject.kind!=DaemonSet,involvedObject.kind!=Job,\
                         involvedObject.kind!=CronJob,involvedObject.kind!=HorizontalPodAutoscaler,\
                         involvedObject.kind!=PersistentVolumeClaim";

const POD_WARNINGS: [(&str, &str); 2] = [("involvedObject.kind", "Pod"), ("type", "Warning")];
const POD_WARNING_FIELDS: &str = "involvedObject.kind=Pod,type=Warning";

/// Queries until all queries are answered, the first one fails, or the deadline passes. `about` is a service as this
/// node has it. `None`: all services.
pub(crate) async fn list_events(
    access: &Access,
    (events, reads_events): (&EventCache, bool),
    about: Option<(&ObjectName, &[Arc<ServiceView>])>,
    node: &str,
    deadline: Instant,
) -> ReceivedEvents {
    let bounds = RequestBudget::new(deadline, REQUESTS_MAX);
    let mut lane = QuerySession::new(access, &bounds);
    let reading = events.start_reading(reads_events, Instant::now());
    match about {
        Some((name, views)) => query_service_events(&mut lane, &reading, name, &pod_names(views)).await,
        None => query_all_events(&mut lane, &reading, node).await,
    }
}

async fn query_service_events(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    name: &ObjectName,
    pods: &BTreeSet<String>,
) -> ReceivedEvents {
    let names = (PathSegment::new(name.namespace()), PathSegment::new(name.name()));
    let (Some(namespace), Some(service)) = names else {
        return ReceivedEvents::from_lookup(Lookup::Failed("no object can have this name".into()));
    };
    let received = reading
        .query(lane, "events", namespace, &[("involvedObject.name", service.as_str())], PAGES_MAX)
        .await;
    let received = received.filter_events(|event| {
        EVENT_KINDS.contains(&event.object.kind.as_str()) && !default_namespace::is_about_other(event, name)
    });
    if received.list.answer().is_none() {
        return received;
    }
    let received =
        received.merge(default_namespace::query_default_namespace(lane, reading, service, name).await);
    if pods.is_empty() {
        return received;
    }
    let pod_events = reading.query(lane, "events of pods", namespace, &POD_WARNINGS, PAGES_MAX).await;
    received.merge_required(pod_events.filter_events(|event| pods.contains(&event.object.name)))
}

/// Events about what all services depend on. Of Events about pods only those of this node's kubelet count: each node
/// reports its own pods.
async fn query_all_events(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    node: &str,
) -> ReceivedEvents {
    let received = reading.query_all_namespaces(lane, "events", SERVICE_FIELDS).await;
    if received.list.answer().is_none() {
        return received;
    }
    let pod_events = reading.query_all_namespaces(lane, "events of pods", POD_WARNING_FIELDS).await;
    received.merge_required(pod_events.filter_events(|event| event.host == node))
}

/// The pods that the service's slices name.
fn pod_names(views: &[Arc<ServiceView>]) -> BTreeSet<String> {
    let slices = views.iter().flat_map(|view| view.slices.iter());
    let targets = slices.flat_map(|slice| slice.endpoints.iter()).filter_map(|endpoint| endpoint.target);
    targets
        .filter(|target| target.kind == "Pod")
        .map(|target| target.name.to_string())
        .take(ENDPOINTS_MAX)
        .collect()
}
