//! Parses base chains and their rules, as far as they drop or accept packets.
//!
//! Invariant: pure. Truncated or unknown input is ignored, and a rule with an unknown condition never counts as
//! unconditional.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use holdfast_datapath::netlink::{attribute, attributes};

use super::super::rules::{NFTABLES, Object, RegisterContent, number, parse_payload, text};

/// `NFT_MSG_GETCHAIN`, `_GETRULE` and `_GETSETELEM`.
pub(super) const GET_CHAINS: u16 = NFTABLES | 4;
pub(super) const GET_RULES: u16 = NFTABLES | 7;
pub(super) const GET_ELEMENTS: u16 = NFTABLES | 13;

/// `NFTA_CHAIN_TABLE`, `_NAME`, `_HOOK` and `_POLICY`; `NFTA_HOOK_HOOKNUM` and `_PRIORITY`.
const TABLE: u16 = 1;
const NAME: u16 = 3;
const HOOK: u16 = 4;
const POLICY: u16 = 5;
const HOOK_NUMBER: u16 = 1;
const PRIORITY: u16 = 2;
/// `NF_INET_PRE_ROUTING`, `_FORWARD`, `_POST_ROUTING`, and `NF_INET_INGRESS` of the family `inet`.
const PREROUTING: u32 = 0;
const FORWARD: u32 = 2;
const POSTROUTING: u32 = 4;
const INGRESS: u32 = 5;
/// `NFPROTO_INET`, `_IPV4`, `_NETDEV` (its only hook is the ingress of a device) and `_IPV6`.
const INET: u8 = 1;
const IPV4: u8 = 2;
const NETDEV: u8 = 5;
const IPV6: u8 = 10;
/// The priority of kube-proxy's translation: `NF_IP_PRI_NAT_DST`.
const TRANSLATION: i32 = -100;
/// `NF_DROP` and `NF_ACCEPT`.
const DROP: u32 = 0;
const ACCEPT: u32 = 1;

/// A base chain, which one of the kernel's hooks runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chain {
    pub(super) family: u8,
    pub(super) table: String,
    pub(super) name: String,
    hook: u32,
    priority: i32,
    /// Whether its policy drops packets that no rule decides.
    pub(super) drops: bool,
}

impl Chain {
    /// Whether it would see packets before kube-proxy translated them.
    pub(super) fn is_before_translation(&self) -> bool {
        match self.family {
            NETDEV => true,
            INET if self.hook == INGRESS => true,
            INET | IPV4 | IPV6 => self.hook == PREROUTING && self.priority < TRANSLATION,
            _ => false,
        }
    }

    pub(super) fn is_forward(&self) -> bool {
        matches!(self.family, INET | IPV4 | IPV6) && self.hook == FORWARD
    }

    pub(super) fn sees_forwarded(&self) -> bool {
        match self.family {
            NETDEV => true,
            INET | IPV4 | IPV6 => matches!(self.hook, PREROUTING | FORWARD | POSTROUTING | INGRESS),
            _ => false,
        }
    }

    /// The location of a rule: `name` is its chain, to which this one leads.
    pub(super) fn describe_place(&self, name: &str) -> String {
        let family = match self.family {
            INET => "inet",
            IPV4 => "ip",
            NETDEV => "netdev",
            _ => "ip6",
        };
        let hook = match self.hook {
            FORWARD if self.family != NETDEV => "forward",
            PREROUTING if self.family != NETDEV => "prerouting",
            POSTROUTING if self.family != NETDEV => "postrouting",
            _ => "ingress",
        };
        let Self { table, priority, .. } = self;
        format!(
            "table {family} {}, chain {} ({hook}, priority {priority})",
            strip_controls(table),
            strip_controls(name)
        )
    }
}

fn strip_controls(name: &str) -> String {
    name.replace(char::is_control, "?")
}

pub(super) fn parse_chains(objects: &[Object]) -> Vec<Chain> {
    objects.iter().filter_map(parse_chain).collect()
}

fn parse_chain(object: &Object) -> Option<Chain> {
    let rest = &object.attributes;
    let hook = attribute(rest, HOOK)?;
    let name = |kind| attribute(rest, kind).map(|name| text(name).to_owned());
    Some(Chain {
        family: object.family,
        table: name(TABLE)?,
        name: name(NAME)?,
        hook: number(hook, HOOK_NUMBER)?,
        priority: number(hook, PRIORITY)?.cast_signed(),
        drops: number(rest, POLICY) == Some(DROP),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleVerdict {
    /// The packet is dropped or rejected.
    Drop,
    Accept,
}

/// The understood parts of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FilterRule {
    pub(super) ports: Vec<RangeInclusive<u16>>,
    /// Sets that must contain the destination port.
    pub(super) sets: Vec<String>,
    pub(super) address: Option<IpAddr>,
    /// The mark bits that must be set.
    pub(super) mark: Option<u32>,
    pub(super) verdict: Option<RuleVerdict>,
    /// The chain that it leads to.
    pub(super) jump: Option<String>,
    /// Whether the rule has no condition.
    pub(super) is_unconditional: bool,
}

impl FilterRule {
    pub(super) fn to_text(&self) -> String {
        let range = |range: &RangeInclusive<u16>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        };
        let ports: Vec<String> = self.ports.iter().take(8).map(range).collect();
        let port = (!ports.is_empty()).then(|| format!("port {}", ports.join(", ")));
        let address = self.address.map(|it| it.to_string());
        let what: Vec<String> = address.into_iter().chain(port).collect();
        format!("drops packets to {}, but no longer sees them", what.join(" "))
    }
}

pub(super) fn parse_rules(objects: &[Object]) -> Vec<FilterRule> {
    /// `NFTA_RULE_EXPRESSIONS`.
    const EXPRESSIONS: u16 = 4;
    objects.iter().filter_map(|it| attribute(&it.attributes, EXPRESSIONS)).map(parse_rule).collect()
}

/// The elements of a set of ports, if it is one.
pub(super) fn parse_ports(objects: &[Object]) -> Vec<RangeInclusive<u16>> {
    /// `NFTA_SET_ELEM_LIST_ELEMENTS`, `NFTA_SET_ELEM_KEY` and `NFTA_DATA_VALUE`.
    const ELEMENTS: u16 = 3;
    const KEY: u16 = 1;
    let lists = objects.iter().filter_map(|it| attribute(&it.attributes, ELEMENTS));
    let keys = lists.flat_map(attributes);
    let values = keys.filter_map(|(_, element)| {
        let value = attribute(attribute(element, KEY)?, KEY)?;
        (value.len() == 2).then(|| parse_port(value)).flatten()
    });
    values.map(|port| port..=port).collect()
}

fn parse_port(value: &[u8]) -> Option<u16> {
    value.first_chunk().map(|two| u16::from_be_bytes(*two))
}

fn parse_rule(expressions: &[u8]) -> FilterRule {
    let mut rule = FilterRule { is_unconditional: true, ..FilterRule::default() };
    let mut loaded = RegisterContent::Other;
    for (_, expression) in attributes(expressions) {
        // `NFTA_EXPR_NAME` and `NFTA_EXPR_DATA`.
        let name = attribute(expression, 1).map_or("", text);
        let body = attribute(expression, 2).unwrap_or_default();
        match name {
            "counter" | "log" | "notrack" => {}
            "immediate" => rule.take_verdict(body),
            "reject" => rule.verdict = Some(RuleVerdict::Drop),
            "target" => rule.take_target(body),
            _ => {
                rule.is_unconditional = false;
                loaded = rule.take_condition(name, body, loaded);
            }
        }
    }
    rule
}

impl FilterRule {
    /// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_VERDICT`, `NFTA_VERDICT_CODE` and `_CHAIN`.
    fn take_verdict(&mut self, body: &[u8]) {
        let verdict = attribute(body, 2).and_then(|data| attribute(data, 2)).unwrap_or_default();
        self.verdict = match number(verdict, 1) {
            Some(DROP) => Some(RuleVerdict::Drop),
            Some(ACCEPT) => Some(RuleVerdict::Accept),
            _ => self.verdict,
        };
        self.jump = attribute(verdict, 2).map(|chain| text(chain).to_owned());
    }

    /// `NFTA_TARGET_NAME`, of xtables.
    fn take_target(&mut self, body: &[u8]) {
        if attribute(body, 1).is_some_and(|name| matches!(text(name), "REJECT" | "DROP")) {
            self.verdict = Some(RuleVerdict::Drop);
        }
    }

    /// Adds a condition, and returns what the next expression finds loaded.
    fn take_condition(&mut self, name: &str, body: &[u8], loaded: RegisterContent) -> RegisterContent {
        match name {
            "payload" => return parse_payload(body),
            "meta" => return parse_meta(body),
            "bitwise" if loaded == RegisterContent::Mark => {
                self.mark = attribute_value(body, 4).and_then(native_u32);
            }
            "cmp" => self.take_comparison(body, loaded),
            "range" if loaded == RegisterContent::Port && number(body, 2) == Some(EQUAL) => {
                let ends = attribute_value(body, 3)
                    .and_then(parse_port)
                    .zip(attribute_value(body, 4).and_then(parse_port));
                self.ports.extend(ends.map(|(first, last)| first..=last));
            }
            // `NFTA_LOOKUP_SET`; flags may invert it.
            "lookup" if loaded == RegisterContent::Port && number(body, 5).is_none_or(|flags| flags == 0) => {
                self.sets.extend(attribute(body, 1).map(|set| text(set).to_owned()));
            }
            "match" => self.take_match(body),
            _ => {}
        }
        loaded
    }

    fn take_comparison(&mut self, body: &[u8], loaded: RegisterContent) {
        let (by, Some(with)) = (number(body, 2), attribute_value(body, 3)) else { return };
        match (loaded, by) {
            (RegisterContent::Port, Some(EQUAL)) => self.ports.extend(parse_port(with).map(|it| it..=it)),
            (RegisterContent::Port, Some(AT_LEAST)) => {
                self.ports.extend(parse_port(with).map(|it| it..=u16::MAX));
            }
            (RegisterContent::Port, Some(AT_MOST)) => {
                let first = self.ports.pop().map_or(0, |range| *range.start());
                self.ports.extend(parse_port(with).map(|last| first..=last));
            }
            (RegisterContent::Address, Some(EQUAL)) => self.address = parse_address(with),
            (RegisterContent::Mark, Some(EQUAL)) if self.mark.is_none() => self.mark = native_u32(with),
            (RegisterContent::Mark, Some(NOT_EQUAL)) if self.mark.is_none() => self.mark = Some(u32::MAX),
            _ => {}
        }
    }

    /// `NFTA_MATCH_NAME` and `_INFO`: matches of xtables, in the byte order of the host.
    fn take_match(&mut self, body: &[u8]) {
        let info = attribute(body, 3).unwrap_or_default();
        let port = |at: usize| Some(u16::from_ne_bytes(*info.get(at..)?.first_chunk()?));
        match attribute(body, 1).map_or("", text) {
            // First and last source port, then first and last destination port; the full range is no condition.
            "tcp" | "udp" => {
                let ends = port(4).zip(port(6)).filter(|ends| *ends != (0, u16::MAX));
                self.ports.extend(ends.map(|(first, last)| first..=last));
            }
            // The kind of ports (1: destination, 2: either), their number, the ports, and flags that begin ranges.
            "multiport" => {
                let count = info.get(1).map_or(0, |count| usize::from(*count).min(15));
                let begins = |at: usize| info.get(32 + at).is_some_and(|flag| *flag != 0);
                let mut at = 0;
                while at < count && matches!(info.first(), Some(1 | 2)) {
                    let first = port(2 + 2 * at);
                    let width = if begins(at) { 2 } else { 1 };
                    let last = port(2 + 2 * (at + width - 1));
                    self.ports.extend(first.zip(last).map(|(first, last)| first..=last));
                    at += width;
                }
            }
            // Mark, mask, and whether the match is inverted.
            "mark" => self.mark = info.get(4..).and_then(native_u32).filter(|_| info.get(8) == Some(&0)),
            _ => {}
        }
    }
}

/// `NFT_CMP_EQ`, `_NEQ`, `_LTE` and `_GTE`.
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;
const AT_MOST: u32 = 3;
const AT_LEAST: u32 = 5;

fn attribute_value(body: &[u8], kind: u16) -> Option<&[u8]> {
    let data = attribute(body, kind)?;
    attribute(data, 1)
}

fn native_u32(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|four| u32::from_ne_bytes(*four))
}

fn parse_address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => value.first_chunk::<4>().map(|it| IpAddr::from(*it)),
        16 => value.first_chunk::<16>().map(|it| IpAddr::from(*it)),
        _ => None,
    }
}

/// `NFTA_META_KEY`: `NFT_META_MARK`, `_L4PROTO` and `_NFPROTO`; the last two narrow nothing that matters here.
fn parse_meta(body: &[u8]) -> RegisterContent {
    match number(body, 2) {
        Some(3) => RegisterContent::Mark,
        Some(15 | 16) => RegisterContent::Protocol,
        _ => RegisterContent::Other,
    }
}
