//! What the maps do with clients: which backends may get the next connection of a client, and which have the open
//! connections.
//!
//! Invariant: nothing is sent. It is read off the maps and the table of flows, of a bounded number of this service's
//! own frontends.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::keys::{Family, Protocol, Transport};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};
use holdfast_datapath::{Flow, FlowFilter, Place, Stage};

use super::limits::{FLOWS_MAX, NAMED_MAX};
use super::material::{Asked, FlowSeen, Flows, Lookup, Material};
use crate::datapath::DatapathView;
use crate::why::{Dialled, Question, ReadBack, Walk};

/// Where a client dials a frontend; a node port, at an address of the node. None: nowhere.
pub(crate) fn dialled(snapshot: &Snapshot, it: &FrontendView) -> Option<SocketAddr> {
    let own = || snapshot.node.outer_addresses();
    let address = match it.kind {
        FrontendType::NodePort => own().find(|own| own.is_ipv4() == it.address.is_ipv4())?,
        _ => it.address,
    };
    Some(SocketAddr::new(address, it.port.get()))
}

fn frontends<'a>(
    snapshot: &'a Snapshot,
    views: &'a [Arc<ServiceView>],
) -> impl Iterator<Item = (SocketAddr, &'a Protocol)> {
    let all = views.iter().flat_map(|view| view.frontends.iter());
    all.filter_map(|it| Some((dialled(snapshot, it)?, &it.protocol)))
}

/// What the first packet of this client meets at each frontend of its family, by what was read of the maps.
pub(crate) fn look_up(
    snapshot: &Arc<Snapshot>,
    views: &[Arc<ServiceView>],
    datapath: &DatapathView,
    (read, client): (&ReadBack, Option<IpAddr>),
) -> Asked<Vec<Lookup>> {
    let Some(client) = client else { return Asked::Not("no client was named (--client)") };
    let of_family = frontends(snapshot, views).filter(|(at, _)| Family::of(at.ip()) == Family::of(client));
    let one = |(at, protocol): (SocketAddr, &Protocol)| {
        let question = Question::Address(Dialled::new(at, Some(protocol.clone())));
        let packet = Walk::begin(Arc::clone(snapshot), question, Some(client)).packet(datapath, read)?;
        Some(Lookup {
            frontend: at,
            outcome: packet.outcome.0,
            backends: packet.backends.iter().map(|it| it.backend.clone()).collect(),
            sentence: packet.sentence,
        })
    };
    Asked::Answered(of_family.filter_map(one).take(NAMED_MAX).collect())
}

/// The connections of clients outside with their backends, of each frontend so many.
pub(crate) fn flows(material: &Material) -> Asked<Flows> {
    let Some(seen) = material.own.datapath.status().and_then(|status| status.flows.as_ref()) else {
        return Asked::Not("packets are not translated on this node");
    };
    let mut flows = Flows::default();
    let all = || frontends(&material.snapshot, &material.views);
    flows.frontends_left = all().count().saturating_sub(NAMED_MAX);
    for (at, protocol) in all().take(NAMED_MAX) {
        let place = Place { address: at.ip(), port: Some(at.port()) };
        let filter = FlowFilter { frontend: Some(place), ..FlowFilter::default() };
        let report = seen.table.report(&filter, FLOWS_MAX);
        let of_it = |it: &&Flow| Some(it.transport) == protocol.transport() && lives(it);
        flows.list.extend(report.found.iter().filter(of_it).map(shown));
        flows.more += report.more;
    }
    // Few are refused, so all of them are looked at, whichever frontend they dialled.
    let refused = FlowFilter { refused: true, ..FlowFilter::default() };
    let refused = seen.table.report(&refused, FLOWS_MAX).found;
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
