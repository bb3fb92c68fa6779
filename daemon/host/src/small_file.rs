//! Small files in the state's folder: read whole, and replaced in one step.
//!
//! Invariant: a reader finds the old content or the new one. Nothing here blocks on a pipe or device in a file's
//! place, and no read exceeds the size that the file's owner ever writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// Reads a file up to `most` and one byte. A pipe in its place is refused.
pub fn read_bounded(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is no file"));
    }
    let mut content = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Writes a new file next to the old one, and renames it over the old one once it is on disk.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    // On a new node the folder may not exist yet.
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    let beside: PathBuf = path.with_extension("json.new");
    let mut file = File::create(&beside)?;
    file.write_all(content)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}
