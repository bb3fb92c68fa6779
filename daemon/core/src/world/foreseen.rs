//! What a start is about to write, as far as the objects say before anything is decided.
//!
//! Invariant: it is an estimate, and only the time that a start takes depends on it. It may be too much, for addresses
//! that several services ask for, or too little, for lists that become tables; no object adds more to it than it could
//! have in the maps.

use alloc::sync::Arc;

use crate::facts::{AddressType, ServiceFacts, Settings, SliceFacts};
use crate::keys::{Family, Transport};
use crate::limits;
use crate::op::Coming;
use crate::resolve::frontends;
use crate::snapshot::{ServiceState, ServiceView};
use crate::tables::Tables;
use crate::work;

impl Tables {
    /// What all services that are known would take of empty maps.
    pub(crate) fn foreseen(&self) -> Coming {
        let mut coming = Coming::default();
        let known = self.ids().filter_map(|id| self.get(id));
        for service in known {
            foresee((service.facts.as_deref(), &service.slices), &self.settings, &mut coming);
        }
        coming
    }
}

/// What this service, which a former process wrote down, would take of empty maps.
pub fn foreseen(view: &ServiceView, settings: &Settings) -> Coming {
    let mut coming = Coming::default();
    foresee((view.facts.as_deref(), &view.slices), settings, &mut coming);
    coming
}

fn foresee(
    (facts, slices): (Option<&ServiceFacts>, &[Arc<SliceFacts>]),
    settings: &Settings,
    coming: &mut Coming,
) {
    let Some(facts) = facts.filter(|it| frontends::state(Some(it), settings) == ServiceState::Served) else {
        return;
    };
    let Coming { frontends, ports, slots, members } = coming;
    for ((family, frontends), slots) in Family::ALL.into_iter().zip(frontends).zip(slots) {
        let addresses = addresses(facts, family);
        if addresses > 0 {
            let endpoints = endpoints(slices, family);
            let wanted = addresses.saturating_mul(facts.ports.len());
            add(frontends, wanted.min(limits::FRONTENDS_PER_SERVICE_MAX));
            add(ports, facts.ports.len());
            add(slots, blocks(endpoints, facts.ports.len()));
            add(members, if keeps_members(facts, settings) { endpoints } else { 0 });
        }
    }
}

/// The slots of lists of so many endpoints in all: each list has a whole block.
fn blocks(endpoints: usize, lists: usize) -> usize {
    let each = endpoints.div_ceil(lists.max(1));
    if each == 0 { 0 } else { each.next_power_of_two().saturating_mul(lists) }
}

fn add(sum: &mut u32, more: usize) {
    *sum = sum.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
}

/// How many addresses of a family the service asks for; that of NodePorts is one.
fn addresses(facts: &ServiceFacts, family: Family) -> usize {
    let listed = facts.cluster_ips.iter().chain(&facts.external_ips).copied();
    let ingress = facts.ingress.iter().map(|ingress| ingress.address);
    let fixed = facts.static_frontends.iter().map(core::net::SocketAddr::ip);
    let listed = listed.chain(ingress).chain(fixed).filter(|address| Family::of(*address) == family).count();
    work::done(1 + listed);
    listed + usize::from(listed > 0 && facts.ports.iter().any(|port| port.node_port.is_some()))
}

/// How many endpoints of a family its ports have, over all slices.
fn endpoints(slices: &[Arc<SliceFacts>], family: Family) -> usize {
    let of_family = slices.iter().filter(|it| !it.headless && it.address_type == AddressType::Ip(family));
    let each = of_family.map(|slice| slice.endpoints.len().saturating_mul(slice.ports.len()));
    work::done(slices.len());
    each.fold(0, usize::saturating_add).min(limits::ROWS_PER_SERVICE_MAX)
}

/// Whether any of its backends is known by its address.
fn keeps_members(facts: &ServiceFacts, settings: &Settings) -> bool {
    let keeps = |transport| match transport {
        Some(Transport::Udp) => true,
        Some(Transport::Tcp) => settings.keeps_tcp_members,
        Some(Transport::Sctp) | None => false,
    };
    facts.affinity_timeout.is_some() || facts.ports.iter().any(|port| keeps(port.protocol.transport()))
}
