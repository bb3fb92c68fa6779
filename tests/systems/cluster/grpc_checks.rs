//! gRPC health checks of a third-party server: etcd serves `grpc.health.v1` with grpc-go's own transport, and over TLS
//! with Go's HTTP server.

use std::net::{Ipv4Addr, SocketAddr};

use holdfast_tests::bed::Bed;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{Etcd, METRICS_PORT};

const PLAIN: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 21);

const SECURED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 22);

/// A service with one backend, checked twice a second.
fn service(number: usize, backend: SocketAddr, check: &str) -> String {
    format!(
        "[[service]]\nname = \"s{number}\"\nfrontends = [\"10.96.0.{}:80\"]\nbackends = [\"{backend}\"]\n\
         health_check = {{ interval = \"500ms\", timeout = \"500ms\", rise = 1, fall = 1, {check} }}\n",
        number + 1,
    )
}

/// The last check result of a service's backend: `good`, or the error.
fn last(daemon: &Daemon<'_>, number: usize) -> String {
    let explained = daemon.ask(&["explain", &format!("static/s{number}")]).unwrap();
    let check = &explained["services"][0]["endpoints"][0]["check"]["last"];
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    match text("result").as_str() {
        "bad" => text("error"),
        other => other.to_owned(),
    }
}

#[test]
fn etcd_passes_grpc_checks_and_each_other_answer_is_reported() {
    let bed = Bed::new().unwrap();
    let (plain, secured) = (Etcd::start(&bed, PLAIN).unwrap(), Etcd::start_with_tls(&bed, SECURED).unwrap());
    let client = secured.authority().client("checks", &[]).unwrap();
    let ca = format!("ca_file = {:?}", secured.authority().file());
    let shown =
        format!("client_certificate_file = {:?}, client_key_file = {:?}", client.certificate, client.key);
    let other_ca = format!("ca_file = {:?}", plain.authority().file());
    let rows = [
        (plain.address(), "kind = \"grpc\"".to_owned(), "good"),
        (
            plain.address(),
            "kind = \"grpc\", service = \"no.such.Service\"".to_owned(),
            "grpc-status 5, NOT_FOUND: it has no service of this name",
        ),
        (
            SocketAddr::new(PLAIN.into(), METRICS_PORT),
            "kind = \"grpc\"".to_owned(),
            "no whole answer of HTTP/2: it begins \"HTTP/1.1 ",
        ),
        (plain.address(), format!("kind = \"grpcs\", {ca}"), "no TLS: "),
        (secured.address(), format!("kind = \"grpcs\", {ca}, {shown}"), "good"),
        (
            secured.address(),
            format!("kind = \"grpcs\", service = \"no.such.Service\", {ca}, {shown}"),
            "grpc-status 5, NOT_FOUND: it has no service of this name",
        ),
        (secured.address(), format!("kind = \"grpcs\", {ca}"), "the connection broke: "),
        (
            secured.address(),
            format!("kind = \"grpcs\", {other_ca}, {shown}"),
            "no TLS: invalid peer certificate",
        ),
        (secured.address(), "kind = \"grpc\"".to_owned(), "no whole answer of HTTP/2: "),
    ];
    let config: String =
        (0..).zip(&rows).map(|(number, (backend, check, _))| service(number, *backend, check)).collect();
    let mut daemon = Daemon::new(&bed, &config).unwrap();
    daemon.start().unwrap();
    for (number, (_, check, expected)) in rows.iter().enumerate() {
        let told = daemon.wait_until(|it| Ok(last(it, number).starts_with(expected)));
        told.unwrap_or_else(|error| panic!("{check}: {:?}\n{error}", last(&daemon, number)));
    }
    let text = daemon.tell(&["explain", "static/s0"]).unwrap();
    assert!(text.contains("usable by grpc checks: "), "{text}");
    let text = daemon.tell(&["explain", "static/s4"]).unwrap();
    assert!(text.contains("usable by grpcs checks: "), "{text}");

    plain.kill().unwrap();
    daemon.wait_until(|it| Ok(last(it, 0).starts_with("cannot connect: "))).unwrap();
    daemon.wait_until(|it| Ok(last(it, 4) == "good")).unwrap();
    daemon.stop().unwrap();
}
