//! The API over a table that has everything.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_imports,
    reason = "it is for tests"
)]

use std::path::PathBuf;
use std::sync::Arc;

use holdfast_core::snapshot::Snapshot;
pub use holdfast_fixtures::{THEN, everything, many};
use tokio::sync::{mpsc, watch};

use crate::{AdminServer, RequestSenders, Settings, start};
use holdfast_agent::readings::Readings;
pub use holdfast_agent::readings::fixture::{
    dropped_at, dropped_for, in_memory, readings, status, turned_away_outside,
};
use holdfast_evidence::diagnose::gather::Gatherer;
use holdfast_evidence::event_watcher::EventStatus;
use holdfast_evidence::knowledge::Edition;

/// No apiserver to query, and no receiver of requests.
pub fn acts() -> RequestSenders {
    RequestSenders {
        gatherer: Gatherer::new(None, "node-1".into(), watch::channel(Arc::default()).1),
        reloads: mpsc::channel(1).0,
        forgets: mpsc::channel(1).0,
        drains: mpsc::channel(1).0,
    }
}

/// A running API over one snapshot.
#[derive(Debug)]
pub struct Served {
    pub admin: AdminServer,
    pub socket: PathBuf,
    pub folder: Folder,
    // Readers see the last snapshot whether or not the sender lives; it is kept for tests that publish again.
    pub snapshots: watch::Sender<Arc<Snapshot>>,
}

/// A folder of its own for one test, removed at its end.
#[derive(Debug)]
pub struct Folder(pub PathBuf);

impl Default for Folder {
    fn default() -> Self {
        Self::new()
    }
}

impl Folder {
    pub fn new() -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("holdfast-admin-{}-{count}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Events are not followed.
fn events() -> EventStatus {
    EventStatus::new(watch::channel(Arc::new(odd_knowledge())).1)
}

/// An operator's file that is not TOML.
fn odd_knowledge() -> Edition {
    Edition::from_files(
        vec![("/etc/holdfast/events.d/ours.toml".to_owned(), "[[cause]\n".to_owned())],
        Vec::new(),
    )
}

pub fn serve(snapshot: Snapshot) -> Served {
    serve_with(snapshot, |_| {})
}

pub fn serve_with(snapshot: Snapshot, change: impl FnOnce(&mut Readings)) -> Served {
    serve_all(snapshot, change, (events(), acts()))
}

pub fn serve_to(snapshot: Snapshot, acts: RequestSenders) -> Served {
    serve_all(snapshot, |_| {}, (events(), acts))
}

/// Like [`serve_with`], with Events followed, none of which has come.
pub fn serve_following_events(snapshot: Snapshot, change: impl FnOnce(&mut Readings)) -> Served {
    let events = events();
    events.counters.set_enabled(true);
    serve_all(snapshot, change, (events, acts()))
}

pub fn serve_all(
    snapshot: Snapshot,
    change: impl FnOnce(&mut Readings),
    (events, acts): (EventStatus, RequestSenders),
) -> Served {
    let folder = Folder::new();
    let socket = folder.0.join("admin.sock");
    let (snapshots, receiver) = watch::channel(Arc::new(snapshot));
    let mut readings = readings(receiver);
    change(&mut readings);
    let settings = Settings { listen: "127.0.0.1:0".parse().unwrap(), socket: socket.clone() };
    let admin = start(&settings, (readings, events, acts), watch::channel(Vec::new()).0).unwrap();
    Served { admin, socket, folder, snapshots }
}
