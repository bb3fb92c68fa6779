//! Comparison at rest: no faults, nothing due, no slow client. Then maps and snapshot must equal the model.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::affinity::Prefixes;
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, ServiceType, Settings};
use holdfast_core::keys::{Family, ServiceKey};
use holdfast_core::lifecycle::BalancerPhase;
use holdfast_core::list::{Scope, Slot, SlotState};
use holdfast_core::maps::{Client, Maps};
use holdfast_core::op::{Dump, Membership, PortIndex, ServiceId};
use holdfast_core::snapshot::{
    FrontendView, Reason, ServiceState, ServiceView, ServiceViews, Snapshot, Status, Verdict,
};

use super::Simulation;
use super::model::{
    Expected, ExpectedFrontend, ExpectedPort, Holder, Model, PortName, is_bypassed, is_internal,
};
use super::rows::{Said, said};

/// Steps within which everything must have come to rest.
const STEPS_TO_REST: usize = 100;

/// Longer than any wait between two tries.
const LONG: Duration = Duration::from_secs(31);

impl Simulation {
    /// Lets everything come to rest and compares it completely.
    pub(super) fn rest(&mut self) -> Result<(), String> {
        self.report.rests += 1;
        let snapshot = self.come_to_rest()?;
        self.verdict()?;
        let dump =
            self.engine.maps_mut().inner_mut().both_mut().0.dump().map_err(|error| error.to_string())?;
        for dialled in &self.engine.maps().inner().witness().dialled {
            for (client, actual) in super::watch::CLIENTS.iter().zip(&dialled.actual) {
                let wanted = model_of(self).answer(dialled.key, *client);
                if wanted != *actual {
                    return Err(format!(
                        "at rest, {client:?} client of {} gets {actual:?}, not {wanted:?}",
                        dialled.key
                    ));
                }
            }
        }
        compare_maps(&dump, model_of(self))?;
        compare_fill(&snapshot, model_of(self))?;
        compare_totals(&snapshot)?;
        compare_rows(&snapshot, model_of(self))
    }

    fn come_to_rest(&mut self) -> Result<Arc<Snapshot>, String> {
        self.engine.maps_mut().set_per_mille(0);
        while !self.resend.is_empty() {
            self.happen();
        }
        for client in std::mem::take(&mut self.slow) {
            let (maps, watch) = self.maps_and_watch();
            client.end(maps, watch);
        }
        for _ in 0..STEPS_TO_REST {
            let snapshot = self.advance();
            if self.engine.next_due(self.clock).is_none() {
                return Ok(snapshot);
            }
            self.clock += LONG;
        }
        Err(format!("does not come to rest within {STEPS_TO_REST} steps"))
    }

    /// Deletes everything, and nothing must be left of it.
    pub(super) fn clear(&mut self) -> Result<(), String> {
        while !self.resend.is_empty() {
            self.happen();
        }
        let facts = self.watch().model.facts.clone();
        let mut events: Vec<_> =
            facts.services.into_keys().map(|key| Event::ServiceDeleted(key, None)).collect();
        events.extend(facts.slices.into_keys().map(|key| Event::SliceDeleted(key, None)));
        self.random.shuffle(&mut events);
        events.push(Event::NodeApplied(Arc::<NodeFacts>::default()));
        events.push(Event::SettingsApplied(Arc::<Settings>::default()));
        for event in events {
            self.forget(&event);
            self.tell(event);
            if self.random.chance(300) {
                self.turn();
            }
        }
        self.rest()?;
        let snapshot = self.advance();
        let known = snapshot.services.iter().count();
        let (maps, watch) = self.maps_and_watch();
        let faulty = watch.faulty;
        let dump = maps.dump().map_err(|error| error.to_string())?;
        let entries = maps.entries();
        let empty = Dump { sources: Some(Vec::new()), ..Dump::default() };
        if known > 0 || dump != empty || (entries > 0 && !faulty) {
            return Err(format!(
                "everything was deleted, but {known} services, {entries} entries, {dump:?} are left"
            ));
        }
        Ok(())
    }
}

impl Simulation {
    fn forget(&mut self, event: &Event) {
        let model = &mut self.watch().model;
        match event {
            Event::ServiceDeleted(key, _) => drop(model.facts.services.remove(key)),
            Event::SliceDeleted(key, _) => drop(model.facts.slices.remove(key)),
            Event::NodeApplied(node) => model.facts.node = Arc::clone(node),
            Event::SettingsApplied(settings) => model.facts.settings = Arc::clone(settings),
            _ => {}
        }
        model.touch_all();
    }
}

fn model_of(simulation: &Simulation) -> &Model {
    &simulation.engine.maps().inner().witness().model
}

fn some(list: Option<&Vec<Slot>>) -> &[Slot] {
    list.map_or(&[], Vec::as_slice)
}

fn members(port: &ExpectedPort, affinity: u32) -> BTreeSet<(Membership, SocketAddr, SlotState)> {
    let lists = [(Scope::Cluster, some(port.cluster.as_ref())), (Scope::Local, some(port.local.as_ref()))];
    let listed = lists.into_iter().flat_map(|(scope, list)| {
        list.iter().map(move |slot| (Membership::List(scope), slot.backend(), slot.state))
    });
    let serving = port.serving.iter().flatten().map(|(it, state)| (Membership::Serving, *it, *state));
    listed.filter(|_| affinity > 0).chain(serving).collect()
}

/// Frontends, lists, facts, members and node addresses, each compared exactly.
fn compare_maps(dump: &Dump, model: &Model) -> Result<(), String> {
    let kinds: BTreeMap<_, _> = dump.frontends.iter().map(|(key, value)| (*key, value.kind)).collect();
    let programmed = || model.owners.iter().filter(|(_, holder)| !is_passing(holder, model));
    let wanted: BTreeMap<_, _> = programmed().map(|(key, holder)| (*key, holder.kind)).collect();
    equal("frontends", &kinds, &wanted)?;
    let mut homes: BTreeMap<PortIndex, (&ServiceKey, &PortName)> = BTreeMap::new();
    for (key, value) in &dump.frontends {
        let Some(holder) = model.owners.get(key) else { continue };
        let home = (&holder.service, &holder.port);
        equal("the ports of an index", homes.entry(value.port).or_insert(home), &home)?;
    }
    let distinct: BTreeSet<_> = homes.values().collect();
    equal("indices", &distinct.len(), &homes.len())?;
    for port in &dump.ports {
        let Some((service, name)) = homes.get(&port.index) else { continue };
        let Some(expected) = model.services.get(*service) else { continue };
        let Some(wanted) = expected.ports.get(*name) else { continue };
        equal("a cluster list", &port.cluster.1.as_slice(), &some(wanted.cluster.as_ref()))?;
        equal("a local list", &port.local.1.as_slice(), &some(wanted.local.as_ref()))?;
        equal("an affinity timeout", &port.facts.affinity_timeout, &expected.affinity)?;
        let left_out = expected.prefixes.map_or(0, |it| Prefixes::WHOLE.length(name.2) - it.length(name.2));
        equal("what is left out of clients' addresses", &port.facts.ignored_bits, &left_out)?;
        let own = dump.members.iter().filter(|(member, _)| member.port == port.index);
        let own = own.map(|(it, state)| (it.membership, it.backend, *state)).collect();
        equal("members", &own, &members(wanted, expected.affinity))?;
    }
    for source in dump.sources.iter().flatten() {
        // No client dials an orphan; its service may have lost its addresses to others.
        let Some((service, _)) = homes.get(&source.port) else { continue };
        let facts = model.facts.services.get(*service);
        if facts.is_none_or(|facts| facts.source_ranges.is_empty()) {
            return Err(format!("no service asks for {source:?}"));
        }
    }
    let all =
        model.services.values().flat_map(|it| it.ports.values().map(|port| members(port, it.affinity).len()));
    equal("the number of members", &dump.members.len(), &all.sum())?;
    let addresses: Vec<_> = model.facts.node.node_port_addresses.iter().copied().collect();
    equal("node addresses", &dump.node_addresses, &addresses)?;
    let ports = model.services.values().map(|it| it.ports.len()).sum::<usize>();
    if dump.orphans.len() + homes.len() > ports {
        return Err(format!("orphans are left: {:?}", dump.orphans));
    }
    Ok(())
}

fn is_passing(holder: &Holder, model: &Model) -> bool {
    let expected = model.services.get(&holder.service);
    expected.is_some_and(|it| it.is_passing(holder.kind, &holder.port))
}

fn compare_fill(snapshot: &Snapshot, model: &Model) -> Result<(), String> {
    let ports = || model.services.values().flat_map(|it| it.ports.values());
    let lists = || ports().flat_map(|port| [some(port.cluster.as_ref()), some(port.local.as_ref())]);
    let blocks = Family::ALL.map(|family| {
        let own =
            lists().filter(|list| list.first().is_some_and(|it| Family::from_address(it.address) == family));
        own.map(|list| list.len().next_power_of_two() as u64).sum::<u64>()
    });
    let frontends = model.owners.values().filter(|holder| !is_passing(holder, model));
    equal("frontends in use", &snapshot.fill.frontends, &frontends.count())?;
    equal("indices in use", &snapshot.fill.ports, &ports().count())?;
    equal("slots in use", &snapshot.fill.slots, &blocks)?;
    equal("ops that were not their owner's", &snapshot.counters.cross_service, &0)
}

/// The maintained totals must equal a count over all services.
fn compare_totals(snapshot: &Snapshot) -> Result<(), String> {
    let mut anew = ServiceViews::default();
    for (id, view) in (0..).zip(snapshot.services.iter()) {
        anew.set(ServiceId(id), Some(Arc::clone(view)));
    }
    equal("totals", snapshot.services.totals(), anew.totals())?;
    let keys = |views: Vec<&Arc<ServiceView>>| views.iter().map(|it| it.key.clone()).collect::<BTreeSet<_>>();
    let walked = snapshot.services.iter().filter(|view| view.has_problem()).collect();
    equal("services in trouble", &keys(snapshot.services.with_problems().collect()), &keys(walked))?;
    let has_balancer = |it: &&Arc<ServiceView>| {
        it.facts.as_ref().is_some_and(|it| BalancerPhase::from_facts(it) != BalancerPhase::None)
    };
    let kept = keys(snapshot.services.with_balancer().collect());
    let walked = keys(snapshot.services.iter().filter(has_balancer).collect());
    equal("services with a balancer", &walked.is_subset(&kept), &true)
}

pub(super) type Shown = (ExpectedFrontend, Said, Option<ServiceKey>);

fn compare_rows(snapshot: &Snapshot, model: &Model) -> Result<(), String> {
    let mut known = BTreeSet::new();
    for view in snapshot.services.iter() {
        known.insert(&view.key);
        let nothing = Expected::default();
        let expected = model.services.get(&view.key).unwrap_or(&nothing);
        let found: Vec<Shown> =
            view.frontends.iter().map(|row| (position(row), said(view, row), row.owner.clone())).collect();
        let mut wanted: Vec<Shown> =
            expected.frontends.iter().map(|row| shown(row, &view.key, expected, model)).collect();
        wanted.sort_by_key(|(row, ..)| order(row));
        let same =
            found.len() == wanted.len() && found.iter().zip(&wanted).all(|(a, b)| agree(a, b, expected));
        model.history.compare(view)?;
        if !same {
            return Err(format!("{} shows {found:#?}, not {wanted:#?}", view.key));
        }
        if view.frontends.iter().any(|row| row.status != Status::Done) {
            return Err(format!("at rest, {} shows a row that is not done", view.key));
        }
        equal("the state of a service", &view.state, &state(&view.key, expected, model))?;
    }
    let missing = model.services.keys().find(|key| !known.contains(key));
    missing.map_or(Ok(()), |key| Err(format!("{key} is not shown")))
}

fn state(key: &ServiceKey, expected: &Expected, model: &Model) -> ServiceState {
    let Some(service) = model.facts.services.get(key) else { return ServiceState::NoService };
    let ours =
        service.kind == ServiceType::Static || service.proxy_name == model.facts.settings.service_proxy_name;
    match service.kind {
        _ if !ours => ServiceState::OtherProxy,
        ServiceType::ExternalName => ServiceState::ExternalName,
        _ if service.headless => ServiceState::Headless,
        _ if expected.frontends.is_empty() => ServiceState::NoAddress,
        _ => ServiceState::Served,
    }
}

/// The position of a row.
pub(super) fn position(row: &FrontendView) -> ExpectedFrontend {
    ExpectedFrontend {
        address: row.address,
        number: row.port,
        protocol: row.protocol.clone(),
        kind: row.kind,
        port_name: Arc::clone(&row.port_name),
        barred: row.reason == Some(Reason::Address),
        unserved: row.reason == Some(Reason::Protocol),
    }
}

fn order(it: &ExpectedFrontend) -> impl Ord + use<> {
    let kinds = ["ClusterIP", "NodePort", "LoadBalancer", "ExternalIP", "Static", "ClusterSetIP"];
    let kind = kinds.iter().position(|kind| *kind == it.kind.as_str());
    (Arc::clone(&it.port_name), kind, it.address, it.protocol.clone(), it.number)
}

/// What a row must show.
pub(super) fn shown(
    row: &ExpectedFrontend,
    service: &ServiceKey,
    expected: &Expected,
    model: &Model,
) -> Shown {
    let bare = |verdict, reason, owner| (row.clone(), (verdict, Some(reason), Vec::new(), None), owner);
    if row.barred {
        return bare(Verdict::Unprogrammed, Reason::Address, None);
    }
    let (Some(key), Some(name)) = (row.key(), row.port()) else {
        return bare(Verdict::Unprogrammed, Reason::Protocol, None);
    };
    if is_bypassed(key, row.kind, &model.facts.settings) {
        return bare(Verdict::Bypassed, Reason::Control, None);
    }
    if let Some(other) = model.coverer(service, row) {
        return bare(Verdict::Conflict, Reason::Claimed, Some(other.clone()));
    }
    if model.is_nodes(service, row) {
        let (row, said, owner) = bare(Verdict::Unprogrammed, Reason::Address, None);
        return (ExpectedFrontend { barred: true, ..row }, said, owner);
    }
    if let Some(other) = model.owners.get(&key).filter(|it| it.service != *service) {
        return bare(Verdict::Conflict, Reason::Claimed, Some(other.service.clone()));
    }
    let port = expected.ports.get(&name).cloned().unwrap_or_default();
    if expected.is_passing(row.kind, &name) {
        return bare(Verdict::Passing, nobody(&port), None);
    }
    let local = expected.is_local(row.kind, Client::Local);
    let slots = some(if local { port.local.as_ref() } else { port.cluster.as_ref() }).to_vec();
    let outside = expected.is_local(row.kind, Client::Outside).then(|| some(port.local.as_ref()).to_vec());
    let external = outside.filter(|outside| !is_internal(row.kind) && *outside != slots);
    let (verdict, reason) = match slots.first() {
        None if local && port.has_any => (Verdict::Dropping, Some(Reason::LocalPolicy)),
        None => (Verdict::Refusing, Some(nobody(&port))),
        Some(_) if port.held.is_some() => (Verdict::Held, port.held),
        Some(_) if slots.iter().all(|it| it.state == SlotState::Draining) => {
            (Verdict::Draining, Some(Reason::ScaledDown))
        }
        Some(_) => (Verdict::Serving, None),
    };
    (row.clone(), (verdict, reason, slots, external), None)
}

fn nobody(port: &ExpectedPort) -> Reason {
    port.nobody.first().copied().unwrap_or(Reason::NoEndpoints)
}

/// Whether a row shows what it must. The engine may have forgotten the history of a port that was away.
pub(super) fn agree(found: &Shown, wanted: &Shown, expected: &Expected) -> bool {
    let port = found.0.port().and_then(|port| expected.ports.get(&port));
    let mut wanted = wanted.clone();
    if matches!(found.1.0, Verdict::Refusing | Verdict::Passing) && wanted.1.0 == found.1.0 {
        let legal = port.is_some_and(|port| found.1.1.is_some_and(|reason| port.nobody.contains(&reason)));
        wanted.1.1 = if legal { found.1.1 } else { wanted.1.1 };
    }
    *found == wanted
}

fn equal<T: PartialEq + core::fmt::Debug>(what: &str, found: &T, wanted: &T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("at rest, {what}: found {found:?}, wanted {wanted:?}")) }
}
