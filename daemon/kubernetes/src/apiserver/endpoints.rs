//! The ordered endpoints of the apiserver and the state of each: a state machine without clock or socket.
//!
//! Invariant: no failure excludes an endpoint. A failed endpoint is asked after the others; if all failed, all are
//! asked in order. Only an endpoint that throttles us is skipped, for a minute at most. The operator's order decides;
//! speed and load do not change it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_status::views::apiserver::{ApiserverState, Tier};

use super::endpoint_error::EndpointError;
use super::limits::{CHECK_INTERVAL, CONFIRM_AFTER, PENALTY_MAX, PENALTY_MIN};

/// An endpoint's id, unique while the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EndpointId(u64);

#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) id: EndpointId,
    pub(super) tier: Tier,
    pub(super) address: SocketAddr,
    pub(super) name: Arc<str>,
    pub(super) state: ApiserverState,
    pub(super) since: Instant,
    pub(super) connections: usize,
    pub(super) last_error: Option<(EndpointError, Instant)>,
    /// It has replied at least once as this cluster's apiserver.
    pub(super) has_served: bool,
    failures: u32,
    missed_checks: u32,
    held_off_until: Option<Instant>,
    next_check: Option<Instant>,
}

/// The order in which endpoints are asked; equal ranks keep the operator's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Usable,
    Recovering,
    Failed,
    HeldOff,
}

impl Endpoint {
    fn rank(&self, now: Instant) -> Rank {
        match self.state {
            ApiserverState::Unknown | ApiserverState::Healthy | ApiserverState::Throttled => Rank::Usable,
            ApiserverState::Recovering => Rank::Recovering,
            ApiserverState::Failed if self.held_off_until.is_some_and(|until| now < until) => Rank::HeldOff,
            ApiserverState::Failed => Rank::Failed,
        }
    }

    /// How long the endpoint still throttles us.
    fn throttle_remaining(&self, now: Instant) -> Option<Duration> {
        let until = self.held_off_until.filter(|_| self.state == ApiserverState::Throttled)?;
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    fn set_state(&mut self, state: ApiserverState, now: Instant) {
        if self.state != state {
            self.state = state;
            self.since = now;
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        let waits = matches!(
            self.state,
            ApiserverState::Failed | ApiserverState::Recovering | ApiserverState::Throttled
        );
        waits && self.next_check.is_none_or(|next| next <= now)
    }
}

/// All endpoints, by tier and in the given order within a tier.
#[derive(Debug)]
pub(super) struct Endpoints {
    rows: Vec<Endpoint>,
    next_id: u64,
    // Spreads penalties, so that a thousand nodes do not return at the same moment.
    rng_state: u64,
}

impl Endpoints {
    pub(super) fn new(seed: u64) -> Self {
        Self { rows: Vec::new(), next_id: 0, rng_state: seed | 1 }
    }

    /// All endpoints in the operator's order.
    pub(super) fn rows(&self) -> &[Endpoint] {
        &self.rows
    }

    /// Replaces the addresses of a tier; those that stay keep their state.
    pub(super) fn set_tier(&mut self, tier: Tier, addresses: &[SocketAddr], now: Instant) {
        let (own, mut rows): (Vec<_>, Vec<_>) = self.rows.drain(..).partition(|row| row.tier == tier);
        for address in addresses {
            let known = own.iter().find(|row| row.address == *address).cloned();
            rows.push(known.unwrap_or_else(|| self.new_endpoint(tier, *address, now)));
        }
        rows.sort_by_key(|row| row.tier);
        self.rows = rows;
    }

    fn new_endpoint(&mut self, tier: Tier, address: SocketAddr, now: Instant) -> Endpoint {
        let id = EndpointId(self.next_id);
        self.next_id = self.next_id.saturating_add(1);
        Endpoint {
            id,
            tier,
            address,
            name: address.to_string().into(),
            state: ApiserverState::Unknown,
            since: now,
            connections: 0,
            last_error: None,
            has_served: false,
            failures: 0,
            missed_checks: 0,
            held_off_until: None,
            next_check: None,
        }
    }

    /// The endpoints in the order to dial them, without those that throttle us.
    pub(super) fn dial_order(&self, now: Instant) -> Vec<EndpointId> {
        let dialled = self.rows.iter().filter(|row| row.throttle_remaining(now).is_none());
        let mut order: Vec<_> = dialled.map(|row| (row.rank(now), row.id)).collect();
        order.sort_by_key(|(rank, _)| *rank);
        order.into_iter().map(|(_, id)| id).collect()
    }

    /// The endpoints that throttle us, and for how long.
    pub(super) fn throttled_endpoints(&self, now: Instant) -> Vec<(Arc<str>, Duration)> {
        self.rows
            .iter()
            .filter_map(|row| Some((Arc::clone(&row.name), row.throttle_remaining(now)?)))
            .collect()
    }

    /// The endpoints that precede one in use and are due for a check.
    pub(super) fn due_checks(&self, now: Instant) -> Vec<EndpointId> {
        let worst = self.rows.iter().rposition(|row| row.connections > 0).unwrap_or(0);
        self.rows.iter().take(worst).filter(|row| row.is_due(now)).map(|row| row.id).collect()
    }

    pub(super) fn get(&self, id: EndpointId) -> Option<&Endpoint> {
        self.rows.iter().find(|row| row.id == id)
    }

    fn get_mut(&mut self, id: EndpointId) -> Option<&mut Endpoint> {
        self.rows.iter_mut().find(|row| row.id == id)
    }

    /// Records that an endpoint served a request or passed a check.
    pub(super) fn record_success(&mut self, id: EndpointId, now: Instant) {
        let pause = self.jitter(CONFIRM_AFTER);
        let Some(row) = self.get_mut(id) else { return };
        row.missed_checks = 0;
        row.held_off_until = None;
        row.has_served = true;
        match row.state {
            ApiserverState::Failed => {
                row.next_check = now.checked_add(pause);
                row.set_state(ApiserverState::Recovering, now);
            }
            ApiserverState::Unknown
            | ApiserverState::Recovering
            | ApiserverState::Healthy
            | ApiserverState::Throttled => {
                row.failures = 0;
                row.set_state(ApiserverState::Healthy, now);
            }
        }
    }

    /// Records that a request or its connection failed.
    pub(super) fn record_dial_failure(&mut self, id: EndpointId, trouble: EndpointError, now: Instant) {
        let noise = self.next_random();
        let Some(row) = self.get_mut(id) else { return };
        let penalty = penalty_duration(row.failures, noise);
        row.failures = row.failures.saturating_add(1);
        row.held_off_until = now.checked_add(penalty);
        row.next_check = row.held_off_until;
        row.last_error = Some((trouble, now));
        row.set_state(ApiserverState::Failed, now);
    }

    /// Records that an endpoint throttles us. It is up, so this is no failure.
    pub(super) fn record_throttle(
        &mut self,
        id: EndpointId,
        trouble: EndpointError,
        wait: Duration,
        now: Instant,
    ) {
        // Each node returns later than asked, never earlier, and not together with the others.
        let late = self.jitter(wait / 8);
        let Some(row) = self.get_mut(id) else { return };
        row.missed_checks = 0;
        row.held_off_until = now.checked_add(wait.saturating_add(late));
        row.next_check = row.held_off_until;
        row.last_error = Some((trouble, now));
        row.set_state(ApiserverState::Throttled, now);
    }

    /// Records a failed check. A recovering endpoint fails again at once. Any other may still serve, so it fails only
    /// after [`MISSED_CHECKS`].
    pub(super) fn record_check_failure(&mut self, id: EndpointId, trouble: EndpointError, now: Instant) {
        let pause = self.jitter(CHECK_INTERVAL);
        let Some(row) = self.get_mut(id) else { return };
        row.missed_checks = row.missed_checks.saturating_add(1);
        row.last_error = Some((trouble, now));
        row.next_check = now.checked_add(pause);
        let is_doubted = row.state == ApiserverState::Recovering || row.missed_checks >= MISSED_CHECKS;
        if is_doubted {
            row.set_state(ApiserverState::Failed, now);
        }
    }

    /// Records an error that does not affect the dial order.
    pub(super) fn record_error(&mut self, id: EndpointId, trouble: EndpointError, now: Instant) {
        if let Some(row) = self.get_mut(id) {
            row.last_error = Some((trouble, now));
        }
    }

    pub(super) fn add_connection(&mut self, id: EndpointId) {
        if let Some(row) = self.get_mut(id) {
            row.connections = row.connections.saturating_add(1);
        }
    }

    pub(super) fn remove_connection(&mut self, id: EndpointId) {
        if let Some(row) = self.get_mut(id) {
            row.connections = row.connections.saturating_sub(1);
        }
    }

    /// Spreads a time between three quarters and five quarters of it.
    pub(super) fn jitter(&mut self, time: Duration) -> Duration {
        let noise = self.next_random();
        spread_by_noise(time, noise)
    }

    /// The next number of a xorshift, random enough to spread clients.
    fn next_random(&mut self) -> u64 {
        self.rng_state ^= self.rng_state << 13;
        self.rng_state ^= self.rng_state >> 7;
        self.rng_state ^= self.rng_state << 17;
        self.rng_state
    }
}

/// Missed checks until an endpoint counts as failed; for requests, one is enough.
const MISSED_CHECKS: u32 = 2;

/// How long an endpoint stays last after its n-th failure in a row.
fn penalty_duration(failures: u32, noise: u64) -> Duration {
    let grown = PENALTY_MIN.saturating_mul(2_u32.saturating_pow(failures));
    spread_by_noise(grown.min(PENALTY_MAX), noise).min(PENALTY_MAX)
}

fn spread_by_noise(time: Duration, noise: u64) -> Duration {
    const STEPS: u64 = 1 << 16;
    let half = time / 2;
    let part = u32::try_from(noise % STEPS).unwrap_or(0);
    (time - time / 4).saturating_add(half.saturating_mul(part) / 65_536)
}

#[cfg(test)]
mod tests;
