//! The bounds of what a diagnosis asks, in one place. The bounds of what is judged are in the judgement.
//!
//! Invariant: nothing that a tenant wrote decides how long a diagnosis takes or how much it asks for.

use std::time::Duration;

/// How long a diagnosis takes at most, with everything that it asks for: a person waits for it.
pub const DIAGNOSIS_TIMEOUT: Duration = Duration::from_secs(5);

/// The most requests to the apiserver for one diagnosis: a thousand nodes may ask at once.
pub(crate) const REQUESTS_MAX: usize = 12;

/// How long one question may take, from the connection to the last byte: twice as long as a loaded apiserver takes for
/// a page of 500, and less than half of [`DIAGNOSIS_TIMEOUT`].
pub(crate) const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// How long reading the maps may take, which comes first. An engine at rest answers within a millisecond. If the engine
/// is busy with whole lists, the other questions must not wait for long.
pub const MAPS_TIMEOUT: Duration = Duration::from_secs(1);

/// The time that is kept for judging and showing after the last question: a diagnosis beside 10,000 services takes 40
/// ms of a processor, and other diagnoses may run too.
pub const RENDER_RESERVE: Duration = Duration::from_millis(200);

/// The most objects of one page of a list: a server reads a page at once.
pub(crate) const PAGE_ITEMS: usize = 500;

/// For how long Events are kept, and for how many questions.
pub(crate) const EVENTS_CACHE_TTL: Duration = Duration::from_secs(30);
pub(crate) const EVENTS_QUESTIONS_MAX: usize = 16;

/// How far apart readings of Events begin, for all clients together: each costs the apiserver all Events of a
/// namespace.
pub(crate) const EVENTS_PACE: Duration = Duration::from_secs(5);

/// The most bytes of one list: 500 pods of 10 KB, three times over.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;

/// The most bytes of one object: etcd stores 1.5 MB.
pub(crate) const OBJECT_BYTES_MAX: usize = 2 << 20;

/// The most bytes of a refusal: it is a sentence, or the page of a proxy.
pub(crate) const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// The most bytes of a request's path and query: what proxies before an apiserver take, and more than any selector that
/// people write.
pub(crate) const QUERY_BYTES_MAX: usize = 4 << 10;

/// The most endpoints that are compared, over all slices; a service with more is compared by its table alone.
pub(crate) const ENDPOINTS_MAX: usize = 20_000;

/// The most nodes that are asked for.
pub(crate) const NODES_MAX: usize = 10;

/// The most of those nodes that are asked for one by one because no node has the label: a writer of slices may name any
/// node, and each one costs a request.
pub(crate) const NODES_BY_NAME_MAX: usize = 2;

/// Connections that are tried at once, and how long each may take.
pub(crate) const PROBES_AT_ONCE: usize = 8;
pub(crate) const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long the look at this host may take: files and netlink answer within milliseconds.
pub(crate) const HOST_TIMEOUT: Duration = Duration::from_secs(3);

/// The most bytes of one file of the kernel or of the host; the longest real one is a resolv.conf of 2 KB.
pub(crate) const FILE_BYTES_MAX: u64 = 64 << 10;

/// The most bytes of a list of sockets: 100,000 that listen.
pub(crate) const NETLINK_BYTES_MAX: usize = 16 << 20;

/// Processes and open files that are looked through for the owner of a listening socket.
pub(crate) const PROCESSES_MAX: usize = 8_192;
pub(crate) const DESCRIPTORS_MAX: usize = 262_144;

/// The most flows of one frontend that are looked at: what is wrong with one flow mostly is wrong with many.
pub(crate) const FLOWS_MAX: usize = 1_000;

/// The most bytes that are read of an answer over HTTP, of a health port or of a backend.
pub(crate) const HEALTH_BYTES_MAX: u64 = 4 << 10;
