//! One cluster with two proxies: the backends of clients with holdfast, and with the real kube-proxy of the same node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{
    Api, Client, ClientFate, Cluster, Frontend, Kind, Part, RandomServices, client_fates, until,
};
use serde_json::{Value, json};

use crate::stage::{self, rows, word};

type Table = BTreeMap<Frontend, ClientFate>;

const SERVICES: usize = 40;

/// How often the cluster is changed, and how much of it.
const ROUNDS: u64 = 6;
const CHANGES: usize = 30;

/// No holds, because kube-proxy has none.
const REFUSE: &str = "[hold]\non_empty = \"refuse\"\n";

/// Writes the last service and slice of a round. A proxy that serves them has seen all earlier writes, so two equal
/// tables are of this round.
fn write_sign(api: &Api<'_>, round: u64) {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "sign"},
        "spec": {"ports": [{"port": 1000 + round}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "sign", "labels": {"kubernetes.io/service-name": "sign"}},
        "ports": [{"port": 8080}], "endpoints": [{"addresses": [format!("10.9.0.{}", 1 + round)]}],
    });
    [service, slice].iter().for_each(|object| drop(api.apply_object(object).unwrap()));
}

fn has_sign(table: &Table, round: u64) -> bool {
    let endpoint = format!("10.9.0.{}:8080", 1 + round).parse().unwrap();
    let led = ClientFate::To([endpoint].into());
    table.iter().any(|((frontend, _), way)| u64::from(frontend.port()) == 1000 + round && *way == led)
}

fn socket(row: &Value) -> SocketAddr {
    let port = row["port"].as_u64().unwrap().try_into().unwrap();
    SocketAddr::new(word(row, "address").parse().unwrap(), port)
}

fn backends(list: &Value) -> BTreeSet<SocketAddr> {
    list.as_array().map(|list| list.iter().map(socket).collect()).unwrap_or_default()
}

/// The fate of a client in a row. The verdict is for clients of the node; others are dropped if only other nodes have
/// a backend for them.
fn way(row: &Value, client: Client) -> ClientFate {
    let local = backends(&row["backends"]);
    if client == Client::Remote && !row["external_backends"].is_null() {
        let remote = backends(&row["external_backends"]);
        return match (remote.is_empty(), local.is_empty()) {
            (false, _) => ClientFate::To(remote),
            (true, false) => ClientFate::Dropped,
            (true, true) => ClientFate::Refused,
        };
    }
    match word(row, "verdict").as_str() {
        "serving" | "draining" => ClientFate::To(local),
        "dropping" => ClientFate::Dropped,
        "refusing" => ClientFate::Refused,
        verdict => panic!("{verdict}: {row}"),
    }
}

/// holdfast's table.
fn ours(daemon: &Daemon<'_>, client: Client) -> Table {
    let rows = rows(daemon, &["frontends"], "frontends");
    rows.iter().map(|row| ((socket(row), word(row, "protocol")), way(row, client))).collect()
}

fn theirs(cluster: &Cluster, client: Client) -> Table {
    client_fates(cluster, client).unwrap()
}

fn differences(ours: &Table, theirs: &Table) -> Vec<String> {
    let all: BTreeSet<_> = ours.keys().chain(theirs.keys()).collect();
    let differ = all.into_iter().filter(|key| ours.get(*key) != theirs.get(*key));
    differ.map(|key| format!("{key:?}: {:?}, kube-proxy {:?}", ours.get(key), theirs.get(key))).collect()
}

#[track_caller]
fn check_agreement(cluster: &Cluster, daemon: &Daemon<'_>, round: u64) {
    for client in [Client::Local, Client::Remote] {
        let (mut last, mut table) = (Vec::new(), Table::new());
        let agreed = until(TEST_TIMEOUT, "agreement", || {
            table = theirs(cluster, client);
            last = differences(&ours(daemon, client), &table);
            Ok((last.is_empty() && has_sign(&table, round)).then_some(()))
        });
        agreed.unwrap_or_else(|error| panic!("round {round}, {client:?}: {error}:\n{}", last.join("\n")));
        let served = table.values().filter(|way| matches!(way, ClientFate::To(_))).count();
        println!("round {round}, {client:?}: {served} of {} frontends served, no difference", table.len());
        assert!(served > SERVICES / 4, "a cluster that says little");
    }
}

/// kube-proxy 1.37 may miss the zone that its node has at its start (its proxier subscribes to labels after the first
/// update), and sees the next one.
fn move_to(api: &Api<'_>, zone: &str) {
    let labels = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}});
    api.merge(Kind::Node, stage::NODE, &labels).unwrap();
}

#[test]
fn clients_get_the_same_results_as_with_kube_proxy() {
    let cluster = stage::start_with_node_address();
    let api = cluster.api(0).unwrap();
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut crowd = RandomServices::new(seed, SERVICES);
    crowd.create(&api).unwrap();
    cluster.start_part(Part::Proxy).unwrap();
    let mut daemon = Daemon::new(cluster.bed(), &(stage::by_certificate(&cluster, 1) + REFUSE)).unwrap();
    daemon.start().unwrap();
    for round in 0..=ROUNDS {
        move_to(&api, if round % 2 == 0 { "zone-b" } else { "zone-a" });
        if round > 0 {
            crowd.stir(&api, CHANGES).unwrap();
        }
        write_sign(&api, round);
        check_agreement(&cluster, &daemon, round);
    }
}
