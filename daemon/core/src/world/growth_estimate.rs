//! Estimates what a start will write, from the objects alone.
//!
//! Invariant: only the duration of a start depends on the estimate. It may be too high for addresses that several
//! services ask for, or too low for lists that become Maglev tables. No object adds more than it could have in the
//! maps.

use alloc::sync::Arc;

use crate::facts::{AddressType, ServiceFacts, Settings, SliceFacts};
use crate::keys::{Family, Transport};
use crate::limits;
use crate::op::MapGrowth;
use crate::resolve::frontends;
use crate::snapshot::{ServiceState, ServiceView};
use crate::tables::Tables;
use crate::work;

impl Tables {
    /// What all known services would take of empty maps.
    pub(crate) fn estimate_growth(&self) -> MapGrowth {
        let mut growth = MapGrowth::default();
        let known = self.ids().filter_map(|id| self.get(id));
        for service in known {
            add_service_growth((service.facts.as_deref(), &service.slices), &self.settings, &mut growth);
        }
        growth
    }
}

/// What a restored service would take of empty maps.
pub fn estimate_service_growth(view: &ServiceView, settings: &Settings) -> MapGrowth {
    let mut growth = MapGrowth::default();
    add_service_growth((view.facts.as_deref(), &view.slices), settings, &mut growth);
    growth
}

fn add_service_growth(
    (facts, slices): (Option<&ServiceFacts>, &[Arc<SliceFacts>]),
    settings: &Settings,
    growth: &mut MapGrowth,
) {
    let Some(facts) = facts.filter(|it| frontends::service_state(Some(it), settings) == ServiceState::Served)
    else {
        return;
    };
    let MapGrowth { frontends, ports, slots, members } = growth;
    for ((family, frontends), slots) in Family::ALL.into_iter().zip(frontends).zip(slots) {
        let addresses = count_addresses(facts, family);
        if addresses > 0 {
            let endpoints = count_endpoints(slices, family);
            let wanted = addresses.saturating_mul(facts.ports.len());
            add_capped(frontends, wanted.min(limits::FRONTENDS_PER_SERVICE_MAX));
            add_capped(ports, facts.ports.len());
            add_capped(slots, block_slots(endpoints, facts.ports.len()));
            add_capped(members, if keeps_members(facts, settings) { endpoints } else { 0 });
        }
    }
}

/// The slots for lists with so many endpoints in all: each list has a whole block.
fn block_slots(endpoints: usize, lists: usize) -> usize {
    let each = endpoints.div_ceil(lists.max(1));
    if each == 0 { 0 } else { each.next_power_of_two().saturating_mul(lists) }
}

fn add_capped(sum: &mut u32, more: usize) {
    *sum = sum.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
}

/// How many addresses of a family the service asks for; all NodePorts count as one.
fn count_addresses(facts: &ServiceFacts, family: Family) -> usize {
    let listed = facts.cluster_ips.iter().chain(&facts.external_ips).copied();
    let ingress = facts.ingress.iter().map(|ingress| ingress.address);
    let fixed = facts.static_frontends.iter().map(core::net::SocketAddr::ip);
    let listed =
        listed.chain(ingress).chain(fixed).filter(|address| Family::from_address(*address) == family).count();
    work::count_work(1 + listed);
    listed + usize::from(listed > 0 && facts.ports.iter().any(|port| port.node_port.is_some()))
}

/// How many endpoints of a family its ports have, over all slices.
fn count_endpoints(slices: &[Arc<SliceFacts>], family: Family) -> usize {
    let of_family = slices.iter().filter(|it| !it.headless && it.address_type == AddressType::Ip(family));
    let each = of_family.map(|slice| slice.endpoints.len().saturating_mul(slice.ports.len()));
    work::count_work(slices.len());
    each.fold(0, usize::saturating_add).min(limits::ROWS_PER_SERVICE_MAX)
}

/// Whether the maps keep any of its backends as members.
fn keeps_members(facts: &ServiceFacts, settings: &Settings) -> bool {
    let keeps = |transport| match transport {
        Some(Transport::Udp) => true,
        Some(Transport::Tcp) => settings.keeps_tcp_members,
        Some(Transport::Sctp) | None => false,
    };
    facts.affinity_timeout.is_some() || facts.ports.iter().any(|port| keeps(port.protocol.transport()))
}
