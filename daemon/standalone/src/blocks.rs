//! The source of `[[service]]` blocks: services without a cluster, with health checks of their backends.
//!
//! One block is one service and one slice per family and backend port. Without a health check every backend is ready.
//! With one, a backend counts as ready until its first verdict: as with HAProxy and unlike Envoy, because the daemon's
//! restart must not empty a list of backends that are all well. The first check runs within [`FIRST_INTERVAL_MAX`];
//! until a verdict is reached, further checks follow at most about so far apart, so a dead backend is gone after `fall`
//! such steps. The daemon's readiness does not wait for these checks.
//!
//! The virtual address of the apiserver is a service of the same kind. Its one backend is the endpoint that the way to
//! the apiserver leads others to, and no check of this source's.
//!
//! Further blocks come from a folder of files, where the configuration names one. The backends of some are asked for
//! elsewhere, by name.
//!
//! Invariant: the first group holds every service and slice of the configuration, and ends with `Synced` where there is
//! no folder. Where there is one, `Synced` ends the group with which it has been told whole. An unchanged block never
//! sends anything on a reload and keeps what is known of its backends.

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
use holdfast_status::datapath::BackendRefusals;
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

/// The longest interval between checks until the first verdict, before it is jittered, however long the configured one
/// is.
pub const FIRST_INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Files that may be open beside the sockets of checks.
pub const RESERVED_FILES: u64 = 8_192;

/// One `[[service]]` block, as the configuration read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaticService {
    /// The service's name.
    pub name: String,
    pub namespace: String,
    /// The name of the service's one port; empty if unnamed.
    pub port_name: String,
    /// TCP, UDP or SCTP.
    pub transport: Transport,
    /// What clients dial.
    pub frontends: Vec<SocketAddr>,
    pub backends: Vec<SocketAddr>,
    /// Of these the backends with weights of their own.
    pub weights: Vec<(SocketAddr, Weight)>,
    /// Where backends are asked for, in place of those.
    pub resolve: Option<Resolve>,
    /// How backends are checked; `None`: they are always ready.
    pub health_check: Option<HealthCheck>,
    /// Session affinity by client address, in seconds.
    pub affinity_timeout: Option<u32>,
    /// How much of that address counts; `None`: all of it.
    pub affinity_prefix: Option<Prefixes>,
    /// What happens when no backend is left, as written.
    pub on_empty: Option<String>,
    /// Whether its clients' backends are computed; `None`: as the configuration says for all.
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

/// The folder of further blocks: its path, what is told of it, and where those go that count.
pub type FolderChannels = (Arc<str>, mpsc::Receiver<Vec<FolderNews>>, watch::Sender<Arc<[Arc<ParsedBlock>]>>);

// What came of a check and when the check finished: the loop does not look while the engine takes no group, and that
// time must not count as slowness of the check.
type FinishedCheck = (CheckId, CheckOutcome, Duration);

/// Sends the blocks as events, checks their backends, and follows reloads and the folder.
///
/// The value that `blocks` has at the start is the first list; each later value is a reload. `led` is the endpoint that
/// the virtual address leads to. `seed` spreads the checks, so that the nodes of one cluster do not all knock at once.
/// `datapath` says which backends refuse clients; `counts` is told how checks go. `names` asks for the backends of
/// blocks that have none themselves. Returns when `blocks` has no sender or `events` no receiver any more.
pub async fn run(
    mut blocks: watch::Receiver<Arc<Blocks>>,
    mut led: watch::Receiver<Option<SocketAddr>>,
    (folder, names): (Option<FolderChannels>, Option<NameChannels>),
    events: mpsc::Sender<Vec<Event>>,
    mut datapath: watch::Receiver<Arc<DatapathView>>,
    (seed, counts): (u64, Arc<CheckStats>),
) {
    let mut checks = CheckRunner::new(seed, Arc::clone(&counts));
    let mut turn = WakeReason::Blocks { is_whole: folder.is_none() };
    let mut is_told = false;
    let mut beside = folder.map(FolderInput::new);
    let mut names = names.map(ResolvedBlocks::new);
    let mut bare = Arc::clone(&blocks.borrow());
    loop {
        let is_whole = matches!(turn, WakeReason::Blocks { is_whole: true });
        is_told |= is_whole;
        let mut file_events = Vec::new();
        if let WakeReason::Blocks { .. } = turn {
            (bare, file_events) =
                merge_folder_blocks(&current_blocks(&mut blocks, &mut led), beside.as_mut());
        }
        let group = if let WakeReason::Checks = turn {
            checks.live.take_changes(checks.now())
        } else {
            let (filled, news) =
                fill_resolved(&bare, (names.as_mut(), &checks.live), (beside.as_ref(), is_told));
            let events = checks.apply_blocks(&filled).into_iter().chain(file_events).chain(news);
            events.chain(is_whole.then_some(Event::Synced(Source::Config))).collect()
        };
        if !group.is_empty() && events.send(group).await.is_err() {
            return;
        }
        counts.set_backends(checks.live.usable(), checks.live.unusable());
        checks.start_due();
        let due = checks.next_due();
        turn = tokio::select! {
            reload = blocks.changed() => match reload {
                Ok(()) => WakeReason::Blocks { is_whole: false },
                Err(_) => return,
            },
            refusing = next_refusals(&mut datapath) => {
                counts.add_refusal_rechecks(checks.live.recheck_refused(&refusing, checks.now()));
                WakeReason::Checks
            }
            () = wait_for_vip_change(&mut led) => WakeReason::Blocks { is_whole: false },
            is_whole = next_folder_news(&mut beside) => WakeReason::Blocks { is_whole },
            () = next_name_news(&mut names) => WakeReason::Names,
            // Never an error: no check is aborted while it is awaited, and a panic ends the whole process.
            Some(Ok(finished)) = checks.running.join_next() => {
                checks.take_finished(finished);
                WakeReason::Checks
            }
            () = sleep_until(due) => WakeReason::Checks,
            () = events.closed() => return,
        };
    }
}

/// What has to be looked at.
enum WakeReason {
    /// The blocks; and whether the folder has now been told whole.
    Blocks { is_whole: bool },
    /// The backends of those that have names.
    Names,
    /// How backends are.
    Checks,
}

/// The folder and its ends.
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

/// Waits for news of the folder, for ever where there is none; returns whether it has now been told whole.
async fn next_folder_news(beside: &mut Option<FolderInput>) -> bool {
    if let Some(beside) = beside
        && let Some(news) = beside.news.recv().await
    {
        return beside.folder.take_news(news);
    }
    std::future::pending().await
}

/// The blocks of the configuration with those of the folder, and what is told of the folder's files.
fn merge_folder_blocks(
    configured: &Arc<Blocks>,
    beside: Option<&mut FolderInput>,
) -> (Arc<Blocks>, Vec<Event>) {
    let Some(beside) = beside else { return (Arc::clone(configured), Vec::new()) };
    let (joined, events) = beside.folder.merge_with(configured);
    beside.counted_blocks.send_replace(joined.more);
    (joined.blocks, events)
}

/// Waits for news of names, for ever where there are none.
async fn next_name_news(names: &mut Option<ResolvedBlocks>) {
    if let Some(names) = names
        && let Some(news) = names.next_news().await
    {
        return names.take_news(news);
    }
    std::future::pending::<()>().await;
}

/// The blocks with the backends that were asked for, and what is told of names. Once all blocks are told, what a former
/// process knew has been taken by those that need it, but for those of files that cannot be read.
fn fill_resolved(
    blocks: &Arc<Blocks>,
    (names, live): (Option<&mut ResolvedBlocks>, &CheckedBlocks),
    (beside, is_told): (Option<&FolderInput>, bool),
) -> (Arc<Blocks>, Vec<Event>) {
    let Some(names) = names else { return (Arc::clone(blocks), Vec::new()) };
    let filled = names.fill_blocks(blocks, |service| live.backend_set(service));
    if is_told {
        names.forget_saved(|path| beside.is_some_and(|beside| beside.folder.rejects_file(path)));
    }
    filled
}

/// As many checks may run together as there may be files beside those of all else.
fn concurrency_limits() -> ConcurrencyLimits {
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    ConcurrencyLimits::for_sockets(
        usize::try_from(files.saturating_sub(RESERVED_FILES)).unwrap_or(usize::MAX),
    )
}

/// The blocks as they are now, with the service of the virtual address.
fn current_blocks(
    blocks: &mut watch::Receiver<Arc<Blocks>>,
    led: &mut watch::Receiver<Option<SocketAddr>>,
) -> Arc<Blocks> {
    let configured = Arc::clone(&blocks.borrow_and_update());
    configured.with_vip_target(*led.borrow_and_update())
}

/// Waits for ever where no apiserver is used.
async fn wait_for_vip_change(led: &mut watch::Receiver<Option<SocketAddr>>) {
    if led.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Waits until the datapath knows of backends that refuse clients, and was looked at anew.
async fn next_refusals(datapath: &mut watch::Receiver<Arc<DatapathView>>) -> BackendRefusals {
    while datapath.changed().await.is_ok() {
        let view = Arc::clone(&datapath.borrow_and_update());
        let flows = view.status().and_then(|status| status.flows.as_ref());
        if let Some(flows) = flows.filter(|flows| !flows.sweep.backend_refusals.is_empty()) {
            return flows.sweep.backend_refusals.clone();
        }
    }
    std::future::pending().await
}

/// The blocks with what is known of their backends, and the checks that run.
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

    /// The time since the task began.
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Takes all blocks in; returns what is news of them.
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

    /// Takes every check that has finished by now, so that a slice is applied once when many of its backends turn
    /// together.
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
