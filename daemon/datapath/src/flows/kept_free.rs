//! Ports of this node that no client is given at one backend, because a connection of another proxy has them there.
//!
//! Invariant: an entry that leads to no flow keeps a port free, and is taken away once that connection is over; a
//! flow's entry is never touched. Programs take a packet that meets such an entry as one of no flow, and leave it to
//! the stack.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::entries::Search;
use super::{FlowTable, Maps};
use crate::abi::flow::{self, EntryKey, types};
use crate::conntrack::translated::{self, Found, Translated};

/// Where such an entry leads: there is no flow of that number.
const NOBODY: u32 = u32::MAX;

/// Programs are at all devices by then, so the other proxy gets no new clients that are ours to serve.
const AFTER_START: Duration = Duration::from_secs(5);

/// How often it is looked again while there are any: a port that is kept for too long costs little.
const PACE: Duration = Duration::from_secs(60);

/// The ports that are kept, and when to look again.
#[derive(Debug)]
pub(crate) struct KeptFree {
    table: FlowTable,
    // Which a client may be given.
    ports: Vec<RangeInclusive<u16>>,
    // By their bytes.
    kept: BTreeMap<Vec<u8>, EntryKey>,
    former: Former,
    // `None`: not any more.
    due: Option<Instant>,
    failure: Option<String>,
}

/// Whether what a former daemon has kept is among them.
#[derive(Debug)]
enum Former {
    Unknown,
    Sought(Search),
    Adopted,
}

impl KeptFree {
    /// Looks before any client is given a port. A look that fails keeps no client from being served.
    pub(crate) fn start(table: FlowTable, ports: Vec<RangeInclusive<u16>>, now: Instant) -> Self {
        let kept = BTreeMap::new();
        let due = Some(now + AFTER_START);
        let mut new = Self { table, ports, kept, former: Former::Unknown, due, failure: None };
        new.failure = new.look().err().map(|error| error.to_string());
        new
    }

    /// Looks again if it is time. To be called now and then. `false`: it is not done at that time, and goes on with the
    /// next call.
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

    /// Keeps the same ports free in another table, where all flows are already. It is looked again soon.
    pub(crate) fn move_to(&mut self, table: FlowTable) {
        self.table = table;
        self.former = Former::Adopted;
        let entries = &self.table.0.entries;
        self.kept.retain(|_, key| entries.insert(key, NOBODY).unwrap_or(false));
        self.due = Some(Instant::now() + AFTER_START);
    }

    /// Of how many ports a client is given one.
    pub(crate) fn ports(&self) -> u32 {
        self.ports.iter().map(|range| u32::try_from(range.len()).unwrap_or(u32::MAX)).sum()
    }

    /// How many there are, and why it is not known which there should be.
    pub(crate) fn state(&self) -> (usize, Option<String>) {
        (self.kept.len(), self.failure.clone())
    }

    /// What a former daemon has kept. That may be among millions of entries, so no start waits for it, and it is looked
    /// for in pieces. `false`: it is not all known at that time.
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

    /// What is over goes first, so that there is room.
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

/// As the entry of a flow that had this port there.
fn key(of: &Translated) -> Option<EntryKey> {
    let (backend, backend_port) = flow::end(of.backend);
    let (nat, nat_port) = flow::end(of.node);
    flow::entry_of_nat(&types::flow {
        backend,
        backend_port,
        nat,
        nat_port,
        transport: of.transport.number(),
        v4: of.backend.is_ipv4().into(),
        ..types::flow::default()
    })
}

#[cfg(test)]
impl KeptFree {
    /// Without a look at what the kernel has.
    pub(super) fn blind(table: FlowTable) -> Self {
        let kept = BTreeMap::new();
        Self { table, ports: Vec::new(), kept, former: Former::Unknown, due: None, failure: None }
    }

    /// Looks for what a former daemon has kept, in so many pieces at most. `true`: that was enough.
    pub(super) fn adopt_some(&mut self, pieces: usize) -> bool {
        let passed = Instant::now();
        (0..pieces).any(|_| self.adopt(passed).unwrap())
    }

    /// As if the kernel had these.
    pub(super) fn see(&mut self, all: &[Translated], is_whole: bool) -> usize {
        self.adopt_some(usize::MAX);
        self.keep(&Found { all: all.to_vec(), is_whole }).unwrap();
        self.kept.len()
    }
}
