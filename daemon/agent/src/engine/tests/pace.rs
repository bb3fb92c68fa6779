//! When the loop runs upkeep of the maps. The clock is paused: it moves only while the engine rests.

use holdfast_fixtures::clock::{Stopwatch, await_event};
use tokio::sync::{mpsc, watch};

use super::*;
use crate::engine::run::{EngineChannels, IDLE, Upkeep, run};

const PIECES: usize = 100;

/// Starts an engine with this upkeep. It ends with the returned sender.
fn start(
    events: mpsc::Receiver<Vec<Event>>,
    upkeep: impl FnMut(&mut Engine<MemoryMaps>, Upkeep) -> bool + Send + 'static,
) -> watch::Sender<bool> {
    let (engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]).unwrap();
    let (stop, stopping) = watch::channel(false);
    let ends = EngineChannels {
        events,
        queries: crate::engine::query::channel().1,
        snapshots: watch::channel(Arc::default()).0,
        changes: mpsc::channel(16).0,
        progress: Arc::default(),
        steps: Arc::default(),
        stop: stopping,
    };
    tokio::spawn(run(engine, ends, upkeep));
    stop
}

/// Another version's programs serve until then, and the daemon is not ready before.
#[tokio::test(start_paused = true)]
async fn upkeep_runs_as_soon_as_everything_is_written() {
    let (events, incoming) = mpsc::channel(4);
    let (looks, mut is_written) = mpsc::channel(4);
    let _stop = start(incoming, move |engine, _| looks.try_send(engine.is_written()).is_err());
    events.send(vec![service("a", "10.0.0.1")]).await.unwrap();
    assert_eq!(is_written.recv().await, Some(false), "it runs once before there is anything");
    let stopwatch = Stopwatch::start();
    events.send(vec![slice("a", &["1.1.1.1"]), Event::Synced(Source::Manifests)]).await.unwrap();
    while !await_event("upkeep", is_written.recv()).await.unwrap() {}
    assert!(stopwatch.read() < IDLE, "only the regular upkeep ran");
}

#[tokio::test(start_paused = true)]
async fn a_change_waits_for_only_one_piece_of_upkeep() {
    let (events, incoming) = mpsc::channel(4);
    let (pieces, mut is_written) = mpsc::channel(PIECES);
    let change = [service("a", "10.0.0.1"), slice("a", &["1.1.1.1"]), Event::Synced(Source::Manifests)];
    let mut count = 0;
    let upkeep = move |engine: &mut Engine<MemoryMaps>, upkeep| {
        if upkeep == Upkeep::Continue {
            count += 1;
            let _ = pieces.try_send(engine.is_written());
        }
        if upkeep == Upkeep::Continue && count == 3 {
            events.try_send(change.to_vec()).unwrap();
        }
        count < PIECES
    };
    let stopwatch = Stopwatch::start();
    let _stop = start(incoming, upkeep);
    let mut written = Vec::new();
    while written.len() < PIECES {
        written.push(await_event("a piece", is_written.recv()).await.unwrap());
    }
    let first = written.iter().position(|is_written| *is_written);
    assert_eq!(first, Some(3), "the change came during the third piece");
    assert!(stopwatch.read() < IDLE, "an idle engine does not rest between pieces");
}
