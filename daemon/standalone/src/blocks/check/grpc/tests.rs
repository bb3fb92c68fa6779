//! The judgement of replies.

use super::*;

#[track_caller]
fn check(rule: &str, http: Option<u16>, grpc: Option<u16>, message: &[u8], expected: &str) {
    let statuses = hpack::CallStatuses { http, grpc };
    let judged = judge_reply(&GrpcReply { statuses, message: message.to_vec() });
    assert_eq!(judged.map_or_else(|failed| failed.to_string(), |()| "well".to_owned()), expected, "{rule}");
}

#[test]
fn a_server_is_healthy_if_it_reports_serving_and_ends_correctly() {
    let says = |rule, status: &[u8], expected| {
        let message = [&[0, 0, 0, 0, u8::try_from(status.len()).unwrap()], status].concat();
        check(rule, Some(200), Some(0), &message, expected);
    };
    says("serving", b"\x08\x01", "well");
    says("not serving", b"\x08\x02", "NOT_SERVING");
    says("of a watch", b"\x08\x03", "SERVICE_UNKNOWN");
    says("the default", b"", "UNKNOWN");
    says("a status to come", b"\x08\x04", "answered without a health status: is grpc.health.v1 served?");
    let serving = b"\0\0\0\0\x02\x08\x01";
    check("a failure", Some(200), Some(14), serving, "grpc-status 14, UNAVAILABLE");
    check("a failure with another status", Some(503), Some(14), b"", "grpc-status 14, UNAVAILABLE");
    check("another status", Some(503), None, b"", "status 503 of HTTP, where gRPC has 200");
    check("another status, well", Some(404), Some(0), serving, "status 404 of HTTP, where gRPC has 200");
    check(
        "no health service",
        Some(200),
        Some(12),
        b"",
        "grpc-status 12, UNIMPLEMENTED: is grpc.health.v1 served?",
    );
    check("no service", Some(200), Some(5), b"", "grpc-status 5, NOT_FOUND: it has no service of this name");
    check("a code that has no name", Some(200), Some(17), b"", "grpc-status 17, which has no name");
    let not_grpc = "an answer of HTTP/2 without a grpc-status: is it a server of gRPC?";
    check("a page", Some(200), None, b"<html>", not_grpc);
    check("no end", Some(200), None, serving, not_grpc);
    check("no headers", None, None, b"", not_grpc);
    check("no status", None, Some(0), serving, not_grpc);
    check(
        "no message",
        Some(200),
        Some(0),
        b"",
        "answered without a health status: is grpc.health.v1 served?",
    );
}

#[test]
fn the_call_names_its_server_and_its_service() {
    let sent = |asked: GrpcCheck| {
        let call = start_call("192.0.2.1:50051".parse().unwrap(), &asked);
        String::from_utf8_lossy(&call.unsent).into_owned()
    };
    let plain = sent(GrpcCheck::default());
    for header in [
        "\u{7}:method\u{4}POST",
        "\u{7}:scheme\u{4}http\0",
        "\u{5}:path\u{1c}/grpc.health.v1.Health/Check",
        "\u{a}:authority\u{f}192.0.2.1:50051",
        "\u{2}te\u{8}trailers",
        "\u{c}content-type\u{10}application/grpc",
    ] {
        assert!(plain.contains(header), "{header:?} in {plain:?}");
    }
    let named = sent(GrpcCheck { service: "web".into(), host: Some("web.example.com".into()), tls: None });
    assert!(
        named.contains(":authority\u{f}web.example.com") && named.ends_with("\u{5}\n\u{3}web"),
        "{named:?}"
    );
}
