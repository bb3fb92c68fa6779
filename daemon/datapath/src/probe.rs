//! What this kernel can do, found by loading and never by its version.

use crate::devices::{has_tcx, knows_lengths};
use crate::error::StartError;
use crate::features::Features;
use crate::load;

/// Finds out what the kernel at hand has.
pub(crate) fn features() -> Result<Features, StartError> {
    let loaded = if load::loads_with(Features::ALL)? { Features::ALL } else { Features::FLOOR };
    // A process that may not ask is told so when the programs are loaded; sockets are served all the same.
    let (tcx, lengths) = (has_tcx().unwrap_or(false), knows_lengths());
    Ok(Features { tcx, lengths, ..loaded })
}
