//! Which services are failing, and when that is news.

use holdfast_core::keys::Transport;
use holdfast_core::op::QuotaId;
use holdfast_status::datapath::{FlowSample, FlowStatus, FlowSweepProgress};

use super::*;
use crate::state::tests::snapshot_from;

pub(super) const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: ClusterIP, clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}, {addresses: [10.1.0.3]}]
";

fn failure(frontend: &str, backend: &str) -> Failure {
    let refusal = BackendRefusal {
        quota: QuotaId(1),
        frontend: frontend.parse().unwrap(),
        transport: Transport::Tcp,
        backend: backend.parse().unwrap(),
    };
    (refusal, BackendFailure::Refused)
}

#[test]
fn a_service_is_named_once_with_the_number_of_its_failing_backends() {
    let snapshot = snapshot_from(WEB);
    let failing = |failures: &[Failure]| {
        let grouped = group_by_service(&snapshot, &failures.iter().copied().collect());
        grouped.into_iter().map(|(key, (_, backends))| (key.name.to_string(), backends)).collect::<Vec<_>>()
    };
    let [one, other] = ["10.1.0.2:8080", "10.1.0.3:8080"].map(|backend| failure("10.96.0.10:80", backend));
    assert_eq!(failing(&[]), []);
    assert_eq!(failing(&[one]), [("shop/web".to_owned(), 1)]);
    assert_eq!(failing(&[one, other]), [("shop/web".to_owned(), 2)]);
    // Its service sends it no client, or nobody has the address.
    assert_eq!(failing(&[failure("10.96.0.10:80", "10.1.0.9:8080")]), []);
    assert_eq!(failing(&[failure("10.96.0.99:80", "10.1.0.2:8080")]), []);
}

#[test]
fn only_the_first_and_the_last_failure_of_a_service_are_news() {
    let snapshot = Arc::new(snapshot_from(WEB));
    let [one, other] = ["10.1.0.2:8080", "10.1.0.3:8080"].map(|backend| failure("10.96.0.10:80", backend));
    let mut log = FailureLog::default();
    let mut lines = Vec::new();
    for failures in [&[one][..], &[one, other], &[other], &[], &[one]] {
        let failures: BTreeSet<Failure> = failures.iter().copied().collect();
        assert!(log.is_news(&snapshot, &failures));
        let before = log.services.len();
        log.update(&snapshot, failures.clone());
        lines.push((before, log.services.len()));
        assert!(!log.is_news(&snapshot, &failures));
    }
    assert_eq!(lines, [(0, 1), (1, 1), (1, 1), (1, 0), (0, 1)]);
}

#[test]
fn a_service_that_begins_or_ceases_to_use_a_failing_backend_is_news() {
    let unready =
        WEB.replace("{addresses: [10.1.0.2]}", "{addresses: [10.1.0.2], conditions: {ready: false}}");
    let failures: BTreeSet<Failure> = [failure("10.96.0.10:80", "10.1.0.2:8080")].into();
    let mut log = FailureLog::default();
    let services = [&unready, WEB, &unready].map(|manifests| {
        let snapshot = Arc::new(snapshot_from(manifests));
        assert!(log.is_news(&snapshot, &failures));
        log.update(&snapshot, failures.clone());
        log.services.len()
    });
    assert_eq!(services, [0, 1, 0]);
}

#[test]
fn another_table_is_no_news_while_nothing_fails() {
    assert!(!FailureLog::default().is_news(&Arc::new(snapshot_from(WEB)), &BTreeSet::new()));
}

#[test]
fn a_backend_is_silent_by_what_the_datapath_tells_now_and_by_what_is_kept() {
    let [told, kept, both] = ["10.1.0.1:8080", "10.1.0.2:8080", "10.1.0.3:8080"]
        .map(|backend| failure("10.96.0.10:80", backend).0);
    let sweep = FlowSweepProgress {
        silent_backends: [(told, 900), (both, 900)].into(),
        ..FlowSweepProgress::default()
    };
    let status = Status {
        kept_failures: KeptFailures {
            silences: [(kept, 100), (both, 100)].into(),
            ..KeptFailures::default()
        },
        flows: Some(FlowStatus { sweep, sample: FlowSample::default() }),
        ..holdfast_fixtures::healthy::status()
    };
    assert_eq!(status.silent_backends(), [(told, 900), (kept, 100), (both, 900)].into());
}
