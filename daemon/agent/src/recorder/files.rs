//! The files of the history: a folder of segments. Records are appended to the newest segment, and the two oldest are
//! merged when all are full.
//!
//! Invariant: all segments together stay below a number of bytes. Nothing is appended behind half a record: a failed
//! write is truncated, or the next write begins a new segment. [`super::compaction`] selects the records to drop,
//! which are not simply the oldest; a whole segment goes only if compaction fails.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::compaction;
use super::frames::{self, HEADER};
use super::segment::{FILE_MODE, FOLDER_MODE, SUFFIX, Segment};

/// The most bytes of one segment, even of a compacted one. While one segment fills with new records, compaction reads
/// two and writes one.
const SEGMENT_BYTES_MAX: u64 = 8 << 20;

/// The most that all segments hold when a new one begins, counted in full segments. The new one adds one, and a
/// compacted one another until its sources are removed: together the 64 MiB that the history may take.
const SEGMENTS_MAX: u64 = 6;

/// The size limit of a segment, and how it is opened; tests use small segments and full disks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    pub(super) segment_bytes_max: u64,
    pub(super) open: fn(&Path) -> io::Result<File>,
}

impl Default for Disk {
    fn default() -> Self {
        Self { segment_bytes_max: SEGMENT_BYTES_MAX, open: open_to_append }
    }
}

fn open_to_append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(FILE_MODE).open(path)
}

#[derive(Debug)]
pub(super) struct SegmentFiles {
    folder: PathBuf,
    disk: Disk,
    /// Every segment in the folder, oldest first.
    segments: VecDeque<Segment>,
    open: Option<File>,
    /// Whether the newest segment must not be appended to: another version wrote it, or it ends with half a record.
    is_spoilt: bool,
    buffer: Vec<u8>,
}

impl SegmentFiles {
    /// `segments` are those in the folder, oldest first; `is_spoilt` forbids appending to the newest.
    pub(super) fn new(folder: &Path, disk: Disk, segments: Vec<Segment>, is_spoilt: bool) -> Self {
        Self {
            folder: folder.to_owned(),
            disk,
            segments: segments.into(),
            open: None,
            is_spoilt,
            buffer: Vec::new(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Writes records at once; `first` is the number of the first one. After an error none of them is in the file.
    pub(super) fn append<'a>(
        &mut self,
        first: u64,
        records: impl Iterator<Item = &'a str>,
    ) -> io::Result<()> {
        self.open_newest(first)?;
        let Self { open, segments, buffer, .. } = self;
        let (Some(file), Some(segment)) = (open, segments.back_mut()) else {
            return Err(io::Error::other("no file of the history is open"));
        };
        buffer.clear();
        if segment.bytes == 0 {
            buffer.extend_from_slice(HEADER);
        }
        records.into_iter().try_for_each(|json| frames::put_record(json, buffer))?;
        let before = segment.bytes;
        let written = file.write_all(buffer);
        if written.is_ok() {
            segment.bytes += u64::try_from(buffer.len()).unwrap_or(u64::MAX);
            return written;
        }
        // If the truncation fails, the next start finds the bytes and reports them as bad.
        self.is_spoilt = file.set_len(before).is_err();
        self.open = None;
        written
    }

    /// Syncs appended records to the disk.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.open.as_ref().map_or(Ok(()), File::sync_data)
    }

    /// Opens the newest segment, or begins a new one if that is full or spoilt.
    fn open_newest(&mut self, first: u64) -> io::Result<()> {
        let full = self.segments.back().is_none_or(|segment| segment.bytes >= self.disk.segment_bytes_max);
        if full || self.is_spoilt {
            self.sync()?;
            self.open = None;
            fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(&self.folder)?;
            let path = self.folder.join(format!("{first:020}{SUFFIX}"));
            self.open = Some((self.disk.open)(&path)?);
            self.segments.push_back(Segment { path, first, bytes: 0 });
            self.is_spoilt = false;
            self.evict_segments()?;
            return File::open(&self.folder)?.sync_all();
        }
        if let (None, Some(segment)) = (&self.open, self.segments.back()) {
            self.open = Some((self.disk.open)(&segment.path)?);
        }
        Ok(())
    }

    fn evict_segments(&mut self) -> io::Result<()> {
        while self.bytes() > self.disk.segment_bytes_max.saturating_mul(SEGMENTS_MAX) {
            let thinned = compaction::compact(self.segments.make_contiguous(), self.disk.segment_bytes_max);
            match thinned {
                Ok(Some(thinned)) => self.replace_oldest(thinned)?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    tracing::warn!(%error, "cannot compact the history; removing a whole file of it");
                    self.remove_oldest()?;
                }
            }
        }
        Ok(())
    }

    /// Replaces the two oldest segments by a compacted one, and removes the file of the second.
    fn replace_oldest(&mut self, thinned: Segment) -> io::Result<()> {
        self.segments.pop_front();
        let second = self.segments.pop_front();
        self.segments.push_front(thinned);
        second.map_or(Ok(()), |second| fs::remove_file(second.path))
    }

    /// Removes the oldest segment, or the next one if the oldest was compacted and more than two exist: a compacted
    /// segment has the records of namespaces that have few.
    fn remove_oldest(&mut self) -> io::Result<()> {
        let is_thinned =
            self.segments.front().is_some_and(|it| compaction::is_compacted(&it.path).unwrap_or(false));
        let removed = self.segments.remove(usize::from(is_thinned && self.segments.len() > 2));
        removed.map_or(Ok(()), |removed| fs::remove_file(removed.path))
    }
}
