//! The witness: after each op, every affected client must get a legal answer.
//!
//! Invariant: legal is the answer before the op, the answer of the owner's current lists, and, during a handover, the
//! answer of the current lists of a former holder.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use holdfast_core::keys::{Family, FrontendKey, ServiceKey, Transport};
use holdfast_core::list::Slot;
use holdfast_core::maps::{Client, DialOutcome, MemoryMaps, UnfinishedRead};
use holdfast_core::op::{Action, FrontendValue, MemberKey, Membership, PortIndex};
use holdfast_core::time::ClockReading;

use super::model::{Expected, Holder, Model};
use super::policy::Rule;
use super::population;
use crate::observing::Witness;

/// All kinds of clients. The last one is judged by what the one before it gets.
pub const CLIENTS: [Client; 3] = [Client::Local, Client::Outside, Client::From(population::SOURCE)];

/// One address, port and protocol that clients dial.
#[derive(Debug)]
pub struct Dialled {
    pub key: FrontendKey,
    /// What they last got.
    pub actual: [DialOutcome; 3],
    holders: Vec<Holder>,
    // Whether the client at an address was to be admitted or denied at any time since all was certain.
    let_in: bool,
    kept_out: bool,
    // Since all was certain: a refused word may have been published, and an older one may return.
    recent: Vec<DialOutcome>,
}

/// Lists that may return while ops are refused; more than any backoff allows.
const RECENT_MAX: usize = 64;

/// Everything that clients may get.
#[derive(Debug)]
pub struct Watch {
    /// What they should get.
    pub model: Model,
    /// All that they dial.
    pub dialled: Vec<Dialled>,
    /// Whether every source has synced.
    pub may_write: bool,
    /// The first violation.
    pub violation: Option<String>,
    /// Whether ops were refused, or the process died, at any time.
    pub faulty: bool,
    /// Ops that had an effect.
    pub ops: u64,
    // `ops` when every client last looked.
    looked: u64,
    pointing: BTreeMap<FrontendKey, FrontendValue>,
    // Ports with a refused source range since all was certain.
    unsourced: BTreeSet<PortIndex>,
    // Whether each service's internal and external policy are Local in the maps.
    policies: BTreeMap<ServiceKey, (bool, bool)>,
}

impl Watch {
    /// No frontend is served yet.
    pub fn new(rule: Rule) -> Self {
        let keys = population::dialled().flat_map(|it| {
            let port = core::num::NonZeroU16::new(it.port()).unwrap_or(core::num::NonZeroU16::MIN);
            Transport::ALL.map(|transport| FrontendKey { address: it.ip(), port, transport })
        });
        let passed = || [DialOutcome::Passed, DialOutcome::Passed, DialOutcome::Passed];
        let dialled = keys.map(|key| Dialled {
            key,
            actual: passed(),
            holders: Vec::new(),
            recent: Vec::new(),
            let_in: false,
            kept_out: false,
        });
        Self {
            model: Model::new(rule),
            dialled: dialled.collect(),
            may_write: false,
            violation: None,
            faulty: false,
            ops: 0,
            looked: 0,
            pointing: BTreeMap::new(),
            unsourced: BTreeSet::new(),
            policies: BTreeMap::new(),
        }
    }

    /// From now on the facts ask for the model's state.
    pub fn begin(&mut self, now: ClockReading) {
        self.model.decide(now);
        for dialled in &mut self.dialled {
            if let Some(owner) = self.model.owner(dialled.key)
                && !dialled.holders.contains(owner)
            {
                dialled.holders.push(owner.clone());
            }
        }
        self.wish();
        if self.faulty {
            self.remember();
        }
    }

    fn remember(&mut self) {
        for position in 0..self.dialled.len() {
            let Some(dialled) = self.dialled.get(position) else { continue };
            let lists = dialled.holders.iter().flat_map(|holder| self.lists(holder));
            let mut recent: Vec<_> = lists.chain(dialled.actual.iter().cloned()).collect();
            recent.retain(|answer| !dialled.recent.contains(answer));
            if let Some(dialled) = self.dialled.get_mut(position) {
                dialled.recent.append(&mut recent);
                dialled.recent.truncate(RECENT_MAX);
            }
        }
    }

    /// Every client looks again. At rest, only its owner holds a frontend.
    pub fn end(&mut self, maps: &MemoryMaps, is_at_rest: bool) {
        // If nothing was written, clients get what they got before.
        let is_written = std::mem::replace(&mut self.looked, self.ops) != self.ops;
        for position in 0..self.dialled.len() {
            if is_written {
                self.look(maps, position, None);
            }
            let Self { model, dialled, .. } = self;
            let Some(dialled) = dialled.get_mut(position).filter(|_| is_at_rest) else { continue };
            let same =
                |(client, actual): (&Client, &DialOutcome)| model.answer(dialled.key, *client) == *actual;
            if CLIENTS.iter().zip(&dialled.actual).all(same) {
                dialled.holders.clear();
                dialled.recent.clear();
                (dialled.let_in, dialled.kept_out) = (false, false);
                dialled.holders.extend(model.owner(dialled.key).cloned());
            }
        }
        if is_at_rest {
            self.unsourced.clear();
            self.wish();
            let policy =
                |(key, it): (&ServiceKey, &Expected)| (key.clone(), (it.internal_local, it.external_local));
            self.policies = self.model.services.iter().map(policy).collect();
        }
    }

    /// Records the first violation.
    pub fn blame(&mut self, what: impl FnOnce() -> String) {
        if self.violation.is_none() {
            self.violation = Some(what());
        }
    }

    /// `why`: the op before the look; `None`: the end of the step.
    fn look(&mut self, maps: &MemoryMaps, position: usize, why: Option<&Action>) {
        for (which, client) in CLIENTS.into_iter().enumerate() {
            let Some(dialled) = self.dialled.get(position) else { continue };
            let key = dialled.key;
            let now = maps.lookup(key.address, key.port.get(), key.transport, client);
            let Some(before) = dialled.actual.get(which).filter(|before| **before != now) else { continue };
            let is_legal = match client {
                Client::From(_) => self.may_meet(dialled, &now),
                Client::Local | Client::Outside => self.is_legal(dialled, client, &now),
            };
            if !is_legal {
                let wanted = self.model.answer(key, client);
                let why = why.map_or_else(|| "the step".to_owned(), |action| format!("{action:?}"));
                let what = format!(
                    "after {why}, {client:?} client of {key} gets {now:?}; before it was {before:?}, wanted is {wanted:?} of {:?}; it points to {:?} and was held by {:#?}",
                    self.model.owner(key),
                    self.pointing.get(&key),
                    dialled.holders
                );
                self.blame(|| what);
            }
            if let Some(actual) = self.dialled.get_mut(position).and_then(|it| it.actual.get_mut(which)) {
                *actual = now;
            }
        }
    }

    fn is_legal(&self, dialled: &Dialled, client: Client, now: &DialOutcome) -> bool {
        if self.model.answer(dialled.key, client) == *now {
            return true;
        }
        // After a refused removal, a new node address may still serve a NodePort that should be gone.
        if self.faulty && self.pointing.contains_key(&wildcard(dialled.key)) {
            return true;
        }
        if self.faulty && dialled.recent.contains(now) {
            return true;
        }
        if dialled.holders.iter().any(|holder| self.crosses(&holder.service)) {
            return true;
        }
        let owner = self.model.owner(dialled.key);
        let mut former = dialled.holders.iter().filter(|holder| Some(*holder) != owner);
        former.any(|holder| self.lists(holder).any(|answer| answer == *now))
    }

    /// The maps refused an op. The next look finds its effects, if any.
    pub fn refused(&mut self, action: &Action) {
        if let Action::InsertSource(key, _) = action {
            self.unsourced.insert(key.port);
        }
    }

    /// Whether a client at an address may get this: any outside client's answer, if it might have been admitted since
    /// all was certain, and nothing if it might have been denied. During a handover, either. If the maps refused a
    /// range of the port, it may have been the client's, which is then denied.
    fn may_meet(&self, dialled: &Dialled, now: &DialOutcome) -> bool {
        let [_, outside, _] = &dialled.actual;
        let found = self.pointing.get(&dialled.key).or_else(|| self.pointing.get(&wildcard(dialled.key)));
        let one = if let [one] = &*dialled.holders { Some(one) } else { None };
        let is_settled = found.zip(one).is_some_and(|(value, holder)| value.kind == holder.kind);
        let is_unsourced = found.is_some_and(|value| self.unsourced.contains(&value.port));
        let is_kept_out = *now == DialOutcome::Dropped && (!is_settled || dialled.kept_out || is_unsourced);
        is_kept_out || now == outside && (!is_settled || dialled.let_in)
    }

    /// Updates whether the client at an address is to be admitted at each frontend with an owner or a former one.
    fn wish(&mut self) {
        let Self { model, dialled, .. } = self;
        for dialled in dialled {
            let last = if let [last] = &*dialled.holders { Some(last) } else { None };
            let Some(owner) = model.owner(dialled.key).or(last) else { continue };
            let is_in = !model.keeps_out(owner);
            dialled.let_in |= is_in;
            dialled.kept_out |= !is_in;
        }
    }

    /// Whether one policy turns to Local while the other turns to Cluster: no order of two stores is right for both.
    fn crosses(&self, service: &ServiceKey) -> bool {
        let now = self.model.services.get(service).map(|it| (it.internal_local, it.external_local));
        let before = self.policies.get(service);
        now.zip(before).is_some_and(|(now, before)| now.0 != before.0 && now.1 != before.1 && now.0 != now.1)
    }

    fn lists(&self, holder: &Holder) -> impl Iterator<Item = DialOutcome> {
        let port = self.model.services.get(&holder.service).and_then(|it| it.ports.get(&holder.port));
        port.into_iter().flat_map(|port| [port.answer(false), port.answer(true)]).flatten()
    }

    /// Sockets are about to lose the backend, so a holder of the frontend must show it as not serving.
    fn look_at_leaving(&mut self, index: PortIndex, backend: SocketAddr) {
        let serves = |holder: &Holder| {
            let port = self.model.services.get(&holder.service).and_then(|it| it.ports.get(&holder.port));
            port.and_then(|it| it.serving.as_ref()).is_some_and(|serving| serving.contains_key(&backend))
        };
        let leads = |it: &&Dialled| self.pointing.get(&it.key).is_some_and(|it| it.port == index);
        let kept = |it: &&Dialled| !it.holders.is_empty() && it.holders.iter().all(serves);
        if let Some(dialled) = self.dialled.iter().filter(leads).find(kept) {
            let what = format!("{backend} is no member any more and serves behind {}", dialled.key);
            self.blame(|| what);
        }
    }

    fn look_at_port(&mut self, maps: &MemoryMaps, index: PortIndex, why: Option<&Action>) {
        let keys = self.pointing.iter().filter(|(_, it)| it.port == index).map(|(key, _)| *key);
        for key in keys.collect::<Vec<_>>() {
            self.look_at_key(maps, key, why);
        }
    }

    fn look_at_key(&mut self, maps: &MemoryMaps, key: FrontendKey, why: Option<&Action>) {
        let wild = key.address.is_unspecified();
        for position in 0..self.dialled.len() {
            let concerns = |it: &Dialled| {
                let same = (it.key.port, it.key.transport) == (key.port, key.transport);
                let family = Family::from_address(it.key.address) == Family::from_address(key.address);
                same && (it.key.address == key.address || wild && family)
            };
            if self.dialled.get(position).is_some_and(concerns) {
                self.look(maps, position, why);
            }
        }
    }
}

impl Witness<MemoryMaps> for Watch {
    fn before(&mut self, _: &MemoryMaps, action: &Action) {
        // Only wiping a range that no client can see needs no facts.
        if !self.may_write && !matches!(action, Action::FreeRange(_)) {
            self.blame(|| format!("{action:?} before every source has delivered"));
        }
    }

    fn after(&mut self, maps: &MemoryMaps, action: &Action) {
        self.ops += 1;
        // The text is built only on a violation, not for each of millions of ops.
        let why = Some(action);
        match action {
            Action::InsertFrontend(key, value) => {
                self.pointing.insert(*key, *value);
                self.look_at_key(maps, *key, why);
            }
            Action::RemoveFrontend(key) => {
                self.pointing.remove(key);
                self.look_at_key(maps, *key, why);
            }
            Action::PublishWord(index, ..) => self.look_at_port(maps, *index, why),
            Action::InsertNodeAddress(address) | Action::RemoveNodeAddress(address) => {
                for position in 0..self.dialled.len() {
                    if self.dialled.get(position).is_some_and(|it| it.key.address == *address) {
                        self.look(maps, position, why);
                    }
                }
            }
            Action::RemoveMember(MemberKey { port, membership: Membership::Serving, backend }) => {
                self.look_at_leaving(*port, *backend);
            }
            // No client may notice these; the look at the end of the step finds one that did.
            Action::WriteRange(..)
            | Action::FreeRange(_)
            | Action::InsertMember(..)
            | Action::RemoveMember(_)
            | Action::WriteFacts(..) => {}
            Action::InsertSource(key, _) | Action::RemoveSource(key) => {
                self.look_at_port(maps, key.port, why);
            }
        }
    }
}

/// A slow client: it has read the frontend or the word, and reads the slots later.
#[derive(Debug)]
pub struct SlowClient {
    reading: UnfinishedRead,
    key: FrontendKey,
    // The key that it used: the dialled one, or the wildcard of a NodePort.
    led_by: FrontendKey,
    holders: Vec<Holder>,
    // Every list that it may find.
    legal: Vec<Vec<Slot>>,
    has_word: bool,
}

fn wildcard(dialled: FrontendKey) -> FrontendKey {
    FrontendKey { address: Family::from_address(dialled.address).unspecified_address(), ..dialled }
}

fn slots(answer: &DialOutcome) -> Vec<Slot> {
    if let DialOutcome::Served(slots) = answer { slots.clone() } else { Vec::new() }
}

impl SlowClient {
    /// Starts to dial.
    pub fn begin(
        maps: &mut MemoryMaps,
        watch: &Watch,
        position: usize,
        client: Client,
        has_word: bool,
    ) -> Option<Self> {
        let dialled = watch.dialled.get(position)?;
        let FrontendKey { address, port, transport } = dialled.key;
        let now = slots(&maps.lookup(address, port.get(), transport, client));
        let reading = if has_word {
            maps.begin_read(address, port.get(), transport, client)
        } else {
            maps.begin_dial(address, port.get(), transport, client)
        };
        let key = dialled.key;
        let led_by = if watch.pointing.contains_key(&key) { key } else { wildcard(key) };
        let holders = dialled.holders.clone();
        Some(Self { reading: reading?, key, led_by, holders, legal: vec![now], has_word })
    }

    /// A new process decides: the frontend's current owner may have adopted its port. For a NodePort that is the owner
    /// of the wildcard, even if the dialled address is no longer the node's.
    pub fn adopt(&mut self, watch: &Watch) {
        let owner = watch.model.owners.get(&self.led_by).filter(|owner| !self.holders.contains(owner));
        self.holders.extend(owner.cloned());
    }

    /// While it waits, the lists of the holders of its frontend may change.
    pub fn wait(&mut self, watch: &Watch) {
        if self.has_word {
            return;
        }
        let dialled = watch.dialled.iter().filter(|it| it.key == self.key);
        // It cannot notice that the frontend was removed since.
        let met = dialled.flat_map(|it| it.actual.iter().cloned()).filter(|it| *it != DialOutcome::Passed);
        let held = self.holders.iter().flat_map(|holder| watch.lists(holder));
        for list in met.chain(held).map(|it| slots(&it)).collect::<Vec<_>>() {
            if !self.legal.contains(&list) {
                self.legal.push(list);
            }
        }
    }

    /// Reads the slots.
    pub fn end(self, maps: &mut MemoryMaps, watch: &mut Watch) {
        let found = maps.end_read(&self.reading);
        if !self.legal.contains(&found) {
            let Self { key, legal, has_word, holders, reading, .. } = self;
            watch.blame(|| {
                format!("a slow client of {key} (word read: {has_word}) finds {found:?}; legal: {legal:?}; {reading:?} held by {holders:?}")
            });
        }
    }
}

#[cfg(test)]
mod tests;
