//! Whether the errno of a failed system call allows a retry.

/// Whether a failed system call may succeed on a retry: this host lacked a resource for a moment, and neither its
/// abilities nor the request were at fault.
pub const fn is_transient(errno: i32) -> bool {
    use libc::{EAGAIN, EBUSY, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM};
    matches!(errno, EAGAIN | EBUSY | EINTR | EMFILE | ENFILE | ENOBUFS | ENOMEM)
}
