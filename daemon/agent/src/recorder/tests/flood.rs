//! Floods of changes: memory stays bounded, and lost changes are counted.

use futures_util::FutureExt as _;
use holdfast_core::snapshot::Counters;
use holdfast_status::record::GapCause;

use super::*;

/// Each of 10,000 services loses its backends, gets them back, and loses them again.
#[test]
fn ten_thousand_services_that_flap_take_bounded_memory() {
    const SERVICES: u16 = 10_000;
    let mut rig = Rig::new();
    let mut told = services(&mut rig, SERVICES);
    for round in 0..3 {
        let endpoints: &[&str] = if round % 2 == 0 { &[] } else { &["10.1.1.1"] };
        let events = (0..SERVICES).map(|number| {
            slice(&format!("web-{number}"), endpoints, round % 4 == 0, meta("7", "kube-controller-manager"))
        });
        told.extend(rig.batch(events.collect::<Vec<_>>()));
    }
    let changes = told.len();
    let history = recorded(told, None);
    let fill = history.fill();
    assert_eq!(history.status().records, changes as u64);
    assert!(fill.bytes <= ring::BYTES_MAX, "{fill:?}");
    assert_eq!(fill.services, usize::from(SERVICES), "no service lost its last record: {fill:?}");
}

/// The engine's queue is full: the engine counts the changes that did not fit, and the recorder makes them a gap.
#[test]
fn changes_that_do_not_fit_the_queue_become_a_gap() {
    let told = services(&mut Rig::new(), 8);
    let (changes, waiting) = mpsc::channel(4);
    let (snapshots_in, snapshots) = watch::channel(Arc::<Snapshot>::default());
    let (recorder, history) = Recorder::new(waiting, snapshots, None);
    let dropped = told.into_iter().filter_map(|it| changes.try_send(it).err()).count() as u64;
    assert_eq!(dropped, 4);
    snapshots_in.send_modify(|snapshot| {
        let counters = Counters { changes_dropped: dropped, ..Counters::default() };
        Arc::make_mut(snapshot).counters = counters;
    });
    drop(changes);
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(recorder.run());
    let records = all(&history);
    let gap = records.last().unwrap().gap.as_ref().unwrap();
    assert_eq!((records.len(), gap.cause, gap.records), (5, GapCause::QueueFull, Some(4)));
    assert_eq!(
        history.status(),
        RecordingStatus { seq: 5, records: 4, gaps: 1, lost: 4, ..RecordingStatus::default() }
    );
}

/// A watcher that does not read loses lines; the recorder does not wait for it.
#[test]
fn a_watcher_that_does_not_read_delays_nothing() {
    let told = services(&mut Rig::new(), 2_000);
    let (changes, waiting) = mpsc::channel(told.len());
    told.into_iter().for_each(|it| changes.try_send(it).unwrap());
    drop(changes);
    let (recorder, history) = Recorder::new(waiting, watch::channel(Arc::default()).1, None);
    let mut watched = history.watch(None);
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(recorder.run());
    assert_eq!(history.status().records, 2_000);
    let mut told = 0;
    let last = loop {
        match watched.next().now_or_never().unwrap() {
            WatchEvent::Line(_) => told += 1,
            other => break other,
        }
    };
    assert_eq!(last, WatchEvent::Late);
    assert!((1..2_000).contains(&told), "{told}");
}

/// A line, parsed as if read back from a file.
fn line(seq: u64, service: &str, rule: &str) -> Arc<Line> {
    let time = "2026-01-08T11:11:55.000Z";
    let json = format!(
        r#"{{"seq":{seq},"time":"{time}","monotonic_us":0,"boot_id":"b","kind":"change","service":"{service}","rule":"{rule}"}}"#
    );
    Arc::new(Line::parse(&json).unwrap())
}

fn kept_of(rings: &ring::Rings, namespace: &str) -> usize {
    let is_theirs = |line: &Arc<Line>| line.service.as_ref().is_some_and(|it| it.namespace() == namespace);
    rings.lines(None).into_iter().filter(is_theirs).count()
}

/// The namespace with most records loses some, whether its services stay or come and go, and whether services of
/// other namespaces stay or are gone.
#[test]
fn a_namespaces_churn_takes_no_others_records() {
    for last in ["service-gone", "no-effect"] {
        for theirs in ["usable-endpoints", "service-gone"] {
            let (mut rings, mut seq) = (ring::Rings::new(1 << 20), 0);
            let mut push = |rings: &mut ring::Rings, service: &str, rule| {
                seq += 1;
                rings.push(line(seq, service, rule));
            };
            (0..20).for_each(|number| push(&mut rings, &format!("prod/web-{number}"), theirs));
            for number in 0..15_000 {
                ["usable-endpoints", last]
                    .into_iter()
                    .for_each(|rule| push(&mut rings, &format!("noisy/n-{number}"), rule));
            }
            assert_eq!(kept_of(&rings, "prod"), 20, "{theirs}, others {last}");
            assert!(rings.fill().bytes <= 1 << 20 && kept_of(&rings, "noisy") > 500, "{:?}", rings.fill());
        }
    }
}
