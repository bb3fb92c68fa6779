//! Netlink: message formats and sockets. All netlink code uses this module.
//!
//! Invariant: parsing is pure. It stops at a truncated message or attribute, which does not count.

pub mod listeners;
mod socket;

use std::io;
use std::net::IpAddr;

pub(crate) use socket::read_until_done;
pub use socket::{NetlinkFamily, NetlinkSocket, subscribe};

/// Message types and flags, from `linux/netlink.h`.
pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
pub(crate) const NLM_F_REQUEST: u16 = 1;
pub const NLM_F_ACK: u16 = 4;
pub const NLM_F_DUMP: u16 = 0x300;
/// Flags for new objects: replace no existing one, and create it.
pub const NLM_F_EXCL: u16 = 0x200;
pub const NLM_F_CREATE: u16 = 0x400;
/// A flag: the list changed while the kernel sent it.
const NLM_F_DUMP_INTR: u16 = 0x10;
/// An attribute that contains others.
pub(crate) const NESTED: u16 = 0x8000;
/// The type of an attribute, without flags.
const KIND_MASK: u16 = 0x3fff;

/// The bytes of a header: length, type, flags, sequence, port.
pub(crate) const HEADER_BYTES: usize = 16;

/// The kernel splits a list into datagrams of at most this size.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 1 << 16;

/// A received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    pub kind: u16,
    flags: u16,
    pub body: &'a [u8],
}

impl Message<'_> {
    /// The result of a reply that ends with this message: a list ends with DONE, others with an acknowledgement or
    /// error. `None`: the reply continues.
    pub(crate) fn end_result(&self) -> Option<io::Result<()>> {
        match self.kind {
            NLMSG_DONE => Some(parse_ack(self.body).unwrap_or(Ok(()))),
            NLMSG_ERROR => {
                Some(parse_ack(self.body).unwrap_or_else(|| Err(io::ErrorKind::InvalidData.into())))
            }
            _ => None,
        }
    }
}

pub(crate) fn encode_message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER_BYTES + body.len()).unwrap_or_default();
    let [kind, flags] = [kind, flags].map(u16::to_ne_bytes);
    [&length.to_ne_bytes()[..], &kind, &flags, &sequence.to_ne_bytes(), &[0; 4], body].concat()
}

pub(crate) fn parse_messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let half = |at: usize| Some(u16::from_ne_bytes(*rest.get(at..)?.first_chunk()?));
        let kind = half(4)?;
        let flags = half(6)?;
        let body = rest.get(HEADER_BYTES..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message { kind, flags, body })
    })
}

/// Parses a message's errno, where 0 is success. `None`: the message has none.
fn parse_ack(body: &[u8]) -> Option<io::Result<()>> {
    let errno = i32::from_ne_bytes(*body.first_chunk()?);
    Some(if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno.saturating_neg())) })
}

/// Parses attributes into type and value, without flags.
pub fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & KIND_MASK;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of this type.
pub fn attribute(rest: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(rest).find(|(it, _)| *it == kind).map(|(_, value)| value)
}

/// Parses an address; its length gives the family.
pub fn ip(value: &[u8]) -> Option<IpAddr> {
    let v4 = || <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
    v4().or_else(|| <[u8; 16]>::try_from(value).ok().map(IpAddr::from))
}

/// Encodes an attribute. Its length excludes the padding to a multiple of four.
pub fn encode_attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = 4 + value.len();
    let mut bytes = Vec::with_capacity(length.next_multiple_of(4));
    bytes.extend(u16::try_from(length).unwrap_or_default().to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(length.next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_messages_are_parsed_back() {
        let body = [encode_attribute(3 | NESTED, &[1, 2, 3]), encode_attribute(4, &[5])].concat();
        let sent = [encode_message(7, 0, 1, &body), encode_message(NLMSG_DONE, 0, 2, &[0; 4])].concat();
        let read: Vec<_> = parse_messages(&sent).map(|it| (it.kind, it.body)).collect();
        assert_eq!(read, [(7, &body[..]), (NLMSG_DONE, &[0; 4][..])]);
        assert_eq!(attributes(&body).collect::<Vec<_>>(), [(3, &[1, 2, 3][..]), (4, &[5][..])]);
        assert_eq!((attribute(&body, 4), attribute(&body, 5)), (Some(&[5][..]), None));
    }

    #[test]
    fn a_truncated_message_is_not_parsed() {
        let sent = encode_message(7, 0, 1, &encode_attribute(3, &[1, 2, 3, 4]));
        for length in 0..sent.len() {
            assert_eq!(parse_messages(&sent[..length]).count(), 0, "{length}");
        }
    }

    #[test]
    fn a_reply_ends_with_an_acknowledgement_or_an_error() {
        let ending = |kind, body: &[u8]| Message { kind, flags: 0, body }.end_result();
        let errno = |ended: Option<io::Result<()>>| ended.map(|it| it.map_err(|error| error.raw_os_error()));
        assert_eq!(errno(ending(7, &[0; 4])), None);
        for kind in [NLMSG_DONE, NLMSG_ERROR] {
            assert_eq!(errno(ending(kind, &[0; 4])), Some(Ok(())));
            assert_eq!(errno(ending(kind, &(-libc::EPERM).to_ne_bytes())), Some(Err(Some(libc::EPERM))));
        }
        assert_eq!(errno(ending(NLMSG_DONE, &[])), Some(Ok(())), "an empty DONE completes a list");
        assert_eq!(errno(ending(NLMSG_ERROR, &[])), Some(Err(None)), "a truncated error is an error");
    }
}
