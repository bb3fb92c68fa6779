//! The endpoints of each port of a service, from all of its slices.
//!
//! Invariant: a service gets at most [`limits::ROWS_PER_SERVICE_MAX`] rows. Ports get all of their endpoints in order
//! while capacity lasts; half of the capacity is divided evenly, so that no port is empty. A truncated port keeps the
//! endpoints most likely to get traffic here: too large an object makes lists shorter, never empty. A decision reads at
//! most [`limits::SLICE_PORTS_PER_SERVICE_MAX`] ports of slices, slice by slice.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;

use super::DesiredPort;
use crate::facts::{AddressType, Endpoint, NodeFacts, SliceFacts};
use crate::limits;
use crate::list::Row;
use crate::work;

/// A slice with endpoints for a port: the slice's position, the slice, and its own port number.
type PortSlice<'a> = (u16, &'a SliceFacts, NonZeroU16);

/// Fills in each port's rows and returns how many ports are truncated.
pub(super) fn fill_rows(ports: &mut [DesiredPort], slices: &[Arc<SliceFacts>], node: &NodeFacts) -> usize {
    if ports.is_empty() {
        return 0;
    }
    let listed = PortSlices::new(ports, slices);
    let wanted: Vec<usize> = (0..ports.len()).map(|port| listed.row_count(port)).collect();
    let given = divide_capacity(&wanted, limits::ROWS_PER_SERVICE_MAX);
    let mut ranks = None;
    let mut cut = 0;
    for (position, (port, (wanted, given))) in ports.iter_mut().zip(wanted.into_iter().zip(given)).enumerate()
    {
        let rows = if given == wanted {
            listed.all_rows(position)
        } else {
            cut += 1;
            let ranks: &Vec<_> =
                ranks.get_or_insert_with(|| slices.iter().map(|it| rank_endpoints(it, node)).collect());
            listed.top_ranked(position, ranks, given)
        };
        work::count_work(rows.len());
        port.rows = merge_rows(rows);
    }
    if listed.is_truncated { ports.len() } else { cut }
}

/// Divides the capacity among ports. Each port gets what it wants in order while capacity lasts; half of the capacity
/// is split evenly, whatever earlier ports want.
pub(crate) fn divide_capacity(wanted: &[usize], room: usize) -> Vec<usize> {
    let share = room / 2 / wanted.len().max(1);
    let mut left = room;
    let mut kept: usize = wanted.iter().map(|wanted| share.min(*wanted)).sum();
    let each = wanted.iter().map(|wanted| {
        kept = kept.saturating_sub(share.min(*wanted));
        let given = (*wanted).min(left.saturating_sub(kept));
        left = left.saturating_sub(given);
        given
    });
    each.collect()
}

/// How many ports of slices a decision reads.
pub(crate) fn count_slice_ports(slices: &[Arc<SliceFacts>]) -> usize {
    slices.iter().filter(|slice| has_endpoints(slice)).map(|slice| slice.ports.len()).sum()
}

fn has_endpoints(slice: &SliceFacts) -> bool {
    !slice.headless && !slice.endpoints.is_empty()
}

/// The slices of each port, so that no port searches all slices.
struct PortSlices<'a> {
    parts: Vec<Vec<PortSlice<'a>>>,
    /// The last slices were skipped because the slices have too many ports.
    is_truncated: bool,
}

impl<'a> PortSlices<'a> {
    fn new(ports: &[DesiredPort], slices: &'a [Arc<SliceFacts>]) -> Self {
        let mut listed = Self { parts: Vec::new(), is_truncated: false };
        listed.parts.resize_with(ports.len(), Vec::new);
        let mut left = limits::SLICE_PORTS_PER_SERVICE_MAX;
        for (slice, position) in slices.iter().zip(0_u16..).filter(|(slice, _)| has_endpoints(slice)) {
            let AddressType::Ip(family) = slice.address_type else { continue };
            let Some(after) = left.checked_sub(slice.ports.len()) else {
                listed.is_truncated = true;
                break;
            };
            left = after;
            for port in &slice.ports {
                let Some(transport) = port.protocol.transport() else { continue };
                let join = (&*port.name, transport, family);
                let of = |it: &DesiredPort| (&*it.key.name, it.key.transport, it.key.family).cmp(&join);
                let found = ports.binary_search_by(of).ok().and_then(|at| listed.parts.get_mut(at));
                found.into_iter().for_each(|parts| parts.push((position, &**slice, port.port)));
            }
        }
        work::count_work(slices.len() + limits::SLICE_PORTS_PER_SERVICE_MAX - left);
        listed
    }

    fn port_slices(&self, port: usize) -> &[PortSlice<'a>] {
        self.parts.get(port).map(Vec::as_slice).unwrap_or_default()
    }

    /// How many rows a port has before duplicates are merged.
    fn row_count(&self, port: usize) -> usize {
        self.port_slices(port).iter().map(|(_, slice, _)| slice.endpoints.len()).sum()
    }

    fn all_rows(&self, port: usize) -> Vec<Row> {
        let mut rows = Vec::with_capacity(self.row_count(port));
        for (position, slice, number) in self.port_slices(port) {
            let endpoints = slice.endpoints.iter_brief().zip(0_u16..);
            rows.extend(endpoints.map(|((address, conditions), endpoint)| {
                Row::new(address, *number, conditions, *position, endpoint)
            }));
        }
        rows
    }

    /// The first `most` rows of a port by the rank of their endpoints.
    fn top_ranked(&self, port: usize, ranks: &[RankedEndpoints], most: usize) -> Vec<Row> {
        let ranked = |rank: usize| {
            self.port_slices(port).iter().flat_map(move |(position, slice, number)| {
                let endpoints = ranks.get(usize::from(*position)).and_then(|ranks| ranks.get(rank));
                endpoints.into_iter().flatten().filter_map(move |endpoint| {
                    let found = slice.endpoints.get(usize::from(*endpoint))?;
                    Some(Row::new(found.address, *number, found.conditions, *position, *endpoint))
                })
            })
        };
        (0..RANKS).flat_map(ranked).take(most).collect()
    }
}

/// The ranks of endpoints: ready here, ready elsewhere, serving, others.
const RANKS: usize = 4;

/// The positions of a slice's endpoints by rank.
type RankedEndpoints = [Vec<u16>; RANKS];

fn rank_endpoints(slice: &Arc<SliceFacts>, node: &NodeFacts) -> RankedEndpoints {
    let mut ranked = RankedEndpoints::default();
    for (endpoint, position) in slice.endpoints.iter().zip(0_u16..) {
        ranked.get_mut(rank(&endpoint, node)).into_iter().for_each(|positions| positions.push(position));
    }
    work::count_work(slice.endpoints.len());
    ranked
}

fn rank(endpoint: &Endpoint<'_>, node: &NodeFacts) -> usize {
    let is_here = endpoint.node.is_some_and(|it| it == *node.name);
    match (endpoint.conditions.ready, endpoint.conditions.serving) {
        (true, _) if is_here => 0,
        (true, _) => 1,
        (false, true) => 2,
        (false, false) => 3,
    }
}

/// Orders rows by address and port, and puts the winner of duplicates first. The key is numeric and each slice is
/// already sorted, which makes sorting tens of thousands of rows cheap. All rows of a port are of one family.
fn sort_key(row: &Row) -> (u128, u64) {
    let address = match row.address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let conditions = row.conditions();
    let worse = [conditions.terminating, !conditions.ready, !conditions.serving];
    let fields = [row.slice, row.endpoint].map(u64::from);
    let number = u64::from(row.port.get());
    let rest = worse.into_iter().fold(number, |sum, bit| sum << 1 | u64::from(bit));
    (address, fields.into_iter().fold(rest, |sum, field| sum << 16 | field))
}

/// Merges the rows of all slices, each address and port once.
///
/// Where slices disagree about an endpoint, one that is not terminating wins, then a ready one, then a serving one,
/// then the first slice by name. The winner records whether the endpoint serves in another slice.
fn merge_rows(mut rows: Vec<Row>) -> Vec<Row> {
    // The common case: one slice with ascending addresses needs neither sorting nor merging.
    if rows.is_sorted_by(|a: &Row, b| (a.address, a.port) < (b.address, b.port)) {
        return rows;
    }
    rows.sort_by_key(sort_key);
    rows.dedup_by(|other, row| {
        let is_same = (other.address, other.port) == (row.address, row.port);
        if is_same {
            row.merge_serving(other);
        }
        is_same
    });
    rows
}
