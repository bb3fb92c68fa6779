//! Which slices count, and which one wins if they disagree.

use super::*;

#[track_caller]
fn check(name: &str, slices: Vec<SliceFacts>, expected: &str) {
    let desired = resolved(&service(""), slices, &node("none", "here"));
    assert_eq!(list(&desired.ports[0], Scope::Cluster), expected, "{name}");
}

fn of(name: &str, endpoints: &str) -> SliceFacts {
    slice(name, endpoints, "here")
}

#[test]
fn duplicates_across_slices() {
    check("each once", vec![of("x", "1 - R; 2 - R"), of("y", "2 - R; 3 - R")], "1 2 3");
    check("terminating gives way, first", vec![of("x", "1 - T"), of("y", "1 - R")], "1");
    check("terminating gives way, last", vec![of("x", "1 - R"), of("y", "1 - T")], "1");
    check("not terminating beats terminating, ready or not", vec![of("x", "1 - B"), of("y", "1 - N")], "");
    check("ready beats unready, first", vec![of("x", "1 - N"), of("y", "1 - R")], "1");
    check("ready beats unready, last", vec![of("x", "1 - R"), of("y", "1 - N")], "1");
    check("a duplicate in one slice", vec![of("x", "1 - R; 1 - R")], "1");
}

#[test]
fn sockets_keep_a_backend_that_serves_in_any_slice_or_is_listed() {
    for (kept, endpoints) in [
        (true, ["1 - R", ""]),
        (true, ["1 - T", ""]),
        (true, ["1 - N", ""]),
        (true, ["1 - U", ""]),
        (false, ["1 - X", ""]),
        (false, ["1 - D", ""]),
        (true, ["1 - X", "1 - T"]),
        (true, ["1 - T", "1 - X"]),
        (false, ["1 - D", "1 - X"]),
    ] {
        let [one, two] = endpoints;
        let desired = resolved(&service(""), vec![of("x", one), of("y", two)], &node("none", "here"));
        assert_eq!(desired.ports[0].rows[0].keeps_clients(), kept, "{endpoints:?}");
    }
}

#[test]
fn between_equals_the_first_slice_by_name_counts() {
    let desired = resolved(&service("itp"), vec![of("x", "1 - R@"), of("y", "1 - R")], &node("none", "here"));
    assert_eq!(list(&desired.ports[0], Scope::Local), "1", "the first slice names this node");
    let desired = resolved(&service("itp"), vec![of("x", "1 - R"), of("y", "1 - R@")], &node("none", "here"));
    assert_eq!(list(&desired.ports[0], Scope::Local), "", "the first slice names another node");
}

#[test]
fn slices_that_do_not_count() {
    let six = SliceFacts { address_type: AddressType::Ip(Family::V6), ..of("x", "") };
    check("another family", vec![six, of("y", "1 - R")], "1");
    check("host names", vec![SliceFacts { address_type: AddressType::Fqdn, ..of("x", "2 - R") }], "");
    check("headless", vec![SliceFacts { headless: true, ..of("x", "2 - R") }], "");
    let named = [SlicePort { name: "http".into(), protocol: Protocol::TCP, port: number(80) }];
    check("another port name", vec![SliceFacts { ports: named.into(), ..of("x", "2 - R") }], "");
    let udp = [SlicePort { name: "".into(), protocol: Protocol::UDP, port: number(80) }];
    check("another protocol", vec![SliceFacts { ports: udp.into(), ..of("x", "2 - R") }], "");
    check("no ports", vec![SliceFacts { ports: [].into(), ..of("x", "2 - R") }], "");
}

#[test]
fn one_address_with_two_ports_is_two_backends() {
    let port = |port| SlicePort { name: "".into(), protocol: Protocol::TCP, port: number(port) };
    check(
        "in one slice",
        vec![SliceFacts { ports: [port(80), port(8080)].into(), ..of("x", "1 - R") }],
        "1 1",
    );
    let other = SliceFacts { ports: [port(8080)].into(), ..of("y", "1 - R") };
    check("in two slices", vec![of("x", "1 - R"), other], "1 1");
    check("the same twice", vec![SliceFacts { ports: [port(80), port(80)].into(), ..of("x", "1 - R") }], "1");
}

#[test]
fn a_named_target_port_may_differ_per_slice() {
    let port = |port| [SlicePort { name: "".into(), protocol: Protocol::TCP, port: number(port) }];
    let slices = vec![
        SliceFacts { ports: port(8080).into(), ..of("x", "1 - R") },
        SliceFacts { ports: port(9090).into(), ..of("y", "2 - R") },
    ];
    let desired = resolved(&service(""), slices, &node("none", "here"));
    let backends: Vec<_> = desired.ports[0].rows.iter().map(|row| (row.address, row.port.get())).collect();
    assert_eq!(backends, [("0.0.0.1".parse().unwrap(), 8080), ("0.0.0.2".parse().unwrap(), 9090)]);
}
