//! What the number of a failed system call says of another try.

/// Whether a system call that failed so may succeed when it is made again: it says what this host is short of at this
/// moment, and nothing of what the host can do or of what was asked.
pub const fn is_transient(errno: i32) -> bool {
    use libc::{EAGAIN, EBUSY, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(errno, EAGAIN | EBUSY | EINTR | EMFILE | ENFILE | ENOBUFS | ENOMEM)
}
