//! Faults of lists, at the start and later, when there is state to lose.

use holdfast_kubernetes::source::Resource;
use holdfast_tests::fake::{Fault, Kind, RequestFilter};

use crate::node::{Node, Setup, backend, ms, service_object, slice_object, vip, web};

const SLICES: RequestFilter = RequestFilter::list(Kind::Slices);

/// The first list has a fault, and the next one is served.
#[track_caller]
fn check_first(name: &str, fault: Fault, words: &str) -> Node {
    let setup = Setup::new(1);
    setup.services(3);
    setup.servers[0].once(SLICES, fault);
    let mut node = Node::start(setup);
    node.wait("tried", |node| node.server().request_count(SLICES) >= 1);
    node.wait_until_synced();
    assert_eq!(node.server().request_count(SLICES), 2, "{name}");
    let said = node.last_error(Resource::Slices);
    assert!(said.contains(words), "{name}: {said}");
    assert!(!node.log().contains("GARBAGE"), "{name}: {}", node.log());
    node.check();
    node
}

/// A list after an outage has a fault: meanwhile the old state stays, and afterwards all of it is right.
#[track_caller]
fn check_later(name: &str, fault: Fault) {
    let mut node = Node::serving(3);
    node.guard(0);
    node.server().stop();
    node.cluster().apply(slice_object(&web(0), &[backend(0), backend(9)])).unwrap();
    node.cluster().delete(Kind::Slices, "default/web-1-1").unwrap();
    node.cluster().delete(Kind::Services, "default/web-1").unwrap();
    node.cluster().compact();
    node.server().once(SLICES, fault);
    node.server().start_again().unwrap();
    node.wait("tried", |node| node.server().request_count(SLICES) >= 2);
    assert!(node.serves(2, &[backend(2)]), "{name}: what is known stays");
    node.wait(name, |node| node.serves(0, &[backend(0), backend(9)]) && !node.has(1));
    node.check();
    assert_eq!(node.server().request_count(SLICES), 3, "{name}");
}

#[test]
fn a_truncated_list_is_discarded() {
    check_first("cut off", Fault::CutAfter(200), "closed the connection");
    check_later("cut off", Fault::CutAfter(200));
}

#[test]
fn a_list_is_requested_again_after_a_reset() {
    check_first("reset", Fault::Reset, "closed the connection");
    check_later("reset", Fault::Reset);
}

#[test]
fn a_missing_body_times_out() {
    check_first("silent body", Fault::SilentBody, "nothing came");
    check_later("silent body", Fault::SilentBody);
}

#[test]
fn missing_headers_time_out() {
    check_first("silent headers", Fault::Silent, "accepts but does not answer");
}

#[test]
fn a_body_shorter_than_its_length_is_discarded() {
    let short = Fault::raw("200 OK", &["Content-Length: 9999"], r#"{"metadata":{"GARBAGE":1},"items":[]"#);
    check_first("short", short.clone(), "closed the connection");
    check_later("short", short);
}

#[test]
fn an_invalid_content_length_is_an_error() {
    let garbage = Fault::raw("200 OK", &["Content-Length: GARBAGE"], "");
    check_first("no length", garbage, "");
}

#[test]
fn a_proxys_html_page_is_no_list() {
    let html = Fault::raw(
        "200 OK",
        &["Content-Type: text/html", "Content-Length: 35"],
        "<html><body>GARBAGE!</body></html>\n",
    );
    check_first("html", html.clone(), "");
    check_later("html", html);
}

#[test]
fn a_redirect_is_not_followed() {
    let redirect = Fault::raw("302 Found", &["Location: https://192.0.2.1/", "Content-Length: 0"], "");
    check_first("redirect", redirect, "302");
}

#[test]
fn a_starting_server_is_retried() {
    check_first("503", Fault::status(503, "ServiceUnavailable"), "503");
    check_later("503", Fault::status(503, "ServiceUnavailable"));
}

#[test]
fn an_internal_error_is_retried() {
    check_first("500", Fault::status(500, "InternalError"), "InternalError");
    check_later("500", Fault::status(500, "InternalError"));
}

#[test]
fn a_throttling_server_is_retried_after_its_retry_after() {
    let setup = Setup::new(1);
    setup.services(1);
    let patience = Fault::Status { code: 429, reason: "TooManyRequests", retry_after: Some(1) };
    setup.servers[0].once(SLICES, patience);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    let requests = node.server().requests();
    let lists: Vec<_> = requests.iter().filter(|request| SLICES.matches(request)).collect();
    assert_eq!(lists.len(), 2);
    assert!(lists[1].at - lists[0].at >= ms(1_000), "not before it was asked to");
    node.check();
}

#[test]
fn a_slow_list_is_awaited() {
    let setup = Setup::new(1);
    setup.services(1);
    setup.servers[0].once(SLICES, Fault::Slow(ms(2_000)));
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert_eq!(node.server().request_count(SLICES), 1, "asked once, and waited");
    node.check();
}

#[test]
fn a_list_of_many_pages_is_one_list() {
    let setup = Setup::new(1);
    many(&setup, 1_200);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert_eq!(node.server().request_count(SLICES), 3, "pages of 500");
    let connections = node
        .server()
        .requests()
        .iter()
        .filter(|it| it.target.contains("slices?"))
        .map(|it| it.connection)
        .collect::<std::collections::BTreeSet<_>>();
    assert!(
        connections.len() <= 2,
        "one connection for the pages, at most one more for the watch: {connections:?}"
    );
    node.check();
}

#[test]
fn an_expired_continue_token_restarts_the_list() {
    let setup = Setup::new(1);
    many(&setup, 700);
    setup.servers[0].times(SLICES, Fault::Slow(ms(1)), 1);
    setup.servers[0].once(SLICES, Fault::status(410, "Expired"));
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert!(node.server().request_count(SLICES) <= 4, "{}", node.server().request_count(SLICES));
    node.check();
}

#[test]
fn a_list_without_nearly_everything_is_applied_and_logged() {
    let setup = Setup::new(1);
    setup.services(20);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node.guard(0);
    node.server().stop();
    for number in 1..20 {
        node.cluster().delete(Kind::Services, &format!("default/{}", web(number))).unwrap();
        node.cluster().delete(Kind::Slices, &format!("default/{}-1", web(number))).unwrap();
    }
    node.cluster().compact();
    node.server().start_again().unwrap();
    let believed = |what| move |node: &Node| node.watch(what).lists == 2;
    node.wait("services are believed", believed(Resource::Services));
    node.wait("slices are believed", believed(Resource::Slices));
    node.check();
    assert_eq!(
        (node.watch(Resource::Services).losses, node.watch(Resource::Slices).losses),
        (1, 1),
        "{}",
        node.log()
    );
    assert_eq!(node.log().matches("fewer than half of the objects").count(), 2, "{}", node.log());
}

#[test]
fn no_service_is_seen_without_its_slices_during_a_relist() {
    // A list of Services comes before or after one of slices: a new service has no backend until both have come, and
    // an old one always has one.
    let mut node = Node::serving(2);
    node.guard(0);
    node.guard(1);
    for _ in 0..3 {
        node.server().stop();
        node.cluster().apply(service_object(&web(0), vip(0))).unwrap();
        node.cluster().apply(slice_object(&web(1), &[backend(1)])).unwrap();
        node.cluster().compact();
        node.server().once(SLICES, Fault::Slow(ms(200)));
        let lists = node.server().request_count(SLICES);
        node.server().start_again().unwrap();
        node.wait("listed", |node| node.server().request_count(SLICES) > lists && node.is_watched());
    }
    node.check();
}

fn many(setup: &Setup, count: u16) {
    setup.services(1);
    for number in 0..count {
        setup.cluster.apply(slice_object(&format!("none-{number}"), &[backend(1)])).unwrap();
    }
}

crate::node::in_json_too! {
    a_truncated_list_is_discarded,
    a_list_is_requested_again_after_a_reset,
    a_missing_body_times_out,
    missing_headers_time_out,
    a_body_shorter_than_its_length_is_discarded,
    an_invalid_content_length_is_an_error,
    a_proxys_html_page_is_no_list,
    a_redirect_is_not_followed,
    a_starting_server_is_retried,
    an_internal_error_is_retried,
    a_throttling_server_is_retried_after_its_retry_after,
    a_slow_list_is_awaited,
    a_list_of_many_pages_is_one_list,
    an_expired_continue_token_restarts_the_list,
    a_list_without_nearly_everything_is_applied_and_logged,
    no_service_is_seen_without_its_slices_during_a_relist,
}
