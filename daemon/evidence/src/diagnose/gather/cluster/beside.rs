//! What else may matter, as far as requests are left: host ports, the namespace, the cluster IP, policies, the older
//! Endpoints, and why slices or Endpoints are missing.
//!
//! Invariant: a question is left out where its answer could not change anything. The questions that may find the cause
//! come first. The last two find no cause: one is for clients that read Endpoints, which this node does not, the other
//! for pods that are well.

use holdfast_diagnose::material::{AddressSeen, Asked, Cluster, EndpointsSeen, Heard, HostPort};
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Pod as PodObject};
use k8s_openapi::api::networking::v1::IPAddress;

use super::ask::{Form, Lane, Question};
use super::events::Reading;
use super::paths::Name;
use super::{Names, Subject, filed, objects, paths, right, workload};

/// Puts every answer into `cluster`, except Events, which it returns.
pub(super) async fn ask(
    lane: &mut Lane<'_>,
    reading: &Reading<'_>,
    names: Names<'_>,
    subject: Subject<'_>,
    cluster: &mut Cluster,
) -> Heard {
    let has_no_slices = cluster.slices.answer().is_some_and(Vec::is_empty);
    let heard = match has_no_slices {
        true => filed::ask(lane, reading, names.service, subject.name).await,
        false => Heard::default(),
    };
    cluster.hosted = hosted(lane, subject).await;
    cluster.namespace = match is_in_doubt(cluster) {
        true => namespace(lane, names).await,
        false => Asked::Not("what is to be there is there, so the namespace is alive"),
    };
    cluster.address = address(lane, subject).await;
    cluster.policies = policies(lane, names).await;
    cluster.endpoints = endpoints(lane, names).await;
    let heard = match cluster.endpoints {
        Asked::Answered(None) if !has_no_slices => {
            filed::ask(lane, reading, names.service, subject.name).await
        }
        _ => heard,
    };
    let pods = cluster.pods.answer().map_or(&[][..], |pods| &pods.list);
    let knowledge = subject.edition.knowledge();
    heard.with(workload::of_pods_that_are_well(lane, reading, names, pods, knowledge).await)
}

/// Whether the namespace may be terminating, in which case nothing new can be made in it.
fn is_in_doubt(cluster: &Cluster) -> bool {
    let service = cluster.service.answer().and_then(Option::as_ref);
    let is_going = service.is_none_or(|service| service.deletion.is_some());
    let has_slices = cluster.slices.answer().is_some_and(|slices| !slices.is_empty());
    let has_no_pods = cluster.pods.answer().is_some_and(|pods| pods.list.is_empty());
    is_going || !has_slices || has_no_pods
}

async fn hosted(lane: &mut Lane<'_>, subject: Subject<'_>) -> Asked<Vec<HostPort>> {
    let (true, Some(node)) = (subject.has_host_ports(), Name::new(subject.node)) else {
        return Asked::Not("the service has no port at an address of this host");
    };
    let right = right("", "pods", "list");
    let question = Question { name: "pods of this node", path: paths::pods_on(node), right };
    let mut ports = Vec::new();
    let asked = lane.list(&question, Form::whole("PodList"), |object| {
        let Ok(pod) = serde_json::from_slice::<PodObject>(object) else { return false };
        if !objects::has_ended(&pod) {
            ports.extend(objects::host_ports(&pod));
        }
        true
    });
    asked.await.map(|_| ports)
}

async fn namespace(lane: &mut Lane<'_>, names: Names<'_>) -> Asked<Option<bool>> {
    let path = paths::namespace(names.namespace);
    let question = Question { name: "namespace", path, right: right("", "namespaces", "get") };
    lane.get::<Namespace>(&question).await.map(|found| found.map(|it| objects::is_terminating(&it)))
}

async fn endpoints(lane: &mut Lane<'_>, names: Names<'_>) -> Asked<Option<EndpointsSeen>> {
    let path = paths::endpoints(names.namespace, names.service);
    let question = names.question("endpoints", path, right("", "endpoints", "get"));
    lane.get::<Endpoints>(&question).await.map(|found| found.map(objects::endpoints))
}

async fn policies(lane: &mut Lane<'_>, names: Names<'_>) -> Asked<usize> {
    let path = paths::policies(names.namespace);
    let question = names.question("policies", path, right("networking.k8s.io", "networkpolicies", "list"));
    let mut count = 0;
    let asked = lane.list(&question, Form::NAMES, |_| {
        count += 1;
        true
    });
    asked.await.map(|_| count)
}

async fn address(lane: &mut Lane<'_>, subject: Subject<'_>) -> Asked<Option<AddressSeen>> {
    let Some(address) = subject.cluster_ip() else {
        return Asked::Not("the service has no cluster IP");
    };
    let right = right("networking.k8s.io", "ipaddresses", "get");
    let question = Question { name: "address", path: paths::ip_address(address), right };
    lane.get_if_served::<IPAddress>(&question).await.map(|found| found.map(objects::ip_address))
}
