//! A hash map of the kernel with the count of its entries.
//!
//! Invariant: the count covers entries that this daemon inserted or found at its start. Batches are read by our own
//! call, because libbpf-rs takes a short batch for the last one and loses entries.

use std::io;

use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle};

use crate::bpf_syscall;

/// The most entries of one batch. The kernel returns whole buckets, so a short batch need not be the last one.
const BATCH: u32 = 4096;

/// Enough to make the system call's cost negligible, and small enough for the processor's cache.
pub(crate) const BATCH_KEYS_MAX: usize = 256;

/// Inserts keys into a hash map, all with that value, in batches. A refused key is left out, and the others follow.
pub(crate) fn put_many(map: &MapHandle, keys: &[u8], value: &[u8]) {
    let size = (map.key_size() as usize).max(1);
    let values = value.repeat(BATCH_KEYS_MAX);
    let mut left = keys;
    while let Some((batch, _)) = left.split_at_checked(left.len().min(BATCH_KEYS_MAX * size))
        && !batch.is_empty()
    {
        let mut done = update_batch(map, batch, &values, batch.len() / size) * size;
        // Insert the refused key alone: this kernel may have no batches.
        if let Some(key) = batch.get(done..done + size) {
            let _ = map.update(key, value, MapFlags::ANY);
            done += size;
        }
        left = left.get(done..).unwrap_or_default();
    }
}

/// Inserts so many entries into a hash map, up to the first refusal. Returns how many it inserted.
fn update_batch(map: &MapHandle, keys: &[u8], values: &[u8], all: usize) -> usize {
    let Ok(all) = u32::try_from(all) else { return 0 };
    let mut count = all;
    let written = bpf_syscall::update_batch(map, keys, values, &mut count);
    // A refused call leaves the count unchanged.
    if written.is_ok() || count < all { count as usize } else { 0 }
}

/// Deletes keys of a hash map; some may be missing. After a refused key the others follow.
pub(crate) fn delete_many(map: &MapHandle, keys: &[u8]) {
    let size = (map.key_size() as usize).max(1);
    let mut left = keys;
    while !left.is_empty() {
        let (deleted, error) = delete_batch(map, left, left.len() / size);
        let refused =
            left.get(deleted * size..).and_then(|left| left.get(..size)).filter(|_| error.is_some());
        // Delete it alone: this kernel may have no batches.
        refused.into_iter().for_each(|key| drop(map.delete(key)));
        let done = deleted + usize::from(refused.is_some());
        left = left.get(done.max(1) * size..).unwrap_or_default();
    }
}

/// Deletes keys of a hash map, up to the first that is missing or refused. Returns how many it deleted, and the error
/// of the next one.
fn delete_batch(map: &MapHandle, keys: &[u8], all: usize) -> (usize, Option<io::Error>) {
    let Ok(all) = u32::try_from(all) else { return (0, Some(io::ErrorKind::InvalidInput.into())) };
    let mut count = all;
    let error = bpf_syscall::delete_batch(map, keys, &mut count).err();
    // A refused call leaves the count unchanged.
    let deleted = if error.is_none() || count < all { count } else { 0 };
    (deleted as usize, error)
}

/// An open hash map of the kernel.
#[derive(Debug)]
pub(crate) struct Table {
    map: MapHandle,
    used: u32,
}

pub(crate) type RawEntry = (Box<[u8]>, Box<[u8]>);

impl Table {
    /// A map with entries that the table has not counted yet.
    pub(crate) fn new(map: MapHandle) -> Self {
        Self { map, used: 0 }
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// Sets the count to the number of found [`Self::entries`].
    pub(crate) fn set_used(&mut self, used: usize) {
        self.used = u32::try_from(used).unwrap_or(u32::MAX);
    }

    /// Inserts, or replaces in one step: a concurrent lookup finds the old or the new value.
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

    /// Inserts new keys up to the first refusal. Returns how many it inserted. A key that exists is replaced, and
    /// counts twice.
    pub(crate) fn put_new(&mut self, keys: &[u8], values: &[u8]) -> usize {
        let all = keys.len() / self.map.key_size() as usize;
        if all == 0 || values.len() != all * self.map.value_size() as usize {
            return 0;
        }
        let accepted = update_batch(&self.map, keys, values, all);
        self.used = self.used.saturating_add(u32::try_from(accepted).unwrap_or(u32::MAX));
        accepted
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.map.lookup(key, MapFlags::ANY).ok()?
    }

    /// Removes an entry, which may be missing. `true`: it existed.
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

    /// Removes keys up to the first refusal; some may be missing. Returns how many are certainly gone.
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

    pub(crate) fn copy_to(&self, to: &mut Self) -> io::Result<()> {
        let mut batch = BatchCursor::new(&self.map);
        while let Some(count) = batch.read_next(&self.map)? {
            batch.write_batch(count, &to.map)?;
            to.used = to.used.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        }
        Ok(())
    }

    pub(crate) fn walk(&self) -> io::Result<MapWalk> {
        MapWalk::new(&self.map).map_err(|error| io::Error::other(format!("{error:#}")))
    }

    pub(crate) fn entries(&self) -> io::Result<Vec<RawEntry>> {
        let mut batch = BatchCursor::new(&self.map);
        let mut entries = Vec::new();
        while let Some(count) = batch.read_next(&self.map)? {
            entries.extend(batch.entries(count));
        }
        Ok(entries)
    }
}

/// A walk over a map of any size, in pieces. It visits every entry that exists throughout.
#[derive(Debug)]
pub(crate) struct MapWalk {
    map: MapHandle,
    batch: BatchCursor,
}

impl MapWalk {
    pub(crate) fn new(map: &MapHandle) -> Result<Self, libbpf_rs::Error> {
        Ok(Self { map: MapHandle::try_from(map)?, batch: BatchCursor::new(map) })
    }

    /// Visits the next piece, a few thousand entries at most. `false`: there are no more.
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
    // The kernel's cursor; hash maps use 4 bytes of it.
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

    fn resize_buffers(&mut self, entries: u32) {
        self.capacity = entries;
        self.keys.resize(entries as usize * self.key_size, 0);
        self.values.resize(entries as usize * self.value_size, 0);
    }

    /// Reads the next batch. `None`: there is none.
    fn read_next(&mut self, map: &MapHandle) -> io::Result<Option<usize>> {
        while !self.ended {
            let mut next = self.at.unwrap_or_default();
            let mut count = self.capacity;
            match self.read_batch(map, &mut next, &mut count) {
                Ok(()) => self.at = Some(next),
                // The last batch comes with this error.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => self.ended = true,
                // A single bucket exceeds the buffers.
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
