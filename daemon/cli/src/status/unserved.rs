//! The services that clients do not reach as usual, in groups of one cause.
//!
//! Invariant: every service is counted in exactly one group, and a group names its newest services.

use std::collections::BTreeMap;

use holdfast_core::health::Health;
use serde::Serialize;

use super::Service;

/// The most services that one group names.
const NAMED_MAX: usize = 3;

/// One service, and what its clients meet.
#[derive(Debug, Serialize)]
pub(super) struct NotServing {
    service: String,
    pub(super) verdict: String,
    reason: Option<String>,
    /// `outage`: clients fail, and nobody asked for it.
    health: String,
    since: Option<String>,
    /// The service that has its address.
    owner: Option<String>,
    /// Whether it has several frontends, of which others may serve.
    #[serde(skip)]
    has_several: bool,
}

impl NotServing {
    /// The service, unless its verdict is normal: serving, or bypassed.
    pub(super) fn from_service(service: &Service) -> Option<Self> {
        let is_normal = |verdict: &String| matches!(verdict.as_str(), "serving" | "bypassed");
        let verdict = service.verdict.clone().filter(|verdict| !is_normal(verdict))?;
        let Service { service, reason, health, since, owner, frontends, .. } = service;
        Some(Self {
            service: service.clone(),
            verdict,
            reason: reason.clone(),
            health: health.clone(),
            since: since.clone(),
            owner: owner.clone(),
            has_several: *frontends > 1,
        })
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// Whether clients fail, and nobody asked for it.
    pub(super) fn is_outage(&self) -> bool {
        // A daemon that an upgrade has not replaced yet does not tell.
        self.health.is_empty() || self.health == Health::Outage.as_str()
    }

    fn cause(&self) -> String {
        let reason = self.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        format!("{}{reason}", self.verdict)
    }

    fn name(&self) -> String {
        match &self.owner {
            Some(owner) if self.has_several => {
                format!("{} ({owner} has one of its addresses)", self.service)
            }
            Some(owner) => format!("{} ({owner} has its address)", self.service),
            None => self.service.clone(),
        }
    }
}

/// One line for each cause, that with the newest service first, and the command that says what to do.
pub(super) fn describe_groups<'a>(all: impl IntoIterator<Item = &'a NotServing>) -> Vec<String> {
    let mut groups: BTreeMap<String, Vec<&NotServing>> = BTreeMap::new();
    all.into_iter().for_each(|it| groups.entry(it.cause()).or_default().push(it));
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.iter_mut().for_each(|(_, members)| members.sort_by(|a, b| b.since.cmp(&a.since)));
    let newest = |members: &[&NotServing]| members.first().and_then(|it| it.since.clone());
    groups.sort_by_key(|(_, members)| std::cmp::Reverse(newest(members)));
    let next = groups.first().and_then(|(_, members)| members.first());
    let next = next.map(|it| format!("next: holdfast diagnose {}", it.service));
    groups.iter().map(|(cause, members)| describe_group(cause, members)).chain(next).collect()
}

fn describe_group(cause: &str, members: &[&NotServing]) -> String {
    let since = members.first().and_then(|it| it.since.as_deref());
    let since = match (since, members) {
        (None, _) => String::new(),
        (Some(since), [_]) => format!(" since {since}"),
        (Some(since), _) => format!(", the latest since {since}"),
    };
    let named: Vec<String> = members.iter().take(NAMED_MAX).map(|it| it.name()).collect();
    let more = match members.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{} {cause}{since}: {}{more}", members.len(), named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, verdict: &str, since: u32) -> NotServing {
        NotServing {
            service: format!("demo/{name}"),
            verdict: verdict.to_owned(),
            reason: Some("scaled-down".to_owned()),
            health: "intended".to_owned(),
            since: Some(format!("2026-01-08T11:11:{since:02}Z")),
            owner: (verdict == "conflict").then(|| "demo/first".to_owned()),
            has_several: false,
        }
    }

    #[test]
    fn many_services_of_one_cause_are_one_line_and_the_newest_cause_is_first() {
        let mut all: Vec<_> =
            (0..50).map(|number| service(&format!("s{number}"), "refusing", number)).collect();
        all.push(service("thief", "conflict", 59));
        assert_eq!(
            describe_groups(&all),
            [
                "1 conflict (scaled-down) since 2026-01-08T11:11:59Z: demo/thief (demo/first has its address)",
                "50 refusing (scaled-down), the latest since 2026-01-08T11:11:49Z: demo/s49, demo/s48, demo/s47 and 47 more",
                "next: holdfast diagnose demo/thief",
            ]
        );
        let partly = NotServing { has_several: true, ..service("thief", "conflict", 59) };
        assert_eq!(partly.name(), "demo/thief (demo/first has one of its addresses)");
        assert!(describe_groups(&[]).is_empty());
    }
}
