//! The state of a service's load balancer, for tables and explanations.
//!
//! Invariant: everything here comes from this node's own state, without the apiserver. It uses no Events, so whatever
//! only Events show stays open.

use holdfast_core::facts::ServiceFacts;
use holdfast_core::lifecycle::{self, BalancerPhase, BalancerState, FindingId};
use holdfast_core::snapshot::ServiceView;
use holdfast_core::time::ClockReading;
use holdfast_objects::quote_value;
use schemars::JsonSchema;
use serde::Serialize;

use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::Code;

/// The most addresses of a load balancer that are listed; real ones have one or two.
const ADDRESSES_MAX: usize = 16;

/// The load balancer of a Service.
#[derive(Debug, Serialize, JsonSchema)]
pub struct LoadBalancer<'a> {
    /// Its state, as far as the Service shows it.
    pub state: Code<BalancerState>,
    /// Since when; null: the object does not show it.
    pub since: Option<Rfc3339>,
    /// Its addresses and host names; the first 16.
    pub ingress: Vec<String>,
    /// The loadBalancerClass; null: the cluster's default controller.
    pub class: Option<&'a str>,
    /// The most specific problem; null: none is visible without Events.
    pub finding: Option<Code<FindingId>>,
    /// Finalizers that delay the Service's removal.
    pub finalizers: Vec<&'a str>,
    /// The managers that wrote its status, by managedFields.
    pub writers: Vec<&'a str>,
}

impl<'a> LoadBalancer<'a> {
    /// The load balancer of a service. `None`: the service neither has nor requests one.
    pub fn from_view(view: &'a ServiceView, now: ClockReading) -> Option<Self> {
        let facts =
            view.facts.as_deref().filter(|facts| BalancerPhase::from_facts(facts) != BalancerPhase::None)?;
        let found = lifecycle::assess_without_events(facts, view.balancer_history.as_deref(), now);
        let balancer = facts.balancer.as_deref();
        let texts = |texts: &'a [std::sync::Arc<str>]| texts.iter().map(|text| &**text).collect();
        Some(Self {
            state: Code(found.state),
            since: found.since.map(Rfc3339),
            ingress: ingress(facts),
            class: balancer.and_then(|it| it.class.as_deref()),
            finding: found.findings.first().map(|it| Code(it.id)),
            finalizers: balancer.map(|it| texts(&it.finalizers)).unwrap_or_default(),
            writers: balancer.map(|it| texts(&it.writers)).unwrap_or_default(),
        })
    }

    /// The finding, or else the state, as one word for a table's cell.
    pub fn word(&self) -> &'static str {
        self.finding.map_or(self.state.0.as_str(), |finding| finding.0.as_str())
    }

    /// Describes the load balancer for people. `service` is `namespace/name`.
    pub fn sentence(&self, service: &str) -> String {
        let since = self.since.map(|since| format!(", since {since}")).unwrap_or_default();
        let state = self.describe_state();
        match self.finding.map(|finding| self.describe_finding(finding.0, service)) {
            Some(finding) => format!("{state}{since}. {finding}."),
            None => format!("{state}{since}."),
        }
    }

    fn describe_state(&self) -> String {
        match self.state.0 {
            BalancerState::None => "none is asked for".to_owned(),
            BalancerState::Foreign => {
                format!(
                    "no address; it is left to the controller of class {}",
                    quote_value(self.class.unwrap_or(""))
                )
            }
            BalancerState::Requested => "no address, and no finalizer of a controller".to_owned(),
            BalancerState::Ensuring | BalancerState::Creating | BalancerState::Failing => {
                format!("no address; a controller has put its finalizer ({})", join_names(&self.finalizers))
            }
            BalancerState::Ready | BalancerState::Updating | BalancerState::Degraded => {
                format!("at {}", join_names(&self.ingress))
            }
            BalancerState::Deleting | BalancerState::DeleteFailing => {
                format!("being removed; kept by the finalizers {}", join_names(&self.finalizers))
            }
            BalancerState::Deleted => "nothing keeps the Service from going".to_owned(),
        }
    }

    fn describe_finding(&self, id: FindingId, service: &str) -> String {
        match id {
            FindingId::Flapping => {
                format!(
                    "Its address changed three times in ten minutes; written by {}",
                    join_names(&self.writers)
                )
            }
            FindingId::DeleteStuck => {
                "That takes too long; the log of the controller that owns the finalizer says why".to_owned()
            }
            // Whatever delays the load balancer, the Service's Events are the next place to look.
            FindingId::Pending
            | FindingId::EnsuredNoIngress
            | FindingId::Failing
            | FindingId::NoNodes
            | FindingId::NoController
            | FindingId::ClassUnserved
            | FindingId::StuckEnsuring
            | FindingId::Degraded
            | FindingId::OrphanRisk => {
                let (namespace, name) = service.split_once('/').unwrap_or(("", service));
                let ask = format!("kubectl -n {namespace} describe service {name}");
                format!("That takes too long; the Events of the Service may say why ({ask})")
            }
        }
    }
}

fn ingress(facts: &ServiceFacts) -> Vec<String> {
    let names = facts.balancer.iter().flat_map(|it| &it.hostnames).map(ToString::to_string);
    facts.ingress.iter().map(|it| it.address.to_string()).chain(names).take(ADDRESSES_MAX).collect()
}

/// Lists texts of an object. Quotes those that could pass for several texts or for our own words.
fn join_names(texts: &[impl AsRef<str>]) -> String {
    match texts {
        [] => "an unknown writer".to_owned(),
        texts => texts.iter().map(|text| quote_unless_plain(text.as_ref())).collect::<Vec<_>>().join(", "),
    }
}

fn quote_unless_plain(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/' | ':');
    if text.chars().all(is_plain) { text.to_owned() } else { quote_value(text) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use holdfast_core::facts::{BalancerFacts, Ingress, ServiceType, Timestamp};
    use holdfast_core::keys::{ObjectName, ServiceKey, Source};
    use holdfast_core::snapshot::ServiceState;

    use super::*;

    const NOW: ClockReading = ClockReading { wall: Timestamp(1_767_870_715), mono: Duration::from_secs(60) };

    fn view(change: impl FnOnce(&mut ServiceFacts, &mut BalancerFacts)) -> ServiceView {
        let name = ObjectName::new("shop", "web").unwrap();
        let key = ServiceKey { name, source: Source::Kubernetes };
        let mut facts = ServiceFacts::new(key.clone(), ServiceType::LoadBalancer);
        facts.meta.created = Some(Timestamp(NOW.wall.0 - 599));
        let mut balancer = BalancerFacts::default();
        change(&mut facts, &mut balancer);
        facts.balancer = Some(Box::new(balancer));
        ServiceView {
            key,
            facts: Some(Arc::new(facts)),
            slices: Arc::default(),
            state: ServiceState::Served,
            ports: Box::default(),
            frontends: Box::default(),
            balancer_history: None,
        }
    }

    #[track_caller]
    fn check(view: &ServiceView, word: &str, sentence: &str) {
        let found = LoadBalancer::from_view(view, NOW).unwrap();
        assert_eq!((found.word(), &*found.sentence("shop/web")), (word, sentence));
    }

    #[test]
    fn each_state_that_the_object_shows_has_its_words() {
        let since = "since 2026-01-08T11:01:56Z";
        let cleanup = "service.kubernetes.io/load-balancer-cleanup";
        let requested = view(|_, _| ());
        check(&requested, "requested", &format!("no address, and no finalizer of a controller, {since}."));
        let foreign = view(|_, it| it.class = Some("example.com/own".into()));
        let expected =
            format!("no address; it is left to the controller of class \"example.com/own\", {since}.");
        check(&foreign, "foreign", &expected);
        let ensuring = view(|_, it| it.finalizers = [cleanup.into()].into());
        let expected = format!("no address; a controller has put its finalizer ({cleanup}), {since}.");
        check(&ensuring, "ensuring", &expected);
        let ready = view(|facts, it| {
            facts.ingress = vec![Ingress { address: [203, 0, 113, 7].into(), proxied: false }];
            it.hostnames = ["web.example.com".into()].into();
        });
        check(&ready, "ready", &format!("at 203.0.113.7, web.example.com, {since}."));
        let deleting = view(|_, it| {
            it.finalizers = [cleanup.into()].into();
            it.deleted = Some(Timestamp(NOW.wall.0 - 20));
        });
        let expected =
            format!("being removed; kept by the finalizers {cleanup}, since 2026-01-08T11:11:35Z.");
        check(&deleting, "deleting", &expected);
    }

    #[test]
    fn a_late_load_balancer_says_where_to_look() {
        let late = view(|facts, _| facts.meta.created = Some(Timestamp(NOW.wall.0 - 600)));
        let expected = "no address, and no finalizer of a controller, since 2026-01-08T11:01:55Z. That takes too long; the \
                    Events of the Service may say why (kubectl -n shop describe service web).";
        check(&late, "lb.pending", expected);
    }

    #[test]
    fn a_service_without_a_load_balancer_has_nothing_of_it() {
        let view = view(|facts, _| facts.kind = ServiceType::ClusterIp);
        assert!(LoadBalancer::from_view(&view, NOW).is_none());
    }

    /// A folder of manifests accepts any text.
    #[test]
    fn control_characters_of_an_object_are_not_shown() {
        let view = view(|_, it| it.finalizers = ["load-balancer\n\u{1b}[2J all is well".into()].into());
        let sentence = LoadBalancer::from_view(&view, NOW).unwrap().sentence("shop/web");
        assert!(!sentence.chars().any(char::is_control), "{sentence:?}");
    }
}
