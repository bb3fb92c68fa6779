//! Sources in the kernel's real tries. Needs root.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::op::{PortIndex, QuotaId};
use holdfast_core::source_ranges::SourceRange;
use libbpf_rs::MapType;

use super::*;
use crate::KernelMaps;
use crate::abi::sources::types;

/// Only the two maps of sources, as `bpf/packet_maps.h` defines them.
fn tries(entries: u32) -> MapHandles {
    let make = |map: Map, key: usize| {
        let options = libbpf_rs::libbpf_sys::bpf_map_create_opts {
            sz: size_of::<libbpf_rs::libbpf_sys::bpf_map_create_opts>() as libbpf_rs::libbpf_sys::size_t,
            map_flags: libbpf_rs::libbpf_sys::BPF_F_NO_PREALLOC,
            ..Default::default()
        };
        let key = u32::try_from(key).unwrap();
        (map, MapHandle::create(MapType::LpmTrie, Some(map.name()), key, 4, entries, &options).unwrap())
    };
    [
        make(Map::SourceRanges4, size_of::<types::source4_key>()),
        make(Map::SourceRanges6, size_of::<types::source6_key>()),
    ]
    .into()
}

fn key(port: u32, range: &str) -> SourceKey {
    SourceKey { port: PortIndex(port), range: SourceRange::parse(range).unwrap() }
}

/// Looks a client up as a program does.
fn lets_in(maps: &MapHandles, port: u32, client: &str) -> bool {
    let exact = SourceKey { port: PortIndex(port), range: SourceRange::single_host(client.parse().unwrap()) };
    let map = family_map(maps, exact.range.family()).unwrap();
    map.lookup(&encode_key(&exact), MapFlags::ANY).unwrap().is_some()
}

#[test]
fn kernel_a_source_admits_its_range_at_its_own_port_only() {
    let maps = tries(16);
    for (port, range) in [(1, "192.0.2.0/24"), (1, "10.0.0.0/8"), (2, "2001:db8::/32"), (3, "10.1.2.3/32")] {
        insert_source(&maps, &key(port, range)).unwrap();
    }
    let clients = [
        (1, "192.0.2.255", true),
        (1, "192.0.3.0", false),
        (1, "10.200.0.1", true),
        (2, "192.0.2.1", false),
        (2, "2001:db8:ffff::1", true),
        (1, "2001:db8:ffff::1", false),
        (2, "2001:db9::1", false),
        (3, "10.1.2.3", true),
        (3, "10.1.2.2", false),
        (257, "10.0.0.1", false),
    ];
    for (port, client, expected) in clients {
        assert_eq!(lets_in(&maps, port, client), expected, "{client} at {port}");
    }
    remove_source(&maps, &key(1, "10.0.0.0/8")).unwrap();
    remove_source(&maps, &key(1, "10.0.0.0/8")).unwrap();
    assert!(!lets_in(&maps, 1, "10.200.0.1") && lets_in(&maps, 1, "192.0.2.1"));
}

#[test]
fn kernel_sources_are_read_back_as_they_were_written() {
    let maps = tries(4096);
    let mut wanted = BTreeSet::new();
    for number in 0..500_u32 {
        let (a, b) = (number % 7, number % 200);
        wanted.insert(key(number % 40, &format!("10.{a}.{b}.0/{}", 8 + number % 25)));
        wanted.insert(key(number % 40, &format!("fd00:{a}::{b}/{}", 1 + number % 128)));
    }
    wanted.iter().for_each(|key| insert_source(&maps, key).unwrap());
    assert_eq!(read_sources(&maps).unwrap(), wanted.iter().copied().collect::<Vec<_>>());
    let gone: Vec<_> = wanted.iter().copied().step_by(2).collect();
    gone.iter().for_each(|key| remove_source(&maps, key).unwrap());
    gone.iter().for_each(|key| assert!(wanted.remove(key)));
    assert_eq!(read_sources(&maps).unwrap(), wanted.into_iter().collect::<Vec<_>>());
}

#[test]
fn kernel_a_source_in_a_full_map_is_refused_with_the_limit() {
    let maps = tries(2);
    for range in ["192.0.2.0/24", "10.0.0.0/8"] {
        insert_source(&maps, &key(1, range)).unwrap();
    }
    let error = insert_source(&maps, &key(1, "203.0.113.0/24")).unwrap_err().to_string();
    let limit = "65536 of a family fit, each counted once for each port of its service";
    assert!(error.starts_with("cannot insert source: ") && error.ends_with(limit), "{error}");
}

#[test]
fn kernel_maps_without_packets_accept_sources_and_store_none() {
    use holdfast_core::maps::{Capacity, Maps};
    use holdfast_core::op::Action;

    let mut maps = KernelMaps::without_programs(Capacity { slots: 8, ports: 8, services: 8 }).unwrap();
    maps.execute(&Action::InsertSource(key(1, "192.0.2.0/24"), QuotaId(1))).unwrap();
    assert_eq!(maps.dump().unwrap().sources, None);
    maps.execute(&Action::RemoveSource(key(1, "192.0.2.0/24"))).unwrap();
}

#[test]
fn kernel_sources_are_in_the_maps_before_late_programs() {
    let (early, late, gone) = (key(1, "192.0.2.0/24"), key(1, "10.0.0.0/8"), key(2, "2001:db8::/32"));
    let mut sources = SourceMaps::adopt(&MapHandles::new(), BTreeMap::new).unwrap();
    for key in [&early, &gone] {
        sources.insert(key, QuotaId(1)).unwrap();
    }
    sources.remove(&gone).unwrap();
    assert_eq!(sources.read(u32::MAX).unwrap(), None, "there are no maps yet");
    let maps = tries(16);
    insert_source(&maps, &gone).unwrap();
    sources.attach_maps(&maps).unwrap();
    assert_eq!(read_sources(&maps).unwrap(), [early], "unwanted sources are gone");
    sources.insert(&late, QuotaId(1)).unwrap();
    assert_eq!(read_sources(&maps).unwrap(), [late, early]);

    let mut next = SourceMaps::adopt(&maps, BTreeMap::new).unwrap();
    assert_eq!(next.read(u32::MAX).unwrap(), Some(vec![late, early]), "a restart finds them");
    assert_eq!(next.read(1).unwrap(), Some(vec![]), "but none of ports beyond the limit");
    next.attach_maps(&maps).unwrap();
    assert_eq!(read_sources(&maps).unwrap(), [late, early], "and removes none before the engine does");
    let anew = tries(16);
    next.attach_maps(&anew).unwrap();
    assert_eq!(read_sources(&anew).unwrap(), [late, early], "also in new maps");
}

/// Tenants also write ranges before programs load. Ranges that would not fit are refused then, so they do not prevent
/// serving packets.
#[test]
fn sources_accepted_before_maps_exist_fit_into_them() {
    let mut sources = SourceMaps::default();
    let numbered = |number: u32| SourceKey {
        port: PortIndex(1),
        range: SourceRange::single_host(std::net::Ipv4Addr::from_bits(number).into()),
    };
    let most = u32::try_from(SOURCES_MAX).unwrap();
    // Each number is another quota.
    let share = |number: u32| QuotaId(u16::try_from(number % (1 << 16)).unwrap());
    (0..most).for_each(|number| sources.insert(&numbered(number), share(number)).unwrap());
    let error = sources.insert(&numbered(most), QuotaId(1)).unwrap_err().to_string();
    assert!(error.contains("all are taken; 65536 of a family fit"), "{error}");
    sources.remove(&numbered(0)).unwrap();
    sources.insert(&numbered(most), share(most)).unwrap();
}

/// A tenant has eight Services, each with the most ranges.
#[test]
fn kernel_no_quota_of_ranges_fills_the_map() {
    let mut sources = SourceMaps::default();
    let range = |number: u32| {
        let address = std::net::Ipv4Addr::from_bits(number << 8);
        SourceKey { port: PortIndex(1), range: SourceRange::new(address.into(), 24).unwrap() }
    };
    let most = u32::try_from(SOURCES_MAX).unwrap();
    let taken = (0..most).take_while(|number| sources.insert(&range(*number), QuotaId(1)).is_ok()).count();
    assert_eq!(
        taken,
        SOURCES_MAX * QUOTA_REST_FACTOR / (QUOTA_REST_FACTOR + 1) + 1,
        "alone it gets eight ninths"
    );
    let refused = sources.insert(&range(most), QuotaId(1)).unwrap_err();
    assert!(matches!(refused, MapError::Quota { .. }), "not a failure: {refused}");
    assert!(refused.to_string().contains("and leave 7281 to the others"), "{refused}");
    sources.insert(&range(0), QuotaId(1)).unwrap();
    let others = (most..).take(5_000).filter(|number| sources.insert(&range(*number), QuotaId(2)).is_ok());
    assert_eq!(others.count(), 5_000, "another quota finds space");
    (0..5_000).for_each(|number| sources.remove(&range(number)).unwrap());
    sources.insert(&range(most + 9_000), QuotaId(1)).unwrap();
}
