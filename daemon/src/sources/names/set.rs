//! The backends that name servers say a service has.
//!
//! Invariant: pure, and by the records alone, not by their order: so all nodes that get the same answer have the same
//! backends. What no backend of a name may have is left out and named.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use holdfast_core::keys::Family;
use holdfast_core::weights::Weight;

use crate::dns::{Name, Server};

/// The most servers of a service that are asked for: each is one or two questions with each answer, and a service of
/// more servers has balancers of its own.
pub(super) const TARGETS_MAX: usize = 100;

/// The most backends: as many as the configuration may name itself.
pub(super) const BACKENDS_MAX: usize = 1_000;

/// The backends of a service, each with its weight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    pub backends: BTreeMap<SocketAddr, Weight>,
    /// The service's zone says that it is not available: these are the backends that it had last, and none of them is
    /// to have clients.
    pub is_withdrawn: bool,
}

/// What is left out of an answer: one example, and how many in all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    example: Option<String>,
    count: usize,
}

impl LeftOut {
    fn add(&mut self, count: usize, example: impl FnOnce() -> String) {
        if count > 0 {
            self.count = self.count.saturating_add(count);
            self.example.get_or_insert_with(example);
        }
    }

    /// In one line; none: nothing is left out.
    pub(super) fn told(&self) -> Option<String> {
        let example = self.example.as_ref()?;
        Some(match self.count {
            1 => format!("left out: {example}"),
            count => format!("{count} left out, as {example}"),
        })
    }
}

/// The servers to which a service leads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Led {
    /// The zone says that the service is not available (RFC 2782: the target is the root).
    Withdrawn,
    To(Vec<Server>),
}

/// The servers of the lowest priority number, in an order of their own.
pub(super) fn led(mut servers: Vec<Server>, left_out: &mut LeftOut) -> Led {
    if matches!(servers.as_slice(), [only] if only.target.is_root()) {
        return Led::Withdrawn;
    }
    let before = servers.len();
    servers.retain(|server| !server.target.is_root() && server.port != 0);
    left_out.add(before - servers.len(), || "a record without a target or a port".to_owned());
    let lowest = servers.iter().map(|server| server.priority).min();
    servers.retain(|server| Some(server.priority) == lowest);
    servers.sort_by(|a, b| (&a.target, a.port, a.weight).cmp(&(&b.target, b.port, b.weight)));
    let targets: BTreeSet<Name> = servers.iter().map(|server| server.target.clone()).collect();
    if let Some(first_beyond) = targets.into_iter().nth(TARGETS_MAX) {
        let fit = servers.partition_point(|server| server.target < first_beyond);
        left_out.add(servers.len() - fit, || {
            format!("{first_beyond}, because at most {TARGETS_MAX} hosts count")
        });
        servers.truncate(fit);
    }
    Led::To(servers)
}

/// The addresses of the family that was asked for. One of IPv4 may be written as one of IPv6.
pub(super) fn of_family(addresses: Vec<IpAddr>, family: Family, left_out: &mut LeftOut) -> Vec<IpAddr> {
    let is_of = |address: &IpAddr| Family::of(address.to_canonical()) == family;
    let (own, others): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_of);
    if let Some(other) = others.first() {
        left_out.add(others.len(), || format!("{other}, which is no address of {family}"));
    }
    own
}

/// The backends at one port of these addresses.
pub(super) fn at_port(addresses: &[IpAddr], port: NonZeroU16, left_out: &mut LeftOut) -> Set {
    let each = fit(addresses, left_out).map(|address| (SocketAddr::new(address, port.get()), Weight::ONE));
    Set { backends: cut(each.collect(), left_out), is_withdrawn: false }
}

/// The backends of servers with these addresses. What several records say of one backend is added up.
pub(super) fn of_servers(
    servers: &[Server],
    addresses: &BTreeMap<Name, Vec<IpAddr>>,
    left_out: &mut LeftOut,
) -> Set {
    let mut shares: BTreeMap<SocketAddr, u32> = BTreeMap::new();
    let mut seen = LeftOut::default();
    for server in servers {
        let of_target = addresses.get(&server.target).map(Vec::as_slice).unwrap_or_default();
        for address in fit(of_target, &mut seen) {
            *shares.entry(SocketAddr::new(address, server.port)).or_default() += u32::from(server.weight);
        }
    }
    let example = seen.example.unwrap_or_default();
    left_out.add(seen.count, || example);
    Set { backends: cut(weighed(&shares), left_out), is_withdrawn: false }
}

/// Shares as weights: as they are where that is possible, else in proportion to the largest, which counts as 256. One
/// beside others that is 0, or comes to nothing, counts as 1: such a backend gets few clients, and not none.
fn weighed(shares: &BTreeMap<SocketAddr, u32>) -> BTreeMap<SocketAddr, Weight> {
    let most = u32::from(Weight::MOST);
    let least = shares.values().copied().min().unwrap_or_default();
    let largest = shares.values().copied().max().unwrap_or_default();
    let weight = |share: u32| {
        if least == largest {
            return Weight::ONE;
        }
        let is_legal = least > 0 && largest <= most;
        // In u64, because so many records of one backend may add up to more than 2^24.
        let scaled =
            (u64::from(share) * u64::from(most) + u64::from(largest) / 2) / u64::from(largest.max(1));
        let number = if is_legal { u64::from(share) } else { scaled.max(1) };
        u16::try_from(number).ok().and_then(Weight::new).unwrap_or(Weight::ONE)
    };
    shares.iter().map(|(backend, share)| (*backend, weight(*share))).collect()
}

fn cut(mut backends: BTreeMap<SocketAddr, Weight>, left_out: &mut LeftOut) -> BTreeMap<SocketAddr, Weight> {
    if let Some(first_beyond) = backends.keys().nth(BACKENDS_MAX).copied() {
        let beyond = backends.split_off(&first_beyond);
        let why = || format!("{first_beyond}, because at most {BACKENDS_MAX} backends count");
        left_out.add(beyond.len(), why);
    }
    backends
}

/// The addresses that a backend of a name may have.
fn fit<'a>(addresses: &'a [IpAddr], left_out: &'a mut LeftOut) -> impl Iterator<Item = IpAddr> + 'a {
    addresses.iter().map(IpAddr::to_canonical).filter(move |address| {
        let is_fit = may_be_backend(*address);
        left_out.add(usize::from(!is_fit), || format!("{address}, which is no address of another host"));
        is_fit
    })
}

/// Whether a name may lead to an address. Loopback and link-local ones, the metadata of clouds among them, mean this
/// host or its link: the operator may name these in `backends`, and no name server may.
fn may_be_backend(address: IpAddr) -> bool {
    let is_of_link = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets().starts_with(&[0]),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(is_of_link || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests;
