//! Harm that a tenant with all rights on objects must not do to another one.

use std::fmt::Write as _;

use holdfast_fixtures::clock::wait_until;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Layout, Location, Role};

use crate::stage::{Bystander, nobody_dials, service};

/// A Service with this many ports at this many external addresses: a few KiB of text.
fn product(ports: u16, addresses: u16) -> String {
    let mut text = "apiVersion: v1\nkind: Service\nmetadata: {name: product, namespace: tenant}\n\
                    spec:\n  type: ClusterIP\n  clusterIP: 10.97.0.1\n  ports:\n"
        .to_owned();
    for port in 1..=ports {
        writeln!(text, "  - {{name: p{port}, port: {port}}}").unwrap();
    }
    text.push_str("  externalIPs: [");
    for address in 0..addresses {
        write!(text, "198.18.{}.{}, ", address / 250, address % 250 + 1).unwrap();
    }
    text + "]\n"
}

/// Times a bystander's changes while such a Service arrives, and afterwards.
#[track_caller]
fn check_bystander(ports: u16, addresses: u16) {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.start().unwrap();
    let mut bystander = Bystander::arrive(&daemon);
    daemon.write_manifest("product.yaml", &product(ports, addresses)).unwrap();
    bystander.check_undelayed();
    let known = || !daemon.tell(&["services", "tenant/product"]).unwrap().contains("No Service and no");
    wait_until("known by name, served or rejected", known);
    bystander.check_undelayed();
}

#[test]
fn a_service_of_300_ports_at_300_addresses_delays_no_other() {
    check_bystander(300, 300);
}

#[test]
fn a_service_of_1000_ports_at_400_addresses_delays_no_other() {
    check_bystander(1_000, 400);
}

#[test]
fn a_waiting_service_gets_the_space_of_a_deleted_one() {
    let local = vec!["192.0.2.1/32"];
    let bed = Bed::lay(&Layout { local, ..Layout::default() }).unwrap();
    let _server = bed.serve(Location::NODE, Role::Tcp, "web", "192.0.2.1:8080".parse().unwrap()).unwrap();
    let mut daemon = Daemon::new(&bed, "[datapath.limits]\nservices = 2\n").unwrap();
    let write = |daemon: &Daemon<'_>, number: u8| {
        let text = service(&format!("s-{number}"), &format!("10.96.0.{number}"), "192.0.2.1");
        daemon.write_manifest(&format!("{number}.yaml"), &text).unwrap();
    };
    let is_served = |number: u8| nobody_dials(&bed, &format!("10.96.0.{number}:80")) == "web";
    (1..=2).for_each(|number| write(&daemon, number));
    daemon.start().unwrap();
    wait_until("served", || (1..=2).all(is_served));
    write(&daemon, 3);
    // The service and its slice.
    wait_until("waiting", || daemon.ask(&["services"]).unwrap()["waiting"] == 2);
    assert_eq!([1, 2, 3].map(is_served), [true, true, false], "nobody loses any to it");
    std::fs::remove_file(daemon.manifests().join("1.yaml")).unwrap();
    wait_until("given room", || is_served(3));
    assert_eq!([1, 2, 3].map(is_served), [false, true, true]);
}
