//! Two simulations of the same services: one alone, and one alongside hostile tenants that claim their addresses, list
//! their backends, and create and delete services by the thousands.
//!
//! Invariant: whatever the tenants do, a bystander has the same lists, holds, ends of holds, rows, records and answers
//! in both, within a few pieces of work. A contested address belongs to the service that the rules name, and all other
//! claimants see its name. The same seed gives the same simulations.

mod bystanders;
mod compare;
mod tenant;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::change::Cause;
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, ServiceFacts, Settings, SliceFacts, Timestamp};
use holdfast_core::hold::{ProbeAnswer, ProbeResult};
use holdfast_core::index::Seed;
use holdfast_core::keys::{Protocol, ServiceKey, SliceKey, Source, Transport};
use holdfast_core::maps::{Capacity, Client, MemoryMaps};
use holdfast_core::snapshot::{Reason, ServiceView, Snapshot, Verdict};
use holdfast_core::time::ClockReading;

use super::{Random, Violation};
use bystanders::BYSTANDERS;
use compare::Record;

/// Pieces of work after which a bystander's changes are realized, whatever else is to be done.
const PIECES_MAX: usize = 3;

/// Pieces of work after which everything is done.
const REST_MAX: usize = 20_000;

/// How long a row may name a former owner after a recent update.
const OWNERS_TOLD: Duration = Duration::from_secs(1);

/// The most services that the tenant creates or deletes at once.
const BURST_MAX: usize = 300;

/// Nothing here is full.
const CAPACITY: Capacity = Capacity { slots: 1 << 16, ports: 1 << 15, services: 1 << 13 };

/// The counts of such simulations.
#[derive(Clone, Debug, Default)]
pub struct Beside {
    /// Events of tenants.
    pub hostile: u64,
    /// Deleted services of tenants.
    pub gone: u64,
    /// How often a list of a bystander was held.
    pub held: u64,
    /// How often another service listed a bystander's held address.
    pub heard: u64,
    /// How often everything was at rest and the owners of contested addresses were compared.
    pub rests: u64,
    /// How many addresses had more than one claimant at rest.
    pub fought: u64,
}

struct Life {
    engine: Engine<MemoryMaps>,
    snapshot: Arc<Snapshot>,
    records: Vec<Record>,
    heard: u64,
}

struct Lives {
    alone: Life,
    beside: Life,
    random: Random,
    clock: Duration,
    own: BTreeMap<ServiceKey, usize>,
    services: Vec<Arc<ServiceFacts>>,
    tenants: BTreeMap<usize, Arc<ServiceFacts>>,
    slices: BTreeMap<SliceKey, Arc<SliceFacts>>,
    report: Beside,
}

/// Runs so many steps.
pub fn beside(seed: u64, steps: u64) -> Result<Beside, Violation> {
    let fail = |step, what| Violation { seed, step, faults: 0, what };
    let mut lives = Lives::new(seed).map_err(|what| fail(0, what))?;
    for step in 1..=steps {
        lives.step().map_err(|what| fail(step, what))?;
    }
    lives.rest().map_err(|what| fail(steps, what))?;
    lives.report.heard = lives.beside.heard;
    Ok(lives.report)
}

impl Life {
    fn new(seed: u64) -> Result<Self, String> {
        let (engine, _) = Engine::start(MemoryMaps::new(CAPACITY), Seed(seed.into()), &[Source::Kubernetes])
            .map_err(|error| error.to_string())?;
        Ok(Self { engine, snapshot: Arc::default(), records: Vec::new(), heard: 0 })
    }

    /// Runs so many pieces, or all that there is to do. `true`: nothing is left.
    fn advance(&mut self, now: ClockReading, pieces: usize, own: &BTreeMap<ServiceKey, usize>) -> bool {
        for _ in 0..pieces {
            let Self { engine, records, heard, .. } = self;
            self.snapshot = engine.step(now, &mut |change| {
                if own.contains_key(&change.service) {
                    let is_heard = |cause: &Cause| matches!(cause, Cause::AddressClaimed(..));
                    *heard += u64::from(change.causes.iter().any(is_heard));
                    records.extend(Record::of(&change));
                }
            });
            if self.engine.next_due(now.mono) != Some(now.mono) {
                return true;
            }
        }
        false
    }

    fn views(&self, own: &BTreeMap<ServiceKey, usize>) -> BTreeMap<usize, Arc<ServiceView>> {
        let place = |view: &Arc<ServiceView>| own.get(&view.key).copied();
        self.snapshot.services.iter().filter_map(|view| Some((place(view)?, Arc::clone(view)))).collect()
    }
}

impl Lives {
    fn new(seed: u64) -> Result<Self, String> {
        let mut lives = Self {
            alone: Life::new(seed)?,
            beside: Life::new(seed ^ 1)?,
            random: Random::new(seed),
            clock: Duration::ZERO,
            own: (0..BYSTANDERS).map(|position| (bystanders::key(position), position)).collect(),
            services: (0..BYSTANDERS).map(|position| Arc::new(bystanders::service(position))).collect(),
            tenants: BTreeMap::new(),
            slices: BTreeMap::new(),
            report: Beside::default(),
        };
        let node = NodeFacts {
            name: "n1".into(),
            zone: None,
            node_port_addresses: tenant::NODE.into(),
            addresses: tenant::NODE.into(),
            is_leaving: false,
        };
        lives.tell(&Event::NodeApplied(Arc::new(node)));
        lives.tell(&Event::SettingsApplied(Arc::new(Settings::default())));
        for facts in lives.services.clone() {
            lives.tell(&Event::ServiceApplied(facts));
        }
        bystanders::whole().for_each(|slice| lives.tell(&Event::SliceApplied(slice)));
        lives.tell(&Event::Synced(Source::Kubernetes));
        Ok(lives)
    }

    fn now(&self) -> ClockReading {
        let wall = Timestamp(1_000_000 + i64::try_from(self.clock.as_secs()).unwrap_or(0));
        ClockReading { wall, mono: self.clock }
    }

    /// Delivers a bystander's event in both simulations.
    fn tell(&mut self, event: &Event) {
        self.alone.engine.apply(event.clone());
        self.beside.engine.apply(event.clone());
    }

    /// Delivers a tenant's event in one.
    fn hostile(&mut self, event: Event) {
        self.report.hostile += 1;
        self.beside.engine.apply(event);
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.below(1_000) {
            0..120 => self.change_slice(),
            120..200 => self.change_service(),
            200..240 => self.probe(),
            240..245 => self.tell(&Event::Interrupted(Source::Kubernetes)),
            245..420 => self.change_tenant(),
            420..600 => self.list_what_it_likes(),
            600..996 => return self.advance(),
            996 => self.burst(),
            997 => self.empty_everything(),
            _ => return self.rest(),
        }
        Ok(())
    }

    /// A bystander's owner edits its service. No service is deleted: how long a simulation remembers a deleted
    /// service's backends depends on when its leftovers were removed.
    fn change_service(&mut self) {
        let position = self.random.below(BYSTANDERS);
        let Some(own) = self.services.get_mut(position) else { return };
        *own = Arc::new(bystanders::edited(&mut self.random, own));
        let event = Event::ServiceApplied(Arc::clone(own));
        self.tell(&event);
    }

    fn change_slice(&mut self) {
        let (position, number) = (self.random.below(BYSTANDERS), self.random.below(2));
        let event = match bystanders::slice(&mut self.random, position, number) {
            Some(slice) => Event::SliceApplied(Arc::new(slice)),
            None => Event::SliceDeleted(bystanders::slice_key(position, number), None),
        };
        self.tell(&event);
    }

    /// No tenant decides what a held backend answers.
    fn probe(&mut self) {
        let mut probes = Vec::new();
        for view in self.alone.snapshot.services.iter() {
            for port in &view.ports {
                let held = port.hold.iter().flat_map(|hold| hold.probe_targets(port.key.transport));
                probes.extend(held.map(|backend| (view.key.clone(), port.key.clone(), backend)));
            }
        }
        if probes.is_empty() {
            return;
        }
        let (service, port, backend) = probes.swap_remove(self.random.below(probes.len()));
        let answer = ProbeAnswer::ALL.get(self.random.below(3)).copied().unwrap_or(ProbeAnswer::Silent);
        let probed = ProbeResult { service, port, backend, answer };
        for _ in 0..1 + self.random.below(3) {
            self.tell(&Event::Probed(Box::new(probed.clone())));
        }
    }

    fn change_tenant(&mut self) {
        let position = self.random.below(tenant::SERVICES);
        // A few of them change often, so that contested addresses change owners often.
        let position = if self.random.chance(500) { position % 8 } else { position };
        if self.tenants.contains_key(&position) && self.random.chance(400) {
            return self.remove_tenant(position);
        }
        let facts = Arc::new(tenant::service(&mut self.random, position));
        self.tenants.insert(position, Arc::clone(&facts));
        self.hostile(Event::ServiceApplied(facts));
    }

    fn remove_tenant(&mut self, position: usize) {
        self.tenants.remove(&position);
        self.report.gone += 1;
        self.hostile(Event::ServiceDeleted(tenant::key(position), None));
    }

    /// Creates or deletes hundreds of the tenants' services.
    fn burst(&mut self) {
        let (from, count) = (self.random.below(tenant::SERVICES), self.random.below(BURST_MAX));
        let comes = self.random.chance(500);
        for position in (from..from + count).map(|position| position % tenant::SERVICES) {
            if comes {
                let facts = Arc::new(tenant::service(&mut self.random, position));
                self.tenants.insert(position, Arc::clone(&facts));
                self.hostile(Event::ServiceApplied(facts));
            } else if self.tenants.contains_key(&position) {
                self.remove_tenant(position);
            }
        }
    }

    fn list_what_it_likes(&mut self) {
        let position = self.random.below(tenant::SLICES);
        let slice = Arc::new(tenant::slice(&mut self.random, position));
        if self.slices.contains_key(&slice.key) && self.random.chance(300) {
            self.slices.remove(&slice.key);
            return self.hostile(Event::SliceDeleted(slice.key.clone(), None));
        }
        self.slices.insert(slice.key.clone(), Arc::clone(&slice));
        self.hostile(Event::SliceApplied(slice));
    }

    /// Deletes all slices of the tenants at once.
    fn empty_everything(&mut self) {
        for key in std::mem::take(&mut self.slices).into_keys() {
            self.hostile(Event::SliceDeleted(key, None));
        }
    }

    /// Time passes in both simulations, and a reader sees the same of a bystander in both.
    fn advance(&mut self) -> Result<(), String> {
        let pause =
            if self.random.chance(20) { self.random.number() % 200_000 } else { self.random.number() % 500 };
        self.clock += Duration::from_millis(pause);
        let now = self.now();
        self.alone.advance(now, REST_MAX, &self.own);
        self.beside.advance(now, PIECES_MAX, &self.own);
        self.compare(false)
    }

    /// A node port waits for its turn if a balancer's address at the node preceded it.
    fn compare(&mut self, is_at_rest: bool) -> Result<(), String> {
        let (alone, beside) = (self.alone.views(&self.own), self.beside.views(&self.own));
        for (position, key) in (0..BYSTANDERS).map(|position| (position, bystanders::key(position))) {
            let found = match (alone.get(&position), beside.get(&position)) {
                (None, None) => None,
                (Some(alone), Some(beside)) => compare::difference(alone, beside),
                (alone, _) => Some(format!("{key} is known alone: {}", alone.is_some())),
            };
            found.map_or(Ok(()), Err)?;
            self.compare_answers(position, is_at_rest)?;
        }
        self.report.held +=
            u64::from(alone.values().any(|view| view.ports.iter().any(|port| port.hold.is_some())));
        let mut alone = std::mem::take(&mut self.alone.records);
        let mut beside = std::mem::take(&mut self.beside.records);
        if !compare::are_same(&mut alone, &mut beside) {
            return Err(format!("the records are {beside:#?}, and alone they are {alone:#?}"));
        }
        Ok(())
    }

    /// Compares what clients get at a bystander's addresses.
    fn compare_answers(&self, position: usize, is_at_rest: bool) -> Result<(), String> {
        let is_dialled = |it: &SocketAddr| is_at_rest || it.ip() != tenant::NODE[0];
        for dialled in bystanders::dialled(position, tenant::NODE[0]).filter(is_dialled) {
            for client in [Client::Local, Client::Outside] {
                let met = |life: &Life| {
                    life.engine.maps().lookup(dialled.ip(), dialled.port(), Transport::Tcp, client)
                };
                let (alone, beside) = (met(&self.alone), met(&self.beside));
                if alone != beside {
                    return Err(format!(
                        "{client:?} client of {dialled} gets {beside:?}, and alone {alone:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Realizes all that tenants want, and checks the owner of each contested address.
    fn rest(&mut self) -> Result<(), String> {
        self.settle()?;
        // Owner updates are delayed after a recent one.
        self.clock += OWNERS_TOLD;
        self.settle()?;
        self.compare(true)?;
        self.report.rests += 1;
        let claims = self.claims();
        self.report.fought += claims.values().filter(|claims| claims.len() > 1).count() as u64;
        self.compare_owners(&claims)
    }

    /// Time passes, and everything due by then is done.
    fn settle(&mut self) -> Result<(), String> {
        self.advance()?;
        if !self.beside.advance(self.now(), REST_MAX, &self.own) {
            return Err(format!("after {REST_MAX} pieces something is left to do"));
        }
        Ok(())
    }

    /// The claims on each contested address, the best first: a controller's, then the oldest, then by name.
    fn claims(&self) -> BTreeMap<SocketAddr, BTreeSet<(bool, i64, ServiceKey)>> {
        let mut all: BTreeMap<SocketAddr, BTreeSet<_>> = BTreeMap::new();
        for facts in self.tenants.values() {
            let given = facts.ingress.iter().filter(|it| !it.proxied).map(|it| (false, it.address));
            let chosen = facts.external_ips.iter().map(|address| (true, *address));
            let created = facts.meta.created.map_or(i64::MAX, |it| it.0);
            for (is_chosen, address) in given.chain(chosen).filter(|(_, it)| tenant::SHARED.contains(it)) {
                for port in facts.ports.iter().filter(|port| port.protocol == Protocol::TCP) {
                    let claim = (is_chosen, created, facts.key.clone());
                    all.entry(SocketAddr::new(address, port.port.get())).or_default().insert(claim);
                }
            }
        }
        all
    }

    fn compare_owners(
        &self,
        claims: &BTreeMap<SocketAddr, BTreeSet<(bool, i64, ServiceKey)>>,
    ) -> Result<(), String> {
        for view in self.beside.snapshot.services.iter().filter(|view| !self.own.contains_key(&view.key)) {
            for row in view.frontends.iter().filter(|row| tenant::SHARED.contains(&row.address)) {
                let place = SocketAddr::new(row.address, row.port.get());
                if row.protocol != Protocol::TCP {
                    continue;
                }
                let best = claims.get(&place).and_then(BTreeSet::first).map(|(.., key)| key);
                let owner =
                    if row.reason == Some(Reason::Claimed) { row.owner.as_ref() } else { Some(&view.key) };
                let is_told = (row.verdict == Verdict::Conflict) == (owner != Some(&view.key));
                if best != owner || !is_told {
                    return Err(format!("{place} is {best:?}'s, and {} shows {row:?}", view.key));
                }
            }
        }
        Ok(())
    }
}
