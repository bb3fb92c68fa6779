//! Runs every scenario with the whole daemon around the rules: the daemon's code parses what sources send, and a
//! restart goes through the disk. `daemon/core/tests` runs the rules alone, over other maps and with other orders of
//! events.

use std::path::{Path, PathBuf};

use holdfast_laws::scenario::{FaultyMemory, Memory, check};
use holdfast_tests::whole_daemon::WholeDaemon;

#[test]
fn every_scenario_holds_with_the_whole_daemon() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let entries = std::fs::read_dir(&folder).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "scenario"));
    files.sort();
    assert!(files.len() > 60, "only {} scenarios in {}", files.len(), folder.display());
    let bless = std::env::var_os("BLESS").is_some();
    let check =
        |file: &PathBuf| check(file, &WholeDaemon, &[&Memory, &FaultyMemory { seed: 1 }], bless).err();
    let failures: Vec<String> = files.iter().filter_map(check).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
