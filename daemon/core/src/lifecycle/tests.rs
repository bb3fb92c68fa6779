//! Life cycles as tables: what the object says, what was told, what comes of it.

mod endpoints;
mod findings;
mod properties;
mod seen;
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

/// `lb`: of that type; `cleanup`, `other`: finalizers; `class`; `ip`, `host`: entries of the status; `age=`,
/// `deleted=`, `written=`: so many seconds ago.
pub(super) fn service(said: &str) -> ServiceFacts {
    let name = ObjectName::new("shop", "web").unwrap();
    let key = ServiceKey { name, source: Source::Kubernetes };
    let mut facts = ServiceFacts::new(key, ServiceType::ClusterIp);
    let mut balancer = BalancerFacts::default();
    let mut finalizers: Vec<Arc<str>> = Vec::new();
    for word in said.split_whitespace() {
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

/// `Ensuring-40`: said 40 seconds ago; `SyncFailed-38x7!`: the last of seven times, and open;
/// `SyncFailed-38/90!:quota`: first 90 seconds ago, with its cause; `DeleteFailed-5!:held*`: a cause that strands what
/// is removed; `Ensured-?`: at no time.
pub(super) fn statements(said: &str) -> Vec<BalancerEvent> {
    said.split_whitespace().map(one_statement).collect()
}

fn one_statement(said: &str) -> BalancerEvent {
    let (said, cause) = said.split_once(':').map_or((said, None), |(said, cause)| (said, Some(cause)));
    let (said, is_open) = said.strip_suffix('!').map_or((said, false), |said| (said, true));
    let (said, count) = said.split_once('x').unwrap_or((said, "1"));
    let (word, ago) = said.split_once('-').unwrap();
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

/// `events`: as [`statement`] reads them; `-`: they were not read.
pub(super) fn look(object: &str, events: &str, controller: ControllerLiveness) -> BalancerStatus {
    let (facts, told) = (service(object), if events == "-" { Vec::new() } else { statements(events) });
    let heard = if events == "-" { EventReading::NotRead } else { EventReading::All(&told) };
    assess_balancer(&BalancerInput {
        facts: Some(&facts),
        history: None,
        events: heard,
        controller,
        now: NOW,
    })
}

pub(super) fn shown(findings: &[Finding]) -> Vec<String> {
    let word =
        |it: &Finding| it.id.as_str().trim_start_matches("lb.").to_owned() + " " + it.severity.as_str();
    findings.iter().map(word).collect()
}

/// Seconds in the state.
pub(super) fn seconds(found: &BalancerStatus) -> Option<i64> {
    found.since.map(|since| WALL - since.0)
}
