//! The Service itself, the pods that its selector matches, and the Events about unready ones.
//!
//! Invariant: pods are queried by the selector that the apiserver has now, never by this node's copy.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_diagnose::evidence::{Lookup, ObservedService, Pod, Pods, ReceivedEvents, UnmatchedPod};
use holdfast_knowledge::{ClusterEvent, Knowledge};
use k8s_openapi::api::core::v1::{Pod as PodObject, Service};

use super::api_query::{ApiQuery, ListFormat, QuerySession};
use super::event_cache::EventReader;
use super::objects::{self, MetadataObject};
use super::{ServiceNames, paths, rbac_right};

#[derive(Debug, Default)]
pub(super) struct WorkloadAnswers {
    pub(super) service: Lookup<Option<ObservedService>>,
    pub(super) pods: Lookup<Pods>,
    pub(super) near: Lookup<Vec<UnmatchedPod>>,
    pub(super) events: ReceivedEvents,
}

pub(super) async fn query_workload(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    names: ServiceNames<'_>,
) -> WorkloadAnswers {
    let service = query_service(lane, names).await;
    let selector = match &service {
        Lookup::Answered(Some(service)) => Some(&service.selector),
        _ => None,
    };
    let pods = match selector {
        Some(selector) if !selector.is_empty() => query_pods(lane, names, selector).await,
        Some(_) => Lookup::Skipped("the Service has no selector"),
        None => Lookup::Skipped("the selector is not known"),
    };
    let mut workload = WorkloadAnswers { service, pods, ..WorkloadAnswers::default() };
    match &workload.pods {
        Lookup::Answered(pods) if pods.list.is_empty() => {
            workload.near = query_unmatched_pods(lane, names).await;
        }
        Lookup::Answered(pods) => {
            workload.events = query_unready_pod_events(lane, reading, names, &pods.list).await;
        }
        _ => {}
    }
    workload
}

async fn query_service(
    lane: &mut QuerySession<'_>,
    names: ServiceNames<'_>,
) -> Lookup<Option<ObservedService>> {
    let path = paths::service(names.namespace, names.service);
    let question = names.namespaced_query("service", path, rbac_right("", "services", "get"));
    lane.get::<Service>(&question).await.map(|found| found.map(objects::to_service))
}

async fn query_pods(
    lane: &mut QuerySession<'_>,
    names: ServiceNames<'_>,
    selector: &BTreeMap<String, String>,
) -> Lookup<Pods> {
    let Some(path) = paths::pods(names.namespace, selector) else {
        return Lookup::Failed("its selector is too long, or no apiserver would have accepted it".into());
    };
    let mut list = Vec::new();
    let question = pod_query(names, "pods", path);
    let asked = lane.list(&question, ListFormat::for_kind("PodList"), |object| {
        let read = serde_json::from_slice::<PodObject>(object).map(objects::to_pod);
        let is_read = read.is_ok();
        list.extend(read);
        is_read
    });
    asked.await.map(|listing| Pods { list, more: listing.more })
}

/// The labels of all pods of the namespace.
async fn query_unmatched_pods(
    lane: &mut QuerySession<'_>,
    names: ServiceNames<'_>,
) -> Lookup<Vec<UnmatchedPod>> {
    let mut list = Vec::new();
    let question = pod_query(names, "other pods", paths::all_pods(names.namespace));
    let asked = lane.list(&question, ListFormat::METADATA, |object| {
        let read = serde_json::from_slice::<MetadataObject>(object).map(objects::to_unmatched_pod);
        let is_read = read.is_ok();
        list.extend(read);
        is_read
    });
    asked.await.map(|_| list)
}

fn pod_query(names: ServiceNames<'_>, name: &'static str, path: String) -> ApiQuery {
    names.namespaced_query(name, path, rbac_right("", "pods", "list"))
}

/// Warnings about pods that are not ready.
async fn query_unready_pod_events(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    names: ServiceNames<'_>,
    pods: &[Pod],
) -> ReceivedEvents {
    query_pod_warnings(lane, reading, names, pods, (is_unready, |_| true)).await
}

/// Reasons of the knowledge that a running and ready pod may still have. Any other Event about such a pod is over.
const TOLERATED_REASONS: [&str; 2] = ["dns-config-forming", "missing-cluster-dns"];

/// Warnings about ready pods that may still not work as their clients expect. They use up the last requests, and the
/// rest of the answer is complete without them.
pub(super) async fn query_ready_pod_events(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    names: ServiceNames<'_>,
    pods: &[Pod],
    knowledge: &Knowledge,
) -> ReceivedEvents {
    let is_tolerated = |event: &ClusterEvent| {
        knowledge.recognise(event).reason.is_some_and(|it| TOLERATED_REASONS.contains(&it.id.as_str()))
    };
    let received =
        query_pod_warnings(lane, reading, names, pods, (|pod| !is_unready(pod), is_tolerated)).await;
    match received.list {
        Lookup::Answered(_) => ReceivedEvents { more: false, ..received },
        _ => ReceivedEvents::default(),
    }
}

/// Warnings of some reasons about some pods. One query covers all warnings about pods, so the answer is read once for
/// ready and unready pods.
async fn query_pod_warnings(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    names: ServiceNames<'_>,
    pods: &[Pod],
    (is_wanted, counts): (fn(&Pod) -> bool, impl Fn(&ClusterEvent) -> bool),
) -> ReceivedEvents {
    let wanted: BTreeSet<&str> =
        pods.iter().filter(|pod| is_wanted(pod)).map(|pod| pod.name.as_str()).collect();
    if wanted.is_empty() {
        return ReceivedEvents::default();
    }
    let fields = [("involvedObject.kind", "Pod"), ("type", "Warning")];
    let received = reading.query(lane, "events of pods", names.namespace, &fields, 1).await;
    received.filter_events(|event| wanted.contains(event.object.name.as_str()) && counts(event))
}

fn is_unready(pod: &Pod) -> bool {
    !pod.ready.as_ref().is_some_and(|ready| ready.is_true) || pod.ips.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_has_these_entries() {
        let reasons = Knowledge::built_in().reasons();
        assert!(TOLERATED_REASONS.iter().all(|id| reasons.iter().any(|reason| reason.id == *id)));
    }
}
