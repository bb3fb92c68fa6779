//! The merged state: files and objects are added, deleted, broken and repaired.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{service, shown};
use crate::manifests::decode::decode_file;
use crate::manifests::folder::{Folder, FolderScan};

struct Disk {
    folder: Folder,
    present: BTreeSet<Arc<str>>,
}

impl Disk {
    fn new() -> Self {
        Self { folder: Folder::new("/manifests"), present: BTreeSet::new() }
    }

    /// Files change in one scan: new text, or `None` for a deleted file.
    #[track_caller]
    fn check(&mut self, changes: &[(&str, Option<&str>)], expected: &str) {
        let mut files = Vec::new();
        for (file, text) in changes {
            let file: Arc<str> = (*file).into();
            match text {
                Some(text) => {
                    self.present.insert(Arc::clone(&file));
                    files.push((Arc::clone(&file), decode_file(&file, text.as_bytes())));
                }
                None => drop(self.present.remove(&file)),
            }
        }
        let events = self.folder.apply_scan(FolderScan { present: Ok(self.present.clone()), files });
        assert_eq!(shown(&events), expected);
    }
}

#[test]
fn an_unchanged_object_makes_no_event() {
    let mut disk = Disk::new();
    let both = service("a", "10.0.0.1") + "---\n" + &service("b", "10.0.0.2");
    disk.check(
        &[("x.yaml", Some(&both))],
        "+ Service default/a [10.0.0.1] x.yaml\n+ Service default/b [10.0.0.2] x.yaml\n",
    );
    disk.check(&[("x.yaml", Some(&both))], "");
    let changed = service("b", "10.0.0.2") + "---\n" + &service("a", "10.0.0.9");
    disk.check(&[("x.yaml", Some(&changed))], "+ Service default/a [10.0.0.9] x.yaml\n");
    disk.check(&[("x.yaml", Some(&service("b", "10.0.0.2")))], "- Service default/a x.yaml\n");
    disk.check(&[("x.yaml", Some(""))], "- Service default/b x.yaml\n");
}

#[test]
fn an_object_that_moves_to_another_file_is_never_deleted() {
    let mut disk = Disk::new();
    let a = service("a", "10.0.0.1");
    disk.check(&[("x.yaml", Some(&a))], "+ Service default/a [10.0.0.1] x.yaml\n");
    disk.check(&[("x.yaml", None), ("y.yaml", Some(&a))], "+ Service default/a [10.0.0.1] y.yaml\n");
    disk.check(&[("x.yaml", Some(&a)), ("y.yaml", Some(""))], "+ Service default/a [10.0.0.1] x.yaml\n");
}

#[test]
fn the_first_file_name_wins_and_the_next_takes_over() {
    let mut disk = Disk::new();
    let (one, two) = (service("a", "10.0.0.1"), service("a", "10.0.0.2"));
    disk.check(&[("n.yaml", Some(&two))], "+ Service default/a [10.0.0.2] n.yaml\n");
    disk.check(
        &[("B.yaml", Some(&one))],
        "+ Service default/a [10.0.0.1] B.yaml\n\
         ! Service default/a partly rejected in n.yaml: is also in B.yaml, which comes first and counts\n",
    );
    disk.check(&[("n.yaml", Some(&two))], "");
    disk.check(
        &[("B.yaml", Some(&service("a", "10.0.0.3")))],
        "+ Service default/a [10.0.0.3] B.yaml\n\
         ! Service default/a partly rejected in n.yaml: is also in B.yaml, which comes first and counts\n",
    );
    disk.check(&[("B.yaml", None)], "+ Service default/a [10.0.0.2] n.yaml\n");
    disk.check(&[("n.yaml", None)], "- Service default/a n.yaml\n");
}

#[test]
fn a_removed_duplicate_ends_its_rejection() {
    let mut disk = Disk::new();
    let a = service("a", "10.0.0.1");
    disk.check(
        &[("a.yaml", Some(&a)), ("b.yaml", Some(&a))],
        "+ Service default/a [10.0.0.1] a.yaml\n\
         ! Service default/a partly rejected in b.yaml: is also in a.yaml, which comes first and counts\n",
    );
    disk.check(&[("b.yaml", None)], "ok Service default/a\n");
}

#[test]
fn an_unreadable_file_keeps_its_last_good_objects() {
    let mut disk = Disk::new();
    let a = service("a", "10.0.0.1");
    disk.check(
        &[("x.json", Some("{"))],
        "! file x.json rejected in x.json: is not JSON: EOF while parsing an object at line 1 column 1\n",
    );
    disk.check(&[("x.json", Some(""))], "ok file x.json\n");
    disk.check(&[("y.yaml", Some(&a))], "+ Service default/a [10.0.0.1] y.yaml\n");
    let torn = a.get(..40).expect("half of it");
    let events = shown(&disk.folder.apply_scan(FolderScan {
        present: Ok(disk.present.clone()),
        files: vec![("y.yaml".into(), decode_file(&"y.yaml".into(), torn.as_bytes()))],
    }));
    assert!(events.starts_with("! file y.yaml rejected in y.yaml: is not YAML: "), "{events}");
    assert_eq!(events.lines().count(), 1);
    disk.check(&[("y.yaml", Some(&a))], "ok file y.yaml\n");
    disk.check(&[("x.json", None), ("y.yaml", None)], "- Service default/a y.yaml\n");
}

#[test]
fn invariant_06_a_bad_object_rejects_only_itself_and_keeps_its_last_version() {
    let mut disk = Disk::new();
    let good = service("a", "10.0.0.1") + "---\n" + &service("b", "10.0.0.2");
    let bad = service("a", "10.0.0.300") + "---\n" + &service("b", "10.0.0.3");
    let refusal = "! Service default/a rejected in x.yaml: spec.clusterIP is \"10.0.0.300\", which is not an IP address\n";
    disk.check(&[("x.yaml", Some(&bad))], &format!("{refusal}+ Service default/b [10.0.0.3] x.yaml\n"));
    disk.check(
        &[("x.yaml", Some(&good))],
        "+ Service default/a [10.0.0.1] x.yaml\n+ Service default/b [10.0.0.2] x.yaml\n",
    );
    disk.check(&[("x.yaml", Some(&bad))], &format!("{refusal}+ Service default/b [10.0.0.3] x.yaml\n"));
    disk.check(&[("x.yaml", Some(&bad))], "");
    disk.check(&[("x.yaml", Some(&good))], "ok Service default/a\n+ Service default/b [10.0.0.2] x.yaml\n");
    disk.check(&[("x.yaml", Some(&bad))], &format!("{refusal}+ Service default/b [10.0.0.3] x.yaml\n"));
    disk.check(&[("x.yaml", Some(""))], "- Service default/a x.yaml\n- Service default/b x.yaml\n");
}

#[test]
fn another_files_version_serves_while_the_first_is_bad() {
    let mut disk = Disk::new();
    disk.check(
        &[("a.yaml", Some(&service("a", "nowhere"))), ("b.yaml", Some(&service("a", "10.0.0.2")))],
        "+ Service default/a [10.0.0.2] b.yaml\n\
         ! Service default/a rejected in a.yaml: spec.clusterIP is \"nowhere\", which is not an IP address\n",
    );
}

#[test]
fn the_worst_rejection_of_an_object_is_delivered_last() {
    let mut disk = Disk::new();
    let a = service("a", "10.0.0.1");
    disk.check(&[("a.yaml", Some(&a))], "+ Service default/a [10.0.0.1] a.yaml\n");
    disk.check(
        &[("a.yaml", Some(&service("a", "nowhere"))), ("b.yaml", Some(&a))],
        "! Service default/a partly rejected in b.yaml: is also in a.yaml, which comes first and counts\n\
         ! Service default/a rejected in a.yaml: spec.clusterIP is \"nowhere\", which is not an IP address\n",
    );
}

#[test]
fn an_unreadable_folder_keeps_everything() {
    let mut disk = Disk::new();
    let a = service("a", "10.0.0.1");
    disk.check(&[("x.yaml", Some(&a))], "+ Service default/a [10.0.0.1] x.yaml\n");
    let mut vanish =
        || shown(&disk.folder.apply_scan(FolderScan { present: Err("gone".to_owned()), files: Vec::new() }));
    assert_eq!(vanish(), "! file /manifests rejected in /manifests: gone\n");
    assert_eq!(vanish(), "");
    disk.check(&[], "ok file /manifests\n");
}

#[test]
fn a_relist_delivers_all_current_objects_again() {
    let mut disk = Disk::new();
    let (a, bad) = (service("a", "10.0.0.1"), service("b", "nowhere"));
    disk.check(&[("x.yaml", Some(&a))], "+ Service default/a [10.0.0.1] x.yaml\n");
    let rejected =
        "! Service default/b rejected in y.yaml: spec.clusterIP is \"nowhere\", which is not an IP address\n";
    disk.check(&[("y.yaml", Some(&bad))], rejected);
    assert_eq!(shown(&disk.folder.redeliver_all()), "+ Service default/a [10.0.0.1] x.yaml\n");
    disk.check(&[("x.yaml", None)], "- Service default/a x.yaml\n");
}
