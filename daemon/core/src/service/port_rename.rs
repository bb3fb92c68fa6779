//! A port that is renamed while clients keep dialling the same number and protocol.
//!
//! Invariant: the history of a number's list moves with the number, so a rename never counts as the loss of a list. A
//! number that keeps its name, and a name with a new number, keep their histories. In the maps the renamed port is
//! another port, so that a frontend that still leads to the former port never meets another port's list.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use core::num::NonZeroU16;

use super::Port;
use crate::facts::{ServiceFacts, ServicePort};
use crate::hold::ListHistory;
use crate::keys::{PortKey, Transport};
use crate::list::Rows;
use crate::resolve::DesiredPort;

/// The history of a port's own lists.
pub(super) struct PortHistory {
    rows: Arc<Rows>,
    history: ListHistory,
    counted: usize,
}

impl PortHistory {
    fn from_port(port: &Port) -> Self {
        Self { rows: Arc::clone(&port.rows), history: port.history.clone(), counted: port.counted }
    }

    pub(super) fn restore_to(self, port: &mut Port) {
        (port.rows, port.history, port.counted) = (self.rows, self.history, self.counted);
    }
}

/// The histories of desired ports with numbers that had another name before. The look-ups use sorted sets, because a
/// service may rename thousands of ports at once.
pub(super) fn find_renamed(
    ports: &[Port],
    wanted: &[DesiredPort],
    before: &ServiceFacts,
    now: &ServiceFacts,
) -> BTreeMap<PortKey, PortHistory> {
    if before.ports == now.ports {
        return BTreeMap::new();
    }
    let before = PortNumberIndex::from_facts(before);
    let now = PortNumberIndex::from_facts(now);
    let mut formers = BTreeMap::new();
    let mut stay = BTreeSet::new();
    for (position, port) in ports.iter().enumerate() {
        for number in before.port_numbers(&port.key) {
            if now.contains(&port.key, number) {
                stay.insert(&port.key);
            } else {
                formers.entry((port.key.transport, port.key.family, number)).or_insert(position);
            }
        }
    }
    let history = |key: &PortKey| {
        let former = |number| formers.get(&(key.transport, key.family, number));
        let position = now.port_numbers(key).filter_map(former).min().filter(|_| !stay.contains(key))?;
        Some((key.clone(), PortHistory::from_port(ports.get(*position)?)))
    };
    wanted.iter().filter_map(|port| history(&port.key)).collect()
}

/// The numbers that clients dial, by name and protocol.
struct PortNumberIndex(BTreeSet<(Arc<str>, Transport, NonZeroU16)>);

impl PortNumberIndex {
    fn from_facts(facts: &ServiceFacts) -> Self {
        let number =
            |port: &ServicePort| Some((Arc::clone(&port.name), port.protocol.transport()?, port.port));
        Self(facts.ports.iter().filter_map(number).collect())
    }

    fn contains(&self, key: &PortKey, number: NonZeroU16) -> bool {
        self.0.contains(&(Arc::clone(&key.name), key.transport, number))
    }

    /// The numbers of a port: one, unless the service gives several ports the same name.
    fn port_numbers(&self, key: &PortKey) -> impl Iterator<Item = NonZeroU16> {
        let at = |number| (Arc::clone(&key.name), key.transport, number);
        self.0.range(at(NonZeroU16::MIN)..=at(NonZeroU16::MAX)).map(|(.., number)| *number)
    }
}
