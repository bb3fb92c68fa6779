//! What is told at once, and what waits for the other file.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{service, shown};
use crate::folder::{HOLD_MAX, HeldScan, MOVE_WINDOW};
use holdfast_objects::manifests::decode_file;
use holdfast_objects::manifests::{Folder, FolderScan};

/// Some files, `None` for one that is gone.
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

    /// A look after so long, and what it tells; "held" if it waits.
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
fn what_adds_or_changes_is_told_at_once() {
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
fn a_move_that_one_look_sees_whole_is_told_at_once() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    disk.check(NOW, &[("x.yaml", None), ("y.yaml", Some(&a()))], "+ Service default/a [10.0.0.1] y.yaml\n");
    disk.check(
        NOW,
        &[("x.yaml", Some(&a())), ("y.yaml", Some(""))],
        "+ Service default/a [10.0.0.1] x.yaml\n",
    );
}

#[test]
fn what_waits_is_told_when_the_folder_is_quiet() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    disk.check(NOW, &[("x.yaml", Some(""))], "held");
    disk.check(MOVE_WINDOW / 2, &[], "held");
    disk.check(MOVE_WINDOW, &[], "- Service default/a x.yaml\n");
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    disk.check(NOW, &[("x.yaml", None)], "held");
    disk.check(MOVE_WINDOW, &[], "- Service default/a x.yaml\n");
}

#[test]
fn what_waits_takes_the_last_version_of_a_file() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a()))]);
    disk.check(NOW, &[("x.yaml", Some(""))], "held");
    disk.check(
        MOVE_WINDOW / 2,
        &[("x.yaml", Some(&service("a", "10.0.0.2")))],
        "+ Service default/a [10.0.0.2] x.yaml\n",
    );
}

#[test]
fn a_folder_that_never_rests_is_told_all_the_same() {
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
fn a_duplicate_that_stays_does_not_delay_what_comes_later() {
    let mut disk = Disk::with(&[("x.yaml", Some(&a())), ("y.yaml", Some(&a()))]);
    let both = a() + "---\n" + &service("b", "10.0.0.2");
    disk.check(NOW, &[("y.yaml", Some(&both))], "+ Service default/b [10.0.0.2] y.yaml\n");
    disk.check(NOW, &[("x.yaml", Some(""))], "+ Service default/a [10.0.0.1] y.yaml\n");
}
