//! Keys of an author who has all of this code, but not the seed.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::num::NonZeroU16;
use std::format;
use std::string::String;

use super::*;
use crate::claims::reservations::Reservation;
use crate::facts::ObjectKey;
use crate::keys::{Family, FrontendKey, ObjectName, ServiceKey, SliceKey, Source, Transport};

/// The number of keys, a power of two and therefore also the number of places of their table.
const KEYS: u32 = 1 << 12;

/// Each key is inserted, found and removed, and each of these visits one entry and few others.
const STEPS_PER_KEY_MAX: u64 = 8;

/// If as many random keys as places are drawn, about 8 share the fullest place.
const CROWD_MAX: usize = 16;

const SEEDS: [u128; 3] = [0, 7, 0x0123_4567_89ab_cdef_fedc_ba98_7654_3210];

/// How many keys share the fullest of `places` places.
fn crowd<K: Hash>(seed: Seed, keys: &[K], places: u64) -> usize {
    let mut counts = std::collections::HashMap::<u64, usize>::new();
    keys.iter().for_each(|key| *counts.entry(seed.hash(key) % places).or_default() += 1);
    counts.into_values().max().unwrap_or_default()
}

fn steps<K: Hash + Eq + Clone>(seed: Seed, keys: &[K]) -> u64 {
    let mut index = Index::new(seed);
    work::take();
    keys.iter().for_each(|key| assert_eq!(index.insert(key.clone(), ()), None));
    keys.iter().for_each(|key| assert_eq!(index.get(key), Some(&())));
    keys.iter().for_each(|key| assert_eq!(index.remove(key), Some(())));
    assert!(index.is_empty());
    work::take()
}

#[track_caller]
fn check<K: Hash + Eq + Clone>(what: &str, make: impl Fn(u32) -> K) {
    let keys: Vec<K> = (0..KEYS).map(make).collect();
    for seed in SEEDS.map(Seed) {
        let (steps, most) = (steps(seed, &keys), u64::from(KEYS) * STEPS_PER_KEY_MAX);
        assert!(steps <= most, "{what}: {steps} steps for {KEYS} keys");
        let crowd = crowd(seed, &keys, u64::from(KEYS));
        assert!(crowd <= CROWD_MAX, "{what}: {crowd} keys at one place");
    }
}

fn frontend(address: IpAddr, port: u16, transport: Transport) -> FrontendKey {
    FrontendKey { address, port: NonZeroU16::new(port).unwrap(), transport }
}

/// An address with an end that its author chose.
fn v6(number: u32, end: u64) -> IpAddr {
    Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(number) << 64 | u128::from(end)).into()
}

fn v4(bits: u32) -> IpAddr {
    Ipv4Addr::from_bits(bits).into()
}

fn name(namespace: &str, name: &str) -> ObjectName {
    ObjectName::new(namespace, name).unwrap()
}

/// The first end made a product of a former hash zero for every seed.
const ENDS: [u64; 4] = [0xdd50_7cc9_b729_acc0, 0xdd50_7cc9_b729_acc1, 0, u64::MAX];

#[test]
fn invariant_10_frontends_chosen_to_collide_do_not() {
    for end in ENDS {
        check("ends of IPv6", |number| frontend(v6(number, end), 80, Transport::Tcp));
        check("the first half", |number| {
            let bits = u128::from(end) << 64 | u128::from(number);
            frontend(Ipv6Addr::from_bits(bits).into(), 80, Transport::Tcp)
        });
    }
    check("high bits of IPv4", |number| frontend(v4(number << 20 | number), 80, Transport::Tcp));
    check("ports", |number| {
        let port = u16::try_from(number * 8 + 1).unwrap();
        frontend(v4(0x0a00_0001), port, Transport::ALL[number as usize % 3])
    });
    // The address and the port swap their parts.
    check("sums", |number| {
        frontend(v4(number << 16), u16::try_from(0xf000 - number).unwrap(), Transport::Tcp)
    });
}

#[test]
fn invariant_10_reservations_chosen_to_collide_do_not() {
    for end in ENDS {
        check("covers", |number| Reservation::Address(v6(number, end)));
        check("undecided", |number| (v6(number, end), 0_u16));
    }
    check("node ports", |number| {
        let family = Family::ALL[number as usize % 2];
        Reservation::NodePort(
            family,
            NonZeroU16::new(u16::try_from(1 + number * 15).unwrap()).unwrap(),
            Transport::Tcp,
        )
    });
    check("undecided node ports", |number| (v4(0), u16::try_from(number * 16).unwrap()));
}

/// Names that are nearly equal, with the difference at any byte of a word.
fn names() -> impl Iterator<Item = (usize, impl Fn(u32) -> String)> {
    [0, 1, 7, 8, 9, 15, 16, 17, 40].into_iter().map(|length| {
        let text = move |number: u32| format!("{}{number:05}{}", "a".repeat(length), "z".repeat(length));
        (length, text)
    })
}

#[test]
fn invariant_10_object_names_chosen_to_collide_do_not() {
    let source = Source::Kubernetes;
    for (length, text) in names() {
        let what = format!("names of {}", 5 + 2 * length);
        check(&what, |number| ServiceKey { name: name("tenant", &text(number)), source });
        check(&what, |number| SliceKey { name: name("tenant", &text(number)), source });
        // A namespace has 63 characters at most.
        let namespace = |number| text(number).chars().rev().take(63).collect::<String>();
        check(&what, |number| {
            ObjectKey::Service(ServiceKey { name: name(&namespace(number), "web"), source })
        });
        check(&what, |number| ObjectKey::File(source, text(number).into()));
    }
    // The same text, split elsewhere.
    let text = "a-".repeat(31);
    check("cuts", |number| {
        let (cut, rest) = (1 + number as usize % 60, number / 60);
        name(&text[..cut], &format!("{}{rest}", &text[cut..]))
    });
}

#[test]
fn invariant_10_allocated_numbers_do_not_collide_at_any_stride() {
    for shift in 0..20 {
        check("numbers", |number| number << shift);
    }
}

/// An author who had the seed could make such a set.
#[test]
fn invariant_10_keys_that_collide_by_one_seed_are_spread_by_another() {
    let places = 1 << 8;
    let all = (0_u32..1 << 17).map(|number| frontend(v6(number, 1), 80, Transport::Tcp));
    let chosen: Vec<_> = all.filter(|key| Seed(0).hash(key).is_multiple_of(places)).take(256).collect();
    assert_eq!(
        (chosen.len(), crowd(Seed(0), &chosen, places)),
        (256, 256),
        "they collide with the known seed"
    );
    for bit in 0..u128::BITS {
        let crowd = crowd(Seed(1 << bit), &chosen, places);
        assert!(crowd <= CROWD_MAX, "bit {bit} of the seed does not count: {crowd} keys at one place");
    }
}

#[test]
fn a_seed_is_hidden_in_debug_output() {
    assert_eq!(format!("{:?}", Seed(0x1234)), "Seed(..)");
    let index = Index::<u32, u32>::new(Seed(0x1234));
    assert!(!format!("{index:?}").contains("4660"), "{index:?}");
}
