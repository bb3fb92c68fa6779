//! From a path to the text, with a sentence for each failure.
//!
//! Invariant: it reads at most [`FILE_BYTES_MAX`] bytes and one, whatever the path leads to.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::limits::FILE_BYTES_MAX;
use super::problem::{ConfigErrors, Position, Problem, Subject};
use super::report::Lines;

pub(super) fn read_text(path: &Path, file: &str) -> Result<String, ConfigErrors> {
    let refuse = |message| ConfigErrors::for_file(file, None, message);
    let bytes = read_bytes(path).map_err(|error| read_error(file, &error))?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(refuse(too_large_message()));
    }
    String::from_utf8(bytes).map_err(|error| utf8_error(file, &error))
}

pub(super) fn too_large_message() -> String {
    format!("the file is larger than {FILE_BYTES_MAX} bytes: move services to manifests (manifests.path)")
}

fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let bytes_max = u64::try_from(FILE_BYTES_MAX).unwrap_or(u64::MAX).saturating_add(1);
    File::open(path)?.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Rejects a named pipe in the file's place. Any other error shows on reading.
pub(super) fn refuse_pipe(path: &Path, file: &str) -> Result<(), ConfigErrors> {
    if std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo()) {
        let message = "this is a named pipe: put a file there".to_owned();
        return Err(ConfigErrors::for_file(file, None, message));
    }
    Ok(())
}

/// An unreadable file; the errno tells whether a retry may succeed.
pub(super) fn read_error(file: &str, error: &io::Error) -> ConfigErrors {
    let passes = error.raw_os_error().is_some_and(holdfast_status::errno::is_transient);
    ConfigErrors { is_transient: passes, ..ConfigErrors::for_file(file, None, unreadable_reason(error)) }
}

pub(super) fn unreadable_reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "there is no such file: create it (an empty one is legal, every key has a default) or name another"
                .to_owned()
        }
        io::ErrorKind::PermissionDenied => {
            "the file may not be read: let the user that holdfast runs as read it, and enter its folders"
                .to_owned()
        }
        io::ErrorKind::IsADirectory => "this is a folder: name a file in it".to_owned(),
        _ => format!("the file cannot be read: {error}"),
    }
}

fn utf8_error(file: &str, error: &std::string::FromUtf8Error) -> ConfigErrors {
    let good = error.utf8_error().valid_up_to();
    let before = String::from_utf8_lossy(error.as_bytes().get(..good).unwrap_or_default());
    let position: Position = Lines::new(&before).position(good);
    let message = "the file is not UTF-8 from here on: save it as UTF-8".to_owned();
    let problem = Problem {
        file: file.to_owned(),
        position: Some(position),
        place: Subject::File,
        block: None,
        message: message.into(),
    };
    ConfigErrors { errors: vec![problem], warnings: Vec::new(), omitted: 0, is_transient: false }
}
