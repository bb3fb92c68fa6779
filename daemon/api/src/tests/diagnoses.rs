//! `/diagnose` over real sockets: its answer at each listener, and the exit of the command line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::fixture::{Served, everything, serve, serve_with};
use holdfast_agent::engine::query::{self, EngineQuery};

#[test]
fn a_diagnosis_begins_with_the_most_likely_problem() {
    let served = serve(everything());
    for (service, status, exit, says) in [
        ("default/web", 200, "3", "self."),
        ("default/thief", 200, "3", "belongs to default/web"),
        ("default/none", 404, "4", "There is no Service default/none"),
        ("default/bad", 404, "4", "is rejected: port 70000 is not legal"),
    ] {
        let got = served.get(&format!("/diagnose?service={service}"), "");
        assert_eq!(
            (got.status, got.header("holdfast-exit")),
            (status, Some(exit)),
            "{service}: {}",
            got.body
        );
        assert!(got.body.contains(says), "{service}: {}", got.body);
    }
}

#[test]
fn a_diagnosis_without_a_service_is_refused_with_a_hint() {
    let served = serve(everything());
    let service = "?service=default/web";
    for (question, says) in [
        (String::new(), "no service is named"),
        ("?service=web".to_owned(), "names no service"),
        (format!("{service}&timeout=1h"), "is no time that a diagnosis may take"),
        (format!("{service}&port=81"), "its ports: 80 (http), 8000 (http)"),
        (format!("{service}&port=a/b"), "is no port"),
        (format!("{service}&http=http://a/"), "is no path"),
        (format!("{service}&http=/a%0d%0ab"), "is no path"),
        (format!("{service}&http=/&probe=none"), "needs connections"),
    ] {
        let got = served.get(&format!("/diagnose{question}"), "");
        assert_eq!((got.status, got.header("holdfast-exit")), (400, None), "{question}: {}", got.body);
        assert!(got.body.contains(says), "{question}: {}", got.body);
    }
}

/// Over TCP no process outside the daemon is queried: the answer says so, and that is no finding. It proves no health
/// either.
#[test]
fn unqueried_checks_are_skipped_and_never_pass() {
    let served = serve(everything());
    let body = served.get("/diagnose?service=default/web&format=json", "").body;
    let diagnosis: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(diagnosis["schema"], "holdfast.diagnose/1");
    let state = |id: &str| {
        let findings = diagnosis["findings"].as_array().unwrap();
        findings.iter().find(|it| it["id"] == id).unwrap()["state"].clone()
    };
    for id in ["pods.match", "events.readable", "host.sysctls", "probe.frontend"] {
        assert_eq!(state(id), "skipped", "{id}");
    }
    assert_eq!(state("host.listener"), "warning", "the daemon knows of a process at a node port");
    let left_out = ["what the apiserver says now", "this host", "connections from this host"];
    let not_checked = diagnosis["not_checked"].as_array().unwrap();
    assert_eq!(not_checked.iter().take(3).collect::<Vec<_>>(), left_out);
    // No engine runs here to read the maps.
    assert_eq!((&diagnosis["counts"]["unknown"], state("view.table-kernel")), (&1.into(), "unknown".into()));
}

/// The result for the maps, or why it is unknown.
fn compared(served: &Served, question: &str) -> (Value, String) {
    let body = served.get(&format!("/diagnose?service=default/web&format=json{question}"), "").body;
    let diagnosis: Value = serde_json::from_str(&body).unwrap();
    let findings = diagnosis["findings"].as_array().unwrap();
    let found = findings.iter().find(|it| it["id"] == "view.table-kernel").unwrap();
    (found["state"].clone(), found["message"].as_str().unwrap().to_owned())
}

#[test]
fn an_engine_that_does_not_answer_makes_no_diagnosis_late() {
    let (engine, _unheard) = query::channel();
    let served = serve_with(everything(), |readings| readings.engine = engine);
    let begun = Instant::now();
    let (state, why) = compared(&served, "&timeout=1s");
    // Without a timeout, it would take up to five seconds.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(state, "unknown");
    assert!(why.contains("the engine does not answer now"), "{why}");
}

/// Entries read from the maps are compared with the demand of that moment, or not at all.
#[test]
fn a_service_that_changes_during_the_read_is_no_map_fault() {
    for (changes, asked, state) in [("itself", 3, "unknown"), ("others", 1, "error")] {
        let (engine, mut heard) = query::channel();
        let served = serve_with(everything(), |readings| readings.engine = engine);
        let snapshots = served.snapshots.clone();
        let questions = Arc::new(AtomicU32::new(0));
        let heard_of = Arc::clone(&questions);
        std::thread::spawn(move || {
            while let Some(EngineQuery::Read(keys, answer)) = heard.blocking_recv() {
                heard_of.fetch_add(1, Ordering::SeqCst);
                let mut next = Arc::clone(&snapshots.borrow());
                Arc::make_mut(&mut next).counters.batches += 1;
                snapshots.send_replace(if changes == "itself" { Arc::new(everything()) } else { next });
                let _ = answer.send(keys.iter().map(|_| Ok(None)).collect());
            }
        });
        let (found, why) = compared(&served, "");
        assert_eq!(found, state, "{changes}: {why}");
        assert_eq!(why.contains("changed each time"), state == "unknown", "{why}");
        assert_eq!(questions.load(Ordering::SeqCst), asked, "{changes}");
    }
}
