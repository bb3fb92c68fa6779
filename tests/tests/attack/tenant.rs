//! What a tenant, who may write any object, can and cannot do to another one.

use std::fmt::Write as _;
use std::time::Duration;

use holdfast_tests::bed::Bed;
use holdfast_tests::bed::daemon::Daemon;

use crate::stage::{Bystander, until};

/// One Service of so many ports at so many external addresses: a few KiB of text.
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

/// A bystander's changes while such a Service comes, and after it has come.
#[track_caller]
fn check_bystander(ports: u16, addresses: u16, bound: Duration) {
    let bed = Bed::new().unwrap();
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.start().unwrap();
    let mut bystander = Bystander::arrive(&daemon);
    daemon.write_manifest("product.yaml", &product(ports, addresses)).unwrap();
    let p99 = bystander.p99(20);
    assert!(p99 < bound, "{ports} x {addresses}: {p99:?}");
    let known =
        || daemon.tell(&["services", "--service", "tenant/product"]).unwrap().contains("tenant/product");
    until("known by name, served or rejected", known);
    assert!(bystander.p99(20) < bound);
}

#[test]
fn a_service_of_three_hundred_ports_at_three_hundred_addresses_holds_up_no_other() {
    check_bystander(300, 300, Duration::from_secs(45));
}
