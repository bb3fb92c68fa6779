//! `[[service]]`: a service without Kubernetes.
//!
//! Invariant: a block is judged here by itself; `block_conflicts` judges it against others.

use std::net::SocketAddr;
use std::time::Duration;

use toml::de::DeValue;

use super::address::address_port;
use super::announce::Announce;
use holdfast_core::affinity::Prefixes;
use holdfast_core::hold::OnEmpty;
use holdfast_core::keys::{Family, Transport};
use holdfast_core::weights::Weight;

use super::health_check::{self, HealthCheck};
use super::hold::static_on_empty;
use super::limits::{AFFINITY, BACKENDS_MAX, FRONTENDS_MAX};
use super::report::Site;
use super::resolve::{self, Resolve};
use super::table::{ListRule, LocatedValue, Table, WhenEmpty};
use super::value::{
    DnsLabel, boolean, dns_label, duration, integer, mismatch_message, string, unknown_key_message, word,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceBlock {
    /// The namespace; `static` by default.
    pub namespace: DnsLabel,
    /// The name, unique within the namespace.
    pub name: DnsLabel,
    /// The port's name; `None`: the empty name.
    pub port_name: Option<DnsLabel>,
    pub protocol: Transport,
    /// The addresses that clients dial; at least one.
    pub frontends: Vec<SocketAddr>,
    /// The servers behind the frontends. Empty: connections are refused.
    pub backends: Vec<SocketAddr>,
    pub weights: Vec<Weight>,
    /// The DNS query that replaces the backends.
    pub resolve: Option<Resolve>,
    /// How backends are checked; `None`: every backend counts as usable.
    pub health_check: Option<HealthCheck>,
    /// How long a client's address stays with its backend; `None`: no affinity.
    pub session_affinity: Option<Duration>,
    /// The prefix of the address that counts for affinity; `None`: all of it.
    pub affinity_prefix: Option<Prefixes>,
    /// The policy when all backends are gone; `None`: the one under `[hold]`.
    pub on_empty: Option<OnEmpty>,
    /// Whether clients' backends are selected by hash, alike on all nodes; `None`: as under `[packets]`.
    pub maglev: Option<bool>,
    /// Whether this node announces its addresses to the network.
    pub announce: Announce,
}

/// A block with the places where other blocks may conflict.
#[derive(Debug)]
pub(super) struct ReadBlock {
    pub(super) block: ServiceBlock,
    pub(super) site: Site,
    pub(super) frontend_sites: Vec<Site>,
    pub(super) backend_sites: Vec<Site>,
    /// Whether the lists have all addresses of the file; a bad item is left out.
    pub(super) lists_are_whole: bool,
}

/// Reads a block. `None` if its name, namespace, port name or protocol is bad, or the name is missing; the report says
/// which.
pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Option<ReadBlock> {
    let errors_before = table.report().errors_count();
    let name = table.require("name", dns_label);
    let namespace = table.take("namespace", dns_label).unwrap_or_else(DnsLabel::static_namespace);
    let port_name = table.take("port_name", port_name).flatten();
    let protocol = table.take("protocol", word).unwrap_or(Transport::Tcp);
    let errors_of_key = table.report().errors_count();
    table.require_key("frontends");
    let (frontends, frontend_sites) = read_items(table, "frontends", &FRONTENDS, address_port);
    let has_name = table.has("resolve");
    let resolve = table.table("resolve", |table| has_name.then(|| resolve::read(table)).flatten());
    let (backends, backend_sites) = read_backends(table);
    let (backends, weights) = backends.into_iter().unzip();
    let lists_are_whole = table.report().is_valid_toml() && table.report().errors_count() == errors_of_key;
    let health_check = table.optional_table("health_check", health_check::read);
    let session_affinity = table.take("session_affinity", session_affinity).flatten();
    let affinity_prefix = read_affinity_prefix(table, session_affinity.is_some());
    let on_empty = table.take("on_empty", static_on_empty);
    let maglev = table.take("maglev", boolean);
    let announce = table.take("announce", word).unwrap_or_default();
    check_other_port(table, protocol, health_check.as_ref());
    let block = ServiceBlock {
        namespace,
        name: name?,
        port_name,
        protocol,
        frontends,
        backends,
        weights,
        resolve,
        health_check,
        session_affinity,
        affinity_prefix,
        on_empty,
        maglev,
        announce,
    };
    // Without these its key is unknown, so it is not compared with other blocks.
    if errors_of_key != errors_before {
        return None;
    }
    Some(ReadBlock { block, site: table.site().clone(), frontend_sites, backend_sites, lists_are_whole })
}

const FRONTENDS: ListRule = ListRule {
    what: "addresses such as \"10.96.0.10:80\"",
    when_empty: WhenEmpty::Refused,
    most: FRONTENDS_MAX,
};

const BACKENDS: ListRule = ListRule {
    what: "addresses such as \"192.0.2.1:8080\", or tables such as { address = \"192.0.2.1:8080\", weight = 2 }",
    when_empty: WhenEmpty::Doubtful("the list is empty: every connection will be refused"),
    most: BACKENDS_MAX,
};

fn read_items<T>(
    table: &mut Table<'_, '_, '_>,
    key: &'static str,
    items: &ListRule,
    read: fn(&DeValue<'_>) -> Result<T, String>,
) -> (Vec<T>, Vec<Site>) {
    let found = table.list(key, items, read);
    found.unwrap_or_default().into_iter().map(|LocatedValue { value, site }| (value, site)).unzip()
}

/// The block's own backends; none if it has `resolve`.
fn read_backends(table: &mut Table<'_, '_, '_>) -> (Vec<(SocketAddr, Weight)>, Vec<Site>) {
    match (table.has("backends"), table.has("resolve")) {
        (true, true) => {
            let site = table.site().clone();
            let message = "a block has either `backends` or `resolve`: remove one of them";
            table.report().add_error(&site, message.to_owned());
        }
        (false, true) => return (Vec::new(), Vec::new()),
        (_, false) => table.require_key("backends"),
    }
    read_items(table, "backends", &BACKENDS, read_backend)
}

/// A backend: its address alone, or with its weight.
fn read_backend(value: &DeValue<'_>) -> Result<(SocketAddr, Weight), String> {
    let DeValue::Table(entries) = value else { return Ok((address_port(value)?, Weight::ONE)) };
    let (mut address, mut weight) = (None, Weight::ONE);
    for (key, value) in entries {
        match key.get_ref().as_ref() {
            "address" => address = Some(address_port(value.get_ref())?),
            "weight" => weight = read_weight(value.get_ref())?,
            other => return Err(unknown_key_message(other, &["address", "weight"])),
        }
    }
    let address = address.ok_or("a backend with a weight has an address too, such as \"192.0.2.1:8080\"")?;
    Ok((address, weight))
}

fn read_weight(value: &DeValue<'_>) -> Result<Weight, String> {
    let number = integer((0, Weight::MAX.into()))(value)?;
    u16::try_from(number).ok().and_then(Weight::new).ok_or_else(|| mismatch_message("a weight", value))
}

/// Warns that the check dials a TCP port: UDP has no connection to check, and the host may not support SCTP, so either
/// check uses the TCP port of the same number by default.
fn check_other_port(table: &mut Table<'_, '_, '_>, protocol: Transport, check: Option<&HealthCheck>) {
    if protocol != Transport::Tcp && check.is_some_and(|check| check.port.is_none()) {
        let site = table.site().clone();
        let message = format!(
            "the health check of a {} service dials the TCP port of the same number",
            protocol.as_str()
        );
        table.report().add_warning(&site, message);
    }
}

/// A port's name; the empty name is the same as none.
fn port_name(value: &DeValue<'_>) -> Result<Option<DnsLabel>, String> {
    match value.as_str() {
        Some("") => Ok(None),
        _ => dns_label(value).map(Some),
    }
}

fn session_affinity(value: &DeValue<'_>) -> Result<Option<Duration>, String> {
    let legal = "\"none\" or a duration such as \"3h\"";
    match string(value, legal)? {
        "none" => Ok(None),
        text if text.starts_with(|c: char| c.is_ascii_digit()) => duration(AFFINITY)(value).map(Some),
        _ => Err(mismatch_message(legal, value)),
    }
}

/// The prefix of a client's address that counts for affinity; without affinity the key has no effect.
fn read_affinity_prefix(table: &mut Table<'_, '_, '_>, has_affinity: bool) -> Option<Prefixes> {
    let found = table.take_located("session_affinity_prefix", read_prefixes)?;
    if !has_affinity && found.value != Prefixes::WHOLE {
        let message = "it has no effect without `session_affinity`: set that too";
        table.report().add_warning(&found.site, message.to_owned());
    }
    Some(found.value)
}

fn read_prefixes(value: &DeValue<'_>) -> Result<Prefixes, String> {
    let DeValue::Table(entries) = value else {
        return Err(mismatch_message("lengths of prefixes such as { ipv4 = 24, ipv6 = 64 }", value));
    };
    let mut all = Prefixes::WHOLE;
    for (key, value) in entries {
        let family = match key.get_ref().as_ref() {
            "ipv4" => Family::V4,
            "ipv6" => Family::V6,
            other => return Err(unknown_key_message(other, &["ipv4", "ipv6"])),
        };
        all = with_family_prefix(all, family, value.get_ref())
            .map_err(|message| format!("{}: {message}", key.get_ref()))?;
    }
    Ok(all)
}

fn with_family_prefix(all: Prefixes, family: Family, value: &DeValue<'_>) -> Result<Prefixes, String> {
    let (least, most) = Prefixes::legal_lengths(family);
    let length = integer((least.into(), most.into()))(value)?;
    u8::try_from(length)
        .ok()
        .and_then(|it| all.with_length(family, it))
        .ok_or_else(|| mismatch_message("a length", value))
}
