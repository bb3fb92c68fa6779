//! TCP to an apiserver: exempt from translation, and never idle without being probed.
//!
//! Invariant: it is [`exempt::connect`] that dials.

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

use super::limits::{KEEPALIVE, KEEPALIVE_EVERY, KEEPALIVE_PROBES, USER_TIMEOUT};
use super::trouble::Trouble;
use crate::exempt;

/// A connection, without TLS and without a time limit of its own.
pub(super) async fn connect(address: SocketAddr) -> Result<TcpStream, Trouble> {
    let stream = exempt::connect(address).await.map_err(|error| Trouble::of_connect(&error))?;
    if matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer) {
        // A dial to a free port of this host can meet itself.
        return Err(Trouble::Refused);
    }
    notice_death(&stream);
    Ok(stream)
}

/// Sets the options by which a dead peer is noticed soon; an error is ignored, because the connection works without.
fn notice_death(stream: &TcpStream) {
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let user_timeout = u32::try_from(USER_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    let _ = stream.set_nodelay(true);
    let _ = setsockopt(stream, sockopt::KeepAlive, &true);
    let _ = setsockopt(stream, sockopt::TcpKeepIdle, &seconds(KEEPALIVE));
    let _ = setsockopt(stream, sockopt::TcpKeepInterval, &seconds(KEEPALIVE_EVERY));
    let _ = setsockopt(stream, sockopt::TcpKeepCount, &KEEPALIVE_PROBES);
    let _ = setsockopt(stream, sockopt::TcpUserTimeout, &user_timeout);
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::getsockopt;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_dead_peer_is_noticed_within_10_s() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect(listener.local_addr().unwrap()).await.unwrap();
        let idle = getsockopt(&stream, sockopt::TcpKeepIdle).unwrap();
        let interval = getsockopt(&stream, sockopt::TcpKeepInterval).unwrap();
        let count = getsockopt(&stream, sockopt::TcpKeepCount).unwrap();
        let noticed = idle + interval * count;
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap() && noticed < 10, "{noticed} s");
        let user_timeout = getsockopt(&stream, sockopt::TcpUserTimeout).unwrap();
        assert!(user_timeout < noticed * 1_000, "or one more probe is waited for: {user_timeout} ms");
        assert!(stream.nodelay().unwrap());
    }
}
