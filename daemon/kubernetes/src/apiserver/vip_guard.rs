//! Chooses the endpoint that the apiserver's virtual address forwards other clients on this node to.
//!
//! The guard holds a connection to that endpoint open. The kernel detects a dead host on it within seconds, at no cost
//! for the server; a server that stops closes it at once. The endpoints are the daemon's own, in the operator's order.
//! The guard keeps its own backoffs, because it is less patient than the daemon, for which a slow apiserver is better
//! than none. It races endpoints with a stagger, so that silent ones do not add up while clients wait.
//!
//! Invariant: an endpoint becomes the target only after its server proved over a connection of this process, now or
//! before a restart, that it has an apiserver's certificate, belongs to our cluster, and is ready. The target stays
//! until another server has proved the same: the virtual address has a target as long as it is configured. If no server
//! is ready and the target proves nothing any more, a server that proves all but readiness is better: it may serve most
//! requests.

mod endpoint_backoff;
mod race;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use holdfast_status::views::apiserver::Tier;
use tokio::time::{Instant, sleep, timeout};

use super::endpoint_error::EndpointError;
use super::failover::{self, IdentifiedConnection};
use super::http::{ApiRequest, Connection};
use super::lease::Target;
use super::limits::{
    DIAL_TIMEOUT, GUARD_DIAL_TIMEOUT, GUARD_PROBE_INTERVAL, GUARD_PROBE_TIMEOUT, GUARD_RETRY_MIN,
    GUARD_STAGGER, SHORT_BODY_BYTES_MAX, SHORT_BODY_TIMEOUT, SHORT_CONNECTION,
};
use super::{Inner, JSON};
use endpoint_backoff::EndpointBackoffs;
use holdfast_host::logging::messages::{self, say};
use holdfast_host::ticker;
use race::Race;

/// The probe over the guarded connection: it finds a hanging server, and keeps the connection open.
const READYZ: ApiRequest<'static> = ApiRequest::for_get(JSON, "/readyz");

/// Guards while polled.
pub(super) async fn run(inner: &Inner) {
    loop {
        match inner.config().vip {
            Some(vip) => {
                VipGuard::new(inner, vip).run_vip().await;
            }
            None => {
                inner.set_vip_target(None);
                ticker::next_tick().await;
            }
        }
    }
}

/// Whether an endpoint can be a target: clients stay within their family.
pub(super) fn is_same_family(vip: SocketAddr, endpoint: SocketAddr) -> bool {
    vip.is_ipv4() == endpoint.is_ipv4()
}

/// Guards one virtual address.
struct VipGuard<'a> {
    inner: &'a Inner,
    vip: SocketAddr,
    backoffs: EndpointBackoffs,
    // Candidates that proved all but readiness at the last attempt.
    unready: BTreeSet<SocketAddr>,
    short_connections: ShortConnections,
}

/// How many connections in a row one server closed soon after it became the target.
#[derive(Default)]
struct ShortConnections {
    at: Option<SocketAddr>,
    times: u32,
}

/// The result of an attempt at an endpoint.
type AttemptResult = (Target, Result<Connection, ProbeFailure>);

/// Why a server cannot be the target.
enum ProbeFailure {
    /// The server is one of ours but not ready.
    Unready(EndpointError),
    Other(EndpointError),
}

impl From<EndpointError> for ProbeFailure {
    fn from(trouble: EndpointError) -> Self {
        Self::Other(trouble)
    }
}

/// The connection to the target.
struct GuardedConnection<'a> {
    connection: Connection,
    target: Target,
    since: Instant,
    probe_at: Instant,
    // Attempts at endpoints that precede this one.
    preferred_attempts: Race<'a, AttemptResult>,
}

/// An event of [`VipGuard::watch_connection`].
enum GuardEvent {
    Tick,
    Ended(Option<EndpointError>),
    AttemptDone(AttemptResult),
}

impl<'a> VipGuard<'a> {
    fn new(inner: &'a Inner, vip: SocketAddr) -> Self {
        let (backoffs, short_connections) = (EndpointBackoffs::default(), ShortConnections::default());
        Self { inner, vip, backoffs, unready: BTreeSet::new(), short_connections }
    }

    /// Runs until the configured virtual address changes.
    async fn run_vip(&mut self) {
        if self.inner.vip_target.borrow().is_some_and(|target| !is_same_family(self.vip, target)) {
            self.inner.set_vip_target(None);
        }
        // Before the first read there are no credentials.
        self.inner.refresh_credentials().await;
        while self.inner.config().vip == Some(self.vip) {
            let mut guarded = self.connect_first_ready().await;
            if guarded.is_none() {
                sleep(GUARD_RETRY_MIN).await;
            }
            while let Some(held) = guarded {
                guarded = if self.inner.config().vip == Some(self.vip) {
                    self.watch_connection(held).await
                } else {
                    None
                };
            }
        }
    }

    /// The endpoints of the right family, in the operator's order.
    fn candidates(&self) -> Vec<Target> {
        let rows: Vec<_> = self.inner.endpoints.lock().rows().iter().map(|row| row.id).collect();
        let targets = rows.into_iter().filter_map(|id| self.inner.endpoints.target(id));
        targets.filter(|target| is_same_family(self.vip, target.address)).collect()
    }

    /// Starts attempts at the endpoints that are not backing off, with a limit for each.
    fn start_race(&self, mut all: Vec<Target>, limit: Duration) -> Race<'a, AttemptResult> {
        let (inner, now) = (self.inner, Instant::now());
        all.retain(|target| self.backoffs.can_try(target.address, now));
        let attempt = |target: Target| {
            let attempt: BoxFuture<'a, AttemptResult> = Box::pin(async move {
                let result = timeout(limit, open_ready_connection(inner, &target)).await;
                (target, result.unwrap_or(Err(EndpointError::Silent.into())))
            });
            attempt
        };
        Race::new(all.into_iter().map(attempt), GUARD_STAGGER)
    }

    /// Connects to the first endpoint that proves itself. Each may take its full time: the race does not wait for it.
    async fn connect_first_ready(&mut self) -> Option<GuardedConnection<'a>> {
        let all = self.candidates();
        let is_candidate = |address| all.iter().any(|target| target.address == address);
        self.backoffs.retain_known(is_candidate);
        self.unready.retain(|address| is_candidate(*address));
        let addresses: Vec<_> = all.iter().map(|target| target.address).collect();
        let mut race = self.start_race(all, DIAL_TIMEOUT);
        while let Some((target, result)) = race.next().await {
            match result {
                Ok(connection) => return Some(self.promote_endpoint(target, connection)),
                Err(why) => self.record_probe_failure(&target, why),
            }
        }
        self.fall_back_to_unready(&addresses);
        None
    }

    /// Makes the first unready endpoint the target if the present target did not even prove to be unready.
    fn fall_back_to_unready(&self, addresses: &[SocketAddr]) {
        let target = *self.inner.vip_target.borrow();
        let first = addresses.iter().find(|address| self.unready.contains(address));
        if target.is_some_and(|target| !self.unready.contains(&target)) && first.is_some() {
            self.inner.set_vip_target(first.copied());
        }
    }

    fn record_probe_failure(&mut self, target: &Target, why: ProbeFailure) {
        let trouble = match why {
            ProbeFailure::Unready(trouble) => {
                self.unready.insert(target.address);
                trouble
            }
            ProbeFailure::Other(trouble) => {
                self.unready.remove(&target.address);
                trouble
            }
        };
        self.record_failure(target, trouble);
    }

    /// Makes a proven endpoint the target.
    fn promote_endpoint(&mut self, target: Target, connection: Connection) -> GuardedConnection<'a> {
        target.record_success();
        self.backoffs.clear_address(target.address);
        self.unready.remove(&target.address);
        self.inner.set_vip_target(Some(target.address));
        let since = Instant::now();
        let preferred_attempts = Race::new([], GUARD_STAGGER);
        GuardedConnection {
            connection,
            target,
            since,
            probe_at: since + jitter_time(self.inner, GUARD_PROBE_INTERVAL),
            preferred_attempts,
        }
    }

    /// Errors of our own files and sockets are not about the endpoint, which was not dialled.
    fn record_failure(&mut self, target: &Target, trouble: EndpointError) {
        let is_ours = trouble.is_local();
        target.record_error(trouble);
        if is_ours {
            return;
        }
        if self.short_connections.at == Some(target.address) {
            // A proxy that closes after each reply would have accepted us again: this server is gone.
            self.short_connections = ShortConnections::default();
        }
        let Self { inner, backoffs, .. } = self;
        backoffs.record_failure(target.address, Instant::now(), |pause| jitter_time(inner, pause));
    }

    /// Waits for one event, at most a tick. `None`: the connection is lost.
    async fn watch_connection(
        &mut self,
        mut guarded: GuardedConnection<'a>,
    ) -> Option<GuardedConnection<'a>> {
        let event = tokio::select! {
            ended = guarded.connection.wait_until_closed() => GuardEvent::Ended(ended),
            Some(tried) = guarded.preferred_attempts.next() => GuardEvent::AttemptDone(tried),
            () = ticker::next_tick() => GuardEvent::Tick,
        };
        match event {
            GuardEvent::Tick => self.probe_endpoints(guarded).await,
            GuardEvent::Ended(ended) => {
                self.handle_disconnect(&guarded.target, guarded.since, ended).await;
                None
            }
            // The order may have changed since the attempt started.
            GuardEvent::AttemptDone((target, Ok(connection)))
                if self.is_preferred(&target, &guarded.target) =>
            {
                Some(self.promote_endpoint(target, connection))
            }
            GuardEvent::AttemptDone((_, Ok(_))) => Some(guarded),
            GuardEvent::AttemptDone((target, Err(why))) => {
                self.record_probe_failure(&target, why);
                Some(guarded)
            }
        }
    }

    /// Tries the preferred endpoints, at most once per tick, and probes this one when due.
    async fn probe_endpoints(&mut self, mut guarded: GuardedConnection<'a>) -> Option<GuardedConnection<'a>> {
        let all = self.candidates();
        let at = all.iter().position(|target| target.id == guarded.target.id)?;
        if guarded.preferred_attempts.is_finished() {
            guarded.preferred_attempts =
                self.start_race(all.into_iter().take(at).collect(), GUARD_DIAL_TIMEOUT);
        }
        if Instant::now() < guarded.probe_at { Some(guarded) } else { self.probe_connection(guarded).await }
    }

    fn is_preferred(&self, target: &Target, other: &Target) -> bool {
        let all = self.candidates();
        let at = |target: &Target| all.iter().position(|it| it.id == target.id);
        matches!((at(target), at(other)), (Some(one), Some(other)) if one < other)
    }

    /// Handles the end of the connection, with or without an error.
    async fn handle_disconnect(&mut self, target: &Target, since: Instant, ended: Option<EndpointError>) {
        self.lift_backoffs(since);
        match ended {
            None | Some(EndpointError::Closed) => self.wait_after_disconnect(target, since).await,
            Some(trouble) => self.record_failure(target, trouble),
        }
    }

    /// Lets all other endpoints be tried now. Only a lasting connection earns this, so that endpoints that come and go
    /// are not dialled in a loop.
    fn lift_backoffs(&mut self, since: Instant) {
        if since.elapsed() >= SHORT_CONNECTION {
            self.backoffs.lift_all(Instant::now());
        }
    }

    /// Servers close idle connections, and proxies may close after each reply. That is no failure: reconnect after a
    /// growing pause. A server that is gone refuses the reconnect.
    async fn wait_after_disconnect(&mut self, target: &Target, since: Instant) {
        let at = Some(target.address);
        if since.elapsed() >= SHORT_CONNECTION || self.short_connections.at != at {
            self.short_connections = ShortConnections { at, times: 0 };
        }
        if since.elapsed() < SHORT_CONNECTION {
            sleep(jitter_time(self.inner, endpoint_backoff::retry_pause(self.short_connections.times))).await;
            self.short_connections.times = self.short_connections.times.saturating_add(1);
        }
    }

    /// Probes the server's readiness again.
    async fn probe_connection(&mut self, guarded: GuardedConnection<'a>) -> Option<GuardedConnection<'a>> {
        let GuardedConnection { connection, target, since, preferred_attempts, .. } = guarded;
        let probed = timeout(GUARD_PROBE_TIMEOUT, check_readiness(self.inner, connection)).await;
        match probed.unwrap_or(Err(EndpointError::Silent.into())) {
            Ok(connection) => {
                let probe_at = Instant::now() + jitter_time(self.inner, GUARD_PROBE_INTERVAL);
                Some(GuardedConnection { connection, target, since, probe_at, preferred_attempts })
            }
            Err(why) => {
                self.lift_backoffs(since);
                self.record_probe_failure(&target, why);
                None
            }
        }
    }
}

/// Jitters a time per node, so that thousands do not come at the same moment.
fn jitter_time(inner: &Inner, time: Duration) -> Duration {
    inner.endpoints.lock().jitter(time)
}

/// Connects and proves the certificate, the cluster and readiness. A server that may not name its cluster is accepted
/// only if the operator configured it.
async fn open_ready_connection(inner: &Inner, target: &Target) -> Result<Connection, ProbeFailure> {
    let IdentifiedConnection { connection, is_our_cluster } = failover::open_for_guard(inner, target).await?;
    if !is_our_cluster && target.tier != Tier::Configured {
        return Err(
            EndpointError::NotAnApiserver("it may not say which cluster it belongs to".to_owned()).into()
        );
    }
    check_readiness(inner, connection).await
}

/// A status about the request or our credentials does not count against the server: it replies.
async fn check_readiness(inner: &Inner, connection: Connection) -> Result<Connection, ProbeFailure> {
    let mut reply = failover::request_with_cached(inner, &READYZ, connection, GUARD_PROBE_TIMEOUT).await?;
    let body = reply.collect_body(SHORT_BODY_BYTES_MAX, SHORT_BODY_TIMEOUT).await?;
    match reply.status {
        200 | 401 | 403 | 429 => Ok(reply.into_connection()),
        status => Err(ProbeFailure::Unready(EndpointError::from_status(status, &body))),
    }
}

impl Inner {
    /// Sets the virtual address's target, and remembers it over restarts.
    fn set_vip_target(&self, endpoint: Option<SocketAddr>) {
        let is_new = self.vip_target.send_if_modified(|known| std::mem::replace(known, endpoint) != endpoint);
        if !is_new {
            return;
        }
        if let (Some(vip), Some(endpoint)) = (self.config().vip, endpoint) {
            say!(info, messages::APISERVER_LED, %vip, %endpoint);
        }
        self.memory().vip_target = endpoint;
        self.memory_dirty.notify_one();
        self.publish();
    }
}
