//! Receives the kernel's notices of changes to lists.
//!
//! Invariant: a notice's content is not read. Each notice is a reason to list again, and so is a lost one.

use std::io;
use std::os::fd::OwnedFd;

use holdfast_datapath::netlink::{NetlinkFamily, subscribe};
use tokio::net::UnixDatagram;

const NOTICES_BYTES_MAX: usize = 64 << 10;
/// The most notices dropped at once, so that a storm of them does not go on for ever.
const NOTICES_MAX: usize = 4096;

/// A netlink socket, wrapped as a Unix datagram socket because the runtime can wait for one.
#[derive(Debug)]
pub(crate) struct NetlinkMonitor(UnixDatagram);

impl NetlinkMonitor {
    /// Subscribes to these groups, a bit for each.
    pub(crate) fn open(part: NetlinkFamily, groups: u32) -> io::Result<Self> {
        Self::from_socket(subscribe(part, groups)?)
    }

    /// Wraps a non-blocking netlink socket.
    pub(crate) fn from_socket(socket: OwnedFd) -> io::Result<Self> {
        UnixDatagram::from_std(socket.into()).map(Self)
    }

    async fn wait_for_notice(&mut self) {
        if self.0.readable().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    pub(crate) async fn wait_if_open(notices: &mut Option<Self>) {
        match notices {
            Some(notices) => notices.wait_for_notice().await,
            None => std::future::pending().await,
        }
    }

    /// Drops the pending notices, because the next listing covers them. Lost notices appear as an error, which is
    /// dropped too.
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
