//! The maps that keep their size: node addresses, node ports, and what the daemon tells all programs.
//!
//! Invariant: a bit of `node_ports` is set while any frontend without an address has that port. Deliberately absent: the
//! state of sockets and clients, which only programs write.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use holdfast_core::keys::FrontendKey;

use crate::abi::{self, types};
use crate::error::StartError;
use crate::generation::{table, view};
use crate::load::{self, Maps, SHARED_MAPS};
use crate::table::Table;
use crate::view::View;

/// The maps that all generations share.
#[derive(Debug)]
pub(crate) struct Shared {
    handles: Maps,
    addresses: [Table; 2],
    node_ports: View,
    control: View,
    // Frontends without an address: whose bits are set.
    wildcards: BTreeSet<FrontendKey>,
}

impl Shared {
    pub(crate) fn new(maps: &Maps, wildcards: BTreeSet<FrontendKey>) -> Result<Self, StartError> {
        let handles = load::copies(maps.iter().filter(|(name, _)| SHARED_MAPS.contains(name)))?;
        let shared = Self {
            handles,
            addresses: [table(maps, "node_addresses4")?, table(maps, "node_addresses6")?],
            node_ports: view(maps, "node_ports")?,
            control: view(maps, "control")?,
            wildcards: BTreeSet::new(),
        };
        Ok(shared.with_wildcards(wildcards))
    }

    /// Sets exactly the bits of these, whatever a former daemon left.
    fn with_wildcards(mut self, wildcards: BTreeSet<FrontendKey>) -> Self {
        let mut bits = vec![0_u64; self.node_ports.len()];
        for key in &wildcards {
            if let Some(bits) = bits.get_mut(bit(key).0) {
                *bits |= bit(key).1;
            }
        }
        self.node_ports.iter().zip(bits).for_each(|(place, bits)| place.store(bits, Ordering::Release));
        self.wildcards = wildcards;
        self
    }

    /// For loading programs over the same maps.
    pub(crate) fn handles(&self) -> &Maps {
        &self.handles
    }

    pub(crate) fn addresses(&self) -> &[Table; 2] {
        &self.addresses
    }

    pub(crate) fn addresses_mut(&mut self, address: IpAddr) -> &mut Table {
        let [v4, v6] = &mut self.addresses;
        if address.is_ipv4() { v4 } else { v6 }
    }

    /// A frontend has come.
    pub(crate) fn note_inserted(&mut self, key: &FrontendKey) {
        if key.address.is_unspecified() && self.wildcards.insert(*key) {
            let (at, bit) = bit(key);
            if let Some(place) = self.node_ports.get(at) {
                place.fetch_or(bit, Ordering::Release);
            }
        }
    }

    /// A frontend has gone.
    pub(crate) fn note_removed(&mut self, key: &FrontendKey) {
        let shares_port = |other: &FrontendKey| other.port == key.port;
        if self.wildcards.remove(key) && !self.wildcards.iter().any(shares_port) {
            let (at, bit) = bit(key);
            if let Some(place) = self.node_ports.get(at) {
                place.fetch_and(!bit, Ordering::Release);
            }
        }
    }

    pub(crate) fn control(&self) -> types::control {
        let words = self.control.iter().map(|word| word.load(Ordering::Relaxed));
        abi::from_words(words.take(size_of::<types::control>() / 8)).unwrap_or_default()
    }

    /// Tells the programs who is exempt, and whose loopback answers node ports. Counts stay.
    pub(crate) fn tell(&self, told: &types::control) {
        let lost = std::mem::offset_of!(types::control, refusals_lost) / 8;
        let words = self.control.iter().zip(abi::words(told)).enumerate();
        words
            .filter(|(at, _)| *at != lost)
            .for_each(|(_, (place, word))| place.store(word, Ordering::Release));
    }
}

/// The word and the bit of a port.
fn bit(key: &FrontendKey) -> (usize, u64) {
    let number = key.port.get();
    (usize::from(number / 64), 1 << (number % 64))
}
