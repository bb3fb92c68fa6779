//! Which addresses are denied as frontends, as a table.

use alloc::vec;
use core::net::IpAddr;

use super::*;
use crate::address_policy::{AddressRange, ExternalIps};
use crate::keys::{ObjectName, ServiceKey, Source};

const NOBODYS: [&str; 7] =
    ["0.0.0.0", "0.0.0.5", "255.255.255.255", "224.0.0.1", "239.255.255.255", "::", "ff02::1"];

const OF_THIS_HOST_OR_LINK: [&str; 9] = [
    "127.0.0.1",
    "127.0.0.53",
    "127.255.255.255",
    "169.254.169.254",
    "169.254.0.1",
    "::1",
    "fe80::1",
    "febf::1",
    "::ffff:127.0.0.1",
];

const ANYBODYS: [&str; 9] = [
    "10.96.0.1",
    "1.0.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "169.253.255.255",
    "192.168.1.255",
    "255.255.255.254",
    "fd00::1",
    "fec0::1",
];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn service(source: Source, kind: ServiceType) -> ServiceFacts {
    ServiceFacts::new(ServiceKey { name: ObjectName::new("default", "a").unwrap(), source }, kind)
}

#[test]
fn host_link_local_and_multicast_addresses_are_denied() {
    use FrontendType::{ClusterIp, ClusterSetIp, ExternalIp, LoadBalancer};
    let barred = |source, kind, text| {
        let service = service(source, ServiceType::LoadBalancer);
        is_denied(&service, kind, ip(text), &Settings::default())
    };
    for source in [Source::Kubernetes, Source::Manifests, Source::ClusterSet] {
        for kind in [ClusterIp, LoadBalancer, ExternalIp, ClusterSetIp] {
            let all = NOBODYS.iter().chain(&OF_THIS_HOST_OR_LINK);
            all.for_each(|text| assert!(barred(source, kind, text), "{source} {kind:?} {text}"));
            ANYBODYS.iter().for_each(|text| assert!(!barred(source, kind, text), "{source} {kind:?} {text}"));
        }
        assert!(!barred(source, FrontendType::NodePort, "0.0.0.0"), "it means every address of the node");
    }
}

#[test]
fn the_administrators_own_service_may_have_loopback_and_link_local_addresses() {
    let service = service(Source::Config, ServiceType::Static);
    let barred = |text| is_denied(&service, FrontendType::Static, ip(text), &Settings::default());
    OF_THIS_HOST_OR_LINK.iter().chain(&ANYBODYS).for_each(|text| assert!(!barred(text), "{text}"));
    NOBODYS.iter().for_each(|text| assert!(barred(text), "{text}"));
}

#[test]
fn the_external_ips_setting_limits_only_external_ips_of_cluster_services() {
    let within = |first, last| AddressRange { first: ip(first), last: ip(last) };
    let ranges = vec![within("198.51.100.0", "198.51.100.255"), within("2001:db8::", "2001:db8::ffff")];
    let check = |external_ips: ExternalIps, source, kind, text, expected| {
        let settings = Settings { external_ips, ..Settings::default() };
        let service = service(source, ServiceType::LoadBalancer);
        assert_eq!(is_denied(&service, kind, ip(text), &settings), expected, "{source} {kind:?} {text}");
    };
    use FrontendType::{ClusterIp, ClusterSetIp, ExternalIp, LoadBalancer};
    use Source::{ClusterSet, Kubernetes, Manifests};
    check(ExternalIps::All, Kubernetes, ExternalIp, "203.0.113.1", false);
    check(ExternalIps::None, Kubernetes, ExternalIp, "203.0.113.1", true);
    check(ExternalIps::None, Kubernetes, ClusterIp, "203.0.113.1", false);
    check(ExternalIps::None, Kubernetes, LoadBalancer, "203.0.113.1", false);
    check(ExternalIps::None, Manifests, ExternalIp, "203.0.113.1", false);
    check(ExternalIps::All, ClusterSet, ClusterSetIp, "203.0.113.1", false);
    check(ExternalIps::None, ClusterSet, ClusterSetIp, "203.0.113.1", true);
    let some = || ExternalIps::Within(ranges.clone());
    check(some(), Kubernetes, ExternalIp, "198.51.100.255", false);
    check(some(), Kubernetes, ExternalIp, "198.51.101.0", true);
    check(some(), ClusterSet, ClusterSetIp, "198.51.100.255", false);
    check(some(), ClusterSet, ClusterSetIp, "198.51.101.0", true);
    check(some(), Kubernetes, ExternalIp, "2001:db8::1", false);
    check(some(), Kubernetes, ExternalIp, "2001:db9::1", true);
    let loopback = ExternalIps::Within(vec![within("127.0.0.0", "127.255.255.255")]);
    check(loopback, Kubernetes, ExternalIp, "127.0.0.1", true);
}
