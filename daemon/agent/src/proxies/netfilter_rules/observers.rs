//! Finds what must see packets that the stack forwards: firewall rules that drop, change or mark them, and IPsec
//! policies. Without any, such packets may take the fast path, and any of them may take the stack all the same.
//!
//! Invariant: this module only looks. Anything it does not understand counts as an observer. Rules that only accept
//! or count packets, and rules for packets to this node's own addresses, do not count. A rule for SNAT does: its
//! conntrack never saw the earlier packets of a flow, so it would take the flow's reply for a new connection.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_datapath::netlink::{NetlinkFamily, NetlinkSocket, attribute, attributes};
use tokio::sync::watch;

use super::super::rule_match::dump_named;
use super::super::rules::{dump, number, text};
use super::chains::{self, Chain};
use crate::devices::Observers;
use crate::netlink_monitor::NetlinkMonitor;

/// How often to scan without a notice: `iptables-legacy` sends none.
const RESCAN_EVERY: Duration = Duration::from_secs(10);
/// How long changes of rules are collected: a firewall is loaded in several.
const BURST: Duration = Duration::from_millis(50);
/// The rest after a scan, as a multiple of the scan's duration, so that rules that keep changing take at most a
/// twentieth of a processor.
const REST_FACTOR: u32 = 20;
/// The longest rest while nothing observes: meanwhile, packets bypass a firewall that comes.
const BLIND_MAX: Duration = Duration::from_secs(1);
/// How many scans in a row may fail before that counts as an observer: the kernel may be briefly short of memory.
const FAILED_MAX: usize = 3;
/// The notice groups of nftables and of IPsec policies: `NFNLGRP_NFTABLES` and `XFRMNLGRP_POLICY`.
const RULE_GROUPS: u32 = 1 << 6;
const POLICY_GROUPS: u32 = 1 << 3;
/// The most chains read in one scan; beyond that, some of them matter.
const CHAINS_MAX: usize = 256;
/// `XFRM_MSG_GETSPDINFO` and `XFRMA_SPD_INFO`, with the counts of policies for packets in, out and forwarded.
const GET_POLICIES: u16 = 0x25;
const POLICIES: u16 = 1;
const POLICY_COUNTS: usize = 3;
/// `XFRM_MSG_GETDEFAULT` (Linux 5.15), and its value if packets without a policy are dropped.
const GET_DEFAULT: u16 = 0x28;
const BLOCK: u8 = 1;

/// The state before the first scan: packets take the stack. A policy would end a former daemon's flows that pass to
/// other nodes unchanged, so none counts until one is found.
pub fn initial_observers() -> Observers {
    Observers { first: Some("a firewall scan that has not run yet".into()), has_policies: false }
}

/// Scans after each change of rules and periodically, until the receivers are gone.
pub async fn run(found: watch::Sender<Observers>) {
    let (mut rules, mut policies, mut failed) = (None, None, 0);
    while !found.is_closed() {
        rules = rules.or_else(|| NetlinkMonitor::open(NetlinkFamily::Netfilter, RULE_GROUPS).ok());
        policies = policies.or_else(|| NetlinkMonitor::open(NetlinkFamily::Xfrm, POLICY_GROUPS).ok());
        let begun = Instant::now();
        let looked = tokio::task::spawn_blocking(|| find_observers(Path::new("/"))).await;
        let looked = looked.unwrap_or_else(|error| Err(io::Error::other(error)));
        failed = if looked.is_err() { failed + 1 } else { 0 };
        let had_policies = found.borrow().has_policies;
        if let Some(now) = merge_look(looked, failed, had_policies) {
            found.send_if_modified(|before| {
                let is_news = *before != now;
                before.clone_from(&now);
                is_news
            });
        }
        let observed = found.borrow().first.is_some();
        tokio::time::sleep(rest_after(begun.elapsed(), observed)).await;
        tokio::select! {
            () = NetlinkMonitor::wait_if_open(&mut rules) => {}
            () = NetlinkMonitor::wait_if_open(&mut policies) => {}
            () = tokio::time::sleep(RESCAN_EVERY) => {}
        }
        tokio::time::sleep(BURST).await;
        rules.iter_mut().chain(&mut policies).for_each(NetlinkMonitor::discard_pending);
    }
}

/// The rest after a scan. Once something observes, another firewall changes nothing, so that a longer rest is safe.
fn rest_after(scan: Duration, observed: bool) -> Duration {
    (scan * REST_FACTOR).clamp(BURST, if observed { RESCAN_EVERY } else { BLIND_MAX })
}

/// The result of a scan; `None` if the former result still holds, because only a few scans have failed.
fn merge_look(looked: io::Result<Observers>, failed: usize, had_policies: bool) -> Option<Observers> {
    match looked {
        Ok(onlookers) => Some(onlookers),
        Err(_) if failed < FAILED_MAX => None,
        Err(error) => {
            let first = Some(format!("a firewall that cannot be read ({error})").into());
            Some(Observers { first, has_policies: had_policies })
        }
    }
}

fn find_observers(root: &Path) -> io::Result<Observers> {
    let has_policies = has_policies()?;
    let first = if has_policies { Some("a policy of IPsec".into()) } else { find_firewall(root)? };
    Ok(Observers { first, has_policies })
}

/// The first part of a firewall that is found.
fn find_firewall(root: &Path) -> io::Result<Option<Arc<str>>> {
    if has_legacy_tables(root) {
        return Ok(Some("a firewall of iptables-legacy".into()));
    }
    let mut seen = BTreeSet::new();
    for chain in chains::parse_chains(&dump(chains::GET_CHAINS, 0, &[])?) {
        if let Some(what) = find_side_effect(&chain, &mut seen)? {
            return Ok(Some(what.into()));
        }
    }
    Ok(None)
}

/// Whether iptables-legacy has tables here; the kernel shows their rules only through a separate system call. A
/// kernel without such rules lacks the file.
fn has_legacy_tables(root: &Path) -> bool {
    let has_any = |name: &str| match fs::read_to_string(root.join(name)) {
        Ok(text) => !text.trim().is_empty(),
        Err(error) => error.kind() != ErrorKind::NotFound,
    };
    ["proc/net/ip_tables_names", "proc/net/ip6_tables_names"].into_iter().any(has_any)
}

/// Whether IPsec policies exist. A kernel without IPsec has none.
fn has_policies() -> io::Result<bool> {
    let mut kernel = match NetlinkSocket::open(NetlinkFamily::Xfrm) {
        Err(error) if error.raw_os_error() == Some(nix::libc::EPROTONOSUPPORT) => return Ok(false),
        opened => opened?,
    };
    kernel.request(GET_POLICIES, 0, &[0; 4])?;
    let answer = kernel.read_one()??;
    let counts = answer.get(4..).and_then(|rest| attribute(rest, POLICIES)).unwrap_or_default();
    if counts.as_chunks::<4>().0.iter().take(POLICY_COUNTS).any(|count| *count != [0; 4]) {
        return Ok(true);
    }
    // A kernel that rejects the request has no defaults. They are a byte each, for packets in, forwarded and out.
    kernel.request(GET_DEFAULT, 0, &[0; 3])?;
    Ok(kernel.read_one()?.is_ok_and(|defaults| defaults.iter().take(POLICY_COUNTS).any(|it| *it == BLOCK)))
}

/// A chain by its family, table and name.
type ChainKey = (u8, String, String);

/// What a chain does with forwarded packets, itself or through chains not seen yet.
fn find_side_effect(chain: &Chain, seen: &mut BTreeSet<ChainKey>) -> io::Result<Option<String>> {
    if !chain.sees_forwarded() {
        return Ok(None);
    }
    if chain.drops {
        return Ok(Some(format!("{}: its policy", chain.describe_place(&chain.name))));
    }
    let mut waiting = vec![chain.name.clone()];
    while let Some(name) = waiting.pop() {
        if !seen.insert((chain.family, chain.table.clone(), name.clone())) {
            continue;
        }
        if seen.len() > CHAINS_MAX {
            return Ok(Some("one of many chains".to_owned()));
        }
        for rule in dump_named(chains::GET_RULES, chain.family, &chain.table, &name)? {
            match rule_effect(attribute(&rule.attributes, EXPRESSIONS).unwrap_or_default()) {
                RuleEffect::Nothing => {}
                RuleEffect::Jump(to) => waiting.push(to),
                RuleEffect::SideEffect(what) => {
                    return Ok(Some(format!("{}: {what}", chain.describe_place(&name))));
                }
            }
        }
    }
    Ok(None)
}

/// `NFTA_RULE_EXPRESSIONS`; `NFTA_EXPR_NAME` and `_DATA`.
const EXPRESSIONS: u16 = 4;
const NAME: u16 = 1;
const DATA: u16 = 2;

/// What a rule does with forwarded packets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum RuleEffect {
    Nothing,
    /// The rule leads to another chain.
    Jump(String),
    /// The rule has an effect that must not be skipped.
    SideEffect(String),
}

/// The effect of a rule, from its expressions: conditions, and actions on packets that meet them.
fn rule_effect(expressions: &[u8]) -> RuleEffect {
    let mut leads = RuleEffect::Nothing;
    for (_, expression) in attributes(expressions) {
        let name = attribute(expression, NAME).map_or("", text);
        let body = attribute(expression, DATA).unwrap_or_default();
        if is_for_this_node(name, body) {
            return RuleEffect::Nothing;
        }
        match expression_effect(name, body) {
            RuleEffect::Nothing => {}
            needs @ RuleEffect::SideEffect(_) => return needs,
            other @ RuleEffect::Jump(_) => leads = other,
        }
    }
    leads
}

/// Whether a condition of xtables (`NFTA_MATCH_NAME`, `_REV`, `_INFO`) requires a destination address of this node.
fn is_for_this_node(name: &str, body: &[u8]) -> bool {
    /// Address types are bits: `RTN_LOCAL`. Flags follow those of source and destination; the second inverts the
    /// destination's.
    const LOCAL: u16 = 1 << 2;
    const INVERTED: u32 = 2;
    if name != "match" || attribute(body, 1).map(text) != Some("addrtype") || number(body, 2) != Some(1) {
        return false;
    }
    let info = attribute(body, 3).unwrap_or_default();
    let destination = info.get(2..).and_then(|rest| rest.first_chunk()).map(|two| u16::from_ne_bytes(*two));
    let flags = info.get(4..).and_then(|rest| rest.first_chunk()).map(|four| u32::from_ne_bytes(*four));
    destination == Some(LOCAL) && flags.is_some_and(|flags| flags & INVERTED == 0)
}

fn expression_effect(name: &str, body: &[u8]) -> RuleEffect {
    // `NFTA_META_DREG`, `_CT_DREG`, `_PAYLOAD_DREG` and `_EXTHDR_DREG`: without such a register, an expression writes
    // to the packet instead of reading it. `NFTA_LOOKUP_DREG`, where 0 is a verdict, and `NFTA_OBJREF_IMM_TYPE`.
    let reads = || attribute(body, 1).is_some();
    let does = match name {
        "immediate" => return verdict_effect(body),
        "match" => return condition_effect(body),
        "target" => return target_effect(body),
        "ct" | "exthdr" | "meta" | "payload" => !reads(),
        "lookup" => number(body, 3) == Some(0),
        "objref" => number(body, 1) != Some(COUNTER),
        "bitwise" | "byteorder" | "cmp" | "counter" | "fib" | "hash" | "notrack" | "numgen" | "range"
        | "rt" | "socket" => false,
        _ => true,
    };
    if does { RuleEffect::SideEffect(format!("a rule with `{name}`")) } else { RuleEffect::Nothing }
}

/// `NFT_OBJECT_COUNTER`: a named counter.
const COUNTER: u32 = 1;

/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_VERDICT`, `NFTA_VERDICT_CODE` and `_CHAIN`.
fn verdict_effect(body: &[u8]) -> RuleEffect {
    let Some(verdict) = attribute(body, 2).and_then(|data| attribute(data, 2)) else {
        return RuleEffect::Nothing;
    };
    if let Some(chain) = attribute(verdict, 2) {
        return RuleEffect::Jump(text(chain).to_owned());
    }
    // `NF_DROP`, `NF_STOLEN` and `NF_QUEUE`; a verdict may hold a number in its upper bits. A negative code returns
    // to the calling chain.
    match number(verdict, 1) {
        Some(code) if code.cast_signed() < 0 => RuleEffect::Nothing,
        Some(code) if code & 0xff == 0 => RuleEffect::SideEffect("a rule that drops".to_owned()),
        Some(code) if matches!(code & 0xff, 2 | 3) => RuleEffect::SideEffect("a rule that queues".to_owned()),
        _ => RuleEffect::Nothing,
    }
}

/// The effect of a condition of xtables, by its name: some record what they match.
fn condition_effect(body: &[u8]) -> RuleEffect {
    match attribute(body, 1).map_or("", text) {
        name @ ("recent" | "nfacct" | "hashlimit" | "quota" | "connlimit" | "limit" | "bpf" | "set") => {
            RuleEffect::SideEffect(format!("a rule with the match {name}"))
        }
        _ => RuleEffect::Nothing,
    }
}

/// `NFTA_TARGET_NAME`, of xtables.
fn target_effect(body: &[u8]) -> RuleEffect {
    match attribute(body, 1).map_or("", text) {
        "ACCEPT" | "RETURN" => RuleEffect::Nothing,
        other => {
            RuleEffect::SideEffect(format!("a rule with the target {}", other.replace(char::is_control, "?")))
        }
    }
}

#[cfg(test)]
mod tests;
