//! Opens and maintains the configured maps.
//!
//! Invariant: clients meet this daemon's programs only after the self-test has shown that those serve and that this
//! daemon's own sockets are exempt. If one kind fails, the other does not replace it.

use std::io::PipeWriter;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_core::engine::Engine;
use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::maps::{Capacity, MapError, Maps, MemoryMaps};
use holdfast_core::op::{Action, Dump, DumpPort, FrontendValue, Grace, MapGrowth, Op, PortIndex};
use holdfast_core::source_ranges::SourceRange;
use holdfast_datapath::{
    DsrTransports, KernelMaps, LiveMaps, Namespaces, PacketOptions, PacketSwitches, RepairError,
    RepairReport, ServedSockets, StaleSockets, StartError, StartOptions,
};
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::devices::DeviceDecision;

use super::AppError;
use super::lock_wait::{self, Holder};
use super::packet_log::PacketLog;
use crate::datapath::RefusalLog;
use crate::devices;
use holdfast_config::{self as config, Cgroup, Config, DatapathKind, Dsr, FlowMemory, Protocol, Sockets};
use holdfast_host::exempt;
use holdfast_host::logging::messages::{self, say};

#[derive(Debug)]
pub enum AppMaps {
    Memory(Box<MemoryMaps>),
    Kernel(Box<Kernel>),
}

/// How long a piece of upkeep takes, besides its last step.
const UPKEEP_PIECE: Duration = Duration::from_millis(5);

/// The kernel's maps, and what was logged about their devices.
#[derive(Debug)]
pub struct Kernel {
    maps: KernelMaps,
    devices: Arc<[DeviceDecision]>,
    /// The desired devices, until those that lead to other hosts are done: readers then see both together.
    pending_devices: Option<Arc<[DeviceDecision]>>,
    packet_log: PacketLog,
    /// The error of the last repair, while it lasts.
    repair_error: Option<String>,
    /// Since when a take-over waits only for an unreadable source.
    waiting_since: Option<Instant>,
}

/// How long a take-over waits for an unreadable source that the snapshot lacks: its services end with the former
/// programs. A folder that is mounted late, or hangs for a while, is back within this. One that stays away would keep
/// all changes from clients, because no process writes to the former maps.
const UNREADABLE_WAIT: Duration = Duration::from_secs(60);

/// How much of the known state the maps hold.
#[derive(Clone, Copy, Debug)]
pub struct MapCoverage {
    /// All that was known at their first write.
    is_whole: bool,
    /// All that every source has delivered.
    is_synced: bool,
    /// Whether they lack only an unreadable source's objects.
    lacks_unreadable: bool,
}

impl MapCoverage {
    pub fn from_engine(engine: &Engine<AppMaps>) -> Self {
        let (is_whole, is_synced) = (engine.has_initial_state(), engine.is_synced());
        Self { is_whole, is_synced, lacks_unreadable: engine.lacks_unreadable_source() }
    }

    /// Whether the former programs may end. `waiting_since` is since when only an unreadable source is missing.
    fn may_take_over(self, waiting_since: &mut Option<Instant>, now: Instant) -> bool {
        if !self.is_whole || !self.lacks_unreadable {
            *waiting_since = None;
            return self.is_whole;
        }
        now.saturating_duration_since(*waiting_since.get_or_insert(now)) >= UNREADABLE_WAIT
    }
}

impl AppMaps {
    /// Opens the maps with the expected capacity. The kernel's come with programs, which are tested at once unless
    /// other programs still serve.
    pub fn open(config: &Config, expected: MapGrowth) -> Result<Self, AppError> {
        let capacity = capacity(config);
        match config.datapath.kind {
            DatapathKind::Memory => Ok(Self::Memory(Box::new(MemoryMaps::new(capacity)))),
            DatapathKind::Kernel => {
                let devices = Arc::default();
                let told = PacketLog::default();
                let maps = open_kernel(config, (capacity, expected))?;
                if let Some(failure) = maps.status().refused_connects.failure {
                    tracing::warn!("{failure}");
                }
                Ok(Self::Kernel(Box::new(Kernel {
                    maps,
                    devices,
                    pending_devices: None,
                    packet_log: told,
                    repair_error: None,
                    waiting_since: None,
                })))
            }
        }
    }

    /// The status of the maps.
    pub fn view(&self) -> DatapathView {
        match self {
            Self::Memory(_) => DatapathView::for_memory(),
            Self::Kernel(kernel) => {
                DatapathView::for_kernel(kernel.maps.last_status()).with_devices(Arc::clone(&kernel.devices))
            }
        }
    }

    /// The kernel's maps that readers access directly.
    pub fn live_maps(&self) -> LiveMaps {
        match self {
            Self::Memory(_) => LiveMaps::default(),
            Self::Kernel(kernel) => kernel.maps.live_maps(),
        }
    }

    /// The addresses that answer NodePorts; none if the maps cannot be read, because they are then rewritten.
    pub fn node_addresses(&self) -> Vec<IpAddr> {
        match self {
            Self::Memory(_) => Vec::new(),
            Self::Kernel(kernel) => kernel.maps.node_addresses().unwrap_or_default(),
        }
    }

    /// The log of clients denied from now on, until the pipe closes.
    pub fn refusals(&self) -> Result<(Arc<RefusalLog>, PipeWriter), AppError> {
        let (until, open) = std::io::pipe().map_err(AppError::Runtime)?;
        let log = match self {
            Self::Memory(_) => RefusalLog::none(),
            Self::Kernel(kernel) => {
                RefusalLog::start(kernel.maps.refusals()?, until).map_err(AppError::Runtime)?
            }
        };
        Ok((log, open))
    }

    /// Takes over from another version's programs once everything is written. After that it restores what another
    /// process removed, and, once all sources have delivered, ends sockets to backends that are gone, so that their
    /// owners reconnect.
    pub fn run_upkeep(&mut self, held: MapCoverage) -> Result<(), AppError> {
        let Self::Kernel(kernel) = self else { return Ok(()) };
        let Kernel { maps, devices, packet_log, repair_error, waiting_since, .. } = kernel.as_mut();
        if !maps.is_predecessor_serving() {
            repair_maps(maps, repair_error, held.is_whole && held.is_synced);
        } else if held.may_take_over(waiting_since, Instant::now()) {
            maps.take_over()?;
            say!(info, messages::TOOK_OVER);
        }
        packet_log.log_changes(maps.packet_status(), devices);
        Ok(())
    }

    /// Applies the flow table's limit of a new configuration.
    pub fn apply_config(&mut self, packets: &config::Packets) {
        if let Self::Kernel(kernel) = self {
            kernel.maps.set_flow_capacity(packets.flows.max_flows(flow_headroom()));
        }
    }

    pub fn set_devices(&mut self, decisions: &Arc<[DeviceDecision]>) {
        let Self::Kernel(kernel) = self else { return };
        kernel.pending_devices = Some(Arc::clone(decisions));
        let devices: Vec<_> = decisions.iter().filter_map(DeviceDecision::to_device).collect();
        kernel.maps.set_devices(&devices);
    }

    /// Checks at once whether the devices' drivers still meet the needs of their programs.
    pub fn check_drivers(&mut self) {
        if let Self::Kernel(kernel) = self {
            kernel.maps.check_drivers();
        }
    }

    /// Continues the work at devices for one piece. Returns whether work is left.
    pub fn continue_devices(&mut self) -> bool {
        let Self::Kernel(kernel) = self else { return false };
        let begun = Instant::now();
        let is_more = kernel.maps.tend_devices(|| begun.elapsed() >= UPKEEP_PIECE);
        if let Some(coming) = kernel.pending_devices.take_if(|_| !kernel.maps.awaits_uplink()) {
            kernel.devices = coming;
        }
        if !is_more {
            kernel.packet_log.log_changes(kernel.maps.packet_status(), &kernel.devices);
        }
        is_more
    }
}

fn repair_maps(maps: &mut KernelMaps, trouble: &mut Option<String>, is_whole: bool) {
    match maps.repair() {
        Ok(repaired) => {
            *trouble = None;
            log_repaired(repaired);
        }
        Err(RepairError { repaired, cause }) => {
            log_repaired(*repaired);
            log_repair_error(trouble, cause.to_string());
        }
    }
    update_flow_table(maps);
    maps.collect_refused_connects();
    if let Err(error) = maps.end_stale_sockets(is_whole) {
        tracing::warn!(%error, "cannot look for sockets of removed backends");
    }
}

fn update_flow_table(maps: &mut KernelMaps) {
    if let Err(error) = maps.update_flows() {
        tracing::warn!(%error, "cannot open the flow table: flows are not shown, and ended ones stay");
    }
}

/// Logs why a repair failed, if the error is new. The repair is retried each second.
fn log_repair_error(known: &mut Option<String>, error: String) {
    if known.as_ref() != Some(&error) {
        tracing::warn!(error, "cannot restore programs or pins; retrying");
    }
    *known = Some(error);
}

fn log_repaired(RepairReport { hooks, devices, pins, bits, leftover }: RepairReport) {
    if !hooks.is_empty() || !devices.is_empty() || pins || bits {
        let hooks = hooks.join(", ");
        let devices = devices.join(", ");
        say!(warn, messages::PROGRAMS_CHANGED, hooks, devices, pins, bits);
    }
    if let Some(error) = leftover {
        tracing::warn!(error, "cannot remove maps that no program uses");
    }
}

fn open_kernel(config: &Config, (capacity, expected): (Capacity, MapGrowth)) -> Result<KernelMaps, AppError> {
    let cgroup = match &config.datapath.cgroup {
        Cgroup::Auto => None,
        Cgroup::Path(path) => Some(path.clone()),
    };
    let options = StartOptions {
        cgroup,
        bpffs: config.datapath.bpffs.clone(),
        capacity,
        expected,
        mark: exempt::set_socket_mark(config.packets.mark).bit(),
        stale_sockets: stale_sockets(&config.datapath.stale_sockets),
        served: served_sockets(&config.datapath),
        packets: packet_options(&config.packets),
    };
    let mut maps = start_maps(&options)?;
    warn_about_settings(&maps);
    if maps.is_predecessor_serving() {
        tracing::info!("the former programs serve until the new tables are written");
    } else {
        maps.self_test()?;
        maps.serve_packets();
        update_flow_table(&mut maps);
    }
    Ok(maps)
}

fn packet_options(configured: &config::Packets) -> Option<PacketOptions> {
    let snat_ports = devices::snat_ports(&configured.snat_ports);
    if let Some(shared) = devices::ephemeral_overlap(&snat_ports).filter(|_| configured.enabled) {
        tracing::warn!(
            first = shared.start(),
            last = shared.end(),
            "packets.snat_ports overlaps the kernel's ephemeral ports; choose others, or add them to net.ipv4.ip_local_reserved_ports"
        );
    }
    let flows = configured.flows.max_flows(flow_headroom());
    let switches = packet_switches(configured);
    configured.enabled.then_some(PacketOptions { flows, snat_ports, switches })
}

fn packet_switches(configured: &config::Packets) -> PacketSwitches {
    let network = |range: &config::Cidr| SourceRange::new(range.network(), range.prefix());
    PacketSwitches {
        forward_mark: configured.forward_mark.map_or(0, config::Mark::bit),
        dsr_transports: match configured.dsr {
            Dsr::Off => DsrTransports::Off,
            Dsr::Tcp => DsrTransports::Tcp,
            Dsr::All => DsrTransports::TcpAndUdp,
        },
        dsr_from: configured.dsr_from.iter().filter_map(network).collect(),
    }
}

/// The memory that limits the flow table on this node.
fn flow_headroom() -> FlowMemory {
    let (limit, ipv6) = (holdfast_datapath::memory_limit(), holdfast_datapath::speaks_ipv6());
    FlowMemory { memory: node_memory(), limit, ipv6 }
}

/// The bytes of this node's memory; 0 if unknown.
fn node_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kilobytes = total.and_then(|it| it.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or_default().saturating_mul(1024)
}

/// Warns of settings that the operator may not have meant, and that nothing else would show.
fn warn_about_settings(maps: &KernelMaps) {
    let status = maps.status();
    if let Some(cgroup) = status.cgroup.as_deref().filter(|_| status.in_cgroup_namespace) {
        tracing::warn!(
            cgroup = %cgroup.display(),
            "only processes of this cgroup namespace get services; run the daemon outside of it, or set datapath.cgroup if that is intended"
        );
    }
    for path in &status.absent_cgroups {
        tracing::warn!(cgroup = %path.display(), "an exempt cgroup does not exist; checking for it every second");
    }
}

fn served_sockets(configured: &config::Datapath) -> ServedSockets {
    ServedSockets {
        pods: configured.sockets == Sockets::All,
        udp: configured.udp_sockets,
        exempt_cgroups: configured.exempt_cgroups.iter().map(|path| path.as_str().into()).collect(),
    }
}

/// Starts the kernel's maps, and waits for the lock of another daemon: a killed one keeps its lock until the kernel
/// has freed all of its memory, some hundred milliseconds if that is large.
fn start_maps(options: &StartOptions) -> Result<KernelMaps, StartError> {
    lock_wait::wait_until_free(
        lock_wait::WAIT_MAX,
        "the pins",
        || KernelMaps::start(options),
        |error| match error {
            StartError::Locked { holder, .. } => Some(Holder(*holder)),
            _ => None,
        },
    )
}

fn stale_sockets(configured: &config::StaleSockets) -> StaleSockets {
    let has = |protocol| configured.protocols.contains(&protocol);
    StaleSockets {
        udp: has(Protocol::Udp),
        tcp: has(Protocol::Tcp),
        namespaces: match configured.namespaces {
            config::Namespaces::Host => Namespaces::Host,
            config::Namespaces::All => Namespaces::All,
        },
    }
}

impl AppMaps {
    fn maps(&self) -> &dyn Maps {
        match self {
            Self::Memory(maps) => &**maps,
            Self::Kernel(kernel) => &kernel.maps,
        }
    }

    fn maps_mut(&mut self) -> &mut dyn Maps {
        match self {
            Self::Memory(maps) => &mut **maps,
            Self::Kernel(kernel) => &mut kernel.maps,
        }
    }
}

impl Maps for AppMaps {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        self.maps_mut().execute(action)
    }

    fn execute_batch(&mut self, inserts: &[Op]) -> Result<usize, MapError> {
        self.maps_mut().execute_batch(inserts)
    }

    fn prepare(&mut self, coming: &MapGrowth) {
        self.maps_mut().prepare(coming);
    }

    fn reserve_capacity(&mut self, coming: &MapGrowth) -> Result<(), MapError> {
        self.maps_mut().reserve_capacity(coming)
    }

    fn begin_grace(&mut self) -> Grace {
        self.maps_mut().begin_grace()
    }

    fn is_grace_over(&self, grace: Grace) -> bool {
        self.maps().is_grace_over(grace)
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        self.maps_mut().dump()
    }

    fn read_piece(&mut self, anew: bool) -> Result<Option<Dump>, MapError> {
        self.maps_mut().read_piece(anew)
    }

    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        self.maps_mut().read_value(key)
    }

    fn read_port(&mut self, index: PortIndex, family: Family) -> Result<Option<DumpPort>, MapError> {
        self.maps_mut().read_port(index, family)
    }

    fn capacity(&self) -> Capacity {
        self.maps().capacity()
    }

    fn is_predecessor_serving(&self) -> bool {
        self.maps().is_predecessor_serving()
    }
}

/// The maps' capacity. A list takes slots up to the next power of two, fewer than twice its backends: so twice as
/// many slots as configured backends suffice, whatever the lengths of the lists are.
fn capacity(config: &Config) -> Capacity {
    let limits = config.datapath.limits;
    let most = Capacity::default();
    Capacity {
        slots: limits
            .backends
            .saturating_mul(2)
            .checked_next_power_of_two()
            .map_or(most.slots, |it| it.min(most.slots)),
        ports: limits.frontends.min(most.ports),
        services: usize::try_from(limits.services).unwrap_or(most.services).min(most.services),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::clock;

    use super::*;

    /// After how many seconds a take-over is due, if this state lasts.
    fn taken_over(held: MapCoverage) -> Option<u64> {
        let (begun, mut waits) = (clock::now(), None);
        (0..600).find(|second| held.may_take_over(&mut waits, begun + Duration::from_secs(*second)))
    }

    #[test]
    fn a_take_over_waits_a_bounded_time_for_an_unreadable_source() {
        let held = MapCoverage { is_whole: true, is_synced: true, lacks_unreadable: false };
        assert_eq!(taken_over(held), Some(0));
        let lacks = MapCoverage { is_synced: false, lacks_unreadable: true, ..held };
        assert_eq!(taken_over(lacks), Some(60));
        assert_eq!(
            taken_over(MapCoverage { is_whole: false, ..lacks }),
            None,
            "other sources are still to be written"
        );
    }

    #[test]
    fn a_source_that_becomes_readable_resets_the_wait() {
        let lacks = MapCoverage { is_whole: true, is_synced: false, lacks_unreadable: true };
        let (begun, mut waits) = (clock::now(), None);
        let at = |second| begun + Duration::from_secs(second);
        assert!(!lacks.may_take_over(&mut waits, at(0)));
        assert!(!MapCoverage { is_whole: false, ..lacks }.may_take_over(&mut waits, at(30)));
        assert!(!lacks.may_take_over(&mut waits, at(61)));
        assert!(lacks.may_take_over(&mut waits, at(121)));
    }
}
