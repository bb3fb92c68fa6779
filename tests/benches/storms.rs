//! The load of a real apiserver when many nodes come at once: when they start, when their apiserver dies, and when one
//! returns for which their versions are too old. Needs root.
//!
//! The nodes are the project's own sources as tasks of one process, each with its own connections; their events are
//! discarded. They see no other nodes, so they spread their requests as in a small cluster, which is the worst case
//! for an apiserver.
#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::indexing_slicing)]

use std::error::Error;
use std::sync::mpsc::{Sender, channel};
use std::thread::scope;
use std::time::Duration;

use holdfast_config::{Config, NodeName};
use holdfast_fixtures::clock::{Deadline, Stopwatch, pause};
use holdfast_kubernetes::apiserver::{self, Access};
use holdfast_kubernetes::own_node::NodeReport;
use holdfast_kubernetes::source::{Kubernetes, SourceSettings, State, View};
use holdfast_tests::bed::{Layout, Location};
use holdfast_tests::peers::{Cluster, Part, PeersError, alike, apiserver as address};
use holdfast_tests::processor;
use holdfast_tests::size::sized;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

/// The apiservers of the nodes, and the one through which the test changes the cluster.
const KNOWN: [usize; 2] = [0, 1];
const UNKNOWN: usize = 2;

/// How often the nodes are polled.
const LOOK: Duration = Duration::from_millis(100);

/// Polls per second.
const LOOKS: usize = 10;

/// Longer than any storm.
const PATIENCE: Duration = Duration::from_secs(300);

/// Groups of events that wait to be discarded.
const WAITING_MAX: usize = 64;

fn main() {
    let cluster = match Cluster::without_controllers(Layout::default(), KNOWN.len() + 1) {
        Err(PeersError::NotBuilt { .. }) => return,
        started => started.unwrap(),
    };
    let (nodes, services, slices) = (sized(500, 4), sized(200, 20), sized(100, 10));
    let fill = |services, slices| alike::fill(&cluster.api(UNKNOWN).unwrap(), services, slices).unwrap();
    fill(services, slices);
    println!("{nodes} nodes, {services} services and {slices} slices of {} endpoints", alike::ENDPOINTS);
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let (out, views) = channel();
    let (end, ended) = oneshot::channel();
    scope(|scope| {
        scope.spawn(|| cluster.bed().within(Location::NODE, || live(&cluster, nodes, &out, ended)).unwrap());
        // Objects that exist stay unchanged, so only the last ones are new.
        meet(&cluster, &views.recv().unwrap(), || fill(services + 1, slices + 1));
        end.send(()).unwrap();
    });
}

/// Runs one storm after another.
fn meet(cluster: &Cluster, nodes: &[View], change: impl FnOnce()) {
    let [first, second] = KNOWN.map(Part::Apiserver);
    let [at_first, at_second] = KNOWN.map(|index| address(index).unwrap().to_string());
    storm("all start at once", (cluster, first), nodes, Stopwatch::start(), "");
    let died = Stopwatch::start();
    cluster.kill(first).unwrap();
    storm("an apiserver dies, another one takes over", (cluster, second), nodes, died, &at_second);
    cluster.kill(second).unwrap();
    change();
    let began = Stopwatch::start();
    cluster.start_part(first).unwrap();
    println!("an apiserver begins, ready after {:.1} s", began.read().as_secs_f64());
    storm("one comes back for which all versions are too old", (cluster, first), nodes, began, &at_first);
}

/// Waits until all nodes are served, by the apiserver at this address if given, and prints the cost.
fn storm(what: &str, (cluster, by): (&Cluster, Part), nodes: &[View], since: Stopwatch, at: &str) {
    let pid = cluster.pid(by).unwrap();
    let mut spent = vec![processor::seconds(pid).unwrap()];
    let is_served = |view: &&View| {
        let is_at = |endpoint: &str| endpoint.starts_with(at);
        view.current()
            .iter()
            .all(|it| it.state == State::Watching && it.endpoint.as_deref().is_some_and(is_at))
    };
    let (mut last, deadline) = (Duration::ZERO, Deadline::after(PATIENCE));
    while nodes.iter().filter(is_served).count() < nodes.len() {
        assert!(!deadline.is_over(), "{what}: never served");
        pause(LOOK);
        spent.push(processor::seconds(pid).unwrap());
        last = since.read();
    }
    let all = spent.last().unwrap() - spent.first().unwrap();
    let busiest = spent.windows(LOOKS + 1).map(|second| second[LOOKS] - second[0]).fold(0.0, f64::max);
    println!(
        "{what}: the last node is served after {:.1} s; the apiserver takes {:.2} s of a processor, {:.1} ms for a \
         node, {busiest:.2} s in its busiest second",
        last.as_secs_f64(),
        all,
        all * 1e3 / nodes.len() as f64
    );
}

/// Runs all nodes until told to end.
fn live(cluster: &Cluster, nodes: usize, out: &Sender<Vec<View>>, ended: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        let views = (0..nodes).map(|number| node(access(cluster).unwrap(), number, &mut tasks)).collect();
        out.send(views).unwrap();
        let _ = ended.await;
    });
}

/// A node's source with discarded events.
fn node(access: Access, number: usize, tasks: &mut JoinSet<()>) -> View {
    let name = NodeName::from_host_name(&format!("n{number}")).unwrap();
    let source = Kubernetes::new(access, SourceSettings { node: Some(name), ..SourceSettings::default() });
    let view = source.view();
    let (events_out, mut events) = mpsc::channel(WAITING_MAX);
    let (reports_out, mut reports) = mpsc::channel::<NodeReport>(1);
    tasks.spawn(source.run(events_out, reports_out));
    tasks.spawn(async move { while events.recv().await.is_some() {} });
    tasks.spawn(async move {
        while let Some(report) = reports.recv().await {
            let _ = report.applied.send(());
        }
    });
    view
}

/// A node's own access to its apiservers.
fn access(cluster: &Cluster) -> Result<Access, Box<dyn Error>> {
    let admin = cluster.authority().admin();
    let (ca, certificate, key) = (cluster.authority().file(), &admin.certificate, &admin.key);
    let endpoints: Vec<String> =
        KNOWN.map(|index| format!("https://{}", address(index).unwrap())).into_iter().collect();
    let text = format!(
        "[apiserver]\nendpoints = {endpoints:?}\ntls_server_name = \"kubernetes\"\ndiscover = []\nca_file = {ca:?}\n\
         client_certificate_file = {certificate:?}\nclient_key_file = {key:?}\n"
    );
    let (config, _) = Config::parse(&text, "config.toml")?;
    let sources = apiserver::AccessSources { apiserver: config.apiserver, kubelet: None, learns: false };
    let state = cluster.folder().to_owned();
    Ok(Access::new(&apiserver::AccessSettings { sources, state, known_cluster: None, seed: 1 })?)
}
