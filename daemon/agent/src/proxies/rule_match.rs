//! Finds rules of other proxies for our frontends, and ports that a CNI plug-in uses as host ports.
//!
//! Invariant: the work is bounded in time and bytes, and a rule that is understood only in part matches nothing. Only
//! a complete list from the kernel proves that no rule exists. A rule's backends are searched in at most
//! [`CHAINS_MAX`] chains; further chains and unknown rules are ignored.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::Transport;
use holdfast_datapath::netlink::{attribute, attributes};
use nix::libc;

use super::rule_target::RuleTarget;
use super::rules::{NFTABLES, Object, RegisterContent, dump, number, parse_payload, text};

/// `NFT_MSG_GETRULE` and `NFT_MSG_GETSETELEM`, from `linux/netfilter/nf_tables.h`.
const GET_RULES: u16 = NFTABLES | 7;
const GET_ELEMENTS: u16 = NFTABLES | 13;
/// `NFPROTO_INET`, `_IPV4` and `_IPV6`.
const INET: u8 = 1;
const FAMILIES: [(u8, &str); 2] = [(2, "ip"), (10, "ip6")];
/// `NFTA_RULE_TABLE` and `NFTA_SET_ELEM_LIST_TABLE`; `NFTA_RULE_CHAIN` and `NFTA_SET_ELEM_LIST_SET`.
const TABLE: u16 = 1;
const OF_TABLE: u16 = 2;
/// `NFTA_RULE_EXPRESSIONS` and `NFTA_SET_ELEM_LIST_ELEMENTS`.
const EXPRESSIONS: u16 = 4;
const ELEMENTS: u16 = 3;
/// `NFTA_EXPR_NAME` and `NFTA_MATCH_NAME`; `NFTA_EXPR_DATA`.
const NAME: u16 = 1;
const EXPRESSION: u16 = 2;

/// A frontend that a rule is for; a NodePort has an unspecified address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleMatch {
    pub location: String,
    pub frontend: SocketAddr,
    /// The backends that the rule leads to, as far as it is understood.
    pub backends: Vec<SocketAddr>,
}

/// The most chains read for the rules of one service: those of some hundred endpoints.
const CHAINS_MAX: usize = 256;

/// What a rule compares packets with, as far as it is understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RuleCondition {
    address: Option<IpAddr>,
    protocol: Option<u8>,
    ports: BTreeSet<u16>,
    target: RuleTarget,
}

/// Finds kube-proxy's rules for these frontends; a NodePort has an unspecified address.
pub fn find_rules(frontends: &BTreeSet<(SocketAddr, Transport)>) -> io::Result<Vec<RuleMatch>> {
    let mut found = Vec::new();
    for (family, word) in FAMILIES {
        let mut chains_left = CHAINS_MAX;
        for chain in ["KUBE-SERVICES", "KUBE-NODEPORTS"] {
            let rules = dump_named(GET_RULES, family, "nat", chain)?;
            let place = format!("iptables table nat, chain {chain}");
            for rule in parse_rules(&rules) {
                let Some(frontend) = rule.match_frontend(family, frontends) else { continue };
                let backends = follow_jumps(family, rule.target, &mut chains_left)?;
                found.push(RuleMatch { location: place.clone(), frontend, backends });
            }
        }
        for set in ["service-ips", "service-nodeports", "no-endpoint-services", "no-endpoint-nodeports"] {
            let elements = dump_named(GET_ELEMENTS, family, "kube-proxy", set)?;
            let place = format!("nftables table {word} kube-proxy, map {set}");
            let keys = parse_elements(&elements).filter_map(|key| key.match_frontend(family, frontends));
            let one = |frontend| RuleMatch { location: place.clone(), frontend, backends: Vec::new() };
            found.extend(keys.map(one));
        }
    }
    Ok(found)
}

/// The backends that an iptables rule translates to, through all chains that it leads to.
fn follow_jumps(family: u8, target: RuleTarget, chains_left: &mut usize) -> io::Result<Vec<SocketAddr>> {
    let mut backends = BTreeSet::new();
    let mut seen = BTreeSet::new();
    let mut waiting = vec![target];
    while let Some(target) = waiting.pop() {
        backends.extend(target.to);
        let Some(chain) = target.chain.filter(|chain| seen.insert(chain.clone())) else { continue };
        *chains_left = match chains_left.checked_sub(1) {
            Some(left) => left,
            None => break,
        };
        let rules = dump_named(GET_RULES, family, "nat", &chain)?;
        waiting.extend(parse_rules(&rules).map(|rule| rule.target));
    }
    Ok(backends.into_iter().collect())
}

/// The ports of the portmap plug-in, in iptables or nftables.
pub fn host_ports() -> io::Result<BTreeSet<u16>> {
    let mut found = BTreeSet::new();
    for (family, _) in FAMILIES {
        let rules = dump_named(GET_RULES, family, "nat", "CNI-HOSTPORT-DNAT")?;
        found.extend(parse_rules(&rules).flat_map(|rule| rule.ports));
    }
    for chain in ["hostports", "hostip_hostports"] {
        let rules = dump_named(GET_RULES, INET, "cni_hostport", chain)?;
        found.extend(parse_rules(&rules).flat_map(|rule| rule.ports));
    }
    Ok(found)
}

/// Dumps a chain or set of a table; a missing table or name is empty.
pub(super) fn dump_named(kind: u16, family: u8, table: &str, name: &str) -> io::Result<Vec<Object>> {
    match dump(kind, family, &[(TABLE, table), (OF_TABLE, name)]) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(Vec::new()),
        other => other,
    }
}

impl RuleCondition {
    /// The frontend that the rule or key is for.
    fn match_frontend(
        &self,
        family: u8,
        frontends: &BTreeSet<(SocketAddr, Transport)>,
    ) -> Option<SocketAddr> {
        let is_of_family = |it: &SocketAddr| it.is_ipv4() == (family == 2);
        let is_it = |(frontend, transport): &&(SocketAddr, Transport)| {
            is_of_family(frontend)
                && self.protocol == Some(transport.protocol_number())
                && self.ports.contains(&frontend.port())
                && self.address.map_or(frontend.ip().is_unspecified(), |own| own == frontend.ip())
        };
        frontends.iter().find(is_it).map(|(frontend, _)| *frontend)
    }

    fn set_value(&mut self, loaded: RegisterContent, value: &[u8]) {
        match (loaded, value) {
            (RegisterContent::Address, [_, _, _, _]) => {
                self.address = value.first_chunk::<4>().map(|it| IpAddr::from(*it));
            }
            (RegisterContent::Address, _) => {
                self.address = value.first_chunk::<16>().map(|it| IpAddr::from(*it));
            }
            (RegisterContent::Protocol, [protocol, ..]) => self.protocol = Some(*protocol),
            (RegisterContent::Port, _) => {
                self.ports.extend(value.first_chunk().map(|port| u16::from_be_bytes(*port)));
            }
            (RegisterContent::Protocol | RegisterContent::Mark | RegisterContent::Other, _) => {}
        }
    }

    /// Adds a match of xtables if it compares ports, which are in the byte order of the host.
    fn take_match(&mut self, name: &str, value: &[u8]) {
        let port = |at: usize| Some(u16::from_ne_bytes(*value.get(at..)?.first_chunk()?));
        match name {
            // `xt_tcp` and `xt_udp`: first and last source port, then first and last destination port.
            "tcp" | "udp" => self.ports.extend(port(4).filter(|first| Some(*first) == port(6))),
            // `xt_multiport_v1`: the kind of ports, their number, and the ports.
            "multiport" => {
                let count = value.get(1).map_or(0, |count| usize::from(*count).min(15));
                self.ports.extend((0..count).filter_map(|at| port(2 + 2 * at)));
            }
            _ => {}
        }
    }
}

fn parse_rules(objects: &[Object]) -> impl Iterator<Item = RuleCondition> + '_ {
    objects.iter().filter_map(|it| attribute(&it.attributes, EXPRESSIONS)).map(parse_rule)
}

/// Evaluates the expressions of a rule in the kernel's order.
fn parse_rule(expressions: &[u8]) -> RuleCondition {
    let mut compared = RuleCondition::default();
    let mut loaded = RegisterContent::Other;
    for (_, expression) in attributes(expressions) {
        let name = attribute(expression, NAME).map_or("", text);
        let body = attribute(expression, EXPRESSION).unwrap_or_default();
        match name {
            "payload" => loaded = parse_payload(body),
            "meta" => {
                loaded = if number(body, META_KEY) == Some(L4PROTO) {
                    RegisterContent::Protocol
                } else {
                    RegisterContent::Other
                }
            }
            // With a mask, it compares a network and not an address.
            "bitwise" => loaded = RegisterContent::Other,
            "cmp" if number(body, COMPARE_BY) == Some(EQUAL) => {
                let value = attribute(body, COMPARE_WITH).and_then(|value| attribute(value, NAME));
                compared.set_value(loaded, value.unwrap_or_default());
            }
            "match" => {
                let name = attribute(body, NAME).map_or("", text);
                compared.take_match(name, attribute(body, MATCH_INFO).unwrap_or_default());
            }
            _ => compared.target.add_expression(name, body),
        }
    }
    compared
}

/// `NFTA_META_KEY` and `NFT_META_L4PROTO`; `NFTA_CMP_OP`, `NFTA_CMP_DATA` and `NFT_CMP_EQ`; `NFTA_MATCH_INFO`.
const META_KEY: u16 = 2;
const L4PROTO: u32 = 16;
const COMPARE_BY: u16 = 2;
const COMPARE_WITH: u16 = 3;
const EQUAL: u32 = 0;
const MATCH_INFO: u16 = 3;

/// The keys of a map: address, protocol and port, or protocol and port alone, each padded to a multiple of four
/// bytes.
fn parse_elements(objects: &[Object]) -> impl Iterator<Item = RuleCondition> + '_ {
    let lists = objects.iter().filter_map(|it| attribute(&it.attributes, ELEMENTS));
    let elements = lists.flat_map(attributes);
    elements.filter_map(|(_, element)| parse_key(attribute(attribute(element, NAME)?, NAME)?))
}

fn parse_key(key: &[u8]) -> Option<RuleCondition> {
    let (address, rest) = key.split_at_checked(key.len().checked_sub(8)?)?;
    let mut found = RuleCondition::default();
    match address.len() {
        0 => {}
        4 | 16 => found.set_value(RegisterContent::Address, address),
        _ => return None,
    }
    found.set_value(RegisterContent::Protocol, rest);
    found.set_value(RegisterContent::Port, rest.get(4..)?);
    Some(found)
}

#[cfg(test)]
mod tests {
    use holdfast_datapath::netlink::encode_attribute;

    use super::*;

    fn expression(name: &str, body: &[Vec<u8>]) -> Vec<u8> {
        let name = encode_attribute(NAME, format!("{name}\0").as_bytes());
        encode_attribute(1, &[name, encode_attribute(EXPRESSION | 0x8000, &body.concat())].concat())
    }

    fn be(kind: u16, number: u32) -> Vec<u8> {
        encode_attribute(kind, &number.to_be_bytes())
    }

    fn load(base: u32, offset: u32, length: u32) -> Vec<u8> {
        expression("payload", &[be(2, base), be(3, offset), be(4, length)])
    }

    fn equal(value: &[u8]) -> Vec<u8> {
        expression(
            "cmp",
            &[be(2, EQUAL), encode_attribute(COMPARE_WITH | 0x8000, &encode_attribute(1, value))],
        )
    }

    fn object(attributes: Vec<u8>) -> [Object; 1] {
        [Object { family: 2, attributes }]
    }

    fn rule(expressions: &[Vec<u8>]) -> RuleCondition {
        let rules = object(encode_attribute(EXPRESSIONS | 0x8000, &expressions.concat()));
        parse_rules(&rules).next().unwrap()
    }

    fn web() -> (SocketAddr, BTreeSet<(SocketAddr, Transport)>) {
        let web = "10.96.0.1:443".parse().unwrap();
        (web, BTreeSet::from([(web, Transport::Tcp), ("0.0.0.0:30080".parse().unwrap(), Transport::Tcp)]))
    }

    #[test]
    fn a_rule_that_names_address_protocol_and_port_is_for_a_frontend() {
        let (web, frontends) = web();
        let address = [load(1, 16, 4), equal(&[10, 96, 0, 1])];
        let protocol = [load(1, 9, 1), equal(&[6])];
        let native = [&address[..], &protocol, &[load(2, 2, 2), equal(&443_u16.to_be_bytes())]].concat();
        assert_eq!(rule(&native).match_frontend(2, &frontends), Some(web));
        let ports = [0_u16, 65535, 443, 443].map(u16::to_ne_bytes).concat();
        let info = [encode_attribute(NAME, b"tcp\0"), encode_attribute(MATCH_INFO, &ports)];
        let by_match = [&address[..], &protocol, &[expression("match", &info)]].concat();
        assert_eq!(rule(&by_match).match_frontend(2, &frontends), Some(web));
        assert_eq!(rule(&address).match_frontend(2, &frontends), None, "no port");
        let masked = [load(1, 16, 4), expression("bitwise", &[]), equal(&[10, 96, 0, 1])];
        let masked = [&masked[..], native.get(2..).unwrap()].concat();
        assert_eq!(rule(&masked).match_frontend(2, &frontends), None, "a network");
    }

    #[test]
    fn a_rule_for_a_node_port_names_no_address() {
        let (_, frontends) = web();
        let ports = [load(1, 9, 1), equal(&[6]), load(2, 2, 2), equal(&30080_u16.to_be_bytes())];
        assert_eq!(rule(&ports).match_frontend(2, &frontends), Some("0.0.0.0:30080".parse().unwrap()));
        assert_eq!(rule(&ports).match_frontend(10, &frontends), None, "of the other family");
    }

    #[test]
    fn host_ports_are_those_of_a_list_of_ports() {
        let mut list = vec![1, 2];
        list.extend([8080_u16, 9090, 0].iter().flat_map(|port| port.to_ne_bytes()));
        let info = [encode_attribute(NAME, b"multiport\0"), encode_attribute(MATCH_INFO, &list)];
        assert_eq!(rule(&[expression("match", &info)]).ports, BTreeSet::from([8080, 9090]));
    }

    #[test]
    fn keys_of_a_map_are_frontends() {
        let (web, frontends) = web();
        let key = [&[10, 96, 0, 1][..], &[6, 0, 0, 0], &443_u16.to_be_bytes(), &[0, 0]].concat();
        let element = encode_attribute(1, &encode_attribute(NAME | 0x8000, &encode_attribute(NAME, &key)));
        let elements = object(encode_attribute(ELEMENTS | 0x8000, &element));
        let found: Vec<_> =
            parse_elements(&elements).filter_map(|key| key.match_frontend(2, &frontends)).collect();
        assert_eq!(found, [web]);
        assert_eq!(parse_key(&[0; 7]), None);
        assert_eq!(parse_key(&[0; 15]), None);
    }

    #[test]
    fn truncated_bytes_match_nothing_and_do_not_panic() {
        let (_, frontends) = web();
        let expressions = [load(1, 9, 1), equal(&[6]), load(2, 2, 2), equal(&30080_u16.to_be_bytes())];
        let whole = encode_attribute(EXPRESSIONS | 0x8000, &expressions.concat());
        let named = |attributes: &[u8]| {
            let rules = object(attributes.to_vec());
            parse_rules(&rules).any(|rule| rule.match_frontend(2, &frontends).is_some())
        };
        assert!(named(&whole));
        for length in 0..whole.len() {
            let cut = whole.get(..length).unwrap();
            assert!(!named(cut), "{length}");
            assert_eq!(parse_elements(&object(cut.to_vec())).count(), 0, "{length}");
        }
    }
}
