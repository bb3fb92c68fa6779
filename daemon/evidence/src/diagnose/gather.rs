//! Gathers the evidence that this daemon lacks: from the apiserver, this host, backends and name servers.
//!
//! Invariant: it reads and changes nothing, and ends within `DIAGNOSIS_TIMEOUT` even if no answer comes. Diagnoses do
//! not wait for each other. Tenants decide no address that it queries or dials, except those of the service's own
//! endpoints and frontends. It queries the cluster's DNS only for the service's name.

mod cluster;
mod host;
mod http;
mod name_servers;
mod probes;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use holdfast_core::keys::{Family, ObjectName, Source};
use holdfast_core::snapshot::{ServiceView, Snapshot};
use holdfast_diagnose::evidence::{Cluster, DnsReplies, Host, HttpProbe, Lookup, Probe, ReceivedEvents};
use holdfast_diagnose::{Focus, KnownServices, find_views};
use tokio::sync::watch;
use tokio::time::Instant;

use super::limits::{DIAGNOSIS_TIMEOUT, PROBES_AT_ONCE, RENDER_RESERVE};
use crate::knowledge::{self, Edition, Editions};
use cluster::{EventCache, ServiceSubject};
use holdfast_config::{Config, EventsRead};
use holdfast_kubernetes::apiserver::Access;
use host::HostQuery;
use probes::ProbeTarget;

/// Gathers everything that the daemon does not know by itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gatherer {
    access: Option<Access>,
    node: Arc<str>,
    config: watch::Receiver<Arc<Config>>,
    editions: Editions,
    events: Arc<EventCache>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherOptions {
    pub api: bool,
    pub probes: bool,
    /// Why frontends are not dialled from here. `None`: they are.
    pub frontend_skip_reason: Option<&'static str>,
    /// The time limit. `None`, and the most: the limit of any diagnosis.
    pub time_limit: Option<Duration>,
}

#[derive(Debug)]
pub struct ExternalEvidence {
    pub cluster: Cluster,
    pub host: Host,
    pub probes: Lookup<Vec<Probe>>,
    pub http: Lookup<Vec<HttpProbe>>,
    pub names: Lookup<DnsReplies>,
}

impl Gatherer {
    /// `config` says whether Events are read; `node` is this node's name.
    pub fn new(access: Option<Access>, node: Arc<str>, config: watch::Receiver<Arc<Config>>) -> Self {
        Self { access, node, config, editions: knowledge::built_in(), events: Arc::default() }
    }

    /// Recognises Events by these editions instead of the built-in knowledge alone.
    #[must_use]
    pub fn with_editions(self, editions: Editions) -> Self {
        Self { editions, ..self }
    }

    /// Queries the apiserver, this host, backends and name servers at once; then, by HTTP, the backends that took a
    /// connection. It ends within the time of a diagnosis, and queries only for the services of `known`.
    pub async fn gather_evidence(
        &self,
        known: &KnownServices,
        (options, focus): (GatherOptions, &Focus),
    ) -> ExternalEvidence {
        let within = options.time_limit.unwrap_or(DIAGNOSIS_TIMEOUT).min(DIAGNOSIS_TIMEOUT);
        let deadline = Instant::now() + within.saturating_sub(RENDER_RESERVE);
        let (name, snapshot, views) = (known.name(), known.snapshot(), known.views());
        let own = host::host_addresses().unwrap_or_default();
        let backends = probes::backend_targets(views, &self.node, &own);
        let wanted = HostQuery::from_views(views, &backends)
            .with_manifests(self.config.borrow().manifests.path.as_deref(), views);
        let servers = NameServers::new(name, views, snapshot, (&self.node, &own));
        let (mut cluster, host, probes, names) = tokio::join!(
            self.query_cluster(name, views, options, deadline),
            host::gather(wanted, deadline),
            dial_targets(snapshot, views, backends, options, deadline),
            servers.query(options, deadline)
        );
        if let (Lookup::Answered(Some(seen)), Some(port)) = (&mut cluster.service, &focus.port) {
            seen.retain_port(port);
        }
        let http =
            http::query_backends(focus.http.as_ref(), name, (views, &cluster), &probes, deadline).await;
        ExternalEvidence { cluster, host, probes, http, names }
    }

    /// Like `gather_evidence`, for callers outside this crate, which can only print the result.
    pub async fn gather_opaque(
        &self,
        name: &ObjectName,
        snapshot: &Snapshot,
        options: GatherOptions,
    ) -> impl fmt::Debug + use<> {
        let focus = Focus::default();
        let known = KnownServices::find(name.clone(), Arc::new(snapshot.clone()), &focus);
        self.gather_evidence(&known, (options, &focus)).await
    }

    /// Queries Events alone: about one service and its pods, or about what all services depend on. Returns them with
    /// the edition that recognises them.
    pub async fn query_events(
        &self,
        about: Option<&ObjectName>,
        snapshot: &Snapshot,
    ) -> (ReceivedEvents, Arc<Edition>) {
        let deadline = Instant::now() + DIAGNOSIS_TIMEOUT.saturating_sub(RENDER_RESERVE);
        let views = about.map(|name| find_views(name, snapshot)).unwrap_or_default();
        let received = match &self.access {
            Some(access) => {
                let about = about.map(|name| (name, views.as_slice()));
                cluster::list_events(
                    access,
                    (&self.events, self.is_events_enabled()),
                    about,
                    &self.node,
                    deadline,
                )
                .await
            }
            None => ReceivedEvents::from_lookup(Lookup::Skipped("no apiserver is used")),
        };
        (received, self.edition())
    }

    /// Like `query_events`, for callers outside this crate, which can only print the result.
    pub async fn query_events_opaque(
        &self,
        about: Option<&ObjectName>,
        snapshot: &Snapshot,
    ) -> impl fmt::Debug + use<> {
        self.query_events(about, snapshot).await.0
    }

    fn is_events_enabled(&self) -> bool {
        self.config.borrow().kubernetes.events_read != EventsRead::Off
    }

    /// The editions that recognise Events, for callers that follow their changes.
    pub fn editions(&self) -> Editions {
        self.editions.clone()
    }

    pub(crate) fn edition(&self) -> Arc<Edition> {
        Arc::clone(&self.editions.borrow())
    }

    async fn query_cluster(
        &self,
        name: &ObjectName,
        views: &[Arc<ServiceView>],
        options: GatherOptions,
        deadline: Instant,
    ) -> Cluster {
        let is_import = |view: &Arc<ServiceView>| view.key.source == Source::ClusterSet;
        match &self.access {
            Some(_) if options.api && !views.is_empty() && views.iter().all(is_import) => {
                cluster::skip_all("it is a ServiceImport, and no Service is behind it")
            }
            Some(access) if options.api => {
                let now = holdfast_host::clock::now().seconds();
                let edition = self.edition();
                let subject = ServiceSubject { name, views, node: &self.node, now, edition: &edition };
                cluster::gather(access, (&self.events, self.is_events_enabled()), subject, deadline).await
            }
            Some(_) => cluster::skip_all("the apiserver was not to be queried"),
            None => cluster::skip_all("no apiserver is used"),
        }
    }
}

async fn dial_targets(
    snapshot: &Snapshot,
    views: &[Arc<ServiceView>],
    backends: Vec<ProbeTarget>,
    options: GatherOptions,
    deadline: Instant,
) -> Lookup<Vec<Probe>> {
    if !options.probes {
        return Lookup::Skipped("no connection was to be tried");
    }
    let mut targets = probes::frontend_targets(views, snapshot, options.frontend_skip_reason);
    targets.extend(backends);
    Lookup::Answered(probes::dial_targets(targets, deadline).await)
}

const DNS_SERVICE: (&str, &str) = ("kube-system", "kube-dns");
const DNS_PORT: u16 = 53;

struct NameServers<'a> {
    name: &'a ObjectName,
    is_v6: bool,
    service_servers: Vec<SocketAddr>,
    cluster_server: Option<SocketAddr>,
}

impl<'a> NameServers<'a> {
    fn new(
        name: &'a ObjectName,
        its: &[Arc<ServiceView>],
        snapshot: &Snapshot,
        (node, own): (&str, &[IpAddr]),
    ) -> Self {
        let allowed = |views: &[Arc<ServiceView>]| {
            let all = probes::name_server_targets(views, DNS_PORT, node, own).into_iter();
            all.filter(|it| it.skip_reason.is_none()).map(|it| it.to).collect::<Vec<_>>()
        };
        let dns = ObjectName::new(DNS_SERVICE.0, DNS_SERVICE.1)
            .map(|dns| find_views(&dns, snapshot))
            .unwrap_or_default();
        let facts = its.iter().find_map(|view| view.facts.as_deref());
        let first = facts.and_then(|facts| facts.cluster_ips.first().map(|ip| Family::from_address(*ip)));
        let family = first.or_else(|| facts?.ip_families.first().copied());
        Self {
            name,
            is_v6: family == Some(Family::V6),
            service_servers: allowed(its),
            cluster_server: allowed(&dns).first().copied(),
        }
    }

    async fn query(self, options: GatherOptions, deadline: Instant) -> Lookup<DnsReplies> {
        if !options.probes {
            return Lookup::Skipped("no connection was to be tried");
        }
        let servers = futures_util::stream::iter(self.service_servers)
            .map(async |to| (to, name_servers::query_common_name(to, deadline).await))
            .buffered(PROBES_AT_ONCE)
            .collect();
        let of_cluster = async {
            let Some(at) = self.cluster_server else { return (None, None) };
            let (own, everywhere) = tokio::join!(
                name_servers::query_service_name(at, self.name, self.is_v6, deadline),
                name_servers::query_common_name(at, deadline)
            );
            (Some((at, own)), Some(everywhere))
        };
        let (servers, (own, everywhere)) = tokio::join!(servers, of_cluster);
        Lookup::Answered(DnsReplies { servers, own, everywhere })
    }
}
