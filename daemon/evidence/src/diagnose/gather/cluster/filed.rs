//! Events about a service that lie in another namespace than its own: that its Endpoints cannot be made.
//!
//! Invariant: such an Event is about an object that is not there and names no namespace, so the apiserver keeps it in
//! `default`, beside those of all other tenants. It counts only if its message names this very service; an Event of
//! which the message names no service is not shown.

use holdfast_core::keys::ObjectName;
use holdfast_diagnose::material::Heard;
use holdfast_knowledge::ClusterEvent;

use super::ask::Lane;
use super::events::Reading;
use super::network::KINDS;
use super::paths::Name;

/// The namespace in which Events are kept that name none.
const PLACE: &str = "default";

/// How a message of Kubernetes' own controller begins; the service and a colon follow.
const BEGINS: &str = "Failed to create endpoint for service ";

/// Asks in [`PLACE`], unless it is the service's own namespace, which is asked anyway.
pub(super) async fn ask(
    lane: &mut Lane<'_>,
    reading: &Reading<'_>,
    service: Name<'_>,
    name: &ObjectName,
) -> Heard {
    let Some(place) = Name::new(PLACE).filter(|place| place.as_str() != name.namespace()) else {
        return Heard::default();
    };
    let fields = [("involvedObject.kind", "Endpoints"), ("involvedObject.name", service.as_str())];
    let heard = reading.ask(lane, "events without a namespace", place, &fields, 1).await;
    heard.only(|event| names_none(event) && is_of(event, name))
}

/// Whether an Event may be about another service, of which nothing is to be told here.
pub(super) fn is_of_another(event: &ClusterEvent, name: &ObjectName) -> bool {
    KINDS.contains(&event.object.kind.as_str()) && names_none(event) && !is_of(event, name)
}

fn names_none(event: &ClusterEvent) -> bool {
    event.object.namespace.is_empty()
}

fn is_of(event: &ClusterEvent, name: &ObjectName) -> bool {
    let named = event.message.strip_prefix(BEGINS).and_then(|rest| rest.split_once(": "));
    named.is_some_and(|(named, _)| named == name.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Of a tenant's own words, none comes before the name that the controller writes.
    #[test]
    fn an_event_without_a_namespace_is_of_the_service_that_its_message_begins_with_alone() {
        let web = ObjectName::new("shop", "web").unwrap();
        let of = |namespace: &str, message: &str| {
            let object = json!({"kind": "Endpoints", "namespace": namespace, "name": "web"});
            ClusterEvent::from_json(&json!({"involvedObject": object, "message": message}))
        };
        let failed = |service: &str| format!("{BEGINS}{service}: endpoints \"web\" is forbidden");
        for (message, is_told) in [
            (failed("shop/web"), true),
            (format!("(combined from similar events): {}", failed("shop/web")), true),
            (failed("default/web"), false),
            (failed("shop/web-2"), false),
            (failed("bank/web: for service shop/web"), false),
            (format!("x {}", failed("shop/web")), false),
            (format!("{BEGINS}shop/web"), false),
            (String::new(), false),
        ] {
            assert_eq!(is_of(&of("", &message), &web), is_told, "{message}");
            assert_eq!(is_of_another(&of("", &message), &web), !is_told, "{message}");
            assert!(!is_of_another(&of("shop", &message), &web), "who names a namespace is believed");
        }
    }
}
