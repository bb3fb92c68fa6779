//! Events of the real components: each is provoked by its real cause, and each is recognised.
//!
//! Invariant: no test here writes an Event. Each message has a line in the catalogue's fixtures, marked as seen in a
//! run.

use holdfast_knowledge::ClusterEvent;
use holdfast_knowledge::expected_event::ExpectedEvent;
use holdfast_tests::bed::{Location, Role};
use holdfast_tests::peers::{Api, Cluster, Kind, Part, Pod, SOON, until};
use serde_json::{Value, json};

use crate::diagnosed::{apply_at, events, pods, wait_event};
use crate::stage::{self, NODE};

/// An Event: the object's name, the reason, the reporter, the object's kind, and its cause in the catalogue.
type Expected<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

/// Waits for each Event, and compares its cause in the catalogue.
#[track_caller]
pub(crate) fn expect(api: &Api<'_>, namespace: &str, expected: &[Expected<'_>]) {
    for (object, reason, component, kind, cause) in expected {
        let heard = ExpectedEvent { reason, component, kind, cause };
        let event = wait(api, namespace, object, heard);
        heard.verify(&ClusterEvent::from_json(&event)).unwrap_or_else(|why| panic!("{why}: {event:#}"));
    }
}

/// The expected Event among those about that object.
#[track_caller]
fn wait(api: &Api<'_>, namespace: &str, object: &str, heard: ExpectedEvent<'_>) -> Value {
    let mut last = Vec::new();
    let found = until(SOON, heard.reason, || {
        last = events(api, namespace, object);
        Ok(last.iter().find(|event| heard.matches(&ClusterEvent::from_json(event))).cloned())
    });
    found.unwrap_or_else(|error| panic!("{error} ({heard}) of {object}: {last:#?}"))
}

pub(crate) fn service(api: &Api<'_>, namespace: &str, name: &str, spec: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    api.apply_object(&object).unwrap()
}

fn namespace(api: &Api<'_>, name: &str) {
    api.apply_object(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).unwrap();
}

/// A namespace with a quota that rejects the endpoint controllers' writes.
fn full_namespace(api: &Api<'_>) {
    namespace(api, "full");
    let counted =
        |number: &str| json!({"count/endpoints": number, "count/endpointslices.discovery.k8s.io": number});
    let path = "api/v1/namespaces/full/resourcequotas/none";
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "none"}});
    let with = |part: &str, value: Value| {
        let mut quota = quota.clone();
        quota[part] = value;
        quota
    };
    apply_at(api, path, &with("spec", json!({"hard": counted("0")})));
    let status = with("status", json!({"hard": counted("0"), "used": counted("0")}));
    apply_at(api, &format!("{path}/status"), &status);
}

/// A namespace with a webhook without a server.
fn hooked_namespace(api: &Api<'_>) {
    namespace(api, "hooked");
    let rule = |group: &str, resource: &str| json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": [resource]});
    let hook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "check"},
        "webhooks": [{
            "name": "check.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "hooked"}},
            "rules": [rule("", "endpoints"), rule("discovery.k8s.io", "endpointslices")],
        }],
    });
    apply_at(api, "apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/check", &hook);
}

/// What blocks the writes of endpoints in each.
const NAMESPACES: [(&str, &str); 2] = [("full", "api.quota"), ("hooked", "api.webhook")];

const SLICES: &str = "endpoint-slice-controller";

const ENDPOINTS: &str = "endpoint-controller";

#[test]
fn controllers_events_explain_missing_endpoints() {
    let cluster = stage::start_with_node_address();
    let api = cluster.api(0).unwrap();
    full_namespace(&api);
    hooked_namespace(&api);
    for (place, (namespace, cause)) in NAMESPACES.into_iter().enumerate() {
        let name = format!("web-{namespace}");
        service(&api, namespace, &name, &json!({}));
        let pod = format!("{namespace}/web-1");
        pods(&api, &[Pod { name: &pod, app: "web", node: NODE, address: &format!("10.1.0.{}", place + 2) }]);
        expect(&api, namespace, &[(&name, "FailedToUpdateEndpointSlices", SLICES, "Service", cause)]);
        // The Event's object has no namespace, so the Event is in the default one.
        expect(&api, "default", &[(&name, "FailedToCreateEndpoint", ENDPOINTS, "Endpoints", cause)]);
    }
    many_addresses(&api);
    invalid_address(&cluster, &api);
    hinted(&api);
    without_rights(&api);
}

/// Endpoints that a user wrote, more than are mirrored.
fn many_addresses(api: &Api<'_>) {
    api.apply_object(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "many"}, "spec": {"ports": [{"port": 80}]},
    })).unwrap();
    let addresses: Vec<Value> =
        (0..1_001).map(|it| json!({"ip": format!("10.2.{}.{}", it / 250, it % 250 + 1)})).collect();
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": {"namespace": "default", "name": "many"},
        "subsets": [{"addresses": addresses, "ports": [{"port": 8080}]}],
    });
    apply_at(api, "api/v1/namespaces/default/endpoints/many", &endpoints);
    expect(
        api,
        "default",
        &[("many", "TooManyAddressesToMirror", "endpoint-slice-mirroring-controller", "Endpoints", "-")],
    );
}

/// An address that no apiserver accepts today, as an older one may have stored.
fn invalid_address(cluster: &Cluster, api: &Api<'_>) {
    let first = |object: &mut Value| {
        *object.pointer_mut("/subsets/0/addresses/0/ip").unwrap() = json!("10.2.0.x");
    };
    cluster.overwrite(Kind::Endpoints, "default/many", first).unwrap();
    let by = "endpoint-slice-mirroring-controller";
    expect(api, "default", &[("many", "InvalidIPAddress", by, "Endpoints", "-")]);
}

/// Hints that cannot be computed, because no node reports its capacity.
fn hinted(api: &Api<'_>) {
    service(api, "default", "zoned", &json!({}));
    let annotation = json!({"metadata": {"annotations": {"service.kubernetes.io/topology-mode": "Auto"}}});
    api.merge(Kind::Service, "default/zoned", &annotation).unwrap();
    pods(api, &[Pod { name: "default/web-1", app: "web", node: NODE, address: "10.1.0.9" }]);
    expect(api, "default", &[("zoned", "TopologyAwareHintsDisabled", SLICES, "Service", "zone.nodes")]);
    // Two zones with capacity and as many endpoints in each. The controller reconciles when a zone changes.
    api.add_node("n2", "zone-b").unwrap();
    for node in [NODE, "n2"] {
        api.merge_status(Kind::Node, node, &json!({"status": {"allocatable": {"cpu": "4"}}})).unwrap();
    }
    let zone = json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "zone-c"}}});
    api.merge(Kind::Node, "n2", &zone).unwrap();
    for number in 1..=6_u8 {
        let (name, address) = (format!("default/zoned-{number}"), format!("10.1.1.{number}"));
        let node = if number % 2 == 0 { NODE } else { "n2" };
        pods(api, &[Pod { name: &name, app: "web", node, address: &address }]);
    }
    expect(api, "default", &[("zoned", "TopologyAwareHintsEnabled", SLICES, "Service", "-")]);
}

/// Removes the controllers' write permissions, as in a clean-up of roles.
fn without_rights(api: &Api<'_>) {
    for role in ["endpoint-controller", "endpointslice-controller"] {
        let name = format!("system:controller:{role}");
        let mut rules = api.get(Kind::ClusterRole, &name).unwrap().unwrap()["rules"].take();
        for rule in rules.as_array_mut().unwrap() {
            rule["verbs"].as_array_mut().unwrap().retain(|verb| *verb != "create" && *verb != "update");
        }
        rules.as_array_mut().unwrap().retain(|rule| rule["verbs"] != json!([]));
        // Events are still permitted.
        rules.as_array_mut().unwrap().push(json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"]}));
        api.merge(Kind::ClusterRole, &name, &json!({"rules": rules})).unwrap();
        let user = format!("system:serviceaccount:kube-system:{role}");
        let what = json!({"verb": "create", "group": "", "resource": "endpoints"});
        let other = json!({"verb": "create", "group": "discovery.k8s.io", "resource": "endpointslices"});
        let denied = || {
            Ok((!stage::may(api, (&user, &[]), &what)? && !stage::may(api, (&user, &[]), &other)?)
                .then_some(()))
        };
        until(SOON, "denial", denied).unwrap();
    }
    service(api, "default", "denied", &json!({}));
    pods(api, &[Pod { name: "default/web-2", app: "web", node: NODE, address: "10.1.0.8" }]);
    expect(
        api,
        "default",
        &[
            ("denied", "FailedToCreateEndpoint", ENDPOINTS, "Endpoints", "api.forbidden"),
            ("denied", "FailedToUpdateEndpointSlices", SLICES, "Service", "api.forbidden"),
            ("zoned", "FailedToUpdateEndpoint", ENDPOINTS, "Endpoints", "api.forbidden"),
        ],
    );
}

const ADDRESSES: &str = "ipallocator-repair-controller";

const PORTS: &str = "portallocator-repair-controller";

/// Changes a Service in etcd, behind the apiservers.
pub(crate) fn rewrite(cluster: &Cluster, name: &str, pointer: &str, value: &Value) {
    let change = |object: &mut Value| *object.pointer_mut(pointer).unwrap() = value.clone();
    cluster.overwrite(Kind::Service, &format!("default/{name}"), change).unwrap();
}

fn readdress(cluster: &Cluster, name: &str, address: &str) {
    rewrite(cluster, name, "/spec/clusterIP", &json!(address));
    rewrite(cluster, name, "/spec/clusterIPs", &json!([address]));
}

/// An IPAddress object with this parent.
fn address(api: &Api<'_>, address: &str, parent: &Value) {
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": address, "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io", "ipaddress.kubernetes.io/ip-family": "IPv4"}},
        "spec": {"parentRef": parent},
    });
    apply_at(api, &format!("apis/networking.k8s.io/v1/ipaddresses/{address}"), &object);
}

#[test]
fn apiserver_events_explain_wrong_addresses_and_ports() {
    let cluster = stage::start_with_node_address();
    let api = cluster.api(0).unwrap();
    let of = |name: &str| {
        service(&api, "default", name, &json!({}))["spec"]["clusterIP"].as_str().unwrap().to_owned()
    };
    let (first, lost) = (of("first"), of("lost"));
    for name in ["second", "outside", "invalid"] {
        of(name);
    }
    for name in ["port-first", "port-second", "port-outside", "port-lost"] {
        service(&api, "default", name, &json!({"type": "NodePort"}));
    }
    readdress(&cluster, "second", &first);
    readdress(&cluster, "outside", "10.99.0.9");
    readdress(&cluster, "invalid", "192.168.0.x");
    address(
        &api,
        "192.168.77.1",
        &json!({"resource": "configmaps", "namespace": "default", "name": "first"}),
    );
    address(&api, "192.168.77.2", &json!({"resource": "services", "namespace": "default", "name": "first"}));
    api.request("DELETE", &format!("apis/networking.k8s.io/v1/ipaddresses/{lost}"), None).unwrap();
    api.merge(Kind::Service, "default/lost", &json!({"metadata": {"annotations": {"touched": "1"}}}))
        .unwrap();
    expect(
        &api,
        "default",
        &[
            ("lost", "ClusterIPNotAllocated", ADDRESSES, "Service", "-"),
            ("second", "ClusterIPAlreadyAllocated", ADDRESSES, "Service", "ip.conflict"),
            ("outside", "ClusterIPOutOfRange", ADDRESSES, "Service", "ip.out_of_range"),
            ("invalid", "ClusterIPNotValid", ADDRESSES, "Service", "ip.invalid"),
            ("192.168.77.1", "IPAddressNotAllocated", ADDRESSES, "IPAddress", "-"),
            ("192.168.77.2", "IPAddressWrongReference", ADDRESSES, "IPAddress", "-"),
        ],
    );
    // An apiserver checks ports at its start, and then every three minutes.
    let port =
        api.get(Kind::Service, "default/port-first").unwrap().unwrap()["spec"]["ports"][0]["nodePort"].take();
    let at = "/spec/ports/0/nodePort";
    rewrite(&cluster, "port-second", at, &port);
    rewrite(&cluster, "port-outside", at, &json!(20_080));
    let free = (30_000..32_767).map(Value::from).find(|it| *it != port).unwrap();
    rewrite(&cluster, "port-lost", at, &free);
    cluster.kill(Part::Apiserver(0)).unwrap();
    cluster.start_part(Part::Apiserver(0)).unwrap();
    expect(
        &api,
        "default",
        &[
            ("port-second", "PortAlreadyAllocated", PORTS, "Service", "port.nodeport_taken"),
            ("port-outside", "PortOutOfRange", PORTS, "Service", "port.nodeport_range"),
            ("port-lost", "PortNotAllocated", PORTS, "Service", "-"),
        ],
    );
}

/// A pod with a host port.
fn hosting(api: &Api<'_>, name: &str, node: Option<&str>) {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name},
        "spec": {
            "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
            "containers": [{"name": "it", "image": "none", "ports": [{"containerPort": 8080, "hostPort": 8080}]}],
        },
    });
    if let Some(node) = node {
        pod["spec"]["nodeName"] = node.into();
    }
    api.apply_object(&pod).unwrap();
}

#[test]
fn events_about_nodes_and_load_balancers_are_recognised() {
    let cluster = stage::start_with_node_address();
    let api = cluster.api(0).unwrap();
    let room = json!({"status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110"}}});
    api.merge_status(Kind::Node, NODE, &room).unwrap();
    hosting(&api, "hosting-1", Some(NODE));
    hosting(&api, "hosting-2", None);
    cluster.start_part(Part::Scheduler).unwrap();
    cluster.start_part(Part::CloudControllers).unwrap();
    balancers(&api);
    let plain = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "plain"},
        "spec": {"tolerations": [{"operator": "Exists"}], "containers": [{"name": "it", "image": "none"}]},
    });
    api.apply_object(&plain).unwrap();
    expect(
        &api,
        "default",
        &[
            ("hosting-2", "FailedScheduling", "default-scheduler", "Pod", "port.same_hostport"),
            ("plain", "Scheduled", "default-scheduler", "Pod", "-"),
        ],
    );
    taken_health_port(&cluster, &api);
    tied_controllers(&cluster, &api);
    lost_nodes(&api);
}

const CLOUD: &str = "service-controller";

fn answers(api: &Api<'_>, name: &str, annotations: &Value) {
    api.merge(Kind::Service, &format!("default/{name}"), &json!({"metadata": {"annotations": annotations}}))
        .unwrap();
}

/// A load balancer through its whole life.
fn balancers(api: &Api<'_>) {
    let balanced = json!({"type": "LoadBalancer"});
    for name in ["made", "stuck", "leaving"] {
        service(api, "default", name, &balanced);
        wait_event(api, name, "EnsuredLoadBalancer", 1);
    }
    service(api, "default", "silent", &balanced);
    answers(api, "silent", &json!({"cloud.test/ensure": "nil"}));
    answers(
        api,
        "stuck",
        &json!({"cloud.test/update": "LoadBalancerNotFound: There is no ACTIVE Load Balancer named 'a1'"}),
    );
    answers(
        api,
        "leaving",
        &json!({"cloud.test/delete": "DependencyViolation: resource sg-1 has a dependent object"}),
    );
    wait_event(api, "stuck", "EnsuredLoadBalancer", 2);
    api.add_node("n2", "zone-b").unwrap();
    api.merge(Kind::Service, "default/leaving", &json!({"spec": {"type": "ClusterIP"}})).unwrap();
    expect(
        api,
        "default",
        &[
            ("made", "EnsuringLoadBalancer", CLOUD, "Service", "-"),
            ("made", "EnsuredLoadBalancer", CLOUD, "Service", "-"),
            ("made", "UpdatedLoadBalancer", CLOUD, "Service", "-"),
            ("silent", "SyncLoadBalancerFailed", CLOUD, "Service", "lb.nil_status"),
            ("stuck", "UpdateLoadBalancerFailed", CLOUD, "Service", "cloud.lb_not_found"),
            ("leaving", "DeletingLoadBalancer", CLOUD, "Service", "-"),
            ("leaving", "SyncLoadBalancerFailed", CLOUD, "Service", "cloud.dependency"),
        ],
    );
    answers(api, "leaving", &json!({"cloud.test/delete": null}));
    let excluded =
        json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": "true"}}});
    for node in [NODE, "n2"] {
        api.merge(Kind::Node, node, &excluded).unwrap();
    }
    expect(
        api,
        "default",
        &[
            ("leaving", "DeletedLoadBalancer", CLOUD, "Service", "-"),
            ("made", "UnAvailableLoadBalancer", CLOUD, "Service", "cloud.no_nodes"),
        ],
    );
    unfinalized(api);
}

/// A Service that the cloud fails to delete; then its finalizer is removed.
fn unfinalized(api: &Api<'_>) {
    let refused =
        "OperationNotPermitted: Load balancer 'a1' cannot be deleted because deletion protection is enabled";
    answers(api, "stuck", &json!({"cloud.test/delete": refused}));
    wait_event(api, "stuck", "EnsuredLoadBalancer", 3);
    api.delete(Kind::Service, "default/stuck").unwrap();
    let cause = "cloud.active_connections";
    expect(api, "default", &[("stuck", "SyncLoadBalancerFailed", CLOUD, "Service", cause)]);
    api.merge(Kind::Service, "default/stuck", &json!({"metadata": {"finalizers": null}})).unwrap();
    expect(api, "default", &[("stuck", "DeleteLoadBalancerFailed", CLOUD, "Service", cause)]);
}

/// Another process has the port of kube-proxy's health check.
fn taken_health_port(cluster: &Cluster, api: &Api<'_>) {
    let service = service(
        api,
        "default",
        "checked",
        &json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"}),
    );
    let port = service["spec"]["healthCheckNodePort"].as_u64().unwrap();
    let at = format!("0.0.0.0:{port}").parse().unwrap();
    let _taker = cluster.bed().serve(Location::NODE, Role::Tcp, "taker", at).unwrap();
    cluster.start_part(Part::Proxy).unwrap();
    expect(
        api,
        "default",
        &[("checked", "FailedToStartServiceHealthcheck", "kube-proxy", "Service", "health.port_taken")],
    );
    cluster.stop(Part::Proxy).unwrap();
}

/// Removes the node controllers' write permissions until they report it.
fn tied_controllers(cluster: &Cluster, api: &Api<'_>) {
    pods(api, &[Pod { name: "default/web-1", app: "web", node: NODE, address: "10.1.0.2" }]);
    let role = "system:controller:node-controller";
    let whole = api.get(Kind::ClusterRole, role).unwrap().unwrap()["rules"].take();
    let mut less = whole.clone();
    let of_nodes = |rule: &&mut Value| rule["resources"] == json!(["nodes"]);
    for rule in less.as_array_mut().unwrap().iter_mut().filter(of_nodes) {
        rule["verbs"].as_array_mut().unwrap().retain(|verb| verb == "get" || verb == "list");
    }
    api.merge(Kind::ClusterRole, role, &json!({"rules": less})).unwrap();
    let user = "system:serviceaccount:kube-system:node-controller";
    for verb in ["patch", "delete"] {
        let what = json!({"verb": verb, "group": "", "resource": "nodes"});
        until(SOON, "denial", || Ok((!stage::may(api, (user, &[]), &what)?).then_some(()))).unwrap();
    }
    api.merge(Kind::Node, "n2", &json!({"metadata": {"annotations": {"cloud.test/gone": "yes"}}})).unwrap();
    cluster.start_part(Part::NodeControllers).unwrap();
    let by = "cloud-node-lifecycle-controller";
    expect(
        api,
        "default",
        &[
            (NODE, "CIDRAssignmentFailed", "cidrAllocator", "Node", "ip.pod_pool"),
            ("n2", "DeletingNode", by, "Node", "-"),
            ("n2", "DeletingNodeFailed", by, "Node", "api.forbidden"),
        ],
    );
    api.merge(Kind::ClusterRole, role, &json!({"rules": whole})).unwrap();
    // The only address range belongs to the node that stays.
    let is_gone = || Ok(api.get(Kind::Node, "n2")?.is_none().then_some(()));
    until(SOON, "end of a node", is_gone).unwrap();
    api.merge(Kind::Node, NODE, &json!({"metadata": {"annotations": {"touched": "1"}}})).unwrap();
    let has_range = || Ok(api.get(Kind::Node, NODE)?.filter(|node| node["spec"]["podCIDR"].is_string()));
    until(SOON, "range of a node", has_range).unwrap();
}

/// A node without a machine, and one that is left.
fn lost_nodes(api: &Api<'_>) {
    api.add_node("n3", "zone-c").unwrap();
    let taints = json!({"spec": {"taints": [{"key": "leave", "effect": "NoExecute"}]}});
    expect(
        api,
        "default",
        &[
            ("n3", "CIDRNotAvailable", "cidrAllocator", "Node", "ip.pod_pool"),
            (NODE, "RegisteredNode", "node-controller", "Node", "-"),
            (NODE, "NodeNotReady", "node-controller", "Node", "-"),
            ("web-1", "NodeNotReady", "node-controller", "Pod", "-"),
        ],
    );
    api.merge(Kind::Node, NODE, &taints).unwrap();
    expect(
        api,
        "default",
        &[
            ("web-1", "TaintManagerEviction", "taint-eviction-controller", "Pod", "-"),
            ("n2", "RemovingNode", "node-controller", "Node", "-"),
        ],
    );
}
