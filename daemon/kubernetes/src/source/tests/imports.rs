//! ServiceImports and their slices in clusters that have, lack or lose the kind.

use holdfast_core::event::Event;
use holdfast_core::keys::{ObjectName, Source};
use holdfast_objects::{Defaulting, Provenance, SliceWire};

use super::super::Apiservers;
use super::bed::{self, IMPORTED, SourceHarness, event, list, slice, status};
use super::{Resource, ResumeState, SourceSettings, State, Timing, Version, ms};

/// A ServiceImport; its uid is its name.
fn import(name: &str, version: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default","uid":"{name}","resourceVersion":"{version}"}},"spec":{{"type":"ClusterSetIP","ips":["10.200.0.1"],"ports":[{{"port":80}}]}}}}"#
    )
}

/// A slice of the ServiceImport `a`.
fn imported(name: &str, version: &str) -> String {
    slice(name, version, "10.0.0.1")
        .replace("\"kubernetes.io/service-name\"", "\"multicluster.kubernetes.io/service-name\"")
}

fn absent() -> String {
    status("404 Not Found", "", "NotFound")
}

async fn start(bed: &mut SourceHarness, start: ResumeState) {
    let timing = Timing { absent_retry: ms(50), ..bed.timing() };
    bed.start(SourceSettings { timing, start, service_imports: true, ..SourceSettings::default() }).await;
}

/// The objects of a former process: one.
fn known(name: &str) -> Vec<(ObjectName, Version)> {
    let version = Version { uid: name.into(), resource_version: "5".into() };
    vec![(ObjectName::new("default", name).unwrap(), version)]
}

/// The next messages of both sources, sorted.
async fn sorted(bed: &mut SourceHarness, count: usize) -> Vec<String> {
    let mut told = bed.heard(count).await;
    told.sort();
    told
}

#[tokio::test]
async fn service_imports_and_their_slices_are_a_separate_source() {
    let mut bed = SourceHarness::new();
    bed.lists("services", [list("10", &[super::service("a", "3", "10.96.0.1")])]);
    bed.lists("endpointslices", [list("11", &[slice("a-1", "4", "10.0.0.1")])]);
    bed.lists("serviceimports", [list("12", &[import("a", "5")])]);
    bed.lists(IMPORTED, [list("13", &[imported("a-1", "6")])]);
    // The apiserver reports a slice that lost the label as deleted.
    bed.watches(IMPORTED, [bed::hang(&[event("DELETED", &imported("a-1", "14"))])]);
    start(&mut bed, ResumeState::default()).await;
    let expected = ["+a*@5", "+a-1*@6", "+a-1@4", "+a@3", "-a-1*@14", "synced", "synced*"];
    assert_eq!(sorted(&mut bed, 7).await, expected);
    let mut progress = bed.progress().to_vec();
    progress.sort();
    assert_eq!(progress, ["10", "11"], "a restart lists what is imported");
    assert!(bed.paths("serviceimports").iter().all(|path| path.contains("/v1beta1/")));
    for what in [Resource::Imports, Resource::ImportedSlices] {
        bed.until(|watch| watch.what == what && watch.state == State::Watching).await;
    }
}

#[tokio::test]
async fn nothing_waits_for_an_absent_kind_and_it_is_served_later() {
    for (line, reason) in [("404 Not Found", "NotFound"), ("403 Forbidden", "Forbidden")] {
        let mut bed = SourceHarness::new();
        bed.lists_after("serviceimports", status(line, "", reason));
        bed.lists(IMPORTED, [list("21", &[imported("a-1", "6")])]);
        start(&mut bed, ResumeState::default()).await;
        assert_eq!(sorted(&mut bed, 2).await, ["absent*", "synced"], "{line}");
        bed.requests("serviceimports", 6).await;
        for what in [Resource::Imports, Resource::ImportedSlices] {
            let watch = bed.watch(what);
            assert_eq!((watch.state, watch.restarts), (State::Absent, 0), "{line} {what}");
        }
        assert!(bed.watch(Resource::Imports).last_error.unwrap().text.contains(reason));
        assert_eq!(bed.lists_of(IMPORTED), 0, "no slice is asked for");
        let audited = bed.view().audit(super::AuditMode::ReadOnly).await;
        assert_eq!(audited.len(), 2, "what is absent is not compared: {audited:?}");
        bed.lists("serviceimports", [list("20", &[import("a", "5")])]);
        assert_eq!(sorted(&mut bed, 3).await, ["+a*@5", "+a-1*@6", "synced*"], "{line}");
        let state =
            |what| move |watch: &super::super::Watch| watch.what == what && watch.state == State::Watching;
        bed.until(state(Resource::ImportedSlices)).await;
        bed.until(state(Resource::Imports)).await;
    }
}

#[test]
fn an_absent_kind_stays_absent_while_it_is_requested_again() {
    let mut watch = super::super::Watch::new(Resource::Imports);
    watch.begin_list();
    assert_eq!(watch.state, State::Listing, "nothing is known of it yet");
    watch.set_state(State::Absent);
    watch.record_error(&"404");
    watch.begin_list();
    assert_eq!(watch.state, State::Absent);
}

#[tokio::test]
async fn a_cluster_with_the_older_version_is_watched_in_it() {
    let mut bed = SourceHarness::new();
    bed.lists("serviceimports", [absent(), list("20", &[import("a", "5")])]);
    start(&mut bed, ResumeState::default()).await;
    assert_eq!(sorted(&mut bed, 3).await, ["+a*@5", "synced", "synced*"]);
    bed.requests("serviceimports", 3).await;
    let versions: Vec<_> =
        bed.paths("serviceimports").iter().map(|path| path.contains("/v1alpha1/")).collect();
    assert_eq!(versions, [false, true, true], "the list and the watch ask for one version");
}

/// For example, a conversion webhook is down.
#[tokio::test]
async fn a_version_that_is_refused_does_not_hide_the_other_one() {
    let mut bed = SourceHarness::new();
    let broken = status("500 Internal Server Error", "", "InternalError");
    bed.lists("serviceimports", [broken, list("20", &[import("a", "5")])]);
    start(&mut bed, ResumeState::default()).await;
    assert_eq!(sorted(&mut bed, 3).await, ["+a*@5", "synced", "synced*"]);
    let versions: Vec<_> =
        bed.paths("serviceimports").iter().map(|path| path.contains("/v1alpha1/")).collect();
    assert_eq!(versions[..2], [false, true]);
}

/// For example, a starting apiserver has not loaded its custom resources yet.
#[tokio::test]
async fn an_apiserver_that_lost_the_kind_deletes_nothing() {
    let mut bed = SourceHarness::new();
    bed.lists("serviceimports", [list("10", &[import("a", "5")]), absent(), absent(), absent()]);
    bed.lists_after("serviceimports", list("30", &[import("a", "5"), import("b", "29")]));
    bed.watches("serviceimports", [absent(), bed::hang(&[event("DELETED", &import("a", "31"))])]);
    start(&mut bed, ResumeState::default()).await;
    assert_eq!(sorted(&mut bed, 3).await, ["+a*@5", "synced", "synced*"]);
    assert_eq!(sorted(&mut bed, 2).await, ["+b*@29", "-a*@31"], "nothing went before");
}

/// The objects were deleted with their kind, without an event.
#[tokio::test]
async fn objects_deleted_while_the_kind_was_absent_go_with_the_next_list() {
    let mut bed = SourceHarness::new();
    bed.lists("serviceimports", [list("10", &[import("a", "5")]), absent()]);
    bed.lists_after("serviceimports", list("30", &[]));
    bed.watches("serviceimports", [absent()]);
    start(&mut bed, ResumeState::default()).await;
    assert_eq!(sorted(&mut bed, 4).await, ["+a*@5", "-a*@", "synced", "synced*"]);
}

#[tokio::test]
async fn a_restart_serves_known_imports_while_the_kind_is_absent() {
    let mut bed = SourceHarness::new();
    bed.lists("serviceimports", [absent(), absent(), absent()]);
    bed.lists_after("serviceimports", list("30", &[import("a", "5")]));
    let imports = [known("a"), known("gone")].concat();
    start(&mut bed, ResumeState { imports, imported_slices: known("a-1"), ..ResumeState::default() }).await;
    assert_eq!(bed.heard(1).await, ["resumed*"], "before anything else");
    let expected = ["-a-1*@", "-gone*@", "absent*", "synced", "synced*"];
    assert_eq!(sorted(&mut bed, 5).await, expected, "a is known");
}

#[tokio::test]
async fn an_import_that_cannot_be_read_rejects_itself_only() {
    let mut bed = SourceHarness::new();
    let bad = import("bad", "4").replace("ClusterSetIP", "Everywhere");
    let worse = import("worse", "6").replace(r#""ports":["#, r#""ports":[7,"#);
    bed.lists("serviceimports", [list("10", &[import("a", "5"), bad])]);
    bed.watches("serviceimports", [bed::hang(&[event("ADDED", &worse), event("ADDED", &import("b", "12"))])]);
    start(&mut bed, ResumeState::default()).await;
    let expected = [
        "!ServiceImport default/bad",
        "!ServiceImport default/worse",
        "+a*@5",
        "+b*@12",
        "synced",
        "synced*",
    ];
    assert_eq!(sorted(&mut bed, 6).await, expected);
    bed.until(|watch| watch.what == Resource::Imports && watch.bad == 2).await;
}

#[tokio::test]
async fn a_start_does_not_wait_for_an_endless_import_list() {
    for answer in [
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n".to_owned(),
        status("500 Internal Server Error", "", "InternalError"),
        bed::answer(
            "200 OK",
            "",
            r#"{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[]}"#,
        ),
    ] {
        let mut bed = SourceHarness::new();
        bed.lists_after("serviceimports", answer.clone());
        let timing = Timing { imports_wait_max: ms(50), ..bed.timing() };
        bed.start(SourceSettings { timing, service_imports: true, ..SourceSettings::default() }).await;
        assert_eq!(sorted(&mut bed, 2).await, ["absent*", "synced"], "{answer}");
    }
}

#[tokio::test]
async fn imports_without_their_slices_are_not_synced() {
    let mut bed = SourceHarness::new();
    bed.lists("serviceimports", [list("12", &[import("a", "5")])]);
    bed.lists_after(IMPORTED, status("500 Internal Server Error", "", "InternalError"));
    let timing = Timing { imports_wait_max: ms(50), ..bed.timing() };
    bed.start(SourceSettings { timing, service_imports: true, ..SourceSettings::default() }).await;
    assert_eq!(sorted(&mut bed, 3).await, ["+a*@5", "absent*", "synced"]);
    bed.lists(IMPORTED, [list("13", &[imported("a-1", "6")])]);
    assert_eq!(sorted(&mut bed, 2).await, ["+a-1*@6", "synced*"]);
}

/// The role no longer allows imports, and the slices of known ones still change.
#[tokio::test]
async fn slices_of_known_imports_are_watched_while_the_kind_is_absent() {
    let mut bed = SourceHarness::new();
    bed.lists_after("serviceimports", status("403 Forbidden", "", "Forbidden"));
    bed.lists(IMPORTED, [list("13", &[imported("a-1", "6")])]);
    start(
        &mut bed,
        ResumeState { imports: known("a"), imported_slices: known("a-1"), ..ResumeState::default() },
    )
    .await;
    assert_eq!(bed.heard(1).await, ["resumed*"]);
    assert_eq!(sorted(&mut bed, 3).await, ["+a-1*@6", "absent*", "synced"]);
}

/// Each watch is refused, and no list is.
#[tokio::test]
async fn a_role_with_lists_but_no_watches_causes_no_list_loop() {
    let mut bed = SourceHarness::new();
    bed.lists_after("serviceimports", list("20", &[import("a", "5")]));
    bed.watches("serviceimports", (0..100).map(|_| status("403 Forbidden", "", "Forbidden")));
    start(&mut bed, ResumeState::default()).await;
    assert_eq!(sorted(&mut bed, 3).await, ["+a*@5", "synced", "synced*"]);
    tokio::time::sleep(ms(1_500)).await;
    let lists = bed.lists_of("serviceimports");
    assert!(lists < 9, "{lists} lists");
}

/// A tenant of `default` may name a ServiceImport freely.
#[test]
fn a_slice_of_an_import_names_no_apiserver() {
    let text = imported("x", "1")
        .replace("\":\"a\"}", "\":\"kubernetes\"}")
        .replace("\"name\":\"\"", "\"name\":\"https\"");
    let of = |text: &str, source| {
        let provenance = Provenance { source, origin: None, defaulting: Defaulting::Done };
        let wire: SliceWire<'_> = serde_json::from_str(text).unwrap();
        Event::SliceApplied(holdfast_objects::parse_slice(&wire, &provenance).unwrap().0.into())
    };
    let mut apiservers = Apiservers::default();
    assert!(
        !apiservers.apply_event(&of(&text, Source::ClusterSet)) && apiservers.listed_endpoints().is_empty()
    );
    let own = text.replace("multicluster.kubernetes.io", "kubernetes.io");
    assert!(
        apiservers.apply_event(&of(&own, Source::Kubernetes)) && apiservers.listed_endpoints().len() == 1
    );
}
