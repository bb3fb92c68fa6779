//! What a slow client may find after a new process adopted the port that it dialled.

use std::sync::Arc;

use holdfast_core::facts::{Conditions, Timestamp};
use holdfast_core::list::{Row, Rows, Scope};
use holdfast_core::maps::{Capacity, Maps};
use holdfast_core::op::{FrontendType, PortIndex, QuotaId, SlotRange, Word, WordFlags};

use super::super::model::ExpectedPort;
use super::super::policy;
use super::*;

const INDEX: PortIndex = PortIndex(3);
const CAPACITY: Capacity = Capacity { slots: 16, ports: 8, services: 4 };

fn exact() -> FrontendKey {
    let port = 30443.try_into().unwrap();
    FrontendKey { address: "192.168.0.2".parse().unwrap(), port, transport: Transport::Tcp }
}

fn list() -> Rows {
    let ready = Conditions { ready: true, serving: true, terminating: false };
    let mut row = Row::new("1.1.1.6".parse().unwrap(), 8080.try_into().unwrap(), ready, 0, 0);
    row.choose(Scope::Cluster);
    Rows::new(vec![row], &Rows::default(), Timestamp(0))
}

/// The new process has decided, and the index has the list of the service that owns `owned`. The facts lack the node's
/// address, and the address is gone when the client ends.
#[track_caller]
fn check(led_by: FrontendKey, owned: FrontendKey, is_legal: bool) {
    let mut watch = Watch::new(policy::rule);
    let mut maps = MemoryMaps::new(CAPACITY);
    let address = exact().address;
    let value = FrontendValue { port: INDEX, kind: FrontendType::NodePort, quota: QuotaId::default() };
    watch.pointing.insert(led_by, value);
    maps.execute(&Action::InsertFrontend(led_by, value)).unwrap();
    maps.execute(&Action::InsertNodeAddress(address)).unwrap();
    let position = watch.dialled.iter().position(|it| it.key == exact()).unwrap();
    let mut client = SlowClient::begin(&mut maps, &watch, position, Client::Local, false).unwrap();

    let service = population::service_key(0);
    let port = (Arc::from(""), Transport::Tcp, Family::V4);
    let slots: Vec<_> = list().slots(Scope::Cluster).collect();
    let ports = [(port.clone(), ExpectedPort { cluster: Some(slots), ..ExpectedPort::default() })];
    watch.model.services.insert(service.clone(), Expected { ports: ports.into(), ..Expected::default() });
    watch.model.owners.insert(owned, Holder { service, port, kind: FrontendType::NodePort });
    let range = SlotRange { family: Family::V4, base: 0, count: 1 };
    let word = Word { base: 0, count: 1, flags: WordFlags::default() };
    maps.execute(&Action::WriteRange(range, Scope::Cluster, Arc::new(list()))).unwrap();
    maps.execute(&Action::PublishWord(INDEX, Scope::Cluster, word)).unwrap();
    maps.execute(&Action::RemoveNodeAddress(address)).unwrap();
    client.adopt(&watch);
    client.wait(&watch);
    client.end(&mut maps, &mut watch);
    assert_eq!(watch.violation.is_none(), is_legal, "{:?}", watch.violation);
}

#[test]
fn a_slow_client_may_find_the_wildcards_owner_after_its_address_left() {
    check(wildcard(exact()), wildcard(exact()), true);
}

#[test]
fn a_slow_client_may_find_the_exact_frontends_owner() {
    check(exact(), exact(), true);
}

#[test]
fn a_slow_client_finds_no_owner_of_an_unread_frontend() {
    check(wildcard(exact()), exact(), false);
    check(exact(), wildcard(exact()), false);
}
