//! Programs and maps of the kernel at one moment.
//!
//! Invariant: plain data. The datapath fills it; a reader cannot reach a map.

use std::path::PathBuf;

use super::flows::{FlowSample, FlowSweepProgress};
use super::packets::PacketStatus;

/// The state of programs and maps at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// What this kernel offers.
    pub features: Features,
    /// Where the programs are attached; `None`: nowhere.
    pub cgroup: Option<PathBuf>,
    /// Where everything is pinned.
    pub pins: Option<PathBuf>,
    /// Whether another daemon's programs still serve, until this one's maps are filled.
    pub waiting: bool,
    /// Which generation of maps is in use; 0 without pins.
    pub generation: u32,
    /// How often the maps have grown since the daemon started.
    pub growths: u32,
    /// How large the maps are.
    pub map_sizes: MapSizes,
    /// How large they may become.
    pub limits: MapSizes,
    /// Frontends of IPv4 and IPv6 in use.
    pub frontends: [u32; 2],
    /// How many members are in use, of both families.
    pub members: u32,
    /// Refusals that found no room in the ring buffer.
    pub refusals_lost: u64,
    /// Whether this daemon's cgroup is exempt. If not, only its mark is.
    pub own_cgroup_exempt: bool,
    /// Hooks from which the program was detached, or the pin removed, from outside.
    pub broken_hooks: Vec<&'static str>,
    /// Those of them that have no program of ours, so that clients there meet no service. The others serve until the
    /// daemon ends.
    pub detached_hooks: Vec<&'static str>,
    /// Why programs or pins that were taken away could not be put back when that was tried last.
    pub repair_failure: Option<String>,
    /// Hooks with a program that reads maps which are no longer written; it is put right as soon as that works.
    pub behind_hooks: Vec<&'static str>,
    /// Why maps are still pinned that no program uses.
    pub leftover: Option<String>,
    /// Whether the cgroup is the root of a cgroup namespace and not of the host's hierarchy, though the configuration
    /// names no cgroup.
    pub in_cgroup_namespace: bool,
    /// The sockets that are served.
    pub served_sockets: ServedSockets,
    /// Subtrees that would be left alone, and are not there.
    pub absent_cgroups: Vec<PathBuf>,
    /// Hooks where others have programs too. They are kept.
    pub shared_hooks: Vec<ForeignPrograms>,
    /// How often a detached program was put back since the start.
    pub hooks_restored: u64,
    /// Why grace periods do not end: nothing is reused meanwhile.
    pub grace_failure: Option<String>,
    /// What was done about sockets that have lost their backend; `None`: nothing is to be done.
    pub stale_sockets: Option<SocketSweepProgress>,
    /// How packets are translated; `None`: they are not to be.
    pub packets: Option<PacketStatus>,
    /// What is known of clients and their backends, where packets are translated; `None`: they are not.
    pub flows: Option<FlowStatus>,
}

/// What is known of the flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStatus {
    /// What was done about those that have ended.
    pub sweep: FlowSweepProgress,
    /// What the last look at a few of them has shown.
    pub sample: FlowSample,
}

/// What newer kernels offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// A program says which errno its refusal has (Linux 5.18). Without it a refused client is led to a closed port.
    pub set_retval: bool,
    /// Programs of devices have links (Linux 6.6). Without them they are filters.
    pub tcx: bool,
    /// A program that asks for a route learns whether a packet is too long for it (Linux 5.12). Without that no packet
    /// passes by the stack.
    pub lengths: bool,
}

impl Features {
    /// Every feature that is switchable, listed once.
    pub const ALL: Self = Self { set_retval: true, tcx: true, lengths: true };

    /// What the kernel floor has.
    pub const FLOOR: Self = Self { set_retval: false, tcx: false, lengths: false };
}

/// How many entries each map that grows has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSizes {
    /// Of `frontends4` and `frontends6`.
    pub frontends: [u32; 2],
    /// Of `ports` and what goes with it.
    pub ports: u32,
    /// Of `backends4` and `backends6`.
    pub slots: [u32; 2],
    /// Of `members`, for both families.
    pub members: u32,
}

/// The sockets that are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedSockets {
    /// Sockets in network namespaces other than the host's.
    pub pods: bool,
    /// Sockets that send datagrams.
    pub udp: bool,
    /// Processes in these cgroups and below are not served. Each path begins at the root of the hierarchy.
    pub exempt_cgroups: Vec<PathBuf>,
}

impl Default for ServedSockets {
    fn default() -> Self {
        Self { pods: true, udp: true, exempt_cgroups: Vec::new() }
    }
}

/// Programs of others at one hook, by the numbers that the kernel gave them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignPrograms {
    pub hook: &'static str,
    /// Programs that run before ours: what they make of a connection is what ours sees.
    pub before: Vec<u32>,
    /// Programs that run after ours.
    pub after: Vec<u32>,
}

impl ForeignPrograms {
    pub const fn count(&self) -> usize {
        self.before.len() + self.after.len()
    }
}

/// What has been done about sockets that have lost their backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketSweepProgress {
    /// How often all sockets were looked at.
    pub sweeps: u64,
    /// How many sockets were ended.
    pub ended: u64,
    /// Why some or all sockets are not looked at.
    pub failure: Option<String>,
}
