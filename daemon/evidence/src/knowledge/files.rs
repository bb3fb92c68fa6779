//! The operator's files about Events: their names and texts.
//!
//! Invariant: the names, the files and the bytes of each file are bounded, whatever the folder holds. Links are
//! followed, because some operators keep their configuration elsewhere. A name that is no file, such as a pipe, never
//! blocks.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use holdfast_knowledge::Fault;
use holdfast_knowledge::limits::{FILE_BYTES_MAX, FILES_MAX};
use nix::fcntl::OFlag;

/// The most names in the folder; a folder with more holds something else.
const NAMES_MAX: usize = 10_000;

/// The name and the text of each file, in the order of the names, and the faults of unreadable ones.
pub(super) fn read_files(folder: &Path) -> (Vec<(String, String)>, Vec<Fault>) {
    let mut faults = Vec::new();
    let names = list_names(folder, &mut faults);
    let mut files = Vec::new();
    for name in &names {
        let path = folder.join(name);
        match read_text(&path) {
            Ok(text) => files.push((path.to_string_lossy().into_owned(), text)),
            Err(why) => faults.push(new_fault(&path, &why)),
        }
    }
    (files, faults)
}

fn new_fault(path: &Path, why: &str) -> Fault {
    Fault::for_file(&path.to_string_lossy(), None, &format!("{why}; until then the built-in entries apply"))
}

/// The first names of knowledge files. A missing folder has none, and is no fault.
fn list_names(folder: &Path, faults: &mut Vec<Fault>) -> BTreeSet<OsString> {
    let mut refuse = |why: &str| faults.push(new_fault(folder, why));
    let mut names = BTreeSet::new();
    let mut count = 0_usize;
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return names,
        Err(error) => {
            refuse(&format!("the folder {}", describe_error(&error)));
            return names;
        }
    };
    for (position, entry) in entries.enumerate() {
        if position >= NAMES_MAX {
            refuse(&format!("the folder has more than {NAMES_MAX} entries, so none is read: take some out"));
            return BTreeSet::new();
        }
        match entry {
            Ok(entry) if is_knowledge_file(&entry.file_name()) => {
                count += 1;
                names.insert(entry.file_name());
                if names.len() > FILES_MAX {
                    names.pop_last();
                }
            }
            Ok(_) => {}
            Err(error) => {
                refuse(&format!("the folder {}", describe_error(&error)));
                return BTreeSet::new();
            }
        }
    }
    if count > FILES_MAX {
        refuse(&format!("it has {count} files, and the first {FILES_MAX} are read: join some"));
    }
    names
}

fn is_knowledge_file(name: &OsStr) -> bool {
    name.as_bytes().ends_with(b".toml") && !name.as_bytes().starts_with(b".")
}

fn read_text(path: &Path) -> Result<String, String> {
    // Without this flag, opening a pipe without a writer would block forever.
    let opened = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path);
    let file = opened.map_err(|error| describe_error(&error))?;
    if !file.metadata().map_err(|error| describe_error(&error))?.is_file() {
        return Err("is no file, so it is not read: remove it".to_owned());
    }
    let bytes_max = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| describe_error(&error))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(format!("is larger than {FILE_BYTES_MAX} bytes, so it is not read: divide it"));
    }
    String::from_utf8(bytes).map_err(|_| "is not UTF-8, so it is not read: save it as UTF-8".to_owned())
}

fn describe_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "leads nowhere: remove it, or correct the link".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "may not be read: let the user that holdfast runs as read it, and enter its folders".to_owned()
        }
        io::ErrorKind::NotADirectory => "is no folder: remove it, or make it one".to_owned(),
        _ => format!("cannot be read: {error}"),
    }
}
