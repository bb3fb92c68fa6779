//! Programs and maps in the kernel at one moment.
//!
//! Invariant: plain data. The datapath fills it; a reader cannot reach a map.

use std::path::PathBuf;

use super::backend_refusals::{KeptFailures, RefusedConnects};
use super::flows::{FlowSample, FlowSweepProgress};
use super::packets::PacketStatus;
use crate::rfc3339::Millis;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub features: Features,
    /// Where the programs are attached; `None`: nowhere.
    pub cgroup: Option<PathBuf>,
    pub pins: Option<PathBuf>,
    /// Whether another daemon's programs still serve until this one's maps are filled.
    pub waiting: bool,
    /// Which generation of maps is in use; 0 without pins.
    pub generation: u32,
    /// How often the maps have grown since the daemon started.
    pub growths: u32,
    pub map_sizes: MapSizes,
    pub limits: MapSizes,
    /// Frontends of IPv4 and IPv6 in use.
    pub frontends: [u32; 2],
    /// How many members are in use, of both families.
    pub members: u32,
    /// Refusals that were not reported: above the rate limit, or the ring buffer was full.
    pub refusals_lost: u64,
    /// Whether this daemon's cgroup is exempt. If not, only its mark is.
    pub own_cgroup_exempt: bool,
    /// Hooks where someone else detached the program or removed its pin.
    pub broken_hooks: Vec<&'static str>,
    /// Broken hooks without a program of ours. The others serve until the daemon ends.
    pub detached_hooks: Vec<&'static str>,
    /// Why the last attempt to restore programs or pins failed.
    pub repair_failure: Option<String>,
    /// Hooks with a program that reads maps that the daemon no longer writes, until a repair succeeds.
    pub behind_hooks: Vec<&'static str>,
    /// Why unused maps are still pinned.
    pub leftover: Option<String>,
    /// Whether the cgroup is the root of a cgroup namespace instead of the host's hierarchy, though the configuration
    /// names no cgroup.
    pub in_cgroup_namespace: bool,
    pub served_sockets: ServedSockets,
    /// Exempt subtrees that do not exist.
    pub absent_cgroups: Vec<PathBuf>,
    /// Hooks that have foreign programs too. They stay.
    pub shared_hooks: Vec<ForeignPrograms>,
    /// How often a detached program was reattached since the start.
    pub hooks_restored: u64,
    /// Why grace periods do not end. Until they do, nothing is reused.
    pub grace_failure: Option<String>,
    /// Progress with sockets that have lost their backend; `None`: there is nothing to do.
    pub stale_sockets: Option<SocketSweepProgress>,
    /// Which backends refused clients of this node's sockets.
    pub refused_connects: RefusedConnects,
    /// Older failures that no client has shown to be over.
    pub kept_failures: KeptFailures,
    /// When this was read, in seconds on the programs' clock.
    pub now: u32,
    /// When this was read, on the node's clock.
    pub read_at: Millis,
    /// When the programs' clock was at 0.
    pub booted: Millis,
    /// How packets are translated; `None`: they are not configured to be.
    pub packets: Option<PacketStatus>,
    /// The sweep and samples of the flow table; `None`: packets are not translated.
    pub flows: Option<FlowStatus>,
}

impl Status {
    /// Hooks without a program of ours, so that clients there reach no service. Without `getpeername` they reach it,
    /// and are told the backend's address.
    pub fn bare_redirects(&self) -> Vec<&'static str> {
        let redirects = |hook: &&&str| !hook.starts_with("getpeername");
        self.detached_hooks.iter().filter(redirects).copied().collect()
    }
}

/// What the daemon found in the flow table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowStatus {
    pub sweep: FlowSweepProgress,
    pub sample: FlowSample,
}

/// Features of newer kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// A program can set the errno of its refusal (Linux 5.18). Without it a refused client is sent to a closed port.
    pub set_retval: bool,
    /// Programs of devices have links (Linux 6.6). Without them they are filters.
    pub tcx: bool,
    /// A route lookup reports to a program whether a packet exceeds the MTU (Linux 5.12). Without it no packet takes
    /// the fast path.
    pub lengths: bool,
}

impl Features {
    /// Every optional feature.
    pub const ALL: Self = Self { set_retval: true, tcx: true, lengths: true };

    /// The features of the oldest supported kernel.
    pub const FLOOR: Self = Self { set_retval: false, tcx: false, lengths: false };
}

/// How many entries each growing map has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapSizes {
    /// Of `frontends4` and `frontends6`.
    pub frontends: [u32; 2],
    /// Of `ports` and the maps that grow with it.
    pub ports: u32,
    /// Of `backends4` and `backends6`.
    pub slots: [u32; 2],
    /// Of `members`, for both families.
    pub members: u32,
}

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

/// Foreign programs at one hook, by their kernel ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForeignPrograms {
    pub hook: &'static str,
    /// Programs that run before ours: ours sees their changes to a connection.
    pub before: Vec<u32>,
    /// Programs that run after ours.
    pub after: Vec<u32>,
}

impl ForeignPrograms {
    pub const fn count(&self) -> usize {
        self.before.len() + self.after.len()
    }
}

/// Progress with sockets that have lost their backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketSweepProgress {
    pub sweeps: u64,
    pub ended: u64,
    /// Why some or all sockets are not checked.
    pub failure: Option<String>,
}
