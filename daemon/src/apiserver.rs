//! The way to the apiserver: ordered, pinned, and never through what this daemon programs.
//!
//! Invariant: every address is an IP address, every socket is marked, every wait has an end, and failover sits above TLS and
//! HTTP, so that a wrong certificate and a 503 lead to the next endpoint as a refused connection does. Deliberately
//! absent: DNS, proxies, pools, and any retry of a request that an apiserver has judged.

mod credentials;
mod endpoints;
mod http;
mod identity;
mod lease;
mod limits;
mod socket;
mod tls;
mod trouble;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;

use crate::config::Apiserver;
use credentials::Places;
use endpoints::Endpoints;
use http::{Dial, Headers};
use lease::{Place, Shared};
use limits::{DIAL, HEADERS, SHORT_BODY, SHORT_BODY_BYTES_MAX};

pub use endpoints::{State, Tier};
pub use http::{Connection, Reply};
pub use identity::ClusterId;
pub use trouble::Trouble;

/// What access is built from.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `[apiserver]`.
    pub apiserver: Apiserver,
    /// The mark of this daemon's sockets; none where nothing would look at it.
    pub mark: Option<u32>,
    /// The folder for what is learned.
    pub state: PathBuf,
    /// The cluster that this node belongs to, if something remembers it.
    pub known_cluster: Option<ClusterId>,
    /// Spreads penalties and checks.
    pub seed: u64,
}

/// Why access cannot be built: only an edit of the configuration helps.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Nothing says whom to trust.
    #[error("[apiserver] names no certificate authority: set `ca_file` or `kubeconfig`")]
    NoAuthority,
    /// The name cannot stand in a certificate.
    #[error("[apiserver] tls_server_name {0:?} is neither a DNS name nor an IP address")]
    ServerName(String),
}

/// What one endpoint said, or why it said nothing.
#[derive(Clone, Debug)]
pub struct Failure {
    /// `address:port`.
    pub endpoint: Arc<str>,
    /// What was wrong.
    pub trouble: Trouble,
}

/// Why there is no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AccessError {
    /// Nothing says where an apiserver is.
    #[error("no apiserver is known: neither configured, nor in kubelet's kubeconfig, nor learned")]
    NoEndpoint,
    /// Each endpoint that was asked, in order; one only if the answer broke off.
    #[error("{}", .0.iter().map(|it| format!("{}: {}", it.endpoint, it.trouble)).collect::<Vec<_>>().join("; "))]
    Failed(Vec<Failure>),
}

impl AccessError {
    fn of(endpoint: &Arc<str>, trouble: Trouble) -> Self {
        Self::Failed(vec![Failure { endpoint: Arc::clone(endpoint), trouble }])
    }
}

/// What answers are asked in, unless the caller wants another form.
const JSON: &str = "application/json";

/// Ordered, pinned access. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Access {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    endpoints: Shared,
    places: Places,
    server_name: Option<ServerName<'static>>,
    mark: Option<u32>,
    cluster: Mutex<Option<ClusterId>>,
}

impl Access {
    /// Reads the configuration; nothing is dialled yet.
    pub fn new(settings: &Settings) -> Result<Self, SetupError> {
        let apiserver = &settings.apiserver;
        let ca_file = apiserver.ca_file.clone().ok_or(SetupError::NoAuthority)?;
        let server_name = apiserver
            .tls_server_name
            .clone()
            .map(|name| ServerName::try_from(name.clone()).map_err(|_| SetupError::ServerName(name)));
        let mut endpoints = Endpoints::new(settings.seed);
        let configured: Vec<_> = apiserver.endpoints.iter().map(|it| it.address()).collect();
        endpoints.set(Tier::Configured, &configured, Instant::now());
        Ok(Self {
            inner: Arc::new(Inner {
                endpoints: Shared::new(endpoints),
                places: Places { ca_file, identity: apiserver.identity.clone() },
                server_name: server_name.transpose()?,
                mark: settings.mark,
                cluster: Mutex::new(settings.known_cluster.clone()),
            }),
        })
    }

    /// GETs, over `kept` if given, else over a new connection to the best endpoint that serves.
    ///
    /// A status that is about the request comes back as a reply; what is about the endpoint leads to the next one.
    pub async fn get(&self, path_and_query: &str, kept: Option<Connection>) -> Result<Reply, AccessError> {
        self.get_as(JSON, path_and_query, kept).await
    }

    /// [`Access::get`] with a form of its own, as `Accept` spells it.
    pub async fn get_as(
        &self,
        accept: &'static str,
        path_and_query: &str,
        kept: Option<Connection>,
    ) -> Result<Reply, AccessError> {
        if let Some(reply) = self.get_over(kept, accept, path_and_query).await {
            return Ok(reply);
        }
        let order = self.inner.endpoints.lock().order(Instant::now());
        let mut failures = Vec::new();
        for place in order.into_iter().filter_map(|id| self.inner.endpoints.place(id)) {
            match self.attempt(&place, accept, path_and_query).await {
                Ok(reply) => {
                    place.served();
                    return Ok(reply);
                }
                Err(trouble) => {
                    place.dial_failed(trouble.clone());
                    failures.push(Failure { endpoint: place.name, trouble });
                }
            }
        }
        if failures.is_empty() { Err(AccessError::NoEndpoint) } else { Err(AccessError::Failed(failures)) }
    }

    /// Over a connection that may have died while it was idle: that says nothing about its endpoint.
    async fn get_over(&self, kept: Option<Connection>, accept: &'static str, path: &str) -> Option<Reply> {
        let shown = credentials::read(&self.inner.places).await.ok()?;
        let headers = Headers { accept, authorization: shown.authorization };
        let reply = kept?.get(path, &headers, HEADERS).await.ok()?;
        (!is_about_endpoint(reply.status)).then_some(reply)
    }

    async fn attempt(&self, place: &Place, accept: &'static str, path: &str) -> Result<Reply, Trouble> {
        let shown = credentials::read(&self.inner.places).await.map_err(Trouble::Credentials)?;
        let address_name = || ServerName::IpAddress(place.address.ip().into());
        let server_name = self.inner.server_name.clone().unwrap_or_else(address_name);
        let dial = Dial { place: place.clone(), mark: self.inner.mark, tls: shown.tls, server_name };
        let connection = dial.connect(DIAL).await?;
        let mut headers = Headers { accept: JSON, authorization: shown.authorization };
        let mut reply = connection.get(identity::PATH, &headers, HEADERS).await?;
        let body = reply.collect(SHORT_BODY_BYTES_MAX, SHORT_BODY).await?;
        if reply.status == 200 {
            self.verify(&body)?;
        }
        headers.accept = accept;
        let mut reply = reply.into_connection().get(path, &headers, HEADERS).await?;
        if is_about_endpoint(reply.status) {
            let body = reply.collect(SHORT_BODY_BYTES_MAX, SHORT_BODY).await.unwrap_or_default();
            return Err(Trouble::status(reply.status, &body));
        }
        Ok(reply)
    }

    fn verify(&self, namespace: &[u8]) -> Result<(), Trouble> {
        let found = ClusterId::of_namespace(namespace)
            .ok_or_else(|| Trouble::NotAnApiserver("kube-system has no uid".to_owned()))?;
        let mut cluster = self.inner.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        let known = cluster.get_or_insert_with(|| found.clone()).clone();
        if known == found { Ok(()) } else { Err(Trouble::AnotherCluster { found, known }) }
    }

    /// Adds addresses to the tier `learned`; nothing is ever taken away by it.
    pub fn learn(&self, addresses: &[SocketAddr]) {
        self.inner.endpoints.lock().set(Tier::Learned, addresses, Instant::now());
    }

    /// The cluster, as soon as an apiserver has told.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.inner.cluster.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Statuses that say that this server, or the proxy before it, cannot serve at all.
const fn is_about_endpoint(status: u16) -> bool {
    matches!(status, 502..=504)
}

#[cfg(test)]
pub(crate) mod tests;
