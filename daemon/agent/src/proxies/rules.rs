//! The rules that kube-proxy, Antrea and Cilium have in this network namespace, as nftables lists them over netlink.
//!
//! Invariant: the work is bounded in time and bytes, whatever is there. To find out which proxies there are, no rule is
//! read: the names of tables and chains say which proxy made them, and no answer counts as no rules.

use std::io;

use holdfast_datapath::netlink::{NetlinkFamily, NetlinkSocket, attribute, attributes, encode_attribute};

/// The most bytes of one answer: a node with 10,000 services has some 5 MB of chains.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a type.
pub(super) const NFTABLES: u16 = 10 << 8;
/// The kernel's `NFT_MSG_GETTABLE`.
const GET_TABLES: u16 = NFTABLES | 1;
/// The kernel's `NFT_MSG_GETCHAIN`.
const GET_CHAINS: u16 = NFTABLES | 4;
/// The length of an `nfgenmsg`, which stands before the attributes.
const FAMILY_LEN: usize = 4;
/// `NFTA_TABLE_NAME` and `NFTA_CHAIN_TABLE`; `NFTA_CHAIN_NAME`.
const TABLE: u16 = 1;
const CHAIN: u16 = 3;
/// The kernel's `XT_EXTENSION_MAXNAMELEN`.
const CHAIN_NAME_LENGTH_MAX: usize = 29;

/// A table, a chain, a rule or the elements of a set, as the kernel lists it.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) family: u8,
    pub(super) attributes: Vec<u8>,
}

impl Object {
    fn parse(body: &[u8]) -> Option<Self> {
        Some(Self { family: *body.first()?, attributes: body.get(FAMILY_LEN..)?.to_vec() })
    }
}

/// How the evidence of a chain begins.
pub(super) const CHAIN_OF_IPTABLES: &str = "iptables chain";

/// The proxies that have rules in this network namespace, each with the table or chain that shows it.
pub(super) fn read_proxies() -> Vec<(&'static str, String)> {
    let tables = dump(GET_TABLES, 0, &[]).unwrap_or_default();
    let chains = dump(GET_CHAINS, 0, &[]).unwrap_or_default();
    identify_proxies(&tables, &chains)
}

/// Tells proxies by the names of tables and chains. kube-proxy's nftables mode has a table of its own; its iptables
/// mode has chains in the table `nat`. All chains of Antrea and of Cilium begin with their names.
pub(super) fn identify_proxies(tables: &[Object], chains: &[Object]) -> Vec<(&'static str, String)> {
    let table = attribute_texts(tables, TABLE).any(|name| name == "kube-proxy");
    let chain = attribute_texts(chains, CHAIN).any(|name| name == "KUBE-SERVICES");
    let table = table.then(|| ("kube-proxy", "nftables table kube-proxy".to_owned()));
    let chain = chain.then(|| ("kube-proxy", format!("{CHAIN_OF_IPTABLES} KUBE-SERVICES")));
    let others = [("Antrea", "ANTREA-"), ("Cilium", "CILIUM_")].into_iter().filter_map(|(proxy, start)| {
        let name = attribute_texts(chains, CHAIN).find(|name| name.starts_with(start))?;
        Some((proxy, format!("{CHAIN_OF_IPTABLES} {}", truncate_name(name))))
    });
    table.into_iter().chain(chain).chain(others).collect()
}

/// Cuts a chain's name to the length that iptables allows, and leaves control characters out.
fn truncate_name(name: &str) -> String {
    name.chars().filter(|it| !it.is_control()).take(CHAIN_NAME_LENGTH_MAX).collect()
}

/// All objects of a kind, of any family or of one, with these attributes.
pub(super) fn dump(kind: u16, family: u8, asked: &[(u16, &str)]) -> io::Result<Vec<Object>> {
    let attributes =
        asked.iter().map(|(kind, text)| encode_attribute(*kind, &[text.as_bytes(), &[0]].concat()));
    // Version 0, no resource.
    let question = std::iter::once(vec![family, 0, 0, 0]).chain(attributes).collect::<Vec<_>>().concat();
    let mut found = Vec::new();
    NetlinkSocket::dump(NetlinkFamily::Netfilter, (kind, &question), ANSWER_BYTES_MAX, |message| {
        found.extend((message.kind & 0xff00 == NFTABLES).then(|| Object::parse(message.body)).flatten());
    })?;
    Ok(found)
}

/// The texts of one attribute, over all objects.
fn attribute_texts(objects: &[Object], wanted: u16) -> impl Iterator<Item = &str> {
    let attributes = objects.iter().flat_map(|it| attributes(&it.attributes));
    let texts = attributes.filter(move |(kind, _)| *kind == wanted);
    texts.filter_map(|(_, value)| std::str::from_utf8(value.split(|byte| *byte == 0).next()?).ok())
}

/// The text in an attribute: up to the first zero byte; empty if the bytes are no UTF-8.
pub(super) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).unwrap_or_default()
}

/// The number in the first attribute of a kind.
pub(super) fn number(body: &[u8], kind: u16) -> Option<u32> {
    attribute(body, kind)?.first_chunk().map(|four| u32::from_be_bytes(*four))
}

/// What the register holds that the next expression of a rule compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegisterContent {
    Address,
    Protocol,
    Port,
    Mark,
    Other,
}

/// What a `parse_payload` expression loads, by `NFTA_PAYLOAD_BASE` (network header: 1, transport header: 2), `_OFFSET` and
/// `_LEN`.
pub(super) fn parse_payload(body: &[u8]) -> RegisterContent {
    match (number(body, 2), number(body, 3), number(body, 4)) {
        (Some(1), Some(16), Some(4)) | (Some(1), Some(24), Some(16)) => RegisterContent::Address,
        (Some(1), Some(9), Some(1)) | (Some(1), Some(6), Some(1)) => RegisterContent::Protocol,
        (Some(2), Some(2), Some(2)) => RegisterContent::Port,
        _ => RegisterContent::Other,
    }
}
