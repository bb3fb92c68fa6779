//! The apiserver's answers about one service: a few queries, the most important first.
//!
//! Invariant: at most [`REQUESTS_MAX`] requests, all with one deadline, over two connections that no watch uses. Only
//! checked names from an answer lead to further queries; a skipped query says so.

mod api_query;
mod default_namespace;
mod event_cache;
mod event_list;
mod network;
mod objects;
mod paths;
mod recognised_events;
mod secondary;
mod workload;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::facts::{ServiceFacts, ServiceType, Timestamp};
use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::ServiceView;
use holdfast_diagnose::evidence::{Cluster, Lookup, ReceivedEvents, Right};
use tokio::time::Instant;

use crate::diagnose::limits::REQUESTS_MAX;
use crate::knowledge::Edition;
use api_query::{ApiQuery, QuerySession, RequestBudget};
use holdfast_kubernetes::apiserver::Access;
use network::NetworkAnswers;
use paths::PathSegment;
use workload::WorkloadAnswers;

pub(super) use event_cache::EventCache;
pub(super) use event_list::list_events;

/// The queried service, and this node's view of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceSubject<'a> {
    pub(super) name: &'a ObjectName,
    pub(super) views: &'a [Arc<ServiceView>],
    pub(super) node: &'a str,
    pub(super) now: Timestamp,
    pub(super) edition: &'a Edition,
}

impl ServiceSubject<'_> {
    /// Whether the service waits for the address of its load balancer, or for its removal. Only then does the load
    /// balancer controller matter.
    fn awaits_balancer(&self) -> bool {
        self.facts().any(|facts| {
            let balancer = facts.balancer.as_deref();
            let has_address =
                !facts.ingress.is_empty() || balancer.is_some_and(|balancer| !balancer.hostnames.is_empty());
            let is_going = balancer.is_some_and(|balancer| balancer.deleted.is_some());
            facts.kind == ServiceType::LoadBalancer && (is_going || !has_address)
        })
    }

    fn facts(&self) -> impl Iterator<Item = &ServiceFacts> {
        self.views.iter().filter_map(|view| view.facts.as_deref())
    }

    /// Whether the service may collide with host ports of pods: it has an address or a port of this host.
    fn may_have_host_ports(&self) -> bool {
        self.facts().any(|facts| {
            facts.ports.iter().any(|port| port.node_port.is_some())
                || !facts.external_ips.is_empty()
                || !facts.ingress.is_empty()
        })
    }

    fn cluster_ip(&self) -> Option<IpAddr> {
        let allocated = self.facts().filter(|facts| facts.kind != ServiceType::ClusterSetIp);
        allocated.flat_map(|facts| facts.cluster_ips.first()).copied().next()
    }
}

/// The names at the start of every path.
#[derive(Clone, Copy, Debug)]
struct ServiceNames<'a> {
    namespace: PathSegment<'a>,
    service: PathSegment<'a>,
}

impl ServiceNames<'_> {
    /// A query for objects of one kind in the namespace.
    fn namespaced_query(&self, name: &'static str, path: String, mut right: Right) -> ApiQuery {
        right.namespace = Some(self.namespace.as_str().into());
        ApiQuery { name, path, right }
    }
}

/// The right to use these verbs on this resource in all namespaces.
const fn rbac_right(group: &'static str, resource: &'static str, verbs: &'static str) -> Right {
    Right { group, resource, verbs, namespace: None }
}

pub(super) async fn gather(
    access: &Access,
    (events, reads_events): (&EventCache, bool),
    subject: ServiceSubject<'_>,
    deadline: Instant,
) -> Cluster {
    let names = (PathSegment::new(subject.name.namespace()), PathSegment::new(subject.name.name()));
    let (Some(namespace), Some(service)) = names else { return fail_all("no object can have this name") };
    let names = ServiceNames { namespace, service };
    let bounds = RequestBudget::new(deadline, REQUESTS_MAX);
    let mut first = QuerySession::new(access, &bounds);
    let mut second = QuerySession::new(access, &bounds);
    if let Err(error) = first.connect().await {
        return fail_all(&error);
    }
    let reading = events.start_reading(reads_events, Instant::now());
    let (workload, network) = tokio::join!(
        workload::query_workload(&mut first, &reading, names),
        network::query_network(&mut second, &reading, names, subject)
    );
    let (mut cluster, received) = join_answers(workload, network);
    let secondary_events =
        secondary::query_secondary(&mut first, &reading, names, subject, &mut cluster).await;
    set_events(&mut cluster, received.merge(secondary_events), subject);
    cluster.requests = first.requests.into_iter().chain(second.requests).collect();
    cluster
}

fn join_answers(workload: WorkloadAnswers, network: NetworkAnswers) -> (Cluster, ReceivedEvents) {
    let WorkloadAnswers { service, pods, near, events: pod_events } = workload;
    let NetworkAnswers { slices, events, leases, nodes, nodes_unasked } = network;
    let received = events.merge(pod_events);
    let cluster = Cluster { service, pods, near, slices, leases, nodes, nodes_unasked, ..Cluster::default() };
    (cluster, received)
}

/// Recognises the Events, once the uid of their Service is known.
fn set_events(cluster: &mut Cluster, received: ReceivedEvents, subject: ServiceSubject<'_>) {
    let uid = cluster.service.answer().and_then(|it| Some(it.as_ref()?.uid.as_str()));
    let judge = |events| {
        recognised_events::recognise_events(
            subject.edition.knowledge(),
            events,
            (subject.name, uid),
            subject.now,
        )
    };
    (cluster.events, cluster.more_events) = (received.list.map(judge), received.more);
}

/// The answers if no apiserver is queried, with the reason.
pub(super) fn skip_all(why: &'static str) -> Cluster {
    fill_all(&Lookup::Skipped(why))
}

/// The answers if no apiserver answers, with the reason.
fn fail_all(error: &str) -> Cluster {
    fill_all(&Lookup::Failed(error.into()))
}

/// The same missing answer for all queries.
fn fill_all(lookup: &Lookup<Infallible>) -> Cluster {
    fn convert_lookup<T>(lookup: &Lookup<Infallible>) -> Lookup<T> {
        lookup.clone().map(|never| match never {})
    }
    Cluster {
        service: convert_lookup(lookup),
        slices: convert_lookup(lookup),
        pods: convert_lookup(lookup),
        near: convert_lookup(lookup),
        endpoints: convert_lookup(lookup),
        hosted: convert_lookup(lookup),
        nodes: convert_lookup(lookup),
        leases: convert_lookup(lookup),
        address: convert_lookup(lookup),
        policies: convert_lookup(lookup),
        namespace: convert_lookup(lookup),
        events: convert_lookup(lookup),
        ..Cluster::default()
    }
}
