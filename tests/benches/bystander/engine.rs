//! The engine's loop as in the daemon, over memory maps.
//!
//! A change's time is from sending the event until readers see it, so the maps are written by then.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_agent::engine::query::{self, EngineClient};
use holdfast_agent::engine::run::{CHANGES_WAITING_MAX, EngineChannels, GROUPS_WAITING_MAX, run};
use holdfast_agent::probes;
use holdfast_config::Config;
use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, ObjectKey, Rejection, ServiceFacts,
    ServicePort, ServiceType, Settings, SliceFacts, SlicePort,
};
use holdfast_core::index::Seed;
use holdfast_core::keys::{
    Family, FrontendKey, ObjectName, Protocol, ServiceKey, SliceKey, Source, Transport,
};
use holdfast_core::maps::{Capacity, MemoryMaps};
use holdfast_core::snapshot::{ServiceView, Snapshot};
use holdfast_fixtures::clock::{Stopwatch, pause_async};
use holdfast_tests::size::sized;
use tokio::sync::{mpsc, watch};

const SOURCE: Source = Source::Kubernetes;

/// The measured changes during each load, and the pause between two of them.
const CHANGES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// The interval of the load's events.
const AGAIN: Duration = Duration::from_millis(50);

/// Services of the crowd.
const CROWD: u32 = 2_000;

/// The services of a large cluster, the endpoints of each, and how many services lose them at once: too few for a mass
/// loss.
const MANY: u32 = 8_000;
const ENDPOINTS: u32 = 10;
const LOST: u32 = 1_900;

/// How many rounds they are held before they return and it starts over.
const HELD_ROUNDS: u32 = 40;
const LOSS_ROUNDS: u32 = 44;

/// Slices of a wide service, and the endpoints of each.
const WIDE_SLICES: u32 = 32;
const WIDE_ENDPOINTS: u32 = 1_000;

/// The space that one namespace with many frontends must leave to others: one in nine.
const LEFT_TO_OTHERS: u32 = ROOM / 8;

/// The services that fit, those that compete for the space, and those that come and go at once.
const ROOM: u32 = 2_000;
const GUESTS: u32 = 6_000;
const MOVES: u32 = 200;

/// Objects that are rejected again and again, and as many with only one invalid annotation.
const NOISE: u32 = 1_200;

fn name(namespace: &str, name: &str) -> ObjectName {
    ObjectName::new(namespace, name).unwrap()
}

/// A service with this many ports at this many external addresses, from one address on.
fn service(of: ObjectName, ip: u32, (ports, addresses): (u16, u32), first: u32) -> Event {
    let port = |number: u16| ServicePort {
        name: if ports == 1 { "".into() } else { format!("p{number}").into() },
        protocol: Protocol::TCP,
        port: NonZeroU16::new(1_000 + number).unwrap(),
        node_port: None,
    };
    let address = |place: u32| IpAddr::V4(Ipv4Addr::from_bits(0xc612_0000 + first + place));
    Event::ServiceApplied(Arc::new(ServiceFacts {
        cluster_ips: vec![IpAddr::V4(Ipv4Addr::from_bits(ip))],
        ip_families: vec![Family::V4],
        external_ips: (0..addresses).map(address).collect(),
        ports: (0..ports).map(port).collect(),
        ..ServiceFacts::new(ServiceKey { name: of, source: SOURCE }, ServiceType::ClusterIp)
    }))
}

fn slice(of: ObjectName, version: u32) -> Event {
    slice_of(of, [address(version)], NonZeroU16::MIN)
}

fn slice_of(of: ObjectName, addresses: impl IntoIterator<Item = IpAddr>, port: NonZeroU16) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for address in addresses {
        let conditions = Conditions::READY;
        let endpoint = Endpoint { address, conditions, node: None, zone: None, hints: None, target: None };
        builder.push(endpoint).unwrap();
    }
    Event::SliceApplied(Arc::new(SliceFacts {
        service: Some(of.name().into()),
        key: SliceKey { name: of, source: SOURCE },
        meta: Meta::default(),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }))
}

fn wide_slice(number: u32, round: u32) -> Event {
    let first = 0x0c00_0000 + number * WIDE_ENDPOINTS;
    let last = first + WIDE_ENDPOINTS - round % 2;
    let Event::SliceApplied(facts) = slice_of(
        name("tenant", "wide"),
        (first..last).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        NonZeroU16::MIN,
    ) else {
        unreachable!("it is a slice")
    };
    let port =
        |it: u16| SlicePort { name: format!("p{it}").into(), protocol: Protocol::TCP, port: NonZeroU16::MIN };
    Event::SliceApplied(Arc::new(SliceFacts {
        key: SliceKey { name: name("tenant", &format!("wide-{number}")), source: SOURCE },
        ports: [port(0), port(1)].into(),
        ..Arc::unwrap_or_clone(facts)
    }))
}

fn address(version: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0001 + version))
}

/// The load during the changes.
#[derive(Clone, Copy)]
enum Load {
    Nothing,
    Heavy(u16, u32),
    /// One slice of a service with the most endpoints of a slice, at two ports.
    Wide,
    Crowd,
    /// Lists are lost, held and restored; their backends accept connections on this port.
    Held(NonZeroU16),
    /// More services than the daemon tracks.
    Guests,
    /// More services than frontends fit.
    Starved,
    Noise,
    Questions,
}

impl Load {
    fn all(accepting: NonZeroU16) -> [(&'static str, Self); 11] {
        [
            ("nothing else", Self::Nothing),
            ("1900 of 8000 services x 10 backends held, all probes accepted", Self::Held(accepting)),
            ("one service of 300 ports x 300 addresses", Self::Heavy(300, 300)),
            ("one service of 500 ports x 300 addresses", Self::Heavy(500, 300)),
            ("one service of 1000 ports x 400 addresses", Self::Heavy(1_000, 400)),
            ("one slice of a service of 32000 endpoints x 2 ports", Self::Wide),
            ("2000 services of another namespace at once", Self::Crowd),
            ("200 of 6000 services come and go, room for 2000", Self::Guests),
            ("200 of 6000 services come and go, frontends for 2000", Self::Starved),
            ("1200 objects rejected and 1200 with a bad annotation", Self::Noise),
            ("40 askers of /verify and /explain, 8000 services x 10 backends", Self::Questions),
        ]
    }

    /// The tenant's next events.
    fn events(self, round: u32) -> Vec<Event> {
        match self {
            Self::Nothing | Self::Questions => Vec::new(),
            Self::Heavy(ports, addresses) => {
                vec![service(name("tenant", "heavy"), 0x0a60_0001, (ports, addresses), round % 2)]
            }
            Self::Wide => vec![wide_slice(round % WIDE_SLICES, round)],
            Self::Crowd => (0..CROWD).map(|number| slice(crowd(number), round)).collect(),
            Self::Held(port) => match round % LOSS_ROUNDS {
                1 => (0..LOST).map(|number| gone(crowd(number))).collect(),
                HELD_ROUNDS => (0..LOST).map(|number| accepting(number, port)).collect(),
                _ => Vec::new(),
            },
            Self::Guests | Self::Starved => {
                let moving = || (0..MOVES).map(|it| (round * MOVES + it) % GUESTS);
                let left = moving().flat_map(|number| {
                    [
                        Event::ServiceDeleted(ServiceKey { name: crowd(number), source: SOURCE }, None),
                        gone(crowd(number)),
                    ]
                });
                left.chain(moving().flat_map(|number| resident(number, round))).collect()
            }
            Self::Noise => (0..NOISE).flat_map(|number| [rejected(number), annotated(number)]).collect(),
        }
    }

    /// The crowd's events before the measurement.
    fn crowd(self) -> Vec<Event> {
        match self {
            Self::Held(port) => {
                (0..MANY).flat_map(|number| [plain(number), accepting(number, port)]).collect()
            }
            Self::Questions => {
                (0..MANY).flat_map(|number| [plain(number), accepting(number, NonZeroU16::MIN)]).collect()
            }
            Self::Guests | Self::Starved => (0..GUESTS).flat_map(|number| resident(number, 0)).collect(),
            Self::Wide => {
                let service = service(name("tenant", "wide"), 0x0a60_0001, (2, 0), 0);
                [service].into_iter().chain((0..WIDE_SLICES).map(|number| wide_slice(number, 0))).collect()
            }
            _ => (0..CROWD).flat_map(|number| resident(number, 0)).collect(),
        }
    }

    /// How many frontends exist then, with the bystander's.
    const fn frontends(self) -> usize {
        match self {
            Self::Held(_) | Self::Questions => MANY as usize + 1,
            Self::Guests | Self::Starved => ROOM as usize + 1,
            Self::Wide => 3,
            _ => CROWD as usize + 1,
        }
    }

    fn capacity(self) -> Capacity {
        let services = if matches!(self, Self::Guests) {
            (ROOM + LEFT_TO_OTHERS) as usize + 1
        } else {
            Capacity::default().services
        };
        Capacity { services, ..Capacity::default() }
    }

    fn settings(self) -> Option<Event> {
        let frontends_max = matches!(self, Self::Starved).then_some((ROOM + LEFT_TO_OTHERS) as usize + 1)?;
        let settings = Settings { frontends_max: Some(frontends_max), ..Settings::default() };
        Some(Event::SettingsApplied(Arc::new(settings)))
    }
}

fn plain(number: u32) -> Event {
    service(crowd(number), 0x0a61_0000 + number, (1, 0), 0)
}

fn resident(number: u32, version: u32) -> [Event; 2] {
    [plain(number), slice(crowd(number), version)]
}

/// A list of loopback addresses that all accept connections.
fn accepting(number: u32, port: NonZeroU16) -> Event {
    let first = 0x7f10_0000 + number * ENDPOINTS;
    slice_of(
        crowd(number),
        (first..first + ENDPOINTS).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits))),
        port,
    )
}

fn gone(of: ObjectName) -> Event {
    Event::SliceDeleted(SliceKey { name: of, source: SOURCE }, None)
}

fn rejected(number: u32) -> Event {
    let object = ObjectKey::Slice(SliceKey { name: name("noisy", &format!("bad{number}")), source: SOURCE });
    let reason = "addressType is what?".into();
    Event::Rejected(Rejection { object, origin: None, reason, partial: false })
}

fn annotated(number: u32) -> Event {
    let key = ServiceKey { name: name("noisy", &format!("odd{number}")), source: SOURCE };
    Event::ServiceApplied(Arc::new(ServiceFacts {
        cluster_ips: vec![IpAddr::V4(Ipv4Addr::from_bits(0x0a70_0000 + number))],
        ip_families: vec![Family::V4],
        on_empty: Some("nonsense".into()),
        ..ServiceFacts::new(key, ServiceType::ClusterIp)
    }))
}

fn crowd(number: u32) -> ObjectName {
    name("tenant", &format!("s{number}"))
}

struct Daemon {
    events: mpsc::Sender<Vec<Event>>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    asker: EngineClient,
    version: u32,
    /// The most services that were held at the same time.
    held: usize,
}

impl Daemon {
    fn start(capacity: Capacity) -> Self {
        let (engine, _) = Engine::start(MemoryMaps::new(capacity), Seed(7), &[SOURCE]).unwrap();
        let (events, incoming) = mpsc::channel(GROUPS_WAITING_MAX);
        let (snapshots_in, snapshots) = watch::channel(Arc::default());
        let (changes, mut recorded) = mpsc::channel(CHANGES_WAITING_MAX);
        let (asker, asks) = query::channel();
        let (stop, stopping) = watch::channel(false);
        let ends = EngineChannels {
            events: incoming,
            queries: asks,
            snapshots: snapshots_in,
            changes,
            progress: Arc::default(),
            steps: Arc::default(),
            stop: stopping,
        };
        std::thread::spawn(move || while recorded.blocking_recv().is_some() {});
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            drop(runtime.block_on(run(engine, ends, |_, _| false)));
            drop(stop);
        });
        Self { events, snapshots, asker, version: 0, held: 0 }
    }

    /// The bystander comes first, so that its position is known, and then the crowd.
    async fn fill(&mut self, load: Load) {
        let mut all: Vec<_> = load.settings().into_iter().collect();
        all.push(service(name("bystander", "web"), 0x0a60_ffff, (1, 0), 0));
        all.push(slice(name("bystander", "web"), 0));
        all.extend(load.crowd());
        all.push(Event::Synced(SOURCE));
        self.events.send(all).await.unwrap();
        let frontends = load.frontends();
        self.snapshots.wait_for(|snapshot| snapshot.fill.frontends >= frontends).await.unwrap();
    }

    /// Probes the backends of held lists, as the daemon does, until the engine ends.
    fn probe(&self) {
        let (events, snapshots) = (self.events.clone(), self.snapshots.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let (_config, config) = watch::channel(Arc::new(Config::default()));
            runtime.block_on(probes::run(snapshots, config, events, Arc::default()));
        });
    }

    /// The time of a change of the bystander.
    async fn change(&mut self) -> Duration {
        self.version += 1;
        let (version, begun) = (self.version, Stopwatch::start());
        self.events.send(vec![slice(name("bystander", "web"), version)]).await.unwrap();
        let shows = |view: &Arc<ServiceView>| {
            view.frontends.iter().all(|row| view.backends(row).any(|it| it.address == address(version)))
        };
        self.snapshots.wait_for(|snapshot| snapshot.services.iter().next().is_some_and(shows)).await.unwrap();
        let took = begun.read();
        self.held = self.held.max(self.snapshots.borrow().held.len());
        took
    }

    async fn measure(&mut self, what: &str, load: Load, changes: u32) {
        let goes_on = Arc::new(AtomicBool::new(true));
        let loading = self.load(load, Arc::clone(&goes_on));
        let mut times = Vec::new();
        for _ in 0..changes {
            pause_async(PAUSE).await;
            times.push(self.change().await);
        }
        goes_on.store(false, Ordering::Relaxed);
        loading.join().unwrap();
        super::report(what, times);
    }

    fn load(&self, load: Load, goes_on: Arc<AtomicBool>) -> std::thread::JoinHandle<()> {
        let (events, asker) = (self.events.clone(), self.asker.clone());
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                if matches!(load, Load::Questions) {
                    return ask_all(&asker, &goes_on).await;
                }
                for round in 1.. {
                    let group = load.events(round);
                    if !goes_on.load(Ordering::Relaxed) {
                        return;
                    }
                    if !group.is_empty() {
                        events.send(group).await.unwrap();
                    }
                    pause_async(AGAIN).await;
                }
            });
        })
    }
}

/// Forty clients that send requests in a loop, every second one for all of the maps.
async fn ask_all(asker: &EngineClient, goes_on: &AtomicBool) {
    let key = FrontendKey {
        address: IpAddr::V4(Ipv4Addr::from_bits(0x0a60_ffff)),
        port: NonZeroU16::new(1_000).unwrap(),
        transport: Transport::Tcp,
    };
    while goes_on.load(Ordering::Relaxed) {
        let asks = (0..40).map(|number| {
            let asker = asker.clone();
            tokio::spawn(async move {
                if number % 2 == 0 { drop(asker.check().await) } else { drop(asker.read(vec![key]).await) }
            })
        });
        for asked in asks.collect::<Vec<_>>() {
            asked.await.unwrap();
        }
    }
}

/// Every row.
pub(super) fn measure() {
    let changes = sized(CHANGES, CHANGES / 10);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    let accepting = NonZeroU16::new(listener.local_addr().unwrap().port()).unwrap();
    std::thread::spawn(move || listener.incoming().for_each(drop));
    runtime.block_on(async {
        for (what, load) in Load::all(accepting) {
            let mut daemon = Daemon::start(load.capacity());
            daemon.fill(load).await;
            if matches!(load, Load::Held(_)) {
                daemon.probe();
            }
            daemon.measure(what, load, changes).await;
            let held = if matches!(load, Load::Held(_)) { LOST as usize } else { 0 };
            assert_eq!(daemon.held, held, "{what}");
        }
    });
}
