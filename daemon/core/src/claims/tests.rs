//! The claims decide the winner, not their order.

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

const ORIGINS: [AddressOrigin; 3] =
    [AddressOrigin::Allocated, AddressOrigin::FromController, AddressOrigin::FromAuthor];

fn by_name(a: ServiceId, b: ServiceId) -> core::cmp::Ordering {
    a.cmp(&b)
}

/// Source, origin of the address, and creation time.
type ClaimRank = (Source, AddressOrigin, i64);

fn claim(frontends: &mut Frontends, service: u32, (source, origin, created): ClaimRank) -> ClaimOutcome {
    let wanted = ClaimRequest { key: KEY, origin };
    frontends.claim(wanted, ServiceId(service), Rank { source, created }, &by_name)
}

#[track_caller]
fn check_winner(name: &str, claims: &[ClaimRank], winner: u32) {
    let mut frontends = Frontends::new(Seed(0));
    for (service, rank) in (0..).zip(claims) {
        claim(&mut frontends, service, *rank);
    }
    assert_eq!(frontends.winner(&KEY), Some(ServiceId(winner)), "{name}");
}

#[test]
fn the_best_claim_by_source_origin_age_and_name_wins() {
    use Source::{ClusterSet, Config, Kubernetes, Manifests};
    let (cluster_ip, status, chosen) =
        (AddressOrigin::Allocated, AddressOrigin::FromController, AddressOrigin::FromAuthor);
    check_winner("alone", &[(Kubernetes, chosen, 5)], 0);
    check_winner("config before manifests", &[(Manifests, chosen, 1), (Config, chosen, 9)], 1);
    check_winner("manifests before kubernetes", &[(Kubernetes, chosen, 1), (Manifests, chosen, 9)], 1);
    check_winner("the oldest", &[(Kubernetes, chosen, 9), (Kubernetes, chosen, 1)], 1);
    check_winner(
        "without a time is the youngest",
        &[(Kubernetes, chosen, i64::MAX), (Kubernetes, chosen, 1)],
        1,
    );
    check_winner("then by name", &[(Kubernetes, chosen, 1), (Kubernetes, chosen, 1)], 0);
    check_winner("a cluster IP, however young", &[(Kubernetes, chosen, 1), (Kubernetes, cluster_ip, 9)], 1);
    check_winner("an address of a controller", &[(Kubernetes, chosen, 1), (Kubernetes, status, 9)], 1);
    check_winner("a cluster IP before it", &[(Kubernetes, status, 1), (Kubernetes, cluster_ip, 9)], 1);
    check_winner("the oldest cluster IP", &[(Manifests, cluster_ip, 9), (Manifests, cluster_ip, 1)], 1);
    check_winner("the node's administrator", &[(Kubernetes, cluster_ip, 1), (Config, chosen, 9)], 1);
    check_winner("any service before an import", &[(ClusterSet, chosen, 1), (Kubernetes, chosen, 9)], 1);
    check_winner("a manifest's too", &[(ClusterSet, chosen, 1), (Manifests, chosen, 9)], 1);
    check_winner("the oldest import", &[(ClusterSet, chosen, 9), (ClusterSet, chosen, 1)], 1);
}

proptest! {
    #[test]
    fn the_order_of_claims_does_not_matter(
        claims in prop::collection::vec((0_u8..4, 0_u8..3, 0_i64..3), 1..6),
        shuffle in any::<prop::sample::Index>(),
    ) {
        let rank = |(source, origin, created): &(u8, u8, i64)| {
            (Source::ALL[usize::from(*source)], ORIGINS[usize::from(*origin)], *created)
        };
        let ranks: Vec<_> = claims.iter().map(rank).collect();
        let mut one = Frontends::new(Seed(1));
        let mut other = Frontends::new(Seed(2));
        let turn = shuffle.index(ranks.len());
        for (service, rank) in (0..).zip(&ranks) {
            claim(&mut one, service, *rank);
        }
        for position in (turn..ranks.len()).chain(0..turn) {
            claim(&mut other, u32::try_from(position).unwrap(), ranks[position]);
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

/// The rule that is named is the one that decides.
#[test]
fn the_named_rule_is_the_first_that_differs() {
    use crate::facts::{ServiceType, Timestamp};
    use crate::keys::{ObjectName, ServiceKey};

    let facts = |name: &str, source, created: Option<i64>| {
        let key = ServiceKey { name: ObjectName::new("shop", name).unwrap(), source };
        let mut facts = ServiceFacts::new(key, ServiceType::ClusterIp);
        facts.meta.created = created.map(Timestamp);
        facts
    };
    let own = facts("api", Source::Manifests, Some(5));
    for (other, kind, rule) in [
        (facts("web", Source::Config, None), FrontendType::ExternalIp, ClaimRule::Source),
        (facts("web", Source::Manifests, None), FrontendType::ExternalIp, ClaimRule::AddressKind),
        (facts("web", Source::Manifests, None), FrontendType::NodePort, ClaimRule::Age),
        (facts("web", Source::Manifests, Some(5)), FrontendType::ClusterIp, ClaimRule::Name),
    ] {
        let (one, two) = ((&own, FrontendType::ClusterIp), (&other, kind));
        assert_eq!(ClaimRule::between(one, two), rule);
        assert_eq!(ClaimRule::between(two, one), rule);
    }
}
