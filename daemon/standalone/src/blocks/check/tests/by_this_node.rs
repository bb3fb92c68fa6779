//! Checks that this node cannot run.

use std::process::Command;

use super::*;
use holdfast_fixtures::few_ports;

fn kinds() -> [CheckKind; 4] {
    let with_body = HttpCheck { expect_body: Some("well".into()), ..http("/") };
    [
        CheckKind::Tcp,
        CheckKind::Http(with_body),
        CheckKind::Grpc(GrpcCheck::default()),
        CheckKind::SendExpect { send: None, expect: "x".into() },
    ]
}

async fn outcome_at(backend: SocketAddr, kind: CheckKind) -> Result<(), CheckError> {
    run_check(&check_of(kind, TEST_TIMEOUT), backend, None).await
}

#[test]
fn a_check_without_a_local_port_does_not_run() {
    few_ports::run_in_network(async || {
        let listener = TcpListener::bind("127.0.0.1:8080").await.unwrap();
        let backend = listener.local_addr().unwrap();
        outcome_at(backend, CheckKind::Tcp).await.unwrap();
        let taken = few_ports::take_ports(backend).await;
        for kind in kinds() {
            let failed = outcome_at(backend, kind).await.unwrap_err();
            assert!(matches!(failed, CheckError::Unable(_)), "{failed}");
        }
        drop(taken);
        drop(listener);
        let failed = outcome_at(backend, CheckKind::Tcp).await.unwrap_err();
        assert_eq!(failed.to_string(), REFUSED, "what the backend says still counts");
    });
}

#[test]
fn a_missing_route_differs_from_a_refusal() {
    few_ports::run_in_network(async || {
        for (kind, backend) in
            [("unreachable", "192.0.2.1"), ("blackhole", "192.0.2.2"), ("prohibit", "192.0.2.3")]
        {
            let added = Command::new("ip").args(["route", "add", kind, backend]).status().unwrap();
            assert!(added.success());
        }
        for (backend, is_route) in
            [("192.0.2.1", true), ("192.0.2.2", true), ("192.0.2.3", false), ("192.0.2.4", true)]
        {
            let backend = SocketAddr::new(backend.parse().unwrap(), 80);
            let failed = outcome_at(backend, CheckKind::Tcp).await.unwrap_err();
            let is_expected = match failed {
                CheckError::NoRoute(_) => is_route,
                CheckError::Unable(_) => !is_route,
                _ => false,
            };
            assert!(is_expected, "{backend}: {failed}");
        }
    });
}
