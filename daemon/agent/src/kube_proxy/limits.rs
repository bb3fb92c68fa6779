//! Every bound of kube-proxy's ports, each with its reason.

use std::time::Duration;

/// For how long the maps may fail to follow what is known before the node is called unhealthy: kube-proxy waits for
/// twice its longest time between two rounds, which is 30 s.
pub(super) const HEALTHY_WITHIN: Duration = Duration::from_secs(60);

/// The shortest time between two looks at whether all is well and what Services want, however fast snapshots come. It
/// is the longest time by which the answer to a load balancer's check is out of date.
pub(super) const CHECK_GAP: Duration = Duration::from_millis(100);

/// The most connections at one time to health, and as many to metrics. A load balancer has a few checkers.
pub(super) const CONNECTIONS_MAX: usize = 64;

/// Connections to the health check port of one Service that no other port can take. A check takes a millisecond, and
/// the client that has sent nothing for longest makes room for the next.
pub(super) const SERVICE_CONNECTIONS_MIN: usize = 4;

/// Connections that all health check ports of Services share beyond those, each up to [`CONNECTIONS_MAX`]: the checkers
/// of a balancer ask at the same moment, and the more places there are, the longer a check has for its request where
/// idle clients keep coming.
pub(super) const SHARED_CONNECTIONS_MAX: usize = 512;

/// The most addresses at which Services' checks are answered: a cluster of some thousand nodes has some hundred such
/// Services. With their connections these take 5,632 file descriptors, of the 8,192 that the unit allows.
pub(super) const LISTENERS_MAX: usize = 1_024;

/// The most bytes of the request line and headers together; it is also the least that the HTTP library can buffer.
pub(super) const HEADER_BYTES_MAX: usize = 8 * 1024;

/// The longest time from the first moment of waiting for a request to the end of its headers: longer than the time
/// between two checks or scrapes over one connection.
pub(super) const HEADER_TIME_MAX: Duration = Duration::from_secs(65);

/// The longest time that a connection lasts, whatever happens on it.
pub(super) const CONNECTION_TIME_MAX: Duration = Duration::from_secs(600);

/// The pause after an accept failed, usually for want of file descriptors, so that the loop does not spin.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The first and the longest pause between two tries to take an address that another process has.
pub(super) const OPEN_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

/// The pause between two tries to take the addresses of Services that other processes have.
pub(super) const REOPEN_PAUSE: Duration = Duration::from_secs(5);
