//! Ports that get another name and keep number and protocol.

use super::*;
use crate::keys::Transport;
use crate::snapshot::{Reason, Verdict};

const TCP: Protocol = Protocol::TCP;

/// The service `a` at 10.0.0.1 with these ports.
fn ports(named: &[(&str, u16, Protocol)]) -> Event {
    let port = |(name, number, protocol): &(&str, u16, Protocol)| ServicePort {
        name: (*name).into(),
        protocol: protocol.clone(),
        port: NonZeroU16::new(*number).unwrap(),
        node_port: None,
    };
    applied(ServiceFacts { ports: named.iter().map(port).collect(), ..service("a", "10.0.0.1", &[]) })
}

/// The slice of `a`, with these ports of one pod.
fn listed(named: &[(&str, u16)]) -> Event {
    let port = |(name, number): &(&str, u16)| SlicePort {
        name: (*name).into(),
        protocol: TCP,
        port: NonZeroU16::new(*number).unwrap(),
    };
    let ports = named.iter().map(port).collect();
    Event::SliceApplied(Arc::new(SliceFacts { ports, ..slice_facts("a", "a", &["1.1.1.1"]) }))
}

/// The same slice, of a pod that is terminating.
fn terminating(named: &[(&str, u16)]) -> Event {
    let Event::SliceApplied(listed) = listed(named) else { unreachable!() };
    let conditions = Conditions { ready: false, serving: false, terminating: true };
    let mut endpoints = EndpointsBuilder::new(Family::V4);
    for endpoint in listed.endpoints.iter() {
        endpoints.push(Endpoint { conditions, ..endpoint }).unwrap();
    }
    Event::SliceApplied(Arc::new(SliceFacts { endpoints: endpoints.finish(), ..(*listed).clone() }))
}

fn rig(begin: Vec<Event>) -> Rig {
    let mut rig = Rig::new();
    rig.turn(vec![super::settings(OnEmpty::Auto)]);
    rig.turn(begin);
    rig.now += 1_000;
    rig
}

/// Checks the verdict, reason and backends of a port of 10.0.0.1.
#[track_caller]
fn check(snapshot: &Snapshot, number: u16, verdict: Verdict, reason: Option<Reason>, backends: &[u16]) {
    let view = view(snapshot, "a");
    let row = view.frontends.iter().find(|row| row.port.get() == number).unwrap();
    let found: Vec<_> = view.backends(row).map(|row| row.port.get()).collect();
    assert_eq!((row.verdict, row.reason, &*found), (verdict, reason, backends), "port {number}");
}

fn held(snapshot: &Snapshot, number: u16, backend: u16) {
    check(snapshot, number, Verdict::Held, Some(Reason::Vanished), &[backend]);
}

fn serving(snapshot: &Snapshot, number: u16, backend: u16) {
    check(snapshot, number, Verdict::Serving, None, &[backend]);
}

#[test]
fn a_renamed_port_keeps_its_list_until_the_slices_follow() {
    let mut rig = rig(vec![ports(&[("http", 80, TCP)]), listed(&[("http", 8080)])]);
    held(&rig.turn(vec![ports(&[("web", 80, TCP)])]), 80, 8080);
    serving(&rig.turn(vec![listed(&[("web", 8080)])]), 80, 8080);
}

/// A redelivered slice is no new evidence: the slice has a name that the service's port lost.
#[test]
fn a_slice_delivered_twice_counts_once() {
    for times in 1..=3 {
        let mut rig = rig(vec![ports(&[("http", 80, TCP)]), listed(&[("http", 8080)])]);
        let going = terminating(&[("http", 8080)]);
        let deliveries = std::iter::repeat_n(going, times);
        held(&rig.turn(deliveries.chain([ports(&[("web", 80, TCP)])]).collect()), 80, 8080);
    }
}

#[test]
fn a_port_whose_slices_are_renamed_first_keeps_its_list_too() {
    let mut rig = rig(vec![ports(&[("http", 80, TCP)]), listed(&[("http", 8080)])]);
    held(&rig.turn(vec![listed(&[("web", 8080)])]), 80, 8080);
    serving(&rig.turn(vec![ports(&[("web", 80, TCP)])]), 80, 8080);
}

#[test]
fn a_second_rename_does_not_prolong_a_hold() {
    let mut rig = rig(vec![ports(&[("http", 80, TCP)]), listed(&[("http", 8080)])]);
    let begun = rig.now;
    for position in 0..100 {
        let name = if position % 2 == 0 { "web" } else { "www" };
        rig.now = rig.now.max(begun + position);
        rig.turn(vec![ports(&[(name, 80, TCP)])]);
    }
    rig.now = begun + 121;
    let snapshot = rig.turn(vec![]);
    check(&snapshot, 80, Verdict::Refusing, Some(Reason::HoldExpired), &[]);
    let snapshot = rig.turn(vec![ports(&[("last", 80, TCP)])]);
    check(&snapshot, 80, Verdict::Refusing, Some(Reason::HoldExpired), &[]);
}

#[test]
fn held_lists_of_ports_that_swap_their_names_stay_with_their_numbers() {
    let mut rig = rig(vec![ports(&[("a", 80, TCP), ("b", 443, TCP)]), listed(&[("a", 8080), ("b", 8443)])]);
    rig.turn(vec![listed(&[])]);
    let snapshot = rig.turn(vec![ports(&[("b", 80, TCP), ("a", 443, TCP)])]);
    held(&snapshot, 80, 8080);
    held(&snapshot, 443, 8443);
    let snapshot = rig.turn(vec![listed(&[("b", 8080), ("a", 8443)])]);
    serving(&snapshot, 80, 8080);
    serving(&snapshot, 443, 8443);
}

#[test]
fn a_name_moved_to_another_number_keeps_that_numbers_list() {
    let mut rig = rig(vec![ports(&[("a", 80, TCP), ("b", 443, TCP)]), listed(&[("a", 8080)])]);
    let snapshot = rig.turn(vec![ports(&[("c", 80, TCP), ("a", 443, TCP)]), listed(&[])]);
    held(&snapshot, 80, 8080);
    check(&snapshot, 443, Verdict::Refusing, Some(Reason::NoEndpoints), &[]);
}

#[test]
fn a_port_that_changes_its_number_keeps_its_list_by_name() {
    let mut rig = rig(vec![ports(&[("a", 80, TCP)]), listed(&[("a", 8080)])]);
    held(&rig.turn(vec![ports(&[("a", 81, TCP)]), listed(&[])]), 81, 8080);
}

#[test]
fn a_port_that_stays_or_changes_protocol_is_not_renamed() {
    let begin = || vec![ports(&[("a", 80, TCP)]), listed(&[("a", 8080)])];
    let snapshot = rig(begin()).turn(vec![ports(&[("b", 80, Protocol::UDP)])]);
    check(&snapshot, 80, Verdict::Refusing, Some(Reason::NoEndpoints), &[]);
    let snapshot = rig(begin()).turn(vec![ports(&[("a", 80, TCP), ("b", 81, TCP)])]);
    check(&snapshot, 81, Verdict::Refusing, Some(Reason::NoEndpoints), &[]);
    serving(&snapshot, 80, 8080);
}

#[test]
fn a_renamed_port_without_backends_has_none_to_hold() {
    let mut rig = rig(vec![ports(&[("a", 80, TCP)]), listed(&[])]);
    let snapshot = rig.turn(vec![ports(&[("b", 80, TCP)])]);
    check(&snapshot, 80, Verdict::Refusing, Some(Reason::NoEndpoints), &[]);
}

#[test]
fn a_hold_follows_a_number_only_within_its_protocol() {
    let both = |tcp, udp| ports(&[(tcp, 53, TCP), (udp, 53, Protocol::UDP)]);
    let mut rig = rig(vec![both("t", "u"), listed(&[("t", 5353)])]);
    let view = view(&rig.turn(vec![both("u", "t")]), "a");
    let held = |transport| view.ports.iter().find(|it| it.key.transport == transport).unwrap().hold.is_some();
    assert_eq!((held(Transport::Tcp), held(Transport::Udp)), (true, false));
}

#[test]
fn invariant_08_a_port_renamed_while_no_process_ran_keeps_its_list() {
    let mut former = rig(vec![ports(&[("http", 80, TCP)]), listed(&[("http", 8080)])]);
    let snapshot = former.turn(vec![]);
    let mut next = super::holds::restarted(&former, &snapshot);
    let events = vec![ports(&[("web", 80, TCP)]), listed(&[("http", 8080)]), Event::Synced(SOURCE)];
    check(&next.turn(events), 80, Verdict::Held, Some(Reason::Resync), &[8080]);
}

#[test]
fn each_of_many_ports_renamed_at_once_keeps_its_own_list() {
    let names: Vec<_> = (0..2 * 30).map(|position| std::format!("p{position:03}")).collect();
    let all = |names: &[std::string::String]| {
        ports(&names.iter().zip(1..).map(|(name, number)| (name.as_str(), number, TCP)).collect::<Vec<_>>())
    };
    let (former, latter) = names.split_at(30);
    let listing: Vec<_> = former.iter().zip(8_001..).map(|(name, number)| (name.as_str(), number)).collect();
    let snapshot = rig(vec![all(former), listed(&listing)]).turn(vec![all(latter)]);
    (1..=30).for_each(|number| held(&snapshot, number, 8_000 + number));
}
