//! Ports of this node that no client is given at one backend, because a connection of another proxy has them there.
//!
//! Invariant: an entry that leads to no flow keeps a port free, and is taken away once that connection is over; a
//! flow's entry is never touched. Programs take a packet that meets such an entry as one of no flow, and leave it to
//! the stack.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

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
    // Whether a former daemon's are among them.
    is_adopted: bool,
    // `None`: not any more.
    due: Option<Instant>,
    failure: Option<String>,
}

impl KeptFree {
    /// Looks before any client is given a port. A look that fails keeps no client from being served.
    pub(crate) fn start(table: FlowTable, ports: Vec<RangeInclusive<u16>>, now: Instant) -> Self {
        let kept = BTreeMap::new();
        let due = Some(now + AFTER_START);
        let mut new = Self { table, ports, kept, is_adopted: false, due, failure: None };
        new.failure = new.look().err().map(|error| error.to_string());
        new
    }

    /// Looks again if it is time. To be called now and then.
    pub(crate) fn follow(&mut self, now: Instant) {
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        self.failure = self.adopt().and_then(|()| self.look()).err().map(|error| error.to_string());
        self.due = (self.failure.is_some() || !self.kept.is_empty()).then(|| now + PACE);
    }

    /// Of how many ports a client is given one.
    pub(crate) fn ports(&self) -> u32 {
        self.ports.iter().map(|range| u32::try_from(range.len()).unwrap_or(u32::MAX)).sum()
    }

    /// How many there are, and why it is not known which there should be.
    pub(crate) fn state(&self) -> (usize, Option<String>) {
        (self.kept.len(), self.failure.clone())
    }

    /// What a former daemon has kept. That may be among millions of entries, so no start waits for it.
    fn adopt(&mut self) -> io::Result<()> {
        if !self.is_adopted {
            let left = self.table.0.entries.leading_to(NOBODY)?;
            self.kept.extend(left.into_iter().map(|key| (key.bytes().to_vec(), key)));
            self.is_adopted = true;
        }
        Ok(())
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
        Self { table, ports: Vec::new(), kept, is_adopted: false, due: None, failure: None }
    }

    /// As if the kernel had these.
    pub(super) fn see(&mut self, all: &[Translated], is_whole: bool) -> usize {
        self.adopt().unwrap();
        self.keep(&Found { all: all.to_vec(), is_whole }).unwrap();
        self.kept.len()
    }
}
