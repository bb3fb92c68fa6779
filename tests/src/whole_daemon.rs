//! The daemon's own code where a scenario needs more than the rules: the configuration's source, and the disk.

use std::sync::Arc;

use holdfast::config::Config;
use holdfast::sources::config::{Blocks, StaticService, run};
use holdfast::state;
use holdfast_core::engine::Remembered;
use holdfast_core::event::Event;
use holdfast_core::snapshot::Snapshot;
use holdfast_laws::scenario::Daemon;
use tokio::sync::{mpsc, watch};

/// As the daemon reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct WholeDaemon;

impl Daemon for WholeDaemon {
    fn blocks(&self, toml: &str) -> Result<Vec<Event>, String> {
        let (config, _) = Config::parse(toml, "config.toml").map_err(|errors| errors.to_string())?;
        let services = config.services.iter().map(StaticService::from).collect();
        let blocks = Blocks::new(services, "config.toml").map_err(|faults| format!("{faults:?}"))?;
        first_group(Arc::new(blocks)).map_err(|error| error.to_string())
    }

    /// Through the disk.
    fn written_down(&self, snapshot: &Snapshot) -> Result<Remembered, String> {
        let disk = tempfile::tempdir().map_err(|error| error.to_string())?;
        let folder = state::Folder::new(disk.path());
        folder.store(&state::Context::default(), snapshot).map_err(|error| error.to_string())?;
        let kept = folder.load().map_err(|error| error.to_string())?;
        kept.map(|kept| kept.remembered).ok_or_else(|| "nothing is on disk".to_owned())
    }
}

fn first_group(blocks: Arc<Blocks>) -> Result<Vec<Event>, std::io::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async {
        let (_reload, blocks) = watch::channel(blocks);
        let (events, mut groups) = mpsc::channel(1);
        tokio::select! {
            () = run(blocks, events, 0) => Vec::new(),
            group = groups.recv() => group.unwrap_or_default(),
        }
    }))
}
