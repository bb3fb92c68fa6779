//! What a service's address costs against the backend's own: connect and close, request and response, a stream.
//!
//! Each way to the backend is measured against the direct one in the same run, in turns. The first way is the direct
//! one again: it must come out at 1.00, or this machine cannot measure today.

use std::io::Write;
use std::net::SocketAddr;

use holdfast_tests::bed::compare::{Ratio, compare};
use holdfast_tests::bed::load::Kind;
use holdfast_tests::bed::{Bed, Place, Role, Server};

/// How far the direct way may be from itself, once its interval is taken off.
const DOUBT: f64 = 0.01;

const PORT: u16 = 8080;

type Failed = Box<dyn std::error::Error>;

/// A way to the backend.
struct Way {
    name: &'static str,
    /// Where the client runs: programs of the bed see it inside.
    place: Place<'static>,
    /// What the client dials.
    dialled: SocketAddr,
}

/// What makes further ways. Dropping it takes them away.
trait Datapath {
    /// Brings services up in the bed, one of them for this backend, and names the ways that there are now.
    fn start(&mut self, bed: &Bed, backend: SocketAddr) -> Result<Vec<Way>, Failed>;
}

/// No datapath at all.
struct Direct;

impl Datapath for Direct {
    fn start(&mut self, _: &Bed, backend: SocketAddr) -> Result<Vec<Way>, Failed> {
        Ok(vec![
            Way { name: "direct again", place: Place::OUTSIDE, dialled: backend },
            Way { name: "direct, in the node's cgroup", place: Place::NODE, dialled: backend },
        ])
    }
}

fn main() -> Result<(), Failed> {
    let mut out = std::io::stdout();
    let datapaths: [Box<dyn Datapath>; 1] = [Box::new(Direct)];
    let mut doubtful = Vec::new();
    for mut datapath in datapaths {
        for (kind, role) in
            [(Kind::Connect, Role::Accept), (Kind::Request, Role::Echo), (Kind::Stream, Role::Sink)]
        {
            let bed = Bed::new()?;
            let server = serve(&bed, role)?;
            for way in datapath.start(&bed, server.address())? {
                let ratio = measure(&bed, kind, server.address(), &way)?;
                writeln!(out, "{}", line(kind, &way, &ratio))?;
                out.flush()?;
                if way.place == Place::OUTSIDE && (ratio.low > 1.0 + DOUBT || ratio.high < 1.0 - DOUBT) {
                    doubtful.push(format!("{kind:?}"));
                }
            }
        }
    }
    if doubtful.is_empty() {
        return Ok(());
    }
    Err(format!("direct differs from itself by more than {DOUBT} in {}", doubtful.join(", ")).into())
}

/// Outside: the backend's own sockets are not what is measured.
fn serve(bed: &Bed, role: Role) -> Result<Server, Failed> {
    Ok(bed.serve(Place::OUTSIDE, role, "backend", SocketAddr::from(([127, 0, 0, 1], PORT)))?)
}

fn measure(bed: &Bed, kind: Kind, backend: SocketAddr, way: &Way) -> Result<Ratio, Failed> {
    let direct = || bed.load(Place::OUTSIDE, kind, backend);
    let other = || bed.load(way.place, kind, way.dialled);
    Ok(compare(&direct, &other)?)
}

fn line(kind: Kind, way: &Way, ratio: &Ratio) -> String {
    let (unit, scale) = match kind {
        Kind::Connect | Kind::Request => ("/s", 1.0),
        Kind::Stream => (" Gbit/s", 8e-9),
    };
    format!(
        "{kind:8?} {:30} {:.4} of direct ({:.4} to {:.4}), {:.1}{unit} against {:.1}{unit}",
        way.name,
        ratio.median,
        ratio.low,
        ratio.high,
        ratio.second_rate * scale,
        ratio.first_rate * scale,
    )
}
