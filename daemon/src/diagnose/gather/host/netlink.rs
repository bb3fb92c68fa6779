//! Messages of netlink, as every kind of question to the kernel comes back.
//!
//! Invariant: a message that is cut off ends the reading; nothing is read past its length.

use std::io;

/// `NLM_F_REQUEST | NLM_F_DUMP`
pub(super) const DUMP: u16 = 0x301;
/// `NLM_F_REQUEST`: one answer is wanted.
pub(super) const REQUEST: u16 = 1;
/// The length of an `nlmsghdr`.
pub(super) const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;

/// What a message brings.
#[derive(Debug)]
pub(super) enum Part<'a> {
    Body(&'a [u8]),
    /// The last one: how it ended.
    End(io::Result<()>),
}

pub(super) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Part<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32::from_ne_bytes(*rest.first_chunk()?)).ok()?;
        let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        let body = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(match kind {
            NLMSG_DONE | NLMSG_ERROR => Part::End(ended(body)),
            _ => Part::Body(body),
        })
    })
}

fn ended(body: &[u8]) -> io::Result<()> {
    match body.first_chunk().map_or(0, |errno| i32::from_ne_bytes(*errno)) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno.saturating_neg())),
    }
}

/// Type and value of each attribute, without the flag of those that hold others.
pub(super) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?) & 0x3fff;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}
