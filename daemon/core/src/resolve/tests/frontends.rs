//! The frontends of a service, their order, and the list of each.

use super::*;
use crate::facts::Ingress;

/// `type address port/protocol`, with `+local` if outside traffic gets the local list.
fn shown(facts: &ServiceFacts, settings: &Settings) -> Vec<String> {
    let desired = resolve(
        Some(facts),
        &[],
        (&NodeFacts::default(), settings, &Drains::default()),
        FrontendQuota::WHOLE,
    );
    let row = |it: &DesiredFrontend| {
        let local = if it.external_local { " +local" } else { "" };
        let name = if it.port_name.is_empty() { String::new() } else { std::format!("{} ", it.port_name) };
        std::format!("{name}{} {} {}/{}{local}", it.kind.as_str(), it.address, it.port, it.protocol)
    };
    desired.frontends.iter().map(row).collect()
}

#[track_caller]
fn check(name: &str, facts: &ServiceFacts, expected: &[&str]) {
    assert_eq!(shown(facts, &Settings::default()), expected, "{name}");
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn vip(text: &str) -> Ingress {
    Ingress { address: text.parse().unwrap(), proxied: false }
}

fn manifest(facts: ServiceFacts) -> ServiceFacts {
    ServiceFacts { key: ServiceKey { source: Source::Manifests, ..facts.key.clone() }, ..facts }
}

#[test]
fn families() {
    let with = |cluster_ips, families: &[Family]| ServiceFacts {
        cluster_ips: ips(cluster_ips),
        ip_families: families.to_vec(),
        external_ips: ips(&["10.9.0.1", "fd09::1"]),
        ..service("")
    };
    let (four, six) = (Family::V4, Family::V6);
    let four_rows = ["ClusterIP 10.0.0.1 80/TCP", "ExternalIP 10.9.0.1 80/TCP"];
    check("one family hides the other's external IP", &with(&["10.0.0.1"], &[four]), &four_rows);
    check("no ipFamilies: the first address", &with(&["10.0.0.1", "fd00::1"], &[]), &four_rows);
    let both = [
        "ClusterIP 10.0.0.1 80/TCP",
        "ClusterIP fd00::1 80/TCP",
        "ExternalIP 10.9.0.1 80/TCP",
        "ExternalIP fd09::1 80/TCP",
    ];
    check("dual stack", &with(&["10.0.0.1", "fd00::1"], &[four, six]), &both);
    check("the other way round", &with(&["fd00::1", "10.0.0.1"], &[six, four]), &both);
    check("the place of the family counts", &with(&["10.0.0.1"], &[six, four]), &[]);
    check("a manifest without defaults", &manifest(with(&["10.0.0.1", "fd00::1"], &[])), &both);
}

#[test]
fn no_cluster_ip() {
    let bare = ServiceFacts { cluster_ips: vec![], external_ips: ips(&["10.9.0.1"]), ..service("np") };
    check("from an apiserver it is skipped", &bare, &[]);
    let rows = ["NodePort 0.0.0.0 8080/TCP", "ExternalIP 10.9.0.1 80/TCP"];
    check("in a manifest the rest is served", &manifest(bare.clone()), &rows);
    let nothing = manifest(ServiceFacts { cluster_ips: vec![], ..service("") });
    check("with no address at all", &nothing, &[]);
    let desired = resolve(
        Some(&nothing),
        &[],
        (&NodeFacts::default(), &Settings::default(), &Drains::default()),
        FrontendQuota::WHOLE,
    );
    assert_eq!(desired.state, ServiceState::NoAddress);
    let six = ServiceFacts { ip_families: vec![Family::V6], ..manifest(bare) };
    check("families are obeyed", &six, &["NodePort :: 8080/TCP"]);
}

#[test]
fn services_that_are_not_ours() {
    let state = |facts: &ServiceFacts, settings: &Settings| {
        resolve(Some(facts), &[], (&NodeFacts::default(), settings, &Drains::default()), FrontendQuota::WHOLE)
            .state
    };
    let plain = Settings::default();
    let named = Settings { service_proxy_name: Some("x".into()), ..Settings::default() };
    let labelled = ServiceFacts { proxy_name: Some("x".into()), ..service("") };
    let other = ServiceFacts { proxy_name: Some("y".into()), ..service("") };
    assert_eq!(state(&labelled, &plain), ServiceState::OtherProxy);
    assert_eq!(state(&service(""), &named), ServiceState::OtherProxy, "only our own label is served");
    assert_eq!(state(&labelled, &named), ServiceState::Served);
    assert_eq!(state(&other, &named), ServiceState::OtherProxy);
    assert_eq!(state(&ServiceFacts { headless: true, ..service("") }, &plain), ServiceState::Headless);
    let alias = ServiceFacts { kind: ServiceType::ExternalName, ..service("") };
    assert_eq!(state(&alias, &plain), ServiceState::ExternalName, "even with a cluster IP");
    assert_eq!(
        resolve(None, &[], (&NodeFacts::default(), &plain, &Drains::default()), FrontendQuota::WHOLE).state,
        ServiceState::NoService
    );
    let block = ServiceFacts {
        key: ServiceKey { source: Source::Config, ..service("").key },
        kind: ServiceType::Static,
        ..service("")
    };
    assert_eq!(state(&block, &named), ServiceState::Served, "a block of our own needs no label");
}

#[test]
fn balancers() {
    let facts = ServiceFacts {
        kind: ServiceType::LoadBalancer,
        ingress: vec![vip("10.15.1.8"), Ingress { proxied: true, ..vip("10.15.1.9") }],
        ..service("")
    };
    check(
        "ipMode Proxy is no frontend",
        &facts,
        &["ClusterIP 10.0.0.1 80/TCP", "LoadBalancer 10.15.1.8 80/TCP"],
    );
    let cluster_ip = ServiceFacts { kind: ServiceType::ClusterIp, ..service("np") };
    let rows = ["ClusterIP 10.0.0.1 80/TCP", "NodePort 0.0.0.0 8080/TCP"];
    check("a nodePort counts whatever the type", &cluster_ip, &rows);
}

#[test]
fn the_external_policy_applies_only_to_services_reachable_from_outside() {
    check("no outside", &service("etp"), &["ClusterIP 10.0.0.1 80/TCP"]);
    let rows = ["ClusterIP 10.0.0.1 80/TCP", "NodePort 0.0.0.0 8080/TCP +local"];
    check("NodePort", &service("etp np"), &rows);
    let plain = ServiceFacts { kind: ServiceType::ClusterIp, ..service("etp np") };
    let rows = ["ClusterIP 10.0.0.1 80/TCP", "NodePort 0.0.0.0 8080/TCP"];
    check("type ClusterIP with a nodePort is not accessible", &plain, &rows);
    let other_family = ServiceFacts { external_ips: ips(&["fd09::1"]), ..plain };
    let rows = ["ClusterIP 10.0.0.1 80/TCP", "NodePort 0.0.0.0 8080/TCP +local"];
    check("an external IP of whatever family makes it so", &other_family, &rows);
}

#[test]
fn protocols() {
    let port = |name: &str, protocol, number_of| ServicePort {
        name: name.into(),
        protocol,
        port: number(number_of),
        node_port: None,
    };
    let ports = vec![
        port("d", Protocol::Other("DCCP".into()), 80),
        port("c", Protocol::SCTP, 80),
        port("b", Protocol::UDP, 80),
        port("a", Protocol::TCP, 80),
    ];
    let facts = ServiceFacts { ports, ..service("") };
    let rows = [
        "a ClusterIP 10.0.0.1 80/TCP",
        "b ClusterIP 10.0.0.1 80/UDP",
        "c ClusterIP 10.0.0.1 80/SCTP",
        "d ClusterIP 10.0.0.1 80/DCCP",
    ];
    check("the same number on all, in order of names", &facts, &rows);
    for (serves_sctp, positions) in
        [(false, [Some(0), Some(1), None, None]), (true, [Some(0), Some(1), Some(2), None])]
    {
        let settings = Settings { serves_sctp, ..Settings::default() };
        let desired = resolve(
            Some(&facts),
            &[],
            (&NodeFacts::default(), &settings, &Drains::default()),
            FrontendQuota::WHOLE,
        );
        assert_eq!(desired.frontends.iter().map(|it| it.position).collect::<Vec<_>>(), positions);
        let keys: Vec<_> = desired.frontends.iter().map(|it| it.key().is_some()).collect();
        assert_eq!(keys, positions.map(|it| it.is_some()), "a frontend without port has no key");
    }
}

#[test]
fn one_address_claimed_twice_by_one_service() {
    let facts = ServiceFacts {
        kind: ServiceType::LoadBalancer,
        external_ips: ips(&["10.0.0.1", "10.15.1.8"]),
        ingress: vec![vip("10.15.1.8"), vip("10.15.1.8")],
        ..service("")
    };
    check("the first type wins", &facts, &["ClusterIP 10.0.0.1 80/TCP", "LoadBalancer 10.15.1.8 80/TCP"]);
    let port = |name: &str| ServicePort { name: name.into(), ..service("").ports[0].clone() };
    let twice = ServiceFacts { ports: vec![port("b"), port("a")], ..service("") };
    check("the first port name wins", &twice, &["a ClusterIP 10.0.0.1 80/TCP"]);
}

#[test]
fn rows_are_in_the_order_of_the_table() {
    let facts = ServiceFacts {
        kind: ServiceType::LoadBalancer,
        cluster_ips: ips(&["fd00::1", "10.0.0.10"]),
        ip_families: vec![Family::V6, Family::V4],
        external_ips: ips(&["10.9.0.10", "10.9.0.9"]),
        ingress: vec![vip("10.15.1.8")],
        ..service("np")
    };
    let rows = [
        "ClusterIP 10.0.0.10 80/TCP",
        "ClusterIP fd00::1 80/TCP",
        "NodePort 0.0.0.0 8080/TCP",
        "NodePort :: 8080/TCP",
        "LoadBalancer 10.15.1.8 80/TCP",
        "ExternalIP 10.9.0.9 80/TCP",
        "ExternalIP 10.9.0.10 80/TCP",
    ];
    check("type, then address as a number, IPv4 first", &facts, &rows);
}

/// A service with few frontends may use its namespace's whole quota of external IPs.
#[test]
fn external_ips_beyond_their_quota_are_left_out_although_all_frontends_fit() {
    let facts = ServiceFacts { external_ips: ips(&["10.9.0.1", "10.9.0.2", "10.9.0.3"]), ..service("") };
    let has = |it: &DesiredFrontend| it.address == ips(&["10.9.0.3"])[0];
    let quota = |chosen, has| FrontendQuota { most: 100, external_ips: chosen, is_present: has };
    let shown = |quota| {
        let given = (&NodeFacts::default(), &Settings::default(), &Drains::default());
        let desired = resolve(Some(&facts), &[], given, quota);
        let shown: Vec<_> = desired.frontends.iter().map(|it| std::format!("{}", it.address)).collect();
        (shown.join(" "), desired.cut.frontends)
    };
    assert_eq!(shown(quota(3, &|_| false)), ("10.0.0.1 10.9.0.1 10.9.0.2 10.9.0.3".into(), 0));
    assert_eq!(shown(quota(2, &|_| false)), ("10.0.0.1 10.9.0.1 10.9.0.2".into(), 1));
    assert_eq!(shown(quota(0, &has)), ("10.0.0.1 10.9.0.3".into(), 2), "present frontends stay");
}
