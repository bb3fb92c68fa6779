//! The steps of a program from a client's destination to its backend, one read at a time.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use holdfast_core::keys::Family;
use holdfast_core::list::Scope;
use holdfast_core::op::{Word, WordFlags};

use super::memory::{Fault, Memory, ModelCell, port_of, word_at};
use crate::abi;

/// The outcome of a client's dial.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Met {
    /// No frontend has the address.
    Passed,
    /// A frontend with an empty list.
    Denied,
    /// These backends, by the last byte of their addresses.
    Served(Vec<u8>),
    /// A list with unwritten slots.
    Torn(Vec<u8>),
}

/// Dials once, as one program run.
pub(super) fn dial(memory: &Memory, address: &str, fault: Fault) -> Met {
    memory.enter();
    let met = find(memory, address.parse().unwrap(), fault);
    memory.leave();
    met
}

fn find(memory: &Memory, address: IpAddr, fault: Fault) -> Met {
    let (_, cell) = memory.frontends.iter().find(|(it, _)| *it == address).unwrap();
    let Some(port) = port_of(cell.load(Ordering::Acquire)) else { return Met::Passed };
    let read = |scope| abi::decode_word(memory.words[word_at(port, scope)].load());
    let early = (fault == Fault::LocalEarly).then(|| read(Scope::Local));
    let cluster = read(Scope::Cluster);
    let word = if cluster.flags.contains(WordFlags::INTERNAL_LOCAL) {
        early.unwrap_or_else(|| read(Scope::Local))
    } else {
        cluster
    };
    if word.count == 0 { Met::Denied } else { slots(memory, word) }
}

fn slots(memory: &Memory, word: Word) -> Met {
    let cells = &memory.slots[word.base as usize..][..word.count as usize];
    let slot = |cell: &ModelCell| abi::decode_slot(Family::V4, [cell.load()].into_iter());
    let found: Vec<_> = cells.iter().map(slot).collect();
    let last = |address| match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(_) => 0,
    };
    let backends = found.iter().flatten().map(|slot| last(slot.address)).collect();
    if found.contains(&None) { Met::Torn(backends) } else { Met::Served(backends) }
}
