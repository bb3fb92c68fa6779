//! Known faults of other proxies with packets of services, and the test that shows each does not happen here.
//!
//! Invariant: each named test exists. A fault that cannot happen here has a reason instead.

use std::collections::BTreeSet;
use std::path::Path;

/// Where it went wrong, the number, and the fault; then a line for each test: file and name.
const KNOWN: &str = "
cilium 11914: conntrack cannot place the answers, and a firewall drops them
  tests/tests/packets/served.rs the_table_holds_behind_a_firewall_and_with_checksums_computed
  tests/tests/packets/pods.rs pods_reach_all_backends_behind_a_firewall_with_checksums
cilium 8639 14859 16136: one direction takes a way past the stack, the other one does not
  cannot: no packet is taken past the stack
cilium 30858 23604 33723 16826: the port that a client is given is a node port, or a socket's of the node
  tests/tests/packets/served.rs a_process_of_the_node_has_a_node_ports_number
  tests/tests/packets/regressions.rs replies_to_kernel_masqueraded_packets_are_left_to_the_kernel
cilium 44348: an answer to a UDP socket of the node is taken for a client of a service
  tests/tests/packets/regressions.rs replies_reach_an_unconnected_socket
  tests/tests/packets/served.rs a_process_of_the_node_has_a_node_ports_number
cilium 45492: the kernel masquerades with any port
  tests/tests/packets/regressions.rs replies_to_kernel_masqueraded_packets_are_left_to_the_kernel
cilium 29305 34833 36572 31643: half of what is known of a flow is pushed out
  daemon/datapath/src/packets/tests/flows.rs kernel_a_full_table_keeps_live_flows_and_counts_drops
  tests/tests/packets/survival.rs a_full_table_keeps_live_flows
  daemon/datapath/src/kernel/packets/tests.rs kernel_an_incomplete_set_of_flow_maps_is_recreated
cilium 8740 33074: ports run out, and are not given back before the next sweep
  daemon/datapath/src/packets/tests/flows.rs kernel_exhausted_snat_ports_are_reported_by_reason
  daemon/datapath/src/flows/tests/swept.rs kernel_the_thread_sweeps_and_ends_with_its_owner
cilium 27405 28455: sweeps become ever more seldom
  daemon/datapath/src/flows/tests/swept.rs kernel_the_thread_sweeps_and_ends_with_its_owner
  daemon/datapath/src/flows/tests/swept.rs kernel_an_empty_table_is_swept_once_until_a_flow_begins
cilium 10984 32472 23894 47641: what is left of another service's flow leads a new client astray
  daemon/datapath/src/packets/tests/flows.rs kernel_a_syn_reopens_a_closed_connection
  daemon/datapath/src/flows/tests/swept.rs kernel_a_new_flow_in_an_orphans_record_is_not_an_orphan
  tests/tests/packets/served.rs a_source_port_is_used_again_at_once
cilium 9687: a sweep takes away a flow whose SYN-ACK is on its way
  daemon/datapath/src/flows/tests/swept.rs kernel_sweeping_alongside_programs_loses_no_flow
  daemon/datapath/src/flows/tests/swept.rs kernel_no_live_flow_is_ever_removed
cilium 12968 21262 26193: errors of ICMP are not translated, so the path's MTU is not found
  daemon/datapath/src/packets/tests/errors.rs kernel_icmp_errors_reach_the_sender_and_quote_its_packet
  tests/tests/packets/served.rs errors_of_routers_on_the_way_reach_the_client
  tests/tests/packets/served.rs large_transfers_over_a_narrow_path
cilium 25709 16036 22624: fragments are lost
  tests/tests/packets/served.rs datagrams_in_fragments
  tests/tests/packets/pods.rs pods_transfer_large_streams_and_fragments
  daemon/datapath/src/packets/tests/hard.rs kernel_fragments_follow_their_first_one_both_ways
cilium 32601 39690: what is put around a packet makes it too large
  cannot: nothing is put around packets
cilium 14579 26882 46260: a VLAN is served twice, or not
  tests/tests/packets/uplinks.rs a_vlan_serves_and_the_device_below_it_is_left_alone
  tests/tests/packets/uplinks.rs a_macvlan_serves_and_the_device_below_it_is_left_alone
cilium 12304 12317: devices without a hardware address are passed over
  tests/tests/packets/uplinks.rs a_tun_serves_though_it_has_no_hardware_address
  daemon/datapath/src/kernel/packets/tests.rs kernel_a_device_without_a_link_layer_has_programs_too
cilium 41393: filters of others are not run any more
  daemon/datapath/src/kernel/packets/tests.rs kernel_foreign_programs_stay_and_run_before_and_after_ours
cilium 39806: rules of routing are ignored
  tests/tests/packets/regressions.rs replies_follow_routing_rules
cilium 42632 11810 18632: one port of a client, two frontends, one backend
  tests/tests/packets/served.rs one_source_port_two_frontends_one_backend
  daemon/datapath/src/packets/tests/flows.rs kernel_one_client_port_reaches_two_frontends_with_one_backend
cilium 21541: a client that comes again from the same port at once is refused
  tests/tests/packets/served.rs a_source_port_is_used_again_at_once
cilium 12859 27300 48244: connected UDP clings to a backend that is gone
  tests/tests/packets/changes.rs udp_leaves_a_removed_endpoint_and_stays_with_a_terminating_one
  tests/tests/programs/served.rs kernel_a_long_lived_udp_client_moves_when_its_backend_leaves
calico 4661 felix-2983: one port of a client, at once or again
  tests/tests/packets/served.rs one_source_port_two_frontends_one_backend
  tests/tests/packets/served.rs a_source_port_is_used_again_at_once
calico 5606 5358: errors show ports that nobody sent
  daemon/datapath/src/packets/tests/errors.rs kernel_icmp_errors_reach_the_sender_and_quote_its_packet
calico 8821 10737: fragments are lost, or delivered to somebody else
  tests/tests/packets/served.rs datagrams_in_fragments
  tests/tests/packets/served.rs datagrams_whose_last_fragment_comes_first
calico 11367: packets that stand for many are taken for too large
  tests/tests/packets/regressions.rs gso_packets_pass_in_both_directions
calico 10058 13334: virtual machines behind a bridge drop what was handed over without their hardware address
  cannot: no packet is taken past the stack, which writes the address
calico 4942 9675 10511 10469: a node with two uplinks answers by the other one
  tests/tests/packets/uplinks.rs replies_may_leave_on_another_uplink
calico 10640: an error comes from another address than the one that was dialled
  daemon/datapath/src/packets/tests/answers.rs kernel_a_client_without_backend_is_rejected_from_the_dialled_address
  daemon/datapath/src/packets/tests/errors.rs kernel_icmp_errors_reach_the_sender_and_quote_its_packet
calico 4310: sweeps cut flows under policy Local
  tests/tests/packets/changes.rs flows_under_policy_local_survive_list_changes
kubernetes 139276: masquerading picks a node port, and its answers go to the service
  tests/tests/packets/served.rs a_process_of_the_node_has_a_node_ports_number
  tests/tests/packets/regressions.rs replies_to_kernel_masqueraded_packets_are_left_to_the_kernel
kubernetes 94861 117924: a rule that drops what conntrack calls invalid hits nodes with several uplinks
  tests/tests/packets/uplinks.rs replies_may_leave_on_another_uplink
kubernetes 104098: connections of TCP are not ended when their backend goes
  tests/tests/packets/changes.rs tcp_survives_the_end_of_its_endpoint_and_of_its_service
kubernetes 98305: what a client of UDP sent before anybody was there stands in its way afterwards
  tests/tests/packets/changes.rs a_refused_udp_client_is_served_once_a_backend_exists
";

/// What must hold on a small cluster's network, in the same form.
const PLAN: &str = "
reach: who gets whom, as whom, from which address, much both ways, one port of a client at each address
  tests/tests/packets/served.rs the_table_holds
  tests/tests/packets/served.rs the_table_holds_where_connections_are_tracked
  tests/tests/packets/regressions.rs gso_packets_pass_in_both_directions
  tests/tests/packets/served.rs one_source_port_two_frontends_one_backend
ports again: after a reset, after both have closed, and a flood beside live flows
  tests/tests/packets/served.rs a_source_port_is_used_again_at_once
  daemon/datapath/src/packets/tests/flows.rs kernel_a_syn_reopens_a_closed_connection
  tests/tests/packets/survival.rs a_flood_of_syns_leaves_live_flows_alone
full: live flows stay and new ones are counted
  tests/tests/packets/survival.rs a_full_table_keeps_live_flows
path: its MTU, fragments, extension headers, hops
  tests/tests/packets/served.rs large_transfers_over_a_narrow_path
  tests/tests/packets/served.rs datagrams_in_fragments
  tests/tests/packets/served.rs errors_of_routers_on_the_way_reach_the_client
  daemon/datapath/src/packets/tests/hard.rs kernel_options_and_extension_headers_are_skipped
closed: a client of UDP hears that nobody listens
  tests/tests/packets/served.rs the_table_holds
policy: Local, those that end, ranges of sources, health checks, affinity
  tests/tests/packets/served.rs the_table_holds
  tests/tests/packets/served.rs clients_stick_to_their_backend_at_each_address
  daemon/agent/src/kube_proxy/tests/doors.rs a_health_check_port_follows_its_service
own: what the node sends itself from a node port's number
  tests/tests/packets/served.rs a_process_of_the_node_has_a_node_ports_number
  tests/tests/packets/regressions.rs replies_to_kernel_masqueraded_packets_are_left_to_the_kernel
changes: TCP is never cut, UDP leaves who serves no more
  tests/tests/packets/changes.rs tcp_survives_the_end_of_its_endpoint_and_of_its_service
  tests/tests/packets/changes.rs udp_leaves_a_removed_endpoint_and_stays_with_a_terminating_one
life: restart, kill, growth, a device made anew, another address, programs taken away
  tests/tests/packets/survival.rs invariant_14_a_restart_breaks_no_flow
  tests/tests/packets/survival.rs invariant_14_a_killed_daemon_breaks_no_old_or_new_flow
  daemon/datapath/src/kernel/packets/tests.rs kernel_growth_moves_the_programs_of_devices_too
  tests/tests/packets/survival.rs a_recreated_device_is_served
  tests/tests/packets/devices.rs new_connections_to_other_nodes_use_the_changed_address
  tests/tests/packets/devices.rs removed_programs_are_reattached_and_no_connection_breaks
the real one: kube-proxy on the same network, by the same table
  tests/systems/cluster/packets.rs packets_kube_proxy_matches_the_table
parser: crafted packets, judged by somebody else; nonsense; sums
  daemon/datapath/src/packets/tests/flows.rs kernel_invariant_14_translation_is_reversed_for_replies
  daemon/datapath/src/packets/tests/hard.rs kernel_corrupted_packets_cause_no_failure
  daemon/datapath/src/packets/tests/hard.rs kernel_invariant_13_a_wrong_checksum_stays_wrong
";

/// The entries, each with the lines below it.
fn entries(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut entries: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix("  "), entries.last_mut()) {
            (Some(below), Some((_, lines))) => lines.push(below),
            _ => entries.push((line, Vec::new())),
        }
    }
    entries
}

/// The error in a line that names a test.
fn mistake(line: &str) -> Option<String> {
    if line.starts_with("cannot: ") {
        return None;
    }
    let Some((file, name)) = line.split_once(' ') else { return Some(format!("no test is named: {line}")) };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let Ok(text) = std::fs::read_to_string(root.join(file)) else {
        return Some(format!("{file} is not there"));
    };
    (!text.contains(&format!("#[test]\nfn {name}()"))).then(|| format!("{file} has no test {name}"))
}

#[track_caller]
fn check(text: &str) {
    let entries = entries(text);
    let bare =
        entries.iter().filter(|(_, lines)| lines.is_empty()).map(|(what, _)| format!("no test: {what}"));
    let wrong = entries.iter().flat_map(|(_, lines)| lines.iter().filter_map(|line| mistake(line)));
    let found: Vec<String> = bare.chain(wrong).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn each_known_fault_of_others_has_a_test() {
    check(KNOWN);
    let numbers = entries(KNOWN).into_iter().filter_map(|(what, _)| Some(what.split_once(':')?.0));
    let all: Vec<String> = numbers
        .flat_map(|it| {
            let (project, numbers) = it.split_once(' ').unwrap();
            numbers.split(' ').map(move |number| format!("{project} {number}"))
        })
        .collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "a number stands there twice");
    assert!(all.len() >= 60, "{}", all.len());
}

#[test]
fn each_planned_property_has_a_test() {
    check(PLAN);
}

#[test]
fn a_missing_test_is_found() {
    assert!(mistake("tests/tests/packets/known.rs a_missing_test_is_found").is_none());
    assert!(mistake("tests/tests/packets/known.rs nobody").is_some());
    assert!(mistake("tests/nowhere.rs nobody").is_some() && mistake("nothing").is_some());
}
