//! Checks by gRPC of healthy backends, and of other protocols.

use super::*;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

fn settings() -> Vec<u8> {
    frame(4, 0, 0, b"")
}

/// A complete reply with this health status.
pub(super) fn answer(status: u8) -> &'static [u8] {
    let headers = frame(1, 4, 1, b"\x88\x5f\x10application/grpc");
    let message = frame(0, 0, 1, &[0, 0, 0, 0, 2, 8, status]);
    let trailers = frame(1, 5, 1, b"\x40\x0bgrpc-status\x010");
    [settings(), frame(4, 1, 0, b""), headers, message, trailers].concat().leak()
}

async fn check_grpc(rule: &str, server: Server, expected: &str) {
    check(rule, server, CheckKind::Grpc(GrpcCheck::default()), expected).await;
}

#[tokio::test]
async fn a_check_by_grpc_passes_if_the_server_serves() {
    check_grpc("at once", Server::Banner(answer(1)), "healthy").await;
    check_grpc("and ends", Server::HalfCloses(answer(1)), "healthy").await;
    check_grpc("byte by byte", Server::Drips(answer(1), Duration::from_millis(1)), "healthy").await;
    check_grpc("endless behind it", Server::Floods(answer(1)), "healthy").await;
    check_grpc("not serving", Server::Banner(answer(2)), "NOT_SERVING").await;
}

#[tokio::test]
async fn a_check_by_grpc_that_fails_says_why() {
    check_grpc("nothing listens", Server::Down, REFUSED).await;
    check_grpc("says nothing", Server::Silent, LATE).await;
    check_grpc("too slow", Server::Drips(answer(1), Duration::from_millis(20)), LATE).await;
    check_grpc("never ends", Server::Banner(settings().leak()), LATE).await;
    let cut = "no whole answer of HTTP/2: it breaks off";
    check_grpc("ends", Server::HalfCloses(b""), cut).await;
    check_grpc("ends half-way", Server::HalfCloses(&answer(1)[..40]), cut).await;
    let http1 = Server::HalfCloses(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let begins = "no whole answer of HTTP/2: it begins \"HTTP/1.1 400 Bad Request\\r\\n\\r\\n\"";
    check_grpc("HTTP/1", http1, begins).await;
    let refused = [settings(), frame(3, 0, 1, &[0, 0, 0, 7])].concat().leak();
    check_grpc(
        "refuses",
        Server::Banner(refused),
        "no whole answer of HTTP/2: RST_STREAM with REFUSED_STREAM",
    )
    .await;
    let calm = [settings(), frame(7, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 11])].concat().leak();
    check_grpc("goes away", Server::Banner(calm), "no whole answer of HTTP/2: GOAWAY with ENHANCE_YOUR_CALM")
        .await;
}

#[tokio::test]
async fn a_flooding_backend_is_read_up_to_the_limit() {
    let too_long = "no whole answer of HTTP/2: it is longer than 16384 bytes";
    let first = settings().leak();
    for (rule, flood) in [
        ("pings that are answered and not read", frame(6, 0, 0, b"12345678")),
        ("settings", frame(4, 0, 0, &[0; 6])),
        ("huge settings", frame(4, 0, 0, &[0; 60_000])),
        ("frames that are empty", frame(0, 0, 1, b"")),
        ("frames of no kind", frame(0xfa, 0, 0, b"")),
        ("windows", frame(8, 0, 1, &[0, 0, 0, 1])),
        ("headers", frame(1, 4, 1, b"\x88")),
    ] {
        check_grpc(rule, Server::Repeats(first, flood.leak()), too_long).await;
    }
    check_grpc("anything", Server::Floods(first), too_long).await;
}
