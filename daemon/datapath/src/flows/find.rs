//! The flows that an operator looks for.
//!
//! Invariant: the table is read once and nothing is written; the caller bounds how many flows are given.

use std::net::IpAddr;
use std::time::Instant;

use super::count::Tally;
use super::life::{Stage, is_expired};
use super::{Flow, FlowTable, Heard, Maps};
use crate::abi::flow::{End, types};
use crate::abi::mapped;

/// An address with any port, or with one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressFilter {
    /// Never an IPv4 one in the shape of IPv6.
    pub address: IpAddr,
    /// The only one that is meant; `None`: any of them.
    pub port: Option<u16>,
}

impl AddressFilter {
    /// Compares the two in the form of a record, because most flows are not looked for, and to convert each would cost
    /// more.
    fn is(self, (address, port): End) -> bool {
        mapped(self.address) == address && self.port.is_none_or(|wanted| wanted.to_be() == port)
    }
}

/// Which flows are looked for. `None` is no restriction; everything else is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowFilter {
    /// The address and port that the client's packets come from.
    pub client: Option<AddressFilter>,
    /// The address and port that the client dialled.
    pub frontend: Option<AddressFilter>,
    /// The backend that was chosen to answer.
    pub backend: Option<AddressFilter>,
    /// How far it has come.
    pub stage: Option<Stage>,
    /// Only flows for which the backend told that its port is closed, and has not answered since.
    pub refused: bool,
}

impl FlowFilter {
    fn takes(&self, it: &types::flow) -> bool {
        let is = |wanted: Option<AddressFilter>, end| wanted.is_none_or(|place| place.is(end));
        is(self.client, (it.client, it.client_port))
            && is(self.frontend, (it.frontend, it.frontend_port))
            && is(self.backend, (it.backend, it.backend_port))
            && self.stage.is_none_or(|stage| Stage::of(it) == Some(stage))
            && (!self.refused || Heard::of(it.of_backend, true).refusal)
    }
}

/// The table at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowReport {
    /// All flows, counted.
    pub tally: Tally,
    /// The flows that were looked for, the first ones of the table.
    pub found: Vec<Flow>,
    /// How many more flows are like those that were looked for.
    pub more: u64,
}

impl FlowTable {
    /// The flows that live and show the backend a port of this node.
    pub(crate) fn by_own_ports(&self) -> impl Iterator<Item = Flow> {
        let now = self.now();
        let records = &self.0.records;
        let live = records.some(0, records.len()).filter(move |(_, it)| !is_expired(it, now, 0));
        live.filter(|(_, it)| it.nat_port != 0).filter_map(move |(_, it)| Flow::of(&it, now))
    }

    /// The flows that live and on which both sides have agreed, read until that moment.
    pub(crate) fn agreed(&self, until: Instant) -> impl Iterator<Item = Flow> {
        let now = self.now();
        let records = &self.0.records;
        let in_time = records.some(0, records.len()).take_while(move |_| Instant::now() < until);
        let live = in_time.filter(move |(_, it)| !is_expired(it, now, 0));
        live.filter_map(move |(_, it)| Flow::of(&it, now)).filter(Flow::is_agreed)
    }

    /// Counts all flows, and finds at most `limit` of those that are looked for.
    pub fn report(&self, filter: &FlowFilter, limit: usize) -> FlowReport {
        let mut report = FlowReport::default();
        let now = self.now();
        let Maps { records, .. } = &*self.0;
        for (_, record) in records.some(0, records.len()) {
            report.tally.add(&record, now);
            if is_expired(&record, now, 0) || !filter.takes(&record) {
                continue;
            }
            if report.found.len() >= limit {
                report.more += 1;
            } else {
                report.found.extend(Flow::of(&record, now));
            }
        }
        report
    }
}
