//! What some kernels lack or refuse, so that a test knows what it can ask of this one.
//!
//! Invariant: a claim that is not tried for that is named on standard error, and so at the end of a run.

use std::io::{self, Write};
use std::net::UdpSocket;
use std::sync::mpsc;

use super::{bed, sweep, swept};

/// Whether this kernel tells a process which network namespace it is in (`SO_NETNS_COOKIE`, Linux 5.14). Where it does
/// not, the machine's first one counts as the node's.
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

/// Whether a program may look through what is kept with sockets, which is how the daemon learns what UDP sockets have
/// dialled. Some hardened kernels refuse that (EPERM) to root with every capability, as they do tracing of functions.
pub(crate) fn tells_what_sockets_keep() -> bool {
    let (tell, told) = mpsc::channel();
    bed(move |bed| {
        let mut maps = bed.start();
        sweep(&mut maps);
        tell.send(swept(&maps).failure).unwrap();
    });
    let refused = told.recv().unwrap().filter(|failure| failure.contains("Operation not permitted"));
    if refused.is_some() {
        // Past the test harness, which shows only what a failed test has said.
        let mut told = io::stderr();
        let what = "this kernel lets no program see what sockets keep, so no UDP socket is ended";
        writeln!(told, "not tried: {what}").unwrap();
    }
    refused.is_none()
}
