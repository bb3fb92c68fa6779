//! Events as text, for tests of the code that makes events.

use std::fmt::Write;
use std::sync::Arc;

use holdfast_core::event::Event;

/// Events as text: kind, object, origin and rejection.
pub fn shown(events: &[Event]) -> String {
    events.iter().fold(String::new(), |mut text, event| {
        let _always_fits = writeln!(text, "{}", show(event));
        text
    })
}

fn show(event: &Event) -> String {
    let origin = |origin: &Option<Arc<str>>| origin.as_deref().unwrap_or("nowhere").to_owned();
    match event {
        Event::ServiceApplied(facts) => {
            let ips: Vec<String> = facts.cluster_ips.iter().map(ToString::to_string).collect();
            format!("+ Service {} [{}] {}", facts.key, ips.join(" "), origin(&facts.meta.origin))
        }
        Event::SliceApplied(facts) => {
            let addresses: Vec<String> = facts.endpoints.iter().map(|one| one.address.to_string()).collect();
            format!("+ EndpointSlice {} [{}] {}", facts.key, addresses.join(" "), origin(&facts.meta.origin))
        }
        Event::ServiceDeleted(key, meta) => {
            format!("- Service {key} {}", origin(&meta.as_ref().and_then(|meta| meta.origin.clone())))
        }
        Event::SliceDeleted(key, meta) => {
            format!("- EndpointSlice {key} {}", origin(&meta.as_ref().and_then(|meta| meta.origin.clone())))
        }
        Event::Rejected(rejection) => {
            let part = if rejection.partial { "partly " } else { "" };
            format!(
                "! {} {part}rejected in {}: {}",
                rejection.object,
                origin(&rejection.origin),
                rejection.reason
            )
        }
        Event::RejectionEnded(object) => format!("ok {object}"),
        Event::Synced(source) => format!("synced {source}"),
        other => format!("{other:?}"),
    }
}
