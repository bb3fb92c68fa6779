//! The connections of outside clients with a service's backends.
//!
//! Invariant: nothing is sent. The connections come from the flow table: those at the service's own frontends, and
//! refused ones of its backends at any frontend.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::keys::Transport;
use holdfast_core::snapshot::ServiceView;
use holdfast_datapath::{Flow, FlowFilter, FlowTable, Stage};
use holdfast_diagnose::evidence::{Evidence, Flows, Lookup, ObservedFlow};
use holdfast_diagnose::frontend_targets;

use super::limits::FLOWS_MAX;

/// The connections of outside clients with their backends, by one look through the table. Those with backends of the
/// service are a sample of at most `FLOWS_MAX`, and more of them tell nothing new. All others are read, up to the same
/// limit.
pub fn gather_flows(evidence: &Evidence, table: Option<&FlowTable>) -> Lookup<Flows> {
    let Some(table) = table else {
        return Lookup::Skipped("packets are not translated on this node");
    };
    let mut flows = Flows::default();
    let own: BTreeSet<(SocketAddr, Transport)> = frontend_targets(&evidence.snapshot, &evidence.views)
        .filter_map(|(at, protocol)| Some((at, protocol.transport()?)))
        .collect();
    let mut sample = Vec::new();
    let report = table.find_flows_where(&FlowFilter::default(), FLOWS_MAX, |it| {
        if !own.contains(&(it.frontend, it.transport)) || !is_live(it) {
            return false;
        }
        let has_backend = keeps_backend(&evidence.views, it);
        if has_backend && sample.len() < FLOWS_MAX {
            sample.push(observe_flow(it));
        } else if has_backend {
            flows.more_with_backends += 1;
        }
        !has_backend
    });
    flows.list.extend(sample.into_iter().chain(report.matches.iter().map(observe_flow)));
    flows.more = report.omitted;
    // Few connections are refused, so all refused ones are read, whichever frontend the client dialled.
    let refused = FlowFilter { refused: true, ..FlowFilter::default() };
    let refused = table.find_flows(&refused, FLOWS_MAX).matches;
    for flow in refused
        .iter()
        .filter(|flow| is_live(flow) && is_service_backend(&evidence.views, flow))
        .map(observe_flow)
    {
        if !flows.list.contains(&flow) {
            flows.list.push(flow);
        }
    }
    Lookup::Answered(flows)
}

/// Whether the backend of the flow keeps its clients, as the checks judge it.
fn keeps_backend(views: &[Arc<ServiceView>], flow: &Flow) -> bool {
    let mut ports = views.iter().flat_map(|view| view.ports.iter());
    ports.any(|port| port.rows.find(flow.backend).is_some_and(|row| row.keeps_clients()))
}

fn is_service_backend(views: &[Arc<ServiceView>], flow: &Flow) -> bool {
    let mut ports = views.iter().flat_map(|view| view.ports.iter());
    ports.any(|port| port.key.transport == flow.transport && port.rows.find(flow.backend).is_some())
}

/// Whether a flow still counts. A closed one stays in the table for a while, and proves nothing.
const fn is_live(flow: &Flow) -> bool {
    !matches!(flow.stage, Stage::Closed | Stage::Reset)
}

fn observe_flow(flow: &Flow) -> ObservedFlow {
    ObservedFlow {
        client: flow.client,
        backend: flow.backend,
        is_udp: flow.transport == Transport::Udp,
        is_refused: flow.backend_seen.port_unreachable,
    }
}
