//! The cost limits of one object or one reply.

use std::sync::Arc;

use super::bed::{self, SourceHarness, error, event, giant, list, service};
use super::{AuditMode, Resource, SourceSettings, State};
use crate::apiserver::tests::server::SLOWLY;
use crate::source::page::OBJECTS_MAX;

/// The error that a client gets for an audit of Services to which the apiserver replies this.
async fn compared_with(answer: String) -> String {
    let mut bed = SourceHarness::new();
    bed.lists("services", [list("10", &[]), answer]);
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(1).await, ["synced"]);
    let (what, compared) = bed.view().audit(AuditMode::ReadOnly).await.remove(0);
    assert_eq!(what, Resource::Services);
    compared.result.unwrap_err()
}

#[tokio::test]
async fn an_audit_gives_up_on_an_endless_list() {
    let count = usize::try_from(OBJECTS_MAX).unwrap() + 1;
    let error = compared_with(list("20", &vec!["{}".to_owned(); count])).await;
    assert_eq!(error, "the list has more than 500000 objects");
}

#[tokio::test]
async fn an_audit_refuses_a_list_of_another_kind() {
    let slices = r#"{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"20"},"items":[]}"#;
    let error = compared_with(bed::answer("200 OK", "", slices)).await;
    assert_eq!(error, "the list is not of the requested kind");
}

#[tokio::test]
async fn a_cut_object_does_not_hold_up_deletions() {
    let mut bed = SourceHarness::new();
    let [a, b] = ["a", "b"].map(|name| service(name, "3", "10.96.0.1"));
    bed.lists(
        "services",
        [list("10", &[a.clone(), b, giant("big", "4")]), list("20", &[a, giant("big", "4")])],
    );
    bed.watches("services", [bed::hang(&[error(410, "Expired")])]);
    bed.start(SourceSettings::default()).await;
    let mut told = bed.heard(5).await;
    told.sort();
    assert_eq!(told, ["!Service default/big", "+a@3", "+b@3", "-b@", "synced"]);
}

#[tokio::test]
async fn a_watch_continues_after_a_cut_object() {
    let mut bed = SourceHarness::new();
    let events = [event("ADDED", &giant("big", "11")), event("ADDED", &service("c", "12", "10.96.0.4"))];
    bed.watches("services", [bed::hang(&events)]);
    bed.start(SourceSettings::default()).await;
    let mut told = bed.heard(3).await;
    told.sort();
    assert_eq!(told, ["!Service default/big", "+c@12", "synced"]);
    let services = bed.watch(Resource::Services);
    assert_eq!((services.state, services.lists, services.restarts), (State::Watching, 1, 0));
}

/// A protobuf field of fewer than 128 bytes.
fn field(number: u8, bytes: &str) -> String {
    let length = u8::try_from(bytes.len()).unwrap();
    format!("{}{}{bytes}", char::from((number << 3) | 2), char::from(length))
}

/// A protobuf list of one Service with a number in place of its `spec`.
fn doubtful(name: &str) -> String {
    let metadata = [(1, name), (3, "default"), (5, name), (6, "4")].map(|(number, text)| field(number, text));
    let service = format!("{}\u{10}\u{1}", field(1, &metadata.concat()));
    let list = format!("{}{}", field(1, &field(2, "10")), field(2, &service));
    let kind = format!("{}{}", field(1, "v1"), field(2, "ServiceList"));
    let body = format!("k8s\0{}{}", field(1, &kind), field(2, &list));
    bed::answer("200 OK", "content-type: application/vnd.kubernetes.protobuf\r\n", &body)
}

#[tokio::test]
async fn a_too_large_object_does_not_incriminate_the_encoding() {
    let mut bed = SourceHarness::new();
    bed.lists("services", [doubtful("big")]);
    bed.lists("big", [bed::answer("200 OK", "", &giant("big", "4"))]);
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(2).await, ["!Service default/big", "synced"]);
    bed.requests("services", 2).await;
    let services = bed.watch(Resource::Services);
    assert_eq!((services.lists, services.refetched, services.bad), (1, 1, 1));
    assert_eq!(bed.asked("services", "limit"), ["500"], "it is not listed again as JSON");
}

#[tokio::test]
async fn a_change_of_an_untabled_object_copies_no_other() {
    let bad = |name: &str, version: &str| {
        service(name, version, "10.96.0.3").replace("\"ports\":[", "\"ports\":[7,")
    };
    let mut bed = SourceHarness::new();
    bed.lists("services", [list("10", &[bad("a", "3"), bad("b", "4")])]);
    // The event comes seconds after the list.
    let watch = bed::hang(&[event("MODIFIED", &bad("a", "11"))]);
    bed.watches("services", [watch.replacen("\r\n\r\n", &format!("\r\n\r\n{SLOWLY}"), 1)]);
    let known = |bed: &SourceHarness| Arc::as_ptr(&bed.oddities().services);
    bed.start(SourceSettings::default()).await;
    bed.heard(2).await;
    let before = known(&bed);
    bed.heard(2).await;
    assert_eq!(known(&bed), before, "nothing but a snapshot that is being written shares them");
    let versions: Vec<_> =
        bed.oddities().services.values().map(|odd| odd.version.resource_version.to_string()).collect();
    assert_eq!(versions, ["11", "4"]);
}
