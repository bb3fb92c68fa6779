//! Faults of an established watch.

use holdfast_core::keys::ObjectName;
use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_kubernetes::source::{
    Resource, ResumeState, SavedObjects, SourceSettings, Timing, UntabledObjects, Version,
};
use holdfast_tests::fake::{Fault, Kind, RequestFilter, Verb};
use serde_json::Value;

use crate::node::{Node, Setup, backend, ms, quick, service_object, slice_object, vip, web};

const SLICES: RequestFilter = RequestFilter::list(Kind::Slices);
const WATCHES: RequestFilter = RequestFilter::watch(Kind::Slices);

/// Gives `web-0` other backends.
fn scale(node: &Node, backends: &[u8]) {
    let backends: Vec<_> = backends.iter().map(|number| backend(*number)).collect();
    node.cluster().apply(slice_object(&web(0), &backends)).unwrap();
}

#[test]
fn a_change_is_served_at_once() {
    let mut node = Node::serving(2);
    node.guard(0);
    scale(&node, &[7, 8]);
    node.wait("served", |node| node.serves(0, &[backend(7), backend(8)]));
    node.check();
    assert_eq!((node.server().request_count(SLICES), node.server().request_count(WATCHES)), (1, 1));
}

#[test]
fn a_reset_watch_resumes_from_its_version() {
    let mut node = Node::serving(3);
    node.guard(0);
    node.server().reset_connections();
    scale(&node, &[9]);
    node.cluster().delete(Kind::Slices, "default/web-1-1").unwrap();
    node.cluster().delete(Kind::Services, "default/web-1").unwrap();
    node.wait("missed events came", |node| node.serves(0, &[backend(9)]) && !node.has(1));
    node.check();
    assert_eq!(node.server().request_count(RequestFilter::list(Kind::Services)), 1, "no list");
    assert_eq!(node.server().request_count(SLICES), 1, "no list");
}

#[test]
fn a_watch_at_its_timeout_resumes_silently() {
    let setup = Setup::new(1);
    setup.services(1);
    let timing = Timing { watch_length: ms(1_000), watch_short: ms(500), ..quick() };
    let mut node = Node::start_with(setup, SourceSettings { timing, ..SourceSettings::default() });
    node.wait_until_synced();
    node.guard(0);
    node.wait("asked again", |node| node.server().request_count(WATCHES) >= 3);
    scale(&node, &[9]);
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
    assert_eq!(
        (node.watch(Resource::Slices).restarts, node.server().request_count(SLICES)),
        (0, 1),
        "{}",
        node.log()
    );
}

#[test]
fn an_apiserver_is_used_again_after_an_outage() {
    let mut node = Node::serving(2);
    node.guard(0);
    node.server().stop();
    scale(&node, &[9]);
    node.wait("refused again and again", |node| {
        node.watch(Resource::Slices).restarts >= 5
            && node.last_error(Resource::Slices).contains("connection refused")
    });
    assert!(node.serves(0, &[backend(0)]), "what is known is served meanwhile");
    node.server().start_again().unwrap();
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
    assert_eq!(node.server().request_count(SLICES), 1, "no list");
}

#[test]
fn a_compacted_version_relists_at_once() {
    let mut node = Node::serving(3);
    node.guard(0);
    node.server().stop();
    scale(&node, &[0, 9]);
    node.cluster().delete(Kind::Slices, "default/web-1-1").unwrap();
    node.cluster().delete(Kind::Services, "default/web-1").unwrap();
    node.cluster().apply(service_object("web-5", vip(5))).unwrap();
    node.cluster().compact();
    node.server().start_again().unwrap();
    let listed = |node: &Node| node.serves(0, &[backend(0), backend(9)]) && !node.has(1) && node.has(5);
    node.wait("listed", listed);
    node.check();
    assert_eq!(node.server().request_count(SLICES), 2, "one more list");
}

#[track_caller]
fn check_gone(gone: Fault) {
    let mut node = Node::serving(1);
    node.guard(0);
    node.server().once(WATCHES, gone);
    node.server().end_watches(Kind::Slices);
    node.wait("listed and watched", |node| node.server().request_count(WATCHES) == 3 && node.is_watched());
    scale(&node, &[9]);
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
    assert_eq!(node.server().request_count(SLICES), 2, "one more list");
}

#[test]
fn a_status_410_on_a_watch_relists() {
    check_gone(Fault::status(410, "Expired"));
    check_gone(Fault::raw("410 Gone", &["Content-Length: 0"], ""));
}

#[test]
fn watches_that_end_at_once_are_retried_with_backoff() {
    let mut node = Node::serving(1);
    node.guard(0);
    node.server().always(WATCHES, Fault::say(""));
    node.server().forget_requests();
    node.server().end_watches(Kind::Slices);
    node.wait("asked again and again", |node| node.server().request_count(WATCHES) >= 6);
    let requests = node.server().requests();
    let watches: Vec<_> = requests.iter().filter(|request| WATCHES.matches(request)).collect();
    // The least waits before the second to the sixth: half of 100 ms, doubled each time.
    assert!(watches[5].at - watches[0].at >= ms(50 + 100 + 200 + 400 + 800), "{watches:#?}");
    node.server().heal();
    scale(&node, &[9]);
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
    assert_eq!(node.server().request_count(SLICES), 0, "no list");
}

#[test]
fn a_watch_resumes_after_an_error_event() {
    let mut node = Node::serving(1);
    node.guard(0);
    node.server().once(WATCHES, Fault::error_event(500, "InternalError"));
    node.server().end_watches(Kind::Slices);
    node.wait("watched again", |node| node.server().request_count(WATCHES) == 3 && node.is_watched());
    assert_eq!(node.server().request_count(SLICES), 1, "one error is no reason for a list");
    node.server().times(WATCHES, Fault::error_event(500, "InternalError"), 2);
    node.server().end_watches(Kind::Slices);
    node.wait("listed", |node| node.server().request_count(SLICES) == 2);
    scale(&node, &[9]);
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
}

#[track_caller]
fn check_refused(name: &str, fault: Fault, words: &str) {
    let mut node = Node::serving(1);
    node.guard(0);
    node.server().once(WATCHES, fault);
    node.server().end_watches(Kind::Slices);
    node.wait("asked again", |node| node.server().request_count(WATCHES) == 3 && node.is_watched());
    let said = node.last_error(Resource::Slices);
    assert!(said.contains(words), "{name}: {said}");
    scale(&node, &[9]);
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
    assert_eq!(node.server().request_count(SLICES), 1, "{name}: no list");
    assert!(!node.log().contains("GARBAGE"), "{name}: {}", node.log());
}

#[test]
fn a_refused_watch_resumes_from_its_version() {
    check_refused("500", Fault::status(500, "InternalError"), "InternalError");
    check_refused("503", Fault::status(503, "ServiceUnavailable"), "503");
    check_refused("403", Fault::status(403, "Forbidden"), "Forbidden");
    check_refused("429", Fault::status(429, "TooManyRequests"), "TooManyRequests");
}

#[test]
fn a_proxys_html_page_is_no_watch() {
    let html = Fault::raw("200 OK", &["Content-Type: text/html", "Content-Length: 8"], "GARBAGE\n");
    check_refused("html", html, "");
}

#[test]
fn an_unanswered_closed_watch_resumes_from_its_version() {
    check_refused("closed", Fault::Close, "closed the connection");
    check_refused("reset", Fault::Reset, "closed the connection");
}

#[test]
fn the_guard_sees_a_service_without_backends() {
    let mut node = Node::serving(2);
    node.hold_nothing(0);
    node.guard(0);
    scale(&node, &[]);
    node.wait("emptied", |node| node.serves(0, &[]));
    assert_eq!(node.violations(), 1, "one op emptied it");
}

#[test]
fn a_repeated_event_is_applied_once() {
    let setup = Setup::new(1);
    setup.services(1);
    setup.servers[0].once(WATCHES, Fault::Twice);
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node.guard(0);
    scale(&node, &[9]);
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    scale(&node, &[9, 8]);
    node.wait("served", |node| node.serves(0, &[backend(9), backend(8)]));
    assert_eq!(node.watch(Resource::Slices).events, 2);
    node.check();
}

#[test]
fn a_silent_watch_is_noticed() {
    let setup = Setup::new(1);
    setup.services(1);
    let watch_idle = ms(3_000);
    let timing = Timing { watch_idle, ..quick() };
    let mut node = Node::start_with(setup, SourceSettings { timing, ..SourceSettings::default() });
    node.wait_until_synced();
    node.guard(0);
    // Only a silence of this length could end a watch that gets bookmarks.
    node.live(watch_idle + ms(500));
    assert_eq!(node.server().request_count(WATCHES), 1, "bookmarks keep it alive");
    node.server().mute(Kind::Slices, true);
    scale(&node, &[9]);
    node.wait("noticed", |node| node.server().request_count(WATCHES) == 2);
    assert!(
        node.last_error(Resource::Slices).contains("nothing came"),
        "{}",
        node.last_error(Resource::Slices)
    );
    node.server().mute(Kind::Slices, false);
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
    assert_eq!(node.server().request_count(SLICES), 1, "no list");
}

/// As after a restore of etcd from a backup.
#[test]
fn decreased_versions_are_noticed_at_the_first_silence() {
    let setup = Setup::new(1);
    setup.services(2);
    // The watch's own silence cannot tell within the test.
    let timing = Timing { rewind_check_delay: ms(200), watch_idle: TEST_TIMEOUT * 2, ..quick() };
    let mut node = Node::start_with(setup, SourceSettings { timing, ..SourceSettings::default() });
    node.wait_until_synced();
    node.guard(0);
    node.cluster().rewind(500);
    scale(&node, &[9]);
    node.server().reset_connections();
    node.wait("listed", |node| node.serves(0, &[backend(9)]));
    node.check();
    let told = node.last_error(Resource::Slices);
    assert!(told.contains("went back from version"), "{told}");
    // The connection had ended before, and that was reported; this message is about the version.
    assert!(node.log().contains("went back from version"), "{}", node.log());
}

#[test]
fn a_lost_event_is_found_by_the_audit() {
    let setup = Setup::new(1);
    setup.services(2);
    let timing = Timing { audit_interval: ms(700), audit_confirm_delay: ms(100), ..quick() };
    let mut node = Node::start_with(setup, SourceSettings { timing, ..SourceSettings::default() });
    node.wait_until_synced();
    node.guard(0);
    node.wait("audited", |node| node.watch(Resource::Slices).audits > 0);
    assert_eq!(node.watch(Resource::Slices).differences, 0, "nothing is wrong yet");
    node.cluster().apply_without_event(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("found", |node| node.serves(0, &[backend(9)]));
    node.check();
    assert_eq!((node.watch(Resource::Slices).differences, node.server().request_count(SLICES)), (1, 2));
    assert!(node.log().contains("default/web-0-1"), "the object is named: {}", node.log());
}

#[track_caller]
fn check_garbage(name: &str, garbage: &str) {
    let mut node = Node::serving(2);
    node.guard(0);
    node.server().say(Kind::Slices, garbage);
    node.server().end_watches(Kind::Slices);
    scale(&node, &[9]);
    node.wait(name, |node| node.serves(0, &[backend(9)]));
    node.check();
    assert!(!node.log().contains("GARBAGE"), "{name}: the body is in the log: {}", node.log());
    assert!(node.log().len() < 10_000, "{name}: {} bytes of log", node.log().len());
}

#[test]
fn half_a_line_is_no_event() {
    check_garbage("half a line", "{\"type\":\"MODIFIED\",\"object\":{\"GARBAGE");
}

#[test]
fn a_watch_resumes_after_a_malformed_line() {
    check_garbage("no JSON", "GARBAGE\n");
}

#[test]
fn a_watch_resumes_after_a_line_without_an_object() {
    check_garbage("no object", "{\"type\":\"MODIFIED\",\"GARBAGE\":1}\n");
}

#[test]
fn an_endless_line_is_cut_off() {
    check_garbage("a huge line", &format!("{{\"type\":\"{}", "GARBAGE".repeat(1 << 20)));
}

#[test]
fn a_watch_resumes_after_invalid_utf8() {
    let mut node = Node::serving(1);
    node.guard(0);
    // The fake sends only text; JSON can escape a surrogate, and a string cannot hold one.
    node.server()
        .say(Kind::Slices, "{\"type\":\"MODIFIED\",\"object\":{\"metadata\":{\"name\":\"\\ud800\"}}}\n");
    scale(&node, &[9]);
    node.wait("served", |node| node.serves(0, &[backend(9)]));
    node.check();
}

/// The saved objects of a former run.
fn remembered(setup: &Setup, kind: Kind) -> SavedObjects {
    let object = |object: &Value| {
        let text = |at: &str| object["metadata"][at].as_str().unwrap();
        let name = ObjectName::new(text("namespace"), text("name")).unwrap();
        (name, Version { uid: text("uid").into(), resource_version: text("resourceVersion").into() })
    };
    SavedObjects {
        resource_version: setup.cluster.version().to_string().into(),
        objects: setup.cluster.objects(kind).iter().map(object).collect(),
        untabled: UntabledObjects::default(),
    }
}

fn restarted(setup: &Setup) -> SourceSettings {
    let [services, slices] = [Kind::Services, Kind::Slices].map(|kind| Some(remembered(setup, kind)));
    SourceSettings {
        timing: quick(),
        start: ResumeState { services, slices, ..ResumeState::default() },
        ..SourceSettings::default()
    }
}

#[test]
fn a_restart_resumes_watches_without_a_list() {
    let setup = Setup::new(1);
    setup.services(1);
    let settings = restarted(&setup);
    let mut node = Node::start_with(setup, settings);
    node.wait_until_synced();
    let lists = node.server().request_count(SLICES)
        + node.server().request_count(RequestFilter::list(Kind::Services));
    assert_eq!(lists, 0, "what is remembered is good");
    node.setup.services(2);
    node.wait("what is new comes by the watch", |node| node.serves(1, &[backend(1)]));
}

/// The saved objects of the other kinds are older than what the maps may hold.
#[test]
fn a_restart_is_synced_after_all_missed_changes() {
    let setup = Setup::new(1);
    setup.services(1);
    let settings = restarted(&setup);
    setup.services(7);
    for kind in [Kind::Services, Kind::Slices] {
        setup.servers[0].once(RequestFilter::watch(kind), Fault::Trickle(ms(60)));
    }
    // A slow machine pauses between two changes as well.
    let timing = Timing { replay_quiet: ms(3_000), replay_max: TEST_TIMEOUT, ..quick() };
    let settings = SourceSettings { timing, ..settings };
    let mut node = Node::start_with(setup, settings);
    node.wait("synced", |node| node.snapshots.borrow().is_synced());
    let all = (1..7).filter(|number| node.serves(*number, &[backend(*number)])).count();
    assert_eq!(all, 6, "{}", node.log());
}

#[test]
fn a_restart_is_synced_despite_endless_changes() {
    let setup = Setup::new(1);
    setup.services(6);
    let timing = Timing { replay_quiet: TEST_TIMEOUT, replay_max: ms(300), ..quick() };
    let settings = SourceSettings { timing, ..restarted(&setup) };
    (0..120).for_each(|last| drop(setup.cluster.apply(slice_object(&web(last % 6), &[backend(20 + last)]))));
    setup.servers[0].once(RequestFilter::watch(Kind::Slices), Fault::Trickle(ms(1_000)));
    let mut node = Node::start_with(setup, settings);
    node.wait("synced", |node| node.snapshots.borrow().is_synced());
    assert!(!node.serves(5, &[backend(20 + 119)]), "the rest is still to come");
}

#[test]
fn a_restart_after_a_compaction_lists() {
    let setup = Setup::new(1);
    setup.services(2);
    let settings = restarted(&setup);
    setup.services(2);
    setup.cluster.compact();
    let mut node = Node::start_with(setup, settings);
    node.wait_until_synced();
    assert_eq!(node.server().request_count(SLICES), 1);
    node.check();
}

/// Checks that the audit sends the same selectors as the list.
fn check_audits(refused: u32, headless: usize, asked: usize) {
    let setup = Setup::new(1);
    setup.services(2);
    let mut none = service_object("headless", vip(9));
    none["spec"]["clusterIP"] = serde_json::json!("None");
    none["spec"]["clusterIPs"] = serde_json::json!(["None"]);
    setup.cluster.apply(none).unwrap();
    setup.servers[0].times(RequestFilter::list(Kind::Services), Fault::status(400, "BadRequest"), refused);
    let timing = Timing { audit_interval: ms(300), audit_confirm_delay: ms(50), ..quick() };
    let mut node = Node::start_with(setup, SourceSettings { timing, ..SourceSettings::default() });
    node.wait_until_synced();
    node.wait("audited", |node| node.watch(Resource::Services).audits >= 3);
    let watch = node.watch(Resource::Services);
    assert_eq!((watch.differences, watch.lists), (0, 1), "{}", node.log());
    assert_eq!(watch.objects, 2 + headless);
    let requests = node.server().requests();
    let of = |verb| requests.iter().filter(move |it| (it.verb, it.kind) == (verb, Kind::Services));
    let has_fields = |it: &&holdfast_tests::fake::Request| it.target.contains("fieldSelector");
    assert_eq!(of(Verb::List).filter(has_fields).count(), asked);
    let (watches, audits) =
        (of(Verb::Watch).all(|it| has_fields(&it)), of(Verb::Audit).all(|it| has_fields(&it)));
    assert_eq!((watches, audits), (headless == 0, headless == 0), "all ask alike");
    node.check();
}

#[test]
fn one_bad_request_changes_no_selector() {
    check_audits(1, 0, 2);
}

#[test]
fn an_unknown_field_selector_is_left_out_everywhere() {
    check_audits(2, 1, 2);
}

crate::node::in_json_too! {
    a_change_is_served_at_once,
    a_reset_watch_resumes_from_its_version,
    a_watch_at_its_timeout_resumes_silently,
    an_apiserver_is_used_again_after_an_outage,
    a_compacted_version_relists_at_once,
    a_status_410_on_a_watch_relists,
    watches_that_end_at_once_are_retried_with_backoff,
    a_watch_resumes_after_an_error_event,
    a_refused_watch_resumes_from_its_version,
    a_proxys_html_page_is_no_watch,
    an_unanswered_closed_watch_resumes_from_its_version,
    the_guard_sees_a_service_without_backends,
    a_repeated_event_is_applied_once,
    a_silent_watch_is_noticed,
    decreased_versions_are_noticed_at_the_first_silence,
    a_lost_event_is_found_by_the_audit,
    half_a_line_is_no_event,
    a_watch_resumes_after_a_malformed_line,
    a_watch_resumes_after_a_line_without_an_object,
    an_endless_line_is_cut_off,
    a_watch_resumes_after_invalid_utf8,
    a_restart_resumes_watches_without_a_list,
    a_restart_after_a_compaction_lists,
    one_bad_request_changes_no_selector,
    an_unknown_field_selector_is_left_out_everywhere,
}
