//! HTTP/1.1 over one TLS connection: one request at a time, the body in chunks.
//!
//! Invariant: the holder of a [`Connection`] or a [`Reply`] is its only user, so no request waits behind another.
//! HTTP/2 is not used: one stalled stream would hold up the others.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use holdfast_core::words;
use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::endpoint_error::EndpointError;
use super::lease::{Lease, Target};
use super::socket::{self, KeepaliveProfile};
use super::{AccessError, JSON};

/// The media type of Kubernetes' protobuf; a watch adds a parameter.
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

const USER_AGENT: &str = concat!("holdfast/", env!("CARGO_PKG_VERSION"));

/// An established connection to one endpoint.
#[derive(Debug)]
pub struct Connection {
    sender: SendRequest<String>,
    // The task that moves the bytes; it ends when this is dropped.
    driver: JoinSet<Option<EndpointError>>,
    lease: Lease,
}

/// The body of a request that changes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteRequest<'a> {
    /// A new object, as JSON.
    Create(&'a str),
    /// The changed fields of an object, as a merge patch.
    Merge(&'a str),
}

impl<'a> WriteRequest<'a> {
    const fn to_parts(self) -> (Method, &'static str, &'a str) {
        match self {
            Self::Create(body) => (Method::POST, JSON, body),
            Self::Merge(body) => (Method::PATCH, "application/merge-patch+json", body),
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct ApiRequest<'a> {
    pub(super) accept: &'static str,
    pub(super) path_and_query: &'a str,
    /// `None`: the request only reads.
    pub(super) write: Option<WriteRequest<'a>>,
    /// The reply is so large that even a healthy server may start it late.
    pub(super) is_large: bool,
}

impl<'a> ApiRequest<'a> {
    pub(super) const fn for_get(accept: &'static str, path_and_query: &'a str) -> Self {
        Self { accept, path_and_query, write: None, is_large: false }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Headers {
    pub(super) accept: &'static str,
    pub(super) authorization: Option<HeaderValue>,
}

/// A dial that has not started.
pub(super) struct Dial {
    pub(super) target: Target,
    pub(super) tls: Arc<rustls::ClientConfig>,
    pub(super) server_name: ServerName<'static>,
    pub(super) keepalive: KeepaliveProfile,
}

impl Dial {
    /// Connects by TCP and TLS within `limit`.
    pub(super) async fn connect(self, limit: Duration) -> Result<Connection, EndpointError> {
        let deadline = tokio::time::Instant::now() + limit;
        let tcp = socket::connect(self.target.address, self.keepalive);
        let tcp = tokio::time::timeout_at(deadline, tcp).await.map_err(|_| EndpointError::Unreachable)??;
        let tls = TlsConnector::from(self.tls).connect(self.server_name, tcp);
        let tls = tokio::time::timeout_at(deadline, tls).await.map_err(|_| EndpointError::Silent)?;
        let tls = tls.map_err(|error| EndpointError::from_stream(&error))?;
        let shaken = http1::handshake(TokioIo::new(tls)).await;
        let (sender, connection) = shaken.map_err(|error| EndpointError::from_http(&error))?;
        let mut driver = JoinSet::new();
        // The error also reaches the request that waits for its reply.
        driver.spawn(async move { connection.await.err().map(|error| EndpointError::from_http(&error)) });
        Ok(Connection { sender, driver, lease: self.target.lease() })
    }
}

impl Connection {
    /// The endpoint of the connection.
    pub(super) const fn target(&self) -> &Target {
        self.lease.target()
    }

    /// Waits until the connection ends. `None`: the server closed it, as it does with idle connections.
    pub(super) async fn wait_until_closed(&mut self) -> Option<EndpointError> {
        self.driver.join_next().await.and_then(Result::ok).flatten()
    }

    /// Sends a request and waits for the headers of its reply.
    pub(super) async fn send_request(
        mut self,
        ask: &ApiRequest<'_>,
        headers: &Headers,
        limit: Duration,
    ) -> Result<Reply, EndpointError> {
        let request = build_request(ask, self.target().address, headers)?;
        let exchange = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        let answer = timeout(limit, exchange).await.map_err(|_| EndpointError::Silent)?;
        let answer = answer.map_err(|error| EndpointError::from_http(&error))?;
        Ok(Reply::new(answer, self))
    }
}

fn build_request(
    ask: &ApiRequest<'_>,
    host: SocketAddr,
    headers: &Headers,
) -> Result<Request<String>, EndpointError> {
    let (method, content_type, body) = ask.write.map_or((Method::GET, "", ""), WriteRequest::to_parts);
    let mut request = Request::builder()
        .method(method)
        .uri(ask.path_and_query)
        .header(header::HOST, host.to_string())
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, headers.accept)
        // Some decoders fail on watches that are compressed event by event, and CPU is scarcer here than bandwidth.
        .header(header::ACCEPT_ENCODING, "identity")
        .body(body.to_owned())
        .map_err(|error| EndpointError::NotAnApiserver(error.to_string()))?;
    if ask.write.is_some() {
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    }
    if let Some(authorization) = &headers.authorization {
        request.headers_mut().insert(header::AUTHORIZATION, authorization.clone());
    }
    Ok(request)
}

words! {
    /// How the body of a reply is encoded.
    pub enum Encoding {
        Json = "json",
        Protobuf = "protobuf",
    }
}

impl Encoding {
    /// Reads the header `Content-Type`. Anything but protobuf is JSON.
    fn from_content_type(content_type: Option<&HeaderValue>) -> Self {
        let is_protobuf = content_type.is_some_and(|it| it.as_bytes().starts_with(PROTOBUF.as_bytes()));
        if is_protobuf { Self::Protobuf } else { Self::Json }
    }
}

/// The head of a reply; its body follows in chunks.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status: 2xx, or an error about the request.
    pub status: u16,
    pub encoding: Encoding,
    /// How long the server asks us to wait.
    pub retry_after: Option<Duration>,
    /// The endpoint that replied, as `address:port`.
    pub endpoint: Arc<str>,
    body: Incoming,
    connection: Connection,
}

impl Reply {
    fn new(answer: Response<Incoming>, connection: Connection) -> Self {
        let (parts, body) = answer.into_parts();
        let seconds = parts.headers.get(header::RETRY_AFTER).and_then(|it| it.to_str().ok()?.parse().ok());
        Self {
            status: parts.status.as_u16(),
            encoding: Encoding::from_content_type(parts.headers.get(header::CONTENT_TYPE)),
            retry_after: seconds.map(Duration::from_secs),
            endpoint: Arc::clone(&connection.target().name),
            body,
            connection,
        }
    }

    /// The next chunk of the body, or `None` at its end. More than `idle` without a byte is an error.
    pub async fn next_chunk(&mut self, idle: Duration) -> Result<Option<Bytes>, AccessError> {
        let piece = self.next_data(idle).await;
        piece.map_err(|trouble| self.record_broken(trouble))
    }

    /// Reads the whole body, at most `most` bytes; the connection is then free for the next request.
    pub async fn read_body(
        mut self,
        most: usize,
        idle: Duration,
    ) -> Result<(Bytes, Connection), AccessError> {
        match self.collect_body(most, idle).await {
            Ok(whole) => Ok((whole, self.connection)),
            Err(trouble) => Err(self.record_broken(trouble)),
        }
    }

    /// Reads the body for at most `limit` and `most` bytes, and returns the free connection, or why the body is
    /// incomplete.
    pub async fn read_beginning(
        mut self,
        most: usize,
        limit: Duration,
    ) -> (Bytes, Result<Connection, EndpointError>) {
        let (body, ended) = self.read_up_to(most, limit).await;
        if let Some(trouble) =
            ended.as_ref().err().filter(|trouble| !matches!(trouble, EndpointError::TooLarge(_)))
        {
            self.record_broken(trouble.clone());
        }
        (body, ended.map(|()| self.connection))
    }

    /// Reads the body for at most `limit` and `most` bytes, and returns why it is incomplete.
    pub(super) async fn read_up_to(
        &mut self,
        most: usize,
        limit: Duration,
    ) -> (Bytes, Result<(), EndpointError>) {
        let mut begun = BytesMut::new();
        let ended = timeout(limit, self.append_body(&mut begun, most, limit)).await;
        (begun.freeze(), ended.unwrap_or(Err(EndpointError::Silent)))
    }

    pub(super) async fn collect_body(&mut self, most: usize, idle: Duration) -> Result<Bytes, EndpointError> {
        let mut whole = BytesMut::new();
        self.append_body(&mut whole, most, idle).await?;
        Ok(whole.freeze())
    }

    async fn append_body(
        &mut self,
        into: &mut BytesMut,
        most: usize,
        idle: Duration,
    ) -> Result<(), EndpointError> {
        while let Some(piece) = self.next_data(idle).await? {
            let room = most.saturating_sub(into.len());
            let (fits, rest) = piece.split_at(piece.len().min(room));
            into.extend_from_slice(fits);
            if !rest.is_empty() {
                return Err(EndpointError::TooLarge(most));
            }
        }
        Ok(())
    }

    async fn next_data(&mut self, idle: Duration) -> Result<Option<Bytes>, EndpointError> {
        loop {
            let frame = poll_fn(|context| Pin::new(&mut self.body).poll_frame(context));
            match timeout(idle, frame).await.map_err(|_| EndpointError::Silent)? {
                None => return Ok(None),
                Some(Err(error)) => return Err(EndpointError::from_http(&error)),
                Some(Ok(frame)) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }

    /// Records the error that ended the body early. The next request finds out whether the endpoint still serves.
    fn record_broken(&self, trouble: EndpointError) -> AccessError {
        let target = self.connection.target();
        target.record_error(trouble.clone());
        AccessError::from_trouble(&target.name, trouble)
    }

    /// Returns the connection after the body was read to its end.
    pub fn into_connection(self) -> Connection {
        self.connection
    }
}
