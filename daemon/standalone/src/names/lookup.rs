//! One look-up: the questions that it takes, and what their answers come to.
//!
//! Invariant: an answer counts whole or not at all. If a server of a service cannot be resolved, nothing is known of
//! the service, because a part of its backends would be more than they can bear. That a name is not there is an answer.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use holdfast_core::keys::Family;
use holdfast_status::views::names::QueryResult;
use tokio::time::{Instant, timeout};

use super::pace::Pace;
use super::seen::Names;
use super::servers::Failures;
use super::set::{self, Led, LeftOut, Set};
use super::{Resolve, Wish};
use crate::dns::{self, Failed, Found, Kind, Name, Unread};
use holdfast_host::error_origin::ErrorOrigin;

/// How long one server may take for one question.
pub(super) const QUESTION: Duration = Duration::from_secs(1);

/// How often each server is asked one question, because a datagram may be lost.
const ROUNDS: usize = 2;

/// How long a look-up may take: that of many servers' addresses where each answer is slow.
const LOOKUP: Duration = Duration::from_secs(30);

/// The shortest and the longest time for which an answer counts, whatever it says: a second is as often as clients of
/// the DNS ask, and a change is to be seen within minutes.
pub(super) const SECONDS: (u64, u64) = (1, 300);

/// For how many seconds it counts that a name has nothing: its backends are held meanwhile, and may be back at any
/// time.
const EMPTY_SECONDS: u64 = 5;

/// What a name came to.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) said: Said,
    pub(super) seconds: u64,
    pub(super) server: SocketAddr,
    pub(super) left_out: LeftOut,
}

/// What is said of the backends.
#[derive(Debug, PartialEq, Eq)]
pub enum Said {
    /// The service is not available.
    Withdrawn,
    Backends(Set),
}

/// Why a name could not be resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unresolved {
    pub(super) server: SocketAddr,
    pub(super) why: String,
}

/// Which servers are asked, how fast, and where questions are counted.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) began: Instant,
    pub(super) pace: Pace,
    pub(super) failures: Failures,
}

impl Asking {
    pub(super) async fn resolve(&self, wish: &Wish, counts: &Names) -> Result<Answered, Unresolved> {
        let lookup = Lookup { asking: self, wish, counts };
        let late = || Unresolved {
            server: wish.first_server(),
            why: format!("its answers took longer than {} s in all", LOOKUP.as_secs()),
        };
        timeout(LOOKUP, lookup.run()).await.unwrap_or_else(|_| Err(late()))
    }
}

struct Lookup<'a> {
    asking: &'a Asking,
    wish: &'a Wish,
    counts: &'a Names,
}

/// What was found, the server that said it, for how many seconds all of it counts, of which families there were
/// addresses, and what of it does not count.
#[derive(Default)]
struct Course {
    server: Option<SocketAddr>,
    seconds: Option<u32>,
    families: BTreeSet<Family>,
    left_out: LeftOut,
}

impl Course {
    fn note(&mut self, server: SocketAddr, found: &Found) {
        self.server = Some(server);
        self.seconds = [self.seconds, found.seconds].into_iter().flatten().min();
    }

    /// A family of which all addresses were left out. Each family has a list of its own, which would become empty.
    fn lost(&self, said: &Said) -> Option<Family> {
        let Said::Backends(set) = said else { return None };
        let is_left =
            |family| set.backends.keys().any(|backend| Family::from_address(backend.ip()) == family);
        self.families.iter().copied().find(|family| !is_left(*family))
    }
}

impl Lookup<'_> {
    async fn run(&self) -> Result<Answered, Unresolved> {
        let mut course = Course::default();
        let said = match &self.wish.resolve {
            Resolve::Addresses(name, port) => {
                let addresses = self.addresses(name, &mut course).await?;
                Said::Backends(set::at_port(&addresses, *port, &mut course.left_out))
            }
            Resolve::Servers(name) => self.servers(name, &mut course).await?,
        };
        let server = course.server.unwrap_or_else(|| self.wish.first_server());
        let is_empty = matches!(&said, Said::Backends(set) if set.backends.is_empty());
        let left_out = course.left_out.told().unwrap_or_default();
        let none = match course.lost(&said) {
            Some(family) => Some(format!("no backend of {family}")),
            None => (is_empty && !left_out.is_empty()).then(|| "no backend".to_owned()),
        };
        if let Some(none) = none {
            return Err(Unresolved { server, why: format!("{none} is left of its answer; {left_out}") });
        }
        let seconds = match course.seconds {
            Some(seconds) if !is_empty => u64::from(seconds).clamp(SECONDS.0, SECONDS.1),
            _ => EMPTY_SECONDS,
        };
        Ok(Answered { said, seconds, server, left_out: course.left_out })
    }

    async fn servers(&self, name: &Name, course: &mut Course) -> Result<Said, Unresolved> {
        let found = self.found(name, Kind::Srv, course).await?;
        let servers = match set::led(found.servers, &mut course.left_out) {
            Led::Withdrawn => return Ok(Said::Withdrawn),
            Led::To(servers) => servers,
        };
        let mut addresses = BTreeMap::new();
        for server in &servers {
            if !addresses.contains_key(&server.target) {
                let of_target = self.addresses(&server.target, course).await?;
                addresses.insert(server.target.clone(), of_target);
            }
        }
        Ok(Said::Backends(set::of_servers(&servers, &addresses, &mut course.left_out)))
    }

    /// The addresses of a host, of the families that the service has, the lowest first.
    async fn addresses(&self, name: &Name, course: &mut Course) -> Result<Vec<IpAddr>, Unresolved> {
        let mut addresses = Vec::new();
        for family in &self.wish.families {
            let kind = match family {
                Family::V4 => Kind::A,
                Family::V6 => Kind::Aaaa,
            };
            let found = self.found(name, kind, course).await?.addresses;
            course.families.extend((!found.is_empty()).then_some(*family));
            addresses.extend(set::of_family(found, *family, &mut course.left_out));
        }
        addresses.sort_unstable();
        Ok(addresses)
    }

    /// Asks the servers one after the other until one answers.
    async fn found(&self, name: &Name, kind: Kind, course: &mut Course) -> Result<Found, Unresolved> {
        let Asking { began, pace, failures } = self.asking;
        let mut last = Unresolved { server: self.wish.first_server(), why: "it was not asked".to_owned() };
        let servers = failures.order(&self.wish.servers, began.elapsed());
        for server in (0..ROUNDS).flat_map(|_| servers.iter().copied()) {
            pace.turn().await;
            let answer = timeout(QUESTION, dns::ask(server, name, kind)).await;
            let (result, found) = judged(answer.ok());
            self.counts.count(result);
            if let Some(has_failed) = has_failed(result) {
                failures.note(server, has_failed, began.elapsed());
            }
            match found {
                Ok(found) => {
                    course.note(server, &found);
                    return Ok(found);
                }
                Err(why) => last = Unresolved { server, why: format!("{name}: {why}") },
            }
        }
        Err(last)
    }
}

/// Whether this node failed and not the server.
fn is_own(error: &io::Error) -> bool {
    ErrorOrigin::classify_established(error) == ErrorOrigin::Node
}

/// Whether the server has failed; `None`: it was not asked.
const fn has_failed(result: QueryResult) -> Option<bool> {
    match result {
        QueryResult::Answered | QueryResult::Empty => Some(false),
        QueryResult::Failed | QueryResult::Silent | QueryResult::Unreadable | QueryResult::Unreachable => {
            Some(true)
        }
        QueryResult::Unasked => None,
    }
}

/// What came of a question, for the counts and for the look-up; none: nothing came in time.
fn judged(answer: Option<Result<Found, Failed>>) -> (QueryResult, Result<Found, String>) {
    match answer {
        Some(Ok(found)) if found.seconds.is_some() => (QueryResult::Answered, Ok(found)),
        Some(Ok(found)) => (QueryResult::Empty, Ok(found)),
        None => (QueryResult::Silent, Err(format!("nothing came within {} s", QUESTION.as_secs()))),
        Some(Err(error)) => {
            let result = match &error {
                Failed::Socket(error) if is_own(error) => QueryResult::Unasked,
                Failed::Socket(_) => QueryResult::Unreachable,
                Failed::Unread(Unread::Code(_) | Unread::Referral) => QueryResult::Failed,
                Failed::Unread(_) => QueryResult::Unreadable,
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
    fn a_name_server_is_not_blamed_for_what_this_node_lacks() {
        for (number, expected) in [
            (libc::EMFILE, None),
            (libc::EADDRINUSE, None),
            (libc::ENOBUFS, None),
            (libc::ECONNREFUSED, Some(true)),
            (libc::ENETUNREACH, Some(true)),
        ] {
            let error = Failed::Socket(io::Error::from_raw_os_error(number));
            let (result, found) = judged(Some(Err(error)));
            assert_eq!((has_failed(result), found.is_err()), (expected, true), "{number}");
        }
    }
}
