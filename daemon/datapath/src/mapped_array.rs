//! Arrays of the kernel, mapped into memory as 64-bit words.
//!
//! Invariant: every access is atomic, so programs on other processors see a word before or after a store, never half of
//! it. [`crate::abi`] defines what the words mean.

#![allow(unsafe_code)]

use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use libbpf_rs::MapCore;

#[derive(Debug)]
pub(crate) struct MappedArray {
    // Atomic, because threads share it like the words; it never changes.
    words: AtomicPtr<AtomicU64>,
    len: usize,
}

impl MappedArray {
    /// Maps a whole array with a value size that is a multiple of 8 bytes.
    pub(crate) fn new(map: &impl MapCore) -> io::Result<Self> {
        let bytes = map.max_entries() as usize * map.value_size() as usize;
        // SAFETY: a new mapping at an address that the kernel chooses touches no existing memory.
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
        // SAFETY: `new` made this mapping, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.words.get_mut().cast(), self.len * size_of::<u64>()) };
    }
}
