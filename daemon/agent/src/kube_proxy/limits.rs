//! Every bound of kube-proxy's ports, each with its reason.

use std::time::Duration;

/// How long the maps may be out of date before the node is unhealthy: kube-proxy waits for twice its longest sync
/// period, which is 30 s.
pub(super) const HEALTHY_WITHIN: Duration = Duration::from_secs(60);

/// The shortest time between two judgements of health and Services' ports, however fast snapshots come. A load
/// balancer's check is out of date by at most this.
pub(super) const CHECK_GAP: Duration = Duration::from_millis(100);

/// The most concurrent connections to health, and as many to metrics. A load balancer has a few checkers.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// Connections reserved for the health check port of one Service. A check takes a millisecond, and the port evicts
/// the client that is idle for longest.
pub(super) const SERVICE_CONNECTIONS_MIN: usize = 4;

/// Connections that all health check ports of Services share beyond those, each up to [`CONNECTIONS_MAX`]: a
/// balancer's checkers connect at the same moment, and more slots give a check more time for its request while idle
/// clients keep coming.
pub(super) const SHARED_CONNECTIONS_MAX: usize = 512;

/// The most addresses that serve Services' checks: a cluster of some thousand nodes has some hundred such Services.
/// With their connections these take 5,632 file descriptors of the 8,192 that the unit allows.
pub(super) const LISTENERS_MAX: usize = 1_024;

/// The most bytes of the request line and headers together; also the least that the HTTP library can buffer.
pub(super) const HEADER_BYTES_MAX: usize = 8 * 1024;

/// The time limit from waiting for a request to the end of its headers: longer than the time between two checks or
/// scrapes over one connection.
pub(super) const HEADER_TIME_MAX: Duration = Duration::from_secs(65);

pub(super) const CONNECTION_TIME_MAX: Duration = Duration::from_secs(600);

/// The pause after a failed accept, usually for lack of file descriptors, so that the loop does not spin.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The first and the longest pause between two tries to bind an address in use.
pub(super) const OPEN_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The pause between two tries to bind Services' addresses in use.
pub(super) const REOPEN_PAUSE: Duration = Duration::from_secs(5);
