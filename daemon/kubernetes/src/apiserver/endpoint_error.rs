//! Errors of an apiserver, in the operator's words.
//!
//! Invariant: an error names its cause, never merely "down", and repeats no secret.

use std::io;
use std::time::Duration;

use holdfast_status::printable::is_unprintable;
use holdfast_status::views::apiserver::ClusterId;

use super::limits::{HEADERS, THROTTLE_MAX, THROTTLE_MIN};
use holdfast_host::error_origin::ErrorOrigin;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError};

/// The most characters of a server's text that an error repeats, so that it stays one line.
const SERVER_TEXT_CHARACTERS_MAX: usize = 200;

/// Why an apiserver did not serve.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// No process listens at the address.
    #[error("connection refused")]
    Refused,
    /// The host has no route to the address.
    #[error("no route")]
    NoRoute,
    /// This host blocks the connection: a firewall, or another load balancer's program.
    #[error(
        "this host forbids the connection (EPERM): look for a firewall or another load balancer's programs"
    )]
    Forbidden,
    /// This host lacks a resource for the connection, such as a file or a local port.
    #[error("this host could not connect: {0}")]
    Unable(String),
    /// No packet came back.
    #[error("does not answer")]
    Unreachable,
    /// The connection is open but carries nothing.
    #[error("accepts but does not answer")]
    Silent,
    /// The server seems healthy but is slow to start a large reply.
    #[error("does not begin its answer within {} s", HEADERS.as_secs())]
    Late,
    /// The peer closed the connection before the reply was complete.
    #[error("closed the connection")]
    Closed,
    /// Another error of the socket.
    #[error("socket: {0}")]
    Socket(String),
    /// The certificate is for other names.
    #[error("certificate is for {presented}, not {expected}")]
    WrongName {
        /// The certificate's names.
        presented: String,
        /// The expected name.
        expected: String,
    },
    /// No configured CA has signed the certificate.
    #[error("certificate not signed by the given CA")]
    UnknownAuthority,
    /// The certificate has expired, or this host's clock is wrong.
    #[error("certificate expired")]
    Expired,
    /// The certificate is not valid yet, or this host's clock is wrong.
    #[error("certificate not valid yet: compare the clocks")]
    NotYetValid,
    /// The server rejects the client certificate in the handshake.
    #[error("client certificate rejected ({0})")]
    ClientCertificate(String),
    /// Another error of TLS.
    #[error("tls: {0}")]
    Tls(String),
    /// The apiserver of another cluster.
    #[error("another cluster (uid {found}, not {known})")]
    AnotherCluster {
        /// The uid of its `kube-system`.
        found: ClusterId,
        /// The uid of ours.
        known: ClusterId,
    },
    /// The server rejects the credential.
    #[error("401: {credential} rejected")]
    Unauthorized {
        /// The kind of credential that we presented.
        credential: &'static str,
    },
    /// A status that is not about the request.
    #[error("{status}: {said}")]
    Status {
        status: u16,
        /// The server's text, shortened.
        said: String,
    },
    /// The server is overloaded.
    #[error("{status}: asks us to wait {} s", .wait.as_secs())]
    Throttled {
        status: u16,
        /// How long we leave it alone.
        wait: Duration,
    },
    /// The reply does not come from an apiserver.
    #[error("not an apiserver: {0}")]
    NotAnApiserver(String),
    /// The reply is too large.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    /// We have no credential or no CA.
    #[error("credentials: {0}")]
    Credentials(String),
}

impl EndpointError {
    /// Converts a status with the server's text, shortened to one line.
    pub(super) fn from_status(status: u16, body: &[u8]) -> Self {
        let said = parse_status_message(body).unwrap_or_else(|| status_reason(status).to_owned());
        Self::Status { status, said }
    }

    /// Converts a status about the endpoint. A 429, and a 503 with `Retry-After`, throttle us and are no failures.
    pub(super) fn from_reply(status: u16, retry_after: Option<Duration>, body: &[u8]) -> Self {
        let wait = match (status, retry_after) {
            (429, asked) => asked.unwrap_or(THROTTLE_MIN),
            (503, Some(asked)) => asked,
            _ => return Self::from_status(status, body),
        };
        Self::Throttled { status, wait: wait.clamp(THROTTLE_MIN, THROTTLE_MAX) }
    }

    pub(super) fn from_connect(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::NoRoute,
            io::ErrorKind::PermissionDenied => Self::Forbidden,
            io::ErrorKind::TimedOut => Self::Unreachable,
            io::ErrorKind::ConnectionReset => Self::Closed,
            _ => Self::from_socket(error),
        }
    }

    /// Converts a socket error that the peer did not send, unless this host lacked something.
    fn from_socket(error: &io::Error) -> Self {
        let said = sanitize_line(&error.to_string());
        match ErrorOrigin::classify_established(error) {
            ErrorOrigin::Node => Self::Unable(said),
            ErrorOrigin::Route | ErrorOrigin::Peer => Self::Socket(said),
        }
    }

    /// Whether this host failed, so that the error is not about the endpoint.
    pub(super) const fn is_local(&self) -> bool {
        matches!(self, Self::Credentials(_) | Self::Unable(_))
    }

    /// Converts an error on an open connection; TLS errors are wrapped in it.
    pub(super) fn from_stream(error: &io::Error) -> Self {
        if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
            return Self::from_tls(tls);
        }
        match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
                Self::Closed
            }
            io::ErrorKind::TimedOut => Self::Silent,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::NoRoute,
            _ => Self::from_socket(error),
        }
    }

    fn from_tls(error: &rustls::Error) -> Self {
        match error {
            rustls::Error::InvalidCertificate(invalid) => Self::from_certificate(invalid),
            rustls::Error::AlertReceived(alert) if is_client_certificate_alert(*alert) => {
                Self::ClientCertificate(format!("{alert:?}"))
            }
            rustls::Error::InvalidMessage(_) => Self::NotAnApiserver("it does not speak TLS".to_owned()),
            other => Self::Tls(sanitize_line(&other.to_string())),
        }
    }

    fn from_certificate(invalid: &CertificateError) -> Self {
        match invalid {
            CertificateError::NotValidForNameContext { expected, presented } => Self::WrongName {
                presented: format_certificate_names(presented),
                expected: format_server_name(expected),
            },
            CertificateError::NotValidForName => {
                Self::WrongName { presented: "another name".to_owned(), expected: "the given one".to_owned() }
            }
            CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::UnknownAuthority,
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            other => Self::Tls(sanitize_line(&format!("certificate: {other}"))),
        }
    }

    /// Converts an error of HTTP; its source says more than the error itself.
    pub(super) fn from_http(error: &hyper::Error) -> Self {
        let mut cause = std::error::Error::source(error);
        while let Some(found) = cause {
            if let Some(error) = found.downcast_ref::<io::Error>() {
                return Self::from_stream(error);
            }
            cause = found.source();
        }
        if error.is_parse() {
            return Self::NotAnApiserver(sanitize_line(&error.to_string()));
        }
        let broke_off = error.is_incomplete_message() || error.is_closed() || error.is_canceled();
        if broke_off { Self::Closed } else { Self::Socket(sanitize_line(&error.to_string())) }
    }
}

/// Whether the server rejects our certificate, or misses one.
fn is_client_certificate_alert(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
    )
}

fn format_server_name(expected: &ServerName<'_>) -> String {
    match expected {
        ServerName::IpAddress(address) => std::net::IpAddr::from(*address).to_string(),
        other => other.to_str().into_owned(),
    }
}

/// The names of a certificate in plain form; rustls has `DnsName("a")` and `IpAddress(1.2.3.4)`.
fn format_certificate_names(presented: &[String]) -> String {
    let bare = |name: &String| {
        let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
        inner.unwrap_or(name).trim_matches('"').to_owned()
    };
    match presented {
        [] => "no name".to_owned(),
        some => sanitize_line(&some.iter().map(bare).collect::<Vec<_>>().join(", ")),
    }
}

/// Shortens foreign text to one line that is safe for a terminal.
fn sanitize_line(text: &str) -> String {
    let clean = text.chars().map(|it| if is_unprintable(it) { ' ' } else { it });
    clean.take(SERVER_TEXT_CHARACTERS_MAX).collect::<String>().trim().to_owned()
}

/// The message of a `Status` object.
fn parse_status_message(body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Status {
        message: String,
    }
    let status: Status = serde_json::from_slice(body).ok()?;
    Some(sanitize_line(&status.message)).filter(|message| !message.is_empty())
}

fn status_reason(status: u16) -> &'static str {
    hyper::StatusCode::from_u16(status).ok().and_then(|it| it.canonical_reason()).unwrap_or("unknown status")
}
