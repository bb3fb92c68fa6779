//! The quota ids of namespaces, by which the maps count a client for a namespace, across restarts.

use std::collections::BTreeMap;
use std::string::String;
use std::{format, vec};

use core::net::IpAddr;

use crate::digest;
use crate::limits::QUOTA_IDS_MAX;
use crate::op::QuotaId;

use super::*;

const SOURCES: &[Source] = &[Source::Manifests];

/// Two names of namespaces that hash to the same quota id.
fn alike() -> [String; 2] {
    let mut names = BTreeMap::new();
    let found = (0..).map(|it| format!("n-{it}")).find_map(|name| {
        let before = names.insert(digest::hash_namespace(&name) % u64::from(QUOTA_IDS_MAX), name.clone());
        before.map(|other| [other, name])
    });
    found.unwrap()
}

/// The events of a served service in this namespace; its slice comes first.
fn served(namespace: &str, cluster_ip: &str) -> [Event; 2] {
    let (mut facts, mut endpoints) = (service_facts("web", cluster_ip), slice("web", &["1.1.1.1"]));
    facts.key.name = ObjectName::new(namespace, "web").unwrap();
    if let Event::SliceApplied(facts) = &mut endpoints {
        let name = ObjectName::new(namespace, "web-1").unwrap();
        Arc::make_mut(facts).key.name = name;
    }
    [endpoints, Event::ServiceApplied(Arc::new(facts))]
}

fn apply_all(engine: &mut Engine<MemoryMaps>, events: impl IntoIterator<Item = Event>) -> Snapshot {
    events.into_iter().chain([Event::Synced(Source::Manifests)]).for_each(|event| engine.apply(event));
    Snapshot::clone(&engine.step(NOW, &mut |_| ()))
}

/// The quota id of each address in the maps.
fn numbers(engine: &mut Engine<MemoryMaps>) -> BTreeMap<IpAddr, QuotaId> {
    let frontends = engine.maps_mut().dump().unwrap().frontends;
    frontends.into_iter().map(|(key, value)| (key.address, value.quota)).collect()
}

#[test]
fn a_namespace_keeps_its_quota_id_over_a_restart_in_any_order() {
    let [one, other] = alike();
    let all = || [served(&one, "10.0.0.1"), served(&other, "10.0.0.2")];
    for (is_turned, saved_order) in [(false, None), (true, None), (false, Some(true)), (true, Some(false))] {
        let mut former = engine(all().concat());
        let (before, snapshot) = (numbers(&mut former), apply_all(&mut former, []));
        assert_ne!(before.first_key_value().map(|it| it.1), before.last_key_value().map(|it| it.1));
        let (mut engine, _) = Engine::start(former.into_maps(), Seed(0), SOURCES).unwrap();
        let mut saved = SavedSnapshot::from(&snapshot);
        if let Some(is_turned) = saved_order {
            if is_turned {
                saved.services.reverse();
            }
            engine.restore(saved, NOW);
        }
        let mut events = all();
        if is_turned {
            events.reverse();
        }
        let snapshot = apply_all(&mut engine, events.concat());
        assert_eq!((numbers(&mut engine), snapshot.counters.ops), (before, 0), "{is_turned} {saved_order:?}");
    }
}

#[test]
fn a_new_namespace_gets_no_quota_id_that_the_maps_hold() {
    let [own, newcomer] = alike();
    let mut former = engine(served(&own, "10.0.0.1").to_vec());
    let before = numbers(&mut former)[&IpAddr::from([10, 0, 0, 1])];
    let (mut engine, _) = Engine::start(former.into_maps(), Seed(0), SOURCES).unwrap();
    let mut events = served(&newcomer, "10.0.0.2");
    // A service of any namespace may claim this external IP, so the IP does not show which namespace owns the quota id
    // in the maps.
    if let Event::ServiceApplied(facts) = &mut events[1] {
        Arc::make_mut(facts).external_ips = vec![[10, 0, 0, 1].into()];
    }
    apply_all(&mut engine, [events, served(&own, "10.0.0.1")].concat());
    let after = numbers(&mut engine);
    assert_eq!(after[&IpAddr::from([10, 0, 0, 1])], before);
    assert_ne!(after[&IpAddr::from([10, 0, 0, 2])], before);
}
