//! What no key says alone: whether the services of a file can stand side by side.
//!
//! Invariant: each clash is reported once, at its later place, and names the earlier one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use holdfast_core::keys::Transport;

use super::address::is_of_one_link;
use super::announce::Announce;
use super::apiserver::{Apiserver, VIP_SERVICE};
use super::limits::ANNOUNCED_MAX;
use super::packets::Packets;
use super::report::{Report, Site};
use super::resolve::Resolver;
use super::service::{ReadBlock, ServiceBlock};
use super::settings::Admin;

/// What blocks have to stand beside, each other apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own<'c> {
    pub(super) admin: &'c Admin,
    pub(super) apiserver: &'c Apiserver,
    pub(super) packets: &'c Packets,
    pub(super) resolver: &'c Resolver,
}

/// Reports every clash between the blocks, and between a block and the daemon's own addresses.
pub(super) fn check(report: &mut Report<'_>, blocks: &[ReadBlock], own: Own<'_>) {
    names_are_distinct(report, blocks);
    frontends_are_distinct(report, blocks);
    for read in blocks {
        check_alone(report, read);
        apiservers_are_bypassed(report, read, own.apiserver);
        for Clash { frontend, message } in clashes(&read.block, own) {
            let site = frontend.and_then(|at| read.frontend_sites.get(at)).unwrap_or(&read.site);
            report.error(site, message);
        }
    }
    announced_are_few(report, blocks);
}

/// Reports what cannot stand side by side within one block.
pub(super) fn check_alone(report: &mut Report<'_>, read: &ReadBlock) {
    backends_are_distinct(report, read);
    families_meet(report, read);
}

/// Why a block cannot stand beside the rest of a configuration.
#[derive(Debug)]
pub(super) struct Clash {
    /// At which of its frontends; none: the whole block.
    frontend: Option<usize>,
    pub(super) message: String,
}

/// Every reason for which a block cannot stand beside the daemon's own addresses and what is translated.
pub(super) fn clashes(block: &ServiceBlock, own: Own<'_>) -> Vec<Clash> {
    let Own { admin, apiserver, packets, resolver } = own;
    let mut clashes = own_address(block, admin);
    clashes.extend(virtual_address(block, apiserver));
    clashes.extend(name_servers(block, resolver));
    // No program is asked where a socket of SCTP dials.
    if block.protocol == Transport::Sctp && !packets.enabled {
        let message = "SCTP is translated by packets alone: set `enabled = true` under [packets]";
        clashes.push(Clash { frontend: None, message: message.to_owned() });
    }
    if block.announce == Announce::Route {
        clashes.extend(unreached(block, packets));
    }
    clashes
}

fn full_name(block: &ServiceBlock) -> String {
    format!("{}/{}", block.namespace, block.name)
}

/// One block is one service with one port, so its name must be its own.
fn names_are_distinct(report: &mut Report<'_>, blocks: &[ReadBlock]) {
    let mut seen = BTreeMap::new();
    for ReadBlock { block, site, .. } in blocks {
        let key = (&block.namespace, &block.name);
        let Some(first) = seen.insert(key, site) else { continue };
        let name = full_name(block);
        let line = report.line(first);
        report.error(site, format!("{name} is there already (line {line}): give each block its own name"));
        seen.insert(key, first);
    }
}

fn frontends_are_distinct(report: &mut Report<'_>, blocks: &[ReadBlock]) {
    let mut seen: BTreeMap<(SocketAddr, Transport), (&Site, &ServiceBlock)> = BTreeMap::new();
    for ReadBlock { block, frontend_sites, .. } in blocks {
        for (frontend, site) in block.frontends.iter().zip(frontend_sites) {
            let key = (*frontend, block.protocol);
            match seen.get(&key) {
                Some((first, owner)) => {
                    let owner = full_name(owner);
                    let line = report.line(first);
                    report.error(site, format!("{frontend} is claimed by {owner} already (line {line})"));
                }
                None => _ = seen.insert(key, (site, block)),
            }
        }
    }
}

fn backends_are_distinct(report: &mut Report<'_>, read: &ReadBlock) {
    let mut seen = BTreeMap::new();
    for (backend, site) in read.block.backends.iter().zip(&read.backend_sites) {
        if let Some(first) = seen.insert(*backend, site) {
            let line = report.line(first);
            report.error(site, format!("{backend} is in the list already (line {line})"));
        }
    }
}

/// Reports a frontend without a backend of its family, and the reverse: no client is sent from one family to the other.
fn families_meet(report: &mut Report<'_>, read: &ReadBlock) {
    let ReadBlock { block, frontend_sites, backend_sites, .. } = read;
    if !read.lists_are_whole || block.backends.is_empty() {
        return;
    }
    let alone = |list: &[SocketAddr], others: &[SocketAddr], ipv4: bool| {
        let lacks = !others.iter().any(|other| other.is_ipv4() == ipv4);
        list.iter().position(|address| address.is_ipv4() == ipv4).filter(|_| lacks)
    };
    for (ipv4, family) in [(true, "IPv4"), (false, "IPv6")] {
        if let Some(index) = alone(&block.frontends, &block.backends, ipv4)
            && let Some(site) = frontend_sites.get(index)
        {
            report.error(site, format!("an {family} frontend needs an {family} backend, and there is none"));
        }
        if let Some(index) = alone(&block.backends, &block.frontends, ipv4)
            && let Some(site) = backend_sites.get(index)
        {
            report.error(site, format!("an {family} backend needs an {family} frontend, and there is none"));
        }
    }
}

fn at(
    block: &ServiceBlock,
    is_meant: impl Fn(SocketAddr) -> bool,
    message: impl Fn(SocketAddr) -> String,
) -> Vec<Clash> {
    let frontends = block.frontends.iter().enumerate().filter(|(_, frontend)| is_meant(**frontend));
    frontends.map(|(index, it)| Clash { frontend: Some(index), message: message(*it) }).collect()
}

/// What the service of the apiserver's virtual address has already.
fn virtual_address(block: &ServiceBlock, apiserver: &Apiserver) -> Vec<Clash> {
    let Some(vip) = apiserver.vip else { return Vec::new() };
    let mut clashes = Vec::new();
    if full_name(block) == VIP_SERVICE.join("/") {
        let message = "this is the service of apiserver.vip: give it another name".to_owned();
        clashes.push(Clash { frontend: None, message });
    }
    let is_taken = |it| it == vip && block.protocol == Transport::Tcp;
    clashes
        .extend(at(block, is_taken, |vip| format!("{vip} is where an apiserver is reached (apiserver.vip)")));
    clashes
}

/// The frontends at the address of the admin API, which stays reachable whatever is served.
pub(super) fn own_address(block: &ServiceBlock, admin: &Admin) -> Vec<Clash> {
    let is_taken = |it| it == admin.listen.address() && block.protocol == Transport::Tcp;
    at(block, is_taken, |it| format!("{it} is where the admin API listens (admin.listen)"))
}

/// Names to resolve without a server to ask, and frontends at the address of one: the daemon asks past its services, so
/// no backend of such a frontend would ever be asked.
fn name_servers(block: &ServiceBlock, resolver: &Resolver) -> Vec<Clash> {
    let is_unasked = block.resolve.is_some() && resolver.servers.is_empty();
    let unasked = is_unasked.then(|| Clash { frontend: None, message: NO_RESOLVER.to_owned() });
    let is_taken = |it| resolver.servers.contains(&it) && block.protocol != Transport::Sctp;
    let taken = at(block, is_taken, |it| {
        format!("{it} is a name server (resolver.servers): it is asked itself, never by a service")
    });
    unasked.into_iter().chain(taken).collect()
}

/// Warns of frontends at the addresses of apiservers.
fn apiservers_are_bypassed(report: &mut Report<'_>, read: &ReadBlock, apiserver: &Apiserver) {
    let frontends = read.block.frontends.iter().zip(&read.frontend_sites);
    for (frontend, site) in frontends.filter(|_| read.block.protocol == Transport::Tcp) {
        if apiserver.endpoints.iter().any(|endpoint| endpoint.address() == *frontend) {
            let message = format!("{frontend} is an apiserver's address: it is bypassed, never served");
            report.warning(site, message);
        }
    }
}

/// Addresses that are announced and lead nowhere, or without translation of packets.
fn unreached(block: &ServiceBlock, packets: &Packets) -> Vec<Clash> {
    let whole = (!packets.enabled).then(|| Clash { frontend: None, message: UNREACHED.to_owned() });
    let of_one_link =
        at(block, |it| is_of_one_link(it.ip()), |it| format!("{} cannot be announced: {ONE_LINK}", it.ip()));
    whole.into_iter().chain(of_one_link).collect()
}

/// Reports the first announced address that is one too many.
fn announced_are_few(report: &mut Report<'_>, blocks: &[ReadBlock]) {
    let mut announced = BTreeSet::new();
    for read in blocks.iter().filter(|read| read.block.announce == Announce::Route) {
        for (frontend, site) in read.block.frontends.iter().zip(&read.frontend_sites) {
            let ip = frontend.ip();
            if announced.insert(ip) && announced.len() == ANNOUNCED_MAX + 1 {
                report.error(site, format!("{ip} is one too many: at most {ANNOUNCED_MAX} are announced"));
            }
        }
    }
}

const UNREACHED: &str =
    "announce: others reach the address by packets alone: set `enabled = true` under [packets]";

const NO_RESOLVER: &str =
    "resolve: no name server is given: name them, as in [resolver] servers = [\"192.0.2.53:53\"]";

const ONE_LINK: &str = "no router leads to a loopback or link-local address";
