//! Reserves SNAT ports towards a backend that another proxy's connections use there.
//!
//! Invariant: an entry that leads to no flow reserves a port, and is removed once that connection is over; a flow's
//! entry is never touched. A packet that meets such an entry belongs to no flow: programs pass it to the stack.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::entries::EntrySearch;
use super::{FlowMaps, FlowTable};
use crate::abi::flow::{self, EntryKey, types};
use crate::conntrack::foreign_connections::{self, ConnectionList, TranslatedConnection};

/// The number that a reserving entry leads to; no flow has it.
const NO_FLOW: u32 = u32::MAX;

/// The delay from a start to the next check. By then programs run at all devices, so the other proxy gets no new
/// clients of ours.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(5);

/// The interval of checks while ports are reserved; a port reserved for too long costs little.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The reserved ports, and the time of the next check.
#[derive(Debug)]
pub(crate) struct ReservedPorts {
    table: FlowTable,
    ports: Vec<RangeInclusive<u16>>,
    // The reserving entries, by their keys' bytes.
    reserved: BTreeMap<Vec<u8>, EntryKey>,
    former: FormerEntries,
    // When the next check is due; `None`: never again.
    due: Option<Instant>,
    failure: Option<String>,
}

/// Whether a former daemon's entries are known.
#[derive(Debug)]
enum FormerEntries {
    Unknown,
    Searching(EntrySearch),
    Adopted,
}

impl ReservedPorts {
    /// Checks before any client gets a port. A failed check does not prevent serving.
    pub(crate) fn start(table: FlowTable, ports: Vec<RangeInclusive<u16>>, now: Instant) -> Self {
        let reserved = BTreeMap::new();
        let due = Some(now + FIRST_CHECK_DELAY);
        let mut new = Self { table, ports, reserved, former: FormerEntries::Unknown, due, failure: None };
        new.failure = new.check_conntrack().err().map(|error| error.to_string());
        new
    }

    /// Checks again if a check is due; call it regularly. `false`: the check continues at the next call.
    pub(crate) fn check_if_due(&mut self, now: Instant, until: Instant) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return true;
        }
        let done = match self.adopt_former(until) {
            Ok(false) => return false,
            Ok(true) => self.check_conntrack(),
            Err(error) => Err(error),
        };
        self.failure = done.err().map(|error| error.to_string());
        self.due = (self.failure.is_some() || !self.reserved.is_empty()).then(|| now + CHECK_INTERVAL);
        true
    }

    pub(crate) fn table(&self) -> &FlowTable {
        &self.table
    }

    /// Reserves the same ports in another table that has all flows already, and checks again soon.
    pub(crate) fn move_to_table(&mut self, table: FlowTable) {
        self.table = table;
        self.former = FormerEntries::Adopted;
        let entries = &self.table.0.entries;
        self.reserved.retain(|_, key| entries.insert(key, NO_FLOW).unwrap_or(false));
        self.due = Some(Instant::now() + FIRST_CHECK_DELAY);
    }

    pub(crate) fn port_count(&self) -> u32 {
        self.ports.iter().map(|range| u32::try_from(range.len()).unwrap_or(u32::MAX)).sum()
    }

    /// How many ports are reserved, and the last check's error.
    pub(crate) fn status(&self) -> (usize, Option<String>) {
        (self.reserved.len(), self.failure.clone())
    }

    /// Searches for a former daemon's entries in pieces. A map may hold millions, so no start waits for this. `false`:
    /// the search is incomplete at `until`.
    fn adopt_former(&mut self, until: Instant) -> io::Result<bool> {
        if matches!(self.former, FormerEntries::Unknown) {
            let search = self.table.0.entries.search_entries(NO_FLOW);
            self.former =
                FormerEntries::Searching(search.map_err(|error| io::Error::other(format!("{error:#}")))?);
        }
        let Self { former: FormerEntries::Searching(search), reserved, .. } = self else {
            return Ok(true);
        };
        while search.search_piece(|key| reserved.extend([(key.bytes().to_vec(), key)]))? {
            if Instant::now() >= until {
                return Ok(false);
            }
        }
        self.former = FormerEntries::Adopted;
        Ok(true)
    }

    fn check_conntrack(&mut self) -> io::Result<()> {
        let found = foreign_connections::list_connections(|port| {
            self.ports.iter().any(|range| range.contains(&port))
        })?;
        self.reserve_ports(&found).map_err(|error| io::Error::other(format!("{error:#}")))
    }

    /// Reserves the ports of these connections. It removes entries of closed connections first, to make space.
    fn reserve_ports(&mut self, found: &ConnectionList) -> Result<(), libbpf_rs::Error> {
        let wanted: BTreeMap<_, _> =
            found.all.iter().filter_map(port_entry).map(|key| (key.bytes().to_vec(), key)).collect();
        let FlowMaps { entries, .. } = &*self.table.0;
        let is_over = |bytes: &Vec<u8>| found.is_complete && !wanted.contains_key(bytes);
        for (_, key) in self.reserved.extract_if(.., |bytes, _| is_over(bytes)) {
            entries.remove(&key, NO_FLOW)?;
        }
        for (bytes, key) in wanted {
            if !self.reserved.contains_key(&bytes) && entries.insert(&key, NO_FLOW)? {
                self.reserved.insert(bytes, key);
            }
        }
        Ok(())
    }
}

/// The entry that a flow with this SNAT port at this backend would have.
fn port_entry(connection: &TranslatedConnection) -> Option<EntryKey> {
    let (backend, backend_port) = flow::encode_endpoint(connection.backend);
    let (nat, nat_port) = flow::encode_endpoint(connection.node);
    flow::nat_entry(&types::flow {
        backend,
        backend_port,
        nat,
        nat_port,
        transport: connection.transport.protocol_number(),
        v4: connection.backend.is_ipv4().into(),
        ..types::flow::default()
    })
}

#[cfg(test)]
impl ReservedPorts {
    /// Starts without reading the kernel's connections.
    pub(super) fn without_check(table: FlowTable) -> Self {
        let reserved = BTreeMap::new();
        Self { table, ports: Vec::new(), reserved, former: FormerEntries::Unknown, due: None, failure: None }
    }

    /// Searches at most so many pieces for a former daemon's entries. `true`: all are known.
    pub(super) fn adopt_pieces(&mut self, pieces: usize) -> bool {
        let passed = Instant::now();
        (0..pieces).any(|_| self.adopt_former(passed).unwrap())
    }

    /// Acts as if the kernel had these connections; returns how many ports are reserved.
    pub(super) fn observe(&mut self, all: &[TranslatedConnection], is_complete: bool) -> usize {
        self.adopt_pieces(usize::MAX);
        self.reserve_ports(&ConnectionList { all: all.to_vec(), is_complete }).unwrap();
        self.reserved.len()
    }
}
