//! The order of the engine's work: events, dirty services, queries.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use holdfast_core::op::{Action, Dump, DumpPort, FrontendValue, PortIndex};
use tokio::sync::{mpsc, oneshot, watch};

use super::*;
use crate::engine::query::{self, EngineClient, EngineQuery};
use crate::engine::run::{CHANGES_BYTES_MAX, CHANGES_WAITING_MAX, EngineChannels, GROUPS_WAITING_MAX, run};
use crate::engine::steps::StepMetrics;

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

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
    asker: EngineClient,
    asks: mpsc::Sender<EngineQuery>,
    steps: Arc<StepMetrics>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    stop: watch::Sender<bool>,
    changes: mpsc::Receiver<crate::recorder::TimedChange>,
}

/// Everything that `begin` sends waits for the engine when it starts.
fn task(begin: impl FnOnce(&Task)) -> (Task, std::thread::JoinHandle<()>) {
    let calls = Calls::default();
    let maps = RecordingMaps { maps: MemoryMaps::default(), calls: Arc::clone(&calls) };
    let (mut engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
    engine.apply(Event::Synced(Source::Manifests));
    calls.lock().unwrap().clear();
    let (events, incoming) = mpsc::channel(GROUPS_WAITING_MAX);
    let (changes_in, changes) = mpsc::channel(CHANGES_WAITING_MAX);
    let (snapshots_in, snapshots) = watch::channel(Arc::default());
    let (stop, stopping) = watch::channel(false);
    let (asker, heard) = query::channel();
    let asks = asker.sender();
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
    let task = Task { calls, events, asker, asks, steps, snapshots, stop, changes };
    begin(&task);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let thread = std::thread::spawn(move || drop(runtime.block_on(run(engine, ends, |_, _| false))));
    (task, thread)
}

fn wait(runtime: &tokio::runtime::Runtime, task: &mut Task, seen: impl Fn(&Snapshot) -> bool) {
    let waiting = async { tokio::time::timeout(LONG, task.snapshots.wait_for(|it| seen(it))).await.is_ok() };
    assert!(runtime.block_on(waiting), "the engine has not reached this state");
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
        assert!(runtime.block_on(async { tokio::time::timeout(LONG, answered).await }).unwrap().is_ok());
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
        let begun = Instant::now();
        let has_caught_up = || task.steps.last_caught_up().0 > 0;
        let most = if is_quiet { LONG } else { Duration::from_secs(2) };
        while !has_caught_up() && begun.elapsed() < most {
            std::thread::sleep(Duration::from_millis(20));
        }
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
    let asker = task.asker.clone();
    let entries = runtime.block_on(async { tokio::time::timeout(LONG, asker.read(vec![key()])).await });
    assert!(entries.unwrap().unwrap()[0].as_ref().unwrap().is_some());
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
    let asker = task.asker.clone();
    for _ in 0..3 {
        let begun = Instant::now();
        let answered = runtime.block_on(asker.read(vec![key()]));
        assert!(answered.is_ok(), "no answer for {:?}", begun.elapsed());
    }
    task.stop.send_replace(true);
    thread.join().unwrap();
    drop(task.events);
    source.join().unwrap();
}

#[test]
fn a_waiting_reader_is_not_woken_by_time_alone() {
    let (mut task, thread) = task(|task| task.events.try_send(vec![service("s", "10.0.0.1")]).unwrap());
    let runtime = runtime();
    wait(&runtime, &mut task, |snapshot| snapshot.fill.frontends == 1);
    std::thread::sleep(Duration::from_millis(1_500));
    let before = task.snapshots.borrow_and_update().mono;
    let mut reader = task.snapshots.clone();
    let woken = async { tokio::time::timeout(Duration::from_millis(2_500), reader.changed()).await.is_ok() };
    assert!(!runtime.block_on(woken), "nothing is new");
    assert!(task.snapshots.borrow().mono > before, "a reader that looks sees the time advance");
    task.stop.send_replace(true);
    thread.join().unwrap();
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
    let more = async { tokio::time::timeout(LONG, task.changes.recv()).await };
    assert!(runtime.block_on(more).is_ok_and(|it| it.is_some()), "the memory was released");
    assert_eq!(task.snapshots.borrow().counters.changes_dropped, dropped);
    task.stop.send_replace(true);
    thread.join().unwrap();
}
