//! Where a program's memory comes from, and how what was freed goes back to the kernel.
//!
//! Invariant: memory that was freed counts as the daemon's for a second or two at most, and no thread waits for its
//! return: with 100,000 services a snapshot or a whole list frees a tenth of all there is. A program that does not
//! name the allocator has the one of its C library.

#![allow(unsafe_code)]

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
pub use std::alloc::System as Allocator;

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
pub use tikv_jemallocator::Jemalloc as Allocator;

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod jemalloc {
    use std::ffi::{CStr, c_char};
    use std::sync::atomic::AtomicPtr;

    /// What jemalloc reads before the first allocation. Few threads allocate much at the same time, and each arena more
    /// keeps memory of its own. A thread of jemalloc's gives pages back a second after they were freed.
    const SETTINGS: &CStr = c"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0,background_thread:true";

    // SAFETY: jemalloc declares a weak pointer to characters by this name, for programs to define, and only reads it.
    #[unsafe(export_name = "_rjem_malloc_conf")]
    static JEMALLOC_CONF: AtomicPtr<c_char> = AtomicPtr::new(SETTINGS.as_ptr().cast_mut());
}

/// Gives the kernel back what was freed, where the allocator keeps it for what may come. It takes tens of milliseconds
/// with 100,000 services, and others who allocate wait for a part of it.
pub fn release_free_memory() {
    #[cfg(all(target_env = "gnu", not(target_arch = "x86_64")))]
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
