//! `[announce]`, and what a `[[service]]` says of it: whether this node's network is told that it serves an address.
//!
//! Invariant: the table is none of the kernel's own. Which addresses may be announced is judged in `agreement`.

use holdfast_core::words;

use super::limits::ROUTE_TABLES;
use super::table::Table;
use super::value::integer;

words! {
    /// How the addresses of a `[[service]]` are announced.
    #[derive(Default)]
    pub enum Announce {
        /// They are not.
        #[default]
        None = "none",
        /// By a route of the host that is there while this node can serve them.
        Route = "route",
    }
}

/// The number of a table of routes that is neither one of the kernel's own nor beyond what one byte says: FRR takes no
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteTable(u8);

impl RouteTable {
    /// No well-known program has this one.
    pub const DEFAULT: Self = Self(180);

    pub const fn number(self) -> u8 {
        self.0
    }
}

/// The table `[announce]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcing {
    /// Where the routes are.
    pub table: RouteTable,
}

impl Default for Announcing {
    fn default() -> Self {
        Self { table: RouteTable::DEFAULT }
    }
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Announcing {
    let number = table.take("table", integer(ROUTE_TABLES)).and_then(|number| u8::try_from(number).ok());
    Announcing { table: number.map_or(RouteTable::DEFAULT, RouteTable) }
}
