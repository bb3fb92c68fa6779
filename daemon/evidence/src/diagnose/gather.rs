//! Gathers what a diagnosis needs and this daemon does not know: from the apiserver, this host, backends, name servers.
//!
//! Invariant: it asks and changes nothing, and ends within `TOTAL` even where no answer comes. Diagnoses do not wait
//! for each other. Nothing that a tenant wrote decides which address it asks or dials, but for the addresses of the
//! service's own endpoints and frontends; the cluster's DNS is asked for the name of the service alone.

mod cluster;
mod host;
mod http;
mod names;
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
use holdfast_diagnose::material::{Asked, Cluster, Heard, Host, HttpProbe, Names, Probe};
use holdfast_diagnose::{Focus, Known, views};
use tokio::sync::watch;
use tokio::time::Instant;

use super::limits::{PROBES_AT_ONCE, RESERVE, TOTAL};
use crate::knowledge::{self, Edition, Editions};
use cluster::{Events, Subject};
use holdfast_config::{Config, EventsRead};
use holdfast_kubernetes::apiserver::Access;
use host::Wanted;
use probes::Target;

/// Asks for everything that the daemon does not know by itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gatherer {
    access: Option<Access>,
    node: Arc<str>,
    config: watch::Receiver<Arc<Config>>,
    editions: Editions,
    events: Arc<Events>,
}

/// What to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asks {
    /// Whether anything is asked of an apiserver.
    pub api: bool,
    /// Whether connections are tried.
    pub probes: bool,
    /// Why frontends are not dialled from here; `None`: they are.
    pub frontends_not: Option<&'static str>,
    /// How long all of it may take; `None`: as long as any diagnosis may, which is also the most.
    pub within: Option<Duration>,
}

/// What the apiserver, this host, backends and name servers said.
#[derive(Debug)]
pub struct Outside {
    pub cluster: Cluster,
    pub host: Host,
    pub probes: Asked<Vec<Probe>>,
    pub http: Asked<Vec<HttpProbe>>,
    pub names: Asked<Names>,
}

impl Gatherer {
    /// `config` says whether Events are read, `node` which node is the own one.
    pub fn new(access: Option<Access>, node: Arc<str>, config: watch::Receiver<Arc<Config>>) -> Self {
        Self { access, node, config, editions: knowledge::built_in(), events: Arc::default() }
    }

    /// Recognises Events by these editions, in place of the built-in knowledge alone.
    #[must_use]
    pub fn recognising_by(self, editions: Editions) -> Self {
        Self { editions, ..self }
    }

    /// Asks the apiserver, this host, backends and name servers at once; then, by HTTP, the backends that took a
    /// connection. All of it ends within the time of a diagnosis, and is about what is judged: the services of `known`.
    pub async fn outside(&self, known: &Known, (asks, focus): (Asks, &Focus)) -> Outside {
        let within = asks.within.unwrap_or(TOTAL).min(TOTAL);
        let deadline = Instant::now() + within.saturating_sub(RESERVE);
        let (name, snapshot, views) = (known.name(), known.snapshot(), known.views());
        let own = host::addresses().unwrap_or_default();
        let backends = probes::backends(views, &self.node, &own);
        let wanted = Wanted::of(views, &backends);
        let servers = Servers::of(name, views, snapshot, (&self.node, &own));
        let (mut cluster, host, probes, names) = tokio::join!(
            self.cluster(name, views, asks, deadline),
            host::gather(wanted, deadline),
            probe(snapshot, views, backends, asks, deadline),
            servers.asked(asks, deadline)
        );
        if let (Asked::Answered(Some(seen)), Some(port)) = (&mut cluster.service, &focus.port) {
            seen.narrow(port);
        }
        let http = http::ask(focus.http.as_ref(), name, (views, &cluster), &probes, deadline).await;
        Outside { cluster, host, probes, http, names }
    }

    /// As `outside`, for callers outside this crate, which can only show the result.
    pub async fn ask(&self, name: &ObjectName, snapshot: &Snapshot, asks: Asks) -> impl fmt::Debug + use<> {
        let focus = Focus::default();
        let known = Known::of(name.clone(), Arc::new(snapshot.clone()), &focus);
        self.outside(&known, (asks, &focus)).await
    }

    /// Asks for Events alone: about one service and its pods, or about what all services depend on. Returns them with
    /// the edition by which they are recognised.
    pub async fn events(&self, about: Option<&ObjectName>, snapshot: &Snapshot) -> (Heard, Arc<Edition>) {
        let deadline = Instant::now() + TOTAL.saturating_sub(RESERVE);
        let views = about.map(|name| views(name, snapshot)).unwrap_or_default();
        let heard = match &self.access {
            Some(access) => {
                let about = about.map(|name| (name, views.as_slice()));
                cluster::hear(access, (&self.events, self.reads_events()), about, &self.node, deadline).await
            }
            None => Heard::without(Asked::Not("no apiserver is used")),
        };
        (heard, self.edition())
    }

    /// As `events`, for callers outside this crate, which can only show the result.
    pub async fn hear(&self, about: Option<&ObjectName>, snapshot: &Snapshot) -> impl fmt::Debug + use<> {
        self.events(about, snapshot).await.0
    }

    fn reads_events(&self) -> bool {
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

    async fn cluster(
        &self,
        name: &ObjectName,
        views: &[Arc<ServiceView>],
        asks: Asks,
        deadline: Instant,
    ) -> Cluster {
        let is_import = |view: &Arc<ServiceView>| view.key.source == Source::ClusterSet;
        match &self.access {
            Some(_) if asks.api && !views.is_empty() && views.iter().all(is_import) => {
                cluster::not("it is a ServiceImport, and no Service is behind it")
            }
            Some(access) if asks.api => {
                let now = holdfast_host::clock::now().seconds();
                let edition = self.edition();
                let subject = Subject { name, views, node: &self.node, now, edition: &edition };
                cluster::gather(access, (&self.events, self.reads_events()), subject, deadline).await
            }
            Some(_) => cluster::not("the apiserver was not to be asked"),
            None => cluster::not("no apiserver is used"),
        }
    }
}

async fn probe(
    snapshot: &Snapshot,
    views: &[Arc<ServiceView>],
    backends: Vec<Target>,
    asks: Asks,
    deadline: Instant,
) -> Asked<Vec<Probe>> {
    if !asks.probes {
        return Asked::Not("no connection was to be tried");
    }
    let mut targets = probes::frontends(views, snapshot, asks.frontends_not);
    targets.extend(backends);
    Asked::Answered(probes::dial(targets, deadline).await)
}

/// The Service of the cluster's DNS, and its port.
const DNS: (&str, &str) = ("kube-system", "kube-dns");
const DNS_PORT: u16 = 53;

/// The name servers that are asked.
struct Servers<'a> {
    name: &'a ObjectName,
    is_v6: bool,
    of_service: Vec<SocketAddr>,
    of_cluster: Option<SocketAddr>,
}

impl<'a> Servers<'a> {
    fn of(
        name: &'a ObjectName,
        its: &[Arc<ServiceView>],
        snapshot: &Snapshot,
        (node, own): (&str, &[IpAddr]),
    ) -> Self {
        let allowed = |views: &[Arc<ServiceView>]| {
            let all = probes::name_servers(views, DNS_PORT, node, own).into_iter();
            all.filter(|it| it.not.is_none()).map(|it| it.to).collect::<Vec<_>>()
        };
        let dns = ObjectName::new(DNS.0, DNS.1).map(|dns| views(&dns, snapshot)).unwrap_or_default();
        let facts = its.iter().find_map(|view| view.facts.as_deref());
        let first = facts.and_then(|facts| facts.cluster_ips.first().map(|ip| Family::from_address(*ip)));
        let family = first.or_else(|| facts?.ip_families.first().copied());
        Self {
            name,
            is_v6: family == Some(Family::V6),
            of_service: allowed(its),
            of_cluster: allowed(&dns).first().copied(),
        }
    }

    async fn asked(self, asks: Asks, deadline: Instant) -> Asked<Names> {
        if !asks.probes {
            return Asked::Not("no connection was to be tried");
        }
        let servers = futures_util::stream::iter(self.of_service)
            .map(async |to| (to, names::answers(to, deadline).await))
            .buffered(PROBES_AT_ONCE)
            .collect();
        let of_cluster = async {
            let Some(at) = self.of_cluster else { return (None, None) };
            let (own, everywhere) = tokio::join!(
                names::of_service(at, self.name, self.is_v6, deadline),
                names::answers(at, deadline)
            );
            (Some((at, own)), Some(everywhere))
        };
        let (servers, (own, everywhere)) = tokio::join!(servers, of_cluster);
        Asked::Answered(Names { servers, own, everywhere })
    }
}
