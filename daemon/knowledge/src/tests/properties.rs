//! Any Event, whatever its text, is cleaned and bounded, and causes no panic.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::limits::{ALSO_MAX, LINE_BYTES_MAX, MESSAGE_BYTES_MAX, NAME_BYTES_MAX, WORD_BYTES_MAX};
use crate::text::is_unprintable;
use crate::{ClusterEvent, CurrentObject, Knowledge, Time, Values};

/// Text with many unprintable characters.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[\u{0}-\u{20}\u{7f}-\u{9f}\u{200b}-\u{202e}a-z{}\"/]{0,40}",
        ("[a-z ]{0,9}", 0_usize..3_000).prop_map(|(word, times)| word.repeat(times)),
    ]
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        text().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        Just(Value::Null),
        Just(json!([])),
        Just(json!({"component": 7, "count": "x", "name": []})),
    ]
}

fn known_reason() -> impl Strategy<Value = String> {
    (0..Knowledge::built_in().reasons().len())
        .prop_map(|at| Knowledge::built_in().reasons()[at].reason.clone())
}

fn value() -> impl Strategy<Value = Value> {
    let reason = prop_oneof![known_reason().prop_map(Value::from), any_value()];
    let object = prop_oneof![
        any_value(),
        (text(), text()).prop_map(|(kind, name)| json!({"kind": kind, "name": name}))
    ];
    (reason, object, prop::collection::vec(any_value(), 8)).prop_map(|(reason, object, any)| {
        json!({
            "reason": reason, "involvedObject": object, "message": any[0], "note": any[1], "count": any[2],
            "series": any[3], "lastTimestamp": any[4], "source": any[5], "type": any[6], "metadata": any[7],
        })
    })
}

fn assert_fit(text: &str, bytes_max: usize) {
    assert!(text.len() <= bytes_max, "{} bytes", text.len());
    assert!(!text.chars().any(is_unprintable), "{text:?}");
}

fn assert_event(event: &ClusterEvent) {
    assert_fit(&event.message, MESSAGE_BYTES_MAX);
    for word in [&event.reason, &event.component, &event.action, &event.uid] {
        assert_fit(word, WORD_BYTES_MAX);
    }
    for name in
        [&event.object.kind, &event.object.namespace, &event.object.name, &event.object.uid, &event.host]
    {
        assert_fit(name, NAME_BYTES_MAX);
    }
    assert!(event.count >= 1);
    let recognised = Knowledge::built_in().recognise(event);
    assert!(recognised.also.len() <= ALSO_MAX);
    assert_fit(&recognised.to_line(event), LINE_BYTES_MAX);
    Knowledge::built_in().judge_events(std::slice::from_ref(event), CurrentObject::default(), Time(i64::MIN));
}

proptest! {
    #[test]
    fn any_event_is_cleaned_bounded_and_recognised(value in value()) {
        assert_event(&ClusterEvent::from_json(&value));
    }

    #[test]
    fn any_bytes_are_an_event_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Ok(value) = serde_json::from_slice::<Value>(&bytes) {
            assert_event(&ClusterEvent::from_json(&value));
        }
    }

    #[test]
    fn no_foreign_text_gets_into_advice(name in text()) {
        let filled = Values::default().namespace(&name).name(&name).pod(&name).node(&name).fill("{ns} {name} {pod} {node}");
        prop_assert!(filled.chars().all(|c| c.is_ascii_alphanumeric() || "-. <>".contains(c)), "{filled}");
    }

    #[test]
    fn any_file_is_read_or_reported(file in text()) {
        let (knowledge, faults) = Knowledge::with_overrides(&[("a.toml", &file)]);
        prop_assert!(knowledge.reasons().len() >= Knowledge::built_in().reasons().len());
        faults.iter().for_each(|fault| assert_fit(&fault.to_string(), LINE_BYTES_MAX));
    }
}

#[test]
fn the_longest_message_with_the_most_words_is_bounded() {
    let words: Vec<&str> = Knowledge::built_in()
        .causes()
        .iter()
        .flat_map(|cause| cause.any.iter().map(String::as_str))
        .collect();
    let message = words.join(" ").repeat(100);
    for reason in Knowledge::built_in().reasons() {
        let event = super::event(&reason.reason, "x", &reason.kinds[0], &message);
        assert_event(&event);
    }
}
