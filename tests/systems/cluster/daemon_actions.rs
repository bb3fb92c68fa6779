//! Daily actions on a Service by the real controllers, and their effect on its list: accidents must be held, and
//! intended changes refused.
//!
//! Invariant: each action is a row of the table in docs/explain.md, and the Service's history may show only what the
//! row says. Each has its own namespace, Service and pods, so none affects another.

use std::collections::BTreeSet;

use holdfast_fixtures::TEST_TIMEOUT;
use holdfast_tests::bed::Layout;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{Api, Cluster, Kind, Kubelet, Part, PeersError, until};
use serde_json::{Value, json};

use crate::stage::{self, rows, word};

const PAGE: &str = include_str!("../../../docs/explain.md");

/// Short, so that the test sees the end of a hold, and longer than any gap that controllers leave.
const HOLD: &str = "[hold]\nlimit = \"8s\"\nprobe_interval = \"500ms\"\n";

/// At how many looks in a row the state is the expected one.
const LOOKS: usize = 10;

/// The node that is lost; the pods that live run on the other one.
const OTHER: &str = "n2";

/// An action of an operator, or an accident of a node.
struct Action {
    /// Its name on the page.
    name: &'static str,
    /// The pods' controller.
    workload: Workload,
    /// The pods' node.
    node: &'static str,
    act: fn(&Stage<'_>),
    /// The states that clients may see meanwhile, besides `serving`.
    may: &'static [&'static str],
    /// The state at the end; `gone`: the Service is deleted.
    end: &'static str,
}

#[derive(Clone, Copy)]
enum Workload {
    Rolling,
    /// All pods end before the first new one starts.
    Recreate,
    Stateful,
}

const ACTIONS: [Action; 13] = [
    Action {
        name: "a rolling update of a Deployment",
        workload: Workload::Rolling,
        node: stage::NODE,
        act: |stage| stage.edit_template(&json!({"metadata": {"labels": {"version": "2"}}})),
        may: &[],
        end: "serving",
    },
    Action {
        name: "a rolling update to pods that never become ready",
        workload: Workload::Rolling,
        node: stage::NODE,
        act: |stage| stage.edit_template(&json!({"metadata": {"annotations": {"test/broken": "yes"}}})),
        may: &[],
        end: "serving",
    },
    Action {
        name: "an update with the strategy Recreate",
        workload: Workload::Recreate,
        node: stage::NODE,
        act: |stage| stage.edit_template(&json!({"metadata": {"labels": {"version": "2"}}})),
        may: &["draining scaled-down", "refusing scaled-down", "refusing all-unready"],
        end: "serving",
    },
    Action {
        name: "a Deployment scaled to zero",
        workload: Workload::Rolling,
        node: stage::NODE,
        act: |stage| stage.edit(Kind::Deployment, &json!({"spec": {"replicas": 0}})),
        may: &["draining scaled-down", "refusing scaled-down"],
        end: "refusing scaled-down",
    },
    Action {
        name: "a Deployment deleted",
        workload: Workload::Rolling,
        node: stage::NODE,
        act: |stage| stage.api.delete(Kind::Deployment, &stage.own("web")).unwrap(),
        may: &["draining scaled-down", "refusing scaled-down"],
        end: "refusing scaled-down",
    },
    Action {
        name: "the only pod of a StatefulSet deleted",
        workload: Workload::Stateful,
        node: stage::NODE,
        act: |stage| stage.api.delete_within(Kind::Pod, &stage.own("web-0"), 30).unwrap(),
        may: &["draining scaled-down", "refusing scaled-down", "refusing all-unready"],
        end: "serving",
    },
    Action {
        name: "the only pod of a StatefulSet deleted by force",
        workload: Workload::Stateful,
        node: stage::NODE,
        act: |stage| stage.api.delete(Kind::Pod, &stage.own("web-0")).unwrap(),
        may: &[
            "held vanished",
            "draining scaled-down",
            "refusing scaled-down",
            "refusing all-unready",
            "refusing probes-failed",
            "refusing hold-expired",
        ],
        end: "serving",
    },
    Action {
        name: "the Service's selector changed to other pods",
        workload: Workload::Rolling,
        node: stage::NODE,
        act: |stage| stage.select_others(),
        may: &[],
        end: "serving",
    },
    Action {
        name: "the Service's selector changed to nobody's label",
        workload: Workload::Rolling,
        node: stage::NODE,
        act: |stage| stage.select("nobody"),
        may: &["held vanished", "refusing probes-failed", "refusing hold-expired"],
        end: "refusing",
    },
    Action {
        name: "its EndpointSlices deleted by hand",
        workload: Workload::Rolling,
        node: stage::NODE,
        act: |stage| stage.delete_slices(),
        may: &["held vanished"],
        end: "serving",
    },
    Action {
        name: "the Service deleted",
        workload: Workload::Rolling,
        node: stage::NODE,
        act: |stage| stage.api.delete(Kind::Service, &stage.own("web")).unwrap(),
        may: &[],
        end: "gone",
    },
    Action {
        name: "its namespace deleted",
        workload: Workload::Rolling,
        node: stage::NODE,
        act: |stage| stage.api.delete(Kind::Namespace, &stage.namespace).unwrap(),
        may: &["held vanished", "draining scaled-down", "refusing scaled-down", "refusing probes-failed"],
        end: "gone",
    },
    Action {
        name: "the node of all its pods lost, and their eviction",
        workload: Workload::Rolling,
        node: OTHER,
        act: |stage| stage.lose_node(),
        may: &["refusing all-unready"],
        end: "refusing all-unready",
    },
];

/// The row of the page.
fn line(action: &Action) -> String {
    let meanwhile = if action.may.is_empty() { "`serving`".to_owned() } else { quoted(action.may) };
    format!("| {} | {meanwhile} | `{}` |", action.name, action.end)
}

fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// The place of an action.
struct Stage<'a> {
    api: &'a Api<'a>,
    kubelet: &'a std::cell::RefCell<Kubelet>,
    namespace: String,
}

impl Stage<'_> {
    fn own(&self, name: &str) -> String {
        format!("{}/{name}", self.namespace)
    }

    fn edit(&self, kind: Kind, part: &Value) {
        self.api.merge(kind, &self.own("web"), part).unwrap();
    }

    fn edit_template(&self, template: &Value) {
        self.edit(Kind::Deployment, &json!({"spec": {"template": template}}));
    }

    fn select(&self, app: &str) {
        self.edit(Kind::Service, &json!({"spec": {"selector": {"app": app}}}));
    }

    /// Deploys other pods, and selects them once they are ready.
    fn select_others(&self) {
        self.deploy("other", Workload::Rolling, stage::NODE);
        let all = || {
            self.kubelet.borrow_mut().work(self.api)?;
            let pods = self.api.pods(&self.namespace)?;
            let ready = |pod: &&Value| {
                pod["metadata"]["labels"]["app"] == "other" && pod["status"]["podIP"].is_string()
            };
            Ok((pods.iter().filter(ready).count() == 2).then_some(()))
        };
        until(TEST_TIMEOUT, "other pods", all).unwrap();
        self.select("other");
    }

    fn delete_slices(&self) {
        for slice in self.api.service_slices(&self.own("web")).unwrap() {
            let name = slice["metadata"]["name"].as_str().unwrap();
            self.api.delete(Kind::Slice, &self.own(name)).unwrap();
        }
    }

    /// Stops the kubelet of a node: the lease is not renewed, and the controllers mark its pods as unready and delete
    /// them, but no kubelet ends them.
    fn lose_node(&self) {
        self.kubelet.borrow_mut().lose(OTHER);
        let evicted = || {
            self.kubelet.borrow_mut().work(self.api)?;
            let pods = self.api.pods(&self.namespace)?;
            let own = |pod: &&Value| pod["spec"]["nodeName"] == OTHER && pod["status"]["podIP"].is_string();
            let ends = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
            Ok(pods.iter().filter(own).all(ends).then_some(()))
        };
        until(TEST_TIMEOUT, "eviction", evicted).unwrap();
    }

    /// Deploys two pods, or one with a stable name, that tolerate the loss of their node for a second.
    fn deploy(&self, app: &str, workload: Workload, node: &str) {
        let for_a_second = |key: &str| {
            let effect = "NoExecute";
            json!({"key": key, "operator": "Exists", "effect": effect, "tolerationSeconds": 1})
        };
        let lost = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"].map(for_a_second);
        let (kind, replicas) = match workload {
            Workload::Stateful => ("StatefulSet", 1),
            Workload::Rolling | Workload::Recreate => ("Deployment", 2),
        };
        let mut spec = json!({
            "replicas": replicas,
            "selector": {"matchLabels": {"app": app}},
            "template": {
                "metadata": {"labels": {"app": app}},
                "spec": {"nodeName": node, "tolerations": lost, "containers": [{"name": "it", "image": "none"}]},
            },
        });
        match workload {
            Workload::Stateful => spec["serviceName"] = json!(app),
            Workload::Recreate => spec["strategy"] = json!({"type": "Recreate"}),
            Workload::Rolling => {
                spec["strategy"] = json!({"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}});
            }
        }
        let metadata = json!({"namespace": self.namespace, "name": app});
        let object = json!({"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec});
        self.api.apply_object(&object).unwrap();
    }

    /// Creates a namespace with a Service and its pods.
    fn set(&self, action: &Action) {
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}});
        self.api.apply_object(&namespace).unwrap();
        self.kubelet.borrow_mut().serve(&self.namespace);
        let service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"namespace": self.namespace, "name": "web"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
        });
        self.api.apply_object(&service).unwrap();
        self.deploy("web", action.workload, action.node);
    }
}

/// `serving` or `refusing scaled-down`; `gone` if there is no row. In a daemon's first minute, each lost list has the
/// reason `resync`.
fn met(daemon: &Daemon<'_>, service: &str) -> String {
    let rows = rows(daemon, &["frontends", service], "frontends");
    let Some(row) = rows.first() else { return "gone".to_owned() };
    said(&word(row, "verdict"), row["reason"].as_str())
}

fn said(verdict: &str, reason: Option<&str>) -> String {
    let reason = reason.map(|reason| if reason == "resync" { "vanished" } else { reason });
    [Some(verdict), reason].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Runs the kubelets until a Service has the expected state and the workload is done.
#[track_caller]
fn wait(stage: &Stage<'_>, daemon: &Daemon<'_>, end: &str) {
    let (service, mut last, mut looks) = (stage.own("web"), String::new(), 0);
    let ended = until(TEST_TIMEOUT, end, || {
        stage.kubelet.borrow_mut().work(stage.api)?;
        let now = met(daemon, &service);
        let is_same = now == last && now.starts_with(end) && is_settled(stage)?;
        (last, looks) = (now, if is_same { looks + 1 } else { 0 });
        Ok((looks == LOOKS).then_some(()))
    });
    ended.unwrap_or_else(|error| {
        panic!("{error}: {service} is {last:?}\n{}", daemon.tell(&["history", &service]).unwrap())
    });
}

/// Whether every pod on a live node is reported with its address, and none is terminating.
fn is_settled(stage: &Stage<'_>) -> Result<bool, PeersError> {
    let pods = stage.api.pods(&stage.namespace)?;
    let is_lost = |pod: &Value| pod["spec"]["nodeName"] == OTHER;
    let is_settled =
        |pod: &Value| pod["status"]["podIP"].is_string() && pod["metadata"]["deletionTimestamp"].is_null();
    Ok(pods.iter().all(|pod| is_lost(pod) || is_settled(pod)))
}

/// The states of clients in the history, after they were first served.
fn history(daemon: &Daemon<'_>, service: &str) -> BTreeSet<String> {
    let told = daemon.tell(&["history", service, "-o", "json"]).unwrap();
    let records: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let transitions =
        records.iter().flat_map(|record| record["transitions"].as_array().into_iter().flatten());
    let met = transitions.map(|it| &it["after"]).filter(|it| it.is_object());
    let met = met.map(|it| said(&word(it, "verdict"), it["reason"].as_str()));
    met.skip_while(|it| it != "serving").collect()
}

#[track_caller]
fn check(stage: &Stage<'_>, daemon: &Daemon<'_>, action: &Action) {
    stage.set(action);
    wait(stage, daemon, "serving");
    (action.act)(stage);
    wait(stage, daemon, action.end);
    let seen = history(daemon, &stage.own("web"));
    println!("{}: {seen:?}", action.name);
    let legal = |it: &&String| it.as_str() != "serving" && !action.may.contains(&it.as_str());
    let wrong: Vec<_> = seen.iter().filter(legal).collect();
    let told = || daemon.tell(&["history", &stage.own("web")]).unwrap();
    assert!(wrong.is_empty(), "{}: {wrong:?}\n{}", action.name, told());
}

#[test]
fn real_controllers_accidents_are_held_and_intents_refused() {
    let missing: Vec<_> = ACTIONS.iter().map(line).filter(|line| !PAGE.contains(line.as_str())).collect();
    assert!(missing.is_empty(), "docs/explain.md has no:\n{}", missing.join("\n"));
    let cluster = Cluster::start(Layout::default(), 1).unwrap();
    stage::prepare(&cluster, 1);
    let api = cluster.api(0).unwrap();
    api.add_node(OTHER, "zone-b").unwrap();
    let kubelet = std::cell::RefCell::new(Kubelet::for_nodes(&[stage::NODE, OTHER]));
    kubelet.borrow_mut().work(&api).unwrap();
    cluster.start_part(Part::WorkloadControllers).unwrap();
    // The node controller notices the lost node within that time, and renews the other one many times in it.
    cluster.start_part_with(Part::NodeControllers, &["--node-monitor-grace-period=8s"]).unwrap();
    let config = stage::by_certificate(&cluster, 1) + HOLD;
    let mut daemon = Daemon::new(cluster.bed(), &config).unwrap();
    daemon.start().unwrap();
    for (number, action) in ACTIONS.iter().enumerate() {
        let stage = Stage { api: &api, kubelet: &kubelet, namespace: format!("row-{number}") };
        check(&stage, &daemon, action);
    }
}
