//! Maps in memory, shaped like the kernel's: flat arrays, ranges, words, frontends.
//!
//! Invariant: a reader may look between any two ops, and may look up a word now and its slots later, as a program on
//! another CPU would. A wiped range has no backend, which exposes a reader that should have left. Maps in memory can do
//! nothing that the kernel's cannot. Keys are in sorted maps, because a hash table would need a secret here too.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::{Capacity, MapError, Maps};
use crate::keys::{Family, FrontendKey, Transport};
use crate::list::{Scope, Slot, SlotState};
use crate::op::{
    Action, Dump, DumpPort, FrontendType, FrontendValue, Grace, MemberKey, PortFacts, PortIndex, SlotRange,
    SourceKey, Word, WordFlags,
};

/// The origin of a client: a process or pod of this node, or outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Local,
    /// At an address that every service allows.
    Outside,
    /// A packet from this address outside the node.
    From(IpAddr),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DialOutcome {
    /// No frontend: the packet continues to its destination.
    Passed,
    /// ECONNREFUSED.
    Refused,
    /// A timeout.
    Dropped,
    /// A backend in one of these slots.
    Served(Vec<Slot>),
}

/// A reader that has not finished.
#[derive(Debug)]
pub struct UnfinishedRead {
    ticket: u64,
    family: Family,
    progress: ReadProgress,
}

#[derive(Debug)]
enum ReadProgress {
    Frontend(FrontendValue, Client),
    Word(Word),
}

#[derive(Debug)]
pub struct MemoryMaps {
    frontends: BTreeMap<FrontendKey, FrontendValue>,
    words: Vec<[Word; 2]>,
    facts: BTreeMap<PortIndex, PortFacts>,
    slots: [Vec<Option<Slot>>; 2],
    members: BTreeMap<MemberKey, SlotState>,
    sources: BTreeSet<SourceKey>,
    node_addresses: BTreeSet<IpAddr>,
    // Tickets of active readers, and the next ticket: a grace period is over once all older tickets are returned.
    readers: BTreeSet<u64>,
    next_ticket: u64,
    capacity: Capacity,
}

impl Default for MemoryMaps {
    fn default() -> Self {
        Self::new(Capacity::default())
    }
}

impl MemoryMaps {
    /// Empty maps of a given capacity.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            frontends: BTreeMap::new(),
            words: Vec::new(),
            facts: BTreeMap::new(),
            slots: [Vec::new(), Vec::new()],
            members: BTreeMap::new(),
            sources: BTreeSet::new(),
            node_addresses: BTreeSet::new(),
            readers: BTreeSet::new(),
            next_ticket: 0,
            capacity,
        }
    }

    /// The outcome for a client that dials now and finishes before the next op.
    pub fn lookup(&self, address: IpAddr, port: u16, transport: Transport, client: Client) -> DialOutcome {
        let Some(value) = self.frontend(address, port, transport) else {
            return DialOutcome::Passed;
        };
        if !self.allows_client(*value, client) {
            return DialOutcome::Dropped;
        }
        let word = self.word_for(*value, client);
        match word.count {
            0 if word.flags.contains(WordFlags::DROP) => DialOutcome::Dropped,
            0 => DialOutcome::Refused,
            _ => DialOutcome::Served(self.word_backends(word, Family::from_address(address))),
        }
    }

    /// Begins a dial: the client has read the frontend, and reads the word and the slots later.
    pub fn begin_dial(
        &mut self,
        address: IpAddr,
        port: u16,
        transport: Transport,
        client: Client,
    ) -> Option<UnfinishedRead> {
        let value = *self.frontend(address, port, transport)?;
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.readers.insert(ticket);
        Some(UnfinishedRead {
            ticket,
            family: Family::from_address(address),
            progress: ReadProgress::Frontend(value, client),
        })
    }

    /// Begins a read: the client has read the word, and reads the slots later.
    pub fn begin_read(
        &mut self,
        address: IpAddr,
        port: u16,
        transport: Transport,
        client: Client,
    ) -> Option<UnfinishedRead> {
        let reading = self.begin_dial(address, port, transport, client)?;
        let found = ReadProgress::Word(self.resolve_word(&reading));
        Some(UnfinishedRead { progress: found, ..reading })
    }

    /// The backends in the slots that the client finds now, without wiped ones.
    pub fn end_read(&mut self, reading: &UnfinishedRead) -> Vec<Slot> {
        self.readers.remove(&reading.ticket);
        self.word_backends(self.resolve_word(reading), reading.family)
    }

    /// Drops all readers, as if their processes had ended: grace periods end at once.
    pub fn forget_readers(&mut self) {
        self.readers.clear();
    }

    /// The state of a member; `None`: the maps do not have it.
    pub fn member(&self, key: &MemberKey) -> Option<SlotState> {
        self.members.get(key).copied()
    }

    /// Counts the entries of a dump: frontends, words, slots, members, sources and facts, but not the node's addresses.
    /// 0 when everything is clean.
    pub fn entries(&self) -> usize {
        let words = self.words.iter().flatten().filter(|word| **word != Word::EMPTY).count();
        let slots = self.slots.iter().flatten().flatten().count();
        self.frontends.len() + words + slots + self.members.len() + self.sources.len() + self.facts.len()
    }

    fn resolve_word(&self, reading: &UnfinishedRead) -> Word {
        match reading.progress {
            ReadProgress::Frontend(value, client) => self.word_for(value, client),
            ReadProgress::Word(word) => word,
        }
    }

    fn word_for(&self, value: FrontendValue, client: Client) -> Word {
        let cluster = self.word(value.port, Scope::Cluster);
        self.word(value.port, value.kind.list_scope(cluster.flags, client != Client::Local))
    }

    /// Whether the client may dial this frontend: only load balancer addresses have source ranges.
    fn allows_client(&self, value: FrontendValue, client: Client) -> bool {
        let Client::From(address) = client else { return true };
        let has_sources = self.word(value.port, Scope::Cluster).flags.contains(WordFlags::SOURCES);
        let own = |source: &SourceKey| source.port == value.port && source.range.contains(address);
        value.kind != FrontendType::LoadBalancer || !has_sources || self.sources.iter().any(own)
    }

    fn frontend(&self, address: IpAddr, port: u16, transport: Transport) -> Option<&FrontendValue> {
        let port = core::num::NonZeroU16::new(port)?;
        let exact = FrontendKey { address, port, transport };
        let wildcard = FrontendKey { address: Family::from_address(address).unspecified_address(), ..exact };
        let node_port =
            || self.node_addresses.contains(&address).then(|| self.frontends.get(&wildcard)).flatten();
        self.frontends.get(&exact).or_else(node_port)
    }

    fn word(&self, index: PortIndex, scope: Scope) -> Word {
        let [cluster, local] = self.words.get(index.0 as usize).copied().unwrap_or([Word::EMPTY; 2]);
        if scope == Scope::Cluster { cluster } else { local }
    }

    fn word_slots(&self, word: Word, family: Family) -> Vec<Slot> {
        let base = word.base as usize;
        let slots = self.array(family).get(base..base + word.count as usize);
        slots.unwrap_or_default().iter().flatten().copied().collect()
    }

    /// The backends in the slots of a word, each once.
    fn word_backends(&self, word: Word, family: Family) -> Vec<Slot> {
        let mut slots = self.word_slots(word, family);
        // Only a table may list a backend twice. In a plain list that is an error, which readers shall see.
        if word.flags.contains(WordFlags::TABLE) {
            slots.sort_unstable();
            slots.dedup();
        }
        slots
    }

    fn array(&self, family: Family) -> &Vec<Option<Slot>> {
        let [v4, v6] = &self.slots;
        if family == Family::V4 { v4 } else { v6 }
    }

    fn fill(&mut self, range: SlotRange, slots: impl Iterator<Item = Option<Slot>>) {
        let [v4, v6] = &mut self.slots;
        let array = if range.family == Family::V4 { v4 } else { v6 };
        let end = range.base as usize + range.count as usize;
        if array.len() < end {
            array.resize(end, None);
        }
        let positions = array.iter_mut().skip(range.base as usize).take(range.count as usize);
        positions.zip(slots).for_each(|(position, slot)| *position = slot);
    }

    fn publish(&mut self, index: PortIndex, scope: Scope, word: Word) {
        let position = index.0 as usize;
        if self.words.len() <= position {
            self.words.resize(position + 1, [Word::EMPTY; 2]);
        }
        if let Some([cluster, local]) = self.words.get_mut(position) {
            *(if scope == Scope::Cluster { cluster } else { local }) = word;
        }
    }

    fn dump_port(&self, index: PortIndex, family: Family) -> DumpPort {
        let list = |scope| {
            let word = self.word(index, scope);
            (word, self.word_slots(word, family))
        };
        DumpPort {
            index,
            family,
            facts: self.facts.get(&index).copied().unwrap_or_default(),
            cluster: list(Scope::Cluster),
            local: list(Scope::Local),
        }
    }

    fn dump_ports(&self) -> (Vec<DumpPort>, Vec<PortIndex>) {
        let families: BTreeMap<_, _> = self
            .frontends
            .iter()
            .map(|(key, value)| (value.port, Family::from_address(key.address)))
            .collect();
        let with_words = (0..)
            .zip(&self.words)
            .filter(|(_, words)| **words != [Word::EMPTY; 2])
            .map(|(index, _)| PortIndex(index));
        let with_members = self.members.keys().map(|member| member.port);
        let with_facts = self.facts.keys().copied();
        let with_sources = self.sources.iter().map(|source| source.port);
        let with_others = with_facts.chain(with_members).chain(with_sources);
        let orphans: BTreeSet<_> =
            with_words.chain(with_others).filter(|index| !families.contains_key(index)).collect();
        (
            families.iter().map(|(index, family)| self.dump_port(*index, *family)).collect(),
            orphans.into_iter().collect(),
        )
    }
}

impl Maps for MemoryMaps {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        match action {
            Action::WriteRange(range, scope, rows) => {
                self.fill(*range, rows.slots_in_range(*scope, range.count).map(Some));
            }
            Action::FreeRange(range) => self.fill(*range, core::iter::repeat(None)),
            Action::PublishWord(index, scope, word) => self.publish(*index, *scope, *word),
            Action::WriteFacts(index, facts) if *facts == PortFacts::default() => {
                self.facts.remove(index);
            }
            Action::WriteFacts(index, facts) => {
                self.facts.insert(*index, *facts);
            }
            Action::InsertFrontend(key, value) => {
                self.frontends.insert(*key, *value);
            }
            Action::RemoveFrontend(key) => {
                self.frontends.remove(key);
            }
            Action::InsertMember(key, state) => {
                self.members.insert(*key, *state);
            }
            Action::RemoveMember(key) => {
                self.members.remove(key);
            }
            Action::InsertSource(key, _) => {
                self.sources.insert(*key);
            }
            Action::RemoveSource(key) => {
                self.sources.remove(key);
            }
            Action::InsertNodeAddress(address) => {
                self.node_addresses.insert(*address);
            }
            Action::RemoveNodeAddress(address) => {
                self.node_addresses.remove(address);
            }
        }
        Ok(())
    }

    fn begin_grace(&mut self) -> Grace {
        Grace(self.next_ticket)
    }

    fn is_grace_over(&self, grace: Grace) -> bool {
        self.readers.first().is_none_or(|oldest| *oldest >= grace.0)
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        let (ports, orphans) = self.dump_ports();
        Ok(Dump {
            frontends: self.frontends.iter().map(|(key, value)| (*key, *value)).collect(),
            ports,
            orphans,
            members: self.members.iter().map(|(key, state)| (*key, *state)).collect(),
            sources: Some(self.sources.iter().copied().collect()),
            node_addresses: self.node_addresses.iter().copied().collect(),
        })
    }

    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        Ok(self.frontends.get(key).copied())
    }

    fn read_port(&mut self, index: PortIndex, family: Family) -> Result<Option<DumpPort>, MapError> {
        Ok(Some(self.dump_port(index, family)))
    }

    fn capacity(&self) -> Capacity {
        self.capacity
    }
}

/// Addresses like `10.96.0.10:80`, for tests that dial like a client.
impl MemoryMaps {
    /// Like [`Self::lookup`], for TCP from this node.
    pub fn dial(&self, address: SocketAddr) -> DialOutcome {
        self.lookup(address.ip(), address.port(), Transport::Tcp, Client::Local)
    }
}

#[cfg(test)]
mod tests;
