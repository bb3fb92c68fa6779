//! Ports of this node that no client gets towards one backend, because a connection of another proxy has them there.
//!
//! Invariant: an entry that leads to no flow keeps a port free, and is removed once that connection is over; a flow's
//! entry is never touched. To programs, a packet that meets such an entry belongs to no flow; they leave it to the
//! network stack.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::entries::Search;
use super::{FlowTable, Maps};
use crate::abi::flow::{self, EntryKey, types};
use crate::conntrack::translated::{self, Found, Translated};

/// The number that an entry leads to which keeps a port free; no flow has this number.
const NOBODY: u32 = u32::MAX;

/// The time from a start to the next look. Programs are at all devices by then, so the other proxy gets no new clients
/// of ours.
const AFTER_START: Duration = Duration::from_secs(5);

/// The time between looks while ports are kept; a port that is kept for too long costs little.
const PACE: Duration = Duration::from_secs(60);

/// The ports that are kept, and when to look again.
#[derive(Debug)]
pub(crate) struct KeptFree {
    table: FlowTable,
    // The ports that clients may get.
    ports: Vec<RangeInclusive<u16>>,
    // The entries that keep ports free, by their bytes.
    kept: BTreeMap<Vec<u8>, EntryKey>,
    former: Former,
    // When the next look is due; `None`: never again.
    due: Option<Instant>,
    failure: Option<String>,
}

/// Whether the entries of a former daemon are known.
#[derive(Debug)]
enum Former {
    Unknown,
    Sought(Search),
    Adopted,
}

impl KeptFree {
    /// Begins with a look before any client gets a port. A look that fails keeps no client from being served.
    pub(crate) fn start(table: FlowTable, ports: Vec<RangeInclusive<u16>>, now: Instant) -> Self {
        let kept = BTreeMap::new();
        let due = Some(now + AFTER_START);
        let mut new = Self { table, ports, kept, former: Former::Unknown, due, failure: None };
        new.failure = new.look().err().map(|error| error.to_string());
        new
    }

    /// Looks again if a look is due; to be called now and then. `false`: the look is not finished at `until`, and the
    /// next call goes on with it.
    pub(crate) fn follow(&mut self, now: Instant, until: Instant) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return true;
        }
        let done = match self.adopt(until) {
            Ok(false) => return false,
            Ok(true) => self.look(),
            Err(error) => Err(error),
        };
        self.failure = done.err().map(|error| error.to_string());
        self.due = (self.failure.is_some() || !self.kept.is_empty()).then(|| now + PACE);
        true
    }

    pub(crate) fn table(&self) -> &FlowTable {
        &self.table
    }

    /// Keeps the same ports free in another table, where all flows are already, and looks again soon.
    pub(crate) fn move_to(&mut self, table: FlowTable) {
        self.table = table;
        self.former = Former::Adopted;
        let entries = &self.table.0.entries;
        self.kept.retain(|_, key| entries.insert(key, NOBODY).unwrap_or(false));
        self.due = Some(Instant::now() + AFTER_START);
    }

    /// How many ports clients may get.
    pub(crate) fn ports(&self) -> u32 {
        self.ports.iter().map(|range| u32::try_from(range.len()).unwrap_or(u32::MAX)).sum()
    }

    /// How many ports are kept, and why the last look failed, if it did.
    pub(crate) fn state(&self) -> (usize, Option<String>) {
        (self.kept.len(), self.failure.clone())
    }

    /// Looks in pieces for the entries of a former daemon. They may be among millions, so no start waits for them.
    /// `false`: not all of them are known at `until`.
    fn adopt(&mut self, until: Instant) -> io::Result<bool> {
        if matches!(self.former, Former::Unknown) {
            let search = self.table.0.entries.leading_to(NOBODY);
            self.former = Former::Sought(search.map_err(|error| io::Error::other(format!("{error:#}")))?);
        }
        let Self { former: Former::Sought(search), kept, .. } = self else { return Ok(true) };
        while search.some(|key| kept.extend([(key.bytes().to_vec(), key)]))? {
            if Instant::now() >= until {
                return Ok(false);
            }
        }
        self.former = Former::Adopted;
        Ok(true)
    }

    fn look(&mut self) -> io::Result<()> {
        let found = translated::list(|port| self.ports.iter().any(|range| range.contains(&port)))?;
        self.keep(&found).map_err(|error| io::Error::other(format!("{error:#}")))
    }

    /// Keeps the ports of these connections free. Entries of ended connections go first, to make room.
    fn keep(&mut self, found: &Found) -> Result<(), libbpf_rs::Error> {
        let wanted: BTreeMap<_, _> =
            found.all.iter().filter_map(key).map(|key| (key.bytes().to_vec(), key)).collect();
        let Maps { entries, .. } = &*self.table.0;
        let is_over = |bytes: &Vec<u8>| found.is_whole && !wanted.contains_key(bytes);
        for (_, key) in self.kept.extract_if(.., |bytes, _| is_over(bytes)) {
            entries.remove(&key, NOBODY)?;
        }
        for (bytes, key) in wanted {
            if !self.kept.contains_key(&bytes) && entries.insert(&key, NOBODY)? {
                self.kept.insert(bytes, key);
            }
        }
        Ok(())
    }
}

/// The entry that a flow would have with this port at this backend.
fn key(of: &Translated) -> Option<EntryKey> {
    let (backend, backend_port) = flow::end(of.backend);
    let (nat, nat_port) = flow::end(of.node);
    flow::entry_of_nat(&types::flow {
        backend,
        backend_port,
        nat,
        nat_port,
        transport: of.transport.protocol_number(),
        v4: of.backend.is_ipv4().into(),
        ..types::flow::default()
    })
}

#[cfg(test)]
impl KeptFree {
    /// Starts without a look at the kernel's connections.
    pub(super) fn blind(table: FlowTable) -> Self {
        let kept = BTreeMap::new();
        Self { table, ports: Vec::new(), kept, former: Former::Unknown, due: None, failure: None }
    }

    /// Looks for the entries of a former daemon, in at most so many pieces. `true`: all are known.
    pub(super) fn adopt_some(&mut self, pieces: usize) -> bool {
        let passed = Instant::now();
        (0..pieces).any(|_| self.adopt(passed).unwrap())
    }

    /// Acts as if the kernel had these connections; returns how many ports are kept.
    pub(super) fn see(&mut self, all: &[Translated], is_whole: bool) -> usize {
        self.adopt_some(usize::MAX);
        self.keep(&Found { all: all.to_vec(), is_whole }).unwrap();
        self.kept.len()
    }
}
