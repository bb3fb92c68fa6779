//! Reserves record numbers in a file next to the records.
//!
//! Invariant: a number is used only after the file covers it, so no later process reuses it, whatever became of its
//! record. Numbers are reserved many at a time, and the file is overwritten in place, which a full disk allows. If
//! the file cannot be written at all, numbers are used anyway, because no record waits for a broken disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::segment::{FILE_MODE, FOLDER_MODE};

/// The name of the file, in the folder of the records.
pub(super) const FILE: &str = "numbers";

/// The first bytes of each copy: its writer's name, and the version of the format.
const MAGIC: [u8; 8] = *b"hfnums\0\x01";

/// Two copies, each in its own sector: at any moment of a write, the other one is whole.
const COPIES: usize = 2;
const COPY_BYTES: usize = 512;
const USED_BYTES: usize = 36;

/// The highest number that every JSON reader represents exactly. A thousand per second reach it in 285,000 years.
pub(super) const NUMBER_MAX: u64 = 1 << 53;

/// How many numbers are reserved at once: few in quiet times, because a crash turns unused ones into a gap; twice as
/// many each time that they are used up within [`FAST`].
const RESERVE_MIN: u64 = 256;
const RESERVE_MAX: u64 = 65_536;
const FAST: Duration = Duration::from_secs(1);

/// How long a record waits for its number. After that, progress matters more than the file.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The mark of the used numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NumberMark {
    /// Numbers from here on are unused.
    pub(super) below: u64,
    /// Whether all numbers below were used; otherwise some of the last ones may be unused.
    pub(super) is_exact: bool,
}

/// The file that reserves numbers.
#[derive(Debug)]
pub(super) struct NumberFile {
    path: PathBuf,
    file: Option<File>,
    /// Counts writes; the newest copy has the highest count.
    write_count: u64,
    reserve_size: u64,
    reserved: Option<Instant>,
}

impl NumberFile {
    /// Opens the file in this folder, and returns its mark. A missing or damaged file has no mark; an unreadable one
    /// is logged.
    pub(super) fn open(folder: &Path) -> (Self, Option<NumberMark>) {
        let path = folder.join(FILE);
        let found = read(&path).unwrap_or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                let file = path.display();
                tracing::warn!(%error, %file, "cannot read the file of used record numbers; using those in the snapshot");
            }
            Vec::new()
        });
        let copies = found.chunks(COPY_BYTES).filter_map(decode);
        let newest = copies.take(COPIES).max_by_key(|(turn, _)| *turn);
        let turn = newest.map_or(0, |(turn, _)| turn);
        (
            Self { path, file: None, write_count: turn, reserve_size: RESERVE_MIN, reserved: None },
            newest.map(|(_, mark)| mark),
        )
    }

    /// Reserves numbers beyond the used ones. Returns the first number that is not reserved.
    pub(super) fn reserve(&mut self, given: u64) -> io::Result<u64> {
        let is_fast = self.reserved.is_some_and(|at| at.elapsed() < FAST);
        self.reserve_size =
            if is_fast { self.reserve_size.saturating_mul(2).min(RESERVE_MAX) } else { RESERVE_MIN };
        let below = given.saturating_add(1).saturating_add(self.reserve_size);
        self.write_mark(NumberMark { below, is_exact: false })?;
        self.reserved = Some(Instant::now());
        Ok(below)
    }

    /// Writes a mark, and returns once it is on disk.
    pub(super) fn write_mark(&mut self, mark: NumberMark) -> io::Result<()> {
        let turn = self.write_count.saturating_add(1);
        let file = match self.file.take() {
            Some(file) => file,
            None => self.create_file()?,
        };
        file.write_all_at(&encode(turn, mark), turn % COPIES as u64 * COPY_BYTES as u64)?;
        file.sync_data()?;
        (self.write_count, self.file) = (turn, Some(file));
        Ok(())
    }

    fn create_file(&self) -> io::Result<File> {
        let folder = self.path.parent().unwrap_or(&self.path);
        fs::DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(folder)?;
        let is_new = !self.path.exists();
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).truncate(false).mode(FILE_MODE).open(&self.path)?;
        if is_new {
            // Allocate the whole file at once, while the disk has space.
            file.write_all_at(&[0; COPIES * COPY_BYTES], 0)?;
            File::open(folder)?.sync_all()?;
        }
        Ok(file)
    }
}

/// Reads both copies, and no further.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(COPIES * COPY_BYTES);
    File::open(path)?.take((COPIES * COPY_BYTES) as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn encode(turn: u64, mark: NumberMark) -> [u8; USED_BYTES] {
    let mut copy = Vec::with_capacity(USED_BYTES);
    copy.extend_from_slice(&MAGIC);
    for number in [turn, mark.below, u64::from(mark.is_exact)] {
        copy.extend_from_slice(&number.to_le_bytes());
    }
    copy.extend_from_slice(&crc32fast::hash(&copy).to_le_bytes());
    copy.try_into().unwrap_or([0; USED_BYTES])
}

fn decode(copy: &[u8]) -> Option<(u64, NumberMark)> {
    let (body, rest) = copy.split_at_checked(USED_BYTES - 4)?;
    let sum = u32::from_le_bytes(*rest.first_chunk()?);
    let body = body.strip_prefix(&MAGIC).filter(|_| crc32fast::hash(body) == sum)?;
    let (turn, body) = body.split_first_chunk()?;
    let (below, body) = body.split_first_chunk()?;
    let (is_exact, _) = body.split_first_chunk()?;
    let [turn, below, is_exact] = [turn, below, is_exact].map(|it| u64::from_le_bytes(*it));
    (below <= NUMBER_MAX).then_some((turn, NumberMark { below, is_exact: is_exact == 1 }))
}

/// Up to which number the recorder may use numbers; the writer thread sets it.
#[derive(Debug)]
pub(super) struct Reserve {
    state: Mutex<ReserveState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ReserveState {
    below: u64,
    /// Whether the file cannot be written; then no number waits for it.
    has_failed: bool,
}

impl Reserve {
    /// The reserve up to the file's number; `None` if the file cannot be written.
    pub(super) fn new(below: Option<u64>) -> Self {
        let state = ReserveState { below: below.unwrap_or_default(), has_failed: below.is_none() };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn wait_for(&self, number: u64) {
        let state = self.lock_state();
        if state.has_failed || number < state.below {
            return;
        }
        let waits = |state: &mut ReserveState| !state.has_failed && number >= state.below;
        if let Ok((mut state, waited)) = self.changed.wait_timeout_while(state, WAIT_MAX, waits) {
            state.has_failed |= waited.timed_out();
        }
    }

    /// Whether more numbers should be reserved.
    pub(super) fn is_short(&self, given: u64) -> bool {
        let state = self.lock_state();
        state.has_failed || given.saturating_add(RESERVE_MIN / 2) >= state.below
    }

    /// Sets the first number that may not be used yet; `None` if the file cannot be written.
    pub(super) fn set(&self, below: Option<u64>) {
        let mut state = self.lock_state();
        state.has_failed = below.is_none();
        state.below = below.unwrap_or(state.below);
        drop(state);
        self.changed.notify_all();
    }

    fn lock_state(&self) -> MutexGuard<'_, ReserveState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::clock::measure;
    use tempfile::TempDir;

    use super::*;

    #[test]
    fn the_last_written_mark_is_read_back() {
        let folder = TempDir::new().unwrap();
        let (mut numbers, found) = NumberFile::open(folder.path());
        assert_eq!(found, None);
        assert_eq!(numbers.reserve(7).unwrap(), 8 + RESERVE_MIN);
        assert_eq!(
            NumberFile::open(folder.path()).1,
            Some(NumberMark { below: 8 + RESERVE_MIN, is_exact: false })
        );
        numbers.write_mark(NumberMark { below: 9, is_exact: true }).unwrap();
        let (mut numbers, found) = NumberFile::open(folder.path());
        assert_eq!(found, Some(NumberMark { below: 9, is_exact: true }));
        numbers.write_mark(NumberMark { below: 10, is_exact: true }).unwrap();
        assert_eq!(NumberFile::open(folder.path()).1.unwrap().below, 10);
    }

    #[test]
    fn a_torn_copy_leaves_the_previous_one() {
        let folder = TempDir::new().unwrap();
        let (mut numbers, _) = NumberFile::open(folder.path());
        for below in [100, 200] {
            numbers.write_mark(NumberMark { below, is_exact: false }).unwrap();
        }
        let path = folder.path().join(FILE);
        for (copy, left) in [(0, Some(100)), (1, None)] {
            let mut bytes = fs::read(&path).unwrap();
            bytes[copy * 512 + 20] ^= 1;
            fs::write(&path, bytes).unwrap();
            assert_eq!(NumberFile::open(folder.path()).1.map(|mark| mark.below), left);
        }
    }

    #[test]
    fn an_unreadable_file_has_no_mark_and_trailing_bytes_are_ignored() {
        let folder = TempDir::new().unwrap();
        fs::create_dir(folder.path().join(FILE)).unwrap();
        assert_eq!(NumberFile::open(folder.path()).1, None);
        fs::remove_dir(folder.path().join(FILE)).unwrap();
        let (mut numbers, _) = NumberFile::open(folder.path());
        numbers.write_mark(NumberMark { below: 7, is_exact: true }).unwrap();
        let mut file = OpenOptions::new().append(true).open(folder.path().join(FILE)).unwrap();
        std::io::Write::write_all(&mut file, &encode(9, NumberMark { below: 99, is_exact: true })).unwrap();
        assert_eq!(NumberFile::open(folder.path()).1.map(|mark| mark.below), Some(7));
    }

    #[test]
    fn an_impossible_number_is_ignored() {
        let mark = NumberMark { below: u64::MAX, is_exact: true };
        assert_eq!(decode(&encode(1, mark)), None);
    }

    #[test]
    fn more_numbers_are_reserved_when_used_up_fast() {
        let folder = TempDir::new().unwrap();
        let (mut numbers, _) = NumberFile::open(folder.path());
        let rooms: Vec<u64> = (0..20).map(|_| numbers.reserve(0).unwrap() - 1).collect();
        assert_eq!((rooms[0], rooms[1], rooms[19]), (RESERVE_MIN, 2 * RESERVE_MIN, RESERVE_MAX));
    }

    #[test]
    fn no_record_waits_for_an_unwritable_file() {
        let reserve = Reserve::new(Some(1_000));
        assert!(!reserve.is_short(500) && reserve.is_short(999));
        reserve.set(None);
        let (wait, ()) = measure(|| Reserve::new(Some(1_000)).wait_for(1_000));
        let (many, ()) = measure(|| (1_000..1_200).for_each(|number| reserve.wait_for(number)));
        assert!(many < wait * 100, "two hundred numbers took {many:?}, and one wait {wait:?}");
        assert!(reserve.is_short(0), "the write is retried");
    }
}
