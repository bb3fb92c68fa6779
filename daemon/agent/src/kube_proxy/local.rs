//! Finds out which endpoints are on this node, by their slices.
//!
//! Invariant: an endpoint without a node is on none.

use std::sync::Arc;

use holdfast_core::facts::SliceFacts;
use holdfast_core::list::Row;
use holdfast_core::snapshot::PortView;

pub(super) fn is_local_row(port: &PortView, row: &Row, slices: &[Arc<SliceFacts>], node: &str) -> bool {
    let slice = port.row_slice(row, slices);
    let endpoint = slice.and_then(|slice| slice.endpoints.get(usize::from(row.endpoint)));
    endpoint.and_then(|it| it.node).is_some_and(|it| it == *node)
}
