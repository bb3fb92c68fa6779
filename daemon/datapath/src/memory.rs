//! The allocator, and how freed memory returns to the kernel.
//!
//! Invariant: freed memory counts as the daemon's for at most a second or two, and no thread waits for its return: with
//! 100,000 services, a snapshot or list frees a tenth of all memory. A program that does not set the allocator uses its
//! C library's.

#![allow(unsafe_code)]

#[cfg(not(all(feature = "jemalloc", target_arch = "x86_64", target_env = "gnu")))]
pub use std::alloc::System as Allocator;

#[cfg(all(feature = "jemalloc", target_arch = "x86_64", target_env = "gnu"))]
pub use tikv_jemallocator::Jemalloc as Allocator;

#[cfg(all(feature = "jemalloc", target_arch = "x86_64", target_env = "gnu"))]
mod jemalloc {
    use std::ffi::{CStr, c_char};
    use std::sync::atomic::AtomicPtr;

    /// The options that jemalloc reads before the first allocation. Few threads allocate much at once, and each arena
    /// holds memory of its own. A background thread returns pages a second after they are freed.
    const SETTINGS: &CStr = c"narenas:2,dirty_decay_ms:1000,muzzy_decay_ms:0,background_thread:true";

    // SAFETY: jemalloc declares a weak pointer to characters by this name, for programs to define, and only reads it.
    #[unsafe(export_name = "_rjem_malloc_conf")]
    static JEMALLOC_CONF: AtomicPtr<c_char> = AtomicPtr::new(SETTINGS.as_ptr().cast_mut());
}

/// Returns freed memory to the kernel if the allocator does not. It takes tens of milliseconds with 100,000 services,
/// and delays other threads that allocate.
pub fn release_free_memory() {
    #[cfg(all(target_env = "gnu", not(all(feature = "jemalloc", target_arch = "x86_64"))))]
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
