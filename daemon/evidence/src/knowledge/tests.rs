//! Good and bad folders of operators: which files count, which faults are reported, and that built-in entries stay.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use holdfast_knowledge::ClusterEvent;
use holdfast_knowledge::limits::{FILE_BYTES_MAX, FILES_MAX};
use serde_json::json;
use tempfile::TempDir;

use super::{Edition, built_in, knowledge_folder};

const CAUSE: &str = r#"
[[cause]]
id = "cloud.deadline"
any = ["the tunnel is down"]
means = "Our tunnel to the cloud is down."
check = []
remedy = [{ risk = "safe", do = "Wait." }]
"#;

/// The meaning of the cause behind a message.
fn means(edition: &Edition, message: &str) -> Option<String> {
    let event = ClusterEvent::from_json(&json!({
        "involvedObject": {"kind": "Service", "namespace": "shop", "name": "web"}, "type": "Warning",
        "reason": "SyncLoadBalancerFailed", "message": message, "source": {"component": "service-controller"},
    }));
    edition.knowledge().recognise(&event).cause.map(|cause| cause.means.clone())
}

/// The faults of a folder. The built-in knowledge must stay in any case.
#[track_caller]
fn faults(folder: &Path) -> Vec<String> {
    let edition = Edition::read(folder);
    assert!(!edition.is_loaded(), "no caller needed it yet");
    assert_eq!(means(&edition, "i/o timeout"), means(&Edition::default(), "i/o timeout"));
    assert!(means(&edition, "i/o timeout").is_some());
    edition.faults().iter().map(ToString::to_string).collect()
}

/// Checks that one file, or another object in its place, is reported with one fault.
#[track_caller]
fn check(make: impl FnOnce(&Path), says: &[&str]) {
    let folder = TempDir::new().unwrap();
    make(&folder.path().join("ours.toml"));
    let found = faults(folder.path());
    assert_eq!(found.len(), 1, "{found:?}");
    let begins = format!("{}", folder.path().join("ours.toml").display());
    assert!(found[0].starts_with(&begins) && !found[0].contains(char::is_control), "{found:?}");
    assert!(says.iter().all(|word| found[0].contains(word)), "{says:?}: {found:?}");
}

#[test]
fn the_folder_is_next_to_the_configuration() {
    assert_eq!(
        knowledge_folder(Path::new("/etc/holdfast/holdfast.toml")),
        Path::new("/etc/holdfast/events.d")
    );
    assert_eq!(knowledge_folder(Path::new("holdfast.toml")), Path::new("events.d"));
}

#[test]
fn an_operators_file_replaces_entries_at_first_use() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("ours.toml"), CAUSE).unwrap();
    for other in ["ours.toml~", ".ours.toml", "README"] {
        fs::write(folder.path().join(other), "no [ toml").unwrap();
    }
    let edition = Edition::read(folder.path());
    assert_eq!(edition.faults(), []);
    assert!(!edition.is_loaded());
    fs::remove_file(folder.path().join("ours.toml")).unwrap();
    let meaning = means(&edition, "no: the tunnel is down");
    assert_eq!(meaning.as_deref(), Some("Our tunnel to the cloud is down."), "the validated text counts");
    assert_eq!(means(&Edition::read(folder.path()), "no: the tunnel is down"), None);
}

#[test]
fn a_missing_folder_is_no_fault_and_loads_nothing() {
    let folder = TempDir::new().unwrap();
    assert_eq!(faults(&folder.path().join("events.d")), [] as [String; 0]);
    assert_eq!(faults(folder.path()), [] as [String; 0]);
    let editions = built_in();
    let edition = editions.borrow();
    assert!(!edition.is_loaded());
    assert!(!edition.knowledge().reasons().is_empty() && edition.is_loaded());
}

#[test]
fn a_fault_in_a_file_is_reported_with_its_line() {
    let write = |text: &'static str| move |path: &Path| fs::write(path, text).unwrap();
    check(write("\n[[cause]\n"), &["ours.toml:2: ", "the built-in entries apply"]);
    let dead = "[[reason]]\nid = \"a\"\nreason = \"A\"\nkinds = [\"Service\"]\ntype = \"Warning\"\n\
                emitted = \"third-party\"\nseverity = \"error\"\nmeaning = \"A.\"\ncauses = [\"nobody\"]\n";
    check(write(dead), &["ours.toml:1: a: ", "no cause \"nobody\""]);
    let turned = CAUSE.replace("is down.", "is down.\\u001b[2J");
    check(|path| fs::write(path, turned).unwrap(), &["ours.toml:2: cloud.deadline: ", "U+001B"]);
    check(|path| fs::write(path, [0xff, 0xfe]).unwrap(), &["is not UTF-8"]);
}

#[test]
fn a_large_file_folder_pipe_or_dead_link_is_reported_without_blocking() {
    check(|path| fs::write(path, " ".repeat(10 << 20)).unwrap(), &[&FILE_BYTES_MAX.to_string(), "divide it"]);
    check(|path| fs::create_dir(path).unwrap(), &["is no file"]);
    check(|path| symlink("/nowhere/at/all", path).unwrap(), &["leads nowhere"]);
    check(|path| symlink("/dev/zero", path).unwrap(), &["is no file"]);
    let pipe = |path: &Path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRUSR).unwrap();
    check(pipe, &["is no file"]);
    // Nobody can read a link to itself, not even root.
    check(|path| symlink(path, path).unwrap(), &["cannot be read"]);
}

#[test]
fn a_link_to_a_file_is_followed() {
    let folder = TempDir::new().unwrap();
    let elsewhere = TempDir::new().unwrap();
    fs::write(elsewhere.path().join("a"), CAUSE).unwrap();
    symlink(elsewhere.path().join("a"), folder.path().join("ours.toml")).unwrap();
    let edition = Edition::read(folder.path());
    assert!(means(&edition, "the tunnel is down").is_some(), "{:?}", edition.faults());
}

#[test]
fn of_a_thousand_files_the_first_are_read_with_a_fault() {
    let folder = TempDir::new().unwrap();
    for number in 0..1_000 {
        let text = CAUSE.replace("cloud.deadline", &format!("ours.{number}"));
        fs::write(folder.path().join(format!("{number:04}.toml")), text).unwrap();
    }
    let edition = Edition::read(folder.path());
    let ours = |number: usize| edition.knowledge().cause(&format!("ours.{number}")).is_some();
    assert!(ours(0) && ours(FILES_MAX - 1) && !ours(FILES_MAX) && !ours(999));
    let found = faults(folder.path());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("it has 1000 files, and the first 32 are read"), "{found:?}");
}

#[test]
fn a_duplicate_id_is_a_fault_of_the_second_file() {
    let folder = TempDir::new().unwrap();
    for name in ["b.toml", "a.toml"] {
        fs::write(folder.path().join(name), CAUSE.replace("cloud.deadline", "ours.tunnel")).unwrap();
    }
    let found = faults(folder.path());
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("b.toml:2: ours.tunnel: ") && found[0].contains("same id"), "{found:?}");
}

#[test]
fn a_file_in_place_of_the_folder_is_reported() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("events.d");
    fs::write(&path, "").unwrap();
    let found = faults(&path);
    assert!(found.len() == 1 && found[0].contains("is no folder"), "{found:?}");
}

/// A name may be as long and as odd as a file system allows.
#[test]
fn a_file_name_cannot_control_a_terminal() {
    let folder = TempDir::new().unwrap();
    let name = format!("\u{1b}[2J{}.toml", "x".repeat(200));
    fs::write(folder.path().join(name), "[").unwrap();
    let found = faults(folder.path());
    assert_eq!(found.len(), 1);
    assert!(!found[0].contains(char::is_control), "{found:?}");
}
