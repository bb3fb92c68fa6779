//! Tokens, certificates and authorities that rotate during a list or a watch: nothing is emptied, no list starts over,
//! an open watch stays open, and errors are reported.

use holdfast_kubernetes::source::Resource;
use holdfast_tests::fake::{Authority, Fault, Kind, Names, RequestFilter};

use crate::credentials::{last_watch, with_certificate, with_token};
use crate::node::{Node, backend, ms, slice_object, web};
use crate::pages::{begun, pages, with_pages};

const SLICES: RequestFilter = RequestFilter::list(Kind::Slices);
const NAMES: RequestFilter = RequestFilter::audit(Kind::Slices);
const WATCHES: RequestFilter = RequestFilter::watch(Kind::Slices);

fn scale(node: &Node, backends: &[u8]) {
    let backends: Vec<_> = backends.iter().map(|number| backend(*number)).collect();
    node.cluster().apply(slice_object(&web(0), &backends)).unwrap();
}

/// A serving node in the middle of another list: the second of three pages is under way.
fn between_pages() -> Node {
    let setup = with_pages(3);
    setup.servers[0].accept_client(Some("first"), None);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node.guard(0);
    node.server().forget_requests();
    // Without the list of names, the list of whole objects must show what exists.
    node.server().once(NAMES, Fault::status(406, "NotAcceptable"));
    node.server().times(SLICES, Fault::Slow(ms(1)), 1);
    node.server().once(SLICES, Fault::Slow(ms(1_500)));
    // While it is stopped, no watch can get the change before its version is compacted away.
    node.server().stop();
    scale(&node, &[0, 9]);
    node.cluster().compact();
    node.server().start_again().unwrap();
    node.wait("the second page is under way", |node| pages(node).len() >= 2);
    node
}

/// Checks that the list completes without starting over.
#[track_caller]
fn goes_on(node: &mut Node, pages_max: usize) {
    node.wait("served", |node| node.serves(0, &[backend(0), backend(9)]));
    assert_eq!(begun(node), 1, "the list was begun anew: {}", node.log());
    let asked = pages(node).len();
    // A list has three pages; a request that broke off before the server read it is not counted.
    assert!((3..=pages_max).contains(&asked), "{asked} pages");
    node.check();
}

/// Checks that the node reports this for its watch and for the apiserver.
#[track_caller]
fn says(node: &mut Node, words: &str) {
    let of_endpoint = |node: &Node| {
        let view = node.access.view();
        let errors = view.endpoints.iter().filter_map(|it| it.last_error.as_ref());
        errors.map(|(text, _)| text.clone()).collect::<String>()
    };
    node.wait(words, |node| {
        node.last_error(Resource::Slices).contains(words) && of_endpoint(node).contains(words)
    });
    assert!(node.serves(0, &[backend(0)]), "what is known stays");
}

#[test]
fn a_token_expiring_between_pages_costs_one_page() {
    let mut node = between_pages();
    node.server().reject_all_clients();
    node.server().accept_client(Some("second"), None);
    node.setup.write("token", "second");
    goes_on(&mut node, 4);
}

#[test]
fn a_late_token_file_costs_no_list_and_is_reported() {
    let mut node = between_pages();
    node.server().reject_all_clients();
    says(&mut node, "401");
    node.server().accept_client(Some("second"), None);
    node.setup.write("token", "second");
    goes_on(&mut node, 20);
}

#[test]
fn a_burst_of_401_between_two_pages_costs_no_list() {
    let mut node = between_pages();
    node.server().times(RequestFilter::ANYTHING, Fault::status(401, "Unauthorized"), 6);
    goes_on(&mut node, 20);
}

#[test]
fn a_burst_of_401_on_watches_costs_no_list() {
    let mut node = with_token();
    // Chance decides which kinds get the eight faults; the slices' watch gets two, or it could not be served.
    node.server().times(WATCHES, Fault::status(401, "Unauthorized"), 2);
    node.server().times(RequestFilter::ANYTHING, Fault::status(401, "Unauthorized"), 8);
    node.server().reset_connections();
    scale(&node, &[0, 9]);
    node.wait("served", |node| node.serves(0, &[backend(0), backend(9)]));
    assert_eq!(node.server().request_count(SLICES), 1, "no list");
    node.check();
}

/// Gives the server another authority's certificate, and trusts only that authority from now on.
fn replace_authority(node: &mut Node, files_first: bool) {
    let second = Authority::new().unwrap();
    let identity = second.server(&Names::Kubernetes).unwrap();
    if files_first {
        node.setup.write("ca.pem", &second.pem());
    }
    node.server().show(&identity);
    node.server().reset_connections();
    if !files_first {
        node.wait("refused", |node| node.last_error(Resource::Slices).contains("certificate"));
        node.setup.write("ca.pem", &second.pem());
    }
}

#[test]
fn an_authority_replaced_between_pages_costs_one_page() {
    let mut node = between_pages();
    replace_authority(&mut node, true);
    goes_on(&mut node, 4);
}

#[test]
fn a_late_authority_file_costs_no_list() {
    let mut node = between_pages();
    replace_authority(&mut node, false);
    goes_on(&mut node, 20);
}

#[test]
fn a_replaced_authority_keeps_open_watches_and_is_reported_at_the_next() {
    let mut node = with_token();
    let second = Authority::new().unwrap();
    node.setup.write("ca.pem", &second.pem());
    node.live(ms(300));
    scale(&node, &[0, 9]);
    node.wait("served", |node| node.serves(0, &[backend(0), backend(9)]));
    assert_eq!(node.server().request_count(WATCHES), 1, "the watch that was open went on");
    scale(&node, &[0]);
    node.wait("served", |node| node.serves(0, &[backend(0)]));

    // A connection that began before the file was read again may still use the former authority.
    node.wait("the watch is refused", |node| {
        node.server().reset_connections();
        node.last_error(Resource::Slices).contains("certificate")
    });
    says(&mut node, "certificate");
    node.server().show(&second.server(&Names::Kubernetes).unwrap());
    scale(&node, &[0, 9]);
    node.wait("served", |node| node.serves(0, &[backend(0), backend(9)]));
    assert_eq!(node.server().request_count(SLICES), 1, "no list");
    node.check();
}

#[test]
fn a_renewed_certificate_keeps_open_watches_and_is_presented_at_the_next() {
    let mut node = with_certificate();
    let first = last_watch(&node);
    let second = node.setup.authority.client("system:node:second").unwrap();
    node.server().accept_client(None, Some(&second.der));
    node.setup.write("client.pem", &second.certificate);
    node.setup.write("client.key", &second.key);
    node.live(ms(300));
    scale(&node, &[0, 9]);
    node.wait("served", |node| node.serves(0, &[backend(0), backend(9)]));
    let asked = last_watch(&node);
    assert_eq!((asked.at, asked.connection), (first.at, first.connection), "the open watch went on");

    node.server().reject_all_clients();
    node.server().accept_client(None, Some(&second.der));
    let before = node.server().request_count(WATCHES);
    node.server().reset_connections();
    // A change over the old watch would prove nothing.
    node.wait("asked again", |node| node.server().request_count(WATCHES) > before);
    scale(&node, &[0, 7]);
    node.wait("served", |node| node.serves(0, &[backend(0), backend(7)]));
    assert_eq!(last_watch(&node).certificate.as_ref(), Some(&second.der));
    assert_eq!(node.server().request_count(SLICES), 1, "no list");
    node.check();
}
