//! What the datapath reports about itself: programs, maps, devices, flows, and clients that it turned away.
//!
//! Invariant: plain data. The crate holdfast-datapath reads it from the kernel.

mod backend_refusals;
mod devices;
mod flows;
mod packets;
mod refusals;
mod status;

pub use backend_refusals::{
    BackendAnswers, BackendEndpoint, BackendFailure, BackendRefusal, BackendRefusals, KeptFailures,
    REFUSAL_SECONDS, REFUSED_SECONDS_MAX, RefusedConnects, is_refusal_current,
};
pub use devices::{Device, DeviceSide, DeviceStatus, FastPathState, HookKind, XdpState, XdpUse};
pub use flows::{
    AddressFilter, BackendPortUsage, EncapDirection, Flow, FlowFilter, FlowReport, FlowSample,
    FlowSweepProgress, SeenFlags, Stage, Tally,
};
pub use packets::{DsrTransports, EvictedFlows, PacketStatus, PacketSwitches};
pub use refusals::{Arrival, Cause, Denial, Refusal};
pub use status::{
    Features, FlowStatus, ForeignPrograms, MapSizes, ServedSockets, SocketSweepProgress, Status,
};
