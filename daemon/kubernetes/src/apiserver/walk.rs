//! One request: from endpoint to endpoint until one answers it.
//!
//! Invariant: what an endpoint did wrong is written to its row before the next one is asked. A connection carries a
//! request only after its server has named our cluster, or has said that we may not ask which cluster it belongs to.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use holdfast_status::views::apiserver::Tier;
use rustls::pki_types::ServerName;

use super::credentials::Shown;
use super::http::{Ask, Connection, Dial, Headers, Reply};
use super::identity;
use super::lease::Target;
use super::limits::{DIAL, HEADERS, SHORT_BODY, SHORT_BODY_BYTES_MAX};
use super::socket::Notice;
use super::trouble::Trouble;
use super::{AccessError, Failure, Inner, JSON};

impl Ask<'_> {
    fn headers(&self, shown: &Shown) -> Headers {
        Headers { accept: self.accept, authorization: shown.authorization.clone() }
    }
}

/// How long an endpoint may take until it has named its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Another endpoint can be asked next.
    Short,
    /// The endpoint is the last one that can be asked.
    Long,
}

impl Patience {
    fn limit(self) -> Duration {
        match self {
            Self::Short => DIAL,
            Self::Long => DIAL + HEADERS,
        }
    }
}

pub(super) async fn ask(
    inner: &Inner,
    ask: &Ask<'_>,
    kept: Option<Connection>,
) -> Result<Reply, AccessError> {
    if let Some(reply) = ask_over(inner, ask, kept).await {
        return Ok(reply);
    }
    inner.refresh().await;
    let (targets, mut failures) = candidates(inner);
    let mut targets = targets.into_iter().peekable();
    let mut refused = None;
    while let Some(target) = targets.next() {
        let patience = if targets.peek().is_some() { Patience::Short } else { Patience::Long };
        // Where this host lacks credentials or a socket, no endpoint is asked at all, so none has failed.
        let mut is_asked = true;
        match attempt(inner, &target, ask, patience).await {
            Ok(reply) if is_for_others(&reply, &target, ask) => {
                // What a kubelet may not do says less than where a server has failed.
                refused = refused.filter(|known: &Reply| known.status == FAILED_INSIDE).or(Some(reply));
            }
            Ok(reply) => return Ok(reply),
            Err(trouble) => {
                is_asked = !trouble.is_own();
                failures.push(Failure { endpoint: target.name, trouble });
            }
        }
        if targets.peek().is_some() && is_asked {
            inner.failovers.fetch_add(1, Ordering::Relaxed);
        }
    }
    refused.ok_or_else(|| nobody(failures))
}

/// Whether the other endpoints are asked as well, once each, and this answer counts only if none of them does better.
fn is_for_others(reply: &Reply, target: &Target, ask: &Ask<'_>) -> bool {
    // Kubelet may not list slices. That does not say what the daemon itself may do.
    let is_refused_as_kubelet = reply.status == FORBIDDEN && target.tier == Tier::Kubelet;
    is_refused_as_kubelet || has_failed_inside(reply, ask)
}

/// Whether a server failed at a read for a reason of its own, as one does that has lost etcd, or for an object that
/// makes each of them fail. What a write has done by then is not known.
fn has_failed_inside(reply: &Reply, ask: &Ask<'_>) -> bool {
    reply.status == FAILED_INSIDE && ask.write.is_none()
}

/// A connection to the best endpoint that serves.
pub(super) async fn connect(inner: &Inner) -> Result<Connection, AccessError> {
    inner.refresh().await;
    let (targets, mut failures) = candidates(inner);
    let mut targets = targets.into_iter().peekable();
    while let Some(target) = targets.next() {
        let patience = if targets.peek().is_some() { Patience::Short } else { Patience::Long };
        match opened_twice(inner, &target, patience).await {
            Ok(connection) => {
                target.served();
                return Ok(connection);
            }
            Err(trouble) => {
                blame(&target, &trouble);
                failures.push(Failure { endpoint: target.name, trouble });
            }
        }
    }
    Err(nobody(failures))
}

/// One question over a connection that is there. Whatever comes of it says nothing about the endpoint: it was asked
/// for more than it has to answer.
pub(super) async fn ask_aside(
    inner: &Inner,
    ask: &Ask<'_>,
    connection: Connection,
) -> Result<Reply, AccessError> {
    let name = Arc::clone(&connection.target().name);
    let tier = connection.target().tier;
    let failed = |trouble| AccessError::of(&name, trouble);
    let asked = inner.asked();
    let shown = asked.credentials(tier).current(false).await;
    let shown = shown.map_err(|problem| failed(Trouble::Credentials(problem)))?;
    connection.ask(ask, &ask.headers(&shown), HEADERS).await.map_err(failed)
}

/// A connection to one endpoint for a caller that waits for no file: with the credentials that were good last.
pub(super) async fn opened_for_others(inner: &Inner, target: &Target) -> Result<Opened, Trouble> {
    let shown = last_credentials(inner, target.tier)?;
    open(inner, target, &shown, Notice::AtOnce).await
}

/// One question over such a connection.
pub(super) async fn asked_with_last(
    inner: &Inner,
    ask: &Ask<'_>,
    connection: Connection,
    limit: Duration,
) -> Result<Reply, Trouble> {
    let shown = last_credentials(inner, connection.target().tier)?;
    connection.ask(ask, &ask.headers(&shown), limit).await
}

fn last_credentials(inner: &Inner, tier: Tier) -> Result<Arc<Shown>, Trouble> {
    let last = inner.asked().credentials(tier).last();
    last.ok_or_else(|| Trouble::Credentials("nothing was read yet".to_owned()))
}

/// The endpoints in the order in which they are asked, and those that are left alone.
fn candidates(inner: &Inner) -> (Vec<Target>, Vec<Failure>) {
    let (order, patience) = {
        let table = inner.endpoints.lock();
        let now = Instant::now();
        (table.order(now), table.patience(now))
    };
    let targets = order.into_iter().filter_map(|id| inner.endpoints.target(id)).collect();
    (targets, patience.into_iter().map(left_alone).collect())
}

fn nobody(failures: Vec<Failure>) -> AccessError {
    if failures.is_empty() { AccessError::NoEndpoint } else { AccessError::Failed(failures) }
}

/// Writes a trouble to the endpoint's row. What is wrong with our own files and sockets says nothing about the
/// endpoint, and little says that much was asked of it.
fn blame(target: &Target, trouble: &Trouble) {
    if trouble.is_own() || *trouble == Trouble::Late {
        target.noted(trouble.clone());
    } else {
        target.dial_failed(trouble.clone());
    }
}

/// The failure of an endpoint that is not asked, because it has asked to be left alone.
fn left_alone((endpoint, left): (Arc<str>, Duration)) -> Failure {
    // The wait is rounded up to whole seconds, so that it is never told as 0 s.
    let wait = Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0));
    Failure { endpoint, trouble: Trouble::Throttled { status: TOO_MANY_REQUESTS, wait } }
}

/// Asks over a connection that may have died while it was idle; that says nothing about its endpoint.
async fn ask_over(inner: &Inner, ask: &Ask<'_>, kept: Option<Connection>) -> Option<Reply> {
    let kept = kept?;
    let tier = inner.endpoints.lock().get(kept.target().id)?.tier;
    let asked = inner.asked();
    let shown = asked.credentials(tier).current(false).await.ok()?;
    let reply = kept.ask(ask, &ask.headers(&shown), HEADERS).await.ok()?;
    (reply.status != UNAUTHORIZED && !is_about_endpoint(reply.status)).then_some(reply)
}

/// A request to one endpoint, with its consequences for the endpoint.
async fn attempt(
    inner: &Inner,
    target: &Target,
    ask: &Ask<'_>,
    patience: Patience,
) -> Result<Reply, Trouble> {
    match ask_twice(inner, target, ask, patience).await {
        Ok(reply) if has_failed_inside(&reply, ask) => {
            target.noted(Trouble::status(FAILED_INSIDE, b""));
            Ok(reply)
        }
        Ok(reply) => {
            target.served();
            // A client that may read and not write is served all the same.
            if reply.status == FORBIDDEN && ask.write.is_none() {
                target.noted(Trouble::status(FORBIDDEN, b""));
            }
            Ok(reply)
        }
        Err(trouble) => {
            blame(target, &trouble);
            Err(trouble)
        }
    }
}

/// Asks one endpoint. A 401 can mean that our files have changed a moment ago: they are read again, and the endpoint is
/// asked once more.
pub(super) async fn ask_twice(
    inner: &Inner,
    target: &Target,
    ask: &Ask<'_>,
    patience: Patience,
) -> Result<Reply, Trouble> {
    let asked = inner.asked();
    let credentials = asked.credentials(target.tier);
    let shown = credentials.current(false).await.map_err(Trouble::Credentials)?;
    match ask_once(inner, target, ask, &shown, patience).await {
        Err(Trouble::Unauthorized { .. }) => {
            let shown = credentials.current(true).await.map_err(Trouble::Credentials)?;
            ask_once(inner, target, ask, &shown, patience).await
        }
        other => other,
    }
}

async fn ask_once(
    inner: &Inner,
    target: &Target,
    ask: &Ask<'_>,
    shown: &Shown,
    patience: Patience,
) -> Result<Reply, Trouble> {
    let connection = opened(inner, target, shown, patience).await?;
    let reply = connection.ask(ask, &ask.headers(shown), HEADERS).await;
    let reply = reply.map_err(|trouble| match trouble {
        Trouble::Silent if ask.is_large => Trouble::Late,
        other => other,
    })?;
    judged(reply, shown).await
}

/// Tries as [`ask_twice`] does, but gives the connection instead of an answer.
async fn opened_twice(inner: &Inner, target: &Target, patience: Patience) -> Result<Connection, Trouble> {
    let asked = inner.asked();
    let credentials = asked.credentials(target.tier);
    let shown = credentials.current(false).await.map_err(Trouble::Credentials)?;
    match opened(inner, target, &shown, patience).await {
        Err(Trouble::Unauthorized { .. }) => {
            let shown = credentials.current(true).await.map_err(Trouble::Credentials)?;
            opened(inner, target, &shown, patience).await
        }
        other => other,
    }
}

async fn opened(
    inner: &Inner,
    target: &Target,
    shown: &Shown,
    patience: Patience,
) -> Result<Connection, Trouble> {
    let opened = tokio::time::timeout(patience.limit(), open(inner, target, shown, Notice::Soon)).await;
    Ok(opened.map_err(|_| Trouble::Silent)??.connection)
}

/// A connection to a server that has been asked which cluster it belongs to.
pub(super) struct Opened {
    pub(super) connection: Connection,
    /// Whether the server has named our cluster, and not only been excused from that.
    pub(super) is_our_cluster: bool,
}

/// A connection to a server that belongs to our cluster.
async fn open(inner: &Inner, target: &Target, shown: &Shown, notice: Notice) -> Result<Opened, Trouble> {
    let server_name = expected_name(target, shown)?;
    let dial = Dial { target: target.clone(), tls: Arc::clone(&shown.tls), server_name, notice };
    let connection = dial.connect(DIAL).await?;
    let ask = Ask::read(JSON, identity::PATH);
    let reply = connection.ask(&ask, &ask.headers(shown), HEADERS).await?;
    let mut reply = judged(reply, shown).await?;
    let body = reply.collect(SHORT_BODY_BYTES_MAX, SHORT_BODY).await?;
    match reply.status {
        200 => inner.verify(&body)?,
        // The uid cannot be compared, so only the certificate's authority and name tell what server this is.
        FORBIDDEN => inner.cannot_verify(&body),
        status => return Err(Trouble::answered(status, reply.retry_after, &body)),
    }
    Ok(Opened { is_our_cluster: reply.status == 200, connection: reply.into_connection() })
}

/// The name in every apiserver's certificate.
const APISERVER: &str = "kubernetes.default.svc";

/// The name that a server's certificate has to have. The operator vouches for a configured address. A learned address
/// may come from any client that may write a slice, and many servers have a certificate of the cluster for their own
/// address; so a learned one has to show the apiserver's name before it is shown a token.
fn expected_name(target: &Target, shown: &Shown) -> Result<ServerName<'static>, Trouble> {
    match (&shown.server_name, target.tier) {
        (Some(name), _) => Ok(name.clone()),
        (None, Tier::Learned) => {
            ServerName::try_from(APISERVER).map_err(|error| Trouble::Tls(error.to_string()))
        }
        (None, Tier::Configured | Tier::Kubelet) => Ok(ServerName::IpAddress(target.address.ip().into())),
    }
}

/// Turns an answer that says nothing about the request into the endpoint's trouble.
async fn judged(mut reply: Reply, shown: &Shown) -> Result<Reply, Trouble> {
    if reply.status == UNAUTHORIZED {
        return Err(Trouble::Unauthorized { credential: shown.kind() });
    }
    if is_about_endpoint(reply.status) {
        let (body, _) = reply.begun(SHORT_BODY_BYTES_MAX, SHORT_BODY).await;
        return Err(Trouble::answered(reply.status, reply.retry_after, &body));
    }
    Ok(reply)
}

const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;
const TOO_MANY_REQUESTS: u16 = 429;
const FAILED_INSIDE: u16 = 500;

/// Statuses that say that this server, or the proxy before it, cannot serve at all; an apiserver never redirects.
const fn is_about_endpoint(status: u16) -> bool {
    matches!(status, 300..=399 | 502..=504)
}

impl Inner {
    fn verify(&self, namespace: &[u8]) -> Result<(), Trouble> {
        let found = identity::of_namespace(namespace)
            .ok_or_else(|| Trouble::NotAnApiserver("its kube-system has no uid".to_owned()))?;
        let mut memory = self.memory();
        match memory.cluster.clone() {
            Some(known) if known != found => return Err(Trouble::AnotherCluster { found, known }),
            Some(_) => {}
            None => {
                tracing::info!(cluster = %found, "cluster identified; other clusters are refused from now on");
                self.clusters.send_replace(Some(found.as_str().into()));
                memory.cluster = Some(found);
                self.learned.notify_one();
            }
        }
        drop(memory);
        self.unverified.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    /// Notes that the server does not tell its cluster. It is logged once, because it is a matter of permissions, and
    /// they seldom change.
    fn cannot_verify(&self, answer: &[u8]) {
        let why = Trouble::status(FORBIDDEN, answer).to_string();
        let mut unverified = self.unverified.lock().unwrap_or_else(PoisonError::into_inner);
        if unverified.is_none() {
            tracing::warn!(error = %why, "cannot verify which cluster this is; only its certificate is checked");
            *unverified = Some(why.into());
        }
    }

    /// Looks for rotated files, and for servers in kubeconfigs that were written anew.
    pub(super) async fn refresh(&self) {
        let asked = self.asked();
        let kubelet = async {
            match &asked.kubelet {
                Some(kubelet) => kubelet.current(false).await.ok(),
                None => None,
            }
        };
        let (own, kubelet) = tokio::join!(asked.own.current(false), kubelet);
        if let Some(server) = own.ok().and_then(|shown| shown.server) {
            self.set_server(Tier::Configured, server);
        }
        if let Some(server) = kubelet.and_then(|shown| shown.server) {
            self.set_server(Tier::Kubelet, server);
        }
    }
}
