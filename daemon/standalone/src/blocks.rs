//! The source of `[[service]]` blocks: services without a cluster, with health checks of their backends.
//!
//! One block is one service, with one slice per family and backend port. Without a health check every backend is ready.
//! With one, a backend is ready until its first verdict, as in HAProxy and unlike Envoy: a restart of the daemon must
//! not empty a list of healthy backends. The first check runs within [`FIRST_INTERVAL_MAX`], and further ones follow at
//! about that interval until the first verdict, so a dead backend goes after `fall` checks. The daemon's readiness does
//! not wait for them.
//!
//! The apiserver's virtual address is such a service too. Its one backend is the endpoint that the apiserver module
//! chose; this source does not check it.
//!
//! A folder may supply further blocks. Some blocks get their backends from DNS.
//!
//! Invariant: the first group holds every service and slice of the configuration. It ends with `Synced`; with a folder,
//! `Synced` ends the group that completes the folder. A reload sends nothing for an unchanged block, and keeps its
//! backends' state.

mod block;
mod check;
mod check_table;
mod checked_blocks;
mod counts;
mod dns_backends;
pub mod folder;
mod health;
pub mod merge;
mod obstacles;
mod refusal_recheck;
mod rejection_log;
mod schedule;
mod slow_start;
mod tls_cache;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::affinity::Prefixes;
use holdfast_core::event::Event;
use holdfast_core::keys::{Source, Transport};
use holdfast_core::weights::Weight;
use holdfast_status::datapath::{BackendRefusals, Status};
use holdfast_status::views::datapath::DatapathView;
use nix::sys::resource::{Resource, getrlimit};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use holdfast_config::{CheckKind, GrpcCheck, HealthCheck, HttpCheck, Statuses};
use holdfast_core::hold::OnEmpty;
pub use holdfast_status::views::checks::CheckResult;

pub use block::{BlockFault, Blocks, InvalidService};
use check_table::CheckOutcome;
pub use check_table::UnusableBackend;
use checked_blocks::{CheckedBlocks, HealthChange};
pub use counts::{CheckStats, CheckedState};
use dns_backends::ResolvedBlocks;
pub use dns_backends::{NameChannels, SavedSets, saved_sets};
pub use folder::{BlocksFolder, FolderNews, ParsedBlock};
use health::Transition;
use holdfast_config::{Resolve, ServiceBlock};
use holdfast_host::clock::{self, sleep_until};
use holdfast_host::logging::messages::NOTICE;
use merge::FolderBlocks;
use schedule::{CheckId, ConcurrencyLimits};
use tls_cache::TlsCache;
pub use tls_cache::unusable_tls_files;

/// The longest interval of checks until the first verdict, before jitter.
pub const FIRST_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Open files reserved for everything but checks' sockets.
pub const RESERVED_FILES: u64 = 8_192;

/// One `[[service]]` block, converted from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticService {
    pub name: String,
    pub namespace: String,
    /// The name of its one port; empty if unnamed.
    pub port_name: String,
    pub transport: Transport,
    /// The addresses that clients dial.
    pub frontends: Vec<SocketAddr>,
    pub backends: Vec<SocketAddr>,
    /// Weights of backends with a weight other than 1.
    pub weights: Vec<(SocketAddr, Weight)>,
    /// The DNS name that supplies the backends instead.
    pub resolve: Option<Resolve>,
    /// `None`: backends are always ready.
    pub health_check: Option<HealthCheck>,
    /// Session affinity by client address, in seconds.
    pub affinity_timeout: Option<u32>,
    /// The prefix of that address that counts; `None`: the whole address.
    pub affinity_prefix: Option<Prefixes>,
    /// The behaviour without a usable backend, as written.
    pub on_empty: Option<String>,
    /// Whether clients' backends are computed by Maglev; `None`: as configured for all.
    pub maglev: Option<bool>,
}

impl From<&ServiceBlock> for StaticService {
    fn from(block: &ServiceBlock) -> Self {
        Self {
            name: block.name.to_string(),
            namespace: block.namespace.to_string(),
            port_name: block.port_name.as_ref().map(ToString::to_string).unwrap_or_default(),
            transport: block.protocol,
            frontends: block.frontends.clone(),
            backends: block.backends.clone(),
            weights: block_weights(block),
            resolve: block.resolve.clone(),
            health_check: block.health_check.clone(),
            affinity_timeout: block.session_affinity.and_then(|time| u32::try_from(time.as_secs()).ok()),
            affinity_prefix: block.affinity_prefix,
            on_empty: block.on_empty.map(OnEmpty::as_str).map(str::to_owned),
            maglev: block.maglev,
        }
    }
}

fn block_weights(block: &ServiceBlock) -> Vec<(SocketAddr, Weight)> {
    let each = block.backends.iter().copied().zip(block.weights.iter().copied());
    each.filter(|(_, weight)| *weight != Weight::ONE).collect()
}

/// The folder of further blocks: its path, its news, and the receiver of its counted blocks.
pub type FolderChannels = (Arc<str>, mpsc::Receiver<Vec<FolderNews>>, watch::Sender<Arc<[Arc<ParsedBlock>]>>);

// The result of a check and its end. The loop may wait for the engine, and that wait must not count as the check's.
type FinishedCheck = (CheckId, CheckOutcome, Duration);

/// Sends the blocks as events, checks their backends, and follows reloads and the folder.
///
/// The first value of `blocks` is the first list; each later one is a reload. `vip_target` is the virtual address's
/// endpoint. `seed` spreads the checks of a cluster's nodes. `datapath` reports backends that refuse clients; `counts`
/// receives check results. `names` resolves the blocks with DNS names. Returns once `blocks` or `events` is closed.
pub async fn run(
    mut blocks: watch::Receiver<Arc<Blocks>>,
    mut vip_target: watch::Receiver<Option<SocketAddr>>,
    (folder, names): (Option<FolderChannels>, Option<NameChannels>),
    events: mpsc::Sender<Vec<Event>>,
    mut datapath: watch::Receiver<Arc<DatapathView>>,
    (seed, counts): (u64, Arc<CheckStats>),
) {
    let mut checks = CheckRunner::new(seed, Arc::clone(&counts));
    let mut wake = WakeReason::Blocks { is_whole: folder.is_none() };
    let mut is_complete = false;
    let mut input = folder.map(FolderInput::new);
    let mut names = names.map(ResolvedBlocks::new);
    let mut unfilled = Arc::clone(&blocks.borrow());
    loop {
        let is_whole = matches!(wake, WakeReason::Blocks { is_whole: true });
        is_complete |= is_whole;
        let mut file_events = Vec::new();
        if let WakeReason::Blocks { .. } = wake {
            (unfilled, file_events) =
                merge_folder_blocks(&current_blocks(&mut blocks, &mut vip_target), input.as_mut());
        }
        let group = if let WakeReason::Checks = wake {
            checks.live.take_changes(checks.now())
        } else {
            let (filled, news) =
                fill_resolved(&unfilled, (names.as_mut(), &checks.live), (input.as_ref(), is_complete));
            let events = checks.apply_blocks(&filled).into_iter().chain(file_events).chain(news);
            events.chain(is_whole.then_some(Event::Synced(Source::Config))).collect()
        };
        if !group.is_empty() && events.send(group).await.is_err() {
            return;
        }
        counts.set_backends(checks.live.usable(), checks.live.unusable());
        checks.start_due();
        let due = checks.next_due();
        wake = tokio::select! {
            reload = blocks.changed() => match reload {
                Ok(()) => WakeReason::Blocks { is_whole: false },
                Err(_) => return,
            },
            refusing = next_refusals(&mut datapath) => {
                counts.add_refusal_rechecks(checks.live.recheck_refused(&refusing, checks.now()));
                WakeReason::Checks
            }
            () = wait_for_vip_change(&mut vip_target) => WakeReason::Blocks { is_whole: false },
            is_whole = next_folder_news(&mut input) => WakeReason::Blocks { is_whole },
            () = next_name_news(&mut names) => WakeReason::Names,
            // Never an error: no check is aborted, and a panic ends the process.
            Some(Ok(finished)) = checks.running.join_next() => {
                checks.take_finished(finished);
                WakeReason::Checks
            }
            () = sleep_until(due) => WakeReason::Checks,
            () = events.closed() => return,
        };
    }
}

/// Why the loop wakes.
enum WakeReason {
    /// The blocks changed; `is_whole`: the folder is complete now.
    Blocks { is_whole: bool },
    /// The results of DNS names changed.
    Names,
    /// Checks have ended or are due.
    Checks,
}

/// The folder and its channels.
struct FolderInput {
    folder: FolderBlocks,
    news: mpsc::Receiver<Vec<FolderNews>>,
    counted_blocks: watch::Sender<Arc<[Arc<ParsedBlock>]>>,
}

impl FolderInput {
    fn new((path, news, counting): FolderChannels) -> Self {
        Self { folder: FolderBlocks::new(path), news, counted_blocks: counting }
    }
}

/// Waits for news of the folder, for ever without one; returns whether the folder is complete now.
async fn next_folder_news(input: &mut Option<FolderInput>) -> bool {
    if let Some(input) = input
        && let Some(news) = input.news.recv().await
    {
        return input.folder.take_news(news);
    }
    std::future::pending().await
}

/// Merges the folder's blocks into the configuration's, and returns events about the folder's files.
fn merge_folder_blocks(
    configured: &Arc<Blocks>,
    input: Option<&mut FolderInput>,
) -> (Arc<Blocks>, Vec<Event>) {
    let Some(input) = input else { return (Arc::clone(configured), Vec::new()) };
    let (merged, events) = input.folder.merge_with(configured);
    input.counted_blocks.send_replace(merged.more);
    (merged.blocks, events)
}

/// Waits for news of DNS names, for ever without any.
async fn next_name_news(names: &mut Option<ResolvedBlocks>) {
    if let Some(names) = names
        && let Some(news) = names.next_news().await
    {
        return names.take_news(news);
    }
    std::future::pending::<()>().await;
}

/// Fills blocks with their resolved backends, and returns events about DNS names. Once all blocks are known, saved
/// backends are dropped, except those of unreadable files.
fn fill_resolved(
    blocks: &Arc<Blocks>,
    (names, live): (Option<&mut ResolvedBlocks>, &CheckedBlocks),
    (input, is_complete): (Option<&FolderInput>, bool),
) -> (Arc<Blocks>, Vec<Event>) {
    let Some(names) = names else { return (Arc::clone(blocks), Vec::new()) };
    let filled = names.fill_blocks(blocks, |service| live.backend_set(service));
    if is_complete {
        names.forget_saved(|path| input.is_some_and(|input| input.folder.rejects_file(path)));
    }
    filled
}

/// The concurrency that the file limit allows after [`RESERVED_FILES`].
fn concurrency_limits() -> ConcurrencyLimits {
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    ConcurrencyLimits::for_sockets(
        usize::try_from(files.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX),
    )
}

/// The present blocks, with the virtual address's service.
fn current_blocks(
    blocks: &mut watch::Receiver<Arc<Blocks>>,
    vip_target: &mut watch::Receiver<Option<SocketAddr>>,
) -> Arc<Blocks> {
    let configured = Arc::clone(&blocks.borrow_and_update());
    configured.with_vip_target(*vip_target.borrow_and_update())
}

/// Waits for ever without an apiserver.
async fn wait_for_vip_change(vip_target: &mut watch::Receiver<Option<SocketAddr>>) {
    if vip_target.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits for a new view of the datapath with backends that refuse clients.
async fn next_refusals(datapath: &mut watch::Receiver<Arc<DatapathView>>) -> BackendRefusals {
    while datapath.changed().await.is_ok() {
        let view = Arc::clone(&datapath.borrow_and_update());
        let refusals = view.status().map(Status::backend_refusals).unwrap_or_default();
        if !refusals.is_empty() {
            return refusals;
        }
    }
    std::future::pending().await
}

/// The blocks with their backends' health, and the running checks.
struct CheckRunner {
    live: CheckedBlocks,
    trust: TlsCache,
    running: JoinSet<FinishedCheck>,
    began: Instant,
}

impl CheckRunner {
    fn new(seed: u64, counts: Arc<CheckStats>) -> Self {
        let live = CheckedBlocks::new(seed, counts, concurrency_limits());
        Self { live, trust: TlsCache::default(), running: JoinSet::new(), began: Instant::now() }
    }

    /// The time since the start.
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Applies all blocks; returns the changes.
    fn apply_blocks(&mut self, blocks: &Blocks) -> Vec<Event> {
        self.trust.retain_used(blocks);
        self.live.apply_blocks(blocks, self.began.elapsed())
    }

    /// When the next check is due.
    fn next_due(&self) -> Option<Instant> {
        self.live.next_due().map(|due| self.began + due)
    }

    fn start_due(&mut self) {
        let began = self.began;
        while let Some(due) = self.live.start_due(began.elapsed()) {
            let tls = self.trust.client_tls(&due.check);
            self.running.spawn(async move {
                let begun = began.elapsed();
                let result = check::run_check(&due.check, due.backend, tls.as_deref()).await;
                let ended = began.elapsed();
                (due.id, CheckOutcome::new(&result, clock::now(), ended.saturating_sub(begun)), ended)
            });
        }
    }

    /// Takes all finished checks, so that a slice changes once when many of its backends turn together.
    fn take_finished(&mut self, first: FinishedCheck) {
        let mut next = Some(first);
        while let Some((id, outcome, at)) = next {
            if let Some(change) = self.live.finish_check(id, outcome, at) {
                log_change(&change);
            }
            next = self.running.try_join_next().and_then(Result::ok);
        }
    }
}

fn log_change(change: &HealthChange) {
    let HealthChange { service, backend, check, failures, transition, error } = change;
    match transition {
        Transition::Ready => {
            tracing::info!(target: NOTICE, %service, %backend, check, failures, "backend ready");
        }
        Transition::Unready => {
            let error = error.as_ref().map(tracing::field::display);
            tracing::warn!(%service, %backend, check, failures, error, "backend unready");
        }
    }
}

#[cfg(test)]
mod tests;
