//! A service over its namespace's quota waits; nothing has failed.

use super::*;

/// Maps that refuse every source, for this reason.
struct Sourceless {
    maps: MemoryMaps,
    why: MapError,
}

impl Maps for Sourceless {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        match action {
            Action::InsertSource(..) => Err(self.why.clone()),
            _ => self.maps.execute(action),
        }
    }

    forward_to_maps!();
}

/// The snapshot of a service with a source range after some tries, with maps that refuse the range.
fn snapshot_after(why: MapError) -> Arc<Snapshot> {
    let maps = Sourceless { maps: MemoryMaps::default(), why };
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    let ingress = crate::facts::Ingress { address: [198, 51, 100, 1].into(), proxied: false };
    let facts = ServiceFacts {
        kind: ServiceType::LoadBalancer,
        ingress: vec![ingress],
        source_ranges: vec!["192.0.2.0/24".into()],
        ..service_facts("web", "10.0.0.1")
    };
    engine.apply(Event::ServiceApplied(Arc::new(facts)));
    engine.apply(slice("web", &["1.1.1.1"]));
    engine.apply(Event::Synced(Source::Manifests));
    let mut now = NOW;
    for _ in 0..5 {
        engine.step(now, &mut |_| ());
        now.mono += Duration::from_secs(40);
    }
    engine.step(now, &mut |_| ())
}

#[test]
fn a_service_over_its_quota_of_ranges_waits_without_failed_ops() {
    let snapshot = snapshot_after(MapError::Quota { op: "insert source", cause: "for a test".to_owned() });
    let fill = snapshot.fill;
    assert_eq!((fill.retries, fill.failing, snapshot.counters.ops_failed), (1, 0, 0));
    let snapshot = snapshot_after(MapError::Refused { op: "insert source", cause: "for a test".to_owned() });
    let fill = snapshot.fill;
    assert_eq!((fill.retries, fill.failing, snapshot.counters.ops_failed), (1, 1, 6));
}

#[test]
fn a_service_over_its_quota_of_slots_waits_and_does_not_fail() {
    let maps = MemoryMaps::new(Capacity { slots: 1 << 12, ..Capacity::default() });
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    let endpoints: Vec<String> = (0..1_024).map(|it| format!("1.1.{}.{}", it / 256, it % 256)).collect();
    let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
    engine.apply(Event::Synced(Source::Manifests));
    let mut fills = Vec::new();
    for (number, backends) in (1..).zip([1_024, 1_024, 512, 512, 512, 1_024]) {
        let name = format!("s-{number}");
        engine.apply(service(&name, &format!("10.0.0.{number}")));
        engine.apply(slice(&name, &endpoints[..backends]));
        let fill = engine.step(NOW, &mut |_| ()).fill;
        fills.push((fill.retries, fill.failing));
    }
    assert_eq!(fills, [(0, 0), (0, 0), (0, 0), (0, 0), (1, 0), (2, 1)], "the last one does not fit at all");
}
