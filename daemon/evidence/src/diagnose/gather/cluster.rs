//! What the apiserver says of one service: a few questions, those that matter most first.
//!
//! Invariant: at most [`REQUESTS_MAX`] requests, all ended at one deadline, over two connections that no watch uses. Of
//! what an answer says, only names that are checked lead to further questions; a question that was left out says so.

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

/// The service that is asked about, and what this node knows of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServiceSubject<'a> {
    pub(super) name: &'a ObjectName,
    pub(super) views: &'a [Arc<ServiceView>],
    /// The own node.
    pub(super) node: &'a str,
    pub(super) now: Timestamp,
    /// The knowledge by which Events are recognised, if there are any.
    pub(super) edition: &'a Edition,
}

impl ServiceSubject<'_> {
    /// Whether the service is to have a load balancer and has no address of it yet, or is to lose it: only then does
    /// the controller that makes load balancers matter.
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

    /// Whether the service may collide with host ports of pods: it can where it has an address or port of this host.
    fn may_have_host_ports(&self) -> bool {
        self.facts().any(|facts| {
            facts.ports.iter().any(|port| port.node_port.is_some())
                || !facts.external_ips.is_empty()
                || !facts.ingress.is_empty()
        })
    }

    fn cluster_ip(&self) -> Option<IpAddr> {
        let given_out = self.facts().filter(|facts| facts.kind != ServiceType::ClusterSetIp);
        given_out.flat_map(|facts| facts.cluster_ips.first()).copied().next()
    }
}

/// The names that every path begins with.
#[derive(Clone, Copy, Debug)]
struct ServiceNames<'a> {
    namespace: PathSegment<'a>,
    service: PathSegment<'a>,
}

impl ServiceNames<'_> {
    /// A question about the namespace's objects of one kind.
    fn namespaced_query(&self, name: &'static str, path: String, mut right: Right) -> ApiQuery {
        right.namespace = Some(self.namespace.as_str().into());
        ApiQuery { name, path, right }
    }
}

/// The right to use these verbs on this resource, in all namespaces.
const fn rbac_right(group: &'static str, resource: &'static str, verbs: &'static str) -> Right {
    Right { group, resource, verbs, namespace: None }
}

/// Asks until everything is answered or the time is over.
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
    let (mut cluster, heard) = join_answers(workload, network);
    let filed = secondary::query_secondary(&mut first, &reading, names, subject, &mut cluster).await;
    set_events(&mut cluster, heard.merge(filed), subject);
    cluster.requests = first.requests.into_iter().chain(second.requests).collect();
    cluster
}

fn join_answers(workload: WorkloadAnswers, network: NetworkAnswers) -> (Cluster, ReceivedEvents) {
    let WorkloadAnswers { service, pods, near, events: of_pods } = workload;
    let NetworkAnswers { slices, events, leases, nodes, nodes_unasked } = network;
    let heard = events.merge(of_pods);
    let cluster = Cluster { service, pods, near, slices, leases, nodes, nodes_unasked, ..Cluster::default() };
    (cluster, heard)
}

/// Judges each Event by what is known of it, as soon as it is known which Service it must be about.
fn set_events(cluster: &mut Cluster, heard: ReceivedEvents, subject: ServiceSubject<'_>) {
    let uid = cluster.service.answer().and_then(|it| Some(it.as_ref()?.uid.as_str()));
    let judge = |events| {
        recognised_events::recognise_events(
            subject.edition.knowledge(),
            events,
            (subject.name, uid),
            subject.now,
        )
    };
    (cluster.events, cluster.more_events) = (heard.list.map(judge), heard.more);
}

/// The answers if no apiserver was asked, for this reason.
pub(super) fn skip_all(why: &'static str) -> Cluster {
    fill_all(&Lookup::Skipped(why))
}

/// The answers if no apiserver answers, for this reason.
fn fail_all(error: &str) -> Cluster {
    fill_all(&Lookup::Failed(error.into()))
}

/// The same answer to all questions, which is that there is none.
fn fill_all(asked: &Lookup<Infallible>) -> Cluster {
    fn convert_lookup<T>(asked: &Lookup<Infallible>) -> Lookup<T> {
        asked.clone().map(|never| match never {})
    }
    Cluster {
        service: convert_lookup(asked),
        slices: convert_lookup(asked),
        pods: convert_lookup(asked),
        near: convert_lookup(asked),
        endpoints: convert_lookup(asked),
        hosted: convert_lookup(asked),
        nodes: convert_lookup(asked),
        leases: convert_lookup(asked),
        address: convert_lookup(asked),
        policies: convert_lookup(asked),
        namespace: convert_lookup(asked),
        events: convert_lookup(asked),
        ..Cluster::default()
    }
}
