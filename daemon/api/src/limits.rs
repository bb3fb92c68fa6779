//! Every bound of the admin API, each with its reason.

use std::time::Duration;

/// Connections at one time, for each of the two doors, so that a client that fills TCP cannot lock root out of the
/// socket. They are enough for the pages of a whole team, each with a stream and what it asks at the moment, for a
/// scraper and for programs; each costs some 50 KiB.
pub(super) const CONNECTIONS_MAX: usize = 128;

/// Bytes of the request line and the headers together, which are also the least that the HTTP library can buffer.
pub const HEADER_BYTES_MAX: usize = 8 * 1024;

/// The time from the first moment of waiting for a request to the end of its headers. It also closes a kept connection
/// that says nothing more: on loopback a new connection costs nothing.
pub(super) const HEADER_TIME_MAX: Duration = Duration::from_secs(5);

/// A client that does not take one buffer whole in this time is cut off.
pub(super) const WRITE_STALL_MAX: Duration = Duration::from_secs(10);

/// The time for a whole answer, except that a stream of events ends when its client goes. The largest answer takes a
/// second; this bound ends clients that read just enough never to stall, and would keep what they were given in memory
/// for hours: a snapshot, or records that the history has let go.
pub(super) const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);

/// Rows are gathered to chunks of about this size: large enough that the number of writes does not matter, small enough
/// that all connections together hold a few MiB.
pub(super) const CHUNK_BYTES: usize = 16 * 1024;

/// Clients that are waiting to be accepted.
pub(super) const BACKLOG: i32 = 128;

/// How long answers under way may take when the daemon stops.
pub(super) const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);

/// The pause after an accept that failed (usually because no file descriptors are left), so that the loop does not
/// spin.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The shortest and the longest pause between two tries to take an address or a socket that another process has.
pub(super) const OPEN_PAUSE_MIN: Duration = Duration::from_millis(500);
pub(super) const OPEN_PAUSE_MAX: Duration = Duration::from_secs(10);

/// The time to write a refusal to a client that finds no place. A fresh socket takes a short text at once; a slower
/// client is not waited for.
pub(super) const REJECT_TIME_MAX: Duration = Duration::from_millis(50);

/// Rows that are looked at in one go to find the widths of columns: some 100 µs, as long as a chunk takes.
pub(super) const MEASURED_ROWS: usize = 128;

/// Rows that are looked at in all before the first is written, some 20 ms of them. Further ones that are wider widen
/// the columns from there on, so that a large table begins as soon as a small one.
pub(super) const MEASURED_ROWS_MAX: usize = 1 << 13;

/// Services in which a row that passes a filter is looked for in one go: some 100 µs of them.
pub(super) const SERVICES_PER_TURN: usize = 1 << 10;

/// Columns of tables are padded up to this width; longer cells only shift their own line.
pub(super) const COLUMN_WIDTH_MAX: usize = 64;

/// Backends named in one cell of the normal table; the wide one and JSON have all.
pub(super) const BACKENDS_IN_CELL_MAX: usize = 3;

/// Records of one answer: some 10 MB of JSON. A client that wants more asks again, from the last record on.
pub(super) const RECORDS_MAX: usize = 10_000;

/// Flows of one answer, which is made whole: half a megabyte of JSON, for each connection that reads slowly. A client
/// that looks for certain flows among more has filters.
pub(super) const FLOWS_MAX: usize = 1_000;

/// Watchers at one time, for each of the two doors: each open page is one, and may be behind by as many records and
/// bytes as `recorder/watchers.rs` allows. They are fewer than half of the connections, so that clients that only ask
/// find one.
pub(super) const WATCHERS_MAX: usize = 56;

/// Places of each kind that are root's alone, on the socket: a person who looks, and a program or two of the host.
pub(super) const ROOT_PERMITS: usize = 4;

/// Questions to the engine at one time, for each of the two doors. With those for root, the questions of both doors are
/// fewer than the engine lets wait, so neither door finds the engine's queue full of the other's.
pub(super) const QUERIES_MAX: usize = 5;

/// Diagnoses at one time, for each of the two doors: each asks the apiserver and dials, and ends within seconds.
pub(super) const DIAGNOSES_MAX: usize = 4;

/// How long a question waits for its turn: as long as the engine may then take to answer it.
pub(super) const QUERY_WAIT_MAX: Duration = Duration::from_secs(2);

/// A stream that has nothing to say says so this often: half the time after which the command line gives up.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(5);
