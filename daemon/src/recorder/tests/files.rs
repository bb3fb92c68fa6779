//! What a restart finds, whatever happened to the files.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;

use super::*;

/// Three services, recorded in a folder; three records.
fn three() -> TempDir {
    let folder = TempDir::new().unwrap();
    let history = recorded(services(&mut Rig::new(), 3), Some(folder.path()));
    assert_eq!(seqs(&history), [1, 2, 3]);
    assert_eq!(history.recorded().file.bytes, fs::metadata(part(&folder)).unwrap().len());
    folder
}

fn part(folder: &TempDir) -> PathBuf {
    folder.path().join("00000000000000000001.history")
}

/// What the next process knows and records.
#[track_caller]
fn check_restart(folder: &TempDir, expected: &[(u64, Kind)]) -> Vec<Record> {
    let history = recorded(services(&mut Rig::new(), 1), Some(folder.path()));
    let records = all(&history);
    let found: Vec<_> = records.iter().filter_map(|it| Some((it.seq?, it.kind))).collect();
    assert_eq!(found, expected);
    // Whatever was found, what was added now is whole.
    let again = recorded(Vec::new(), Some(folder.path()));
    assert_eq!(seqs(&again).last(), seqs(&history).last());
    records
}

use Kind::{Change, Gap as Missing};

#[test]
fn a_restart_knows_what_was_and_counts_on() {
    let folder = three();
    let records = check_restart(&folder, &[(1, Change), (2, Change), (3, Change), (4, Change)]);
    assert_eq!(records[0].service.as_deref(), Some("default/web-0"));
    assert_eq!(recorded(Vec::new(), Some(folder.path())).recorded().gaps, 0);
}

#[test]
fn a_torn_tail_is_cut_off_and_named() {
    let folder = three();
    let file = OpenOptions::new().write(true).open(part(&folder)).unwrap();
    let length = file.metadata().unwrap().len();
    file.set_len(length - 7).unwrap();
    let records = check_restart(&folder, &[(1, Change), (2, Change), (3, Missing), (4, Change)]);
    let gap = records[2].gap.as_ref().unwrap();
    assert_eq!((gap.cause, gap.file.as_deref()), (GapCause::TornTail, Some("00000000000000000001.history")));
    assert!(gap.bytes.unwrap() > 100);
    let known = seqs(&recorded(Vec::new(), Some(folder.path())));
    assert_eq!(known, [1, 2, 3, 4], "the gap itself is written down");
}

#[test]
fn a_file_that_was_torn_in_its_first_bytes_is_begun_anew() {
    let folder = three();
    OpenOptions::new().write(true).open(part(&folder)).unwrap().set_len(5).unwrap();
    check_restart(&folder, &[(1, Missing), (2, Change)]);
}

#[test]
fn a_flipped_bit_costs_one_record() {
    let folder = three();
    let mut bytes = fs::read(part(&folder)).unwrap();
    let second = bytes.windows(7).position(|it| it == b"\"seq\":2").unwrap();
    bytes[second + 3] ^= 4;
    fs::write(part(&folder), bytes).unwrap();
    let records = check_restart(&folder, &[(1, Change), (2, Missing), (3, Change), (4, Change)]);
    let gap = records[1].gap.as_ref().unwrap();
    assert_eq!((gap.cause, gap.records), (GapCause::Damaged, Some(1)));
}

#[test]
fn a_file_of_another_version_stays_and_is_not_read() {
    let folder = three();
    let mut bytes = fs::read(part(&folder)).unwrap();
    bytes[19] += 1;
    fs::write(part(&folder), &bytes).unwrap();
    let history = recorded(services(&mut Rig::new(), 1), Some(folder.path()));
    let records = all(&history);
    let gap = records[0].gap.as_ref().unwrap();
    assert_eq!((gap.cause, gap.bytes), (GapCause::OtherVersion, Some(bytes.len() as u64)));
    let [before, after] = [records[0].seq.unwrap(), records[1].seq.unwrap()];
    assert!(before > 3 && after == before + 1, "its numbers are not given out again: {before} {after}");
    assert_eq!(fs::read(part(&folder)).unwrap(), bytes);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn what_is_no_file_of_ours_is_left_alone() {
    let folder = three();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    fs::create_dir(folder.path().join("00000000000000000009.history")).unwrap();
    check_restart(&folder, &[(1, Change), (2, Change), (3, Change), (4, Change)]);
}

#[test]
fn the_oldest_part_makes_room() {
    let folder = TempDir::new().unwrap();
    let disk = Disk { part_bytes_max: 4_096, ..Disk::default() };
    // Each batch of the writer goes to one part, so small batches make many parts.
    for _ in 0..8 {
        recorded_on(services(&mut Rig::new(), 6), Some(folder.path()), disk);
    }
    let history = recorded_on(Vec::new(), Some(folder.path()), disk);
    let known = seqs(&history);
    assert_eq!(known.last(), Some(&48));
    assert!(known[0] > 1 && known.len() < 48, "{known:?}");
    assert!(known.windows(2).all(|pair| pair[1] == pair[0] + 1), "{known:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    assert_eq!(history.recorded().gaps, 0, "what made room is no gap");
}

static IS_FULL: AtomicBool = AtomicBool::new(true);

/// A disk without room, until there is some.
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
    assert_eq!(seqs(&full), [1, 2, 3], "memory goes on");
    let file = full.recorded().file;
    assert_eq!((file.lost, file.failures), (3, 1));
    assert!(file.error.unwrap().contains("No space left on device"));
    IS_FULL.store(false, Ordering::Relaxed);
    let files = Files::new(folder.path(), disk, Vec::new(), false);
    let history = Arc::new(History::default());
    let (queue, writer) = writer::start(files, 0, boot_id(), Arc::clone(&history)).unwrap();
    let line = full.select(&Wanted::default()).pop().unwrap();
    queue.send(ToDisk { line, urgent: true }).unwrap();
    drop(queue);
    writer.join().unwrap();
    let records = all(&recorded(Vec::new(), Some(folder.path())));
    let gap = records[0].gap.as_ref().unwrap();
    assert_eq!((records[0].seq, gap.cause, gap.records), (Some(2), GapCause::NotWritten, Some(2)));
    assert_eq!(records[1].seq, Some(3));
}

#[test]
fn a_folder_that_cannot_be_made_costs_the_file_only() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("history"), "a file, no folder").unwrap();
    let history = recorded(services(&mut Rig::new(), 2), Some(&folder.path().join("history")));
    assert_eq!(seqs(&history), [1, 2]);
    assert_eq!(history.recorded().file.lost, 2);
}
