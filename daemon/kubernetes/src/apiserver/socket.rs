//! TCP to an apiserver: exempt from translation, and never idle without being probed.
//!
//! Invariant: it is [`exempt::connect`] that dials.

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

use super::limits::{
    GUARD_KEEPALIVE, GUARD_USER_TIMEOUT, KEEPALIVE, KEEPALIVE_EVERY, KEEPALIVE_PROBES, USER_TIMEOUT,
};
use super::trouble::Trouble;
use holdfast_host::exempt;

/// How soon a peer is noticed that does not answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    Soon,
    /// Others are led to this peer.
    AtOnce,
}

impl Notice {
    /// When a silent peer is probed, how far apart the probes are, and when it counts as dead.
    const fn times(self) -> [Duration; 3] {
        match self {
            Self::Soon => [KEEPALIVE, KEEPALIVE_EVERY, USER_TIMEOUT],
            Self::AtOnce => [GUARD_KEEPALIVE, GUARD_KEEPALIVE, GUARD_USER_TIMEOUT],
        }
    }
}

/// A connection, without TLS and without a time limit of its own.
pub(super) async fn connect(address: SocketAddr, notice: Notice) -> Result<TcpStream, Trouble> {
    let stream = exempt::connect(address).await.map_err(|error| Trouble::of_connect(&error))?;
    if matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer) {
        // A dial to a free port of this host can meet itself.
        return Err(Trouble::Refused);
    }
    notice_death(&stream, notice);
    Ok(stream)
}

/// Sets the options by which a dead peer is noticed soon; an error is ignored, because the connection works without.
fn notice_death(stream: &TcpStream, notice: Notice) {
    let [idle, apart, dead] = notice.times();
    let seconds = |time: Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    let user_timeout = u32::try_from(dead.as_millis()).unwrap_or(u32::MAX);
    let _ = stream.set_nodelay(true);
    let _ = setsockopt(stream, sockopt::KeepAlive, &true);
    let _ = setsockopt(stream, sockopt::TcpKeepIdle, &seconds(idle));
    let _ = setsockopt(stream, sockopt::TcpKeepInterval, &seconds(apart));
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
        check_notice(Notice::Soon, 10).await;
    }

    #[tokio::test]
    async fn a_dead_peer_that_others_are_led_to_is_noticed_before_a_third_probe() {
        check_notice(Notice::AtOnce, 4).await;
    }

    async fn check_notice(notice: Notice, within: u32) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect(listener.local_addr().unwrap(), notice).await.unwrap();
        let idle = getsockopt(&stream, sockopt::TcpKeepIdle).unwrap();
        let interval = getsockopt(&stream, sockopt::TcpKeepInterval).unwrap();
        let count = getsockopt(&stream, sockopt::TcpKeepCount).unwrap();
        let noticed = idle + interval * count;
        assert!(getsockopt(&stream, sockopt::KeepAlive).unwrap() && noticed < within, "{noticed} s");
        let user_timeout = getsockopt(&stream, sockopt::TcpUserTimeout).unwrap();
        assert!(user_timeout < noticed * 1_000, "or one more probe is waited for: {user_timeout} ms");
        assert!(stream.nodelay().unwrap());
    }
}
