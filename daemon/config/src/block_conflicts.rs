//! Conflicts between the services of a file, which no key shows alone.
//!
//! Invariant: each conflict is reported once, at its later place, and names the earlier one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use holdfast_core::keys::Transport;

use super::address::is_link_scoped;
use super::announce::Announce;
use super::apiserver::{Apiserver, VIP_SERVICE};
use super::limits::ANNOUNCED_MAX;
use super::packets::Packets;
use super::report::{Report, Site};
use super::resolve::Resolver;
use super::service::{ReadBlock, ServiceBlock};
use super::settings::Admin;

/// The settings that blocks must not conflict with.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConflictContext<'c> {
    pub(super) admin: &'c Admin,
    pub(super) apiserver: &'c Apiserver,
    pub(super) packets: &'c Packets,
    pub(super) resolver: &'c Resolver,
}

/// Reports every conflict between the blocks, and between a block and the daemon's own addresses.
pub(super) fn check_blocks(report: &mut Report<'_>, blocks: &[ReadBlock], own: ConflictContext<'_>) {
    check_names(report, blocks);
    check_frontends(report, blocks);
    for read in blocks {
        check_block(report, read);
        warn_about_apiservers(report, read, own.apiserver);
        for BlockConflict { frontend, message } in find_conflicts(&read.block, own) {
            let site = frontend.and_then(|at| read.frontend_sites.get(at)).unwrap_or(&read.site);
            report.add_error(site, message);
        }
    }
    check_announced_count(report, blocks);
}

/// Reports conflicts within one block.
pub(super) fn check_block(report: &mut Report<'_>, read: &ReadBlock) {
    check_backends(report, read);
    check_families(report, read);
}

/// Why a block conflicts with the rest of a configuration.
#[derive(Debug)]
pub(super) struct BlockConflict {
    /// The index of its frontend; `None`: the whole block.
    frontend: Option<usize>,
    pub(super) message: String,
}

/// Every conflict of a block with the daemon's own addresses and the translated packets.
pub(super) fn find_conflicts(block: &ServiceBlock, own: ConflictContext<'_>) -> Vec<BlockConflict> {
    let ConflictContext { admin, apiserver, packets, resolver } = own;
    let mut clashes = admin_conflicts(block, admin);
    clashes.extend(vip_conflicts(block, apiserver));
    clashes.extend(resolver_conflicts(block, resolver));
    // No program sees where an SCTP socket dials.
    if block.protocol == Transport::Sctp && !packets.enabled {
        let message = "SCTP is translated by packets alone: set `enabled = true` under [packets]";
        clashes.push(BlockConflict { frontend: None, message: message.to_owned() });
    }
    if block.announce == Announce::Route {
        clashes.extend(announce_conflicts(block, packets));
    }
    clashes
}

fn full_name(block: &ServiceBlock) -> String {
    format!("{}/{}", block.namespace, block.name)
}

/// One block is one service with one port, so its name must be unique.
fn check_names(report: &mut Report<'_>, blocks: &[ReadBlock]) {
    let mut seen = BTreeMap::new();
    for ReadBlock { block, site, .. } in blocks {
        let key = (&block.namespace, &block.name);
        let Some(first) = seen.insert(key, site) else { continue };
        let name = full_name(block);
        let line = report.line_number(first);
        report.add_error(
            site,
            format!("{name} is already defined (line {line}): give each block its own name"),
        );
        seen.insert(key, first);
    }
}

fn check_frontends(report: &mut Report<'_>, blocks: &[ReadBlock]) {
    let mut seen: BTreeMap<(SocketAddr, Transport), (&Site, &ServiceBlock)> = BTreeMap::new();
    for ReadBlock { block, frontend_sites, .. } in blocks {
        for (frontend, site) in block.frontends.iter().zip(frontend_sites) {
            let key = (*frontend, block.protocol);
            match seen.get(&key) {
                Some((first, owner)) => {
                    let owner = full_name(owner);
                    let line = report.line_number(first);
                    report.add_error(
                        site,
                        format!(
                            "{frontend} is claimed by {owner} already (line {line}): give each block its own frontends"
                        ),
                    );
                }
                None => _ = seen.insert(key, (site, block)),
            }
        }
    }
}

fn check_backends(report: &mut Report<'_>, read: &ReadBlock) {
    let mut seen = BTreeMap::new();
    for (backend, site) in read.block.backends.iter().zip(&read.backend_sites) {
        if let Some(first) = seen.insert(*backend, site) {
            let line = report.line_number(first);
            report.add_error(site, format!("{backend} is in the list already (line {line})"));
        }
    }
}

/// Reports a frontend without a backend of its family, and the reverse: no client is sent from one family to the other.
fn check_families(report: &mut Report<'_>, read: &ReadBlock) {
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
            report.add_error(
                site,
                format!("an {family} frontend needs an {family} backend, and there is none"),
            );
        }
        if let Some(index) = alone(&block.backends, &block.frontends, ipv4)
            && let Some(site) = backend_sites.get(index)
        {
            report.add_error(
                site,
                format!("an {family} backend needs an {family} frontend, and there is none"),
            );
        }
    }
}

fn conflicts_at(
    block: &ServiceBlock,
    is_meant: impl Fn(SocketAddr) -> bool,
    message: impl Fn(SocketAddr) -> String,
) -> Vec<BlockConflict> {
    let frontends = block.frontends.iter().enumerate().filter(|(_, frontend)| is_meant(**frontend));
    frontends.map(|(index, it)| BlockConflict { frontend: Some(index), message: message(*it) }).collect()
}

/// Conflicts with the service of the apiserver's virtual address.
fn vip_conflicts(block: &ServiceBlock, apiserver: &Apiserver) -> Vec<BlockConflict> {
    let Some(vip) = apiserver.vip else { return Vec::new() };
    let mut clashes = Vec::new();
    if full_name(block) == VIP_SERVICE.join("/") {
        let message = "this is the service of apiserver.vip: give it another name".to_owned();
        clashes.push(BlockConflict { frontend: None, message });
    }
    let is_taken = |it| it == vip && block.protocol == Transport::Tcp;
    clashes.extend(conflicts_at(block, is_taken, |vip| {
        format!("{vip} is where an apiserver is reached (apiserver.vip)")
    }));
    clashes
}

/// The frontends at the address of the admin API, which stays reachable whatever is served.
pub(super) fn admin_conflicts(block: &ServiceBlock, admin: &Admin) -> Vec<BlockConflict> {
    let is_taken = |it| it == admin.listen.address() && block.protocol == Transport::Tcp;
    conflicts_at(block, is_taken, |it| format!("{it} is where the admin API listens (admin.listen)"))
}

/// Names to resolve without a name server, and frontends at the address of one: the daemon queries it past its
/// services, so such a frontend's backends would never get a query.
fn resolver_conflicts(block: &ServiceBlock, resolver: &Resolver) -> Vec<BlockConflict> {
    let is_unasked = block.resolve.is_some() && resolver.servers.is_empty();
    let unasked = is_unasked.then(|| BlockConflict { frontend: None, message: NO_RESOLVER.to_owned() });
    let is_taken = |it| resolver.servers.contains(&it) && block.protocol != Transport::Sctp;
    let taken = conflicts_at(block, is_taken, |it| {
        format!(
            "{it} is a name server (resolver.servers): the daemon queries it directly, never through a service"
        )
    });
    unasked.into_iter().chain(taken).collect()
}

/// Warns of frontends at the addresses of apiservers.
fn warn_about_apiservers(report: &mut Report<'_>, read: &ReadBlock, apiserver: &Apiserver) {
    let frontends = read.block.frontends.iter().zip(&read.frontend_sites);
    for (frontend, site) in frontends.filter(|_| read.block.protocol == Transport::Tcp) {
        if apiserver.endpoints.iter().any(|endpoint| endpoint.address() == *frontend) {
            let message = format!("{frontend} is an apiserver's address: it is bypassed, never served");
            report.add_warning(site, message);
        }
    }
}

/// Announced addresses that lead nowhere, or that lack packet translation.
fn announce_conflicts(block: &ServiceBlock, packets: &Packets) -> Vec<BlockConflict> {
    let whole =
        (!packets.enabled).then(|| BlockConflict { frontend: None, message: NEEDS_PACKETS.to_owned() });
    let of_one_link = conflicts_at(
        block,
        |it| is_link_scoped(it.ip()),
        |it| format!("{} cannot be announced: {LINK_SCOPED}", it.ip()),
    );
    whole.into_iter().chain(of_one_link).collect()
}

/// Reports the first announced address past the limit.
fn check_announced_count(report: &mut Report<'_>, blocks: &[ReadBlock]) {
    let mut announced = BTreeSet::new();
    for read in blocks.iter().filter(|read| read.block.announce == Announce::Route) {
        for (frontend, site) in read.block.frontends.iter().zip(&read.frontend_sites) {
            let ip = frontend.ip();
            if announced.insert(ip) && announced.len() == ANNOUNCED_MAX + 1 {
                report
                    .add_error(site, format!("{ip} is one too many: at most {ANNOUNCED_MAX} are announced"));
            }
        }
    }
}

const NEEDS_PACKETS: &str = "announce: other hosts reach the address only if packets are translated: set `enabled = true` under [packets]";

const NO_RESOLVER: &str =
    "resolve: no name server is given: name them, as in [resolver] servers = [\"192.0.2.53:53\"]";

const LINK_SCOPED: &str = "no router leads to a loopback or link-local address";
