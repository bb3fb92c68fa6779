//! Runs lists and watches against a scripted apiserver over real TLS.

mod bed;
mod costs;
mod imports;
mod names;
mod questions;
mod refusals;

use std::time::{Duration, Instant};

use bed::{SourceHarness, bookmark, error, event, list, page, service, slice, status};
use holdfast_core::keys::ObjectName;

use super::{
    AuditMode, Resource, ResumeState, SavedObjects, SourceSettings, State, Timing, UntabledByKind,
    UntabledObjects, Version,
};
use holdfast_config::NodeName;
use holdfast_fixtures::TEST_TIMEOUT;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[tokio::test]
async fn lists_come_first_and_watches_continue_from_them() {
    let mut bed = SourceHarness::new();
    bed.lists("services", [list("10", &[service("a", "3", "10.96.0.1")])]);
    bed.lists("endpointslices", [list("11", &[slice("a-1", "4", "10.0.0.1")])]);
    bed.watches("services", [bed::hang(&[event("MODIFIED", &service("a", "12", "10.96.0.2"))])]);
    bed.watches("endpointslices", [bed::hang(&[event("DELETED", &slice("a-1", "13", "10.0.0.1"))])]);
    bed.start(SourceSettings::default()).await;
    let mut told = bed.heard(5).await;
    let synced = told.iter().position(|it| it == "synced").unwrap();
    assert!(["+a@3", "+a-1@4"].iter().all(|first| told[..synced].contains(&(*first).to_owned())), "{told:?}");
    told.sort();
    assert_eq!(told, ["+a-1@4", "+a@12", "+a@3", "-a-1@13", "synced"]);
    let mut progress = bed.progress().to_vec();
    progress.sort();
    assert_eq!(progress, ["10", "11", "12", "13"], "each group ends with the version that it leads to");
    assert_eq!(bed.asked("services", "resourceVersion"), ["10"]);
    assert_eq!(bed.asked("endpointslices", "resourceVersion"), ["11"]);
    assert_eq!(bed.asked("services", "fieldSelector"), ["spec.clusterIP%21%3DNone"; 2]);
    bed.until(|watch| watch.what == Resource::Services && watch.events == 1).await;
    let services = bed.watch(Resource::Services);
    assert_eq!((services.state, services.resource_version.as_deref()), (State::Watching, Some("12")));
    assert_eq!((services.objects, services.lists, services.restarts, services.bad), (1, 1, 0, 0));
}

#[tokio::test]
async fn pages_are_one_list() {
    let mut bed = SourceHarness::new();
    let first = page("10", "t1", &[service("a", "1", "10.96.0.1")]);
    bed.lists("services", [first, page("10", "", &[service("b", "2", "10.96.0.2")])]);
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(3).await, ["+a@1", "+b@2", "synced"]);
    assert_eq!(bed.asked("services", "continue"), ["t1"]);
    bed.requests("services", 3).await;
    bed.requests("endpointslices", 2).await;
    assert_eq!(bed.connections(), 4, "both pages came over one of them");
}

#[tokio::test]
async fn an_expired_token_leads_to_an_unpaged_list() {
    let mut bed = SourceHarness::new();
    let first = page("10", "t1", &[service("a", "1", "10.96.0.1"), service("gone", "1", "10.96.0.9")]);
    let second = list("20", &[service("a", "1", "10.96.0.1"), service("b", "2", "10.96.0.2")]);
    bed.lists("services", [first, status("410 Gone", "", "Expired"), second]);
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(3).await, ["+a@1", "+b@2", "synced"]);
    bed.requests("services", 4).await;
    assert_eq!(bed.asked("services", "limit"), ["500", "500"]);
    assert_eq!(bed.asked("services", "resourceVersion"), ["20"]);
}

#[tokio::test]
async fn a_bad_object_rejects_itself_only() {
    let mut bed = SourceHarness::new();
    let bad = service("bad", "5", "10.96.0.3").replace("\"ports\":[", "\"ports\":[7,");
    bed.lists("services", [list("10", &[service("a", "3", "10.96.0.1"), bad.clone()])]);
    let broken = event("MODIFIED", &service("a", "11", "10.96.0.1")).replace("\"spec\":{", "\"spec\":{oops");
    bed.watches("services", [bed::hang(&[broken, event("ADDED", &service("c", "12", "10.96.0.4"))])]);
    bed.start(SourceSettings::default()).await;
    let told = bed.heard(5).await;
    assert_eq!(told[..2], ["+a@3", "!Service default/bad"]);
    assert!(
        told.contains(&"!Service default/a".to_owned()) && told.contains(&"+c@12".to_owned()),
        "{told:?}"
    );
    bed.until(|watch| watch.bad == 2).await;
    assert_eq!(bed.watch(Resource::Services).resource_version.as_deref(), Some("12"));
}

#[tokio::test]
async fn an_unreadable_deletion_deletes_the_object_that_it_names() {
    let mut bed = SourceHarness::new();
    let [a, b] = ["a", "b"].map(|name| service(name, "3", "10.96.0.1"));
    bed.lists("services", [list("10", &[a, b])]);
    let torn = event("DELETED", &service("a", "11", "10.96.0.1")).replace("\"spec\":{", "\"spec\":{oops");
    bed.watches("services", [bed::hang(&[torn])]);
    bed.start(SourceSettings::default()).await;
    let mut told = bed.heard(4).await;
    told.sort();
    assert_eq!(told, ["+a@3", "+b@3", "-a@", "synced"]);
    bed.until(|watch| watch.what == Resource::Services && watch.objects == 1).await;
    assert_eq!(bed.watch(Resource::Services).resource_version.as_deref(), Some("11"));
}

/// These events do not tell which object was deleted, if any.
#[tokio::test]
async fn an_ambiguous_event_leads_to_a_list() {
    let deleted = |name| event("DELETED", &service(name, "11", "10.96.0.1"));
    let nobody = r#"{"type":"DELETED","object":{"metadata":{}}}"#.to_owned();
    let torn = [
        nobody,
        deleted("a").replace("\"name\":\"a\"", "\"name\":\"b\"").replace("\"spec\":{", "\"spec\":{oops"),
        deleted("a").replace("DELETED", "DE\"LETED"),
        deleted("a").replace("\"metadata\":{", "\"metadata\":{oops"),
    ];
    for line in torn {
        let mut bed = SourceHarness::new();
        let [a, b] = ["a", "b"].map(|name| service(name, "3", "10.96.0.1"));
        bed.lists("services", [list("10", &[a, b.clone()]), list("20", &[b])]);
        bed.watches(
            "services",
            [bed::hang(std::slice::from_ref(&line)), bed::hang(std::slice::from_ref(&line))],
        );
        bed.start(SourceSettings::default()).await;
        let mut told = bed.heard(4).await;
        told.sort();
        assert_eq!(told, ["+a@3", "+b@3", "-a@", "synced"], "{line}");
    }
}

#[tokio::test]
async fn a_watch_that_ends_resumes_at_its_version() {
    let mut bed = SourceHarness::new();
    bed.lists("services", [list("10", &[])]);
    let first = bed::ends(&[event("ADDED", &service("a", "11", "10.96.0.1")), bookmark("15")]);
    let again = event("ADDED", &service("a", "11", "10.96.0.1"));
    let torn = bed::tears(&[again, event("ADDED", &service("b", "16", "10.96.0.2"))], "{\"type\":\"ADD");
    bed.watches("services", [first, torn]);
    bed.start(SourceSettings::default()).await;
    let mut told = bed.heard(3).await;
    told.sort();
    assert_eq!(told, ["+a@11", "+b@16", "synced"], "a duplicate is told once");
    bed.requests("services", 4).await;
    assert_eq!(bed.asked("services", "resourceVersion"), ["10", "15", "16"]);
    assert_eq!(bed.watch(Resource::Services).lists, 1);
}

/// A hold waits for endpoint changes, which watches of other kinds do not bring.
#[tokio::test]
async fn the_source_is_watching_only_while_a_slice_watch_runs() {
    let cases = [
        ("endpointslices", slice("a-1", "11", "10.0.0.1"), &[true, false, true][..]),
        ("services", service("a", "11", "10.96.0.1"), &[true]),
    ];
    for (broken, object, expected) in cases {
        let mut bed = SourceHarness::new();
        let refused = status("503 Service Unavailable", "", "ServiceUnavailable");
        bed.watches(broken, [refused, bed::hang(&[event("ADDED", &object)])]);
        bed.start(SourceSettings::default()).await;
        bed.heard(2).await;
        assert_eq!(bed.hearings(), expected, "{broken}");
    }
}

#[tokio::test]
async fn an_expired_version_leads_to_a_list_that_delivers_differences() {
    for gone in [bed::hang(&[error(410, "Expired")]), status("410 Gone", "", "Expired")] {
        let mut bed = SourceHarness::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| service(name, "1", "10.96.0.1"));
        bed.lists("services", [list("10", &[a.clone(), b]), list("30", &[a, c])]);
        bed.watches("services", [gone]);
        bed.start(SourceSettings::default()).await;
        let mut told = bed.heard(5).await;
        told.retain(|it| it != "synced");
        assert_eq!(told, ["+a@1", "+b@1", "+c@1", "-b@"]);
        assert!(bed.interruptions() >= 3, "each list, and the watch that ended");
        bed.requests("services", 4).await;
        assert_eq!(bed.asked("services", "resourceVersion"), ["10", "30"]);
    }
}

#[tokio::test]
async fn objects_left_out_are_redelivered_once_there_is_space_without_a_loop() {
    let mut bed = SourceHarness::new();
    let [a, b] = ["a", "b"].map(|name| service(name, "1", "10.96.0.1"));
    bed.lists("services", [list("10", &[a.clone(), b.clone()]), list("20", &[a, b])]);
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(3).await, ["+a@1", "+b@1", "synced"]);
    (1..=9).for_each(|times| bed.ask(times));
    assert_eq!(bed.heard(2).await, ["+a@1", "+b@1"], "all of it, though it has not changed");
    bed.requests("services", 4).await;
    bed.until(|watch| watch.what == Resource::Services && watch.state == State::Watching).await;
    (10..=19).for_each(|times| bed.ask(times));
    tokio::time::sleep(ms(300)).await;
    assert_eq!(bed.watch(Resource::Services).lists, 2, "at most one in a minute");
}

#[tokio::test]
async fn silence_twice_from_one_version_leads_to_a_list() {
    let mut bed = SourceHarness::new();
    bed.lists("services", [list("9", &[]), list("10", &[])]);
    let timing = Timing { watch_idle: ms(150), ..bed.timing() };
    bed.start(SourceSettings { timing, ..SourceSettings::default() }).await;
    bed.requests("services", 5).await;
    assert_eq!(bed.asked("services", "resourceVersion")[..3], ["9", "9", "10"]);
    let error = bed.watch(Resource::Services).last_error.unwrap();
    assert!(error.text.starts_with("nothing came for"), "{}", error.text);
}

/// etcd was restored from a backup: a watch from an earlier version is silent, and old versions do not identify the
/// present objects, even if they match.
#[tokio::test]
async fn versions_that_went_back_are_found_at_the_first_silence() {
    let mut bed = SourceHarness::new();
    let restored = list("60", &[service("a", "50", "10.96.0.9")]);
    bed.lists("services", [list("99", &[service("a", "50", "10.96.0.1"), service("b", "70", "10.96.0.2")])]);
    bed.lists_after("services", restored);
    bed.watches("services", [bed::ends(&[])]);
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(3).await, ["+a@50", "+b@70", "synced"]);
    let mut told = bed.heard(2).await;
    told.sort();
    assert_eq!(told, ["+a@50", "-b@"]);
    let error = bed.watch(Resource::Services).last_error.unwrap();
    assert!(error.text.contains("went back from version 99 to 60"), "{}", error.text);
}

#[tokio::test]
async fn a_server_that_ends_watches_at_once_gets_a_bounded_rate() {
    let mut bed = SourceHarness::new();
    bed.watches("services", vec![bed::ends(&[]); 100]);
    bed.start(SourceSettings::default()).await;
    let (begun, requests) =
        (Instant::now(), |bed: &SourceHarness| bed.asked("services", "resourceVersion").len());
    tokio::time::sleep(ms(1_500)).await;
    while requests(&bed) < 3 {
        assert!(begun.elapsed() < TEST_TIMEOUT, "{} requests", requests(&bed));
        tokio::time::sleep(ms(100)).await;
    }
    let (requests, took) = (requests(&bed), begun.elapsed());
    assert!(requests as f64 <= 7.0 * took.as_secs_f64() / 1.5, "{requests} requests in {took:?}");
}

#[tokio::test]
async fn a_throttling_server_is_left_alone() {
    let mut bed = SourceHarness::new();
    bed.lists("services", [status("429 Too Many Requests", "retry-after: 1\r\n", "TooManyRequests")]);
    let begun = Instant::now();
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(1).await, ["synced"]);
    assert!(begun.elapsed() >= ms(1_000), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn an_older_server_gets_no_unsupported_field_selector() {
    let mut bed = SourceHarness::new();
    bed.lists(
        "services",
        [
            status("400 Bad Request", "", "BadRequest"),
            status("400 Bad Request", "", "BadRequest"),
            list("10", &[service("a", "1", "10.96.0.1")]),
        ],
    );
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(2).await, ["+a@1", "synced"]);
    bed.requests("services", 4).await;
    assert_eq!(bed.asked("services", "fieldSelector").len(), 2);
}

#[tokio::test]
async fn a_resumed_start_needs_no_list() {
    let mut bed = SourceHarness::new();
    let known = |name: &str| {
        let version = Version { uid: name.into(), resource_version: "3".into() };
        (ObjectName::new("default", name).unwrap(), version)
    };
    let remembered = |objects| {
        Some(SavedObjects { resource_version: "77".into(), objects, untabled: UntabledObjects::default() })
    };
    let start = ResumeState {
        services: remembered(vec![known("a"), known("b")]),
        slices: remembered(vec![]),
        ..ResumeState::default()
    };
    let old = event("ADDED", &service("a", "3", "10.96.0.1"));
    bed.watches("services", [bed::hang(&[old, event("DELETED", &service("b", "78", "10.96.0.2"))])]);
    bed.start(SourceSettings { start, ..SourceSettings::default() }).await;
    assert_eq!(bed.heard(3).await, ["resumed", "-b@78", "synced"]);
    assert_eq!(bed.asked("services", "resourceVersion"), ["77"]);
    assert_eq!((bed.asked("services", "limit").len(), bed.asked("endpointslices", "limit").len()), (0, 0));
}

/// Untabled objects: a bad service, a slice with a bad endpoint, a slice without a service. Returns them with the
/// services and the slices.
async fn odd_ones() -> (UntabledByKind, [String; 2], [String; 2]) {
    let bad = service("bad", "5", "10.96.0.3").replace("\"ports\":[", "\"ports\":[7,");
    let partly = slice("partly", "6", "10.0.0.1").replace("\"endpoints\":[", "\"endpoints\":[{},");
    let loose = slice("loose", "7", "10.0.0.2").replace("kubernetes.io/service-name", "app");
    let (services, slices) = ([service("a", "3", "10.96.0.1"), bad], [partly, loose]);
    let mut bed = SourceHarness::new();
    bed.lists("services", [list("10", &services)]);
    bed.lists("endpointslices", [list("10", &slices)]);
    bed.start(SourceSettings::default()).await;
    bed.heard(6).await;
    (bed.oddities(), services, slices)
}

#[tokio::test]
async fn untabled_objects_are_saved_for_a_restart() {
    let (oddities, ..) = odd_ones().await;
    let show = |odds: &UntabledObjects| {
        let words = odds.iter().map(|(name, odd)| {
            let reason =
                odd.rejection.as_ref().map_or("", |it| if it.partial { " in part" } else { " at all" });
            format!("{name}@{}{reason}", odd.version.resource_version)
        });
        words.collect::<Vec<_>>()
    };
    assert_eq!(show(&oddities.services), ["default/bad@5 at all"]);
    assert_eq!(show(&oddities.slices), ["default/loose@7", "default/partly@6 in part"]);
}

#[tokio::test]
async fn a_resumed_start_repeats_rejections_and_its_audit_finds_nothing() {
    let (oddities, services, slices) = odd_ones().await;
    let known = |name: &str, version: &str| {
        let version = Version { uid: name.into(), resource_version: version.into() };
        (ObjectName::new("default", name).unwrap(), version)
    };
    let remembered = |objects, odds: &UntabledObjects| {
        Some(SavedObjects { resource_version: "77".into(), objects, untabled: odds.clone() })
    };
    let start = ResumeState {
        services: remembered(vec![known("a", "3"), known("bad", "4")], &oddities.services),
        slices: remembered(vec![known("partly", "6")], &oddities.slices),
        ..ResumeState::default()
    };
    let mut bed = SourceHarness::new();
    bed.lists_after("services", list("90", &services));
    bed.lists_after("endpointslices", list("90", &slices));
    let timing = Timing { audit_interval: ms(100), audit_confirm_delay: ms(20), ..bed.timing() };
    bed.start(SourceSettings { start, timing, ..SourceSettings::default() }).await;
    let told = bed.heard(4).await;
    assert_eq!(told, ["resumed", "!Service default/bad", "!EndpointSlice default/partly", "synced"]);
    for what in [Resource::Services, Resource::Slices] {
        bed.until(|watch| watch.what == what && watch.audits > 1).await;
        let watch = bed.watch(what);
        assert_eq!((watch.differences, watch.lists, watch.objects), (0, 0, 2), "{what}");
    }
    assert_eq!((bed.watch(Resource::Services).bad, bed.watch(Resource::Slices).bad), (1, 0));
    assert_eq!(bed.oddities(), oddities, "and the next restart knows it too");
}

#[tokio::test]
async fn a_resumed_start_with_an_expired_version_delivers_differences() {
    let mut bed = SourceHarness::new();
    let known = |name: &str| {
        let version = Version { uid: name.into(), resource_version: "3".into() };
        (ObjectName::new("default", name).unwrap(), version)
    };
    let remembered = |objects| {
        Some(SavedObjects { resource_version: "77".into(), objects, untabled: UntabledObjects::default() })
    };
    bed.watches("services", [bed::hang(&[error(410, "Expired")])]);
    bed.lists("services", [list("90", &[service("a", "3", "10.96.0.1"), service("c", "80", "10.96.0.3")])]);
    let start = ResumeState {
        services: remembered(vec![known("a"), known("b")]),
        slices: remembered(vec![]),
        ..ResumeState::default()
    };
    bed.start(SourceSettings { start, ..SourceSettings::default() }).await;
    let told = bed.heard(4).await;
    assert_eq!((told[0].as_str(), told.contains(&"+a@3".to_owned())), ("resumed", false));
    assert!(["+c@80", "-b@", "synced"].iter().all(|it| told.contains(&(*it).to_owned())), "{told:?}");
}

#[tokio::test]
async fn the_zone_is_known_before_the_source_is_synced() {
    let mut bed = SourceHarness::new();
    let node = r#"{"metadata":{"name":"n1","uid":"n","resourceVersion":"4","labels":{"topology.kubernetes.io/zone":"z1"}}}"#;
    bed.lists("nodes", [list("10", &[node.to_owned()])]);
    bed.start(SourceSettings { node: NodeName::from_host_name("n1").ok(), ..SourceSettings::default() })
        .await;
    assert_eq!(bed.heard(2).await, ["zone z1", "synced"]);
    assert_eq!(bed.asked("nodes", "fieldSelector"), ["metadata.name%3Dn1"]);
}

#[tokio::test]
async fn a_forbidden_node_delays_nothing() {
    for answer in [status("403 Forbidden", "", "Forbidden"), list("10", &[])] {
        let mut bed = SourceHarness::new();
        bed.lists("nodes", [answer]);
        bed.start(SourceSettings { node: NodeName::from_host_name("n1").ok(), ..SourceSettings::default() })
            .await;
        assert_eq!(bed.heard(1).await, ["synced"]);
    }
}

#[tokio::test]
async fn an_audit_finds_a_change_that_the_watch_missed() {
    let mut bed = SourceHarness::new();
    let [old, new] = ["1", "12"].map(|version| service("a", version, "10.96.0.1"));
    // The event of version 12 is lost; the bookmark claims that everything up to 15 was sent.
    bed.lists("services", [list("10", std::slice::from_ref(&old))]);
    bed.lists_after("services", list("20", &[new]));
    bed.watches("services", [bed::hang(&[bookmark("15")])]);
    let timing = Timing { audit_interval: ms(100), audit_confirm_delay: ms(50), ..bed.timing() };
    bed.start(SourceSettings { timing, ..SourceSettings::default() }).await;
    assert_eq!(bed.heard(3).await, ["+a@1", "synced", "+a@12"]);
    bed.until(|watch| watch.lists == 2).await;
    let services = bed.watch(Resource::Services);
    assert_eq!(services.differences, 1);
    assert_eq!(
        services.last_error.unwrap().text.to_string(),
        "the watch missed changes: 1 of services differ: default/a"
    );
}

#[tokio::test]
async fn a_watch_after_a_long_absence_is_audited_at_once() {
    let mut bed = SourceHarness::new();
    let [old, new] = ["1", "12"].map(|version| service("a", version, "10.96.0.1"));
    bed.lists("services", [list("10", std::slice::from_ref(&old))]);
    bed.lists_after("services", list("20", &[new]));
    let timing =
        Timing { long_absence: ms(0), audit_confirm_delay: ms(20), list_spread: ms(1), ..bed.timing() };
    bed.start(SourceSettings { timing, ..SourceSettings::default() }).await;
    assert_eq!(bed.heard(3).await, ["+a@1", "synced", "+a@12"]);
    assert_eq!(bed.watch(Resource::Services).differences, 1);
}

/// The store was restored while no daemon ran, and has passed the last known version.
#[tokio::test]
async fn a_start_from_old_state_is_audited_at_once() {
    let version = Version { uid: "a".into(), resource_version: "3".into() };
    let known = (ObjectName::new("default", "a").unwrap(), version);
    for (age, is_compared) in [(ms(40_000), true), (ms(100), false)] {
        let mut bed = SourceHarness::new();
        let remembered = |objects| {
            Some(SavedObjects {
                resource_version: "77".into(),
                objects,
                untabled: UntabledObjects::default(),
            })
        };
        let start = ResumeState {
            services: remembered(vec![known.clone()]),
            slices: remembered(vec![]),
            age,
            ..ResumeState::default()
        };
        bed.lists_after("services", list("90", &[service("a", "60", "10.96.0.1")]));
        let timing = Timing {
            long_absence: ms(30_000),
            audit_confirm_delay: ms(20),
            list_spread: ms(1),
            ..bed.timing()
        };
        bed.start(SourceSettings { start, timing, ..SourceSettings::default() }).await;
        assert_eq!(bed.heard(2).await, ["resumed", "synced"]);
        if is_compared {
            assert_eq!(bed.heard(1).await, ["+a@60"]);
            assert_eq!(bed.watch(Resource::Services).differences, 1);
        } else {
            tokio::time::sleep(ms(300)).await;
            assert_eq!(bed.watch(Resource::Services).audits, 0);
        }
    }
}

#[tokio::test]
async fn an_audit_before_the_first_list_blames_no_watch() {
    let mut bed = SourceHarness::new();
    // The list waits for the server's Retry-After, so audits run first.
    bed.lists("services", [status("429 Too Many Requests", "retry-after: 1\r\n", "TooManyRequests")]);
    bed.lists_after("services", list("20", &[service("a", "12", "10.96.0.1")]));
    let timing = Timing { audit_interval: ms(100), audit_confirm_delay: ms(10), ..bed.timing() };
    bed.start(SourceSettings { timing, ..SourceSettings::default() }).await;
    assert_eq!(bed.heard(2).await, ["+a@12", "synced"]);
    let compared = bed.watch(Resource::Services).audits;
    assert!(compared > 0, "it was compared before");
    bed.until(|watch| watch.what == Resource::Services && watch.audits > compared + 1).await;
    let services = bed.watch(Resource::Services);
    assert_eq!((services.lists, services.differences), (1, 0));
}

/// A headless slice is ignored, unless it was for proxies before: then it is delivered, to show that the change is
/// intended.
#[tokio::test]
async fn headless_slices_are_delivered_only_if_known_before() {
    let headless = |name: &str, version: &str| {
        slice(name, version, "10.0.0.1")
            .replace("\"labels\":{", "\"labels\":{\"service.kubernetes.io/headless\":\"\",")
    };
    let mut bed = SourceHarness::new();
    bed.lists("endpointslices", [list("10", &[slice("ours", "3", "10.0.0.1"), headless("never", "4")])]);
    bed.lists_after("endpointslices", list("15", &[headless("ours", "12"), headless("never", "13")]));
    let events = [("MODIFIED", "ours", "12"), ("MODIFIED", "never", "13"), ("ADDED", "another", "14")];
    let events = events.map(|(kind, name, version)| event(kind, &headless(name, version)));
    bed.watches("endpointslices", [bed::hang(&events)]);
    // Audits come later than the watch, even on a busy machine.
    let timing = Timing { audit_interval: ms(2_000), audit_confirm_delay: ms(20), ..bed.timing() };
    bed.start(SourceSettings { timing, ..SourceSettings::default() }).await;
    assert_eq!(bed.heard(3).await, ["+ours@3", "synced", "+ours@12"]);
    bed.until(|watch| watch.what == Resource::Slices && watch.audits > 1).await;
    let slices = bed.watch(Resource::Slices);
    assert_eq!((slices.objects, slices.lists, slices.differences, slices.bad), (1, 1, 0, 0));
}

/// A harness whose watch misses an event, without hourly audits.
async fn missing_one() -> SourceHarness {
    let mut bed = SourceHarness::new();
    let [old, new] = ["1", "12"].map(|version| service("a", version, "10.96.0.1"));
    bed.lists("services", [list("10", std::slice::from_ref(&old))]);
    bed.lists_after("services", list("20", &[new]));
    bed.watches("services", [bed::hang(&[bookmark("15")])]);
    let timing = Timing { audit_confirm_delay: ms(20), ..bed.timing() };
    bed.start(SourceSettings { timing, ..SourceSettings::default() }).await;
    assert_eq!(bed.heard(2).await, ["+a@1", "synced"]);
    bed.until(|watch| watch.what == Resource::Services && watch.state == State::Watching).await;
    bed
}

#[tokio::test]
async fn requests_within_ten_seconds_share_one_audit() {
    let bed = missing_one().await;
    let before = bed.lists_of("services");
    let view = bed.view();
    let together = futures_util::future::join_all((0..20).map(|_| view.audit(AuditMode::ReadOnly))).await;
    let later = view.audit(AuditMode::ReadOnly).await;
    assert_eq!(bed.lists_of("services") - before, 2, "one comparison: a look, and another at what differs");
    for answer in together.iter().chain([&later]) {
        let (what, compared) = &answer[0];
        let lines = compared.result.as_ref().unwrap();
        assert_eq!((*what, lines.len()), (Resource::Services, 1), "{lines:?}");
        assert_eq!(compared.at, later[0].1.at, "one and the same");
        assert!(compared.at.is_some() && compared.age <= later[0].1.age);
    }
}

#[tokio::test]
async fn only_a_repair_request_causes_a_list_and_it_reuses_the_audit() {
    let mut bed = missing_one().await;
    bed.view().audit(AuditMode::ReadOnly).await;
    let compared = bed.lists_of("services");
    tokio::time::sleep(ms(300)).await;
    let services = bed.watch(Resource::Services);
    assert_eq!((services.lists, services.audits, services.differences), (1, 1, 1), "nothing is listed again");
    assert_eq!(bed.lists_of("services"), compared);
    bed.view().audit(AuditMode::Repair).await;
    assert_eq!(bed.heard(1).await, ["+a@12"]);
    assert_eq!(bed.lists_of("services") - compared, 1, "the list that mends it, and no comparison");
    bed.view().audit(AuditMode::Repair).await;
    tokio::time::sleep(ms(300)).await;
    assert_eq!(bed.lists_of("services") - compared, 1, "what was mended is not mended twice");
}

#[tokio::test]
async fn constant_requests_do_not_delay_the_hourly_audit() {
    let mut bed = SourceHarness::new();
    let [old, new] = ["1", "12"].map(|version| service("a", version, "10.96.0.1"));
    bed.lists("services", [list("10", std::slice::from_ref(&old))]);
    bed.lists_after("services", list("20", &[new]));
    bed.watches("services", [bed::hang(&[bookmark("15")])]);
    let timing = Timing {
        audit_confirm_delay: ms(5),
        audit_interval_min: ms(20),
        audit_interval: ms(400),
        ..bed.timing()
    };
    bed.start(SourceSettings { timing, ..SourceSettings::default() }).await;
    assert_eq!(bed.heard(2).await, ["+a@1", "synced"]);
    let view = bed.view().clone();
    let asking = tokio::spawn(async move {
        loop {
            view.audit(AuditMode::ReadOnly).await;
            tokio::time::sleep(ms(10)).await;
        }
    });
    assert_eq!(bed.heard(1).await, ["+a@12"]);
    asking.abort();
}

#[tokio::test]
async fn requests_do_not_repeat_a_failed_audit() {
    let mut bed = SourceHarness::new();
    bed.lists("services", [list("10", &[]), status("500 Internal Server Error", "", "InternalError")]);
    let timing = Timing { audit_interval_min: ms(400), ..bed.timing() };
    bed.start(SourceSettings { timing, ..SourceSettings::default() }).await;
    assert_eq!(bed.heard(1).await, ["synced"]);
    let before = bed.lists_of("services");
    for _ in 0..3 {
        let answer = bed.view().audit(AuditMode::Repair).await;
        assert!(answer[0].1.result.is_err(), "{answer:?}");
    }
    assert_eq!(bed.lists_of("services") - before, 1);
    tokio::time::sleep(ms(500)).await;
    assert!(bed.view().audit(AuditMode::ReadOnly).await[0].1.result.is_ok(), "and is made again in its time");
}

#[tokio::test]
async fn a_body_that_is_no_list_deletes_nothing() {
    let mut bed = SourceHarness::new();
    let html = bed::answer("200 OK", "", "<html>maintenance</html>");
    let other = r#"{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"20"},"items":[]}"#;
    let vendors = r#"{"kind":"ServiceList","apiVersion":"serving.example/v1","metadata":{"resourceVersion":"20"},"items":[]}"#;
    let [other, vendors] = [other, vendors].map(|body| bed::answer("200 OK", "", body));
    bed.lists(
        "services",
        [list("10", &[service("a", "1", "10.96.0.1")]), html.clone(), html, other, vendors],
    );
    bed.lists_after("services", list("30", &[service("a", "2", "10.96.0.1")]));
    bed.watches("services", [bed::hang(&[error(410, "Expired")])]);
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(3).await, ["+a@1", "synced", "+a@2"]);
}
