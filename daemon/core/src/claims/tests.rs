//! The winner is decided by the claims, not by their order.

use alloc::vec::Vec;
use core::num::NonZeroU16;

use proptest::prelude::*;

use super::*;
use crate::keys::Transport;

const KEY: FrontendKey = FrontendKey {
    address: core::net::IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 1)),
    port: NonZeroU16::MIN,
    transport: Transport::Tcp,
};

fn by_name(a: ServiceId, b: ServiceId) -> core::cmp::Ordering {
    a.cmp(&b)
}

fn rank(source: Source, created: i64) -> Rank {
    Rank { source, created }
}

#[track_caller]
fn check_winner(name: &str, claims: &[Rank], winner: u32) {
    let mut frontends = Frontends::new(Seed::default());
    for (service, rank) in (0..).zip(claims) {
        frontends.claim(KEY, ServiceId(service), *rank, &by_name);
    }
    assert_eq!(frontends.winner(&KEY), Some(ServiceId(winner)), "{name}");
}

#[test]
fn the_winner_is_ruled() {
    use Source::{Config, Kubernetes, Manifests};
    check_winner("alone", &[rank(Kubernetes, 5)], 0);
    check_winner("config before manifests", &[rank(Manifests, 1), rank(Config, 9)], 1);
    check_winner("manifests before kubernetes", &[rank(Kubernetes, 1), rank(Manifests, 9)], 1);
    check_winner("the oldest", &[rank(Kubernetes, 9), rank(Kubernetes, 1)], 1);
    check_winner("without a time is the youngest", &[rank(Kubernetes, i64::MAX), rank(Kubernetes, 1)], 1);
    check_winner("then by name", &[rank(Kubernetes, 1), rank(Kubernetes, 1)], 0);
}

proptest! {
    #[test]
    fn the_order_of_claims_does_not_matter(
        claims in prop::collection::vec((0_u8..3, 0_i64..3), 1..6),
        shuffle in any::<prop::sample::Index>(),
    ) {
        let ranks: Vec<_> = claims.iter().map(|(s, c)| rank(Source::ALL[usize::from(*s)], *c)).collect();
        let mut one = Frontends::new(Seed(1));
        let mut other = Frontends::new(Seed(2));
        let turn = shuffle.index(ranks.len());
        for (service, rank) in (0..).zip(&ranks) {
            one.claim(KEY, ServiceId(service), *rank, &by_name);
        }
        for place in (turn..ranks.len()).chain(0..turn) {
            other.claim(KEY, ServiceId(u32::try_from(place).unwrap()), ranks[place], &by_name);
        }
        while let Some(winner) = one.winner(&KEY) {
            prop_assert_eq!(other.winner(&KEY), Some(winner));
            let heir = one.withdraw(KEY, winner);
            prop_assert_eq!(other.withdraw(KEY, winner), heir);
            prop_assert_eq!(one.winner(&KEY), heir, "the heir takes over at once");
        }
        prop_assert!(one.entries.is_empty() && other.entries.is_empty(), "no entry is left behind");
    }
}
