//! End to end: a folder of manifests, the engine, the admin API, and curl as the client.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use expect_test::{Expect, expect};
use holdfast_agent::engine::run::{CHANGES_WAITING_MAX, EngineChannels, GROUPS_WAITING_MAX, run};
use holdfast_agent::readings::{About, Readings};
use holdfast_agent::recorder::{History, Recorder};
use holdfast_api::{self as admin, AdminServer, Settings};
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{Settings as Facts, Timestamp};
use holdfast_core::hold::{OnEmpty, Policy};
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::Snapshot;
use holdfast_evidence::event_watcher::EventStatus;
use holdfast_fixtures::clock::{await_event, pause, wait_for};
use holdfast_standalone::manifests::Manifests;
use holdfast_status::record::Record;
use holdfast_tests::readings;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

/// The daemon's parts, connected as in the program, over maps in memory.
struct Daemon {
    runtime: Runtime,
    folder: TempDir,
    admin: AdminServer,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    // Dropping it ends the engine and the folder's watcher.
    _stop: watch::Sender<bool>,
}

impl Daemon {
    fn start(files: &[(&str, &str)]) -> Self {
        let folder = TempDir::new().unwrap();
        files.iter().for_each(|(name, text)| write(folder.path(), name, text));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (stop, stopping) = watch::channel(false);
        let (snapshots, history) = start_engine(&runtime, folder.path(), &stopping);
        let admin = start_admin(folder.path(), snapshots.clone(), history);
        let mut daemon = Self { runtime, folder, admin, snapshots, _stop: stop };
        daemon.wait_for(|snapshot| snapshot.published.0 > 0 && snapshot.is_synced());
        daemon
    }

    /// Replaces a file as editors and `kubectl` wrappers do, and waits until the engine has seen it.
    fn write(&mut self, name: &str, text: &str) {
        let before = self.snapshots.borrow().counters.events;
        write(self.folder.path(), name, text);
        self.wait_for(|snapshot| snapshot.counters.events > before);
    }

    fn wait_for(&mut self, mut seen: impl FnMut(&Snapshot) -> bool) {
        let Self { runtime, snapshots, .. } = self;
        let change = snapshots.wait_for(|snapshot| seen(snapshot));
        runtime.block_on(await_event("the engine sees the change", change)).unwrap();
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.admin.address())
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    fn frontends(&self, query: &str) -> Vec<Value> {
        let body: Value =
            serde_json::from_str(&curl(&[&self.url(&format!("/frontends?format=json{query}"))])).unwrap();
        body["frontends"].as_array().unwrap().clone()
    }
}

/// Writes atomically, so that no reader sees half of it.
fn write(folder: &Path, name: &str, text: &str) {
    let new = folder.join(format!(".{name}.new"));
    fs::write(&new, text).unwrap();
    fs::rename(new, folder.join(name)).unwrap();
}

fn start_engine(
    runtime: &Runtime,
    folder: &Path,
    stop: &watch::Receiver<bool>,
) -> (watch::Receiver<Arc<Snapshot>>, Arc<History>) {
    let started = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]);
    let (mut engine, _) = started.unwrap();
    // An emptied list must read as empty here; holds have tests of their own.
    let hold = Policy { on_empty: OnEmpty::Refuse, ..Policy::default() };
    engine.apply(Event::SettingsApplied(Arc::new(Facts { hold, ..Facts::default() })));
    let (events_out, events) = mpsc::channel(GROUPS_WAITING_MAX);
    let (changes, changed) = mpsc::channel(CHANGES_WAITING_MAX);
    let (snapshots, snapshots_now) = watch::channel(Arc::default());
    let progress = Arc::new(AtomicU64::new(0));
    let asks = holdfast_agent::engine::query::channel().1;
    let ends = EngineChannels {
        events,
        queries: asks,
        snapshots,
        changes,
        progress,
        steps: Arc::default(),
        stop: stop.clone(),
    };
    runtime.spawn(run(engine, ends, |_, _| false));
    runtime.spawn(Manifests::new(folder).run(events_out, stop.clone()));
    let (recorder, history) = Recorder::new(changed, snapshots_now.clone(), None);
    runtime.spawn(recorder.run());
    (snapshots_now, history)
}

fn start_admin(
    folder: &Path,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    history: Arc<History>,
) -> AdminServer {
    let about = About { version: "0.1.0", started: Timestamp(1_767_870_000) };
    let readings = Readings { history, ..readings::from_snapshots(snapshots, about) };
    let settings = Settings { listen: (Ipv4Addr::LOCALHOST, 0).into(), socket: folder.join("admin.sock") };
    admin::start(
        &settings,
        (readings, EventStatus::default(), readings::acts()),
        watch::channel(Vec::new()).0,
    )
    .unwrap()
}

/// The output of curl.
fn curl(arguments: &[&str]) -> String {
    let ran = Command::new("curl")
        .args(["-sS", "--max-time", "20", "--noproxy", "*"])
        .args(arguments)
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8(ran.stdout).unwrap(), String::from_utf8_lossy(&ran.stderr).into_owned());
    assert!(ran.status.success(), "curl {arguments:?}: {err}{out}");
    out
}

/// Replaces every time in the text with the same one.
fn timeless(body: &str) -> String {
    let mut parts = body.split("\"since\":\"");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let (since, rest) = part.split_once('"').unwrap();
        assert_eq!((since.len(), since.ends_with('Z')), (20, true), "{since}");
        text + "\"since\":\"…\"" + &rest.replace("},{", "},\n{")
    })
}

#[track_caller]
fn check(body: &str, expected: &Expect) {
    expected.assert_eq(&timeless(body));
}

/// holdfast reads no annotation here; only the version shows that one was edited.
fn service(namespace: &str, name: &str, ip: &str, version: u32) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  resourceVersion: \"{version}\"\n\
         spec: {{type: ClusterIP, clusterIP: {ip}, ports: [{{port: 80}}]}}\n"
    )
}

fn slice(namespace: &str, service: &str, endpoints: &str) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: slice-of-{service}0\n  namespace: {namespace}\n\
         \x20 labels: {{kubernetes.io/service-name: {service}}}\naddressType: IPv4\nports: [{{port: 80}}]\nendpoints: {endpoints}\n"
    )
}

const ONE: &str = "[{addresses: [1.1.1.1]}]";

#[test]
fn the_incident_in_its_smallest_form() {
    let mut daemon = Daemon::start(&[
        ("test.yaml", &service("default", "test", "10.96.0.1", 1)),
        ("test-extended.yaml", &service("default", "test-extended", "10.96.0.2", 1)),
        ("test-slice.yaml", &slice("default", "test", ONE)),
        ("test-extended-slice.yaml", &slice("default", "test-extended", ONE)),
    ]);
    let url = daemon.url("/frontends?format=json");
    check(
        &curl(&[&url]),
        &expect![[r#"
            {"frontends": [
            {"address":"10.96.0.1","port":80,"protocol":"TCP","type":"ClusterIP","service":"default/test","port_name":"","source":"manifests","backends":[{"address":"1.1.1.1","port":80,"state":"active"}],"external_backends":null,"affinity_timeout":null,"affinity_prefix":null,"source_ranges":[],"verdict":"serving","reason":null,"health":"well","status":"done","error":null,"since":"…","owner":null,"fails":[]},
            {"address":"10.96.0.2","port":80,"protocol":"TCP","type":"ClusterIP","service":"default/test-extended","port_name":"","source":"manifests","backends":[{"address":"1.1.1.1","port":80,"state":"active"}],"external_backends":null,"affinity_timeout":null,"affinity_prefix":null,"source_ranges":[],"verdict":"serving","reason":null,"health":"well","status":"done","error":null,"since":"…","owner":null,"fails":[]}
            ],"stale_since": null}
        "#]],
    );
    daemon.write("test-slice.yaml", &slice("default", "test", "[]"));
    let emptied = curl(&[&url]);
    check(
        &emptied,
        &expect![[r#"
            {"frontends": [
            {"address":"10.96.0.1","port":80,"protocol":"TCP","type":"ClusterIP","service":"default/test","port_name":"","source":"manifests","backends":[],"external_backends":null,"affinity_timeout":null,"affinity_prefix":null,"source_ranges":[],"verdict":"refusing","reason":"vanished","health":"outage","status":"done","error":null,"since":"…","owner":null,"fails":["outage"]},
            {"address":"10.96.0.2","port":80,"protocol":"TCP","type":"ClusterIP","service":"default/test-extended","port_name":"","source":"manifests","backends":[{"address":"1.1.1.1","port":80,"state":"active"}],"external_backends":null,"affinity_timeout":null,"affinity_prefix":null,"source_ranges":[],"verdict":"serving","reason":null,"health":"well","status":"done","error":null,"since":"…","owner":null,"fails":[]}
            ],"stale_since": null}
        "#]],
    );
    // Times have a resolution of seconds; a row that is rewritten now would show another one.
    pause(Duration::from_millis(1100));
    daemon.write("test-extended.yaml", &service("default", "test-extended", "10.96.0.2", 2));
    assert_eq!(curl(&[&url]), emptied, "touching an annotation changes nothing at all, not even since when");
    check(
        &curl(&[&daemon.url("/backends"), "-H", "Accept: application/json"]),
        &expect![[r#"
            {"backends": [
            {"address":"1.1.1.1","port":80,"protocol":"TCP","service":"default/test-extended","port_name":"","state":"active","ready":true,"serving":true,"terminating":false,"node":null,"zone":null,"slices":["default/slice-of-test-extended0"],"target":null,"since":"…","unused_because":null,"weight":1,"drained_by":null,"drained_since":null,"source":"manifests","check":null,"fails":[]}
            ],"stale_since": null}
        "#]],
    );
}

/// The incident's four objects, as the cluster's manifests.
fn recorded(kubernetes_endpoints: &str, version: u32) -> String {
    format!(
        r#"apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata: {{name: kubernetes, namespace: default, creationTimestamp: "2025-12-20T07:59:00Z"}}
  spec:
    clusterIP: 192.168.0.1
    clusterIPs: [192.168.0.1]
    ipFamilies: [IPv4]
    ports: [{{name: https, port: 443, protocol: TCP, targetPort: 60002}}]
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {{name: kubernetes, namespace: default, labels: {{kubernetes.io/service-name: kubernetes}}}}
  addressType: IPv4
  {kubernetes_endpoints}
- apiVersion: v1
  kind: Service
  metadata:
    name: kubernetes-intranet
    namespace: default
    creationTimestamp: "2025-12-20T08:00:00Z"
    resourceVersion: "{version}"
    annotations: {{reconciled-at: "at version {version}"}}
  spec:
    type: LoadBalancer
    clusterIP: 192.168.60.179
    clusterIPs: [192.168.60.179]
    ipFamilies: [IPv4]
    ports: [{{name: https, port: 443, protocol: TCP, targetPort: 60002, nodePort: 30965}}]
  status: {{loadBalancer: {{ingress: [{{ip: 10.15.1.8}}]}}}}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {{name: kubernetes-intranet-qxgk4, namespace: default, labels: {{kubernetes.io/service-name: kubernetes-intranet}}}}
  addressType: IPv4
  ports: [{{name: https, port: 60002, protocol: TCP}}]
  endpoints: [{{addresses: [169.254.128.7]}}]
"#
    )
}

#[test]
fn the_incident_as_recorded() {
    let full =
        "{ports: [{name: https, port: 60002, protocol: TCP}], endpoints: [{addresses: [169.254.128.7]}]}";
    let full = full.trim_matches(['{', '}']).replace("], endpoints", "]\n  endpoints");
    let mut daemon = Daemon::start(&[("cluster.yaml", &recorded(&full, 1))]);
    let table = daemon.url("/frontends");
    let intranet = daemon.url("/frontends?service=default/kubernetes-intranet&format=json");
    let before = curl(&[&intranet]);
    check(
        &before,
        &expect![[r#"
            {"frontends": [
            {"address":"192.168.60.179","port":443,"protocol":"TCP","type":"ClusterIP","service":"default/kubernetes-intranet","port_name":"https","source":"manifests","backends":[{"address":"169.254.128.7","port":60002,"state":"active"}],"external_backends":null,"affinity_timeout":null,"affinity_prefix":null,"source_ranges":[],"verdict":"serving","reason":null,"health":"well","status":"done","error":null,"since":"…","owner":null,"fails":[]},
            {"address":"0.0.0.0","port":30965,"protocol":"TCP","type":"NodePort","service":"default/kubernetes-intranet","port_name":"https","source":"manifests","backends":[{"address":"169.254.128.7","port":60002,"state":"active"}],"external_backends":null,"affinity_timeout":null,"affinity_prefix":null,"source_ranges":[],"verdict":"serving","reason":null,"health":"well","status":"done","error":null,"since":"…","owner":null,"fails":[]},
            {"address":"10.15.1.8","port":443,"protocol":"TCP","type":"LoadBalancer","service":"default/kubernetes-intranet","port_name":"https","source":"manifests","backends":[{"address":"169.254.128.7","port":60002,"state":"active"}],"external_backends":null,"affinity_timeout":null,"affinity_prefix":null,"source_ranges":[],"verdict":"serving","reason":null,"health":"well","status":"done","error":null,"since":"…","owner":null,"fails":[]}
            ],"stale_since": null}
        "#]],
    );
    expect![[r#"
        SERVICE                      PORT   TYPE          FRONTEND                VERDICT  REASON  FAILS  BACKENDS
        default/kubernetes           https  ClusterIP     192.168.0.1:443/TCP     serving  -       -      169.254.128.7:60002
        default/kubernetes-intranet  https  ClusterIP     192.168.60.179:443/TCP  serving  -       -      169.254.128.7:60002
        default/kubernetes-intranet  https  NodePort      *:30965/TCP             serving  -       -      169.254.128.7:60002
        default/kubernetes-intranet  https  LoadBalancer  10.15.1.8:443/TCP       serving  -       -      169.254.128.7:60002
    "#]].assert_eq(&only_rows(&curl(&[&table])));
    daemon.write("cluster.yaml", &recorded("endpoints: null\n  ports: null", 1));
    expect![[r#"
        SERVICE                      PORT   TYPE          FRONTEND                VERDICT  REASON   FAILS  BACKENDS
        default/kubernetes           https  ClusterIP     192.168.0.1:443/TCP     held     control  -      169.254.128.7:60002(held)
        default/kubernetes-intranet  https  ClusterIP     192.168.60.179:443/TCP  serving  -        -      169.254.128.7:60002
        default/kubernetes-intranet  https  NodePort      *:30965/TCP             serving  -        -      169.254.128.7:60002
        default/kubernetes-intranet  https  LoadBalancer  10.15.1.8:443/TCP       serving  -        -      169.254.128.7:60002
    "#]].assert_eq(&only_rows(&curl(&[&table])));
    assert_eq!(
        curl(&[&intranet]),
        before,
        "what happens to default/kubernetes is nothing to default/kubernetes-intranet"
    );
    daemon.write("cluster.yaml", &recorded("endpoints: null\n  ports: null", 2));
    assert_eq!(curl(&[&intranet]), before, "nor is a timestamp");
    daemon.write("cluster.yaml", &recorded(&full, 2));
    assert_eq!(curl(&[&intranet]), before);
    let kubernetes = daemon.frontends("&service=default/kubernetes");
    assert_eq!(kubernetes[0]["verdict"], "serving");
}

/// The rows of a table, without the last column.
fn only_rows(table: &str) -> String {
    let at = table.lines().next().and_then(|head| head.find("SINCE")).unwrap_or(usize::MAX);
    let line = |line: &str| format!("{}\n", line.get(..at).unwrap_or(line).trim_end());
    // What is below the rows names addresses of the machine.
    table.lines().take_while(|it| !it.is_empty()).map(line).collect()
}

/// The full row of a service; these tests' services have one row.
fn row(service: &str, ip: &str, serving: bool) -> Value {
    let backends =
        if serving { json!([{"address": "1.1.1.1", "port": 80, "state": "active"}]) } else { json!([]) };
    json!({
        "address": ip, "port": 80, "protocol": "TCP", "type": "ClusterIP", "service": service, "port_name": "",
        "source": "manifests", "backends": backends, "external_backends": null, "affinity_timeout": null, "affinity_prefix": null,
        "source_ranges": [], "verdict": if serving { "serving" } else { "refusing" },
        "reason": if serving { Value::Null } else { json!("vanished") },
        "health": if serving { "well" } else { "outage" }, "status": "done", "error": null, "owner": null,
        "fails": if serving { json!([]) } else { json!(["outage"]) },
    })
}

/// Two services share one backend: a change of the first one affects only its own row.
#[track_caller]
fn check_pair(first: (&str, &str), second: (&str, &str)) {
    let named = |(namespace, name): (&str, &str)| format!("{namespace}/{name}");
    let (of_first, of_second) =
        (service(first.0, first.1, "10.96.0.1", 1), service(second.0, second.1, "10.96.0.2", 1));
    let mut daemon = Daemon::start(&[
        ("first.yaml", &of_first),
        ("second.yaml", &of_second),
        ("first-slice.yaml", &slice(first.0, first.1, ONE)),
        ("second-slice.yaml", &slice(second.0, second.1, ONE)),
    ]);
    let check_rows = |daemon: &Daemon, serving: bool| {
        for (service, ip, serving) in
            [(named(first), "10.96.0.1", serving), (named(second), "10.96.0.2", true)]
        {
            let mut rows = daemon.frontends(&format!("&service={service}"));
            rows.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("since")));
            assert_eq!(rows, [row(&service, ip, serving)], "{first:?} {second:?}");
        }
    };
    check_rows(&daemon, true);
    daemon.write("first-slice.yaml", &slice(first.0, first.1, "[]"));
    check_rows(&daemon, false);
    daemon.write("second.yaml", &service(second.0, second.1, "10.96.0.2", 2));
    check_rows(&daemon, false);
    daemon.write("first-slice.yaml", &slice(first.0, first.1, ONE));
    check_rows(&daemon, true);
}

#[test]
fn services_whose_names_contain_each_other_stay_separate() {
    for (first, second) in [("a", "a-b"), ("a", "a-"), ("a", "a0"), ("a-b", "a"), ("a", "ba")] {
        check_pair(("default", first), ("default", second));
    }
}

#[test]
fn services_whose_names_and_namespaces_look_alike_stay_separate() {
    check_pair(("default", "web"), ("default-2", "web"));
    check_pair(("default-2", "web"), ("default", "web"));
    check_pair(("ab", "c"), ("a", "bc"));
    check_pair(("a-b", "c"), ("a", "b-c"));
}

#[test]
fn tcp_and_socket_give_the_same_answers() {
    let daemon = Daemon::start(&[("a.yaml", &service("default", "a", "10.96.0.1", 1))]);
    let tcp = curl(&[&daemon.url("/frontends")]);
    let socket = daemon.socket();
    let unix = curl(&["--unix-socket", &socket.to_string_lossy(), "http://localhost/frontends"]);
    assert_eq!(tcp, unix);
    assert!(tcp.contains("default/a"), "{tcp}");
    let status = |arguments: &[&str]| curl(&[&["-o", "/dev/null", "-w", "%{http_code}"], arguments].concat());
    let url = daemon.url("/frontends");
    assert_eq!(status(&[&url]), "200");
    assert_eq!(status(&[&url, "-H", "Host: example.com"]), "421");
    assert_eq!(status(&[&url, "-H", "Origin: http://localhost"]), "403");
    assert_eq!(status(&[&daemon.url("/frontends?nonsense=1")]), "400");
    assert_eq!(status(&[&daemon.url("/nowhere")]), "404");
    assert_eq!(status(&["-X", "POST", &url]), "405");
}

#[test]
fn a_bad_file_is_reported_and_affects_no_service() {
    let mut daemon = Daemon::start(&[
        ("a.yaml", &service("default", "a", "10.96.0.1", 1)),
        ("s.yaml", &slice("default", "a", ONE)),
    ]);
    let before = daemon.frontends("");
    daemon.write("a.yaml", "kind: [Service");
    assert_eq!(daemon.frontends(""), before);
    let services = curl(&[&daemon.url("/services?format=json")]);
    let services: Value = serde_json::from_str(&services).unwrap();
    let reason = &services["rejected"][0]["reason"];
    assert!(reason.as_str().is_some_and(|reason| reason.contains("is not YAML")), "{services}");
}

/// The history as curl gets it, as soon as it has this many records: the recorder runs behind the engine.
fn history(daemon: &Daemon, query: &str, count: usize) -> Vec<Record> {
    let url = daemon.url(&format!("/history?format=json&{query}"));
    wait_for(format!("{count} records"), || {
        let records: Vec<Record> =
            curl(&[&url]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        (records.len() >= count).then_some(records)
    })
}

/// The files name no apiserver and no writer, so the file is the origin.
#[test]
fn invariant_12_what_happened_to_a_service_can_be_asked_afterwards() {
    let mut daemon = Daemon::start(&[
        ("test.yaml", &service("default", "test", "10.96.0.1", 1)),
        ("test-slice.yaml", &slice("default", "test", ONE)),
        ("other.yaml", &service("default", "test-extended", "10.96.0.2", 1)),
    ]);
    daemon.write("test-slice.yaml", &slice("default", "test", "null"));
    daemon.write("other.yaml", &service("default", "test-extended", "10.96.0.2", 2));
    fs::remove_file(daemon.folder.path().join("test.yaml")).unwrap();
    let records = history(&daemon, "service=default/test", 3);
    let rules: Vec<&str> = records.iter().take(3).map(|record| &*record.rule).collect();
    assert_eq!(rules, ["usable-endpoints", "vanished", "service-gone"]);
    let [trigger] = &records[1].triggers[..] else { panic!("{:?}", records[1]) };
    assert!(trigger.endpoints_null, "{trigger:?}");
    assert_eq!(trigger.object.as_deref(), Some("default/slice-of-test0"));
    assert!(trigger.origin.as_deref().unwrap().ends_with("test-slice.yaml"), "{trigger:?}");
    assert_eq!(records[1].transitions[0].backends.removed, ["1.1.1.1:80"]);
    let vanished = curl(&[&daemon.url("/history?reason=vanished&limit=1")]);
    assert!(
        vanished.contains(" default/test: 10.96.0.1:80/TCP is gone, was refusing (vanished)"),
        "{vanished}"
    );
    let others = history(&daemon, "service=default/test-extended", 1);
    assert_eq!(others.len(), 1, "a touched annotation is no change: {others:?}");
}
