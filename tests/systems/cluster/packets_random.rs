//! Random clusters with two equal nodes: the results of clients of every kind with holdfast, and with the real
//! kube-proxy.

use std::collections::BTreeMap;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_fixtures::clock::Stopwatch;
use holdfast_tests::bed::Bed;
use holdfast_tests::bed::Location;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, POD_CIDRS, Switches};
use holdfast_tests::packets::random::{
    ComparisonSummary, Difference, Side, Target, compare, draw, sign, sign_backend, targets,
};
use holdfast_tests::peers::{Api, Cluster, Kind, Part, PeersError, until};
use serde_json::{Value, json};

use crate::stage::NODE;

const SERVICES: usize = 60;

/// No holds, as in kube-proxy. All flows of one cluster fit, and the SNAT ports of those to other nodes. Pods are
/// served at their devices, because their clients send raw packets that no socket program sees.
const CONFIG: &str = "[node]\nname = \"n1\"\nzone = \"zone-a\"\n[hold]\non_empty = \"refuse\"\n\
    [packets]\npod_devices = \"auto\"\nflows = 262144\nsnat_ports = \"45000-65535\"\n\
    [kube_proxy]\nhealth = \"0.0.0.0:10256\"\n";

/// A setting of holdfast's node: sockets leave those ports to SNAT.
const SOCKET_PORTS: (&str, &str) = ("ipv4/ip_local_port_range", "32768 44999");

/// Settings of kube-proxy's node: conntrack drops the tens of thousands of unanswered connections soon.
const TRACKING: [(&str, &str); 3] = [
    ("netfilter/nf_conntrack_tcp_timeout_syn_sent", "5"),
    ("netfilter/nf_conntrack_tcp_timeout_close", "2"),
    ("netfilter/nf_conntrack_udp_timeout", "5"),
];

const SERVICES_PATH: &str = "api/v1/namespaces/default/services";

const SLICES_PATH: &str = "apis/discovery.k8s.io/v1/namespaces/default/endpointslices";

/// How many differences of one client at one kind of address are shown, and how many services with their slices.
const SHOWN: usize = 4;

fn set(bed: &Bed, settings: &[(&str, &str)]) {
    settings.iter().for_each(|(name, value)| fabric::set(bed, Location::OUTSIDE, name, value).unwrap());
}

/// A number from the environment, for a long run or another cluster.
fn asked_for(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap())
}

fn name_of(object: &Value) -> String {
    format!("default/{}", object["metadata"]["name"].as_str().unwrap())
}

/// Writes an object with the status that kubelet or the cloud controller would write.
fn write(api: &Api<'_>, object: &Value) {
    let mut object = object.clone();
    let status = object.as_object_mut().unwrap().remove("status");
    api.apply_object(&object).unwrap_or_else(|error| panic!("{error}: {object}"));
    let balanced = object["spec"]["type"] == "LoadBalancer";
    if let Some(status) = status.filter(|_| balanced) {
        api.merge_status(Kind::Service, &name_of(&object), &json!({"status": status})).unwrap();
    }
}

fn remove(api: &Api<'_>, kind: Kind, name: &str) {
    match api.delete(kind, name) {
        Ok(()) | Err(PeersError::Refused { status: 404, .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

/// All objects of a kind as manifests. Those of the control plane have a backend on one of the two nodes only.
fn items(api: &Api<'_>, path: &str, (version, kind): (&str, &str)) -> Vec<Value> {
    let list = api.request("GET", path, None).unwrap().object().unwrap();
    let mut items = list["items"].as_array().unwrap().clone();
    for item in &mut items {
        item["apiVersion"] = version.into();
        item["kind"] = kind.into();
        item["metadata"].as_object_mut().unwrap().remove("managedFields");
    }
    items.retain(|item| !item["metadata"]["name"].as_str().unwrap().starts_with("kubernetes"));
    items
}

fn services(api: &Api<'_>) -> Vec<Value> {
    items(api, SERVICES_PATH, ("v1", "Service"))
}

fn slices(api: &Api<'_>) -> Vec<Value> {
    items(api, SLICES_PATH, ("discovery.k8s.io/v1", "EndpointSlice"))
}

/// A cluster, and the two nodes that serve it.
struct Nodes<'a> {
    api: Api<'a>,
    daemon: Daemon<'a>,
    theirs: Side,
    ours: Side,
}

impl<'a> Nodes<'a> {
    fn start(cluster: &'a Cluster, bed: &'a Bed) -> Self {
        let api = cluster.api(0).unwrap();
        prepare(&api);
        cluster.start_part(Part::Proxy).unwrap();
        // kube-proxy may miss the zone that its node has at its start, and sees the next one.
        let zone = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-a"}}});
        api.merge(Kind::Node, NODE, &zone).unwrap();
        set(cluster.bed(), &TRACKING);
        set(bed, &[SOCKET_PORTS]);
        let mut daemon = Daemon::new(bed, CONFIG).unwrap();
        daemon.start().unwrap();
        let (theirs, ours) = (Side::open(cluster.bed()).unwrap(), Side::open(bed).unwrap());
        Self { api, daemon, theirs, ours }
    }

    /// Replaces the cluster's services.
    fn replace(&self, seed: u64, round: u16) {
        let ((new, new_slices), (signs, _)) = (draw(seed, SERVICES), sign(round));
        let is_sign = |object: &&Value| name_of(object).starts_with("default/sign");
        for object in services(&self.api).iter().filter(|object| !is_sign(object)) {
            remove(&self.api, Kind::Service, &name_of(object));
        }
        let is_new = |old: &Value| new_slices.iter().any(|slice| name_of(slice) == name_of(old));
        for object in slices(&self.api).iter().filter(|object| !is_sign(object) && !is_new(object)) {
            remove(&self.api, Kind::Slice, &name_of(object));
        }
        new.iter().chain(&new_slices).chain(&signs).for_each(|object| write(&self.api, object));
    }

    /// Waits until both nodes have the apiserver's objects, and returns the targets.
    fn hand_over(&mut self, round: u16) -> Vec<Target> {
        let (services, slices) = (services(&self.api), slices(&self.api));
        let documents: Vec<String> = services.iter().chain(&slices).map(Value::to_string).collect();
        self.daemon.write_manifest("all.yaml", &documents.join("\n---\n")).unwrap();
        let (_, signs) = sign(round);
        for side in [&mut self.theirs, &mut self.ours] {
            let known = || Ok(side.leads_to(&signs, sign_backend(round)).unwrap().then_some(()));
            let known = until(TEST_TIMEOUT, "sign", known);
            known.unwrap_or_else(|error| panic!("{error}; holdfast says:\n{}", self.daemon.logged()));
        }
        targets(&services, &slices)
    }

    /// Compares all targets of one cluster.
    #[track_caller]
    fn check(&mut self, seed: u64, round: u16) -> ComparisonSummary {
        self.replace(seed, round);
        let targets = self.hand_over(round);
        let begun = Stopwatch::start();
        let compared = compare(&mut self.theirs, &mut self.ours, &targets).unwrap();
        let ComparisonSummary { count, led, again, known, differences } = &compared;
        println!(
            "SEED={seed}: {count} comparisons, {led} reach somebody, {again} were asked again, by decision {known:?}, in {:?}",
            begun.read()
        );
        assert!(*led > count / 4, "a cluster that says little");
        let shown = || format!("{}\n{}", show(differences), objects_of(&self.daemon, differences));
        assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), shown());
        compared
    }
}

fn prepare(api: &Api<'_>) {
    api.add_node(NODE, "zone-b").unwrap();
    api.add_node("n2", "zone-a").unwrap();
    let addresses = NODE_ADDRESSES.map(|address| json!({"type": "InternalIP", "address": address}));
    api.merge_status(Kind::Node, NODE, &json!({"status": {"addresses": addresses}})).unwrap();
}

fn line(it: &Difference) -> String {
    let Target { service, kind, to, transport, has, .. } = &it.target;
    let (client, theirs, ours) = (it.client, &it.theirs, &it.ours);
    let there = if *has { "it has" } else { "it has not" };
    format!(
        "{client} asks {service}, {kind:?} {transport:?} {to} ({there}):\n  kube-proxy {theirs:?}\n  holdfast   {ours:?}"
    )
}

/// Some differences of each kind, and their number.
fn show(differences: &[Difference]) -> String {
    let mut counts = BTreeMap::<_, usize>::new();
    let is_shown = |it: &&Difference| {
        let count = counts.entry((it.client, it.target.kind)).or_default();
        *count += 1;
        *count <= SHOWN
    };
    let shown: Vec<String> = differences.iter().filter(is_shown).map(line).collect();
    format!("{}\n{counts:?}", shown.join("\n"))
}

/// The services and slices of the first differences.
fn objects_of(daemon: &Daemon<'_>, differences: &[Difference]) -> String {
    let text = std::fs::read_to_string(daemon.manifests().join("all.yaml")).unwrap();
    let mut names: Vec<&str> = differences.iter().map(|it| it.target.service.as_str()).collect();
    names.dedup();
    let words = |name: &&str| [format!("\"name\":\"{name}\""), format!("service-name\":\"{name}\"")];
    let words: Vec<String> = names.iter().take(SHOWN).flat_map(words).collect();
    let is_of = |document: &&str| words.iter().any(|word| document.contains(word));
    text.split("\n---\n").filter(is_of).collect::<Vec<_>>().join("\n")
}

/// `SEED=7` draws another cluster, `CLUSTERS=14` as many, one after another.
#[test]
fn packets_random_clients_get_the_same_as_with_kube_proxy() {
    let (seed, clusters) = (asked_for("SEED", 1), asked_for("CLUSTERS", 1));
    let cluster = Cluster::start_with_pod_ranges(fabric::layout(), 1, POD_CIDRS).unwrap();
    fabric::lay(cluster.bed(), Switches::default()).unwrap();
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut nodes = Nodes::start(&cluster, &bed);
    let (mut total, mut known) = (0, BTreeMap::<&str, usize>::new());
    for round in 0..clusters {
        let compared = nodes.check(seed + round, round.try_into().unwrap());
        total += compared.count;
        compared.known.iter().for_each(|(reason, count)| *known.entry(reason).or_default() += count);
    }
    println!("{total} comparisons in {clusters} clusters, no difference but by decision: {known:?}");
}
