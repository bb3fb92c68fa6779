//! One look-up: its queries, and the result of their answers.
//!
//! Invariant: a look-up counts whole or not at all. If one SRV target cannot be resolved, the service's backends are
//! unknown, because the others could not bear its load. NXDOMAIN is an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use holdfast_core::keys::Family;
use holdfast_status::views::names::QueryResult;
use tokio::time::{Instant, timeout};

use super::backend_set::{self, BackendSet, LeftOutRecords, SrvTargets};
use super::name_table::NameTable;
use super::rate_limit::RateLimiter;
use super::servers::ServerFailures;
use super::{NameQuery, Resolve};
use crate::dns::{self, AnswerError, Name, NameRecords, QueryError, RecordType};
use holdfast_host::error_origin::ErrorOrigin;

/// The limit of one query to one server.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_secs(1);

/// How often each server gets a query, because datagrams get lost.
const ROUNDS: usize = 2;

/// The limit of a look-up: many targets with slow answers.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(30);

/// The least and the greatest TTL: clients of the DNS query at most once a second, and a change must show within
/// minutes.
pub(super) const TTL_SECONDS: (u64, u64) = (1, 300);

/// The TTL of an empty result: its backends are held meanwhile, and may return at any time.
const EMPTY_TTL_SECONDS: u64 = 5;

/// The result of a look-up.
#[derive(Debug)]
pub(super) struct LookupAnswer {
    pub(super) answer: NameAnswer,
    pub(super) ttl_seconds: u64,
    pub(super) server: SocketAddr,
    pub(super) left_out: LeftOutRecords,
}

/// A name's backends.
#[derive(Debug, PartialEq, Eq)]
pub enum NameAnswer {
    /// The service is unavailable.
    Withdrawn,
    Backends(BackendSet),
}

/// Why a look-up failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LookupError {
    pub(super) server: SocketAddr,
    pub(super) reason: String,
}

/// The name servers' failures, the query rate, and the clock of all look-ups.
#[derive(Debug)]
pub(super) struct LookupContext {
    pub(super) began: Instant,
    pub(super) pace: RateLimiter,
    pub(super) failures: ServerFailures,
}

impl LookupContext {
    pub(super) async fn resolve(
        &self,
        query: &NameQuery,
        counts: &NameTable,
    ) -> Result<LookupAnswer, LookupError> {
        let lookup = Lookup { context: self, query, counts };
        let late = || LookupError {
            server: query.first_server(),
            reason: format!("its answers took longer than {} s in all", LOOKUP_TIMEOUT.as_secs()),
        };
        timeout(LOOKUP_TIMEOUT, lookup.run()).await.unwrap_or_else(|_| Err(late()))
    }
}

struct Lookup<'a> {
    context: &'a LookupContext,
    query: &'a NameQuery,
    counts: &'a NameTable,
}

/// A running look-up: the last server, the least TTL, the families with addresses, and the records that were left out.
#[derive(Default)]
struct LookupProgress {
    server: Option<SocketAddr>,
    ttl_seconds: Option<u32>,
    families: BTreeSet<Family>,
    left_out: LeftOutRecords,
}

impl LookupProgress {
    fn record_reply(&mut self, server: SocketAddr, found: &NameRecords) {
        self.server = Some(server);
        self.ttl_seconds = [self.ttl_seconds, found.ttl].into_iter().flatten().min();
    }

    /// A family with all its addresses left out. Each family has its own list, which would become empty.
    fn lost_family(&self, answer: &NameAnswer) -> Option<Family> {
        let NameAnswer::Backends(set) = answer else { return None };
        let is_left =
            |family| set.backends.keys().any(|backend| Family::from_address(backend.ip()) == family);
        self.families.iter().copied().find(|family| !is_left(*family))
    }
}

impl Lookup<'_> {
    async fn run(&self) -> Result<LookupAnswer, LookupError> {
        let mut progress = LookupProgress::default();
        let answer = match &self.query.resolve {
            Resolve::Addresses(name, port) => {
                let addresses = self.resolve_addresses(name, &mut progress).await?;
                NameAnswer::Backends(backend_set::backends_at_port(&addresses, *port, &mut progress.left_out))
            }
            Resolve::Servers(name) => self.resolve_servers(name, &mut progress).await?,
        };
        let server = progress.server.unwrap_or_else(|| self.query.first_server());
        let is_empty = matches!(&answer, NameAnswer::Backends(set) if set.backends.is_empty());
        let left_out = progress.left_out.describe_left_out().unwrap_or_default();
        let none = match progress.lost_family(&answer) {
            Some(family) => Some(format!("no backend of {family}")),
            None => (is_empty && !left_out.is_empty()).then(|| "no backend".to_owned()),
        };
        if let Some(none) = none {
            return Err(LookupError { server, reason: format!("{none} is left of its answer; {left_out}") });
        }
        let seconds = match progress.ttl_seconds {
            Some(seconds) if !is_empty => u64::from(seconds).clamp(TTL_SECONDS.0, TTL_SECONDS.1),
            _ => EMPTY_TTL_SECONDS,
        };
        Ok(LookupAnswer { answer, ttl_seconds: seconds, server, left_out: progress.left_out })
    }

    async fn resolve_servers(
        &self,
        name: &Name,
        progress: &mut LookupProgress,
    ) -> Result<NameAnswer, LookupError> {
        let found = self.query_servers(name, RecordType::Srv, progress).await?;
        let servers = match backend_set::select_targets(found.servers, &mut progress.left_out) {
            SrvTargets::Withdrawn => return Ok(NameAnswer::Withdrawn),
            SrvTargets::To(servers) => servers,
        };
        let mut addresses = BTreeMap::new();
        for server in &servers {
            if !addresses.contains_key(&server.target) {
                let of_target = self.resolve_addresses(&server.target, progress).await?;
                addresses.insert(server.target.clone(), of_target);
            }
        }
        Ok(NameAnswer::Backends(backend_set::backends_from_servers(
            &servers,
            &addresses,
            &mut progress.left_out,
        )))
    }

    /// Resolves a host's addresses in the service's families, sorted.
    async fn resolve_addresses(
        &self,
        name: &Name,
        progress: &mut LookupProgress,
    ) -> Result<Vec<IpAddr>, LookupError> {
        let mut addresses = Vec::new();
        for family in &self.query.families {
            let kind = match family {
                Family::V4 => RecordType::A,
                Family::V6 => RecordType::Aaaa,
            };
            let found = self.query_servers(name, kind, progress).await?.addresses;
            progress.families.extend((!found.is_empty()).then_some(*family));
            addresses.extend(backend_set::select_family(found, *family, &mut progress.left_out));
        }
        addresses.sort_unstable();
        Ok(addresses)
    }

    /// Queries the servers one after another until one answers.
    async fn query_servers(
        &self,
        name: &Name,
        kind: RecordType,
        progress: &mut LookupProgress,
    ) -> Result<NameRecords, LookupError> {
        let LookupContext { began, pace, failures } = self.context;
        let mut last =
            LookupError { server: self.query.first_server(), reason: "it was not asked".to_owned() };
        let servers = failures.query_order(&self.query.servers, began.elapsed());
        for server in (0..ROUNDS).flat_map(|_| servers.iter().copied()) {
            pace.wait_turn().await;
            let answer = timeout(QUERY_TIMEOUT, dns::query_server(server, name, kind)).await;
            let (result, found) = classify_answer(answer.ok());
            self.counts.count_result(result);
            if let Some(has_failed) = server_failed(result) {
                failures.record_result(server, has_failed, began.elapsed());
            }
            match found {
                Ok(found) => {
                    progress.record_reply(server, &found);
                    return Ok(found);
                }
                Err(why) => last = LookupError { server, reason: format!("{name}: {why}") },
            }
        }
        Err(last)
    }
}

/// Whether this node failed and not the server.
fn is_local_error(error: &io::Error) -> bool {
    ErrorOrigin::classify_established(error) == ErrorOrigin::Node
}

/// Whether the server failed; `None`: it was not queried.
const fn server_failed(result: QueryResult) -> Option<bool> {
    match result {
        QueryResult::Answered | QueryResult::Empty => Some(false),
        QueryResult::Failed | QueryResult::Silent | QueryResult::Unreadable | QueryResult::Unreachable => {
            Some(true)
        }
        QueryResult::NotSent => None,
    }
}

/// Classifies an answer for the counts and the look-up; `None` is a timeout.
fn classify_answer(
    answer: Option<Result<NameRecords, QueryError>>,
) -> (QueryResult, Result<NameRecords, String>) {
    match answer {
        Some(Ok(found)) if found.ttl.is_some() => (QueryResult::Answered, Ok(found)),
        Some(Ok(found)) => (QueryResult::Empty, Ok(found)),
        None => (QueryResult::Silent, Err(format!("nothing came within {} s", QUERY_TIMEOUT.as_secs()))),
        Some(Err(error)) => {
            let result = match &error {
                QueryError::Socket(error) if is_local_error(error) => QueryResult::NotSent,
                QueryError::Socket(_) => QueryResult::Unreachable,
                QueryError::Answer(AnswerError::Code(_) | AnswerError::Referral) => QueryResult::Failed,
                QueryError::Answer(_) => QueryResult::Unreadable,
            };
            (result, Err(error.to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::libc;

    use super::*;

    #[test]
    fn a_local_error_is_not_blamed_on_the_name_server() {
        for (number, expected) in [
            (libc::EMFILE, None),
            (libc::EADDRINUSE, None),
            (libc::ENOBUFS, None),
            (libc::ECONNREFUSED, Some(true)),
            (libc::ENETUNREACH, Some(true)),
        ] {
            let error = QueryError::Socket(io::Error::from_raw_os_error(number));
            let (result, found) = classify_answer(Some(Err(error)));
            assert_eq!((server_failed(result), found.is_err()), (expected, true), "{number}");
        }
    }
}
