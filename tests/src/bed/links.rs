//! Addresses and links of a bed, set with `ip`.
//!
//! Invariant: it changes only interfaces of the bed's own namespaces. The node forwards nothing; a neighbour reaches
//! the node's own addresses, which suffices for a load balancer.

use std::io::Write;
use std::process::Stdio;

use super::{Bed, BedError, Location, at, spawn};

/// What a bed has besides its loopback interface.
#[derive(Clone, Debug, Default)]
pub struct Layout {
    /// Further addresses of the node, on its loopback interface: `192.0.2.1/32`, `fd00::1/128`.
    pub local: Vec<&'static str>,
    /// Other networks, each at the other end of a link.
    pub neighbours: Vec<Neighbour>,
    /// Further networks without links; the test adds the links.
    pub apart: Vec<&'static str>,
}

/// A separate network, one link away: a pod or another machine.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Also the name of the node's interface to it, so at most 15 characters.
    pub name: &'static str,
    /// The node's addresses on the link, with their prefix length; they are the neighbour's default gateways.
    pub near: Vec<&'static str>,
    /// The neighbour's addresses on the link, on an interface named `eth0`.
    pub far: Vec<&'static str>,
}

/// Applies the layout to a new bed.
pub(super) fn configure(bed: &Bed, layout: &Layout) -> Result<(), BedError> {
    let mut node = up("lo");
    node.extend(layout.local.iter().map(|address| add(address, "lo")));
    for neighbour in &layout.neighbours {
        let pid = bed.netns(Location::far(neighbour.name))?.pid();
        node.push(format!("link add {} type veth peer name eth0 netns {pid}", neighbour.name));
        node.extend(up(neighbour.name));
        node.extend(neighbour.near.iter().map(|address| add(address, neighbour.name)));
    }
    batch(bed, Location::OUTSIDE, &node)?;
    layout.neighbours.iter().try_for_each(|neighbour| configure_far(bed, neighbour))
}

fn configure_far(bed: &Bed, neighbour: &Neighbour) -> Result<(), BedError> {
    let mut lines = [up("lo"), up("eth0")].concat();
    lines.extend(neighbour.far.iter().map(|address| add(address, "eth0")));
    let gateways = neighbour.near.iter().filter_map(|address| address.split('/').next());
    lines.extend(gateways.map(|gateway| format!("route add default via {gateway}")));
    batch(bed, Location::far(neighbour.name), &lines)
}

fn up(interface: &str) -> Vec<String> {
    vec![format!("link set {interface} up")]
}

/// IPv6 addresses get `nodad`, so that they are usable at once.
fn add(address: &str, interface: &str) -> String {
    let at_once = if address.contains(':') { " nodad" } else { "" };
    format!("address add {address} dev {interface}{at_once}")
}

pub(super) fn batch(bed: &Bed, location: Location<'_>, lines: &[String]) -> Result<(), BedError> {
    let text = lines.iter().map(|line| format!("{line}\n")).collect::<String>();
    feed(bed, location, &["ip", "-batch", "-"], &text)
}

/// Runs a command that reads its instructions from standard input.
pub(super) fn feed(bed: &Bed, location: Location<'_>, words: &[&str], text: &str) -> Result<(), BedError> {
    let (program, arguments) = words.split_first().map_or(("true", words), |(first, rest)| (*first, rest));
    let mut command = bed.command(location, program)?;
    command.args(arguments).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(&mut command)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes()).map_err(at("write to", program.as_ref()))?;
    }
    let output = child.wait_with_output().map_err(at("wait for", program.as_ref()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BedError::Failed { program: format!("{program}:\n{text}"), status: output.status, said })
}
