//! A source, a scripted apiserver, and the events that the source delivers.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::Uptime;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::{Kubernetes, Resource, SourceSettings, Timing, UntabledByKind, UntabledView, View, Watch};
use crate::apiserver::tests::access;
use crate::apiserver::tests::server::{self, Asked, Authority, Manner, Server, ours};
use crate::own_node::{NodeDescription, NodeReport};
use holdfast_fixtures::TEST_TIMEOUT;

/// The queue of event groups; a test that only counts requests takes none, and must not block the watches.
const UNTAKEN_MAX: usize = 64;

/// The start of a list without a kind.
const UNTYPED: &str = r#"{"kind":"List","apiVersion":"v1""#;

/// The remaining replies, by resource and whether it is a watch.
#[derive(Default)]
struct Script {
    next: HashMap<(String, bool), VecDeque<String>>,
    /// Replies to lists once the others are used up.
    last: HashMap<String, String>,
}

impl Script {
    fn answer(&mut self, asked: &Asked) -> String {
        let resource = resource(&asked.path);
        let is_watch = parameter(&asked.path, "watch").is_some();
        let next = self.next.get_mut(&(resource.clone(), is_watch)).and_then(VecDeque::pop_front);
        let answer = next.unwrap_or_else(|| match is_watch {
            true => hang(&[]),
            false => self.last.get(&resource).cloned().unwrap_or_else(|| list("10", &[])),
        });
        of_kind(&resource, &answer)
    }
}

/// Sets the kind of a list that was written without one.
fn of_kind(resource: &str, text: &str) -> String {
    let typed = match resource {
        "services" => r#"{"kind":"ServiceList","apiVersion":"v1""#,
        "endpointslices" | IMPORTED => r#"{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1""#,
        "serviceimports" => r#"{"kind":"ServiceImportList","apiVersion":"multicluster.x-k8s.io/v1beta1""#,
        _ => r#"{"kind":"NodeList","apiVersion":"v1""#,
    };
    match text.split_once(UNTYPED) {
        Some((_, rest)) => answer("200 OK", "", &format!("{typed}{rest}")),
        None => text.to_owned(),
    }
}

/// The script's name for slices of ServiceImports.
pub(super) const IMPORTED: &str = "importedslices";

fn resource(path: &str) -> String {
    if parameter(path, "labelSelector").is_some_and(|labels| labels.starts_with("multicluster")) {
        return IMPORTED.to_owned();
    }
    path.split('?').next().unwrap().rsplit('/').next().unwrap().to_owned()
}

fn parameter(path: &str, name: &str) -> Option<String> {
    let query = path.split_once('?')?.1;
    let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(found, _)| *found == name).map(|(_, value)| value.to_owned())
}

pub(super) struct SourceHarness {
    script: Arc<Mutex<Script>>,
    /// The script of another server, which is asked first.
    before: Option<server::Script>,
    running: Option<Running>,
}

struct Running {
    server: Server,
    view: View,
    oddities: UntabledView,
    events: mpsc::Receiver<Vec<Event>>,
    nodes: mpsc::Receiver<NodeReport>,
    ready: VecDeque<String>,
    progress: Vec<String>,
    interrupted: usize,
    heard: Vec<bool>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    _before: Option<Server>,
    _tasks: JoinSet<()>,
    _folder: tempfile::TempDir,
}

impl SourceHarness {
    pub(super) fn new() -> Self {
        Self { script: Arc::default(), before: None, running: None }
    }

    /// Adds another server that is asked before the scripted one.
    pub(super) fn after(&mut self, answer: impl Fn(&str) -> String + Send + Sync + 'static) {
        self.before = Some(ours(move |asked| of_kind(&resource(&asked.path), &answer(&asked.path))));
    }

    /// The production timing without waits that tests do not need.
    pub(super) fn timing(&self) -> Timing {
        Timing {
            list_spread: Duration::from_millis(10),
            replay_quiet: Duration::from_millis(100),
            ..Timing::default()
        }
    }

    pub(super) fn lists(&self, resource: &str, answers: impl IntoIterator<Item = String>) {
        self.answers(resource, false, answers);
    }

    /// The reply to lists once all others are used up.
    pub(super) fn lists_after(&self, resource: &str, answer: String) {
        self.script.lock().unwrap().last.insert(resource.to_owned(), answer);
    }

    pub(super) fn watches(&self, resource: &str, answers: impl IntoIterator<Item = String>) {
        self.answers(resource, true, answers);
    }

    fn answers(&self, resource: &str, is_watch: bool, answers: impl IntoIterator<Item = String>) {
        self.script
            .lock()
            .unwrap()
            .next
            .insert((resource.to_owned(), is_watch), answers.into_iter().collect());
    }

    pub(super) async fn start(&mut self, mut settings: SourceSettings) {
        let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
        authority.write(&folder.path().join("ca.crt"));
        let script = Arc::clone(&self.script);
        let answer = ours(move |asked| script.lock().unwrap().answer(asked));
        let leaf = authority.leaf("127.0.0.1");
        let server = Server::start(&leaf, Manner::Serve, answer).await;
        let before = match self.before.take() {
            Some(script) => Some(Server::start(&leaf, Manner::Serve, script).await),
            None => None,
        };
        let urls: Vec<_> = before.iter().chain([&server]).map(Server::url).collect();
        let keys = format!("endpoints = [{}]\nca_file = \"ca.crt\"", urls.join(", "));
        let access = access(folder.path(), &keys);
        if settings.timing.list_spread == Timing::default().list_spread {
            settings.timing = self.timing();
        }
        let (snapshots, seen) = watch::channel(Arc::default());
        let kubernetes = Kubernetes::new(access, settings).with_snapshots(seen);
        let (events_in, events) = mpsc::channel(UNTAKEN_MAX);
        let (nodes_in, nodes) = mpsc::channel(1);
        let (view, oddities, mut tasks) = (kubernetes.view(), kubernetes.untabled_view(), JoinSet::new());
        tasks.spawn(kubernetes.run(events_in, nodes_in));
        let ready = VecDeque::new();
        let (progress, interrupted, heard) = (Vec::new(), 0, Vec::new());
        self.running = Some(Running {
            server,
            view,
            oddities,
            events,
            nodes,
            ready,
            progress,
            interrupted,
            heard,
            snapshots,
            _before: before,
            _tasks: tasks,
            _folder: folder,
        });
    }

    /// Simulates that the table has requested this many relists.
    pub(super) fn ask(&self, times: u64) {
        let snapshot =
            Snapshot { relist_requests: [(Source::Kubernetes, times)].into(), ..Snapshot::default() };
        self.running.as_ref().unwrap().snapshots.send_replace(Arc::new(snapshot));
    }

    /// Simulates the engine's question about endpoints.
    pub(super) fn question(&self, put: i64) {
        let questions = [(Source::Kubernetes, Uptime(put))].into();
        let snapshot = Snapshot { queries: questions, ..Snapshot::default() };
        self.running.as_ref().unwrap().snapshots.send_replace(Arc::new(snapshot));
    }

    /// The next delivered messages as text.
    pub(super) async fn heard(&mut self, count: usize) -> Vec<String> {
        let running = self.running.as_mut().unwrap();
        let mut told = Vec::new();
        while told.len() < count {
            if let Some(one) = running.ready.pop_front() {
                told.push(one);
                continue;
            }
            let more =
                timeout(TEST_TIMEOUT, running.more()).await.unwrap_or_else(|_| panic!("only {told:?} came"));
            running.ready.extend(more);
        }
        assert!(running.ready.is_empty(), "{told:?}, and {:?} more", running.ready);
        told
    }

    /// How many interruptions were reported.
    pub(super) fn interruptions(&self) -> usize {
        self.running.as_ref().unwrap().interrupted
    }

    /// The reports of whether slices are watched.
    pub(super) fn hearings(&self) -> &[bool] {
        &self.running.as_ref().unwrap().heard
    }

    /// The progress versions of all kinds in order.
    pub(super) fn progress(&self) -> &[String] {
        &self.running.as_ref().unwrap().progress
    }

    /// The values of a query parameter in all requests for a resource.
    pub(super) fn asked(&self, resource: &str, name: &str) -> Vec<String> {
        self.paths(resource).iter().filter_map(|path| parameter(path, name)).collect()
    }

    /// The paths of all requests for a resource.
    pub(super) fn paths(&self, of: &str) -> Vec<String> {
        let running = self.running.as_ref().unwrap();
        running.server.paths().into_iter().filter(|path| resource(path) == of).collect()
    }

    /// The count of connections: each asks for the cluster first.
    pub(super) fn connections(&self) -> usize {
        self.paths("kube-system").len()
    }

    /// The count of lists of a resource.
    pub(super) fn lists_of(&self, resource: &str) -> usize {
        let is_watch = |path: &String| parameter(path, "watch").is_some();
        self.paths(resource).iter().filter(|path| !is_watch(path)).count()
    }

    pub(super) fn view(&self) -> &View {
        &self.running.as_ref().unwrap().view
    }

    /// Waits until a resource has had this many requests.
    pub(super) async fn requests(&self, resource: &str, count: usize) {
        let enough = async {
            while self.paths(resource).len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TEST_TIMEOUT, enough).await.unwrap_or_else(|_| panic!("only {:?}", self.paths(resource)));
    }

    pub(super) fn watch(&self, what: Resource) -> Watch {
        let watches = self.running.as_ref().unwrap().view.current();
        watches.into_iter().find(|watch| watch.what == what).unwrap()
    }

    /// The untabled objects to save for a restart.
    pub(super) fn oddities(&self) -> UntabledByKind {
        self.running.as_ref().unwrap().oddities.current()
    }

    pub(super) async fn until(&self, is_so: impl Fn(&Watch) -> bool) {
        let view = &self.running.as_ref().unwrap().view;
        let so = async {
            while !view.current().iter().any(&is_so) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(TEST_TIMEOUT, so).await.unwrap_or_else(|_| panic!("only {:?}", view.current()));
    }
}

impl Running {
    async fn more(&mut self) -> Vec<String> {
        tokio::select! {
            biased;
            Some(NodeReport { node, applied }) = self.nodes.recv() => {
                applied.send(()).unwrap();
                let zone = |node: NodeDescription| format!("zone {}", node.zone.as_deref().unwrap_or("none"));
                node.map(zone).into_iter().collect()
            }
            Some(group) = self.events.recv() => {
                let versions = group.iter().filter_map(|event| match event {
                    Event::Progress(_, version) => Some(version.to_string()),
                    _ => None,
                });
                self.progress.extend(versions);
                self.interrupted += group.iter().filter(|event| is_interruption(event)).count();
                self.heard.extend(group.iter().filter_map(heard));
                let is_beside = |event: &Event| {
                    matches!(event, Event::Progress(..) | Event::Recovered(_) | Event::Silent(_))
                };
                let told = |event: &&Event| !is_beside(event) && !is_interruption(event);
                group.iter().filter(told).map(show).collect()
            }
        }
    }
}

fn is_interruption(event: &Event) -> bool {
    matches!(event, Event::Interrupted(_))
}

/// Whether the event reports that endpoints are watched.
const fn heard(event: &Event) -> Option<bool> {
    match event {
        Event::Recovered(Source::Kubernetes) => Some(true),
        Event::Silent(Source::Kubernetes) => Some(false),
        _ => None,
    }
}

fn show(event: &Event) -> String {
    let version = |text: Option<&Arc<str>>| text.map(ToString::to_string).unwrap_or_default();
    // Marks messages of ServiceImports.
    let mark = |source: &Source| if *source == Source::ClusterSet { "*" } else { "" };
    let named = |name: &ObjectName, source: &Source| format!("{}{}", name.name(), mark(source));
    match event {
        Event::ServiceApplied(it) => {
            let named = named(&it.key.name, &it.key.source);
            format!("+{named}@{}", version(it.meta.resource_version.as_ref()))
        }
        Event::SliceApplied(it) => {
            let named = named(&it.key.name, &it.key.source);
            format!("+{named}@{}", version(it.meta.resource_version.as_ref()))
        }
        Event::ServiceDeleted(key, meta) => {
            let meta = meta.as_ref().and_then(|meta| meta.resource_version.as_ref());
            format!("-{}@{}", named(&key.name, &key.source), version(meta))
        }
        Event::SliceDeleted(key, meta) => {
            let meta = meta.as_ref().and_then(|meta| meta.resource_version.as_ref());
            format!("-{}@{}", named(&key.name, &key.source), version(meta))
        }
        Event::Rejected(it) => format!("!{}", it.object),
        Event::Synced(source) => format!("synced{}", mark(source)),
        Event::Answered(source, put) => format!("answered {}{}", put.0, mark(source)),
        Event::Absent(source) => format!("absent{}", mark(source)),
        Event::Resumed(source) => format!("resumed{}", mark(source)),
        other => format!("{other:?}"),
    }
}

/// A Service; its uid is its name.
pub(super) fn service(name: &str, version: &str, ip: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default","uid":"{name}","resourceVersion":"{version}"}},"spec":{{"clusterIP":"{ip}","ports":[{{"port":80}}]}}}}"#
    )
}

/// A Service that exceeds the limit of one object, by an owner's name.
pub(super) fn giant(name: &str, version: &str) -> String {
    let owners = format!(r#""ownerReferences":[{{"name":"{}"}}]}},"spec""#, "x".repeat(5 << 20));
    service(name, version, "10.96.0.66").replace(r#""},"spec""#, &format!(r#"",{owners}"#))
}

/// A slice with one endpoint.
pub(super) fn slice(name: &str, version: &str, address: &str) -> String {
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"default","uid":"{name}","resourceVersion":"{version}","labels":{{"kubernetes.io/service-name":"a"}}}},"addressType":"IPv4","endpoints":[{{"addresses":["{address}"]}}],"ports":[{{"name":"","port":80}}]}}"#
    )
}

pub(super) fn list(version: &str, items: &[String]) -> String {
    page(version, "", items)
}

pub(super) fn page(version: &str, token: &str, items: &[String]) -> String {
    let items = items.join(",");
    let body = format!(
        r#"{UNTYPED},"metadata":{{"resourceVersion":"{version}","continue":"{token}"}},"items":[{items}]}}"#
    );
    answer("200 OK", "", &body)
}

pub(super) fn status(line: &str, headers: &str, reason: &str) -> String {
    let code = line.split(' ').next().unwrap();
    let body = format!(r#"{{"kind":"Status","code":{code},"reason":"{reason}","message":"as told"}}"#);
    answer(line, headers, &body)
}

pub(super) fn answer(line: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {line}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

pub(super) fn event(kind: &str, object: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

pub(super) fn bookmark(version: &str) -> String {
    event("BOOKMARK", &format!(r#"{{"metadata":{{"resourceVersion":"{version}"}},"endpoints":null}}"#))
}

pub(super) fn error(code: u16, reason: &str) -> String {
    event("ERROR", &format!(r#"{{"kind":"Status","code":{code},"reason":"{reason}"}}"#))
}

/// A watch that sends these lines and stays open.
pub(super) fn hang(lines: &[String]) -> String {
    let mut text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_owned();
    for line in lines {
        write!(text, "{:x}\r\n{line}\n\r\n", line.len() + 1).unwrap();
    }
    text
}

/// A watch that sends these lines and ends.
pub(super) fn ends(lines: &[String]) -> String {
    hang(lines) + "0\r\n\r\n"
}

/// A watch that sends these lines, a part of another one, and ends.
pub(super) fn tears(lines: &[String], half: &str) -> String {
    format!("{}{:x}\r\n{half}\r\n0\r\n\r\n", hang(lines), half.len())
}
