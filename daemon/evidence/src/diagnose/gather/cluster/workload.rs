//! The Service itself, the pods that its selector matches, and the Events about those that are not well.
//!
//! Invariant: pods are asked for by the selector that the apiserver has, never by one that this node remembers.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_diagnose::material::{Asked, Heard, NearPod, Pod, Pods, ServiceSeen};
use holdfast_knowledge::{ClusterEvent, Knowledge};
use k8s_openapi::api::core::v1::{Pod as PodObject, Service};

use super::ask::{Form, Lane, Question};
use super::events::Reading;
use super::objects::{self, Named};
use super::{Names, paths, right};

/// The answers about the Service and its pods.
#[derive(Debug, Default)]
pub(super) struct Workload {
    pub(super) service: Asked<Option<ServiceSeen>>,
    pub(super) pods: Asked<Pods>,
    pub(super) near: Asked<Vec<NearPod>>,
    pub(super) events: Heard,
}

pub(super) async fn ask(lane: &mut Lane<'_>, reading: &Reading<'_>, names: Names<'_>) -> Workload {
    let service = service(lane, names).await;
    let selector = match &service {
        Asked::Answered(Some(service)) => Some(&service.selector),
        _ => None,
    };
    let pods = match selector {
        Some(selector) if !selector.is_empty() => pods(lane, names, selector).await,
        Some(_) => Asked::Not("the Service has no selector"),
        None => Asked::Not("the selector is not known"),
    };
    let mut workload = Workload { service, pods, ..Workload::default() };
    match &workload.pods {
        Asked::Answered(pods) if pods.list.is_empty() => workload.near = near(lane, names).await,
        Asked::Answered(pods) => workload.events = of_pods(lane, reading, names, &pods.list).await,
        _ => {}
    }
    workload
}

async fn service(lane: &mut Lane<'_>, names: Names<'_>) -> Asked<Option<ServiceSeen>> {
    let path = paths::service(names.namespace, names.service);
    let question = names.question("service", path, right("", "services", "get"));
    lane.get::<Service>(&question).await.map(|found| found.map(objects::service))
}

async fn pods(lane: &mut Lane<'_>, names: Names<'_>, selector: &BTreeMap<String, String>) -> Asked<Pods> {
    let Some(path) = paths::pods(names.namespace, selector) else {
        return Asked::Failed(
            "its selector is longer than is asked for, or no apiserver would have taken it".into(),
        );
    };
    let mut list = Vec::new();
    let question = of_kind_pods(names, "pods", path);
    let asked = lane.list(&question, Form::whole("PodList"), |object| {
        let read = serde_json::from_slice::<PodObject>(object).map(objects::pod);
        let is_read = read.is_ok();
        list.extend(read);
        is_read
    });
    asked.await.map(|listing| Pods { list, more: listing.more })
}

/// The labels of all pods of the namespace.
async fn near(lane: &mut Lane<'_>, names: Names<'_>) -> Asked<Vec<NearPod>> {
    let mut list = Vec::new();
    let question = of_kind_pods(names, "other pods", paths::all_pods(names.namespace));
    let asked = lane.list(&question, Form::NAMES, |object| {
        let read = serde_json::from_slice::<Named>(object).map(objects::near);
        let is_read = read.is_ok();
        list.extend(read);
        is_read
    });
    asked.await.map(|_| list)
}

fn of_kind_pods(names: Names<'_>, name: &'static str, path: String) -> Question {
    names.question(name, path, right("", "pods", "list"))
}

/// Warnings about pods that are not well.
async fn of_pods(lane: &mut Lane<'_>, reading: &Reading<'_>, names: Names<'_>, pods: &[Pod]) -> Heard {
    about(lane, reading, names, pods, (is_ill, |_| true)).await
}

/// The entries of the knowledge that a pod may live with while it runs and is ready. Whatever else was said of such a
/// pod is over.
const LIVED_WITH: [&str; 2] = ["dns-config-forming", "missing-cluster-dns"];

/// Warnings about pods that are well, and may still not work as their clients expect. They are asked for with the
/// requests that are left, and the rest of the answer is complete without them.
pub(super) async fn of_pods_that_are_well(
    lane: &mut Lane<'_>,
    reading: &Reading<'_>,
    names: Names<'_>,
    pods: &[Pod],
    knowledge: &Knowledge,
) -> Heard {
    let lasts = |event: &ClusterEvent| {
        knowledge.recognise(event).reason.is_some_and(|it| LIVED_WITH.contains(&it.id.as_str()))
    };
    let heard = about(lane, reading, names, pods, (|pod| !is_ill(pod), lasts)).await;
    match heard.list {
        Asked::Answered(_) => Heard { more: false, ..heard },
        _ => Heard::default(),
    }
}

/// Warnings of one sort about pods of one sort. One question asks for all warnings about pods, however many pods there
/// are, so what was read for one sort is not read again for another.
async fn about(
    lane: &mut Lane<'_>,
    reading: &Reading<'_>,
    names: Names<'_>,
    pods: &[Pod],
    (is_meant, counts): (fn(&Pod) -> bool, impl Fn(&ClusterEvent) -> bool),
) -> Heard {
    let meant: BTreeSet<&str> =
        pods.iter().filter(|pod| is_meant(pod)).map(|pod| pod.name.as_str()).collect();
    if meant.is_empty() {
        return Heard::default();
    }
    let fields = [("involvedObject.kind", "Pod"), ("type", "Warning")];
    let heard = reading.ask(lane, "events of pods", names.namespace, &fields, 1).await;
    heard.only(|event| meant.contains(event.object.name.as_str()) && counts(event))
}

fn is_ill(pod: &Pod) -> bool {
    !pod.ready.as_ref().is_some_and(|ready| ready.is_true) || pod.ips.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_has_these_entries() {
        let reasons = Knowledge::built_in().reasons();
        assert!(LIVED_WITH.iter().all(|id| reasons.iter().any(|reason| reason.id == *id)));
    }
}
