//! Ports of this node that no client gets towards one backend, because a connection of another proxy has them there.
//!
//! Invariant: an entry that leads to no flow keeps a port free, and is removed once that connection is over; a flow's
//! entry is never touched. To programs, a packet that meets such an entry belongs to no flow; they leave it to the
//! network stack.

use std::collections::BTreeMap;
use std::io;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use super::entries::EntrySearch;
use super::{FlowMaps, FlowTable};
use crate::abi::flow::{self, EntryKey, types};
use crate::conntrack::foreign_connections::{self, ConnectionList, TranslatedConnection};

/// The number that an entry leads to which keeps a port free; no flow has this number.
const NO_FLOW: u32 = u32::MAX;

/// The time from a start to the next look. Programs are at all devices by then, so the other proxy gets no new clients
/// of ours.
const FIRST_CHECK_DELAY: Duration = Duration::from_secs(5);

/// The time between looks while ports are kept; a port that is kept for too long costs little.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// The ports that are kept, and when to look again.
#[derive(Debug)]
pub(crate) struct ReservedPorts {
    table: FlowTable,
    // The ports that clients may get.
    ports: Vec<RangeInclusive<u16>>,
    // The entries that keep ports free, by their bytes.
    reserved: BTreeMap<Vec<u8>, EntryKey>,
    former: FormerEntries,
    // When the next look is due; `None`: never again.
    due: Option<Instant>,
    failure: Option<String>,
}

/// Whether the entries of a former daemon are known.
#[derive(Debug)]
enum FormerEntries {
    Unknown,
    Searching(EntrySearch),
    Adopted,
}

impl ReservedPorts {
    /// Begins with a look before any client gets a port. A look that fails keeps no client from being served.
    pub(crate) fn start(table: FlowTable, ports: Vec<RangeInclusive<u16>>, now: Instant) -> Self {
        let kept = BTreeMap::new();
        let due = Some(now + FIRST_CHECK_DELAY);
        let mut new =
            Self { table, ports, reserved: kept, former: FormerEntries::Unknown, due, failure: None };
        new.failure = new.check_conntrack().err().map(|error| error.to_string());
        new
    }

    /// Looks again if a look is due; to be called now and then. `false`: the look is not finished at `until`, and the
    /// next call goes on with it.
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

    /// Keeps the same ports free in another table, where all flows are already, and looks again soon.
    pub(crate) fn move_to_table(&mut self, table: FlowTable) {
        self.table = table;
        self.former = FormerEntries::Adopted;
        let entries = &self.table.0.entries;
        self.reserved.retain(|_, key| entries.insert(key, NO_FLOW).unwrap_or(false));
        self.due = Some(Instant::now() + FIRST_CHECK_DELAY);
    }

    /// How many ports clients may get.
    pub(crate) fn port_count(&self) -> u32 {
        self.ports.iter().map(|range| u32::try_from(range.len()).unwrap_or(u32::MAX)).sum()
    }

    /// How many ports are kept, and why the last look failed, if it did.
    pub(crate) fn status(&self) -> (usize, Option<String>) {
        (self.reserved.len(), self.failure.clone())
    }

    /// Looks in pieces for the entries of a former daemon. They may be among millions, so no start waits for them.
    /// `false`: not all of them are known at `until`.
    fn adopt_former(&mut self, until: Instant) -> io::Result<bool> {
        if matches!(self.former, FormerEntries::Unknown) {
            let search = self.table.0.entries.search_entries(NO_FLOW);
            self.former =
                FormerEntries::Searching(search.map_err(|error| io::Error::other(format!("{error:#}")))?);
        }
        let Self { former: FormerEntries::Searching(search), reserved: kept, .. } = self else {
            return Ok(true);
        };
        while search.search_piece(|key| kept.extend([(key.bytes().to_vec(), key)]))? {
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

    /// Keeps the ports of these connections free. Entries of ended connections go first, to make room.
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

/// The entry that a flow would have with this port at this backend.
fn port_entry(of: &TranslatedConnection) -> Option<EntryKey> {
    let (backend, backend_port) = flow::encode_endpoint(of.backend);
    let (nat, nat_port) = flow::encode_endpoint(of.node);
    flow::nat_entry(&types::flow {
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
impl ReservedPorts {
    /// Starts without a look at the kernel's connections.
    pub(super) fn without_check(table: FlowTable) -> Self {
        let kept = BTreeMap::new();
        Self {
            table,
            ports: Vec::new(),
            reserved: kept,
            former: FormerEntries::Unknown,
            due: None,
            failure: None,
        }
    }

    /// Looks for the entries of a former daemon, in at most so many pieces. `true`: all are known.
    pub(super) fn adopt_pieces(&mut self, pieces: usize) -> bool {
        let passed = Instant::now();
        (0..pieces).any(|_| self.adopt_former(passed).unwrap())
    }

    /// Acts as if the kernel had these connections; returns how many ports are kept.
    pub(super) fn observe(&mut self, all: &[TranslatedConnection], is_whole: bool) -> usize {
        self.adopt_pieces(usize::MAX);
        self.reserve_ports(&ConnectionList { all: all.to_vec(), is_complete: is_whole }).unwrap();
        self.reserved.len()
    }
}
