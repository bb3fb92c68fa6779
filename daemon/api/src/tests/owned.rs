//! Whose clients were denied: each counts for the service whose frontend it reached, and for no other.

use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::keys::{FrontendKey, ObjectName, Transport};
use holdfast_core::op::ServiceId;
use holdfast_core::snapshot::{Snapshot, Verdict};
use holdfast_diagnose::evidence::{DaemonState, DiagnosisScope};
use holdfast_diagnose::{Diagnosis, Focus, KnownServices, judge};
use holdfast_status::datapath::Cause;
use holdfast_status::views::datapath::DatapathView;
use serde_json::Value;

use super::fixture::{Served, THEN, dropped_at, everything, serve_with, status};
use super::judged::silent_daemon;

const VICTIM: &str = "default/web";
const TENANT: &str = "default/gone";

/// The tenant's service has the number of the victim's node port at an address of its own, 10.96.0.20. It claims the
/// victim's cluster IP in vain.
fn table() -> Snapshot {
    let mut snapshot = everything();
    let tenant = parse_name(TENANT);
    let find = |id: &ServiceId| snapshot.services.get(*id).is_some_and(|view| view.key.name == tenant);
    let id = (0..20).map(ServiceId).find(find).unwrap();
    let mut view = (**snapshot.services.get(id).unwrap()).clone();
    for frontend in &mut view.frontends {
        (frontend.port, frontend.verdict) = (30080.try_into().unwrap(), Verdict::Serving);
    }
    let mut claim = view.frontends[0].clone();
    (claim.address, claim.verdict) = ([10, 96, 0, 10].into(), Verdict::Conflict);
    view.frontends = view.frontends.iter().cloned().chain([claim]).collect();
    snapshot.services.set(id, Some(Arc::new(view)));
    snapshot
}

fn parse_name(service: &str) -> ObjectName {
    let (namespace, name) = service.split_once('/').unwrap();
    ObjectName::new(namespace, name).unwrap()
}

fn key(dialled: &str) -> FrontendKey {
    FrontendKey::from_socket(dialled.parse().unwrap(), Transport::Tcp).unwrap()
}

fn serve_denied(dialled: &str, cause: Cause) -> Served {
    serve_with(table(), |readings| readings.refusals = dropped_at(key(dialled), cause))
}

/// All members of that name in the rows of services with this name: the configuration has one of the victim's, too.
fn list_members(served: &Served, question: &str, (service, member): (&str, &str)) -> Vec<Value> {
    let answer: Value = serde_json::from_str(&served.get(question, "").body).unwrap();
    let rows = answer["services"].as_array().unwrap().iter().filter(|it| it["service"] == service);
    rows.flat_map(|row| row[member].as_array().unwrap().clone()).collect()
}

/// The state of a check of the service's diagnosis.
fn judge_denied(dialled: &str, cause: Cause, (service, check): (&str, &str)) -> Value {
    judge_service(dialled, cause, (service, check), None)["state"].clone()
}

/// A finding of the service's diagnosis for a client.
fn judge_service(
    dialled: &str,
    cause: Cause,
    (service, check): (&str, &str),
    client: Option<IpAddr>,
) -> Value {
    let known = KnownServices::find(parse_name(service), Arc::new(table()), &Focus::default());
    let denied = dropped_at(key(dialled), cause).snapshot().latest;
    let datapath = Arc::new(DatapathView::for_kernel(status()));
    let own = DaemonState { denied, datapath, ..silent_daemon() };
    let evidence = known.into_evidence(
        (own, Vec::new()),
        &Vec::new(),
        (DiagnosisScope { client, ..DiagnosisScope::default() }, THEN),
    );
    let diagnosis = serde_json::to_value(Diagnosis::new(&evidence, &judge(&evidence), "0.1.0")).unwrap();
    let mut findings = diagnosis["findings"].as_array().unwrap().iter();
    findings.find(|it| it["id"] == check).unwrap().clone()
}

/// Whether each answer about the service tells of the client.
#[track_caller]
fn check(dialled: &str, service: &str, expected: bool) {
    let short = serve_denied(dialled, Cause::Ports);
    let fails = list_members(&short, "/services?format=json", (service, "fails"));
    assert_eq!(fails.iter().any(|it| it == "shortage"), expected, "{fails:?}");
    let question = format!("/explain?service={service}&format=json");
    let refusals = list_members(&short, &question, (service, "refusals"));
    assert_eq!(!refusals.is_empty(), expected, "{refusals:?}");
    for (id, cause) in [("flows.room", Cause::Ports), ("clients.refusals", Cause::NoBackend)] {
        let state = judge_denied(dialled, cause, (service, id));
        assert_eq!(state == "warning", expected, "{id} is {state}");
    }
}

#[test]
fn a_client_gets_no_backend_of_a_service_whose_only_address_another_one_has() {
    let client = Some([198, 51, 100, 7].into());
    let judge = |service| judge_service("10.96.0.10:80", Cause::Ports, (service, "lookup"), client);
    assert!(judge(VICTIM)["message"].as_str().unwrap().contains("10.96.0.10:80"), "{}", judge(VICTIM));
    assert_eq!(judge("default/thief")["state"], "skipped");
}

#[test]
fn clients_of_another_address_with_the_number_of_a_node_port_are_the_others() {
    check("10.96.0.20:30080", TENANT, true);
    check("10.96.0.20:30080", VICTIM, false);
}

#[test]
fn a_port_that_no_service_has_is_no_node_port() {
    let served = serve_denied("10.96.0.30:30080", Cause::NoSuchPort);
    let refusals =
        list_members(&served, &format!("/explain?service={VICTIM}&format=json"), (VICTIM, "refusals"));
    assert!(refusals.is_empty(), "{refusals:?}");
    let rows: Value = serde_json::from_str(&served.get("/refusals?format=json", "").body).unwrap();
    assert_eq!(rows["refusals"][0]["service"], Value::Null, "{rows}");
    let readiness: Value = serde_json::from_str(&served.get("/readyz?format=json", "").body).unwrap();
    assert_eq!(readiness["denied_clients"][0]["service"], Value::Null, "{}", readiness["denied_clients"]);
    for (dialled, service, expected) in [
        ("10.96.0.10:81", VICTIM, true),
        ("10.96.0.10:81", "default/thief", false),
        ("10.96.0.10:81", TENANT, false),
        ("10.96.0.30:30080", VICTIM, false),
    ] {
        let state = judge_denied(dialled, Cause::NoSuchPort, (service, "clients.refusals"));
        assert_eq!(state == "info", expected, "{dialled} of {service}: {state}");
    }
}

#[test]
fn clients_of_a_node_port_are_its_services() {
    check("192.0.2.5:30080", VICTIM, true);
    check("192.0.2.5:30080", TENANT, false);
}

#[test]
fn clients_of_an_address_that_two_services_claim_are_its_owners() {
    check("10.96.0.10:80", VICTIM, true);
    check("10.96.0.10:80", "default/thief", false);
}
