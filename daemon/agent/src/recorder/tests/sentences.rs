//! The sentences of records.

use expect_test::{Expect, expect};
use futures_util::FutureExt as _;
use holdfast_core::drains::{Drain, DrainOrder, Drains};
use holdfast_status::record::Kind;

use super::*;

#[track_caller]
fn check(wanted: &RecordQuery, expected: &Expect) {
    let history = recorded(incident(), None);
    let lines = history.select(wanted);
    let sentence = |line: &Arc<Line>| line.record().unwrap().sentence() + "\n";
    expected.assert_eq(&lines.iter().map(sentence).collect::<String>());
}

#[test]
fn a_sentence_names_object_version_writer_and_what_clients_get() {
    check(
        &RecordQuery { service: Some(name("kubernetes")), ..RecordQuery::default() },
        &expect![[r#"
            2026-01-08T11:11:57.000Z #1 default/kubernetes: 10.96.0.1:443/TCP is new: serving, +169.254.128.7:6443; because Service default/kubernetes applied, new, version 1, written by kube-apiserver (Update) at 2026-01-08T11:11:55Z, from https://10.0.0.10:6443, then EndpointSlice default/kubernetes-1 applied, endpoints +169.254.128.7, new, version 2, written by kube-apiserver (Update) at 2026-01-08T11:11:55Z, from https://10.0.0.10:6443
            2026-01-08T11:11:58.000Z #3 default/kubernetes: 10.96.0.1:443/TCP serving -> held (control); because EndpointSlice default/kubernetes-1 applied with `endpoints: null`, endpoints -169.254.128.7, version 71, written by kube-apiserver (Update) at 2026-01-08T11:11:55Z, from https://10.0.0.10:6443
            2026-01-08T11:12:00.000Z #4 default/kubernetes: 10.96.0.1:443/TCP held (control) -> serving, +169.254.128.8:6443, 1 kept; because EndpointSlice default/kubernetes-1 applied, endpoints +169.254.128.7 +169.254.128.8, version 73, written by kube-apiserver (Update) at 2026-01-08T11:11:55Z, from https://10.0.0.10:6443
        "#]],
    );
}

#[test]
fn each_service_has_its_own_record() {
    check(
        &RecordQuery { service: Some(name("kubernetes-intranet")), ..RecordQuery::default() },
        &expect![[r#"
            2026-01-08T11:11:57.000Z #2 default/kubernetes-intranet: 10.96.0.2:443/TCP is new: serving, +169.254.128.7:6443; because Service default/kubernetes-intranet applied, new, version 3, written by kubectl-create (Update) at 2026-01-08T11:11:55Z, from https://10.0.0.10:6443, then EndpointSlice default/kubernetes-intranet-1 applied, endpoints +169.254.128.7, new, version 4, written by kubectl-create (Update) at 2026-01-08T11:11:55Z, from https://10.0.0.10:6443
            2026-01-08T11:12:01.000Z #5 default/kubernetes-intranet: 10.96.0.2:443/TCP is gone, was serving, -169.254.128.7:6443; because Service default/kubernetes-intranet deleted, version 74, written by kubectl-create (Update) at 2026-01-08T11:11:55Z, from https://10.0.0.10:6443
        "#]],
    );
}

/// With the user and the time, even if nothing changes for clients.
#[test]
fn an_order_to_drain_has_its_record_in_each_service_that_it_changes() {
    let mut rig = Rig::new();
    rig.batch([
        service("web", "10.96.0.1", meta("1", "kubectl")),
        slice("web", &["10.1.1.1", "10.1.1.2"], false, meta("2", "kcm")),
        service("web-2", "10.96.0.2", meta("3", "kubectl")),
        slice("web-2", &["10.1.1.1"], false, meta("4", "kcm")),
    ]);
    let at = Timestamp(1_767_870_715);
    let by = DrainOrder { uid: 0, user: Some("root".into()), at };
    let mut drains = Drains::default();
    drains.add(Drain::new("10.1.1.1".parse().unwrap(), None, None), by.clone()).unwrap();
    let mut told = rig.batch([Event::DrainsApplied(Arc::new(drains), by)]);
    let by = DrainOrder { uid: 1000, user: None, at };
    told.extend(rig.batch([Event::DrainsApplied(Arc::default(), by)]));
    let lines: String = all(&recorded(told, None)).iter().map(|record| record.sentence() + "\n").collect();
    expect![[r#"
        2026-01-08T11:11:58.000Z #1 default/web: 10.96.0.1:443/TCP serving, -10.1.1.1:6443, 1 kept; because 10.1.1.1 was drained by root (uid 0) at 2026-01-08T11:11:55Z
        2026-01-08T11:11:58.000Z #2 default/web-2: nothing changed for clients; because 10.1.1.1 was drained by root (uid 0) at 2026-01-08T11:11:55Z
        2026-01-08T11:11:59.000Z #3 default/web: 10.96.0.1:443/TCP serving, +10.1.1.1:6443, 1 kept; because 10.1.1.1 is no longer drained, as ordered by uid 1000 at 2026-01-08T11:11:55Z
        2026-01-08T11:11:59.000Z #4 default/web-2: nothing changed for clients; because 10.1.1.1 is no longer drained, as ordered by uid 1000 at 2026-01-08T11:11:55Z
    "#]]
    .assert_eq(&lines);
}

/// The same facts from a folder of manifests.
fn of_manifests(event: Event) -> Event {
    let source = Source::Manifests;
    match event {
        Event::ServiceApplied(facts) => {
            let key = ServiceKey { source, ..facts.key.clone() };
            Event::ServiceApplied(Arc::new(ServiceFacts { key, ..(*facts).clone() }))
        }
        Event::SliceApplied(facts) => {
            let key = SliceKey { source, ..facts.key.clone() };
            Event::SliceApplied(Arc::new(SliceFacts { key, ..(*facts).clone() }))
        }
        other => other,
    }
}

/// The page learns from records, so one that leaves the health out would let it show another one than `status`.
#[test]
fn a_record_has_the_health_that_its_verdict_does_not_tell_and_an_empty_slice_changes_it() {
    let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
    engine.apply(Event::Synced(Source::Manifests));
    engine.limit_pieces(u64::MAX);
    let mut rig = Rig { engine, steps: 0 };
    rig.batch([]);
    let mut told = rig.batch([of_manifests(service("web", "10.96.0.1", meta("1", "kubectl")))]);
    told.extend(rig.batch([of_manifests(slice("web", &[], false, meta("2", "kubectl")))]));
    let history = recorded(told, None);
    let healths: Vec<_> = all(&history)
        .iter()
        .flat_map(|record| record.transitions.clone())
        .map(|it| it.after.unwrap().health.as_deref().map(str::to_owned))
        .collect();
    assert_eq!(healths, [Some("outage".to_owned()), None]);
}

#[test]
fn records_are_found_by_time_reason_and_number() {
    let history = recorded(incident(), None);
    let found = |wanted: RecordQuery| -> Vec<u64> {
        history.select(&wanted).iter().filter_map(|line| line.seq).collect()
    };
    let reason = |reason: &str| RecordQuery { reason: Some(reason.to_owned()), ..RecordQuery::default() };
    assert_eq!(found(RecordQuery::default()), [1, 2, 3, 4, 5]);
    assert_eq!(found(reason("control")), [3, 4], "where it began, and where it ended");
    assert_eq!(found(reason("service-gone")), [5]);
    for elsewhere in ["claimed", "kubernetes", "serving", "kube-apiserver", "seq"] {
        assert_eq!(found(reason(elsewhere)), [0_u64; 0], "other texts are no reason");
    }
    let time = all(&history)[2].time;
    assert_eq!(found(RecordQuery { since: Some(time), ..RecordQuery::default() }), [3, 4, 5]);
    assert_eq!(found(RecordQuery { until: Some(time), ..RecordQuery::default() }), [1, 2, 3]);
    assert_eq!(found(RecordQuery { limit: Some(2), ..RecordQuery::default() }), [4, 5]);
    assert_eq!(found(RecordQuery { limit: Some(2), after: Some(1), ..RecordQuery::default() }), [2, 3]);
    assert_eq!(found(RecordQuery { service: Some(name("kube")), ..RecordQuery::default() }), [0_u64; 0]);
}

#[test]
fn a_record_is_one_line_of_json_without_unknown_fields() {
    let history = recorded(incident(), None);
    let emptied =
        &history.select(&RecordQuery { after: Some(2), limit: Some(1), ..RecordQuery::default() })[0];
    let boot = format!("{:?}", &*boot_id());
    expect![[r#"{"seq":3,"time":"2026-01-08T11:11:58.000Z","monotonic_us":3000000,"boot_id":"…","kind":"change","service":"default/kubernetes","source":"kubernetes","rule":"control","triggers":[{"event":"applied","kind":"EndpointSlice","object":"default/kubernetes-1","source":"kubernetes","uid":"7c8d4a2e-0000-4000-8000-000000000001","resource_version":"71","writer":{"manager":"kube-apiserver","operation":"Update","time":"2026-01-08T11:11:55.000Z"},"origin":"https://10.0.0.10:6443","endpoints_null":true,"fields":["endpoints"],"endpoints":{"removed":["169.254.128.7"],"kept":0}}],"transitions":[{"frontends":["10.96.0.1:443/TCP"],"before":{"verdict":"serving","backends":1,"status":"done"},"after":{"verdict":"held","reason":"control","backends":1,"status":"done"},"backends":{"kept":1}}],"result":{"ops":0,"elapsed_us":50}}"#]].assert_eq(&emptied.json.replace(&boot, "\"…\""));
}

#[test]
fn invariant_12_every_change_has_exactly_one_record() {
    let told = incident();
    let visible: Vec<_> = told.iter().filter(|it| it.change.visible).collect();
    let expected: Vec<_> = visible.iter().map(|it| Some(it.change.service.to_string())).collect();
    assert!(visible.len() < told.len(), "an annotation changes nothing for clients");
    let records = all(&recorded(told.clone(), None));
    assert_eq!(records.iter().map(|it| it.service.clone()).collect::<Vec<_>>(), expected);
    assert!(records.iter().all(|it| it.kind == Kind::Change && !it.triggers.is_empty()));
    assert_eq!(records.iter().map(|it| it.seq).collect::<Vec<_>>(), (1..=5).map(Some).collect::<Vec<_>>());
}

#[test]
fn a_watcher_also_receives_events_without_a_change_for_clients() {
    let told = incident();
    let (changes, waiting) = mpsc::channel(told.len());
    told.into_iter().for_each(|it| changes.try_send(it).unwrap());
    drop(changes);
    let (recorder, history) = Recorder::new(waiting, watch::channel(Arc::default()).1, None);
    let mut watched = history.watch(None);
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(recorder.run());
    let mut sentences = String::new();
    while let Some(WatchEvent::Line(line)) = watched.next().now_or_never() {
        let record = line.record().unwrap();
        if record.kind == Kind::Event {
            sentences += &record.sentence();
        }
    }
    expect!["2026-01-08T11:11:59.000Z - default/kubernetes-intranet: nothing changed for clients; because Service default/kubernetes-intranet applied, only its metadata differs, version 72, written by cloud-controller (Update) at 2026-01-08T11:11:55Z, from https://10.0.0.10:6443"].assert_eq(&sentences);
}

#[test]
fn a_record_has_bounds() {
    let mut rig = Rig::new();
    let ips: Vec<String> = (0..250).map(|last| format!("10.1.1.{}", last + 1)).collect();
    let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
    let told = rig.batch([
        service("web", "10.96.0.1", meta("1", "kubectl")),
        slice("web", &ips, false, meta("2", "kcm")),
    ]);
    let record = &all(&recorded(told, None))[0];
    let diff = &record.transitions[0].backends;
    assert_eq!((diff.added.len(), diff.omitted), (32, 218));
    assert!(record.sentence().contains(" and 244 more;"), "{}", record.sentence());
}

#[test]
fn nothing_an_object_says_moves_the_cursor() {
    let mut rig = Rig::new();
    let told = rig.batch([
        service("web", "10.96.0.1", meta("1", "evil\u{1b}[2J\nmanager")),
        slice("web", &["10.1.1.1"], false, meta("2", "kcm")),
    ]);
    let sentence = all(&recorded(told, None))[0].sentence();
    assert!(sentence.contains("evil?[2J?manager") && !sentence.contains('\n'), "{sentence}");
}
