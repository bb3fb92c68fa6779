//! TCP to an apiserver: exempt from translation, with keepalive probes.
//!
//! Invariant: only [`exempt::connect`] dials.

use std::net::SocketAddr;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;

use super::endpoint_error::EndpointError;
use super::limits::{
    GUARD_KEEPALIVE, GUARD_USER_TIMEOUT, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, USER_TIMEOUT,
};
use holdfast_host::exempt;

/// How fast a dead peer is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeepaliveProfile {
    Normal,
    /// Other clients depend on this peer.
    Fast,
}

impl KeepaliveProfile {
    /// Idle time before the first probe, time between probes, and the user timeout.
    const fn timeouts(self) -> [Duration; 3] {
        match self {
            Self::Normal => [KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, USER_TIMEOUT],
            Self::Fast => [GUARD_KEEPALIVE, GUARD_KEEPALIVE, GUARD_USER_TIMEOUT],
        }
    }
}

/// Connects without TLS and without a time limit.
pub(super) async fn connect(
    address: SocketAddr,
    keepalive: KeepaliveProfile,
) -> Result<TcpStream, EndpointError> {
    let stream = exempt::connect(address).await.map_err(|error| EndpointError::from_connect(&error))?;
    if matches!((stream.local_addr(), stream.peer_addr()), (Ok(local), Ok(peer)) if local == peer) {
        // A dial to a free local port can connect to itself.
        return Err(EndpointError::Refused);
    }
    set_keepalive(&stream, keepalive);
    Ok(stream)
}

/// Sets the keepalive options. Errors are ignored: the connection works without them.
fn set_keepalive(stream: &TcpStream, keepalive: KeepaliveProfile) {
    let [idle, apart, dead] = keepalive.timeouts();
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
    async fn a_dead_guarded_peer_is_noticed_before_a_third_probe() {
        check_notice(KeepaliveProfile::Fast, 4).await;
    }

    async fn check_notice(keepalive: KeepaliveProfile, within: u32) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = connect(listener.local_addr().unwrap(), keepalive).await.unwrap();
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
