//! One Event with its meaning, causes and remedies.
//!
//! Invariant: pure. A remedy contains only names that pass Kubernetes' grammar: those of the queried service, else
//! those of the Event's object.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::Snapshot;
use holdfast_knowledge::{
    Cause, ClusterEvent, Confidence, CurrentObject, EventState, EventType, Knowledge, ObjectRef,
    Risk as KnownRisk, Severity, Time, Values,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::EventScope;
use crate::finding::{Remedy, Risk};
use holdfast_status::rfc3339::Rfc3339;

const TYPES: [&str; 3] = [EventType::Normal.as_str(), EventType::Warning.as_str(), EventType::Other.as_str()];
const CONFIDENCES: [&str; 4] = [
    Confidence::Exact.as_str(),
    Confidence::Alias.as_str(),
    Confidence::ReasonOnly.as_str(),
    Confidence::None.as_str(),
];
const SEVERITIES: [&str; 4] = [
    Severity::Info.as_str(),
    Severity::Notice.as_str(),
    Severity::Warning.as_str(),
    Severity::Error.as_str(),
];

/// A recognised Event.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ClusterEvent")]
pub(super) struct EventRow {
    pub(super) object: EventObject,
    pub(super) reason: String,
    #[schemars(extend("enum" = TYPES))]
    pub(super) r#type: &'static str,
    /// The component that reported it.
    pub(super) component: String,
    pub(super) count: u32,
    pub(super) first: Option<Rfc3339>,
    pub(super) last: Option<Rfc3339>,
    /// Whether it still holds: no later Event ended it, and it is not too old.
    pub(super) open: bool,
    /// The catalogue's id of the reason; null: the catalogue lacks it.
    pub(super) entry: Option<String>,
    /// How certain that id is.
    #[schemars(extend("enum" = CONFIDENCES))]
    pub(super) confidence: &'static str,
    #[schemars(extend("enum" = SEVERITIES))]
    pub(super) severity: &'static str,
    /// What the reason means.
    pub(super) meaning: Option<String>,
    /// The cause behind the message; null: the message does not show it.
    pub(super) cause: Option<EventCause>,
    /// Other possible causes.
    pub(super) also: Vec<EventCause>,
    /// Where to look.
    pub(super) checks: Vec<String>,
    /// Remedies for a person, the best first; holdfast applies none.
    pub(super) remedies: Vec<Remedy>,
    /// As its writer worded it.
    pub(super) message: String,
}

/// What an Event is about.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EventObject {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// A cause of the catalogue.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EventCause {
    pub(super) id: String,
    pub(super) means: String,
}

/// Builds the rows of these Events, the latest first.
pub(super) fn build_rows(
    events: &[ClusterEvent],
    knowledge: &Knowledge,
    scope: EventScope<'_>,
) -> Vec<EventRow> {
    let mut objects: BTreeMap<(&str, &str, &str), Vec<ClusterEvent>> = BTreeMap::new();
    for event in events {
        let ObjectRef { kind, namespace, name, .. } = &event.object;
        objects.entry((kind, namespace, name)).or_default().push(event.clone());
    }
    let mut rows = Vec::new();
    for ((kind, namespace, name), events) in &objects {
        let uid = (*kind == "Service").then(|| service_uid(scope.snapshot, namespace, name)).flatten();
        let values = placeholder_values(scope, (kind, namespace, name));
        let states = knowledge.judge_events(events, CurrentObject { uid, changed: None }, Time(scope.now.0));
        rows.extend(states.iter().map(|it| EventRow::from_state(it, &values)));
    }
    rows.sort_by_key(|row| Reverse(row.last.map(|last| last.0)));
    rows
}

/// The uid of the current Service. Events about an earlier one are past.
fn service_uid<'a>(snapshot: &'a Snapshot, namespace: &str, name: &str) -> Option<&'a str> {
    let name = ObjectName::new(namespace, name).ok()?;
    let mut uids =
        snapshot.services.find_by_name(&name).filter_map(|view| view.facts.as_ref()?.meta.uid.as_deref());
    uids.next()
}

fn placeholder_values(scope: EventScope<'_>, (kind, namespace, name): (&str, &str, &str)) -> Values {
    let values = match scope.service {
        Some(about) => Values::default().namespace(about.namespace()).name(about.name()),
        None => Values::default().namespace(namespace),
    };
    match kind {
        "Service" | "Endpoints" if scope.service.is_none() => values.name(name),
        "Pod" => values.pod(name),
        "Node" => values.node(name),
        _ => values,
    }
}

impl EventRow {
    fn from_state(state: &EventState<'_, '_>, values: &Values) -> Self {
        let event = state.event;
        let recognised = &state.recognised;
        let advice = recognised.advice();
        let remedies =
            advice.remedies.iter().map(|it| Remedy::new(to_risk(it.risk), values.fill(&it.action)));
        let fallback = (!advice.fallback.is_empty()).then(|| Remedy::safe(values.fill(advice.fallback)));
        let ObjectRef { kind, namespace, name, .. } = event.object.clone();
        Self {
            object: EventObject { kind, namespace, name },
            reason: event.reason.clone(),
            r#type: event.event_type.as_str(),
            component: event.component.clone(),
            count: event.count,
            first: event.first.map(to_rfc3339),
            last: event.last.map(to_rfc3339),
            open: state.is_open(),
            entry: recognised.reason.map(|reason| reason.id.clone()),
            confidence: recognised.confidence.as_str(),
            severity: recognised.severity.as_str(),
            meaning: recognised.reason.map(|reason| values.fill(&reason.meaning)),
            cause: recognised.cause.map(|it| to_event_cause(it, values)),
            also: recognised.also.iter().map(|it| to_event_cause(it, values)).collect(),
            checks: advice.check.iter().map(|it| values.fill(it)).collect(),
            remedies: remedies.chain(fallback).collect(),
            message: event.message.clone(),
        }
    }
}

fn to_event_cause(cause: &Cause, values: &Values) -> EventCause {
    EventCause { id: cause.id.clone(), means: values.fill(&cause.means) }
}

fn to_rfc3339(time: Time) -> Rfc3339 {
    Rfc3339(Timestamp(time.0))
}

const fn to_risk(risk: KnownRisk) -> Risk {
    match risk {
        KnownRisk::Safe => Risk::Safe,
        KnownRisk::Disruptive => Risk::Disruptive,
        KnownRisk::Destructive => Risk::Destructive,
    }
}
