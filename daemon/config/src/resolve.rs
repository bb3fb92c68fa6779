//! `resolve` of a `[[service]]` and `[resolver]`: backends from DNS.
//!
//! Invariant: no client's connection and none of the daemon's to an apiserver waits for an answer, and the name servers
//! are given by address.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use toml::de::DeValue;

use super::address::address_port;
use super::dns_name::Name;
use super::keys::table;
use super::limits::RESOLVERS_MAX;
use super::show;
use super::table::{ListRule, Table, WhenEmpty};
use super::value::{integer, quote, string};

/// The DNS query for the backends of a block.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resolve {
    /// Servers and their ports, by SRV records.
    Servers(Name),
    /// The addresses of a host, with one port for all.
    Addresses(Name, NonZeroU16),
}

impl fmt::Display for Resolve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Servers(name) => write!(f, "{name} (SRV)"),
            Self::Addresses(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Resolver "resolver" {
        /// The name servers in query order. Empty: no name can be resolved.
        servers: Vec<SocketAddr> = Vec::new(), take_servers, show::filled_list, reload;
    }
}

/// Reads `resolve`; `None`: it is bad, and the report says why.
pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Option<Resolve> {
    let servers = table.take_located("srv", name);
    let host = table.take("name", name);
    let port = table.take_located("port", integer((1, u16::MAX.into())));
    let resolve = match (servers, host, port) {
        (Some(found), None, None) => return Some(Resolve::Servers(found.value)),
        (None, Some(host), Some(port)) => {
            let port = u16::try_from(port.value).ok().and_then(NonZeroU16::new);
            port.map(|port| Resolve::Addresses(host, port))
        }
        (Some(found), ..) => {
            let message = "SRV records have names and ports: remove `srv`, or `name` and `port`";
            table.report().add_error(&found.site, message.to_owned());
            None
        }
        _ => None,
    };
    if resolve.is_none() && !table.has("srv") && !(table.has("name") && table.has("port")) {
        let site = table.site().clone();
        let message =
            "write { srv = \"_web._tcp.example.com\" } or { name = \"web.example.com\", port = 8080 }";
        table.report().add_error(&site, message.to_owned());
    }
    resolve
}

fn name(value: &DeValue<'_>) -> Result<Name, String> {
    let text = string(value, "a name such as \"web.example.com\"")?;
    Name::parse(text).map_err(|error| format!("{}: {error}", quote(text)))
}

const SERVERS: ListRule = ListRule {
    what: "addresses of name servers such as \"192.0.2.53:53\"",
    when_empty: WhenEmpty::Refused,
    most: RESOLVERS_MAX,
};

fn take_servers(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<Vec<SocketAddr>> {
    let servers = table.list(key, &SERVERS, address_port)?;
    Some(servers.into_iter().map(|found| found.value).collect())
}
