//! TCP to an apiserver: exempt from translation, and never idle without being probed.
//!
//! Invariant: it is [`exempt::connect`] that dials.

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

use super::endpoint_error::EndpointError;
use super::limits::{
    GUARD_KEEPALIVE, GUARD_USER_TIMEOUT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, USER_TIMEOUT,
};
use holdfast_host::exempt;

/// How soon a peer is noticed that does not answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepaliveProfile {
    Normal,
    /// Others are led to this peer.
    Fast,
}

impl KeepaliveProfile {
    /// When a silent peer is probed, how far apart the probes are, and when it counts as dead.
    const fn timeouts(self) -> [Duration; 3] {
        match self {
            Self::Normal => [KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, USER_TIMEOUT],
            Self::Fast => [GUARD_KEEPALIVE, GUARD_KEEPALIVE, GUARD_USER_TIMEOUT],
        }
    }
}

/// A connection, without TLS and without a time limit of its own.
pub(super) async fn connect(
    address: SocketAddr,
    notice: KeepaliveProfile,
) -> Result<TcpStream, EndpointError> {
    let stream = exempt::connect(address).await.map_err(|error| EndpointError::from_connect(&error))?;
    if matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer) {
        // A dial to a free port of this host can meet itself.
        return Err(EndpointError::Refused);
    }
    set_keepalive(&stream, notice);
    Ok(stream)
}

/// Sets the options by which a dead peer is noticed soon; an error is ignored, because the connection works without.
fn set_keepalive(stream: &TcpStream, notice: KeepaliveProfile) {
    let [idle, apart, dead] = notice.timeouts();
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
        check_notice(KeepaliveProfile::Normal, 10).await;
    }

    #[tokio::test]
    async fn a_dead_peer_that_others_are_led_to_is_noticed_before_a_third_probe() {
        check_notice(KeepaliveProfile::Fast, 4).await;
    }

    async fn check_notice(notice: KeepaliveProfile, within: u32) {
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
