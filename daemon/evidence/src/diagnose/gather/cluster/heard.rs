//! Events asked for by themselves: about one service and its pods, or about what all services depend on.
//!
//! Invariant: three questions at most, over one connection that no watch uses, under the bounds of a diagnosis and in
//! its turn. What could not be read is named, and never taken for "there is none".

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::ServiceView;
use holdfast_diagnose::limits::PAGES_MAX;
use holdfast_diagnose::material::{Asked, Heard};
use tokio::time::Instant;

use super::ask::{Bounds, Lane};
use super::events::{Events, Reading};
use super::filed;
use super::network::KINDS;
use super::paths::Name;
use crate::diagnose::limits::{ENDPOINTS_MAX, REQUESTS_MAX};
use holdfast_kubernetes::apiserver::Access;

/// The fields by which the apiserver leaves out Events about what no Service depends on: they are most of what a
/// cluster says.
const OF_OTHERS: &str = "involvedObject.kind!=Pod,involvedObject.kind!=ReplicaSet,involvedObject.kind!=Deployment,\
                         involvedObject.kind!=StatefulSet,involvedObject.kind!=DaemonSet,involvedObject.kind!=Job,\
                         involvedObject.kind!=CronJob,involvedObject.kind!=HorizontalPodAutoscaler,\
                         involvedObject.kind!=PersistentVolumeClaim";

const ILL_PODS: [(&str, &str); 2] = [("involvedObject.kind", "Pod"), ("type", "Warning")];
const ILL_PODS_ANYWHERE: &str = "involvedObject.kind=Pod,type=Warning";

/// Asks until all questions are answered, the first one has no answer, or the time is over. `about` is a service as
/// this node has it; none: all services.
pub(crate) async fn hear(
    access: &Access,
    (events, reads_events): (&Events, bool),
    about: Option<(&ObjectName, &[Arc<ServiceView>])>,
    node: &str,
    deadline: Instant,
) -> Heard {
    let bounds = Bounds::new(deadline, REQUESTS_MAX);
    let mut lane = Lane::new(access, &bounds);
    let reading = events.begin(reads_events, Instant::now());
    match about {
        Some((name, views)) => of_service(&mut lane, &reading, name, &pods(views)).await,
        None => of_all(&mut lane, &reading, node).await,
    }
}

async fn of_service(
    lane: &mut Lane<'_>,
    reading: &Reading<'_>,
    name: &ObjectName,
    pods: &BTreeSet<String>,
) -> Heard {
    let names = (Name::new(name.namespace()), Name::new(name.name()));
    let (Some(namespace), Some(service)) = names else {
        return Heard::without(Asked::Failed("no object can have this name".into()));
    };
    let heard =
        reading.ask(lane, "events", namespace, &[("involvedObject.name", service.as_str())], PAGES_MAX).await;
    let heard =
        heard.only(|event| KINDS.contains(&event.object.kind.as_str()) && !filed::is_of_another(event, name));
    if heard.list.answer().is_none() {
        return heard;
    }
    let heard = heard.with(filed::ask(lane, reading, service, name).await);
    if pods.is_empty() {
        return heard;
    }
    let of_pods = reading.ask(lane, "events of pods", namespace, &ILL_PODS, PAGES_MAX).await;
    heard.and(of_pods.only(|event| pods.contains(&event.object.name)))
}

/// Events about what all services depend on. Of those about pods only this node's kubelet's count: each node tells of
/// its own pods.
async fn of_all(lane: &mut Lane<'_>, reading: &Reading<'_>, node: &str) -> Heard {
    let heard = reading.ask_everywhere(lane, "events", OF_OTHERS).await;
    if heard.list.answer().is_none() {
        return heard;
    }
    let of_pods = reading.ask_everywhere(lane, "events of pods", ILL_PODS_ANYWHERE).await;
    heard.and(of_pods.only(|event| event.host == node))
}

/// The pods that the service's slices name.
fn pods(views: &[Arc<ServiceView>]) -> BTreeSet<String> {
    let slices = views.iter().flat_map(|view| view.slices.iter());
    let targets = slices.flat_map(|slice| slice.endpoints.iter()).filter_map(|endpoint| endpoint.target);
    targets
        .filter(|target| target.kind == "Pod")
        .map(|target| target.name.to_string())
        .take(ENDPOINTS_MAX)
        .collect()
}
