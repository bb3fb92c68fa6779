//! Everything that can be known of the running daemon, for the parts that show it: the admin API, the service manager's
//! line.
//!
//! Invariant: readings are read, never written; nothing here asks others or sets anything going. A reader delays no
//! other part: snapshots are shared, and what only the engine can answer is asked over a bounded queue.

mod closed_ports;
mod comparison;
mod conditions;
#[cfg(any(test, feature = "testing"))]
#[path = "readings/tests/fixture.rs"]
pub mod fixture;
mod readiness;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::facts::Timestamp;
use holdfast_core::op::PortIndex;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::{FlowTable, LiveMaps, PortCounters, PortCounts};
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

/// What does not change while the daemon runs.
#[derive(Clone, Debug)]
pub struct About {
    /// The daemon's version.
    pub version: &'static str,
    /// When the daemon started.
    pub started: Timestamp,
}

/// The configuration in force, every key with its value.
#[derive(Clone, Debug)]
pub struct EffectiveConfig {
    /// As TOML, in the shape of the file.
    pub text: String,
    /// As one JSON value.
    pub json: String,
}

/// Tells how the engine moves: how its work goes, and how long an event has waited for it if that is too long.
#[derive(Clone)]
pub struct Liveness {
    stalled: Arc<dyn Fn() -> Option<Duration> + Send + Sync>,
    pub steps: Arc<StepMetrics>,
}

impl Liveness {
    /// `stalled_for` answers `None` while events move or none waits. It must not block.
    pub fn new(stalled: impl Fn() -> Option<Duration> + Send + Sync + 'static) -> Self {
        Self { stalled: Arc::new(stalled), steps: Arc::default() }
    }

    /// Adds the steps that the engine counts.
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

/// All readings. Each one is the newest at the moment when it is looked at.
#[derive(Clone, Debug)]
pub struct Readings {
    /// The newest view of everything.
    pub snapshots: watch::Receiver<Arc<Snapshot>>,
    /// The newest configuration.
    pub config: watch::Receiver<Arc<EffectiveConfig>>,
    /// The newest view of programs and maps.
    pub datapath: watch::Receiver<Arc<DatapathView>>,
    /// The maps of the kernel that readers look into by themselves.
    pub live_maps: watch::Receiver<LiveMaps>,
    /// The newest view of the way to the apiserver; `None`: no apiserver is used.
    pub apiserver: Option<watch::Receiver<Arc<ApiserverView>>>,
    /// How each watch of the apiserver is doing.
    pub watches: Watches,
    /// The latest clients that were not served.
    pub refusals: Arc<RefusalLog>,
    /// How held backends met their probes.
    pub probes: Arc<ProbeCounts>,
    /// How the checks of the configuration's backends went.
    pub checks: Arc<CheckStats>,
    /// What name servers say of the backends of the configuration's services.
    pub names: Arc<NameTable>,
    /// The blocks that count of the folder beside the configuration.
    pub more_services: watch::Receiver<Arc<[Arc<ParsedBlock>]>>,
    /// What became of the Events for the cluster; `None`: none are written.
    pub announced: Option<Arc<EventCounts>>,
    /// Every change with its cause.
    pub history: Arc<History>,
    /// How the last write of the snapshot went.
    pub last_write: watch::Receiver<SnapshotWrite>,
    /// The way to ask what only the engine can answer.
    pub engine: EngineClient,
    /// The last comparison of memory with the maps.
    pub verifications: Verifications,
    /// Whether events move.
    pub liveness: Liveness,
    /// Other proxies that serve on this node.
    pub proxies: watch::Receiver<Arc<[OtherProxy]>>,
    /// Rules of a firewall that meet packets of services otherwise than with kube-proxy.
    pub filters: watch::Receiver<Arc<[Filter]>>,
    /// Which addresses are announced by routes, and why others are not.
    pub routes: watch::Receiver<Arc<Routes>>,
    /// Why the last reload was refused; empty again once a reload is accepted.
    pub refused_reload: watch::Receiver<Option<String>>,
    /// Why the TCP address or the socket takes no requests now.
    pub closed_listeners: watch::Receiver<Vec<String>>,
    /// How the last write of the drains went.
    pub drains: watch::Receiver<drains::DrainsWrite>,
    /// Which of kube-proxy's ports cannot be opened, and why.
    pub closed_ports: Arc<ClosedPorts>,
    /// What does not change while the daemon runs.
    pub about: About,
}

impl Readings {
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    /// Why a restart would not know the last orders to drain.
    pub fn drains_problem(&self) -> Option<String> {
        self.drains.borrow().problem().map(ToOwned::to_owned)
    }

    pub fn datapath(&self) -> Arc<DatapathView> {
        Arc::clone(&self.datapath.borrow())
    }

    /// The counts of the clients of all ports; none where there are no programs in the kernel.
    pub fn port_counts(&self) -> Option<PortCounters> {
        self.datapath.borrow().status()?;
        Some(self.live_maps.borrow().port_counts.clone())
    }

    /// Clients and their backends; none where packets are not translated.
    pub fn flow_table(&self) -> Option<FlowTable> {
        self.live_maps.borrow().flow_table.clone()
    }

    pub fn apiserver(&self) -> Option<Arc<ApiserverView>> {
        self.apiserver.as_ref().map(|views| Arc::clone(&views.borrow()))
    }
}

/// The clients of these ports at this moment.
pub fn counters(counts: Option<&PortCounters>, ports: impl Iterator<Item = PortIndex>) -> ClientCounters {
    let read = |index, counts: &PortCounters| {
        let PortCounts { connects, refused, dropped } = counts.read_port(index);
        (index, Clients { connects, refused, dropped })
    };
    ClientCounters(counts.map(|counts| ports.map(|index| read(index, counts)).collect()))
}
