//! What weights make of the lists of a port.
//!
//! Invariant: a list that had a backend has one afterwards.

use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::facts::SliceFacts;
use crate::list::{Row, Scope};
use crate::weights::{OfBackends, Weight, Weights};
use crate::work;

/// Takes backends with weight 0 out of the lists in which others stay, and gives the weights of the port.
pub(super) fn weigh(rows: &mut [Row], slices: &[Arc<SliceFacts>], weights: &Weights) -> OfBackends {
    let node = |row: &Row| slices.get(usize::from(row.slice))?.endpoints.get(usize::from(row.endpoint))?.node;
    work::done(rows.len());
    let each: Vec<Weight> = rows.iter().map(|row| weights.of(row.backend(), node(row))).collect();
    for scope in Scope::ALL {
        let stays = |(row, weight): (&Row, &Weight)| row.is_in(scope) && *weight > Weight::NONE;
        if !rows.iter().zip(&each).any(stays) {
            continue;
        }
        for row in
            rows.iter_mut().zip(&each).filter(|(_, weight)| **weight == Weight::NONE).map(|(row, _)| row)
        {
            *row = row.narrowed(scope != Scope::Cluster, scope != Scope::Local);
        }
    }
    OfBackends::new(rows.iter().map(Row::backend).zip(each))
}
