//! What people and controllers do to a Service every day, by the real controllers, and what becomes of its list: what
//! is held must be an accident, and what is refused must be meant.
//!
//! Invariant: each action is a row of the table in docs/explain.md, and nothing but what the row says may appear in the
//! history of the Service. Each has a namespace, a Service and pods of its own, so none is told of another.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use holdfast_tests::bed::Layout;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::peers::{Api, Cluster, Kind, Kubelet, Part, PeersError, until};
use serde_json::{Value, json};

use crate::stage::{self, rows, word};

const PAGE: &str = include_str!("../../../docs/explain.md");

/// Short, so that the end of a hold is seen, and longer than any gap that controllers leave.
const HOLD: &str = "[hold]\nlimit = \"8s\"\nprobe_interval = \"500ms\"\n";

/// Controllers take seconds for what a person does, on a busy machine more.
const DONE_WITHIN: Duration = Duration::from_secs(60);

/// Nothing else may come after the end.
const STAYS: Duration = Duration::from_millis(700);

/// The node of the pods that live, and the one that is lost.
const OTHER: &str = "n2";

/// One thing that an operator does, or that befalls a node.
struct Action {
    /// As the page calls it.
    name: &'static str,
    /// The controller that has the pods.
    workload: Workload,
    /// Where they run.
    node: &'static str,
    act: fn(&Stage<'_>),
    /// What clients may meet meanwhile, beside `serving`.
    may: &'static [&'static str],
    /// What they meet at the end; `gone`: the Service is not there any more.
    end: &'static str,
}

#[derive(Clone, Copy)]
enum Workload {
    Rolling,
    /// All pods end before the first new one is made.
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

/// Where an action happens.
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

    /// They are there and ready before the Service turns to them.
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
        until(DONE_WITHIN, "other pods", all).unwrap();
        self.select("other");
    }

    fn delete_slices(&self) {
        for slice in self.api.slices_of(&self.own("web")).unwrap() {
            let name = slice["metadata"]["name"].as_str().unwrap();
            self.api.delete(Kind::Slice, &self.own(name)).unwrap();
        }
    }

    /// The kubelet renews the node's lease no more; the node's pods are called unready, and are then asked to end,
    /// which no kubelet does for them.
    fn lose_node(&self) {
        self.kubelet.borrow_mut().lose(OTHER);
        let evicted = || {
            self.kubelet.borrow_mut().work(self.api)?;
            let pods = self.api.pods(&self.namespace)?;
            let own = |pod: &&Value| pod["spec"]["nodeName"] == OTHER && pod["status"]["podIP"].is_string();
            let ends = |pod: &Value| pod["metadata"]["deletionTimestamp"].is_string();
            Ok(pods.iter().filter(own).all(ends).then_some(()))
        };
        until(DONE_WITHIN, "eviction", evicted).unwrap();
    }

    /// Two pods, or one with a name of its own, that tolerate the loss of their node for a second.
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

    /// A namespace with a Service and its pods.
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

/// `serving`, `refusing scaled-down`; `gone` where no row is. Whatever vanishes in a daemon's first minute is called
/// `resync`.
fn met(daemon: &Daemon<'_>, service: &str) -> String {
    let rows = rows(daemon, &["frontends", "--service", service], "frontends");
    let Some(row) = rows.first() else { return "gone".to_owned() };
    said(&word(row, "verdict"), row["reason"].as_str())
}

fn said(verdict: &str, reason: Option<&str>) -> String {
    let reason = reason.map(|reason| if reason == "resync" { "vanished" } else { reason });
    [Some(verdict), reason].into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Lets the kubelets work until a Service is as it should be, and the workload has come to its end.
#[track_caller]
fn wait(stage: &Stage<'_>, daemon: &Daemon<'_>, end: &str) {
    let (service, mut last, mut since) = (stage.own("web"), String::new(), Instant::now());
    let ended = until(DONE_WITHIN, end, || {
        stage.kubelet.borrow_mut().work(stage.api)?;
        let now = met(daemon, &service);
        if now != last || !now.starts_with(end) || !is_settled(stage)? {
            (last, since) = (now, Instant::now());
        }
        Ok((last.starts_with(end) && since.elapsed() > STAYS).then_some(()))
    });
    ended.unwrap_or_else(|error| {
        panic!("{error}: {service} is {last:?}\n{}", daemon.tell(&["history", &service]).unwrap())
    });
}

/// Every pod on a live node has been told of with its address, and none of these is still to end.
fn is_settled(stage: &Stage<'_>) -> Result<bool, PeersError> {
    let pods = stage.api.pods(&stage.namespace)?;
    let is_lost = |pod: &Value| pod["spec"]["nodeName"] == OTHER;
    let is_settled =
        |pod: &Value| pod["status"]["podIP"].is_string() && pod["metadata"]["deletionTimestamp"].is_null();
    Ok(pods.iter().all(|pod| is_lost(pod) || is_settled(pod)))
}

/// What clients met in the history, after the first time that they were served.
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
    let kubelet = std::cell::RefCell::new(Kubelet::of(&[stage::NODE, OTHER]));
    kubelet.borrow_mut().work(&api).unwrap();
    cluster.start_part(Part::WorkloadControllers).unwrap();
    // The lost node is missed within that time; the other one is looked after in it many times.
    cluster.start_part_with(Part::NodeControllers, &["--node-monitor-grace-period=8s"]).unwrap();
    let config = stage::by_certificate(&cluster, 1) + HOLD;
    let mut daemon = Daemon::new(cluster.bed(), &config).unwrap();
    daemon.start().unwrap();
    for (number, action) in ACTIONS.iter().enumerate() {
        let stage = Stage { api: &api, kubelet: &kubelet, namespace: format!("row-{number}") };
        check(&stage, &daemon, action);
    }
}
