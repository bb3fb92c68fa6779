//! The description of the API: to the letter, and against real answers, field by field, both ways.

use std::collections::BTreeSet;
use std::sync::Arc;

use expect_test::expect_file;
use holdfast_diagnose::explain::{ClientAddress, PacketShare};
use holdfast_status::record::{Changed, Gap, GapCause, NamespaceShare};
use holdfast_status::schema_types::Code;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::fixture::{everything, serve, serve_with};
use super::judged;
use super::tables::rows;
use super::{doors, drains, fixture::Served};
use crate::{failing_backends, flows};
use holdfast_agent::readings::RefusedReload;
use holdfast_agent::recorder::tests::incident_history;
use holdfast_agent::state::{Damage, OmittedServices, SnapshotWrite};

/// Compares the keys of a real value with the schema, and records the seen schemas.
fn compare(value: &Value, schema: &Value, document: &Value, seen: &mut BTreeSet<String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.strip_prefix("#/components/schemas/").unwrap();
        let target = &document["components"]["schemas"][name];
        assert!(target.is_object(), "{reference} is not there");
        seen.insert(name.to_owned());
        return compare(value, target, document, seen);
    }
    if let Some(all) = schema["anyOf"].as_array() {
        let fitting = all.iter().find(|schema| (schema["type"] == "null") == value.is_null());
        return compare(value, fitting.expect("one fits"), document, seen);
    }
    if let Some(legal) = schema["enum"].as_array() {
        assert!(legal.contains(value), "{value} is none of {legal:?}");
    }
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let kinds = &schema["type"];
    assert!(
        kinds == kind || kinds.as_array().is_some_and(|kinds| kinds.contains(&kind.into())),
        "{value}: {schema}"
    );
    match value {
        Value::Array(elements) => {
            elements.iter().for_each(|element| compare(element, &schema["items"], document, seen));
        }
        Value::Object(members) if schema["properties"].is_object() => {
            let properties = schema["properties"].as_object().unwrap();
            let required: BTreeSet<&str> =
                schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            assert!(required.iter().all(|name| members.contains_key(*name)), "{members:?}: {required:?}");
            let is_closed = required.into_iter().eq(properties.keys());
            assert_eq!(schema["additionalProperties"] == false, is_closed, "{schema}");
            for (name, value) in members {
                let described = properties.get(name).unwrap_or_else(|| panic!("{name} is not described"));
                compare(value, described, document, seen);
            }
        }
        _ => {}
    }
}

fn document(served: &Served) -> Value {
    serde_json::from_str(&served.get("/openapi.json", "").body).unwrap()
}

/// The description for programs. A change may only add to the golden file: programs rely on its content.
#[test]
fn the_description_is_to_the_letter() {
    expect_file!["golden/openapi.json"].assert_eq(&serve(everything()).get("/openapi.json", "").body);
}

#[test]
fn the_description_describes_every_path_and_its_parameters() {
    let served = serve(everything());
    let document = document(&served);
    let index = rows(&served, "/", "paths");
    let described = document["paths"].as_object().unwrap();
    for row in &index {
        let path = row["path"].as_str().unwrap();
        let operation = &described.get(path).unwrap_or_else(|| panic!("{path} is not described"))["get"];
        let parameters: Vec<&Value> =
            operation["parameters"].as_array().unwrap().iter().map(|parameter| &parameter["name"]).collect();
        assert!(parameters.into_iter().eq(row["parameters"].as_array().unwrap()), "{path}");
    }
    let readable = described.values().filter(|path| path.get("get").is_some());
    assert_eq!(index.len(), readable.count());
    assert!(described["/reload"]["post"].is_object() && described["/apiserver/forget"]["post"].is_object());
}

/// The JSON answer of each path, and its schema.
fn answers(served: &Served, document: &Value) -> Vec<(Value, Value)> {
    let json = |path: &str| {
        let body = served.get(path, "accept: application/json\r\n").body;
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}: {body}"))
    };
    let described = |path: &str| {
        document["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"].clone()
    };
    let index = rows(served, "/", "paths");
    let paths =
        index.iter().map(|row| row["path"].as_str().unwrap()).filter(|path| described(path).is_object());
    // A diagnosis needs a service, so it follows below.
    let paths = paths.filter(|path| *path != "/diagnose");
    let mut answers: Vec<_> = paths.map(|path| (json(path), described(path))).collect();
    answers.push((json("/diagnose?service=default/web"), described("/diagnose")));
    answers.push((json("/diagnose?service=default/nobody"), described("/diagnose")));
    // Over TCP the apiserver is not queried for Events, so these lists are made here.
    answers.extend(judged::lists_of_events().into_iter().map(|list| (list, described("/events"))));
    // The entries near an address without a service.
    answers.push((json("/explain?endpoint=10.96.0.20:81"), described("/explain")));
    // No packets are translated here, so this answer is made from flows of another test.
    answers.push((flows::tests::json(), described("/flows")));
    answers.push((json("/explain?endpoint=10.96.0.20:80&from=203.0.113.9"), described("/explain")));
    answers.push((json("/nowhere?format=json"), json!({ "$ref": "#/components/schemas/Error" })));
    answers
}

fn gap() -> Value {
    let file = Some("history.1".to_owned());
    let namespaces = vec![NamespaceShare { namespace: "shop".to_owned(), records: 7 }];
    serde_json::to_value(Gap { file, at_most: Some(7), namespaces, ..Gap::new(GapCause::Killed) }).unwrap()
}

fn changed() -> Value {
    let address = "192.0.2.9:80".to_owned();
    serde_json::to_value(Changed { address, before: "active".into(), after: "draining".into() }).unwrap()
}

fn share() -> Value {
    let (backend, node) = ("10.1.0.1:8080".to_owned(), Some("node-1".to_owned()));
    let seen_as = Code(ClientAddress::Client);
    serde_json::to_value(PacketShare {
        backend,
        share: 0.5,
        draining: false,
        node,
        seen_as,
        is_loopback: false,
    })
    .unwrap()
}

#[test]
fn every_answer_is_described_field_by_field() {
    let served = serve_with(everything(), |readings| {
        readings.history = incident_history();
        let left_out = || OmittedServices { count: 1, named: vec!["default/web".into()] };
        let damage = Damage { error: "damaged".into(), older: left_out(), lost: left_out() };
        let error = Some("no room".into());
        let damage = Some(Arc::new(damage));
        readings.last_write = watch::channel(SnapshotWrite { damage, error, ..SnapshotWrite::default() }).1;
        readings.refused_reload = watch::channel(Some(RefusedReload::from_reason("no such key"))).1;
    });
    let document = document(&served);
    let mut seen = BTreeSet::new();
    for (answer, schema) in answers(&served, &document) {
        compare(&answer, &schema, &document, &mut seen);
    }
    let records = served.get("/history", "accept: application/json\r\n").body;
    let schema =
        &document["paths"]["/history"]["get"]["responses"]["200"]["content"]["application/jsonl"]["schema"];
    for record in records.lines() {
        compare(&serde_json::from_str(record).unwrap(), schema, &document, &mut seen);
    }
    // No answer above has these parts: the incident has no gap and no backend that changes its state, no engine reads
    // the maps here, so a packet gets no backend, no backend failed a client, and no apiserver was queried for the
    // diagnosis.
    let api = judged::answers_of_the_apiserver();
    let failing = failing_backends::tests::row();
    for (name, part) in [
        ("Gap", gap()),
        ("Changed", changed()),
        ("PacketBackend", share()),
        ("FailingBackend", failing),
        ("Api", api),
    ] {
        let schema = json!({ "$ref": format!("#/components/schemas/{name}") });
        compare(&part, &schema, &document, &mut seen);
    }
    for (path, answer) in doors::answers_to_wishes().into_iter().chain(drains::answers()) {
        let content = &document["paths"][path]["post"]["responses"]["200"]["content"];
        let answer = serde_json::from_str(&answer).unwrap();
        compare(&answer, &content["application/json"]["schema"], &document, &mut seen);
    }
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let unseen: Vec<&String> = schemas.keys().filter(|name| !seen.contains(*name)).collect();
    assert!(unseen.is_empty(), "never seen in an answer: {unseen:?}");
}

#[test]
fn the_guide_tells_every_member_of_a_row() {
    let guide = include_str!("../../../../docs/tables.md");
    let document = document(&serve(everything()));
    for row in ["Frontend", "Backend", "Service", "Refusal", "Record"] {
        let members = document["components"]["schemas"][row]["properties"].as_object().unwrap();
        for name in members.keys() {
            assert!(guide.contains(&format!("`{name}`")), "docs/tables.md says nothing of `{name}` of {row}");
        }
    }
}

/// Every program would have to check for a null that never comes.
#[test]
fn optional_members_are_never_null() {
    let document = document(&serve(everything()));
    let record = &document["components"]["schemas"]["Record"];
    assert_eq!(record["properties"]["seq"]["type"], "integer");
    assert_eq!(record["properties"]["gap"]["$ref"], "#/components/schemas/Gap");
    assert!(!record["required"].as_array().unwrap().contains(&"gap".into()));
}
