//! When the loop runs upkeep of the maps.

use std::sync::Mutex;

use tokio::sync::{mpsc, watch};

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::engine::run::{EngineChannels, Upkeep, run};

/// Another version's programs serve until then, and the daemon is not ready before.
#[tokio::test]
async fn upkeep_runs_as_soon_as_everything_is_written() {
    let (engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
    let (events, incoming) = mpsc::channel(4);
    let (stop, stopping) = watch::channel(false);
    let ends = EngineChannels {
        events: incoming,
        queries: crate::engine::query::channel().1,
        snapshots: watch::channel(Arc::default()).0,
        changes: mpsc::channel(16).0,
        progress: Arc::default(),
        steps: Arc::default(),
        stop: stopping,
    };
    let looks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&looks);
    let look = move |engine: &mut Engine<MemoryMaps>, _| {
        seen.lock().unwrap().push(engine.is_written());
        false
    };
    let running = tokio::spawn(run(engine, ends, look));
    // It has run once before there was anything.
    events.send(vec![service("a", "10.0.0.1")]).await.unwrap();
    while looks.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    let begun = std::time::Instant::now();
    events.send(vec![slice("a", &["1.1.1.1"]), Event::Synced(Source::Manifests)]).await.unwrap();
    while looks.lock().unwrap().last() != Some(&true) {
        tokio::task::yield_now().await;
    }
    assert!(
        begun.elapsed() < Duration::from_millis(900),
        "the next inspection would come after a second: {:?}",
        begun.elapsed()
    );
    stop.send_replace(true);
    running.await.unwrap();
}

/// A piece of upkeep usually waits for the kernel; here it blocks the engine for some milliseconds.
const PIECE: Duration = Duration::from_millis(5);
const PIECES: usize = 100;

#[tokio::test]
async fn a_change_waits_for_only_one_piece_of_upkeep() {
    let (engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
    let (events, incoming) = mpsc::channel(4);
    let (stop, stopping) = watch::channel(false);
    let (snapshots, mut seen) = watch::channel(Arc::default());
    let ends = EngineChannels {
        events: incoming,
        queries: crate::engine::query::channel().1,
        snapshots,
        changes: mpsc::channel(16).0,
        progress: Arc::default(),
        steps: Arc::default(),
        stop: stopping,
    };
    let done = Arc::new(AtomicUsize::new(0));
    let pieces = Arc::clone(&done);
    let upkeep = move |_: &mut Engine<MemoryMaps>, upkeep| {
        if upkeep == Upkeep::Continue {
            std::thread::sleep(PIECE);
            pieces.fetch_add(1, Ordering::Relaxed);
        }
        pieces.load(Ordering::Relaxed) < PIECES
    };
    let begun = std::time::Instant::now();
    let running = tokio::spawn(run(engine, ends, upkeep));
    while done.load(Ordering::Relaxed) < 3 {
        tokio::task::yield_now().await;
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "an idle engine does not rest: {:?}", begun.elapsed());
    let before = done.load(Ordering::Relaxed);
    let change = [service("a", "10.0.0.1"), slice("a", &["1.1.1.1"]), Event::Synced(Source::Manifests)];
    events.send(change.into()).await.unwrap();
    while seen.borrow_and_update().fill.frontends == 0 {
        tokio::task::yield_now().await;
    }
    let waited = done.load(Ordering::Relaxed) - before;
    assert!(waited <= 3, "{waited} pieces came before the change");
    while done.load(Ordering::Relaxed) < PIECES {
        tokio::task::yield_now().await;
    }
    stop.send_replace(true);
    running.await.unwrap();
}
