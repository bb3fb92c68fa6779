//! Every threshold of a finding, with its reason. Times are in seconds.

/// A running controller acts within 10 seconds; this is six times as much.
pub const UNANSWERED_AFTER: i64 = 60;

/// Clouds take one to five minutes to make a load balancer.
pub const STUCK_AFTER: i64 = 300;

/// No cloud takes this long.
pub const STUCK_ERROR_AFTER: i64 = 900;

/// This many equal failures are no accident: the first retry comes after 5 seconds, the third after 20.
pub const FAILURES_MIN: u32 = 3;

/// A failure that lasts this long is no accident either. Silence does not end it: controllers wait up to five minutes
/// between two tries.
pub const FAILING_AFTER: i64 = 120;

/// A service's owner who has waited this long for an address wants to know, whatever the reason.
pub const PENDING_AFTER: i64 = 600;

/// A changed set of nodes is written within a minute; this is twice as much.
pub const DEGRADED_AFTER: i64 = 120;

/// This many changes of the address within [`FLAPS_WITHIN`] mean that two controllers write it.
pub const FLAPS_MIN: usize = 3;

/// See [`FLAPS_MIN`]: a new balancer changes its address once, or once for each family.
pub const FLAPS_WITHIN: i64 = 600;

/// Removing a load balancer takes one to five minutes; this is twice as much.
pub const DELETE_STUCK_AFTER: i64 = 600;

/// One request lies between the Event and the address in the status; this is ample for it.
pub const STATUS_WRITTEN_AFTER: i64 = 60;

/// A pod that is not ready this long after it was listed waits for something that does not come.
pub const NEVER_READY_AFTER: i64 = 300;

/// This many changes of readiness within [`READY_FLAPS_WITHIN`] are a probe at its limit, no rollout.
pub const READY_FLAPS_MIN: usize = 4;

/// The time of [`READY_FLAPS_MIN`]: a rollout is over by then, a probe at its limit is not.
pub const READY_FLAPS_WITHIN: i64 = 600;

/// Kubernetes kills a pod 30 seconds after its deletion, unless the pod sets a longer grace period; one longer than
/// this is rare.
pub const TERMINATING_AFTER: i64 = 600;

/// An endpoint that moves between slices is in both for a moment; this is a lasting state.
pub const DUPLICATE_AFTER: i64 = 300;

/// Endpoints named in one finding; a person reads no more.
pub const NAMED_MAX: usize = 20;
