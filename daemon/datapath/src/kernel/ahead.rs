//! Larger maps, made beside the engine before they are needed, because loading the programs that read them takes longer
//! than any change may wait.
//!
//! Invariant: nothing reads or writes these maps before `grow` has taken them. One set at a time is made.

use std::thread::JoinHandle;

use holdfast_status::datapath::{Features, Shape};

use super::KernelMaps;
use crate::error::StartError;
use crate::generation::Generation;
use crate::load::{self, Layer, LoadedPrograms, PacketPrograms};
use crate::map::{self, Handles};
use crate::packets::PacketSwitches;
use crate::shape::Growth;

/// What is to be made.
struct Order {
    shape: Shape,
    features: Features,
    shared: Handles,
    // Where packets are translated: the layers, their maps, and the switches.
    packets: Option<(Vec<Layer>, Handles, PacketSwitches)>,
}

/// Maps that are empty, and programs that read them.
pub(super) struct Larger {
    pub(super) generation: Generation,
    pub(super) maps: Handles,
    pub(super) programs: LoadedPrograms,
    /// `None`: packets were not translated when the work was begun.
    pub(super) packets: Option<Result<Vec<PacketPrograms>, StartError>>,
}

/// How far the making of larger maps has come.
#[derive(Debug, Default)]
pub(super) enum Ahead {
    #[default]
    Nothing,
    Making {
        shape: Shape,
        thread: JoinHandle<Result<Larger, StartError>>,
    },
    // The last attempt failed while there was room left; to try again with each op would cost more than to wait until
    // there is none.
    Failed,
}

impl Order {
    fn carry_out(self) -> Result<Larger, StartError> {
        let Self { shape, features, shared, packets } = self;
        let (programs, maps) =
            load::load(shape, features, &shared, |programs, maps| Ok((programs.keep()?, maps)))?;
        let packets = packets.map(|(layers, own, switches)| {
            let all = map::copies(maps.iter().chain(&own))?;
            load::packets_at(&layers, &all, (0, &switches)).map(|(programs, _)| programs)
        });
        Ok(Larger { generation: Generation::new(&maps)?, maps, programs, packets })
    }
}

impl Ahead {
    /// How large the maps are that are being made.
    pub(super) fn shape(&self) -> Option<Shape> {
        if let Self::Making { shape, .. } = self { Some(*shape) } else { None }
    }

    /// Whether maps are being made that are at least so large.
    fn is_enough(&self, wanted: &Shape) -> bool {
        self.shape().is_some_and(|shape| shape.or_larger(*wanted) == shape)
    }
}

impl KernelMaps {
    /// Begins to make larger maps, if none are being made and the last attempt has not failed.
    pub(super) fn begin_larger(&mut self, shape: Shape) {
        if matches!(self.ahead, Ahead::Nothing) && self.refused.standing(&shape).is_none() {
            self.ahead = self.ordered(shape).unwrap_or(Ahead::Failed);
        }
    }

    /// What has been made, once it is whole. Never waits. A failure is told when there is no room left and another
    /// attempt fails.
    pub(super) fn finished_larger(&mut self) -> Option<Larger> {
        let Ahead::Making { thread, .. } = &self.ahead else { return None };
        if !thread.is_finished() {
            return None;
        }
        let Ahead::Making { thread, .. } = std::mem::replace(&mut self.ahead, Ahead::Failed) else {
            return None;
        };
        let made = made_by(thread).ok()?;
        self.ahead = Ahead::Nothing;
        Some(made)
    }

    /// Notes that what was made cannot be taken, so that there is no other attempt before there is no room left.
    pub(super) fn give_up_larger(&mut self) {
        self.ahead = Ahead::Failed;
    }

    /// Gives maps that are at least so large, and waits until they are made.
    pub(super) fn await_larger(&mut self, shape: Shape) -> Result<Larger, StartError> {
        if !self.ahead.is_enough(&shape) {
            self.ahead = self.ordered(shape)?;
        }
        match std::mem::take(&mut self.ahead) {
            Ahead::Making { thread, .. } => made_by(thread),
            Ahead::Nothing | Ahead::Failed => Err(gone()),
        }
    }

    fn ordered(&self, shape: Shape) -> Result<Ahead, StartError> {
        let order = Order {
            shape,
            features: self.features,
            shared: map::copies(self.shared.handles())?,
            packets: self.packets.to_load()?,
        };
        let builder = std::thread::Builder::new().name("growth".to_owned());
        let thread =
            builder.spawn(|| order.carry_out()).map_err(|error| StartError::loading(error.into()))?;
        Ok(Ahead::Making { shape, thread })
    }
}

fn made_by(thread: JoinHandle<Result<Larger, StartError>>) -> Result<Larger, StartError> {
    thread.join().unwrap_or_else(|_| Err(gone()))
}

/// The error for a thread that ended without an answer, which cannot be.
pub(super) fn gone() -> StartError {
    StartError::loading(std::io::Error::other("the thread that loads programs has ended").into())
}
