//! The state of the running daemon, for the parts that show it: the admin API, and the status line in systemd.
//!
//! Invariant: readers change nothing, query no other process and start no work. A reader delays no other part:
//! snapshots are shared, and a bounded queue carries the queries that only the engine can answer.

mod closed_ports;
mod comparison;
mod conditions;
#[cfg(any(test, feature = "testing"))]
#[path = "readings/tests/fixture.rs"]
pub mod fixture;
mod readiness;
mod refused_reload;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::facts::Timestamp;
use holdfast_core::op::PortIndex;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::{FlowTable, LiveMaps, PortCounters, PortCounts};
use holdfast_status::datapath::KeptFailures;
use holdfast_status::rfc3339::Millis;
use holdfast_status::views::announcements::AnnouncementStatus as Routes;
use holdfast_status::views::apiserver::ApiserverView;
use holdfast_status::views::clients::{ClientCounters, Clients};
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::proxies::Filter;
use holdfast_status::views::proxies::OtherProxy;
use tokio::sync::watch;

use crate::datapath::RefusalLog;
use crate::drains;
use crate::engine::query::EngineClient;
use crate::engine::steps::StepMetrics;
use crate::node_port_listeners::NodePortListeners;
use crate::probes::ProbeCounts;
use crate::recorder::History;
use crate::state::SnapshotWrite;
use holdfast_kubernetes::event_recorder::EventCounts;
use holdfast_kubernetes::source::View as Watches;
use holdfast_standalone::blocks::{CheckStats, ParsedBlock};
use holdfast_standalone::names::NameTable;

pub(crate) use closed_ports::{CLOSED_NAMED_MAX, IN_USE};
pub use closed_ports::{ClosedPort, ClosedPorts, Purpose};
pub use comparison::Verifications;
pub use comparison::{Comparison, compare_flows, compare_programs, unwritten_services};
pub use conditions::ConditionCause;
pub use conditions::{ConditionKind, Conditions};
pub use readiness::{fails_packets, missing_sources, translates_packets};
pub use refused_reload::{RefusedReload, Requester, StartOutcome};

/// What does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct About {
    /// The daemon's version.
    pub version: &'static str,
    pub started: Timestamp,
}

/// Where the daemon's files are.
#[derive(Clone, Debug, Default)]
pub struct NodeFiles {
    /// The configuration.
    pub config: PathBuf,
    /// The folder of what outlives a restart.
    pub state: PathBuf,
}

/// The configuration in force, every key with its value.
#[derive(Clone, Debug)]
pub struct EffectiveConfig {
    /// As TOML, in the shape of the file.
    pub text: String,
    pub json: String,
}

/// Reports the engine's progress: its steps, and how long an event has waited if that is too long.
#[derive(Clone)]
pub struct Liveness {
    stalled: Arc<dyn Fn() -> Option<Duration> + Send + Sync>,
    pub steps: Arc<StepMetrics>,
}

impl Liveness {
    /// `stalled_for` returns `None` while events move or none waits. It must not block.
    pub fn new(stalled: impl Fn() -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self { stalled: Arc::new(stalled), steps: Arc::default() }
    }

    /// Adds the engine's step metrics.
    pub fn with_steps(self, steps: Arc<StepMetrics>) -> Self {
        Self { steps, ..self }
    }

    pub fn stalled_for(&self) -> Option<Duration> {
        (self.stalled)()
    }
}

impl fmt::Debug for Liveness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Liveness").field(&self.stalled_for()).finish()
    }
}

/// All readings. Each one is current at the moment of reading.
#[derive(Clone, Debug)]
pub struct Readings {
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The latest configuration.
    pub config: watch::Receiver<Arc<EffectiveConfig>>,
    /// The latest view of programs and maps.
    pub datapath: watch::Receiver<Arc<DatapathView>>,
    /// The kernel's maps that readers access directly.
    pub live_maps: watch::Receiver<LiveMaps>,
    /// The latest view of the access to the apiserver; `None` if no apiserver is used.
    pub apiserver: Option<watch::Receiver<Arc<ApiserverView>>>,
    /// The state of each watch of the apiserver.
    pub watches: Watches,
    /// The latest denied clients.
    pub refusals: Arc<RefusalLog>,
    /// The answers of held backends to probes.
    pub probes: Arc<ProbeCounts>,
    /// The results of the checks of the configuration's backends.
    pub checks: Arc<CheckStats>,
    /// The name servers' answers for the backends of the configuration's services.
    pub names: Arc<NameTable>,
    /// The active blocks of the folder of further blocks.
    pub more_services: watch::Receiver<Arc<[Arc<ParsedBlock>]>>,
    /// The counts of Events sent to the cluster; `None` if none are written.
    pub announced: Option<Arc<EventCounts>>,
    /// Every change with its cause.
    pub history: Arc<History>,
    pub last_write: watch::Receiver<SnapshotWrite>,
    /// Sends queries that only the engine can answer.
    pub engine: EngineClient,
    /// The last comparison of memory with the maps.
    pub verifications: Verifications,
    /// Whether events move.
    pub liveness: Liveness,
    pub proxies: watch::Receiver<Arc<[OtherProxy]>>,
    /// Firewall rules that treat services' packets unlike those of kube-proxy.
    pub filters: watch::Receiver<Arc<[Filter]>>,
    /// The addresses announced by routes, and why others are not.
    pub routes: watch::Receiver<Arc<Routes>>,
    /// The last reload, if it was refused.
    pub refused_reload: watch::Receiver<Option<RefusedReload>>,
    /// Why the TCP address or the socket takes no requests now.
    pub closed_listeners: watch::Receiver<Vec<String>>,
    /// Processes of this node that listen at node ports.
    pub node_port_listeners: watch::Receiver<NodePortListeners>,
    /// Failures that the datapath has forgotten, and no client has shown to be over.
    pub kept_failures: watch::Receiver<Arc<KeptFailures>>,
    pub drains: watch::Receiver<drains::DrainsWrite>,
    /// The ports of kube-proxy that cannot be opened, and why.
    pub closed_ports: Arc<ClosedPorts>,
    pub files: NodeFiles,
    /// What does not change while the daemon runs.
    pub about: About,
    /// The wall clock, which tests stop.
    pub clock: fn() -> Millis,
}

impl Readings {
    /// The time from which people count ages.
    pub fn now(&self) -> Timestamp {
        (self.clock)().seconds()
    }

    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    /// Why a restart would not restore the last orders to drain.
    pub fn drains_problem(&self) -> Option<String> {
        self.drains.borrow().problem().map(ToOwned::to_owned)
    }

    /// The datapath's state, with the older failures that no client has shown to be over.
    pub fn datapath(&self) -> Arc<DatapathView> {
        let now = Arc::clone(&self.datapath.borrow());
        let kept = Arc::clone(&self.kept_failures.borrow());
        if kept.is_empty() { now } else { Arc::new(now.with_kept_failures(&kept)) }
    }

    /// The client counts of all ports; `None` without programs in the kernel.
    pub fn port_counts(&self) -> Option<PortCounters> {
        self.datapath.borrow().status()?;
        Some(self.live_maps.borrow().port_counts.clone())
    }

    /// The flow table; `None` if packets are not translated.
    pub fn flow_table(&self) -> Option<FlowTable> {
        self.live_maps.borrow().flow_table.clone()
    }

    pub fn apiserver(&self) -> Option<Arc<ApiserverView>> {
        self.apiserver.as_ref().map(|views| Arc::clone(&views.borrow()))
    }
}

pub fn counters(counts: Option<&PortCounters>, ports: impl Iterator<Item = PortIndex>) -> ClientCounters {
    let read = |index, counts: &PortCounters| {
        let PortCounts { connects, refused, dropped } = counts.read_port(index);
        (index, Clients { connects, refused, dropped })
    };
    ClientCounters(counts.map(|counts| ports.map(|index| read(index, counts)).collect()))
}
