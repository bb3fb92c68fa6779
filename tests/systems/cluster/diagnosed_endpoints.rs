//! Wrong endpoints: deleted pods that are still listed, selectors without a match, pods on other nodes than the
//! traffic.

use std::net::TcpListener;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use holdfast_fixtures::clock::pause;
use holdfast_tests::bed::Location;
use holdfast_tests::bed::Role;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{Api, Cluster, Kind, Part, Pod, SOON, until};
use serde_json::{Value, json};

use crate::diagnosed::{self, ExpectedDiagnosis, WELL, ago, apply_at, expect, expect_unprobed};
use crate::guide::shows;
use crate::provoked;
use crate::stage;

const fn pod<'a>(name: &'a str, app: &'a str, node: &'a str, address: &'a str) -> Pod<'a> {
    Pod { name, app, node, address }
}

/// A control plane with a network of pods, and a daemon that may read what a diagnosis reads.
fn cluster() -> Cluster {
    let cluster = diagnosed::cluster_with_pods();
    cluster.api(0).unwrap().add_node("n2", "zone-b").unwrap();
    cluster
}

fn daemon(cluster: &Cluster) -> Daemon<'_> {
    let mut daemon = Daemon::new(cluster.bed(), &stage::by_certificate(cluster, 1)).unwrap();
    daemon.start().unwrap();
    daemon
}

/// A Service for the pods of one app.
fn service(api: &Api<'_>, name: &str, app: &str, spec: &Value) {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": name},
        "spec": {"selector": {"app": app}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    api.apply_object(&object).unwrap();
}

fn wait_endpoints(daemon: &Daemon<'_>, service: &str, count: usize) {
    let listed = || {
        let rows = stage::rows(daemon, &["frontends", service], "frontends");
        let backends = |row: &Value| row["backends"].as_array().map_or(0, Vec::len);
        Ok(rows.first().filter(|row| backends(row) == count).map(drop))
    };
    until(SOON, service, listed).unwrap();
}

fn lease(renewed: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"namespace": "kube-system", "name": "kube-controller-manager"},
        "spec": {"holderIdentity": "master-1", "renewTime": renewed.replace('Z', ".000000Z")},
    })
}

const LEASE: &str = "apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";

/// The controller's Event in a conflict.
const CONFLICT: (&str, &str, &str, &str, &str) =
    ("my-svc", "FailedToUpdateEndpointSlices", "endpoint-slice-controller", "Service", "api.conflict");

/// A second writer of the slice, which is always faster than its controller.
struct Conflict {
    /// A webhook that never answers, so that each of the controller's writes takes a second.
    _webhook: TcpListener,
}

const WEBHOOK: &str = "127.0.0.1:7443";

const HOOKS: &str = "apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/slow";

const CONTROLLER: &str = "system:serviceaccount:kube-system:endpointslice-controller";

impl Conflict {
    fn begin(cluster: &Cluster) -> Self {
        let webhook = cluster.bed().within(Location::NODE, || TcpListener::bind(WEBHOOK).unwrap()).unwrap();
        let rule = json!({"apiGroups": ["discovery.k8s.io"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["endpointslices"]});
        let hook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "slow"},
            "webhooks": [{
                "name": "slow.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 1,
                "failurePolicy": "Ignore", "clientConfig": {"url": format!("https://{WEBHOOK}/")}, "rules": [rule],
                "matchConditions": [{"name": "controller", "expression": format!("request.userInfo.username == '{CONTROLLER}'")}],
            }],
        });
        apply_at(&cluster.api(0).unwrap(), HOOKS, &hook);
        Self { _webhook: webhook }
    }

    /// Runs a closure while the other writer works.
    fn while_it_lasts(self, cluster: &Cluster, run: impl FnOnce()) {
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let writing = scope.spawn(|| write_until(cluster, &ends));
            // The scope waits for the writer, also when this fails.
            let ran = catch_unwind(AssertUnwindSafe(run));
            ends.store(true, Ordering::Relaxed);
            writing.join().unwrap();
            ran.unwrap_or_else(|panic| resume_unwind(panic));
        });
        cluster.api(0).unwrap().request("DELETE", HOOKS, None).unwrap();
    }
}

/// Touches the slice a few times during each write of the controller.
fn write_until(cluster: &Cluster, ends: &AtomicBool) {
    let api = cluster.api(0).unwrap();
    for turn in 0..WRITES_MAX {
        if ends.load(Ordering::Relaxed) {
            return;
        }
        for slice in api.service_slices("default/my-svc").unwrap() {
            let name = format!("default/{}", stage::word(&slice["metadata"], "name"));
            let part = json!({"metadata": {"annotations": {"turn": turn.to_string()}}});
            api.merge(Kind::Slice, &name, &part).unwrap();
        }
        pause(Duration::from_millis(200));
    }
}

/// Two minutes, after which a test has failed.
const WRITES_MAX: usize = 600;

#[test]
fn a_deleted_pod_among_endpoints_is_reported_with_ordered_remedies() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let pods = [
        pod("default/my-app-1", "my-app", "n1", "10.1.0.2"),
        pod("default/my-app-2", "my-app", "n2", "10.1.0.9"),
        pod("default/leaving-1", "leaving", "n1", "10.1.0.5"),
        pod("default/evicted-1", "evicted", "n1", "10.1.0.6"),
    ];
    let _web = cluster
        .bed()
        .serve(Location::pod("pod"), Role::Tcp, "web", "10.1.0.2:8080".parse().unwrap())
        .unwrap();
    for (name, app) in [("my-svc", "my-app"), ("leaving", "leaving"), ("evicted", "evicted")] {
        service(&api, name, app, &json!({}));
    }
    diagnosed::pods(&api, &pods);
    let daemon = daemon(&cluster);
    for (name, count) in [("my-svc", 2), ("leaving", 1), ("evicted", 1)] {
        wait_endpoints(&daemon, &format!("default/{name}"), count);
    }
    let conflict = Conflict::begin(&cluster);
    pods[1].gone(&api).unwrap();
    conflict.while_it_lasts(&cluster, || {
        provoked::expect(&api, "default", &[CONFLICT]);
        let text = expect(
            &daemon,
            &ExpectedDiagnosis {
                service: "default/my-svc",
                first: "slices.stale",
                exit: 3,
                next: "Touch the Service",
                findings: &[
                    "slices.stale error",
                    "probe.backend because slices.stale",
                    "events.list warning",
                ],
                says: &[
                    "10.1.0.9 (no pod my-app-2 matches the selector)",
                    "1 in 2 new connections",
                    "says FailedToUpdateEndpointSlices of Service my-svc",
                    "Two writers changed the same object",
                ],
            },
        );
        shows("A deleted pod that is still an endpoint", &text);
        let place = |said: &str| text.find(said).unwrap_or_else(|| panic!("{said} in {text}"));
        assert!(
            place("Touch the Service") < place("Delete that slice")
                && place("Delete that slice") < place("Restart kube-controller-manager")
        );
        assert!(!text.contains("annotate endpointslice"), "{text}");
        cluster.stop(Part::Controllers).unwrap();
    });

    pods[2].terminate(&api).unwrap();
    let wanted = ExpectedDiagnosis { service: "default/leaving", findings: &["slices.stale ok"], ..WELL };
    shows("A pod that is being deleted", &expect_unprobed(&daemon, &wanted));
    api.merge_status(Kind::Pod, pods[3].name, &json!({"status": {"phase": "Failed", "reason": "Evicted"}}))
        .unwrap();
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/evicted",
            first: "slices.stale",
            exit: 3,
            next: "Touch the Service",
            findings: &[],
            says: &["evicted-1 has ended (Evicted)"],
        },
    );
    shows("A pod that was evicted and is still an endpoint", &text);
    apply_at(&api, LEASE, &lease(&ago(8)));
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/my-svc",
            first: "controller.alive",
            exit: 3,
            next: "Start kube-controller-manager",
            findings: &["slices.stale because controller.alive"],
            says: &["8 min"],
        },
    );
    shows("A controller of slices that does not renew its Lease", &text);
    apply_at(&api, LEASE, &lease(&ago(0)));
    diagnosed::pods(&api, &[pod("default/my-app-2", "my-app", "n2", "10.1.0.4")]);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/my-svc",
            first: "slices.stale",
            exit: 3,
            next: "Touch the Service",
            findings: &["slices.stale error", "slices.missing error"],
            says: &["my-app-2 is another pod by now"],
        },
    );
    shows("A pod that was made anew under its name", &text);
    diagnosed::forbid(&cluster, "pods");
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/my-svc",
            first: "probe.backend",
            exit: 1,
            next: "Look at",
            findings: &["slices.stale unknown", "pods.match unknown", "probe.backend warning"],
            says: &["1 of 2 backends fails: 10.1.0.9:8080"],
        },
    );
    shows("A deleted pod that is still an endpoint, where pods may not be read", &text);
    api.apply_object(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "other-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "other"}},
        "ports": [{"name": "", "port": 8080}],
        "endpoints": [{"addresses": ["10.1.0.9"], "targetRef": {"kind": "Pod", "namespace": "default", "name": "other-1", "uid": "u9"}}],
    })).unwrap();
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/my-svc",
            first: "slices.stale",
            exit: 3,
            next: "Touch the Service",
            findings: &["slices.stale error", "probe.backend because slices.stale"],
            says: &["two pods at once", "default/other-1"],
        },
    );
    shows("An address that two Services' slices say is a pod of theirs", &text);
}

#[test]
fn a_selector_without_matches_differs_from_intended_absence() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let scaled = [
        pod("default/scaled-1", "scaled", "n1", "10.1.0.5"),
        pod("default/scaled-2", "scaled", "n2", "10.1.0.6"),
    ];
    for (name, app) in [("typo", "my-app"), ("scaled", "scaled"), ("unready", "unready")] {
        service(&api, name, app, &json!({}));
    }
    diagnosed::pods(&api, &scaled);
    diagnosed::pods(&api, &[pod("default/my-app-7d5bc-xyz12", "myapp", "n1", "10.1.0.2")]);
    let late = pod("default/unready-1", "unready", "n1", "10.1.0.7");
    late.start(&api).unwrap();
    late.report(&api, false).unwrap();
    let daemon = daemon(&cluster);
    wait_endpoints(&daemon, "default/scaled", 2);
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/typo",
            first: "pods.selector-typo",
            exit: 3,
            next: "Correct the selector",
            findings: &[
                "slices.counts because pods.selector-typo",
                "verdict because pods.selector-typo",
                "pods.match because pods.selector-typo",
            ],
            says: &[
                "app=my-app matches 0 pods. 1 pod has app=myapp",
                r#"kubectl -n default patch service typo -p '{"spec":{"selector":{"app":"myapp"}}}'"#,
            ],
        },
    );
    shows("A selector that is nearly right", &text);
    diagnosed::pods(&api, &[pod("default/my-apq-1", "my-apq", "n1", "10.1.0.8")]);
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/typo",
            first: "pods.selector-typo",
            exit: 3,
            next: "Correct the selector",
            findings: &[],
            says: &["app=myapp", "app=my-apq"],
        },
    );
    shows("A selector that is nearly right twice", &text);
    assert!(!text.contains("patch service"), "which of the two is meant is not known: {text}");
    expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/unready",
            first: "pods.unready",
            exit: 3,
            next: "Mend what keeps the pod from being ready",
            findings: &["slices.counts because pods.unready", "verdict because pods.unready"],
            says: &["unready-1"],
        },
    );
    for pod in &scaled {
        pod.terminate(&api).unwrap();
    }
    stage::expect(&daemon, "default/scaled", "draining 10.1.0.5:8080 10.1.0.6:8080");
    for pod in &scaled {
        pod.gone(&api).unwrap();
    }
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/scaled",
            first: "pods.scaled-to-zero",
            exit: 3,
            next: "Scale the workload up",
            findings: &[
                "pods.selector-typo skipped",
                "slices.counts because pods.scaled-to-zero",
                "verdict because pods.scaled-to-zero",
            ],
            says: &[],
        },
    );
    shows("A workload that was scaled to zero", &text);
    diagnosed::forbid(&cluster, "pods");
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/typo",
            first: "slices.counts",
            exit: 3,
            next: "Let this node list pods in default",
            findings: &["pods.match unknown", "verdict because slices.counts"],
            says: &["pods"],
        },
    );
    shows("A selector that is nearly right, where pods may not be read", &text);
}

#[test]
fn external_policy_local_is_judged_by_its_possible_clients() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let local = json!({"externalTrafficPolicy": "Local", "type": "LoadBalancer"});
    service(&api, "balanced", "away", &local);
    service(&api, "dialled", "away", &json!({"externalTrafficPolicy": "Local", "type": "NodePort"}));
    diagnosed::pods(
        &api,
        &[pod("default/away-1", "away", "n2", "10.1.0.2"), pod("default/away-2", "away", "n2", "10.1.0.4")],
    );
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.10"}]}}});
    api.merge_status(Kind::Service, "default/balanced", &ingress).unwrap();
    let daemon = daemon(&cluster);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/balanced",
            findings: &["policy.external-local info", "lb.health-port ok"],
            says: &["on n2", "podAntiAffinity on kubernetes.io/hostname"],
            ..WELL
        },
    );
    shows("An external policy of Local on a node without a pod", &text);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/dialled",
            first: "policy.external-local",
            exit: 1,
            next: "Set externalTrafficPolicy to Cluster",
            findings: &["policy.external-local warning"],
            says: &["Who dials this node from outside waits in vain"],
        },
    );
    shows("An external policy of Local without a load balancer", &text);
    let excluded =
        json!({"metadata": {"labels": {"node.kubernetes.io/exclude-from-external-load-balancers": "true"}}});
    api.merge(Kind::Node, "n2", &excluded).unwrap();
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/balanced",
            first: "policy.external-local",
            exit: 3,
            next: "Set externalTrafficPolicy to Cluster",
            findings: &["policy.external-local error"],
            says: &["No load balancer sends anybody to those nodes"],
        },
    );
    shows("An external policy of Local whose pods are on nodes that no load balancer uses", &text);
}
