//! `cleanup`: takes everything out of the kernel that a daemon left there.
//!
//! Invariant: programs go first, so no client meets programs without maps; a running daemon keeps what it has. Deliberately
//! absent: asking the daemon, which does not run when this makes sense.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{CONFIG_PATH, Exit};
use crate::config::{Config, ConfigErrors, Datapath};

/// Says what was removed, or what stands in the way.
pub(super) fn cleanup(config: Option<&Path>, out: &mut impl Write, err: &mut impl Write) -> io::Result<Exit> {
    let pins = match pins(config) {
        Ok(pins) => pins,
        Err(errors) => {
            writeln!(err, "holdfast: {errors}")?;
            return Ok(Exit::Config);
        }
    };
    if !pins.exists() {
        writeln!(out, "{}: nothing is there", pins.display())?;
        return Ok(Exit::Good);
    }
    match holdfast_datapath::cleanup(&pins) {
        Ok(errors) if errors.is_empty() => {
            writeln!(out, "{}: removed; no connection is translated any more", pins.display())?;
            Ok(Exit::Good)
        }
        Ok(errors) => report(&errors, err),
        Err(error) => report(&[error], err),
    }
}

fn report(errors: &[holdfast_datapath::StartError], err: &mut impl Write) -> io::Result<Exit> {
    errors.iter().try_for_each(|error| writeln!(err, "holdfast: {error}"))?;
    Ok(Exit::Finding)
}

/// Where the configuration has them. One that is not where it usually is says nothing: the package may be gone already.
fn pins(config: Option<&Path>) -> Result<PathBuf, ConfigErrors> {
    let usual = Path::new(CONFIG_PATH);
    match config.or_else(|| usual.exists().then_some(usual)) {
        Some(path) => Config::load(path).map(|(config, _)| config.datapath.bpffs),
        None => Ok(Datapath::default().bpffs),
    }
}
