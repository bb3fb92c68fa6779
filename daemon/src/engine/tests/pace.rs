//! When the loop looks after the maps.

use std::sync::Mutex;

use tokio::sync::{mpsc, watch};

use super::*;
use crate::engine::run::{Ends, run};

/// Another version's programs serve until then, and the daemon is not ready before.
#[tokio::test]
async fn the_maps_are_looked_after_as_soon_as_everything_is_written() {
    let (engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
    let (events, incoming) = mpsc::channel(4);
    let (stop, stopping) = watch::channel(false);
    let ends = Ends {
        events: incoming,
        asks: crate::engine::ask::channel().1,
        snapshots: watch::channel(Arc::default()).0,
        changes: mpsc::channel(16).0,
        progress: Arc::default(),
        steps: Arc::default(),
        stop: stopping,
    };
    let looks = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&looks);
    let look = move |engine: &mut Engine<MemoryMaps>| seen.lock().unwrap().push(engine.is_written());
    let running = tokio::spawn(run(engine, ends, look));
    // It has looked once before there was anything.
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
        "it would look again after a second: {:?}",
        begun.elapsed()
    );
    stop.send_replace(true);
    running.await.unwrap();
}
