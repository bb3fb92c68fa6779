//! Orders to drain, from the socket to the lists and back: an engine, the queue of orders, and the API.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use expect_test::expect;
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Settings;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::Snapshot;
use holdfast_objects::manifests::TextFolder;
use serde_json::Value;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use super::fixture::{Served, acts, serve_all};
use super::{Got, exchange};
use crate::client_requests::{Peer, RequestSenders};
use holdfast_agent::drains::{self, ORDERS_WAITING_MAX};
use holdfast_agent::engine::run::{CHANGES_WAITING_MAX, EngineChannels, GROUPS_WAITING_MAX, run};
use holdfast_evidence::event_watcher::EventStatus;
use holdfast_status::age::remove_ages;

/// Two services with names that begin alike and the same backends, and one with only one of them.
const OBJECTS: &str = "
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.96.0.1, ports: [{port: 80}]}}
- {apiVersion: v1, kind: Service, metadata: {name: web-2}, spec: {clusterIP: 10.96.0.2, ports: [{port: 80}]}}
- {apiVersion: v1, kind: Service, metadata: {name: one}, spec: {clusterIP: 10.96.0.3, ports: [{port: 80}]}}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: a, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{port: 8080}]
  endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}]
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: b, labels: {kubernetes.io/service-name: web-2}}
  addressType: IPv4
  ports: [{port: 8080}]
  endpoints: [{addresses: [10.0.0.1]}, {addresses: [10.0.0.2]}]
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {name: c, labels: {kubernetes.io/service-name: one}}
  addressType: IPv4
  ports: [{port: 8080}]
  endpoints: [{addresses: [10.0.0.2]}]
";

struct Life {
    served: Served,
    _runtime: Runtime,
    folder: TempDir,
    _stop: watch::Sender<bool>,
}

impl Life {
    fn begin() -> Self {
        Self::with_state("")
    }

    /// A setup that writes its drains there, in a folder of its own.
    fn with_state(state: &str) -> Self {
        let (runtime, folder) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
        let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
        engine.apply(Event::SettingsApplied(Arc::new(Settings::default())));
        let files = BTreeMap::from([("all.yaml".into(), OBJECTS.as_bytes().to_vec())]);
        TextFolder::new("manifests").replace_files(&files).into_iter().for_each(|event| engine.apply(event));
        engine.apply(Event::Synced(Source::Manifests));
        let (events, incoming) = mpsc::channel(GROUPS_WAITING_MAX);
        let (snapshots, mut now) = watch::channel(Arc::<Snapshot>::default());
        let (stop, stopping) = watch::channel(false);
        let ends = EngineChannels {
            events: incoming,
            queries: holdfast_agent::engine::query::channel().1,
            snapshots,
            changes: mpsc::channel(CHANGES_WAITING_MAX).0,
            progress: Arc::new(AtomicU64::new(0)),
            steps: Arc::default(),
            stop: stopping,
        };
        runtime.spawn(run(engine, ends, |_, _| false));
        let (orders, ordered) = mpsc::channel(ORDERS_WAITING_MAX);
        let (told, written) = watch::channel(drains::DrainsWrite::default());
        let state = folder.path().join(state);
        runtime.spawn(drains::run(state, drains::RestoredDrains::default(), ordered, events, told));
        let whole = now.wait_for(|snapshot| snapshot.programmed && snapshot.services.iter().count() == 3);
        let in_time = async { tokio::time::timeout(Duration::from_secs(20), whole).await.is_ok() };
        assert!(runtime.block_on(in_time), "the engine does not come to rest");
        let follow = |readings: &mut holdfast_agent::readings::Readings| {
            (readings.snapshots, readings.drains) = (now.clone(), written);
        };
        let served = serve_all(
            Snapshot::default(),
            follow,
            (EventStatus::default(), RequestSenders { drains: orders, ..acts() }),
        );
        Self { served, _runtime: runtime, folder, _stop: stop }
    }

    fn post(&self, target: &str, headers: &str) -> Got {
        let stream = UnixStream::connect(&self.served.socket).unwrap();
        exchange(stream, &format!("POST {target} HTTP/1.1\r\nhost: x\r\n{headers}connection: close\r\n\r\n"))
    }

    /// The answer without times and users, and the exit code of the command line.
    fn order(&self, target: &str) -> String {
        let got = self.post(target, "");
        assert_eq!(got.status, 200, "{}", got.body);
        format!("{}exit {}\n", plain(&got.body), got.header("holdfast-exit").unwrap())
    }

    fn table(&self, path: &str) -> String {
        plain(&self.served.get(path, "").body)
    }

    fn json(&self, path: &str) -> Value {
        serde_json::from_str(&self.served.get(path, "accept: application/json\r\n").body).unwrap()
    }
}

/// The text with all times and users replaced, and without ages: orders come now, and the other clock stands still.
fn plain(text: &str) -> String {
    let word = |word: &str| {
        let is_time = word.len() >= 20 && word.starts_with("20") && word.contains('T');
        if is_time { "TIME".to_owned() } else { word.to_owned() }
    };
    let line =
        |line: &str| line.split(' ').filter(|it| !it.is_empty()).map(word).collect::<Vec<_>>().join(" ");
    let me = nix::unistd::getuid().as_raw();
    let text: String = remove_ages(text).lines().map(|it| line(it) + "\n").collect();
    let named = text.replace(&format!("root (uid {me})"), "USER");
    named.replace(&format!("uid {me}"), "USER")
}

#[test]
fn an_order_is_answered_once_the_lists_follow() {
    let life = Life::begin();
    expect![[r#"
        10.0.0.1 is drained: it gets no new client, and keeps those that it has
        2 services have it: default/web, default/web-2
        exit 0
    "#]]
    .assert_eq(&life.order("/drain?backend=%3A%3Affff:10.0.0.1"));
    let row = &life.json("/backends?address=10.0.0.1")["backends"][0];
    assert_eq!((&row["unused_because"], &row["weight"]), (&"drained".into(), &0.into()));
    assert!(row["drained_by"].is_string() && row["drained_since"].is_string(), "{row}");
    assert_eq!(life.json("/services?service=default/web")["services"][0]["drained"], 1);
    expect![[r#"
        10.0.0.1 is drained already, by USER since TIME
        2 services have it: default/web, default/web-2
        exit 0
    "#]]
    .assert_eq(&life.order("/drain?backend=10.0.0.1"));
    expect![[r#"
        10.0.0.2:8080 is drained: it gets new clients only where no other backend takes them, and keeps those that it has
        3 services have it: default/one, default/web, default/web-2
        still used by default/one, default/web, default/web-2: no other backend there takes clients, and a drain empties no list
        exit 1
    "#]]
    .assert_eq(&life.order("/drain?backend=10.0.0.2:8080"));
    expect![[r#"
        BACKEND OF SERVICE BY SINCE SERVICES STILL USED IN
        10.0.0.1 all USER TIME 2 2
        10.0.0.2:8080 all USER TIME 3 3
    "#]]
    .assert_eq(&life.table("/drains"));
    expect![[r#"
        10.0.0.2 is not drained
        3 services have it: default/one, default/web, default/web-2
        still drained by: 10.0.0.2:8080
        exit 1
    "#]]
    .assert_eq(&life.order("/undrain?backend=10.0.0.2"));
    expect![[r#"
        10.0.0.2:8080 is no longer drained; it was by USER since TIME
        3 services have it: default/one, default/web, default/web-2
        exit 0
    "#]]
    .assert_eq(&life.order("/undrain?backend=10.0.0.2:8080"));
    life.order("/undrain?backend=10.0.0.1");
    assert_eq!(life.table("/drains"), "nothing is drained\n");
    assert_eq!(life.json("/backends?address=10.0.0.1")["backends"][0]["state"], "active");
}

#[test]
fn a_drain_of_one_service_affects_no_other() {
    let life = Life::begin();
    expect![[r#"
        10.0.0.1 of default/web is drained: it gets no new client, and keeps those that it has
        1 service has it: default/web
        exit 0
    "#]]
    .assert_eq(&life.order("/drain?backend=10.0.0.1&service=default/web"));
    let rows = life.json("/backends?address=10.0.0.1");
    let because =
        |at: usize| (rows["backends"][at]["service"].clone(), rows["backends"][at]["state"].clone());
    assert_eq!(because(0), ("default/web".into(), "unused".into()));
    assert_eq!(because(1), ("default/web-2".into(), "active".into()));
    expect![[r#"
        10.0.0.1 is not drained
        2 services have it: default/web, default/web-2
        still drained by: 10.0.0.1 of default/web
        exit 1
    "#]]
    .assert_eq(&life.order("/undrain?backend=10.0.0.1"));
    expect![[r#"
        10.0.0.1 of default/we is drained, but is no backend now
        no service lists it now: is it spelled as in `holdfast backends`? It stays drained, and where a service lists it later, it gets no client there; `holdfast undrain` with the same words takes it back
        exit 1
    "#]]
    .assert_eq(&life.order("/drain?backend=10.0.0.1&service=default/we"));
    expect![[r#"
        10.0.0.99 is not drained
        exit 0
    "#]]
    .assert_eq(&life.order("/undrain?backend=10.0.0.99"));
}

/// Only the operator of the order reads its answer, but others need the warning too.
#[test]
fn unwritten_drains_are_reported_until_the_disk_has_them() {
    let life = Life::with_state("file/below");
    std::fs::write(life.folder.path().join("file"), "").unwrap();
    assert!(life.order("/drain?backend=10.0.0.1").contains("not on disk yet"));
    let told = life.table("/drains");
    let why =
        told.lines().last().unwrap().strip_prefix("a restart of the daemon would lose the last orders: ");
    let why = why.unwrap_or_else(|| panic!("{told}"));
    assert_eq!(life.json("/drains")["memory_problem"], why);
    assert_eq!(life.json("/readyz")["unwritten_drains"], why);
    std::fs::remove_file(life.folder.path().join("file")).unwrap();
    life.order("/undrain?backend=10.0.0.1");
    assert_eq!(life.table("/drains"), "nothing is drained\n");
    assert_eq!(life.json("/readyz")["unwritten_drains"], Value::Null);
}

#[test]
fn an_impossible_backend_address_is_refused() {
    let life = Life::begin();
    for (query, words) in [
        ("", "no backend is given"),
        ("?backend=web", "\"web\" is no address"),
        ("?backend=10.0.0.1:0", "no backend has port 0"),
        ("?backend=0.0.0.0", "no backend can have this address"),
        ("?backend=224.0.0.1", "no backend can have this address"),
        ("?backend=10.0.0.1&service=web", "names no service"),
        ("?backend=10.0.0.1&backend=10.0.0.2", "is given twice"),
        ("?backend=10.0.0.1&all=yes", "unknown filter"),
    ] {
        let got = life.post(&format!("/drain{query}"), "");
        assert!(got.status == 400 && got.body.contains(words), "{query}: {}", got.body);
    }
    assert_eq!(life.table("/drains"), "nothing is drained\n");
}

#[test]
fn backends_are_drained_only_over_the_socket() {
    let life = Life::begin();
    for path in ["/drain", "/undrain"] {
        let host = life.served.host();
        let over_tcp =
            format!("POST {path}?backend=10.0.0.1 HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        assert_eq!(life.served.send(&over_tcp).status, 403, "{path}");
        let stream = UnixStream::connect(&life.served.socket).unwrap();
        let read = format!("GET {path}?backend=10.0.0.1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        assert_eq!(exchange(stream, &read).status, 405, "{path}");
    }
    assert_eq!(life.table("/drains"), "nothing is drained\n");
}

#[test]
fn only_root_and_the_daemons_own_user_may_drain() {
    let own = nix::unistd::geteuid().as_raw();
    let may = |uid| crate::drains::order::may_order(Peer { uid, pid: None });
    assert!(may(0) && may(own));
    assert!(!may(own + 1) && !may(65_534));
}

/// The answer to each order, as JSON.
pub(super) fn answers() -> [(&'static str, String); 2] {
    let life = Life::begin();
    let ask = |path| life.post(&format!("{path}?backend=10.0.0.1"), "accept: application/json\r\n").body;
    ["/drain", "/undrain"].map(|path| (path, ask(path)))
}
