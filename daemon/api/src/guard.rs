//! The checks of every request before its path is known, and the headers of every answer.
//!
//! Invariant: a web page gets nothing, whatever name it made resolve to loopback: its requests carry a foreign Host or
//! an Origin. There are no users and no passwords: loopback and the socket's permissions are the boundary.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::admin_listener::ListenerKind;
use super::hint::{Hint, HintStyle};
use super::response::ApiError;
use super::{form::Form, query};

/// Headers that stop browsers from running, framing, sniffing, sharing or storing an answer.
const HEADERS: [(HeaderName, &str); 6] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (header::VARY, "accept"),
];

/// Refuses the request, or passes it on to the paths; renders any refusal, a path's too, in the client's format and
/// words.
pub(super) async fn guard_request(
    State(kind): State<ListenerKind>,
    request: Request,
    next: Next,
) -> Response {
    let form = requested_format(&request);
    let words = HintStyle::from_headers(request.headers());
    let mut response = match check_request(kind, &request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    };
    if let Some(refusal) = response.extensions_mut().remove::<ApiError>() {
        let allowed = response.headers_mut().remove(header::ALLOW);
        response = refusal.to_response(form, words);
        response.headers_mut().extend(allowed.map(|methods| (header::ALLOW, methods)));
    }
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        // The page has a policy of its own.
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// The format that this request wants, whether or not the rest of it is valid.
pub(super) fn requested_format(request: &Request) -> Form {
    let named = request.uri().query().and_then(query::format_in_query);
    named.unwrap_or_else(|| Form::from_accept(request.headers()))
}

fn check_request(kind: ListenerKind, request: &Request) -> Result<(), ApiError> {
    if let ListenerKind::Tcp(port) = kind {
        check_host(request, port)?;
    }
    if request.headers().contains_key(header::ORIGIN) {
        let hint = "this API is not for web pages; send no Origin header";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "requests with an Origin are refused", hint));
    }
    if is_cross_site(request.headers()) {
        let hint = "open the page by its own address; another page can neither read nor show it";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "requests of other web pages are refused", hint));
    }
    if has_body(request.headers()) {
        let hint = "every path is read with GET or HEAD, and filters go into the query";
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "a request body is not accepted", hint));
    }
    Ok(())
}

/// Whether a browser reports that another page sends the request. If a user follows a link to here and the answer
/// becomes the shown page, the user sends it.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let value = |name: &'static str| headers.get(name).map(HeaderValue::as_bytes);
    let own = matches!(value("sec-fetch-site"), None | Some(b"none" | b"same-origin"));
    let followed =
        value("sec-fetch-mode") == Some(b"navigate") && value("sec-fetch-dest") == Some(b"document");
    !own && !followed
}

fn check_host(request: &Request, port: u16) -> Result<(), ApiError> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    let authority = request.uri().authority().map(Authority::as_str);
    let ours = |host: Option<&str>| host.is_some_and(|host| is_loopback(host, port));
    if ours(host) && hosts.next().is_none() && (authority.is_none() || ours(authority)) {
        return Ok(());
    }
    let error = "the Host header names another host";
    let hint = Hint::Host(port);
    Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, error, hint))
}

/// Whether a host is a name of loopback that no DNS answer can change: `localhost` or an address.
fn is_loopback(host: &str, port: u16) -> bool {
    let name = match host.strip_suffix(&format!(":{port}")) {
        Some(name) => name,
        None if port == 80 => host,
        None => return false,
    };
    let plain = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    match plain {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok_and(|address| address.is_loopback()),
        None if name.eq_ignore_ascii_case("localhost") => true,
        None => name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4() && address.is_loopback()),
    }
}

fn has_body(headers: &HeaderMap) -> bool {
    let empty = |length: &HeaderValue| length.as_bytes() == b"0";
    headers.contains_key(header::TRANSFER_ENCODING)
        || headers.get(header::CONTENT_LENGTH).is_some_and(|length| !empty(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &str, expected: bool) {
        assert_eq!(is_loopback(host, 9890), expected, "{host}");
    }

    #[test]
    fn only_loopback_names_with_our_port_are_ours() {
        check("localhost:9890", true);
        check("LOCALHOST:9890", true);
        check("127.0.0.1:9890", true);
        check("[::1]:9890", true);
        check("localhost", false);
        check("localhost:80", false);
        check("::1:9890", false);
        check("[::1]", false);
        check("[127.0.0.1]:9890", false);
        check("localhost.evil.example:9890", false);
        check("localhost:9890.evil.example", false);
        check("127.0.0.1.nip.io:9890", false);
        check("10.0.0.1:9890", false);
        check("0.0.0.0:9890", false);
        check("2130706433:9890", false);
        check("user@localhost:9890", false);
        check("", false);
        check(":9890", false);
        check("localhost:+9890", false);
    }

    #[track_caller]
    fn foreign(said: &[(&'static str, &'static str)], expected: bool) {
        let headers =
            said.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        assert_eq!(is_cross_site(&headers.collect()), expected, "{said:?}");
    }

    #[test]
    fn another_page_is_recognised_by_sec_fetch_headers() {
        foreign(&[], false);
        foreign(&[("sec-fetch-site", "none")], false);
        foreign(&[("sec-fetch-site", "same-origin"), ("sec-fetch-mode", "cors")], false);
        foreign(&[("sec-fetch-site", "cross-site")], true);
        foreign(&[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")], true);
        foreign(&[("sec-fetch-site", "anything-new")], true);
    }

    #[test]
    fn a_link_may_lead_to_the_page_but_no_frame_may_show_it() {
        let by = |dest| {
            [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", dest)]
        };
        foreign(&by("document"), false);
        for dest in ["iframe", "frame", "embed", "object", "empty", ""] {
            foreign(&by(dest), true);
        }
    }

    #[test]
    fn the_default_port_may_be_omitted() {
        assert!(is_loopback("localhost", 80) && is_loopback("[::1]", 80) && !is_loopback("evil.example", 80));
    }
}
