//! Backends that clients outside could not connect to, asked out of turn whether they are well.
//!
//! A client that was refused says nothing that a backend could be judged by: any host may send what looks like a
//! refusal. So a refusal has the backend's own check run at once, and the check decides.
//!
//! Invariant: what is found out of turn only lowers. A backend that is unready is not asked, and a good answer counts
//! for nothing but the end of the doubt. One refusal makes at most `fall` checks, and a backend is doubted at most once
//! in an interval: so clients, however many, get no more than twice the checks and `fall` more for a backend that goes.
//! What clients of one service meet has no other service's backends asked.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::keys::Transport;
use holdfast_status::datapath::BackendRefusals;

/// The doubts about one backend.
#[derive(Debug, Default)]
pub(super) struct RefusalRecheck {
    /// When its check is due in its turn, while it is asked out of turn.
    regular_due: Option<Duration>,
    last: Option<Duration>,
}

impl RefusalRecheck {
    /// Begins a doubt, if the last one is long enough ago. `regular_due` is when the check is due without it.
    pub(super) fn begin(&mut self, now: Duration, interval: Duration, turn: Duration) -> bool {
        let is_early = self.last.is_some_and(|last| now < last.saturating_add(interval));
        if is_early || self.regular_due.is_some() {
            return false;
        }
        (self.regular_due, self.last) = (Some(turn), Some(now));
        true
    }

    pub(super) const fn is_active(&self) -> bool {
        self.regular_due.is_some()
    }

    /// Ends the doubt, and gives back when the check is due in its turn.
    pub(super) const fn end(&mut self) -> Option<Duration> {
        self.regular_due.take()
    }
}

/// Which backends refused clients, by what these dialled.
pub(super) type RefusedBackends = BTreeMap<(SocketAddr, Transport), Vec<SocketAddr>>;

/// What the datapath last told of refusals.
#[derive(Debug, Default)]
pub(super) struct RefusalTracker(BackendRefusals);

impl RefusalTracker {
    /// The refusals that are new, or have happened again.
    pub(super) fn take_new(&mut self, told: &BackendRefusals) -> RefusedBackends {
        let mut news = RefusedBackends::new();
        for (refused, seen) in told {
            if self.0.get(refused) != Some(seen) {
                news.entry((refused.frontend, refused.transport)).or_default().push(refused.backend);
            }
        }
        self.0.clone_from(told);
        news
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::op::QuotaId;
    use holdfast_status::datapath::BackendRefusal as Refusal;

    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_backend_is_doubted_once_in_an_interval() {
        let mut doubt = RefusalRecheck::default();
        assert!(doubt.begin(s(10), s(60), s(30)));
        assert!(doubt.is_active() && !doubt.begin(s(90), s(60), s(30)), "it is on");
        assert_eq!(doubt.end(), Some(s(30)));
        assert!(!doubt.is_active());
        assert!(!doubt.begin(s(69), s(60), s(90)));
        assert!(doubt.begin(s(70), s(60), s(90)));
    }

    #[test]
    fn what_was_told_before_is_no_news() {
        let refused = |backend: &str| Refusal {
            quota: QuotaId::default(),
            frontend: "192.0.2.10:80".parse().unwrap(),
            transport: Transport::Tcp,
            backend: backend.parse().unwrap(),
        };
        let (one, other) = (refused("10.1.0.1:80"), refused("10.1.0.2:80"));
        let mut told = RefusalTracker::default();
        let backends = |news: RefusedBackends| news.into_values().flatten().collect::<Vec<_>>();
        assert_eq!(backends(told.take_new(&BackendRefusals::from([(one, 5)]))), [one.backend]);
        assert_eq!(backends(told.take_new(&BackendRefusals::from([(one, 5)]))), []);
        let both = BackendRefusals::from([(one, 6), (other, 6)]);
        assert_eq!(backends(told.take_new(&both)), [one.backend, other.backend]);
        assert_eq!(backends(told.take_new(&BackendRefusals::new())), []);
    }
}
