//! From an Event to its reason, the cause behind it and what to do.
//!
//! Invariant: what is looked for depends on the reason alone, so the effort for a message is bounded by the longest
//! list of causes. An Event never decides anything: it is told, with how sure it is that we know it.

use crate::entry::{Cause, EventReason, EventType, Remedy, Severity, Step};
use crate::event::ClusterEvent;
use crate::keywords::SearchText;
use crate::limits::{ALSO_MAX, LINE_BYTES_MAX};
use crate::store::Knowledge;
use crate::text::clean;

/// How sure it is that an Event is what we take it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// No known reason fits the Event.
    None,
    /// The word is known, but not from this component, or not for sure because the Event names no kind: another vendor
    /// may mean something else by it.
    ReasonOnly,
    /// The reason is known by another spelling.
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

/// What an Event is taken for.
#[derive(Clone, Debug)]
pub struct Recognition<'k> {
    pub reason: Option<&'k EventReason>,
    pub confidence: Confidence,
    pub severity: Severity,
    /// What the Event says about the life of an external load balancer.
    pub step: Option<Step>,
    pub cause: Option<&'k Cause>,
    /// Further causes that fit, at most [`ALSO_MAX`].
    pub also: Vec<&'k Cause>,
}

/// What to look at and what helps. Placeholders are still in the texts: [`crate::Values`] fills them.
#[derive(Clone, Copy, Debug)]
pub struct Advice<'k> {
    pub check: &'k [String],
    pub remedies: &'k [Remedy],
    /// What to do where no cause was found; may be empty.
    pub fallback: &'k str,
}

impl Knowledge {
    /// Recognises an Event.
    pub fn recognise(&self, event: &ClusterEvent) -> Recognition<'_> {
        let message = SearchText::new(&event.message, &event.object.namespace, &event.object.name);
        let (found, is_spelled_so) = self.index.find_reasons(&event.reason);
        let candidates = found.iter().filter_map(|at| self.match_candidate(*at, event, &message));
        // The first reason that the Event's component is known to send; otherwise the first.
        let best = candidates.reduce(|best, other| if best.1 || !other.1 { best } else { other });
        let Some((at, is_from_whom_we_know)) = best else { return Recognition::from_unknown(event) };
        let (at, is_alias) = self.resolve_alias(at);
        let confidence = match (is_from_whom_we_know, is_spelled_so && !is_alias) {
            (false, _) => Confidence::ReasonOnly,
            (true, false) => Confidence::Alias,
            (true, true) => Confidence::Exact,
        };
        self.recognise_as(at, confidence, &message).unwrap_or_else(|| Recognition::from_unknown(event))
    }

    /// The reason at `at`, if it may be this Event's, and whether the sender is known to send it.
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
        let is_theirs =
            reason.components.is_empty() || reason.components.iter().any(|known| known == component);
        fits.then_some((at, is_theirs && !kind.is_empty()))
    }

    /// The reason that the one at `at` is another spelling of, with `true`; or itself, with `false`.
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
    /// An Event of which nothing is known, which is shown as it is.
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

    /// The advice of the first cause; without a cause, what the reason says for every case.
    pub fn advice(&self) -> Advice<'k> {
        match (self.cause, self.reason) {
            (Some(cause), _) => Advice { check: &cause.check, remedies: &cause.remedy, fallback: "" },
            (None, Some(reason)) => Advice { check: &[], remedies: &[], fallback: &reason.fallback },
            (None, None) => Advice { check: &[], remedies: &[], fallback: "" },
        }
    }

    /// The Event in one line of at most [`LINE_BYTES_MAX`] bytes: what it means, what is behind it, what it said.
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
            format!("It said: {}", event.message),
        ];
        let said: Vec<&str> = parts.iter().map(String::as_str).filter(|part| !part.is_empty()).collect();
        clean(&said.join(" "), LINE_BYTES_MAX)
    }
}
