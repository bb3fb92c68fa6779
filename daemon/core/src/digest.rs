//! One number for what the cluster asks for: nodes that see the same objects have the same number.
//!
//! Invariant: the digest depends only on the content of one source's objects. The order of arrival, the spread of
//! endpoints over slices, the node, its zone, its settings, its holds and its other sources do not change it. Every
//! build on every machine computes it alike. Versions of objects do not count, since a new version may say the same.

use alloc::sync::Arc;
use core::net::IpAddr;

use crate::facts::{AddressType, Conditions, ServiceFacts, SliceFacts};
use crate::keys::{Family, Source};
use crate::list::Scope;
use crate::snapshot::{FrontendView, ServiceView, ServiceViews};
use crate::weights::{WeightSetting, WeightTarget, Weights};

/// A metric is a 64-bit float and keeps this many bits exactly.
pub const BITS: u32 = 53;

/// Digest of the apiserver's objects: names, frontends, policies, endpoints with their conditions.
pub fn digest(services: &ServiceViews) -> u64 {
    source_digest(services, Source::Kubernetes)
}

/// Digest of the configuration's blocks. Each node checks their backends itself, so probe results do not count, except
/// through weights while backends return slowly.
pub fn config_digest(services: &ServiceViews) -> u64 {
    source_digest(services, Source::Config)
}

fn source_digest(services: &ServiceViews, source: Source) -> u64 {
    let own = services.iter().filter(|view| view.key.source == source);
    let served = own.filter(|view| !view.frontends.is_empty());
    wrapping_sum(served.map(|view| hash_service(view))) >> (u64::BITS - BITS)
}

/// Hash of a namespace's name, the same on every node and in every version.
pub(crate) fn hash_namespace(name: &str) -> u64 {
    Hash::new(HashKind::Namespace).text(name).0
}

/// Adds up, so that order does not matter.
fn wrapping_sum(parts: impl Iterator<Item = u64>) -> u64 {
    parts.fold(0, u64::wrapping_add)
}

fn hash_service(view: &ServiceView) -> u64 {
    let name = Hash::new(HashKind::Service).text(view.key.name.namespace()).text(view.key.name.name());
    let settings = view.facts.as_deref().map_or(0, hash_settings);
    let frontends = wrapping_sum(view.frontends.iter().map(hash_frontend));
    let is_of_ours = |slice: &&Arc<SliceFacts>| !slice.headless && slice.address_type != AddressType::Fqdn;
    let endpoints = wrapping_sum(view.slices.iter().filter(is_of_ours).map(|slice| hash_endpoints(slice)));
    name.word(settings).word(frontends).word(endpoints).0
}

fn hash_settings(facts: &ServiceFacts) -> u64 {
    let hash = Hash::new(HashKind::Settings)
        .word(facts.affinity_timeout.map_or(0, |seconds| u64::from(seconds) + 1));
    let hash = facts.source_ranges.iter().fold(hash, |hash, range| hash.text(range));
    // Services without these settings keep the digest of versions that did not have the settings.
    let hash =
        facts.maglev_setting().map_or(hash, |on| hash.word(HashKind::Maglev as u64).word(u64::from(on)));
    let hash = facts.affinity_prefixes().map_or(hash, |prefixes| {
        let word = hash.word(HashKind::AffinityPrefix as u64);
        Family::ALL.into_iter().fold(word, |hash, family| hash.word(u64::from(prefixes.length(family))))
    });
    facts
        .weights
        .as_ref()
        .map_or(hash, |asked| hash_weights(hash.word(HashKind::Weights as u64), &asked.weights))
        .0
}

fn hash_weights(hash: Hash, weights: &Weights) -> Hash {
    weights.iter().fold(hash, |hash, (target, weight)| {
        let hash = match target {
            WeightTarget::Backend(backend) => {
                hash.word(1).address(backend.ip()).word(u64::from(backend.port()))
            }
            WeightTarget::Address(address) => hash.word(2).address(address),
            WeightTarget::Node(name) => hash.word(3).text(name),
        };
        hash.word(u64::from(weight.number()))
    })
}

/// What clients dial, and the scope of the list. The backends behind it may differ from node to node.
fn hash_frontend(view: &FrontendView) -> u64 {
    let hash = Hash::new(HashKind::Frontend).address(view.address).word(u64::from(view.port.get()));
    let hash = hash.text(view.protocol.as_str()).text(view.kind.as_str()).text(&view.port_name);
    hash.word(u64::from(view.scope == Scope::Local)).word(u64::from(view.external_local)).0
}

/// Each endpoint at each of the slice's ports, whichever slice lists it.
fn hash_endpoints(slice: &SliceFacts) -> u64 {
    let port = |port: &crate::facts::SlicePort| {
        let hash = Hash::new(HashKind::Endpoint).word(u64::from(port.port.get()));
        hash.text(port.protocol.as_str()).text(&port.name)
    };
    let is_checked_here = slice.key.source == Source::Config;
    let said =
        |(address, conditions)| (address, if is_checked_here { Conditions::READY } else { conditions });
    let at = |port: Hash| wrapping_sum(slice.endpoints.iter_brief().map(|it| hash_endpoint(port, said(it))));
    let endpoints = wrapping_sum(slice.ports.iter().map(port).map(at));
    // A slice without weights keeps the digest of versions that had no weights.
    let weighed = |asked: &WeightSetting| {
        hash_weights(Hash::new(HashKind::SliceWeights).word(endpoints), &asked.weights).0
    };
    endpoints.wrapping_add(slice.weights.as_deref().map_or(0, weighed))
}

fn hash_endpoint(port: Hash, (address, conditions): (IpAddr, Conditions)) -> u64 {
    let Conditions { ready, serving, terminating } = conditions;
    let bits = u64::from(ready) | u64::from(serving) << 1 | u64::from(terminating) << 2;
    port.address(address).word(bits).0
}

/// The kind of the hashed text, so that equal texts of two kinds hash differently.
#[derive(Clone, Copy)]
enum HashKind {
    Service = 1,
    Settings,
    Frontend,
    Endpoint,
    Namespace,
    Maglev,
    Weights,
    SliceWeights,
    AffinityPrefix,
}

/// A hash that stays the same on every machine and in every version; libraries promise neither.
#[derive(Clone, Copy)]
struct Hash(u64);

impl Hash {
    const fn new(kind: HashKind) -> Self {
        Self(0).word(kind as u64)
    }

    /// A step of SplitMix64: flipping one input bit flips each output bit half of the time.
    const fn word(self, word: u64) -> Self {
        let mixed = (self.0 ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self(mixed ^ (mixed >> 31))
    }

    /// The length goes first, so that two texts in a row cannot be split elsewhere.
    fn text(self, text: &str) -> Self {
        text.as_bytes().chunks(8).fold(self.word(text.len() as u64), |hash, piece| {
            let mut word = [0; 8];
            word.iter_mut().zip(piece).for_each(|(to, from)| *to = *from);
            hash.word(u64::from_le_bytes(word))
        })
    }

    fn address(self, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.word(4).word(u64::from(address.to_bits())),
            IpAddr::V6(address) => address
                .segments()
                .into_iter()
                .fold(self.word(6), |hash, segment| hash.word(u64::from(segment))),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::boxed::Box;
    use alloc::collections::BTreeSet;

    use super::*;
    use crate::facts::{Endpoint, ServiceType};
    use crate::keys::{ObjectName, ServiceKey};

    #[track_caller]
    fn check(a: Hash, b: Hash) {
        assert_ne!(a.0, b.0);
    }

    #[test]
    fn texts_split_elsewhere_hash_differently() {
        let begin = Hash::new(HashKind::Service);
        check(begin.text("default").text("a-b"), begin.text("default-a").text("b"));
        check(begin.text("ab").text(""), begin.text("a").text("b"));
        check(begin.text("12345678").text("9"), begin.text("123456789").text(""));
        check(begin.text("a"), begin.text("a\0"));
    }

    #[test]
    fn addresses_of_two_families_differ() {
        let begin = Hash::new(HashKind::Endpoint);
        check(begin.address("::1".parse().unwrap()), begin.address("0.0.0.1".parse().unwrap()));
        check(begin.address("fd00::1".parse().unwrap()), begin.address("fd00:0:0:1::".parse().unwrap()));
    }

    /// Nodes of two versions compare their digests, so this number may change only with its meaning.
    #[test]
    fn the_hash_is_the_same_in_every_version() {
        let hash =
            Hash::new(HashKind::Frontend).text("default").address("10.96.0.1".parse().unwrap()).word(443);
        assert_eq!(hash.0, 11_257_380_608_684_422_038);
    }

    fn settings_digest(change: impl FnOnce(&mut ServiceFacts)) -> u64 {
        let name = ObjectName::new("default", "web").unwrap();
        let key = ServiceKey { name, source: Source::Kubernetes };
        let mut facts = ServiceFacts::new(key, ServiceType::ClusterIp);
        change(&mut facts);
        hash_settings(&facts)
    }

    fn weights(text: &str) -> Option<Box<WeightSetting>> {
        Some(Box::new(WeightSetting { weights: Weights::parse(text).unwrap(), wrong: None }))
    }

    #[test]
    fn a_service_without_newer_settings_keeps_its_digest() {
        assert_eq!(settings_digest(|_| ()), 7_235_116_703_822_611_636);
    }

    #[test]
    fn each_newer_setting_changes_the_digest() {
        let all = [
            settings_digest(|_| ()),
            settings_digest(|facts| facts.maglev = Some("true".into())),
            settings_digest(|facts| facts.maglev = Some("false".into())),
            settings_digest(|facts| facts.affinity_prefix = Some("ipv4=24".into())),
            settings_digest(|facts| facts.affinity_prefix = Some("ipv4=25".into())),
            settings_digest(|facts| facts.affinity_prefix = Some("ipv6=64".into())),
            settings_digest(|facts| facts.weights = weights("192.0.2.1=0")),
            settings_digest(|facts| facts.weights = weights("192.0.2.1=2")),
            settings_digest(|facts| facts.weights = weights("192.0.2.1:80=2")),
            settings_digest(|facts| facts.weights = weights("node:192.0.2.1=2")),
        ];
        assert_eq!(BTreeSet::from(all).len(), all.len());
        let unread = [
            settings_digest(|facts| facts.maglev = Some("maybe".into())),
            settings_digest(|facts| facts.affinity_prefix = Some("24".into())),
        ];
        assert_eq!(unread, [all[0]; 2], "an invalid setting does not count");
        let order = ["192.0.2.1=2,192.0.2.2=3", "192.0.2.2=3,192.0.2.1=2"];
        let [one, other] = order.map(|text| settings_digest(|facts| facts.weights = weights(text)));
        assert_eq!(one, other);
    }

    fn slice_says(text: &str) -> u64 {
        slice_of(Source::Kubernetes, Conditions::READY, text)
    }

    #[test]
    fn conditions_change_the_digest_except_for_configuration_blocks() {
        let unready = Conditions { ready: false, ..Conditions::READY };
        let of = |source| [Conditions::READY, unready].map(|conditions| slice_of(source, conditions, ""));
        let [ready, unready] = of(Source::Config);
        assert_eq!(ready, unready);
        let [ready, unready] = of(Source::Kubernetes);
        assert_ne!(ready, unready);
    }

    fn slice_of(source: Source, conditions: Conditions, text: &str) -> u64 {
        let mut builder = crate::facts::EndpointsBuilder::new(crate::keys::Family::V4);
        let address = "192.0.2.1".parse().unwrap();
        let none = Endpoint { address, conditions, node: None, zone: None, hints: None, target: None };
        builder.push(none).unwrap();
        let port = core::num::NonZeroU16::MIN;
        let name = ObjectName::new("default", "web-1").unwrap();
        let slice = SliceFacts {
            key: crate::keys::SliceKey { name, source },
            meta: crate::facts::Meta::default(),
            service: Some("web".into()),
            headless: false,
            address_type: AddressType::Ip(crate::keys::Family::V4),
            ports: [crate::facts::SlicePort { name: "".into(), protocol: crate::keys::Protocol::TCP, port }]
                .into(),
            endpoints: builder.finish(),
            endpoints_null: false,
            weights: if text.is_empty() { None } else { weights(text) },
        };
        hash_endpoints(&slice)
    }

    #[test]
    fn weights_of_a_slice_change_its_digest() {
        let all = ["", "192.0.2.1=0", "192.0.2.1=2", "node:a=0"].map(slice_says);
        assert_eq!(BTreeSet::from(all).len(), all.len());
    }

    #[test]
    fn an_empty_table_has_the_digest_zero() {
        assert_eq!(digest(&ServiceViews::default()), 0);
    }
}
