//! A real HAProxy in TCP mode on the bed's node: it accepts each connection and opens another one to the backend.
//!
//! Invariant: the node's network has the settings of HAProxy users with many connections: all ports, and reuse of
//! closed ones after a second.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use holdfast_tests::bed::load::Kind;
use holdfast_tests::bed::{Bed, Location, fabric, succeed};
use tempfile::TempDir;

use super::stage::{Failed, Placement, SOON, Stage, bed};

/// The folder that `scripts/haproxy.sh` fills, in the target folder.
const ROOT: &str = "haproxy";
const PROGRAM: &str = "usr/sbin/haproxy";

const GLOBAL: &str = "global
    maxconn 4000
defaults
    mode tcp
    timeout connect 5s
    timeout client 1m
    timeout server 1m
";

const SETTINGS: [(&str, &str); 2] = [("ipv4/ip_local_port_range", "1024 65535"), ("ipv4/tcp_tw_reuse", "1")];

/// A network with a node that HAProxy serves. Fields are dropped in this order.
pub(crate) struct HaProxy {
    _process: Process,
    bed: Bed,
    _folder: TempDir,
}

/// The process, killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl HaProxy {
    /// `None`: HAProxy was not fetched.
    pub(crate) fn start() -> Result<Option<Self>, Failed> {
        let root = root()?;
        if !root.join(PROGRAM).exists() {
            return Ok(None);
        }
        let (bed, folder) = (bed()?, tempfile::tempdir()?);
        for (name, value) in SETTINGS {
            fabric::set(&bed, Location::OUTSIDE, name, value)?;
        }
        let config = folder.path().join("haproxy.cfg");
        fs::write(&config, configuration(&bed)?)?;
        let process = launch(&bed, &root, &config)?;
        let stage = Self { _process: process, bed, _folder: folder };
        stage.wait_until_served()?;
        Ok(Some(stage))
    }
}

impl Stage for HaProxy {
    fn bed(&self) -> &Bed {
        &self.bed
    }

    /// HAProxy has no such UDP load.
    fn carries(&self, kind: Kind) -> bool {
        kind != Kind::Datagram
    }
}

fn root() -> Result<PathBuf, Failed> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(3).ok_or("the benchmark is not in a target folder")?;
    Ok(target.join(ROOT))
}

/// The configuration for the table's services. The node must have HAProxy's addresses.
fn configuration(bed: &Bed) -> Result<String, Failed> {
    let mut text = GLOBAL.to_owned();
    for place in Placement::ALL {
        let (frontend, backend) = place.ends()?;
        let mut ip = bed.command(Location::OUTSIDE, "ip")?;
        ip.args(["address", "replace", &format!("{}/32", frontend.ip()), "dev", "lo"]);
        succeed(ip, SOON)?;
        writeln!(text, "listen {place:?}\n    bind {frontend}\n    server only {backend}")?;
    }
    Ok(text)
}

fn launch(bed: &Bed, root: &Path, config: &Path) -> Result<Process, Failed> {
    let mut command = bed.command(Location::OUTSIDE, root.join(PROGRAM))?;
    command
        .env("LD_LIBRARY_PATH", root.join(format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH)))
        .arg("-db")
        .arg("-f")
        .arg(config);
    Ok(Process(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?))
}
