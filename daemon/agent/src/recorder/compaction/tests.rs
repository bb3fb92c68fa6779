//! Which records are dropped, and how the gap describes them.

use super::*;

/// A record of a service as read back.
fn line(seq: u64, service: &str, rule: &str) -> Arc<Line> {
    let json = format!(
        r#"{{"seq":{seq},"time":"2026-01-08T11:11:55.000Z","monotonic_us":0,"boot_id":"b","kind":"change","service":"{service}","rule":"{rule}"}}"#
    );
    Arc::new(Line::parse(&json).unwrap())
}

/// The bytes of this many such records.
fn room(lines: usize) -> usize {
    lines * frames::frame_bytes(&line(1_000, "prod/web-0", "usable-endpoints").json)
}

/// The number of a gap, how many records it replaces, and how many of those each namespace had.
type ExpectedGap<'a> = (u64, u64, &'a [(&'a str, u64)]);

/// Checks which records stay, by number, and the gap among them.
#[track_caller]
fn check(
    lines: Vec<Arc<Line>>,
    room: usize,
    expected: &[u64],
    gap: Option<ExpectedGap<'_>>,
) -> Vec<Arc<Line>> {
    let kept = select_lines(lines, room, &"b".into());
    let (gaps, records): (Vec<_>, Vec<_>) = kept.iter().partition(|line| line.service.is_none());
    let seqs: Vec<_> = records.iter().filter_map(|line| line.seq).collect();
    assert_eq!(seqs, expected);
    let told: Vec<_> = gaps.iter().map(|line| (line.seq.unwrap(), former_gap(line).unwrap())).collect();
    let found = told.first().map(|(seq, gap)| {
        let shares = gap.namespaces.iter().map(|it| (it.namespace.as_str(), it.records));
        (*seq, gap.records.unwrap(), shares.collect::<Vec<_>>())
    });
    assert_eq!(found, gap.map(|(seq, records, shares)| (seq, records, shares.to_vec())));
    assert!(told.len() <= 1, "one gap is enough: {told:?}");
    assert!(kept.is_sorted_by_key(|line| line.seq));
    kept
}

#[test]
fn a_namespace_below_its_share_loses_nothing_whatever_others_write() {
    for rule in ["usable-endpoints", "service-gone"] {
        let mut lines =
            vec![line(1_000, "prod/web-0", "service-gone"), line(1_001, "prod/web-1", "no-effect")];
        lines.extend((2..100).map(|at| line(1_000 + at, &format!("noisy/n-{}", at % 10), rule)));
        let kept: Vec<u64> = [1_000, 1_001].into_iter().chain(1_092..1_100).collect();
        check(lines, room(10), &kept, Some((1_091, 90, &[("noisy", 90)])));
    }
}

#[test]
fn records_of_deleted_services_are_dropped_first() {
    let lines = vec![
        line(1_000, "noisy/stay", "usable-endpoints"),
        line(1_001, "noisy/gone", "usable-endpoints"),
        line(1_002, "noisy/back", "service-gone"),
        line(1_003, "noisy/gone", "service-gone"),
        line(1_004, "noisy/back", "usable-endpoints"),
    ];
    check(lines, room(3), &[1_000, 1_002, 1_004], Some((1_003, 2, &[("noisy", 2)])));
}

#[test]
fn one_gap_covers_earlier_and_present_compactions() {
    let lines =
        (0..10).map(|at| line(1_000 + at, ["prod/web-0", "noisy/n"][usize::from(at > 0)], "no-effect"));
    let kept = check(
        lines.collect(),
        room(6),
        &[1_000, 1_005, 1_006, 1_007, 1_008, 1_009],
        Some((1_004, 4, &[("noisy", 4)])),
    );
    let later = (10..13).map(|at| line(1_000 + at, "noisy/n", "no-effect"));
    let more = kept.into_iter().chain(later).collect();
    check(more, room(6), &[1_000, 1_008, 1_009, 1_010, 1_011, 1_012], Some((1_007, 7, &[("noisy", 7)])));
}

#[test]
fn without_older_records_there_is_no_gap_and_the_history_begins_later() {
    let lines = (0..10).map(|at| line(1_000 + at, "noisy/n", "no-effect"));
    check(lines.collect(), room(4), &[1_006, 1_007, 1_008, 1_009], None);
}

#[test]
fn records_that_fit_stay_unchanged() {
    let lines = (0..3).map(|at| line(1_000 + at, "noisy/n", "service-gone"));
    check(lines.collect(), room(4), &[1_000, 1_001, 1_002], None);
}
