//! The file: a magic, a version, and records, each with its own checksum. The file that it replaced stays next to it.
//!
//! Invariant: `store` leaves the old file or the whole new one, on disk and not only in a cache. `load` returns all
//! records that are as stored, and whether those are all. A service that is too large is omitted and named, and
//! affects no other. A file of another version is not read.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use holdfast_core::snapshot::Snapshot;

use super::codec;
use super::damage::{LoadError, OmittedServices, SnapshotFile};
use super::frames::{self, Frames, RECORD_BYTES_MAX, RecordKind};
use super::parallel_decoder::DecoderPool;
use super::{SnapshotContext, VERSION};

const MAGIC: &[u8; 12] = b"holdfast\0\0\0\n";

/// The offset of the first record.
pub(super) const BODY: u64 = MAGIC.len() as u64 + 4;

/// Only root may read the file: it names every service of the cluster.
const MODE: u32 = 0o600;

/// Why the file could not be written. The former file stays.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct StoreError {
    /// The file or folder.
    pub path: PathBuf,
    #[source]
    pub source: io::Error,
}

/// The outcome of a successful write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreOutcome {
    /// The size of the file.
    pub bytes: u64,
    /// Services that are too large to be written.
    pub left_out: OmittedServices,
}

/// Writes a new file next to the old one, and renames it over the old one once it is on disk. The old one stays as
/// `before`, in case the new one gets damaged, unless it was found `damaged` itself, or is of another format. `most`
/// limits the bytes of one service.
pub(super) fn store(
    folder: &Path,
    (name, before, damaged): (&str, &str, &str),
    context: &SnapshotContext,
    snapshot: &Snapshot,
    most: u32,
) -> Result<StoreOutcome, StoreError> {
    let fresh = folder.join(format!("{name}.new"));
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| StoreError { path, source }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    let written = write(&fresh, context, snapshot, most)
        .inspect_err(|_| drop(fs::remove_file(&fresh)))
        .map_err(failed(&fresh))?;
    let [path, before, damaged] = [name, before, damaged].map(|name| folder.join(name));
    if !is_same_file(&path, &damaged) && check_version(&path).is_ok() {
        keep_copy(&path, &before).map_err(failed(&before))?;
    }
    fs::rename(&fresh, &path).map_err(failed(&fresh))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed(folder))?;
    Ok(written)
}

/// Gives the file a second name, replacing the file of that name. It never loses the first name. Without a file the
/// other one stays.
pub(super) fn keep_copy(path: &Path, second: &Path) -> io::Result<()> {
    if !path.try_exists()? {
        return Ok(());
    }
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    fs::remove_file(second).or_else(|error| if is_missing(&error) { Ok(()) } else { Err(error) })?;
    fs::hard_link(path, second)
}

/// Gives a file that cannot be used its second name. A folder or the like, which cannot have two names, is renamed,
/// because it has no content to read, and would block the new file.
pub(super) fn set_aside(path: &Path, second: &Path) -> io::Result<()> {
    keep_copy(path, second).or_else(|_| fs::rename(path, second))
}

fn is_same_file(path: &Path, other: &Path) -> bool {
    let identity = |path| fs::symlink_metadata(path).map(|it| (it.dev(), it.ino())).ok();
    identity(path).is_some_and(|it| identity(other) == Some(it))
}

fn write(path: &Path, context: &SnapshotContext, snapshot: &Snapshot, most: u32) -> io::Result<StoreOutcome> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)?;
    let mut out = CountingWriter { inner: BufWriter::with_capacity(1 << 18, file), bytes: 0 };
    out.write_all(MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    let mut left_out = OmittedServices::default();
    codec::encode(context, snapshot, &mut |kind, key, record| {
        let length = u32::try_from(record.len()).ok();
        let most = if key.is_some() { most } else { RECORD_BYTES_MAX };
        match (length.filter(|length| *length <= most), key) {
            (Some(length), _) => frames::put_record(&mut out, kind, length, record),
            (None, Some(key)) => {
                left_out.add(key);
                let name = codec::encode_left_out(key)?;
                frames::put_record(
                    &mut out,
                    RecordKind::LeftOut,
                    name.len().try_into().unwrap_or(u32::MAX),
                    &name,
                )
            }
            (None, None) => Err(io::Error::other("the head is too large")),
        }
    })?;
    let bytes = out.bytes;
    out.inner.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    Ok(StoreOutcome { bytes, left_out })
}

/// Loads all whole records of the file, and whether those are all; `None` if there is no file.
pub(super) fn load(path: &Path) -> Result<Option<SnapshotFile>, LoadError> {
    let failed = |source| LoadError::Io { path: path.to_owned(), source };
    let length = match fs::metadata(path) {
        Ok(found) if found.is_file() => found.len(),
        Ok(_) => return Err(LoadError::Foreign(path.to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    check_version(path)?;
    let mut input = open(path).map_err(failed)?;
    skip(&mut input, BODY).map_err(failed)?;
    let mut found = SnapshotFile::default();
    let is_whole = load_frames(&mut Frames::new(input, BODY, length), &mut found).map_err(failed)?;
    found.is_damaged = !is_whole;
    Ok(Some(found))
}

/// Loads the whole records, and returns whether those are all.
fn load_frames(frames: &mut Frames<BufReader<File>>, found: &mut SnapshotFile) -> io::Result<bool> {
    let (mut record, mut last, mut is_whole) = (Vec::new(), None, true);
    let services = std::thread::scope(|scope| {
        let mut decoding = DecoderPool::new(scope);
        while let Some(kind) = frames.next(&mut record)? {
            match kind {
                RecordKind::Service => decoding.push(&record),
                RecordKind::Head | RecordKind::Names | RecordKind::LeftOut => {
                    is_whole &= codec::decode_record(found, kind, &record).is_some();
                }
            }
            last = Some(kind);
        }
        io::Result::Ok(decoding.finish())
    })?;
    is_whole &= services.iter().all(Option::is_some);
    found.saved.remembered.services.extend(services.into_iter().flatten());
    Ok(is_whole && !frames.is_damaged && last == Some(RecordKind::Head))
}

/// Checks that this version of holdfast reads the file.
pub(super) fn check_version(path: &Path) -> Result<(), LoadError> {
    let mut head = [0; MAGIC.len() + 4];
    let mut input = open(path).map_err(|source| LoadError::Io { path: path.to_owned(), source })?;
    let foreign = || LoadError::Foreign(path.to_owned());
    input.read_exact(&mut head).map_err(|_| foreign())?;
    let (magic, version) = head.split_at(MAGIC.len());
    let found = u32::from_le_bytes(version.try_into().map_err(|_| foreign())?);
    match (magic == MAGIC, found == VERSION) {
        (true, true) => Ok(()),
        (true, false) => Err(LoadError::Version { path: path.to_owned(), found }),
        (false, _) => Err(foreign()),
    }
}

fn open(path: &Path) -> io::Result<BufReader<File>> {
    Ok(BufReader::with_capacity(1 << 18, File::open(path)?))
}

fn skip(input: &mut impl Read, bytes: u64) -> io::Result<()> {
    let skipped = io::copy(&mut input.take(bytes), &mut io::sink())?;
    if skipped == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

struct CountingWriter<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(data)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
