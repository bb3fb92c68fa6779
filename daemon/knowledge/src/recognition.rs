//! Recognises an Event: its reason, its cause and its remedies.
//!
//! Invariant: the reason alone decides what is searched, so the cost of a message is bounded by the longest list of
//! causes. An Event never decides anything: it is reported with the confidence of its recognition.

use crate::entry::{Cause, EventReason, EventType, Remedy, Severity, Step};
use crate::event::ClusterEvent;
use crate::keywords::SearchText;
use crate::limits::{ALSO_MAX, LINE_BYTES_MAX};
use crate::store::Knowledge;
use crate::text::clean;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// No known reason matches the Event.
    None,
    /// The word is known, but not from this component, or the Event names no kind. Another vendor may mean something
    /// else by it.
    ReasonOnly,
    /// The reason is known in another spelling.
    Alias,
    Exact,
}

impl Confidence {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::ReasonOnly => "reason-only",
            Self::Alias => "alias",
            Self::Exact => "exact",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Recognition<'k> {
    pub reason: Option<&'k EventReason>,
    pub confidence: Confidence,
    pub severity: Severity,
    /// The step of an external load balancer's life that the Event reports.
    pub step: Option<Step>,
    pub cause: Option<&'k Cause>,
    /// Further matching causes, at most [`ALSO_MAX`].
    pub also: Vec<&'k Cause>,
}

/// What to check, and what to do. The texts still contain placeholders: [`crate::Values`] fills them.
#[derive(Clone, Copy, Debug)]
pub struct Advice<'k> {
    pub check: &'k [String],
    pub remedies: &'k [Remedy],
    /// What to do if no cause was found; may be empty.
    pub fallback: &'k str,
}

impl Knowledge {
    pub fn recognise(&self, event: &ClusterEvent) -> Recognition<'_> {
        let message = SearchText::new(&event.message, &event.object.namespace, &event.object.name);
        let (found, is_exact) = self.index.find_reasons(&event.reason);
        let candidates = found.iter().filter_map(|at| self.match_candidate(*at, event, &message));
        // Take the first reason that the Event's component is known to send; otherwise the first.
        let best = candidates.reduce(|best, other| if best.1 || !other.1 { best } else { other });
        let Some((at, is_known_sender)) = best else { return Recognition::from_unknown(event) };
        let (at, is_alias) = self.resolve_alias(at);
        let confidence = match (is_known_sender, is_exact && !is_alias) {
            (false, _) => Confidence::ReasonOnly,
            (true, false) => Confidence::Alias,
            (true, true) => Confidence::Exact,
        };
        self.recognise_as(at, confidence, &message).unwrap_or_else(|| Recognition::from_unknown(event))
    }

    /// The reason at `at`, if it matches the Event, and whether its sender is known to send it.
    fn match_candidate(
        &self,
        at: usize,
        event: &ClusterEvent,
        message: &SearchText,
    ) -> Option<(usize, bool)> {
        let reason = self.reasons.get(at)?;
        let only_if = self.index.scans.get(at)?.only_if.as_ref();
        let kind = event.object.kind.as_str();
        let is_about = kind.is_empty() || reason.kinds.iter().any(|known| known == kind);
        let fits = is_about && only_if.is_none_or(|words| words.matches_any(message));
        let component = event.component.rsplit('/').next().unwrap_or_default();
        let is_known_sender =
            reason.components.is_empty() || reason.components.iter().any(|known| known == component);
        fits.then_some((at, is_known_sender && !kind.is_empty()))
    }

    /// The target of the alias at `at`, with `true`; or `at` itself, with `false`.
    fn resolve_alias(&self, at: usize) -> (usize, bool) {
        let alias_of = self.reasons.get(at).and_then(|reason| reason.alias_of.as_ref());
        alias_of.and_then(|id| self.index.ids.get(id)).map_or((at, false), |target| (*target, true))
    }

    fn recognise_as(
        &self,
        at: usize,
        confidence: Confidence,
        message: &SearchText,
    ) -> Option<Recognition<'_>> {
        let reason = self.reasons.get(at)?;
        let scan = self.index.scans.get(at)?;
        let when = scan.when.iter().find(|(words, ..)| words.matches_any(message));
        let first = when.map_or(&[][..], |(_, _, causes)| causes);
        let further = scan.causes.iter().filter(|at| !first.contains(at));
        let fitting = first
            .iter()
            .chain(further)
            .filter_map(|at| self.index.matchers.get(*at)?.matches(message).then_some(self.causes.get(*at)?));
        let mut fitting = fitting.take(1 + ALSO_MAX);
        Some(Recognition {
            reason: Some(reason),
            confidence,
            severity: reason.severity,
            step: when.and_then(|(_, step, _)| *step).or(reason.step),
            cause: fitting.next(),
            also: fitting.collect(),
        })
    }
}

impl<'k> Recognition<'k> {
    /// The recognition of an unknown Event, which is shown as it is.
    fn from_unknown(event: &ClusterEvent) -> Self {
        let severity = match event.event_type {
            EventType::Warning => Severity::Warning,
            EventType::Normal | EventType::Other => Severity::Info,
        };
        Self {
            reason: None,
            confidence: Confidence::None,
            severity,
            step: None,
            cause: None,
            also: Vec::new(),
        }
    }

    /// The advice of the first cause; without a cause, the fallback of the reason.
    pub fn advice(&self) -> Advice<'k> {
        match (self.cause, self.reason) {
            (Some(cause), _) => Advice { check: &cause.check, remedies: &cause.remedy, fallback: "" },
            (None, Some(reason)) => Advice { check: &[], remedies: &[], fallback: &reason.fallback },
            (None, None) => Advice { check: &[], remedies: &[], fallback: "" },
        }
    }

    /// The Event in one line of at most [`LINE_BYTES_MAX`] bytes: its meaning, its cause, its message.
    pub fn to_line(&self, event: &ClusterEvent) -> String {
        let object = &event.object;
        let place = if object.namespace.is_empty() { "" } else { "/" };
        let times = if event.count == 1 { String::new() } else { format!(", {} times", event.count) };
        // Another vendor may mean something else by the same word.
        let perhaps = if self.confidence == Confidence::ReasonOnly { "Perhaps: " } else { "" };
        let meaning = self.reason.map_or(String::new(), |reason| format!("{perhaps}{}", reason.meaning));
        let means = self.cause.map_or("", |cause| cause.means.as_str());
        let parts = [
            format!("{} {}{place}{}: {}{times}.", object.kind, object.namespace, object.name, event.reason),
            meaning,
            means.to_owned(),
            format!("Message: {}", event.message),
        ];
        let shown: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        clean(&shown.join(" "), LINE_BYTES_MAX)
    }
}
