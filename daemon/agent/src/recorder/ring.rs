//! The latest records of every service, in memory, even of deleted services.
//!
//! Invariant: all rings together stay below a number of bytes. At the limit, a changing service drops its own oldest
//! record, so a service that flaps never takes another's last record. A service without an older record evicts one in
//! the largest namespace: of a deleted service, or else of the one quiet for longest. So a tenant's churn costs its
//! own records, whether its services stay or go. Dropped records are counted.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use holdfast_status::record::{Record, Word};
use holdfast_status::rfc3339::Millis;

/// The most records of one service: those of some hours, for a service that is rolled out often.
const RECORDS_PER_SERVICE_MAX: usize = 64;

/// The memory of all rings. 10,000 services can have some four records each; most have fewer, and the file has more.
pub(super) const BYTES_MAX: usize = 32 << 20;

pub(super) const SERVICE_GONE: &str = "service-gone";

/// The most gaps kept; gaps are rare, and each may concern any service.
const GAPS_MAX: usize = 64;

/// The memory of a line besides its text: itself, its entries in two maps, and the name.
const LINE_BYTES: usize = 320;

/// One record as on disk and in responses, with its search keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// The record's number; `None` if the record is not kept.
    pub seq: Option<u64>,
    /// When its batch began.
    pub time: Millis,
    /// The service that changed; `None` for a gap.
    pub service: Option<ObjectName>,
    /// The rule that decided, and the reasons that clients got.
    pub reasons: Box<[Word]>,
    /// Whether the record is of its service's deletion.
    pub is_gone: bool,
    /// The record, one JSON object without a line end.
    pub json: Box<str>,
}

impl Line {
    /// Makes the line of a record. Every known record serializes to JSON.
    pub fn new(record: &Record) -> serde_json::Result<Self> {
        serde_json::to_string(record).map(|json| Self::from_record(record, json.into()))
    }

    /// Parses a record's line from the file; `None` if the text is no record.
    pub fn parse(json: &str) -> Option<Self> {
        let record: Record = serde_json::from_str(json).ok()?;
        Some(Self::from_record(&record, json.into()))
    }

    fn from_record(record: &Record, json: Box<str>) -> Self {
        let service = record.service.as_deref().and_then(parse_name);
        let is_gone = record.rule == SERVICE_GONE;
        Self { seq: record.seq, time: record.time, service, reasons: record.reasons(), is_gone, json }
    }

    pub fn record(&self) -> Option<Record> {
        serde_json::from_str(&self.json).ok()
    }

    pub(super) fn bytes(&self) -> usize {
        let reasons = self.reasons.iter().map(|reason| size_of::<Word>() + reason.len());
        LINE_BYTES + reasons.sum::<usize>() + self.json.len()
    }
}

fn parse_name(service: &str) -> Option<ObjectName> {
    let (namespace, name) = service.split_once('/')?;
    ObjectName::new(namespace, name).ok()
}

/// The latest records of every service.
#[derive(Debug)]
pub(super) struct Rings {
    rings: BTreeMap<ObjectName, VecDeque<Arc<Line>>>,
    namespaces: BTreeMap<String, NamespaceRecords>,
    gaps: VecDeque<Arc<Line>>,
    bytes: usize,
    bytes_max: usize,
    dropped: u64,
}

#[derive(Debug, Default)]
struct NamespaceRecords {
    bytes: usize,
    /// Its services, by the number of each one's latest record.
    quiet: BTreeMap<u64, ObjectName>,
    /// The deleted ones of these services.
    gone: BTreeMap<u64, ObjectName>,
}

impl NamespaceRecords {
    fn forget(&mut self, seq: u64) {
        self.quiet.remove(&seq);
        self.gone.remove(&seq);
    }

    /// The service to evict from: the one quiet for longest, among the deleted ones if there are any. It is never the
    /// service that has just changed.
    fn eviction_candidate(&self, newest: &ObjectName) -> Option<&ObjectName> {
        self.gone.values().chain(self.quiet.values()).find(|name| *name != newest)
    }
}

impl Rings {
    pub(super) fn new(bytes_max: usize) -> Self {
        let (rings, namespaces, gaps) = Default::default();
        Self { rings, namespaces, gaps, bytes: 0, bytes_max, dropped: 0 }
    }

    /// Adds a line. Its number must exceed all others.
    pub(super) fn push(&mut self, line: Arc<Line>) {
        let Some(seq) = line.seq else { return };
        let Some(service) = line.service.clone() else { return self.push_gap(line) };
        let space = self.namespaces.entry(service.namespace().to_owned()).or_default();
        self.bytes += line.bytes();
        space.bytes += line.bytes();
        let ring = self.rings.entry(service.clone()).or_default();
        if let Some(last) = ring.back().and_then(|last| last.seq) {
            space.forget(last);
        }
        space.quiet.insert(seq, service.clone());
        if line.is_gone {
            space.gone.insert(seq, service.clone());
        }
        ring.push_back(line);
        if ring.len() > RECORDS_PER_SERVICE_MAX {
            self.drop_oldest(&service);
        }
        while self.bytes > self.bytes_max && self.evict_one(&service) {}
    }

    fn push_gap(&mut self, line: Arc<Line>) {
        self.gaps.push_back(line);
        if self.gaps.len() > GAPS_MAX {
            self.gaps.pop_front();
        }
    }

    /// Drops one record. `false`: only the newest is left.
    fn evict_one(&mut self, newest: &ObjectName) -> bool {
        let own = self.rings.get(newest).filter(|ring| ring.len() > 1).map(|_| newest.clone());
        let Some(name) = own.or_else(|| self.eviction_candidate(newest)) else { return false };
        self.drop_oldest(&name);
        self.dropped += 1;
        true
    }

    /// The service to evict from, in the largest namespace that has another service than `newest`.
    fn eviction_candidate(&self, newest: &ObjectName) -> Option<ObjectName> {
        let all = self.namespaces.values();
        let candidates = all.filter_map(|space| Some((space.bytes, space.eviction_candidate(newest)?)));
        candidates.max_by_key(|(bytes, _)| *bytes).map(|(_, name)| name.clone())
    }

    fn drop_oldest(&mut self, service: &ObjectName) {
        let Some(ring) = self.rings.get_mut(service) else { return };
        let (Some(gone), Some(space)) = (ring.pop_front(), self.namespaces.get_mut(service.namespace()))
        else {
            return;
        };
        let is_last = ring.is_empty();
        self.bytes = self.bytes.saturating_sub(gone.bytes());
        space.bytes = space.bytes.saturating_sub(gone.bytes());
        if let (true, Some(seq)) = (is_last, gone.seq) {
            self.rings.remove(service);
            space.forget(seq);
        }
        if space.quiet.is_empty() {
            self.namespaces.remove(service.namespace());
        }
    }

    /// The lines of one service and all gaps, or all lines; by number.
    pub(super) fn lines(&self, service: Option<&ObjectName>) -> Vec<Arc<Line>> {
        let mut lines: Vec<Arc<Line>> = match service {
            Some(service) => self.rings.get(service).into_iter().flatten().cloned().collect(),
            None => self.rings.values().flatten().cloned().collect(),
        };
        lines.extend(self.gaps.iter().cloned());
        lines.sort_by_key(|line| line.seq);
        lines
    }

    pub(super) fn last(&self, service: &ObjectName) -> Option<&Line> {
        self.rings.get(service)?.back().map(Arc::as_ref)
    }

    pub(super) fn fill(&self) -> Fill {
        let records = self.rings.values().map(VecDeque::len).sum();
        Fill { services: self.rings.len(), records, bytes: self.bytes, dropped: self.dropped }
    }
}

/// The memory in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill {
    pub services: usize,
    pub records: usize,
    /// Bytes, by the size of [`Line`]s.
    pub bytes: usize,
    /// Records evicted since the start.
    pub dropped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(seq: u64, service: Option<&str>) -> Arc<Line> {
        let service = service.map(|name| ObjectName::new("default", name).unwrap());
        let reasons = Box::default();
        let json = "x".repeat(80).into();
        Arc::new(Line { seq: Some(seq), time: Millis(0), service, reasons, is_gone: false, json })
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
        assert_eq!(rings.fill(), Fill { services: 1, records: 64, bytes: 64 * 400, dropped: 0 });
    }

    #[test]
    fn a_flapping_service_takes_no_others_record() {
        let mut rings = Rings::new(10 * 400);
        rings.push(line(1, Some("quiet")));
        (2..=500).for_each(|seq| rings.push(line(seq, Some("flapping"))));
        check(&rings, "quiet", &[1]);
        check(&rings, "flapping", &[492, 493, 494, 495, 496, 497, 498, 499, 500]);
    }

    #[test]
    fn a_new_service_evicts_from_the_quietest() {
        let mut rings = Rings::new(3 * 400);
        (1..=3).for_each(|seq| rings.push(line(seq, Some(&format!("s{seq}")))));
        rings.push(line(4, Some("s1")));
        check(&rings, "s1", &[4]);
        rings.push(line(5, Some("new")));
        check(&rings, "s2", &[]);
        check(&rings, "s3", &[3]);
        check(&rings, "s1", &[4]);
        check(&rings, "new", &[5]);
        assert_eq!(rings.fill(), Fill { services: 3, records: 3, bytes: 3 * 400, dropped: 2 });
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
        let quiet = rings.namespaces.values().map(|space| space.quiet.len());
        assert_eq!(quiet.sum::<usize>(), fill.services);
    }

    #[test]
    fn gaps_appear_among_every_services_records() {
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
