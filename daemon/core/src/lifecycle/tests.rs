//! Life cycles as tables: an object, its Events, and the result.

mod endpoints;
mod findings;
mod history;
mod properties;
mod states;

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::time::Duration;

use super::*;
use crate::facts::{BalancerFacts, Ingress, ServiceType};
use crate::keys::{ObjectName, ServiceKey, Source};

const WALL: i64 = 1_767_870_715;
pub(super) const NOW: ClockReading = ClockReading { wall: Timestamp(WALL), mono: Duration::from_secs(5_000) };

const CLEANUP: &str = "service.kubernetes.io/load-balancer-cleanup";

/// `lb`: of type LoadBalancer; `cleanup`, `other`: finalizers; `class`; `ip`, `host`: entries of the status; `age=`,
/// `deleted=`, `written=`: this many seconds ago.
pub(super) fn service(words: &str) -> ServiceFacts {
    let name = ObjectName::new("shop", "web").unwrap();
    let key = ServiceKey { name, source: Source::Kubernetes };
    let mut facts = ServiceFacts::new(key, ServiceType::ClusterIp);
    let mut balancer = BalancerFacts::default();
    let mut finalizers: Vec<Arc<str>> = Vec::new();
    for word in words.split_whitespace() {
        let (word, ago) = word.split_once('=').unwrap_or((word, "0"));
        let then = Some(Timestamp(WALL - ago.parse::<i64>().unwrap()));
        match word {
            "lb" => facts.kind = ServiceType::LoadBalancer,
            "cleanup" => finalizers.push(CLEANUP.into()),
            "other" => finalizers.push("example.com/audit".into()),
            "class" => balancer.class = Some("example.com/own".into()),
            "ip" => facts.ingress.push(Ingress { address: [203, 0, 113, 7].into(), proxied: false }),
            "host" => balancer.hostnames = ["web.example.com".into()].into(),
            "age" => facts.meta.created = then,
            "deleted" => balancer.deleted = then,
            "written" => balancer.written = then,
            other => panic!("{other}"),
        }
    }
    balancer.finalizers = finalizers.into();
    facts.balancer = Some(Box::new(balancer));
    facts
}

/// `Ensuring-40`: 40 seconds ago; `SyncFailed-38x7!`: the last of seven, and open; `SyncFailed-38/90!:quota`: first 90
/// seconds ago, with its cause; `DeleteFailed-5!:held*`: a cause that leaves resources at the provider; `Ensured-?`:
/// without a time.
pub(super) fn parse_events(text: &str) -> Vec<BalancerEvent> {
    text.split_whitespace().map(parse_event).collect()
}

fn parse_event(text: &str) -> BalancerEvent {
    let (text, cause) = text.split_once(':').map_or((text, None), |(text, cause)| (text, Some(cause)));
    let (text, is_open) = text.strip_suffix('!').map_or((text, false), |text| (text, true));
    let (text, count) = text.split_once('x').unwrap_or((text, "1"));
    let (word, ago) = text.split_once('-').unwrap();
    let (last, first) = ago.split_once('/').unwrap_or((ago, ago));
    let at = |ago: &str| Timestamp(ago.parse::<i64>().map_or(-62_135_596_800, |ago| WALL - ago));
    let meaning = Meaning::ALL.into_iter().find(|it| alloc::format!("{it:?}") == word);
    BalancerEvent {
        meaning: meaning.unwrap_or_else(|| panic!("{word}")),
        first: at(first),
        last: at(last),
        count: count.parse().unwrap(),
        is_open,
        cause: cause.map(|cause| cause.trim_end_matches('*').into()),
        strands: cause.is_some_and(|cause| cause.ends_with('*')),
    }
}

/// `events`: for [`parse_events`]; `-`: they were not read.
pub(super) fn look(object: &str, events: &str, controller: ControllerLiveness) -> BalancerStatus {
    let (facts, all) = (service(object), if events == "-" { Vec::new() } else { parse_events(events) });
    let reading = if events == "-" { EventReading::NotRead } else { EventReading::All(&all) };
    assess_balancer(&BalancerInput {
        facts: Some(&facts),
        history: None,
        events: reading,
        controller,
        now: NOW,
    })
}

pub(super) fn shown(findings: &[Finding]) -> Vec<String> {
    let word =
        |it: &Finding| it.id.as_str().trim_start_matches("lb.").to_owned() + " " + it.severity.as_str();
    findings.iter().map(word).collect()
}

pub(super) fn seconds(found: &BalancerStatus) -> Option<i64> {
    found.since.map(|since| WALL - since.0)
}
