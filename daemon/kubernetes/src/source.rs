//! Services, `EndpointSlices`, the own Node and ServiceImports, from an apiserver.
//!
//! Invariant: one watch per kind, each over a connection of its own. An object that cannot be read rejects itself only;
//! a list counts whole or not at all; what is known is served while no apiserver answers. ServiceImports and their
//! slices are a source of their own, on which no other one depends.

mod again;
mod apiservers;
mod asked;
mod audit;
mod codec;
mod crowd;
mod delivered;
mod ending;
mod envelope;
pub mod line;
mod object;
mod offer;
mod outlet;
pub mod pace;
pub mod page;
pub mod piece;
mod questions;
mod reflector;
pub mod resource;
mod version;
mod view;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::engine;
use holdfast_core::event::{Event, WatchKind};
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::snapshot::{ServiceView, Snapshot};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;

use crate::apiserver::Access;
use crate::own_node::NodeReport;
use asked::{Answers, Askers};
use audit::Audit;
use crowd::Crowd;
use delivered::Delivered;
use ending::Ending;
use holdfast_config::{Encodings, NodeName};
use offer::Offer;
use outlet::{HeadStart, Missing, Outlet};
use questions::Questions;
use reflector::{Reflector, SharedDelivered};
use resource::{Selection, SharedSelection};

pub use apiservers::Apiservers;
pub use asked::Audited;
pub use asked::{Asker, Compared};
pub use resource::Resource;
pub use version::{Odd, Odds, Version};
pub use view::{LastError, State, View, Watch};

/// How long things take and may take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// How long a watch is asked for at least; up to a quarter more, by chance. At its end the watch may move to a
    /// better endpoint: that happens within five minutes, even with the time that a check of the endpoint takes.
    pub watch_length: Duration,
    /// How much later than asked for a server may end a watch.
    pub watch_overrun: Duration,
    /// How long a watch may be silent. An apiserver sends a bookmark each minute.
    pub watch_idle: Duration,
    /// How long a watch that follows an interruption may be silent until the server is asked which version it has.
    pub doubt: Duration,
    /// How long nothing may have come until, once changes come again, all that was delivered is compared at once. A
    /// store that was restored meanwhile may have given out versions beyond those that it had told before.
    pub away: Duration,
    /// How long a watch must have lasted for its end to count as a normal one.
    pub watch_short: Duration,
    /// How long the body may take that says why a request is refused. What has come by then is told.
    pub refusal: Duration,
    /// How long a list may send nothing until the request is given up.
    pub list_idle: Duration,
    /// How long no page of a list may come. After that the whole list is asked for once more.
    pub list_silence: Duration,
    /// Over how long the lists of nodes spread at least when their versions are gone all at once. Many nodes spread
    /// over more.
    pub list_spread: Duration,
    /// How long a watch that goes on where another daemon was must be quiet until it counts as up to date: what was
    /// missed comes event by event. Before that, maps that are newer than what is remembered would be turned back.
    pub quiet: Duration,
    /// After how long such a watch counts as up to date all the same. Until then nothing is written, so a daemon that
    /// is killed earlier, again and again, never follows a change.
    pub replay_max: Duration,
    /// How often a watch is audited; up to a quarter more, by chance.
    pub audit_every: Duration,
    /// How long a difference must last to count.
    pub audit_again: Duration,
    /// How far apart comparisons are that clients ask for. Each one costs the apiserver a list of everything.
    pub audit_pace: Duration,
    /// How long the objects of one answer that cannot be read may take to be asked for alone. All others wait for it.
    pub alone: Duration,
    /// How long a kind whose answers could not be taken apart as protobuf is asked for as JSON.
    pub doubted: Duration,
    /// How long at least to wait until this node's Node object, or ServiceImports, are asked for again, once that was
    /// refused several times.
    pub node_wait: Duration,
    /// How long after the start the first lists may wait for the zone.
    pub node_first: Duration,
    /// How long ServiceImports may take longer than everything else until the start waits for them no more.
    pub imports_first: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            watch_length: Duration::from_secs(220),
            watch_overrun: Duration::from_secs(30),
            watch_idle: Duration::from_secs(90),
            doubt: Duration::from_secs(2),
            away: Duration::from_secs(300),
            watch_short: Duration::from_secs(10),
            refusal: Duration::from_secs(10),
            list_idle: Duration::from_secs(30),
            list_silence: Duration::from_secs(300),
            list_spread: Duration::from_secs(1),
            quiet: Duration::from_millis(200),
            replay_max: Duration::from_secs(3),
            audit_every: Duration::from_secs(3_600),
            audit_again: Duration::from_secs(5),
            audit_pace: Duration::from_secs(10),
            alone: Duration::from_secs(5),
            doubted: Duration::from_secs(3_600),
            node_wait: Duration::from_secs(60),
            node_first: Duration::from_millis(500),
            imports_first: Duration::from_secs(5),
        }
    }
}

/// What a former process knew of one kind.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    /// The version up to which it knew everything.
    pub resource_version: Arc<str>,
    /// Every object that is in its table.
    pub objects: Vec<(ObjectName, Version)>,
    /// What its table did not say of the objects.
    pub odds: Odds,
}

/// What the table does not say of Services and `EndpointSlices`, for a process that goes on from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Oddities {
    pub services: Arc<Odds>,
    pub slices: Arc<Odds>,
}

/// Where the oddities of both kinds are looked up. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OddityView {
    services: SharedDelivered,
    slices: SharedDelivered,
}

impl OddityView {
    /// The oddities of now, which are no older than any table that the engine has published: nothing is handed over
    /// before it counts as delivered. The first change after this copies them, and only while these are held.
    pub fn now(&self) -> Oddities {
        Oddities { services: self.services.lock().odds(), slices: self.slices.lock().odds() }
    }
}

/// Objects of a table with their versions.
type Versions = Vec<(ObjectName, Version)>;

/// What to go on from, so that a restart costs the apiserver no list of Services and slices: both kinds or none.
#[derive(Clone, Debug, Default)]
pub struct Start {
    pub services: Option<Remembered>,
    pub slices: Option<Remembered>,
    /// The apiservers that those slices name.
    pub apiservers: Apiservers,
    /// The ServiceImports of the table, which stay until a list says otherwise.
    pub imports: Versions,
    /// The slices of these.
    pub imported_slices: Versions,
    /// How long ago all that was written down.
    pub age: Duration,
}

impl Start {
    /// From the table as a former process wrote it down; nothing if it did not know all of an apiserver's objects.
    pub fn of(table: &engine::SavedSnapshot, odds: &Oddities) -> Self {
        let version = |watched| table.progress.get(&watched).cloned();
        let versions = version(WatchKind::Services).zip(version(WatchKind::Slices));
        let (imports, imported_slices) = known(table, Source::ClusterSet);
        let (imports, imported_slices) = (unread(imports), unread(imported_slices));
        let start = Self { imports, imported_slices, ..Self::default() };
        let Some((services, slices)) = versions else { return start };
        let (services_known, slices_known) = known(table, Source::Kubernetes);
        if services_known.is_empty() && slices_known.is_empty() {
            // No cluster is without a Service, so the versions are those of objects that the table has lost.
            return start;
        }
        let remembered = |resource_version, objects, odds: &Arc<Odds>| {
            Some(Remembered { resource_version, objects, odds: Odds::clone(odds) })
        };
        let mut apiservers = Apiservers::default();
        for slice in views(table, Source::Kubernetes).flat_map(|view| view.slices.iter()) {
            apiservers.apply(slice);
        }
        Self {
            services: remembered(services, services_known, &odds.services),
            slices: remembered(slices, slices_known, &odds.slices),
            apiservers,
            ..start
        }
    }

    /// The same without what depends on which Services were asked for.
    pub fn of_imports(self) -> Self {
        Self { imports: self.imports, imported_slices: self.imported_slices, ..Self::default() }
    }

    const fn is_some(&self) -> bool {
        self.services.is_some() && self.slices.is_some()
    }
}

/// The services of one source in a table.
fn views(table: &engine::SavedSnapshot, source: Source) -> impl Iterator<Item = &ServiceView> {
    table.services.iter().map(|view| &**view).filter(move |view| view.key.source == source)
}

/// The same without the versions: the next list tells all of it once more. That changes nothing of what is known, and
/// names again what is wrong in parts, which the table does not say.
fn unread(versions: Versions) -> Versions {
    let unread = |(name, version)| (name, Version { resource_version: Arc::default(), ..version });
    versions.into_iter().map(unread).collect()
}

/// The services and the slices of one source in a table.
fn known(table: &engine::SavedSnapshot, source: Source) -> (Versions, Versions) {
    let services = views(table, source).filter_map(|view| view.facts.as_ref());
    let services = services.map(|it| (it.key.name.clone(), Version::of(&it.meta)));
    let slices = views(table, source).flat_map(|view| view.slices.iter());
    let slices = slices.map(|it| (it.key.name.clone(), Version::of(&it.meta)));
    (services.collect(), slices.collect())
}

/// What is watched, and how.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Only Services with this value in the label `service.kubernetes.io/service-proxy-name`; none means those without
    /// the label.
    pub service_proxy_name: Option<String>,
    /// In which encodings objects are asked for.
    pub encodings: Encodings,
    /// This node's Node object, for its zone and its addresses; none where they are not needed.
    pub node: Option<NodeName>,
    /// Whether ServiceImports are served, where the cluster has them.
    pub service_imports: bool,
    /// What to go on from; without it everything is delivered anew.
    pub start: Start,
    /// How long things take.
    pub timing: Timing,
}

/// The source, before it runs.
#[derive(Debug)]
pub struct Kubernetes {
    access: Access,
    timing: Timing,
    /// The sources of which a table is known.
    resumed: Vec<Source>,
    apiservers: Apiservers,
    kinds: Vec<Kind>,
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
    /// How old is what it goes on from.
    start_age: Duration,
}

/// One kind, before it is watched.
#[derive(Debug)]
struct Kind {
    selection: SharedSelection,
    offer: Offer,
    version: Option<Arc<str>>,
    delivered: SharedDelivered,
    view: watch::Sender<Watch>,
    asked: (Askers, Answers),
}

impl Kind {
    fn new(selection: Selection, start: Option<Remembered>, encodings: Encodings, timing: &Timing) -> Self {
        let (version, known) = start.map(|it| (it.resource_version, (it.objects, it.odds))).unzip();
        Self::knowing(selection, version, known.unwrap_or_default(), (encodings, timing))
    }

    /// A kind of which these objects are known. Without a version, a list says what has become of them.
    fn knowing(
        selection: Selection,
        version: Option<Arc<str>>,
        (objects, odds): (Versions, Odds),
        (encodings, timing): (Encodings, &Timing),
    ) -> Self {
        let view = watch::Sender::new(Watch::new(selection.what));
        let delivered = Delivered::remembered(objects, odds);
        if delivered.len() > 0 {
            view.send_modify(|view| view.enter(State::Waiting));
        }
        let selection = SharedSelection::new(selection);
        let asked = asked::ends(timing.audit_pace);
        let offer = Offer::new(encodings);
        Self { selection, offer, version, delivered: SharedDelivered::new(delivered), view, asked }
    }

    /// Whether a ServiceImport or a slice of one is remembered.
    fn is_known_import(&self) -> bool {
        self.selection.what.source() == Source::ClusterSet && self.delivered.lock().len() > 0
    }

    /// What an earlier run could not understand and this run has not read yet.
    fn rejections(&self) -> Vec<Event> {
        self.delivered.lock().rejections().cloned().map(Event::Rejected).collect()
    }
}

impl Kubernetes {
    /// The source, ready to run: it sends nothing yet.
    pub fn new(access: Access, settings: Settings) -> Self {
        let Settings { service_proxy_name, encodings, node, service_imports, start, timing } = settings;
        let is_resumed = start.is_some();
        if is_resumed {
            access.learn(&start.apiservers.listed());
        }
        let apiservers = start.apiservers;
        let has_imports = !start.imports.is_empty() || !start.imported_slices.is_empty();
        let resumed =
            [(is_resumed, Source::Kubernetes), (service_imports && has_imports, Source::ClusterSet)];
        let resumed =
            resumed.into_iter().filter_map(|(is_known, source)| is_known.then_some(source)).collect();
        let kind = |selection, start| Kind::new(selection, start, encodings, &timing);
        let services = kind(Selection::services(service_proxy_name.as_deref()), start.services);
        let slices = kind(Selection::slices(), start.slices);
        let node = node.map(|name| kind(Selection::node(&name), None));
        // No apiserver writes custom resources as protobuf.
        let of_imports = [
            (Selection::imports(), start.imports, Encodings::Json),
            (Selection::imported_slices(), start.imported_slices, encodings),
        ];
        let of_imports =
            of_imports.into_iter().filter(|_| service_imports).map(|(selection, known, encodings)| {
                Kind::knowing(selection, None, (known, Odds::default()), (encodings, &timing))
            });
        let kinds = [services, slices].into_iter().chain(node).chain(of_imports).collect();
        let start_age = start.age;
        Self { access, timing, resumed, apiservers, kinds, snapshots: None, start_age }
    }

    /// Makes the source deliver everything once more when these snapshots ask for it.
    pub fn heeding(self, snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { snapshots: Some(snapshots), ..self }
    }

    /// How the watches are doing.
    pub fn view(&self) -> View {
        let is_audited = |kind: &&Kind| kind.selection.what != Resource::Node;
        let audits =
            self.kinds.iter().filter(is_audited).map(|kind| (kind.selection.what, kind.asked.0.clone()));
        View {
            audits: audits.collect(),
            watches: self.kinds.iter().map(|kind| kind.view.subscribe()).collect(),
        }
    }

    /// Where it can be looked up what the table does not say of objects.
    pub fn oddities(&self) -> OddityView {
        let known = |what| {
            let of = self.kinds.iter().find(|kind| kind.selection.what == what);
            of.map(|kind| kind.delivered.clone()).unwrap_or_default()
        };
        OddityView { services: known(Resource::Services), slices: known(Resource::Slices) }
    }

    /// Runs until the engine takes no more events.
    pub async fn run(self, events: mpsc::Sender<Vec<Event>>, nodes: mpsc::Sender<NodeReport>) {
        if !self.resumed.is_empty() && events.send(self.resumed()).await.is_err() {
            return;
        }
        let missing = [Source::Kubernetes, Source::ClusterSet].map(|source| (source, self.missing(source)));
        let [(_, others), (_, imports)] = &missing;
        let mut wait = JoinSet::new();
        let most = self.timing.imports_first;
        wait.spawn(outlet::wait_no_longer((others.clone(), imports.clone()), most, events.clone()));
        let has_node = self.kinds.iter().any(|kind| kind.selection.what == Resource::Node);
        let head_start = HeadStart::new(!has_node, self.timing.node_first);
        // What is known of imports is followed, also while the apiserver does not tell of the imports themselves.
        let are_there = watch::Sender::new(self.kinds.iter().any(Kind::is_known_import));
        let mut tasks = JoinSet::new();
        let given = (&self.timing, self.snapshots.as_ref(), self.start_age);
        for kind in self.kinds {
            let what = kind.selection.what;
            let missing = missing.iter().find(|(source, _)| what.is_of_table() && *source == what.source());
            let outlet = Outlet {
                source: what.source(),
                access: self.access.clone(),
                events: events.clone(),
                nodes: nodes.clone(),
                missing: missing.map(|(_, missing)| missing.clone()),
                head_start: head_start.clone(),
                apiservers: if what == Resource::Slices {
                    self.apiservers.clone()
                } else {
                    Apiservers::default()
                },
                is_heard: false,
            };
            let needs = (what == Resource::ImportedSlices).then(|| are_there.subscribe());
            let is_there = match what {
                Resource::Imports => are_there.clone(),
                _ => watch::Sender::new(false),
            };
            start(kind, outlet, (is_there, needs), given, &mut tasks);
        }
        drop((events, nodes));
        // The first task that ends has found the receiver gone; the rest ends with the set.
        tasks.join_next().await;
    }
}

impl Kubernetes {
    /// The events of a start that goes on from a table: what was known stays, and is delivered again only where it
    /// differs.
    fn resumed(&self) -> Vec<Event> {
        let rejections = self.kinds.iter().flat_map(Kind::rejections);
        self.resumed.iter().copied().map(Event::Resumed).chain(rejections).collect()
    }

    /// The kinds of a source, of which none has arrived.
    fn missing(&self, source: Source) -> Missing {
        let is_its =
            |kind: &&Kind| kind.selection.what.is_of_table() && kind.selection.what.source() == source;
        Missing::new(self.kinds.iter().filter(is_its).count())
    }
}

fn start(
    kind: Kind,
    outlet: Outlet,
    (is_there, needs): (watch::Sender<bool>, Option<watch::Receiver<bool>>),
    (timing, snapshots, start_age): (&Timing, Option<&watch::Receiver<Arc<Snapshot>>>, Duration),
    tasks: &mut JoinSet<()>,
) {
    let Kind { selection, offer, version, delivered, view, asked } = kind;
    let (found, endings) = mpsc::channel(1);
    let what = selection.what;
    let of_endpoints = snapshots.filter(|_| what.is_of_endpoints()).cloned();
    let reflector = Reflector {
        access: outlet.access.clone(),
        selection,
        offer,
        doubts: 0,
        are_names_late: false,
        timing: timing.clone(),
        crowd: Crowd::new(snapshots.cloned()),
        delivered,
        outlet,
        view,
        endings,
        questions: Questions::new(what.source(), of_endpoints),
        reached: version.clone(),
        // A version that another process has reached may be another store's.
        is_doubtful: version.is_some(),
        is_from_long_ago: version.is_some() && start_age >= timing.away,
        returned: Arc::<Notify>::default(),
        version,
        is_there,
        needs,
    };
    if let (true, Some(snapshots)) = (what != Resource::Node, snapshots) {
        let known = (what.source(), reflector.delivered.clone());
        tasks.spawn(again::run(snapshots.clone(), known, found.clone()));
    }
    if what != Resource::Node {
        tasks.spawn(audit(&reflector, found, asked.1).run());
    }
    tasks.spawn(async move {
        let _closed = reflector.run().await;
    });
}

/// The audit of what a reflector delivers.
fn audit(reflector: &Reflector, found: mpsc::Sender<Ending>, answers: Answers) -> Audit {
    Audit {
        access: reflector.access.clone(),
        selection: reflector.selection.clone(),
        offer: reflector.offer.clone(),
        timing: reflector.timing.clone(),
        delivered: reflector.delivered.clone(),
        view: reflector.view.clone(),
        found,
        answers,
        returned: Arc::clone(&reflector.returned),
        crowd: reflector.crowd.clone(),
    }
}
