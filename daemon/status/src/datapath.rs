//! What the datapath reports about itself: programs, maps, devices, flows, and clients that it turned away.
//!
//! Invariant: plain data. The crate holdfast-datapath reads it from the kernel.

mod devices;
mod flows;
mod packets;
mod refusals;
mod status;

pub use devices::{Device, DeviceSide, DeviceStatus, FastPathState, HookKind, XdpState, XdpUse};
pub use flows::{
    AddressFilter, BackendPortUsage, BackendRefusal, BackendRefusals, EncapDirection, Flow, FlowFilter,
    FlowReport, FlowSample, FlowSweepProgress, SeenFlags, Stage, Tally,
};
pub use packets::{DsrTransports, EvictedFlows, PacketStatus, PacketSwitches};
pub use refusals::{Arrival, Cause, Denial, Refusal};
pub use status::{
    Features, FlowStatus, ForeignPrograms, MapSizes, ServedSockets, SocketSweepProgress, Status,
};
