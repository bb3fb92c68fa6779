//! Arrays of the kernel, mapped into memory as 64-bit words.
//!
//! Invariant: every access is atomic, so programs on other CPUs see a word before or after a store, never half of it.
//! What the words mean, [`crate::abi`] says.

#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libbpf_rs::MapCore;

/// One mapped array, word by word.
#[derive(Debug)]
pub(crate) struct MappedArray {
    // Atomic, because threads share it as they share the words; it never changes.
    words: AtomicPtr<AtomicU64>,
    len: usize,
}

impl MappedArray {
    /// Maps a whole array with values of a multiple of 8 bytes.
    pub(crate) fn new(map: &impl MapCore) -> io::Result<Self> {
        let bytes = map.max_entries() as usize * map.value_size() as usize;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { words: AtomicPtr::new(memory.cast()), len: bytes / size_of::<u64>() })
    }
}

impl Deref for MappedArray {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, has `len` words and lives as long as `self`; the kernel zeroed it first.
        unsafe { std::slice::from_raw_parts(self.words.load(Ordering::Relaxed), self.len) }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.words.get_mut().cast(), self.len * size_of::<u64>()) };
    }
}
