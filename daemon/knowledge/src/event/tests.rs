//! Both APIs give the same Event, and any field of an Event is only text.

use serde_json::json;

use super::*;

fn read(value: &Value) -> ClusterEvent {
    ClusterEvent::from_json(value)
}

fn time(text: &str) -> Option<Time> {
    Some(parse(text).unwrap())
}

#[test]
fn an_event_of_the_core_api_is_read() {
    let event = read(&json!({
        "metadata": {"uid": "u1", "creationTimestamp": "2026-03-01T11:00:00Z"},
        "involvedObject": {"kind": "Pod", "namespace": "shop", "name": "web", "uid": "u2", "fieldPath": "spec.x"},
        "reason": "Unhealthy", "type": "Warning", "message": "Readiness probe failed: x",
        "source": {"component": "kubelet", "host": "node-1"}, "reportingComponent": "kubelet",
        "reportingInstance": "node-2", "count": 7,
        "firstTimestamp": "2026-03-01T12:00:00Z", "lastTimestamp": "2026-03-01T12:30:00Z", "eventTime": null,
    }));
    let object = ObjectRef {
        kind: "Pod".to_owned(),
        namespace: "shop".to_owned(),
        name: "web".to_owned(),
        uid: "u2".to_owned(),
        field_path: "spec.x".to_owned(),
    };
    let expected = ClusterEvent {
        uid: "u1".to_owned(),
        object,
        reason: "Unhealthy".to_owned(),
        event_type: EventType::Warning,
        message: "Readiness probe failed: x".to_owned(),
        action: String::new(),
        component: "kubelet".to_owned(),
        host: "node-1".to_owned(),
        first: time("2026-03-01T12:00:00Z"),
        last: time("2026-03-01T12:30:00Z"),
        count: 7,
        merged: false,
    };
    assert_eq!(event, expected);
}

#[test]
fn both_apis_give_the_same_event() {
    let times = ("2026-03-01T12:00:00.000001Z", "2026-03-01T12:30:00.5Z");
    let newer = read(&json!({
        "metadata": {"uid": "u1"}, "regarding": {"kind": "Service", "namespace": "shop", "name": "web"},
        "reason": "ClusterIPNotAllocated", "type": "Warning", "note": "x", "action": "ClusterIPAllocation",
        "reportingController": "ipallocator-repair-controller", "reportingInstance": "a-1",
        "eventTime": times.0, "series": {"count": 4, "lastObservedTime": times.1},
        "deprecatedSource": {}, "deprecatedFirstTimestamp": null, "deprecatedLastTimestamp": null,
    }));
    let core = read(&json!({
        "metadata": {"uid": "u1"}, "involvedObject": {"kind": "Service", "namespace": "shop", "name": "web"},
        "reason": "ClusterIPNotAllocated", "type": "Warning", "message": "x", "action": "ClusterIPAllocation",
        "reportingComponent": "ipallocator-repair-controller", "reportingInstance": "a-1",
        "eventTime": times.0, "series": {"count": 4, "lastObservedTime": times.1},
        "source": {}, "firstTimestamp": null, "lastTimestamp": null,
    }));
    assert_eq!(newer, core);
    assert_eq!((core.count, core.host.as_str()), (4, "a-1"));
    assert_eq!((core.first, core.last), (time("2026-03-01T12:00:00Z"), time("2026-03-01T12:30:00Z")));
    let old = read(&json!({
        "deprecatedSource": {"component": "kubelet", "host": "n"}, "deprecatedCount": 3,
        "deprecatedFirstTimestamp": "2026-03-01T12:00:00Z", "deprecatedLastTimestamp": "2026-03-01T12:30:00Z",
    }));
    assert_eq!((old.component.as_str(), old.host.as_str(), old.count), ("kubelet", "n", 3));
    assert_eq!((old.first, old.last), (core.first, core.last));
}

#[test]
fn an_impossible_time_is_ignored() {
    let zero = "0001-01-01T00:00:00Z";
    let event = read(&json!({
        "metadata": {"creationTimestamp": "2026-03-01T11:00:00Z"},
        "firstTimestamp": zero, "lastTimestamp": "soon", "eventTime": zero, "series": {"lastObservedTime": 7},
    }));
    let created = time("2026-03-01T11:00:00Z");
    assert_eq!((event.first, event.last), (created, created));
    assert_eq!(read(&json!({"lastTimestamp": zero})).last, None);
}

#[test]
fn the_count_is_at_least_one() {
    for (count, expected) in
        [(json!(0), 1), (json!(-5), 1), (json!("x"), 1), (json!(null), 1), (json!(2.5), 1)]
    {
        assert_eq!(read(&json!({"count": count})).count, expected, "{count}");
    }
    assert_eq!(read(&json!({"count": i64::MAX})).count, u32::MAX);
    assert_eq!(read(&json!({"count": 3, "series": {"count": -1}})).count, 3);
}

#[test]
fn a_missing_field_or_one_of_another_type_is_empty() {
    for value in [json!(null), json!([]), json!("x"), json!({}), json!({"reason": 7, "involvedObject": "x"})]
    {
        let event = read(&value);
        assert!(event.reason.is_empty() && event.object == ObjectRef::default() && event.last.is_none());
        assert_eq!(event.event_type, EventType::Other);
    }
    assert_eq!(read(&json!({"type": "Strange"})).event_type, EventType::Other);
}

#[test]
fn a_merged_message_loses_its_prefix() {
    let event = read(&json!({"message": "(combined from similar events): Error"}));
    assert_eq!((event.message.as_str(), event.merged), ("Error", true));
    let note = read(&json!({"note": "(combined from similar events): "}));
    assert_eq!((note.message.as_str(), note.merged), ("", true));
    assert!(!read(&json!({"message": "x (combined from similar events): y"})).merged);
}

#[test]
fn foreign_text_cannot_move_a_cursor() {
    let event = read(&json!({
        "reason": "Un\u{1b}[2Jhealthy", "message": "a\u{9b}31mb\u{202e}c\nd", "source": {"component": "k\u{7}"},
        "involvedObject": {"name": "web\u{2066}\r"},
    }));
    assert_eq!((event.reason.as_str(), event.message.as_str()), ("Un[2Jhealthy", "a31mbc d"));
    assert_eq!((event.component.as_str(), event.object.name.as_str()), ("k", "web "));
}

#[test]
fn a_long_message_keeps_its_ends_and_long_words_are_cut() {
    let long = format!("Error syncing {} connection refused", "x".repeat(1_000_000));
    let event = read(&json!({"message": long, "reason": "R".repeat(9_999)}));
    assert!(event.message.len() <= 1_024 && event.message.ends_with("connection refused"));
    assert!(event.reason.len() <= 128 && event.reason.ends_with('…'));
}
