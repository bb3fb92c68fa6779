//! The archive: a tar file that only its owner can read.
//!
//! Invariant: an existing file is never overwritten, and a list of all files comes first.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tar::{Builder, Header};

use super::GatheredFile;

/// The folder of all files in the archive.
const FOLDER: &str = "holdfast-bugreport";

/// Writes a new file. Returns its size.
pub(super) fn write_archive(path: &Path, gathered: &[GatheredFile]) -> io::Result<u64> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut archive = Builder::new(file);
    append_file(&mut archive, "MANIFEST.txt", list_files(gathered).as_bytes())?;
    for GatheredFile { file, content } in gathered {
        match content {
            Ok(content) => append_file(&mut archive, file.name, content)?,
            Err(why) => append_file(&mut archive, file.name, format!("no content: {why}\n").as_bytes())?,
        }
    }
    let file = archive.into_inner()?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

fn append_file(archive: &mut Builder<File>, name: &str, content: &[u8]) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o600);
    header.set_mtime(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()));
    archive.append_data(&mut header, format!("{FOLDER}/{name}"), content)
}

fn list_files(gathered: &[GatheredFile]) -> String {
    let line = |it: &GatheredFile| match &it.content {
        Ok(content) => format!("{:<16} {:>9} bytes  {}\n", it.file.name, content.len(), it.file.about),
        Err(_) => format!("{:<16} no content       {}\n", it.file.name, it.file.about),
    };
    gathered.iter().map(line).collect()
}
