//! The maps that sockets of clients fill, made so that no daemon's limit of memory pays for them.
//!
//! Invariant: the kernel charges what programs put into a map to the cgroup of the process that made it, and lets them
//! go beyond a limit there. So these maps are made before the daemon starts, at the top of the hierarchy, or else in a
//! cgroup that has no limit and ends; the daemon adopts them. What is there is never made anew, for it is in use.

use std::fs;
use std::path::Path;

use holdfast_status::datapath::Features;

use crate::cgroup;
use crate::error::StartError;
use crate::load;
use crate::pins::{Pins, VERSION};

/// What became of the maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrepareOutcome {
    /// They are made now.
    Created,
    /// They were there.
    Existing,
}

/// Makes the maps that sockets of clients fill, and pins them, where they are missing. The calling process leaves its
/// cgroup where it may, and ends soon.
pub fn prepare_socket_maps(bpffs: &Path) -> Result<PrepareOutcome, StartError> {
    libbpf_rs::set_print(None);
    let pins = Pins::open(bpffs, VERSION)?;
    if pins.has_socket_maps() {
        return Ok(PrepareOutcome::Existing);
    }
    leave_memory_cgroup();
    // These maps are alike whatever the kernel's programs can do.
    let mut maps = load::make_socket_maps(Features::FLOOR)?;
    pins.pin_sockets(&mut maps)?;
    Ok(PrepareOutcome::Created)
}

/// Goes to the top of the hierarchy that counts memory. Where that is not allowed, the cgroup of now pays.
fn leave_memory_cgroup() {
    if let Some(top) = cgroup::memory_root() {
        let _ = fs::write(top.join("cgroup.procs"), "0");
    }
}
