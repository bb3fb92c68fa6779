//! Judges whether this node may get traffic, and formats that as kube-proxy does.
//!
//! Invariant: healthy means that the maps were up to date not long ago. Only the last such observation counts, so the
//! node is unhealthy in bounded time once the engine or its publisher stalls. An error of one Service does not affect
//! the node, nor does an unreachable apiserver: the remembered state is served.

use std::collections::BTreeMap;
use std::time::{Instant, SystemTime};

use holdfast_core::keys::Family;
use serde::Serialize;

use super::limits;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    /// When the node was last healthy; `None` until the maps are up to date for the first time.
    pub(super) last_healthy: Option<HealthyTime>,
    /// Whether the node is to be deleted.
    pub(super) is_leaving: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct HealthyTime {
    pub(super) at: SystemTime,
    pub(super) instant: Instant,
}

impl Health {
    pub(super) fn is_healthy(&self, now: Instant) -> bool {
        self.last_healthy
            .is_some_and(|well| now.saturating_duration_since(well.instant) < limits::HEALTHY_WITHIN)
    }

    /// The response at this time; `with_node` adds whether the node stays.
    pub(super) fn build_response(&self, now: HealthyTime, with_node: bool) -> HealthJson {
        let healthy = self.is_healthy(now.instant);
        let eligible = with_node.then_some(!self.is_leaving);
        let is_good = healthy && eligible != Some(false);
        let last = self.last_healthy.map_or_else(|| NEVER.to_owned(), |well| format_time(well.at));
        let family = FamilyJson { last_updated: last.clone(), healthy };
        let families = self.last_healthy.map(|_| Family::ALL.map(|it| (it.as_str(), family.clone())).into());
        let current_time = format_time(now.at);
        let last_updated = if is_good { current_time.clone() } else { last };
        let status = families.unwrap_or_default();
        HealthJson { last_updated, current_time, node_eligible: eligible, healthy, status, is_good }
    }
}

fn format_time(at: SystemTime) -> String {
    holdfast_host::clock::millis(at).to_string()
}

/// Go's zero time, as kube-proxy writes it.
const NEVER: &str = "0001-01-01T00:00:00Z";

/// kube-proxy's response, member for member and in its order.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HealthJson {
    /// The time of the response if it is good; else the time when the node was last healthy.
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<&'static str, FamilyJson>,
    #[serde(skip)]
    pub(super) is_good: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyJson {
    last_updated: String,
    healthy: bool,
}
