//! Sends one request to endpoint after endpoint until one replies.
//!
//! Invariant: an endpoint's error is recorded in its row before the next one is asked. A connection carries a request
//! only after its server has named our cluster, or has denied us that question.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use holdfast_status::views::apiserver::Tier;
use rustls::pki_types::ServerName;

use super::credentials::ConnectionCredentials;
use super::endpoint_error::EndpointError;
use super::http::{ApiRequest, Connection, Dial, Headers, Reply};
use super::identity;
use super::lease::Target;
use super::limits::{DIAL_TIMEOUT, HEADERS, SHORT_BODY_BYTES_MAX, SHORT_BODY_TIMEOUT};
use super::socket::KeepaliveProfile;
use super::{AccessError, Failure, Inner, JSON};

impl ApiRequest<'_> {
    fn headers(&self, credentials: &ConnectionCredentials) -> Headers {
        Headers { accept: self.accept, authorization: credentials.authorization.clone() }
    }
}

/// The limit until an endpoint has named its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenTimeout {
    /// Another endpoint can be asked next.
    Short,
    /// This is the last endpoint.
    Long,
}

impl OpenTimeout {
    fn limit(self) -> Duration {
        match self {
            Self::Short => DIAL_TIMEOUT,
            Self::Long => DIAL_TIMEOUT + HEADERS,
        }
    }
}

pub(super) async fn send_request(
    inner: &Inner,
    request: &ApiRequest<'_>,
    idle: Option<Connection>,
) -> Result<Reply, AccessError> {
    if let Some(reply) = try_idle_connection(inner, request, idle).await {
        return Ok(reply);
    }
    inner.refresh_credentials().await;
    let (targets, mut failures) = candidates(inner);
    let mut targets = targets.into_iter().peekable();
    let mut refused = None;
    while let Some(target) = targets.next() {
        let timeout = if targets.peek().is_some() { OpenTimeout::Short } else { OpenTimeout::Long };
        // If this host lacks credentials or a socket, the endpoint was not asked and has not failed.
        let mut is_asked = true;
        match try_endpoint(inner, &target, request, timeout).await {
            Ok(reply) if is_retryable_elsewhere(&reply, &target, request) => {
                // A server's failure says more than a kubelet's missing permission.
                refused =
                    refused.filter(|known: &Reply| known.status == INTERNAL_SERVER_ERROR).or(Some(reply));
            }
            Ok(reply) => return Ok(reply),
            Err(trouble) => {
                is_asked = !trouble.is_local();
                failures.push(Failure { endpoint: target.name, trouble });
            }
        }
        if targets.peek().is_some() && is_asked {
            inner.failovers.fetch_add(1, Ordering::Relaxed);
        }
    }
    refused.ok_or_else(|| combine_failures(failures))
}

/// Whether to ask the other endpoints too, once each; this reply counts only if none of them does better.
fn is_retryable_elsewhere(reply: &Reply, target: &Target, request: &ApiRequest<'_>) -> bool {
    // Kubelet may not list slices. That does not tell what the daemon itself may do.
    let is_refused_as_kubelet = reply.status == FORBIDDEN && target.tier == Tier::Kubelet;
    is_refused_as_kubelet || is_server_error(reply, request)
}

/// Whether a server failed at a read internally: it lost etcd, or an object makes every server fail. The effect of a
/// failed write is unknown, so a write is not repeated.
fn is_server_error(reply: &Reply, request: &ApiRequest<'_>) -> bool {
    reply.status == INTERNAL_SERVER_ERROR && request.write.is_none()
}

/// Connects to the best endpoint that serves.
pub(super) async fn connect(inner: &Inner) -> Result<Connection, AccessError> {
    inner.refresh_credentials().await;
    let (targets, mut failures) = candidates(inner);
    let mut targets = targets.into_iter().peekable();
    while let Some(target) = targets.next() {
        let timeout = if targets.peek().is_some() { OpenTimeout::Short } else { OpenTimeout::Long };
        match open_with_reauth(inner, &target, timeout).await {
            Ok(connection) => {
                target.record_success();
                return Ok(connection);
            }
            Err(trouble) => {
                record_failure(&target, &trouble);
                failures.push(Failure { endpoint: target.name, trouble });
            }
        }
    }
    Err(combine_failures(failures))
}

/// Sends one optional request over an open connection. No outcome counts against the endpoint.
pub(super) async fn request_best_effort(
    inner: &Inner,
    request: &ApiRequest<'_>,
    connection: Connection,
) -> Result<Reply, AccessError> {
    let name = Arc::clone(&connection.target().name);
    let tier = connection.target().tier;
    let failed = |trouble| AccessError::from_trouble(&name, trouble);
    let config = inner.config();
    let credentials = config.credentials(tier).current(false).await;
    let credentials = credentials.map_err(|problem| failed(EndpointError::Credentials(problem)))?;
    connection.send_request(request, &request.headers(&credentials), HEADERS).await.map_err(failed)
}

/// Connects to one endpoint with the last good credentials, for a caller that must not wait for a file.
pub(super) async fn open_for_guard(
    inner: &Inner,
    target: &Target,
) -> Result<IdentifiedConnection, EndpointError> {
    let credentials = cached_credentials(inner, target.tier)?;
    open_connection(inner, target, &credentials, KeepaliveProfile::Fast).await
}

/// Sends one request over such a connection.
pub(super) async fn request_with_cached(
    inner: &Inner,
    request: &ApiRequest<'_>,
    connection: Connection,
    limit: Duration,
) -> Result<Reply, EndpointError> {
    let credentials = cached_credentials(inner, connection.target().tier)?;
    connection.send_request(request, &request.headers(&credentials), limit).await
}

fn cached_credentials(inner: &Inner, tier: Tier) -> Result<Arc<ConnectionCredentials>, EndpointError> {
    let last = inner.config().credentials(tier).last_good();
    last.ok_or_else(|| EndpointError::Credentials("nothing was read yet".to_owned()))
}

/// The endpoints in dial order, and a failure for each that throttles us.
fn candidates(inner: &Inner) -> (Vec<Target>, Vec<Failure>) {
    let (order, throttled) = {
        let table = inner.endpoints.lock();
        let now = Instant::now();
        (table.dial_order(now), table.throttled_endpoints(now))
    };
    let targets = order.into_iter().filter_map(|id| inner.endpoints.target(id)).collect();
    (targets, throttled.into_iter().map(throttled_failure).collect())
}

fn combine_failures(failures: Vec<Failure>) -> AccessError {
    if failures.is_empty() { AccessError::NoEndpoint } else { AccessError::Failed(failures) }
}

/// Records an error in the endpoint's row. Errors of our own files and sockets are not about the endpoint, and a late
/// large reply says little.
fn record_failure(target: &Target, trouble: &EndpointError) {
    if trouble.is_local() || *trouble == EndpointError::Late {
        target.record_error(trouble.clone());
    } else {
        target.record_dial_failure(trouble.clone());
    }
}

/// The failure of an endpoint that is not asked because it throttles us.
fn throttled_failure((endpoint, left): (Arc<str>, Duration)) -> Failure {
    // Rounds up to whole seconds, so that the wait never reads 0 s.
    let wait = Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0));
    Failure { endpoint, trouble: EndpointError::Throttled { status: TOO_MANY_REQUESTS, wait } }
}

/// Sends over a connection that may have died while idle, which is no error of its endpoint.
async fn try_idle_connection(
    inner: &Inner,
    request: &ApiRequest<'_>,
    idle: Option<Connection>,
) -> Option<Reply> {
    let idle = idle?;
    let tier = inner.endpoints.lock().get(idle.target().id)?.tier;
    let config = inner.config();
    let credentials = config.credentials(tier).current(false).await.ok()?;
    let reply = idle.send_request(request, &request.headers(&credentials), HEADERS).await.ok()?;
    (reply.status != UNAUTHORIZED && !is_endpoint_error(reply.status)).then_some(reply)
}

/// Sends a request to one endpoint and records the outcome in its row.
async fn try_endpoint(
    inner: &Inner,
    target: &Target,
    request: &ApiRequest<'_>,
    timeout: OpenTimeout,
) -> Result<Reply, EndpointError> {
    match request_with_reauth(inner, target, request, timeout).await {
        Ok(reply) if is_server_error(&reply, request) => {
            target.record_error(EndpointError::from_status(INTERNAL_SERVER_ERROR, b""));
            Ok(reply)
        }
        Ok(reply) => {
            target.record_success();
            // A client that may read but not write is still served.
            if reply.status == FORBIDDEN && request.write.is_none() {
                target.record_error(EndpointError::from_status(FORBIDDEN, b""));
            }
            Ok(reply)
        }
        Err(trouble) => {
            record_failure(target, &trouble);
            Err(trouble)
        }
    }
}

/// Sends a request to one endpoint. A 401 can mean that our files have just changed: read them again and retry once.
pub(super) async fn request_with_reauth(
    inner: &Inner,
    target: &Target,
    request: &ApiRequest<'_>,
    timeout: OpenTimeout,
) -> Result<Reply, EndpointError> {
    let config = inner.config();
    let source = config.credentials(target.tier);
    let credentials = source.current(false).await.map_err(EndpointError::Credentials)?;
    match request_once(inner, target, request, &credentials, timeout).await {
        Err(EndpointError::Unauthorized { .. }) => {
            let credentials = source.current(true).await.map_err(EndpointError::Credentials)?;
            request_once(inner, target, request, &credentials, timeout).await
        }
        other => other,
    }
}

async fn request_once(
    inner: &Inner,
    target: &Target,
    request: &ApiRequest<'_>,
    credentials: &ConnectionCredentials,
    timeout: OpenTimeout,
) -> Result<Reply, EndpointError> {
    let connection = open_within_limit(inner, target, credentials, timeout).await?;
    let reply = connection.send_request(request, &request.headers(credentials), HEADERS).await;
    let reply = reply.map_err(|trouble| match trouble {
        EndpointError::Silent if request.is_large => EndpointError::Late,
        other => other,
    })?;
    check_status(reply, credentials).await
}

/// Like [`request_with_reauth`], but returns the connection.
async fn open_with_reauth(
    inner: &Inner,
    target: &Target,
    timeout: OpenTimeout,
) -> Result<Connection, EndpointError> {
    let config = inner.config();
    let source = config.credentials(target.tier);
    let credentials = source.current(false).await.map_err(EndpointError::Credentials)?;
    match open_within_limit(inner, target, &credentials, timeout).await {
        Err(EndpointError::Unauthorized { .. }) => {
            let credentials = source.current(true).await.map_err(EndpointError::Credentials)?;
            open_within_limit(inner, target, &credentials, timeout).await
        }
        other => other,
    }
}

async fn open_within_limit(
    inner: &Inner,
    target: &Target,
    credentials: &ConnectionCredentials,
    timeout: OpenTimeout,
) -> Result<Connection, EndpointError> {
    let opened = tokio::time::timeout(
        timeout.limit(),
        open_connection(inner, target, credentials, KeepaliveProfile::Normal),
    )
    .await;
    Ok(opened.map_err(|_| EndpointError::Silent)??.connection)
}

/// A connection to a server that we asked for its cluster.
pub(super) struct IdentifiedConnection {
    pub(super) connection: Connection,
    /// The server named our cluster; false: it denied us the question.
    pub(super) is_our_cluster: bool,
}

/// Connects to a server of our cluster.
async fn open_connection(
    inner: &Inner,
    target: &Target,
    credentials: &ConnectionCredentials,
    keepalive: KeepaliveProfile,
) -> Result<IdentifiedConnection, EndpointError> {
    let server_name = expected_name(target, credentials)?;
    let dial = Dial { target: target.clone(), tls: Arc::clone(&credentials.tls), server_name, keepalive };
    let connection = dial.connect(DIAL_TIMEOUT).await?;
    let request = ApiRequest::for_get(JSON, identity::PATH);
    let reply = connection.send_request(&request, &request.headers(credentials), HEADERS).await?;
    let mut reply = check_status(reply, credentials).await?;
    let body = reply.collect_body(SHORT_BODY_BYTES_MAX, SHORT_BODY_TIMEOUT).await?;
    match reply.status {
        200 => inner.verify_cluster(&body)?,
        // The uid is unknown: only the certificate's CA and name identify the server.
        FORBIDDEN => inner.record_unverified(&body),
        status => return Err(EndpointError::from_reply(status, reply.retry_after, &body)),
    }
    Ok(IdentifiedConnection { is_our_cluster: reply.status == 200, connection: reply.into_connection() })
}

/// A name in every apiserver's certificate.
const APISERVER: &str = "kubernetes.default.svc";

/// The name that a server's certificate must have. The operator vouches for a configured address. A learned address may
/// come from any client that can write a slice, and many servers have a certificate of the cluster's CA for their own
/// address. So a learned one must present the apiserver's name before it gets a token.
fn expected_name(
    target: &Target,
    credentials: &ConnectionCredentials,
) -> Result<ServerName<'static>, EndpointError> {
    match (&credentials.server_name, target.tier) {
        (Some(name), _) => Ok(name.clone()),
        (None, Tier::Learned) => {
            ServerName::try_from(APISERVER).map_err(|error| EndpointError::Tls(error.to_string()))
        }
        (None, Tier::Configured | Tier::Kubelet) => Ok(ServerName::IpAddress(target.address.ip().into())),
    }
}

/// Turns a status about the endpoint into an error.
async fn check_status(mut reply: Reply, credentials: &ConnectionCredentials) -> Result<Reply, EndpointError> {
    if reply.status == UNAUTHORIZED {
        return Err(EndpointError::Unauthorized { credential: credentials.kind() });
    }
    if is_endpoint_error(reply.status) {
        let (body, _) = reply.read_up_to(SHORT_BODY_BYTES_MAX, SHORT_BODY_TIMEOUT).await;
        return Err(EndpointError::from_reply(reply.status, reply.retry_after, &body));
    }
    Ok(reply)
}

const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;
const TOO_MANY_REQUESTS: u16 = 429;
const INTERNAL_SERVER_ERROR: u16 = 500;

/// Statuses of a server, or of a proxy before it, that cannot serve at all; an apiserver never redirects.
const fn is_endpoint_error(status: u16) -> bool {
    matches!(status, 300..=399 | 502..=504)
}

impl Inner {
    fn verify_cluster(&self, namespace: &[u8]) -> Result<(), EndpointError> {
        let found = identity::parse_cluster_id(namespace)
            .ok_or_else(|| EndpointError::NotAnApiserver("its kube-system has no uid".to_owned()))?;
        let mut memory = self.memory();
        match memory.cluster.clone() {
            Some(known) if known != found => return Err(EndpointError::AnotherCluster { found, known }),
            Some(_) => {}
            None => {
                tracing::info!(cluster = %found, "cluster identified; other clusters are refused from now on");
                self.cluster_uid.send_replace(Some(found.as_str().into()));
                memory.cluster = Some(found);
                self.memory_dirty.notify_one();
            }
        }
        drop(memory);
        self.unverified.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    /// Records that the server denies us its cluster's uid. Logs it once: permissions seldom change.
    fn record_unverified(&self, answer: &[u8]) {
        let why = EndpointError::from_status(FORBIDDEN, answer).to_string();
        let mut unverified = self.unverified.lock().unwrap_or_else(PoisonError::into_inner);
        if unverified.is_none() {
            tracing::warn!(error = %why, "cannot verify which cluster this is; only its certificate is checked");
            *unverified = Some(why.into());
        }
    }

    /// Re-reads rotated files, and takes new servers from kubeconfigs.
    pub(super) async fn refresh_credentials(&self) {
        let config = self.config();
        let kubelet = async {
            match &config.kubelet {
                Some(kubelet) => kubelet.current(false).await.ok(),
                None => None,
            }
        };
        let (own, kubelet) = tokio::join!(config.own.current(false), kubelet);
        if let Some(server) = own.ok().and_then(|credentials| credentials.server) {
            self.set_server(Tier::Configured, server);
        }
        if let Some(server) = kubelet.and_then(|credentials| credentials.server) {
            self.set_server(Tier::Kubelet, server);
        }
    }
}
