//! Maglev tables: lists in which a hash selects a client's place, so that every node finds the same backend for it.
//!
//! Invariant: a table depends only on the addresses, ports and weights of its backends, on every node and in every
//! version. The share of a backend equals its weight, plus or minus a place or two. When a backend is added or removed,
//! few places of the others change.

use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::net::{IpAddr, SocketAddr};

use crate::{limits, work};

/// The table sizes: primes, so that every permutation visits all places, and just below the powers of two of the
/// allocator's blocks. The larger one is for lists with less than a hundred places per backend in the smaller.
const PLACES_SMALL: u32 = 16_381;
const PLACES_LARGE: u32 = 65_521;

/// Up to this many backends have a hundred places each, which makes the shares even to one percent.
const SMALL_TABLE_BACKENDS_MAX: u32 = PLACES_SMALL / 100;

/// More backends would have less than ten places each: such a list stays plain. All nodes agree on a client's place in
/// it too, but a change of the list moves most clients.
const TABLE_BACKENDS_MAX: u32 = PLACES_LARGE / 10;

/// The size of a table of `backends` backends.
pub const fn table_size(backends: u32) -> u32 {
    if backends < 2 || backends > TABLE_BACKENDS_MAX {
        backends
    } else if backends > SMALL_TABLE_BACKENDS_MAX {
        PLACES_LARGE
    } else {
        PLACES_SMALL
    }
}

/// Whether a range of `slots` is a table of `backends` backends.
pub const fn is_table(slots: u32, backends: u32) -> bool {
    slots > backends && (slots == PLACES_SMALL || slots == PLACES_LARGE)
}

/// For each place, the number of its backend. The backends come sorted by address and port, each once, with their
/// weights. If all weights are equal, even 0, all backends count alike.
pub fn table(backends: impl Iterator<Item = (SocketAddr, u16)>, places: u32) -> Vec<u32> {
    fill(backends.map(|(backend, weight)| Permutation::new(backend, weight, places)).collect(), places)
}

fn fill(mut permutations: Vec<Permutation>, places: u32) -> Vec<u32> {
    let mut table = Table::new(places);
    let weights = || permutations.iter().map(|permutation| permutation.weight);
    let (least, most) = (weights().min().unwrap_or_default(), weights().max().unwrap_or_default());
    if least == most {
        fill_evenly(&mut permutations, &mut table);
    } else {
        fill_by_weight(&mut permutations, &mut table, most);
    }
    table.places
}

/// Each backend takes a place in each round.
fn fill_evenly(permutations: &mut [Permutation], table: &mut Table) {
    let mut left = if permutations.is_empty() { 0 } else { table.places.len() };
    while left > 0 {
        for (number, permutation) in (0..).zip(permutations.iter_mut()).take(left) {
            table.assign_place(permutation, number);
            left -= 1;
        }
    }
}

/// The heaviest backends take a place in each round, each other backend in proportion to its weight, but in the first
/// round too: even the lightest has a place. A heap yields the next backend, because most rounds may have few.
fn fill_by_weight(permutations: &mut [Permutation], table: &mut Table, most: u16) {
    let turns = (0..).zip(permutations.iter()).filter(|(_, permutation)| permutation.weight > 0);
    let mut turns: BinaryHeap<_> =
        turns.map(|(number, permutation)| Reverse((permutation.next_turn(most), number))).collect();
    for _ in 0..table.places.len() {
        let Some(Reverse((_, number))) = turns.pop() else { return };
        let Some(permutation) = permutations.get_mut(number as usize) else { return };
        table.assign_place(permutation, number);
        turns.push(Reverse((permutation.next_turn(most), number)));
    }
}

/// A place without a backend.
const FREE: u32 = u32::MAX;

/// A table while it is filled.
struct Table {
    places: Vec<u32>,
    /// How many look-ups remain for the permutations of all backends.
    lookups: u64,
    /// No place before this one is free.
    first: usize,
}

impl Table {
    fn new(places: u32) -> Self {
        let lookups = u64::from(places) * limits::LOOKUPS_PER_PLACE;
        Self { places: vec![FREE; places as usize], lookups, first: 0 }
    }

    /// Gives the backend the first free place of its permutation or, once the look-ups are used up, of the table.
    fn assign_place(&mut self, permutation: &mut Permutation, number: u32) {
        permutation.taken += 1;
        let found = self.next_free(permutation).or_else(|| self.first_free());
        if let Some(place) = found.and_then(|at| self.places.get_mut(at)) {
            *place = number;
        }
    }

    /// Every permutation finds a free place, because any step visits all of a prime number of places.
    fn next_free(&mut self, permutation: &mut Permutation) -> Option<usize> {
        while self.lookups > 0 {
            work::count_work(1);
            self.lookups -= 1;
            let at = permutation.advance();
            if self.places.get(at) == Some(&FREE) {
                return Some(at);
            }
        }
        None
    }

    fn first_free(&mut self) -> Option<usize> {
        let taken = self.places.iter().skip(self.first).take_while(|place| **place != FREE).count();
        work::count_work(taken);
        self.first += taken;
        (self.first < self.places.len()).then_some(self.first)
    }
}

/// The permutation of one backend over the places of a table.
struct Permutation {
    next: u32,
    step: u32,
    places: u32,
    weight: u16,
    /// How many places it has taken.
    taken: u32,
}

impl Permutation {
    fn new(backend: SocketAddr, weight: u16, places: u32) -> Self {
        let begin = hash_backend(backend, OFFSET_SEED);
        let step = hash_backend(backend, SKIP_SEED);
        let step = 1 + reduce_below(step, places.saturating_sub(1));
        Self { next: reduce_below(begin, places), step, places, weight, taken: 0 }
    }

    /// The round in which it takes its next place, if the heaviest take one in each.
    fn next_turn(&self, most: u16) -> u64 {
        let wanted = (u64::from(self.taken) + 1) * u64::from(most);
        if self.taken == 0 { 1 } else { wanted.div_ceil(u64::from(self.weight.max(1))) }
    }

    /// Returns the current place and moves to the next.
    const fn advance(&mut self) -> usize {
        let at = self.next;
        self.next += self.step;
        if self.next >= self.places {
            self.next -= self.places;
        }
        at as usize
    }
}

/// The seeds of a backend's two hashes. They are the same on all nodes and in every version.
const OFFSET_SEED: u64 = 0x6d61_676c_6576_0001;
const SKIP_SEED: u64 = 0x6d61_676c_6576_0002;

/// Hashes a backend's address and port.
fn hash_backend(backend: SocketAddr, seed: u64) -> u64 {
    let bits = match backend.ip() {
        IpAddr::V4(address) => u128::from(address.to_ipv6_mapped()),
        IpAddr::V6(address) => u128::from(address),
    };
    // Both halves count, and neither is truncated.
    let halves =
        [bits >> 64, bits & u128::from(u64::MAX)].map(|half| u64::try_from(half).unwrap_or_default());
    let mixed = halves.into_iter().fold(seed, |mixed, half| mix(mixed ^ half));
    mix(mixed ^ u64::from(backend.port()))
}

/// Spreads every bit over all others, as the end of `MurmurHash3` does.
const fn mix(bits: u64) -> u64 {
    let bits = (bits ^ bits >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let bits = (bits ^ bits >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    bits ^ bits >> 33
}

/// Reduces a number below `end`, if that is not 0.
fn reduce_below(number: u64, end: u32) -> u32 {
    number.checked_rem(u64::from(end)).and_then(|rest| u32::try_from(rest).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
