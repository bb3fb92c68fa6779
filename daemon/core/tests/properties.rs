//! Properties of any world and any events: order does not matter, and no service affects another one.
#![cfg(test)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::change::{Cause, Change};
use holdfast_core::digest::digest;
use holdfast_core::drains::{DrainOrder, Drains};
use holdfast_core::engine::{Engine, SavedSnapshot};
use holdfast_core::event::Event;
use holdfast_core::facts::{Rejection, ServiceFacts, Timestamp};
use holdfast_core::index::Seed;
use holdfast_core::keys::{Family, FrontendKey, ObjectName, ServiceKey, Source, Transport};
use holdfast_core::list::SlotState;
use holdfast_core::maps::{Capacity, DialOutcome, Maps, MemoryMaps};
use holdfast_core::op::Membership;
use holdfast_core::snapshot::{FrontendView, Reason, Snapshot, Verdict};
use holdfast_core::time::ClockReading;
use holdfast_laws::simulation::Random;
use holdfast_laws::simulation::population::{self, SERVICES_MAX, SLICES_MAX};
use holdfast_laws::simulation::watch::CLIENTS;
use proptest::prelude::*;

const NOW: ClockReading = ClockReading { wall: Timestamp(1_000), mono: Duration::ZERO };

/// When the restored wait is over.
const LATER: ClockReading = ClockReading { wall: Timestamp(2_000), mono: Duration::from_secs(60) };

fn start() -> Engine<MemoryMaps> {
    Engine::start(MemoryMaps::default(), Seed(7), &Source::ALL).unwrap().0
}

fn step(engine: &mut Engine<MemoryMaps>) -> (Arc<Snapshot>, Vec<Change>) {
    let mut changes = Vec::new();
    let snapshot = engine.step(NOW, &mut |change| changes.push(change));
    (snapshot, changes)
}

fn rest(engine: &mut Engine<MemoryMaps>) -> Arc<Snapshot> {
    let mut now = NOW;
    // Some engines have very small pieces.
    for _ in 0..2_000 {
        let snapshot = engine.step(now, &mut |_| {});
        match engine.next_due(now.mono) {
            None => return snapshot,
            // Rows that name a former owner change again a moment later.
            Some(due) => now.mono = now.mono.max(due),
        }
    }
    panic!("does not come to rest");
}

/// A hold depends on the past, so where order must not matter there is none: every service requests kube-proxy's rules.
fn refusing(event: Event) -> Event {
    match event {
        Event::ServiceApplied(facts) => {
            let mut facts = ServiceFacts::clone(&facts);
            facts.on_empty = Some("refuse".into());
            Event::ServiceApplied(Arc::new(facts))
        }
        other => other,
    }
}

/// Every object once, some of them missing; nothing is held.
fn world(random: &mut Random) -> Vec<Event> {
    world_with_holds(random).into_iter().map(refusing).collect()
}

fn draining(drains: Drains) -> Event {
    let by = DrainOrder { uid: 0, user: None, at: Timestamp(1) };
    Event::DrainsApplied(Arc::new(drains), by)
}

/// Every object once, some of them missing.
fn world_with_holds(random: &mut Random) -> Vec<Event> {
    let mut events = vec![
        Event::NodeApplied(Arc::new(population::node(random))),
        Event::SettingsApplied(Arc::new(population::settings(random))),
        draining(population::drains(random)),
    ];
    for position in 0..SERVICES_MAX {
        if random.chance(100) {
            continue;
        }
        events.push(Event::ServiceApplied(Arc::new(population::service(random, position))));
    }
    for position in 0..SLICES_MAX {
        events.push(Event::SliceApplied(Arc::new(population::slice(random, position))));
    }
    events
}

fn dialled() -> impl Iterator<Item = FrontendKey> {
    population::dialled().flat_map(|it| {
        let port = it.port().try_into().unwrap();
        [Transport::Tcp, Transport::Udp].map(|transport| FrontendKey { address: it.ip(), port, transport })
    })
}

fn answers(maps: &MemoryMaps) -> BTreeMap<FrontendKey, [DialOutcome; 3]> {
    let ask = |key: FrontendKey| {
        CLIENTS.map(|client| maps.lookup(key.address, key.port.get(), key.transport, client))
    };
    dialled().map(|key| (key, ask(key))).collect()
}

/// Everything visible outside: answers, members behind each frontend, node addresses, rows. No index, no slot.
#[derive(Debug, PartialEq)]
struct Picture {
    answers: BTreeMap<FrontendKey, [DialOutcome; 3]>,
    members: BTreeMap<FrontendKey, Vec<(Membership, SocketAddr, SlotState)>>,
    node_addresses: Vec<std::net::IpAddr>,
    rows: Vec<String>,
}

fn picture(engine: &mut Engine<MemoryMaps>) -> Picture {
    let snapshot = rest(engine);
    let dump = engine.maps_mut().dump().unwrap();
    let members = |port| {
        let own = dump.members.iter().filter(move |(member, _)| member.port == port);
        own.map(|(member, state)| (member.membership, member.backend, *state)).collect()
    };
    let mut rows: Vec<String> = Vec::new();
    for view in snapshot.services.iter() {
        for row in &view.frontends {
            let backends: Vec<_> = view.backends(row).map(|it| (it.backend(), it.state())).collect();
            let external =
                view.external_backends(row).map(|it| it.map(|row| row.backend()).collect::<Vec<_>>());
            let says = (row.verdict, &row.owner, &row.status, row.kind, backends, external);
            rows.push(format!("{:?} {} {} {}: {says:?}", view.key, row.address, row.port, row.protocol));
        }
    }
    rows.sort();
    Picture {
        answers: answers(engine.maps()),
        members: dump.frontends.iter().map(|(key, value)| (*key, members(value.port))).collect(),
        node_addresses: dump.node_addresses.clone(),
        rows,
    }
}

fn synced(engine: &mut Engine<MemoryMaps>) {
    Source::ALL.into_iter().for_each(|source| engine.apply(Event::Synced(source)));
}

fn from_scratch(events: Vec<Event>) -> Picture {
    let mut engine = start();
    events.into_iter().for_each(|event| engine.apply(event));
    synced(&mut engine);
    picture(&mut engine)
}

/// The service of an object.
fn service_of(event: &Event) -> Option<ServiceKey> {
    match event {
        Event::ServiceApplied(facts) => Some(facts.key.clone()),
        Event::SliceApplied(facts) => {
            let name = ObjectName::new(facts.key.name.namespace(), facts.service.as_ref()?).unwrap();
            Some(ServiceKey { name, source: facts.key.source })
        }
        _ => None,
    }
}

/// Objects beyond the limit arrive in any order; then all are deleted except those of some services that fit.
fn crowded(random: &mut Random, events: &[Event], kept: &[Event], services: usize) -> Picture {
    let maps = MemoryMaps::new(Capacity { services, ..Capacity::default() });
    let mut engine = Engine::start(maps, Seed(7), &Source::ALL).unwrap().0;
    synced(&mut engine);
    let gone = events.iter().filter(|event| !kept.contains(event)).filter_map(|event| match event {
        Event::ServiceApplied(facts) => Some(Event::ServiceDeleted(facts.key.clone(), None)),
        Event::SliceApplied(facts) => Some(Event::SliceDeleted(facts.key.clone(), None)),
        _ => None,
    });
    let (mut come, mut go) = (events.to_vec(), gone.collect::<Vec<_>>());
    random.shuffle(&mut come);
    random.shuffle(&mut go);
    for event in come.into_iter().chain(go) {
        engine.apply(event);
        if random.chance(300) {
            step(&mut engine);
        }
    }
    let picture = picture(&mut engine);
    let rejections = Arc::clone(&step(&mut engine).0.rejections);
    assert_eq!((rejections.waiting, rejections.named.values().any(Rejection::is_waiting)), (0, false));
    picture
}

/// The work of a piece: a batch is one piece, or many.
fn piece(random: &mut Random) -> u64 {
    [1, 20, 100, u64::MAX][random.below(4)]
}

/// Other objects first, then the world in any order, with batches of any size, older versions, and a restart.
fn by_detours(random: &mut Random, events: &[Event], restart: bool) -> Picture {
    picture(&mut lived(random, events, restart))
}

fn lived(random: &mut Random, events: &[Event], restart: bool) -> Engine<MemoryMaps> {
    let mut engine = start();
    engine.limit_pieces(piece(random));
    synced(&mut engine);
    let mut older = world(random);
    random.shuffle(&mut older);
    let mut newer = events.to_vec();
    random.shuffle(&mut newer);
    // Services that the world lacks at the end exist for a while.
    let gone = older.iter().filter_map(|event| match event {
        Event::ServiceApplied(facts) => Some(Event::ServiceDeleted(facts.key.clone(), None)),
        _ => None,
    });
    let gone: Vec<_> = gone.collect();
    for event in older.into_iter().chain(gone).chain(newer) {
        engine.apply(event);
        if random.chance(300) {
            step(&mut engine);
        }
    }
    if restart {
        step(&mut engine);
        engine = Engine::start(engine.into_maps(), Seed(8), &Source::ALL).unwrap().0;
        engine.limit_pieces(piece(random));
        events.iter().rev().cloned().for_each(|event| engine.apply(event));
        synced(&mut engine);
    }
    engine
}

/// An older world runs, is saved at some moment, and runs on; then the process dies, maybe with the node. The next one
/// restores the saved state and receives the current world.
fn with_memory(random: &mut Random, events: &[Event]) -> Picture {
    let mut engine = start();
    synced(&mut engine);
    let mut saved = SavedSnapshot::default();
    let mut older = world(random);
    random.shuffle(&mut older);
    for event in older {
        engine.apply(event);
        if random.chance(300) {
            saved = SavedSnapshot::from(&*step(&mut engine).0);
        }
    }
    step(&mut engine);
    let maps = if random.chance(500) { engine.into_maps() } else { MemoryMaps::default() };
    let mut engine = Engine::start(maps, Seed(8), &Source::ALL).unwrap().0;
    engine.limit_pieces(piece(random));
    engine.restore(saved, NOW);
    let mut newer = events.to_vec();
    random.shuffle(&mut newer);
    let now = if random.chance(500) { NOW } else { LATER };
    for event in newer {
        engine.apply(event);
        if random.chance(300) {
            engine.step(now, &mut |_| ());
        }
    }
    synced(&mut engine);
    picture(&mut engine)
}

/// Changes one service: its object or one of its slices.
fn one_event(random: &mut Random, events: &[Event]) -> (Event, ServiceKey) {
    loop {
        let picked = &events[random.below(events.len())];
        match picked {
            Event::ServiceApplied(old) if random.chance(500) => {
                return (Event::ServiceDeleted(old.key.clone(), None), old.key.clone());
            }
            Event::ServiceApplied(old) => {
                let new = population::changed_service(random, old);
                return (Event::ServiceApplied(Arc::new(new)), old.key.clone());
            }
            Event::SliceApplied(old) => {
                let mut new = population::changed_slice(random, old);
                let Some(service) = &old.service else { continue };
                new.service = Some(Arc::clone(service));
                let name = holdfast_core::keys::ObjectName::new(old.key.name.namespace(), service).unwrap();
                return (Event::SliceApplied(Arc::new(new)), ServiceKey { name, source: old.key.source });
            }
            _ => {}
        }
    }
}

fn owners(snapshot: &Snapshot) -> BTreeMap<FrontendKey, ServiceKey> {
    let mut owners = BTreeMap::new();
    for view in snapshot.services.iter() {
        // Another service may have an address that this service may not have, or at which an apiserver is.
        let may_have = |row: &&FrontendView| {
            row.owner.is_none() && row.reason != Some(Reason::Address) && row.verdict != Verdict::Bypassed
        };
        for row in view.frontends.iter().filter(may_have) {
            if let Some(transport) = row.protocol.transport() {
                let key = FrontendKey { address: row.address, port: row.port, transport };
                owners.insert(key, view.key.clone());
            }
        }
    }
    owners
}

/// Everything of the cluster's services that all nodes show alike: no chosen list, and no hold.
fn shown_everywhere(snapshot: &Snapshot) -> Vec<String> {
    let own = snapshot.services.iter().filter(|view| view.key.source == Source::Kubernetes);
    let mut shown = Vec::new();
    for view in own.filter(|view| !view.frontends.is_empty()) {
        let mut shows = |what: String| shown.push(format!("{} {what}", view.key));
        let facts = view.facts.as_deref().unwrap();
        let prefixes = facts.affinity_prefixes();
        shows(format!(
            "affinity {:?} by {prefixes:?}, from {:?}",
            facts.affinity_timeout, facts.source_ranges
        ));
        let maglev: Option<bool> = facts.maglev.as_ref().and_then(|word| word.parse().ok());
        shows(format!("maglev {maglev:?}, weights {:?}", facts.weights.as_ref().map(|it| &it.weights)));
        for it in &view.frontends {
            let lists = (it.scope, it.external_local);
            shows(format!(
                "{} {} {} {:?} {} {lists:?}",
                it.address, it.port, it.protocol, it.kind, it.port_name
            ));
        }
        for port in view.ports.iter().filter(|port| port.hold.is_none()) {
            let rows = port.rows.iter().map(|row| (row.backend(), row.conditions()));
            shows(format!("{:?} {:?}", port.key, rows.collect::<Vec<_>>()));
        }
    }
    shown.sort();
    shown
}

/// The backends of each service and frontend.
fn lists(snapshot: &Snapshot) -> BTreeMap<(ServiceKey, String), Vec<SocketAddr>> {
    let mut lists = BTreeMap::new();
    for view in snapshot.services.iter() {
        for row in &view.frontends {
            let name = format!("{} {} {}", row.address, row.port, row.protocol);
            lists.insert((view.key.clone(), name), view.backends(row).map(|row| row.backend()).collect());
        }
    }
    lists
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn invariant_07_any_order_ends_as_planning_from_scratch(seed: u64) {
        let mut random = Random::new(seed);
        let events = world(&mut random);
        prop_assert_eq!(by_detours(&mut random, &events, false), from_scratch(events));
    }

    #[test]
    fn invariant_07_waiting_objects_end_as_planning_from_scratch_once_all_fit(seed: u64) {
        let mut random = Random::new(seed);
        let events = world(&mut random);
        let most = 1 + random.below(5);
        let mut services: Vec<_> = events.iter().filter_map(service_of).collect();
        services.sort();
        services.dedup();
        random.shuffle(&mut services);
        services.truncate(most);
        let stays = |event: &&Event| service_of(event).is_none_or(|key| services.contains(&key));
        let kept: Vec<_> = events.iter().filter(stays).cloned().collect();
        prop_assert_eq!(crowded(&mut random, &events, &kept, most), from_scratch(kept));
    }

    #[test]
    fn invariant_08_a_restart_equals_no_restart(seed: u64) {
        let mut random = Random::new(seed);
        let events = world(&mut random);
        prop_assert_eq!(by_detours(&mut random, &events, true), from_scratch(events));
    }

    #[test]
    fn invariant_08_the_sources_override_the_restored_state(seed: u64) {
        let mut random = Random::new(seed);
        let events = world(&mut random);
        prop_assert_eq!(with_memory(&mut random, &events), from_scratch(events));
    }

    #[test]
    fn invariant_05_an_event_on_one_service_changes_nothing_of_another(seed: u64) {
        let mut random = Random::new(seed);
        let events = world_with_holds(&mut random);
        let mut engine = start();
        events.iter().cloned().for_each(|event| engine.apply(event));
        synced(&mut engine);
        rest(&mut engine);
        // Some services lose their lists first, which are held.
        for _ in 0..random.below(6) {
            engine.apply(one_event(&mut random, &events).0);
            rest(&mut engine);
        }
        let before = (owners(&rest(&mut engine)), answers(engine.maps()));
        let (event, service) = one_event(&mut random, &events);
        engine.apply(event);
        let (snapshot, changes) = step(&mut engine);
        for change in changes.iter().filter(|change| change.service != service) {
            let coupled = |it: &Cause| match it {
                Cause::ClaimWon(_, by) | Cause::ClaimLost(_, by) => *by != change.service,
                Cause::AddressClaimed(_, by) => *by == service,
                Cause::MassLoss { .. } => true,
                _ => false,
            };
            let is_expected = !change.causes.is_empty() && change.causes.iter().all(coupled);
            prop_assert!(is_expected, "{service} changed {change:?}");
        }
        let is_taken = |change: &&Change| change.causes.iter().any(|it| matches!(it, Cause::AddressClaimed(..)));
        let taken: Vec<_> = changes.iter().filter(is_taken).map(|change| &change.service).collect();
        let after = (owners(&snapshot), answers(engine.maps()));
        for key in dialled() {
            let unspecified = Family::from_address(key.address).unspecified_address();
            let wildcard = FrontendKey { address: unspecified, ..key };
            let owner = |owners: &BTreeMap<FrontendKey, ServiceKey>| {
                owners.get(&key).or_else(|| owners.get(&wildcard)).cloned()
            };
            let (old, new) = (owner(&before.0), owner(&after.0));
            let is_coupled = old.as_ref().is_some_and(|old| *old == service || taken.contains(&old));
            if old == new && !is_coupled {
                prop_assert_eq!(&before.1[&key], &after.1[&key], "{} of {:?}, after an event on {}", key, old, service);
            }
        }
    }

    #[test]
    fn a_drain_affects_only_its_backends_and_empties_no_list(seed: u64) {
        let mut random = Random::new(seed);
        let mut engine = start();
        engine.limit_pieces(piece(&mut random));
        world(&mut random).into_iter().for_each(|event| engine.apply(event));
        engine.apply(draining(Drains::default()));
        synced(&mut engine);
        let (before, pictured) = (lists(&rest(&mut engine)), picture(&mut engine));
        let drains = population::drains(&mut random);
        engine.apply(draining(drains.clone()));
        let after = lists(&rest(&mut engine));
        for ((service, frontend), had) in before {
            let is_drained = |it: &SocketAddr| drains.iter().any(|(drain, _)| drain.applies_to(&service.name, *it));
            let stay: Vec<_> = had.iter().filter(|it| !is_drained(it)).copied().collect();
            let expected = if stay.is_empty() { had } else { stay };
            prop_assert_eq!(&after[&(service, frontend)], &expected);
        }
        engine.apply(draining(Drains::default()));
        prop_assert_eq!(picture(&mut engine), pictured);
    }

    #[test]
    fn nodes_with_equal_objects_have_equal_digests(seed: u64) {
        let mut random = Random::new(seed);
        let events = world(&mut random);
        let mut one = start();
        events.iter().cloned().for_each(|event| one.apply(event));
        synced(&mut one);
        // Another node, with other objects in its own sources.
        let elsewhere = |event: &Event| match event {
            Event::NodeApplied(_) | Event::DrainsApplied(..) => false,
            Event::ServiceApplied(facts) => facts.key.source == Source::Kubernetes,
            _ => true,
        };
        let mut events: Vec<Event> = events.iter().filter(|event| elsewhere(event)).cloned().collect();
        events.push(Event::NodeApplied(Arc::new(population::node(&mut random))));
        events.push(draining(population::drains(&mut random)));
        let restart = random.chance(500);
        let mut other = lived(&mut random, &events, restart);
        prop_assert_eq!(digest(&rest(&mut one).services), digest(&rest(&mut other).services));
    }

    #[test]
    fn a_difference_visible_on_every_node_changes_the_digest(seed: u64) {
        let mut random = Random::new(seed);
        let events = world(&mut random);
        let mut engine = start();
        events.iter().cloned().for_each(|event| engine.apply(event));
        synced(&mut engine);
        let before = rest(&mut engine);
        engine.apply(one_event(&mut random, &events).0);
        let after = rest(&mut engine);
        if shown_everywhere(&before) != shown_everywhere(&after) {
            prop_assert_ne!(digest(&before.services), digest(&after.services));
        }
    }
}
