//! Events as a diagnosis shows them: with the knowledge of each, and whether it still describes the present.
//!
//! Invariant: pure. Texts are clean and bounded already. Placeholders in advice become names of the diagnosed service,
//! or stay words.

use std::collections::BTreeMap;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ObjectName;
use holdfast_diagnose::evidence::{CauseRemedy, EventSubject, RecognisedEvent};
use holdfast_knowledge::{
    ClusterEvent, CurrentObject, EventState, EventType, Knowledge, ObjectRef, Severity, Time, Values,
};

use super::default_namespace::is_about_other;

/// Recognises Events, object by object. `service` is the name and uid of the diagnosed service.
pub(super) fn recognise_events(
    knowledge: &Knowledge,
    events: Vec<ClusterEvent>,
    service: (&ObjectName, Option<&str>),
    now: Timestamp,
) -> Vec<RecognisedEvent> {
    let mut objects: BTreeMap<(String, String, String), Vec<ClusterEvent>> = BTreeMap::new();
    let (name, uid) = service;
    let is_irrelevant =
        |event: &ClusterEvent| is_former_object(&event.object, uid) || is_about_other(event, name);
    for event in events.into_iter().filter(|event| !is_irrelevant(event)) {
        let ObjectRef { kind, namespace, name, .. } = &event.object;
        objects.entry((kind.clone(), namespace.clone(), name.clone())).or_default().push(event);
    }
    let values = Values::default().namespace(name.namespace()).name(name.name());
    let recognise_object = |((kind, ..), events): (&(String, String, String), &Vec<ClusterEvent>)| {
        let uid = uid.filter(|_| kind == "Service");
        let states = knowledge.judge_events(events, CurrentObject { uid, changed: None }, Time(now.0));
        states.iter().map(|it| to_recognised_event(it, &values)).collect::<Vec<_>>()
    };
    objects.iter().flat_map(recognise_object).collect()
}

/// Whether an object is a former Service. A recreated Service has the same name, and Events of the former one say
/// nothing about it.
fn is_former_object(object: &ObjectRef, uid: Option<&str>) -> bool {
    object.kind == "Service" && uid.is_some_and(|uid| !object.uid.is_empty() && object.uid != uid)
}

fn to_recognised_event(state: &EventState<'_, '_>, values: &Values) -> RecognisedEvent {
    let event = state.event;
    let recognised = &state.recognised;
    let advice = recognised.advice();
    let meaning = recognised.cause.map(|cause| &cause.means).or(recognised.reason.map(|it| &it.meaning));
    let known = advice.remedies.iter().map(|it| (it.action.as_str(), it.risk.as_str()));
    let fallback = Some((advice.fallback, "safe")).filter(|(text, _)| !text.is_empty());
    RecognisedEvent {
        entry: recognised.reason.map(|reason| reason.id.clone()),
        reason: event.reason.clone(),
        component: event.component.clone(),
        object: EventSubject {
            kind: event.object.kind.clone(),
            namespace: event.object.namespace.clone(),
            name: event.object.name.clone(),
        },
        warning: event.event_type == EventType::Warning,
        notice: recognised.reason.is_some() && recognised.severity < Severity::Warning,
        cause: recognised.cause.map(|cause| cause.id.clone()),
        step: recognised.step,
        meaning: meaning.map(|text| values.fill(text)).unwrap_or_default(),
        remedies: known
            .chain(fallback)
            .map(|(text, risk)| CauseRemedy { text: values.fill(text), risk: risk.to_owned() })
            .collect(),
        count: event.count,
        first: event.first.map(|time| Timestamp(time.0)),
        last: event.last.map(|time| Timestamp(time.0)),
        open: state.is_open(),
        message: event.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: Timestamp = Timestamp(1_795_183_100);

    fn judged(events: &[Value]) -> Vec<RecognisedEvent> {
        let events = events.iter().map(ClusterEvent::from_json).collect();
        let name = ObjectName::new("shop", "web").unwrap();
        recognise_events(Knowledge::built_in(), events, (&name, Some("u1")), NOW)
    }

    fn event(reason: &str, uid: &str, last: &str, message: &str) -> Value {
        json!({
            "involvedObject": {"kind": "Service", "namespace": "shop", "name": "web", "uid": uid},
            "reason": reason, "message": message, "type": "Warning", "lastTimestamp": last, "count": 3,
            "source": {"component": "service-controller"},
        })
    }

    #[test]
    fn a_known_event_has_a_meaning_a_cause_and_remedies() {
        let message = "Error syncing load balancer: failed to ensure load balancer: RequestLimitExceeded";
        let found = judged(&[event("SyncLoadBalancerFailed", "u1", "2026-11-20T13:58:02Z", message)]);
        assert_eq!(found[0].entry.as_deref(), Some("sync-load-balancer-failed"));
        assert_eq!(found[0].cause.as_deref(), Some("cloud.rate_limited"));
        assert!(found[0].open && !found[0].meaning.is_empty(), "{found:?}");
        assert!(found[0].remedies.iter().all(|it| !it.text.is_empty() && !it.risk.is_empty()), "{found:?}");
    }

    #[test]
    fn an_event_that_repairs_itself_is_a_notice() {
        let gap = |reason: &str, component: &str| {
            json!({"involvedObject": {"kind": "Service", "namespace": "shop", "name": "web", "uid": "u1"},
                "reason": reason, "message": "Cluster IP [IPv4]: 192.168.77.1 is not allocated; repairing",
                "type": "Warning", "source": {"component": component}, "lastTimestamp": "2026-11-20T13:58:02Z"})
        };
        let repaired = gap("ClusterIPNotAllocated", "ipallocator-repair-controller");
        let taken = gap("ClusterIPAlreadyAllocated", "ipallocator-repair-controller");
        let unknown = gap("SomethingElse", "x");
        let found: Vec<_> =
            judged(&[repaired, taken, unknown]).iter().map(|it| (it.warning, it.notice)).collect();
        assert_eq!(found, [(true, true), (true, false), (true, false)]);
    }

    #[test]
    fn a_resolved_event_is_closed_and_one_of_a_former_service_hidden() {
        let failed = event("SyncLoadBalancerFailed", "u1", "2026-11-20T13:57:02Z", "x");
        let ensured = event("EnsuredLoadBalancer", "u1", "2026-11-20T13:58:00Z", "Ensured load balancer");
        let open: Vec<bool> = judged(&[failed, ensured]).iter().map(|it| it.open).collect();
        assert_eq!(open.first(), Some(&false), "resolved");
        let former = judged(&[event("SyncLoadBalancerFailed", "u0", "2026-11-20T13:58:02Z", "x")]);
        assert!(former.is_empty(), "of a service that was deleted: {former:?}");
    }

    #[test]
    fn an_event_without_a_namespace_is_shown_for_the_named_service_only() {
        let of = |service: &str| {
            json!({
                "involvedObject": {"kind": "Endpoints", "name": "web"}, "reason": "FailedToCreateEndpoint",
                "message": format!("Failed to create endpoint for service {service}: endpoints \"web\" is forbidden: exceeded quota"),
                "lastTimestamp": "2026-11-20T13:58:02Z", "source": {"component": "endpoint-controller"},
            })
        };
        let found = judged(&[of("shop/web"), of("shop/web-2"), of("default/web")]);
        let messages: Vec<&str> = found.iter().map(|it| it.message.as_str()).collect();
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].contains("service shop/web:"), "{messages:?}");
    }

    #[test]
    fn a_forged_event_is_shown_cleaned_and_harms_nobody() {
        let long = format!("\u{1b}[31m\u{202e}{}", "x".repeat(10_000));
        for forged in [
            event("Forged\u{7}", "u1", "0001-01-01T00:00:00Z", &long),
            json!({"reason": 7, "count": -3, "involvedObject": {"kind": [], "name": {}}, "message": null}),
            json!({"count": 1e30, "series": {"count": -1}, "lastTimestamp": "yesterday"}),
            json!([]),
        ] {
            let found = judged(std::slice::from_ref(&forged));
            assert_eq!((found.len(), found[0].open), (1, false), "{forged}");
            let texts = [&found[0].reason, &found[0].message, &found[0].object.name];
            assert!(texts.iter().all(|it| it.len() <= 1_024 && !it.contains(char::is_control)), "{found:?}");
            assert!(found[0].count >= 1);
        }
    }
}
