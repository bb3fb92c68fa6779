//! Slows a guest's clock down.
//!
//! Invariant: the guest cannot tell. All of its clocks slow down alike, and so does its processors' counter, which it
//! measures by the others: it is a guest on a processor that is that many times faster. All timeouts inside get that
//! much more time, and none has to allow for emulation.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::failure::{Failure, at, output};
use crate::guest::mark;

const SOURCE: &str = include_str!("clock.c");

/// The variable with the library's factor.
pub(crate) const SLOWER: &str = "SLOWER";

/// More than the cost of emulation, by an order of magnitude.
pub(crate) const SLOWER_MAX: i64 = 100;

/// The preload library for the emulator, in this folder; built if missing, which needs `cc`.
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

    /// Of a second and a half, a program sees a hundredth.
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
