//! The apiserver is right and this node's state is old; and an object that is truncated.

use std::time::Duration;

use holdfast_fixtures::clock::Stopwatch;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location, Neighbour, succeed};
use holdfast_tests::peers::{APISERVER_PORT, Api, Cluster, Kind, Part, Pod, SOON, apiserver, until};
use serde_json::{Value, json};

use crate::diagnosed::{self, ExpectedDiagnosis, WELL, expect_unprobed, service};
use crate::guide::shows;
use crate::stage::{self, NODE};

const PODS: [Pod<'static>; 2] = [
    Pod { name: "default/web-1", app: "web", node: NODE, address: "10.1.0.2" },
    Pod { name: "default/web-2", app: "web", node: NODE, address: "10.1.0.4" },
];

const LIMIT: Duration = Duration::from_secs(20);

/// An apiserver sends a bookmark each minute, and the daemon restarts a watch that is silent for 90 seconds.
const NOTICED: Duration = Duration::from_secs(150);

fn daemon(cluster: &Cluster) -> Daemon<'_> {
    let mut daemon = Daemon::new(cluster.bed(), &stage::by_certificate(cluster, 1)).unwrap();
    daemon.start().unwrap();
    daemon
}

/// A control plane with a Service of two pods, and a daemon that has both.
fn known(cluster: &Cluster) -> Daemon<'_> {
    let api = cluster.api(0).unwrap();
    service(&api, "web", &json!({"selector": {"app": "web"}}));
    diagnosed::pods(&api, &PODS);
    let daemon = daemon(cluster);
    stage::expect(&daemon, "default/web", "serving 10.1.0.2:8080 10.1.0.4:8080");
    daemon
}

/// Deletes one of the two, also from the apiserver's slices.
fn lose(api: &Api<'_>) {
    PODS[1].gone(api).unwrap();
    let is_alone = || {
        let slices = api.service_slices("default/web")?;
        Ok(slices.first().is_some_and(|it| it["endpoints"].as_array().map_or(0, Vec::len) == 1).then_some(()))
    };
    until(NOTICED, "a slice without it", is_alone).unwrap();
}

fn nft(bed: &Bed, text: &str) {
    let mut command = bed.command(Location::OUTSIDE, "nft").unwrap();
    command.arg(text);
    succeed(command, LIMIT).unwrap();
}

/// From now on the apiserver's data is lost on existing connections; empty segments pass, so that neither end notices.
fn swallow(bed: &Bed) {
    nft(bed, "add table ip swallow");
    nft(bed, "add set ip swallow ports { type inet_service ; }");
    nft(bed, "add chain ip swallow in { type filter hook input priority 0 ; }");
    let server = apiserver(0).unwrap().ip();
    let rule = format!("ip saddr {server} tcp sport {APISERVER_PORT} tcp dport @ports meta length > 60 drop");
    nft(bed, &format!("add rule ip swallow in {rule}"));
    let ports = watching(bed);
    assert!(ports.len() >= 2, "{ports:?}");
    nft(bed, &format!("add element ip swallow ports {{ {} }}", ports.join(", ")));
}

/// The ports of connections from the daemon's cgroup to the apiserver.
fn watching(bed: &Bed) -> Vec<String> {
    let server = format!("{}", apiserver(0).unwrap());
    let mut ss = bed.command(Location::OUTSIDE, "ss").unwrap();
    ss.args(["-Htnp", "state", "established", "dst", &server]);
    let said = succeed(ss, LIMIT).unwrap();
    let of_daemon = said.lines().filter(|line| line.contains("\"holdfast\""));
    let port = |line: &str| Some(line.split_whitespace().nth(2)?.rsplit_once(':')?.1.to_owned());
    of_daemon.filter_map(port).collect()
}

#[test]
fn a_stalled_watch_differs_from_stale_endpoints() {
    let cluster = diagnosed::cluster_with_pods();
    let api = cluster.api(0).unwrap();
    let daemon = known(&cluster);
    swallow(cluster.bed());
    let begun = Stopwatch::start();
    lose(&api);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/web",
            first: "view.api-cache",
            exit: 3,
            next: "the news has not come",
            findings: &["view.api-cache error", "slices.stale ok", "slices.missing ok", "self.control ok"],
            says: &["The apiserver has other endpoints than this node in web-"],
        },
    );
    shows("News that does not come to this node", &text);
    // The connection stays broken: the daemon notices by itself and opens another one.
    let mended = || {
        Ok((stage::frontends(&daemon, "default/web") == ["ClusterIP serving 10.1.0.2:8080"]).then_some(()))
    };
    until(NOTICED, "the news", mended).unwrap();
    println!("the news came after {:?}", begun.read());
    expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/web",
            findings: &["view.api-cache ok", "self.watch ok"],
            ..WELL
        },
    );
}

/// Permits lists and no watches, as after a clean-up of roles.
fn forbid_watching(cluster: &Cluster, api: &Api<'_>) {
    let mut role = api.get(Kind::ClusterRole, "holdfast").unwrap().unwrap();
    for rule in role["rules"].as_array_mut().unwrap() {
        if rule["resources"] == json!(["endpointslices"]) {
            rule["verbs"] = json!(["get", "list"]);
        }
    }
    api.merge(Kind::ClusterRole, "holdfast", &json!({"rules": role["rules"]})).unwrap();
    let what = json!({"verb": "watch", "group": "discovery.k8s.io", "resource": "endpointslices"});
    let denied = || Ok((!stage::may(api, (stage::USER, &[]), &what)?).then_some(()));
    until(SOON, "denial", denied).unwrap();
    // An open watch is not authorized again.
    cluster.kill(Part::Apiserver(0)).unwrap();
    cluster.start_part(Part::Apiserver(0)).unwrap();
}

#[test]
fn a_refused_watch_counts_as_none_despite_retries() {
    let cluster = diagnosed::cluster_with_pods();
    let api = cluster.api(0).unwrap();
    let daemon = known(&cluster);
    forbid_watching(&cluster, &api);
    lose(&api);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/web",
            first: "self.watch",
            exit: 3,
            next: "apply contrib/kubernetes/rbac.yaml again",
            findings: &[
                "self.watch warning",
                "view.api-cache because self.watch",
                "slices.stale ok",
                "self.control ok",
            ],
            says: &["The watch of endpointslices has been interrupted for", "cannot watch resource"],
        },
    );
    shows("A watch that the apiserver refuses, so that this node has old endpoints", &text);
    stage::permit(&cluster, 1, stage::MANIFEST, (stage::USER, &[]));
    expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/web",
            findings: &["view.api-cache ok", "self.watch ok"],
            ..WELL
        },
    );
}

/// More than the limit of an Endpoints object.
const MANY: usize = 1_001;
const HANDS: usize = 8;

/// Creates ready pods from several threads.
fn many_pods(cluster: &Cluster) {
    let hand = |first: usize| {
        let api = cluster.api(0).unwrap();
        for number in (first..MANY).step_by(HANDS) {
            let (name, address) =
                (format!("default/many-{number}"), format!("10.3.{}.{}", number / 250, number % 250 + 1));
            let pod = Pod { name: &name, app: "many", node: NODE, address: &address };
            diagnosed::pods(&api, &[pod]);
        }
    };
    std::thread::scope(|scope| (0..HANDS).for_each(|first| drop(scope.spawn(move || hand(first)))));
}

fn over_capacity(api: &Api<'_>) -> Option<Value> {
    let endpoints =
        api.request("GET", "api/v1/namespaces/default/endpoints/many", None).unwrap().object().unwrap();
    endpoints["metadata"]["annotations"].get("endpoints.kubernetes.io/over-capacity").cloned()
}

#[test]
fn a_truncated_endpoints_object_is_reported_and_slices_are_complete() {
    let routed = Neighbour { name: "many", near: vec!["10.3.255.1/16"], far: vec!["10.3.255.2/16"] };
    let cluster = diagnosed::cluster_beside(vec![routed]);
    let api = cluster.api(0).unwrap();
    service(&api, "many", &json!({"selector": {"app": "many"}}));
    many_pods(&cluster);
    let truncated = until(NOTICED, "an object that is full", || Ok(over_capacity(&api))).unwrap();
    assert_eq!(truncated, "truncated");
    let text = expect_unprobed(
        &daemon(&cluster),
        &ExpectedDiagnosis {
            service: "default/many",
            first: "endpoints.truncated",
            exit: 1,
            next: "Have its readers read EndpointSlices",
            // A diagnosis reads the first page of pods, so it cannot say that no ready pod is missing.
            findings: &[
                "endpoints.truncated warning",
                "slices.missing unknown",
                "slices.counts ok",
                "verdict ok",
            ],
            says: &["sees 1000 addresses", "1001 ready"],
        },
    );
    shows("An Endpoints object that has no room for all addresses", &text);
}
