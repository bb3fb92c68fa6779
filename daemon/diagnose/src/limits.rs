//! The bounds of what a diagnosis reads and shows, in one place.
//!
//! Invariant: nothing that a tenant wrote decides how much a diagnosis reads or shows.

/// Pages of Events about the service itself. Every other query has one page, so that no flood of Events uses up its
/// requests.
pub const PAGES_MAX: usize = 2;

/// Events kept per query, the latest first; far more than a person reads.
pub const EVENTS_READ_MAX: usize = 200;

/// The longest name in Kubernetes, in characters.
pub const NAME_LENGTH_MAX: usize = 253;

/// Pods, endpoints and backends that are judged one by one.
pub const PODS_MAX: usize = 20;

/// Characters of one foreign text, as shown.
pub const TEXT_LENGTH_MAX: usize = 1_024;

/// Items that one finding names; more are counted.
pub const NAMED_MAX: usize = 8;

/// The width of the text, in columns.
pub const COLUMNS_MAX: usize = 100;

/// Records of the history that are shown.
pub const RECORDS_MAX: usize = 10;

/// Events that are shown.
pub const EVENTS_MAX: usize = 20;

/// Events in a list of Events alone: all that are kept of one query.
pub const EVENTS_LISTED_MAX: usize = EVENTS_READ_MAX;
