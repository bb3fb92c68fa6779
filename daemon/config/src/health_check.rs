//! `[service.health_check]`: the health checks of a `[[service]]`'s backends.
//!
//! Invariant: a check sends the file's values unchanged, so no text of the file breaks out of its line of a request;
//! and a key that the kind of check ignores is an error.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_core::words;
use toml::de::DeValue;

use super::apiserver::{ClientIdentity, client_certificate, server_name};
use super::file_author::FileAuthor;
use super::limits::{
    CHECK_PATH_BYTES_MAX, CHECK_TEXT_BYTES_MAX, INTERVAL, NAME_BYTES_MAX, SLOW_START, STATUS_RANGES_MAX,
    STREAK, TIMEOUT,
};
use super::table::{LocatedValue, Table};
use super::value::{duration, integer, quote, show_duration, string, word};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckKind {
    /// The backend accepts a connection.
    Tcp,
    /// The backend answers a GET as expected, optionally over TLS.
    Http(HttpCheck),
    /// A gRPC server reports that it serves, optionally over TLS.
    Grpc(GrpcCheck),
    /// The backend replies with an expected text.
    SendExpect {
        /// The text to send; `None` for a backend that speaks first.
        send: Option<String>,
        /// A text that the reply must contain.
        expect: String,
    },
}

impl CheckKind {
    /// The spelling used in the configuration and in logs.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Tcp => KindWord::Tcp.as_str(),
            Self::Http(HttpCheck { tls: None, .. }) => KindWord::Http.as_str(),
            Self::Http(HttpCheck { tls: Some(_), .. }) => KindWord::Https.as_str(),
            Self::Grpc(GrpcCheck { tls: None, .. }) => KindWord::Grpc.as_str(),
            Self::Grpc(GrpcCheck { tls: Some(_), .. }) => KindWord::Grpcs.as_str(),
            Self::SendExpect { .. } => KindWord::SendExpect.as_str(),
        }
    }

    /// Sets who named the TLS files, if the check speaks TLS.
    pub const fn set_author(&mut self, author: FileAuthor) {
        let tls = match self {
            Self::Http(asked) => asked.tls.as_mut(),
            Self::Grpc(asked) => asked.tls.as_mut(),
            Self::Tcp | Self::SendExpect { .. } => None,
        };
        if let Some(tls) = tls {
            tls.files.author = author;
        }
    }

    pub const fn tls(&self) -> Option<&CheckTls> {
        match self {
            Self::Http(asked) => asked.tls.as_ref(),
            Self::Grpc(asked) => asked.tls.as_ref(),
            Self::Tcp | Self::SendExpect { .. } => None,
        }
    }
}

words! {
    enum KindWord {
        Tcp = "tcp",
        Http = "http",
        Https = "https",
        Grpc = "grpc",
        Grpcs = "grpcs",
        SendExpect = "send-expect",
    }
}

/// An HTTP request, and the expected reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpCheck {
    /// The path, from its first slash on.
    pub path: String,
    /// The header `Host`; `None`: the dialled address.
    pub host: Option<String>,
    pub expect_status: Statuses,
    /// A text that the body must contain; `None`: the body is not read.
    pub expect_body: Option<String>,
    pub tls: Option<CheckTls>,
}

impl Default for HttpCheck {
    fn default() -> Self {
        Self {
            path: "/".to_owned(),
            host: None,
            expect_status: Statuses::default(),
            expect_body: None,
            tls: None,
        }
    }
}

/// The request of a check by `grpc.health.v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrpcCheck {
    /// The name of the service; the empty name is the whole server.
    pub service: String,
    /// The header `:authority`; `None`: the dialled address.
    pub host: Option<String>,
    pub tls: Option<CheckTls>,
}

/// How a backend proves its identity over TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckTls {
    /// The name that its certificate must have; `None`: the dialled address.
    pub server_name: Option<String>,
    pub files: TlsFiles,
}

/// The TLS files for backends. They rotate, so they are not read here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TlsFiles {
    /// The certificate authorities to trust.
    pub ca_file: PathBuf,
    /// The client certificate, if any.
    pub client: Option<ClientIdentity>,
    /// Who named them, and therefore must be allowed to read them.
    pub author: FileAuthor,
}

/// The good statuses of replies, such as `200-299,401`; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(Vec<RangeInclusive<u16>>);

impl Statuses {
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl Default for Statuses {
    fn default() -> Self {
        Self(vec![200..=399])
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, range) in self.0.iter().enumerate() {
            let comma = if position == 0 { "" } else { "," };
            match range.start() == range.end() {
                true => write!(f, "{comma}{}", range.start())?,
                false => write!(f, "{comma}{}-{}", range.start(), range.end())?,
            }
        }
        Ok(())
    }
}

/// The key `health_check` of a `[[service]]` block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub kind: CheckKind,
    /// The port to check in place of the backend's own.
    pub port: Option<NonZeroU16>,
    /// The time from the start of one check to the start of the next.
    pub interval: Duration,
    /// How long one check may take; never longer than the interval.
    pub timeout: Duration,
    /// How many good checks in a row make a backend usable.
    pub rise: u32,
    /// How many bad checks in a row make a backend unusable.
    pub fall: u32,
    /// How long a returned backend takes to get its whole weight; `None`: no time.
    pub slow_start: Option<Duration>,
}

impl Default for HealthCheck {
    fn default() -> Self {
        let interval = Duration::from_secs(2);
        let timeout = Duration::from_secs(1);
        Self { kind: CheckKind::Tcp, port: None, interval, timeout, rise: 2, fall: 3, slow_start: None }
    }
}

impl HealthCheck {
    /// The address to dial for a check of a backend.
    pub fn target(&self, backend: SocketAddr) -> SocketAddr {
        SocketAddr::new(backend.ip(), self.port.map_or(backend.port(), NonZeroU16::get))
    }
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> HealthCheck {
    let default = HealthCheck::default();
    let kind = read_kind(table);
    let port = table.take("port", check_port);
    let interval = table.take("interval", duration(INTERVAL)).unwrap_or(default.interval);
    let timeout = table.take_located("timeout", duration(TIMEOUT));
    let check = HealthCheck {
        kind,
        port,
        interval,
        timeout: timeout.as_ref().map_or(default.timeout, |found| found.value),
        rise: table.take("rise", integer(STREAK)).unwrap_or(default.rise),
        fall: table.take("fall", integer(STREAK)).unwrap_or(default.fall),
        slow_start: table.take("slow_start", duration(SLOW_START)),
    };
    check_timeout(table, &check, timeout.as_ref());
    check
}

fn read_kind(table: &mut Table<'_, '_, '_>) -> CheckKind {
    // The keys that belong to an unknown word are unknown too.
    let is_default = !table.has("kind");
    let kind = table.take("kind", word).or(is_default.then_some(KindWord::Tcp));
    let http = read_http(table, kind);
    let grpc = read_grpc(table, kind);
    let host = table.take_located("host", check_host);
    let host = allow_for_kinds(table, kind, &[HTTP, GRPC].concat(), host).map(into_value);
    let tls = read_tls(table, kind);
    let (send, expect) = read_exchange(table, kind);
    match kind {
        Some(KindWord::Tcp) | None => CheckKind::Tcp,
        Some(KindWord::Http | KindWord::Https) => CheckKind::Http(HttpCheck { host, tls, ..http }),
        Some(KindWord::Grpc | KindWord::Grpcs) => CheckKind::Grpc(GrpcCheck { host, tls, ..grpc }),
        Some(KindWord::SendExpect) => CheckKind::SendExpect { send, expect },
    }
}

fn into_value<T>(found: LocatedValue<T>) -> T {
    found.value
}

/// The kinds that speak HTTP/1.
const HTTP: [KindWord; 2] = [KindWord::Http, KindWord::Https];

/// The kinds that speak gRPC.
const GRPC: [KindWord; 2] = [KindWord::Grpc, KindWord::Grpcs];

/// The kinds that speak TLS.
const TLS: [KindWord; 2] = [KindWord::Https, KindWord::Grpcs];

fn read_http(table: &mut Table<'_, '_, '_>, kind: Option<KindWord>) -> HttpCheck {
    let default = HttpCheck::default();
    let path = table.take_located("path", check_path);
    let path = allow_for_kinds(table, kind, &HTTP, path);
    let expect_status = table.take_located("expect_status", statuses);
    let expect_body = table.take_located("expect_body", check_text);
    let expect_body = allow_for_kinds(table, kind, &HTTP, expect_body);
    if let (Some(path), Some(_)) = (&path, &expect_body)
        && path.value.parse::<hyper::Uri>().is_err()
    {
        let encoded = "has a character that a URL must encode, such as \"%3C\" for \"<\"";
        table.report().add_error(&path.site, format!("{} {encoded}", quote(&path.value)));
    }
    HttpCheck {
        path: path.map_or(default.path, into_value),
        expect_status: allow_for_kinds(table, kind, &HTTP, expect_status)
            .map_or(default.expect_status, into_value),
        expect_body: expect_body.map(into_value),
        ..default
    }
}

fn read_grpc(table: &mut Table<'_, '_, '_>, kind: Option<KindWord>) -> GrpcCheck {
    let service = table.take_located("service", check_service);
    let service = allow_for_kinds(table, kind, &GRPC, service);
    GrpcCheck { service: service.map(into_value).unwrap_or_default(), ..GrpcCheck::default() }
}

fn read_tls(table: &mut Table<'_, '_, '_>, kind: Option<KindWord>) -> Option<CheckTls> {
    let is_asked = kind.is_some_and(|kind| TLS.contains(&kind));
    let server_name = table.take_located("tls_server_name", server_name);
    let server_name = allow_for_kinds(table, kind, &TLS, server_name);
    if is_asked {
        table.require_key("ca_file");
    }
    let [ca_file, certificate, key] = ["ca_file", "client_certificate_file", "client_key_file"].map(|key| {
        let found = table.path(key);
        allow_for_kinds(table, kind, &TLS, found)
    });
    let client = client_certificate(table, certificate, key);
    // Without an authority the file is rejected.
    let author = FileAuthor::Administrator;
    let files = TlsFiles { ca_file: ca_file.map(into_value).unwrap_or_default(), client, author };
    is_asked.then(|| CheckTls { server_name: server_name.map(into_value), files })
}

fn read_exchange(table: &mut Table<'_, '_, '_>, kind: Option<KindWord>) -> (Option<String>, String) {
    const OWNER: [KindWord; 1] = [KindWord::SendExpect];
    let send = table.take_located("send", check_text);
    let send = allow_for_kinds(table, kind, &OWNER, send);
    if kind == Some(KindWord::SendExpect) {
        table.require_key("expect");
    }
    let expect = table.take_located("expect", check_text);
    let expect = allow_for_kinds(table, kind, &OWNER, expect);
    (send.map(into_value), expect.map(into_value).unwrap_or_default())
}

/// The value of a key of some kinds of checks; with another kind it is an error.
fn allow_for_kinds<T>(
    table: &mut Table<'_, '_, '_>,
    kind: Option<KindWord>,
    owners: &[KindWord],
    found: Option<LocatedValue<T>>,
) -> Option<LocatedValue<T>> {
    let found = found?;
    let Some(other) = kind.filter(|kind| !owners.contains(kind)) else { return Some(found) };
    let owners: Vec<_> = owners.iter().map(|owner| format!("\"{owner}\"")).collect();
    let message = format!("it is for kind = {}, and this check has kind = \"{other}\"", owners.join(" or "));
    table.report().add_error(&found.site, message);
    None
}

/// A path that fits the first line of an HTTP request.
fn check_path(value: &DeValue<'_>) -> Result<String, String> {
    let text = string(value, "a path such as \"/healthz\"")?;
    let graphic = text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if text.starts_with('/') && graphic && text.len() <= CHECK_PATH_BYTES_MAX {
        return Ok(text.to_owned());
    }
    let legal = format!("a \"/\", then ASCII without spaces or \"#\", at most {CHECK_PATH_BYTES_MAX} bytes");
    Err(format!("{} is not a path of an HTTP request: {legal}", quote(text)))
}

/// A host that fits the header of an HTTP request.
fn check_host(value: &DeValue<'_>) -> Result<String, String> {
    let text = string(value, "a host such as \"web.example.com\"")?;
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(legal) {
        return Ok(text.to_owned());
    }
    Err(format!("{} is not a host: a name or an address, and perhaps \":\" and a port", quote(text)))
}

fn check_port(value: &DeValue<'_>) -> Result<NonZeroU16, String> {
    let number = integer((1, u16::MAX.into()))(value)?;
    u16::try_from(number).ok().and_then(NonZeroU16::new).ok_or_else(|| "port 0 is not legal".to_owned())
}

/// The name of a service as its server registers it; the empty name is the whole server.
fn check_service(value: &DeValue<'_>) -> Result<String, String> {
    let text = string(value, "the name of a service, such as \"shop.v1.Orders\"")?;
    match text.len() {
        ..=CHECK_TEXT_BYTES_MAX => Ok(text.to_owned()),
        length => Err(format!("the name has {length} bytes: at most {CHECK_TEXT_BYTES_MAX}")),
    }
}

/// A text to send, or to search a reply for.
fn check_text(value: &DeValue<'_>) -> Result<String, String> {
    let text = string(value, "a text such as \"PING\\r\\n\"")?;
    match text.len() {
        0 => Err("the text is empty".to_owned()),
        1..=CHECK_TEXT_BYTES_MAX => Ok(text.to_owned()),
        length => Err(format!("the text has {length} bytes: at most {CHECK_TEXT_BYTES_MAX}")),
    }
}

fn statuses(value: &DeValue<'_>) -> Result<Statuses, String> {
    let text = string(value, "statuses such as \"200-299,401\"")?;
    let ranges: Option<Vec<_>> = text.split(',').take(STATUS_RANGES_MAX + 1).map(status_range).collect();
    let legal = ranges.filter(|ranges| ranges.len() <= STATUS_RANGES_MAX).map(Statuses);
    legal.ok_or_else(|| {
        let legal = format!("numbers from 100 to 599 and ranges of them, at most {STATUS_RANGES_MAX}");
        format!("{} names no statuses of HTTP: {legal}, such as \"200-299,401\"", quote(text))
    })
}

fn status_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = status(first.trim())?..=status(last.trim())?;
    (!range.is_empty()).then_some(range)
}

fn status(text: &str) -> Option<u16> {
    let is_number = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|status| is_number && (100..=599).contains(status))
}

fn check_timeout(table: &mut Table<'_, '_, '_>, check: &HealthCheck, found: Option<&LocatedValue<Duration>>) {
    if check.timeout <= check.interval {
        return;
    }
    let site = found.map_or_else(|| table.site().clone(), |found| found.site.clone());
    let timeout = show_duration(check.timeout);
    let interval = show_duration(check.interval);
    let message = format!("the timeout ({timeout}) is longer than the interval ({interval}): at most equal");
    table.report().add_error(&site, message);
}
