//! Which health check ports are open, and what they count.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::limits;
use super::super::service_ports::{Plan, Planner};
use super::bed::{Rules, balanced, slice};
use crate::readings::CLOSED_NAMED_MAX;
use holdfast_config::{NodePortAddresses, OuterAddresses};

const PRIMARY: NodePortAddresses = NodePortAddresses::from_outer(OuterAddresses::Primary);
const RANGES: NodePortAddresses =
    NodePortAddresses::from_outer(OuterAddresses::Ranges { cidrs: Vec::new(), primary: false });

fn shown(plan: &Plan) -> Vec<String> {
    let open = plan.open.iter();
    open.map(|(at, check)| format!("{at} {} {}", check.service.name(), check.endpoints)).collect()
}

#[track_caller]
fn check(name: &str, objects: &[Value], expected: &[&str]) {
    let snapshot = Rules::new(&["10.9.0.5", "fd09::5"], objects).snapshot();
    let plan = Planner::default().plan(&snapshot, &PRIMARY);
    assert_eq!(shown(&plan), expected, "{name}: {:?}", plan.refused);
}

/// A Service with one change.
fn but(pointer: &str, value: Value) -> Value {
    let mut service = balanced("web", 30123, 1);
    *service.pointer_mut(pointer).unwrap() = value;
    service
}

#[test]
fn only_local_load_balancers_have_a_health_check_port() {
    let endpoints = slice("web", &["10.0.0.1@n1"]);
    let with = |service: Value| [service, endpoints.clone()];
    check("one", &with(balanced("web", 30123, 1)), &["10.9.0.5:30123 web 1"]);
    check("policy Cluster", &with(but("/spec/externalTrafficPolicy", json!("Cluster"))), &[]);
    check("a NodePort", &with(but("/spec/type", json!("NodePort"))), &[]);
    check("no port", &with(but("/spec/healthCheckNodePort", json!(0))), &[]);
    check("no address", &with(but("/spec/clusterIP", json!("None"))), &[]);
}

/// Unique addresses of this node that are ready, as the real kube-proxy counts them.
#[test]
fn ready_addresses_of_this_node_are_counted() {
    let counted = |endpoints: &[&str], count: &str| {
        let objects = [balanced("web", 30123, 1), slice("web", endpoints)];
        check(count, &objects, &[&format!("10.9.0.5:30123 web {count}")]);
    };
    counted(&["10.0.0.1@n1", "10.0.0.2@n1", "10.0.0.3@n2"], "2");
    counted(&["10.0.0.3@n2"], "0");
    counted(&["10.0.0.1@n1 S", "10.0.0.2@n1 "], "0");
    counted(&["10.0.0.1@n1 ST", "10.0.0.3@n2"], "0");
    counted(&["10.0.0.1@n1 RST"], "1");
    counted(&[], "0");
}

#[test]
fn each_served_family_has_its_own_port_and_count() {
    let mut service = balanced("web", 30123, 1);
    service["spec"]["clusterIPs"] = json!(["10.96.0.1", "fd96::1"]);
    service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    let slices = [slice("web", &["10.0.0.1@n1"]), slice("web", &["fd00::1@n1", "fd00::2@n1"])];
    let [v4, v6] = slices;
    check("both", &[service, v4, v6], &["10.9.0.5:30123 web 1", "[fd09::5]:30123 web 2"]);
}

#[test]
fn a_held_list_counts_as_before() {
    let mut rules = Rules::new(&["10.9.0.5"], &[balanced("web", 30123, 1), slice("web", &["10.0.0.1@n1"])]);
    let mut planner = Planner::default();
    assert_eq!(shown(&planner.plan(&rules.snapshot(), &PRIMARY)), ["10.9.0.5:30123 web 1"]);
    let snapshot = rules.apply(&slice("web", &[]));
    assert_eq!(snapshot.held.len(), 1, "the list is held");
    assert_eq!(shown(&planner.plan(&snapshot, &PRIMARY)), ["10.9.0.5:30123 web 1"]);
}

#[test]
fn a_change_of_endpoints_updates_the_count() {
    let mut rules = Rules::new(&["10.9.0.5"], &[balanced("web", 30123, 1), slice("web", &["10.0.0.1@n1"])]);
    let mut planner = Planner::default();
    planner.plan(&rules.snapshot(), &PRIMARY);
    let snapshot = rules.apply(&slice("web", &["10.0.0.1@n1", "10.0.0.2@n1"]));
    assert_eq!(shown(&planner.plan(&snapshot, &PRIMARY)), ["10.9.0.5:30123 web 2"]);
    let snapshot = rules.apply(&slice("web", &["10.0.0.2@n2"]));
    assert_eq!(shown(&planner.plan(&snapshot, &PRIMARY)), ["10.9.0.5:30123 web 0"]);
}

#[test]
fn the_older_of_two_services_gets_the_port() {
    let young_first = [balanced("a", 30123, 9), balanced("z", 30123, 1), slice("z", &["10.0.0.1@n1"])];
    let snapshot = Rules::new(&["10.9.0.5"], &young_first).snapshot();
    let plan = Planner::default().plan(&snapshot, &PRIMARY);
    assert_eq!(shown(&plan), ["10.9.0.5:30123 z 1"]);
    let refused: Vec<_> =
        plan.refused.iter().map(|it| (it.service.as_ref().unwrap().to_string(), &*it.reason)).collect();
    assert_eq!(refused, [("default/a".to_owned(), "the port belongs to default/z, which comes first")]);
}

#[test]
fn the_addresses_are_those_of_node_ports() {
    let objects = [balanced("web", 30123, 1), slice("web", &["10.0.0.1@n1"])];
    let plan = |addresses: &[&str], setting: &NodePortAddresses| {
        Planner::default().plan(&Rules::new(addresses, &objects).snapshot(), setting)
    };
    assert_eq!(
        shown(&plan(&["10.9.0.5", "127.0.0.1"], &NodePortAddresses::from_outer(OuterAddresses::All))),
        ["0.0.0.0:30123 web 1"]
    );
    let two = plan(&["10.9.0.5", "10.9.0.6", "fe80::1"], &RANGES);
    assert_eq!(shown(&two), ["10.9.0.5:30123 web 1", "10.9.0.6:30123 web 1"]);
    let none = plan(&["fd09::5"], &PRIMARY);
    assert_eq!(shown(&none), [] as [&str; 0]);
    assert_eq!(none.refused[0].reason, "this node answers NodePorts at no address of IPv4");
}

/// A tenant's Services get no more listeners than the limit, and no older Service loses one to a newer one.
#[test]
fn listeners_have_a_bound_and_go_by_age() {
    let services: Vec<_> = (1..=4).map(|n| balanced(&format!("s{n}"), 30_000 + u16::from(n), n)).collect();
    let addresses: Vec<String> =
        (0..400_u32).map(|n| IpAddr::from((0x0a09_0000 + n).to_be_bytes()).to_string()).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let snapshot = Rules::new(&addresses, &services).snapshot();
    let plan = Planner::default().plan(&snapshot, &RANGES);
    assert_eq!(plan.open.len(), limits::LISTENERS_MAX);
    let of = |name: &str| plan.open.values().filter(|check| check.service.name() == name).count();
    assert_eq!((of("s1"), of("s2"), of("s3"), of("s4")), (400, 400, 224, 0));
    assert_eq!((plan.refused.len(), plan.more), (CLOSED_NAMED_MAX, 1_600 - 1_024 - 100));
}

/// Two Services of a tenant at 400 addresses each would leave 224 listeners to another tenant that came later.
#[test]
fn scarce_listeners_are_shared_between_namespaces() {
    let tenants = |name: &str, port, created| {
        let mut service = balanced(name, port, created);
        service["metadata"]["namespace"] = json!("tenant");
        service
    };
    let services = [
        tenants("a", 30_001, 1),
        tenants("b", 30_002, 2),
        tenants("c", 30_003, 3),
        balanced("bystander", 30_004, 4),
    ];
    let addresses: Vec<String> =
        (0..400_u32).map(|n| IpAddr::from((0x0a09_0000 + n).to_be_bytes()).to_string()).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let plan = Planner::default().plan(&Rules::new(&addresses, &services).snapshot(), &RANGES);
    let of = |name: &str| plan.open.values().filter(|check| check.service.name() == name).count();
    assert_eq!((of("a"), of("b"), of("c"), of("bystander")), (400, 224, 0, 400));
    let whys: BTreeSet<&str> = plan.refused.iter().map(|it| &*it.reason).collect();
    assert!(whys.iter().all(|why| why.contains("624 ports of Services of this namespace")), "{whys:?}");
}
