//! One hash map of the kernel, with the number of its entries.
//!
//! Invariant: the number counts what this daemon put in and what it found at its start. Batches are read by a call of
//! our own, because libbpf-rs takes a short batch for the last one and so loses entries.

use std::io;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::bpf_syscall;

/// The most entries of one batch. The kernel gives whole buckets, so a batch may be short without being the last.
const BATCH: u32 = 4096;

/// Enough that a system call itself does not count, and few enough that its buffers stay in the processor's cache.
pub(crate) const BATCH_KEYS_MAX: usize = 256;

/// Puts keys into a hash map, all with that value, many by one system call. A key that finds no room is left out, and
/// keeps no other one out.
pub(crate) fn put_many(map: &MapHandle, keys: &[u8], value: &[u8]) {
    let size = (map.key_size() as usize).max(1);
    let values = value.repeat(BATCH_KEYS_MAX);
    let mut left = keys;
    while let Some((batch, _)) = left.split_at_checked(left.len().min(BATCH_KEYS_MAX * size))
        && !batch.is_empty()
    {
        let mut done = update_batch(map, batch, &values, batch.len() / size) * size;
        // The one that was refused goes alone: this kernel may take none together.
        if let Some(key) = batch.get(done..done + size) {
            let _ = map.update(key, value, MapFlags::ANY);
            done += size;
        }
        left = left.get(done..).unwrap_or_default();
    }
}

/// Puts so many entries into a hash map, up to the first that is refused. Gives how many were put in.
fn update_batch(map: &MapHandle, keys: &[u8], values: &[u8], all: usize) -> usize {
    let Ok(all) = u32::try_from(all) else { return 0 };
    let mut count = all;
    let written = bpf_syscall::update_batch(map, keys, values, &mut count);
    // A refusal of the call itself leaves the count as it was.
    if written.is_ok() || count < all { count as usize } else { 0 }
}

/// Deletes keys of a hash map, some of which may be gone already. One that is refused keeps no other one there.
pub(crate) fn delete_many(map: &MapHandle, keys: &[u8]) {
    let size = (map.key_size() as usize).max(1);
    let mut left = keys;
    while !left.is_empty() {
        let (deleted, error) = delete_batch(map, left, left.len() / size);
        let refused =
            left.get(deleted * size..).and_then(|left| left.get(..size)).filter(|_| error.is_some());
        // It goes alone: this kernel may delete none together.
        refused.into_iter().for_each(|key| drop(map.delete(key)));
        let done = deleted + usize::from(refused.is_some());
        left = left.get(done.max(1) * size..).unwrap_or_default();
    }
}

/// Deletes keys of a hash map, up to the first that is not there or is refused. Gives how many were deleted, and the
/// error of the next one.
fn delete_batch(map: &MapHandle, keys: &[u8], all: usize) -> (usize, Option<io::Error>) {
    let Ok(all) = u32::try_from(all) else { return (0, Some(io::ErrorKind::InvalidInput.into())) };
    let mut count = all;
    let error = bpf_syscall::delete_batch(map, keys, &mut count).err();
    // A refusal of the call itself leaves the count as it was.
    let deleted = if error.is_none() || count < all { count } else { 0 };
    (deleted as usize, error)
}

/// One hash map of the kernel, open.
#[derive(Debug)]
pub(crate) struct Table {
    map: MapHandle,
    used: u32,
}

/// Key and value, as bytes.
pub(crate) type RawEntry = (Box<[u8]>, Box<[u8]>);

impl Table {
    /// A map with entries that are not counted yet.
    pub(crate) fn new(map: MapHandle) -> Self {
        Self { map, used: 0 }
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Counts the entries that [`Self::parse_entries`] has found.
    pub(crate) fn set_used(&mut self, used: usize) {
        self.used = u32::try_from(used).unwrap_or(u32::MAX);
    }

    /// Inserts, or replaces in one step: a lookup meanwhile finds the old or the new value.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), libbpf_rs::Error> {
        match self.map.update(key, value, MapFlags::NO_EXIST) {
            Ok(()) => {
                self.used = self.used.saturating_add(1);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                self.map.update(key, value, MapFlags::ANY)
            }
            Err(error) => Err(error),
        }
    }

    /// Inserts keys that are not there, up to the first that is refused. Gives how many were inserted. A key that was
    /// there after all is replaced, and counts twice.
    pub(crate) fn put_new(&mut self, keys: &[u8], values: &[u8]) -> usize {
        let all = keys.len() / self.map.key_size() as usize;
        if all == 0 || values.len() != all * self.map.value_size() as usize {
            return 0;
        }
        let accepted = update_batch(&self.map, keys, values, all);
        self.used = self.used.saturating_add(u32::try_from(accepted).unwrap_or(u32::MAX));
        accepted
    }

    /// The value of a key.
    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.map.lookup(key, MapFlags::ANY).ok()?
    }

    /// Removes an entry, which may be gone already. `true`: it was there.
    pub(crate) fn remove(&mut self, key: &[u8]) -> Result<bool, libbpf_rs::Error> {
        match self.map.delete(key) {
            Ok(()) => {
                self.used = self.used.saturating_sub(1);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes keys, some of which may be gone already, up to the first that is refused. Gives how many are certainly
    /// not there any more.
    pub(crate) fn remove_many(&mut self, keys: &[u8]) -> usize {
        let size = self.map.key_size() as usize;
        let mut done = 0;
        while let Some(left) = keys.get(done * size..).filter(|left| !left.is_empty()) {
            let (removed, error) = delete_batch(&self.map, left, left.len() / size);
            self.used = self.used.saturating_sub(u32::try_from(removed).unwrap_or(u32::MAX));
            done += removed;
            match error {
                Some(error) if error.raw_os_error() == Some(libc::ENOENT) => done += 1,
                Some(_) => break,
                None => {}
            }
        }
        done.min(keys.len() / size)
    }

    /// Copies every entry into an empty map.
    pub(crate) fn copy_to(&self, to: &mut Self) -> io::Result<()> {
        let mut batch = BatchCursor::new(&self.map);
        while let Some(count) = batch.read_next(&self.map)? {
            batch.write_batch(count, &to.map)?;
            to.used = to.used.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    /// A walk over the entries.
    pub(crate) fn walk(&self) -> io::Result<MapWalk> {
        MapWalk::new(&self.map).map_err(|error| io::Error::other(format!("{error:#}")))
    }

    /// Every entry, in no order.
    pub(crate) fn entries(&self) -> io::Result<Vec<RawEntry>> {
        let mut batch = BatchCursor::new(&self.map);
        let mut entries = Vec::new();
        while let Some(count) = batch.read_next(&self.map)? {
            entries.extend(batch.entries(count));
        }
        Ok(entries)
    }
}

/// A walk over a map of any size, in pieces. An entry that is there all the time is met, whatever comes and goes.
#[derive(Debug)]
pub(crate) struct MapWalk {
    map: MapHandle,
    batch: BatchCursor,
}

impl MapWalk {
    pub(crate) fn new(map: &MapHandle) -> Result<Self, libbpf_rs::Error> {
        Ok(Self { map: MapHandle::try_from(map)?, batch: BatchCursor::new(map) })
    }

    /// Shows the entries of the next piece, a few thousand at most. `false`: there are no more.
    pub(crate) fn visit_piece(&mut self, mut each: impl FnMut(&[u8], &[u8])) -> io::Result<bool> {
        let Some(count) = self.batch.read_next(&self.map)? else { return Ok(false) };
        self.batch.slices(count).for_each(|(key, value)| each(key, value));
        Ok(true)
    }
}

/// The buffers and the cursor of a walk.
#[derive(Debug)]
struct BatchCursor {
    key_size: usize,
    value_size: usize,
    keys: Vec<u8>,
    values: Vec<u8>,
    capacity: u32,
    // The kernel wants room for its cursor: 4 bytes for hash maps.
    at: Option<u64>,
    ended: bool,
}

impl BatchCursor {
    fn new(map: &MapHandle) -> Self {
        let key_size = map.key_size() as usize;
        let value_size = map.value_size() as usize;
        let mut batch =
            Self { key_size, value_size, keys: vec![], values: vec![], capacity: 0, at: None, ended: false };
        batch.resize_buffers(BATCH);
        batch
    }

    fn resize_buffers(&mut self, room: u32) {
        self.capacity = room;
        self.keys.resize(room as usize * self.key_size, 0);
        self.values.resize(room as usize * self.value_size, 0);
    }

    /// Reads on. `None`: that was all.
    fn read_next(&mut self, map: &MapHandle) -> io::Result<Option<usize>> {
        while !self.ended {
            let mut next = self.at.unwrap_or_default();
            let mut count = self.capacity;
            match self.read_batch(map, &mut next, &mut count) {
                Ok(()) => self.at = Some(next),
                // The last batch comes with this error.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => self.ended = true,
                // One bucket alone is larger than the buffers.
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    self.resize_buffers(self.capacity.saturating_mul(2));
                    continue;
                }
                Err(error) => return Err(error),
            }
            return Ok(Some(count as usize));
        }
        Ok(None)
    }

    fn read_batch(&mut self, map: &MapHandle, next: &mut u64, count: &mut u32) -> io::Result<()> {
        let entries = (self.keys.as_mut_slice(), self.values.as_mut_slice());
        bpf_syscall::lookup_batch(map, self.at.as_ref(), next, entries, count)
    }

    fn write_batch(&self, count: usize, to: &MapHandle) -> io::Result<()> {
        let (Some(keys), Some(values)) =
            (self.keys.get(..count * self.key_size), self.values.get(..count * self.value_size))
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        if count == 0 {
            return Ok(());
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let written = to.update_batch(keys, values, count, MapFlags::ANY, MapFlags::ANY);
        written.map_err(|error| io::Error::other(format!("{error:#}")))
    }

    fn entries(&self, count: usize) -> impl Iterator<Item = RawEntry> {
        self.slices(count).map(|(key, value)| (key.into(), value.into()))
    }

    fn slices(&self, count: usize) -> impl Iterator<Item = (&[u8], &[u8])> {
        let keys = self.keys.chunks_exact(self.key_size);
        let values = self.values.chunks_exact(self.value_size);
        keys.zip(values).take(count)
    }
}

#[cfg(test)]
mod tests;
