//! Finds firewall rules that treat services' packets unlike those of kube-proxy.
//!
//! The programs translate a packet before the first netfilter hook. So a rule in front of kube-proxy's translation no
//! longer sees the dialled address that it drops. A chain that forwards only accepted packets no longer finds the
//! mark by which it accepted kube-proxy's. And kube-proxy's conntrack limit is gone after the next boot.
//!
//! Invariant: this module only looks; it does not report a rule that it understands only in part. It is bounded as
//! `super::rules` is.

mod chains;
pub mod observers;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::snapshot::Snapshot;
use holdfast_status::schema_types::Code;
use holdfast_status::views::proxies::{DialTargets, Filter, FilterKind};
use tokio::sync::watch;

use super::rule_match::dump_named;
use super::rules::dump;
use chains::{Chain, FilterRule, RuleVerdict};

/// How often the rules are scanned again.
const RESCAN_EVERY: Duration = Duration::from_secs(300);
/// The delay of the first scan: a starting daemon has its services by then.
const FIRST_SCAN_WAIT: Duration = Duration::from_secs(5);
/// The most filters reported; beyond that they are rules of one kind.
const FILTERS_MAX: usize = 32;
/// The most chains followed from all hooks together.
const CHAINS_MAX: usize = 256;
/// kube-proxy's `nf_conntrack_max`: this many per processor, and at least the minimum.
const CONNECTIONS_EACH: u64 = 32_768;
const CONNECTIONS_LEAST: u64 = 131_072;

/// Scans periodically, and logs new findings.
pub async fn run(
    found: watch::Sender<Arc<[Filter]>>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    accepted: u32,
) {
    tokio::time::sleep(FIRST_SCAN_WAIT).await;
    loop {
        let dialled = dial_targets(&snapshots);
        let look = tokio::task::spawn_blocking(move || find_filters(Path::new("/"), &dialled, accepted));
        if let Ok(Ok(now)) = look.await {
            for new in now.iter().filter(|it| !found.borrow().contains(it)) {
                let place = &new.place;
                let rule = &new.rule;
                tracing::warn!(
                    place,
                    rule,
                    "a firewall rule treats packets of services unlike with kube-proxy"
                );
            }
            found.send_replace(now.into());
        }
        tokio::time::sleep(RESCAN_EVERY).await;
    }
}

/// The dialled frontends. The borrow of the snapshot blocks the engine, so it ends before the scan of all services.
fn dial_targets(snapshots: &watch::Receiver<Arc<Snapshot>>) -> DialTargets {
    let snapshot = Arc::clone(&snapshots.borrow());
    DialTargets::from_frontends(snapshot.services.iter().flat_map(|view| view.frontends.iter()))
}

/// All such filters now. Forwarded packets of services carry the mark `accepted`; 0 means none.
pub(crate) fn find_filters(root: &Path, dialled: &DialTargets, accepted: u32) -> io::Result<Vec<Filter>> {
    let mut chains_left = CHAINS_MAX;
    let mut found = Vec::new();
    for chain in chains::parse_chains(&dump(chains::GET_CHAINS, 0, &[])?) {
        if chain.is_before_translation() {
            found.extend(find_early_drops(&chain, dialled, &mut chains_left)?);
        } else if chain.is_forward() {
            found.extend(find_forward_drop(&chain, accepted, &mut chains_left)?);
        }
    }
    found.extend(find_conntrack_limit(root));
    found.truncate(FILTERS_MAX);
    Ok(found)
}

fn build_filter(kind: FilterKind, place: String, rule: String) -> Filter {
    Filter { kind: Code(kind), place, rule, targets: Vec::new() }
}

/// The dialled frontends that a rule matches. The rule must name a port or an address.
fn matching_frontends(dialled: &DialTargets, rule: &FilterRule) -> Vec<(Option<IpAddr>, u16)> {
    let has = |port: u16| rule.ports.iter().any(|range| range.contains(&port));
    match rule.address {
        Some(address) => {
            let is_it =
                |(own, port): &&(IpAddr, u16)| *own == address && (rule.ports.is_empty() || has(*port));
            dialled.addresses.iter().filter(is_it).map(|(own, port)| (Some(*own), *port)).collect()
        }
        None => dialled.node_ports.iter().filter(|port| has(**port)).map(|port| (None, *port)).collect(),
    }
}

/// Rules of a hook in front of kube-proxy's that drop dialled frontends.
fn find_early_drops(
    chain: &Chain,
    dialled: &DialTargets,
    chains_left: &mut usize,
) -> io::Result<Vec<Filter>> {
    let rules = reachable_rules(chain, chains_left)?;
    let drops = rules.iter().filter(|(_, rule)| rule.verdict == Some(RuleVerdict::Drop));
    let met = drops.map(|(name, rule)| Filter {
        targets: matching_frontends(dialled, rule),
        ..build_filter(FilterKind::Early, chain.describe_place(name), rule.to_text())
    });
    Ok(met.filter(|it| !it.targets.is_empty()).collect())
}

/// Finds a chain that forwards only accepted packets, if no rule in it accepts everything or the mark.
fn find_forward_drop(chain: &Chain, accepted: u32, chains_left: &mut usize) -> io::Result<Option<Filter>> {
    let rules = reachable_rules(chain, chains_left)?;
    let ends = rules.iter().rfind(|(name, _)| *name == chain.name);
    let is_closed = chain.drops
        || ends.is_some_and(|(_, it)| it.is_unconditional && it.verdict == Some(RuleVerdict::Drop));
    let lets_in = |rule: &FilterRule| {
        let all = rule.is_unconditional && rule.verdict == Some(RuleVerdict::Accept);
        all || (rule.verdict == Some(RuleVerdict::Accept)
            && rule.mark.is_some_and(|mark| mark & accepted != 0))
    };
    if !is_closed || rules.iter().any(|(_, rule)| lets_in(rule)) {
        return Ok(None);
    }
    let how = if chain.drops { "policy drop" } else { "its last rule drops everything" };
    let rule = match accepted {
        0 => format!("{how}: packets that no rule accepts are not forwarded to backends"),
        mark => format!("{how}, and no rule accepts the mark {mark:#x}"),
    };
    Ok(Some(build_filter(FilterKind::Forward, chain.describe_place(&chain.name), rule)))
}

/// The rules of a chain and of those that it leads to, each with the chain's name.
fn reachable_rules(chain: &Chain, chains_left: &mut usize) -> io::Result<Vec<(String, FilterRule)>> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![chain.name.clone()];
    while let Some(name) = waiting.pop().filter(|_| *chains_left > 0) {
        if !seen.insert(name.clone()) {
            continue;
        }
        *chains_left -= 1;
        let rules = dump_named(chains::GET_RULES, chain.family, &chain.table, &name)?;
        for mut rule in chains::parse_rules(&rules) {
            for set in std::mem::take(&mut rule.sets) {
                let elements = dump_named(chains::GET_ELEMENTS, chain.family, &chain.table, &set)?;
                rule.ports.extend(chains::parse_ports(&elements));
            }
            waiting.extend(rule.jump.clone());
            found.push((name.clone(), rule));
        }
    }
    Ok(found)
}

/// Finds a conntrack limit below kube-proxy's, if connections are tracked at all.
fn find_conntrack_limit(root: &Path) -> Option<Filter> {
    const MOST: &str = "proc/sys/net/netfilter/nf_conntrack_max";
    let most: u64 = fs::read_to_string(root.join(MOST)).ok()?.trim().parse().ok()?;
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let wanted = (processors * CONNECTIONS_EACH).max(CONNECTIONS_LEAST);
    let rule = format!("{most} connections; kube-proxy set {wanted} at each start");
    let is_small = most < wanted;
    is_small.then(|| build_filter(FilterKind::Connections, "net.netfilter.nf_conntrack_max".to_owned(), rule))
}

#[cfg(test)]
mod tests;
