//! Services, `EndpointSlices` and the own Node, from an apiserver.
//!
//! Invariant: one watch per kind, each over a connection of its own. An object that cannot be read rejects itself only;
//! a list counts whole or not at all; what is known is served while no apiserver answers.

mod again;
mod apiservers;
mod asked;
mod audit;
mod codec;
mod crowd;
mod delivered;
mod ending;
mod envelope;
pub(crate) mod line;
mod object;
mod offer;
mod outlet;
pub(crate) mod pace;
pub(crate) mod page;
pub(crate) mod piece;
mod reflector;
pub(crate) mod resource;
mod version;
mod view;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::engine;
use holdfast_core::event::{Event, Watched};
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::snapshot::Snapshot;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::apiserver::Access;
use crate::config::{Encodings, NodeName};
use crate::node::NodeReport;
use asked::{Answers, Askers};
use audit::Audit;
use crowd::Crowd;
use delivered::Delivered;
use offer::Offer;
use outlet::{HeadStart, Missing, Outlet};
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
    /// How long a watch must have lasted for its end to count as a normal one.
    pub watch_short: Duration,
    /// How long a list may send nothing until the request is given up.
    pub list_idle: Duration,
    /// How long no page of a list may come. After that the whole list is asked for once more.
    pub list_silence: Duration,
    /// Over how long the lists of nodes spread at least when their versions are gone all at once. Many nodes spread
    /// over more.
    pub list_spread: Duration,
    /// How long a watch that goes on where another daemon was must be quiet until it counts as up to date. An apiserver
    /// sends what was missed with its first bytes. Until the watch counts as up to date nothing is written, so a daemon
    /// that is killed earlier, again and again, never follows a change.
    pub quiet: Duration,
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
    /// How long at least to wait until this node's Node object is asked for again, once it was refused several times.
    pub node_wait: Duration,
    /// How long after the start the first lists may wait for the zone.
    pub node_first: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            watch_length: Duration::from_secs(220),
            watch_overrun: Duration::from_secs(30),
            watch_idle: Duration::from_secs(90),
            doubt: Duration::from_secs(2),
            watch_short: Duration::from_secs(10),
            list_idle: Duration::from_secs(30),
            list_silence: Duration::from_secs(300),
            list_spread: Duration::from_secs(1),
            quiet: Duration::from_millis(200),
            audit_every: Duration::from_secs(3_600),
            audit_again: Duration::from_secs(5),
            audit_pace: Duration::from_secs(10),
            alone: Duration::from_secs(5),
            doubted: Duration::from_secs(3_600),
            node_wait: Duration::from_secs(60),
            node_first: Duration::from_millis(500),
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

/// Where the oddities of both kinds are published. Cheap to clone.
#[derive(Clone, Debug)]
pub struct OddityView {
    services: watch::Receiver<Arc<Odds>>,
    slices: watch::Receiver<Arc<Odds>>,
}

impl OddityView {
    /// The oddities of now, which are no older than any table that the engine has published.
    pub fn now(&self) -> Oddities {
        let odds = |of: &watch::Receiver<Arc<Odds>>| Arc::clone(&of.borrow());
        Oddities { services: odds(&self.services), slices: odds(&self.slices) }
    }
}

/// What to go on from, so that a restart costs the apiserver no list: both kinds or none.
#[derive(Clone, Debug, Default)]
pub struct Start {
    pub services: Option<Remembered>,
    pub slices: Option<Remembered>,
    /// The apiservers that those slices name.
    pub apiservers: Apiservers,
}

impl Start {
    /// From the table as a former process wrote it down; nothing if it did not know all of an apiserver's objects.
    pub fn of(table: &engine::Remembered, odds: &Oddities) -> Self {
        let version = |watched| table.progress.get(&watched).cloned();
        let versions = version(Watched::Services).zip(version(Watched::Slices));
        versions.map_or_else(Self::default, |(services, slices)| {
            let views = || table.services.iter().filter(|view| view.key.source == Source::Kubernetes);
            let services_known = views().filter_map(|view| view.facts.as_ref());
            let services_known = services_known.map(|it| (it.key.name.clone(), Version::of(&it.meta)));
            let slices_known = views().flat_map(|view| view.slices.iter());
            let slices_known = slices_known.map(|it| (it.key.name.clone(), Version::of(&it.meta)));
            let remembered = |resource_version, objects, odds: &Arc<Odds>| {
                Some(Remembered { resource_version, objects, odds: Odds::clone(odds) })
            };
            let mut apiservers = Apiservers::default();
            for slice in views().flat_map(|view| view.slices.iter()) {
                apiservers.apply(slice);
            }
            Self {
                services: remembered(services, services_known.collect(), &odds.services),
                slices: remembered(slices, slices_known.collect(), &odds.slices),
                apiservers,
            }
        })
    }

    const fn is_some(&self) -> bool {
        self.services.is_some() && self.slices.is_some()
    }
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
    is_resumed: bool,
    apiservers: Apiservers,
    kinds: Vec<Kind>,
    snapshots: Option<watch::Receiver<Arc<Snapshot>>>,
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
    odds: watch::Sender<Arc<Odds>>,
}

impl Kind {
    fn new(selection: Selection, start: Option<Remembered>, encodings: Encodings, timing: &Timing) -> Self {
        let view = watch::Sender::new(Watch::new(selection.what));
        let (version, known) = start.map(|it| (it.resource_version, (it.objects, it.odds))).unzip();
        let (objects, odds) = known.unwrap_or_default();
        let delivered = Delivered::remembered(objects, odds);
        let odds = watch::Sender::new(delivered.odds());
        let selection = SharedSelection::new(selection);
        let asked = asked::ends(timing.audit_pace);
        let offer = Offer::new(encodings);
        Self { selection, offer, version, delivered: SharedDelivered::new(delivered), view, odds, asked }
    }

    /// What an earlier run could not understand and this run has not read yet.
    fn rejections(&self) -> Vec<Event> {
        self.delivered.lock().rejections().cloned().map(Event::Rejected).collect()
    }
}

impl Kubernetes {
    /// The source, ready to run: it sends nothing yet.
    pub fn new(access: Access, settings: Settings) -> Self {
        let Settings { service_proxy_name, encodings, node, start, timing } = settings;
        let is_resumed = start.is_some();
        if is_resumed {
            access.learn(&start.apiservers.listed());
        }
        let apiservers = start.apiservers;
        let kind = |selection, start| Kind::new(selection, start, encodings, &timing);
        let services = kind(Selection::services(service_proxy_name.as_deref()), start.services);
        let slices = kind(Selection::slices(), start.slices);
        let node = node.map(|name| kind(Selection::node(&name), None));
        let kinds = [services, slices].into_iter().chain(node).collect();
        Self { access, timing, is_resumed, apiservers, kinds, snapshots: None }
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

    /// Where it is published what the table does not say of objects.
    pub fn oddities(&self) -> OddityView {
        let odds = |what| {
            let of = self.kinds.iter().find(|kind| kind.selection.what == what);
            of.map_or_else(|| watch::channel(Arc::default()).1, |kind| kind.odds.subscribe())
        };
        OddityView { services: odds(Resource::Services), slices: odds(Resource::Slices) }
    }

    /// Runs until the engine takes no more events.
    pub async fn run(self, events: mpsc::Sender<Vec<Event>>, nodes: mpsc::Sender<NodeReport>) {
        if self.is_resumed && events.send(self.resumed()).await.is_err() {
            return;
        }
        let is_of_table = |kind: &&Kind| kind.selection.what.watched().is_some();
        let of_table = self.kinds.iter().filter(is_of_table).count();
        let missing = Missing::new(of_table);
        let head_start = HeadStart::new(of_table == self.kinds.len(), self.timing.node_first);
        let mut tasks = JoinSet::new();
        for kind in self.kinds {
            let outlet = Outlet {
                access: self.access.clone(),
                events: events.clone(),
                nodes: nodes.clone(),
                missing: kind.selection.what.watched().map(|_| missing.clone()),
                head_start: head_start.clone(),
                apiservers: if kind.selection.what == Resource::Slices {
                    self.apiservers.clone()
                } else {
                    Apiservers::default()
                },
            };
            start(kind, outlet, &self.timing, self.snapshots.as_ref(), &mut tasks);
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
        std::iter::once(Event::Resumed(Source::Kubernetes)).chain(rejections).collect()
    }
}

fn start(
    kind: Kind,
    outlet: Outlet,
    timing: &Timing,
    snapshots: Option<&watch::Receiver<Arc<Snapshot>>>,
    tasks: &mut JoinSet<()>,
) {
    let Kind { selection, offer, version, delivered, view, odds, asked } = kind;
    let (found, endings) = mpsc::channel(1);
    if let (true, Some(snapshots)) = (selection.what != Resource::Node, snapshots) {
        tasks.spawn(again::run(snapshots.clone(), delivered.clone(), found.clone()));
    }
    if selection.what != Resource::Node {
        let audit = Audit {
            access: outlet.access.clone(),
            selection: selection.clone(),
            offer: offer.clone(),
            timing: timing.clone(),
            delivered: delivered.clone(),
            view: view.clone(),
            found,
            answers: asked.1,
        };
        tasks.spawn(audit.run());
    }
    let reflector = Reflector {
        access: outlet.access.clone(),
        selection,
        offer,
        doubts: 0,
        timing: timing.clone(),
        crowd: Crowd::new(snapshots.cloned()),
        delivered,
        outlet,
        view,
        odds,
        endings,
        reached: version.clone(),
        // A version that another process has reached may be another store's.
        is_doubtful: version.is_some(),
        version,
    };
    tasks.spawn(async move {
        let _closed = reflector.run().await;
    });
}
