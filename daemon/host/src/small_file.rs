//! A small file in the state's folder: read whole, and replaced in one step.
//!
//! Invariant: a reader finds the old content or the new one. Nothing here waits for what stands in a file's place, such
//! as a pipe, and no more is read than the owner of the file ever writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

/// The content of a file, cut one byte after the most that it may have. A pipe in its place is refused.
pub fn read_bounded(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("is no file"));
    }
    let mut content = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Writes a new file beside the old one, and puts it in the old one's place when all of it is on disk.
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
