//! Changes by another process to the kernel's maps: a running daemon and a restart report and repair them. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::fs;
use std::num::NonZeroU16;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use crate::bed::{ThreadBed, bed};
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, Timestamp};
use holdfast_core::index::Seed;
use holdfast_core::keys::{Family, FrontendKey, Source, Transport};
use holdfast_core::list::{Scope, SlotState};
use holdfast_core::maps::{Capacity, Maps};
use holdfast_core::op::{
    Action, Dump, FrontendType, FrontendValue, MemberKey, Membership, PortFacts, PortIndex, QuotaId,
    SlotRange, Word,
};
use holdfast_core::snapshot::{FrontendView, Snapshot, Status};
use holdfast_core::time::ClockReading;
use holdfast_datapath::{KernelMaps, PINS_VERSION, StartOptions};
use holdfast_fixtures::clock::{Stopwatch, pause, wait_until};
use holdfast_laws::worlds::{Shape, cluster_ip};

const WORLD: Shape = Shape { services: 5, endpoints: 3 };

/// Retries that are due later than this have failed several times.
const LATER: Duration = Duration::from_millis(500);

/// An engine that has written its world.
fn engine(options: &StartOptions, world: Shape) -> Engine<KernelMaps> {
    let maps = KernelMaps::start(options).unwrap();
    let (mut engine, _strange) = Engine::start(maps, Seed(0), &[Source::Kubernetes]).unwrap();
    let node =
        NodeFacts { node_port_addresses: ["192.0.2.1".parse().unwrap()].into(), ..NodeFacts::default() };
    let events = world.events().into_iter().chain([Event::NodeApplied(node.into())]);
    events.chain([Event::Synced(Source::Kubernetes)]).for_each(|event| engine.apply(event));
    run_until_idle(&mut engine);
    engine
}

/// Steps until nothing is due, as the engine's loop does.
fn run_until_idle(engine: &mut Engine<KernelMaps>) -> Arc<Snapshot> {
    // The engine's clock never goes back.
    static CLOCK: LazyLock<Stopwatch> = LazyLock::new(Stopwatch::start);
    loop {
        let now = ClockReading { wall: Timestamp(1_000), mono: CLOCK.read() };
        let snapshot = engine.step(now, &mut |_| ());
        if engine.next_due(now.mono).is_none_or(|due| due > now.mono + LATER) {
            return snapshot;
        }
        pause(Duration::from_millis(1));
    }
}

fn dump(engine: &mut Engine<KernelMaps>) -> Dump {
    engine.maps_mut().dump().unwrap()
}

/// A second writer of the same maps: pins them once more, over other programs.
fn intruder(bed: &ThreadBed, options: &StartOptions) -> KernelMaps {
    let (own, other) = (&options.bpffs, bed.bpffs().join("intruder"));
    for folder in [format!("v{PINS_VERSION}/shared"), format!("v{PINS_VERSION}/g1")] {
        fs::create_dir_all(other.join(&folder)).unwrap();
        for pin in fs::read_dir(own.join(&folder)).unwrap().flatten() {
            fs::hard_link(pin.path(), other.join(&folder).join(pin.file_name())).unwrap();
        }
    }
    KernelMaps::start(&StartOptions {
        bpffs: other,
        cgroup: Some(bed.other_cgroup("other")),
        ..options.clone()
    })
    .unwrap()
}

fn frontend(service: u32) -> FrontendKey {
    FrontendKey { address: cluster_ip(service), port: NonZeroU16::MIN, transport: Transport::Tcp }
}

/// Each possible change of the first service's port, by its index and its list.
fn deeds(index: PortIndex, list: SlotRange, other: PortIndex) -> Vec<(Action, &'static str)> {
    let word = |base, count| Action::PublishWord(index, Scope::Cluster, Word { base, count, ..Word::EMPTY });
    let lead = |to| FrontendValue { port: to, kind: FrontendType::ClusterIp, quota: QuotaId::default() };
    let member =
        MemberKey { port: index, membership: Membership::Serving, backend: "192.0.2.9:80".parse().unwrap() };
    let lost = "frontend 10.96.0.1:1/TCP of default/web-00000 is gone or points elsewhere";
    let changed = "the backends or sources of port http/TCP of default/web-00000 were changed";
    vec![
        (Action::RemoveFrontend(frontend(0)), lost),
        (Action::InsertFrontend(frontend(0), lead(other)), lost),
        (Action::InsertFrontend(frontend(0), lead(PortIndex(4_000))), lost),
        (
            Action::InsertFrontend(frontend(77), lead(index)),
            "frontend 10.96.0.78:1/TCP is in the maps, but holdfast did not write it",
        ),
        (word(0, 0), changed),
        (word(list.base, 1), changed),
        (word(u32::MAX, 0xf_ffff), changed),
        (word(16_384, 8), changed),
        (Action::FreeRange(SlotRange { count: 1, ..list }), changed),
        (Action::WriteFacts(index, PortFacts { affinity_timeout: 5, ignored_bits: 8 }), changed),
        (Action::InsertMember(member, SlotState::Active), changed),
        (
            Action::InsertNodeAddress("192.0.2.7".parse().unwrap()),
            "node address 192.0.2.7 was added or removed",
        ),
        (
            Action::RemoveNodeAddress("192.0.2.1".parse().unwrap()),
            "node address 192.0.2.1 was added or removed",
        ),
    ]
}

fn deeds_to(found: &Dump) -> Vec<(Action, &'static str)> {
    let index = |service| found.frontends.iter().find(|(key, _)| *key == frontend(service)).unwrap().1.port;
    let port = found.ports.iter().find(|port| port.index == index(0)).unwrap();
    deeds(index(0), port.cluster.0.range(Family::V4).unwrap(), index(1))
}

/// The lists by content, because a list may move.
fn lists(dump: &Dump) -> Vec<String> {
    let list = |port: &holdfast_core::op::DumpPort| format!("{:?} {:?}", port.facts, port.cluster.1);
    let of = |index| dump.ports.iter().find(|port| port.index == index).map(list);
    let mut lines: Vec<_> =
        dump.frontends.iter().map(|(key, value)| format!("{key} {:?}", of(value.port))).collect();
    lines.push(format!("{:?} {:?} {:?}", dump.orphans, dump.members, dump.node_addresses));
    lines
}

#[test]
fn kernel_foreign_map_changes_are_reported_and_repaired() {
    bed(|bed| {
        let mut engine = engine(&bed.options(), WORLD);
        let mut intruder = intruder(bed, &bed.options());
        let whole = lists(&dump(&mut engine));
        for place in 0..deeds_to(&dump(&mut engine)).len() {
            let (deed, told) = deeds_to(&dump(&mut engine)).swap_remove(place);
            intruder.execute(&deed).unwrap();
            let drift: Vec<_> = engine.check_maps().unwrap().iter().map(ToString::to_string).collect();
            assert_eq!(drift, [told], "{deed:?}");
            run_until_idle(&mut engine);
            assert_eq!(lists(&dump(&mut engine)), whole, "after {deed:?}");
            assert_eq!(engine.check_maps().unwrap(), [], "after {deed:?}");
        }
    });
}

#[test]
fn kernel_foreign_map_changes_without_a_daemon_are_repaired_at_start() {
    bed(|bed| {
        let whole = lists(&dump(&mut engine(&bed.options(), WORLD)));
        let mut intruder = intruder(bed, &bed.options());
        for (deed, _) in deeds_to(&intruder.dump().unwrap()) {
            intruder.execute(&deed).unwrap();
            let mut engine = engine(&bed.options(), WORLD);
            assert_eq!(lists(&dump(&mut engine)), whole, "after {deed:?}");
            assert_eq!(engine.check_maps().unwrap(), [], "after {deed:?}");
        }
    });
}

/// The errors of all frontends.
fn errors(snapshot: &Snapshot) -> Vec<String> {
    let error = |row: &FrontendView| match &row.status {
        Status::Error(error) => Some(format!("{} {error}", row.address)),
        Status::Pending | Status::Done => None,
    };
    let rows = snapshot.services.iter().flat_map(|service| service.frontends.iter());
    rows.filter_map(error).collect()
}

#[test]
fn kernel_a_full_map_fails_only_frontends_that_do_not_fit() {
    bed(|bed| {
        let capacity = Capacity { ports: 4, ..bed.options().capacity };
        let two = Shape { services: 2, endpoints: 3 };
        let options = StartOptions { capacity, ..bed.options() };
        let mut engine = engine(&options, two);
        let mut intruder = intruder(bed, &options);
        for stray in [77, 78] {
            let value = FrontendValue {
                port: PortIndex(0),
                kind: FrontendType::ClusterIp,
                quota: QuotaId::default(),
            };
            intruder.execute(&Action::InsertFrontend(frontend(stray), value)).unwrap();
        }
        two.service_events(2).into_iter().for_each(|event| engine.apply(event));
        let said = "10.96.0.3 cannot insert frontend: the map is full; raise `datapath.limits.frontends` in the configuration";
        assert_eq!(errors(&run_until_idle(&mut engine)), [said]);
        two.service_events(1).into_iter().for_each(|event| engine.apply(event));
        engine.apply(two.slice(1, 0, 1));
        assert_eq!(errors(&run_until_idle(&mut engine)), [said], "another service is changed as ever");
        assert_eq!(engine.check_maps().unwrap().len(), 2, "the strays");
        run_until_idle(&mut engine);
        // The kernel frees the memory of removed objects after a while.
        wait_until("there is room", || {
            two.service_events(2).into_iter().for_each(|event| engine.apply(event));
            errors(&run_until_idle(&mut engine)).is_empty()
        });
        let served: Vec<_> = dump(&mut engine).frontends.iter().map(|(key, _)| key.address).collect();
        assert_eq!(served, [cluster_ip(0), cluster_ip(1), cluster_ip(2)]);
    });
}
