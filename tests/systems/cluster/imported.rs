//! ServiceImports at a real apiserver, with the API's own definition: `serviceimports.yaml` is that of
//! `sigs.k8s.io/mcs-api` v0.5.0, unchanged.

use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{Api, Kind, Part, SOON, until};
use serde_json::{Value, json};

use crate::stage::{self, PodCluster, frontends, rows, word};

const DEFINITION: &str = include_str!("serviceimports.yaml");

/// A controller's import of a service that another cluster exports.
const IMPORT: &str = "
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceImport
metadata: {name: web, namespace: default}
spec:
  type: ClusterSetIP
  ips: [10.200.0.7]
  ports: [{name: http, protocol: TCP, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: imported-web
  labels:
    multicluster.kubernetes.io/service-name: web
    multicluster.kubernetes.io/source-cluster: other
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.1.0.1]}]
";

const ADDRESS: &str = "10.200.0.7";

/// A pod of another cluster that replies with its address.
fn start_cluster() -> PodCluster {
    PodCluster::start(&["10.1.0.1/32"], &["10.1.0.1"])
}

#[track_caller]
fn expect(daemon: &Daemon<'_>, expected: &str) {
    let shown = || Ok((frontends(daemon, "default/web") == [expected]).then_some(()));
    until(SOON, expected, shown).unwrap_or_else(|error| {
        panic!("{error}: {:?}; {}", frontends(daemon, "default/web"), daemon.logged())
    });
}

/// Defines the kind, and waits until both of its versions are served.
fn define(api: &Api<'_>) {
    api.apply(DEFINITION).unwrap();
    for version in ["v1alpha1", "v1beta1"] {
        let path = format!("apis/multicluster.x-k8s.io/{version}/serviceimports");
        let served = || Ok((api.request("GET", &path, None)?.status == 200).then_some(()));
        until(SOON, "the kind", served).unwrap();
    }
}

/// The state of each watch, by its kind.
fn state(daemon: &Daemon<'_>, kind: &str) -> String {
    let watches = rows(daemon, &["apiserver"], "watches");
    let found = watches.iter().find(|row| row["kind"] == kind);
    word(found.unwrap_or(&Value::Null), "state")
}

#[test]
fn clients_reach_an_imported_service_during_an_apiserver_outage() {
    let pods = start_cluster();
    let api = pods.cluster.api(0).unwrap();
    let mut daemon = Daemon::new(pods.cluster.bed(), &stage::by_certificate(&pods.cluster, 1)).unwrap();
    daemon.start().expect("ready although there is no such kind");
    daemon.ask(&["status"]).expect("exit code 0: nothing is wrong");
    until(SOON, "asked for", || Ok(daemon.logged().contains("no ServiceImport is served").then_some(())))
        .unwrap();
    assert_eq!(
        (state(&daemon, "serviceimports").as_str(), state(&daemon, "importedslices").as_str()),
        ("absent", "absent")
    );
    daemon.ask(&["verify"]).expect("what is absent is no difference");
    daemon.stop().unwrap();

    define(&api);
    api.apply(IMPORT).unwrap();
    daemon.start().unwrap();
    expect(&daemon, "ClusterSetIP serving 10.1.0.1:8080");
    assert_eq!(pods.reply(ADDRESS, 80), "10.1.0.1");
    let row = rows(&daemon, &["frontends", "default/web"], "frontends").remove(0);
    assert_eq!((word(&row, "source").as_str(), word(&row, "address").as_str()), ("clusterset", ADDRESS));
    let why = daemon.tell(&["explain", &format!("{ADDRESS}:80")]).unwrap();
    assert!(why.contains("ClusterSetIP of default/web") && why.contains("10.1.0.1:8080"), "{why}");
    daemon.ask(&["verify"]).expect("no difference");

    // The watch delivers the change.
    let moved = json!({"endpoints": [{"addresses": ["10.1.0.2"]}]});
    api.merge(Kind::Slice, "default/imported-web", &moved).unwrap();
    expect(&daemon, "ClusterSetIP serving 10.1.0.2:8080");
    api.apply(IMPORT).unwrap();
    expect(&daemon, "ClusterSetIP serving 10.1.0.1:8080");

    // Simulates a reboot without an apiserver: the saved state has the imports.
    daemon.stop().unwrap();
    daemon.cleanup().unwrap();
    pods.cluster.kill(Part::Apiserver(0)).unwrap();
    daemon.launch().unwrap();
    daemon.wait_until(|daemon| Ok(daemon.is_ready())).unwrap();
    expect(&daemon, "ClusterSetIP serving 10.1.0.1:8080");
    assert_eq!(pods.reply(ADDRESS, 80), "10.1.0.1");
    pods.cluster.start_part(Part::Apiserver(0)).unwrap();
    until(SOON, "watched", || Ok((state(&daemon, "serviceimports") == "watching").then_some(()))).unwrap();
    expect(&daemon, "ClusterSetIP serving 10.1.0.1:8080");

    api.delete(Kind::Import, "default/web").unwrap();
    until(SOON, "gone", || Ok(frontends(&daemon, "default/web").is_empty().then_some(()))).unwrap();
}

/// Like the reference controller: a Service derived from an import, with the import's address and both labels.
#[test]
fn a_derived_service_has_the_imports_address() {
    let pods = start_cluster();
    let api = pods.cluster.api(0).unwrap();
    define(&api);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "derived-1"},
        "spec": {"ports": [{"name": "http", "port": 80}]},
    });
    let service = api.apply_object(&service).unwrap();
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    api.apply(&IMPORT.replace(ADDRESS, address)).unwrap();
    let labels = json!({"metadata": {"labels": {"kubernetes.io/service-name": "derived-1"}}});
    api.merge(Kind::Slice, "default/imported-web", &labels).unwrap();
    let mut daemon = Daemon::new(pods.cluster.bed(), &stage::by_certificate(&pods.cluster, 1)).unwrap();
    daemon.start().unwrap();
    stage::expect(&daemon, "default/derived-1", "ClusterIP serving 10.1.0.1:8080");
    expect(&daemon, "ClusterSetIP conflict");
    let row = rows(&daemon, &["frontends", "default/web"], "frontends").remove(0);
    assert_eq!(
        (word(&row, "owner").as_str(), word(&row, "reason").as_str()),
        ("default/derived-1", "claimed")
    );
    let told = daemon.tell(&["status"]).unwrap();
    assert!(told.contains("conflict (claimed)") && told.contains("default/derived-1"), "{told}");
    api.delete(Kind::Service, "default/derived-1").unwrap();
    expect(&daemon, "ClusterSetIP serving 10.1.0.1:8080");
}
