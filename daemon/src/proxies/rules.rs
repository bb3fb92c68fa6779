//! The rules of kube-proxy, of Antrea and of Cilium in this network namespace, as nftables lists its tables and chains
//! over netlink.
//!
//! Invariant: bounded in time and bytes, whatever is there; no answer counts as no rules. No rule is read; the names of
//! tables and chains say which proxy made them.

use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket,
};
use nix::sys::time::TimeVal;

/// A node with 10,000 services has some 5 MB of chains.
const ANSWER_BYTES_MAX: usize = 32 << 20;

/// One datagram of a dump.
const DATAGRAM_BYTES_MAX: usize = 64 << 10;

/// The kernel answers at once.
const ANSWER_TIME_MAX: i64 = 1;

/// `NFNL_SUBSYS_NFTABLES`, in the upper byte of a type.
pub(super) const NFTABLES: u16 = 10 << 8;
/// The kernel's `NFT_MSG_GETTABLE`.
const GET_TABLES: u16 = NFTABLES | 1;
/// The kernel's `NFT_MSG_GETCHAIN`.
const GET_CHAINS: u16 = NFTABLES | 4;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP: u16 = 0x301;
/// `NLMSG_ERROR` and `NLMSG_DONE`.
const LAST: [u16; 2] = [2, 3];
/// Of `nlmsghdr`, and of `nfgenmsg` behind it.
const HEADER_LEN: usize = 16;
pub(super) const FAMILY_LEN: usize = 4;
/// `NFTA_TABLE_NAME` and `NFTA_CHAIN_TABLE`; `NFTA_CHAIN_NAME`.
const TABLE: u16 = 1;
const CHAIN: u16 = 3;
/// The kernel's `XT_EXTENSION_MAXNAMELEN`.
const CHAIN_NAME_LENGTH_MAX: usize = 29;

/// How the evidence of a chain begins.
pub(super) const CHAIN_OF_IPTABLES: &str = "iptables chain";

/// The proxies that have rules here.
pub(super) fn read() -> Vec<(&'static str, String)> {
    let tables = dump(GET_TABLES, 0, &[]).unwrap_or_default();
    let chains = dump(GET_CHAINS, 0, &[]).unwrap_or_default();
    judge(&tables, &chains)
}

/// kube-proxy's nftables mode has a table of its own; its iptables mode has chains in the table `nat`. All chains of
/// Antrea and of Cilium begin with their names.
pub(super) fn judge(tables: &[u8], chains: &[u8]) -> Vec<(&'static str, String)> {
    let table = names(tables, TABLE).any(|name| name == "kube-proxy");
    let chain = names(chains, CHAIN).any(|name| name == "KUBE-SERVICES");
    let table = table.then(|| ("kube-proxy", "nftables table kube-proxy".to_owned()));
    let chain = chain.then(|| ("kube-proxy", format!("{CHAIN_OF_IPTABLES} KUBE-SERVICES")));
    let others = [("Antrea", "ANTREA-"), ("Cilium", "CILIUM_")].into_iter().filter_map(|(proxy, start)| {
        let name = names(chains, CHAIN).find(|name| name.starts_with(start))?;
        Some((proxy, format!("{CHAIN_OF_IPTABLES} {}", cut(name))))
    });
    table.into_iter().chain(chain).chain(others).collect()
}

/// As long as the kernel lets a chain's name of iptables be.
fn cut(name: &str) -> String {
    name.chars().filter(|it| !it.is_control()).take(CHAIN_NAME_LENGTH_MAX).collect()
}

/// All objects of a kind, of any family or of one, with these attributes.
pub(super) fn dump(kind: u16, family: u8, asked: &[(u16, &str)]) -> nix::Result<Vec<u8>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let netlink = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkNetFilter)?;
    setsockopt(&netlink, ReceiveTimeout, &TimeVal::new(ANSWER_TIME_MAX, 0))?;
    send(netlink.as_raw_fd(), &question(kind, family, asked), MsgFlags::empty())?;
    answer(&netlink)
}

fn question(kind: u16, family: u8, asked: &[(u16, &str)]) -> Vec<u8> {
    let mut attributes = Vec::new();
    for (attribute, text) in asked {
        let length = u16::try_from(4 + text.len() + 1).unwrap_or_default();
        attributes.extend(length.to_ne_bytes());
        attributes.extend(attribute.to_ne_bytes());
        attributes.extend(text.bytes().chain([0]));
        attributes.resize(attributes.len().next_multiple_of(4), 0);
    }
    let length = u32::try_from(HEADER_LEN + FAMILY_LEN + attributes.len()).unwrap_or_default();
    // Length, type, flags, sequence and sender; then the family, version 0, no resource.
    let head = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), &DUMP.to_ne_bytes(), &[0; 8]].concat();
    [&head[..], &[family, 0, 0, 0], &attributes].concat()
}

fn answer(netlink: &OwnedFd) -> nix::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut datagram = vec![0; DATAGRAM_BYTES_MAX];
    while bytes.len() < ANSWER_BYTES_MAX {
        let count = recv(netlink.as_raw_fd(), &mut datagram, MsgFlags::empty())?;
        let new = datagram.get(..count).unwrap_or_default();
        bytes.extend_from_slice(new);
        if count == 0 || messages(new).any(|(kind, _)| LAST.contains(&kind)) {
            break;
        }
    }
    Ok(bytes)
}

/// Type and body of each message.
pub(super) fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        let body = rest.get(HEADER_LEN..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// The texts of one attribute, over all messages.
fn names(bytes: &[u8], wanted: u16) -> impl Iterator<Item = &str> {
    let bodies = messages(bytes).filter(|(kind, _)| kind & 0xff00 == NFTABLES);
    let attributes = bodies.flat_map(|(_, body)| attributes(body.get(FAMILY_LEN..).unwrap_or_default()));
    let texts = attributes.filter(move |(kind, _)| *kind == wanted);
    texts.filter_map(|(_, value)| std::str::from_utf8(value.split(|byte| *byte == 0).next()?).ok())
}

pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The first attribute of a kind.
pub(super) fn find(bytes: &[u8], wanted: u16) -> Option<(u16, &[u8])> {
    attributes(bytes).map(|(kind, value)| (kind & 0x3fff, value)).find(|(kind, _)| *kind == wanted)
}

/// A text as it stands in an attribute: up to the first zero byte; empty where it is none.
pub(super) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).unwrap_or_default()
}

/// The number in the first attribute of a kind.
pub(super) fn number(body: &[u8], attribute: u16) -> Option<u32> {
    let (_, value) = find(body, attribute)?;
    value.first_chunk().map(|four| u32::from_be_bytes(*four))
}
