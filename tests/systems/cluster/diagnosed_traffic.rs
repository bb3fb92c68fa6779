//! Endpoints are listed, but some clients get no traffic: ports, backends, nodes, other proxies, the daemon itself.

use holdfast_fixtures::clock::pause;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Location, Role, Server};
use holdfast_tests::peers::{Api, Cluster, Kind, Part, Pod, SOON, until};
use serde_json::{Value, json};

use crate::diagnosed::{
    self, ExpectedDiagnosis, WELL, apply_at, expect, expect_unprobed, restart, served_daemon,
};
use crate::guide::shows;
use crate::stage::{self, NODE};

/// The one that answers, one on a lost node, and one of each kind.
const PODS: [Pod<'static>; 4] = [
    Pod { name: "default/web-1", app: "web", node: NODE, address: "10.1.0.2" },
    Pod { name: "default/away-1", app: "away", node: "n2", address: "10.1.0.9" },
    Pod { name: "default/pair-1", app: "pair", node: NODE, address: "10.1.0.4" },
    Pod { name: "default/pair-2", app: "pair", node: "n2", address: "10.1.0.8" },
];

fn service(api: &Api<'_>, name: &str, spec: &Value) {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": name},
        "spec": {"ports": [{"port": 80, "targetPort": 8080}]},
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    api.apply_object(&object).unwrap();
}

/// A slice that a user wrote.
fn slice(api: &Api<'_>, service: &str, port: &str, endpoints: &Value) {
    let object = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{service}-1"), "namespace": "default", "labels": {"kubernetes.io/service-name": service}},
        "ports": [{"name": port, "port": 8080}], "endpoints": endpoints,
    });
    api.apply_object(&object).unwrap();
}

fn cluster() -> Cluster {
    let cluster = diagnosed::cluster_with_pods();
    let api = cluster.api(0).unwrap();
    api.add_node("n2", "zone-b").unwrap();
    diagnosed::pods(&api, &PODS);
    cluster
}

fn daemon(cluster: &Cluster) -> Daemon<'_> {
    let mut daemon = Daemon::new(cluster.bed(), &stage::by_certificate(cluster, 1)).unwrap();
    daemon.start().unwrap();
    daemon
}

#[test]
fn listed_backends_without_answers_are_told_apart() {
    let cluster = cluster();
    let (api, bed) = (cluster.api(0).unwrap(), cluster.bed());
    let serve =
        |name, at: &str| bed.serve(Location::pod("pod"), Role::Tcp, name, at.parse().unwrap()).unwrap();
    let _pods = [serve("web", "10.1.0.2:8080"), serve("pair", "10.1.0.4:8080")];
    service(&api, "well", &json!({"selector": {"app": "web"}}));
    service(&api, "port", &json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 9090}]}));
    service(
        &api,
        "named",
        &json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]}),
    );
    service(&api, "other", &json!({"ports": [{"name": "http", "port": 80}]}));
    slice(&api, "other", "web", &json!([{"addresses": ["10.1.0.2"]}]));
    service(&api, "lost", &json!({"selector": {"app": "away"}}));
    service(&api, "pair", &json!({"selector": {"app": "pair"}}));
    let lost = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "KubeletNotReady"}]}});
    api.merge_status(Kind::Node, "n2", &lost).unwrap();
    let daemon = daemon(&cluster);
    expect(&daemon, &ExpectedDiagnosis { service: "default/well", findings: &["probe.backend ok"], ..WELL });
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/port",
            first: "probe.backend",
            exit: 3,
            next: "Look at which port the application listens",
            findings: &["slices.counts ok", "verdict ok"],
            says: &["10.1.0.2:9090 refused", "does not listen on 9090"],
        },
    );
    shows("Endpoints that are listed and do not answer", &text);
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/named",
            first: "pods.named-port",
            exit: 3,
            next: "Name the container's port so",
            findings: &["verdict because pods.named-port"],
            says: &["Target port http is declared by no container"],
        },
    );
    shows("A target port that no container has", &text);
    expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/other",
            first: "slices.port-name",
            exit: 3,
            next: "Give the ports of hand-written slices the names",
            findings: &["verdict because slices.port-name"],
            says: &["\"http\"/TCP"],
        },
    );
    expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/lost",
            first: "nodes.backends",
            exit: 3,
            next: "Look at the node",
            findings: &["probe.backend because nodes.backends"],
            says: &["n2"],
        },
    );
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/pair",
            first: "nodes.backends",
            exit: 1,
            next: "Look at the node",
            findings: &["nodes.backends warning", "probe.backend because nodes.backends", "verdict ok"],
            says: &["n2"],
        },
    );
    shows("One backend of two that is on a lost node", &text);
}

/// Removes the endpoints of a Service through an apiserver that does not write its own again.
fn empty(cluster: &Cluster, daemon: &Daemon<'_>, service: &str) {
    cluster.kill(Part::Apiserver(0)).unwrap();
    cluster.start_part_with(Part::Apiserver(0), &["--endpoint-reconciler-type=none"]).unwrap();
    let api = cluster.api(0).unwrap();
    api.merge(Kind::Slice, service, &json!({"endpoints": []})).unwrap();
    let is_held =
        || Ok(stage::frontends(daemon, service).iter().all(|row| row.contains(" held ")).then_some(()));
    until(SOON, "a held list", is_held).unwrap();
}

/// The mirroring controller may reconcile before it has seen its own new slice, and then reports by an Event that the
/// slice could not be created. This is deleted, because it is temporary.
fn forget_hurry_of_the_mirror(api: &Api<'_>) {
    let slices = || Ok(api.service_slices("default/mirrored")?.pop());
    until(SOON, "a mirrored slice", slices).unwrap();
    let path = "api/v1/namespaces/default/events?fieldSelector=involvedObject.name=mirrored";
    assert!(api.request("DELETE", path, None).unwrap().status < 300);
}

#[test]
fn other_objects_of_a_service_are_reported_by_name() {
    let cluster = cluster();
    let (api, bed) = (cluster.api(0).unwrap(), cluster.bed());
    // Without it the probes of a held list end the hold before a slow machine has looked.
    let _web = serve_web(&cluster);
    let web = json!({"selector": {"app": "web"}});
    let with = |more: &Value| {
        let mut spec = web.clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    service(&api, "kubernetes-intranet", &web);
    service(&api, "mirrored", &json!({}));
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": {"namespace": "default", "name": "mirrored"},
        "subsets": [{"addresses": [{"ip": "10.1.0.2"}], "ports": [{"port": 8080}]}],
    });
    apply_at(&api, "api/v1/namespaces/default/endpoints/mirrored", &endpoints);
    forget_hurry_of_the_mirror(&api);
    service(&api, "first", &with(&json!({"externalIPs": ["203.0.113.7"]})));
    // Creation times have whole seconds, and the older service wins.
    pause(std::time::Duration::from_millis(1_100));
    service(&api, "second", &with(&json!({"externalIPs": ["203.0.113.7"]})));
    let port = |number: u16| {
        with(&json!({"type": "NodePort", "ports": [{"port": 80, "targetPort": 8080, "nodePort": number}]}))
    };
    service(&api, "hosted", &port(30_555));
    service(&api, "squatted", &port(30_556));
    service(&api, "proxied", &with(&json!({"type": "LoadBalancer"})));
    let ingress =
        json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.8", "ipMode": "Proxy"}]}}});
    api.merge_status(Kind::Service, "default/proxied", &ingress).unwrap();
    service(&api, "held", &json!({"ports": [{"port": 80}]}));
    slice(&api, "held", "", &json!([{"addresses": ["10.1.0.2"]}]));
    service(&api, "hidden", &web);
    service(&api, "elsewhere", &web);
    let label = json!({"metadata": {"labels": {"service.kubernetes.io/service-proxy-name": "other"}}});
    api.merge(Kind::Service, "default/elsewhere", &label).unwrap();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "hosting"},
        "spec": {"nodeName": NODE, "containers": [{"name": "it", "image": "none", "ports": [{"containerPort": 8080, "hostPort": 30_555}]}]},
    });
    api.apply_object(&pod).unwrap();
    let _squatter =
        bed.serve(Location::NODE, Role::Tcp, "squatter", "0.0.0.0:30556".parse().unwrap()).unwrap();
    let mut daemon = daemon(&cluster);

    expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/mirrored",
            findings: &["slices.manager info"],
            says: &["mirror an Endpoints object"],
            ..WELL
        },
    );
    let wanted = ExpectedDiagnosis {
        service: "default/proxied",
        findings: &["lb.ipmode info"],
        says: &["203.0.113.8"],
        ..WELL
    };
    shows("An external address that is the balancer's own", &expect_unprobed(&daemon, &wanted));
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/elsewhere",
            findings: &["svc.exists ok", "svc.handled info", "slices.counts skipped", "verdict skipped"],
            ..WELL
        },
    );
    shows("A Service that is another proxy's", &text);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/second",
            first: "frontend.collision",
            exit: 3,
            next: "Ask whose address it is meant to be",
            findings: &[],
            says: &["203.0.113.7:80", "default/first"],
        },
    );
    shows("An address that another Service has already", &text);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/hosted",
            first: "host.port-pods",
            exit: 3,
            next: "Give the pod another host port",
            findings: &[],
            says: &["default/hosting", "30555"],
        },
    );
    shows("A node port that a pod has as its host port", &text);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/squatted",
            first: "host.listener",
            exit: 1,
            next: "Look what that process is.",
            findings: &[],
            says: &["30556/TCP"],
        },
    );
    shows("A node port that a process has", &text);
    // A list that is lost within a minute after a relist is held for that reason.
    restart(&mut daemon);
    stage::expect(&daemon, "default/held", "serving 10.1.0.2:8080");
    slice(&api, "held", "", &Value::Null);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/held",
            first: "hold.state",
            exit: 1,
            next: "Find out who withdrew the endpoints",
            findings: &["slices.counts because hold.state", "verdict because hold.state"],
            says: &["HELD since"],
        },
    );
    shows("A slice that somebody emptied", &text);
    let slices =
        || Ok(api.service_slices("default/hidden")?.pop().filter(|it| it["endpoints"][0].is_object()));
    let name = stage::word(&until(SOON, "slice", slices).unwrap()["metadata"], "name");
    // Only controllers write that label, so the list is held despite it.
    let label = json!({"metadata": {"labels": {"service.kubernetes.io/headless": ""}}});
    api.merge(Kind::Slice, &format!("default/{name}"), &label).unwrap();
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/hidden",
            first: "slices.hidden",
            exit: 3,
            next: "Remove the label",
            findings: &["slices.hidden error", "hold.state because slices.hidden"],
            says: &[&name, "HELD since"],
        },
    );
    shows("A slice with a label that keeps proxies away", &text);
    empty(&cluster, &daemon, "default/kubernetes");
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/kubernetes-intranet",
            findings: &["frontend.collision ok", "verdict ok", "hold.state ok", "self.node ok"],
            ..WELL
        },
    );
    shows("A Service whose name begins with that of one that was emptied", &text);
    let dns = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "kube-system", "name": "kube-dns"},
        "spec": {"selector": {"k8s-app": "kube-dns"}, "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]},
    });
    api.apply_object(&dns).unwrap();
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/kubernetes-intranet",
            first: "dns.service",
            exit: 3,
            next: "diagnose kube-system/kube-dns",
            findings: &["dns.service error"],
            says: &["kube-system/kube-dns"],
        },
    );
    shows("A cluster whose DNS has no pods", &text);
    cluster.start_part(Part::Proxy).unwrap();
    cluster.stop(Part::Proxy).unwrap();
    restart(&mut daemon);
    expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/kubernetes-intranet",
            first: "dns.service",
            exit: 3,
            next: "diagnose kube-system/kube-dns",
            findings: &["foreign.leftover warning"],
            says: &["kube-proxy --cleanup"],
        },
    );
}

/// All services but one do not fit: the daemon must name them.
#[test]
fn a_full_map_reports_the_limit_to_raise() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let _web = serve_web(&cluster);
    service(&api, "first", &json!({"selector": {"app": "web"}}));
    service(&api, "second", &json!({"selector": {"app": "web"}}));
    let config = format!("{}[datapath.limits]\nfrontends = 1\n", stage::by_certificate(&cluster, 1));
    let mut daemon = served_daemon(&cluster, &config);
    daemon.start().unwrap();
    let out_of_room = || {
        let rows = stage::rows(&daemon, &["frontends"], "frontends");
        let mut rows = rows.iter().filter(|row| row["verdict"] == "unprogrammed");
        Ok(rows.find(|row| row["service"] != "default/kubernetes").map(|row| stage::word(row, "service")))
    };
    let service = until(SOON, "a service without room", out_of_room).unwrap();
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: &service,
            first: "self.maps",
            exit: 3,
            next: "Raise the limit that the error names",
            findings: &[
                "self.maps error",
                "verdict because self.maps",
                "probe.frontend skipped",
                "probe.backend ok",
            ],
            says: &["raise `datapath.limits.frontends`"],
        },
    );
    shows("Endpoints that are well, and a Service that found no room in the maps", &text);
}

fn serve_web(cluster: &Cluster) -> Server {
    let at = "10.1.0.2:8080".parse().unwrap();
    cluster.bed().serve(Location::pod("pod"), Role::Tcp, "web", at).unwrap()
}

/// A Service of both families, with source ranges of one.
fn dual(api: &Api<'_>) {
    let families = json!({
        "type": "LoadBalancer", "selector": {"app": "dual"}, "ipFamilyPolicy": "RequireDualStack",
        "loadBalancerSourceRanges": ["203.0.113.0/24"],
    });
    service(api, "dual", &families);
    let ingress =
        json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.10"}, {"ip": "2001:db8::10"}]}}});
    api.merge_status(Kind::Service, "default/dual", &ingress).unwrap();
    let pod = Pod { name: "default/dual-1", app: "dual", node: NODE, address: "10.1.0.7" };
    diagnosed::pods(api, &[pod]);
    let both = json!({"status": {"podIPs": [{"ip": "10.1.0.7"}, {"ip": "fd00:10:1::7"}]}});
    api.merge_status(Kind::Pod, pod.name, &both).unwrap();
}

#[test]
fn a_policy_that_denies_clients_or_a_family_is_reported() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    service(&api, "inside", &json!({"internalTrafficPolicy": "Local", "selector": {"app": "away"}}));
    dual(&api);
    let mut daemon = served_daemon(&cluster, &stage::by_certificate(&cluster, 1));
    daemon.start().unwrap();
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/inside",
            first: "policy.internal-local",
            exit: 3,
            next: "Set internalTrafficPolicy to Cluster",
            findings: &[
                "policy.internal-local error",
                "verdict because policy.internal-local",
                "probe.frontend because policy.internal-local",
            ],
            says: &["on n2"],
        },
    );
    shows("An internal policy of Local on a node without a pod", &text);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/dual",
            first: "policy.source-ranges",
            exit: 1,
            next: "Add a range of that family to loadBalancerSourceRanges",
            findings: &["policy.source-ranges warning", "slices.family ok", "verdict ok"],
            says: &["No source range is of IPv6"],
        },
    );
    shows("Source ranges of one family, and a Service of both", &text);
}
