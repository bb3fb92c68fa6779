//! The bounds of what is judged and said, in one place.
//!
//! Invariant: nothing that a tenant wrote decides how much a diagnosis looks at or says.

/// Pages of Events about the service itself; every other question has one, so that no flood of Events spends the
/// requests of the other questions.
pub const PAGES_MAX: usize = 2;

/// Events that are kept of one question, the latest first: what a person reads of them is far less.
pub const EVENTS_READ_MAX: usize = 200;

/// Characters of a name as Kubernetes bounds it.
pub const NAME_LENGTH_MAX: usize = 253;

/// Pods, endpoints and backends that are looked at one by one.
pub const PODS_MAX: usize = 20;

/// Characters of one text that others wrote, as it is shown.
pub const TEXT_LENGTH_MAX: usize = 1_024;

/// Things that one finding names; more are counted.
pub const NAMED_MAX: usize = 8;

/// Columns of the answer as text.
pub const COLUMNS_MAX: usize = 100;

/// Records of the history that are shown.
pub const RECORDS_MAX: usize = 10;

/// Events that are shown.
pub const EVENTS_MAX: usize = 20;

/// Events that are listed where nothing else is shown: as many as are kept of one question.
pub const EVENTS_LISTED_MAX: usize = EVENTS_READ_MAX;
