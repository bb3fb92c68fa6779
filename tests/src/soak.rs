//! Connects in a loop while the daemon is killed and its tables grow and shrink, and while lists are replaced as fast
//! as possible.
//!
//! Invariant: a failed connect fails the run, and after each life the kernel holds exactly the requested state. A seed
//! gives the same orders, but their timing depends on the machine.

mod cluster;
mod lives;
mod replacing;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::bed::load::{Kind, Load};
use crate::bed::{Bed, BedError, Layout, Location, Role, Server};

pub use lives::{Lives, kill_again_and_again};
pub use replacing::{ReplaceReport, replace_again_and_again};

/// The address that clients dial.
pub const VIP: &str = "10.96.0.10:80";

/// The backends of all services.
const BACKENDS: [&str; 4] = ["192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5"];

const BACKEND_PORT: u16 = 8080;

/// How long clients work between two checks for the end.
const TURN: Duration = Duration::from_millis(200);

/// Why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum SoakError {
    /// The bed, the daemon or a connect failed.
    #[error(transparent)]
    Bed(#[from] BedError),
    /// The report could not be written.
    #[error("cannot say what happened: {0}")]
    Say(#[source] std::io::Error),
    #[error(transparent)]
    Start(#[from] holdfast_datapath::StartError),
    #[error(transparent)]
    Maps(#[from] holdfast_core::maps::MapError),
    /// The kernel's state differs from the requested one.
    #[error("the kernel holds something else than what was asked for: {0}")]
    Differs(String),
}

/// A bed with the backends.
#[derive(Debug)]
pub struct SoakBed {
    bed: Bed,
    _servers: Vec<Server>,
}

impl SoakBed {
    /// A bed with all backends up.
    pub fn new() -> Result<Self, SoakError> {
        let local = vec!["192.0.2.2/32", "192.0.2.3/32", "192.0.2.4/32", "192.0.2.5/32"];
        let bed = Bed::lay(&Layout { local, ..Layout::default() })?;
        let serve = |backend: SocketAddr| bed.serve(Location::OUTSIDE, Role::Accept, "backend", backend);
        let servers = backends().map(serve).collect::<Result<_, _>>()?;
        Ok(Self { bed, _servers: servers })
    }

    /// Runs a closure while clients connect in a loop. Returns how often they connected; one failure is an error.
    fn under_load<T>(&self, run: impl FnOnce(&AtomicU64) -> Result<T, SoakError>) -> Result<T, SoakError> {
        let Some(vip) = VIP.parse().ok() else { return Err(SoakError::Differs(VIP.to_owned())) };
        let mut load = self.bed.load(Location::NODE, Kind::Connect, vip)?;
        let (stop, connects) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| connect_all(&mut load, &stop, &connects));
            let ran = run(&connects);
            stop.store(true, Ordering::Relaxed);
            let connected = clients.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            connected.map_err(SoakError::from).and(ran)
        })
    }
}

fn connect_all(load: &mut Load, stop: &AtomicBool, connects: &AtomicU64) -> Result<(), BedError> {
    while !stop.load(Ordering::Relaxed) {
        connects.fetch_add(load.turn(TURN)?.count, Ordering::Relaxed);
    }
    Ok(())
}

fn backends() -> impl Iterator<Item = SocketAddr> {
    BACKENDS.iter().filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, BACKEND_PORT)))
}

/// xorshift64*: a random generator with the same numbers everywhere.
#[derive(Debug)]
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound.max(1)
    }
}
