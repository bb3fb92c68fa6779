//! Features that some kernels lack or refuse, so that tests can skip claims.
//!
//! Invariant: each skipped claim is printed on standard error, and so at the end of a run.

use std::io::{self, Write};
use std::net::UdpSocket;
use std::sync::mpsc;

use super::{bed, sweep, swept};

/// Whether this kernel reports a process's network namespace (`SO_NETNS_COOKIE`, Linux 5.14). Otherwise the machine's
/// first one counts as the node's.
pub(crate) fn knows_its_netns() -> bool {
    const SO_NETNS_COOKIE: i32 = 71;
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (mut cookie, mut length) = (0_u64, 8_u32);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    let value = (&raw mut cookie).cast();
    // SAFETY: the kernel writes at most eight bytes to the cookie.
    let returned = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, SO_NETNS_COOKIE, value, &raw mut length) };
    returned == 0
}

/// Whether a program may iterate the map of UDP sockets, by which the daemon finds what they have dialled. Some
/// hardened kernels refuse that (EPERM) even to root, like tracing of functions.
pub(crate) fn tells_what_sockets_keep() -> bool {
    let (tell, told) = mpsc::channel();
    bed(move |bed| {
        let mut maps = bed.start();
        sweep(&mut maps);
        tell.send(swept(&maps).failure).unwrap();
    });
    let refused = told.recv().unwrap().filter(|failure| failure.contains("Operation not permitted"));
    if refused.is_some() {
        // Bypasses the test harness, which shows only the output of failed tests.
        let mut told = io::stderr();
        let what = "this kernel lets no program see what sockets keep, so no UDP socket is ended";
        writeln!(told, "not tried: {what}").unwrap();
    }
    refused.is_none()
}
