//! The format of records in a file: each with a mark, its length, a checksum, and its text.
//!
//! Invariant: for any bytes, reading ends, returns only records that were written, and counts the bytes outside of
//! records. The mark is not UTF-8, so it cannot occur in a record, and reading finds the next record after bad bytes.

use std::io;

use memchr::memmem;

/// The first bytes of a file: the name of its writer, and the version of all that follows.
pub(super) const HEADER: &[u8; 20] = b"holdfast history\0\0\0\x01";

/// The first bytes of a compacted file: missing numbers in it are no damage.
pub(super) const COMPACTED: &[u8; 20] = b"holdfast thinned\0\0\0\x01";

const MARK: [u8; 4] = [0xF5, b'h', b'f', 0xF6];
const FRAME_BYTES: usize = 12;

/// The most bytes of a record; the limits of its parts allow some 100 KiB.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// Whether a record can be read back.
pub(super) const fn fits(json: &str) -> bool {
    json.len() <= RECORD_BYTES_MAX
}

/// How many bytes a record takes in a file.
pub(super) const fn frame_bytes(json: &str) -> usize {
    FRAME_BYTES + json.len()
}

/// Appends a record. One too long to be read back is an error.
pub(super) fn put_record(json: &str, out: &mut Vec<u8>) -> io::Result<()> {
    let Some(length) = u32::try_from(json.len()).ok().filter(|_| fits(json)) else {
        let why =
            format!("a record has {} bytes, and at most {RECORD_BYTES_MAX} can be read back", json.len());
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    };
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&crc32fast::hash(json.as_bytes()).to_le_bytes());
    out.extend_from_slice(json.as_bytes());
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    Record(&'a str),
    /// This many bytes that belong to no record.
    Bad(usize),
}

pub(super) fn pieces(bytes: &[u8]) -> impl Iterator<Item = Piece<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (piece, used) = match parse_first(rest) {
            Some(json) => (Piece::Record(json), self::frame_bytes(json)),
            None => {
                let bad = find_record(rest);
                (Piece::Bad(bad), bad)
            }
        };
        rest = rest.get(used..).unwrap_or_default();
        Some(piece)
    })
}

/// The record at the start of the bytes.
fn parse_first(bytes: &[u8]) -> Option<&str> {
    let (head, body) = bytes.split_at_checked(FRAME_BYTES)?;
    let head = head.strip_prefix(&MARK)?;
    let (length, sum) = head.split_at_checked(4)?;
    let length = usize::try_from(read_u32(length)?).ok().filter(|length| *length <= RECORD_BYTES_MAX)?;
    let json = body.get(..length)?;
    (crc32fast::hash(json) == read_u32(sum)?).then(|| std::str::from_utf8(json).ok())?
}

fn read_u32(bytes: &[u8]) -> Option<u32> {
    bytes.try_into().ok().map(u32::from_le_bytes)
}

/// The number of bytes before the next whole record, or the end.
fn find_record(bytes: &[u8]) -> usize {
    let marks = memmem::find_iter(bytes, &MARK).filter(|at| *at > 0);
    let mut whole = marks.filter(|at| bytes.get(*at..).and_then(parse_first).is_some());
    whole.next().unwrap_or(bytes.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(records: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        records.iter().for_each(|json| put_record(json, &mut out).unwrap());
        out
    }

    #[track_caller]
    fn check(bytes: &[u8], expected: &[Piece<'_>]) {
        assert_eq!(pieces(bytes).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn whole_records_come_back() {
        check(&[], &[]);
        check(
            &file(&["{}", "", "{\"seq\":1}"]),
            &[Piece::Record("{}"), Piece::Record(""), Piece::Record("{\"seq\":1}")],
        );
    }

    #[test]
    fn a_record_that_could_not_be_read_back_is_not_written() {
        let mut out = Vec::new();
        put_record(&"x".repeat(RECORD_BYTES_MAX), &mut out).unwrap();
        let before = out.len();
        put_record(&"x".repeat(RECORD_BYTES_MAX + 1), &mut out).unwrap_err();
        assert_eq!(out.len(), before);
    }

    #[test]
    fn a_torn_tail_is_separated_from_whole_records() {
        let bytes = file(&["first", "second"]);
        for cut in 18..bytes.len() {
            check(&bytes[..cut], &[Piece::Record("first"), Piece::Bad(cut - 17)]);
        }
    }

    #[test]
    fn a_flipped_bit_costs_one_record() {
        for bit in 17 * 8..35 * 8 {
            let mut bytes = file(&["first", "second", "third"]);
            bytes[bit / 8] ^= 1 << (bit % 8);
            check(&bytes, &[Piece::Record("first"), Piece::Bad(18), Piece::Record("third")]);
        }
    }

    proptest! {
        #[test]
        fn reading_any_bytes_ends_and_accounts_for_each(bytes: Vec<u8>, cut: usize, json in "\\PC*") {
            let mut file = bytes;
            put_record(&json, &mut file).unwrap();
            let cut = cut % (file.len() + 1);
            let read: usize = pieces(&file[..cut])
                .map(|piece| match piece {
                    Piece::Record(json) => FRAME_BYTES + json.len(),
                    Piece::Bad(bytes) => bytes,
                })
                .sum();
            prop_assert_eq!(read, cut);
            prop_assert!(pieces(&file).any(|piece| piece == Piece::Record(&json)));
        }
    }
}
