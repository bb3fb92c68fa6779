//! A pending load balancer: upstream's own service-controller, with a cloud that fails.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use holdfast_knowledge::Knowledge;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{Api, Cluster, Kind, Part, Pod, SOON, until};
use serde_json::{Value, json};

use crate::diagnosed::{
    self, ExpectedDiagnosis, WELL, ago, apply_at, expect_unprobed, make_older, restart, wait_event,
};
use crate::guide::shows;
use crate::stage;

const POD: Pod<'static> = Pod { name: "default/web-1", app: "web", node: "n1", address: "10.1.0.2" };

/// Clouds' messages, each with its cause.
const MESSAGES: &str = include_str!("../../../daemon/knowledge/src/tests/fixtures/messages.tsv");

const ENSURE: &str = "Error syncing load balancer: failed to ensure load balancer: ";

/// Longer than an operator waits for an address without asking why.
const MINUTES: u64 = 11;

/// A control plane with a pod for `app: web`, and a daemon with all permissions of a diagnosis.
fn cluster() -> Cluster {
    let cluster = diagnosed::cluster_with_pods();
    diagnosed::pods(&cluster.api(0).unwrap(), &[POD]);
    cluster
}

fn daemon(cluster: &Cluster) -> Daemon<'_> {
    Daemon::new(cluster.bed(), &stage::by_certificate(cluster, 1)).unwrap()
}

/// A load balancer that gets this answer from its cloud.
fn balancer(api: &Api<'_>, name: &str, annotations: &Value, spec: &Value) {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": "default", "name": name, "annotations": annotations},
        "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    api.apply_object(&object).unwrap();
}

/// Changes the Service, so that the controller retries at once.
fn touch(api: &Api<'_>, name: &str, time: usize) {
    let part = json!({"metadata": {"annotations": {"touched": time.to_string()}}});
    api.merge(Kind::Service, &format!("default/{name}"), &part).unwrap();
}

/// Makes the Service eleven minutes old with three failed attempts.
fn fail_three_times(cluster: &Cluster, name: &str) {
    let api = cluster.api(0).unwrap();
    for time in 1..=3 {
        wait_event(&api, name, "SyncLoadBalancerFailed", time);
        if time < 3 {
            touch(&api, name, usize::try_from(time).unwrap());
        }
    }
    make_older(cluster, &format!("default/{name}"), MINUTES);
}

/// Each cause of a cloud's message, with the message.
fn of_clouds() -> Vec<(String, &'static str, &'static str)> {
    let rows = MESSAGES.lines().filter_map(|line| {
        let cause = line.split('\t').nth(3).filter(|cause| *cause != "-")?;
        Some((cause, line.split_once(ENSURE)?.1)).filter(|_| line.starts_with("SyncLoadBalancerFailed"))
    });
    rows.enumerate().map(|(place, (cause, said))| (format!("cloud-{place}"), cause, said)).collect()
}

#[test]
fn each_clouds_refusal_is_reported_with_cause_and_remedy() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    cluster.start_part(Part::CloudControllers).unwrap();
    let all = of_clouds();
    assert!(all.len() >= 14, "{all:?}");
    for (name, _, said) in &all {
        balancer(&api, name, &json!({"cloud.test/ensure": said}), &json!({}));
    }
    for (name, ..) in &all {
        fail_three_times(&cluster, name);
    }
    let mut daemon = daemon(&cluster);
    for (name, id, said) in &all {
        daemon.start().unwrap();
        let (service, cause) = (format!("default/{name}"), format!("({id})"));
        let said = said.split_whitespace().next().unwrap();
        let next = first_remedy(id, name);
        let text = expect_unprobed(
            &daemon,
            &ExpectedDiagnosis {
                service: &service,
                first: "lb.failing",
                exit: 3,
                next: &next,
                findings: &[
                    "lb.pending because lb.failing",
                    "events.list because lb.failing",
                    "verdict ok",
                    "lb.no-controller ok",
                    "lb.stuck-ensuring ok",
                    "lb.controller-alive ok",
                ],
                says: &[&cause, said],
            },
        );
        if *id == LIMITED {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for remedy in ["Wait", "in batches", "a higher limit of calls", "AWS_MAX_ATTEMPTS=10"] {
                assert!(text.contains(remedy), "{remedy} is not in {text}");
            }
        }
        if name == "cloud-0" {
            shows("An external address that does not come", &text);
        }
        daemon.stop().unwrap();
    }
}

/// The cause in this load balancer's case.
const LIMITED: &str = "cloud.rate_limited";

/// The catalogue's first remedy for a cause.
fn first_remedy(cause: &str, service: &str) -> String {
    let cause = Knowledge::built_in().cause(cause).unwrap();
    let words: Vec<&str> = cause.remedy[0].action.split_whitespace().collect();
    words.join(" ").replace("{ns}", "default").replace("{name}", service)
}

/// After this many different messages of one reason about one object, client-go's recorder combines the rest.
const SIMILAR: usize = 10;

/// A refusal with another number each time.
fn request(number: usize) -> String {
    format!("RequestLimitExceeded: Request limit exceeded. Request id {number}")
}

#[test]
fn each_part_of_a_combined_message_keeps_its_cause() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    cluster.start_part(Part::CloudControllers).unwrap();
    for number in 1..=SIMILAR + 2 {
        let said = json!({"cloud.test/ensure": request(number)});
        balancer(&api, "similar", &said, &json!({}));
        let is_said = || {
            let all = diagnosed::events(&api, "default", "similar");
            let ends =
                |it: &&Value| it["message"].as_str().is_some_and(|text| text.ends_with(&request(number)));
            Ok(all.iter().find(ends).cloned())
        };
        let event = until(SOON, "an Event", is_said).unwrap();
        let is_combined = event["message"].as_str().unwrap().starts_with("(combined from similar events): ");
        assert_eq!(is_combined, number >= SIMILAR, "{event:#}");
    }
    // Single Events expire after an hour; the combined one is left.
    for event in diagnosed::events(&api, "default", "similar") {
        let is_single = event["message"].as_str().is_some_and(|text| !text.starts_with("(combined"));
        if is_single && event["reason"] == "SyncLoadBalancerFailed" {
            let path =
                format!("api/v1/namespaces/default/events/{}", stage::word(&event["metadata"], "name"));
            api.request("DELETE", &path, None).unwrap();
        }
    }
    make_older(&cluster, "default/similar", MINUTES);
    let mut daemon = daemon(&cluster);
    daemon.start().unwrap();
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/similar",
            first: "lb.failing",
            exit: 3,
            next: "Wait: the controller tries again by itself",
            findings: &["lb.pending because lb.failing", "events.list because lb.failing", "verdict ok"],
            says: &[
                "(cloud.rate_limited)",
                "(SyncLoadBalancerFailed: Error syncing load balancer: failed to ensure load balancer: RequestLimitExceeded",
            ],
        },
    );
    shows("A failure that is told with others like it in one Event", &text);
}

/// Lets the daemon watch Events, as the comment in its role says.
fn let_follow(cluster: &Cluster) {
    let api = cluster.api(0).unwrap();
    let mut role = api.get(Kind::ClusterRole, "holdfast-diagnose").unwrap().unwrap();
    for rule in role["rules"].as_array_mut().unwrap() {
        if rule["resources"] == json!(["events"]) {
            rule["verbs"] = json!(["list", "watch"]);
        }
    }
    api.merge(Kind::ClusterRole, "holdfast-diagnose", &json!({"rules": role["rules"]})).unwrap();
    let what = json!({"verb": "watch", "group": "", "resource": "events"});
    let permitted = || Ok(stage::may(&api, (stage::USER, &[]), &what)?.then_some(()));
    until(SOON, "permission", permitted).unwrap();
}

/// Waits for a line of the metrics.
fn wait_metric(daemon: &Daemon<'_>, line: &str) {
    let is_there = || {
        let mut stream = UnixStream::connect(daemon.socket()).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        Ok(text.contains(line).then_some(()))
    };
    until(SOON, line, is_there).unwrap_or_else(|error| panic!("{error}; {}", daemon.logged()));
}

#[test]
fn a_pending_addresss_metric_has_the_cause_from_events() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let_follow(&cluster);
    let config = stage::by_certificate(&cluster, 1) + "[kubernetes]\nevents_read = \"watch\"\n";
    let mut daemon = Daemon::new(cluster.bed(), &config).unwrap();
    daemon.start().unwrap();
    wait_metric(&daemon, "holdfast_event_source_up{source=\"services\"} 1");
    cluster.start_part(Part::CloudControllers).unwrap();
    balancer(&api, "limited", &json!({"cloud.test/ensure": request(1)}), &json!({}));
    wait_event(&api, "limited", "SyncLoadBalancerFailed", 1);
    let labels = format!("service=\"limited\",condition=\"lb_pending\",cause=\"{LIMITED}\"");
    wait_metric(&daemon, &labels);
}

#[test]
fn a_missing_balancer_controller_differs_from_a_busy_one() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let none = json!({});
    balancer(&api, "nobody", &none, &none);
    make_older(&cluster, "default/nobody", MINUTES);
    let mut daemon = daemon(&cluster);
    daemon.start().unwrap();
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/nobody",
            first: "lb.no-controller",
            exit: 3,
            next: "Look whether a controller runs",
            findings: &["lb.pending because lb.no-controller", "verdict ok"],
            says: &["for 11 m", "(likely)"],
        },
    );
    shows("A load balancer that nobody makes", &text);
    let lease = |renewed: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": "kube-system", "name": "cloud-controller-manager"},
            "spec": {"holderIdentity": "master-1", "renewTime": renewed.replace('Z', ".000000Z")},
        })
    };
    let path = "apis/coordination.k8s.io/v1/namespaces/kube-system/leases/cloud-controller-manager";
    apply_at(&api, path, &lease(&ago(20)));
    restart(&mut daemon);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/nobody",
            first: "lb.controller-alive",
            exit: 3,
            next: "Start cloud-controller-manager",
            findings: &[
                "lb.no-controller because lb.controller-alive",
                "lb.pending because lb.controller-alive",
            ],
            says: &["20 m"],
        },
    );
    shows("A controller of load balancers that does not renew its Lease", &text);
    // Upstream's controller ignores a Service with a class.
    balancer(&api, "classed", &none, &json!({"loadBalancerClass": "example.com/lb"}));
    make_older(&cluster, "default/classed", MINUTES);
    cluster.start_part(Part::CloudControllers).unwrap();
    wait_event(&api, "nobody", "EnsuredLoadBalancer", 1);
    restart(&mut daemon);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/classed",
            first: "lb.class-unserved",
            exit: 3,
            next: "controller of that class",
            findings: &["lb.pending because lb.class-unserved", "lb.no-controller ok"],
            says: &["example.com/lb"],
        },
    );
    shows("A class of load balancers that nobody serves", &text);
    restart(&mut daemon);
    expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/nobody",
            findings: &["lb.state ok", "lb.pending ok", "lb.controller-alive skipped"],
            ..WELL
        },
    );
}

/// Writes an Event as third-party controllers do.
fn event(api: &Api<'_>, name: &str, reason: &str, (component, kind): (&str, &str), message: &str) {
    let service = api.get(Kind::Service, &format!("default/{name}")).unwrap().unwrap();
    let now = ago(0);
    let object = json!({
        "apiVersion": "v1", "kind": "Event", "type": kind, "reason": reason, "message": message, "count": 3,
        "metadata": {"namespace": "default", "name": format!("{name}.{}", reason.to_lowercase())},
        "involvedObject": {"apiVersion": "v1", "kind": "Service", "namespace": "default", "name": name, "uid": service["metadata"]["uid"]},
        "source": {"component": component}, "firstTimestamp": ago(10), "lastTimestamp": now,
    });
    let reply = api
        .request("POST", "api/v1/namespaces/default/events", Some(("application/json", object.to_string())))
        .unwrap();
    assert_eq!(reply.status, 201, "{}", reply.text);
}

/// Checks that no finding is about the load balancer. The controllers here may write other Events about the service,
/// such as of its slices, which are valid findings.
#[track_caller]
fn expect_no_balancer_at_fault(daemon: &Daemon<'_>, service: &str) -> String {
    let words = ["diagnose", service, "--no-probe"];
    let mut last = String::new();
    let well = until(SOON, "a balancer that is well", || {
        last = daemon.answer(&[&words[..], &["-o", "json"]].concat())?.1;
        let answer: Value = serde_json::from_str(&last).unwrap();
        let state = |id: &str| {
            answer["findings"].as_array().unwrap().iter().any(|it| it["id"] == id && it["state"] == "ok")
        };
        let first = answer["verdict"]["finding"].as_str().unwrap_or_default();
        let is_well = ["lb.state", "lb.pending", "lb.stuck-ensuring"].into_iter().all(state);
        Ok((is_well && !first.starts_with("lb.")).then_some(()))
    });
    well.unwrap_or_else(|error| panic!("{error}: {last}"));
    daemon.answer(&words).unwrap().1
}

#[test]
fn other_controllers_events_are_understood_and_forbidden_ones_reported() {
    let cluster = cluster();
    let api = cluster.api(0).unwrap();
    let none = json!({});
    for name in ["pool", "k3s", "forged"] {
        balancer(&api, name, &none, &none);
        make_older(&cluster, &format!("default/{name}"), MINUTES);
    }
    let mut daemon = daemon(&cluster);
    event(
        &api,
        "pool",
        "AllocationFailed",
        ("metallb-controller", "Warning"),
        "Failed to allocate IP for \"default/pool\": no available IPs",
    );
    daemon.start().unwrap();
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/pool",
            first: "lb.failing",
            exit: 3,
            next: "pool",
            findings: &["lb.pending because lb.failing"],
            says: &["(cloud.ip_pool_exhausted)", "no available IPs"],
        },
    );
    shows("A pool of addresses that is empty, in the words of MetalLB", &text);
    for (reason, message) in [
        ("EnsuringLoadBalancer", "Ensuring load balancer"),
        ("AppliedDaemonSet", "Applied LoadBalancer DaemonSet kube-system/svclb-k3s-8a1f"),
    ] {
        event(&api, "k3s", reason, ("service-controller", "Normal"), message);
    }
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.168.1.10"}]}}});
    api.merge_status(Kind::Service, "default/k3s", &ingress).unwrap();
    restart(&mut daemon);
    let text = expect_no_balancer_at_fault(&daemon, "default/k3s");
    shows("A load balancer of k3s, which is made by pods and says no more than that", &text);
    let long = format!(
        "\u{1b}[31m\u{202e}Error syncing load balancer: failed to ensure load balancer: QuotaExceeded {}",
        "x".repeat(100_000)
    );
    event(&api, "forged", "SyncLoadBalancerFailed", ("service-controller", "Warning"), &long);
    restart(&mut daemon);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/forged",
            first: "lb.failing",
            exit: 3,
            next: "Ask the provider for a higher quota",
            findings: &["lb.pending because lb.failing"],
            says: &["(cloud.quota)"],
        },
    );
    assert!(text.len() < 16_384 && !text.contains(['\u{1b}', '\u{202e}']), "{text}");
    diagnosed::forbid(&cluster, "events");
    restart(&mut daemon);
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/pool",
            first: "lb.pending",
            exit: 1,
            next: "Let this node list events in default",
            findings: &["events.readable unknown", "lb.no-controller ok", "lb.stuck-ensuring ok"],
            says: &["list", "events"],
        },
    );
    shows("An external address that does not come, where Events may not be read", &text);
}
