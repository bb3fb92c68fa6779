//! Further queries, while requests are left: host ports, the namespace, the cluster IP, policies, the older Endpoints,
//! and why slices or Endpoints are missing.
//!
//! Invariant: a query is skipped if its answer could change nothing. Queries that may find the cause come first. The
//! last two find no cause: one is for clients that read Endpoints, which this node does not, the other for ready pods.

use holdfast_diagnose::evidence::{
    Cluster, EndpointsObject, HostPort, Lookup, ObservedIpAddress, ReceivedEvents,
};
use k8s_openapi::api::core::v1::{Endpoints, Namespace, Pod as PodObject};
use k8s_openapi::api::networking::v1::IPAddress;

use super::api_query::{ApiQuery, ListFormat, QuerySession};
use super::event_cache::EventReader;
use super::paths::PathSegment;
use super::{ServiceNames, ServiceSubject, default_namespace, objects, paths, rbac_right, workload};

/// Stores every answer in `cluster`, except Events, which it returns.
pub(super) async fn query_secondary(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    names: ServiceNames<'_>,
    subject: ServiceSubject<'_>,
    cluster: &mut Cluster,
) -> ReceivedEvents {
    let has_no_slices = cluster.slices.answer().is_some_and(Vec::is_empty);
    let received = match has_no_slices {
        true => default_namespace::query_default_namespace(lane, reading, names.service, subject.name).await,
        false => ReceivedEvents::default(),
    };
    cluster.hosted = query_host_ports(lane, subject).await;
    cluster.namespace = match may_be_terminating(cluster) {
        true => query_namespace(lane, names).await,
        false => Lookup::Skipped("its objects exist, so the namespace is alive"),
    };
    cluster.address = query_ip_address(lane, subject).await;
    cluster.policies = query_policies(lane, names).await;
    cluster.endpoints = query_endpoints(lane, names).await;
    let received = match cluster.endpoints {
        Lookup::Answered(None) if !has_no_slices => {
            default_namespace::query_default_namespace(lane, reading, names.service, subject.name).await
        }
        _ => received,
    };
    let pods = cluster.pods.answer().map_or(&[][..], |pods| &pods.list);
    let knowledge = subject.edition.knowledge();
    received.merge(workload::query_ready_pod_events(lane, reading, names, pods, knowledge).await)
}

/// Whether the namespace may be terminating: nothing new can be created in it then.
fn may_be_terminating(cluster: &Cluster) -> bool {
    let service = cluster.service.answer().and_then(Option::as_ref);
    let is_going = service.is_none_or(|service| service.deletion.is_some());
    let has_slices = cluster.slices.answer().is_some_and(|slices| !slices.is_empty());
    let has_no_pods = cluster.pods.answer().is_some_and(|pods| pods.list.is_empty());
    is_going || !has_slices || has_no_pods
}

async fn query_host_ports(lane: &mut QuerySession<'_>, subject: ServiceSubject<'_>) -> Lookup<Vec<HostPort>> {
    let (true, Some(node)) = (subject.may_have_host_ports(), PathSegment::new(subject.node)) else {
        return Lookup::Skipped("the service has no port at an address of this host");
    };
    let right = rbac_right("", "pods", "list");
    let question = ApiQuery { name: "pods of this node", path: paths::pods_on_node(node), right };
    let mut ports = Vec::new();
    let lookup = lane.list(&question, ListFormat::for_kind("PodList"), |object| {
        let Ok(pod) = serde_json::from_slice::<PodObject>(object) else { return false };
        if !objects::has_ended(&pod) {
            ports.extend(objects::host_ports(&pod));
        }
        true
    });
    lookup.await.map(|_| ports)
}

async fn query_namespace(lane: &mut QuerySession<'_>, names: ServiceNames<'_>) -> Lookup<Option<bool>> {
    let path = paths::namespace(names.namespace);
    let question = ApiQuery { name: "namespace", path, right: rbac_right("", "namespaces", "get") };
    lane.get::<Namespace>(&question).await.map(|found| found.map(|it| objects::is_terminating(&it)))
}

async fn query_endpoints(
    lane: &mut QuerySession<'_>,
    names: ServiceNames<'_>,
) -> Lookup<Option<EndpointsObject>> {
    let path = paths::endpoints(names.namespace, names.service);
    let question = names.namespaced_query("endpoints", path, rbac_right("", "endpoints", "get"));
    lane.get::<Endpoints>(&question).await.map(|found| found.map(objects::to_endpoints))
}

async fn query_policies(lane: &mut QuerySession<'_>, names: ServiceNames<'_>) -> Lookup<usize> {
    let path = paths::policies(names.namespace);
    let question =
        names.namespaced_query("policies", path, rbac_right("networking.k8s.io", "networkpolicies", "list"));
    let mut count = 0;
    let lookup = lane.list(&question, ListFormat::METADATA, |_| {
        count += 1;
        true
    });
    lookup.await.map(|_| count)
}

async fn query_ip_address(
    lane: &mut QuerySession<'_>,
    subject: ServiceSubject<'_>,
) -> Lookup<Option<ObservedIpAddress>> {
    let Some(address) = subject.cluster_ip() else {
        return Lookup::Skipped("the service has no cluster IP");
    };
    let right = rbac_right("networking.k8s.io", "ipaddresses", "get");
    let question = ApiQuery { name: "address", path: paths::ip_address(address), right };
    lane.get_if_served::<IPAddress>(&question).await.map(|found| found.map(objects::to_ip_address))
}
