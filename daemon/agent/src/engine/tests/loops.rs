//! The order of the engine's work: events, dirty services, queries.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use holdfast_core::op::{Action, Dump, DumpPort, FrontendValue, PortIndex};
use holdfast_fixtures::clock::{await_event, pause_async};
use tokio::sync::{mpsc, oneshot, watch};

use super::*;
use crate::engine::query::{self, EngineQuery};
use crate::engine::run::{
    CHANGES_BYTES_MAX, CHANGES_WAITING_MAX, EngineChannels, GROUPS_WAITING_MAX, IDLE, run,
};
use crate::engine::steps::StepMetrics;

/// Frontends that the maps refuse.
const BEYOND_ITS_PART: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 98));
const REFUSED: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 99));

/// The calls, in order.
type Calls = Arc<Mutex<Vec<&'static str>>>;

/// Maps that record their calls.
struct RecordingMaps {
    maps: MemoryMaps,
    calls: Calls,
}

impl RecordingMaps {
    fn record(&self, call: &'static str) {
        self.calls.lock().unwrap().push(call);
    }
}

impl Maps for RecordingMaps {
    fn execute(&mut self, action: &Action) -> Result<(), MapError> {
        let cause = || "for a test".to_owned();
        match action {
            Action::InsertFrontend(key, _) if key.address == BEYOND_ITS_PART => {
                return Err(MapError::Quota { op: "insert", cause: cause() });
            }
            Action::InsertFrontend(key, _) if key.address == REFUSED => {
                return Err(MapError::Refused { op: "insert", cause: cause() });
            }
            Action::InsertFrontend(..) => self.record("insert"),
            _ => {}
        }
        self.maps.execute(action)
    }

    fn begin_grace(&mut self) -> Grace {
        self.maps.begin_grace()
    }

    fn is_grace_over(&self, grace: Grace) -> bool {
        self.maps.is_grace_over(grace)
    }

    fn dump(&mut self) -> Result<Dump, MapError> {
        self.record("dump");
        self.maps.dump()
    }

    fn read_value(&mut self, key: &FrontendKey) -> Result<Option<FrontendValue>, MapError> {
        self.record("read");
        self.maps.read_value(key)
    }

    fn read_port(&mut self, index: PortIndex, family: Family) -> Result<Option<DumpPort>, MapError> {
        self.maps.read_port(index, family)
    }

    fn capacity(&self) -> Capacity {
        self.maps.capacity()
    }
}

/// An engine's loop with all of its channels.
struct Task {
    calls: Calls,
    events: mpsc::Sender<Vec<Event>>,
    asks: mpsc::Sender<EngineQuery>,
    steps: Arc<StepMetrics>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stop: watch::Sender<bool>,
    changes: mpsc::Receiver<crate::recorder::TimedChange>,
}

/// An engine's loop that is not running yet. Everything that `begin` sends waits for it.
fn idle_task(begin: impl FnOnce(&Task)) -> (Task, impl Future<Output = ()> + Send + 'static) {
    let calls = Calls::default();
    let maps = RecordingMaps { maps: MemoryMaps::default(), calls: Arc::clone(&calls) };
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    engine.apply(Event::Synced(Source::Manifests));
    calls.lock().unwrap().clear();
    let (events, incoming) = mpsc::channel(GROUPS_WAITING_MAX);
    let (changes_in, changes) = mpsc::channel(CHANGES_WAITING_MAX);
    let (snapshots_in, snapshots) = watch::channel(Arc::default());
    let (stop, stopping) = watch::channel(false);
    let (client, heard) = query::channel();
    let asks = client.sender();
    let steps = Arc::<StepMetrics>::default();
    let ends = EngineChannels {
        events: incoming,
        snapshots: snapshots_in,
        queries: heard,
        changes: changes_in,
        progress: Arc::new(AtomicU64::new(0)),
        steps: Arc::clone(&steps),
        stop: stopping,
    };
    let task = Task { calls, events, asks, steps, snapshots, stop, changes };
    begin(&task);
    (task, async { drop(run(engine, ends, |_, _| false).await) })
}

/// Runs the loop on a thread of its own.
fn task(begin: impl FnOnce(&Task)) -> (Task, std::thread::JoinHandle<()>) {
    let (task, running) = idle_task(begin);
    (task, std::thread::spawn(move || runtime().block_on(running)))
}

#[track_caller]
fn wait(runtime: &tokio::runtime::Runtime, task: &mut Task, seen: impl Fn(&Snapshot) -> bool) {
    let state = task.snapshots.wait_for(|snapshot| seen(snapshot));
    runtime.block_on(await_event("a state of the engine", state)).unwrap();
}

/// Sends a query, and waits for its answer without the client's time-out.
fn read(runtime: &tokio::runtime::Runtime, task: &Task) -> query::Entries {
    let (answer, answered) = oneshot::channel();
    task.asks.try_send(EngineQuery::Read(vec![key()], answer)).unwrap();
    runtime.block_on(await_event("an answer of the engine", answered)).unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn key() -> FrontendKey {
    FrontendKey {
        address: "10.0.0.1".parse().unwrap(),
        port: PORT,
        transport: holdfast_core::keys::Transport::Tcp,
    }
}

#[test]
fn events_and_dirty_services_come_before_queries() {
    let mut answers = Vec::new();
    let (mut task, thread) = task(|task| {
        for _ in 0..8 {
            let (answer, answered) = oneshot::channel();
            task.asks.try_send(EngineQuery::Read(vec![key()], answer)).unwrap();
            answers.push(answered);
        }
        for number in 1..=8 {
            let event = service(&format!("s{number}"), &format!("10.0.0.{number}"));
            task.events.try_send(vec![event]).unwrap();
        }
    });
    let runtime = runtime();
    wait(&runtime, &mut task, |snapshot| snapshot.fill.frontends == 8);
    for answered in answers {
        assert!(runtime.block_on(await_event("an answer", answered)).is_ok());
    }
    task.stop.send_replace(true);
    thread.join().unwrap();
    let calls = task.calls.lock().unwrap();
    let first_read = calls.iter().position(|call| *call == "read").unwrap();
    assert_eq!(calls.iter().take(first_read).filter(|call| **call == "insert").count(), 8, "{calls:?}");
    drop(task.changes);
}

/// Otherwise a tenant could stop the time of the last success on all nodes, for as long as its service exists.
#[test]
fn a_namespace_beyond_its_quota_does_not_stop_catching_up() {
    for (address, is_quiet) in [(BEYOND_ITS_PART, true), (REFUSED, false)] {
        let event = service("a", &address.to_string());
        let (mut task, thread) = task(|task| task.events.try_send(vec![event]).unwrap());
        let runtime = runtime();
        wait(&runtime, &mut task, |snapshot| snapshot.fill.retries == 1);
        // Before each answer, the loop looks whether the maps are complete.
        (0..3).for_each(|_| drop(read(&runtime, &task)));
        let has_caught_up = || task.steps.last_caught_up().0 > 0;
        assert_eq!(has_caught_up(), is_quiet, "{address}");
        task.stop.send_replace(true);
        thread.join().unwrap();
    }
}

#[test]
fn an_abandoned_query_is_not_answered() {
    let (mut task, thread) = task(|task| {
        for _ in 0..4 {
            let (answer, _) = oneshot::channel();
            task.asks.try_send(EngineQuery::Read(vec![key()], answer)).unwrap();
            let (answer, _) = oneshot::channel();
            task.asks.try_send(EngineQuery::Check(answer)).unwrap();
        }
        task.events.try_send(vec![service("a", "10.0.0.1")]).unwrap();
    });
    let runtime = runtime();
    wait(&runtime, &mut task, |snapshot| snapshot.fill.frontends == 1);
    assert!(read(&runtime, &task)[0].as_ref().unwrap().is_some());
    task.stop.send_replace(true);
    thread.join().unwrap();
    assert_eq!(*task.calls.lock().unwrap(), ["insert", "read"]);
}

#[test]
fn lasting_load_starves_no_query() {
    let (mut task, thread) = task(|_| ());
    let (events, stop) = (task.events.clone(), task.stop.subscribe());
    // There is always another change of this service.
    let source = std::thread::spawn(move || {
        for number in 0_u64.. {
            let endpoint = format!("1.1.{}.{}", number / 250 % 250, number % 250 + 1);
            if *stop.borrow() || events.blocking_send(vec![slice("a", &[&endpoint])]).is_err() {
                return;
            }
        }
    });
    let runtime = runtime();
    wait(&runtime, &mut task, |snapshot| snapshot.counters.events > 1_000);
    (0..3).for_each(|_| drop(read(&runtime, &task)));
    task.stop.send_replace(true);
    thread.join().unwrap();
    drop(task.events);
    source.join().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiting_reader_is_not_woken_by_time_alone() {
    let (mut task, running) = idle_task(|task| task.events.try_send(vec![service("s", "10.0.0.1")]).unwrap());
    let running = tokio::spawn(running);
    task.snapshots.wait_for(|snapshot| snapshot.fill.frontends == 1).await.unwrap();
    pause_async(2 * IDLE).await;
    let before = task.snapshots.borrow_and_update().mono;
    pause_async(10 * IDLE).await;
    assert!(!task.snapshots.has_changed().unwrap(), "nothing is new");
    assert!(task.snapshots.borrow().mono >= before + 9 * IDLE, "a reader that looks sees the time advance");
    task.stop.send_replace(true);
    running.await.unwrap();
}

/// Services of many ports, one of which comes and goes, and a recorder that takes nothing.
#[test]
fn waiting_change_records_are_bounded_in_bytes_and_released() {
    let heavy = |number: u16, round: u16| {
        let mut facts = super::facts(&format!("s{number}"), &format!("10.0.1.{number}"));
        let port = |at| ServicePort {
            port: NonZeroU16::new(1 + at).unwrap(),
            name: format!("p{at}").into(),
            ..facts.ports[0].clone()
        };
        facts.ports = (0..1_000 - round % 2).map(port).collect();
        Event::ServiceApplied(Arc::new(facts))
    };
    let (mut task, thread) = task(|_| ());
    let runtime = runtime();
    for round in 0..24 {
        runtime.block_on(task.events.send((1..=20).map(|number| heavy(number, round)).collect())).unwrap();
        let ports = 1_000 - usize::from(round % 2);
        wait(&runtime, &mut task, |snapshot| {
            snapshot.services.iter().filter(|it| it.frontends.len() == ports).count() == 20
        });
    }
    wait(&runtime, &mut task, |snapshot| snapshot.counters.changes_dropped > 0);
    let mut held = 0;
    while let Ok(timed) = task.changes.try_recv() {
        held += timed.change.bytes();
    }
    assert!(held <= CHANGES_BYTES_MAX && held > CHANGES_BYTES_MAX / 2, "{held}");
    let dropped = task.snapshots.borrow().counters.changes_dropped;
    runtime.block_on(task.events.send(vec![heavy(1, 1)])).unwrap();
    runtime.block_on(task.events.send(vec![heavy(1, 0)])).unwrap();
    let more = runtime.block_on(await_event("a record that the released memory holds", task.changes.recv()));
    assert!(more.is_some());
    assert_eq!(task.snapshots.borrow().counters.changes_dropped, dropped);
    task.stop.send_replace(true);
    thread.join().unwrap();
}
