//! The kernel's maps equal the memory maps after the same ops. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::facts::{Conditions, Timestamp};
use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::list::{Row, Rows, Scope, SlotState};
use holdfast_core::maps::{Capacity, Maps, MemoryMaps};
use holdfast_core::op::{
    Action, Dump, FrontendType, FrontendValue, MemberKey, Membership, Op, Owner, PortFacts, PortIndex,
    QuotaId, SlotRange, Word, WordFlags,
};
use holdfast_datapath::KernelMaps;
use holdfast_fixtures::clock::wait_until;
use proptest::prelude::*;

/// Small enough to be reached, large enough for two growths.
const CAPACITY: Capacity = Capacity { slots: 1 << 17, ports: 30_000, services: 1000 };

/// The slots of a table of few backends.
const PLACES: u32 = 16_381;

fn address(family: Family, number: u32) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from((0x0a60_0000 + number).to_be_bytes()),
        Family::V6 => IpAddr::from((0xfd00_u128 << 112 | u128::from(number)).to_be_bytes()),
    }
}

/// Each family has its own indices.
fn family(index: u32) -> Family {
    if index.is_multiple_of(2) { Family::V4 } else { Family::V6 }
}

fn rows(family: Family, count: u32, scope: Scope, seed: u32) -> Rows {
    let row = |number: u32| {
        let conditions = Conditions {
            ready: !seed.wrapping_add(number).is_multiple_of(3),
            serving: true,
            terminating: false,
        };
        let port = NonZeroU16::new(u16::try_from(seed % 1000 + 1).unwrap()).unwrap();
        let mut row = Row::new(address(family, seed % 1000 * 64 + number), port, conditions, 0, 0);
        row.choose(scope);
        row
    };
    Rows::new((0..count).map(row).collect(), &Rows::default(), Timestamp(0))
}

fn scope() -> impl Strategy<Value = Scope> {
    prop_oneof![Just(Scope::Cluster), Just(Scope::Local)]
}

fn index() -> impl Strategy<Value = u32> {
    prop_oneof![20 => 0_u32..40, 1 => 0_u32..20_000]
}

fn frontend() -> impl Strategy<Value = (u32, FrontendKey)> {
    (index(), 0_u32..30, 1_u16..4, any::<bool>()).prop_map(|(index, number, port, udp)| {
        let family = family(index);
        let address = if number == 0 { family.unspecified_address() } else { address(family, number) };
        let transport = if udp { Transport::Udp } else { Transport::Tcp };
        (index, FrontendKey { address, port: NonZeroU16::new(port).unwrap(), transport })
    })
}

fn member() -> impl Strategy<Value = MemberKey> {
    (index(), 0_usize..3, 0_u32..30).prop_map(|(index, kind, number)| {
        let backend = (address(family(index), number), 80).into();
        MemberKey { port: PortIndex(index), membership: Membership::ALL[kind], backend }
    })
}

/// A list is written before its word is published, as the rules do.
fn list() -> impl Strategy<Value = Vec<Action>> {
    (index(), scope(), 0_u32..2000, 1_u32..40, any::<u32>(), 0_usize..40, any::<bool>()).prop_map(
        |(index, scope, base, count, seed, flag, free)| {
            let family = family(index);
            let flags = [
                WordFlags::default(),
                WordFlags::DROP,
                WordFlags::AFFINITY,
                WordFlags::INTERNAL_LOCAL,
                WordFlags::MAGLEV,
            ];
            // Few are tables: they have so many slots that many would take too long.
            let flags = if flag == 0 { WordFlags::TABLE } else { flags[flag % flags.len()] };
            let places = if flag == 0 { PLACES } else { count };
            let range = SlotRange { family, base: base * 40, count: places };
            let word = Word { base: range.base, count: places, flags };
            let write = Action::WriteRange(range, scope, Arc::new(rows(family, count, scope, seed)));
            let publish = Action::PublishWord(PortIndex(index), scope, word);
            if free { vec![write, Action::FreeRange(range)] } else { vec![write, publish] }
        },
    )
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let kinds = FrontendType::ALL;
    prop_oneof![
        6 => list(),
        4 => (frontend(), 0..kinds.len()).prop_map(move |((index, key), kind)| {
            let value =
                FrontendValue { port: PortIndex(index), kind: kinds[kind], quota: QuotaId::default() };
            vec![Action::InsertFrontend(key, value)]
        }),
        2 => frontend().prop_map(|(_, key)| vec![Action::RemoveFrontend(key)]),
        2 => (member(), any::<bool>()).prop_map(|(key, active)| {
            vec![Action::InsertMember(key, if active { SlotState::Active } else { SlotState::Draining })]
        }),
        1 => member().prop_map(|key| vec![Action::RemoveMember(key)]),
        1 => (index(), 0_u32..3, 0_u8..97).prop_map(|(index, affinity_timeout, left_out)| {
            vec![Action::WriteFacts(PortIndex(index), PortFacts { affinity_timeout, ignored_bits: left_out })]
        }),
        1 => (index(), scope()).prop_map(|(index, scope)| {
            vec![Action::PublishWord(PortIndex(index), scope, Word::EMPTY)]
        }),
        1 => (index(), any::<bool>()).prop_map(|(index, insert)| {
            let address = address(family(index), index % 7);
            vec![if insert { Action::InsertNodeAddress(address) } else { Action::RemoveNodeAddress(address) }]
        }),
    ]
}

/// Shows the first entry that differs instead of whole dumps.
#[track_caller]
fn check_same(kernel: &Dump, memory: &Dump) {
    fn check<T: PartialEq + std::fmt::Debug>(what: &str, kernel: &[T], memory: &[T]) {
        let differs = kernel.iter().zip(memory).find(|(kernel, memory)| kernel != memory);
        assert_eq!(differs, None, "{what}: kernel, memory");
        assert_eq!(kernel.len(), memory.len(), "{what}");
    }
    check("frontends", &kernel.frontends, &memory.frontends);
    check("ports", &kernel.ports, &memory.ports);
    check("orphans", &kernel.orphans, &memory.orphans);
    check("members", &kernel.members, &memory.members);
    check("node addresses", &kernel.node_addresses, &memory.node_addresses);
}

proptest! {
    // Each case creates its own maps, which takes a tenth of a second, and far longer in an emulated kernel:
    // PROPTEST_CASES requests fewer.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.min(12),
        max_shrink_iters: 40,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn kernel_maps_hold_what_memory_maps_hold(steps in prop::collection::vec(actions(), 1..250)) {
        let mut kernel = KernelMaps::without_programs(CAPACITY).unwrap();
        let mut memory = MemoryMaps::new(CAPACITY);
        for action in steps.iter().flatten() {
            kernel.execute(action).unwrap();
            memory.execute(action).unwrap();
        }
        check_same(&kernel.dump().unwrap(), &memory.dump().unwrap());
    }
}

fn insert_many(maps: &mut impl Maps, count: u32) {
    for number in 0..count {
        let key = FrontendKey {
            address: address(Family::V4, number),
            port: NonZeroU16::new(80).unwrap(),
            transport: Transport::Tcp,
        };
        let value = FrontendValue {
            port: PortIndex(number),
            kind: FrontendType::ClusterIp,
            quota: QuotaId::default(),
        };
        let word = Word { base: number, count: 1, flags: WordFlags::default() };
        let range = SlotRange { family: Family::V4, base: number, count: 1 };
        let rows = Arc::new(rows(Family::V4, 1, Scope::Cluster, number));
        maps.execute(&Action::WriteRange(range, Scope::Cluster, rows)).unwrap();
        maps.execute(&Action::PublishWord(PortIndex(number), Scope::Cluster, word)).unwrap();
        maps.execute(&Action::InsertFrontend(key, value)).unwrap();
    }
}

#[test]
fn kernel_growing_maps_lose_nothing() {
    let mut kernel = KernelMaps::without_programs(CAPACITY).unwrap();
    let mut memory = MemoryMaps::new(CAPACITY);
    insert_many(&mut kernel, 20_000);
    insert_many(&mut memory, 20_000);
    assert!(kernel.status().growths >= 1, "{:?}", kernel.status());
    assert_eq!(kernel.status().frontends, [20_000, 0]);
    check_same(&kernel.dump().unwrap(), &memory.dump().unwrap());
}

/// Reads all pieces, and returns the most frontends in one. Between pieces the maps are written.
fn read_in_pieces(maps: &mut impl Maps, mut between: impl FnMut(&mut dyn Maps)) -> (Dump, usize) {
    let (mut all, mut most, mut anew) = (Dump::default(), 0, true);
    while let Some(piece) = maps.read_piece(anew).unwrap() {
        (anew, most) = (false, most.max(piece.frontends.len()));
        all.frontends.extend(piece.frontends);
        all.members.extend(piece.members);
        all.node_addresses.extend(piece.node_addresses);
        between(maps);
    }
    all.frontends.sort_unstable();
    all.members.sort_unstable();
    (all, most)
}

#[test]
fn kernel_maps_are_read_completely_in_pieces_during_writes() {
    let mut kernel = KernelMaps::without_programs(CAPACITY).unwrap();
    insert_many(&mut kernel, 20_000);
    let node = address(Family::V4, 77);
    kernel.execute(&Action::InsertNodeAddress(node)).unwrap();
    let backend = SocketAddr::new(address(Family::V4, 5), 53);
    let member = MemberKey { port: PortIndex(3), membership: Membership::Serving, backend };
    kernel.execute(&Action::InsertMember(member, SlotState::Active)).unwrap();
    let whole = kernel.dump().unwrap();
    let (read, most) = read_in_pieces(&mut kernel, |_| ());
    assert_eq!((&read.frontends, &read.members), (&whole.frontends, &whole.members));
    assert_eq!(read.node_addresses, [node]);
    assert!(most < 20_000 / 2, "{most} in one piece");
    for (key, value) in whole.frontends.iter().step_by(997) {
        let port = whole.ports.iter().find(|port| port.index == value.port).cloned();
        assert_eq!(kernel.read_value(key).unwrap(), Some(*value));
        assert_eq!(kernel.read_port(value.port, Family::V4).unwrap(), port);
    }
    // New ones come until the maps grow, so the walk stays in the former maps.
    let is_other = |op: &Op| matches!(op.action, Action::InsertFrontend(key, _) if key.address.is_ipv6());
    let mut more = (0..50_000).map(|number| at_index(insert(number), 7)).filter(is_other);
    let (read, _) = read_in_pieces(&mut kernel, |maps| {
        more.by_ref().take(9_000).for_each(|op| maps.execute(&op.action).unwrap());
    });
    let found: BTreeSet<_> = read.frontends.into_iter().collect();
    assert!(whole.frontends.iter().all(|it| found.contains(it)), "a frontend is missing");
}

/// Executes all ops, and returns in how many steps.
fn insert_together(maps: &mut impl Maps, inserts: &[Op]) -> usize {
    let (mut left, mut steps) = (inserts, 0);
    while !left.is_empty() {
        left = &left[maps.execute_batch(left).unwrap()..];
        steps += 1;
    }
    steps
}

fn insert(number: u32) -> Op {
    // Runs of both families, with some node ports.
    let family = if (number / 700).is_multiple_of(2) { Family::V4 } else { Family::V6 };
    let is_wildcard = number.is_multiple_of(500);
    let address = if is_wildcard { family.unspecified_address() } else { address(family, number) };
    let port = if is_wildcard { u16::try_from(30_000 + number / 500).unwrap() } else { 80 };
    let key = FrontendKey { address, port: NonZeroU16::new(port).unwrap(), transport: Transport::Tcp };
    let value =
        FrontendValue { port: PortIndex(number), kind: FrontendType::ClusterIp, quota: QuotaId::default() };
    Op { owner: Owner::Nobody, action: Action::InsertFrontend(key, value) }
}

#[test]
fn kernel_maps_accept_new_frontends_in_batches() {
    let mut kernel = KernelMaps::without_programs(CAPACITY).unwrap();
    let mut memory = MemoryMaps::new(CAPACITY);
    let inserts: Vec<Op> = (0..12_000).map(insert).collect();
    assert_eq!(insert_together(&mut memory, &inserts), 12_000);
    let steps = insert_together(&mut kernel, &inserts);
    assert!(steps < 12_000 / 40, "{steps} steps");
    let status = kernel.status();
    assert_eq!(status.frontends.iter().sum::<u32>(), 12_000);
    assert!(status.growths >= 1, "{status:?}");
    check_same(&kernel.dump().unwrap(), &memory.dump().unwrap());
    // An existing one is replaced.
    let moved: Vec<Op> = (0..600).map(insert).map(moved).collect();
    insert_together(&mut memory, &moved);
    insert_together(&mut kernel, &moved);
    check_same(&kernel.dump().unwrap(), &memory.dump().unwrap());
    // Some of the removed ones are gone already.
    let gone: Vec<Op> = (200..11_000).chain(100..300).map(insert).map(removed).collect();
    insert_together(&mut memory, &gone);
    let steps = insert_together(&mut kernel, &gone);
    assert!(steps < gone.len() / 40, "{steps} steps");
    check_same(&kernel.dump().unwrap(), &memory.dump().unwrap());
}

fn removed(op: Op) -> Op {
    let Action::InsertFrontend(key, _) = op.action else { unreachable!("an insert") };
    Op { action: Action::RemoveFrontend(key), ..op }
}

fn moved(mut op: Op) -> Op {
    if let Action::InsertFrontend(_, value) = &mut op.action {
        value.port.0 += 1;
    }
    op
}

#[test]
fn kernel_maps_that_fill_up_accept_all_that_fits_and_name_the_limit() {
    let capacity = Capacity { slots: 8, ports: 64, services: 4 };
    let mut maps = KernelMaps::without_programs(capacity).unwrap();
    let inserts: Vec<Op> = (1..400).map(insert).map(|op| at_index(op, 7)).collect();
    let (accepted, error) = insert_until_refused(&mut maps, &inserts);
    assert!((64..399).contains(&accepted), "{accepted}");
    assert!(error.contains("the map is full; raise `datapath.limits.frontends`"), "{error}");
    let found = maps.dump().unwrap().frontends.len();
    assert_eq!(found, accepted, "exactly the accepted ones are there");
}

fn at_index(mut op: Op, index: u32) -> Op {
    if let Action::InsertFrontend(_, value) = &mut op.action {
        value.port = PortIndex(index);
    }
    op
}

/// Returns how many were accepted, and the error of the next one.
fn insert_until_refused(maps: &mut impl Maps, inserts: &[Op]) -> (usize, String) {
    let mut accepted = 0;
    loop {
        match maps.execute_batch(&inserts[accepted..]) {
            Ok(count) => accepted += count,
            Err(error) => return (accepted, error.to_string()),
        }
    }
}

#[test]
fn kernel_maps_that_are_full_name_the_setting() {
    let mut maps = KernelMaps::without_programs(Capacity { slots: 8, ports: 4, services: 4 }).unwrap();
    let publish = |index| {
        let word = Word { base: 0, count: 1, flags: WordFlags::default() };
        Action::PublishWord(PortIndex(index), Scope::Cluster, word)
    };
    maps.execute(&publish(3)).unwrap();
    let error = maps.execute(&publish(4)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot publish word: the map is full; raise `datapath.limits.frontends` in the configuration"
    );
    let range = SlotRange { family: Family::V6, base: 8, count: 1 };
    let error = maps
        .execute(&Action::WriteRange(range, Scope::Cluster, Arc::new(rows(Family::V6, 1, Scope::Cluster, 0))))
        .unwrap_err();
    assert!(error.to_string().contains("`datapath.limits.backends`"), "{error}");
}

#[test]
fn kernel_grace_periods_end_in_order() {
    let mut maps = KernelMaps::without_programs(CAPACITY).unwrap();
    let graces: Vec<_> = (0..100).map(|_| maps.begin_grace()).collect();
    wait_until("the last grace period", || maps.is_grace_over(graces[99]));
    assert!(graces.iter().all(|grace| maps.is_grace_over(*grace)));
    let next = maps.begin_grace();
    assert!(next > graces[99]);
}
