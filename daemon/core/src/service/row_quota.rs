//! Divides the rows among a service's ports if all services together request more than the limit.
//!
//! Invariant: each port gets what it already counts for, and one row for each of its lists, before any port gets more,
//! so no limit shrinks or empties a list. A port counts for its listed rows or, if that is more, for its last list,
//! which is stored while there is none. If it fits, it counts for a whole block, as in the maps, so that a list within
//! its block changes independently of other services.

use alloc::vec::Vec;

use super::{Port, Service};
use crate::limits;
use crate::list::{Row, Rows, Scope};
use crate::resolve::endpoint_rows;
use crate::weights::BackendWeights;

/// How many rows each of these ports may have for its listed rows. Besides those that do not count they may have `most`
/// together.
pub(super) fn divide_rows<'a>(
    ports: impl Iterator<Item = (&'a Port, usize)> + Clone,
    most: usize,
) -> Vec<usize> {
    let own = |port: &Port| port.counted.max(limits::FREE_ROWS_PER_PORT);
    let counted: usize = ports.clone().map(|(port, _)| port.rows_counted()).sum();
    let beyond = |(port, listed): (&Port, usize)| listed.next_power_of_two().saturating_sub(own(port));
    let beyond: Vec<_> = ports.clone().map(beyond).collect();
    let more = endpoint_rows::divide_capacity(&beyond, most.saturating_sub(counted));
    ports.zip(more).map(|((port, _), more)| own(port).saturating_add(more)).collect()
}

/// Truncates the rows of a port to its quota, and their weights. Rows for clients on this node come first, then others
/// in a list, and among these the ones that were in a list before.
pub(super) fn truncate_rows(rows: &mut Vec<Row>, weights: &mut BackendWeights, most: usize, before: &Rows) {
    if rows.len() <= most {
        return;
    }
    let was_chosen = |row: &Row| before.find(row.backend()).is_some_and(|row| row.is_chosen());
    rows.sort_by_cached_key(|row| (rank(row), !was_chosen(row)));
    // Hints may exclude the backends of this node from the cluster list, which must not become empty by that.
    let clusters = rows.iter().position(|row| row.is_in(Scope::Cluster)).filter(|place| *place >= most);
    if let (Some(place), Some(last)) = (clusters, most.checked_sub(1)) {
        rows.swap(place, last);
    }
    rows.truncate(most);
    rows.sort_unstable_by_key(Row::position);
    *weights = weights.select_backends(rows.iter().map(Row::backend));
}

fn rank(row: &Row) -> u8 {
    match (row.is_in(Scope::Local), row.is_in(Scope::Cluster), row.keeps_clients()) {
        (true, ..) => 0,
        (_, true, _) => 1,
        (.., true) => 2,
        _ => 3,
    }
}

impl Port {
    /// How many rows it counts for, without the free ones.
    fn rows_counted(&self) -> usize {
        self.counted.saturating_sub(limits::FREE_ROWS_PER_PORT)
    }
}

impl Service {
    /// How many rows its ports count for, without the free ones.
    pub(crate) fn rows_counted(&self) -> usize {
        self.ports.iter().take(self.desired_count).map(Port::rows_counted).sum()
    }
}
