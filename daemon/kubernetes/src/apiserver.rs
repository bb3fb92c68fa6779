//! Requests to the apiserver: they try its endpoints in order and never pass through what this daemon programs.
//!
//! Invariant: every address is an IP address, every socket is marked, every wait has a limit. Failover sits above TLS
//! and HTTP: a wrong certificate and a 503 lead to the next endpoint as a refused connection does. There is no DNS, no
//! proxy and no pool. A request that one apiserver has judged goes to no other. A 500 is no judgement: the server
//! failed internally.

use holdfast_credentials as credentials;
mod endpoint_error;
mod endpoints;
mod failover;
mod http;
mod identity;
mod learned_endpoints;
mod lease;
mod limits;
mod maintenance;
mod setup;
mod silence;
mod socket;
mod vip_guard;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use holdfast_core::facts::Timestamp;
use holdfast_status::views::apiserver::{
    ApiserverView, ClusterId, CredentialsView, EndpointView, LearnedView, Tier, VipView,
};
use tokio::sync::{Notify, watch};

use credentials::{Credentials, Report};
use endpoints::{Endpoint, EndpointId};
use holdfast_config::Apiserver;
use learned_endpoints::ClusterMemory;
use lease::SharedEndpoints;

pub use endpoint_error::EndpointError;
pub use holdfast_credentials::{CHECK_EVERY, ClientTls};
pub use http::{Connection, Encoding, Reply, WriteRequest};
pub use learned_endpoints::{ForgetError, ListedEndpoint};
pub use setup::{AccessSettings, AccessSources, SetupError};

/// Why one endpoint did not serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its address and port.
    pub endpoint: Arc<str>,
    pub trouble: EndpointError,
}

/// Why a request got no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No source names an apiserver.
    #[error("no apiserver is known: neither configured, nor in kubelet's kubeconfig, nor learned")]
    NoEndpoint,
    /// The failure of each endpoint that was tried, in order; only one if its reply broke off.
    #[error("{}", .0.iter().map(|it| format!("{}: {}", it.endpoint, it.trouble)).collect::<Vec<_>>().join("; "))]
    Failed(Vec<Failure>),
}

impl AccessError {
    fn from_trouble(endpoint: &Arc<str>, trouble: EndpointError) -> Self {
        Self::Failed(vec![Failure { endpoint: Arc::clone(endpoint), trouble }])
    }

    /// How long until an endpoint may be asked again, if all of them throttle us.
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Failed(failures) = self else { return None };
        let wait = |failure: &Failure| match failure.trouble {
            EndpointError::Throttled { wait, .. } => Some(wait),
            _ => None,
        };
        failures.iter().map(wait).collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Some endpoint was reached and did not reply to this request.
    pub(crate) fn is_unanswered(&self) -> bool {
        let Self::Failed(failures) = self else { return false };
        let is_unanswered = |trouble: &EndpointError| {
            let is_late = matches!(trouble, EndpointError::Status { status: 504, .. });
            is_late || matches!(trouble, EndpointError::Late | EndpointError::Silent | EndpointError::Closed)
        };
        failures.iter().any(|failure| is_unanswered(&failure.trouble))
    }
}

/// The default `Accept`.
pub const JSON: &str = "application/json";

/// Access to the apiserver over its ordered endpoints. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Access {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: PathBuf,
    config: Mutex<Arc<AccessConfig>>,
    endpoints: SharedEndpoints,
    memory: Mutex<ClusterMemory>,
    memory_problem: Mutex<Option<String>>,
    // Wakes `save_changes` when something worth saving was learned.
    memory_dirty: Notify,
    // Held during a save, so that saves do not overlap.
    write_lock: tokio::sync::Mutex<()>,
    unverified: Mutex<Option<Arc<str>>>,
    failovers: AtomicU64,
    views: watch::Sender<Arc<ApiserverView>>,
    addresses: watch::Sender<BTreeSet<SocketAddr>>,
    cluster_uid: watch::Sender<Option<Arc<str>>>,
    // The endpoint that the virtual address forwards to.
    vip_target: watch::Sender<Option<SocketAddr>>,
}

/// The access that a configuration asks for.
#[derive(Debug)]
struct AccessConfig {
    own: Arc<Credentials>,
    kubelet: Option<Arc<Credentials>>,
    learns: bool,
    /// The virtual address at which other clients on this node reach an apiserver.
    vip: Option<SocketAddr>,
}

impl AccessConfig {
    /// Keeps credentials with unchanged locations, so that a read that hangs is not started again.
    fn reuse_credentials(self, before: &Self) -> Self {
        let known = |new: Arc<Credentials>| {
            let all = [Some(&before.own), before.kubelet.as_ref()];
            let same = all.into_iter().flatten().find(|old| old.locations() == new.locations());
            same.map_or(new, Arc::clone)
        };
        Self { own: known(self.own), kubelet: self.kubelet.map(known), ..self }
    }

    /// The credentials to present to a tier. Learned addresses are servers of the configured tier and get its
    /// credentials.
    fn credentials(&self, tier: Tier) -> &Credentials {
        match (tier, &self.kubelet) {
            (Tier::Kubelet, Some(kubelet)) => kubelet,
            _ => &self.own,
        }
    }
}

impl Access {
    /// Reads the configuration; dials nothing.
    pub fn new(settings: &AccessSettings) -> Result<Self, SetupError> {
        setup::build_access(settings)
    }

    /// Checks the configuration and the files that it names. Returns why files cannot be used now, which may change.
    pub fn check_files(apiserver: &Apiserver) -> Result<Vec<String>, SetupError> {
        setup::check_files(apiserver)
    }

    /// Checks the configuration alone: an error here needs an edit, and no access can be built.
    pub fn check_config(apiserver: &Apiserver) -> Result<(), SetupError> {
        setup::configured_credentials(apiserver).map(drop)
    }

    /// Applies a new configuration to new connections; open ones stay. It reads files and may take seconds.
    pub fn reload(&self, sources: &AccessSources) -> Result<(), SetupError> {
        setup::reload_config(&self.inner, sources)
    }

    /// GETs over `idle` if given, else over a new connection to the best endpoint that serves.
    ///
    /// A status about the request comes back as a reply; a status about the endpoint leads to the next one. A 500 may
    /// be either, so it comes back only if no other endpoint does better.
    pub async fn get(&self, path_and_query: &str, idle: Option<Connection>) -> Result<Reply, AccessError> {
        self.get_as(JSON, path_and_query, idle).await
    }

    /// [`Access::get`] with another `Accept` than JSON.
    pub async fn get_as(
        &self,
        accept: &'static str,
        path_and_query: &str,
        idle: Option<Connection>,
    ) -> Result<Reply, AccessError> {
        failover::send_request(&self.inner, &http::ApiRequest::for_get(accept, path_and_query), idle).await
    }

    /// [`Access::get_as`] for a large reply. Even a healthy server may start it late, so a late start is no dial
    /// failure.
    pub async fn get_large(&self, accept: &'static str, path_and_query: &str) -> Result<Reply, AccessError> {
        let request =
            http::ApiRequest { is_large: true, ..http::ApiRequest::for_get(accept, path_and_query) };
        failover::send_request(&self.inner, &request, None).await
    }

    /// Opens a connection to the best endpoint that serves, for [`Self::get_best_effort`].
    pub async fn connect(&self) -> Result<Connection, AccessError> {
        failover::connect(&self.inner).await
    }

    /// GETs something optional over this connection. No outcome leads to another endpoint or counts against this one.
    pub async fn get_best_effort(
        &self,
        accept: &'static str,
        path_and_query: &str,
        connection: Connection,
    ) -> Result<Reply, AccessError> {
        failover::request_best_effort(
            &self.inner,
            &http::ApiRequest::for_get(accept, path_and_query),
            connection,
        )
        .await
    }

    /// Writes something optional over a new connection to the best endpoint. As in [`Self::get_best_effort`], no
    /// outcome counts.
    pub(crate) async fn write_best_effort(
        &self,
        path: &str,
        write: &WriteRequest<'_>,
    ) -> Result<Reply, AccessError> {
        let request = http::ApiRequest { write: Some(*write), ..http::ApiRequest::for_get(JSON, path) };
        failover::request_best_effort(&self.inner, &request, self.connect().await?).await
    }

    /// Takes all addresses that the cluster lists now. Addresses listed before stay in [`Tier::Learned`].
    pub fn learn_endpoints(&self, listed: &[ListedEndpoint]) {
        if self.inner.config().learns && self.inner.memory().merge_listed(listed, now()) {
            self.inner.sync_learned_endpoints();
            self.inner.memory_dirty.notify_one();
        }
    }

    /// Forgets a learned address, on disk too. `Ok(Some)` is an error of the disk. Configured and listed addresses
    /// stay.
    pub async fn forget_endpoint(&self, address: SocketAddr) -> Result<Option<String>, ForgetError> {
        let tier =
            self.inner.endpoints.lock().rows().iter().find(|row| row.address == address).map(|row| row.tier);
        if let Some(tier) = tier.filter(|tier| *tier != Tier::Learned) {
            return Err(ForgetError::Configured { address, tier });
        }
        self.inner.memory().forget_endpoint(address)?;
        self.inner.sync_learned_endpoints();
        self.inner.publish();
        Ok(maintenance::save_within_limit(&self.inner).await)
    }

    /// The cluster's id, once an apiserver has named it.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.inner.memory().cluster.clone()
    }

    /// The cluster's uid, once it is known.
    pub fn watch_cluster_uid(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.inner.cluster_uid.subscribe()
    }

    /// Views of the access. While [`Access::run_maintenance`] runs, state changes show at once, the rest within a
    /// second.
    pub fn views(&self) -> watch::Receiver<Arc<ApiserverView>> {
        self.inner.views.subscribe()
    }

    pub fn view(&self) -> ApiserverView {
        self.inner.view()
    }

    /// Every current apiserver address, configured or listed: none of them may become a frontend. Learned addresses
    /// that are not listed any more may belong to other hosts by now.
    pub fn addresses(&self) -> watch::Receiver<BTreeSet<SocketAddr>> {
        self.inner.addresses.subscribe()
    }

    /// The endpoint that the virtual address forwards to: one that proved itself, or none while no endpoint ever has.
    pub fn vip_target(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.inner.vip_target.subscribe()
    }

    /// Runs until dropped: checks preferred endpoints, reads rotated files, saves the memory, publishes views, guards
    /// the virtual address's endpoint.
    pub async fn run_maintenance(self) {
        tokio::join!(maintenance::run(&self.inner), vip_guard::run(&self.inner));
    }
}

impl Inner {
    fn memory(&self) -> MutexGuard<'_, ClusterMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self) -> Arc<AccessConfig> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts learned addresses that no other tier has into the table, and publishes all addresses of apiservers.
    fn sync_learned_endpoints(&self) {
        let config = self.config();
        let mut learned = if config.learns { self.memory().addresses() } else { Vec::new() };
        learned.retain(|address| config.vip != Some(*address));
        let mut table = self.endpoints.lock();
        let own = table.rows().iter().filter(|row| row.tier != Tier::Learned);
        let own: BTreeSet<SocketAddr> = own.map(|row| row.address).collect();
        let new: Vec<SocketAddr> = learned.into_iter().filter(|address| !own.contains(address)).collect();
        table.set_tier(Tier::Learned, &new, Instant::now());
        drop(table);
        self.publish_addresses();
    }

    /// Publishes all addresses of apiservers.
    fn publish_addresses(&self) {
        let config = self.config();
        let mut all = BTreeSet::new();
        let mut shown = BTreeSet::new();
        for row in self.endpoints.lock().rows() {
            if row.tier != Tier::Learned {
                all.insert(row.address);
            } else if row.has_served {
                shown.insert(row.address);
            }
        }
        if config.learns {
            all.extend(self.memory().trusted_addresses(&shown));
        }
        all.retain(|address| config.vip != Some(*address));
        self.addresses.send_if_modified(|known| std::mem::replace(known, all) != *known);
    }

    /// Makes the server of a re-read kubeconfig the one endpoint of its tier. The virtual address is no endpoint:
    /// kubelet's kubeconfig is meant to name it.
    fn set_server(&self, tier: Tier, server: SocketAddr) {
        if self.config().vip == Some(server) {
            return;
        }
        let is_known = {
            let table = self.endpoints.lock();
            let mut own = table.rows().iter().filter(|row| row.tier == tier);
            own.next().is_some_and(|row| row.address == server)
        };
        if !is_known {
            self.endpoints.lock().set_tier(tier, &[server], Instant::now());
            self.sync_learned_endpoints();
        }
    }

    fn view(&self) -> ApiserverView {
        let (at, preferred, rows) = {
            let table = self.endpoints.lock();
            let at = Instant::now();
            (at, table.dial_order(at).first().copied(), table.rows().to_vec())
        };
        let memory = self.memory().clone();
        let config = self.config();
        let own = config.own.report().map(|report| (Tier::Configured, report));
        let kubelet =
            config.kubelet.as_ref().and_then(|it| it.report()).map(|report| (Tier::Kubelet, report));
        ApiserverView {
            endpoints: rows.into_iter().map(|row| endpoint_view(row, at, preferred, &memory)).collect(),
            credentials: own.into_iter().chain(kubelet).map(credentials_view).collect(),
            cluster: memory.cluster,
            unverified_reason: self.unverified.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            memory_problem: self.memory_problem.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            failovers: self.failovers.load(Ordering::Relaxed),
            vip: config.vip.map(|address| VipView { address, leads_to: *self.vip_target.borrow() }),
        }
    }

    fn publish(&self) {
        let view = self.view();
        self.views.send_if_modified(|known| {
            let is_new = **known != view;
            if is_new {
                *known = Arc::new(view);
            }
            is_new
        });
    }
}

fn endpoint_view(
    row: Endpoint,
    at: Instant,
    preferred: Option<EndpointId>,
    memory: &ClusterMemory,
) -> EndpointView {
    // Rounds to the nearest second, so that one moment does not show as two seconds.
    let wall = |then: Instant| {
        let half = Duration::from_millis(500);
        let ago = at.saturating_duration_since(then);
        timestamp(SystemTime::now().checked_sub(ago).unwrap_or(UNIX_EPOCH) + half)
    };
    let learned = memory.get(row.address).filter(|_| row.tier == Tier::Learned);
    EndpointView {
        address: row.address,
        tier: row.tier,
        state: row.state,
        since: wall(row.since),
        active: row.connections > 0,
        preferred: preferred == Some(row.id),
        connections: row.connections,
        last_error: row.last_error.map(|(trouble, then)| (trouble.to_string(), wall(then))),
        last_named: learned.map(|it| it.seen),
        learned: learned.map(|it| LearnedView {
            since: it.since,
            slice: it.slice.clone(),
            state: it.standing,
        }),
    }
}

fn credentials_view((tier, report): (Tier, Report)) -> CredentialsView {
    CredentialsView {
        tier,
        kind: report.kind,
        files: report.files.into_iter().map(|(path, modified)| (path, modified.map(timestamp))).collect(),
        expires: report.expires.map(timestamp),
        problem: report.problem.map(|(problem, then)| (problem, timestamp(then))),
    }
}

fn now() -> Timestamp {
    timestamp(SystemTime::now())
}

fn timestamp(time: SystemTime) -> Timestamp {
    Timestamp(seconds(time.duration_since(UNIX_EPOCH).unwrap_or_default()))
}

fn seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
pub(crate) mod tests;
