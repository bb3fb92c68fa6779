//! A check by HTTP/1.1: one GET, and the expected reply.
//!
//! Invariant: without an expected body, nothing after the status line is read or judged, so sloppy HTTP still counts as
//! up. With one, hyper reads the whole reply, which may be chunked. Hyper bounds what it stores but not what it reads
//! and drops; we bound that here.

use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};

use hyper::body::{Body, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::super::{HttpCheck, Statuses};
use super::limited_stream::LimitedStream;
use super::search::Search;
use super::{ANSWER_BYTES_MAX, CheckError, READ_BYTES_MAX, USER_AGENT, excerpt};
use holdfast_host::error_origin::ErrorOrigin;

/// The longest status line: far more than any real one.
pub(super) const STATUS_LINE_BYTES_MAX: u64 = 8 * 1024;

/// The size of most heads: thousands of silent backends cost this much each.
const HEAD_BYTES_USUAL: usize = 1024;

/// Sends a GET to a connected backend and judges its reply.
pub(super) async fn check_http(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    target: SocketAddr,
    config: &HttpCheck,
) -> Result<(), CheckError> {
    let host = config.host.clone().unwrap_or_else(|| target.to_string());
    match &config.expect_body {
        None => check_status_line(stream, &host, config).await,
        // Boxed: much larger than the other checks' futures.
        Some(text) => Box::pin(check_body(stream, &host, config, text)).await,
    }
}

async fn check_status_line(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    config: &HttpCheck,
) -> Result<(), CheckError> {
    let path = &config.path;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: {USER_AGENT}\r\nAccept: */*\r\nConnection: close\r\n\r\n",
    );
    stream.write_all(request.as_bytes()).await.map_err(CheckError::from_stream)?;
    // TLS may buffer what was written.
    stream.flush().await.map_err(CheckError::from_stream)?;
    let mut line = Vec::new();
    let mut answer = BufReader::with_capacity(HEAD_BYTES_USUAL, stream.take(STATUS_LINE_BYTES_MAX));
    answer.read_until(b'\n', &mut line).await.map_err(CheckError::from_stream)?;
    judge_line(&line, &config.expect_status)
}

fn judge_line(line: &[u8], healthy: &Statuses) -> Result<(), CheckError> {
    let Some(line) = line.strip_suffix(b"\n") else {
        let full = u64::try_from(line.len()).is_ok_and(|length| length >= STATUS_LINE_BYTES_MAX);
        return Err(if full { CheckError::TooLong } else { CheckError::Closed });
    };
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let status = parse_status_line(line).ok_or_else(|| CheckError::NotHttp(excerpt(line)))?;
    judge_status(status, healthy)
}

fn judge_status(status: u16, healthy: &Statuses) -> Result<(), CheckError> {
    if healthy.contains(status) { Ok(()) } else { Err(CheckError::Status(status, healthy.clone())) }
}

/// Parses `HTTP/1.x NNN` with an optional reason.
fn parse_status_line(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    let (minor, rest) = rest.split_first()?;
    let (digits, reason) = rest.strip_prefix(b" ")?.split_at_checked(3)?;
    let well_formed = minor.is_ascii_digit()
        && digits.iter().all(u8::is_ascii_digit)
        && (reason.is_empty() || reason.starts_with(b" "));
    let number = digits.iter().fold(0, |number, digit| number * 10 + u16::from(*digit & 0x0f));
    (well_formed && number >= 100).then_some(number)
}

async fn check_body(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    config: &HttpCheck,
    text: &str,
) -> Result<(), CheckError> {
    let mut builder = http1::Builder::new();
    builder.max_buf_size(ANSWER_BYTES_MAX);
    let shaken = builder.handshake(TokioIo::new(LimitedStream::new(stream, READ_BYTES_MAX))).await;
    let (mut sender, connection) = shaken.map_err(|error| response_error(&error))?;
    let answered = async {
        let answer = sender
            .send_request(build_request(host, &config.path))
            .await
            .map_err(|error| response_error(&error))?;
        judge_status(answer.status().as_u16(), &config.expect_status)?;
        search_body(text, answer.into_body()).await
    };
    drive_while(connection, answered).await
}

fn build_request(host: &str, path: &str) -> Request<String> {
    let mut request = Request::new(String::new());
    // The configuration allows only valid paths and hosts.
    *request.uri_mut() = path.parse().unwrap_or_default();
    let headers = request.headers_mut();
    headers.extend(host.parse().ok().map(|host| (header::HOST, host)));
    for (name, value) in
        [(header::USER_AGENT, USER_AGENT), (header::ACCEPT, "*/*"), (header::CONNECTION, "close")]
    {
        headers.insert(name, header::HeaderValue::from_static(value));
    }
    request
}

async fn search_body(text: &str, mut body: Incoming) -> Result<(), CheckError> {
    let mut search = Search::new(text);
    while !search.scan_answer() {
        match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            None => break,
            Some(Err(error)) => return Err(response_error(&error)),
            Some(Ok(frame)) => {
                let piece: Bytes = frame.into_data().unwrap_or_default();
                search.answer.extend_from_slice(&piece);
            }
        }
    }
    search.into_result()
}

/// Converts an error with its cause.
fn response_error(error: &hyper::Error) -> CheckError {
    if let Some(own) = local_error(error) {
        return CheckError::Unable(own);
    }
    let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
    CheckError::NotWhole(format!("{error}{cause}"))
}

/// This node's error behind this one, if any.
fn local_error(error: &hyper::Error) -> Option<io::Error> {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    let own = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    let mut own = own.filter(|error| ErrorOrigin::classify_established(error) == ErrorOrigin::Node);
    own.find_map(io::Error::raw_os_error).map(io::Error::from_raw_os_error)
}

/// Awaits one future while polling the other, which moves its bytes.
async fn drive_while<T>(mover: impl Future, awaited: impl Future<Output = T>) -> T {
    let (mut mover, mut awaited) = (pin!(mover), pin!(awaited));
    let mut moves = true;
    poll_fn(move |context| {
        moves = moves && mover.as_mut().poll(context).is_pending();
        awaited.as_mut().poll(context)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_status(line: &str, expected: Option<u16>) {
        assert_eq!(parse_status_line(line.as_bytes()), expected, "{line:?}");
    }

    #[test]
    fn a_status_line_is_http_1_and_three_digits() {
        check_status("HTTP/1.1 200 OK", Some(200));
        check_status("HTTP/1.0 404", Some(404));
        check_status("HTTP/1.1 999 x", Some(999));
        check_status("", None);
        check_status("HTTP/1.1", None);
        check_status("HTTP/1.1 ", None);
        check_status("HTTP/1.1 20", None);
        check_status("HTTP/1.1 2000", None);
        check_status("HTTP/1.1 20x OK", None);
        check_status("HTTP/1.1 099 OK", None);
        check_status("HTTP/1.1  200 OK", None);
        check_status("HTTP/1.1\t200 OK", None);
        check_status("HTTP/1.x 200 OK", None);
        check_status("HTTP/2 200", None);
        check_status("http/1.1 200 OK", None);
        check_status(" HTTP/1.1 200 OK", None);
        check_status("HTTP/1.1 ２００", None);
    }
}
