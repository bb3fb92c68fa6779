//! Gathers what a diagnosis needs and this daemon does not know: from the apiserver, this host, backends, name servers.
//!
//! Invariant: it asks and changes nothing, and ends within `DIAGNOSIS_TIMEOUT` even where no answer comes. Diagnoses do not wait
//! for each other. Nothing that a tenant wrote decides which address it asks or dials, but for the addresses of the
//! service's own endpoints and frontends; the cluster's DNS is asked for the name of the service alone.

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

/// Asks for everything that the daemon does not know by itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gatherer {
    access: Option<Access>,
    node: Arc<str>,
    config: watch::Receiver<Arc<Config>>,
    editions: Editions,
    events: Arc<EventCache>,
}

/// What to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherOptions {
    /// Whether anything is asked of an apiserver.
    pub api: bool,
    /// Whether connections are tried.
    pub probes: bool,
    /// Why frontends are not dialled from here; `None`: they are.
    pub frontend_skip_reason: Option<&'static str>,
    /// How long all of it may take; `None`: as long as any diagnosis may, which is also the most.
    pub time_limit: Option<Duration>,
}

/// What the apiserver, this host, backends and name servers said.
#[derive(Debug)]
pub struct ExternalEvidence {
    pub cluster: Cluster,
    pub host: Host,
    pub probes: Lookup<Vec<Probe>>,
    pub http: Lookup<Vec<HttpProbe>>,
    pub names: Lookup<DnsReplies>,
}

impl Gatherer {
    /// `config` says whether Events are read, `node` which node is the own one.
    pub fn new(access: Option<Access>, node: Arc<str>, config: watch::Receiver<Arc<Config>>) -> Self {
        Self { access, node, config, editions: knowledge::built_in(), events: Arc::default() }
    }

    /// Recognises Events by these editions, in place of the built-in knowledge alone.
    #[must_use]
    pub fn with_editions(self, editions: Editions) -> Self {
        Self { editions, ..self }
    }

    /// Asks the apiserver, this host, backends and name servers at once; then, by HTTP, the backends that took a
    /// connection. All of it ends within the time of a diagnosis, and is about what is judged: the services of `known`.
    pub async fn gather_evidence(
        &self,
        known: &KnownServices,
        (asks, focus): (GatherOptions, &Focus),
    ) -> ExternalEvidence {
        let within = asks.time_limit.unwrap_or(DIAGNOSIS_TIMEOUT).min(DIAGNOSIS_TIMEOUT);
        let deadline = Instant::now() + within.saturating_sub(RENDER_RESERVE);
        let (name, snapshot, views) = (known.name(), known.snapshot(), known.views());
        let own = host::host_addresses().unwrap_or_default();
        let backends = probes::backend_targets(views, &self.node, &own);
        let wanted = HostQuery::from_views(views, &backends);
        let servers = NameServers::new(name, views, snapshot, (&self.node, &own));
        let (mut cluster, host, probes, names) = tokio::join!(
            self.query_cluster(name, views, asks, deadline),
            host::gather(wanted, deadline),
            dial_targets(snapshot, views, backends, asks, deadline),
            servers.query(asks, deadline)
        );
        if let (Lookup::Answered(Some(seen)), Some(port)) = (&mut cluster.service, &focus.port) {
            seen.retain_port(port);
        }
        let http =
            http::query_backends(focus.http.as_ref(), name, (views, &cluster), &probes, deadline).await;
        ExternalEvidence { cluster, host, probes, http, names }
    }

    /// As `gather_evidence`, for callers outside this crate, which can only show the result.
    pub async fn gather_opaque(
        &self,
        name: &ObjectName,
        snapshot: &Snapshot,
        asks: GatherOptions,
    ) -> impl fmt::Debug + use<> {
        let focus = Focus::default();
        let known = KnownServices::find(name.clone(), Arc::new(snapshot.clone()), &focus);
        self.gather_evidence(&known, (asks, &focus)).await
    }

    /// Asks for Events alone: about one service and its pods, or about what all services depend on. Returns them with
    /// the edition by which they are recognised.
    pub async fn query_events(
        &self,
        about: Option<&ObjectName>,
        snapshot: &Snapshot,
    ) -> (ReceivedEvents, Arc<Edition>) {
        let deadline = Instant::now() + DIAGNOSIS_TIMEOUT.saturating_sub(RENDER_RESERVE);
        let views = about.map(|name| find_views(name, snapshot)).unwrap_or_default();
        let heard = match &self.access {
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
        (heard, self.edition())
    }

    /// As `query_events`, for callers outside this crate, which can only show the result.
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

    /// The editions by which Events are recognised, for callers that follow their changes.
    pub fn editions(&self) -> Editions {
        self.editions.clone()
    }

    /// The newest of these editions.
    pub(crate) fn edition(&self) -> Arc<Edition> {
        Arc::clone(&self.editions.borrow())
    }

    async fn query_cluster(
        &self,
        name: &ObjectName,
        views: &[Arc<ServiceView>],
        asks: GatherOptions,
        deadline: Instant,
    ) -> Cluster {
        let is_import = |view: &Arc<ServiceView>| view.key.source == Source::ClusterSet;
        match &self.access {
            Some(_) if asks.api && !views.is_empty() && views.iter().all(is_import) => {
                cluster::skip_all("it is a ServiceImport, and no Service is behind it")
            }
            Some(access) if asks.api => {
                let now = holdfast_host::clock::now().seconds();
                let edition = self.edition();
                let subject = ServiceSubject { name, views, node: &self.node, now, edition: &edition };
                cluster::gather(access, (&self.events, self.is_events_enabled()), subject, deadline).await
            }
            Some(_) => cluster::skip_all("the apiserver was not to be asked"),
            None => cluster::skip_all("no apiserver is used"),
        }
    }
}

async fn dial_targets(
    snapshot: &Snapshot,
    views: &[Arc<ServiceView>],
    backends: Vec<ProbeTarget>,
    asks: GatherOptions,
    deadline: Instant,
) -> Lookup<Vec<Probe>> {
    if !asks.probes {
        return Lookup::Skipped("no connection was to be tried");
    }
    let mut targets = probes::frontend_targets(views, snapshot, asks.frontend_skip_reason);
    targets.extend(backends);
    Lookup::Answered(probes::dial_targets(targets, deadline).await)
}

/// The Service of the cluster's DNS, and its port.
const DNS_SERVICE: (&str, &str) = ("kube-system", "kube-dns");
const DNS_PORT: u16 = 53;

/// The name servers that are asked.
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

    async fn query(self, asks: GatherOptions, deadline: Instant) -> Lookup<DnsReplies> {
        if !asks.probes {
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
