//! The bounds of what a diagnosis asks, in one place. Those of what is judged are the judgement's.
//!
//! Invariant: nothing that a tenant wrote decides how long a diagnosis takes or how much it asks for.

use std::time::Duration;

/// A diagnosis with everything that it asks for: a person waits for it.
pub(crate) const TOTAL: Duration = Duration::from_secs(5);

/// Requests to the apiserver for one diagnosis: a thousand nodes may ask at once.
pub(crate) const REQUESTS_MAX: usize = 12;

/// One question, from the connection to the last byte: twice as long as a loaded apiserver takes for a page of 500, and
/// less than half of all.
pub(crate) const QUESTION: Duration = Duration::from_secs(2);

/// For reading the maps, which comes first. An engine at rest answers within a millisecond; behind one that programs
/// whole lists the other questions must not wait for long.
pub(crate) const MAPS: Duration = Duration::from_secs(1);

/// What is left for judging and showing when the last question ends: a diagnosis beside 10,000 services takes 40 ms of
/// a processor, and there may be others.
pub(crate) const RESERVE: Duration = Duration::from_millis(200);

/// Objects of one list, which is one page: a server reads a page at once.
pub(crate) const PAGE_ITEMS: usize = 500;

/// For how long they are kept, and of how many questions.
pub(crate) const EVENTS_KEPT: Duration = Duration::from_secs(30);
pub(crate) const EVENTS_QUESTIONS_MAX: usize = 16;

/// How far apart readings of Events begin, for all clients together: each costs the apiserver all Events of a
/// namespace.
pub(crate) const EVENTS_PACE: Duration = Duration::from_secs(5);

/// Of one list: 500 pods of 10 KB three times over.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 << 20;

/// Of one object: etcd stores 1.5 MB.
pub(crate) const OBJECT_BYTES_MAX: usize = 2 << 20;

/// Of a refusal: a sentence, or the page of a proxy.
pub(crate) const REFUSAL_BYTES_MAX: usize = 64 << 10;

/// Of a request's path and query: what proxies before an apiserver take, and more than any selector that people write.
pub(crate) const QUERY_BYTES_MAX: usize = 4 << 10;

/// Endpoints of all slices that are compared; a service of more is compared by its table alone.
pub(crate) const ENDPOINTS_MAX: usize = 20_000;

/// Nodes that are asked for.
pub(crate) const NODES_MAX: usize = 10;

/// Of those, the ones that are asked for one by one because no node has the label: a writer of slices may name any
/// node, and each costs a request.
pub(crate) const NODES_BY_NAME_MAX: usize = 2;

/// Connections that are tried at once, and how long each may take.
pub(crate) const PROBES_AT_ONCE: usize = 8;
pub(crate) const PROBE: Duration = Duration::from_secs(1);

/// The look at this host: files and netlink, which answer within milliseconds.
pub(crate) const HOST: Duration = Duration::from_secs(3);

/// Of one file of the kernel or of the host; the longest real one is a resolv.conf of 2 KB.
pub(crate) const FILE_BYTES_MAX: u64 = 64 << 10;

/// Of a list of sockets: 100,000 that listen.
pub(crate) const NETLINK_BYTES_MAX: usize = 16 << 20;

/// Processes and open files that are looked through for the owner of a listening socket.
pub(crate) const PROCESSES_MAX: usize = 8_192;
pub(crate) const DESCRIPTORS_MAX: usize = 262_144;

/// Flows of one frontend that are looked at: what is wrong with one of them mostly is with many.
pub(crate) const FLOWS_MAX: usize = 1_000;

/// Of what the health port answers.
pub(crate) const HEALTH_BYTES_MAX: u64 = 4 << 10;
