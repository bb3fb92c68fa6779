//! Every bound of the way to an apiserver, each with its reason.

use std::time::Duration;

/// How long a dial may take, from the first packet to a finished TLS handshake: three round trips, and a lost packet on
/// top. While another endpoint waits to be tried, the check of the cluster's identity has to fit in as well: so the
/// next endpoint is tried within three seconds.
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_millis(2_800);

/// How long until an answer's headers. A loaded apiserver takes seconds to begin a list; a dead one takes for ever.
pub(super) const HEADERS: Duration = Duration::from_secs(10);

/// The longest time between two pieces of a short answer's body, such as the cluster's identity, and how long the body
/// may take in all that says why an endpoint cannot serve.
pub(super) const SHORT_BODY_TIMEOUT: Duration = Duration::from_secs(3);

/// The largest short answer: a Namespace with annotations, or an error page. An apiserver's objects end at 1.5 MB, but
/// `kube-system` has a few KB.
pub(super) const SHORT_BODY_BYTES_MAX: usize = 256 << 10;

/// How long a connection is idle before it is probed.
pub(super) const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);

/// How far apart the probes are.
pub(super) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);

/// How many probes may stay unanswered: a dead peer is noticed 9 s after its last packet.
pub(super) const KEEPALIVE_PROBES: u32 = 2;

/// How long sent bytes may stay unacknowledged. Where this is set, Linux gives up when a probe is due after so long a
/// silence, however many probes went before. It is less than those 9 s, so that no further probe is waited for.
pub(super) const USER_TIMEOUT: Duration = Duration::from_secs(8);

/// The same where other clients wait for a dead endpoint to be noticed: it is probed a second after its last packet,
/// and after another one it counts as gone. What that costs is one packet a second without data, which no server sees.
pub(super) const GUARD_KEEPALIVE: Duration = Duration::from_secs(1);

/// Less than two of these, so that the second probe is not waited for.
pub(super) const GUARD_USER_TIMEOUT: Duration = Duration::from_millis(1_500);

/// How long an endpoint may take to show itself where another one serves meanwhile: a second is many round trips within
/// a data centre.
pub(super) const GUARD_DIAL_TIMEOUT: Duration = Duration::from_secs(1);

/// How much later the next endpoint is tried beside one that has not answered yet: many round trips within a data
/// centre, so that mostly the first one is the only one that is asked. Of 5 endpoints the last one has its turn after
/// 600 ms. As an attempt may take [`DIAL_TIMEOUT`], no more than 19 go on at once, however many endpoints there are.
pub(super) const GUARD_STAGGER: Duration = Duration::from_millis(150);

/// How soon an endpoint is tried again that has not shown itself, the first time.
pub(super) const GUARD_RETRY_MIN: Duration = Duration::from_millis(250);

/// The longest pause between two such attempts: of 10,000 nodes a thousand come in a second.
pub(super) const GUARD_RETRY_MAX: Duration = Duration::from_secs(10);

/// A connection that a server closes so soon was not idle.
pub(super) const SHORT_CONNECTION: Duration = Duration::from_secs(5);

/// How often a server is asked whether it serves that others are led to. Apiservers close connections that say nothing
/// for 90 s.
pub(super) const GUARD_PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// How long its answer may take.
pub(super) const GUARD_PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// How often a better endpoint than the one in use is looked at.
pub(super) const CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// How soon a first good check is confirmed by a second one.
pub(super) const CONFIRM_AFTER: Duration = Duration::from_secs(2);

/// For how long a failed endpoint goes last, the first time.
pub(super) const PENALTY_MIN: Duration = Duration::from_secs(1);

/// How long a server is left alone that asks for it without saying how long.
pub(super) const THROTTLE_MIN: Duration = Duration::from_secs(1);

/// The longest that a server may ask to be left alone: what it knows of its load will be old by then.
pub(super) const THROTTLE_MAX: Duration = Duration::from_secs(60);

/// For how long a failed endpoint goes last at most: an apiserver that is back should be found soon.
pub(super) const PENALTY_MAX: Duration = Duration::from_secs(30);
