//! `/history`, over the records of a small incident.

use std::collections::BTreeSet;

use expect_test::expect_file;
use serde_json::Value;

use super::fixture::{Served, everything, serve_with};
use crate::recorder::tests::incident_history;

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
fn people_read_stories() {
    expect_file!["golden/history.txt"].assert_eq(&served().get("/history", "").body);
    let nothing = served().get("/history?service=default/nobody", "").body;
    assert_eq!(nothing, "nothing is recorded of that\n");
}

#[test]
fn a_filter_that_cannot_be_meant_is_refused() {
    let answer = served().get("/history?reason=nonsense", "");
    assert_eq!(answer.status, 400);
    assert!(answer.body.starts_with("error: unknown reason \"nonsense\"\nhint: legal reasons: "));
}

/// Goes down into every member that a record has.
fn described(value: &Value, schema: &Value, at: &str) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, member)| {
            let known = &schema["properties"][name];
            assert!(known.is_object(), "{at}.{name} is not described");
            described(member, known, &format!("{at}.{name}"));
        }),
        Value::Array(elements) => elements.iter().for_each(|it| described(it, &schema["items"], at)),
        _ => assert!(schema["type"].is_string(), "{at} has no type"),
    }
}

#[test]
fn every_field_of_a_record_is_described() {
    let served = served();
    let document: Value = serde_json::from_str(&served.get("/openapi.json", "").body).unwrap();
    let content = &document["paths"]["/history"]["get"]["responses"]["200"]["content"];
    let schema = &content["application/jsonl"]["schema"];
    let body = served.get("/history", "accept: application/json\r\n").body;
    let records: Vec<Value> = body.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    records.iter().for_each(|record| described(record, schema, "record"));
    let seen: BTreeSet<&String> = records.iter().flat_map(|it| it.as_object().unwrap().keys()).collect();
    for name in ["seq", "time", "boot_id", "kind", "service", "rule", "triggers", "transitions", "result"] {
        assert!(seen.contains(&name.to_owned()), "{name}");
    }
}
