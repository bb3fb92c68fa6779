//! Parses routing rules, and finds out whether they route a node's address unlike a pod's.
//!
//! Invariant: pure, and the order of the list does not matter. A rule that matches on more than an address or a mark
//! is ignored here.

use std::net::{IpAddr, Ipv4Addr};

use holdfast_datapath::netlink::{attributes, ip};

use super::listing::{Address, RoutingRule, RuleSelector};

/// Whether the family is IPv4; else it is IPv6.
type IsV4 = bool;

/// The length of an `rtmsg`, and of a `fib_rule_hdr`.
pub(super) const ROUTE: usize = 12;

/// From `linux/rtnetlink.h` and `linux/fib_rules.h`.
pub(super) const RTM_NEWRULE: u16 = 32;
pub(super) const RTM_GETRULE: u16 = 34;
const FRA_DST: u16 = 1;
const FRA_SRC: u16 = 2;
const FRA_IIFNAME: u16 = 3;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_OIFNAME: u16 = 17;
/// From here on, attributes match ports, labels or newer fields; but these two match the type of service.
const FRA_SPORT_RANGE: u16 = 23;
const FRA_DSCP: u16 = 25;
const FRA_DSCP_MASK: u16 = 30;
const FR_ACT_TO_TBL: u8 = 1;
const FIB_RULE_INVERT: u32 = 2;
/// `RT_TABLE_DEFAULT`, `_MAIN` and `_LOCAL`: the tables that every node has.
const DEFAULT_TABLES: [u32; 3] = [253, MAIN, 255];
const MAIN: u32 = 254;

/// Whether replies must be routed by their source address.
///
/// They must if a rule for an address of the node itself leads to its own table. They also must if a rule on a mark
/// returns packets to the main table before other rules send pods' packets elsewhere, as with the AWS VPC CNI: its
/// firewall marks connections to the node itself, and fails to recognise them once the programs have translated their
/// packets.
pub(super) fn routes_by_source(rules: &[RoutingRule], addresses: &[Address]) -> bool {
    let elsewhere = || rules.iter().filter(|rule| !DEFAULT_TABLES.contains(&rule.table));
    let is_of_node = |rule: &&RoutingRule| addresses.iter().any(|it| rule.matches_source(it.address));
    let returns = |marked: &&RoutingRule, other: &RoutingRule| {
        marked.selector == RuleSelector::Mark
            && marked.table == MAIN
            && marked.is_v4 == other.is_v4
            && marked.priority < other.priority
    };
    let is_after_mark = |rule: &&RoutingRule| {
        matches!(rule.selector, RuleSelector::Source(..)) && rules.iter().any(|marked| returns(&marked, rule))
    };
    elsewhere().any(|rule| is_of_node(&rule) || is_after_mark(&rule))
}

impl RoutingRule {
    fn matches_source(&self, address: IpAddr) -> bool {
        let RuleSelector::Source(source, bits) = self.selector else { return false };
        let differs = match (source, address) {
            (IpAddr::V4(one), IpAddr::V4(other)) => u128::from(one.to_bits() ^ other.to_bits()) << 96,
            (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() ^ other.to_bits(),
            _ => return false,
        };
        bits > 0 && differs.leading_zeros() >= u32::from(bits)
    }
}

/// The 32 bits at this offset; 0 if the slice ends before.
pub(super) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |four| u32::from_ne_bytes(*four))
}

/// Parses a rule from a `fib_rule_hdr`; `None` if it does not matter here.
pub(super) fn parse_rule(body: &[u8]) -> Option<RoutingRule> {
    let [family, to_bits, from_bits, _, table, _, _, action, ..] = *body else { return None };
    let is_inverted = read_u32(body, 8) & FIB_RULE_INVERT != 0;
    if action != FR_ACT_TO_TBL || is_inverted || to_bits > 0 {
        return None;
    }
    let is_v4 = i32::from(family) == nix::libc::AF_INET;
    let mut rule =
        RoutingRule { priority: 0, selector: any_source_selector(is_v4), table: table.into(), is_v4 };
    for (kind, value) in attributes(body.get(ROUTE..)?) {
        match kind {
            FRA_PRIORITY => rule.priority = read_u32(value, 0),
            FRA_TABLE => rule.table = read_u32(value, 0),
            FRA_FWMARK if read_u32(value, 0) != 0 => rule.selector = RuleSelector::Mark,
            FRA_SRC => rule.selector = RuleSelector::Source(ip(value)?, from_bits),
            FRA_DST | FRA_IIFNAME | FRA_OIFNAME => return None,
            _ => {}
        }
    }
    Some(rule)
}

/// The family of a rule, from its `fib_rule_hdr`, that may route two connections between the same hosts differently;
/// `None` for other rules.
pub(super) fn port_rule_family(body: &[u8]) -> Option<IsV4> {
    let is_v4 = i32::from(*body.first()?) == nix::libc::AF_INET;
    let mut asked = attributes(body.get(ROUTE..)?).map(|(kind, _)| kind);
    let is_of_service = |kind| matches!(kind, FRA_DSCP | FRA_DSCP_MASK);
    asked.any(|kind| kind >= FRA_SPORT_RANGE && !is_of_service(kind)).then_some(is_v4)
}

fn any_source_selector(is_v4: bool) -> RuleSelector {
    let any = if is_v4 { IpAddr::from(Ipv4Addr::UNSPECIFIED) } else { IpAddr::from([0; 16]) };
    RuleSelector::Source(any, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines of `PRIORITY from ADDRESS[/BITS]|mark TABLE`.
    fn rules(text: &str) -> Vec<RoutingRule> {
        let one = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (by, is_v4) = match words[1] {
                "mark" => (RuleSelector::Mark, true),
                _ => {
                    let (address, bits) = words[2].split_once('/').unwrap();
                    let address: IpAddr = address.parse().unwrap();
                    (RuleSelector::Source(address, bits.parse().unwrap()), address.is_ipv4())
                }
            };
            RoutingRule {
                priority: words[0].parse().unwrap(),
                selector: by,
                table: words.last().unwrap().parse().unwrap(),
                is_v4,
            }
        };
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(one).collect()
    }

    #[track_caller]
    fn check(text: &str, expected: bool) {
        let address = |index, text: &str| Address { index, address: text.parse().unwrap(), bits: 24 };
        let addresses = [address(2, "10.0.0.5"), address(3, "10.1.0.5"), address(3, "fd00:c::5")];
        let mut rules = rules(text);
        assert_eq!(routes_by_source(&rules, &addresses), expected, "{text}");
        rules.reverse();
        assert_eq!(routes_by_source(&rules, &addresses), expected, "in another order: {text}");
    }

    #[test]
    fn default_rules_and_rules_of_pods_do_not_route_by_source() {
        check("", false);
        check("0 from 0.0.0.0/0 255\n32766 from 0.0.0.0/0 254\n32767 from 0.0.0.0/0 253", false);
        check("1536 from 10.244.1.10/32 2", false);
        check("9 mark 2004\n1536 from 10.244.1.10/32 2", false);
    }

    /// As the AWS VPC CNI writes them.
    #[test]
    fn a_mark_rule_to_main_before_pod_rules_routes_by_source() {
        check("1024 mark 254\n1536 from 10.244.1.10/32 2", true);
        check("2024 mark 254\n1536 from 10.244.1.10/32 2", false);
        check("1024 mark 254\n1536 from fd00:244::1/128 2", false);
    }

    /// As cloud images do for a second network card.
    #[test]
    fn a_rule_for_a_node_address_routes_by_source() {
        check("101 from 10.1.0.5/32 101", true);
        check("101 from 10.1.0.0/24 101", true);
        check("101 from fd00:c::5/128 101", true);
        check("101 from 10.1.0.5/32 254", false);
        check("101 from 10.2.0.0/24 101", false);
    }

    #[test]
    fn only_a_rule_with_ports_may_separate_connections_of_two_hosts() {
        let header = |family| [family, 0, 0, 0, 254, 0, 0, 1, 0, 0, 0, 0];
        let check = |family, attribute: [u8; 8], expected| {
            let body = [&header(family)[..], &[8, 0, 6, 0, 101, 0, 0, 0], &attribute].concat();
            assert_eq!(port_rule_family(&body), expected, "{attribute:?}");
        };
        // ipproto tcp, and a type of service: the route look-up separates these flows in any case.
        check(2, [5, 0, 22, 0, 6, 0, 0, 0], None);
        check(10, [5, 0, 25, 0, 8, 0, 0, 0], None);
        check(2, [8, 0, 23, 0, 22, 0, 22, 0], Some(true));
        check(10, [8, 0, 24, 0, 22, 0, 22, 0], Some(false));
        // Attributes of newer kernels.
        check(10, [8, 0, 90, 0, 1, 0, 0, 0], Some(false));
        assert_eq!(port_rule_family(&header(2)[..ROUTE - 1]), None);
    }

    #[test]
    fn a_truncated_rule_or_one_with_more_conditions_is_ignored() {
        // from 10.1.0.5 lookup 101
        let whole: Vec<u8> = [
            &[2, 0, 32, 0, 101, 0, 0, 1, 0, 0, 0, 0][..],
            &[8, 0, 2, 0, 10, 1, 0, 5],
            &[8, 0, 6, 0, 101, 0, 0, 0],
        ]
        .concat();
        let expected = RoutingRule {
            priority: 101,
            selector: RuleSelector::Source([10, 1, 0, 5].into(), 32),
            table: 101,
            is_v4: true,
        };
        assert_eq!(parse_rule(&whole), Some(expected));
        for length in 0..ROUTE {
            assert_eq!(parse_rule(&whole[..length]), None);
        }
        let by_device = [&whole[..], &[8, 0, 3, 0, b'l', b'o', 0, 0]].concat();
        assert_eq!(parse_rule(&by_device), None);
    }
}
