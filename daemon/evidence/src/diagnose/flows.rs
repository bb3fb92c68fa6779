//! The connections of clients outside with a service's backends.
//!
//! Invariant: nothing is sent. The connections are read off the table of flows: those of a bounded number of the
//! service's own frontends, and refused ones of its backends, whichever frontend the client dialled.

use std::sync::Arc;

use holdfast_core::keys::Transport;
use holdfast_core::snapshot::ServiceView;
use holdfast_datapath::{AddressFilter, Flow, FlowFilter, FlowTable, Stage};
use holdfast_diagnose::frontends;
use holdfast_diagnose::limits::NAMED_MAX;
use holdfast_diagnose::material::{Asked, FlowSeen, Flows, Material};

use super::limits::FLOWS_MAX;

/// The connections of clients outside with their backends, at most `FLOWS_MAX` of each frontend.
pub fn flows(material: &Material, table: Option<&FlowTable>) -> Asked<Flows> {
    let Some(table) = table else {
        return Asked::Not("packets are not translated on this node");
    };
    let mut flows = Flows::default();
    let all = || frontends(&material.snapshot, &material.views);
    flows.frontends_left = all().count().saturating_sub(NAMED_MAX);
    for (at, protocol) in all().take(NAMED_MAX) {
        let place = AddressFilter { address: at.ip(), port: Some(at.port()) };
        let filter = FlowFilter { frontend: Some(place), ..FlowFilter::default() };
        let report = table.report(&filter, FLOWS_MAX);
        let of_it = |it: &&Flow| Some(it.transport) == protocol.transport() && lives(it);
        flows.list.extend(report.found.iter().filter(of_it).map(shown));
        flows.more += report.more;
    }
    // Few connections are refused, so all refused ones are looked at, whichever frontend they dialled.
    let refused = FlowFilter { refused: true, ..FlowFilter::default() };
    let refused = table.report(&refused, FLOWS_MAX).found;
    for flow in refused.iter().filter(|flow| lives(flow) && is_behind(&material.views, flow)).map(shown) {
        if !flows.list.contains(&flow) {
            flows.list.push(flow);
        }
    }
    Asked::Answered(flows)
}

fn is_behind(views: &[Arc<ServiceView>], flow: &Flow) -> bool {
    let mut ports = views.iter().flat_map(|view| view.ports.iter());
    ports.any(|port| port.key.transport == flow.transport && port.rows.find(flow.backend).is_some())
}

/// Whether a flow still counts: one that is over stays in the table for a while, and says nothing.
const fn lives(flow: &Flow) -> bool {
    !matches!(flow.stage, Stage::Closed | Stage::Reset)
}

fn shown(flow: &Flow) -> FlowSeen {
    FlowSeen {
        client: flow.client,
        backend: flow.backend,
        is_udp: flow.transport == Transport::Udp,
        is_refused: flow.backend_heard.refusal,
    }
}
