//! `[announce]`, and what a `[[service]]` says of it: whether this node's network is told that it serves an address.
//!
//! Invariant: the table is none of the kernel's own. Which addresses may be announced is judged in `agreement`.

use holdfast_core::words;
use toml::Value;

use super::keys::table;
use super::limits::ROUTE_TABLES;
use super::show;
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

table! {
    /// The table `[announce]`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Announcing "announce" {
        /// Where the routes are.
        table: RouteTable = RouteTable::DEFAULT, take_route_table, show_route_table, reload;
    }
}

fn take_route_table(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<RouteTable> {
    let number = table.take(key, integer(ROUTE_TABLES))?;
    u8::try_from(number).ok().map(RouteTable)
}

fn show_route_table(table: &RouteTable) -> Option<Value> {
    show::scalar(&i64::from(table.0))
}
