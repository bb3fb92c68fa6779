//! Resolves the DNS names of backends periodically, and reports changes.
//!
//! Invariant: this module reports a service's backends only; the service's source decides what they change. A failed
//! look-up changes nothing reported before. No connection to an apiserver depends on this module, and no other source
//! waits for an answer.

mod backend_set;
mod lookup;
mod lookup_schedule;
mod name_table;
mod rate_limit;
mod servers;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::keys::{Family, ObjectName};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use backend_set::BackendSet;
pub use holdfast_config::Resolve;
use holdfast_host::clock::{self, sleep_until};
use holdfast_host::logging::line_limit::LineLimit;
use holdfast_host::logging::messages::NOTICE;
pub use lookup::NameAnswer;
use lookup::{LookupAnswer, LookupContext, LookupError};
use lookup_schedule::{LookupChange, LookupSchedule};
pub use name_table::NameTable;
use rate_limit::RateLimiter;
use servers::ServerFailures;

/// The name to resolve for one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameQuery {
    pub resolve: Resolve,
    /// The families of the service's clients.
    pub families: Vec<Family>,
    /// The name servers in query order; at least one.
    pub servers: Arc<[SocketAddr]>,
}

impl NameQuery {
    fn first_server(&self) -> SocketAddr {
        // The configuration requires a server for each name.
        self.servers.first().copied().unwrap_or_else(|| SocketAddr::from(([0, 0, 0, 0], 0)))
    }
}

/// The services with a name to resolve.
pub type NameQueries = BTreeMap<ObjectName, Arc<NameQuery>>;

/// A name's backends, or why they are unknown.
pub type NameResult = Result<Arc<NameAnswer>, Arc<str>>;

/// The present result for a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameNews {
    pub service: ObjectName,
    pub query: Arc<NameQuery>,
    pub result: NameResult,
}

type FinishedLookup = (ObjectName, Arc<NameQuery>, Result<LookupAnswer, LookupError>);

/// Resolves `queries` and sends changes. `seed` spreads the queries of a cluster's nodes. Returns once `queries` or
/// `news` is closed.
pub async fn run(
    mut queries: watch::Receiver<Arc<NameQueries>>,
    news: mpsc::Sender<Vec<NameNews>>,
    table: Arc<NameTable>,
    seed: u64,
) {
    let began = Instant::now();
    let context =
        Arc::new(LookupContext { began, pace: RateLimiter::new(began), failures: ServerFailures::default() });
    let mut source = NameResolver {
        context,
        table,
        schedule: LookupSchedule::new(seed),
        tasks: JoinSet::new(),
        quota: LineLimit::default(),
    };
    source.update_queries(&Arc::clone(&queries.borrow_and_update()));
    loop {
        source.start_due();
        let changes = tokio::select! {
            changed = queries.changed() => {
                if changed.is_err() {
                    return;
                }
                source.update_queries(&Arc::clone(&queries.borrow_and_update()));
                Vec::new()
            }
            // Never an error: no look-up is aborted, and a panic ends the process.
            Some(Ok(finished)) = source.tasks.join_next() => source.take_finished(finished),
            () = sleep_until(source.schedule.next_due().map(|due| began + due)) => Vec::new(),
            () = news.closed() => return,
        };
        if !changes.is_empty() && news.send(changes).await.is_err() {
            return;
        }
    }
}

struct NameResolver {
    context: Arc<LookupContext>,
    table: Arc<NameTable>,
    schedule: LookupSchedule,
    tasks: JoinSet<FinishedLookup>,
    quota: LineLimit,
}

impl NameResolver {
    fn update_queries(&mut self, queries: &NameQueries) {
        let servers = queries.values().next().map(|query| Arc::clone(&query.servers)).unwrap_or_default();
        self.context.failures.retain(&servers);
        for (service, row) in self.schedule.update_queries(queries, self.context.began.elapsed()) {
            self.table.set_row(&service, row);
        }
    }

    fn start_due(&mut self) {
        while let Some((service, query)) = self.schedule.start_due(self.context.began.elapsed()) {
            let (context, table) = (Arc::clone(&self.context), Arc::clone(&self.table));
            self.tasks.spawn(async move {
                let outcome = context.resolve(&query, &table).await;
                (service, query, outcome)
            });
        }
    }

    /// Collects all finished look-ups, so that simultaneous changes form one group.
    fn take_finished(&mut self, first: FinishedLookup) -> Vec<NameNews> {
        let mut changes = Vec::new();
        let mut next = Some(first);
        while let Some((service, query, outcome)) = next {
            let times = (self.context.began.elapsed(), clock::now());
            if let Some(change) = self.schedule.finish_lookup((&service, &query), outcome, times) {
                changes.extend(self.publish_change(&service, change));
            }
            next = self.tasks.try_join_next().and_then(Result::ok);
        }
        changes
    }

    fn publish_change(
        &mut self,
        service: &ObjectName,
        LookupChange { news, row, is_recovered }: LookupChange,
    ) -> Option<NameNews> {
        let name = &row.name;
        let allowed = is_recovered.then(|| self.quota.allow_line(self.context.began.elapsed())).flatten();
        if let Some(unsaid) = allowed {
            tracing::info!(target: NOTICE, %service, name, unsaid = (unsaid > 0).then_some(unsaid), "name resolved again");
        }
        self.table.set_row(service, Some(row));
        news
    }
}

#[cfg(test)]
mod tests;
