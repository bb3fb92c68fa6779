//! Every scenario file, over every kind of maps, as it is written and with a restart between any two steps.

use std::path::{Path, PathBuf};

use holdfast_tests::scenario::{FaultyMemory, MapMaker, Memory, check};

/// One op in ten fails; three sequences, so that a rule cannot hold by the luck of one.
const SEEDS: [u64; 3] = [1, 0x9e37_79b9_7f4a_7c15, 0xdead_beef];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

fn files() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "scenario"));
    files.sort();
    files
}

#[test]
fn every_scenario_holds_over_every_kind_of_maps() {
    let faulty = SEEDS.map(|seed| FaultyMemory { seed });
    let mut makers: Vec<&dyn MapMaker> = vec![&Memory];
    makers.extend(faulty.iter().map(|maker| maker as &dyn MapMaker));
    let bless = std::env::var_os("BLESS").is_some();
    let files = files();
    assert!(files.len() > 40, "only {} scenarios in {}", files.len(), folder().display());
    let failures: Vec<String> = files.iter().filter_map(|file| check(file, &makers, bless).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
