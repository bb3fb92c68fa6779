//! Every bound of the admin API, each with its reason.

use std::time::Duration;

/// Concurrent connections of each listener, so that a client that fills TCP cannot lock root out of the socket. They
/// suffice for the pages of a whole team, each with a stream and its current requests, for a scraper and for programs;
/// each costs some 50 KiB.
pub(super) const CONNECTIONS_MAX: usize = 128;

/// Bytes of the request line and the headers together, also the smallest buffer of the HTTP library.
pub const HEADER_BYTES_MAX: usize = 8 * 1024;

/// The time from the start of the wait for a request to the end of its headers. It also closes idle connections: on
/// loopback a new one costs nothing.
pub(super) const HEADER_TIME_MAX: Duration = Duration::from_secs(5);

/// A client that does not take one buffer in this time is disconnected.
pub(super) const WRITE_STALL_MAX: Duration = Duration::from_secs(10);

/// The time for a whole answer, except that a stream of events ends when its client goes. The largest answer takes a
/// second; this bound ends clients that read just enough never to stall, and would keep their data in memory for hours:
/// a snapshot, or records that the history has dropped.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Rows are gathered into chunks of about this size: large enough that the number of writes does not matter, small
/// enough that all connections together hold a few MiB.
pub(super) const CHUNK_BYTES: usize = 16 * 1024;

/// Clients that wait to be accepted.
pub(super) const BACKLOG: i32 = 128;

/// How long running answers may take when the daemon stops.
pub(super) const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// The pause after a failed accept (usually because no file descriptors are left), so that the loop does not spin.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The shortest and the longest pause between two attempts to open an address or a socket that another process has.
pub(super) const OPEN_PAUSE_MIN: Duration = Duration::from_millis(500);
pub(super) const OPEN_PAUSE_MAX: Duration = Duration::from_secs(10);

/// The time to write a refusal to a client without a permit. A fresh socket takes a short text at once; a slower client
/// must not cause a wait.
pub(super) const REJECT_TIME_MAX: Duration = Duration::from_millis(50);

/// Rows to measure per turn for the widths of columns: some 100 µs, as long as a chunk takes.
pub(super) const MEASURED_ROWS: usize = 128;

/// Rows to measure in all before the first is written, some 20 ms. Wider rows after these widen the columns from there
/// on, so that a large table begins as soon as a small one.
pub(super) const MEASURED_ROWS_MAX: usize = 1 << 13;

/// Services to search per turn for a row that passes a filter: some 100 µs of them.
pub(super) const SERVICES_PER_TURN: usize = 1 << 10;

/// The widest padding of columns; longer cells only shift their own line.
pub(super) const COLUMN_WIDTH_MAX: usize = 64;

/// Backends named in one cell of the normal table; the wide one and JSON have all.
pub(super) const BACKENDS_IN_CELL_MAX: usize = 3;

/// Records of one answer: some 10 MB of JSON. A client that wants more asks again, from the last record on.
pub(super) const RECORDS_MAX: usize = 10_000;

/// Flows of one answer, which is built whole: half a megabyte of JSON for each slow connection. A client that searches
/// for certain flows has filters.
pub(super) const FLOWS_MAX: usize = 1_000;

/// Concurrent watchers of each listener: each open page is one, and may be behind by as many records and bytes as
/// `recorder/watchers.rs` allows. They are fewer than half of the connections, so that plain requests find one.
pub(super) const WATCHERS_MAX: usize = 56;

/// Permits of each kind for root alone, on the socket: for a person, and a program or two of the host.
pub(super) const ROOT_PERMITS: usize = 4;

/// Concurrent queries to the engine of each listener. With those for root, the queries of both are fewer than the
/// engine's queue, so neither listener finds it full of the other's.
pub(super) const QUERIES_MAX: usize = 5;

/// Concurrent diagnoses of each listener: each queries the apiserver and dials, and ends within seconds.
pub(super) const DIAGNOSES_MAX: usize = 4;

/// How long a query waits for its permit: as long as the engine may then take to answer it.
pub(super) const QUERY_WAIT_MAX: Duration = Duration::from_secs(2);

/// The interval of heartbeats in a silent stream: half the time after which the command line gives up.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);
