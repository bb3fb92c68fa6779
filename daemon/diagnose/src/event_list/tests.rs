//! Lists of Events: real ones, forged ones, and ones that could not be read.

use std::sync::Arc;

use expect_test::expect;
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::Snapshot;
use holdfast_knowledge::{ClusterEvent, Knowledge};
use serde_json::{Value, json};

use super::{EventList, EventScope};
use crate::evidence::{Lookup, ReceivedEvents, Right};
use crate::limits::{COLUMNS_MAX, EVENTS_LISTED_MAX, TEXT_LENGTH_MAX};

/// Two minutes after the last failure, at 2026-11-20T14:00:00Z.
const NOW: Timestamp = Timestamp(1_795_183_200);

fn event_json(reason: &str, last: &str, message: &str) -> Value {
    json!({
        "involvedObject": {"kind": "Service", "namespace": "shop", "name": "web"}, "type": "Warning",
        "reason": reason, "message": message, "lastTimestamp": last, "count": 3,
        "source": {"component": "service-controller"},
    })
}

fn failed() -> Value {
    let message = "Error syncing load balancer: failed to ensure load balancer: RequestLimitExceeded";
    event_json("SyncLoadBalancerFailed", "2026-11-20T13:58:02Z", message)
}

fn received(events: &[Value]) -> ReceivedEvents {
    ReceivedEvents {
        list: Lookup::Answered(events.iter().map(ClusterEvent::from_json).collect()),
        more: false,
    }
}

fn list_by<'a>(
    knowledge: impl FnOnce() -> &'a Knowledge,
    received: &ReceivedEvents,
    about: Option<&str>,
) -> EventList {
    let about = about.and_then(|text| text.split_once('/'));
    let about = about.map(|(namespace, name)| ObjectName::new(namespace, name).unwrap());
    let snapshot = Snapshot::default();
    let scope = EventScope { service: about.as_ref(), snapshot: &snapshot, now: NOW, version: "0.1.0" };
    EventList::new(received, knowledge, scope)
}

fn list(received: &ReceivedEvents, about: Option<&str>) -> EventList {
    list_by(Knowledge::built_in, received, about)
}

fn forbidden(namespace: Option<&str>) -> ReceivedEvents {
    let namespace = namespace.map(Arc::from);
    ReceivedEvents::from_lookup(Lookup::Forbidden(Right {
        group: "",
        resource: "events",
        verbs: "list",
        namespace,
    }))
}

#[test]
fn each_event_shows_time_object_cause_and_remedy() {
    let ensured = event_json("EnsuredLoadBalancer", "2026-11-20T13:40:00Z", "Ensured load balancer");
    let alien = event_json("TideIsOut", "2026-11-20T13:30:00Z", "the boats lie dry");
    let text = list(&received(&[alien, ensured, failed()]), Some("shop/web")).to_text(false);
    expect![[r#"
        Events about shop/web and its pods
        node   2026-11-20T14:00:00Z  holdfast 0.1.0

        2026-11-20T13:58:02Z  Service shop/web  SyncLoadBalancerFailed  3 times
            The external load balancer could not be made, changed or removed as the Service asks.
            cause (exact): cloud.rate_limited: The cloud refuses further calls of its API for now. Typical
                after many Services were created or changed together, or when other tools use the same
                account.
            remedy (safe): Wait: the controller tries again by itself, at the latest after five minutes.

        2026-11-20T13:40:00Z  Service shop/web  EnsuredLoadBalancer  3 times
            The cloud has what the Service asks for; the address is written into its status next.
            service-controller said: Ensured load balancer
            remedy (safe): If the status has no address a minute later, look for SyncLoadBalancerFailed
                about the status.

        2026-11-20T13:30:00Z  Service shop/web  TideIsOut  3 times
            The catalogue does not know this one.
            service-controller said: the boats lie dry

        3 Events
    "#]]
    .assert_eq(&text);
}

#[test]
fn the_wide_list_adds_messages_and_checks() {
    let text = list(&received(&[failed()]), None).to_text(true);
    expect![[r#"
        Events about services and what they depend on; of pods, the warnings of this node
        node   2026-11-20T14:00:00Z  holdfast 0.1.0

        2026-11-20T13:58:02Z  Service shop/web  SyncLoadBalancerFailed  3 times
            The external load balancer could not be made, changed or removed as the Service asks.
            cause (exact): cloud.rate_limited: The cloud refuses further calls of its API for now. Typical
                after many Services were created or changed together, or when other tools use the same
                account.
            service-controller said: Error syncing load balancer: failed to ensure load balancer:
                RequestLimitExceeded
            look: Look at the cloud's own figures for calls that were throttled (AWS: AWS/Usage CallCount of
                the service ELB).
            look: Look which other tools call the same API with the same account.
            remedy (safe): Wait: the controller tries again by itself, at the latest after five minutes.
            remedy (safe): Create and change fewer Services at a time, in batches.
            remedy (safe): Ask the provider for a higher limit of calls.
            remedy (DISRUPTIVE): On AWS, set AWS_MAX_ATTEMPTS=10 and AWS_RETRY_MODE=adaptive for the
                controller, if its build reads them; it restarts for that.

        1 Event
    "#]]
    .assert_eq(&text);
}

#[test]
fn unread_events_show_the_missing_rule() {
    let text = list(&forbidden(Some("shop")), Some("shop/web")).to_text(false);
    expect![[r#"
        Events about shop/web and its pods
        node   2026-11-20T14:00:00Z  holdfast 0.1.0

        Events were not read: this node may not list events in shop.
        Add this rule to a role that its account is bound to; the role holdfast-diagnose of
          contrib/kubernetes/rbac.yaml has it:
          - apiGroups: [""]
            resources: [events]
            verbs: [list]
    "#]]
    .assert_eq(&text);
    for (lookup, says) in [
        (Lookup::Skipped("[kubernetes] events_read is \"off\""), "events_read is \"off\"."),
        (Lookup::Failed("10.0.0.10:6443: connection refused".into()), "10.0.0.10:6443: connection refused."),
    ] {
        let list = list(&ReceivedEvents::from_lookup(lookup), None);
        let (text, json) = (list.to_text(false), serde_json::to_value(&list).unwrap());
        assert!(text.contains("Events were not read: ") && text.contains(says), "{text}");
        assert!(!text.contains("0 Events"), "unread is not none: {text}");
        assert_eq!(
            (&json["read"], &json["exit"], &json["missing_right"]),
            (&false.into(), &5.into(), &Value::Null)
        );
    }
}

#[test]
fn a_long_list_omits_and_counts_the_oldest() {
    let event = |number: usize| {
        event_json("A", &format!("2026-11-20T13:{:02}:{:02}Z", number / 60, number % 60), "x")
    };
    let events: Vec<Value> = (0..EVENTS_LISTED_MAX + 7).map(event).collect();
    let list = list(&ReceivedEvents { more: true, ..received(&events) }, None);
    assert_eq!((list.events.len(), list.omitted), (EVENTS_LISTED_MAX, 7));
    let times: Vec<_> = list.events.iter().map(|row| row.last.map(|last| last.0)).collect();
    assert!(times[0] > times[EVENTS_LISTED_MAX - 1], "the latest come first");
    let text = list.to_text(false);
    assert!(text.contains("200 Events, and 7 older that are not listed"), "{text}");
    assert!(text.contains("There are more, or some that could not be read"), "{text}");
}

#[test]
fn forged_events_are_shown_cleaned_and_bounded() {
    let long = format!("\u{1b}[31m\u{202e}{}", "x".repeat(10_000));
    let forged = [
        event_json("Forged\u{7}", "0001-01-01T00:00:00Z", &long),
        json!({"reason": 7, "count": -3, "involvedObject": {"kind": [], "name": {}}, "message": null}),
        json!({"count": 1e30, "series": {"count": -1}, "lastTimestamp": "yesterday"}),
        json!({"involvedObject": {"kind": "Pod", "namespace": "a;b", "name": "$(reboot)"}, "reason": "FailedScheduling",
               "message": "0/3 nodes are available: 3 node(s) didn't have free ports for the requested pod ports."}),
        json!([]),
    ];
    let list = list(&received(&forged), None);
    let text = list.to_text(true);
    assert!(
        text.lines().all(|line| line.chars().count() <= COLUMNS_MAX && !line.contains(char::is_control)),
        "{text}"
    );
    for row in &list.events {
        assert!(row.message.len() <= TEXT_LENGTH_MAX && row.count >= 1);
        let advice = row.remedies.iter().map(|it| &it.text).chain(&row.checks);
        assert!(advice.into_iter().all(|it| !it.contains("reboot") && !it.contains("a;b")), "{text}");
    }
}

#[test]
fn an_operators_entry_replaces_the_built_in_one() {
    let ours = "[[cause]]\nid = \"cloud.rate_limited\"\nany = [\"RequestLimitExceeded\"]\n\
                means = \"Our account of {ns} has a low limit.\"\ncheck = []\n\
                remedy = [{ risk = \"destructive\", do = \"Call Ann about {name}.\" }]\n";
    let (knowledge, faults) = Knowledge::with_overrides(&[("ours.toml", ours)]);
    assert_eq!(faults, []);
    let text = list_by(|| &knowledge, &received(&[failed()]), None).to_text(false);
    assert!(
        text.contains("cause (exact): cloud.rate_limited: Our account of shop has a low limit."),
        "{text}"
    );
    assert!(text.contains("remedy (DESTRUCTIVE): Call Ann about web."), "{text}");
}

#[test]
fn no_knowledge_is_built_without_events() {
    list_by(|| panic!("it is not needed"), &forbidden(None), None);
    list_by(|| panic!("it is not needed"), &received(&[]), None);
}
