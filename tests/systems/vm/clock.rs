//! A guest's clock that goes slower than this machine's.
//!
//! Invariant: the guest cannot tell. All of its clocks go alike, the counter of its processors too, as it measures that
//! one by the others; it is a guest on a processor that is so many times faster. So a limit of any program in there has
//! that much more time, and none has to know of emulation.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, at, output};
use crate::guest::mark;

const SOURCE: &str = include_str!("clock.c");

/// What the library reads how much slower from.
pub(crate) const SLOWER: &str = "SLOWER";

/// More than emulation costs, by an order of magnitude.
pub(crate) const SLOWER_MAX: i64 = 100;

/// The library that lies over the emulator's own, in this folder; made if it is not there, which needs `cc`.
pub(crate) fn library(folder: &Path) -> Result<PathBuf, Failure> {
    let mut hasher = DefaultHasher::new();
    SOURCE.hash(&mut hasher);
    let path = folder.join(format!("{:016x}.clock", hasher.finish()));
    if !path.exists() {
        let unfinished = path.with_extension(mark());
        let source = unfinished.with_extension("c");
        fs::write(&source, SOURCE).map_err(at("write", &source))?;
        output(Command::new("cc").args(["-O2", "-shared", "-fPIC", "-o"]).arg(&unfinished).arg(&source))?;
        fs::rename(&unfinished, &path).map_err(at("rename into place", &path))?;
        fs::remove_file(&source).map_err(at("remove", &source))?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a second and a half, a program sees a hundredth pass.
    #[test]
    fn a_clock_goes_slower() {
        let folder = tempfile::tempdir().unwrap();
        let library = library(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else stays");
        let script = "from=$EPOCHREALTIME; sleep 1.5; to=$EPOCHREALTIME; echo $((${to/./} - ${from/./}))";
        let mut bash = Command::new("bash");
        bash.args(["-c", script]).env("LD_PRELOAD", library).env(SLOWER, "100");
        let micros: u64 = String::from_utf8(output(&mut bash).unwrap()).unwrap().trim().parse().unwrap();
        assert!((15_000..1_000_000).contains(&micros), "{micros} µs");
    }
}
