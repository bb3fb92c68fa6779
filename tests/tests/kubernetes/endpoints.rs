//! Which apiserver the daemon uses, how soon it fails over, and how it returns to a better one.

use std::net::SocketAddr;

use holdfast_config::ApiserverUrl;
use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::await_event;
use holdfast_kubernetes::source::{Resource, SourceSettings, Timing};
use holdfast_tests::fake::{Cluster, Fault, Greeting, Kind, Names, RequestFilter, Server};
use serde_json::json;

use crate::node::{Node, Setup, backend, ms, quick, slice_object, web};

const READY: &str = "/readyz";

/// Sends one request over a new access: returns the name of the answering apiserver, or the errors of all.
fn ask(setup: &Setup) -> Result<String, String> {
    let access = setup.access(setup.apiserver());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let what = "each endpoint that does not answer is given up";
    let reply = runtime.block_on(await_event(what, access.get(READY, None)));
    reply.map(|reply| reply.endpoint.to_string()).map_err(|error| error.to_string())
}

/// The first endpoint has this fault, the second is healthy.
#[track_caller]
fn check_failover(name: &str, break_it: impl FnOnce(&Setup, &Server)) {
    let setup = Setup::new(2);
    break_it(&setup, &setup.servers[0]);
    let answer = ask(&setup);
    assert_eq!(answer, Ok(setup.servers[1].address().to_string()), "{name}");
}

/// The only endpoint has this fault, and the error contains these words.
#[track_caller]
fn check_words(name: &str, words: &str, break_it: impl FnOnce(&Setup, &Server)) {
    let setup = Setup::new(1);
    break_it(&setup, &setup.servers[0]);
    let answer = ask(&setup);
    let said = answer.expect_err(name);
    assert!(said.contains(words), "{name}: {said}");
    assert!(said.contains(&setup.servers[0].address().to_string()), "{name}: {said}");
}

#[test]
fn the_first_endpoint_is_tried_first() {
    let setup = Setup::new(3);
    let answer = ask(&setup);
    assert_eq!(answer, Ok(setup.servers[0].address().to_string()));
    assert_eq!(setup.servers[1].connections() + setup.servers[2].connections(), 0);
}

#[test]
fn a_refused_connection_fails_over() {
    check_failover("refused", |_, server| server.stop());
    check_words("refused", "connection refused", |_, server| server.stop());
}

#[test]
fn a_silent_server_fails_over() {
    check_failover("silent", |_, server| server.greet(Greeting::Silent));
    check_words("silent", "accepts but does not answer", |_, server| server.greet(Greeting::Silent));
}

#[test]
fn a_host_that_drops_packets_fails_over() {
    check_failover("no packets", |_, server| server.drop_packets(true));
    check_words("no packets", "does not answer", |_, server| server.drop_packets(true));
}

#[test]
fn a_closed_connection_fails_over() {
    check_failover("closed", |_, server| server.greet(Greeting::Close));
    check_words("closed", "closed the connection", |_, server| server.greet(Greeting::Close));
}

#[test]
fn another_programs_port_fails_over() {
    check_failover("clear text", |_, server| server.greet(Greeting::ClearText));
    check_words("clear text", "not an apiserver", |_, server| server.greet(Greeting::ClearText));
}

#[test]
fn a_gateway_without_an_apiserver_fails_over() {
    for (code, reason) in [(502, "BadGateway"), (503, "ServiceUnavailable"), (504, "Timeout")] {
        let always = Fault::status(code, reason);
        check_failover(reason, |_, server| server.always(RequestFilter::ANYTHING, always.clone()));
        let words = format!("{code}: ");
        check_words(reason, &words, |_, server| server.always(RequestFilter::ANYTHING, always));
    }
}

#[test]
fn a_certificate_of_another_authority_is_reported() {
    let break_it = |_: &Setup, server: &Server| {
        let stranger = holdfast_tests::fake::Authority::new().unwrap();
        server.show(&stranger.server(&Names::Kubernetes).unwrap());
    };
    check_failover("authority", break_it);
    check_words("authority", "certificate not signed by the given CA", break_it);
}

#[test]
fn a_certificate_with_another_name_is_reported() {
    let other = Names::Other("somebody.example".to_owned());
    let break_it = |setup: &Setup, server: &Server| server.show(&setup.authority.server(&other).unwrap());
    check_failover("name", break_it);
    check_words("name", "certificate is for somebody.example, not kubernetes.default.svc", break_it);
}

#[test]
fn an_expired_certificate_is_reported() {
    let break_it =
        |setup: &Setup, server: &Server| server.show(&setup.authority.server(&Names::Expired).unwrap());
    check_failover("expired", break_it);
    check_words("expired", "certificate expired", break_it);
}

#[test]
fn another_clusters_uid_is_reported_and_its_objects_are_ignored() {
    let mut setup = Setup::new(1);
    setup.services(2);
    let stranger = Cluster::new("9f9f9f9f-0000-4000-8000-000000000002");
    setup
        .servers
        .push(Server::start(&stranger, &setup.authority.server(&Names::Kubernetes).unwrap()).unwrap());
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node.guard(0);
    node.server().stop();
    node.wait("the other one was tried again", |node| node.setup.servers[1].connections() > 4);
    let said = node.last_error(Resource::Slices);
    assert!(said.contains("another cluster (uid 9f9f9f9f"), "{said}");
    assert_eq!(
        node.setup.servers[1].request_count(RequestFilter::for_kind(Kind::Slices)),
        0,
        "it was not even asked"
    );
    assert!(node.serves(1, &[backend(1)]), "what is known stays");
    node.server().start_again().unwrap();
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
}

#[test]
fn a_watch_resumes_over_another_endpoint() {
    let setup = Setup::new(2);
    setup.services(2);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node.guard(0);
    node.setup.servers[0].stop();
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
    assert_eq!(node.setup.servers[1].request_count(RequestFilter::list(Kind::Slices)), 0, "no list");
    assert_eq!(
        node.watch(Resource::Slices).endpoint.as_deref(),
        Some(&*node.setup.servers[1].address().to_string())
    );
}

#[test]
fn a_pulled_cable_is_noticed_without_a_reset() {
    let setup = Setup::new(2);
    setup.services(1);
    // Only the socket itself can notice: the watch timeout is longer than the test.
    let timing = Timing { watch_idle: TEST_TIMEOUT * 2, ..quick() };
    let mut node = Node::start_with(setup, SourceSettings { timing, ..SourceSettings::default() });
    node.wait_until_synced();
    node.guard(0);
    // It sends nothing either, not even retransmissions.
    [Kind::Services, Kind::Slices].iter().for_each(|kind| node.setup.servers[0].mute(*kind, true));
    // The last bookmark arrives and is acknowledged, so that nothing is on its way when the cable is pulled.
    node.live(ms(500));
    node.setup.servers[0].drop_packets(true);
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("noticed", |node| node.watch(Resource::Slices).restarts > 0);
    // The first endpoint is still preferred, so the dial has to time out first.
    node.wait("served over the other one", |node| node.serves(0, &[backend(9)]));
    node.setup.servers[0].drop_packets(false);
    node.check();
}

#[test]
fn a_better_endpoint_is_used_again_once_it_is_back() {
    let setup = Setup::new(2);
    setup.services(1);
    setup.servers[0].stop();
    let timing = Timing { watch_length: ms(2_000), ..quick() };
    let mut node = Node::start_with(setup, SourceSettings { timing, ..SourceSettings::default() });
    node.wait_until_synced();
    node.guard(0);
    node.setup.servers[0].start_again().unwrap();
    node.wait("back", |node| {
        let first = &node.setup.servers[0];
        first.watches(Kind::Slices) == 1 && first.watches(Kind::Services) == 1
    });
    node.check();
    assert_eq!(node.setup.servers[0].request_count(RequestFilter::list(Kind::Slices)), 0, "no list");
}

#[test]
fn addresses_listed_by_the_cluster_are_learned_and_used() {
    let mut setup = Setup::new(1);
    setup.services(1);
    let second = Server::start(&setup.cluster, &setup.authority.server(&Names::Kubernetes).unwrap()).unwrap();
    let endpoints = |addresses: &[SocketAddr]| {
        let listed: Vec<_> = addresses.iter().map(|it| json!({"addresses": [it.ip()]})).collect();
        json!({
            "kind": "EndpointSlice",
            "metadata": {"namespace": "default", "name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "addressType": "IPv4", "endpoints": listed,
            "ports": [{"name": "https", "protocol": "TCP", "port": second.address().port()}],
        })
    };
    setup.cluster.apply(endpoints(&[second.address()])).unwrap();
    let configured = vec![ApiserverUrl::parse(&setup.servers[0].url()).unwrap()];
    let access = setup.access(holdfast_config::Apiserver { endpoints: configured, ..setup.apiserver() });
    setup.servers.push(second);
    let mut node =
        Node::start_over(setup, access, SourceSettings { timing: quick(), ..SourceSettings::default() });
    node.wait_until_synced();
    node.guard(0);
    let mut emptied = node.cluster().objects(Kind::Slices).remove(0);
    emptied["endpoints"] = json!(null);
    node.cluster().apply(emptied).unwrap();
    node.cluster().apply(slice_object(&web(0), &[backend(8)])).unwrap();
    node.wait("the later change is served", |node| node.serves(0, &[backend(8)]));
    node.setup.servers[0].stop();
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("served over the learned one", |node| node.serves(0, &[backend(9)]));
    node.check_guard();
    assert!(node.setup.servers[1].connections() > 0);
}
