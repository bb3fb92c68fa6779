//! Real files in a real folder.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_core::event::Event;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use super::{service, shown};
use crate::folder::{FILES_MAX, MOVE_WINDOW, POLL_INTERVAL, SETTLE_TIME, START_WAIT_MAX};
use crate::manifests::Manifests;
use holdfast_fixtures::TEST_TIMEOUT;

/// The most repetitions of a change until one is fast: on a busy machine most may be slow.
const TRIES: u8 = 100;

struct Folder {
    root: TempDir,
    groups: mpsc::Receiver<Vec<Event>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

fn watch_folder(root: TempDir, folder: &Path) -> Folder {
    let (sender, groups) = mpsc::channel(16);
    let (stop, stopped) = watch::channel(false);
    let manifests = Manifests::new(folder);
    let task = tokio::spawn(async move { manifests.run(sender, stopped).await.expect("no look panics") });
    Folder { root, groups, stop, task }
}

impl Folder {
    /// Watches a folder with these files, and checks the first group.
    async fn start(files: &[(&str, &str)], expected: &str) -> Self {
        let root = tempfile::tempdir().expect("a folder");
        for (file, text) in files {
            fs::write(root.path().join(file), text).expect("a file");
        }
        let path = root.path().to_owned();
        let mut folder = watch_folder(root, &path);
        folder.check(expected).await;
        folder
    }

    fn path(&self, file: &str) -> PathBuf {
        self.root.path().join(file)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).expect("a file");
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).expect("a rename");
    }

    async fn check(&mut self, expected: &str) {
        let group = timeout(TEST_TIMEOUT, self.groups.recv())
            .await
            .unwrap_or_else(|_| panic!("nothing came, not {expected}"));
        assert_eq!(shown(&group.expect("the task runs")), expected);
    }

    async fn next(&mut self) -> String {
        let group = timeout(TEST_TIMEOUT, self.groups.recv()).await.expect("a group");
        shown(&group.expect("the task runs"))
    }

    /// Repeats a change until one is delivered in time; a wait for a poll or a quiet folder never is.
    async fn check_soon(&mut self, within: Duration, mut change: impl FnMut(&Self, u8) -> String) {
        for number in 1..=TRIES {
            let start = Instant::now();
            let expected = change(self, number);
            self.check(&expected).await;
            if start.elapsed() < within {
                return;
            }
            tokio::time::sleep(MOVE_WINDOW).await;
        }
        panic!("each of {TRIES} changes took longer than {within:?}");
    }

    async fn check_nothing(&mut self, during: Duration) {
        if let Ok(group) = timeout(during, self.groups.recv()).await {
            panic!("unexpected: {}", shown(&group.unwrap_or_default()));
        }
    }

    async fn stop(self) {
        self.stop.send(true).expect("the task listens");
        timeout(TEST_TIMEOUT, self.task).await.expect("it ends at once").expect("and well");
    }
}

fn a(ip: &str) -> String {
    service("a", ip)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_group_is_the_whole_folder() {
    let mut folder = Folder::start(
        &[
            ("b.yml", &service("b", "10.0.0.2")),
            ("a.yaml", &a("10.0.0.1")),
            ("c.json", "{}"),
            (".a.yaml", "["),
            ("d.yaml~", "["),
            ("e.txt", "["),
            ("#f.yaml#", "["),
            (".g.yaml.swp", "["),
        ],
        "+ Service default/a [10.0.0.1] a.yaml\n+ Service default/b [10.0.0.2] b.yml\nsynced manifests\n",
    )
    .await;
    fs::create_dir(folder.path("sub.yaml")).expect("a folder");
    folder.write("sub.yaml/x.yaml", "[");
    folder.write(".hidden.yaml", "[");
    folder.write("old.yaml~", "[");
    folder.check_nothing(Duration::from_millis(1500)).await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_folder_is_synced() {
    Folder::start(&[], "synced manifests\n").await.stop().await;
}

#[test]
fn a_missing_folder_is_an_error_with_a_remedy() {
    let root = tempfile::tempdir().expect("a folder");
    let missing = root.path().join("missing");
    let error = Manifests::check_folder(&missing).expect_err("it is missing");
    let expected = format!(
        "{}: the folder cannot be read: No such file or directory (os error 2); \
         create the folder, or change `path` under [manifests]",
        missing.display()
    );
    assert_eq!(error.to_string(), expected);
    fs::write(&missing, "").expect("a file");
    Manifests::check_folder(&missing).expect_err("it is a file");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_atomic_rename_is_read_at_once() {
    let mut folder = Folder::start(
        &[("a.yaml", &a("10.0.0.1"))],
        "+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n",
    )
    .await;
    let rename = |folder: &Folder, number| {
        folder.write("a.yaml.tmp", &a(&format!("10.0.1.{number}")));
        folder.rename("a.yaml.tmp", "a.yaml");
        format!("+ Service default/a [10.0.1.{number}] a.yaml\n")
    };
    folder.check_soon(SETTLE_TIME, rename).await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_not_read_before_it_is_closed() {
    let mut folder = Folder::start(
        &[("a.yaml", &a("10.0.0.1"))],
        "+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n",
    )
    .await;
    let mut file = File::create(folder.path("a.yaml")).expect("a file");
    file.write_all(service("b", "10.0.0.2").as_bytes()).expect("the first half");
    folder.check_nothing(POLL_INTERVAL + SETTLE_TIME * 2).await;
    file.write_all(format!("---\n{}", a("10.0.0.3")).as_bytes()).expect("the second half");
    drop(file);
    folder.check("+ Service default/a [10.0.0.3] a.yaml\n+ Service default/b [10.0.0.2] a.yaml\n").await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_keeps_its_objects_until_fixed_or_removed() {
    let mut folder = Folder::start(&[("a.json", "{}")], "synced manifests\n").await;
    folder.write("a.json", r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}"#);
    folder.check("+ Service default/a [] a.json\n").await;
    folder.write("a.json", r#"{"apiVersion": "v1", "#);
    folder
        .check(
            "! file a.json rejected in a.json: is not JSON: EOF while parsing a value at line 1 column 21\n",
        )
        .await;
    folder.write("a.json", r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}}"#);
    folder.check("ok file a.json\n").await;
    folder.write("a.json", "");
    folder.check("- Service default/a a.json\n").await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removed_file_removes_its_objects_unless_it_returns() {
    let mut folder = Folder::start(
        &[("a.yaml", &a("10.0.0.1"))],
        "+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n",
    )
    .await;
    // As editors and `git checkout` do: move away, then create.
    folder.rename("a.yaml", "a.yaml~");
    tokio::time::sleep(SETTLE_TIME / 3).await;
    folder.write("a.yaml", &a("10.0.0.1"));
    folder.check_nothing(SETTLE_TIME * 2).await;
    fs::remove_file(folder.path("a.yaml")).expect("it is there");
    folder.check("- Service default/a a.yaml\n").await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_file_is_one_change_at_once() {
    let mut folder = Folder::start(
        &[("a.yaml", &a("10.0.0.1"))],
        "+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n",
    )
    .await;
    let rename = |folder: &Folder, number| {
        let names = if number % 2 == 1 { ["a.yaml", "z.yaml"] } else { ["z.yaml", "a.yaml"] };
        folder.rename(names[0], names[1]);
        format!("+ Service default/a [10.0.0.1] {}\n", names[1])
    };
    folder.check_soon(SETTLE_TIME, rename).await;
    folder.check_nothing(SETTLE_TIME * 2).await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn duplicates_and_take_over() {
    let mut folder = Folder::start(
        &[("a.yaml", &a("10.0.0.1")), ("b.yaml", &a("10.0.0.2"))],
        "+ Service default/a [10.0.0.1] a.yaml\n\
         ! Service default/a partly rejected in b.yaml: is also in a.yaml, which comes first and counts\n\
         synced manifests\n",
    )
    .await;
    fs::remove_file(folder.path("a.yaml")).expect("it is there");
    folder.check("+ Service default/a [10.0.0.2] b.yaml\n").await;
    folder.stop().await;
}

/// As kubelet mounts a ConfigMap: `a.yaml -> ..data/a.yaml`, `..data -> ..1`.
#[tokio::test(flavor = "multi_thread")]
async fn links_are_followed_and_read_again_when_retargeted() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().to_owned();
    let version = |number: u8, text: &str| {
        fs::create_dir(path.join(format!("..{number}"))).expect("a folder");
        fs::write(path.join(format!("..{number}/a.yaml")), text).expect("a file");
    };
    version(1, &a("10.0.0.1"));
    symlink("..1", path.join("..data")).expect("a link");
    symlink("..data/a.yaml", path.join("a.yaml")).expect("a link");
    let mut folder = watch_folder(root, &path);
    folder.check("+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n").await;
    let mut now = 1;
    let turn = |folder: &Folder, number: u8| {
        now = number + 1;
        version(now, &a(&format!("10.0.1.{now}")));
        symlink(format!("..{now}"), path.join("..data_tmp")).expect("a link");
        folder.rename("..data_tmp", "..data");
        format!("+ Service default/a [10.0.1.{now}] a.yaml\n")
    };
    folder.check_soon(SETTLE_TIME, turn).await;
    // Only the poll finds this change.
    folder.write(&format!("..{now}/a.yaml"), &a("10.0.0.3"));
    folder.check("+ Service default/a [10.0.0.3] a.yaml\n").await;
    // A dangling link is a mistake, not a deletion.
    fs::remove_file(folder.path(&format!("..{now}/a.yaml"))).expect("it is there");
    folder
        .check("! file a.yaml rejected in a.yaml: cannot be read: No such file or directory (os error 2)\n")
        .await;
    fs::remove_file(folder.path("a.yaml")).expect("it is there");
    folder.check("- Service default/a a.yaml\nok file a.yaml\n").await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_of_the_same_size_and_time_is_seen() {
    let mut folder = Folder::start(
        &[("a.yaml", &a("10.0.0.1"))],
        "+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n",
    )
    .await;
    let modified =
        fs::metadata(folder.path("a.yaml")).and_then(|metadata| metadata.modified()).expect("a time");
    folder.write("tmp", &a("10.0.0.2"));
    File::options()
        .write(true)
        .open(folder.path("tmp"))
        .and_then(|file| file.set_modified(modified))
        .expect("a time");
    folder.rename("tmp", "a.yaml");
    folder.check("+ Service default/a [10.0.0.2] a.yaml\n").await;
    folder.stop().await;
}

/// Hard links and files from other hosts send no close event: only their rest shows that they are complete.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_without_an_event_is_read_once_it_settles() {
    let mut folder = Folder::start(&[], "synced manifests\n").await;
    let other = tempfile::tempdir_in(folder.root.path()).expect("a folder");
    fs::write(other.path().join("x"), a("10.0.0.1")).expect("a file");
    fs::hard_link(other.path().join("x"), folder.path("a.yaml")).expect("a link");
    folder.check("+ Service default/a [10.0.0.1] a.yaml\n").await;
    // Written under its other name, which the watch does not see.
    fs::write(other.path().join("x"), a("10.0.0.2")).expect("a file");
    folder.check("+ Service default/a [10.0.0.2] a.yaml\n").await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_vanishes_keeps_its_objects_and_comes_back() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("manifests");
    fs::create_dir(&path).expect("a folder");
    fs::write(path.join("a.yaml"), a("10.0.0.1")).expect("a file");
    let mut folder = watch_folder(root, &path);
    folder.check("+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n").await;
    folder.rename("manifests", "away");
    let shown = path.display().to_string();
    folder
        .check(&format!("! file {shown} rejected in {shown}: the folder cannot be read: No such file or directory (os error 2)\n"))
        .await;
    fs::create_dir(folder.path("new")).expect("a folder");
    folder.write("new/a.yaml", &a("10.0.0.2"));
    folder.rename("new", "manifests");
    folder.check(&format!("ok file {shown}\n")).await;
    folder.check("+ Service default/a [10.0.0.2] a.yaml\n").await;
    // The new folder is watched like the old one.
    let write = |folder: &Folder, number| {
        folder.write("manifests/a.yaml", &a(&format!("10.0.1.{number}")));
        format!("+ Service default/a [10.0.1.{number}] a.yaml\n")
    };
    folder.check_soon(SETTLE_TIME, write).await;
    folder.stop().await;
}

/// A writer of the earlier folder's file must not affect the new folder.
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_folder_is_read_despite_writes_in_the_old_one() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("manifests");
    for (place, ip) in [("old", "10.0.0.1"), ("new", "10.0.0.2")] {
        fs::create_dir(root.path().join(place)).expect("a folder");
        fs::write(root.path().join(place).join("a.yaml"), a(ip)).expect("a file");
    }
    symlink("old", &path).expect("a link");
    let mut folder = watch_folder(root, &path);
    folder.check("+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n").await;
    let mut writer = File::options().append(true).open(path.join("a.yaml")).expect("a file");
    writer.write_all(b"#").expect("a write");
    symlink("new", folder.path("link")).expect("a link");
    folder.rename("link", "manifests");
    writer.write_all(b"#").expect("a write");
    folder.check("+ Service default/a [10.0.0.2] a.yaml\n").await;
    drop(writer);
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_that_cannot_be_read_is_not_synced() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().join("manifests");
    let manifests = Manifests::new(&path);
    let (sender, groups) = mpsc::channel(16);
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(async move { manifests.run(sender, stopped).await.expect("no look panics") });
    let mut folder = Folder { root, groups, stop, task };
    let shown = path.display().to_string();
    let reason = "the folder cannot be read: No such file or directory (os error 2)";
    folder.check(&format!("! file {shown} rejected in {shown}: {reason}\n")).await;
    fs::create_dir(&path).expect("a folder");
    folder.write("manifests/a.yaml", &a("10.0.0.1"));
    folder
        .check(&format!("ok file {shown}\n+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n"))
        .await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn too_many_files_reject_the_folder_and_keep_its_objects() {
    let mut folder = Folder::start(
        &[("a.yaml", &a("10.0.0.1"))],
        "+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n",
    )
    .await;
    fs::create_dir(folder.path("many")).expect("a folder");
    (0..FILES_MAX).for_each(|number| folder.write(&format!("many/{number}.yaml"), ""));
    fs::read_dir(folder.path("many")).expect("a folder").flatten().for_each(|entry| {
        fs::rename(entry.path(), folder.root.path().join(entry.file_name())).expect("a rename");
    });
    let shown = folder.root.path().display().to_string();
    folder
        .check(&format!(
            "! file {shown} rejected in {shown}: the folder has more than 10000 manifests, which is the most that are read\n"
        ))
        .await;
    fs::remove_file(folder.path("0.yaml")).expect("it is there");
    folder.check(&format!("ok file {shown}\n")).await;
    folder.stop().await;
}

/// A pipe or a link loop stands for a file without permission, which root cannot have.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_cannot_be_opened_keeps_its_objects() {
    let mut folder = Folder::start(
        &[("a.yaml", &a("10.0.0.1"))],
        "+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n",
    )
    .await;
    symlink("a.yaml", folder.path("loop")).expect("a link");
    folder.rename("loop", "a.yaml");
    folder
        .check("! file a.yaml rejected in a.yaml: cannot be read: Too many levels of symbolic links (os error 40)\n")
        .await;
    folder.write("tmp", &a("10.0.0.1"));
    folder.rename("tmp", "a.yaml");
    folder.check("ok file a.yaml\n").await;
    folder.stop().await;
}

/// One try of several, because a busy machine may pause between two writes.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_change_together_are_one_group() {
    let (one, two) = (service("a", "10.0.0.1"), service("b", "10.0.0.2"));
    let both = format!("{one}---\n{two}");
    for _ in 0..TRIES {
        let mut folder = Folder::start(
            &[("x.yaml", &both), ("y.yaml", "")],
            "+ Service default/a [10.0.0.1] x.yaml\n+ Service default/b [10.0.0.2] x.yaml\nsynced manifests\n",
        )
        .await;
        let mut told = String::new();
        for (x, y) in [(&one, two.as_str()), (&both, "# nothing\n")] {
            folder.write("x.yaml", x);
            folder.write("y.yaml", y);
            told.push_str(&folder.next().await);
        }
        folder.stop().await;
        if told == "+ Service default/b [10.0.0.2] y.yaml\n+ Service default/b [10.0.0.2] x.yaml\n" {
            return;
        }
    }
    panic!("what changed together came in pieces, {TRIES} times");
}

/// One change of several must be this fast, because the machine may be busy. A daemon that waits for a pause never is.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_in_a_quiet_folder_is_delivered_without_a_pause() {
    let mut folder = Folder::start(&[], "synced manifests\n").await;
    let rename = |folder: &Folder, number| {
        folder.write(".a.yaml", &a(&format!("10.0.0.{number}")));
        folder.rename(".a.yaml", "a.yaml");
        format!("+ Service default/a [10.0.0.{number}] a.yaml\n")
    };
    folder.check_soon(MOVE_WINDOW / 2, rename).await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_delivered_in_few_groups() {
    const FILES: usize = 1_000;
    let mut folder = Folder::start(&[], "synced manifests\n").await;
    for number in 0..FILES {
        folder.write(&format!("{number:04}.yaml"), &service(&format!("s{number}"), ""));
    }
    let (mut told, mut groups) = (0, 0);
    while told < FILES {
        let group = timeout(TEST_TIMEOUT, folder.groups.recv()).await.expect("all are told");
        told += group.expect("the task runs").len();
        groups += 1;
    }
    assert_eq!(told, FILES);
    assert!(groups < FILES / 4, "{groups} groups");
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_too_large_is_refused() {
    let mut folder = Folder::start(&[], "synced manifests\n").await;
    let file = File::create(folder.path("tmp")).expect("a file");
    file.set_len((64 << 20) + 1).expect("a sparse file");
    folder.rename("tmp", "a.yaml");
    folder
        .check("! file a.yaml rejected in a.yaml: cannot be read: it has more than 67108864 bytes, which is the most that is read\n")
        .await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_emptied_file_removes_its_objects_unless_refilled() {
    let mut folder = Folder::start(
        &[("a.yaml", &a("10.0.0.1"))],
        "+ Service default/a [10.0.0.1] a.yaml\nsynced manifests\n",
    )
    .await;
    folder.write("a.yaml", "");
    tokio::time::sleep(SETTLE_TIME / 3).await;
    folder.write("a.yaml", &a("10.0.0.2"));
    folder.check("+ Service default/a [10.0.0.2] a.yaml\n").await;
    folder.write("a.yaml", "");
    folder.check("- Service default/a a.yaml\n").await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_endless_write_does_not_block_the_start_for_ever() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().to_owned();
    let mut file = File::create(path.join("a.yaml")).expect("a file");
    let mut folder = watch_folder(root, &path);
    let start = Instant::now();
    while start.elapsed() < START_WAIT_MAX + SETTLE_TIME {
        file.write_all(b"# more\n").expect("a line");
        tokio::time::sleep(SETTLE_TIME / 4).await;
    }
    folder.check("! file a.yaml rejected in a.yaml: is being written; it is read as soon as it is closed\nsynced manifests\n").await;
    file.write_all(a("10.0.0.1").as_bytes()).expect("the last line");
    drop(file);
    folder.check("+ Service default/a [10.0.0.1] a.yaml\nok file a.yaml\n").await;
    folder.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_source_ends_when_its_receiver_is_gone() {
    let Folder { root, groups, task, .. } = Folder::start(&[], "synced manifests\n").await;
    drop(groups);
    fs::write(root.path().join("a.yaml"), a("10.0.0.1")).expect("a file");
    timeout(TEST_TIMEOUT, task).await.expect("it ends").expect("and well");
}

#[tokio::test]
async fn pipes_and_devices_are_rejected_once_and_never_opened() {
    let root = tempfile::tempdir().expect("a folder");
    let path = root.path().to_owned();
    nix::unistd::mkfifo(&path.join("pipe.yaml"), nix::sys::stat::Mode::S_IRUSR).expect("a pipe");
    symlink("/dev/zero", path.join("zero.yaml")).expect("a link");
    let odd = std::ffi::OsStr::from_bytes(b"odd-\xff.yaml");
    fs::write(path.join(odd), a("10.96.0.9")).expect("a file");
    let hidden = std::ffi::OsStr::from_bytes(b".\xff.yaml");
    fs::write(path.join(hidden), a("10.96.0.9")).expect("a file");
    let mut folder = watch_folder(root, &path);
    folder
        .check(
            "! file odd-\\xff.yaml rejected in odd-\\xff.yaml: has a name that is not UTF-8, so it is not read; rename it\n\
             ! file pipe.yaml rejected in pipe.yaml: is a named pipe, so it is not read; only files are, and links to files\n\
             ! file zero.yaml rejected in zero.yaml: leads to a device, so it is not read; only files are, and links to files\n\
             synced manifests\n",
        )
        .await;
    folder.check_nothing(POLL_INTERVAL + SETTLE_TIME).await;
    fs::remove_file(folder.path("pipe.yaml")).expect("it was there");
    folder.check("ok file pipe.yaml\n").await;
    folder.stop().await;
}
