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
pub enum Prepared {
    /// They are made now.
    Made,
    /// They were there.
    WereThere,
}

/// Makes the maps that sockets of clients fill, and pins them, where they are missing. The calling process leaves its
/// cgroup where it may, and ends soon.
pub fn prepare(bpffs: &Path) -> Result<Prepared, StartError> {
    libbpf_rs::set_print(None);
    let pins = Pins::open(bpffs, VERSION)?;
    if pins.has_sockets() {
        return Ok(Prepared::WereThere);
    }
    leave_limits();
    // These maps are alike whatever the kernel's programs can do.
    let mut maps = load::maps_of_sockets(Features::FLOOR)?;
    pins.pin_sockets(&mut maps)?;
    Ok(Prepared::Made)
}

/// Goes to the top of the hierarchy that counts memory. Where that is not allowed, the cgroup of now pays.
fn leave_limits() {
    if let Some(top) = cgroup::top_of_memory() {
        let _ = fs::write(top.join("cgroup.procs"), "0");
    }
}
