//! What a restart finds, whatever happened to the files.

use std::fmt::from_fn;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_core::change::Cause;
use holdfast_fixtures::clock::wait_until;
use holdfast_status::record::{GapCause, Kind, Record};
use tempfile::TempDir;

use super::*;

/// A folder with the records of three services.
fn three() -> TempDir {
    let folder = TempDir::new().unwrap();
    let history = recorded(services(&mut Rig::new(), 3), Some(folder.path()));
    assert_eq!(seqs(&history), [1, 2, 3]);
    assert_eq!(history.status().file.bytes, fs::metadata(segment(&folder)).unwrap().len());
    folder
}

fn segments(folder: &TempDir) -> usize {
    fs::read_dir(folder.path()).unwrap().flatten().filter(|it| it.path().extension().is_some()).count()
}

fn segment(folder: &TempDir) -> PathBuf {
    folder.path().join("00000000000000000001.history")
}

/// Checks what the next process restores and records.
#[track_caller]
fn check_restart(folder: &TempDir, expected: &[(u64, Kind)]) -> Vec<Record> {
    let history = recorded(services(&mut Rig::new(), 1), Some(folder.path()));
    let records = all(&history);
    let found: Vec<_> = records.iter().filter_map(|it| Some((it.seq?, it.kind))).collect();
    assert_eq!(found, expected);
    // The newly added records are whole, whatever was found.
    let again = recorded(Vec::new(), Some(folder.path()));
    assert_eq!(seqs(&again).last(), seqs(&history).last());
    records
}

use Kind::{Change, Gap as Missing};

#[test]
fn a_restart_restores_records_and_continues_the_numbers() {
    let folder = three();
    let records = check_restart(&folder, &[(1, Change), (2, Change), (3, Change), (4, Change)]);
    assert_eq!(records[0].service.as_deref(), Some("default/web-0"));
    assert_eq!(recorded(Vec::new(), Some(folder.path())).status().gaps, 0);
}

#[test]
fn a_torn_tail_is_truncated_and_becomes_a_gap() {
    let folder = three();
    let file = OpenOptions::new().write(true).open(segment(&folder)).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 7).unwrap();
    let records = check_restart(&folder, &[(1, Change), (2, Change), (3, Missing), (4, Change)]);
    let gap = records[2].gap.as_ref().unwrap();
    assert_eq!((gap.cause, gap.file.as_deref()), (GapCause::TornTail, Some("00000000000000000001.history")));
    assert!(gap.bytes.unwrap() > 100);
    let known = seqs(&recorded(Vec::new(), Some(folder.path())));
    assert_eq!(known, [1, 2, 3, 4], "the gap itself is written");
}

#[test]
fn a_file_torn_in_its_first_bytes_is_restarted() {
    let folder = three();
    OpenOptions::new().write(true).open(segment(&folder)).unwrap().set_len(5).unwrap();
    check_restart(&folder, &[(3, Missing), (4, Change)]);
}

#[test]
fn a_flipped_bit_costs_one_record() {
    let folder = three();
    let mut bytes = fs::read(segment(&folder)).unwrap();
    let second = bytes.windows(7).position(|it| it == b"\"seq\":2").unwrap();
    bytes[second + 3] ^= 4;
    fs::write(segment(&folder), bytes).unwrap();
    let records = check_restart(&folder, &[(1, Change), (2, Missing), (3, Change), (4, Change)]);
    let gap = records[1].gap.as_ref().unwrap();
    assert_eq!((gap.cause, gap.records), (GapCause::Damaged, Some(1)));
}

#[test]
fn invariant_12_a_record_too_long_for_the_file_is_a_gap() {
    let mut changes = services(&mut Rig::new(), 3);
    let long: Arc<str> = "7".repeat(2 << 20).into();
    for cause in &mut changes[1].change.causes {
        if let Cause::ServiceApplied(facts) = cause {
            Arc::make_mut(facts).meta.resource_version = Some(Arc::clone(&long));
        }
    }
    let folder = TempDir::new().unwrap();
    let history = recorded(changes, Some(folder.path()));
    assert_eq!((history.status().file.lost, history.status().file.failures), (1, 0));
    check_restart(&folder, &[(1, Change), (2, Missing), (3, Change), (4, Change)]);
}

#[test]
fn a_file_of_another_version_stays_and_is_not_read() {
    let folder = three();
    let mut bytes = fs::read(segment(&folder)).unwrap();
    bytes[19] += 1;
    fs::write(segment(&folder), &bytes).unwrap();
    let history = recorded(services(&mut Rig::new(), 1), Some(folder.path()));
    let records = all(&history);
    let gap = records[0].gap.as_ref().unwrap();
    assert_eq!((gap.cause, gap.bytes), (GapCause::OtherVersion, Some(bytes.len() as u64)));
    let [before, after] = [records[0].seq.unwrap(), records[1].seq.unwrap()];
    assert!(before > 3 && after == before + 1, "its numbers are not reused: {before} {after}");
    assert_eq!(fs::read(segment(&folder)).unwrap(), bytes);
    assert_eq!(segments(&folder), 2);
}

#[test]
fn a_foreign_file_is_left_alone() {
    let folder = three();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    fs::create_dir(folder.path().join("00000000000000000009.history")).unwrap();
    check_restart(&folder, &[(1, Change), (2, Change), (3, Change), (4, Change)]);
}

#[test]
fn the_oldest_records_are_dropped_first() {
    let folder = TempDir::new().unwrap();
    let disk = Disk { segment_bytes_max: 4_096, ..Disk::default() };
    // Each batch of the writer goes to one segment, so small batches make many segments.
    for _ in 0..8 {
        recorded_on(services(&mut Rig::new(), 6), Some(folder.path()), disk);
    }
    let history = recorded_on(Vec::new(), Some(folder.path()), disk);
    let known = seqs(&history);
    assert_eq!(known.last(), Some(&48));
    assert!(known[0] > 1 && known.len() < 48, "{known:?}");
    assert!(known.windows(2).all(|pair| pair[1] == pair[0] + 1), "{known:?}");
    assert!(history.status().file.bytes < 10 * 4_096, "{:?}", history.status().file);
    assert!(all(&history).iter().all(|record| record.gap.is_none()), "the history merely begins later");
}

static IS_FULL: AtomicBool = AtomicBool::new(true);

/// A full disk, until it has space.
fn open(path: &Path) -> io::Result<File> {
    if IS_FULL.load(Ordering::Relaxed) {
        return OpenOptions::new().write(true).open("/dev/full");
    }
    (Disk::default().open)(path)
}

#[test]
fn a_full_disk_is_named_once_and_leaves_a_gap() {
    let folder = TempDir::new().unwrap();
    let disk = Disk { open, ..Disk::default() };
    let full = recorded_on(services(&mut Rig::new(), 3), Some(folder.path()), disk);
    assert_eq!(seqs(&full), [1, 2, 3], "memory still records");
    let file = full.status().file;
    assert_eq!((file.lost, file.failures), (3, 2), "at the failure, and once more at the end");
    assert!(file.error.unwrap().contains("No space left on device"));
    IS_FULL.store(false, Ordering::Relaxed);
    let files = SegmentFiles::new(folder.path(), disk, Vec::new(), false);
    let history = Arc::new(History::default());
    let disks = WriterFiles {
        files,
        numbers: NumberFile::open(folder.path()).0,
        reserve: Arc::new(Reserve::new(None)),
    };
    let (queue, writer) = writer::start(disks, 0, boot_id(), Arc::clone(&history)).unwrap();
    let line = full.select(&RecordQuery::default()).pop().unwrap();
    queue.send(QueuedRecord { line, urgent: true, _reservation: None }).unwrap();
    drop(queue);
    writer.join().unwrap();
    let records = all(&recorded(Vec::new(), Some(folder.path())));
    let gap = records[0].gap.as_ref().unwrap();
    assert_eq!((records[0].seq, gap.cause, gap.records), (Some(2), GapCause::NotWritten, Some(2)));
    assert_eq!(records[1].seq, Some(3));
}

static IS_FULL_FOR_A_WHILE: AtomicBool = AtomicBool::new(true);

fn open_after_a_while(path: &Path) -> io::Result<File> {
    if IS_FULL_FOR_A_WHILE.load(Ordering::Relaxed) {
        return OpenOptions::new().write(true).open("/dev/full");
    }
    (Disk::default().open)(path)
}

/// Readers see the disk's state within moments, even without a change.
#[test]
fn free_disk_space_is_noticed_without_another_record() {
    let folder = TempDir::new().unwrap();
    let disk = Disk { open: open_after_a_while, ..Disk::default() };
    let files = SegmentFiles::new(folder.path(), disk, Vec::new(), false);
    let history = Arc::new(History::default());
    let disks = WriterFiles {
        files,
        numbers: NumberFile::open(folder.path()).0,
        reserve: Arc::new(Reserve::new(None)),
    };
    let (queue, writer) = writer::start(disks, 0, boot_id(), Arc::clone(&history)).unwrap();
    let lines = recorded(services(&mut Rig::new(), 3), None).select(&RecordQuery::default());
    let mut lines = lines.into_iter();
    let mut send = |count: usize| {
        lines
            .by_ref()
            .take(count)
            .for_each(|line| queue.send(QueuedRecord { line, urgent: true, _reservation: None }).unwrap());
    };
    let health = || history.status().file;
    send(2);
    wait_until("two failures", || health().error.is_some() && health().failures > 1);
    IS_FULL_FOR_A_WHILE.store(false, Ordering::Relaxed);
    wait_until(from_fn(|f| write!(f, "a write: {:?}", health())), || health().error.is_none());
    send(1);
    drop(queue);
    writer.join().unwrap();
    let records = all(&recorded(Vec::new(), Some(folder.path())));
    let numbers: Vec<_> =
        records.iter().map(|it| (it.seq, it.gap.as_ref().and_then(|gap| gap.records))).collect();
    assert_eq!(numbers, [(Some(2), Some(2)), (Some(3), None)]);
}

#[test]
fn an_uncreatable_folder_costs_only_the_file() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("history"), "a file, no folder").unwrap();
    let history = recorded(services(&mut Rig::new(), 2), Some(&folder.path().join("history")));
    assert_eq!(seqs(&history), [1, 2]);
    assert_eq!(history.status().file.lost, 2);
}

/// The next process's records, for a reader that had read up to `after`.
fn go_on(folder: &TempDir, disk: Disk, changes: u16, after: u64) -> Vec<Record> {
    let history = recorded_on(services(&mut Rig::new(), changes), Some(folder.path()), disk);
    let wanted = RecordQuery { after: Some(after), ..RecordQuery::default() };
    history.select(&wanted).iter().map(|line| line.record().unwrap()).collect()
}

static HAS_NO_ROOM: AtomicBool = AtomicBool::new(false);

fn open_if_room(path: &Path) -> io::Result<File> {
    if HAS_NO_ROOM.load(Ordering::Relaxed) {
        return OpenOptions::new().write(true).open("/dev/full");
    }
    (Disk::default().open)(path)
}

#[test]
fn invariant_12_no_number_is_reused_after_a_full_disk_and_restart() {
    let folder = three();
    let disk = Disk { open: open_if_room, ..Disk::default() };
    HAS_NO_ROOM.store(true, Ordering::Relaxed);
    let lost = go_on(&folder, disk, 5, 3);
    assert_eq!(lost.iter().map(|it| it.seq.unwrap()).collect::<Vec<_>>(), [4, 5, 6, 7, 8]);
    HAS_NO_ROOM.store(false, Ordering::Relaxed);
    // A reader that had seen two of them, and one that had seen none.
    for after in [5, 3] {
        let seen = go_on(&folder, disk, 0, after);
        let gap = seen[0].gap.as_ref().unwrap();
        assert_eq!(
            (seen.len(), seen[0].seq, gap.cause, gap.records),
            (1, Some(8), GapCause::NotWritten, Some(5))
        );
    }
    assert_eq!(go_on(&folder, disk, 1, 8)[0].seq, Some(9));
}

#[test]
fn invariant_12_unwritten_records_become_a_gap_at_the_end() {
    let folder = TempDir::new().unwrap();
    let files = SegmentFiles::new(folder.path(), Disk::default(), Vec::new(), false);
    let history = Arc::new(History::default());
    history.update_status(|recorded| recorded.seq = 1_500);
    let (numbers, _) = NumberFile::open(folder.path());
    let disks = WriterFiles { files, numbers, reserve: Arc::new(Reserve::new(None)) };
    let (queue, writer) = writer::start(disks, 361, boot_id(), history).unwrap();
    drop(queue);
    writer.join().unwrap();
    let seen = go_on(&folder, Disk::default(), 1, 400);
    assert_eq!(seen[0].gap.as_ref().unwrap().records, Some(1_139));
    assert_eq!((seen[0].seq, seen[1].seq), (Some(1_500), Some(1_501)));
}

#[test]
fn invariant_12_numbers_reserved_when_the_daemon_was_killed_are_a_gap() {
    let folder = three();
    NumberFile::open(folder.path()).0.write_mark(NumberMark { below: 100, is_exact: false }).unwrap();
    let records =
        check_restart(&folder, &[(1, Change), (2, Change), (3, Change), (99, Missing), (100, Change)]);
    let gap = records[3].gap.as_ref().unwrap();
    assert_eq!((gap.cause, gap.records, gap.at_most), (GapCause::Killed, None, Some(96)));
}

#[test]
fn invariant_12_an_empty_newest_file_does_not_reset_the_numbers() {
    let folder = three();
    fs::write(folder.path().join("00000000000000000010.history"), "").unwrap();
    fs::remove_file(folder.path().join(numbers::FILE)).unwrap();
    check_restart(&folder, &[(1, Change), (2, Change), (3, Change), (10, Change)]);
}

#[test]
fn invariant_12_a_damaged_newest_file_does_not_reset_the_numbers() {
    let folder = three();
    fs::write(segment(&folder), "holdfast history\0\0\0\x01 and nothing that is a record").unwrap();
    check_restart(&folder, &[(3, Missing), (4, Change)]);
}

#[test]
fn invariant_12_a_file_with_an_impossible_number_is_left_alone() {
    for name in
        ["18446744073709551615", "18446744073709551614", "00009007199254740993", "00000000009999999999"]
    {
        for forgets in [false, true] {
            let folder = three();
            let strange = folder.path().join(format!("{name}.history"));
            fs::write(&strange, "").unwrap();
            if forgets {
                fs::remove_file(folder.path().join(numbers::FILE)).unwrap();
            }
            check_restart(&folder, &[(1, Change), (2, Change), (3, Change), (4, Change)]);
            assert_eq!(fs::metadata(strange).unwrap().len(), 0);
        }
    }
}

#[test]
fn invariant_12_after_a_lost_folder_the_snapshot_supplies_the_numbers() {
    let folder = TempDir::new().unwrap();
    let (changes, waiting) = mpsc::channel(1);
    drop(changes);
    let (recorder, history) = Recorder::new(waiting, watch::channel(Arc::default()).1, Some(folder.path()));
    let recorder = recorder.with_remembered(500);
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(recorder.run());
    assert_eq!(history.status().seq, 499);
    assert_eq!(go_on(&folder, Disk::default(), 1, 499)[0].seq, Some(500));
}

#[test]
fn invariant_12_no_number_is_used_before_the_disk_covers_it() {
    let folder = TempDir::new().unwrap();
    let told = services(&mut Rig::new(), 2_000);
    let (changes, waiting) = mpsc::channel(told.len());
    told.into_iter().for_each(|it| changes.try_send(it).unwrap());
    drop(changes);
    let (recorder, history) = Recorder::new(waiting, watch::channel(Arc::default()).1, Some(folder.path()));
    let mut heard = history.watch(None);
    let path = folder.path().to_owned();
    let watching = std::thread::spawn(move || {
        let mut seen = 0;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        while let WatchEvent::Line(line) = runtime.block_on(heard.next()) {
            let mark = NumberFile::open(&path).1.unwrap();
            assert!(line.seq.unwrap() < mark.below, "{line:?} {mark:?}");
            seen += 1;
        }
        seen
    });
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(recorder.run());
    assert!(watching.join().unwrap() > 0);
    assert_eq!(history.status().seq, 2_000);
}
