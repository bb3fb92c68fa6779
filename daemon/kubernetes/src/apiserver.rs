//! The way to the apiserver: over its endpoints in their order, and never through what this daemon programs.
//!
//! Invariant: every address is an IP address, every socket is marked, every wait has an end, and failover sits above
//! TLS and HTTP, so that a wrong certificate and a 503 lead to the next endpoint as a refused connection does. There is
//! no DNS, no proxy and no pool, and a request that an apiserver has judged is not sent to another one. A 500 judges no
//! request: the server failed at it inside.

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

/// What one endpoint said, or why it said nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its address and port.
    pub endpoint: Arc<str>,
    /// What was wrong.
    pub trouble: EndpointError,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Nothing says where an apiserver is.
    #[error("no apiserver is known: neither configured, nor in kubelet's kubeconfig, nor learned")]
    NoEndpoint,
    /// What went wrong at each endpoint that was asked, in order; at one only if its answer broke off.
    #[error("{}", .0.iter().map(|it| format!("{}: {}", it.endpoint, it.trouble)).collect::<Vec<_>>().join("; "))]
    Failed(Vec<Failure>),
}

impl AccessError {
    fn from_trouble(endpoint: &Arc<str>, trouble: EndpointError) -> Self {
        Self::Failed(vec![Failure { endpoint: Arc::clone(endpoint), trouble }])
    }

    /// How long until an endpoint may be asked again, where each has asked to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Failed(failures) = self else { return None };
        let wait = |failure: &Failure| match failure.trouble {
            EndpointError::Throttled { wait, .. } => Some(wait),
            _ => None,
        };
        failures.iter().map(wait).collect::<Option<Vec<_>>>()?.into_iter().min()
    }

    /// Whether some endpoint was reached, and gave no answer to this very request.
    pub(crate) fn is_unanswered(&self) -> bool {
        let Self::Failed(failures) = self else { return false };
        let is_unanswered = |trouble: &EndpointError| {
            let is_late = matches!(trouble, EndpointError::Status { status: 504, .. });
            is_late || matches!(trouble, EndpointError::Late | EndpointError::Silent | EndpointError::Closed)
        };
        failures.iter().any(|failure| is_unanswered(&failure.trouble))
    }
}

/// The form in which answers are asked for, unless the caller wants another one.
pub const JSON: &str = "application/json";

/// Access to the apiserver over its endpoints in their order. Cheap to clone.
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
    // Wakes the patrol when something was learned that is worth writing down.
    memory_dirty: Notify,
    // Held while the memory is written down, so that there is one write at a time.
    write_lock: tokio::sync::Mutex<()>,
    unverified: Mutex<Option<Arc<str>>>,
    failovers: AtomicU64,
    views: watch::Sender<Arc<ApiserverView>>,
    addresses: watch::Sender<BTreeSet<SocketAddr>>,
    cluster_uid: watch::Sender<Option<Arc<str>>>,
    // Where the virtual address leads.
    vip_target: watch::Sender<Option<SocketAddr>>,
}

/// What a configuration asks for.
#[derive(Debug)]
struct AccessConfig {
    own: Arc<Credentials>,
    kubelet: Option<Arc<Credentials>>,
    learns: bool,
    /// The address at which others on this node reach an apiserver.
    vip: Option<SocketAddr>,
}

impl AccessConfig {
    /// Keeps the credentials in use where their locations are the same: so a reading that hangs is not begun again.
    fn reuse_credentials(self, before: &Self) -> Self {
        let known = |new: Arc<Credentials>| {
            let all = [Some(&before.own), before.kubelet.as_ref()];
            let same = all.into_iter().flatten().find(|old| old.locations() == new.locations());
            same.map_or(new, Arc::clone)
        };
        Self { own: known(self.own), kubelet: self.kubelet.map(known), ..self }
    }

    /// The credentials that an endpoint of a tier is shown. Learned addresses are taken for servers of the configured
    /// tier, so they are shown its credentials.
    fn credentials(&self, tier: Tier) -> &Credentials {
        match (tier, &self.kubelet) {
            (Tier::Kubelet, Some(kubelet)) => kubelet,
            _ => &self.own,
        }
    }
}

impl Access {
    /// Reads the configuration; nothing is dialled yet.
    pub fn new(settings: &AccessSettings) -> Result<Self, SetupError> {
        setup::build_access(settings)
    }

    /// Tells what of this configuration cannot be followed, also in files that it names and that are there by now; or
    /// else why one of them cannot be read now, which may change.
    pub fn check_files(apiserver: &Apiserver) -> Result<Option<String>, SetupError> {
        setup::check_files(apiserver)
    }

    /// Tells what of this configuration only an edit can heal, whatever is in the files that it names: with that no
    /// access can be built.
    pub fn check_config(apiserver: &Apiserver) -> Result<(), SetupError> {
        setup::configured_credentials(apiserver).map(drop)
    }

    /// Follows a new configuration. Connections stay; new ones are made as it says. It reads files, so it may
    /// take some seconds.
    pub fn reload(&self, sources: &AccessSources) -> Result<(), SetupError> {
        setup::reload_config(&self.inner, sources)
    }

    /// GETs, over `kept` if given, else over a new connection to the best endpoint that serves.
    ///
    /// A status that is about the request comes back as a reply; what is about the endpoint leads to the next one. A
    /// 500 may be about either, so it comes back if no other endpoint does better.
    pub async fn get(&self, path_and_query: &str, kept: Option<Connection>) -> Result<Reply, AccessError> {
        self.get_as(JSON, path_and_query, kept).await
    }

    /// [`Access::check_http`] for an answer in another form than JSON, as `Accept` spells it.
    pub async fn get_as(
        &self,
        accept: &'static str,
        path_and_query: &str,
        kept: Option<Connection>,
    ) -> Result<Reply, AccessError> {
        failover::send_request(&self.inner, &http::ApiRequest::for_get(accept, path_and_query), kept).await
    }

    /// [`Access::get_as`] for an answer so large that even a server that is well may begin it late. That it does not
    /// begin in time is not held against the server.
    pub async fn get_large(&self, accept: &'static str, path_and_query: &str) -> Result<Reply, AccessError> {
        let ask = http::ApiRequest { is_large: true, ..http::ApiRequest::for_get(accept, path_and_query) };
        failover::send_request(&self.inner, &ask, None).await
    }

    /// A new connection to the best endpoint that serves, for [`Self::get_best_effort`].
    pub async fn connect(&self) -> Result<Connection, AccessError> {
        failover::connect(&self.inner).await
    }

    /// GETs over this connection something that nothing served depends on. Neither an answer nor a refusal nor silence
    /// leads to another endpoint or is held against this one.
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

    /// Writes something that nothing served depends on, over a new connection to the best endpoint that serves. As with
    /// [`Self::get_best_effort`], whatever comes of it leads to no other endpoint and is not held against this one.
    pub(crate) async fn write_best_effort(
        &self,
        path: &str,
        write: &WriteRequest<'_>,
    ) -> Result<Reply, AccessError> {
        let ask = http::ApiRequest { write: Some(*write), ..http::ApiRequest::for_get(JSON, path) };
        failover::request_best_effort(&self.inner, &ask, self.connect().await?).await
    }

    /// Takes all the addresses that the cluster names now. Whatever it named before stays in the tier `memory_dirty`.
    pub fn learn_endpoints(&self, listed: &[ListedEndpoint]) {
        if self.inner.config().learns && self.inner.memory().merge_listed(listed, now()) {
            self.inner.sync_learned_endpoints();
            self.inner.memory_dirty.notify_one();
        }
    }

    /// Forgets a learned address, on disk too; one that is configured or named by the cluster stays. Gives what is
    /// wrong with the disk, in words.
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

    /// The cluster, as soon as an apiserver has named it.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.inner.memory().cluster.clone()
    }

    /// The uid of the cluster, as soon as it is known.
    pub fn watch_cluster_uid(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.inner.cluster_uid.subscribe()
    }

    /// Views of the access. While [`Access::run_maintenance`] runs they follow its state at once, and all else within a second.
    pub fn views(&self) -> watch::Receiver<Arc<ApiserverView>> {
        self.inner.views.subscribe()
    }

    /// A view of the access as it is now.
    pub fn view(&self) -> ApiserverView {
        self.inner.view()
    }

    /// Every address that is an apiserver's now, so that none of them becomes a frontend: what is configured, and what
    /// the cluster names. Addresses that were learned and are no longer named may belong to other hosts by now.
    pub fn addresses(&self) -> watch::Receiver<BTreeSet<SocketAddr>> {
        self.inner.addresses.subscribe()
    }

    /// Where the virtual address leads: an endpoint that has shown itself, or none while no endpoint ever has.
    pub fn vip_target(&self) -> watch::Receiver<Option<SocketAddr>> {
        self.inner.vip_target.subscribe()
    }

    /// Looks after endpoints and memory until this future is dropped: checks better endpoints, reads rotated files,
    /// writes down what was learned, publishes views, and guards the endpoint that the virtual address leads to.
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

    /// Puts the learned addresses into the table, but for those that another tier has, and publishes which addresses
    /// are an apiserver's.
    fn sync_learned_endpoints(&self) {
        let asked = self.config();
        let mut learned = if asked.learns { self.memory().addresses() } else { Vec::new() };
        learned.retain(|address| asked.vip != Some(*address));
        let mut table = self.endpoints.lock();
        let own = table.rows().iter().filter(|row| row.tier != Tier::Learned);
        let own: BTreeSet<SocketAddr> = own.map(|row| row.address).collect();
        let new: Vec<SocketAddr> = learned.into_iter().filter(|address| !own.contains(address)).collect();
        table.set_tier(Tier::Learned, &new, Instant::now());
        drop(table);
        self.publish_addresses();
    }

    /// Publishes which addresses are an apiserver's.
    fn publish_addresses(&self) {
        let asked = self.config();
        let mut all = BTreeSet::new();
        let mut shown = BTreeSet::new();
        for row in self.endpoints.lock().rows() {
            if row.tier != Tier::Learned {
                all.insert(row.address);
            } else if row.has_served {
                shown.insert(row.address);
            }
        }
        if asked.learns {
            all.extend(self.memory().trusted_addresses(&shown));
        }
        all.retain(|address| asked.vip != Some(*address));
        self.addresses.send_if_modified(|known| std::mem::replace(known, all) != *known);
    }

    /// Makes the server of a kubeconfig that was read anew the one endpoint of its tier. The virtual address is none:
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
        let asked = self.config();
        let own = asked.own.report().map(|report| (Tier::Configured, report));
        let kubelet = asked.kubelet.as_ref().and_then(|it| it.report()).map(|report| (Tier::Kubelet, report));
        ApiserverView {
            endpoints: rows.into_iter().map(|row| endpoint_view(row, at, preferred, &memory)).collect(),
            credentials: own.into_iter().chain(kubelet).map(credentials_view).collect(),
            cluster: memory.cluster,
            unverified_reason: self.unverified.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            memory_problem: self.memory_problem.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            failovers: self.failovers.load(Ordering::Relaxed),
            vip: asked.vip.map(|address| VipView { address, leads_to: *self.vip_target.borrow() }),
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
    // To the nearest second, so that the same moment is not shown as one second and then as the next.
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
