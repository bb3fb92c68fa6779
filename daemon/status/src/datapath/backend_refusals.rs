//! Backends that refuse clients, or never answer them.
//!
//! Invariant: a refusal is recent for [`REFUSAL_SECONDS`]. After that it counts until the backend is known to have
//! answered a later client, or for [`REFUSED_SECONDS_MAX`]: a fault that nobody meets any more is not mended by that.
//! Then the datapath forgets it. The daemon keeps it longer, and a silence too, until dials or an answer show that it
//! is over.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use holdfast_core::keys::Transport;
use holdfast_core::op::QuotaId;
use holdfast_core::words;

use super::Status;
use crate::rfc3339::Millis;

/// Seconds for which a refusal is recent, so that new clients likely meet the same: longer than a sweep of the flow
/// table takes.
pub const REFUSAL_SECONDS: u32 = 30;

/// Seconds after which the datapath forgets a refusal.
pub const REFUSED_SECONDS_MAX: u32 = 300;

/// A frontend and the backend behind it that refused a client, or did not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendRefusal {
    /// The number of the service's namespace.
    pub quota: QuotaId,
    pub frontend: SocketAddr,
    pub transport: Transport,
    pub backend: SocketAddr,
}

impl BackendRefusal {
    pub const fn backend(&self) -> BackendEndpoint {
        (self.backend, self.transport)
    }
}

/// Refusals, each with the second of its last packet, on the programs' clock.
pub type BackendRefusals = BTreeMap<BackendRefusal, u32>;

pub type BackendEndpoint = (SocketAddr, Transport);

/// A second on the programs' clock for each backend: when the last connection began that it answered, or when the last
/// packet came that it did not.
pub type BackendAnswers = BTreeMap<BackendEndpoint, u32>;

words! {
    /// What clients of a backend meet.
    #[derive(PartialOrd, Ord)]
    pub enum BackendFailure {
        /// It resets their connections, or its port is closed.
        Refused = "refused",
        /// None has got an answer.
        Silent = "silent",
    }
}

impl BackendFailure {
    /// What the backend did, in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Refused => "refused clients",
            Self::Silent => "answered no client",
        }
    }

    /// Who did that. At the address of a loopback a pod reaches its own, and the backend may have refused nobody.
    pub fn describe_backend(self, backend: SocketAddr) -> String {
        let may_be_pods = self == Self::Refused && backend.ip().is_loopback();
        let others = if may_be_pods { ", or the loopback of a pod," } else { "" };
        format!("{backend}{others} {}", self.describe())
    }
}

/// Failures that the datapath has forgotten and the daemon keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptFailures {
    pub refusals: BackendRefusals,
    pub silences: BackendRefusals,
}

impl KeptFailures {
    pub fn is_empty(&self) -> bool {
        self.refusals.is_empty() && self.silences.is_empty()
    }
}

/// What refused connects of this node's own sockets show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedConnects {
    pub refusals: BackendRefusals,
    /// Why they are not seen.
    pub failure: Option<String>,
}

/// Whether a refusal of that second still counts. `answered`: when a later client got an answer, if that is known.
pub fn is_refusal_current(now: u32, seen: u32, answered: Option<u32>) -> bool {
    let age = now.saturating_sub(seen);
    let is_mended = answered.is_some_and(|answered| answered > seen);
    age <= REFUSAL_SECONDS || (age <= REFUSED_SECONDS_MAX && !is_mended)
}

/// The end of that second of a clock that was at 0 at `booted`, or `read_at` if that is earlier.
fn time_of_second(second: u32, booted: Millis, read_at: Millis) -> Millis {
    let end = (i64::from(second) + 1).saturating_mul(1000);
    Millis(booted.0.saturating_add(end)).min(read_at)
}

impl Status {
    /// The backends that refuse clients of this node's sockets, or clients from outside.
    pub fn backend_refusals(&self) -> BackendRefusals {
        let sweep = self.flows.as_ref().map(|flows| &flows.sweep);
        let outside = sweep.into_iter().flat_map(|sweep| &sweep.backend_refusals);
        let mut refusals = BackendRefusals::new();
        for (refusal, seen) in self.refused_connects.refusals.iter().chain(outside) {
            let answered = sweep.and_then(|sweep| sweep.answers.get(&refusal.backend())).copied();
            if is_refusal_current(self.now, *seen, answered) {
                let latest = refusals.entry(*refusal).or_default();
                *latest = (*seen).max(*latest);
            }
        }
        for (refusal, seen) in &self.kept_failures.refusals {
            refusals.entry(*refusal).or_insert(*seen);
        }
        refusals
    }

    /// The backends that answer no client from outside.
    pub fn silent_backends(&self) -> BackendRefusals {
        let mut silences = self.kept_failures.silences.clone();
        silences.extend(self.flows.iter().flat_map(|flows| &flows.sweep.silent_backends));
        silences
    }

    /// The backends that fail in this way.
    pub fn failures_of_kind(&self, how: BackendFailure) -> BackendRefusals {
        match how {
            BackendFailure::Refused => self.backend_refusals(),
            BackendFailure::Silent => self.silent_backends(),
        }
    }

    /// Each failure of a backend, what its clients met, and the time of the last one by the datapath's clock.
    pub fn backend_failures(&self) -> impl Iterator<Item = (BackendRefusal, BackendFailure, u32)> {
        let all = BackendFailure::ALL.into_iter();
        all.flat_map(|how| self.failures_of_kind(how).into_iter().map(move |(it, seen)| (it, how, seen)))
    }

    /// The time of an event in that second of the programs' clock: the latest that is possible, so that no event is
    /// shown before its cause.
    pub fn time_at(&self, second: u32) -> Millis {
        time_of_second(second, self.booted, self.read_at)
    }

    /// Whether that second of the programs' clock is recent.
    pub const fn is_recent(&self, seen: u32) -> bool {
        self.now.saturating_sub(seen) <= REFUSAL_SECONDS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_until_the_backend_answers_or_it_is_old() {
        for (age, answered_after, expected) in [
            (0, None, true),
            (30, Some(9), true),
            (31, Some(9), false),
            (31, Some(0), true),
            (31, None, true),
            (300, None, true),
            (301, None, false),
        ] {
            let (now, seen) = (1000 + age, 1000);
            let answered = answered_after.map(|after| seen + after);
            assert_eq!(is_refusal_current(now, seen, answered), expected, "{age} s, {answered_after:?}");
        }
        assert!(is_refusal_current(1031, 1000, Some(500)), "an answer of before");
    }

    /// The clock of the programs starts 500 ms after a second of the node's clock, so that their seconds straddle.
    #[test]
    fn a_refusal_is_dated_to_the_end_of_its_second_and_never_later_than_it_was_read() {
        let [booted, read_at] = [Millis(900_500), Millis(1_900_982)];
        for (second, expected) in [(970, 1_871_500), (999, 1_900_500), (1000, 1_900_982), (1001, 1_900_982)] {
            assert_eq!(time_of_second(second, booted, read_at), Millis(expected), "{second}");
        }
    }
}
