//! Which services have which conditions, and which conditions are kept beyond the limit.

use std::collections::BTreeSet;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::facts::{ServiceFacts, ServiceType};
use holdfast_core::keys::{Protocol, ServiceKey, Source};
use holdfast_core::list::Scope;
use holdfast_core::op::{FrontendType, ServiceId};
use holdfast_core::snapshot::ServiceState;

use super::*;

const NOW: Timestamp = Timestamp(1_767_870_715);

fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name).unwrap()
}

/// A frontend of this kind, with this verdict and reason since this many seconds.
type Given = (FrontendType, Verdict, Option<Reason>, i64);

fn frontend((kind, verdict, reason, ago): &Given) -> FrontendView {
    FrontendView {
        address: [10, 96, 0, 10].into(),
        port: NonZeroU16::new(80).unwrap(),
        protocol: Protocol::TCP,
        kind: *kind,
        port_name: "".into(),
        position: None,
        scope: Scope::Cluster,
        external_local: false,
        verdict: *verdict,
        reason: *reason,
        status: Status::Done,
        owner: None,
        applied: None,
        since: Timestamp(NOW.0 - ago),
        verdict_since: Timestamp(NOW.0 - ago),
    }
}

fn view(service: &str, source: Source, frontends: &[Given]) -> ServiceView {
    let key = ServiceKey { name: name(service), source };
    let mut facts = ServiceFacts::new(key.clone(), ServiceType::ClusterIp);
    facts.internal_policy = TrafficPolicy::Local;
    ServiceView {
        key,
        facts: Some(Arc::new(facts)),
        slices: Arc::default(),
        state: ServiceState::Served,
        ports: Box::default(),
        frontends: frontends.iter().map(frontend).collect(),
        balancer_history: None,
    }
}

fn snapshot(views: Vec<ServiceView>) -> Snapshot {
    let mut snapshot = Snapshot { published: NOW, mono: Duration::from_secs(60), ..Snapshot::default() };
    for (id, view) in (0..).map(ServiceId).zip(views) {
        snapshot.services.set(id, Some(Arc::new(view)));
    }
    snapshot
}

/// `service condition cause ago`.
fn shown(found: &Conditions) -> Vec<String> {
    let line = |it: &Condition| {
        format!("{} {} {} {}", it.service, it.kind.as_str(), it.cause.as_str(), NOW.0 - it.since.0)
    };
    found.named.iter().map(line).collect()
}

#[track_caller]
fn check(views: Vec<ServiceView>, expected: &[&str]) {
    assert_eq!(shown(&Conditions::from_snapshot(&snapshot(views), &[])), expected);
}

const CLUSTER: FrontendType = FrontendType::ClusterIp;

#[test]
fn healthy_services_have_no_condition() {
    let well = [
        (CLUSTER, Verdict::Serving, None, 5),
        (CLUSTER, Verdict::Draining, Some(Reason::ScaledDown), 5),
        (CLUSTER, Verdict::Bypassed, Some(Reason::Control), 5),
        (CLUSTER, Verdict::Unprogrammed, None, 5),
    ];
    check(vec![view("shop/web", Source::Kubernetes, &well)], &[]);
}

#[test]
fn each_verdict_and_reason_has_its_condition_and_cause() {
    for (verdict, reason, expected) in [
        (Verdict::Refusing, Reason::NoEndpoints, "no_backends never_had_any"),
        (Verdict::Refusing, Reason::AllUnready, "no_backends all_unready"),
        (Verdict::Refusing, Reason::ScaledDown, "no_backends scaled_to_zero"),
        (Verdict::Refusing, Reason::Hidden, "no_backends hidden"),
        (Verdict::Refusing, Reason::Vanished, "no_backends vanished"),
        (Verdict::Refusing, Reason::HoldExpired, "no_backends hold_expired"),
        (Verdict::Refusing, Reason::ProbesFailed, "no_backends probes_failed"),
        (Verdict::Passing, Reason::ScaledDown, "no_backends scaled_to_zero"),
        (Verdict::Dropping, Reason::LocalPolicy, "no_local_backend internal"),
        (Verdict::Held, Reason::Resync, "held resync"),
        (Verdict::Held, Reason::MassLoss, "held mass_loss"),
        (Verdict::Held, Reason::Control, "held control"),
        (Verdict::Conflict, Reason::Claimed, "frontend_conflict claimed"),
        (Verdict::Unprogrammed, Reason::Address, "not_programmed address"),
        (Verdict::Unprogrammed, Reason::Protocol, "not_programmed protocol"),
    ] {
        let given = [(CLUSTER, verdict, Some(reason), 7)];
        check(vec![view("shop/web", Source::Kubernetes, &given)], &[&format!("shop/web {expected} 7")]);
    }
    let outside = [(FrontendType::NodePort, Verdict::Dropping, Some(Reason::LocalPolicy), 7)];
    check(vec![view("shop/web", Source::Kubernetes, &outside)], &["shop/web no_local_backend external 7"]);
}

#[test]
fn an_import_whose_derived_service_has_its_address_is_healthy() {
    let lost = [(FrontendType::ClusterSetIp, Verdict::Conflict, Some(Reason::Claimed), 7)];
    let owned_by = |owner: &str, source| {
        let mut import = view("shop/web", Source::ClusterSet, &lost);
        let owner = ServiceKey { name: name(owner), source };
        import.frontends.iter_mut().for_each(|row| row.owner = Some(owner.clone()));
        vec![import]
    };
    check(owned_by("shop/derived-1", Source::Kubernetes), &[]);
    let expected = ["shop/web frontend_conflict claimed 7"];
    check(owned_by("other/derived-1", Source::Kubernetes), &expected);
    check(owned_by("shop/other", Source::ClusterSet), &expected);
}

/// An alert counts the nodes that have a series: two of one node would be two nodes.
#[test]
fn a_service_has_one_series_of_a_kind_over_all_its_frontends_and_sources() {
    let first = [
        (CLUSTER, Verdict::Refusing, Some(Reason::AllUnready), 30),
        (CLUSTER, Verdict::Refusing, Some(Reason::Vanished), 90),
        (CLUSTER, Verdict::Conflict, Some(Reason::Claimed), 5),
    ];
    let second = [(CLUSTER, Verdict::Refusing, Some(Reason::NoEndpoints), 60)];
    let views = vec![view("shop/web", Source::Kubernetes, &first), view("shop/web", Source::Config, &second)];
    check(views, &["shop/web no_backends vanished 90", "shop/web frontend_conflict claimed 5"]);
}

#[test]
fn a_refused_write_is_a_condition() {
    let mut view = view("shop/web", Source::Kubernetes, &[(CLUSTER, Verdict::Serving, None, 7)]);
    view.frontends[0].status = Status::Error("the map of frontends is full".into());
    check(vec![view], &["shop/web not_programmed maps 7"]);
}

#[test]
fn a_load_balancer_without_an_address_is_pending_since_its_creation() {
    let mut view = view("shop/web", Source::Kubernetes, &[]);
    let facts = Arc::make_mut(view.facts.as_mut().unwrap());
    facts.kind = ServiceType::LoadBalancer;
    facts.meta.created = Some(Timestamp(NOW.0 - 40));
    // As in the state of an older version.
    check(vec![view.clone()], &[]);
    Arc::make_mut(view.facts.as_mut().unwrap()).balancer = Some(Box::default());
    check(vec![view], &["shop/web lb_pending unknown 40"]);
}

#[test]
fn a_closed_health_check_port_is_a_condition_with_its_cause() {
    let closed = |is_in_use, ago| ClosedServicePort {
        service: name("shop/web"),
        since: Timestamp(NOW.0 - ago),
        is_in_use,
    };
    let found = Conditions::from_snapshot(&snapshot(Vec::new()), &[closed(true, 9), closed(false, 3)]);
    assert_eq!(shown(&found), ["shop/web health_port_failed addr_in_use 9"]);
}

#[test]
fn invariant_10_namespaces_take_turns_and_intended_conditions_come_last() {
    let broken = |service: String, reason, ago| {
        view(&service, Source::Kubernetes, &[(CLUSTER, Verdict::Refusing, Some(reason), ago)])
    };
    // A tenant with a thousand services that have been broken for a long time.
    let mut views: Vec<_> =
        (0..1_000).map(|nth| broken(format!("loud/s-{nth:04}"), Reason::Vanished, 90_000 - nth)).collect();
    views.push(broken("quiet/web".to_owned(), Reason::AllUnready, 1));
    views.push(broken("idle/web".to_owned(), Reason::ScaledDown, 99_999));
    let found = Conditions::from_snapshot(&snapshot(views.clone()), &[]);
    assert_eq!(found.named.len(), CONDITIONS_MAX);
    let names: Vec<_> = found.named.iter().map(|it| it.service.to_string()).collect();
    assert_eq!((names[0].as_str(), names[198].as_str()), ("loud/s-0000", "loud/s-0198"), "the oldest");
    assert_eq!(names[199], "quiet/web");
    assert_eq!(found.truncated, [802, 0, 0, 0, 0, 0, 0]);
    // A named condition stays named when others come.
    views.push(broken("loud/z".to_owned(), Reason::Vanished, 0));
    assert_eq!(Conditions::from_snapshot(&snapshot(views), &[]).named, found.named);
}

/// Nobody writes the slices of manifests, so the alert counts a Service without one, as `status` does.
#[test]
fn a_service_without_slices_waits_in_a_cluster_and_fails_in_manifests() {
    let empty = [(CLUSTER, Verdict::Refusing, Some(Reason::NoEndpoints), 5)];
    for (source, expected) in [
        (Source::Kubernetes, "shop/web no_backends never_had_any 5"),
        (Source::Manifests, "shop/web no_backends no_slices 5"),
    ] {
        check(vec![view("shop/web", source, &empty)], &[expected]);
    }
}

/// The alert that wakes an operator leaves out what `status` does not call an outage, and nothing else.
#[test]
fn the_alert_of_services_without_backends_fires_for_outages_alone() {
    let rules = include_str!("../../../../../contrib/prometheus/holdfast.rules.yaml");
    let (_, left_out) = rules.split_once("condition=\"no_backends\",cause!~\"").unwrap();
    let left_out: BTreeSet<&str> = left_out.split('"').next().unwrap().split('|').collect();
    let is_intended = |reason: &Reason| {
        Health::from_verdict(Verdict::Refusing, Some(*reason)) == Health::Intended
            // It has a condition of its own, without an alert.
            && *reason != Reason::LocalPolicy
    };
    let intended = Reason::ALL.into_iter().filter(is_intended).map(|it| reason_cause(it).as_str());
    assert_eq!(left_out, intended.collect());
    let condition =
        |cause| Condition { service: name("shop/web"), kind: ConditionKind::NoBackends, cause, since: NOW };
    for cause in ConditionCause::ALL {
        assert_eq!(condition(cause).is_on_purpose(), left_out.contains(cause.as_str()), "{cause}");
    }
}

#[test]
fn no_service_no_series() {
    assert_eq!(Conditions::from_snapshot(&Snapshot::default(), &[]), Conditions::default());
}
