//! An apiserver that throttles with `Retry-After`: it is healthy, and the daemon waits as long as it asks.

use std::time::Duration;

use holdfast_kubernetes::source::Resource;
use holdfast_tests::fake::{Fault, Kind, RequestFilter};

use crate::node::{Node, Setup, backend, ms, slice_object, web};

const IDENTITY: RequestFilter = RequestFilter::get(Kind::Namespaces);

/// The longest `Retry-After` in seconds: far longer than any request without a wait.
const LONG: u32 = 60;

fn throttle(code: u16, seconds: u32) -> Fault {
    Fault::Status { code, reason: "TooManyRequests", retry_after: Some(seconds) }
}

#[test]
fn throttled_identity_requests_wait_for_their_retry_after() {
    for code in [429, 503] {
        let setup = Setup::new(1);
        setup.services(1);
        setup.servers[0].always(IDENTITY, throttle(code, 2));
        let mut node = Node::start(setup);
        node.wait("asked again and again", |node| node.server().request_count(IDENTITY) >= 9);
        let requests = node.server().requests();
        let asked: Vec<_> = requests.iter().filter(|request| IDENTITY.matches(request)).collect();
        // Services, slices and the checks ask, so one of them has asked twice among four requests.
        let waits = asked.windows(4).map(|four| four[3].at - four[0].at);
        assert_eq!(waits.filter(|wait| *wait < Duration::from_secs(2)).count(), 0, "{code}: {asked:#?}");
        node.wait("throttled", |node| node.access.view().endpoints[0].state.as_str() == "throttled");
        assert!(
            node.last_error(Resource::Slices).contains("asks us to wait"),
            "{}",
            node.last_error(Resource::Slices)
        );
        assert_eq!(node.log().matches("state=\"failed\"").count(), 0, "{}", node.log());
        node.server().heal();
        node.wait_until_synced();
        assert_eq!(node.access.view().endpoints[0].state.as_str(), "healthy", "{code}");
        node.check();
    }
}

#[test]
fn another_apiserver_is_used_during_a_retry_after() {
    let setup = Setup::new(2);
    setup.services(1);
    setup.servers[0].always(IDENTITY, throttle(429, LONG));
    let mut node = Node::start(setup);
    node.wait_until_synced();
    // The first one throttles each request. After its `Retry-After` it would get three more of them.
    node.live(ms(2_000));
    assert!(
        node.setup.servers[0].request_count(IDENTITY) <= 3,
        "{}",
        node.setup.servers[0].request_count(IDENTITY)
    );
    assert_eq!(node.access.view().endpoints[0].state.as_str(), "throttled");
    node.check();
}

#[test]
fn an_excessive_retry_after_is_capped() {
    let setup = Setup::new(1);
    setup.servers[0].always(IDENTITY, throttle(429, 86_400));
    let mut node = Node::start(setup);
    node.wait("throttled", |node| node.access.view().endpoints[0].state.as_str() == "throttled");
    let said = node.access.view().endpoints[0].last_error.clone().unwrap().0;
    assert!(said.contains("wait 60 s"), "{said}");
}

#[test]
fn a_throttled_request_delays_no_other() {
    let setup = Setup::new(1);
    setup.services(1);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node.guard(0);
    node.server().times(RequestFilter::watch(Kind::Services), throttle(429, LONG), 1);
    node.server().end_watches(Kind::Services);
    node.server().end_watches(Kind::Slices);
    node.wait("asked", |node| node.last_error(Resource::Services).contains("TooManyRequests"));
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("slices are followed", |node| node.serves(0, &[backend(9)]));
    assert_eq!(node.server().watches(Kind::Services), 0, "the throttled one still waits");
    node.check_guard();
}
