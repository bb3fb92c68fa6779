//! A check by gRPC: one call of `grpc.health.v1.Health/Check`, as in Kubernetes' probes.
//!
//! The HTTP/2 client is our own, because a check is one call on one connection with every byte bounded.
//!
//! Invariant: a backend is healthy if it reports `SERVING` and ends its reply correctly, so that clients that call it
//! alike succeed too. Any other status is reported by name.

mod frames;
mod hpack;
mod http2_call;
mod message;

use std::fmt;
use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use self::http2_call::{GrpcReply, Http2Call, Http2Error};
use self::message::ServingStatus;
use super::{CheckError, USER_AGENT};
use holdfast_config::GrpcCheck;

/// Why a backend that replied is unhealthy, or does not speak gRPC.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrpcCheckError {
    /// The reply is not complete HTTP/2.
    #[error("no whole answer of HTTP/2: {0}")]
    NotWhole(#[from] Http2Error),
    /// It is an HTTP/2 server without gRPC.
    #[error("status {0} of HTTP, where gRPC has 200")]
    Http(u16),
    #[error("an answer of HTTP/2 without a grpc-status: is it a server of gRPC?")]
    NotGrpc,
    #[error("grpc-status {0}")]
    Failed(GrpcStatus),
    #[error("answered without a health status: is grpc.health.v1 served?")]
    WithoutStatus,
    /// The health status that the server reports.
    #[error("{}", .0.as_str())]
    Reported(ServingStatus),
}

/// The status of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrpcStatus(u16);

const OK: u16 = 0;

const GRPC_STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND: it has no service of this name",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED: is grpc.health.v1 served?",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

impl fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = GRPC_STATUSES.get(usize::from(self.0)).copied();
        write!(f, "{}, {}", self.0, name.unwrap_or("which has no name"))
    }
}

/// Calls a connected backend and judges its reply.
pub(super) async fn check_health(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    target: SocketAddr,
    config: &GrpcCheck,
) -> Result<(), CheckError> {
    let mut call = start_call(target, config);
    loop {
        send_pending(&mut stream, &mut call.unsent).await.map_err(CheckError::from_stream)?;
        let came = stream.read_buf(&mut call.unread).await.map_err(CheckError::from_stream)?;
        if came == 0 {
            return Err(GrpcCheckError::from(call.truncation_error()).into());
        }
        if let Some(answer) = call.advance().map_err(GrpcCheckError::from)? {
            return Ok(judge_reply(&answer)?);
        }
    }
}

fn start_call(target: SocketAddr, config: &GrpcCheck) -> Http2Call {
    let authority = config.host.clone().unwrap_or_else(|| target.to_string());
    let headers = [
        (":method", "POST"),
        (":scheme", if config.tls.is_some() { "https" } else { "http" }),
        (":path", message::PATH),
        (":authority", authority.as_str()),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", USER_AGENT),
    ];
    Http2Call::new(&headers, &message::encode_request(&config.service))
}

async fn send_pending(stream: &mut (impl AsyncWrite + Unpin), unsent: &mut Vec<u8>) -> std::io::Result<()> {
    if unsent.is_empty() {
        return Ok(());
    }
    stream.write_all(unsent).await?;
    unsent.clear();
    // TLS may buffer what was written.
    stream.flush().await
}

fn judge_reply(answer: &GrpcReply) -> Result<(), GrpcCheckError> {
    let GrpcReply { statuses, message } = answer;
    match (statuses.http, statuses.grpc) {
        (_, Some(failed)) if failed != OK => return Err(GrpcCheckError::Failed(GrpcStatus(failed))),
        (Some(200), Some(_)) => (),
        (Some(200) | None, _) => return Err(GrpcCheckError::NotGrpc),
        (Some(http), _) => return Err(GrpcCheckError::Http(http)),
    }
    match message::parse_response(message) {
        Some(ServingStatus::Serving) => Ok(()),
        Some(status) => Err(GrpcCheckError::Reported(status)),
        None => Err(GrpcCheckError::WithoutStatus),
    }
}

/// Appends a varint: seven bits per byte, the lowest first.
fn write_varint(to: &mut Vec<u8>, number: usize) {
    let mut rest = number;
    while rest >= 0x80 {
        to.push(rest.to_le_bytes()[0] | 0x80);
        rest >>= 7;
    }
    to.push(rest.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests;
