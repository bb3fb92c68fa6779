//! All limits of the connection to an apiserver, each with its reason.

use std::time::Duration;

/// The limit of a dial, from the first packet to a finished TLS handshake: three round trips and one lost packet. While
/// another endpoint waits, the check of the cluster's identity has to fit in too, so the next endpoint is tried within
/// three seconds.
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_millis(2_800);

/// The limit for a reply's headers. A loaded apiserver takes seconds to start a list; a dead one never does.
pub(super) const HEADERS: Duration = Duration::from_secs(10);

/// The longest gap in a short reply's body, such as the cluster's identity, and the limit of an error's whole body.
pub(super) const SHORT_BODY_TIMEOUT: Duration = Duration::from_secs(3);

/// The largest short reply: a Namespace with annotations, or an error page. An object has at most 1.5 MB, `kube-system`
/// a few KB.
pub(super) const SHORT_BODY_BYTES_MAX: usize = 256 << 10;

/// How long a connection is idle before the first probe.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);

/// The time between probes.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// Unanswered probes until a peer counts as dead: 9 s after its last packet.
pub(super) const KEEPALIVE_PROBES: u32 = 2;

/// How long sent bytes may stay unacknowledged. With this set, Linux gives up when a probe is due after so long a
/// silence, however many probes went before. Less than those 9 s, so that Linux waits for no further probe.
pub(super) const USER_TIMEOUT: Duration = Duration::from_secs(8);

/// The same where other clients wait for the detection: the first probe after a second, dead after the second one. It
/// costs one packet a second without data, which the server process does not see.
pub(super) const GUARD_KEEPALIVE: Duration = Duration::from_secs(1);

/// Less than two of these, so that Linux does not wait for the second probe.
pub(super) const GUARD_USER_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The limit of an attempt while another endpoint serves: a second is many round trips within a data centre.
pub(super) const GUARD_DIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The delay before the next endpoint is tried in parallel: many round trips within a data centre, so that mostly only
/// the first endpoint is dialled. The last of 5 endpoints starts after 600 ms. An attempt takes at most
/// [`DIAL_TIMEOUT`], so at most 19 run at once, however many endpoints there are.
pub(super) const GUARD_STAGGER: Duration = Duration::from_millis(150);

/// The first pause before an endpoint that failed is tried again.
pub(super) const GUARD_RETRY_MIN: Duration = Duration::from_millis(250);

/// The longest pause between such attempts: of 10,000 nodes a thousand come in a second.
pub(super) const GUARD_RETRY_MAX: Duration = Duration::from_secs(10);

/// A connection that ends sooner than this was not idle.
pub(super) const SHORT_CONNECTION: Duration = Duration::from_secs(5);

/// How often the guarded server is asked whether it is ready. Apiservers close connections that are idle for 90 s.
pub(super) const GUARD_PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// The limit of that reply.
pub(super) const GUARD_PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// How often an endpoint preferred to the one in use is checked.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// The delay before a second check confirms a first good one.
pub(super) const CONFIRM_AFTER: Duration = Duration::from_secs(2);

/// How long a failed endpoint stays last, the first time.
pub(super) const PENALTY_MIN: Duration = Duration::from_secs(1);

/// How long we leave a throttling server alone that names no time.
pub(super) const THROTTLE_MIN: Duration = Duration::from_secs(1);

/// The longest wait that a server may ask for: its view of its load is stale by then.
pub(super) const THROTTLE_MAX: Duration = Duration::from_secs(60);

/// The longest time that a failed endpoint stays last: an apiserver that is back should be found soon.
pub(super) const PENALTY_MAX: Duration = Duration::from_secs(30);
