//! The places at a device where programs of ours are.
//!
//! Invariant: plain values; what is there is neither read nor written here.

use super::{Device, HookKind, Side};

/// Which way packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    In,
    Out,
    /// In, too, for a second program there: a pod that is a client, and that answers others past the stack.
    Back,
}

impl Direction {
    pub(super) const ALL: [Self; 3] = [Self::In, Self::Out, Self::Back];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
            Self::Back => "back",
        }
    }
}

/// One hook of one device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) index: u32,
    pub(super) direction: Direction,
}

impl Spot {
    pub(super) fn all(index: u32) -> [Self; 3] {
        Direction::ALL.map(|direction| Self { index, direction })
    }

    /// The two hooks that a device has.
    pub(super) fn both(index: u32) -> [Self; 2] {
        [Direction::In, Direction::Out].map(|direction| Self { index, direction })
    }

    /// Whether a program of ours is to be here at the device.
    pub(super) fn is_of(self, device: &Device, kind: HookKind) -> bool {
        match self.direction {
            Direction::In => true,
            Direction::Out => device.side != Side::Near,
            Direction::Back => device.side == Side::Pod && device.shortcut && kind == HookKind::Tcx,
        }
    }

    /// The device's number in the type that the kernel takes, which gives no greater numbers.
    pub(super) fn target(self) -> i32 {
        i32::try_from(self.index).unwrap_or(i32::MAX)
    }
}
