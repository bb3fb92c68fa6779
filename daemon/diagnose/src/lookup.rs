//! Where clients dial a service, and which backends may get the next connection of a client.
//!
//! Invariant: nothing is sent. All answers come from what was read of the maps, for a bounded number of this service's
//! own frontends.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::keys::{Family, Protocol};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};

use super::limits::NAMED_MAX;
use super::material::{Asked, Lookup};
use crate::why::{Dialled, Question, ReadBack, Walk};
use holdfast_status::views::datapath::DatapathView;

/// Where a client dials a frontend: a node port is dialled at an address of the node. `None`: the node has no address
/// of the node port's family.
pub fn dialled(snapshot: &Snapshot, it: &FrontendView) -> Option<SocketAddr> {
    let own = || snapshot.node.external_addresses();
    let address = match it.kind {
        FrontendType::NodePort => own().find(|own| own.is_ipv4() == it.address.is_ipv4())?,
        _ => it.address,
    };
    Some(SocketAddr::new(address, it.port.get()))
}

/// Where clients dial each frontend of these services.
pub fn frontends<'a>(
    snapshot: &'a Snapshot,
    views: &'a [Arc<ServiceView>],
) -> impl Iterator<Item = (SocketAddr, &'a Protocol)> {
    let all = views.iter().flat_map(|view| view.frontends.iter());
    all.filter_map(|it| Some((dialled(snapshot, it)?, &it.protocol)))
}

/// What the first packet of this client meets at each frontend of its family, by what was read of the maps.
pub(super) fn look_up(
    snapshot: &Arc<Snapshot>,
    views: &[Arc<ServiceView>],
    datapath: &DatapathView,
    (read, client): (&ReadBack, Option<IpAddr>),
) -> Asked<Vec<Lookup>> {
    let Some(client) = client else { return Asked::Not("no client was named (--client)") };
    let of_family = frontends(snapshot, views)
        .filter(|(at, _)| Family::from_address(at.ip()) == Family::from_address(client));
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
