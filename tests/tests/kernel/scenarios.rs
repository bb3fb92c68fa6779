//! Runs every scenario over the kernel's maps, which must equal the memory maps. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use holdfast_core::maps::{Capacity, MapError, Maps, MemoryMaps};
use holdfast_core::op::{Action, Dump, Grace, Op};
use holdfast_datapath::KernelMaps;
use holdfast_fixtures::clock::wait_until;
use holdfast_laws::scenario::{MapMaker, check};
use holdfast_tests::whole_daemon::WholeDaemon;

/// The kernel's maps, and memory maps that get the same operations.
struct Pair {
    kernel: KernelMaps,
    memory: MemoryMaps,
}

/// One pair for all scenarios: each leaves it empty.
#[derive(Clone)]
struct Kernel(Arc<Mutex<Pair>>);

impl Kernel {
    fn pair(&self) -> MutexGuard<'_, Pair> {
        self.0.lock().unwrap()
    }
}

impl Maps for Kernel {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        let mut pair = self.pair();
        pair.kernel.execute(action)?;
        pair.memory.execute(action)
    }

    fn execute_batch(&mut self, inserts: &[Op]) -> Result<usize, MapError> {
        let mut pair = self.pair();
        let accepted = pair.kernel.execute_batch(inserts)?;
        inserts.iter().take(accepted).try_for_each(|op| pair.memory.execute(&op.action))?;
        Ok(accepted)
    }

    fn begin_grace(&mut self) -> Grace {
        self.pair().kernel.begin_grace()
    }

    /// Waits, because the scenarios' clock would run ahead of the kernel's.
    fn is_grace_over(&self, grace: Grace) -> bool {
        wait_until("the grace period's end", || self.pair().kernel.is_grace_over(grace));
        true
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        let mut pair = self.pair();
        let (mut kernel, memory) = (pair.kernel.dump()?, pair.memory.dump()?);
        // Without programs at devices, nothing reads source ranges from the kernel's maps, and they store none.
        kernel.sources = kernel.sources.or_else(|| memory.sources.clone());
        assert_eq!(kernel, memory, "kernel, memory");
        Ok(kernel)
    }

    fn capacity(&self) -> Capacity {
        self.pair().kernel.capacity()
    }
}

impl MapMaker for Kernel {
    fn name(&self) -> String {
        "kernel".to_owned()
    }

    fn make(&self) -> Result<Box<dyn Maps>, String> {
        let mut maps = self.clone();
        let left = maps.dump().map_err(|error| error.to_string())?;
        // A failed scenario may leave something behind, which must not fail the next one.
        if left != (Dump { sources: left.sources.clone().filter(Vec::is_empty), ..Dump::default() }) {
            let kernel = KernelMaps::without_programs(maps.capacity()).map_err(|error| error.to_string())?;
            *maps.pair() = Pair { kernel, memory: MemoryMaps::default() };
        }
        Ok(Box::new(maps))
    }
}

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "scenario"));
    files.sort();
    files
}

#[test]
fn kernel_every_scenario_holds_over_the_kernels_maps() {
    let kernel = KernelMaps::without_programs(Capacity::default()).unwrap();
    let maker = Kernel(Arc::new(Mutex::new(Pair { kernel, memory: MemoryMaps::default() })));
    let files = files();
    assert!(files.len() >= 70, "only {} scenarios", files.len());
    let failures: Vec<String> =
        files.iter().filter_map(|file| check(file, &WholeDaemon, &[&maker], false).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
