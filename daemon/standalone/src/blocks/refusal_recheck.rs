//! Rechecks backends that refused clients outside.
//!
//! A client's refusal proves nothing, because any host may forge one. So it only triggers the backend's own check at
//! once, and the check decides.
//!
//! Invariant: a recheck only lowers. Unready backends are not rechecked, and a success only ends the recheck. One
//! refusal causes at most `fall` checks, and a backend is rechecked at most once per interval: so clients, however
//! many, at most double the checks, plus `fall` for a backend that fails. Clients of one service recheck no backends of
//! another.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::keys::Transport;
use holdfast_status::datapath::BackendRefusals;

/// The recheck of one backend.
#[derive(Debug, Default)]
pub(super) struct RefusalRecheck {
    /// When the regular check is due, while a recheck is active.
    regular_due: Option<Duration>,
    last: Option<Duration>,
}

impl RefusalRecheck {
    /// Starts a recheck unless the last one was too recent. `turn` is when the regular check is due.
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

    /// Ends the recheck; returns when the regular check is due.
    pub(super) const fn end(&mut self) -> Option<Duration> {
        self.regular_due.take()
    }
}

/// The backends that refused clients, by frontend.
pub(super) type RefusedBackends = BTreeMap<(SocketAddr, Transport), Vec<SocketAddr>>;

/// The datapath's last report of refusals.
#[derive(Debug, Default)]
pub(super) struct RefusalTracker(BackendRefusals);

impl RefusalTracker {
    /// Returns refusals that are new or were repeated.
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
    fn a_backend_is_rechecked_once_per_interval() {
        let mut doubt = RefusalRecheck::default();
        assert!(doubt.begin(s(10), s(60), s(30)));
        assert!(doubt.is_active() && !doubt.begin(s(90), s(60), s(30)), "it is active");
        assert_eq!(doubt.end(), Some(s(30)));
        assert!(!doubt.is_active());
        assert!(!doubt.begin(s(69), s(60), s(90)));
        assert!(doubt.begin(s(70), s(60), s(90)));
    }

    #[test]
    fn a_refusal_reported_before_is_not_new() {
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
