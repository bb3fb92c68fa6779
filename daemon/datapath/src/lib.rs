//! Where ops become what a client's connect meets.
//!
//! The kernel's side of [`holdfast_core::check_maps::Maps`]: maps, pins, programs, links. Invariant: an op is executed whole
//! or refused, and no reader ever sees one half done. This is the only crate where `unsafe` is legal, and it decides
//! nothing.

// The bed of the tests names this crate as its other users do.
#[cfg(test)]
extern crate self as holdfast_datapath;

mod abi;
mod bitmap;
mod bpf_call;
mod cgroup;
mod conntrack;
mod counts;
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
mod memory;
pub mod netlink;
mod packets;
mod pins;
mod probe;
mod publish;
mod refusals;
mod shape;
mod shared;
mod site;
mod skeleton;
mod sys;
mod table;
mod uncharged;
mod view;

pub use cgroup::memory_limit;
pub use conntrack::Entered;
pub use counts::{Counted, Counts};
pub use devices::{POD_DEVICES_MAX, driver_notices};
pub use error::{StartError, process_named};
pub use flows::{FlowTable, PACKET_DROPS, PACKET_EVENTS, PacketCounts};
pub use holdfast_status::datapath::{
    AddressFilter, Arrival, Beside, Cause, Denial, Device, DeviceStatus, Features, Flow, FlowFilter,
    FlowReport, FlowsSeen, FlowsSwept, Fullest, GivenUp, Heard, HookKind, PacketStatus, PacketSwitches,
    Refusal, Refused, Refusing, Sampled, Served, Shape, ShortcutState, Side, Stage, Status, Swept, Tally,
    Wrapped, Wraps, XdpState, XdpUse,
};
pub use ipv6::is_spoken as speaks_ipv6;
pub use kernel::{
    KernelMaps, LiveMaps, Namespaces, Options, RepairError, Repaired, SelfTestError, StaleSockets,
    TakeOverError,
};
pub use memory::{Allocator, give_back_freed};
pub use packets::PacketOptions;
pub use pins::{Drained, Removed, VERSION as PINS_VERSION, cleanup, drain, lock_holder};
pub use refusals::Refusals;
pub use uncharged::{Prepared, prepare};
