//! `holdfast diagnose` for a broken Service, as text, as JSON and by its exit code.
//!
//! Invariant: each answer is checked as a whole: the first finding, the next step and the exit code are compared in
//! every case, and the text agrees with the JSON.

use std::process::Command;
use std::time::Duration;

use holdfast_fixtures::clock::pause;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Location, Neighbour, fabric};
use holdfast_tests::peers::{Api, Cluster, Kind, Pod, SOON, until};
use serde_json::{Value, json};

use crate::stage::{self, word};

/// The optional role, bound to the daemon as the manifest's comment says.
const BINDING: &str = include_str!("../../fixtures/diagnose-binding.yaml");

/// A control plane with one apiserver; its node has an address, forwards, and has a network of pods.
pub(crate) fn cluster_with_pods() -> Cluster {
    cluster_beside(Vec::new())
}

/// The same, with further networks.
pub(crate) fn cluster_beside(mut others: Vec<Neighbour>) -> Cluster {
    others.push(Neighbour {
        name: "pod",
        near: vec!["10.1.0.1/24"],
        far: vec!["10.1.0.2/24", "10.1.0.4/24"],
    });
    let cluster = stage::start_with_neighbours(others);
    fabric::set(cluster.bed(), Location::NODE, "ipv4/ip_forward", "1").unwrap();
    permit(&cluster);
    cluster
}

/// Grants the daemon what a diagnosis reads, and waits until the apiserver applies it.
pub(crate) fn permit(cluster: &Cluster) {
    cluster.api(0).unwrap().apply(BINDING).unwrap();
    wait_permitted(cluster, "pods", true);
    wait_permitted(cluster, "events", true);
}

/// Removes the rule about a resource from each role that has one.
pub(crate) fn forbid(cluster: &Cluster, resource: &str) {
    let api = cluster.api(0).unwrap();
    for name in ["holdfast", "holdfast-diagnose"] {
        let mut role = api.get(Kind::ClusterRole, name).unwrap().unwrap();
        let rules = role["rules"].as_array_mut().unwrap();
        rules.retain(|rule| rule["resources"] != json!([resource]));
        api.merge(Kind::ClusterRole, name, &json!({"rules": rules})).unwrap();
    }
    wait_permitted(cluster, resource, false);
}

fn wait_permitted(cluster: &Cluster, resource: &str, wanted: bool) {
    let api = cluster.api(0).unwrap();
    let what = json!({"verb": "list", "group": "", "resource": resource});
    let is_so = || Ok((stage::may(&api, (stage::USER, &[]), &what)? == wanted).then_some(()));
    until(SOON, "permission", is_so).unwrap();
}

/// A daemon in the cgroup that it serves: its own connections are served like those of any process.
pub(crate) fn served_daemon<'a>(cluster: &'a Cluster, config: &str) -> Daemon<'a> {
    Daemon::within(cluster.bed(), cluster.bed().cgroup().to_owned(), config).unwrap()
}

/// The expected result of a diagnosis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedDiagnosis<'a> {
    pub(crate) service: &'a str,
    /// The first finding; `-`: nothing is wrong.
    pub(crate) first: &'a str,
    pub(crate) exit: u64,
    /// A part of the next step.
    pub(crate) next: &'a str,
    /// `lb.pending warning`, and `lb.pending because lb.failing`.
    pub(crate) findings: &'a [&'a str],
    /// Further parts of the text.
    pub(crate) says: &'a [&'a str],
}

/// The most texts to request if one is less certain than the answer before it.
const TEXTS_MAX: usize = 10;

const LOOKED: Duration = Duration::from_secs(90);

/// The expected result without a finding, except for the name.
pub(crate) const WELL: ExpectedDiagnosis<'static> = ExpectedDiagnosis {
    service: "",
    first: "-",
    exit: 0,
    next: "",
    findings: &[],
    says: &["Nothing is wrong"],
};

/// A diagnosis with probes.
#[track_caller]
pub(crate) fn expect(daemon: &Daemon<'_>, wanted: &ExpectedDiagnosis<'_>) -> String {
    expect_by(daemon, SOON, &[], wanted)
}

/// A diagnosis of what the daemon itself must notice first: it checks its programs once a minute.
#[track_caller]
pub(crate) fn expect_once_looked(daemon: &Daemon<'_>, wanted: &ExpectedDiagnosis<'_>) -> String {
    expect_by(daemon, LOOKED, &[], wanted)
}

/// A diagnosis without probes, because no socket listens at the pods' addresses. Unchecked parts do not count as
/// healthy.
#[track_caller]
pub(crate) fn expect_unprobed(daemon: &Daemon<'_>, wanted: &ExpectedDiagnosis<'_>) -> String {
    let exit = if wanted.exit == 0 { 5 } else { wanted.exit };
    expect_by(daemon, SOON, &["--no-probe"], &ExpectedDiagnosis { exit, ..*wanted })
}

/// Changes take a moment from the apiserver to the daemon, and Events are read every five seconds.
#[track_caller]
fn expect_by(daemon: &Daemon<'_>, limit: Duration, more: &[&str], wanted: &ExpectedDiagnosis<'_>) -> String {
    let words = [&["diagnose", wanted.service][..], more].concat();
    let mut last = (Vec::new(), String::new());
    let found = until(limit, "the right diagnosis", || {
        let answer = as_json(daemon, &words);
        last = (differences(&answer, wanted), format!("{answer:#}"));
        // Soon after the diagnosis of another service, this one may not read Events.
        let is_early = last.1.contains("another diagnosis read Events");
        Ok((last.0.is_empty() && !is_early).then_some(answer))
    });
    let answer =
        found.unwrap_or_else(|error| panic!("{error} of {}: {:?}\n{}", wanted.service, last.0, last.1));
    as_text(daemon, &words, &answer, wanted)
}

fn as_json(daemon: &Daemon<'_>, words: &[&str]) -> Value {
    let (code, said) = daemon.answer(&[words, &["-o", "json"]].concat()).unwrap();
    let answer: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(code.and_then(|code| u64::try_from(code).ok()), answer["exit"].as_u64(), "{answer:#}");
    answer
}

fn differences(answer: &Value, wanted: &ExpectedDiagnosis<'_>) -> Vec<String> {
    let verdict = &answer["verdict"];
    let first = word(verdict, "finding");
    let next = word(&verdict["next"], "text");
    let mut differ = Vec::new();
    if first != wanted.first || answer["exit"] != wanted.exit {
        differ.push(format!("{first} and {}, not {} and {}", answer["exit"], wanted.first, wanted.exit));
    }
    if !next.contains(wanted.next) {
        differ.push(format!("the next step is {next:?}, not {:?}", wanted.next));
    }
    let all: Vec<String> = answer["findings"].as_array().unwrap().iter().flat_map(lines).collect();
    differ.extend(
        wanted.findings.iter().filter(|it| !all.iter().any(|line| line == *it)).map(|it| (*it).to_owned()),
    );
    differ.extend(unheard(answer));
    differ
}

fn lines(finding: &Value) -> [String; 2] {
    let id = word(finding, "id");
    [format!("{id} {}", word(finding, "state")), format!("{id} because {}", word(finding, "explained_by"))]
}

/// Requests that a busy apiserver did not answer in time: without them, a diagnosis is less certain.
fn unheard(answer: &Value) -> Vec<String> {
    let reads = answer["api"]["reads"].as_array().into_iter().flatten();
    let errors = reads.map(|read| format!("{}: {}", word(read, "what"), word(read, "error")));
    errors.filter(|error| error.contains("no answer within")).collect()
}

/// The text in one line, so that no break splits a phrase. A text that is less certain than the answer before it is
/// requested again.
#[track_caller]
fn as_text(daemon: &Daemon<'_>, words: &[&str], answer: &Value, wanted: &ExpectedDiagnosis<'_>) -> String {
    let is_likely = |text: &str| text.split("\n\n").nth(1).is_some_and(|said| said.contains("(likely)"));
    let likely = word(&answer["verdict"], "confidence") == "likely";
    let mut said = daemon.answer(words).unwrap();
    for _ in 0..TEXTS_MAX {
        if is_likely(&said.1) == likely {
            break;
        }
        pause(Duration::from_millis(500));
        said = daemon.answer(words).unwrap();
    }
    let (code, text) = said;
    assert_eq!(code.and_then(|code| u64::try_from(code).ok()), Some(wanted.exit), "{text}");
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let headline = word(&answer["verdict"], "headline");
    // Ages have grown by a second, and at a free address one probe times out and the next one gets an unreachable
    // host.
    let start = headline.split(" for ").next().and_then(|it| it.split(": ").next()).unwrap_or_default();
    for said in [start, wanted.next].iter().chain(wanted.says) {
        assert!(line.contains(said), "{said:?} is not in {text}");
    }
    text
}

/// Starts a service's pods and reports them as ready.
pub(crate) fn pods(api: &Api<'_>, pods: &[Pod<'_>]) {
    for pod in pods {
        pod.start(api).unwrap();
        pod.report(api, true).unwrap();
    }
}

/// Creates a Service with port 80 for the pods' port 8080 and these fields; returns its cluster IP.
pub(crate) fn service(api: &Api<'_>, name: &str, spec: &Value) -> String {
    let mut object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": name},
        "spec": {"ports": [{"port": 80, "targetPort": 8080}]},
    });
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    word(&api.apply_object(&object).unwrap()["spec"], "clusterIP")
}

/// Events about the objects of a name, as `kubectl get events` lists them.
pub(crate) fn events(api: &Api<'_>, namespace: &str, name: &str) -> Vec<Value> {
    let path = format!("api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}");
    let list = api.request("GET", &path, None).unwrap().object().unwrap();
    list["items"].as_array().cloned().unwrap_or_default()
}

/// Waits until an Event of this reason about the objects of a name has this count.
#[track_caller]
pub(crate) fn wait_event(api: &Api<'_>, name: &str, reason: &str, times: u64) -> Value {
    let mut last = Vec::new();
    let found = until(SOON, reason, || {
        last = events(api, "default", name);
        let mut of_it = last.iter().filter(|event| event["reason"] == reason);
        let count: u64 = of_it.clone().map(|event| event["count"].as_u64().unwrap_or(1)).sum();
        Ok(of_it.next_back().filter(|_| count >= times).cloned())
    });
    found.unwrap_or_else(|error| panic!("{error} of {name}: {last:#?}"))
}

/// Server-side apply of an object at an API path.
#[track_caller]
pub(crate) fn apply_at(api: &Api<'_>, path: &str, object: &Value) {
    let path = format!("{path}?force=true&fieldManager=holdfast-tests");
    let body = Some(("application/apply-patch+yaml", object.to_string()));
    let reply = api.request("PATCH", &path, body).unwrap();
    assert!(reply.status < 300, "{path}: {}", reply.text);
}

/// Restarts the daemon, which then has read no Events.
pub(crate) fn restart(daemon: &mut Daemon<'_>) {
    daemon.stop().unwrap();
    daemon.start().unwrap();
}

/// Moves the creation time of a Service this many minutes into the past.
pub(crate) fn make_older(cluster: &Cluster, service: &str, minutes: u64) {
    let then = ago(minutes);
    cluster
        .overwrite(Kind::Service, service, |it| it["metadata"]["creationTimestamp"] = then.into())
        .unwrap();
}

/// The time this many minutes ago, as in objects.
pub(crate) fn ago(minutes: u64) -> String {
    let since = format!("{minutes} minutes ago");
    let said = Command::new("date").args(["-u", "-d", &since, "+%FT%TZ"]).output().unwrap();
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}
