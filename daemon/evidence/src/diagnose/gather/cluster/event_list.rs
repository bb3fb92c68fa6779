//! Events asked for by themselves: about one service and its pods, or about what all services depend on.
//!
//! Invariant: three questions at most, over one connection that no watch uses, under the bounds of a diagnosis and in
//! its turn. What could not be read is named, and never taken for "there is none".

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

/// The fields by which the apiserver leaves out Events about what no Service depends on: they are most of what a
/// cluster says.
const SERVICE_FIELDS: &str = "involvedObject.kind!=Pod,involvedObject.kind!=ReplicaSet,involvedObject.kind!=Deployment,\
                         involvedObject.kind!=StatefulSet,involvedObject.kind!=DaemonSet,involvedObject.kind!=Job,\
                         involvedObject.kind!=CronJob,involvedObject.kind!=HorizontalPodAutoscaler,\
                         involvedObject.kind!=PersistentVolumeClaim";

const POD_WARNINGS: [(&str, &str); 2] = [("involvedObject.kind", "Pod"), ("type", "Warning")];
const POD_WARNING_FIELDS: &str = "involvedObject.kind=Pod,type=Warning";

/// Asks until all questions are answered, the first one has no answer, or the time is over. `about` is a service as
/// this node has it; none: all services.
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
    let heard = reading
        .query(lane, "events", namespace, &[("involvedObject.name", service.as_str())], PAGES_MAX)
        .await;
    let heard = heard.filter_events(|event| {
        EVENT_KINDS.contains(&event.object.kind.as_str()) && !default_namespace::is_about_other(event, name)
    });
    if heard.list.answer().is_none() {
        return heard;
    }
    let heard = heard.merge(default_namespace::query_default_namespace(lane, reading, service, name).await);
    if pods.is_empty() {
        return heard;
    }
    let of_pods = reading.query(lane, "events of pods", namespace, &POD_WARNINGS, PAGES_MAX).await;
    heard.merge_required(of_pods.filter_events(|event| pods.contains(&event.object.name)))
}

/// Events about what all services depend on. Of those about pods only this node's kubelet's count: each node tells of
/// its own pods.
async fn query_all_events(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    node: &str,
) -> ReceivedEvents {
    let heard = reading.query_all_namespaces(lane, "events", SERVICE_FIELDS).await;
    if heard.list.answer().is_none() {
        return heard;
    }
    let of_pods = reading.query_all_namespaces(lane, "events of pods", POD_WARNING_FIELDS).await;
    heard.merge_required(of_pods.filter_events(|event| event.host == node))
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
