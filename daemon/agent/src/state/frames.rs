//! The format of records in the file: each with a mark, its kind, its length and its own checksum.
//!
//! Invariant: a record is returned exactly as written. After bytes that are no whole record, reading looks for the
//! next mark, so damage affects only the records that it is in.

use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};

/// The most bytes of a record. One record is one service; one with 100,000 endpoints takes about 8 MB.
pub(super) const RECORD_BYTES_MAX: u32 = 256 << 20;

/// The start of a record. Two of its bytes never occur in UTF-8, so no name or text of an object looks like it.
const MARK: [u8; 7] = *b"\xff\xferec\xfe\xff";

/// Mark, kind, length, checksum.
const HEAD_BYTES: usize = MARK.len() + 1 + 4 + 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RecordKind {
    /// The data saved with the table; the first and the last record.
    Head,
    /// The names of the services that have records here, after the first head and before the last.
    Names,
    Service,
    /// The name of a service that is too large to be written.
    LeftOut,
}

impl RecordKind {
    const ALL: [Self; 4] = [Self::Head, Self::Names, Self::Service, Self::LeftOut];

    const fn byte(self) -> u8 {
        match self {
            Self::Head => b'h',
            Self::Names => b'n',
            Self::Service => b's',
            Self::LeftOut => b'o',
        }
    }
}

fn checksum(kind: u8, length: [u8; 4], record: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&[kind]);
    sum.update(&length);
    sum.update(record);
    sum.finalize()
}

pub(super) fn put_record(
    out: &mut impl Write,
    kind: RecordKind,
    length: u32,
    record: &[u8],
) -> io::Result<()> {
    let length = length.to_le_bytes();
    out.write_all(&MARK)?;
    out.write_all(&[kind.byte()])?;
    out.write_all(&length)?;
    out.write_all(&checksum(kind.byte(), length, record).to_le_bytes())?;
    out.write_all(record)
}

/// The records of a file, from the input's position on.
#[derive(Debug)]
pub(super) struct Frames<R> {
    input: R,
    /// The offset of the next record.
    pub(super) offset: u64,
    end: u64,
    /// Whether some bytes were no record.
    pub(super) is_damaged: bool,
}

impl<R: BufRead + Seek> Frames<R> {
    /// `offset` is the input's position, and `end` the end of the file.
    pub(super) const fn new(input: R, at: u64, end: u64) -> Self {
        Self { input, offset: at, end, is_damaged: false }
    }

    /// The next whole record; `None` at the end.
    pub(super) fn next(&mut self, record: &mut Vec<u8>) -> io::Result<Option<RecordKind>> {
        while self.offset < self.end {
            if let Some(kind) = self.read(record)? {
                self.offset += (HEAD_BYTES + record.len()) as u64;
                return Ok(Some(kind));
            }
            self.is_damaged = true;
            self.skip_to_mark()?;
        }
        Ok(None)
    }

    /// The first whole record that begins after this offset.
    pub(super) fn next_after(&mut self, place: u64, record: &mut Vec<u8>) -> io::Result<Option<RecordKind>> {
        self.offset = place;
        self.skip_to_mark()?;
        self.next(record)
    }

    fn read(&mut self, record: &mut Vec<u8>) -> io::Result<Option<RecordKind>> {
        record.clear();
        self.input.by_ref().take(HEAD_BYTES as u64).read_to_end(record)?;
        let Some((kind, length, written)) = parse_head(record) else { return Ok(None) };
        let available = self.end.saturating_sub(self.offset + HEAD_BYTES as u64);
        let bytes = u64::from(u32::from_le_bytes(length));
        if bytes > available.min(u64::from(RECORD_BYTES_MAX)) {
            return Ok(None);
        }
        record.clear();
        self.input.by_ref().take(bytes).read_to_end(record)?;
        let is_whole = record.len() as u64 == bytes && checksum(kind.byte(), length, record) == written;
        Ok(is_whole.then_some(kind))
    }

    /// Skips to the next mark after the expected start of a record, or to the end.
    fn skip_to_mark(&mut self) -> io::Result<()> {
        self.offset += 1;
        self.input.seek(SeekFrom::Start(self.offset))?;
        let mut matched = 0;
        while matched < MARK.len() {
            let mut byte = [0];
            if self.input.read(&mut byte)? == 0 {
                self.offset = self.end;
                return Ok(());
            }
            self.offset += 1;
            // Only the first byte of a mark can begin another one.
            let goes_on = MARK.get(matched) == byte.first();
            matched = if goes_on { matched + 1 } else { usize::from(MARK.first() == byte.first()) };
        }
        self.offset -= MARK.len() as u64;
        self.input.seek(SeekFrom::Start(self.offset))?;
        Ok(())
    }
}

fn parse_head(bytes: &[u8]) -> Option<(RecordKind, [u8; 4], u32)> {
    let (kind, rest) = bytes.strip_prefix(&MARK)?.split_first()?;
    let (length, sum) = rest.split_at_checked(4)?;
    let kind = RecordKind::ALL.into_iter().find(|it| it.byte() == *kind)?;
    Some((kind, length.try_into().ok()?, u32::from_le_bytes(sum.try_into().ok()?)))
}
