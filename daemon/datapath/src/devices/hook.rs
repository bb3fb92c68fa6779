//! The hooks at a device.
//!
//! Invariant: plain values; this module reads and attaches nothing.

use super::{Device, DeviceSide, HookKind};

/// The direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Ingress,
    Egress,
    /// Ingress too, for a second program there: for a pod that is a client and also replies on the fast path.
    PodEgress,
}

impl Direction {
    pub(super) const ALL: [Self; 3] = [Self::Ingress, Self::Egress, Self::PodEgress];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "in",
            Self::Egress => "out",
            Self::PodEgress => "back",
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct DeviceHook {
    pub(super) index: u32,
    pub(super) direction: Direction,
}

impl DeviceHook {
    pub(super) fn for_device(index: u32) -> [Self; 3] {
        Direction::ALL.map(|direction| Self { index, direction })
    }

    pub(super) fn tc_hooks(index: u32) -> [Self; 2] {
        [Direction::Ingress, Direction::Egress].map(|direction| Self { index, direction })
    }

    /// Whether a program of ours belongs at this hook.
    pub(super) fn applies_to(self, device: &Device, kind: HookKind) -> bool {
        match self.direction {
            Direction::Ingress => true,
            Direction::Egress => device.side != DeviceSide::LocalPods,
            Direction::PodEgress => {
                device.side == DeviceSide::Pod && device.fast_path && kind == HookKind::Tcx
            }
        }
    }

    /// The device's index in the type that the kernel takes; indices always fit.
    pub(super) fn ifindex(self) -> i32 {
        i32::try_from(self.index).unwrap_or(i32::MAX)
    }
}
