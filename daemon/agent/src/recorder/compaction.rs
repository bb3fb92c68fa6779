//! Compacts full files: drops records of the namespace that has most, first those of its deleted services.
//!
//! Invariant: a namespace with less than an equal share loses nothing, whatever others write. One rename merges two
//! segments, so an interruption loses no other record: those of the second segment may exist in both, and the next
//! start removes that segment. The dropped records become a gap that names their namespaces, unless no older record
//! is left. Each pass reads two segments and writes one, however many records come.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use holdfast_status::record::{Gap, GapCause, NamespaceShare};
use holdfast_status::rfc3339::Millis;

use super::frames::{self, COMPACTED};
use super::restore;
use super::ring::Line;
use super::segment::{FILE_MODE, Segment};

/// The name of the unfinished file; the next write replaces a leftover one.
const UNFINISHED: &str = "thinned.new";

/// How many bytes are collected before a write.
const WRITE_BYTES: usize = 1 << 20;

const GAP_BYTES: usize = 1 << 10;

/// The most namespaces that a gap names.
const NAMED_MAX: usize = 5;

/// Merges the two oldest segments into the place of the first. `None`: there are not two besides the one being
/// appended to.
pub(super) fn compact(segments: &[Segment], bytes_max: u64) -> io::Result<Option<Segment>> {
    let ([first, _, _, ..], Some(oldest)) = (segments, segments.get(..2)) else { return Ok(None) };
    let boot_id = super::boot_id();
    let lines = restore::read_segments(segments, oldest, &boot_id)?;
    let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
    let kept = select_lines(lines, bytes_max.saturating_sub(COMPACTED.len() + GAP_BYTES), &boot_id);
    let bytes = write(&first.path, &kept)?;
    Ok(Some(Segment { bytes, ..first.clone() }))
}

/// Whether a file was compacted.
pub(super) fn is_compacted(path: &Path) -> io::Result<bool> {
    let mut header = [0; COMPACTED.len()];
    File::open(path)?.read_exact(&mut header)?;
    Ok(header == *COMPACTED)
}

/// Writes the file as a whole or not at all.
fn write(path: &Path, lines: &[Arc<Line>]) -> io::Result<u64> {
    let unfinished = path.with_file_name(UNFINISHED);
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(&unfinished)?;
    let mut out = COMPACTED.to_vec();
    for line in lines {
        frames::put_record(&line.json, &mut out)?;
        if out.len() >= WRITE_BYTES {
            file.write_all(&out)?;
            out.clear();
        }
    }
    file.write_all(&out)?;
    file.sync_all()?;
    fs::rename(&unfinished, path)?;
    // The rename must be on disk before the second segment is removed.
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())?;
    Ok(file.metadata()?.len())
}

/// The records that stay, with one gap for the others.
fn select_lines(lines: Vec<Arc<Line>>, bytes_max: usize, boot_id: &Arc<str>) -> Vec<Arc<Line>> {
    let mut formers: BTreeMap<_, _> =
        lines.iter().enumerate().filter_map(|(at, line)| Some((at, former_gap(line)?))).collect();
    let mut spaces = NamespaceIndex::from_lines(&lines, &formers);
    let mut going = BTreeSet::new();
    while spaces.bytes > bytes_max
        && let Some(at) = spaces.evict_next()
    {
        going.insert(at);
    }
    let mut taken = RemovedRecords::default();
    let mut kept = Vec::new();
    for (at, line) in lines.into_iter().enumerate() {
        match formers.remove(&at) {
            Some(gap) => taken.add_gap(&line, gap),
            None if going.contains(&at) => taken.add_record(&line),
            None => kept.push(line),
        }
    }
    taken.insert_gap(&mut kept, boot_id);
    kept
}

/// The gap of a former compaction, if the line is one.
fn former_gap(line: &Line) -> Option<Gap> {
    line.service.is_none().then(|| line.record()?.gap).flatten().filter(|gap| gap.cause == GapCause::MadeRoom)
}

/// All records by namespace; gaps, which may concern any service, have an unnamed namespace.
#[derive(Debug, Default)]
struct NamespaceIndex<'a> {
    spaces: BTreeMap<&'a str, NamespaceLines>,
    sizes: BTreeSet<(usize, &'a str)>,
    costs: Vec<usize>,
    bytes: usize,
}

/// The records of one namespace, oldest first.
#[derive(Debug, Default)]
struct NamespaceLines {
    bytes: usize,
    gone: VecDeque<usize>,
    others: VecDeque<usize>,
}

impl<'a> NamespaceIndex<'a> {
    /// Leaves out `formers`, the gaps of former compactions: one new gap replaces them.
    fn from_lines(lines: &'a [Arc<Line>], formers: &BTreeMap<usize, Gap>) -> Self {
        let last: BTreeMap<_, _> = lines.iter().map(|line| (&line.service, line.is_gone)).collect();
        let mut all = Self::default();
        for (at, line) in lines.iter().enumerate() {
            let namespace = line.service.as_ref().map_or("", ObjectName::namespace);
            let space = all.spaces.entry(namespace).or_default();
            let cost = frames::frame_bytes(&line.json);
            all.costs.push(cost);
            if formers.contains_key(&at) {
                continue;
            }
            let is_gone = last.get(&line.service) == Some(&true);
            if is_gone { &mut space.gone } else { &mut space.others }.push_back(at);
            space.bytes += cost;
            all.bytes += cost;
        }
        all.sizes = all.spaces.iter().map(|(name, space)| (space.bytes, *name)).collect();
        all
    }

    /// Drops the next record of the namespace that has most, and returns the record's place.
    fn evict_next(&mut self) -> Option<usize> {
        let (_, name) = self.sizes.pop_last()?;
        let space = self.spaces.get_mut(name)?;
        let at = space.gone.pop_front().or_else(|| space.others.pop_front())?;
        let cost = self.costs.get(at).copied().unwrap_or_default();
        space.bytes = space.bytes.saturating_sub(cost);
        self.bytes = self.bytes.saturating_sub(cost);
        if space.bytes > 0 {
            self.sizes.insert((space.bytes, name));
        }
        Some(at)
    }
}

/// The records dropped now and by former compactions.
#[derive(Debug, Default)]
struct RemovedRecords {
    records: u64,
    namespaces: BTreeMap<String, u64>,
    /// Number and time of the last dropped record.
    last: Option<(u64, Millis)>,
}

impl RemovedRecords {
    fn add_record(&mut self, line: &Line) {
        let namespace = line.service.iter().map(|name| (name.namespace().to_owned(), 1));
        self.add(line, 1, namespace.collect());
    }

    fn add_gap(&mut self, line: &Line, gap: Gap) {
        let shares = gap.namespaces.into_iter().map(|it| (it.namespace, it.records));
        self.add(line, gap.records.unwrap_or_default(), shares.collect());
    }

    fn add(&mut self, line: &Line, records: u64, shares: Vec<(String, u64)>) {
        self.records = self.records.saturating_add(records);
        self.last = line.seq.map(|seq| (seq, line.time)).or(self.last);
        for (namespace, records) in shares {
            let all = self.namespaces.entry(namespace).or_default();
            *all = all.saturating_add(records);
        }
    }

    /// Inserts one gap in place of the last dropped record, if an older record stays.
    fn insert_gap(self, kept: &mut Vec<Arc<Line>>, boot_id: &Arc<str>) {
        let Some((seq, time)) = self.last else { return };
        let at = kept.partition_point(|line| line.seq < Some(seq));
        let mut namespaces: Vec<_> = self
            .namespaces
            .into_iter()
            .map(|(namespace, records)| NamespaceShare { namespace, records })
            .collect();
        namespaces.sort_by_key(|share| Reverse(share.records));
        namespaces.truncate(NAMED_MAX);
        let gap = Gap { records: Some(self.records), namespaces, ..Gap::new(GapCause::MadeRoom) };
        let line = Line::new(&restore::gap_record(seq, time, 0, boot_id, gap));
        if let Some(line) = line.ok().filter(|_| at > 0) {
            kept.insert(at, Arc::new(line));
        }
    }
}

#[cfg(test)]
mod tests;
