//! One page of a list fails: the daemon requests that page again, and keeps the others.

use std::time::Duration;

use holdfast_kubernetes::source::{Resource, SourceSettings, Timing};
use holdfast_tests::fake::{Fault, Kind, Request, RequestFilter, Verb};

use crate::node::{Node, Setup, backend, ms, quick, slice_object};

const SLICES: RequestFilter = RequestFilter::list(Kind::Slices);

/// A cluster with this many pages in its list of slices.
pub(crate) fn with_pages(pages: u16) -> Setup {
    let setup = Setup::new(1);
    setup.services(1);
    for number in 0..pages * 500 - 1 {
        setup.cluster.apply(slice_object(&format!("none-{number}"), &[backend(1)])).unwrap();
    }
    setup
}

pub(crate) fn pages(node: &Node) -> Vec<Request> {
    let requests = node.server().requests().into_iter();
    requests.filter(|it| (it.verb, it.kind) == (Verb::List, Kind::Slices)).collect()
}

pub(crate) fn begun(node: &Node) -> usize {
    pages(node).iter().filter(|it| !it.target.contains("continue=")).count()
}

/// The second of three pages has a fault; the list does not start over.
#[track_caller]
fn check_second_page(name: &str, fault: Fault) -> Node {
    let setup = with_pages(3);
    setup.servers[0].times(SLICES, Fault::Slow(ms(1)), 1);
    setup.servers[0].once(SLICES, fault);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert_eq!((begun(&node), pages(&node).len()), (1, 4), "{name}");
    assert_eq!(node.watch(Resource::Slices).objects, 1_500, "{name}");
    assert_eq!((node.watch(Resource::Slices).lists, node.watch(Resource::Slices).restarts), (1, 0), "{name}");
    node.check();
    node
}

#[test]
fn only_a_throttled_page_is_requested_again() {
    let fault = Fault::Status { code: 429, reason: "TooManyRequests", retry_after: Some(1) };
    let node = check_second_page("429", fault);
    let pages = pages(&node);
    assert!(pages[2].at - pages[1].at >= ms(1_000), "not before it was asked to");
}

#[test]
fn only_a_failed_page_is_requested_again() {
    check_second_page("500", Fault::status(500, "InternalError"));
    check_second_page("503", Fault::status(503, "ServiceUnavailable"));
    check_second_page("reset", Fault::Reset);
    check_second_page("cut off", Fault::CutAfter(40_000));
    check_second_page("silent body", Fault::SilentBody);
    check_second_page("html", Fault::say("<html>maintenance</html>"));
}

#[test]
fn a_large_list_under_throttling_is_completed() {
    let setup = with_pages(20);
    // One request in seven is 15 %.
    let throttle = Fault::Status { code: 429, reason: "TooManyRequests", retry_after: Some(1) };
    setup.servers[0].each(7, SLICES, throttle);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert_eq!((begun(&node), pages(&node).len()), (1, 23), "20 pages, and three of them twice");
    assert_eq!(node.watch(Resource::Slices).objects, 10_000);
    node.check();
}

#[test]
fn a_slow_list_continues_while_pages_arrive() {
    let setup = with_pages(8);
    setup.servers[0].always(SLICES, Fault::Slow(ms(700)));
    // All pages together take longer, and each by itself far less, also on a slow machine.
    let timing = silence(ms(5_000));
    let mut node = Node::start_with(setup, SourceSettings { timing, ..SourceSettings::default() });
    node.wait_until_synced();
    assert_eq!((begun(&node), pages(&node).len()), (1, 8));
}

#[test]
fn a_list_without_further_pages_restarts() {
    let setup = with_pages(2);
    setup.servers[0].times(SLICES, Fault::Slow(ms(1)), 1);
    setup.servers[0].always(SLICES, Fault::status(500, "InternalError"));
    let mut node =
        Node::start_with(setup, SourceSettings { timing: silence(ms(1_500)), ..SourceSettings::default() });
    node.wait("given up", |node| node.watch(Resource::Slices).restarts > 0);
    assert!(node.last_error(Resource::Slices).contains("no page of the list came"), "{}", node.log());
    node.server().heal();
    node.wait_until_synced();
    node.check();
}

#[test]
fn an_endless_list_of_empty_pages_is_aborted() {
    let setup = Setup::new(1);
    let empty =
        r#"{"kind":"List","apiVersion":"v1","metadata":{"resourceVersion":"7","continue":"7.1"},"items":[]}"#;
    setup.servers[0].always(SLICES, Fault::say(empty));
    let mut node =
        Node::start_with(setup, SourceSettings { timing: silence(ms(1_500)), ..SourceSettings::default() });
    node.wait("given up twice", |node| node.watch(Resource::Slices).restarts > 1);
    assert!(!node.snapshots.borrow().is_synced());
    assert!(pages(&node).len() < 100, "{} requests", pages(&node).len());
}

fn silence(list_silence: Duration) -> Timing {
    Timing { list_stall_timeout: list_silence, ..quick() }
}

crate::node::in_json_too! {
    only_a_throttled_page_is_requested_again,
    only_a_failed_page_is_requested_again,
    a_large_list_under_throttling_is_completed,
    a_slow_list_continues_while_pages_arrive,
    a_list_without_further_pages_restarts,
    an_endless_list_of_empty_pages_is_aborted,
}
