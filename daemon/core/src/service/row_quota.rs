//! How many rows the ports of a service have, where all services ask for more than there may be.
//!
//! Invariant: a port has what it counts for already, and one row for each of its lists, before any port has more; so no
//! list loses what it has or is empty for want of room. What a port counts for is what it lists or, where that is more,
//! its last list, which is kept while there is none; and where there is room it is a whole block, as in the maps, so
//! that a list which needs no larger block changes whatever others ask for.

use alloc::vec::Vec;

use super::{Port, Service};
use crate::limits;
use crate::list::{Row, Rows, Scope};
use crate::resolve::endpoint_rows;
use crate::weights::BackendWeights;

/// How many rows each of these ports may have, which list so many. Beside what does not count they may have `most`
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

/// Leaves out the rows of a port that are beyond its part, and their weights: those that clients on this node get come
/// first, then others that are in a list, and among these the ones that were in a list before.
pub(super) fn truncate_rows(rows: &mut Vec<Row>, weights: &mut BackendWeights, most: usize, before: &Rows) {
    if rows.len() <= most {
        return;
    }
    let was_chosen = |row: &Row| before.find(row.backend()).is_some_and(|row| row.is_chosen());
    rows.sort_by_cached_key(|row| (rank(row), !was_chosen(row)));
    // Hints may keep the backends of this node from the cluster list, which is not to be empty for that.
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
    /// How many rows it counts for, beside those that do not count.
    fn rows_counted(&self) -> usize {
        self.counted.saturating_sub(limits::FREE_ROWS_PER_PORT)
    }
}

impl Service {
    /// How many rows its ports count for, beside those that do not count.
    pub(crate) fn rows_counted(&self) -> usize {
        self.ports.iter().take(self.desired_count).map(Port::rows_counted).sum()
    }
}
