//! Events about a service that are in another namespace than its own: its Endpoints cannot be created.
//!
//! Invariant: the object of such an Event does not exist and names no namespace, so the apiserver keeps the Event in
//! `default`, among those of all tenants. It counts only if its message names this very service. An Event with a
//! message that names no service is not shown.

use holdfast_core::keys::ObjectName;
use holdfast_diagnose::evidence::ReceivedEvents;
use holdfast_knowledge::ClusterEvent;

use super::api_query::QuerySession;
use super::event_cache::EventReader;
use super::network::EVENT_KINDS;
use super::paths::PathSegment;

/// The namespace of Events that name none.
const DEFAULT_NAMESPACE: &str = "default";

/// The start of a message of Kubernetes' own controller; the service and a colon follow.
const MESSAGE_PREFIX: &str = "Failed to create endpoint for service ";

/// Queries [`DEFAULT_NAMESPACE`], unless it is the service's own namespace, which is queried anyway.
pub(super) async fn query_default_namespace(
    lane: &mut QuerySession<'_>,
    reading: &EventReader<'_>,
    service: PathSegment<'_>,
    name: &ObjectName,
) -> ReceivedEvents {
    let Some(place) = PathSegment::new(DEFAULT_NAMESPACE).filter(|place| place.as_str() != name.namespace())
    else {
        return ReceivedEvents::default();
    };
    let fields = [("involvedObject.kind", "Endpoints"), ("involvedObject.name", service.as_str())];
    let received = reading.query(lane, "events without a namespace", place, &fields, 1).await;
    received.filter_events(|event| has_no_namespace(event) && is_about(event, name))
}

/// Whether an Event may be about another service, which this diagnosis must not reveal.
pub(super) fn is_about_other(event: &ClusterEvent, name: &ObjectName) -> bool {
    EVENT_KINDS.contains(&event.object.kind.as_str()) && has_no_namespace(event) && !is_about(event, name)
}

fn has_no_namespace(event: &ClusterEvent) -> bool {
    event.object.namespace.is_empty()
}

fn is_about(event: &ClusterEvent, name: &ObjectName) -> bool {
    let named = event.message.strip_prefix(MESSAGE_PREFIX).and_then(|rest| rest.split_once(": "));
    named.is_some_and(|(named, _)| named == name.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// No text of a tenant comes before the name that the controller writes.
    #[test]
    fn an_event_without_a_namespace_belongs_to_the_service_its_message_names() {
        let web = ObjectName::new("shop", "web").unwrap();
        let of = |namespace: &str, message: &str| {
            let object = json!({"kind": "Endpoints", "namespace": namespace, "name": "web"});
            ClusterEvent::from_json(&json!({"involvedObject": object, "message": message}))
        };
        let failed = |service: &str| format!("{MESSAGE_PREFIX}{service}: endpoints \"web\" is forbidden");
        for (message, is_own) in [
            (failed("shop/web"), true),
            (format!("(combined from similar events): {}", failed("shop/web")), true),
            (failed("default/web"), false),
            (failed("shop/web-2"), false),
            (failed("bank/web: for service shop/web"), false),
            (format!("x {}", failed("shop/web")), false),
            (format!("{MESSAGE_PREFIX}shop/web"), false),
            (String::new(), false),
        ] {
            assert_eq!(is_about(&of("", &message), &web), is_own, "{message}");
            assert_eq!(is_about_other(&of("", &message), &web), !is_own, "{message}");
            assert!(
                !is_about_other(&of("shop", &message), &web),
                "an Event that names a namespace is believed"
            );
        }
    }
}
