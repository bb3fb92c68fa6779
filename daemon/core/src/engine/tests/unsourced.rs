//! Source ranges that do not fit: only clients in them are denied, the service and its other ports work.

use std::borrow::ToOwned;
use std::vec;

use crate::facts::Ingress;
use crate::snapshot::Status;

use super::*;

const VIP: &str = "203.0.113.9";

/// Maps that refuse source ranges unless `has_room`.
#[derive(Default)]
struct Full {
    maps: MemoryMaps,
    has_room: bool,
}

impl Maps for Full {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        match action {
            Action::InsertSource(..) if !self.has_room => {
                Err(MapError::Refused { op: action.name(), cause: "for a test".to_owned() })
            }
            _ => self.maps.execute(action),
        }
    }

    forward_to_maps!();
}

/// A load balancer's service with these ranges and two ports.
fn balanced(ranges: &[&str]) -> Event {
    let facts = service_facts("a", "10.0.0.1");
    let port = |name: &str, number: u16| ServicePort {
        name: name.into(),
        port: number.try_into().unwrap(),
        ..facts.ports[0].clone()
    };
    Event::ServiceApplied(Arc::new(ServiceFacts {
        kind: ServiceType::LoadBalancer,
        ports: vec![port("", 80), port("b", 81)],
        ingress: vec![Ingress { address: VIP.parse().unwrap(), proxied: false }],
        source_ranges: ranges.iter().map(|range| (*range).into()).collect(),
        ..facts
    }))
}

/// Endpoints of both ports.
fn endpoints(address: &str) -> Event {
    let Event::SliceApplied(facts) = slice("a", &[address]) else { panic!("a slice") };
    let mut facts = SliceFacts::clone(&facts);
    let ports = facts.ports.iter().cloned();
    facts.ports = ports.clone().chain(ports.map(|port| SlicePort { name: "b".into(), ..port })).collect();
    Event::SliceApplied(Arc::new(facts))
}

#[test]
fn a_range_that_does_not_fit_blocks_only_load_balancer_addresses() {
    for before in [None, Some(&[][..]), Some(&["192.0.2.0/24"][..])] {
        let (mut engine, _) =
            Engine::start(Full { has_room: true, ..Full::default() }, Seed(0), &[Source::Manifests]).unwrap();
        engine.apply(Event::Synced(Source::Manifests));
        if let Some(ranges) = before {
            engine.apply(balanced(ranges));
            engine.apply(endpoints("1.1.1.1"));
            engine.step(NOW, &mut |_| ());
        }
        engine.maps_mut().has_room = false;
        engine.apply(balanced(&["192.0.2.0/24", "198.51.100.0/24"]));
        engine.apply(endpoints("1.1.1.2"));
        let snapshot = engine.step(NOW, &mut |_| ());
        let served = |engine: &Engine<Full>, port: u16| {
            let DialOutcome::Served(slots) = engine.maps().maps.dial(([10, 0, 0, 1], port).into()) else {
                return false;
            };
            slots.iter().map(|slot| slot.address).eq(["1.1.1.2".parse::<std::net::IpAddr>().unwrap()])
        };
        assert!(served(&engine, 80) && served(&engine, 81), "{before:?}");
        let view = snapshot.services.iter().next().unwrap();
        let failed = view.frontends.iter().any(|row| matches!(row.status, Status::Error(_)));
        assert!(failed && snapshot.fill.retries == 1, "{before:?}: it is shown, and retried");
        engine.maps_mut().has_room = true;
        let snapshot =
            engine.step(ClockReading { mono: NOW.mono + Duration::from_secs(60), ..NOW }, &mut |_| ());
        assert_eq!(snapshot.fill.retries, 0, "{before:?}");
        let view = snapshot.services.iter().next().unwrap();
        assert!(view.frontends.iter().all(|row| row.status == Status::Done), "{before:?}");
    }
}
