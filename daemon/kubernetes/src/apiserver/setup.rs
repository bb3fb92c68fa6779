//! Builds access from the configuration and the memory.
//!
//! Invariant: only an error of our own configuration fails the build. A file that is missing, half-written or invalid
//! may soon change, so it is reported, read again, and stops nothing.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use holdfast_status::views::apiserver::ApiserverView;
use holdfast_status::views::apiserver::ClusterId;
use holdfast_status::views::apiserver::Tier;
use tokio::sync::{Notify, watch};

use super::credentials::{self, Credentials, Locations};
use super::endpoints::Endpoints;
use super::learned_endpoints::ClusterMemory;
use super::lease::SharedEndpoints;
use super::{Access, AccessConfig, Inner, vip_guard};
use holdfast_config::Apiserver;

/// Where to find apiservers and credentials. A reload may change it.
#[derive(Clone, Debug)]
pub struct AccessSources {
    /// The table `[apiserver]` of the configuration.
    pub apiserver: Apiserver,
    /// Kubelet's kubeconfig, if its server is to be a tier.
    pub kubelet: Option<PathBuf>,
    /// Whether addresses that the cluster lists form a tier.
    pub learns: bool,
}

/// The settings to build access from.
#[derive(Clone, Debug)]
pub struct AccessSettings {
    pub sources: AccessSources,
    /// The folder of the memory.
    pub state: PathBuf,
    /// The cluster that this node belongs to, if the caller knows it.
    pub known_cluster: Option<ClusterId>,
    /// The seed of the jitter that spreads penalties and checks of many nodes.
    pub seed: u64,
}

/// A configuration that cannot be used; only an edit helps. [`Self::Kubeconfig`] is about the file, which may change.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// No certificate authority is named.
    #[error("[apiserver] names no certificate authority: set `ca_file` or `kubeconfig`")]
    NoAuthority,
    /// The name is no valid server name.
    #[error("[apiserver] {0}")]
    ServerName(String),
    /// The kubeconfig has an error.
    #[error("[apiserver] kubeconfig: {0}")]
    Kubeconfig(String),
}

pub(super) fn build_access(settings: &AccessSettings) -> Result<Access, SetupError> {
    let config = build_config(&settings.sources)?;
    let (memory, memory_problem) = load_memory(settings);
    let cluster = memory.cluster.as_ref().map(|it| it.as_str().into());
    let inner = Inner {
        state: settings.state.clone(),
        config: Mutex::new(Arc::new(config)),
        endpoints: SharedEndpoints::new(Endpoints::new(settings.seed)),
        memory: Mutex::new(memory),
        memory_problem: Mutex::new(memory_problem),
        memory_dirty: Notify::new(),
        write_lock: tokio::sync::Mutex::default(),
        unverified: Mutex::default(),
        failovers: AtomicU64::new(0),
        views: watch::channel(Arc::new(ApiserverView::default())).0,
        addresses: watch::channel(BTreeSet::new()).0,
        cluster_uid: watch::channel(cluster).0,
        vip_target: watch::channel(None).0,
    };
    set_configured_endpoints(&inner, &settings.sources.apiserver);
    restore_vip_target(&inner, &settings.sources);
    inner.publish();
    Ok(Access { inner: Arc::new(inner) })
}

pub(super) fn reload_config(inner: &Inner, sources: &AccessSources) -> Result<(), SetupError> {
    let config = build_config(sources)?.reuse_credentials(&inner.config());
    let has_kubelet = config.kubelet.is_some();
    *inner.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
    if !has_kubelet {
        inner.endpoints.lock().set_tier(Tier::Kubelet, &[], Instant::now());
    }
    set_configured_endpoints(inner, &sources.apiserver);
    Ok(())
}

/// Puts the configured endpoints into the table. Without `endpoints`, the kubeconfig supplies the apiserver once it is
/// read.
fn set_configured_endpoints(inner: &Inner, apiserver: &Apiserver) {
    let configured: Vec<_> = apiserver.endpoints.iter().map(|it| it.address()).collect();
    inner.endpoints.lock().set_tier(Tier::Configured, &configured, Instant::now());
    inner.sync_learned_endpoints();
}

/// Restores the virtual address's endpoint from before the restart, if it may still be one. The server of a kubeconfig
/// is not known yet.
fn restore_vip_target(inner: &Inner, sources: &AccessSources) {
    let before = inner.memory().vip_target;
    let is_row = |address: SocketAddr| inner.endpoints.lock().rows().iter().any(|row| row.address == address);
    let may_be_named = sources.kubelet.is_some() || sources.apiserver.endpoints.is_empty();
    let suits =
        |address: SocketAddr| inner.config().vip.is_some_and(|vip| vip_guard::is_same_family(vip, address));
    let target = before.filter(|address| suits(*address) && (may_be_named || is_row(*address)));
    inner.vip_target.send_replace(target);
}

fn build_config(sources: &AccessSources) -> Result<AccessConfig, SetupError> {
    let kubelet = sources.kubelet.clone().map(Locations::from_kubeconfig).map(Credentials::new).map(Arc::new);
    let own = Arc::new(configured_credentials(&sources.apiserver)?);
    Ok(AccessConfig { own, kubelet, learns: sources.learns, vip: sources.apiserver.vip })
}

/// The configured credentials; reads no file.
pub(super) fn configured_credentials(apiserver: &Apiserver) -> Result<Credentials, SetupError> {
    let locations = Locations::from_config(apiserver);
    if !locations.has_authority() {
        return Err(SetupError::NoAuthority);
    }
    if let Some(name) = &apiserver.tls_server_name {
        credentials::parse_server_name(name).map_err(SetupError::ServerName)?;
    }
    Ok(Credentials::new(locations))
}

/// Checks the configuration and the files that it names. Returns why files cannot be used now.
pub(super) fn check_files(apiserver: &Apiserver) -> Result<Vec<String>, SetupError> {
    configured_credentials(apiserver)?.check().map_err(SetupError::Kubeconfig)
}

/// Loads the memory. A cluster known to the caller overrides the file's.
fn load_memory(settings: &AccessSettings) -> (ClusterMemory, Option<String>) {
    let (mut memory, problem) = match ClusterMemory::load(&settings.state) {
        Ok(memory) => (memory, None),
        Err(problem) => {
            tracing::warn!(error = %problem, "learned addresses of apiservers are lost");
            (ClusterMemory::default(), Some(problem))
        }
    };
    if let Some(known) = &settings.known_cluster
        && memory.cluster.as_ref() != Some(known)
    {
        // The file's addresses belong to another cluster.
        memory = ClusterMemory { cluster: Some(known.clone()), ..ClusterMemory::default() };
    }
    (memory, problem)
}
