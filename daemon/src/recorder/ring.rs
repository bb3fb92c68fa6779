//! The latest records of every service, in memory, also of services that are gone.
//!
//! Invariant: all rings together stay below a number of bytes. When it is reached, the service that changes gives up
//! its own oldest record, so one that flaps never takes another's last one; only a service that has none gets room from
//! the one that has been quiet for longest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use holdfast_core::keys::ObjectName;

use super::record::{Record, Word};
use crate::rfc3339::Millis;

/// Records of one service: some hours of a service that is rolled out often.
const RECORDS_PER_SERVICE_MAX: usize = 64;

/// All of memory. 10,000 services have room for some four records each; most have fewer, and the file has more.
pub(super) const BYTES_MAX: usize = 32 << 20;

/// Gaps that are named; they are rare, and each may concern any service.
const GAPS_MAX: usize = 64;

/// What a line costs beside its text: itself, its place in two maps, and the name.
const LINE_BYTES: usize = 320;

/// One record as it is on disk and in answers, with what it is found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its number; absent: it is not kept.
    pub seq: Option<u64>,
    /// When its batch began.
    pub time: Millis,
    /// Whose; absent: a gap.
    pub service: Option<ObjectName>,
    /// What decided, and what clients were told.
    pub reasons: Box<[Word]>,
    /// The record, one JSON object without a line end.
    pub json: Box<str>,
}

impl Line {
    /// The line of a record. No record is known to be one that cannot be written.
    pub fn new(record: &Record) -> serde_json::Result<Self> {
        serde_json::to_string(record).map(|json| Self::of(record, json.into()))
    }

    /// The line that was written down. `None`: this is no record.
    pub fn parse(json: &str) -> Option<Self> {
        let record: Record = serde_json::from_str(json).ok()?;
        Some(Self::of(&record, json.into()))
    }

    fn of(record: &Record, json: Box<str>) -> Self {
        let service = record.service.as_deref().and_then(named);
        Self { seq: record.seq, time: record.time, service, reasons: record.reasons(), json }
    }

    /// The record that was written as JSON.
    pub fn record(&self) -> Option<Record> {
        serde_json::from_str(&self.json).ok()
    }

    pub(super) fn bytes(&self) -> usize {
        let reasons = self.reasons.iter().map(|reason| size_of::<Word>() + reason.len());
        LINE_BYTES + reasons.sum::<usize>() + self.json.len()
    }
}

fn named(service: &str) -> Option<ObjectName> {
    let (namespace, name) = service.split_once('/')?;
    ObjectName::new(namespace, name).ok()
}

/// The latest records of every service.
#[derive(Debug)]
pub(super) struct Rings {
    rings: BTreeMap<ObjectName, VecDeque<Arc<Line>>>,
    /// Who changed when last, by the number of its latest record.
    quiet: BTreeMap<u64, ObjectName>,
    gaps: VecDeque<Arc<Line>>,
    bytes: usize,
    bytes_max: usize,
}

impl Rings {
    pub(super) fn new(bytes_max: usize) -> Self {
        let (rings, quiet, gaps) = Default::default();
        Self { rings, quiet, gaps, bytes: 0, bytes_max }
    }

    /// Takes a line that has a number higher than all before.
    pub(super) fn push(&mut self, line: Arc<Line>) {
        let Some(seq) = line.seq else { return };
        let Some(service) = line.service.clone() else { return self.push_gap(line) };
        self.bytes += line.bytes();
        let ring = self.rings.entry(service.clone()).or_default();
        if let Some(last) = ring.back().and_then(|last| last.seq) {
            self.quiet.remove(&last);
        }
        ring.push_back(line);
        let too_long = ring.len() > RECORDS_PER_SERVICE_MAX;
        self.quiet.insert(seq, service.clone());
        if too_long {
            self.drop_oldest(&service);
        }
        while self.bytes > self.bytes_max && self.make_room(&service) {}
    }

    fn push_gap(&mut self, line: Arc<Line>) {
        self.gaps.push_back(line);
        if self.gaps.len() > GAPS_MAX {
            self.gaps.pop_front();
        }
    }

    /// Drops one record. `false`: only the newest is left.
    fn make_room(&mut self, newest: &ObjectName) -> bool {
        if self.rings.get(newest).is_some_and(|ring| ring.len() > 1) {
            self.drop_oldest(newest);
            return true;
        }
        let quietest = self.quiet.values().next().filter(|name| *name != newest).cloned();
        quietest.map(|name| self.drop_oldest(&name)).is_some()
    }

    fn drop_oldest(&mut self, service: &ObjectName) {
        let Some(ring) = self.rings.get_mut(service) else { return };
        if let Some(gone) = ring.pop_front() {
            self.bytes = self.bytes.saturating_sub(gone.bytes());
            if let (true, Some(seq)) = (ring.is_empty(), gone.seq) {
                self.rings.remove(service);
                self.quiet.remove(&seq);
            }
        }
    }

    /// The lines of one service and all gaps, or everything; in the order of their numbers.
    pub(super) fn lines(&self, service: Option<&ObjectName>) -> Vec<Arc<Line>> {
        let mut lines: Vec<Arc<Line>> = match service {
            Some(service) => self.rings.get(service).into_iter().flatten().cloned().collect(),
            None => self.rings.values().flatten().cloned().collect(),
        };
        lines.extend(self.gaps.iter().cloned());
        lines.sort_by_key(|line| line.seq);
        lines
    }

    pub(super) fn fill(&self) -> Fill {
        let records = self.rings.values().map(VecDeque::len).sum();
        Fill { services: self.rings.len(), records, bytes: self.bytes }
    }
}

/// How much memory is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    /// Services that have a record.
    pub services: usize,
    /// Records of all services.
    pub records: usize,
    /// Bytes, as [`Line`]s are counted.
    pub bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(seq: u64, service: Option<&str>) -> Arc<Line> {
        let service = service.map(|name| ObjectName::new("default", name).unwrap());
        let (reasons, json) = (Box::default(), "x".repeat(80).into());
        Arc::new(Line { seq: Some(seq), time: Millis(0), service, reasons, json })
    }

    #[track_caller]
    fn check(rings: &Rings, service: &str, expected: &[u64]) {
        let service = ObjectName::new("default", service).unwrap();
        let seqs: Vec<u64> = rings.lines(Some(&service)).iter().filter_map(|line| line.seq).collect();
        assert_eq!(seqs, expected);
    }

    #[test]
    fn a_service_keeps_its_latest_records() {
        let mut rings = Rings::new(BYTES_MAX);
        (1..=100).for_each(|seq| rings.push(line(seq, Some("a"))));
        let last: Vec<u64> = (37..=100).collect();
        check(&rings, "a", &last);
        assert_eq!(rings.fill(), Fill { services: 1, records: 64, bytes: 64 * 400 });
    }

    #[test]
    fn who_flaps_takes_nobody_elses_record() {
        let mut rings = Rings::new(10 * 400);
        rings.push(line(1, Some("quiet")));
        (2..=500).for_each(|seq| rings.push(line(seq, Some("flapping"))));
        check(&rings, "quiet", &[1]);
        check(&rings, "flapping", &[492, 493, 494, 495, 496, 497, 498, 499, 500]);
    }

    #[test]
    fn a_new_service_gets_room_from_the_quietest() {
        let mut rings = Rings::new(3 * 400);
        (1..=3).for_each(|seq| rings.push(line(seq, Some(&format!("s{seq}")))));
        rings.push(line(4, Some("s1")));
        check(&rings, "s1", &[4]);
        rings.push(line(5, Some("new")));
        check(&rings, "s2", &[]);
        check(&rings, "s3", &[3]);
        check(&rings, "s1", &[4]);
        check(&rings, "new", &[5]);
        assert_eq!(rings.fill(), Fill { services: 3, records: 3, bytes: 3 * 400 });
    }

    #[test]
    fn ten_thousand_services_that_flap_stay_below_the_bound() {
        let mut rings = Rings::new(1 << 20);
        for seq in 1..=100_000 {
            rings.push(line(seq, Some(&format!("s{}", seq % 10_000))));
            assert!(rings.bytes <= 1 << 20, "{seq}");
        }
        let fill = rings.fill();
        assert_eq!(fill.records, (1 << 20) / 400);
        assert_eq!(rings.quiet.len(), fill.services);
    }

    #[test]
    fn gaps_stand_between_everybodys_records() {
        let mut rings = Rings::new(BYTES_MAX);
        rings.push(line(1, Some("a")));
        rings.push(line(2, None));
        rings.push(line(3, Some("b")));
        check(&rings, "a", &[1, 2]);
        check(&rings, "b", &[2, 3]);
        (4..=100).for_each(|seq| rings.push(line(seq, None)));
        assert_eq!(rings.gaps.len(), GAPS_MAX);
    }
}
