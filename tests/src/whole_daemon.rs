//! The daemon's code for scenarios that need more than the rules: the configuration's source, and the disk.

use std::sync::Arc;

use holdfast_agent::drains::{self, Order};
use holdfast_agent::state;
use holdfast_config::Config;
use holdfast_core::drains::Drains;
use holdfast_core::engine::SavedSnapshot;
use holdfast_core::event::Event;
use holdfast_core::snapshot::Snapshot;
use holdfast_laws::scenario::Daemon;
use holdfast_standalone::blocks::{Blocks, StaticService, run};
use holdfast_status::views::datapath::DatapathView;
use tokio::sync::{mpsc, oneshot, watch};

/// Reads and writes as the daemon does.
#[derive(Clone, Copy, Debug)]
pub struct WholeDaemon;

impl Daemon for WholeDaemon {
    fn blocks(&self, toml: &str) -> Result<Vec<Event>, String> {
        let (config, _) = Config::parse(toml, "config.toml").map_err(|errors| errors.to_string())?;
        let services = config.services.iter().map(StaticService::from).collect();
        let blocks = Blocks::new(services, "config.toml").map_err(|faults| format!("{faults:?}"))?;
        first_group(Arc::new(blocks)).map_err(|error| error.to_string())
    }

    /// Writes a snapshot to disk and reads it back.
    fn written_down(&self, snapshot: &Snapshot) -> Result<SavedSnapshot, String> {
        let disk = tempfile::tempdir().map_err(|error| error.to_string())?;
        let folder = state::StateFolder::new(disk.path());
        folder.store(&state::SnapshotContext::default(), snapshot).map_err(|error| error.to_string())?;
        let kept = folder.load().map_err(|error| error.to_string())?;
        kept.map(|kept| kept.remembered).ok_or_else(|| "nothing is on disk".to_owned())
    }

    /// Orders each drain again and reads the drains back from disk.
    fn drains_written_down(&self, drains: &Drains) -> Result<Drains, String> {
        ordered_anew(drains).map_err(|error| error.to_string())
    }
}

/// Orders each drain again and returns the drains that the next process loads.
fn ordered_anew(drains: &Drains) -> Result<Drains, std::io::Error> {
    let disk = tempfile::tempdir()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (orders, ordered) = mpsc::channel(1);
        let (events, mut told) = mpsc::channel(1);
        let written = watch::channel(drains::DrainsWrite::default()).0;
        let taking =
            drains::run(disk.path().to_owned(), drains::RestoredDrains::default(), ordered, events, written);
        let listening = async { while told.recv().await.is_some() {} };
        let ordering = async {
            for (drain, by) in drains.iter() {
                let (answer, answered) = oneshot::channel();
                let order = Order { uid: by.uid, pid: None, drain, is_on: true, answer };
                orders.send(order).await.map_err(std::io::Error::other)?;
                answered.await.map_err(std::io::Error::other)?.map_err(std::io::Error::other)?;
            }
            Ok(())
        };
        tokio::select! {
            () = taking => Err(std::io::Error::other("no order is taken")),
            () = listening => Err(std::io::Error::other("nothing is told any more")),
            done = ordering => done,
        }
    })?;
    Ok(Drains::clone(&drains::load_drains(disk.path()).drains))
}

fn first_group(blocks: Arc<Blocks>) -> Result<Vec<Event>, std::io::Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async {
        let (_reload, blocks) = watch::channel(blocks);
        let (events, mut groups) = mpsc::channel(1);
        let datapath = watch::channel(Arc::new(DatapathView::for_memory())).1;
        tokio::select! {
            () = run(blocks, watch::channel(None).1, (None, None), events, datapath, (0, Arc::default())) => Vec::new(),
            group = groups.recv() => group.unwrap_or_default(),
        }
    }))
}
