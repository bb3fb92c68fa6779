//! Lists the backends that refuse clients, or never answer clients from outside.
//!
//! Invariant: a backend is listed while its service sends it clients. One that is on its way out may refuse late
//! connections, unless no other is left. Any host may forge a refusal in a backend's name, so this is a reason to look,
//! as a diagnosis does. Sockets of this node leave no flow. Only an RST shows what they met, so those that wait in vain
//! are not known.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use holdfast_core::keys::{FrontendKey, ObjectName, Transport};
use holdfast_core::snapshot::Snapshot;
use holdfast_status::datapath::{BackendFailure, Status};
use holdfast_status::rfc3339::Millis;
use holdfast_status::schema_types::{Code, Text};
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::refusals::{FrontendOwner, Owners};
use schemars::JsonSchema;
use serde::Serialize;

/// The most backends that an answer names: as many as fit on a screen.
const NAMED_MAX: usize = 10;

/// A backend that has failed clients, and that no later client has shown to work.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FailingBackend")]
pub(super) struct FailingBackendRow {
    /// As `namespace/name`.
    service: Text<ObjectName>,
    backend: Text<SocketAddr>,
    /// What the clients dialled.
    frontend: Text<SocketAddr>,
    protocol: Code<Transport>,
    how: Code<BackendFailure>,
    /// When a client last met that.
    at: Millis,
}

/// Backends with what their clients meet, and when they last did, by what those dialled.
type Failures = BTreeMap<(SocketAddr, Transport), BTreeMap<(SocketAddr, BackendFailure), Millis>>;

/// A backend that fails the clients of a frontend, which sends clients to it.
pub(super) struct Failing<'a> {
    pub(super) owner: FrontendOwner<'a>,
    pub(super) backend: SocketAddr,
    pub(super) how: BackendFailure,
    /// What the clients dialled.
    dialled: (SocketAddr, Transport),
    at: Millis,
}

/// All backends that fail clients.
pub(super) fn find_failing<'a>(snapshot: &'a Snapshot, datapath: &DatapathView) -> Vec<Failing<'a>> {
    let failures = collect_failures(datapath);
    let owners = Owners::from_snapshot(snapshot, failures.keys().filter_map(dialled_key));
    let mut all = Vec::new();
    for (dialled, backends) in failures {
        let Some(key) = dialled_key(&dialled) else { continue };
        all.extend(backends.into_iter().filter_map(|((backend, how), at)| {
            let owner = owners.find_failing_owner(&key, backend)?;
            Some(Failing { owner, backend, how, dialled, at })
        }));
    }
    all
}

fn dialled_key((address, transport): &(SocketAddr, Transport)) -> Option<FrontendKey> {
    FrontendKey::from_socket(*address, *transport)
}

/// The first backends that fail clients, and how many more there are.
pub(super) fn list_failing(snapshot: &Snapshot, datapath: &DatapathView) -> (Vec<FailingBackendRow>, usize) {
    let all = find_failing(snapshot, datapath);
    let more = all.len().saturating_sub(NAMED_MAX);
    let row = |it: Failing<'_>| FailingBackendRow {
        service: Text(it.owner.0.key.name.clone()),
        backend: Text(it.backend),
        frontend: Text(it.dialled.0),
        protocol: Code(it.dialled.1),
        how: Code(it.how),
        at: it.at,
    };
    (all.into_iter().take(NAMED_MAX).map(row).collect(), more)
}

/// How many backends have failed clients in each way within half a minute. One that its service has let go of counts
/// until clients do not meet it.
pub(crate) fn count_failing(status: &Status) -> [(BackendFailure, usize); BackendFailure::ALL.len()] {
    BackendFailure::ALL.map(|how| {
        let failures = status.failures_of_kind(how);
        let recent = failures.iter().filter(|(_, seen)| status.is_recent(**seen));
        (how, recent.map(|(it, _)| it.backend()).collect::<BTreeSet<_>>().len())
    })
}

fn collect_failures(datapath: &DatapathView) -> Failures {
    let mut failures = Failures::new();
    let Some(status) = datapath.status() else { return failures };
    for (it, how, seen) in status.backend_failures() {
        let backends = failures.entry((it.frontend, it.transport)).or_default();
        backends.insert((it.backend, how), status.time_at(seen));
    }
    failures
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_core::op::QuotaId;
    use holdfast_status::datapath::{
        BackendRefusal, FlowSample, FlowStatus, FlowSweepProgress, RefusedConnects,
    };
    use serde_json::{Value, json};

    use super::*;
    use crate::fixture::{everything, many, status};

    /// A backend that never answers, in each of these tests.
    const SILENT: (&str, &str) = ("10.96.0.0:80", "10.200.0.1:8080");

    /// The rows for refusals of frontends and their backends.
    fn list_refused(snapshot: &Snapshot, refused: &[(&str, &str)]) -> (Vec<Value>, usize) {
        let refusal = |(frontend, backend): &(&str, &str)| BackendRefusal {
            quota: QuotaId(1),
            frontend: frontend.parse().unwrap(),
            transport: if frontend.ends_with(":53") { Transport::Udp } else { Transport::Tcp },
            backend: backend.parse().unwrap(),
        };
        let backend_refusals = refused.iter().map(|it| (refusal(it), 970)).collect();
        let silent = BackendRefusal { quota: QuotaId(1), ..refusal(&SILENT) };
        let silent_backends = [(silent, 970)].into();
        let sweep = FlowSweepProgress { backend_refusals, silent_backends, ..FlowSweepProgress::default() };
        let mut status = status();
        status.flows = Some(FlowStatus { sweep, sample: FlowSample::default() });
        let (rows, more) = list_failing(snapshot, &DatapathView::for_kernel(status));
        (rows.iter().map(|row| serde_json::to_value(row).unwrap()).collect(), more)
    }

    /// One row, at a node port.
    pub(crate) fn row() -> Value {
        list_refused(&everything(), &[("192.0.2.5:30080", "10.1.0.1:8080")]).0.remove(0)
    }

    #[test]
    fn a_backend_is_listed_while_its_service_sends_it_clients() {
        let web = json!({
            "service": "default/web", "backend": "10.1.0.1:8080", "frontend": "192.0.2.5:30080", "protocol": "TCP",
            "how": "refused", "at": "2026-01-08T11:14:31.500Z",
        });
        assert_eq!(row(), web);
        let gone = [("192.0.2.5:30080", "10.1.0.77:8080"), ("203.0.113.1:80", "10.1.0.1:8080")];
        assert_eq!(
            list_refused(&everything(), &gone),
            (Vec::new(), 0),
            "no backend of it, and nobody's address"
        );
    }

    #[test]
    fn a_backend_on_its_way_out_is_listed_while_no_other_is_left() {
        let (rows, _) = list_refused(&everything(), &[("10.96.0.53:53", "10.1.0.9:53")]);
        assert_eq!((&rows[0]["backend"], &rows[0]["how"]), (&json!("10.1.0.9:53"), &json!("refused")));
        let beside_another = [("10.96.0.53:53", "10.1.0.8:53")];
        assert_eq!(list_refused(&everything(), &beside_another), (Vec::new(), 0));
    }

    /// Without packet programs there is no flow table, and sockets are refused all the same.
    #[test]
    fn a_backend_that_refuses_sockets_is_listed_without_a_flow_table() {
        let [frontend, backend] = ["10.96.0.0:80", "10.200.0.1:8080"].map(|it| it.parse().unwrap());
        let refusal = BackendRefusal { quota: QuotaId(1), frontend, transport: Transport::Tcp, backend };
        let list = |now| {
            let refusals = [(refusal, 970)].into();
            let refused_connects = RefusedConnects { refusals, failure: None };
            let status = Status { now, refused_connects, flows: None, ..status() };
            let counts = count_failing(&status).map(|(_, count)| count);
            (list_failing(&many(1, 14), &DatapathView::for_kernel(status)).0.len(), counts)
        };
        assert_eq!(list(1000), (1, [1, 0]));
        assert_eq!(list(1001), (1, [0, 0]), "the metric counts what is recent");
        assert_eq!(list(1271), (0, [0, 0]));
    }

    #[test]
    fn failing_backends_of_one_service_do_not_hide_those_of_another() {
        // Nobody has these addresses now, and each comes before that of the service.
        let others: Vec<String> = (0..40).map(|number| format!("10.1.0.{number}:80")).collect();
        let gone = others.iter().map(|it| (it.as_str(), "10.9.9.9:80"));
        let refused: Vec<_> = gone.chain([("192.0.2.5:30080", "10.1.0.1:8080")]).collect();
        let (rows, more) = list_refused(&everything(), &refused);
        assert_eq!((rows.len(), more), (1, 0));
        assert_eq!(rows[0]["service"], "default/web");
    }

    #[test]
    fn backends_beyond_the_limit_are_counted() {
        let backends: Vec<String> = (1..=14).map(|number| format!("10.200.0.{number}:8080")).collect();
        let refused: Vec<_> = backends.iter().map(|it| ("10.96.0.0:80", it.as_str())).collect();
        let (rows, more) = list_refused(&many(1, 14), &refused);
        assert_eq!((rows.len(), more), (NAMED_MAX, 5), "one is refused and silent");
        assert_eq!(rows.iter().filter(|row| row["how"] == "silent").count(), 1);
    }
}
