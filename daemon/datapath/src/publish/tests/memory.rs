//! Maps whose every access is explored.
//!
//! Invariant: stores go through [`crate::publish`], as those of the kernel's maps do. A frontend is one cell, because
//! the kernel publishes a hash element by one pointer, after its content. The model leaves out members, facts and node
//! addresses.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::list::Scope;
use holdfast_core::maps::{Capacity, MapError, Maps};
use holdfast_core::op::{Action, Dump, FrontendValue, Grace, PortIndex, Word};
use loom::sync::atomic::{AtomicU64, fence};

use crate::abi;
use crate::publish::{self, Cell};

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// None: the protocol as it is.
    None,
    /// The word points to unwritten slots.
    WordBeforeRange,
    /// The frontend points to an unpublished word.
    FrontendBeforeWord,
    /// A word is stored in two halves.
    TwoStores,
    /// Nothing orders the word after the slots.
    Relaxed,
    /// Grace periods end at once.
    NoGrace,
    /// A reader's processor reads the local word before the cluster word that refers to it.
    LocalEarly,
}

/// More than any script needs.
pub(super) const CAPACITY: Capacity = Capacity { slots: 8, ports: 4, services: 4 };

/// A cell whose stores and loads are all explored.
#[derive(Debug)]
pub(super) struct ModelCell {
    word: AtomicU64,
    relaxed: bool,
}

impl Cell for ModelCell {
    fn store(&self, word: u64, order: Ordering) {
        self.word.store(word, if self.relaxed { Ordering::Relaxed } else { order });
    }
}

impl ModelCell {
    /// Programs use the loaded value as the address of the next load, which orders them like acquire.
    pub(super) fn load(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }
}

const OUTSIDE: u64 = 0;
const UNDER_WAY: u64 = 1;

/// The state shared by writer and reader.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) frontends: Vec<(std::net::IpAddr, AtomicU64)>,
    pub(super) words: Vec<ModelCell>,
    pub(super) slots: Vec<ModelCell>,
    // The reader's state.
    reader: AtomicU64,
}

impl Memory {
    pub(super) fn new(frontends: &[&str], fault: Fault) -> Arc<Self> {
        let cell = |_| ModelCell { word: AtomicU64::new(0), relaxed: fault == Fault::Relaxed };
        Arc::new(Self {
            frontends: frontends.iter().map(|it| (it.parse().unwrap(), AtomicU64::new(0))).collect(),
            words: (0..CAPACITY.ports * 2).map(cell).collect(),
            slots: (0..CAPACITY.slots).map(cell).collect(),
            reader: AtomicU64::new(OUTSIDE),
        })
    }

    /// A program starts: grace periods that begin later wait for it.
    pub(super) fn enter(&self) {
        self.reader.store(UNDER_WAY, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// A program ends.
    pub(super) fn leave(&self) {
        self.reader.store(OUTSIDE, Ordering::Release);
    }
}

/// The cell of a frontend: 0 is none.
fn target(value: FrontendValue) -> u64 {
    1 + u64::from(value.port.0)
}

/// The port of a frontend's cell.
pub(super) fn port_of(cell: u64) -> Option<PortIndex> {
    Some(PortIndex(u32::try_from(cell.checked_sub(1)?).unwrap()))
}

/// The index of a list's word.
pub(super) fn word_at(index: PortIndex, scope: Scope) -> usize {
    index.0 as usize * 2 + usize::from(scope == Scope::Local)
}

/// The planner's view of the maps.
#[derive(Debug)]
pub(super) struct ModelMaps {
    memory: Arc<Memory>,
    fault: Fault,
    held: Option<Action>,
    // Whether the reader was running when each grace period began.
    graces: Vec<bool>,
}

impl ModelMaps {
    pub(super) fn new(memory: &Arc<Memory>, fault: Fault) -> Self {
        Self { memory: Arc::clone(memory), fault, held: None, graces: Vec::new() }
    }

    fn set_frontend(&self, key: &FrontendKey, cell: u64) {
        let found = self.memory.frontends.iter().find(|(address, _)| *address == key.address);
        found.into_iter().for_each(|(_, it)| it.store(cell, Ordering::Release));
    }

    fn publish(&self, published: &ModelCell, word: Word) {
        if self.fault == Fault::TwoStores {
            let before = abi::decode_word(published.word.load(Ordering::Relaxed));
            publish::publish_word(published, Word { base: word.base, ..before });
        }
        publish::publish_word(published, word);
    }

    fn apply(&self, action: &Action) {
        match action {
            Action::WriteRange(range, scope, rows) => {
                assert_eq!(range.family, Family::V4);
                publish::fill_range(&self.memory.slots, *range, rows.slots(*scope));
            }
            Action::FreeRange(range) => publish::fill_range(&self.memory.slots, *range, std::iter::empty()),
            Action::PublishWord(index, scope, word) => {
                self.publish(&self.memory.words[word_at(*index, *scope)], *word);
            }
            Action::InsertFrontend(key, value) => self.set_frontend(key, target(*value)),
            Action::RemoveFrontend(key) => self.set_frontend(key, 0),
            Action::WriteFacts(..)
            | Action::InsertMember(..)
            | Action::RemoveMember(_)
            | Action::InsertSource(..)
            | Action::RemoveSource(_)
            | Action::InsertNodeAddress(_)
            | Action::RemoveNodeAddress(_) => {}
        }
    }

    fn is_late(&self, action: &Action) -> bool {
        match self.fault {
            Fault::WordBeforeRange => matches!(action, Action::WriteRange(..)),
            Fault::FrontendBeforeWord => matches!(action, Action::PublishWord(..)),
            Fault::None | Fault::TwoStores | Fault::Relaxed | Fault::NoGrace | Fault::LocalEarly => false,
        }
    }
}

impl Maps for ModelMaps {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        if self.held.is_none() && self.is_late(action) {
            self.held = Some(action.clone());
            return Ok(());
        }
        self.apply(action);
        let held = self.held.take();
        held.iter().for_each(|action| self.apply(action));
        Ok(())
    }

    /// As the kernel promises: it waits for a reader that began before; a later reader sees all stores until now.
    fn begin_grace(&mut self) -> Grace {
        fence(Ordering::SeqCst);
        self.graces.push(self.memory.reader.load(Ordering::Acquire) == UNDER_WAY);
        Grace(self.graces.len() as u64 - 1)
    }

    fn is_grace_over(&self, grace: Grace) -> bool {
        let awaited = self.graces[usize::try_from(grace.0).unwrap()];
        self.fault == Fault::NoGrace || !awaited || self.memory.reader.load(Ordering::Acquire) == OUTSIDE
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        Ok(Dump::default())
    }

    fn capacity(&self) -> Capacity {
        CAPACITY
    }
}
