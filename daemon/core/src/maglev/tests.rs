//! The promises of a table, in every version.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::collections::BTreeMap;

use super::{PLACES_LARGE, PLACES_SMALL, Permutation, mix, table_size};
use crate::work;

fn at(address: impl Into<IpAddr>) -> SocketAddr {
    SocketAddr::new(address.into(), 8080)
}

fn backends(count: u32) -> Vec<SocketAddr> {
    (0..count).map(|number| at(Ipv4Addr::from_bits(0x0a01_0000 + number * 7))).collect()
}

fn table(backends: &[SocketAddr], places: u32) -> Vec<u32> {
    super::table(backends.iter().map(|backend| (*backend, 1)), places)
}

/// For each place, its backend.
fn spread(backends: &[SocketAddr]) -> Vec<SocketAddr> {
    let places = table_size(u32::try_from(backends.len()).unwrap());
    table(backends, places).iter().map(|number| backends[*number as usize]).collect()
}

fn shares(spread: &[SocketAddr]) -> BTreeMap<SocketAddr, usize> {
    spread.iter().fold(BTreeMap::new(), |mut shares, backend| {
        *shares.entry(*backend).or_default() += 1;
        shares
    })
}

#[test]
fn the_shares_of_two_backends_differ_by_one_place_at_most() {
    for count in [2, 3, 10, 100, 163, 164, 1_000, 6_552] {
        let shares = shares(&spread(&backends(count)));
        let (least, most) = (shares.values().min().unwrap(), shares.values().max().unwrap());
        assert_eq!(shares.len(), count as usize);
        assert!(most - least <= 1, "of {count} backends one has {least} places and one has {most}");
    }
}

/// The fraction of places of other backends that move when this backend leaves.
fn moved(before: &[SocketAddr], gone: SocketAddr) -> f64 {
    let after: Vec<_> = before.iter().filter(|backend| **backend != gone).copied().collect();
    let (before, after) = (spread(before), spread(&after));
    let moved = before.iter().zip(&after).filter(|(old, new)| **old != gone && old != new).count();
    moved as f64 / before.len() as f64
}

#[test]
fn a_backend_that_leaves_moves_few_places_of_the_others() {
    let before = backends(100);
    let each: Vec<_> = before.iter().map(|gone| moved(&before, *gone)).collect();
    let mean = each.iter().sum::<f64>() / 100.0;
    let most = each.iter().copied().fold(0.0, f64::max);
    assert!(mean <= 0.015 && most <= 0.02, "{mean} on average, {most} at most");
}

#[test]
fn a_table_has_a_hundred_places_per_backend_while_that_fits() {
    let of = |backends| table_size(backends);
    assert_eq!([0, 1, 2, 163].map(of), [0, 1, PLACES_SMALL, PLACES_SMALL]);
    assert_eq!([164, 6_552].map(of), [PLACES_LARGE; 2]);
    assert_eq!([6_553, 65_536].map(of), [6_553, 65_536]);
}

#[test]
fn the_shares_follow_the_weights() {
    for weights in [[1, 1, 1], [70, 30, 0], [256, 1, 3], [2, 256, 256], [7, 7, 7]] {
        let backends = backends(3);
        let numbers = super::table(backends.iter().copied().zip(weights), PLACES_SMALL);
        let all: u16 = weights.iter().sum();
        for (number, weight) in (0..).zip(weights) {
            let share = numbers.iter().filter(|it| **it == number).count();
            let wanted = f64::from(PLACES_SMALL) * f64::from(weight) / f64::from(all);
            assert!((share as f64 - wanted).abs() <= 2.0, "{weights:?}: {number} has {share}, not {wanted}");
        }
    }
}

#[test]
fn a_backend_with_any_weight_has_a_place() {
    for (heavy, count) in [(256, 64), (256, 162), (256, 6_551)] {
        let weights = (0..).map(|at| if at == 5 { 1 } else { heavy });
        let backends = backends(count + 1);
        let numbers = super::table(backends.iter().copied().zip(weights), table_size(count + 1));
        assert!(numbers.contains(&5), "beside {count} backends of {heavy}");
    }
}

/// A table of these permutations, and the number of look-ups for it.
fn filled(permutations: Vec<Permutation>, places: u32) -> (Vec<u32>, u64) {
    work::take();
    (super::fill(permutations, places), work::take())
}

/// A tenant finds addresses with such permutations by trying some millions.
#[test]
fn invariant_10_backends_with_equal_permutations_cost_little_more_than_others() {
    const PLACES: u32 = PLACES_LARGE;
    for weights in [[1, 1], [1, 256]] {
        let weight = |at: usize| weights[at % 2];
        let honest = backends(1_000).into_iter().enumerate();
        let honest = honest.map(|(at, backend)| Permutation::new(backend, weight(at), PLACES)).collect();
        let same = |at| Permutation { next: 0, step: 1, places: PLACES, weight: weight(at), taken: 0 };
        let (_, honest) = filled(honest, PLACES);
        let (table, chosen) = filled((0..1_000).map(same).collect(), PLACES);
        assert!(chosen <= 4 * honest, "{chosen} look-ups, and {honest} for random addresses");
        assert!((0..1_000).all(|number| table.contains(&number)), "each has a place");
    }
}

#[test]
fn weights_that_are_all_zero_count_as_equal() {
    let backends = backends(2);
    let of = |weight| super::table(backends.iter().map(|backend| (*backend, weight)), PLACES_SMALL);
    assert_eq!(of(0), of(1));
}

/// One backend gets a tenth more: few places move between the others.
#[test]
fn a_changed_weight_moves_few_places_between_other_backends() {
    let backends = backends(10);
    let of = |first| {
        let weights = (0..).map(|at| if at == 0 { first } else { 100 });
        super::table(backends.iter().copied().zip(weights), PLACES_SMALL)
    };
    let (before, after) = (of(100), of(110));
    let moved = before.iter().zip(&after).filter(|(old, new)| **new != 0 && old != new).count();
    assert!(
        moved as f64 <= 0.02 * f64::from(PLACES_SMALL),
        "{moved} of {PLACES_SMALL} places moved between others"
    );
}

#[test]
fn a_list_of_one_backend_or_none_has_no_table() {
    assert_eq!(table(&backends(0), 0), []);
    assert_eq!(table(&backends(1), 1), [0]);
    assert_eq!(table(&[], PLACES_SMALL).len(), PLACES_SMALL as usize);
}

/// Nodes of several versions serve together while a cluster is upgraded.
#[test]
fn a_table_is_the_same_in_every_version() {
    let digest = |backends: &[SocketAddr]| {
        let places = table_size(u32::try_from(backends.len()).unwrap());
        let numbers = table(backends, places);
        numbers.iter().fold(0_u64, |sum, number| mix(sum.rotate_left(1) ^ u64::from(*number)))
    };
    let v6: Vec<_> = (1..=5_u16).map(|it| at(Ipv6Addr::new(0xfd00, 0, 0, it, 0, 0, 0, 1))).collect();
    let digests = [digest(&backends(3)), digest(&backends(200)), digest(&v6)];
    assert_eq!(digests, [9_418_172_203_785_462_451, 15_311_659_118_419_428_291, 2_439_718_198_856_675_180]);
}
