//! Restores the records of a former process at the start.
//!
//! Invariant: reading is bounded in time and never fails. Whole records are read, the rest becomes a gap, and a torn
//! tail is truncated so that new records follow whole ones. No number is used twice: used numbers without a record
//! become a gap, and the number in a file's name counts only if it is plausible. All files are read, a segment at a
//! time, because records that fit into memory may be in any segment.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use holdfast_status::record::{Gap, GapCause, Kind, Record};
use holdfast_status::rfc3339::Millis;

use super::change_record::GAP;
use super::frames::{COMPACTED, HEADER, Piece, pieces};
use super::numbers::{NUMBER_MAX, NumberMark};
use super::ring::Line;
use super::segment::{self, Segment};

/// The most bytes read, counted from the end: all that a folder may hold. It takes some 300 ms.
const READ_BYTES_MAX: u64 = 64 << 20;

/// The shortest record; it limits the numbers that the bytes of an unreadable file can hold.
const RECORD_BYTES_MIN: u64 = 128;

/// How far the number in a file's name may exceed the otherwise known numbers: many times as many as all files hold.
const AHEAD_MAX: u64 = 1 << 24;

/// How much of a file is read to find its first record.
const HEAD_BYTES_MAX: u64 = 2 << 20;

/// Receives each record and each gap, oldest first.
pub(super) type LineSink<'a> = &'a mut dyn FnMut(Arc<Line>);

#[derive(Debug, Default)]
pub(super) struct RestoredHistory {
    /// How many gaps were found.
    pub(super) gaps: u64,
    /// The gap behind all records, which is still to be written.
    pub(super) torn_gap: Option<Gap>,
    /// The highest number that may have been used.
    pub(super) seq: u64,
    pub(super) segments: Vec<Segment>,
    /// Whether the newest segment must not be appended to.
    pub(super) is_spoilt: bool,
}

/// Reads a folder. `mark` has the used numbers from another place than the records.
pub(super) fn restore(
    folder: &Path,
    boot_id: &Arc<str>,
    mark: Option<NumberMark>,
    found: LineSink<'_>,
) -> io::Result<RestoredHistory> {
    let segments = plausible_segments(segment::segments(folder)?, mark);
    let mut reading = Restorer::new(segments.clone(), boot_id, found);
    for (segment, begin) in segments.iter().zip(start_offsets(&segments)) {
        if begin == segment.bytes && segment.bytes > 0 {
            reading.note_number(segment.first);
        } else if let Err(error) = reading.restore_segment(segment, begin) {
            tracing::warn!(%error, file = %segment.path.display(), "cannot read a file of the history");
            reading.add_unreadable_gap(segment, GapCause::Damaged);
        }
    }
    let Restorer { mut restored, leftovers, .. } = reading;
    restored.segments.retain(|segment| !leftovers.contains(segment));
    leftovers.iter().for_each(remove_leftover);
    restored.truncate_torn_tail();
    restored.add_missing_gap(mark);
    Ok(restored)
}

/// The offset in each segment from which to read, so that at most [`READ_BYTES_MAX`] are read in all.
fn start_offsets(segments: &[Segment]) -> Vec<u64> {
    let mut left = READ_BYTES_MAX;
    let newest_first = segments.iter().rev().map(|segment| {
        let taken = segment.bytes.min(left);
        left -= taken;
        segment.bytes - taken
    });
    let mut begins: Vec<_> = newest_first.collect();
    begins.reverse();
    begins
}

/// Reads some of all segments, to compact them.
pub(super) fn read_segments(
    all: &[Segment],
    some: &[Segment],
    boot_id: &Arc<str>,
) -> io::Result<Vec<Arc<Line>>> {
    let mut lines = Vec::new();
    let mut found = |line| lines.push(line);
    let mut reading = Restorer::new(all.to_vec(), boot_id, &mut found);
    some.iter().try_for_each(|segment| reading.restore_segment(segment, 0))?;
    Ok(lines)
}

/// Removes a segment that was merged into another one: the daemon stopped before it could.
fn remove_leftover(segment: &Segment) {
    if let Err(error) = std::fs::remove_file(&segment.path) {
        tracing::warn!(%error, file = %segment.path.display(), "cannot remove a file whose records are in another one");
    }
}

/// Leaves out files named after a number that no record in them can have. Those files stay on disk.
fn plausible_segments(segments: Vec<Segment>, mark: Option<NumberMark>) -> Vec<Segment> {
    let mut known = mark.map_or(0, |mark| mark.below);
    let mut believe = |segment: &Segment| {
        let near = segment.first <= known.saturating_add(AHEAD_MAX).min(NUMBER_MAX);
        let believed = near || first_number_matches(segment).unwrap_or(false);
        if believed {
            known = known.max(segment.first);
        } else {
            let file = segment.path.display();
            tracing::warn!(%file, "no record can have the number in this file's name; the file is left alone");
        }
        believed
    };
    segments.into_iter().filter(|segment| believe(segment)).collect()
}

fn first_number_matches(segment: &Segment) -> io::Result<bool> {
    let mut bytes = Vec::new();
    File::open(&segment.path)?.take(HEAD_BYTES_MAX).read_to_end(&mut bytes)?;
    let records = bytes.strip_prefix(HEADER).or_else(|| bytes.strip_prefix(COMPACTED)).unwrap_or_default();
    let first = pieces(records).find_map(|piece| match piece {
        Piece::Record(json) => Line::parse(json)?.seq,
        Piece::Bad(_) => None,
    });
    let most = segment.first.saturating_add(segment.bytes / RECORD_BYTES_MIN).min(NUMBER_MAX);
    Ok(first.is_some_and(|first| (segment.first..=most).contains(&first)))
}

struct Restorer<'a> {
    restored: RestoredHistory,
    boot_id: &'a Arc<str>,
    sink: LineSink<'a>,
    /// The time of the previous record.
    time: Millis,
    /// Whether the segment being read was compacted.
    is_compacted: bool,
    /// The last number in the previous segment, if that was compacted: a segment that begins no later is part of it.
    compacted_last: Option<u64>,
    /// The merged segments that still exist.
    leftovers: Vec<Segment>,
}

impl<'a> Restorer<'a> {
    fn new(segments: Vec<Segment>, boot_id: &'a Arc<str>, found: LineSink<'a>) -> Self {
        let restored = RestoredHistory { segments, ..RestoredHistory::default() };
        let (time, leftovers) = Default::default();
        Self { restored, boot_id, sink: found, time, is_compacted: false, compacted_last: None, leftovers }
    }

    fn restore_segment(&mut self, segment: &Segment, begin: u64) -> io::Result<()> {
        if self.compacted_last.is_some_and(|until| segment.first <= until) {
            self.leftovers.push(segment.clone());
            return Ok(());
        }
        let mut file = File::open(&segment.path)?;
        let mut header = [0; HEADER.len()];
        self.note_number(segment.first.saturating_sub(1));
        if segment.bytes == 0 {
            return Ok(());
        }
        if segment.bytes < HEADER.len() as u64 {
            self.handle_bad_tail(segment, segment.bytes);
            return Ok(());
        }
        file.read_exact(&mut header)?;
        self.is_compacted = header == *COMPACTED;
        if header != *HEADER && !self.is_compacted {
            self.add_unreadable_gap(segment, GapCause::OtherVersion);
            return Ok(());
        }
        let begin = begin.max(HEADER.len() as u64);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(begin))?;
        file.take(READ_BYTES_MAX).read_to_end(&mut bytes)?;
        self.restore_records(segment, begin, &bytes);
        self.compacted_last = self.is_compacted.then_some(self.restored.seq);
        Ok(())
    }

    fn restore_records(&mut self, segment: &Segment, begin: u64, bytes: &[u8]) {
        let mut bad = 0;
        for (place, piece) in pieces(bytes).enumerate() {
            match piece {
                // Reading may begin in the middle of a segment, so the first bytes may be the end of a record.
                Piece::Bad(_) if place == 0 && begin > HEADER.len() as u64 => {}
                Piece::Bad(bytes) => bad += bytes as u64,
                Piece::Record(json) => {
                    match Line::parse(json).and_then(|line| Some((self.next_number(&line)?, line))) {
                        Some((seq, line)) => self.add_record(seq, line, std::mem::take(&mut bad), segment),
                        None => bad += json.len() as u64,
                    }
                }
            }
        }
        if bad > 0 {
            self.handle_bad_tail(segment, bad);
        }
    }

    /// Records that all numbers up to this one were used.
    fn note_number(&mut self, seq: u64) {
        self.restored.seq = self.restored.seq.max(seq);
    }

    /// The number of a line, if the line can follow the previous ones. A gap may have the number before the one in
    /// its file's name, because a file that begins with a gap may be named after the record behind it.
    fn next_number(&self, line: &Line) -> Option<u64> {
        let least = self.restored.seq + u64::from(line.service.is_some());
        line.seq.filter(|seq| (least..NUMBER_MAX).contains(seq))
    }

    /// Adds a record, and before it a gap if bytes before it are bad or numbers are missing.
    fn add_record(&mut self, seq: u64, line: Line, bad: u64, segment: &Segment) {
        let missing = seq.saturating_sub(self.restored.seq + 1);
        let is_gap = line.service.is_none();
        let first = self.time == Millis(0);
        self.time = line.time;
        if bad > 0 || (missing > 0 && !is_gap && !first && !self.is_compacted) {
            let records = Some(missing).filter(|missing| *missing > 0);
            let gap = Gap {
                records,
                bytes: Some(bad).filter(|bad| *bad > 0),
                ..segment_gap(GapCause::Damaged, segment)
            };
            self.push_gap(seq.saturating_sub(1), gap);
        }
        self.note_number(seq);
        (self.sink)(Arc::new(line));
    }

    /// Bad bytes at the end are a torn tail in the newest segment, and damage in all others.
    fn handle_bad_tail(&mut self, segment: &Segment, bad: u64) {
        if self.is_newest(segment) {
            self.restored.torn_gap =
                Some(Gap { bytes: Some(bad), ..segment_gap(GapCause::TornTail, segment) });
        } else {
            let seq = self.restored.seq;
            self.push_gap(seq, Gap { bytes: Some(bad), ..segment_gap(GapCause::Damaged, segment) });
        }
    }

    fn is_newest(&self, segment: &Segment) -> bool {
        self.restored.segments.last().is_some_and(|newest| newest.path == segment.path)
    }

    /// Turns a whole segment into a gap: it is not read, and its numbers stay used. Its file is removed by a later
    /// compaction.
    fn add_unreadable_gap(&mut self, segment: &Segment, cause: GapCause) {
        let written = std::fs::metadata(&segment.path).and_then(|found| found.modified());
        self.time = self.time.max(written.map(holdfast_host::clock::millis).unwrap_or_default());
        let begin_of_next =
            self.restored.segments.iter().map(|it| it.first).find(|first| *first > segment.first);
        let most = segment.first.saturating_add(segment.bytes / RECORD_BYTES_MIN);
        let most = begin_of_next.map_or(most, |next| most.min(next.saturating_sub(1)));
        self.note_number(most);
        self.restored.is_spoilt = self.is_newest(segment);
        let bytes = Some(segment.bytes);
        self.push_gap(most, Gap { bytes, ..segment_gap(cause, segment) });
    }

    fn push_gap(&mut self, seq: u64, gap: Gap) {
        self.restored.gaps += 1;
        let record = gap_record(seq, self.time, 0, self.boot_id, gap);
        if let Ok(line) = Line::new(&record) {
            (self.sink)(Arc::new(line));
        }
    }
}

impl RestoredHistory {
    /// Adds a gap for numbers that were used after the last record. The gap itself takes the last of them.
    fn add_missing_gap(&mut self, mark: Option<NumberMark>) {
        let Some(mark) = mark else { return };
        let Some(last) = mark.below.checked_sub(1).filter(|last| *last > self.seq) else { return };
        let missing = Some(last - self.seq);
        let cause = if mark.is_exact { GapCause::NotWritten } else { GapCause::Killed };
        let gap = self.torn_gap.get_or_insert(Gap::new(cause));
        (gap.records, gap.at_most) = if mark.is_exact { (missing, None) } else { (None, missing) };
        self.seq = last - 1;
    }

    /// Truncates a torn tail, because new records must follow whole ones.
    fn truncate_torn_tail(&mut self) {
        let Some(newest) = self.segments.last_mut() else { return };
        if let Some(bad) = self.torn_gap.as_ref().and_then(|gap| gap.bytes) {
            let whole = newest.bytes.saturating_sub(bad);
            let cut = OpenOptions::new().write(true).open(&newest.path).and_then(|it| it.set_len(whole));
            match cut {
                Ok(()) => newest.bytes = whole,
                Err(error) => {
                    self.is_spoilt = true;
                    tracing::warn!(%error, "cannot truncate the torn end of the history");
                }
            }
        }
    }
}

fn segment_gap(cause: GapCause, segment: &Segment) -> Gap {
    let file = segment.path.file_name().map(|name| name.to_string_lossy().into_owned());
    Gap { file, ..Gap::new(cause) }
}

pub(super) fn gap_record(seq: u64, time: Millis, monotonic_us: u64, boot_id: &Arc<str>, gap: Gap) -> Record {
    Record {
        seq: Some(seq),
        time,
        monotonic_us,
        boot_id: Arc::clone(boot_id),
        kind: Kind::Gap,
        service: None,
        source: None,
        rule: GAP.into(),
        triggers: Vec::new(),
        suppressed: 0,
        transitions: Vec::new(),
        transitions_omitted: 0,
        result: None,
        gap: Some(gap),
    }
}
