//! A daemon at a real control plane: its configuration and its tables.
//!
//! Invariant: the daemon has only the permissions of `contrib/kubernetes/rbac.yaml`.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, wait_until};
use holdfast_tests::bed::clients::Client;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Dialer, Layout, Location, Neighbour, Role, Server};
use holdfast_tests::peers::{Api, Cluster, Kind, PeersError, SOON, apiserver, until};
use serde_json::{Value, json};

/// The manifest that an operator applies before the first daemon.
pub(crate) const MANIFEST: &str = include_str!("../../../contrib/kubernetes/rbac.yaml");

/// The node that the daemon serves.
pub(crate) use holdfast_tests::peers::NODE;

/// The user in the manifest; the daemon presents a client certificate of that name.
pub(crate) const USER: &str = "holdfast";

/// The service account in the manifest; the daemon presents a token of it.
pub(crate) const ACCOUNT: &str = "kube-system/holdfast";

/// The user name of that service account.
pub(crate) const ACCOUNT_USER: &str = "system:serviceaccount:kube-system:holdfast";

/// Grants the daemon its permissions and creates its Node.
pub(crate) fn prepare(cluster: &Cluster, apiservers: usize) {
    permit(cluster, apiservers, MANIFEST, (USER, &[]));
    cluster.api(0).unwrap().add_node(NODE, "zone-a").unwrap();
}

/// The node's primary address, if it has one: NodePorts are served there.
pub(crate) const ADDRESS: &str = "192.0.2.7";

/// A control plane with one apiserver, with a node that has an address.
pub(crate) fn start_with_node_address() -> Cluster {
    start_with_neighbours(Vec::new())
}

/// The same as [`start_with_node_address`], with further networks.
pub(crate) fn start_with_neighbours(neighbours: Vec<Neighbour>) -> Cluster {
    let layout = Layout { local: vec!["192.0.2.7/32"], neighbours, ..Layout::default() };
    let cluster = Cluster::start(layout, 1).unwrap();
    prepare(&cluster, 1);
    let addresses = json!({"status": {"addresses": [{"type": "InternalIP", "address": ADDRESS}]}});
    cluster.api(0).unwrap().merge_status(Kind::Node, NODE, &addresses).unwrap();
    cluster
}

/// A control plane with one apiserver, servers in place of pods, and a client of the node.
pub(crate) struct PodCluster {
    pub(crate) cluster: Cluster,
    client: Client,
    _servers: Vec<Server>,
}

impl PodCluster {
    /// Each pod replies with its address at port 8080. The machine has the addresses `local`.
    pub(crate) fn start(local: &[&'static str], pods: &[&str]) -> Self {
        let cluster = Cluster::start(Layout { local: local.to_vec(), ..Layout::default() }, 1).unwrap();
        let serve = |pod: &&str| {
            let address: SocketAddr = format!("{pod}:8080").parse().unwrap();
            cluster.bed().serve(Location::OUTSIDE, Role::Tcp, pod, address).unwrap()
        };
        let servers = pods.iter().map(serve).collect();
        prepare(&cluster, 1);
        Self { cluster, client: Client::c().unwrap(), _servers: servers }
    }

    /// The name of the server that answers a process of the node, or the errno.
    pub(crate) fn reply(&self, address: &str, port: u64) -> String {
        self.client.reply(self.cluster.bed(), &["tcp", address, &port.to_string()]).unwrap()
    }
}

/// Applies permissions and waits until the first apiservers use them: each authorizer gets roles and bindings by
/// watches of its own, a moment after the client's answer.
pub(crate) fn permit(cluster: &Cluster, apiservers: usize, manifest: &str, user: (&str, &[&str])) {
    cluster.api(0).unwrap().apply(manifest).unwrap();
    for index in 0..apiservers {
        let api = cluster.api(index).unwrap();
        let permitted = || Ok(is_permitted(&api, user)?.then_some(()));
        until(SOON, "permission", permitted).unwrap();
    }
}

/// Whether a user has the manifest's permissions. The administrator asks, because a request by the user would count
/// among the daemon's.
fn is_permitted(api: &Api<'_>, user: (&str, &[&str])) -> Result<bool, PeersError> {
    may(api, user, &json!({"verb": "list", "group": "discovery.k8s.io", "resource": "endpointslices"}))
}

/// Whether the apiserver permits this to this user now.
pub(crate) fn may(api: &Api<'_>, (user, groups): (&str, &[&str]), what: &Value) -> Result<bool, PeersError> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "groups": groups, "resourceAttributes": what},
    });
    let path = "apis/authorization.k8s.io/v1/subjectaccessreviews";
    let reply = api.request("POST", path, Some(("application/json", review.to_string())))?;
    Ok(reply.object()?.pointer("/status/allowed") == Some(&true.into()))
}

/// The daemon's configuration without its credential: the apiservers in order.
fn configuration(cluster: &Cluster, apiservers: usize) -> String {
    let addresses = (0..apiservers).map(|index| format!("\"https://{}\"", apiserver(index).unwrap()));
    let addresses = addresses.collect::<Vec<_>>().join(", ");
    let authority = cluster.authority().file();
    format!(
        "[node]\nname = \"{NODE}\"\nnode_port_addresses = [\"all\"]\n[apiserver]\nendpoints = [{addresses}]\nca_file = {authority:?}\n"
    )
}

/// A configuration with a client certificate.
pub(crate) fn by_certificate(cluster: &Cluster, apiservers: usize) -> String {
    let own = cluster.authority().client(USER, &[]).unwrap();
    let mut text = configuration(cluster, apiservers);
    let (certificate, key) = (own.certificate, own.key);
    write!(text, "client_certificate_file = {certificate:?}\nclient_key_file = {key:?}\n").unwrap();
    text
}

/// A configuration with a token in a file.
pub(crate) fn by_token(cluster: &Cluster, apiservers: usize, file: &Path) -> String {
    configuration(cluster, apiservers) + &format!("token_file = {file:?}\n")
}

/// The rows of a table.
pub(crate) fn rows(daemon: &Daemon<'_>, words: &[&str], table: &str) -> Vec<Value> {
    daemon.ask(words).unwrap()[table].as_array().unwrap().clone()
}

/// `ClusterIP serving 10.1.0.1:8080 10.1.0.2:8080` for each frontend of a service.
pub(crate) fn frontends(daemon: &Daemon<'_>, service: &str) -> Vec<String> {
    rows(daemon, &["frontends", service], "frontends").iter().map(frontend).collect()
}

fn frontend(row: &Value) -> String {
    let mut words = vec![word(row, "type"), word(row, "verdict")];
    let backends = row["backends"].as_array().unwrap();
    let backends = backends.iter().map(|it| format!("{}:{}", word(it, "address"), it["port"]));
    words.extend(backends);
    words.join(" ")
}

/// The text of a field.
pub(crate) fn word(row: &Value, field: &str) -> String {
    row[field].as_str().unwrap_or("-").to_owned()
}

/// Waits until the [`frontends`] of a service all end as expected; returns how long that took.
#[track_caller]
pub(crate) fn expect(daemon: &Daemon<'_>, service: &str, expected: &str) -> Duration {
    let (begun, mut last) = (Stopwatch::start(), Vec::new());
    let shown = until(SOON, expected, || {
        last = frontends(daemon, service);
        Ok((!last.is_empty() && last.iter().all(|row| row.ends_with(expected))).then_some(()))
    });
    shown.unwrap_or_else(|error: PeersError| panic!("{error}: {service} has {last:?}; {}", daemon.logged()));
    begun.read()
}

/// How many attempts of a client show that it is served: enough to see late failures.
const DIALS: u64 = 100;

/// Checks that no attempt of a client has failed since its last tally, nor any of the next ones.
#[track_caller]
pub(crate) fn check_served(client: &mut Dialer, what: &str) {
    let mut connected = 0;
    wait_until("a client that dials", || {
        let tally = client.tally().unwrap();
        assert!(tally.failed.is_empty(), "{what}: {tally}");
        connected += tally.connected;
        connected >= DIALS
    });
    println!("{what}: {connected} connected");
}

/// The endpoints with connections, and how many each has.
pub(crate) fn watched(daemon: &Daemon<'_>) -> Vec<(String, u64)> {
    let rows = rows(daemon, &["apiserver"], "endpoints");
    let used = rows.iter().map(|row| (word(row, "address"), row["connections"].as_u64().unwrap()));
    used.filter(|(_, connections)| *connections > 0).collect()
}

/// Since when the table is only saved state; `None` once every source has delivered.
pub(crate) fn stale(daemon: &Daemon<'_>) -> Option<String> {
    let status = daemon.status().expect("a daemon that answers");
    status["stale_since"].as_str().map(str::to_owned)
}
