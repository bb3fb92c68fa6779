//! Packets of SCTP, and their parsing.
//!
//! Invariant: a checksum is computed here over all covered bytes, bit by bit, never from differences.

use super::craft::{ACK, FIN, RST, SYN};

/// The protocol number.
pub(super) const SCTP: u8 = 132;

/// Types of chunks.
pub(super) const DATA: u8 = 0;
pub(super) const INIT: u8 = 1;
pub(super) const INIT_ACK: u8 = 2;
pub(super) const SACK: u8 = 3;
pub(super) const HEARTBEAT: u8 = 4;
pub(super) const ABORT: u8 = 6;
pub(super) const SHUTDOWN: u8 = 7;
pub(super) const SHUTDOWN_ACK: u8 = 8;
pub(super) const COOKIE_ECHO: u8 = 10;
pub(super) const COOKIE_ACK: u8 = 11;
pub(super) const SHUTDOWN_COMPLETE: u8 = 14;

/// The header before the chunks, and the position of its checksum.
pub(super) const HEADER: usize = 12;
pub(super) const SUM: usize = 8;

/// The minimum bytes of an INIT chunk.
pub(super) const INIT_BYTES: usize = 20;

const POLYNOMIAL: u32 = 0x82f6_3b78;

fn step(register: u32) -> u32 {
    (register >> 1) ^ if register & 1 == 1 { POLYNOMIAL } else { 0 }
}

fn register(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |register, byte| (0..8).fold(register ^ u32::from(*byte), |it, _| step(it)))
}

pub(super) fn crc32c(bytes: &[u8]) -> u32 {
    !register(bytes)
}

/// Four bytes after which the checksum of all is 0.
pub(super) fn end_that_makes_zero(bytes: &[u8]) -> [u8; 4] {
    let back = |it: u32| if it >> 31 == 1 { ((it ^ POLYNOMIAL) << 1) | 1 } else { it << 1 };
    ((0..32).fold(u32::MAX, |it, _| back(it)) ^ register(bytes)).to_le_bytes()
}

/// The checksum of a packet, whatever its checksum field holds.
pub(super) fn sum_of(packet: &[u8]) -> [u8; 4] {
    let mut packet = packet.to_vec();
    packet[SUM..HEADER].fill(0);
    crc32c(&packet).to_le_bytes()
}

pub(super) fn is_right(packet: &[u8]) -> bool {
    packet.get(SUM..HEADER).is_some_and(|sum| sum == sum_of(packet))
}

/// A chunk, padded to whole words.
pub(super) fn chunk(kind: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len() + 4).unwrap();
    let mut chunk = [&[kind, 0][..], &length.to_be_bytes(), content].concat();
    chunk.resize(chunk.len().next_multiple_of(4), 0);
    chunk
}

/// The chunks that correspond to these TCP flags.
pub(super) fn chunk_of(flags: u8, content: &[u8]) -> Vec<u8> {
    match (flags & SYN != 0, flags & RST != 0, flags & FIN != 0, flags & ACK != 0) {
        (true, _, _, false) => chunk(INIT, &[&[7; 16], content].concat()),
        (true, _, _, true) => chunk(INIT_ACK, &[&[8; 16], content].concat()),
        (_, true, ..) => chunk(ABORT, content),
        (_, _, true, _) => chunk(SHUTDOWN, &[0, 0, 0, 9]),
        _ => chunk(DATA, &[&[1; 12], content].concat()),
    }
}

/// The inverse, by the first chunks.
pub(super) fn flags_of(chunks: &[u8]) -> u8 {
    let (mut rest, mut flags) = (chunks, 0);
    for _ in 0..4 {
        let Some([kind, _, high, low]) = rest.first_chunk::<4>() else { break };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        if length < 4 {
            break;
        }
        flags |= match *kind {
            INIT => SYN,
            INIT_ACK => SYN | ACK,
            ABORT => RST,
            SHUTDOWN | SHUTDOWN_ACK | SHUTDOWN_COMPLETE => FIN | ACK,
            _ => ACK,
        };
        if *kind == DATA {
            break;
        }
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    flags
}

#[test]
fn the_checksum_matches_the_standard() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let mut bytes = b"whatever stands before".to_vec();
    bytes.extend(end_that_makes_zero(&bytes));
    assert_eq!(crc32c(&bytes), 0);
}
