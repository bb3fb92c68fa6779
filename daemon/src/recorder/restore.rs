//! What a former process recorded, read back at the start.
//!
//! Invariant: reading is bounded in time and never fails: what is whole is read, what is not becomes a gap, and a tail that
//! was torn is cut off so that new records follow whole ones. No number is given out twice while its record is on disk.
//! Deliberately absent: reading more than the end; memory could not keep it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use super::files::{self, Part};
use super::frames::{HEADER, Piece, pieces};
use super::record::{Gap, GapCause, Kind, Record};
use super::ring::Line;
use super::told::GAP;
use crate::moment::Millis;

/// What is read, from the end: a quarter of all, in some 100 ms.
const TAIL_BYTES_MAX: u64 = 16 << 20;

/// The shortest record; so many bytes of a file that cannot be read hold at most so many numbers.
const RECORD_BYTES_MIN: u64 = 128;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Restored {
    /// Records and gaps, oldest first.
    pub(super) lines: Vec<Arc<Line>>,
    /// How many of those are gaps that were found just now.
    pub(super) gaps: u64,
    /// Gaps that belong behind all records, and are to be written down.
    pub(super) torn: Option<Gap>,
    /// The highest number that may have been given out.
    pub(super) seq: u64,
    /// The parts, for whoever appends.
    pub(super) parts: Vec<Part>,
    /// Nothing may follow in the newest one.
    pub(super) is_spoilt: bool,
}

/// Reads the end of what is in a folder.
pub(super) fn restore(folder: &Path, boot_id: &Arc<str>) -> io::Result<Restored> {
    let mut restored = Restored { parts: files::parts(folder)?, ..Restored::default() };
    let parts = restored.parts.clone();
    let mut room = TAIL_BYTES_MAX;
    let mut begins = Vec::new();
    for part in parts.iter().rev() {
        let taken = part.bytes.min(room);
        room -= taken;
        begins.push(part.bytes - taken);
    }
    let mut reading = Reading { restored: &mut restored, boot_id, time: Millis(0) };
    for (part, begin) in parts.iter().zip(begins.into_iter().rev()) {
        if begin == part.bytes && part.bytes > 0 {
            reading.restored.seq = reading.restored.seq.max(part.first);
        } else if let Err(error) = reading.part(part, begin) {
            tracing::warn!(%error, file = %part.path.display(), "a part of the history cannot be read");
            reading.unreadable(part, GapCause::Damaged);
        }
    }
    restored.cut_torn_tail();
    Ok(restored)
}

struct Reading<'a> {
    restored: &'a mut Restored,
    boot_id: &'a Arc<str>,
    /// Of the record before.
    time: Millis,
}

impl Reading<'_> {
    fn part(&mut self, part: &Part, begin: u64) -> io::Result<()> {
        let mut file = File::open(&part.path)?;
        let mut header = [0; HEADER.len()];
        if part.bytes == 0 {
            return Ok(());
        }
        if part.bytes < HEADER.len() as u64 {
            self.end_in_bad_bytes(part, part.bytes);
            return Ok(());
        }
        file.read_exact(&mut header)?;
        if header != *HEADER {
            self.unreadable(part, GapCause::OtherVersion);
            return Ok(());
        }
        let begin = begin.max(HEADER.len() as u64);
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(begin))?;
        file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
        self.restored.seq = self.restored.seq.max(part.first.saturating_sub(1));
        let mut bad = 0;
        for (place, piece) in pieces(&bytes).enumerate() {
            match piece {
                // Reading begins anywhere, so the first bytes may be the end of a record.
                Piece::Bad(_) if place == 0 && begin > HEADER.len() as u64 => {}
                Piece::Bad(bytes) => bad += bytes as u64,
                Piece::Record(json) => match Line::parse(json) {
                    Some(line) => self.take(line, std::mem::take(&mut bad), part),
                    None => bad += json.len() as u64,
                },
            }
        }
        if bad > 0 {
            self.end_in_bad_bytes(part, bad);
        }
        Ok(())
    }

    /// A record, with the bad bytes before it.
    fn take(&mut self, line: Line, bad: u64, part: &Part) {
        let Some(seq) = line.seq else { return };
        let missing = seq.saturating_sub(self.restored.seq + 1);
        let is_gap = line.service.is_none();
        let first = self.time == Millis(0);
        self.time = line.time;
        if bad > 0 || (missing > 0 && !is_gap && !first) {
            let records = Some(missing).filter(|missing| *missing > 0);
            let gap =
                Gap { records, bytes: Some(bad).filter(|bad| *bad > 0), ..gap(GapCause::Damaged, part) };
            self.push_gap(seq.saturating_sub(1), gap);
        }
        self.restored.seq = self.restored.seq.max(seq);
        self.restored.lines.push(Arc::new(line));
    }

    /// In the newest part that is a torn tail, in all others damage.
    fn end_in_bad_bytes(&mut self, part: &Part, bad: u64) {
        if self.is_newest(part) {
            self.restored.torn = Some(Gap { bytes: Some(bad), ..gap(GapCause::TornTail, part) });
        } else {
            let seq = self.restored.seq;
            self.push_gap(seq, Gap { bytes: Some(bad), ..gap(GapCause::Damaged, part) });
        }
    }

    fn is_newest(&self, part: &Part) -> bool {
        self.restored.parts.last().is_some_and(|newest| newest.path == part.path)
    }

    /// Nothing of it is read; its numbers stay taken. It goes when its turn comes, as the oldest.
    fn unreadable(&mut self, part: &Part, cause: GapCause) {
        let written = std::fs::metadata(&part.path).and_then(|found| found.modified());
        self.time = self.time.max(written.map(Millis::of).unwrap_or_default());
        let most = part.first.saturating_add(part.bytes / RECORD_BYTES_MIN);
        self.restored.seq = self.restored.seq.max(most);
        self.restored.is_spoilt = self.is_newest(part);
        let bytes = Some(part.bytes);
        self.push_gap(most, Gap { bytes, ..gap(cause, part) });
    }

    fn push_gap(&mut self, seq: u64, gap: Gap) {
        self.restored.gaps += 1;
        let record = gap_record(seq, self.time, 0, self.boot_id, gap);
        self.restored.lines.extend(Line::new(&record).map(Arc::new));
    }
}

impl Restored {
    /// New records must follow whole ones.
    fn cut_torn_tail(&mut self) {
        let Some(newest) = self.parts.last_mut() else { return };
        if let Some(bad) = self.torn.as_ref().and_then(|gap| gap.bytes) {
            let whole = newest.bytes.saturating_sub(bad);
            let cut = OpenOptions::new().write(true).open(&newest.path).and_then(|it| it.set_len(whole));
            match cut {
                Ok(()) => newest.bytes = whole,
                Err(error) => {
                    self.is_spoilt = true;
                    tracing::warn!(%error, "the torn end of the history cannot be cut off");
                }
            }
        }
    }
}

fn gap(cause: GapCause, part: &Part) -> Gap {
    let file = part.path.file_name().map(|name| name.to_string_lossy().into_owned());
    Gap { cause, records: None, bytes: None, file }
}

/// The record of a gap.
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
