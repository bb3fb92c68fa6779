//! The cost of a service's address compared with the backend's own: connect and close, request and response, a stream.
//!
//! Each path to the backend is compared with the direct one in the same run, in turns, and several times with new maps
//! and programs, because their place in memory can change the cost by a third. The first path is the direct one again:
//! its ratio must be 1.00, or this machine cannot measure today.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::Capacity;
use holdfast_core::op::MapGrowth;
use holdfast_core::time::ClockReading;
use holdfast_datapath::{KernelMaps, ServedSockets, StaleSockets, StartOptions};
use holdfast_fixtures::clock::pause;
use holdfast_laws::whole::step_whole;
use holdfast_laws::worlds::{SERVED, Shape, served_by};
use holdfast_tests::bed::compare::{self, Medians, Ratio};
use holdfast_tests::bed::load::Kind;
use holdfast_tests::bed::{Bed, Location, Role, Server};
use holdfast_tests::size::{self, is_short, sized};

/// The allowed deviation of the direct path from itself.
const DOUBT: f64 = 0.01;

const PORT: u16 = 8080;

const KINDS: [(Kind, Role); 3] =
    [(Kind::Connect, Role::Accept), (Kind::Request, Role::Echo), (Kind::Stream, Role::Sink)];

type Failed = Box<dyn std::error::Error>;

/// A path to the backend.
struct BackendPath {
    name: String,
    /// The client's location: programs of the bed see it inside.
    location: Location<'static>,
    /// The address that the client dials.
    dialled: SocketAddr,
}

/// A datapath to measure. Dropping it removes it.
trait Datapath {
    /// Whether this kind of load is worth measuring.
    fn takes(&self, kind: Kind) -> bool;

    /// Starts the datapath in the bed with services, one of them for this backend, and returns its paths.
    fn start(&mut self, bed: &Bed, backend: SocketAddr) -> Result<Vec<BackendPath>, Failed>;
}

/// No datapath.
struct Direct;

impl Datapath for Direct {
    fn takes(&self, _: Kind) -> bool {
        true
    }

    fn start(&mut self, _: &Bed, backend: SocketAddr) -> Result<Vec<BackendPath>, Failed> {
        let way = |name: &str, location| BackendPath { name: name.to_owned(), location, dialled: backend };
        Ok(vec![way("direct again", Location::OUTSIDE), way("direct, in the node's cgroup", Location::NODE)])
    }
}

/// The kernel's maps, filled by the engine.
struct Kernel {
    services: u32,
    /// Keeps the engine running, as a daemon does on a node.
    running: Option<Engine<KernelMaps>>,
}

impl Kernel {
    fn with(services: u32) -> Self {
        Self { services, running: None }
    }
}

impl Datapath for Kernel {
    /// The cost after connect does not depend on the number of services.
    fn takes(&self, kind: Kind) -> bool {
        self.services == 1 || kind == Kind::Connect
    }

    fn start(&mut self, bed: &Bed, backend: SocketAddr) -> Result<Vec<BackendPath>, Failed> {
        let options = StartOptions {
            cgroup: Some(bed.cgroup().to_owned()),
            bpffs: bed.bpffs().join("holdfast"),
            capacity: Capacity::default(),
            mark: 0,
            expected: MapGrowth::default(),
            stale_sockets: StaleSockets::default(),
            served: ServedSockets::default(),
            packets: None,
        };
        let maps = bed.within(Location::NODE, || KernelMaps::start(&options))??;
        let (mut engine, _) = Engine::start(maps, Seed(7), &[Source::Kubernetes])?;
        let others = Shape { services: self.services - 1, endpoints: 1 };
        let events = others.events().into_iter().chain(served_by(backend));
        events.chain([Event::Synced(Source::Kubernetes)]).for_each(|event| engine.apply(event));
        // The first step waits for readers of a former daemon.
        pause(Duration::from_millis(100));
        let now = ClockReading { wall: Timestamp(1_800_000_000), mono: Duration::ZERO };
        let snapshot = step_whole(&mut engine, now, &mut drop);
        if snapshot.fill.frontends != self.services as usize {
            return Err(
                format!("{} of {} services are served", snapshot.fill.frontends, self.services).into()
            );
        }
        self.running = Some(engine);
        let way = |what: &str, dialled| {
            let name = format!("{what}, {} services", self.services);
            BackendPath { name, location: Location::NODE, dialled }
        };
        Ok(vec![way("no VIP", backend), way("a VIP", SERVED)])
    }
}

/// Measures every kind of load, or the named one.
fn main() -> Result<(), Failed> {
    let wanted = size::wanted();
    let is_wanted =
        |kind: Kind| wanted.as_ref().is_none_or(|it| it.eq_ignore_ascii_case(&format!("{kind:?}")));
    let mut doubtful = Vec::new();
    for (kind, role) in KINDS.into_iter().filter(|(kind, _)| is_wanted(*kind)) {
        for way in measure(kind, role)? {
            let ratio = Ratio::from_draws(&way.draws);
            writeln!(std::io::stdout(), "{}", line(kind, &way.name, &ratio))?;
            if !is_short() && way.is_direct && (ratio.median - 1.0).abs() > DOUBT {
                doubtful.push(format!("{kind:?}"));
            }
        }
    }
    if doubtful.is_empty() {
        return Ok(());
    }
    Err(format!("direct differs from itself by more than {DOUBT} in {}", doubtful.join(", ")).into())
}

/// The cost of a path in each draw.
struct Measured {
    name: String,
    is_direct: bool,
    draws: Vec<Medians>,
}

/// Every other draw takes the datapaths in the other order. All are kept until the last measurement, or the kernel
/// would place the next programs where the former ones were.
fn measure(kind: Kind, role: Role) -> Result<Vec<Measured>, Failed> {
    let (mut measured, mut kept) = (Vec::new(), Vec::new());
    for number in 0..compare::draws() {
        let mut datapaths = datapaths(kind);
        if number % 2 == 1 {
            datapaths.reverse();
        }
        for mut datapath in datapaths {
            draw(datapath.as_mut(), (kind, role), &mut measured)?;
            kept.push(datapath);
        }
    }
    Ok(measured)
}

fn datapaths(kind: Kind) -> Vec<Box<dyn Datapath>> {
    let all: [Box<dyn Datapath>; 4] = [
        Box::new(Direct),
        Box::new(Kernel::with(1)),
        Box::new(Kernel::with(1_000)),
        Box::new(Kernel::with(sized(100_000, 2_000))),
    ];
    all.into_iter().filter(|datapath| datapath.takes(kind)).collect()
}

/// Draws each path of a datapath once, in a new bed.
fn draw(
    datapath: &mut dyn Datapath,
    (kind, role): (Kind, Role),
    measured: &mut Vec<Measured>,
) -> Result<(), Failed> {
    let bed = Bed::new()?;
    let server = serve(&bed, role)?;
    for way in datapath.start(&bed, server.address())? {
        let direct = || bed.load(Location::OUTSIDE, kind, server.address());
        let other = || bed.load(way.location, kind, way.dialled);
        let medians = compare::draw(&direct, &other)?;
        match measured.iter_mut().find(|known| known.name == way.name) {
            Some(known) => known.draws.push(medians),
            None => measured.push(Measured {
                is_direct: way.location == Location::OUTSIDE,
                name: way.name,
                draws: vec![medians],
            }),
        }
    }
    Ok(())
}

/// Outside of the cgroup, so that the backend's own sockets are not measured.
fn serve(bed: &Bed, role: Role) -> Result<Server, Failed> {
    Ok(bed.serve(Location::OUTSIDE, role, "backend", SocketAddr::from(([127, 0, 0, 1], PORT)))?)
}

fn line(kind: Kind, way: &str, ratio: &Ratio) -> String {
    let (unit, scale) = match kind {
        Kind::Connect | Kind::Request | Kind::Exchange | Kind::Datagram => ("/s", 1.0),
        Kind::Stream => (" Gbit/s", 8e-9),
    };
    format!(
        "{kind:8?} {:30} {:.4} of direct ({:.4} to {:.4}), {:.1}{unit} against {:.1}{unit}",
        way,
        ratio.median,
        ratio.low,
        ratio.high,
        ratio.second_rate * scale,
        ratio.first_rate * scale,
    )
}
