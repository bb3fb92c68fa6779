//! Blocks of a configuration, the rules' results, and a follower that announces them.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::drains::{Drain, DrainOrder, Drains};
use holdfast_core::engine::{Engine, SavedSnapshot};
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::Snapshot;
use holdfast_core::time::ClockReading;
use holdfast_status::views::announcements::AnnouncementStatus;
use holdfast_status::views::datapath::DatapathView;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::readings::fixture;
use holdfast_config::Config;
use holdfast_fixtures::clock::await_event;
use holdfast_standalone::blocks::{Blocks, StaticService, run};

pub(super) fn config(text: &str) -> Config {
    Config::parse(text, "config.toml").unwrap().0
}

fn done(arguments: &str) -> String {
    let done = std::process::Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).unwrap()
}

pub(super) fn ip(arguments: &str) {
    done(arguments);
}

/// The output of `ip route`, without blanks at the ends of lines.
pub(super) fn ip_route(arguments: &str) -> String {
    let output = done(&format!("route {arguments}"));
    output.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// The input of blocks, and the output of events.
type Ends = (watch::Sender<Arc<Blocks>>, mpsc::Receiver<Vec<Event>>);

/// The rules of a node over maps in memory, with the blocks of a configuration as their only source.
pub(super) struct Rules {
    engine: Engine<MemoryMaps>,
    turns: u64,
    drains: Drains,
    source: Option<Ends>,
}

impl Rules {
    pub(super) fn new() -> Self {
        let started = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Config]).unwrap();
        Self { engine: started.0, turns: 0, drains: Drains::default(), source: None }
    }

    /// The rules of the next process, which has this one's snapshot and has not received any block.
    pub(super) fn restarted(mut self) -> Self {
        let remembered = SavedSnapshot::from(&*self.snapshot());
        let mut later = Self::new();
        let maps = self.engine.into_maps();
        later.engine = Engine::start(maps, Seed(0), &[Source::Config]).unwrap().0;
        later
            .engine
            .restore(remembered, ClockReading { wall: Timestamp(1_767_870_715), mono: Duration::ZERO });
        later
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.engine.apply(event);
    }

    /// Applies the blocks, as a start or a reload does.
    pub(super) async fn apply(&mut self, config: &Config) {
        let services: Vec<StaticService> = config.services.iter().map(StaticService::from).collect();
        let blocks = Arc::new(Blocks::new(services, "config.toml").unwrap());
        let (sender, events) = self.source.get_or_insert_with(|| {
            let (sender, blocks) = watch::channel(Arc::default());
            let (out, events) = mpsc::channel(1);
            let datapath = watch::channel(Arc::new(DatapathView::for_memory())).1;
            tokio::spawn(run(
                blocks,
                watch::channel(None).1,
                (None, None),
                out,
                datapath,
                (0, Arc::default()),
            ));
            (sender, events)
        });
        // The source runs only while this task waits, so it finds these first.
        sender.send_replace(blocks);
        let group = await_event("a group of events", events.recv()).await.unwrap();
        group.into_iter().for_each(|event| self.engine.apply(event));
    }

    /// Drains a backend at all of its ports, for all services.
    pub(super) fn drain(&mut self, address: &str) {
        let by = DrainOrder { uid: 0, user: None, at: Timestamp(1_767_870_715) };
        self.drains.add(Drain::new(address.parse().unwrap(), None, None), by.clone()).unwrap();
        self.engine.apply(Event::DrainsApplied(Arc::new(self.drains.clone()), by));
    }

    pub(super) fn snapshot(&mut self) -> Arc<Snapshot> {
        let mut snapshot = Arc::default();
        for _ in 0..10 {
            self.turns += 1;
            let wall = Timestamp(1_767_870_715 + i64::try_from(self.turns).unwrap());
            let now = ClockReading { wall, mono: Duration::from_secs(self.turns) };
            snapshot = self.engine.step(now, &mut |_| ());
        }
        snapshot
    }
}

/// A running follower, whose configuration and snapshots the test controls.
pub(super) struct Running {
    config: watch::Sender<Arc<Config>>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    pub(super) shown: watch::Receiver<Arc<AnnouncementStatus>>,
    task: JoinHandle<()>,
}

impl Running {
    pub(super) fn start(snapshot: &Arc<Snapshot>) -> Self {
        let (config, configs) = watch::channel(Arc::new(Config::default()));
        let (snapshots, seen) = watch::channel(Arc::clone(snapshot));
        let (out, shown) = watch::channel(Arc::default());
        let mut readings = fixture::readings(seen);
        fixture::in_memory(&mut readings);
        let task = tokio::spawn(super::super::run(configs, readings, out));
        Self { config, snapshots, shown, task }
    }

    pub(super) fn configure(&self, text: &str) -> Config {
        let config = config(text);
        self.config.send_replace(Arc::new(config.clone()));
        config
    }

    pub(super) fn publish(&self, snapshot: &Arc<Snapshot>) {
        self.snapshots.send_replace(Arc::clone(snapshot));
    }

    /// Ends as with the daemon: no publisher is left.
    pub(super) async fn stop(self) {
        drop((self.config, self.snapshots));
        await_event("the follower ends", self.task).await.unwrap();
    }
}
