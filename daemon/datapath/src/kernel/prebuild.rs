//! Creates larger maps in advance on another thread, because loading the programs that read them takes longer than a
//! change may wait.
//!
//! Invariant: nothing reads or writes these maps before `grow` takes them. Only one set is built at a time.

use std::thread::JoinHandle;

use holdfast_status::datapath::{Features, MapSizes};

use super::KernelMaps;
use crate::error::StartError;
use crate::generation::Generation;
use crate::load::{self, LinkLayer, LoadedPackets, LoadedPrograms};
use crate::map::{self, MapHandles};
use crate::packets::PacketSwitches;
use crate::shape::ShapeGrowth;

struct PrebuildOrder {
    shape: MapSizes,
    features: Features,
    shared: MapHandles,
    // If packets are translated: the layers, their maps, and the switches.
    packets: Option<(Vec<LinkLayer>, MapHandles, PacketSwitches)>,
}

/// Empty maps, and programs that read them.
pub(super) struct LargerMaps {
    pub(super) generation: Generation,
    pub(super) maps: MapHandles,
    pub(super) programs: LoadedPrograms,
    /// `None`: packets were not translated when the build began.
    pub(super) packets: Option<Result<LoadedPackets, StartError>>,
}

#[derive(Debug, Default)]
pub(super) enum Prebuild {
    #[default]
    Idle,
    Building {
        shape: MapSizes,
        thread: JoinHandle<Result<LargerMaps, StartError>>,
    },
    // The last attempt failed while there was space. Retrying at each op would cost more than waiting until the maps
    // are full.
    Failed,
}

impl PrebuildOrder {
    fn build_maps(self) -> Result<LargerMaps, StartError> {
        let Self { shape, features, shared, packets } = self;
        let (programs, maps) = load::load_programs(shape, features, &shared)?;
        let packets = packets.map(|(layers, own, switches)| {
            let all = map::clone_handles(maps.iter().chain(&own))?;
            load::load_packets(&layers, &all, (0, &switches), None).map(|(loaded, _)| loaded)
        });
        Ok(LargerMaps { generation: Generation::new(&maps)?, maps, programs, packets })
    }
}

impl Prebuild {
    pub(super) fn shape(&self) -> Option<MapSizes> {
        if let Self::Building { shape, .. } = self { Some(*shape) } else { None }
    }

    /// Whether maps of at least these sizes are being built.
    fn covers(&self, wanted: &MapSizes) -> bool {
        self.shape().is_some_and(|shape| shape.max_with(*wanted) == shape)
    }
}

impl KernelMaps {
    /// Begins a prebuild, unless one is running or the last one failed.
    pub(super) fn begin_prebuild(&mut self, shape: MapSizes) {
        if matches!(self.prebuild, Prebuild::Idle) && self.growth_failures.recent_failure(&shape).is_none() {
            self.prebuild = self.start_build(shape).unwrap_or(Prebuild::Failed);
        }
    }

    /// Takes the maps if they are finished; never waits. An error is reported only if another attempt fails once the
    /// maps are full.
    pub(super) fn poll_prebuild(&mut self) -> Option<LargerMaps> {
        let Prebuild::Building { thread, .. } = &self.prebuild else { return None };
        if !thread.is_finished() {
            return None;
        }
        let Prebuild::Building { thread, .. } = std::mem::replace(&mut self.prebuild, Prebuild::Failed)
        else {
            return None;
        };
        let made = join_builder(thread).ok()?;
        self.prebuild = Prebuild::Idle;
        Some(made)
    }

    /// Discards the built maps, so that no attempt follows before the maps are full.
    pub(super) fn abandon_prebuild(&mut self) {
        self.prebuild = Prebuild::Failed;
    }

    /// Waits for maps of at least these sizes.
    pub(super) fn await_prebuild(&mut self, shape: MapSizes) -> Result<LargerMaps, StartError> {
        if !self.prebuild.covers(&shape) {
            self.prebuild = self.start_build(shape)?;
        }
        match std::mem::take(&mut self.prebuild) {
            Prebuild::Building { thread, .. } => join_builder(thread),
            Prebuild::Idle | Prebuild::Failed => Err(thread_error()),
        }
    }

    fn start_build(&self, shape: MapSizes) -> Result<Prebuild, StartError> {
        let order = PrebuildOrder {
            shape,
            features: self.features,
            shared: map::clone_handles(self.shared.handles())?,
            packets: self.packets.load_inputs()?,
        };
        let builder = std::thread::Builder::new().name("growth".to_owned());
        let thread =
            builder.spawn(|| order.build_maps()).map_err(|error| StartError::from_load(error.into()))?;
        Ok(Prebuild::Building { shape, thread })
    }
}

fn join_builder(thread: JoinHandle<Result<LargerMaps, StartError>>) -> Result<LargerMaps, StartError> {
    thread.join().unwrap_or_else(|_| Err(thread_error()))
}

/// The error for a thread that panicked.
pub(super) fn thread_error() -> StartError {
    StartError::from_load(std::io::Error::other("the thread that loads programs has ended").into())
}
