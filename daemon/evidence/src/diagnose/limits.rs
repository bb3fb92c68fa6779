//! The bounds of a diagnosis's queries, in one place. `holdfast_diagnose` has the bounds of its judgement.
//!
//! Invariant: nothing that a tenant wrote decides how long a diagnosis takes or how much it reads.

use std::time::Duration;

/// The longest diagnosis, with all its queries: a person waits for it.
pub const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(5);

/// The most requests to the apiserver for one diagnosis: a thousand nodes may send them at once.
pub(crate) const REQUESTS_MAX: usize = 12;

/// The longest query, from the connection to the last byte: twice as long as a loaded apiserver takes for a page of
/// 500, and less than half of [`DIAGNOSIS_TIMEOUT`].
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest time for reading the maps, which comes first. An idle engine answers within a millisecond. The other
/// queries must not wait long for a busy one.
pub const MAPS_TIMEOUT: Duration = Duration::from_secs(1);

/// The time for judging and rendering after the last query: a diagnosis among 10,000 services takes 40 ms of CPU, and
/// other diagnoses may run too.
pub const RENDER_RESERVE: Duration = Duration::from_millis(200);

/// The most objects of one page of a list: a server reads a page at once.
pub(crate) const PAGE_ITEMS: usize = 500;

/// How long Events are cached, and for how many queries.
pub(crate) const EVENTS_CACHE_TTL: Duration = Duration::from_secs(30);
pub(crate) const EVENTS_QUESTIONS_MAX: usize = 16;

/// The least time between reads of Events, over all clients: each read makes the apiserver scan all Events of a
/// namespace.
pub(crate) const EVENTS_PACE: Duration = Duration::from_secs(5);

/// The most bytes of one list: 500 pods of 10 KB, three times over.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The most bytes of one object: etcd stores 1.5 MB.
pub(crate) const OBJECT_BYTES_MAX: usize = 2 << 20;

/// The most bytes of a refusal: a sentence, or the page of a proxy.
pub(crate) const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// The most bytes of manifests that a diagnosis reads, and the most pods in them that it compares with a selector.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 8 << 20;
pub(crate) const MANIFEST_PODS_MAX: usize = 1_000;

/// The most bytes of a request's path and query: proxies accept that much, and no real selector is longer.
pub(crate) const QUERY_BYTES_MAX: usize = 4 << 10;

/// The most endpoints over all slices that are compared. A larger service is compared by its table alone.
pub(crate) const ENDPOINTS_MAX: usize = 20_000;

/// The most nodes that are queried.
pub(crate) const NODES_MAX: usize = 10;

/// The most nodes that are queried by name because no node has the label: a writer of slices may name any node, and
/// each costs a request.
pub(crate) const NODES_BY_NAME_MAX: usize = 2;

/// Test connections at once, and the longest one.
pub(crate) const PROBES_AT_ONCE: usize = 8;
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest time for reading this host: files and netlink answer within milliseconds.
pub(crate) const HOST_TIMEOUT: Duration = Duration::from_secs(3);

/// The most bytes of one file of the kernel or of the host; the longest real one is a resolv.conf of 2 KB.
pub(crate) const FILE_BYTES_MAX: u64 = 64 << 10;

/// The most bytes of a list of sockets: 100,000 listeners.
pub(crate) const NETLINK_BYTES_MAX: usize = 16 << 20;

/// The most flows of one service that are read: a fault of one flow mostly affects many.
pub(crate) const FLOWS_MAX: usize = 1_000;

/// The most bytes of an HTTP reply that are read, from a health port or a backend.
pub(crate) const HEALTH_BYTES_MAX: u64 = 4 << 10;
