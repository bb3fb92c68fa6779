//! Tests the rules between events and ops. The maps accept every op, or only those that a test allows.

mod addresses;
mod adopt;
mod asked;
mod balancers;
mod bounds;
mod chosen;
mod claims;
mod doubts;
mod drains;
mod holds;
mod imports;
mod linear;
mod losses;
mod maglev;
mod members;
mod order;
mod outside;
mod pieces;
mod questions;
mod reasons;
mod renames;
mod reused;
mod room;
mod rows;
mod since;
mod sources;
mod tenants;
mod weights;

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use core::num::NonZeroU16;
use core::time::Duration;
use std::vec;

use super::*;
use crate::change::Change;
use crate::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, NodeFacts, ServiceFacts, ServicePort,
    ServiceType, Settings, SliceFacts, SlicePort, Timestamp, TrafficPolicy,
};
use crate::hold::{OnEmpty, Policy};
use crate::keys::{Family, FrontendKey, ObjectName, Protocol, ServiceKey, SliceKey};
use crate::limits;
use crate::list::{Scope, SlotState};
use crate::op::{
    Action, Dump, DumpPort, Grace, MemberKey, Membership, Op, PortIndex, QuotaId, ServiceId, SourceKey,
};
use crate::service::Port;
use crate::snapshot::{FrontendView, ServiceView, Snapshot};
use crate::time::ClockReading;

const SOURCE: Source = Source::Manifests;

/// A world with maps that accept every op unless the test refuses it.
pub(super) struct Rig {
    pub(super) world: World,
    pub(super) now: i64,
    /// How far the wall clock is ahead of `now`.
    pub(super) ahead: i64,
    /// When the process started.
    pub(super) booted: i64,
    /// The ops of the last turn.
    pub(super) log: Vec<Op>,
    pub(super) changes: Vec<Change>,
    /// How many services the last turn planned.
    pub(super) planned: usize,
    pub(super) refuse: fn(&Op) -> bool,
    /// The members in the maps.
    pub(super) members: BTreeSet<MemberKey>,
    pub(super) members_max: usize,
}

impl Rig {
    pub(super) fn new() -> Self {
        Self::with(Capacity { slots: 256, ports: 64, ..Capacity::default() })
    }

    pub(super) fn with(capacity: Capacity) -> Self {
        let mut world = World::new(Seed(0), capacity, &[SOURCE]);
        world.queue.most = u64::MAX;
        let node = NodeFacts { name: "here".into(), ..NodeFacts::default() };
        world.apply(Event::NodeApplied(Arc::new(node)));
        world.apply(settings(OnEmpty::Refuse));
        world.apply(Event::Synced(SOURCE));
        let (log, changes) = Default::default();
        Self {
            world,
            now: 100,
            ahead: 0,
            booted: 0,
            log,
            changes,
            planned: 0,
            refuse: |_| false,
            members: BTreeSet::new(),
            members_max: usize::MAX,
        }
    }

    pub(super) fn clock(&self) -> ClockReading {
        let mono = Duration::from_secs((self.now - self.booted).unsigned_abs());
        ClockReading { wall: Timestamp(self.now.saturating_add(self.ahead)), mono }
    }

    /// Applies events and runs one batch, a second later.
    pub(super) fn turn(&mut self, events: Vec<Event>) -> Snapshot {
        events.into_iter().for_each(|event| self.world.apply(event));
        self.now += 1;
        self.log.clear();
        let now = self.clock();
        self.world.decide(now);
        self.changes.clear();
        if !self.world.queue.is_open() {
            return self.world.publish(now);
        }
        let dirty = self.world.queue.piece.to_vec();
        self.planned = dirty.len();
        let mut whole = Vec::new();
        for id in dirty {
            let mut ops = Vec::new();
            let planned = self.world.plan_lists(id, &mut ops);
            let is_written = self.execute(&ops);
            if !is_written || planned.is_err() {
                self.world.services.record_error(id, "refused".into());
            }
            if is_written {
                whole.push(id);
            }
        }
        for id in whole {
            let mut ops = Vec::new();
            self.world.plan_removals(id, &mut ops);
            if !self.execute(&ops) {
                self.world.services.record_error(id, "refused".into());
            }
        }
        self.carry_out(World::plan_node_removals);
        if self.world.queue.is_last_piece(&self.world.services) {
            self.carry_out(World::plan_leftovers);
            self.carry_out(World::plan_node);
        }
        let changes = &mut self.changes;
        self.world.end_piece(now, &mut |change| changes.push(change))
    }

    /// Ends the grace periods in progress and runs the next batch.
    pub(super) fn grace(&mut self) -> Snapshot {
        self.world.space.freed.begin_grace(Grace(0));
        let mut ops = Vec::new();
        while self.world.space.freed.next_grace().is_some() {
            self.world.end_grace(&mut ops);
        }
        self.execute(&ops);
        self.turn(vec![])
    }

    pub(super) fn retry(&mut self, id: ServiceId) {
        self.world.services.retry(id, &self.world.tables);
    }

    fn carry_out(&mut self, plan: fn(&World, &mut Vec<Op>)) {
        let mut ops = Vec::new();
        plan(&self.world, &mut ops);
        self.execute(&ops);
    }

    fn execute(&mut self, ops: &[Op]) -> bool {
        for (position, op) in ops.iter().enumerate() {
            if (self.refuse)(op) || !self.fits(op) {
                self.world.record_refused(ops, position);
                return false;
            }
            self.log.push(op.clone());
            self.world.record_accepted(op);
        }
        true
    }

    /// Whether the member that the op inserts fits into the maps.
    fn fits(&mut self, op: &Op) -> bool {
        match op.action {
            Action::InsertMember(key, _) if self.members.len() >= self.members_max => {
                return self.members.contains(&key);
            }
            Action::InsertMember(key, _) => self.members.insert(key),
            Action::RemoveMember(key) => self.members.remove(&key),
            _ => true,
        };
        true
    }

    /// The dump that a restart would find: everything realized, with or without an owner.
    pub(super) fn dump(&self) -> Dump {
        let mut dump = Dump::default();
        let ids: Vec<_> = self.world.tables.ids().collect();
        for service in ids.iter().filter_map(|id| self.world.services.get(*id)) {
            for key in service.frontends.iter() {
                dump.frontends
                    .push((*key, self.world.owners.frontends.get(key).unwrap().realized.unwrap().value));
            }
            for (port, index) in service.ports.iter().filter_map(|port| Some((port, port.index?))) {
                let list = |scope| {
                    let list = port.realized.list(scope);
                    (list.word, list.rows.slots_in_range(scope, list.word.count).collect())
                };
                let (cluster, local) = (list(Scope::Cluster), list(Scope::Local));
                let (family, facts) = (port.key.family, port.realized.facts.unwrap());
                dump.ports.push(DumpPort { index, family, facts, cluster, local });
                let member = |((membership, backend), state): (&(Membership, SocketAddr), &SlotState)| {
                    (MemberKey { port: index, membership: *membership, backend: *backend }, *state)
                };
                dump.members.extend(port.realized.members.iter().map(member));
                let sources =
                    port.realized.sources.iter().map(|range| SourceKey { port: index, range: *range });
                dump.sources.get_or_insert_default().extend(sources);
            }
        }
        dump.frontends.sort_unstable();
        dump
    }

    pub(super) fn id(&self, name: &str) -> ServiceId {
        self.world
            .tables
            .ids()
            .find(|id| self.world.tables.get(*id).unwrap().key == service_key(name))
            .unwrap()
    }
}

/// A reading at which both clocks show this second.
pub(super) fn at(second: i64) -> ClockReading {
    ClockReading { wall: Timestamp(second), mono: Duration::from_secs(second.unsigned_abs()) }
}

/// Settings with one on-empty policy for all services.
pub(super) fn settings(on_empty: OnEmpty) -> Event {
    let hold = Policy { on_empty, ..Policy::default() };
    Event::SettingsApplied(Arc::new(Settings { hold, ..Settings::default() }))
}

pub(super) fn service_key(name: &str) -> ServiceKey {
    ServiceKey { name: ObjectName::new("default", name).unwrap(), source: SOURCE }
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A service with a cluster IP and external IPs, port 80.
pub(super) fn service(name: &str, cluster_ip: &str, external_ips: &[&str]) -> ServiceFacts {
    let port = NonZeroU16::new(80).unwrap();
    ServiceFacts {
        cluster_ips: vec![ip(cluster_ip)],
        external_ips: external_ips.iter().map(|it| ip(it)).collect(),
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::TCP, port, node_port: None }],
        ..ServiceFacts::new(service_key(name), ServiceType::ClusterIp)
    }
}

/// Tables and undecided services of these names, to test one part of the world alone.
pub(super) fn tables_with(names: &[&str]) -> (Tables, services::Services) {
    let mut tables = Tables::new(Seed(0), &[SOURCE], names.len());
    let mut services = services::Services::default();
    for name in names {
        let event = applied(service(name, "10.0.0.1", &[]));
        tables.apply(event, &mut |id, cause| services.mark_dirty(id, cause, true));
    }
    (tables, services)
}

/// The services with a retry as a cause.
pub(super) fn retried(services: &services::Services) -> Vec<ServiceId> {
    let is_retried = |id: &ServiceId| {
        let causes = services.get(*id).map(|service| service.causes.as_slice()).unwrap_or_default();
        causes.iter().any(|cause| matches!(cause, Cause::Retry))
    };
    (0..4).map(ServiceId).filter(is_retried).collect()
}

/// The number of the namespace of all these services.
pub(super) fn share() -> QuotaId {
    let mut rig = Rig::new();
    rig.turn(vec![applied(service("a", "10.0.0.1", &[]))]);
    rig.world.tables.quota(rig.id("a"))
}

pub(super) fn applied(facts: ServiceFacts) -> Event {
    Event::ServiceApplied(Arc::new(facts))
}

pub(super) fn deleted(name: &str) -> Event {
    Event::ServiceDeleted(service_key(name), None)
}

/// A slice of a service with ready endpoints; `@` before an address: on this node.
pub(super) fn slice_facts(slice: &str, service: &str, endpoints: &[&str]) -> SliceFacts {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for text in endpoints {
        let address = ip(text.trim_start_matches('@'));
        let node = text.starts_with('@').then(|| "here".into());
        let conditions = Conditions::READY;
        let endpoint = Endpoint { address, conditions, node, zone: None, hints: None, target: None };
        builder.push(endpoint).unwrap();
    }
    let port = NonZeroU16::new(8080).unwrap();
    SliceFacts {
        key: SliceKey { name: ObjectName::new("default", slice).unwrap(), source: SOURCE },
        meta: Meta::default(),
        service: Some(service.into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }
}

/// The only slice of a service.
pub(super) fn slice(service: &str, endpoints: &[&str]) -> Event {
    Event::SliceApplied(Arc::new(slice_facts(service, service, endpoints)))
}

pub(super) fn view(snapshot: &Snapshot, name: &str) -> Arc<ServiceView> {
    snapshot.services.iter().find(|view| view.key == service_key(name)).cloned().unwrap()
}

pub(super) fn row<'a>(view: &'a ServiceView, address: &str) -> &'a FrontendView {
    view.frontends.iter().find(|row| row.address == ip(address)).unwrap()
}

pub(super) fn is_insert(op: &Op) -> bool {
    matches!(op.action, Action::InsertFrontend(..))
}

pub(super) fn local() -> TrafficPolicy {
    TrafficPolicy::Local
}
