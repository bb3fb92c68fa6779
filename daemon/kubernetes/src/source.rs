//! Lists and watches Services, `EndpointSlices`, the own Node and ServiceImports of an apiserver.
//!
//! Invariant: one watch per kind, each over its own connection. An unreadable object rejects only itself; a list counts
//! whole or not at all; known objects are served while no apiserver replies. ServiceImports and their slices are a
//! separate source, on which no other depends.

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
pub use view::{LastError, State, View, Watch, is_away};

/// Intervals and limits of the source.
#[derive(Clone, Debug)]
pub struct Timing {
    /// The shortest requested watch; up to a quarter more, at random. After it the watch may move to a preferred
    /// endpoint: within five minutes, including the check of that endpoint.
    pub watch_length: Duration,
    /// How late a server may end a watch.
    pub watch_overrun: Duration,
    /// The longest silence of a watch. An apiserver sends a bookmark each minute.
    pub watch_idle: Duration,
    /// The silence after an interruption that makes us ask the server for its version.
    pub rewind_check_delay: Duration,
    /// The silence after which new changes trigger an audit. A store that was restored meanwhile may have issued
    /// versions beyond those that it sent before.
    pub long_absence: Duration,
    /// A watch that ends sooner than this failed.
    pub watch_short: Duration,
    /// The limit for an error's body; the error repeats what has come by then.
    pub error_body_timeout: Duration,
    /// The longest silence of a list request.
    pub list_idle: Duration,
    /// The longest time without a page of a list. After that the whole list starts over.
    pub list_stall_timeout: Duration,
    /// The least time over which nodes spread their lists when all versions expire at once. Large clusters spread more.
    pub list_spread: Duration,
    /// The silence after which a resumed watch counts as up to date: missed changes arrive event by event. Programming
    /// earlier would revert maps that are newer than the saved objects.
    pub replay_quiet: Duration,
    /// The limit of that wait. Nothing is programmed before it ends, so a daemon that is killed earlier every time
    /// would never apply a change.
    pub replay_max: Duration,
    /// The interval of audits; up to a quarter more, at random.
    pub audit_interval: Duration,
    /// How long a difference must last to count.
    pub audit_confirm_delay: Duration,
    /// The least interval of audits that clients request. Each one costs the apiserver a full list.
    pub audit_interval_min: Duration,
    /// The limit for refetching the unreadable objects of one reply. All others wait for it.
    pub refetch_timeout: Duration,
    /// How long a kind is requested as JSON after its protobuf could not be parsed.
    pub json_fallback_time: Duration,
    /// The least wait before the own Node or ServiceImports are requested again after several refusals.
    pub absent_retry: Duration,
    /// How long after the start the first lists may wait for the zone.
    pub zone_wait_max: Duration,
    /// How long the start waits for ServiceImports after everything else has arrived.
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

/// The objects of one kind that a former process knew.
#[derive(Clone, Debug, Default)]
pub struct SavedObjects {
    /// The version up to which it knew all changes.
    pub resource_version: Arc<str>,
    /// Every object of this kind in its table.
    pub objects: Vec<(ObjectName, Version)>,
    /// Facts about the objects that its table does not hold.
    pub untabled: UntabledObjects,
}

/// Facts about Services and `EndpointSlices` that the table does not hold, for a process that resumes from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UntabledByKind {
    pub services: Arc<UntabledObjects>,
    pub slices: Arc<UntabledObjects>,
}

/// Reads the untabled objects of both kinds. Cheap to clone.
#[derive(Clone, Debug)]
pub struct UntabledView {
    services: SharedObjectCache,
    slices: SharedObjectCache,
}

impl UntabledView {
    /// The current untabled objects, never older than a published table: an object is cached before it is delivered.
    /// While the result is held, the next change copies them.
    pub fn current(&self) -> UntabledByKind {
        UntabledByKind {
            services: self.services.lock().untabled_objects(),
            slices: self.slices.lock().untabled_objects(),
        }
    }
}

type ObjectVersions = Vec<(ObjectName, Version)>;

/// The state to resume from, so that a restart does not list Services and slices: both kinds or neither.
#[derive(Clone, Debug, Default)]
pub struct ResumeState {
    pub services: Option<SavedObjects>,
    pub slices: Option<SavedObjects>,
    /// The apiservers in those slices.
    pub apiservers: Apiservers,
    /// The table's ServiceImports, which stay until a list replaces them.
    pub imports: ObjectVersions,
    /// Their slices.
    pub imported_slices: ObjectVersions,
    /// The age of the saved state.
    pub age: Duration,
}

impl ResumeState {
    /// Reads a former process's table; nothing if it did not know all of an apiserver's objects.
    pub fn from_table(table: &engine::SavedSnapshot, odds: &UntabledByKind) -> Self {
        let version = |watched| table.progress.get(&watched).cloned();
        let versions = version(WatchKind::Services).zip(version(WatchKind::Slices));
        let (imports, imported_slices) = known_versions(table, Source::ClusterSet);
        let (imports, imported_slices) = (clear_versions(imports), clear_versions(imported_slices));
        let start = Self { imports, imported_slices, ..Self::default() };
        let Some((services, slices)) = versions else { return start };
        let (services_known, slices_known) = known_versions(table, Source::Kubernetes);
        if services_known.is_empty() && slices_known.is_empty() {
            // No cluster is without a Service, so the table has lost the objects of these versions.
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

    /// Drops everything that depends on the selection of Services.
    pub fn only_imports(self) -> Self {
        Self { imports: self.imports, imported_slices: self.imported_slices, ..Self::default() }
    }

    const fn has_versions(&self) -> bool {
        self.services.is_some() && self.slices.is_some()
    }
}

/// A table's services of one source.
fn source_views(table: &engine::SavedSnapshot, source: Source) -> impl Iterator<Item = &ServiceView> {
    table.services.iter().map(|view| &**view).filter(move |view| view.key.source == source)
}

/// Clears the versions, so that the next list delivers every object again. That changes no facts, and reports partial
/// errors again, which the table does not hold.
fn clear_versions(versions: ObjectVersions) -> ObjectVersions {
    let unread = |(name, version)| (name, Version { resource_version: Arc::default(), ..version });
    versions.into_iter().map(unread).collect()
}

/// A table's services and slices of one source.
fn known_versions(table: &engine::SavedSnapshot, source: Source) -> (ObjectVersions, ObjectVersions) {
    let services = source_views(table, source).filter_map(|view| view.facts.as_ref());
    let services = services.map(|it| (it.key.name.clone(), Version::from_meta(&it.meta)));
    let slices = source_views(table, source).flat_map(|view| view.slices.iter());
    let slices = slices.map(|it| (it.key.name.clone(), Version::from_meta(&it.meta)));
    (services.collect(), slices.collect())
}

/// The kinds to watch, and how.
#[derive(Clone, Debug, Default)]
pub struct SourceSettings {
    /// Only Services with this value of the label `service.kubernetes.io/service-proxy-name`; `None`: only those
    /// without the label.
    pub service_proxy_name: Option<String>,
    /// The encodings to request.
    pub encodings: Encodings,
    /// This node's Node object, for its zone and addresses; `None` where they are not needed.
    pub node: Option<NodeName>,
    /// Whether to serve ServiceImports where the cluster has them.
    pub service_imports: bool,
    /// The state to resume from; without it everything is delivered again.
    pub start: ResumeState,
    pub timing: Timing,
}

/// A source that is not running yet.
#[derive(Debug)]
pub struct Kubernetes {
    access: Access,
    timing: Timing,
    /// The sources that resume from a table.
    resumed_sources: Vec<Source>,
    apiservers: Apiservers,
    kinds: Vec<WatchSetup>,
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
    /// The age of the state that it resumes from.
    start_age: Duration,
}

/// A kind that is not watched yet.
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

    /// A kind with these known objects. Without a version, a list updates them.
    fn with_objects(
        selection: Selection,
        version: Option<Arc<str>>,
        (objects, untabled): (ObjectVersions, UntabledObjects),
        (encodings, timing): (Encodings, &Timing),
    ) -> Self {
        let view = watch::Sender::new(Watch::new(selection.what));
        let cache = ObjectCache::restore(objects, untabled);
        if cache.len() > 0 {
            view.send_modify(|view| view.set_state(State::Waiting));
        }
        let selection = SharedSelection::new(selection);
        let audit_channel = audit_request::audit_channel(timing.audit_interval_min);
        let encodings = AcceptedEncodings::new(encodings);
        Self { selection, encodings, version, cache: SharedObjectCache::new(cache), view, audit_channel }
    }

    /// Whether a ServiceImport or a slice of one is known from before.
    fn has_known_imports(&self) -> bool {
        self.selection.what.source() == Source::ClusterSet && self.cache.lock().len() > 0
    }

    /// Rejections of an earlier run that this run has not read again.
    fn rejections(&self) -> Vec<Event> {
        self.cache.lock().rejections().cloned().map(Event::Rejected).collect()
    }
}

impl Kubernetes {
    /// Creates the source; it sends nothing yet.
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
        // No apiserver encodes custom resources as protobuf.
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

    /// Makes the source deliver everything again when these snapshots request it.
    pub fn with_snapshots(self, snapshots: watch::Receiver<Arc<Snapshot>>) -> Self {
        Self { snapshots: Some(snapshots), ..self }
    }

    /// The state of the watches.
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

    /// A view of the untabled objects.
    pub fn untabled_view(&self) -> UntabledView {
        let known = |what| {
            let of = self.kinds.iter().find(|kind| kind.selection.what == what);
            of.map(|kind| kind.cache.clone()).unwrap_or_default()
        };
        UntabledView { services: known(Resource::Services), slices: known(Resource::Slices) }
    }

    /// Runs until the engine closes its queue.
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
        let zone_wait = ZoneWait::new(!has_node, self.timing.zone_wait_max);
        // Slices of known imports are followed even before the apiserver has listed the imports.
        let has_imports = watch::Sender::new(self.kinds.iter().any(WatchSetup::has_known_imports));
        let mut tasks = JoinSet::new();
        let given = (&self.timing, self.snapshots.as_ref(), self.start_age);
        for kind in self.kinds {
            let what = kind.selection.what;
            let missing = missing.iter().find(|(source, _)| what.is_in_table() && *source == what.source());
            let sink = EventSink {
                source: what.source(),
                access: self.access.clone(),
                events: events.clone(),
                nodes: nodes.clone(),
                initial_sync: missing.map(|(_, missing)| missing.clone()),
                zone_wait: zone_wait.clone(),
                apiservers: if what == Resource::Slices {
                    self.apiservers.clone()
                } else {
                    Apiservers::default()
                },
                is_watching: false,
            };
            let depends_on = (what == Resource::ImportedSlices).then(|| has_imports.subscribe());
            let is_present = match what {
                Resource::Imports => has_imports.clone(),
                _ => watch::Sender::new(false),
            };
            spawn_reflector(kind, sink, (is_present, depends_on), given, &mut tasks);
        }
        drop((events, nodes));
        // The first task to end found the receiver gone; the set's drop ends the rest.
        tasks.join_next().await;
    }
}

impl Kubernetes {
    /// The events of a resumed start: known objects stay, and only differences are delivered again.
    fn resume_events(&self) -> Vec<Event> {
        let rejections = self.kinds.iter().flat_map(WatchSetup::rejections);
        self.resumed_sources.iter().copied().map(Event::Resumed).chain(rejections).collect()
    }

    /// The kinds of a source, none of them synced.
    fn initial_sync(&self, source: Source) -> InitialSync {
        let is_its =
            |kind: &&WatchSetup| kind.selection.what.is_in_table() && kind.selection.what.source() == source;
        InitialSync::new(self.kinds.iter().filter(is_its).count())
    }
}

fn spawn_reflector(
    kind: WatchSetup,
    sink: EventSink,
    (is_present, depends_on): (watch::Sender<bool>, Option<watch::Receiver<bool>>),
    (timing, snapshots, start_age): (&Timing, Option<&watch::Receiver<Arc<Snapshot>>>, Duration),
    tasks: &mut JoinSet<()>,
) {
    let WatchSetup { selection, encodings, version, cache, view, audit_channel } = kind;
    let (relist_sender, relist_requests) = mpsc::channel(1);
    let what = selection.what;
    let endpoint_snapshots = snapshots.filter(|_| what.has_endpoints()).cloned();
    let reflector = Reflector {
        access: sink.access.clone(),
        selection,
        encodings,
        selection_refusals: 0,
        skips_name_list: false,
        timing: timing.clone(),
        cluster_size: ClusterSize::new(snapshots.cloned()),
        cache,
        sink,
        view,
        relist_requests,
        freshness: FreshnessQueries::new(what.source(), endpoint_snapshots),
        latest_version: version.clone(),
        // A version from another process may be another store's.
        is_version_suspect: version.is_some(),
        is_start_stale: version.is_some() && start_age >= timing.long_absence,
        long_absence_ended: Arc::<Notify>::default(),
        version,
        is_present,
        depends_on,
    };
    if let (true, Some(snapshots)) = (what != Resource::Node, snapshots) {
        let known = (what.source(), reflector.cache.clone());
        tasks.spawn(relist::run(snapshots.clone(), known, relist_sender.clone()));
    }
    if what != Resource::Node {
        tasks.spawn(build_audit(&reflector, relist_sender, audit_channel.1).run());
    }
    tasks.spawn(async move {
        let _closed = reflector.run().await;
    });
}

/// Builds the audit of a reflector's cache.
fn build_audit(
    reflector: &Reflector,
    relist_requests: mpsc::Sender<WatchError>,
    requests: AuditServer,
) -> Audit {
    Audit {
        access: reflector.access.clone(),
        selection: reflector.selection.clone(),
        encodings: reflector.encodings.clone(),
        timing: reflector.timing.clone(),
        cache: reflector.cache.clone(),
        view: reflector.view.clone(),
        relist_requests,
        requests,
        long_absence_ended: Arc::clone(&reflector.long_absence_ended),
        cluster_size: reflector.cluster_size.clone(),
    }
}
