//! What `status` calls an outage, and what it only lists.

use holdfast_core::keys::{FrontendKey, Source, Transport};
use holdfast_core::op::{QuotaId, ServiceId};
use holdfast_core::snapshot::{Reason, Verdict};
use holdfast_status::datapath::{BackendRefusal, Cause, FlowSample, FlowStatus, FlowSweepProgress};

use super::*;

/// A service that its owner scaled down, or created before its pods, is shown, and is no outage of the node.
#[test]
fn a_service_without_backends_is_an_outage_only_if_nobody_asked_for_it() {
    for (reason, expected) in [
        (Reason::ScaledDown, Exit::Good),
        (Reason::NoEndpoints, Exit::Good),
        (Reason::AllUnready, Exit::Finding),
    ] {
        let mut snapshot = many(1, 1);
        let id = ServiceId(0);
        let mut view = (**snapshot.services.get(id).unwrap()).clone();
        for frontend in &mut view.frontends {
            (frontend.verdict, frontend.reason) = (Verdict::Refusing, Some(reason));
        }
        snapshot.services.set(id, Some(Arc::new(view)));
        let served = serve_with(snapshot, well_in_memory);
        let ran = served.ask(&["status"]);
        assert_eq!(ran.exit, expected, "{reason}: {}", ran.out);
        for table in ["services", "frontends", "backends"] {
            let shown = served.ask(&[table]).out;
            assert_eq!(shown.contains("outage"), expected == Exit::Finding, "{reason}: {shown}");
        }
        let title = if expected == Exit::Good { "not serving, yet or on purpose\n" } else { "not serving\n" };
        let group = format!("{title}  1 refusing ({reason}) since");
        assert!(ran.out.contains(&group), "{}", ran.out);
    }
}

/// No rule keeps these clients out, and no other line of the status would say it.
#[test]
fn clients_that_the_node_has_no_room_for_are_a_finding_and_those_that_a_rule_keeps_out_are_none() {
    for (cause, expected) in [
        (Cause::Flows, Exit::Finding),
        (Cause::Ports, Exit::Finding),
        (Cause::Address, Exit::Finding),
        (Cause::Source, Exit::Good),
        (Cause::NoSuchPort, Exit::Good),
    ] {
        let served = serve_with(many(1, 1), |readings| {
            well_in_memory(readings);
            readings.refusals = fixture::dropped_for(cause);
        });
        let ran = served.ask(&["status"]);
        assert_eq!(ran.exit, expected, "{cause:?}: {}", ran.out);
        assert_eq!(ran.out.contains("clients that this node has no room for\n"), cause.is_shortage());
    }
}

#[test]
fn status_and_each_explanation_end_alike_where_the_node_has_no_room_for_clients() {
    let dialled = FrontendKey::from_socket("10.96.0.0:80".parse().unwrap(), Transport::Tcp).unwrap();
    let service = "default/service-00000";
    for (cause, question, expected) in [
        (Cause::Ports, &["status"][..], Exit::Finding),
        (Cause::Ports, &["explain"], Exit::Finding),
        (Cause::Ports, &["explain", "10.96.0.0:80"], Exit::Finding),
        (Cause::Ports, &["explain", service], Exit::Finding),
        (Cause::Ports, &["explain", "10.96.0.0:80", "--from", "198.51.100.7"], Exit::Finding),
        (Cause::Ports, &["explain", "10.200.0.1:8080"], Exit::Good),
        (Cause::Source, &["explain"], Exit::Good),
        (Cause::Source, &["explain", service], Exit::Good),
    ] {
        let served = serve_with(many(1, 1), |readings| {
            well_in_memory(readings);
            readings.refusals = fixture::dropped_at(dialled, cause);
        });
        let ran = served.ask(question);
        assert_eq!(ran.exit, expected, "{cause:?} {question:?}: {}", ran.out);
        let says = ran.out.contains("no SNAT port was free");
        assert!(says || question == ["explain"] || cause == Cause::Source, "{question:?}: {}", ran.out);
    }
}

#[test]
fn an_empty_table_of_refusals_is_not_taken_for_all_well() {
    let served = serve_with(many(1, 1), |readings| {
        readings.refusals = holdfast_agent::datapath::RefusalLog::none();
    });
    let said = served.ask(&["refusals"]).out;
    assert!(said.contains("if backends refuse clients, `holdfast status` names them"), "{said}");
}

#[test]
fn a_node_without_anything_configured_says_so() {
    let mut snapshot = many(0, 0);
    snapshot.sources = [(Source::Config, true)].into();
    let ran = serve_with(snapshot, well_in_memory).ask(&["status"]);
    assert_eq!(ran.exit, Exit::Finding);
    let said = "nothing is configured\n  neither an apiserver nor manifests are given, and there is no [[service]]\n";
    assert!(ran.out.contains(said), "{}", ran.out);
}

/// A service with the backends 10.200.0.1 and 2, while clients of these backends were refused.
fn serve_refused(backends: &'static [&'static str]) -> Served {
    serve_with(many(1, 2), |readings| {
        let mut status = fixture::status();
        (status.broken_hooks, status.grace_failure) = (Vec::new(), None);
        let refusal = |backend: &&str| BackendRefusal {
            quota: QuotaId(1),
            frontend: "10.96.0.0:80".parse().unwrap(),
            transport: Transport::Tcp,
            backend: backend.parse().unwrap(),
        };
        let backend_refusals = backends.iter().map(|it| (refusal(it), 970)).collect();
        let sweep = FlowSweepProgress { backend_refusals, ..FlowSweepProgress::default() };
        status.flows = Some(FlowStatus { sweep, sample: FlowSample::default() });
        let view = DatapathView::for_kernel(status).with_devices(readings.datapath().devices().into());
        readings.datapath = watch::channel(Arc::new(view)).1;
        (readings.checks, readings.closed_ports) = (Arc::default(), Arc::default());
        readings.node_port_listeners = watch::channel(Arc::default()).1;
    })
}

#[test]
fn status_and_each_explanation_end_alike_where_a_backend_refuses_clients() {
    for (backends, question, expected) in [
        (&["10.200.0.2:8080"][..], &["status"][..], Exit::Finding),
        (&["10.200.0.2:8080"], &["explain"], Exit::Finding),
        (&["10.200.0.2:8080"], &["explain", "10.96.0.0:80"], Exit::Finding),
        (&["10.200.0.2:8080"], &["explain", "10.96.0.0:80", "--from", "198.51.100.7"], Exit::Finding),
        (&["10.200.0.2:8080"], &["explain", "10.200.0.2:8080"], Exit::Finding),
        (&["10.200.0.2:8080"], &["explain", "10.200.0.1:8080"], Exit::Good),
        // A rollout has taken it away.
        (&["10.200.0.9:8080"], &["explain"], Exit::Good),
        (&["10.200.0.9:8080"], &["explain", "10.96.0.0:80"], Exit::Good),
    ] {
        let ran = serve_refused(backends).ask(question);
        assert_eq!(ran.exit, expected, "{backends:?} {question:?}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn backends_that_refuse_clients_are_named_while_their_service_uses_them() {
    let served = serve_refused(&["10.200.0.2:8080", "10.200.0.9:8080"]);
    let ran = served.ask(&["status"]);
    assert_eq!(ran.exit, Exit::Finding);
    let said = "backends that fail clients\n  default/service-00000: 10.200.0.2:8080 refused clients of \
                10.96.0.0:80/TCP, the last one at 2026-01-08T11:14:31Z (24 s ago)\n  next: holdfast diagnose default/service-00000\n";
    assert!(ran.out.contains(said), "{}", ran.out);
}
