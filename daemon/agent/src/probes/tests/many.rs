//! Many held lists, in virtual time: the real probes and engine, with backends that accept every probe.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::Mutex;

use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, ServiceFacts, ServicePort, ServiceType,
    SliceFacts, SlicePort, Timestamp,
};
use holdfast_core::index::Seed;
use holdfast_core::keys::{Family, ObjectName, Protocol, ServiceKey, SliceKey, Source};
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::{Reason, Verdict};

use super::*;
use holdfast_core::engine::Engine;
use holdfast_core::time::ClockReading;
use holdfast_fixtures::clock::{Stopwatch, pause_async};

const SERVICES: u32 = 8_000;
const BACKENDS: u32 = 10;

/// Less than a quarter, so that it is no mass loss.
const LOST: u32 = 1_900;

/// How often the engine takes events.
const STEP: Duration = Duration::from_millis(10);

fn name(number: u32) -> ObjectName {
    ObjectName::new("default", &format!("s-{number}")).unwrap()
}

/// All its addresses begin with its number.
fn address(service: u32, backend: u32) -> std::net::IpAddr {
    std::net::Ipv4Addr::from((10 << 24) + service * 256 + backend).into()
}

fn number(backend: SocketAddr) -> u32 {
    let std::net::IpAddr::V4(address) = backend.ip() else { return u32::MAX };
    (u32::from(address) - (10 << 24)) / 256
}

fn service(number: u32) -> Event {
    let key = ServiceKey { name: name(number), source: Source::Manifests };
    let port = NonZeroU16::new(80).unwrap();
    Event::ServiceApplied(Arc::new(ServiceFacts {
        cluster_ips: vec![address(number, 255)],
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::TCP, port, node_port: None }],
        ..ServiceFacts::new(key, ServiceType::ClusterIp)
    }))
}

fn slice(number: u32, backends: u32) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for backend in 0..backends {
        let (address, conditions) = (address(number, backend), Conditions::READY);
        let endpoint = Endpoint { address, conditions, node: None, zone: None, hints: None, target: None };
        builder.push(endpoint).unwrap();
    }
    let port = NonZeroU16::new(8_080).unwrap();
    Event::SliceApplied(Arc::new(SliceFacts {
        key: SliceKey { name: name(number), source: Source::Manifests },
        meta: Meta::default(),
        service: Some(name(number).name().into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }))
}

/// The daemon's engine, its probes, and which services were probed when.
struct Node {
    engine: Engine<MemoryMaps>,
    events: mpsc::Receiver<Vec<Event>>,
    snapshots: watch::Sender<Arc<Snapshot>>,
    asked: Arc<Mutex<Vec<(Duration, u32)>>>,
    begun: Stopwatch,
    snapshot: Arc<Snapshot>,
}

impl Node {
    fn start() -> Self {
        let maps = MemoryMaps::default();
        let (engine, _) = Engine::start(maps, Seed(0), &[Source::Manifests]).unwrap();
        let (snapshots, reader) = watch::channel(Arc::new(Snapshot::default()));
        let (sender, events) = mpsc::channel(crate::engine::run::GROUPS_WAITING_MAX);
        let asked: Arc<Mutex<Vec<_>>> = Arc::default();
        let (dials, begun) = (Arc::clone(&asked), Stopwatch::start());
        let ask = move |backend: SocketAddr| {
            dials.lock().unwrap().push((begun.read(), number(backend)));
            async { Some(ProbeAnswer::Accepted) }
        };
        let (_, config) = watch::channel(Arc::default());
        tokio::spawn(run_by(ask, reader, config, sender, Arc::default()));
        Self { engine, events, snapshots, asked, begun, snapshot: Arc::default() }
    }

    /// Runs one step per piece.
    fn step(&mut self) {
        let mono = self.begun.read();
        let wall = Timestamp(1_000 + mono.as_secs().cast_signed());
        self.snapshot = self.engine.step(ClockReading { wall, mono }, &mut |_| ());
        while self.engine.next_due(mono) == Some(mono) {
            self.snapshot = self.engine.step(ClockReading { wall, mono }, &mut |_| ());
        }
        self.snapshots.send_replace(Arc::clone(&self.snapshot));
    }

    fn tell(&mut self, events: impl Iterator<Item = Event>) {
        events.for_each(|event| self.engine.apply(event));
        self.step();
    }

    async fn live(&mut self, time: Duration) {
        let end = self.begun.read() + time;
        while self.begun.read() < end {
            pause_async(STEP).await;
            let mut news = false;
            while let Ok(group) = self.events.try_recv() {
                group.into_iter().for_each(|event| self.engine.apply(event));
                news = true;
            }
            if news || self.begun.read().subsec_millis() < 10 {
                self.step();
            }
        }
    }

    /// The services that are refused.
    fn refused(&self) -> usize {
        let views = self.snapshot.services.iter();
        let rows = views.flat_map(|view| view.frontends.iter());
        rows.filter(|row| (row.verdict, row.reason) == (Verdict::Refusing, Some(Reason::HoldExpired))).count()
    }
}

#[tokio::test(start_paused = true)]
async fn thousands_of_holds_last_while_every_backend_accepts_probes() {
    let mut node = Node::start();
    node.tell((0..SERVICES).map(service).chain((0..SERVICES).map(|it| slice(it, BACKENDS))));
    node.tell([Event::Synced(Source::Manifests)].into_iter());
    node.live(Duration::from_secs(61)).await;
    let lost = node.begun.read();
    node.tell((0..LOST).map(|it| slice(it, 0)));
    assert_eq!(node.snapshot.held.len(), LOST as usize);
    node.live(Duration::from_secs(1)).await;
    let small = node.begun.read();
    node.tell([slice(SERVICES - 1, 0)].into_iter());
    node.live(Duration::from_secs(40)).await;
    assert_eq!((node.refused(), node.snapshot.held.len()), (0, LOST as usize + 1));

    let asked = node.asked.lock().unwrap();
    let (mut first, mut until) = (BTreeMap::new(), 0);
    for (position, (at, service)) in asked.iter().enumerate() {
        first.entry(*service).or_insert_with(|| {
            until = position;
            *at
        });
    }
    assert_eq!(first.len(), LOST as usize + 1);
    // Lists with the shortest pauses have no others before them.
    let most = (LOST + LOST / 10) as usize;
    assert!(until <= most, "first probes go before second ones: the last one was probe {until}");
    let waited = *first.values().max().unwrap() - lost;
    assert!(
        waited <= START_JITTER_MAX + GAP * (LOST + 1) * 2,
        "the last list waited {waited:?} for its first probe"
    );
    let waited = first[&(SERVICES - 1)] - small;
    assert!(
        waited <= START_JITTER_MAX + RESCAN_GAP * 3,
        "the small hold waited {waited:?} behind the large one"
    );
}

#[tokio::test(start_paused = true)]
async fn nodes_spread_their_probes_after_a_loss() {
    let mut waited = Vec::new();
    for _ in 0..40 {
        let mut node = Node::start();
        node.tell([service(0), slice(0, BACKENDS), Event::Synced(Source::Manifests)].into_iter());
        node.live(Duration::from_millis(200)).await;
        let lost = node.begun.read();
        node.tell([slice(0, 0)].into_iter());
        node.live(START_JITTER_MAX * 2).await;
        let asked = node.asked.lock().unwrap();
        waited.push(asked.first().unwrap().0 - lost);
    }
    let (first, last) = (*waited.iter().min().unwrap(), *waited.iter().max().unwrap());
    assert!(first < START_JITTER_MAX / 3 && last > START_JITTER_MAX * 2 / 3, "{waited:?}");
    assert!(last <= START_JITTER_MAX + RESCAN_GAP * 3, "{waited:?}");
}
