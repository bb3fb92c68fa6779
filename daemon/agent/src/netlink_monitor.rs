//! Notices of the kernel that something has changed which it lists.
//!
//! Invariant: the text of a notice is not read. Each notice is a reason to list again, and so is one that was lost.

use std::io;
use std::os::fd::OwnedFd;

use holdfast_datapath::netlink::{NetlinkFamily, subscribe};
use tokio::net::UnixDatagram;

/// The most bytes of one datagram of notices.
const NOTICES_BYTES_MAX: usize = 64 << 10;
/// Notices that are dropped at once, so that a storm of them does not go on for ever.
const NOTICES_MAX: usize = 4096;

/// A netlink socket, held as a Unix datagram socket because the runtime knows how to wait for one.
#[derive(Debug)]
pub(crate) struct NetlinkMonitor(UnixDatagram);

impl NetlinkMonitor {
    /// Notices of these groups, a bit for each.
    pub(crate) fn open(part: NetlinkFamily, groups: u32) -> io::Result<Self> {
        Self::from_socket(subscribe(part, groups)?)
    }

    /// Notices that come by a socket of netlink, which must not wait.
    pub(crate) fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        UnixDatagram::from_std(socket.into()).map(Self)
    }

    /// Waits for a notice.
    async fn wait_for_notice(&mut self) {
        if self.0.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Waits for a notice; for ever where the kernel gives none.
    pub(crate) async fn wait_if_open(notices: &mut Option<Self>) {
        match notices {
            Some(notices) => notices.wait_for_notice().await,
            None => std::future::pending().await,
        }
    }

    /// Drops the notices that have come by now, because the next listing covers them. Lost notices come as an error,
    /// which is dropped too.
    pub(crate) fn discard_pending(&mut self) {
        let mut datagram = vec![0; NOTICES_BYTES_MAX];
        for _ in 0..NOTICES_MAX {
            let taken = self.0.try_recv(&mut datagram);
            if taken.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
        }
    }
}
