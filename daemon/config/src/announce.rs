//! `[announce]` and `announce` of a `[[service]]`: whether this node announces its service addresses to the network.
//!
//! Invariant: the routing table is none of the kernel's own. `block_conflicts` judges which addresses may be announced.

use holdfast_core::words;
use toml::Value;

use super::keys::table;
use super::limits::ROUTE_TABLES;
use super::show;
use super::table::Table;
use super::value::integer;

words! {
    #[derive(Default)]
    pub enum Announce {
        #[default]
        None = "none",
        /// By a host route that exists while this node can serve them.
        Route = "route",
    }
}

/// The number of a routing table, not one of the kernel's own and at most one byte: FRR takes no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteTable(u8);

impl RouteTable {
    /// No well-known program uses this one.
    pub const DEFAULT: Self = Self(180);

    pub const fn number(self) -> u8 {
        self.0
    }
}

table! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Announcing "announce" {
        /// The routing table of the routes.
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
