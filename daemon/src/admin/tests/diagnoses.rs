//! `/diagnose` over real sockets: what it answers to whom, and how the command line ends by that.

use serde_json::Value;

use super::fixture::{everything, serve};

#[test]
fn a_diagnosis_says_first_what_is_most_likely_wrong() {
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
fn a_diagnosis_without_a_service_is_told_how_to_name_one() {
    let served = serve(everything());
    for question in ["", "?service=web", "?service=default/web&timeout=1h"] {
        let got = served.get(&format!("/diagnose{question}"), "");
        assert_eq!((got.status, got.header("holdfast-exit")), (400, None), "{question}: {}", got.body);
    }
}

/// Nobody else was asked: that is said, and is no finding.
#[test]
fn what_was_not_asked_is_skipped() {
    let served = serve(everything());
    let body = served.get("/diagnose?service=default/web&format=json", "").body;
    let diagnosis: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(diagnosis["schema"], "holdfast.diagnose/1");
    let state = |id: &str| {
        let findings = diagnosis["findings"].as_array().unwrap();
        findings.iter().find(|it| it["id"] == id).unwrap()["state"].clone()
    };
    for id in ["pods.match", "events.readable", "host.listener", "probe.frontend"] {
        assert_eq!(state(id), "skipped", "{id}");
    }
    // No engine runs here that could read the maps.
    assert_eq!((&diagnosis["counts"]["unknown"], state("view.table-kernel")), (&1.into(), "unknown".into()));
}
