//! The maps in memory keep the promises of the kernel's maps.

use core::num::NonZeroU16;

use super::*;
use crate::op::QuotaId;

const VIP: FrontendKey = FrontendKey {
    address: IpAddr::V4(core::net::Ipv4Addr::new(10, 96, 0, 1)),
    port: NonZeroU16::new(80).unwrap(),
    transport: Transport::Tcp,
};
const INDEX: PortIndex = PortIndex(3);

fn maps(kind: FrontendType, flags: WordFlags) -> MemoryMaps {
    let mut maps = MemoryMaps::default();
    maps.execute(&Action::PublishWord(INDEX, Scope::Cluster, Word { base: 0, count: 0, flags })).unwrap();
    maps.execute(&Action::PublishWord(INDEX, Scope::Local, Word { flags: WordFlags::DROP, ..Word::EMPTY }))
        .unwrap();
    maps.execute(&Action::InsertFrontend(
        VIP,
        FrontendValue { port: INDEX, kind, quota: QuotaId::default() },
    ))
    .unwrap();
    maps
}

#[track_caller]
fn check_answer(name: &str, maps: &MemoryMaps, client: Client, expected: &DialOutcome) {
    assert_eq!(maps.lookup(VIP.address, 80, Transport::Tcp, client), *expected, "{name}");
}

#[test]
fn an_empty_list_refuses_or_drops_by_its_flags() {
    let none = WordFlags::default();
    let (refused, dropped) = (DialOutcome::Refused, DialOutcome::Dropped);
    let cluster_ip = maps(FrontendType::ClusterIp, none);
    check_answer("cluster IP, cluster list", &cluster_ip, Client::Local, &refused);
    let internal = maps(FrontendType::ClusterIp, WordFlags::INTERNAL_LOCAL);
    check_answer("cluster IP, local list", &internal, Client::Local, &dropped);
    let external = maps(FrontendType::LoadBalancer, WordFlags::EXTERNAL_LOCAL);
    check_answer("a VIP from this node gets the cluster list", &external, Client::Local, &refused);
    check_answer("a VIP from outside gets the local list", &external, Client::Outside, &dropped);
    let not_for_vips = maps(FrontendType::LoadBalancer, WordFlags::INTERNAL_LOCAL);
    check_answer("the internal policy is not for VIPs", &not_for_vips, Client::Local, &refused);
}

#[test]
fn a_node_port_is_served_at_node_addresses_only() {
    let mut maps = MemoryMaps::default();
    let any = FrontendKey { address: Family::V4.unspecified_address(), ..VIP };
    maps.execute(&Action::InsertFrontend(
        any,
        FrontendValue { port: INDEX, kind: FrontendType::NodePort, quota: QuotaId::default() },
    ))
    .unwrap();
    check_answer("not yet a node address", &maps, Client::Local, &DialOutcome::Passed);
    maps.execute(&Action::InsertNodeAddress(VIP.address)).unwrap();
    check_answer("a node address", &maps, Client::Local, &DialOutcome::Refused);
    maps.execute(&Action::RemoveNodeAddress(VIP.address)).unwrap();
    check_answer("no longer a node address", &maps, Client::Local, &DialOutcome::Passed);
}

#[test]
fn a_grace_period_waits_for_current_readers_only() {
    let mut maps = maps(FrontendType::ClusterIp, WordFlags::default());
    let reading = maps.begin_read(VIP.address, 80, Transport::Tcp, Client::Local).unwrap();
    let grace = maps.begin_grace();
    let later = maps.begin_read(VIP.address, 80, Transport::Tcp, Client::Local).unwrap();
    assert!(!maps.is_grace_over(grace));
    maps.end_read(&reading);
    assert!(maps.is_grace_over(grace), "a later reader sees nothing of the freed slots");
    maps.end_read(&later);
}

#[test]
fn a_dump_separates_orphans_from_ports() {
    let mut maps = maps(FrontendType::ClusterIp, WordFlags::default());
    maps.execute(&Action::WriteFacts(PortIndex(9), PortFacts { affinity_timeout: 5, ignored_bits: 8 }))
        .unwrap();
    let dump = maps.dump().unwrap();
    assert_eq!(dump.ports.iter().map(|port| port.index).collect::<Vec<_>>(), [INDEX]);
    assert_eq!(dump.orphans, [PortIndex(9)]);
}
