//! What clients from outside get, according to the maps.
//!
//! Invariant: the maps alone decide, in the order in which programs look: frontend, source, list.

use std::net::IpAddr;

use holdfast_core::list::Scope;
use holdfast_core::op::{Dump, DumpPort, FrontendType, FrontendValue, WordFlags};

use super::show::list;
use super::table::table;

/// What a client of this address gets at each frontend.
pub(super) fn from(dump: &Dump, client: IpAddr) -> String {
    let row = |(key, value): &(holdfast_core::keys::FrontendKey, FrontendValue)| {
        let port = dump.ports.iter().find(|port| port.index == value.port);
        let met = port.map_or_else(|| "nothing".to_owned(), |port| met(dump, port, *value, client));
        vec![key.to_string(), value.kind.as_str().to_owned(), met]
    };
    table(&["FRONTEND", "TYPE", "MEETS"], dump.frontends.iter().map(row).collect())
}

fn met(dump: &Dump, port: &DumpPort, value: FrontendValue, client: IpAddr) -> String {
    let flags = port.word(Scope::Cluster).flags;
    let mut own = dump.sources.iter().flatten().filter(|source| source.port == port.index);
    let looks = value.kind == FrontendType::LoadBalancer && flags.contains(WordFlags::SOURCES);
    if looks && !own.any(|source| source.range.contains(client)) {
        return "dropped, for its source".to_owned();
    }
    let scope = value.kind.list_scope(flags, true);
    let word = port.word(scope);
    match word.count {
        0 if word.flags.contains(WordFlags::DROP) => "dropped".to_owned(),
        0 => "refused".to_owned(),
        _ => list(port.backends(scope).into_keys()),
    }
}
