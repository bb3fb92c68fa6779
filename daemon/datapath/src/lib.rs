//! Executes ops on the kernel's maps, so that clients' connects reach their backends.
//!
//! The kernel's side of [`holdfast_core::maps::Maps`]: maps, pins, programs, links. Invariant: an op is executed
//! completely or refused, and no reader sees it half done. Only this crate may use `unsafe`, and it makes no decisions.

// The test bed refers to this crate by its name.
#[cfg(test)]
extern crate self as holdfast_datapath;

mod abi;
mod bitmap;
mod bpf_syscall;
mod cgroup;
mod conntrack;
mod devices;
mod error;
mod flows;
mod generation;
mod grace;
mod ipv6;
mod kernel;
mod links;
mod load;
mod map;
mod mapped_array;
mod memory;
pub mod netlink;
mod packets;
mod pins;
mod port_counts;
mod probe;
mod publish;
mod refusals;
mod shape;
mod shared_maps;
mod site;
mod skeleton;
mod socket_maps;
mod sys;
mod table;

pub use cgroup::memory_limit;
pub use conntrack::ConntrackOutcome;
pub use devices::{POD_DEVICES_MAX, subscribe_driver_changes};
pub use error::{StartError, describe_process};
pub use flows::{FlowTable, PACKET_DROPS, PACKET_EVENTS, PacketCounts, keep_refusal};
pub use holdfast_status::datapath::{
    AddressFilter, Arrival, BackendPortUsage, BackendRefusal, BackendRefusals, Cause, Denial, Device,
    DeviceSide, DeviceStatus, DsrTransports, EncapDirection, EvictedFlows, FastPathState, Features, Flow,
    FlowFilter, FlowReport, FlowSample, FlowStatus, FlowSweepProgress, ForeignPrograms, HookKind, MapSizes,
    PacketStatus, PacketSwitches, Refusal, SeenFlags, ServedSockets, SocketSweepProgress, Stage, Status,
    Tally, XdpState, XdpUse,
};
pub use ipv6::has_global_ipv6 as speaks_ipv6;
pub use kernel::{
    KernelMaps, LiveMaps, Namespaces, RepairError, RepairReport, SelfTestError, StaleSockets, StartOptions,
    TakeOverError,
};
pub use memory::{Allocator, release_free_memory};
pub use packets::PacketOptions;
pub use pins::{CleanupReport, DrainReport, VERSION as PINS_VERSION, cleanup, drain, lock_holder};
pub use port_counts::{PortCounters, PortCounts};
pub use refusals::RefusalReader;
pub use socket_maps::{PrepareOutcome, prepare_socket_maps};
