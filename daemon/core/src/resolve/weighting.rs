//! Applies weights and drains to the lists of a port.
//!
//! Invariant: a list that had a backend keeps one.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use crate::drains::Drains;
use crate::facts::SliceFacts;
use crate::keys::ObjectName;
use crate::list::{Row, Scope};
use crate::weights::{BackendWeights, Weight, Weights};
use crate::work;

/// The requested weights of a port's backends. The service's own weight for a backend wins over the weight in the slice
/// of the endpoint; another slice's weights never apply.
pub(super) fn assign_weights(
    rows: &[Row],
    slices: &[Arc<SliceFacts>],
    asked: Option<&Weights>,
) -> BackendWeights {
    if asked.is_none() && slices.iter().all(|slice| slice.weights.is_none()) {
        return BackendWeights::default();
    }
    let weight = |row: &Row| {
        let slice = slices.get(usize::from(row.slice))?;
        let node = slice.endpoints.get(usize::from(row.endpoint))?.node;
        let own = || slice.weights.as_ref()?.weights.find_weight(row.backend(), node);
        asked.and_then(|asked| asked.find_weight(row.backend(), node)).or_else(own)
    };
    work::count_work(slices.len() + rows.len());
    BackendWeights::new(rows.iter().map(|row| (row.backend(), weight(row).unwrap_or(Weight::ONE))))
}

/// The drained ones of a service's backends, in their order.
pub(crate) fn drained_backends<'a>(
    backends: impl ExactSizeIterator<Item = SocketAddr>,
    service: &'a ObjectName,
    drains: &'a Drains,
) -> impl Iterator<Item = SocketAddr> {
    let backends = (!drains.is_empty()).then_some(backends);
    work::count_work(backends.as_ref().map_or(0, ExactSizeIterator::len));
    backends.into_iter().flatten().filter(move |backend| drains.is_drained(service, *backend))
}

/// Removes backends of weight 0 from each list that keeps other backends.
pub(crate) fn drop_weightless(rows: &mut [Row], weights: &BackendWeights) {
    if weights.is_uniform() {
        return;
    }
    work::count_work(rows.len());
    let each: Vec<Weight> = rows.iter().map(|row| weights.weight(row.backend())).collect();
    for scope in Scope::ALL {
        let stays = |(row, weight): (&Row, &Weight)| row.is_in(scope) && *weight > Weight::NONE;
        if !rows.iter().zip(&each).any(stays) {
            continue;
        }
        for row in
            rows.iter_mut().zip(&each).filter(|(_, weight)| **weight == Weight::NONE).map(|(row, _)| row)
        {
            *row = row.restrict_lists(scope != Scope::Cluster, scope != Scope::Local);
        }
    }
}
