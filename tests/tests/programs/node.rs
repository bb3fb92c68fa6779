//! A node for programs that use the kernel's datapath: a bed, maps attached to its cgroup, servers as backends.
//!
//! Invariant: a process at `Location::NODE` dials frontends that only the datapath can reach.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use holdfast_agent::datapath::RefusalLog;
use holdfast_core::op::MapGrowth;
use holdfast_datapath::{KernelMaps, Namespaces, Refusal, ServedSockets, StaleSockets, StartOptions};
use holdfast_tests::bed::{Bed, Layout, Location, Role, Server};

// The same ports as in the datapath's own tests.
#[path = "../../../daemon/datapath/tests/kernel/bed.rs"]
mod datapath;

pub(crate) use datapath::{Port, address, knows_its_netns, tells_what_sockets_keep};

pub(crate) const UDP: Port<'_> = Port::UDP;

/// A refusal is recorded at once; this is for an emulated machine next to another one.
const PATIENCE: Duration = Duration::from_secs(120);

/// Fields are dropped in this order: the maps detach from the bed before it goes.
pub(crate) struct Node {
    pub(crate) maps: KernelMaps,
    servers: Vec<Server>,
    pub(crate) bed: Bed,
}

impl Node {
    pub(crate) fn start() -> Self {
        let local = vec!["192.0.2.1/32", "192.0.2.2/32", "2001:db8::1/128"];
        let bed = Bed::lay(&Layout { local, ..Layout::default() }).unwrap();
        let options = StartOptions {
            cgroup: Some(bed.cgroup().to_owned()),
            bpffs: bed.bpffs().join("holdfast"),
            capacity: datapath::CAPACITY,
            expected: MapGrowth::default(),
            mark: datapath::MARK,
            // The test's process is outside of the node's network.
            stale_sockets: StaleSockets { namespaces: Namespaces::All, ..StaleSockets::default() },
            served: ServedSockets::default(),
            packets: None,
        };
        Self { maps: KernelMaps::start(&options).unwrap(), servers: Vec::new(), bed }
    }

    /// Whether a program sets the errno that a client sees.
    pub(crate) fn sets_errno(&self) -> bool {
        self.maps.status().features.set_retval
    }

    /// Starts a server of the node that runs until the node ends.
    pub(crate) fn server(&mut self, role: Role, name: &str, at: &str) -> SocketAddr {
        let server = self.bed.serve(Location::NODE, role, name, address(at)).unwrap();
        let address = server.address();
        self.servers.push(server);
        address
    }

    /// Kills the server there.
    pub(crate) fn kill_server(&mut self, at: SocketAddr) {
        self.servers.retain(|server| server.address() != at);
    }

    /// Sweeps all sockets, and returns how many were ended because their backend has left.
    pub(crate) fn end_stale_sockets(&mut self) -> u64 {
        let before = datapath::swept(&self.maps);
        datapath::sweep(&mut self.maps) - before.ended
    }

    /// The oldest entries of `/refusals`, this many.
    pub(crate) fn refusals(&self, count: usize) -> Vec<Refusal> {
        let (reader, stop) = std::io::pipe().unwrap();
        let log = RefusalLog::start(self.maps.refusals().unwrap(), reader).unwrap();
        let until = Instant::now() + PATIENCE;
        while log.snapshot().latest.len() < count && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(stop);
        log.snapshot().latest.into_iter().map(|told| told.refusal.clone()).collect()
    }
}
