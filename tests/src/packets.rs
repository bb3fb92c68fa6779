//! The results that clients of every kind get on one node of a small cluster, with any proxy: services, a table of
//! expectations, and the requests that compare the two.
//!
//! Invariant: each row of the table says what the real kube-proxy does. Where holdfast differs by decision, the row
//! gives the reason. Nothing here depends on which proxy serves.

mod cases;
pub mod random;
mod row;
mod services;
mod table;
mod written;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::panic::resume_unwind;
use std::thread;
use std::time::{Duration, Instant};

pub use self::cases::{CASES, Case, frontend, frontend_v4, outside};
pub use self::row::{Expected, Family, Row, SeenSource};
pub use self::services::{BACKENDS, Backend, SERVICES, Service, changing, objects, sign};
pub use self::table::{DIFFERENCES, rows, rows_of_pods};
pub use self::written::{write_node, write_others};
use crate::bed::ask::{Asker, Outcome, Question, Transport};
use crate::bed::{Bed, BedError, Location, Server};

/// The port of all backends.
pub const TARGET_PORT: u16 = 8080;

/// The port of all services, besides their NodePorts.
pub const PORT: u16 = 80;

/// How often a node is polled until it serves.
const POLL: Duration = Duration::from_millis(50);

/// The proxy that serves the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    KubeProxy,
    Holdfast,
}

/// Clients by their word in the table: the location of each, and its source addresses.
const CLIENTS: [(&str, Location<'static>, Option<[&str; 2]>); 9] = [
    ("outside", Location::far("client"), Some(["10.20.0.2", "fd00:20::2"])),
    ("outside-3", Location::far("client"), Some(["10.20.0.3", "fd00:20::3"])),
    ("host", Location::NODE, None),
    ("pod-a", Location::pod("pod-a"), Some(["10.244.1.10", "fd00:244:1::10"])),
    ("pod-r", Location::far("pod-r"), Some(["10.244.9.10", "fd00:244:9::10"])),
    // Pods of the node with no program in their cgroup: a virtual machine, or a sandbox with a network stack of its
    // own.
    ("bare-a", Location::far("pod-a"), Some(["10.244.1.10", "fd00:244:1::10"])),
    ("bare-b", Location::far("pod-b"), Some(["10.244.1.11", "fd00:244:1::11"])),
    ("bare-c", Location::far("pod-c"), Some(["10.244.2.10", "fd00:244:2::10"])),
    ("bare-d", Location::far("pod-d"), Some(["10.244.2.11", "fd00:244:2::11"])),
];

/// The address of a client; `None` if it has several.
fn address_of(client: &str, family: Family) -> Option<IpAddr> {
    let (_, _, addresses) = CLIENTS.iter().find(|(name, _, _)| *name == client)?;
    family.of((*addresses)?).parse().ok()
}

/// Starts a server for each backend of the services.
pub fn serve(bed: &Bed) -> Result<Vec<Server>, BedError> {
    let server = |backend: &Backend| bed.serve_seen_source(backend.place, backend.name, &backend.sockets());
    BACKENDS.iter().map(server).collect()
}

/// A client process for each location of the table.
#[derive(Debug)]
pub struct Clients {
    askers: BTreeMap<&'static str, Asker>,
}

impl Clients {
    pub fn start(bed: &Bed) -> Result<Self, BedError> {
        let askers = CLIENTS.iter().map(|(name, place, _)| Ok((*name, bed.asker(*place)?)));
        Ok(Self { askers: askers.collect::<Result<_, BedError>>()? })
    }

    /// The client with this word in the table.
    pub fn client(&mut self, name: &str) -> Result<&mut Asker, BedError> {
        let asker = self.askers.get_mut(name);
        asker.ok_or_else(|| BedError::NoNeighbour { name: name.to_owned() })
    }

    /// Waits until a service answers in both families and by both transports.
    pub fn wait_for(&mut self, service: &Service, limit: Duration) -> Result<bool, BedError> {
        self.wait_until((service, "node"), |outcome| matches!(outcome, Outcome::Answered { .. }), limit)
    }

    /// Waits until outside clients are refused at a cluster IP's missing port. Programs refuse it a moment after they
    /// serve the service.
    pub fn wait_until_refused(&mut self, service: &Service, limit: Duration) -> Result<bool, BedError> {
        self.wait_until((service, "cluster:81"), |outcome| *outcome == Outcome::Refused, limit)
    }

    fn wait_until(
        &mut self,
        (service, place): (&Service, &str),
        is_so: impl Fn(&Outcome) -> bool,
        limit: Duration,
    ) -> Result<bool, BedError> {
        let until = Instant::now() + limit;
        loop {
            let outcomes = self.client("outside")?.ask_all(&questions("outside", service, place))?;
            if outcomes.iter().all(&is_so) {
                return Ok(true);
            }
            if Instant::now() > until {
                return Ok(false);
            }
            thread::sleep(POLL);
        }
    }

    /// Sends the rows' requests, and returns a line for each unexpected result.
    pub fn differences(&mut self, rows: &[Row], proxy: Proxy) -> Result<Vec<String>, BedError> {
        let lines = thread::scope(|scope| {
            let clients = self.askers.iter_mut();
            let asked: Vec<_> =
                clients.map(|(name, asker)| scope.spawn(|| of_client(name, asker, rows, proxy))).collect();
            let joined = asked.into_iter().map(|one| one.join().unwrap_or_else(|it| resume_unwind(it)));
            joined.collect::<Result<Vec<_>, BedError>>()
        });
        Ok(lines?.concat())
    }
}

fn of_client(client: &str, asker: &mut Asker, rows: &[Row], proxy: Proxy) -> Result<Vec<String>, BedError> {
    let rows = rows.iter().filter(|row| row.client == client);
    let asked: Vec<(&Row, Question)> = rows.flat_map(asked).collect();
    let questions: Vec<Question> = asked.iter().map(|(_, question)| question.clone()).collect();
    let outcomes = asker.ask_all(&questions)?;
    let pairs = asked.iter().zip(&outcomes);
    Ok(pairs.filter_map(|((row, question), outcome)| row.judge(proxy, question, outcome)).collect())
}

fn asked(row: &Row) -> Vec<(&Row, Question)> {
    let service = SERVICES.iter().find(|service| service.name == row.service);
    let questions = service.map(|service| questions(row.client, service, row.address)).unwrap_or_default();
    questions.into_iter().map(|question| (row, question)).collect()
}

/// Both transports in both families.
fn questions(client: &str, service: &Service, address: &str) -> Vec<Question> {
    let of = |family: Family| {
        let to = service.frontend(address, family)?;
        let from = address_of(client, family).map(|ip| SocketAddr::new(ip, 0));
        let question = move |transport| Question { from, ..Question::new(transport, to) };
        Some([question(Transport::Tcp), question(Transport::Udp)])
    };
    [Family::V4, Family::V6].into_iter().filter_map(of).flatten().collect()
}
