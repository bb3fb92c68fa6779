//! Creates the maps that clients' sockets fill outside of the daemon's memory limit.
//!
//! Invariant: the kernel charges map memory to the cgroup of the creating process, even beyond its limit. So these maps
//! are created before the daemon starts: in the root of the hierarchy, or in a cgroup without limit that ends. The
//! daemon adopts them. Existing maps are in use and never recreated.

use std::fs;
use std::path::Path;

use holdfast_status::datapath::Features;

use crate::cgroup;
use crate::error::StartError;
use crate::load;
use crate::pins::{Pins, VERSION};

/// Whether the maps were created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepareOutcome {
    /// They were created.
    Created,
    /// They existed.
    Existing,
}

/// Creates and pins the maps that clients' sockets fill, if they are missing. The calling process leaves its cgroup if
/// permitted, and ends soon.
pub fn prepare_socket_maps(bpffs: &Path) -> Result<PrepareOutcome, StartError> {
    libbpf_rs::set_print(None);
    let pins = Pins::open(bpffs, VERSION)?;
    if pins.has_socket_maps() {
        return Ok(PrepareOutcome::Existing);
    }
    leave_memory_cgroup();
    // These maps do not depend on the programs' features.
    let mut maps = load::make_socket_maps(Features::FLOOR)?;
    pins.pin_sockets(&mut maps)?;
    Ok(PrepareOutcome::Created)
}

/// Moves to the root of the hierarchy that accounts memory. If that is not permitted, the current cgroup is charged.
fn leave_memory_cgroup() {
    if let Some(top) = cgroup::memory_root() {
        let _ = fs::write(top.join("cgroup.procs"), "0");
    }
}
