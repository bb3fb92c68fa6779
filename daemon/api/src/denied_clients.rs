//! Lists who was turned away lately, grouped by service and cause: a client that a rule keeps out is no outage, and its
//! owner rings all the same.
//!
//! Invariant: a frontend that is not served now has its own line elsewhere, so its clients are not listed again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{FrontendKey, ObjectName, Transport};
use holdfast_core::snapshot::Snapshot;
use holdfast_status::datapath::Denial;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::{Code, Text};
use holdfast_status::views::refusals::{Cause, DENIALS, DeniedClient, Owners, denial_word};
use schemars::JsonSchema;
use serde::Serialize;

use holdfast_agent::datapath::{RefusalSnapshot, Stage};

/// The most groups that an answer names: as many as fit on a screen.
const NAMED_MAX: usize = 10;

/// The most clients of a group that are named.
const CLIENTS_MAX: usize = 3;

/// Clients that were turned away at one frontend for one cause, within five minutes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DeniedClients")]
pub(super) struct DeniedClientsRow {
    /// `namespace/name` of the current service of the frontend; null if there is none.
    service: Option<Text<ObjectName>>,
    /// What the clients dialled.
    frontend: Text<SocketAddr>,
    protocol: Code<Transport>,
    #[schemars(extend("enum" = DENIALS))]
    verdict: &'static str,
    cause: Code<Cause>,
    /// The cause in words.
    why: &'static str,
    stage: Code<Stage>,
    /// How many packets or tries.
    count: u64,
    /// The first clients, the latest one first: addresses, or processes of this node.
    clients: Vec<String>,
    /// How many more clients there are.
    more_clients: usize,
    /// The latest of them.
    last: Rfc3339,
}

type Group<'a> = (FrontendKey, Denial, Cause, Stage, Vec<&'a DeniedClient>);

/// The latest groups, those that met a shortage of this node first, and how many more there are.
pub(super) fn list_denied(
    snapshot: &Snapshot,
    refusals: &RefusalSnapshot,
    now: Timestamp,
) -> (Vec<DeniedClientsRow>, usize) {
    let recent: Vec<&DeniedClient> =
        refusals.latest.iter().rev().map(|it| &**it).filter(|it| it.is_recent(now)).collect();
    let owners = Owners::from_snapshot(snapshot, recent.iter().map(|it| it.refusal.frontend));
    let is_told_elsewhere = |it: &DeniedClient| {
        let owner = owners.find_denied_owner(&it.refusal);
        it.refusal.cause == Cause::NoBackend && owner.is_some_and(|(_, frontend)| frontend.reason.is_some())
    };
    let mut groups = group_clients(recent.into_iter().filter(|it| !is_told_elsewhere(it)));
    groups.sort_by_key(|(_, _, cause, ..)| !cause.is_shortage());
    let more = groups.len().saturating_sub(NAMED_MAX);
    groups.truncate(NAMED_MAX);
    let find_service = |it: &DeniedClient| {
        owners.find_denied_owner(&it.refusal).map(|(view, _)| Text(view.key.name.clone()))
    };
    let row = |(key, denial, cause, stage, clients): Group<'_>| DeniedClientsRow {
        service: clients.first().and_then(|it| find_service(it)),
        frontend: Text(SocketAddr::new(key.address, key.port.get())),
        protocol: Code(key.transport),
        verdict: denial_word(denial),
        cause: Code(cause),
        why: cause.describe(),
        stage: Code(stage),
        count: clients.iter().map(|it| it.count).sum(),
        clients: clients.iter().take(CLIENTS_MAX).map(|it| describe_client(it)).collect(),
        more_clients: clients.len().saturating_sub(CLIENTS_MAX),
        last: Rfc3339(clients.iter().map(|it| it.last).max().unwrap_or(now)),
    };
    (groups.into_iter().map(row).collect(), more)
}

/// What the clients dialled that met a shortage of this node within five minutes.
pub(super) fn find_shortages(refusals: &RefusalSnapshot, now: Timestamp) -> BTreeSet<FrontendKey> {
    let short = refusals.latest.iter().filter(|it| it.is_recent(now) && it.refusal.cause.is_shortage());
    short.map(|it| it.refusal.frontend).collect()
}

/// Groups clients, which come the latest first, and so do the groups.
fn group_clients<'a>(clients: impl Iterator<Item = &'a DeniedClient>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut places = BTreeMap::new();
    for it in clients {
        let (refusal, stage) = (&it.refusal, Stage::from_refusal(&it.refusal));
        let key = (refusal.frontend, denial_word(refusal.denial), refusal.cause.as_str(), stage.as_str());
        let place = *places.entry(key).or_insert_with(|| {
            groups.push((refusal.frontend, refusal.denial, refusal.cause, stage, Vec::new()));
            groups.len() - 1
        });
        if let Some((.., clients)) = groups.get_mut(place) {
            clients.push(it);
        }
    }
    groups
}

fn describe_client(it: &DeniedClient) -> String {
    match it.refusal.arrival {
        Some(arrival) => arrival.source.ip().to_string(),
        None => format!("{} (pid {})", it.refusal.comm, it.refusal.process),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use holdfast_fixtures::everything;
    use holdfast_status::views::refusals::RECENT_SECONDS;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::turned_away_outside;

    const NOW: Timestamp = Timestamp(1_000);

    fn denied(last: i64, source: &str, frontend: &str, cause: Cause) -> Arc<DeniedClient> {
        let mut refusal = turned_away_outside();
        let address: SocketAddr = frontend.parse().unwrap();
        refusal.frontend.address = address.ip();
        refusal.frontend.port = address.port().try_into().unwrap();
        (refusal.cause, refusal.denial) = (cause, Denial::Dropped);
        refusal.arrival =
            Some(holdfast_status::datapath::Arrival { source: source.parse().unwrap(), device: 1 });
        Arc::new(DeniedClient { first: Timestamp(last), last: Timestamp(last), count: 40, refusal })
    }

    fn list(latest: Vec<Arc<DeniedClient>>) -> (Vec<Value>, usize) {
        let refusals = RefusalSnapshot { latest, ..RefusalSnapshot::default() };
        let (rows, more) = list_denied(&everything(), &refusals, NOW);
        (rows.iter().map(|row| serde_json::to_value(row).unwrap()).collect(), more)
    }

    #[test]
    fn clients_of_one_frontend_and_cause_are_one_row() {
        let at = "192.0.2.5:30080";
        let (rows, more) = list(vec![
            denied(NOW.0 - RECENT_SECONDS - 1, "10.2.0.1:1", at, Cause::Source),
            denied(NOW.0 - 9, "10.2.0.2:1", at, Cause::Source),
            denied(NOW.0 - 4, "10.2.0.3:1", at, Cause::Source),
        ]);
        assert_eq!(more, 0);
        let row = json!({
            "service": "default/web", "frontend": at, "protocol": "TCP", "verdict": "dropped", "cause": "source",
            "why": "not in loadBalancerSourceRanges", "stage": "packet", "count": 80, "clients": ["10.2.0.3", "10.2.0.2"], "more_clients": 0,
            "last": "1970-01-01T00:16:36Z",
        });
        assert_eq!(rows, [row], "the third was turned away before");
    }

    #[test]
    fn clients_of_a_frontend_that_is_not_served_are_not_listed_again() {
        let unserved = denied(NOW.0, "10.2.0.2:1", "10.96.0.20:80", Cause::NoBackend);
        let served = denied(NOW.0, "10.2.0.2:1", "192.0.2.5:30080", Cause::NoBackend);
        let rows = list(vec![unserved, served]).0;
        assert_eq!(rows.iter().map(|it| &it["frontend"]).collect::<Vec<_>>(), ["192.0.2.5:30080"]);
    }

    #[test]
    fn a_shortage_of_the_node_is_not_cut_off_by_rules_of_services() {
        let mut all = vec![denied(NOW.0 - 9, "10.2.0.2:1", "192.0.2.5:30080", Cause::Ports)];
        all.extend(
            (1..=12).map(|port| denied(NOW.0, "10.2.0.2:1", &format!("10.9.9.9:{port}"), Cause::NoSuchPort)),
        );
        assert_eq!(list(all).0[0]["cause"], "ports");
    }

    #[test]
    fn groups_and_clients_beyond_the_limit_are_counted() {
        let mut all: Vec<_> = (1..=12)
            .map(|port| denied(NOW.0, "10.2.0.2:1", &format!("10.9.9.9:{port}"), Cause::Flows))
            .collect();
        all.extend(
            (1..=5).map(|host| denied(NOW.0, &format!("10.2.0.{host}:1"), "10.9.9.9:99", Cause::Ports)),
        );
        let (rows, more) = list(all);
        assert_eq!((rows.len(), more), (NAMED_MAX, 3));
        assert_eq!((rows[0]["clients"].as_array().unwrap().len(), &rows[0]["more_clients"]), (3, &json!(2)));
        assert_eq!(rows[0]["service"], Value::Null);
    }
}
