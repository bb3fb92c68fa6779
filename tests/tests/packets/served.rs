//! The results of clients on a node with holdfast: the table, and the traffic that other proxies got wrong.

use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::packets::{CASES, Proxy, rows};

use crate::node::on_a_node;

#[track_caller]
fn check_table(switches: Switches) {
    let lines = on_a_node(switches, "", |bed, _, clients| {
        let lines = clients.differences(&rows(), Proxy::Holdfast).unwrap();
        let invalid = if switches.guarded { fabric::invalid(bed).unwrap() } else { 0 };
        assert_eq!(invalid, 0, "conntrack cannot place what holdfast sends on");
        lines
    });
    assert!(lines.is_empty(), "{} answers are not as expected:\n{}", lines.len(), lines.join("\n"));
}

#[test]
fn the_table_holds() {
    check_table(Switches::default());
}

#[test]
fn the_table_holds_behind_a_firewall_and_with_checksums_computed() {
    check_table(Switches { strict_rp_filter: true, guarded: true, no_offload: true, ..Switches::default() });
}

#[test]
fn the_table_holds_where_connections_are_tracked() {
    check_table(Switches { tracked: true, ..Switches::default() });
}

#[track_caller]
fn check_case(name: &str) {
    let case = CASES.iter().find(|case| case.name == name).unwrap();
    let lines = on_a_node(case.switches, "", |bed, _, clients| (case.run)(bed, clients).unwrap());
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn one_source_port_two_frontends_one_backend() {
    check_case("one_source_port_two_frontends_one_backend");
}

#[test]
fn a_source_port_is_used_again_at_once() {
    check_case("a_source_port_is_used_again_at_once");
}

#[test]
fn datagrams_in_fragments() {
    check_case("datagrams_in_fragments");
}

/// A difference by decision: kube-proxy's conntrack reassembles datagrams. holdfast leaves fragments before the first
/// one to the stack, so no server gets a part of another's datagram.
#[test]
fn datagrams_whose_last_fragment_comes_first() {
    let case = CASES.iter().find(|case| case.name == "datagrams_whose_last_fragment_comes_first").unwrap();
    on_a_node(case.switches, "", |bed, _, clients| {
        let lines = (case.run)(bed, clients).unwrap();
        assert!(lines.len() == 3 && lines.iter().all(|line| line.ends_with("Silent")), "{lines:?}");
    });
}

#[test]
fn errors_of_routers_on_the_way_reach_the_client() {
    check_case("errors_of_routers_on_the_way_reach_the_client");
}

#[test]
fn a_process_of_the_node_has_a_node_ports_number() {
    check_case("a_process_of_the_node_has_a_node_ports_number");
}

#[test]
fn clients_stick_to_their_backend_at_each_address() {
    check_case("clients_stick_to_their_backend_at_each_address");
}

#[test]
fn large_transfers_over_a_narrow_path() {
    check_case("large_transfers_over_a_narrow_path");
}

/// Every case of the library has a test here.
#[test]
fn every_case_has_a_test_of_its_name() {
    let own = include_str!("served.rs");
    let missing: Vec<_> = CASES.iter().filter(|case| !own.contains(&format!("fn {}()", case.name))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
