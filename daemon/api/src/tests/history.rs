//! `/history`, over the records of a small incident.

use expect_test::expect_file;
use serde_json::Value;

use super::fixture::{Served, everything, serve_with};
use holdfast_agent::recorder::tests::incident_history;

fn served() -> Served {
    serve_with(everything(), |readings| readings.history = incident_history())
}

#[track_caller]
fn check_numbers(query: &str, expected: &[u64]) {
    let answer = served().get(&format!("/history?format=json&{query}"), "");
    assert_eq!(answer.status, 200, "{}", answer.body);
    let records = answer.body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert_eq!(records.map(|it| it["seq"].as_u64().unwrap()).collect::<Vec<_>>(), expected, "{query}");
}

#[test]
fn each_filter_is_exact() {
    check_numbers("", &[1, 2, 3, 4, 5]);
    check_numbers("service=default/kubernetes", &[1, 3, 4]);
    check_numbers("service=default/kube", &[]);
    check_numbers("reason=control", &[3, 4]);
    check_numbers("since=2026-01-08T11:11:58Z", &[3, 4, 5]);
    check_numbers("until=2026-01-08T11:11:58Z&service=default/kubernetes", &[1, 3]);
    check_numbers("limit=1", &[5]);
    check_numbers("after=1&limit=2", &[2, 3]);
}

#[test]
fn history_is_words_for_people() {
    expect_file!["golden/history.txt"].assert_eq(&served().get("/history", "").body);
    let nothing = |query: &str| served().get(&format!("/history?{query}"), "").body;
    assert_eq!(nothing("since=1s"), "no record matches\n");
    let absent =
        "No Service and no EndpointSlice of default/kubernets is known.\nDid you mean default/kubernetes?\n";
    assert_eq!(nothing("service=default/kubernets"), absent);
}

#[test]
fn an_invalid_filter_is_refused() {
    let answer = served().get("/history?reason=nonsense", "");
    assert_eq!(answer.status, 400);
    assert!(answer.body.starts_with("error: unknown reason \"nonsense\"\nhint: legal reasons: "));
}
