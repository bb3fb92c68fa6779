//! What the datapath reports about itself: programs, maps, devices, flows, and clients that it turned away.
//!
//! Invariant: plain data. The crate holdfast-datapath reads it from the kernel.

mod devices;
mod flows;
mod packets;
mod refusals;
mod status;

pub use devices::{Device, DeviceStatus, HookKind, ShortcutState, Side, XdpState, XdpUse};
pub use flows::{
    AddressFilter, Flow, FlowFilter, FlowReport, FlowsSwept, Fullest, Heard, Refused, Refusing, Sampled,
    Stage, Tally, Wrapped,
};
pub use packets::{GivenUp, PacketStatus, PacketSwitches, Wraps};
pub use refusals::{Arrival, Cause, Denial, Refusal};
pub use status::{Beside, Features, FlowsSeen, Served, Shape, Status, Swept};
