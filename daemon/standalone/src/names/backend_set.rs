//! Builds a service's backends from DNS records.
//!
//! Invariant: pure, and independent of the records' order: all nodes with the same answer have the same backends.
//! Invalid addresses are left out and reported. However many backends an answer implies, the work per host is bounded
//! by [`BACKENDS_MAX`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

use holdfast_core::keys::Family;
use holdfast_core::weights::Weight;

use crate::dns::{Name, SrvRecord};

/// The most SRV targets to resolve: each costs one or two queries per look-up, and larger services have their own
/// balancers.
pub(super) const TARGETS_MAX: usize = 100;

/// The most backends: as many as the configuration allows.
pub(super) const BACKENDS_MAX: usize = 1_000;

/// The backends of a service with their weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendSet {
    pub backends: BTreeMap<SocketAddr, Weight>,
    /// The service's zone declares it unavailable: these are its last backends, and none may get clients.
    pub is_withdrawn: bool,
}

/// Records that were left out: one example, and the count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOutRecords {
    example: Option<String>,
    count: usize,
}

impl LeftOutRecords {
    fn add_example(&mut self, count: usize, example: impl FnOnce() -> String) {
        if count > 0 {
            self.count = self.count.saturating_add(count);
            self.example.get_or_insert_with(example);
        }
    }

    /// Describes them in one line; `None`: nothing was left out.
    pub(super) fn describe_left_out(&self) -> Option<String> {
        let example = self.example.as_ref()?;
        Some(match self.count {
            1 => format!("left out: {example}"),
            count => format!("{count} left out, such as {example}"),
        })
    }
}

/// The targets of an SRV look-up.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SrvTargets {
    /// The zone declares the service unavailable (RFC 2782: the target is the root).
    Withdrawn,
    To(Vec<SrvRecord>),
}

/// The records of the lowest priority, sorted.
pub(super) fn select_targets(mut servers: Vec<SrvRecord>, left_out: &mut LeftOutRecords) -> SrvTargets {
    if matches!(servers.as_slice(), [only] if only.target.is_root()) {
        return SrvTargets::Withdrawn;
    }
    let before = servers.len();
    servers.retain(|server| !server.target.is_root() && server.port != 0);
    left_out.add_example(before - servers.len(), || "a record without a target or a port".to_owned());
    let lowest = servers.iter().map(|server| server.priority).min();
    servers.retain(|server| Some(server.priority) == lowest);
    servers.sort_by(|a, b| (&a.target, a.port, a.weight).cmp(&(&b.target, b.port, b.weight)));
    let targets: BTreeSet<Name> = servers.iter().map(|server| server.target.clone()).collect();
    if let Some(first_beyond) = targets.into_iter().nth(TARGETS_MAX) {
        let fit = servers.partition_point(|server| server.target < first_beyond);
        left_out.add_example(servers.len() - fit, || {
            format!("{first_beyond}, because at most {TARGETS_MAX} hosts count")
        });
        servers.truncate(fit);
    }
    SrvTargets::To(servers)
}

/// The valid addresses of the family, sorted and deduplicated, at most [`BACKENDS_MAX`]: at any port, later ones have
/// as many before them. An IPv4 address may be written as IPv6.
pub(super) fn select_family(
    addresses: Vec<IpAddr>,
    family: Family,
    left_out: &mut LeftOutRecords,
) -> Vec<IpAddr> {
    let is_of = |address: &IpAddr| Family::from_address(address.to_canonical()) == family;
    let (own, others): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_of);
    if let Some(other) = others.first() {
        left_out.add_example(others.len(), || format!("{other}, which is no address of {family}"));
    }
    let mut fit: Vec<IpAddr> = filter_addresses(&own, left_out).collect();
    fit.sort_unstable();
    fit.dedup();
    if let Some(beyond) = fit.get(BACKENDS_MAX) {
        left_out.add_example(fit.len() - BACKENDS_MAX, || describe_overflow(beyond));
        fit.truncate(BACKENDS_MAX);
    }
    fit
}

/// The backends at one port of the sorted addresses from [`select_family`].
pub(super) fn backends_at_port(
    addresses: &[IpAddr],
    port: NonZeroU16,
    left_out: &mut LeftOutRecords,
) -> BackendSet {
    let mut shares = Shares::default();
    shares.add_host(addresses, &BTreeMap::from([(port.get(), 1)]));
    shares.into_set(left_out)
}

/// The backends of SRV targets with the sorted addresses from [`select_family`]. Weights of one backend add up.
pub(super) fn backends_from_servers(
    servers: &[SrvRecord],
    addresses: &BTreeMap<Name, Vec<IpAddr>>,
    left_out: &mut LeftOutRecords,
) -> BackendSet {
    let mut hosts: BTreeMap<&Name, BTreeMap<u16, u64>> = BTreeMap::new();
    for server in servers {
        let sum = hosts.entry(&server.target).or_default().entry(server.port).or_default();
        *sum = sum.saturating_add(u64::from(server.weight));
    }
    let mut shares = Shares::default();
    for (host, ports) in hosts {
        shares.add_host(addresses.get(host).map(Vec::as_slice).unwrap_or_default(), &ports);
    }
    shares.into_set(left_out)
}

/// Collects the lowest backends with their weights, at most [`BACKENDS_MAX`]. Each port may combine with each address
/// of its host, so an answer may imply millions.
#[derive(Debug, Default)]
struct Shares {
    lowest: BTreeMap<SocketAddr, u64>,
    beyond: usize,
    first_beyond: Option<SocketAddr>,
}

impl Shares {
    /// Adds one host: each of its sorted addresses at each of its ports.
    fn add_host(&mut self, addresses: &[IpAddr], ports: &BTreeMap<u16, u64>) {
        let at = |address: IpAddr| {
            ports.iter().map(move |(port, share)| (SocketAddr::new(address, *port), *share))
        };
        let backends = addresses.iter().copied().flat_map(at);
        self.add_backends(backends, addresses.len().saturating_mul(ports.len()));
    }

    /// Adds sorted backends. After the first that does not fit, none does, so at most one more than [`BACKENDS_MAX`] is
    /// visited.
    fn add_backends(&mut self, lowest_first: impl Iterator<Item = (SocketAddr, u64)>, count: usize) {
        let mut left = count;
        for (backend, share) in lowest_first {
            let is_full = self.lowest.len() >= BACKENDS_MAX;
            if is_full && self.lowest.last_key_value().is_some_and(|(last, _)| *last < backend) {
                return self.count_beyond(backend, left);
            }
            let sum = self.lowest.entry(backend).or_default();
            *sum = sum.saturating_add(share);
            left = left.saturating_sub(1);
            if self.lowest.len() > BACKENDS_MAX
                && let Some((last, _)) = self.lowest.pop_last()
            {
                self.count_beyond(last, 1);
            }
        }
    }

    fn count_beyond(&mut self, backend: SocketAddr, count: usize) {
        self.beyond = self.beyond.saturating_add(count);
        self.first_beyond = Some(self.first_beyond.map_or(backend, |first| first.min(backend)));
    }

    fn into_set(self, left_out: &mut LeftOutRecords) -> BackendSet {
        if let Some(first_beyond) = self.first_beyond {
            left_out.add_example(self.beyond, || describe_overflow(&first_beyond));
        }
        BackendSet { backends: shares_to_weights(&self.lowest), is_withdrawn: false }
    }
}

fn describe_overflow(first_beyond: &impl Display) -> String {
    format!("{first_beyond}, because at most {BACKENDS_MAX} backends count")
}

/// Converts shares to weights: unchanged if possible, else scaled so that the largest is 256. A zero or tiny share
/// becomes 1: such a backend gets few clients, not none.
fn shares_to_weights(shares: &BTreeMap<SocketAddr, u64>) -> BTreeMap<SocketAddr, Weight> {
    let most = u64::from(Weight::MAX);
    let least = shares.values().copied().min().unwrap_or_default();
    let largest = shares.values().copied().max().unwrap_or_default();
    let weight = |share: u64| {
        if least == largest {
            return Weight::ONE;
        }
        let is_legal = least > 0 && largest <= most;
        // No overflow: the shares of an answer add up to less than 2^32.
        let scaled = (share.saturating_mul(most).saturating_add(largest / 2)) / largest.max(1);
        let number = if is_legal { share } else { scaled.max(1) };
        u16::try_from(number).ok().and_then(Weight::new).unwrap_or(Weight::ONE)
    };
    shares.iter().map(|(backend, share)| (*backend, weight(*share))).collect()
}

/// Filters the addresses that a backend may have.
fn filter_addresses<'a>(
    addresses: &'a [IpAddr],
    left_out: &'a mut LeftOutRecords,
) -> impl Iterator<Item = IpAddr> + 'a {
    addresses.iter().map(IpAddr::to_canonical).filter(move |address| {
        let is_fit = can_be_backend(*address);
        left_out
            .add_example(usize::from(!is_fit), || format!("{address}, which is no address of another host"));
        is_fit
    })
}

/// Whether a name may resolve to this address. Loopback and link-local ones, such as cloud metadata, mean this host or
/// its link: the operator may name them in `backends`, a name server may not.
fn can_be_backend(address: IpAddr) -> bool {
    let is_of_link = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets().starts_with(&[0]),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(is_of_link || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

#[cfg(test)]
mod tests;
