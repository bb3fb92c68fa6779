//! Lists the rules of kube-proxy, Antrea and Cilium in this network namespace, from nftables over netlink.
//!
//! Invariant: the work is bounded in time and bytes. Identifying proxies reads no rule: the names of tables and
//! chains show which proxy made them, and a failed dump counts as no rules.

use std::io;

use holdfast_datapath::netlink::{NetlinkFamily, NetlinkSocket, attribute, attributes, encode_attribute};

/// The most bytes of one dump: a node with 10,000 services has some 5 MB of chains.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a type.
pub(super) const NFTABLES: u16 = 10 << 8;
/// The kernel's `NFT_MSG_GETTABLE`.
const GET_TABLES: u16 = NFTABLES | 1;
/// The kernel's `NFT_MSG_GETCHAIN`.
const GET_CHAINS: u16 = NFTABLES | 4;
/// The length of an `nfgenmsg`, which precedes the attributes.
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

/// The prefix of a chain's evidence.
pub(super) const CHAIN_OF_IPTABLES: &str = "iptables chain";

/// The proxies that have rules in this network namespace, each with the table or chain that shows it.
pub(super) fn read_proxies() -> Vec<(&'static str, String)> {
    let tables = dump(GET_TABLES, 0, &[]).unwrap_or_default();
    let chains = dump(GET_CHAINS, 0, &[]).unwrap_or_default();
    identify_proxies(&tables, &chains)
}

/// Identifies proxies by the names of tables and chains. kube-proxy's nftables mode has its own table; its iptables
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

/// Truncates a chain's name to iptables' limit, and drops control characters.
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

/// What a `payload` expression loads, by `NFTA_PAYLOAD_BASE` (network header: 1, transport header: 2), `_OFFSET` and
/// `_LEN`.
pub(super) fn parse_payload(body: &[u8]) -> RegisterContent {
    match (number(body, 2), number(body, 3), number(body, 4)) {
        (Some(1), Some(16), Some(4)) | (Some(1), Some(24), Some(16)) => RegisterContent::Address,
        (Some(1), Some(9), Some(1)) | (Some(1), Some(6), Some(1)) => RegisterContent::Protocol,
        (Some(2), Some(2), Some(2)) => RegisterContent::Port,
        _ => RegisterContent::Other,
    }
}
