//! Credentials that rotate, come late, or are wrong, while they are in use.

use holdfast_config::{Apiserver, ClientIdentity};
use holdfast_kubernetes::source::{Resource, SourceSettings};
use holdfast_tests::fake::{Fault, Kind, Request, RequestFilter, Verb};

use crate::node::{Node, Setup, backend, ms, quick, slice_object, web};

/// A node with an apiserver that accepts only the token `first`.
pub(crate) fn with_token() -> Node {
    let setup = Setup::new(1);
    setup.services(1);
    setup.servers[0].accept_client(Some("first"), None);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node.guard(0);
    node
}

/// Ends the watches, and checks that a later change is served.
#[track_caller]
fn served_anew(node: &mut Node) {
    let watches = RequestFilter::watch(Kind::Slices);
    let before = node.server().request_count(watches);
    node.server().end_watches(Kind::Slices);
    node.server().end_watches(Kind::Services);
    // A change over the old watch would prove nothing.
    node.wait("asked again", |node| node.server().request_count(watches) > before);
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
}

/// The latest watch request.
pub(crate) fn last_watch(node: &Node) -> Request {
    let requests = node.server().requests();
    requests.into_iter().rfind(|it| (it.verb, it.kind) == (Verb::Watch, Kind::Slices)).unwrap()
}

#[test]
fn a_rotated_token_is_read_again() {
    let mut node = with_token();
    node.server().reject_all_clients();
    node.server().accept_client(Some("second"), None);
    node.setup.write("token", "second\n");
    served_anew(&mut node);
    assert_eq!(last_watch(&node).header("authorization"), "Bearer second");
    assert_eq!(node.server().request_count(RequestFilter::list(Kind::Slices)), 1, "no list");
}

#[test]
fn a_refused_token_is_reported_and_never_logged() {
    let mut node = with_token();
    node.setup.write("token", "a-secret");
    node.server().reject_all_clients();
    node.server().end_watches(Kind::Slices);
    node.wait("said", |node| node.last_error(Resource::Slices).contains("401"));
    // A loop without waits would send hundreds of requests meanwhile.
    node.live(ms(500));
    assert!(node.serves(0, &[backend(0)]), "what is known stays");
    assert!(!node.log().contains("a-secret") && !node.last_error(Resource::Slices).contains("a-secret"));
    let asked = node.server().request_count(RequestFilter::ANYTHING);
    assert!(asked < 40, "{asked} requests, each in vain");
    node.server().accept_client(Some("a-secret"), None);
    served_anew(&mut node);
}

#[test]
fn an_empty_token_file_keeps_the_last_good_token() {
    let mut node = with_token();
    node.setup.write("token", "  \n");
    served_anew(&mut node);
    assert!(node.server().requests().iter().all(|request| request.header("authorization") == "Bearer first"));
}

#[test]
fn a_deleted_token_file_keeps_the_last_good_token() {
    let mut node = with_token();
    std::fs::remove_file(node.setup.path("token")).unwrap();
    served_anew(&mut node);
}

#[test]
fn a_late_token_file_is_awaited() {
    let setup = Setup::new(1);
    setup.services(1);
    setup.servers[0].accept_client(Some("late"), None);
    std::fs::remove_file(setup.path("token")).unwrap();
    let mut node = Node::start(setup);
    node.wait("the file is reported", |node| node.last_error(Resource::Slices).contains("token"));
    assert!(!node.snapshots.borrow().is_synced());
    node.setup.write("token", "late");
    node.wait_until_synced();
    node.check();
}

#[test]
fn a_missing_permission_is_reported_as_such() {
    let setup = Setup::new(1);
    setup.services(1);
    setup.servers[0].times(RequestFilter::list(Kind::Slices), Fault::status(403, "Forbidden"), 2);
    let mut node = Node::start(setup);
    node.wait("said", |node| node.last_error(Resource::Slices).contains("Forbidden"));
    assert!(!node.snapshots.borrow().is_synced(), "half of the truth is not served");
    node.wait_until_synced();
    node.check();
}

#[test]
fn a_missing_namespace_permission_is_logged_once() {
    let setup = Setup::new(1);
    setup.services(1);
    setup.servers[0].always(RequestFilter::for_kind(Kind::Namespaces), Fault::status(403, "Forbidden"));
    let mut node = Node::start(setup);
    node.wait_until_synced();
    let namespaces = RequestFilter::for_kind(Kind::Namespaces);
    let before = node.server().request_count(namespaces);
    node.server().reset_connections();
    node.wait("asked again", |node| node.server().request_count(namespaces) > before && node.is_watched());
    assert_eq!(node.log().matches("cannot verify which cluster this is").count(), 1, "{}", node.log());
    node.check();
}

/// A node with a client certificate.
pub(crate) fn with_certificate() -> Node {
    let setup = Setup::new(1);
    setup.services(1);
    let client = setup.authority.client("system:node:first").unwrap();
    setup.servers[0].accept_client(None, Some(&client.der));
    setup.write("client.pem", &client.certificate);
    setup.write("client.key", &client.key);
    let identity = ClientIdentity::Certificate {
        certificate_file: setup.path("client.pem"),
        key_file: setup.path("client.key"),
    };
    let access = setup.access(Apiserver { identity: Some(identity), ..setup.apiserver() });
    let mut node =
        Node::start_over(setup, access, SourceSettings { timing: quick(), ..SourceSettings::default() });
    node.wait_until_synced();
    node.guard(0);
    node
}

#[test]
fn a_rotated_certificate_is_presented_next() {
    let mut node = with_certificate();
    let second = node.setup.authority.client("system:node:second").unwrap();
    node.server().reject_all_clients();
    node.server().accept_client(None, Some(&second.der));
    node.setup.write("client.pem", &second.certificate);
    node.setup.write("client.key", &second.key);
    served_anew(&mut node);
    assert_eq!(last_watch(&node).certificate.as_ref(), Some(&second.der));
}

#[test]
fn a_certificate_without_its_key_keeps_the_last_good_pair() {
    let mut node = with_certificate();
    let second = node.setup.authority.client("system:node:second").unwrap();
    node.setup.write("client.pem", &second.certificate);
    served_anew(&mut node);
    node.server().reset_connections();
    node.wait("the pair is reported", |node| {
        node.access.view().credentials.iter().any(|credential| credential.problem.is_some())
    });
    node.wait("watched again", Node::is_watched);
}

#[test]
fn a_half_written_certificate_keeps_the_last_good_pair() {
    let mut node = with_certificate();
    let half = crate::node::file(&node.setup.path("client.pem"));
    node.setup.write("client.pem", &half[..half.len() / 2]);
    served_anew(&mut node);
    node.server().reset_connections();
    node.wait("watched again", Node::is_watched);
}

#[test]
fn a_rotated_authority_is_trusted_next() {
    let mut node = with_token();
    let second = holdfast_tests::fake::Authority::new().unwrap();
    let identity = second.server(&holdfast_tests::fake::Names::Kubernetes).unwrap();
    node.setup.write("ca.pem", &format!("{}{}", node.setup.authority.pem(), second.pem()));
    node.server().show(&identity);
    node.server().reset_connections();
    served_anew(&mut node);
}
