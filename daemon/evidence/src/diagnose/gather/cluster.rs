//! What the apiserver says of one service: a few questions, those that matter most first.
//!
//! Invariant: at most [`REQUESTS_MAX`] requests, all ended at one deadline, over two connections that no watch uses. Of
//! what an answer says, only names that are checked lead to further questions; a question that was left out says so.

mod ask;
mod beside;
mod events;
mod filed;
mod heard;
mod judged;
mod network;
mod objects;
mod paths;
mod workload;

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::facts::{ServiceFacts, ServiceType, Timestamp};
use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::ServiceView;
use holdfast_diagnose::material::{Asked, Cluster, Heard, Right};
use tokio::time::Instant;

use crate::diagnose::limits::REQUESTS_MAX;
use crate::knowledge::Edition;
use ask::{Bounds, Lane, Question};
use holdfast_kubernetes::apiserver::Access;
use network::Network;
use paths::Name;
use workload::Workload;

pub(super) use events::Events;
pub(super) use heard::hear;

/// The service that is asked about, and what this node knows of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) name: &'a ObjectName,
    pub(super) views: &'a [Arc<ServiceView>],
    /// The own node.
    pub(super) node: &'a str,
    pub(super) now: Timestamp,
    /// The knowledge by which Events are recognised, if there are any.
    pub(super) edition: &'a Edition,
}

impl Subject<'_> {
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
    fn has_host_ports(&self) -> bool {
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
struct Names<'a> {
    namespace: Name<'a>,
    service: Name<'a>,
}

impl Names<'_> {
    /// A question about the namespace's objects of one kind.
    fn question(&self, name: &'static str, path: String, mut right: Right) -> Question {
        right.namespace = Some(self.namespace.as_str().into());
        Question { name, path, right }
    }
}

/// The right to use these verbs on this resource, in all namespaces.
const fn right(group: &'static str, resource: &'static str, verbs: &'static str) -> Right {
    Right { group, resource, verbs, namespace: None }
}

/// Asks until everything is answered or the time is over.
pub(super) async fn gather(
    access: &Access,
    (events, reads_events): (&Events, bool),
    subject: Subject<'_>,
    deadline: Instant,
) -> Cluster {
    let names = (Name::new(subject.name.namespace()), Name::new(subject.name.name()));
    let (Some(namespace), Some(service)) = names else { return none("no object can have this name") };
    let names = Names { namespace, service };
    let bounds = Bounds::new(deadline, REQUESTS_MAX);
    let mut first = Lane::new(access, &bounds);
    let mut second = Lane::new(access, &bounds);
    if let Err(error) = first.open().await {
        return none(&error);
    }
    let reading = events.begin(reads_events, Instant::now());
    let (workload, network) = tokio::join!(
        workload::ask(&mut first, &reading, names),
        network::ask(&mut second, &reading, names, subject)
    );
    let (mut cluster, heard) = together(workload, network);
    let filed = beside::ask(&mut first, &reading, names, subject, &mut cluster).await;
    tell(&mut cluster, heard.with(filed), subject);
    cluster.requests = first.requests.into_iter().chain(second.requests).collect();
    cluster
}

fn together(workload: Workload, network: Network) -> (Cluster, Heard) {
    let Workload { service, pods, near, events: of_pods } = workload;
    let Network { slices, events, leases, nodes, nodes_unasked } = network;
    let heard = events.with(of_pods);
    let cluster = Cluster { service, pods, near, slices, leases, nodes, nodes_unasked, ..Cluster::default() };
    (cluster, heard)
}

/// Judges each Event by what is known of it, as soon as it is known which Service it must be about.
fn tell(cluster: &mut Cluster, heard: Heard, subject: Subject<'_>) {
    let uid = cluster.service.answer().and_then(|it| Some(it.as_ref()?.uid.as_str()));
    let judge = |events| judged::judge(subject.edition.knowledge(), events, (subject.name, uid), subject.now);
    (cluster.events, cluster.more_events) = (heard.list.map(judge), heard.more);
}

/// The answers if no apiserver was asked, for this reason.
pub(super) fn not(why: &'static str) -> Cluster {
    all(&Asked::Not(why))
}

/// The answers if no apiserver answers, for this reason.
fn none(error: &str) -> Cluster {
    all(&Asked::Failed(error.into()))
}

/// The same answer to all questions, which is that there is none.
fn all(asked: &Asked<Infallible>) -> Cluster {
    fn same<T>(asked: &Asked<Infallible>) -> Asked<T> {
        asked.clone().map(|never| match never {})
    }
    Cluster {
        service: same(asked),
        slices: same(asked),
        pods: same(asked),
        near: same(asked),
        endpoints: same(asked),
        hosted: same(asked),
        nodes: same(asked),
        leases: same(asked),
        address: same(asked),
        policies: same(asked),
        namespace: same(asked),
        events: same(asked),
        ..Cluster::default()
    }
}
