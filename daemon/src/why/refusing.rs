//! Backends that said themselves that their port is closed, to clients outside that speak UDP.
//!
//! Invariant: nothing is sent for it. It is read off the table of flows, once for an answer, and only where a service
//! of the answer has a port by UDP.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::Transport;
use holdfast_core::snapshot::{PortView, ServiceView};
use holdfast_datapath::FlowFilter;

use super::find::Subject;
use crate::readings::Readings;

/// Conversations that are looked at.
const FLOWS_MAX: usize = 1_000;

/// Backends that are named of one service.
const BACKENDS_MAX: usize = 16;

fn by_udp(view: &ServiceView) -> impl Iterator<Item = &PortView> {
    view.ports.iter().filter(|port| port.key.transport == Transport::Udp)
}

/// All backends that refuse a client now, of any service.
pub(super) fn seen(readings: &Readings, subjects: &[Subject]) -> BTreeSet<SocketAddr> {
    if !subjects.iter().any(|subject| by_udp(&subject.view).next().is_some()) {
        return BTreeSet::new();
    }
    let datapath = readings.datapath();
    let Some(flows) = datapath.status().and_then(|status| status.flows.as_ref()) else {
        return BTreeSet::new();
    };
    let refused = FlowFilter { refused: true, ..FlowFilter::default() };
    flows.table.report(&refused, FLOWS_MAX).found.iter().map(|flow| flow.backend).collect()
}

/// Those of a service.
pub(super) fn of(view: &ServiceView, seen: &BTreeSet<SocketAddr>) -> Vec<String> {
    let is_its = |backend: &&SocketAddr| by_udp(view).any(|port| port.rows.find(**backend).is_some());
    seen.iter().filter(is_its).take(BACKENDS_MAX).map(ToString::to_string).collect()
}
