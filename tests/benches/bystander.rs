//! How long a change of one service takes while somebody else does the worst that a tenant or an unprivileged process can.
//!
//! The engine's loop as the daemon runs it, over memory maps. A change is an endpoint of a service in a namespace of its own; its
//! time is from handing the event over until readers see it, so the maps are written by then. `--short`: a tenth of it.

// Every line of a measurement may panic.
#![allow(missing_docs, clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use holdfast::engine::Engine;
use holdfast::engine::ask::{self, Asker};
use holdfast::engine::run::{CHANGES_WAITING_MAX, Ends, GROUPS_WAITING_MAX, run};
use holdfast_core::event::Event;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, ServiceFacts, ServicePort, ServiceType,
    SliceFacts, SlicePort,
};
use holdfast_core::index::Seed;
use holdfast_core::keys::{
    Family, FrontendKey, ObjectName, Protocol, ServiceKey, SliceKey, Source, Transport,
};
use holdfast_core::snapshot::{ServiceView, Snapshot};
use holdfast_datapath::MemoryMaps;
use tokio::sync::{mpsc, watch};

const SOURCE: Source = Source::Kubernetes;

/// Changes that are measured beside each load, and the pause between two of them.
const CHANGES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// How often the load does its worst.
const AGAIN: Duration = Duration::from_millis(50);

/// Services of the crowd.
const CROWD: u32 = 2_000;

fn name(namespace: &str, name: &str) -> ObjectName {
    ObjectName::new(namespace, name).unwrap()
}

/// So many ports at so many external addresses, from one address on.
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
    let mut builder = EndpointsBuilder::new(Family::V4);
    let endpoint = Endpoint {
        address: address(version),
        conditions: Conditions::READY,
        node: None,
        zone: None,
        hints: None,
        target: None,
    };
    builder.push(endpoint).unwrap();
    Event::SliceApplied(Arc::new(SliceFacts {
        service: Some(of.name().into()),
        key: SliceKey { name: of, source: SOURCE },
        meta: Meta::default(),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port: NonZeroU16::MIN }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
    }))
}

fn address(version: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(0x0b00_0001 + version))
}

/// What goes on beside the changes.
#[derive(Clone, Copy)]
enum Load {
    Nothing,
    Heavy(u16, u32),
    Crowd,
    Questions,
}

impl Load {
    const ALL: [(&'static str, Self); 6] = [
        ("nothing else", Self::Nothing),
        ("one service of 300 ports x 300 addresses", Self::Heavy(300, 300)),
        ("one service of 500 ports x 300 addresses", Self::Heavy(500, 300)),
        ("one service of 1000 ports x 400 addresses", Self::Heavy(1_000, 400)),
        ("2000 services of another namespace at once", Self::Crowd),
        ("40 askers of /verify and /explain", Self::Questions),
    ];

    /// What the tenant writes, the next time.
    fn events(self, round: u32) -> Vec<Event> {
        match self {
            Self::Nothing | Self::Questions => Vec::new(),
            Self::Heavy(ports, addresses) => {
                vec![service(name("tenant", "heavy"), 0x0a60_0001, (ports, addresses), round % 2)]
            }
            Self::Crowd => (0..CROWD).map(|number| slice(crowd(number), round)).collect(),
        }
    }
}

fn crowd(number: u32) -> ObjectName {
    name("tenant", &format!("s{number}"))
}

struct Daemon {
    events: mpsc::Sender<Vec<Event>>,
    snapshots: watch::Receiver<Arc<Snapshot>>,
    asker: Asker,
    version: u32,
}

impl Daemon {
    fn start() -> Self {
        let (engine, _) = Engine::start(MemoryMaps::default(), Seed(7), &[SOURCE]).unwrap();
        let (events, incoming) = mpsc::channel(GROUPS_WAITING_MAX);
        let (snapshots_in, snapshots) = watch::channel(Arc::default());
        let (changes, mut recorded) = mpsc::channel(CHANGES_WAITING_MAX);
        let (asker, asks) = ask::channel();
        let (stop, stopping) = watch::channel(false);
        let ends = Ends {
            events: incoming,
            asks,
            snapshots: snapshots_in,
            changes,
            progress: Arc::default(),
            stop: stopping,
        };
        std::thread::spawn(move || while recorded.blocking_recv().is_some() {});
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            drop(runtime.block_on(run(engine, ends, |_| ())));
            drop(stop);
        });
        Self { events, snapshots, asker, version: 0 }
    }

    /// The bystander comes first, so that its place is known, and then the crowd.
    async fn fill(&mut self) {
        let one = (1, 0);
        let mut all = vec![service(name("bystander", "web"), 0x0a60_ffff, one, 0)];
        all.push(slice(name("bystander", "web"), 0));
        for number in 0..CROWD {
            all.push(service(crowd(number), 0x0a61_0000 + number, one, 0));
            all.push(slice(crowd(number), 0));
        }
        all.push(Event::Synced(SOURCE));
        self.events.send(all).await.unwrap();
        let whole = |snapshot: &Arc<Snapshot>| snapshot.fill.frontends > CROWD as usize;
        self.snapshots.wait_for(whole).await.unwrap();
    }

    /// How long a change of the bystander takes.
    async fn change(&mut self) -> Duration {
        self.version += 1;
        let (version, begun) = (self.version, Instant::now());
        self.events.send(vec![slice(name("bystander", "web"), version)]).await.unwrap();
        let shows = |view: &Arc<ServiceView>| {
            view.frontends.iter().all(|row| view.backends(row).any(|it| it.address == address(version)))
        };
        self.snapshots.wait_for(|snapshot| snapshot.services.get(0).is_some_and(shows)).await.unwrap();
        begun.elapsed()
    }

    async fn measure(&mut self, what: &str, load: Load, changes: u32) -> Duration {
        let goes_on = Arc::new(AtomicBool::new(true));
        let loading = self.load(load, Arc::clone(&goes_on));
        let mut times = Vec::new();
        for _ in 0..changes {
            tokio::time::sleep(PAUSE).await;
            times.push(self.change().await);
        }
        goes_on.store(false, Ordering::Relaxed);
        loading.join().unwrap();
        times.sort_unstable();
        let at = |share: usize| times[(times.len() * share / 1_000).min(times.len() - 1)];
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        println!(
            "{what}: p50 {:.2} ms, p99 {:.2} ms, most {:.2} ms",
            ms(at(500)),
            ms(at(990)),
            ms(at(1_000))
        );
        at(990)
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
                    tokio::time::sleep(AGAIN).await;
                }
            });
        })
    }
}

/// Forty who ask without a pause, each second one for all of the maps.
async fn ask_all(asker: &Asker, goes_on: &AtomicBool) {
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

fn main() {
    let is_short = std::env::args().any(|argument| argument == "--short");
    let changes = if is_short { CHANGES / 10 } else { CHANGES };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        for (what, load) in Load::ALL {
            let mut daemon = Daemon::start();
            daemon.fill().await;
            daemon.measure(what, load, changes).await;
        }
    });
}
