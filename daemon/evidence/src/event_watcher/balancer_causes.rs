//! The latest causes why load balancers of Services are not made. The metric of pending Services shows them.
//!
//! Invariant: a cause is an id of the knowledge, whatever the Event says. At most [`CAUSES_MAX`] are kept, each for
//! [`CAUSE_TTL`]. A namespace with many causes evicts its own, and no other's.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use holdfast_core::keys::ObjectName;
use holdfast_knowledge::{ClusterEvent, Recognition, Step};

/// The most causes: five times the Services that can have a series, because this module does not know which have one.
const CAUSES_MAX: usize = 1_000;

/// The lifetime of a cause. A controller retries within five minutes, and reports the failure each time.
const CAUSE_TTL: Duration = Duration::from_secs(3_600);

#[derive(Debug, Default)]
pub(super) struct BalancerCauses(BTreeMap<ObjectName, (String, Instant)>);

impl BalancerCauses {
    /// Updates the cause by an Event about a load balancer. An Event of progress changes nothing, because one comes
    /// before each try.
    pub(super) fn record_event(&mut self, event: &ClusterEvent, recognised: &Recognition<'_>, now: Instant) {
        let Ok(name) = ObjectName::new(&event.object.namespace, &event.object.name) else { return };
        match (recognised.step, recognised.cause) {
            _ if event.object.kind != "Service" => {}
            (None | Some(Step::Ensuring | Step::Creating), _) => {}
            (Some(Step::SyncFailed), Some(cause)) => self.insert_cause(name, cause.id.clone(), now),
            _ => drop(self.0.remove(&name)),
        }
    }

    fn insert_cause(&mut self, name: ObjectName, cause: String, now: Instant) {
        self.0.retain(|_, (_, then)| now.saturating_duration_since(*then) < CAUSE_TTL);
        if self.0.len() >= CAUSES_MAX && !self.0.contains_key(&name) {
            let evicted = self.oldest(name.namespace()).or_else(|| self.oldest(self.largest_namespace()));
            if let Some(evicted) = evicted {
                self.0.remove(&evicted);
            }
        }
        self.0.insert(name, (cause, now));
    }

    fn oldest(&self, namespace: &str) -> Option<ObjectName> {
        let own = self.0.iter().filter(|(name, _)| name.namespace() == namespace);
        own.min_by_key(|(_, (_, then))| *then).map(|(name, _)| name.clone())
    }

    fn largest_namespace(&self) -> &str {
        let mut counts = BTreeMap::<&str, usize>::new();
        self.0.keys().for_each(|name| *counts.entry(name.namespace()).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map_or("", |(namespace, _)| namespace)
    }

    pub(super) fn find_cause(&self, name: &ObjectName, now: Instant) -> Option<&str> {
        let (cause, then) = self.0.get(name)?;
        (now.saturating_duration_since(*then) < CAUSE_TTL).then_some(cause)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use holdfast_knowledge::Knowledge;
    use serde_json::json;

    use super::*;

    fn name(namespace: &str, name: &str) -> ObjectName {
        ObjectName::new(namespace, name).unwrap()
    }

    fn record(
        causes: &mut BalancerCauses,
        (kind, of): (&str, &ObjectName),
        reason: &str,
        message: &str,
        now: Instant,
    ) {
        let event = ClusterEvent::from_json(&json!({
            "involvedObject": {"kind": kind, "namespace": of.namespace(), "name": of.name()},
            "reason": reason, "message": message, "type": "Warning", "source": {"component": "service-controller"},
        }));
        causes.record_event(&event, &Knowledge::built_in().recognise(&event), now);
    }

    const FAILED: &str = "Error syncing load balancer: failed to ensure load balancer: RequestLimitExceeded";

    #[test]
    fn a_cause_lasts_until_success_another_failure_or_an_hour() {
        let mut causes = BalancerCauses::default();
        let web = name("shop", "web");
        let now = Instant::now();
        record(&mut causes, ("Pod", &web), "SyncLoadBalancerFailed", FAILED, now);
        assert_eq!(causes.find_cause(&web, now), None, "about something else");
        record(&mut causes, ("Service", &web), "SyncLoadBalancerFailed", FAILED, now);
        record(&mut causes, ("Service", &web), "EnsuringLoadBalancer", "Ensuring load balancer", now);
        assert_eq!(causes.find_cause(&web, now), Some("cloud.rate_limited"));
        assert_eq!(causes.find_cause(&name("shop", "web-2"), now), None);
        assert_eq!(causes.find_cause(&web, now + CAUSE_TTL), None);
        record(&mut causes, ("Service", &web), "SyncLoadBalancerFailed", "nobody knows these words", now);
        assert_eq!(causes.find_cause(&web, now), None, "the last one names none");
        record(&mut causes, ("Service", &web), "SyncLoadBalancerFailed", FAILED, now);
        record(&mut causes, ("Service", &web), "EnsuredLoadBalancer", "Ensured load balancer", now);
        assert_eq!(causes.find_cause(&web, now), None, "done");
    }

    #[test]
    fn a_namespace_with_many_causes_evicts_its_own() {
        let mut causes = BalancerCauses::default();
        let quiet = name("quiet", "web");
        let now = Instant::now();
        record(&mut causes, ("Service", &quiet), "SyncLoadBalancerFailed", FAILED, now);
        for number in 0..1_500 {
            let later = now + Duration::from_millis(number);
            let loud = name("loud", &format!("web-{number}"));
            record(&mut causes, ("Service", &loud), "SyncLoadBalancerFailed", FAILED, later);
        }
        assert_eq!((causes.0.len(), causes.find_cause(&quiet, now).is_some()), (CAUSES_MAX, true));
        let late = name("late", "web");
        record(&mut causes, ("Service", &late), "SyncLoadBalancerFailed", FAILED, now);
        assert!(
            [&quiet, &late].iter().all(|of| causes.find_cause(of, now).is_some()),
            "and makes room for others"
        );
    }
}
