//! Addresses that a tenant chooses cost as much as any others: counted, not timed.

use core::net::Ipv6Addr;
use std::format;

use super::*;
use crate::work;

/// Enough Services for an author who chooses every frontend's address, 1,000 per Service.
const SERVICES: u32 = 80;
const ADDRESSES: u32 = 1_000;

/// With this suffix a product in a former hash was zero for every seed, so all frontends collided.
const END: u64 = 0xdd50_7cc9_b729_acc0;

fn external_ips(service: u32, end: u64) -> Vec<IpAddr> {
    let address = |number: u32| {
        let start = 0x2001_0db8_0000_0000_u64 | u64::from(service) << 16 | u64::from(number);
        Ipv6Addr::from_bits(u128::from(start) << 64 | u128::from(end)).into()
    };
    (0..ADDRESSES).map(address).collect()
}

fn chosen(service: u32, port: u16, end: u64) -> Event {
    let facts = super::service(&format!("s-{service:02}"), &format!("fd00::{service:x}"), &[]);
    let port = ServicePort { port: NonZeroU16::new(port).unwrap(), ..facts.ports[0].clone() };
    applied(ServiceFacts { external_ips: external_ips(service, end), ports: vec![port], ..facts })
}

/// Another namespace's Service, one endpoint of which changes.
fn bystander(rig: &mut Rig, endpoint: &str) {
    let name = || ObjectName::new("another", "web").unwrap();
    let facts = ServiceFacts {
        key: ServiceKey { name: name(), source: SOURCE },
        ..super::service("web", "10.9.0.1", &[])
    };
    let slice = SliceFacts {
        key: SliceKey { name: name(), source: SOURCE },
        ..slice_facts("web", "web", &[endpoint])
    };
    rig.turn(vec![applied(facts), Event::SliceApplied(Arc::new(slice))]);
}

/// The Services are added between the bystander's changes, get another port, are found by a restart, and are deleted.
fn life(end: u64) -> u64 {
    let capacity = Capacity { slots: 1 << 12, ports: 1 << 12, ..Capacity::default() };
    let mut rig = Rig::with(capacity);
    work::take();
    for service in 0..SERVICES {
        rig.turn(vec![chosen(service, 80, end)]);
        bystander(&mut rig, &format!("1.1.1.{}", 1 + service));
    }
    rig.turn((0..SERVICES).map(|service| chosen(service, 81, end)).collect());
    (0..4).for_each(|_| drop(rig.grace()));
    let mut later = Rig::with(capacity);
    later.world.adopt(&rig.dump());
    later.turn((0..SERVICES).map(|service| chosen(service, 81, end)).collect());
    later.turn((0..SERVICES).map(|service| deleted(&format!("s-{service:02}"))).collect());
    (0..4).for_each(|_| drop(later.grace()));
    assert_eq!(later.world.owners.frontends.all.realized, 0);
    work::take()
}

#[test]
fn invariant_10_external_ips_chosen_to_collide_cost_no_more_than_others() {
    let (chosen, others) = (life(END), life(END ^ 1));
    assert!(chosen * 100 <= others * 101, "{chosen} steps for chosen addresses, {others} for others");
}
