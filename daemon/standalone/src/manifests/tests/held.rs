//! Which scans are delivered at once, and which are held.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{service, shown};
use crate::folder::{HOLD_MAX, HeldScan, MOVE_WINDOW};
use holdfast_objects::manifests::decode_file;
use holdfast_objects::manifests::{Folder, FolderScan};

/// Files with contents; `None`: removed.
type Files<'a> = [(&'a str, Option<&'a str>)];

struct Disk {
    folder: Folder,
    held: HeldScan<Folder>,
    present: BTreeSet<Arc<str>>,
    start: Instant,
}

impl Disk {
    fn with(files: &Files<'_>) -> Self {
        let start = Instant::now();
        let mut disk = Self {
            folder: Folder::new("/manifests"),
            held: HeldScan::default(),
            present: BTreeSet::new(),
            start,
        };
        let reading = disk.reading(files);
        disk.folder.apply_scan(reading);
        disk
    }

    fn reading(&mut self, files: &Files<'_>) -> FolderScan {
        let mut read = Vec::new();
        for (file, text) in files {
            let file: Arc<str> = (*file).into();
            match text {
                Some(text) => {
                    self.present.insert(Arc::clone(&file));
                    read.push((Arc::clone(&file), decode_file(&file, text.as_bytes())));
                }
                None => drop(self.present.remove(&file)),
            }
        }
        FolderScan { present: Ok(self.present.clone()), files: read }
    }

    /// Scans after this time and checks the news; "held" if it waits.
    #[track_caller]
    fn check(&mut self, after: Duration, files: &Files<'_>, expected: &str) {
        let reading = self.reading(files);
        let told = self.held.release_scan(reading, &self.folder, self.start + after);
        let told = told.map_or_else(|| "held".to_owned(), |reading| shown(&self.folder.apply_scan(reading)));
        assert_eq!(told, expected);
        assert_eq!(self.held.next_scan().is_some(), expected == "held");
    }
}

const NOW: Duration = Duration::ZERO;

fn a() -> String {
    service("a", "10.0.0.1")
}

#[test]
fn additions_and_changes_are_delivered_at_once() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    disk.check(NOW, &[], "");
    disk.check(
        NOW,
        &[("x.yaml", Some(&service("a", "10.0.0.2")))],
        "+ Service default/a [10.0.0.2] x.yaml\n",
    );
    disk.check(
        NOW,
        &[("y.yaml", Some(&service("b", "10.0.0.3")))],
        "+ Service default/b [10.0.0.3] y.yaml\n",
    );
    let torn = "! file x.yaml rejected in x.yaml: is not UTF-8: ";
    let reading = FolderScan {
        present: Ok(disk.present.clone()),
        files: vec![("x.yaml".into(), decode_file(&"x.yaml".into(), &[0xff]))],
    };
    let told = disk.held.release_scan(reading, &disk.folder, disk.start).expect("nothing goes");
    assert!(shown(&disk.folder.apply_scan(told)).starts_with(torn));
    disk.check(NOW, &[("x.yaml", Some(&service("a", "10.0.0.2")))], "ok file x.yaml\n");
}

#[test]
fn an_object_that_left_one_file_is_awaited_in_another() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a())), ("y.yaml", Some(""))]);
    disk.check(NOW, &[("x.yaml", Some(""))], "held");
    disk.check(MOVE_WINDOW / 2, &[("y.yaml", Some(&a()))], "+ Service default/a [10.0.0.1] y.yaml\n");
}

#[test]
fn an_object_that_came_to_one_file_is_awaited_to_leave_the_other() {
    let mut disk = Disk::with(&[("x.yaml", Some("")), ("y.yaml", Some(&a()))]);
    disk.check(NOW, &[("x.yaml", Some(&a()))], "held");
    disk.check(MOVE_WINDOW / 2, &[("y.yaml", Some(""))], "+ Service default/a [10.0.0.1] x.yaml\n");
}

#[test]
fn a_move_within_one_scan_is_delivered_at_once() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    disk.check(NOW, &[("x.yaml", None), ("y.yaml", Some(&a()))], "+ Service default/a [10.0.0.1] y.yaml\n");
    disk.check(
        NOW,
        &[("x.yaml", Some(&a())), ("y.yaml", Some(""))],
        "+ Service default/a [10.0.0.1] x.yaml\n",
    );
}

#[test]
fn a_held_removal_is_delivered_once_the_folder_is_quiet() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    disk.check(NOW, &[("x.yaml", Some(""))], "held");
    disk.check(MOVE_WINDOW / 2, &[], "held");
    disk.check(MOVE_WINDOW, &[], "- Service default/a x.yaml\n");
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    disk.check(NOW, &[("x.yaml", None)], "held");
    disk.check(MOVE_WINDOW, &[], "- Service default/a x.yaml\n");
}

#[test]
fn a_held_scan_takes_the_last_version_of_a_file() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    disk.check(NOW, &[("x.yaml", Some(""))], "held");
    disk.check(
        MOVE_WINDOW / 2,
        &[("x.yaml", Some(&service("a", "10.0.0.2")))],
        "+ Service default/a [10.0.0.2] x.yaml\n",
    );
}

#[test]
fn a_folder_that_keeps_changing_is_delivered_after_the_limit() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    let b = service("b", "10.0.0.2");
    disk.check(NOW, &[("x.yaml", Some(""))], "held");
    let mut at = NOW;
    while at + MOVE_WINDOW / 2 < HOLD_MAX {
        at += MOVE_WINDOW / 2;
        disk.check(at, &[("y.yaml", Some(&b))], "held");
    }
    disk.check(
        HOLD_MAX,
        &[("y.yaml", Some(&b))],
        "- Service default/a x.yaml\n+ Service default/b [10.0.0.2] y.yaml\n",
    );
}

#[test]
fn a_lasting_duplicate_delays_no_later_change() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a())), ("y.yaml", Some(&a()))]);
    let both = a() + "---\n" + &service("b", "10.0.0.2");
    disk.check(NOW, &[("y.yaml", Some(&both))], "+ Service default/b [10.0.0.2] y.yaml\n");
    disk.check(NOW, &[("x.yaml", Some(""))], "+ Service default/a [10.0.0.1] y.yaml\n");
}
