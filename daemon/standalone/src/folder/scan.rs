//! Scans a folder: lists its files, and reads those that are ready.
//!
//! Invariant: a file is read once it was closed after writing, renamed into place, reached by another link, or
//! unchanged for [`SETTLE_TIME`]; never while a process is known to write it. A missing or empty file counts as such
//! only after the same time, because many programs replace a file by removing or emptying it first.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nix::fcntl::OFlag;

use super::folder_events::{PendingChanges, file_name, is_readable_name};
use super::{FILES_MAX, FileFormat, SETTLE_TIME};
use holdfast_config::FileAuthor;
use holdfast_objects::manifests::FolderScan;

/// Escapes a name's bytes for display.
fn escape_name(name: &OsStr) -> Arc<str> {
    name.as_bytes().escape_ascii().to_string().into()
}

/// Identifies one state of a file without reading it. Programs that preserve the modification time cannot reset the
/// change time.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
    /// The target, if the name is a link.
    target: Option<PathBuf>,
}

impl Stamp {
    fn new(metadata: &Metadata, target: Option<PathBuf>) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            target,
        }
    }

    /// Whether this is the same content under another name: a rename changes only the change time.
    fn is_moved_from(&self, other: &Self) -> bool {
        let identity = |stamp: &Self| (stamp.device, stamp.inode, stamp.size, stamp.modified);
        identity(self) == identity(other)
    }

    fn is_older_than(&self, age: Duration) -> bool {
        let seconds = u64::try_from(self.changed.0).unwrap_or(0);
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_secs(1);
        changed.elapsed().is_ok_and(|elapsed| elapsed >= age)
    }
}

/// The known state of one file.
#[derive(Debug)]
struct TrackedFile {
    /// The stamp of the last successful read; `None`: never read, or the last read failed.
    last_read: Option<Stamp>,
    /// The stamp of the last scan, which is unchanged since `since`. `None`: the file was missing.
    last_seen: Option<Stamp>,
    since: Instant,
}

/// Files that a scan could not settle.
#[derive(Debug, Default)]
pub(super) struct UnsettledFiles {
    /// Files that are changing and need another scan.
    pub(super) files: Vec<Arc<str>>,
    /// Some missing files may return.
    pub(super) is_leaving: bool,
    /// The folder is unreadable.
    pub(super) is_blind: bool,
}

impl UnsettledFiles {
    /// Whether another scan is needed soon.
    pub(super) fn needs_rescan(&self) -> bool {
        self.is_leaving || !self.files.is_empty() || self.is_blind
    }
}

/// The files of a folder, tracked across scans.
#[derive(Debug)]
pub(super) struct FolderScanner<F> {
    folder: PathBuf,
    tracks: BTreeMap<Arc<str>, TrackedFile>,
    is_first: bool,
    files: PhantomData<fn() -> F>,
}

/// The present files of the folder.
type Listing = BTreeMap<Arc<str>, Result<Stamp, String>>;

impl<F: FileFormat> FolderScanner<F> {
    pub(super) fn new(folder: PathBuf) -> Self {
        Self { folder, tracks: BTreeMap::new(), is_first: true, files: PhantomData }
    }

    /// Scans once, reads the ready files, and clears the settled events in `changes`.
    pub(super) fn scan_folder(
        &mut self,
        changes: &mut PendingChanges,
    ) -> (FolderScan<F::Contents>, UnsettledFiles) {
        match list_folder::<F>(&self.folder) {
            Ok(listing) => self.scan_listing(&listing, changes),
            Err(reason) => {
                let reading = FolderScan { present: Err(reason), files: Vec::new() };
                (reading, UnsettledFiles { is_blind: true, ..UnsettledFiles::default() })
            }
        }
    }

    fn scan_listing(
        &mut self,
        listing: &Listing,
        changes: &mut PendingChanges,
    ) -> (FolderScan<F::Contents>, UnsettledFiles) {
        let now = Instant::now();
        let gone = self.missing_stamps(listing);
        let mut files = Vec::new();
        let mut unready = Vec::new();
        for (file, stamp) in listing {
            let Ok(stamp) =
                stamp.as_ref().map_err(|reason| files.push((Arc::clone(file), Err(reason.clone()))))
            else {
                continue;
            };
            if self.is_read(file, stamp) && !changes.closed.contains(file) {
                continue;
            }
            let is_moved = gone.iter().any(|gone| stamp.is_moved_from(gone));
            let is_ready = self.update_readiness(file, stamp, changes, now) || is_moved;
            match is_ready.then(|| self.read_file(file, stamp)).flatten() {
                Some(contents) => files.push((Arc::clone(file), contents)),
                None => unready.push(Arc::clone(file)),
            }
        }
        changes.closed.clear();
        self.is_first = false;
        let is_leaving = self.forget_missing(listing, now);
        let present = self.tracks.keys().chain(listing.keys()).cloned().collect();
        (
            FolderScan { present: Ok(present), files },
            UnsettledFiles { files: unready, is_leaving, is_blind: false },
        )
    }

    /// The stamps of files that were read under names that are missing now.
    fn missing_stamps(&self, listing: &Listing) -> Vec<Stamp> {
        let gone = self.tracks.iter().filter(|(file, _)| !listing.contains_key(*file));
        gone.filter_map(|(_, track)| track.last_read.clone()).collect()
    }

    fn is_read(&self, file: &Arc<str>, stamp: &Stamp) -> bool {
        self.tracks
            .get(file)
            .is_some_and(|track| track.last_read.as_ref() == Some(stamp) && track.last_seen.is_some())
    }

    fn update_readiness(
        &mut self,
        file: &Arc<str>,
        stamp: &Stamp,
        changes: &PendingChanges,
        now: Instant,
    ) -> bool {
        let is_old = self.is_first && stamp.is_older_than(SETTLE_TIME);
        let track = self.tracks.entry(Arc::clone(file)).or_insert(TrackedFile {
            last_read: None,
            last_seen: None,
            since: now,
        });
        if track.last_seen.as_ref() != Some(stamp) {
            track.last_seen = Some(stamp.clone());
            track.since = now;
        }
        let is_settled = now.duration_since(track.since) >= SETTLE_TIME;
        let is_turned = track.last_read.as_ref().is_some_and(|read| read.target != stamp.target);
        let is_complete = is_old || is_settled || is_turned;
        let is_closed = changes.closed.contains(file) && stamp.size > 0;
        is_closed || (is_complete && !changes.writing.contains(file))
    }

    /// Reads a file; `None` if it changed meanwhile: a process is writing it, and it will be ready later.
    fn read_file(&mut self, file: &Arc<str>, stamp: &Stamp) -> Option<Result<F::Contents, String>> {
        let path = self.folder.join(&**file);
        let bytes = read_unchanged(&path, stamp, F::FILE_BYTES_MAX).transpose()?;
        let track = self.tracks.get_mut(file)?;
        track.last_read = bytes.is_ok().then(|| stamp.clone());
        Some(decode_file::<F>(&self.folder, file, bytes))
    }

    /// Forgets files that were missing long enough or only renamed; returns whether others may return.
    fn forget_missing(&mut self, listing: &Listing, now: Instant) -> bool {
        let is_renamed = |read: &Stamp| listing.values().flatten().any(|stamp| stamp.is_moved_from(read));
        let mut is_leaving = false;
        self.tracks.retain(|file, track| {
            if listing.contains_key(file) {
                return true;
            }
            if track.last_seen.take().is_some() {
                track.since = now;
            }
            let is_gone = now.duration_since(track.since) >= SETTLE_TIME
                || track.last_read.as_ref().is_some_and(is_renamed);
            is_leaving |= !is_gone;
            !is_gone
        });
        is_leaving
    }
}

fn decode_file<F: FileFormat>(
    folder: &Path,
    file: &Arc<str>,
    read: io::Result<ReadFile>,
) -> Result<F::Contents, String> {
    let ReadFile { bytes, author } = read.map_err(|error| format!("cannot be read: {error}"))?;
    F::decode(folder, file, &bytes, author)
}

/// A file that was read whole.
struct ReadFile {
    bytes: Vec<u8>,
    author: FileAuthor,
}

fn list_folder<F: FileFormat>(folder: &Path) -> Result<Listing, String> {
    let refusal = |error: io::Error| format!("the folder cannot be read: {error}");
    let mut listing = Listing::new();
    for entry in fs::read_dir(folder).map_err(refusal)? {
        let name: OsString = entry.map_err(refusal)?.file_name();
        if !is_readable_name(&name, F::ENDINGS) {
            continue;
        }
        if listing.len() >= FILES_MAX {
            let named = F::NAMED;
            return Err(format!(
                "the folder has more than {FILES_MAX} {named}, which is the most that are read"
            ));
        }
        let looked_at = match file_name(&name, F::ENDINGS) {
            Some(file) => stamp_path(&folder.join(&*file)).map(|stamp| (file, stamp)),
            None => Some((escape_name(&name), Err(NOT_UTF8.to_owned()))),
        };
        listing.extend(looked_at);
    }
    limit_total_size(&mut listing, F::FOLDER_BYTES_MAX, F::FILE_BYTES_MAX);
    Ok(listing)
}

/// Rejects the files beyond the folder's limit in order of name, so that each scan rejects the same ones. A file that
/// is too large itself is never read, so it does not count.
fn limit_total_size(listing: &mut Listing, bytes_max: u64, file_bytes_max: usize) {
    let mut total = 0_u64;
    for stamp in listing.values_mut() {
        let read = stamp.as_ref().map_or(0, |stamp| stamp.size);
        let size = if usize::try_from(read).is_ok_and(|read| read <= file_bytes_max) { read } else { 0 };
        if total.saturating_add(size) <= bytes_max {
            total += size;
        } else {
            *stamp = Err(format!(
                "is not read: with the files before it, by name, it has more than {bytes_max} bytes, which is the most \
                 that is read of a folder"
            ));
        }
    }
}

const NOT_UTF8: &str = "has a name that is not UTF-8, so it is not read; rename it";

/// The reason shown for a link that would make this daemon read a file that the link's owner may not.
const FOREIGN_LINK: &str = "is a link whose owner does not own the target, so it is not followed; let root or the \
                               target's owner create it";

/// Whether a link may be followed, by the owners of link and target. This daemon can read any file and shows its errors
/// to all users, but those who can write to the folder need not be root.
fn can_follow_link(link: &Metadata, to: &Metadata) -> bool {
    [0, nix::unistd::geteuid().as_raw(), to.uid()].contains(&link.uid())
}

/// The stamp of a file. `None` for a missing name or a folder; an error for what is never opened, such as a pipe or a
/// device, for a dangling or foreign link, and for a failed `stat`, which does not prove that the file is gone.
fn stamp_path(path: &Path) -> Option<Result<Stamp, String>> {
    let own = match fs::symlink_metadata(path) {
        Ok(own) => own,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => return Some(Err(format!("cannot be read: {error}"))),
    };
    if !own.is_symlink() {
        return stamp_file(&own, None);
    }
    match fs::canonicalize(path).and_then(|target| Ok((fs::metadata(path)?, target))) {
        Ok((metadata, _)) if !can_follow_link(&own, &metadata) => Some(Err(FOREIGN_LINK.to_owned())),
        Ok((metadata, target)) => stamp_file(&metadata, Some(target)),
        Err(error) => Some(Err(format!("cannot be read: {error}"))),
    }
}

fn stamp_file(metadata: &Metadata, target: Option<PathBuf>) -> Option<Result<Stamp, String>> {
    let kind = metadata.file_type();
    let what = match () {
        () if kind.is_file() => return Some(Ok(Stamp::new(metadata, target))),
        () if kind.is_dir() => return None,
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    let link = if target.is_some() { "leads to" } else { "is" };
    Some(Err(format!("{link} {what}, so it is not read; only files are, and links to files")))
}

/// Reads the whole file; `None` if it differs from the stamp, or changes meanwhile.
fn read_unchanged(path: &Path, stamp: &Stamp, bytes_max: usize) -> io::Result<Option<ReadFile>> {
    // A pipe that replaced the file must not block the thread.
    let mut file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    let is_same =
        |file: &File| Ok::<bool, io::Error>(Stamp::new(&file.metadata()?, stamp.target.clone()) == *stamp);
    if !is_same(&file)? {
        return Ok(None);
    }
    let author = FileAuthor::from_metadata(&file.metadata()?);
    let bytes = read_bounded(&mut file, stamp.size, bytes_max)?;
    // A new owner or mode also changes the stamp.
    Ok(is_same(&file)?.then_some(ReadFile { bytes, author }))
}

fn read_bounded(file: &mut File, size: u64, bytes_max: usize) -> io::Result<Vec<u8>> {
    let too_large =
        || io::Error::other(format!("it has more than {bytes_max} bytes, which is the most that is read"));
    let capacity = usize::try_from(size).ok().filter(|size| *size <= bytes_max).ok_or_else(too_large)?;
    let mut bytes = Vec::with_capacity(capacity);
    file.take(size + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether the folder can be read at the start.
pub(super) fn probe_folder<F: FileFormat>(folder: &Path) -> Result<(), String> {
    list_folder::<F>(folder).map(drop)
}

/// Reads the folder once, for a check without a daemon.
pub fn read_folder<F: FileFormat>(folder: &Path) -> Result<FolderScan<F::Contents>, String> {
    let listing = list_folder::<F>(folder)?;
    let present = listing.keys().cloned().collect();
    let read = |(file, stamp): (Arc<str>, Result<Stamp, String>)| {
        let contents = stamp.and_then(|stamp| {
            let bytes = read_unchanged(&folder.join(&*file), &stamp, F::FILE_BYTES_MAX);
            let bytes = bytes.transpose().unwrap_or_else(|| Err(io::Error::other("it is being written")));
            decode_file::<F>(folder, &file, bytes)
        });
        (file, contents)
    };
    Ok(FolderScan { present: Ok(present), files: listing.into_iter().map(read).collect() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, lchown, symlink};

    use holdfast_objects::manifests::Folder;

    use super::*;

    const ANOTHER: u32 = 61_183;

    #[test]
    fn files_beyond_the_folders_limit_are_refused() {
        let folder = tempfile::TempDir::new().unwrap();
        let own = fs::symlink_metadata(folder.path()).unwrap();
        let sized = |(name, size): (&str, u64)| -> (Arc<str>, Result<Stamp, String>) {
            (name.into(), Ok(Stamp { size, ..Stamp::new(&own, None) }))
        };
        let sizes = [("a", 40), ("b", 25), ("c", 24), ("d", u64::MAX), ("e", 0)];
        let bounded = |file_bytes_max| {
            let mut listing: Listing = sizes.into_iter().map(sized).collect();
            limit_total_size(&mut listing, 64, file_bytes_max);
            listing
        };
        let read = |listing: &Listing| {
            let read = listing.iter().filter(|(_, it)| it.is_ok()).map(|(name, _)| name.to_string());
            read.collect::<Vec<_>>().concat()
        };
        let listing = bounded(usize::MAX);
        assert_eq!(read(&listing), "ace");
        let refused = listing["b"].as_ref().unwrap_err();
        assert!(refused.contains("more than 64 bytes"), "{refused}");
        assert_eq!(read(&bounded(39)), "abcde", "a file that is too large itself is refused when it is read");
    }

    /// A sparse file of this size takes no space on a disk.
    #[test]
    fn a_too_large_file_does_not_count_against_others() {
        let folder = tempfile::TempDir::new().unwrap();
        let huge = File::create(folder.path().join("00.yaml")).unwrap();
        huge.set_len(Folder::FOLDER_BYTES_MAX).unwrap();
        fs::write(folder.path().join("01.yaml"), "---\n").unwrap();
        let look = read_folder::<Folder>(folder.path()).unwrap();
        let refused =
            look.files.iter().filter_map(|(file, read)| Some((&**file, read.as_ref().err()?.as_str())));
        let most = Folder::FILE_BYTES_MAX;
        let why = format!("cannot be read: it has more than {most} bytes, which is the most that is read");
        assert_eq!(refused.collect::<Vec<_>>(), [("00.yaml", why.as_str())]);
    }

    /// All users see an excerpt of an invalid file, and this daemon can read any file.
    #[test]
    fn kernel_a_link_to_a_file_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for (name, owner) in [("secret", 0), ("own", ANOTHER)] {
            fs::write(at(name), "[s3cret").unwrap();
            chown(at(name), Some(owner), None).unwrap();
            for (link, linked_by) in [("by-root", 0), ("by-another", ANOTHER)] {
                let link = at(&format!("{name}-{link}.yaml"));
                symlink(at(name), &link).unwrap();
                lchown(&link, Some(linked_by), None).unwrap();
            }
        }
        let look = read_folder::<Folder>(folder.path()).unwrap();
        let refused = |(file, contents): (Arc<str>, Result<_, String>)| {
            contents.is_err_and(|why| why == FOREIGN_LINK).then(|| file.to_string())
        };
        assert_eq!(
            look.files.into_iter().filter_map(refused).collect::<Vec<_>>(),
            ["secret-by-another.yaml"]
        );
    }
}
