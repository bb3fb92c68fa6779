//! Services, `EndpointSlices`, the own Node and ServiceImports, from an apiserver.
//!
//! Invariant: one watch per kind, each over a connection of its own. An object that cannot be read rejects itself only;
//! a list counts whole or not at all; what is known is served while no apiserver answers. ServiceImports and their
//! slices are a source of their own, on which no other one depends.

mod accepted_encodings;
mod apiservers;
mod audit;
mod audit_request;
pub mod backoff;
mod cluster_size;
mod codec;
mod envelope;
mod event_sink;
mod freshness;
pub mod line;
mod object;
mod object_cache;
pub mod page;
pub mod piece;
mod reflector;
mod relist;
pub mod resource;
mod version;
mod view;
mod watch_error;

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
use accepted_encodings::AcceptedEncodings;
use audit::Audit;
use audit_request::{AuditClient, AuditServer};
use cluster_size::ClusterSize;
use event_sink::{EventSink, InitialSync, ZoneWait};
use freshness::FreshnessQueries;
use holdfast_config::{Encodings, NodeName};
use object_cache::ObjectCache;
use reflector::{Reflector, SharedObjectCache};
use resource::{Selection, SharedSelection};
use watch_error::WatchError;

pub use apiservers::Apiservers;
pub use audit_request::AuditResult;
pub use audit_request::{AuditMode, AuditReport};
pub use resource::Resource;
pub use version::{UntabledObject, UntabledObjects, Version};
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
    pub rewind_check_delay: Duration,
    /// How long nothing may have come until, once changes come again, all that was delivered is compared at once. A
    /// store that was restored meanwhile may have given out versions beyond those that it had told before.
    pub long_absence: Duration,
    /// How long a watch must have lasted for its end to count as a normal one.
    pub watch_short: Duration,
    /// How long the body may take that says why a request is refused. What has come by then is told.
    pub error_body_timeout: Duration,
    /// How long a list may send nothing until the request is given up.
    pub list_idle: Duration,
    /// How long no page of a list may come. After that the whole list is asked for once more.
    pub list_stall_timeout: Duration,
    /// Over how long the lists of nodes spread at least when their versions are gone all at once. Many nodes spread
    /// over more.
    pub list_spread: Duration,
    /// How long a watch that goes on where another daemon was must be quiet until it counts as up to date: what was
    /// missed comes event by event. Before that, maps that are newer than what is remembered would be turned back.
    pub replay_quiet: Duration,
    /// After how long such a watch counts as up to date all the same. Until then nothing is written, so a daemon that
    /// is killed earlier, again and again, never follows a change.
    pub replay_max: Duration,
    /// How often a watch is audited; up to a quarter more, by chance.
    pub audit_interval: Duration,
    /// How long a difference must last to count.
    pub audit_confirm_delay: Duration,
    /// How far apart comparisons are that clients ask for. Each one costs the apiserver a list of everything.
    pub audit_interval_min: Duration,
    /// How long the objects of one answer that cannot be read may take to be asked for alone. All others wait for it.
    pub refetch_timeout: Duration,
    /// How long a kind whose answers could not be taken apart as protobuf is asked for as JSON.
    pub json_fallback_time: Duration,
    /// How long at least to wait until this node's Node object, or ServiceImports, are asked for again, once that was
    /// refused several times.
    pub absent_retry: Duration,
    /// How long after the start the first lists may wait for the zone.
    pub zone_wait_max: Duration,
    /// How long ServiceImports may take longer than everything else until the start waits for them no more.
    pub imports_wait_max: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            watch_length: Duration::from_secs(220),
            watch_overrun: Duration::from_secs(30),
            watch_idle: Duration::from_secs(90),
            rewind_check_delay: Duration::from_secs(2),
            long_absence: Duration::from_secs(300),
            watch_short: Duration::from_secs(10),
            error_body_timeout: Duration::from_secs(10),
            list_idle: Duration::from_secs(30),
            list_stall_timeout: Duration::from_secs(300),
            list_spread: Duration::from_secs(1),
            replay_quiet: Duration::from_millis(200),
            replay_max: Duration::from_secs(3),
            audit_interval: Duration::from_secs(3_600),
            audit_confirm_delay: Duration::from_secs(5),
            audit_interval_min: Duration::from_secs(10),
            refetch_timeout: Duration::from_secs(5),
            json_fallback_time: Duration::from_secs(3_600),
            absent_retry: Duration::from_secs(60),
            zone_wait_max: Duration::from_millis(500),
            imports_wait_max: Duration::from_secs(5),
        }
    }
}

/// What a former process knew of one kind.
#[derive(Clone, Debug, Default)]
pub struct SavedObjects {
    /// The version up to which it knew everything.
    pub resource_version: Arc<str>,
    /// Every object that is in its table.
    pub objects: Vec<(ObjectName, Version)>,
    /// What its table did not say of the objects.
    pub untabled: UntabledObjects,
}

/// What the table does not say of Services and `EndpointSlices`, for a process that goes on from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UntabledByKind {
    pub services: Arc<UntabledObjects>,
    pub slices: Arc<UntabledObjects>,
}

/// Where the oddities of both kinds are looked up. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UntabledView {
    services: SharedObjectCache,
    slices: SharedObjectCache,
}

impl UntabledView {
    /// The oddities of now, which are no older than any table that the engine has published: nothing is handed over
    /// before it counts as delivered. The first change after this copies them, and only while these are held.
    pub fn current(&self) -> UntabledByKind {
        UntabledByKind {
            services: self.services.lock().untabled_objects(),
            slices: self.slices.lock().untabled_objects(),
        }
    }
}

/// Objects of a table with their versions.
type ObjectVersions = Vec<(ObjectName, Version)>;

/// What to go on from, so that a restart costs the apiserver no list of Services and slices: both kinds or none.
#[derive(Clone, Debug, Default)]
pub struct ResumeState {
    pub services: Option<SavedObjects>,
    pub slices: Option<SavedObjects>,
    /// The apiservers that those slices name.
    pub apiservers: Apiservers,
    /// The ServiceImports of the table, which stay until a list says otherwise.
    pub imports: ObjectVersions,
    /// The slices of these.
    pub imported_slices: ObjectVersions,
    /// How long ago all that was written down.
    pub age: Duration,
}

impl ResumeState {
    /// From the table as a former process wrote it down; nothing if it did not know all of an apiserver's objects.
    pub fn from_table(table: &engine::SavedSnapshot, odds: &UntabledByKind) -> Self {
        let version = |watched| table.progress.get(&watched).cloned();
        let versions = version(WatchKind::Services).zip(version(WatchKind::Slices));
        let (imports, imported_slices) = known_versions(table, Source::ClusterSet);
        let (imports, imported_slices) = (clear_versions(imports), clear_versions(imported_slices));
        let start = Self { imports, imported_slices, ..Self::default() };
        let Some((services, slices)) = versions else { return start };
        let (services_known, slices_known) = known_versions(table, Source::Kubernetes);
        if services_known.is_empty() && slices_known.is_empty() {
            // No cluster is without a Service, so the versions are those of objects that the table has lost.
            return start;
        }
        let remembered = |resource_version, objects, odds: &Arc<UntabledObjects>| {
            Some(SavedObjects { resource_version, objects, untabled: UntabledObjects::clone(odds) })
        };
        let mut apiservers = Apiservers::default();
        for slice in source_views(table, Source::Kubernetes).flat_map(|view| view.slices.iter()) {
            apiservers.apply_slice(slice);
        }
        Self {
            services: remembered(services, services_known, &odds.services),
            slices: remembered(slices, slices_known, &odds.slices),
            apiservers,
            ..start
        }
    }

    /// The same without what depends on which Services were asked for.
    pub fn only_imports(self) -> Self {
        Self { imports: self.imports, imported_slices: self.imported_slices, ..Self::default() }
    }

    const fn has_versions(&self) -> bool {
        self.services.is_some() && self.slices.is_some()
    }
}

/// The services of one source in a table.
fn source_views(table: &engine::SavedSnapshot, source: Source) -> impl Iterator<Item = &ServiceView> {
    table.services.iter().map(|view| &**view).filter(move |view| view.key.source == source)
}

/// The same without the versions: the next list tells all of it once more. That changes nothing of what is known, and
/// names again what is wrong in parts, which the table does not say.
fn clear_versions(versions: ObjectVersions) -> ObjectVersions {
    let unread = |(name, version)| (name, Version { resource_version: Arc::default(), ..version });
    versions.into_iter().map(unread).collect()
}

/// The services and the slices of one source in a table.
fn known_versions(table: &engine::SavedSnapshot, source: Source) -> (ObjectVersions, ObjectVersions) {
    let services = source_views(table, source).filter_map(|view| view.facts.as_ref());
    let services = services.map(|it| (it.key.name.clone(), Version::from_meta(&it.meta)));
    let slices = source_views(table, source).flat_map(|view| view.slices.iter());
    let slices = slices.map(|it| (it.key.name.clone(), Version::from_meta(&it.meta)));
    (services.collect(), slices.collect())
}

/// What is watched, and how.
#[derive(Clone, Debug, Default)]
pub struct SourceSettings {
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
    pub start: ResumeState,
    /// How long things take.
    pub timing: Timing,
}

/// The source, before it runs.
#[derive(Debug)]
pub struct Kubernetes {
    access: Access,
    timing: Timing,
    /// The sources of which a table is known.
    resumed_sources: Vec<Source>,
    apiservers: Apiservers,
    kinds: Vec<WatchSetup>,
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
    /// How old is what it goes on from.
    start_age: Duration,
}

/// One kind, before it is watched.
#[derive(Debug)]
struct WatchSetup {
    selection: SharedSelection,
    encodings: AcceptedEncodings,
    version: Option<Arc<str>>,
    cache: SharedObjectCache,
    view: watch::Sender<Watch>,
    audit_channel: (AuditClient, AuditServer),
}

impl WatchSetup {
    fn new(selection: Selection, start: Option<SavedObjects>, encodings: Encodings, timing: &Timing) -> Self {
        let (version, known) = start.map(|it| (it.resource_version, (it.objects, it.untabled))).unzip();
        Self::with_objects(selection, version, known.unwrap_or_default(), (encodings, timing))
    }

    /// A kind of which these objects are known. Without a version, a list says what has become of them.
    fn with_objects(
        selection: Selection,
        version: Option<Arc<str>>,
        (objects, odds): (ObjectVersions, UntabledObjects),
        (encodings, timing): (Encodings, &Timing),
    ) -> Self {
        let view = watch::Sender::new(Watch::new(selection.what));
        let delivered = ObjectCache::restore(objects, odds);
        if delivered.len() > 0 {
            view.send_modify(|view| view.set_state(State::Waiting));
        }
        let selection = SharedSelection::new(selection);
        let asked = audit_request::audit_channel(timing.audit_interval_min);
        let offer = AcceptedEncodings::new(encodings);
        Self {
            selection,
            encodings: offer,
            version,
            cache: SharedObjectCache::new(delivered),
            view,
            audit_channel: asked,
        }
    }

    /// Whether a ServiceImport or a slice of one is remembered.
    fn has_known_imports(&self) -> bool {
        self.selection.what.source() == Source::ClusterSet && self.cache.lock().len() > 0
    }

    /// What an earlier run could not understand and this run has not read yet.
    fn rejections(&self) -> Vec<Event> {
        self.cache.lock().rejections().cloned().map(Event::Rejected).collect()
    }
}

impl Kubernetes {
    /// The source, ready to run: it sends nothing yet.
    pub fn new(access: Access, settings: SourceSettings) -> Self {
        let SourceSettings { service_proxy_name, encodings, node, service_imports, start, timing } = settings;
        let is_resumed = start.has_versions();
        if is_resumed {
            access.learn_endpoints(&start.apiservers.listed_endpoints());
        }
        let apiservers = start.apiservers;
        let has_imports = !start.imports.is_empty() || !start.imported_slices.is_empty();
        let resumed =
            [(is_resumed, Source::Kubernetes), (service_imports && has_imports, Source::ClusterSet)];
        let resumed =
            resumed.into_iter().filter_map(|(is_known, source)| is_known.then_some(source)).collect();
        let kind = |selection, start| WatchSetup::new(selection, start, encodings, &timing);
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
                WatchSetup::with_objects(
                    selection,
                    None,
                    (known, UntabledObjects::default()),
                    (encodings, &timing),
                )
            });
        let kinds = [services, slices].into_iter().chain(node).chain(of_imports).collect();
        let start_age = start.age;
        Self { access, timing, resumed_sources: resumed, apiservers, kinds, snapshots: None, start_age }
    }

    /// Makes the source deliver everything once more when these snapshots ask for it.
    pub fn with_snapshots(self, snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { snapshots: Some(snapshots), ..self }
    }

    /// How the watches are doing.
    pub fn view(&self) -> View {
        let is_audited = |kind: &&WatchSetup| kind.selection.what != Resource::Node;
        let audits = self
            .kinds
            .iter()
            .filter(is_audited)
            .map(|kind| (kind.selection.what, kind.audit_channel.0.clone()));
        View {
            audits: audits.collect(),
            watches: self.kinds.iter().map(|kind| kind.view.subscribe()).collect(),
        }
    }

    /// Where it can be looked up what the table does not say of objects.
    pub fn untabled_view(&self) -> UntabledView {
        let known = |what| {
            let of = self.kinds.iter().find(|kind| kind.selection.what == what);
            of.map(|kind| kind.cache.clone()).unwrap_or_default()
        };
        UntabledView { services: known(Resource::Services), slices: known(Resource::Slices) }
    }

    /// Runs until the engine takes no more events.
    pub async fn run(self, events: mpsc::Sender<Vec<Event>>, nodes: mpsc::Sender<NodeReport>) {
        if !self.resumed_sources.is_empty() && events.send(self.resume_events()).await.is_err() {
            return;
        }
        let missing =
            [Source::Kubernetes, Source::ClusterSet].map(|source| (source, self.initial_sync(source)));
        let [(_, others), (_, imports)] = &missing;
        let mut wait = JoinSet::new();
        let most = self.timing.imports_wait_max;
        wait.spawn(event_sink::limit_imports_wait((others.clone(), imports.clone()), most, events.clone()));
        let has_node = self.kinds.iter().any(|kind| kind.selection.what == Resource::Node);
        let head_start = ZoneWait::new(!has_node, self.timing.zone_wait_max);
        // What is known of imports is followed, also while the apiserver does not tell of the imports themselves.
        let are_there = watch::Sender::new(self.kinds.iter().any(WatchSetup::has_known_imports));
        let mut tasks = JoinSet::new();
        let given = (&self.timing, self.snapshots.as_ref(), self.start_age);
        for kind in self.kinds {
            let what = kind.selection.what;
            let missing = missing.iter().find(|(source, _)| what.is_in_table() && *source == what.source());
            let outlet = EventSink {
                source: what.source(),
                access: self.access.clone(),
                events: events.clone(),
                nodes: nodes.clone(),
                initial_sync: missing.map(|(_, missing)| missing.clone()),
                zone_wait: head_start.clone(),
                apiservers: if what == Resource::Slices {
                    self.apiservers.clone()
                } else {
                    Apiservers::default()
                },
                is_watching: false,
            };
            let needs = (what == Resource::ImportedSlices).then(|| are_there.subscribe());
            let is_there = match what {
                Resource::Imports => are_there.clone(),
                _ => watch::Sender::new(false),
            };
            spawn_reflector(kind, outlet, (is_there, needs), given, &mut tasks);
        }
        drop((events, nodes));
        // The first task that ends has found the receiver gone; the rest ends with the set.
        tasks.join_next().await;
    }
}

impl Kubernetes {
    /// The events of a start that goes on from a table: what was known stays, and is delivered again only where it
    /// differs.
    fn resume_events(&self) -> Vec<Event> {
        let rejections = self.kinds.iter().flat_map(WatchSetup::rejections);
        self.resumed_sources.iter().copied().map(Event::Resumed).chain(rejections).collect()
    }

    /// The kinds of a source, of which none has arrived.
    fn initial_sync(&self, source: Source) -> InitialSync {
        let is_its =
            |kind: &&WatchSetup| kind.selection.what.is_in_table() && kind.selection.what.source() == source;
        InitialSync::new(self.kinds.iter().filter(is_its).count())
    }
}

fn spawn_reflector(
    kind: WatchSetup,
    outlet: EventSink,
    (is_there, needs): (watch::Sender<bool>, Option<watch::Receiver<bool>>),
    (timing, snapshots, start_age): (&Timing, Option<&watch::Receiver<Arc<Snapshot>>>, Duration),
    tasks: &mut JoinSet<()>,
) {
    let WatchSetup { selection, encodings: offer, version, cache: delivered, view, audit_channel: asked } =
        kind;
    let (found, endings) = mpsc::channel(1);
    let what = selection.what;
    let of_endpoints = snapshots.filter(|_| what.has_endpoints()).cloned();
    let reflector = Reflector {
        access: outlet.access.clone(),
        selection,
        encodings: offer,
        selection_refusals: 0,
        skips_name_list: false,
        timing: timing.clone(),
        cluster_size: ClusterSize::new(snapshots.cloned()),
        cache: delivered,
        sink: outlet,
        view,
        relist_requests: endings,
        freshness: FreshnessQueries::new(what.source(), of_endpoints),
        latest_version: version.clone(),
        // A version that another process has reached may be another store's.
        is_version_suspect: version.is_some(),
        is_start_stale: version.is_some() && start_age >= timing.long_absence,
        long_absence_ended: Arc::<Notify>::default(),
        version,
        is_present: is_there,
        depends_on: needs,
    };
    if let (true, Some(snapshots)) = (what != Resource::Node, snapshots) {
        let known = (what.source(), reflector.cache.clone());
        tasks.spawn(relist::run(snapshots.clone(), known, found.clone()));
    }
    if what != Resource::Node {
        tasks.spawn(build_audit(&reflector, found, asked.1).run());
    }
    tasks.spawn(async move {
        let _closed = reflector.run().await;
    });
}

/// The audit of what a reflector delivers.
fn build_audit(reflector: &Reflector, found: mpsc::Sender<WatchError>, answers: AuditServer) -> Audit {
    Audit {
        access: reflector.access.clone(),
        selection: reflector.selection.clone(),
        encodings: reflector.encodings.clone(),
        timing: reflector.timing.clone(),
        cache: reflector.cache.clone(),
        view: reflector.view.clone(),
        relist_requests: found,
        requests: answers,
        long_absence_ended: Arc::clone(&reflector.long_absence_ended),
        cluster_size: reflector.cluster_size.clone(),
    }
}
