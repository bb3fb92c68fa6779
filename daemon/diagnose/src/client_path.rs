//! Where clients dial a service, and which backends may get a client's next connection.
//!
//! Invariant: nothing is sent. All answers come from the maps that were read, for a bounded number of this service's
//! own frontends.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::keys::Protocol;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot, Verdict};

use super::evidence::{ClientTrace, Lookup};
use super::limits::NAMED_MAX;
use crate::explain::{DialTarget, ExplainQuery, ReadBack, ResolvedQuery};
use holdfast_status::views::datapath::DatapathView;

/// The address at which clients dial a frontend. For a node port it is an address of the node. `None`: the node has no
/// address of that family.
pub fn dial_target(snapshot: &Snapshot, it: &FrontendView) -> Option<SocketAddr> {
    let own = || snapshot.node.external_addresses();
    let address = match it.kind {
        FrontendType::NodePort => own().find(|own| own.is_ipv4() == it.address.is_ipv4())?,
        _ => it.address,
    };
    Some(SocketAddr::new(address, it.port.get()))
}

pub fn frontend_targets<'a>(
    snapshot: &'a Snapshot,
    views: &'a [Arc<ServiceView>],
) -> impl Iterator<Item = (SocketAddr, &'a Protocol)> {
    let all = views.iter().flat_map(|view| view.frontends.iter());
    all.filter_map(|it| Some((dial_target(snapshot, it)?, &it.protocol)))
}

/// Traces the client's first packet at each frontend of its family, by the maps that were read.
pub(super) fn trace_client(
    snapshot: &Arc<Snapshot>,
    views: &[Arc<ServiceView>],
    datapath: &DatapathView,
    (read, client): (&ReadBack, Option<IpAddr>),
) -> Lookup<Vec<ClientTrace>> {
    let Some(client) = client else { return Lookup::Skipped("no client was named (--client)") };
    // What another service has leads to backends of that one.
    let own = views.iter().flat_map(|view| &view.frontends).filter(|it| it.verdict != Verdict::Conflict);
    let targets = own.filter_map(|it| Some((dial_target(snapshot, it)?, &it.protocol)));
    let of_family = targets.filter(|(at, _)| at.is_ipv4() == client.is_ipv4());
    let one = |(at, protocol): (SocketAddr, &Protocol)| {
        let question = ExplainQuery::Address(DialTarget::new(at, Some(protocol.clone())));
        let packet = ResolvedQuery::resolve(Arc::clone(snapshot), question, Some(client))
            .trace_packet(datapath, read)?;
        Some(ClientTrace {
            frontend: at,
            outcome: packet.outcome.0,
            backends: packet.backends.iter().map(|it| it.backend.clone()).collect(),
            sentence: packet.sentence,
        })
    };
    Lookup::Answered(of_family.filter_map(one).take(NAMED_MAX).collect())
}
