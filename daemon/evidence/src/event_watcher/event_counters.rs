//! Counts the watched Events, and writes a journal line for each within a rate limit.
//!
//! Invariant: labels are words of the knowledge and of our own topics, so a client that writes Events creates no
//! series. Lines have a burst limit and a limit per second, and each namespace has its share of both. Events beyond the
//! limits are only counted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use holdfast_core::keys::ObjectName;
use holdfast_knowledge::{ClusterEvent, EventReason, EventType, Knowledge};

use super::TOPICS;
use super::balancer_causes::BalancerCauses;
use crate::knowledge::{self, Edition, Editions};
use holdfast_agent::exposition::Exposition;

/// The burst of lines, and the lines per second after it.
const LINES_AT_ONCE: f64 = 50.0;
const LINES_A_SECOND: f64 = 2.0;

/// A namespace gets a fifth of either number, so that several may be loud at once.
const NAMESPACE_SHARE: f64 = 5.0;

/// The most namespaces with limits of their own; all others share one.
const NAMESPACES_MAX: usize = 1_023;
const OTHER_NAMESPACES: &str = "others";

/// The label of a sender that the knowledge does not expect for the reason.
const OTHER_COMPONENT: &str = "other";

/// Counters of the watched Events since the start.
#[derive(Debug)]
pub struct EventCounters {
    counts: Mutex<CounterState>,
    editions: Editions,
}

/// Recognises Events by the built-in knowledge alone.
impl Default for EventCounters {
    fn default() -> Self {
        Self::new(knowledge::built_in())
    }
}

#[derive(Debug, Default)]
struct CounterState {
    is_on: bool,
    up: BTreeSet<&'static str>,
    reported_down: BTreeSet<&'static str>,
    recognised: BTreeMap<(String, &'static str, String), u64>,
    causes: BTreeMap<String, u64>,
    balancer_causes: BalancerCauses,
    unrecognised: u64,
    unlogged: u64,
    lines: LineLimiter,
}

/// The rate limits of lines: of all, and of each recent namespace.
#[derive(Debug, Default)]
struct LineLimiter {
    all: Option<TokenBucket>,
    namespaces: BTreeMap<String, TokenBucket>,
}

/// The tokens for lines at a time.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    tokens: f64,
    updated: Instant,
}

impl TokenBucket {
    /// Refills the bucket for the time until now.
    fn refill(before: Option<Self>, now: Instant, share: f64) -> Self {
        let most = LINES_AT_ONCE / share;
        let Some(Self { tokens: left, updated: then }) = before else {
            return Self { tokens: most, updated: now };
        };
        let grown = now.saturating_duration_since(then).as_secs_f64() * LINES_A_SECOND / share;
        Self { tokens: (left + grown).min(most), updated: now }
    }

    fn take_token(self) -> Option<Self> {
        (self.tokens >= 1.0).then_some(Self { tokens: self.tokens - 1.0, ..self })
    }
}

impl LineLimiter {
    fn allow_line(&mut self, now: Instant, namespace: &str) -> bool {
        if self.namespaces.len() >= NAMESPACES_MAX && !self.namespaces.contains_key(namespace) {
            let is_full = |room: &TokenBucket| {
                TokenBucket::refill(Some(*room), now, NAMESPACE_SHARE).tokens
                    >= LINES_AT_ONCE / NAMESPACE_SHARE
            };
            self.namespaces.retain(|_, room| !is_full(room));
        }
        let is_known = self.namespaces.contains_key(namespace) || self.namespaces.len() < NAMESPACES_MAX;
        let name = if is_known { namespace } else { OTHER_NAMESPACES };
        let own = TokenBucket::refill(self.namespaces.get(name).copied(), now, NAMESPACE_SHARE).take_token();
        let all = TokenBucket::refill(self.all, now, 1.0).take_token();
        let (Some(own), Some(all)) = (own, all) else { return false };
        self.all = Some(all);
        self.namespaces.insert(name.to_owned(), own);
        true
    }
}

impl EventCounters {
    /// Recognises Events by the newest edition.
    pub fn new(editions: Editions) -> Self {
        Self { counts: Mutex::default(), editions }
    }

    /// The editions, for a caller that follows their changes.
    pub(super) fn editions(&self) -> Editions {
        self.editions.clone()
    }

    fn edition(&self) -> Arc<Edition> {
        Arc::clone(&self.editions.borrow())
    }

    fn lock(&self) -> MutexGuard<'_, CounterState> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether Events are watched. If they are, all series exist at once.
    pub fn set_enabled(&self, is_on: bool) {
        let mut counts = self.lock();
        counts.is_on = is_on;
        counts.up.clear();
        counts.reported_down.clear();
        counts.balancer_causes.clear();
        drop(counts);
        self.reload_series();
    }

    /// Replaces the series by those of the newest edition. Common series keep their counts.
    pub(super) fn reload_series(&self) {
        if self.lock().is_on {
            let edition = self.edition();
            let knowledge = edition.knowledge();
            self.lock().reset_series(knowledge);
        }
    }

    pub(super) fn mark_up(&self, topic: &'static str) {
        let mut counts = self.lock();
        counts.up.insert(topic);
        counts.reported_down.remove(topic);
    }

    /// Marks a topic's watch as down. Returns whether it was not yet.
    pub(super) fn mark_down(&self, topic: &'static str) -> bool {
        let mut counts = self.lock();
        counts.up.remove(topic);
        counts.reported_down.insert(topic)
    }

    /// Counts an Event, and logs a line of it within the rate limits.
    pub fn count_event(&self, event: &ClusterEvent) {
        let edition = self.edition();
        let recognised = edition.knowledge().recognise(event);
        let mut counts = self.lock();
        match recognised.reason {
            Some(reason) => {
                let component = known_component(reason, &event.component);
                let key = (reason.reason.clone(), type_label(event.event_type), component.to_owned());
                *counts.recognised.entry(key).or_default() += 1;
            }
            None => counts.unrecognised += 1,
        }
        if let Some(cause) = recognised.cause {
            *counts.causes.entry(cause.id.clone()).or_default() += 1;
        }
        let now = Instant::now();
        counts.balancer_causes.record_event(event, &recognised, now);
        let has_room = counts.try_log_line(now, &event.object.namespace);
        drop(counts);
        if has_room {
            tracing::info!("a cluster Event about {}", recognised.to_line(event));
        }
    }

    /// The cause why this Service's load balancer is not made, if Events are watched and one names it.
    pub fn balancer_cause(&self, service: &ObjectName) -> Option<String> {
        self.lock().balancer_causes.find_cause(service, Instant::now()).map(str::to_owned)
    }

    pub fn render_metrics(&self) -> String {
        let mut out = Exposition::default();
        self.write_metrics(&mut out);
        out.into_text()
    }

    /// Writes the metrics; nothing unless Events are watched.
    pub fn write_metrics(&self, out: &mut Exposition) {
        let counts = self.lock();
        if !counts.is_on {
            return;
        }
        let name = "holdfast_event_source_up";
        out.begin(name, "gauge", "Whether these Events of the cluster are followed now.");
        for topic in TOPICS {
            out.sample(name, &[("source", topic.name)], u64::from(counts.up.contains(topic.name)));
        }
        let name = "holdfast_events_recognised_total";
        out.begin(name, "counter", "Events of the cluster that the catalogue knows.");
        for ((reason, kind, component), count) in &counts.recognised {
            out.sample(name, &[("reason", reason), ("type", kind), ("component", component)], *count);
        }
        let name = "holdfast_event_causes_total";
        out.begin(
            name,
            "counter",
            "Events of the cluster whose message names a cause that the catalogue knows.",
        );
        for (cause, count) in &counts.causes {
            out.sample(name, &[("cause", cause)], *count);
        }
        let help = "Events of the cluster that the catalogue does not know.";
        out.counter("holdfast_events_unrecognised_total", help, counts.unrecognised);
        let help = "Events of the cluster that are counted and have no line in the journal.";
        out.counter("holdfast_events_unlogged_total", help, counts.unlogged);
    }
}

impl CounterState {
    fn reset_series(&mut self, knowledge: &Knowledge) {
        let counted = std::mem::take(&mut self.recognised);
        for reason in knowledge.reasons() {
            let components = reason.components.iter().map(String::as_str).chain([OTHER_COMPONENT]);
            for component in components {
                let key = (reason.reason.clone(), type_label(reason.event_type), component.to_owned());
                let count = counted.get(&key).copied().unwrap_or_default();
                self.recognised.insert(key, count);
            }
        }
        let counted = std::mem::take(&mut self.causes);
        let count = |id: &String| counted.get(id).copied().unwrap_or_default();
        self.causes = knowledge.causes().iter().map(|cause| (cause.id.clone(), count(&cause.id))).collect();
    }

    fn try_log_line(&mut self, now: Instant, namespace: &str) -> bool {
        let has_room = self.lines.allow_line(now, namespace);
        self.unlogged += u64::from(!has_room);
        has_room
    }
}

/// The sender, if the knowledge expects it for the reason.
fn known_component<'a>(reason: &'a EventReason, found: &str) -> &'a str {
    reason.components.iter().find(|known| *known == found).map_or(OTHER_COMPONENT, String::as_str)
}

const fn type_label(kind: EventType) -> &'static str {
    match kind {
        EventType::Normal => "Normal",
        EventType::Warning => "Warning",
        EventType::Other => "other",
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;
    use tokio::sync::watch;

    use super::*;

    fn event(reason: &str, component: &str) -> ClusterEvent {
        ClusterEvent::from_json(&json!({
            "involvedObject": {"kind": "Service", "namespace": "shop", "name": "web"}, "type": "Warning",
            "reason": reason, "message": "RequestLimitExceeded", "source": {"component": component},
        }))
    }

    #[test]
    fn forged_events_create_no_series() {
        let counters = EventCounters::default();
        assert_eq!(counters.render_metrics(), "", "nothing is followed");
        counters.set_enabled(true);
        let before = counters.render_metrics().lines().count();
        for number in 0..1_000 {
            counters.count_event(&event(&format!("Forged{number}"), "evil"));
            counters.count_event(&event("SyncLoadBalancerFailed", &format!("evil-{number}")));
        }
        let after = counters.render_metrics();
        assert_eq!(after.lines().count(), before);
        assert!(after.contains("holdfast_events_unrecognised_total 1000"), "{after}");
        let wanted = "holdfast_events_recognised_total{reason=\"SyncLoadBalancerFailed\",type=\"Warning\",component=\"other\"} 1000";
        assert!(after.contains(wanted), "{after}");
        assert!(after.contains("holdfast_event_causes_total{cause=\"cloud.rate_limited\"} 1000"), "{after}");
    }

    #[test]
    fn a_new_edition_has_its_own_series_and_keeps_common_counts() {
        let (editions, newest) = watch::channel(Arc::default());
        let counters = EventCounters::new(newest);
        counters.set_enabled(true);
        counters.count_event(&event("SyncLoadBalancerFailed", "service-controller"));
        let text = "[[reason]]\nid = \"ours.tide\"\nreason = \"TideIsOut\"\nkinds = [\"Service\"]\n\
                    type = \"Warning\"\nemitted = \"third-party\"\nseverity = \"error\"\n\
                    meaning = \"The tide is out.\"\nno_causes = \"It is the moon.\"\n";
        let ours = Edition::from_files(vec![("ours.toml".to_owned(), text.to_owned())], Vec::new());
        assert_eq!(ours.faults(), []);
        editions.send_replace(Arc::new(ours));
        counters.reload_series();
        counters.count_event(&event("TideIsOut", "moon"));
        let after = counters.render_metrics();
        for wanted in [
            "{reason=\"TideIsOut\",type=\"Warning\",component=\"other\"} 1\n",
            "{reason=\"SyncLoadBalancerFailed\",type=\"Warning\",component=\"service-controller\"} 1\n",
            "holdfast_events_unrecognised_total 0",
        ] {
            assert!(after.contains(wanted), "{wanted}: {after}");
        }
        editions.send_replace(Arc::default());
        counters.reload_series();
        assert!(!counters.render_metrics().contains("TideIsOut"), "no reload leaves series behind");
    }

    /// The number of lines that are written out of so many.
    fn written(counts: &mut CounterState, namespaces: usize, lines: usize, now: Instant) -> usize {
        (0..lines).filter(|line| counts.try_log_line(now, &format!("n-{}", line % namespaces))).count()
    }

    #[test]
    fn lines_come_at_a_bounded_rate() {
        let mut counts = CounterState::default();
        let now = Instant::now();
        assert_eq!((written(&mut counts, 100, 1_000, now), counts.unlogged), (50, 950));
        let later = now + Duration::from_secs(5);
        assert_eq!(written(&mut counts, 100, 1_000, later), 10);
    }

    #[test]
    fn a_loud_namespace_takes_no_line_of_another() {
        let mut counts = CounterState::default();
        let now = Instant::now();
        assert_eq!(written(&mut counts, 1, 100_000, now), 10, "its share");
        let others = ["shop", "bank", "mill"].map(|namespace| counts.try_log_line(now, namespace));
        assert_eq!(others, [true; 3]);
        let later = now + Duration::from_secs(5);
        assert_eq!((written(&mut counts, 1, 1_000, later), counts.try_log_line(later, "shop")), (2, true));
        let forged =
            (0..100_000).filter(|number| counts.try_log_line(later, &format!("forged-{number}"))).count();
        assert!(forged <= 50 && counts.lines.namespaces.len() <= NAMESPACES_MAX + 1, "{forged}");
    }
}
