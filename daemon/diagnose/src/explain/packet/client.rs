//! Where the client of a traced packet is: this node, a pod of it, or outside.
//!
//! Invariant: an address alone decides, by this node's own addresses and by the endpoints of the snapshot.

use std::net::IpAddr;

use holdfast_core::facts::{NodeName, SliceFacts};
use holdfast_core::snapshot::Snapshot;

use super::prose::ClientClass;

/// The kind of client with this address.
pub(super) fn classify_client(snapshot: &Snapshot, from: IpAddr) -> ClientClass {
    if snapshot.node.has_address(from) || from.is_loopback() {
        return ClientClass::Node;
    }
    let own = &*snapshot.node.name;
    let is_here = endpoint_nodes(snapshot, from).any(|node| node.is_some_and(|node| node == *own));
    if is_here { ClientClass::Pod } else { ClientClass::Outside }
}

/// Whether an endpoint with this address does not say on which node it is.
pub(super) fn is_unplaced_endpoint(snapshot: &Snapshot, address: IpAddr) -> bool {
    endpoint_nodes(snapshot, address).any(|node| node.is_none())
}

/// Whether a process or pod of this node may have this address, so that its sockets may be served where they dial.
pub(crate) fn may_dial_here(snapshot: &Snapshot, from: IpAddr) -> bool {
    classify_client(snapshot, from) != ClientClass::Outside || is_unplaced_endpoint(snapshot, from)
}

/// The node of each endpoint with this address.
fn endpoint_nodes(snapshot: &Snapshot, address: IpAddr) -> impl Iterator<Item = Option<NodeName<'_>>> {
    let slices = snapshot.services.iter().flat_map(|view| view.slices.iter());
    slices.flat_map(move |slice| slice_nodes(slice, address))
}

fn slice_nodes(slice: &SliceFacts, address: IpAddr) -> impl Iterator<Item = Option<NodeName<'_>>> {
    let found = slice.endpoints.iter_brief().enumerate().filter(move |(_, (at, _))| *at == address);
    found.filter_map(|(place, _)| Some(slice.endpoints.get(place)?.node))
}
