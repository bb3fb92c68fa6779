//! Parses where an iptables rule leads: to a chain, or to an address.
//!
//! Invariant: an unknown rule leads nowhere: its [`RuleTarget`] stays empty.

use std::net::{IpAddr, SocketAddr};

use holdfast_datapath::netlink::attribute;

use super::rules::text;

/// `NFTA_IMMEDIATE_DATA`, `NFTA_DATA_VERDICT` and `NFTA_VERDICT_CHAIN`.
const DATA: u16 = 2;
const VERDICT: u16 = 2;
const CHAIN: u16 = 2;
/// `NFTA_TARGET_NAME`, `NFTA_TARGET_REV` and `NFTA_TARGET_INFO`.
const TARGET_NAME: u16 = 1;
const TARGET_REVISION: u16 = 2;
const TARGET_INFO: u16 = 3;
/// The revisions of DNAT with ranges that begin alike, for both families: flags, first and last address of 16 bytes
/// each, first and last port.
const REVISIONS: [u32; 2] = [1, 2];
const FIRST_ADDRESS: usize = 4;
const FIRST_PORT: usize = 36;
/// `NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED`.
const WHOLE: u32 = 3;

/// Where a rule leads: to a chain, or to the address that it translates to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleTarget {
    pub(super) chain: Option<String>,
    pub(super) to: Option<SocketAddr>,
}

impl RuleTarget {
    pub(super) fn add_expression(&mut self, name: &str, body: &[u8]) {
        match name {
            "immediate" => self.chain = parse_chain(body).or_else(|| self.chain.take()),
            "target" => self.to = parse_dnat(body),
            _ => {}
        }
    }
}

fn parse_chain(body: &[u8]) -> Option<String> {
    let data = attribute(body, DATA)?;
    let verdict = attribute(data, VERDICT)?;
    let chain = attribute(verdict, CHAIN)?;
    Some(text(chain).to_owned()).filter(|chain| !chain.is_empty())
}

fn parse_dnat(body: &[u8]) -> Option<SocketAddr> {
    let name = attribute(body, TARGET_NAME)?;
    let revision = attribute(body, TARGET_REVISION)?;
    let revision = u32::from_be_bytes(*revision.first_chunk()?);
    if text(name) != "DNAT" || !REVISIONS.contains(&revision) {
        return None;
    }
    let range = attribute(body, TARGET_INFO)?;
    let flags = u32::from_ne_bytes(*range.first_chunk()?);
    let address: [u8; 16] = *range.get(FIRST_ADDRESS..)?.first_chunk()?;
    let port = u16::from_be_bytes(*range.get(FIRST_PORT..)?.first_chunk()?);
    (flags & WHOLE == WHOLE).then(|| SocketAddr::new(parse_ip(address), port))
}

/// Parses an address. IPv4 fills only the first four bytes; no pod has an IPv6 address that ends with twelve zeros.
fn parse_ip(bytes: [u8; 16]) -> IpAddr {
    match bytes {
        [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] => IpAddr::from([a, b, c, d]),
        bytes => IpAddr::from(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's bytes of `-j KUBE-SEP-B`, and of `-j DNAT --to-destination` of either family.
    const JUMP: &str = "0800010000000000200002001c00020008000100fffffffd0f0002004b5542452d5345502d420000";
    const DNAT: [&str; 2] = [
        "09000100444e415400000000080002000000000234000300030000000af40909000000000000000000000000\
         0af409090000000000000000000000001f901f900000000000000000",
        "09000100444e41540000000008000200000000023400030003000000fd000000000000000000000000000009\
         fd0000000000000000000000000000091f901f900000000000000000",
    ];

    fn bytes(hex: &str) -> Vec<u8> {
        let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(pair).collect()
    }

    fn leads(name: &str, body: &[u8]) -> RuleTarget {
        let mut leads = RuleTarget::default();
        leads.add_expression(name, body);
        leads
    }

    #[test]
    fn a_jump_leads_to_its_chain_and_a_translation_to_its_address() {
        assert_eq!(leads("immediate", &bytes(JUMP)).chain.as_deref(), Some("KUBE-SEP-B"));
        let to = DNAT.map(|hex| leads("target", &bytes(hex)).to.map(|to| to.to_string()));
        assert_eq!(to.each_ref().map(Option::as_deref), [Some("10.244.9.9:8080"), Some("[fd00::9]:8080")]);
    }

    #[test]
    fn truncated_bytes_and_other_targets_lead_nowhere() {
        let jump = bytes(JUMP);
        let dnat = bytes(DNAT[0]);
        for cut in 0..dnat.len() - 14 {
            assert_eq!(leads("target", &dnat[..cut]), RuleTarget::default(), "{cut}");
        }
        for cut in 0..jump.len() - 12 {
            assert_eq!(leads("immediate", &jump[..cut]), RuleTarget::default(), "{cut}");
        }
        let other = bytes(&DNAT[0].replace("444e4154", "534e4154"));
        assert_eq!(leads("target", &other), RuleTarget::default(), "SNAT is no target");
        let older = bytes(&DNAT[0].replace("0800020000000002", "0800020000000000"));
        assert_eq!(leads("target", &older), RuleTarget::default(), "a revision with another range");
    }
}
