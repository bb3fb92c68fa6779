//! TCP to an apiserver: marked, so that nobody's programs translate it, and never idle without being probed.
//!
//! Invariant: the mark is set before the connect. Deliberately absent: names; there is nothing to resolve.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpSocket, TcpStream};

use super::limits::{KEEPALIVE, KEEPALIVE_PROBES, USER_TIMEOUT};
use super::trouble::Trouble;

/// Set once it is known that the system does not let us mark sockets, so that it is said only once.
static UNMARKED: AtomicBool = AtomicBool::new(false);

/// A connection, without TLS and without a time limit of its own.
pub(super) async fn connect(address: SocketAddr, mark: Option<u32>) -> Result<TcpStream, Trouble> {
    let made = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = made.map_err(|error| Trouble::of_connect(&error))?;
    if let Some(mark) = mark {
        set_mark(&socket, mark);
    }
    // Each option makes a dead peer known sooner; without one of them the connection still works.
    let _ = socket.set_nodelay(true);
    let _ = socket.set_keepalive(true);
    let stream = socket.connect(address).await.map_err(|error| Trouble::of_connect(&error))?;
    if matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer) {
        // A dial to a free port of this host can meet itself.
        return Err(Trouble::Refused);
    }
    probe_when_idle(&stream);
    Ok(stream)
}

/// Without the mark the daemon's cgroup still exempts it, where that is known to the programs.
fn set_mark(socket: &TcpSocket, mark: u32) {
    if let Err(error) = setsockopt(socket, sockopt::Mark, &mark)
        && !UNMARKED.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(%error, "cannot mark sockets to the apiserver (CAP_NET_ADMIN); going on without");
    }
}

fn probe_when_idle(stream: &TcpStream) {
    let seconds = u32::try_from(KEEPALIVE.as_secs()).unwrap_or(u32::MAX);
    let user_timeout = u32::try_from(USER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    // As above: a kernel that refuses one of them leaves a connection that works.
    let _ = setsockopt(stream, sockopt::TcpKeepIdle, &seconds);
    let _ = setsockopt(stream, sockopt::TcpKeepInterval, &seconds);
    let _ = setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES);
    let _ = setsockopt(stream, sockopt::TcpUserTimeout, &user_timeout);
}
