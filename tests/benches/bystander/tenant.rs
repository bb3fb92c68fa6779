//! The loads by a tenant's writes and an unprivileged process's requests.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::fake::{Cluster, Kind};
use holdfast_tests::size::sized;
use serde_json::{Value, json};

use super::daemon::{DOORS, HELD, held_backend};

/// Services that claim one address, and the ports of each; the oldest is rewritten eight times a second.
const CLAIMANTS: u32 = 1_500;
const CLAIMED_PORTS: u32 = 150;

/// Services that come and go, and how many at once.
const CHURN: u32 = 15_000;
const COME_AND_GO: u32 = 100;

/// Services that change their verdict each time.
const NOISY: u32 = 200;

/// Services that each list one address at different ports.
const PROBED: u32 = 1_000;

/// Services with one of our annotations of 250 kB, and how many are written at once.
const ANNOTATED: u32 = 300;
const ANNOTATION_BYTES: usize = 250_000;
const WRITTEN: u32 = 2;

/// Silent connections that stay open, and how many come at once.
const IDLE_OPEN: usize = 3_000;
const IDLE_AT_ONCE: usize = 20;

/// The load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    Nothing,
    Claims,
    SharedAddress,
    Idle,
    Noise,
    Churn,
    Probes,
    Annotations,
}

impl Load {
    pub(super) const ALL: [(&'static str, Self); 8] = [
        ("nothing else", Self::Nothing),
        ("claims on held addresses, 60 slices rewritten twenty times a second", Self::Claims),
        (
            "1500 services of 150 ports at one external IP, the oldest toggled eight times a second",
            Self::SharedAddress,
        ),
        ("400 idle connections a second to each door", Self::Idle),
        ("200 services turn to another verdict, four times a second each", Self::Noise),
        ("15000 services come and go, 2000 a second", Self::Churn),
        ("1000 services with one address lose it again and again", Self::Probes),
        ("300 services with an annotation of 250 kB, 40 written a second", Self::Annotations),
    ];

    /// The pause between two acts.
    pub(super) const fn pause(self) -> Duration {
        match self {
            Self::SharedAddress => Duration::from_millis(117),
            Self::Noise => Duration::from_millis(250),
            _ => Duration::from_millis(50),
        }
    }
}

/// The actor of a load.
#[derive(Debug)]
pub(super) struct Tenant<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) bed: &'a Bed,
    pub(super) load: Load,
    idle: VecDeque<TcpStream>,
}

impl<'a> Tenant<'a> {
    pub(super) const fn new(cluster: &'a Cluster, bed: &'a Bed, load: Load) -> Self {
        Self { cluster, bed, load, idle: VecDeque::new() }
    }

    fn write(&self, objects: impl IntoIterator<Item = Value>) {
        objects.into_iter().for_each(|object| _ = self.cluster.apply(object).unwrap());
    }

    /// Its objects before the measurement; returns the name of the last service.
    pub(super) fn settle(&self) -> Option<String> {
        let (kind, count) = match self.load {
            Load::SharedAddress => {
                let count = sized(CLAIMANTS, 50);
                self.write((0..count).map(|number| claimant(number, true)));
                ("claimant", count)
            }
            Load::Noise => {
                self.write((0..NOISY).flat_map(|number| resident("noise", number)));
                ("noise", NOISY)
            }
            Load::Probes => {
                self.write((0..PROBED).flat_map(|number| probed(number, true)));
                ("probed", PROBED)
            }
            Load::Nothing | Load::Claims | Load::Idle | Load::Churn | Load::Annotations => return None,
        };
        Some(format!("tenant/{kind}-{}", count - 1))
    }

    /// Its next act.
    pub(super) fn act(&mut self, round: u32) {
        match self.load {
            Load::Nothing => {}
            Load::Claims => self.write((0..60).map(|number| claim(number, round))),
            Load::SharedAddress => self.write([claimant(0, round.is_multiple_of(2))]),
            Load::Idle => self.dial(),
            Load::Noise => {
                self.write((0..NOISY).map(|number| listed("noise", number, round.is_multiple_of(2))));
            }
            Load::Churn => self.come_and_go(round),
            Load::Probes => {
                let first = round * 50 % PROBED;
                self.write(
                    (first..first + 50).flat_map(|number| probed(number, round * 50 / PROBED % 2 == 1)),
                );
            }
            Load::Annotations => {
                self.write((0..WRITTEN).map(|it| annotated((round * WRITTEN + it) % ANNOTATED, round)));
            }
        }
    }

    fn come_and_go(&self, round: u32) {
        let numbers = |round: u32| (0..COME_AND_GO).map(move |it| (round * COME_AND_GO + it) % CHURN);
        self.write(numbers(round).flat_map(|number| resident("churn", number)));
        for name in numbers(round).map(|number| format!("tenant/churn-{number}")) {
            self.cluster.delete(Kind::Slices, &format!("{name}-1")).unwrap();
            self.cluster.delete(Kind::Services, &name).unwrap();
        }
    }

    /// Opens silent connections, and closes older ones.
    fn dial(&mut self) {
        let at = |port| if port == DOORS[0] { Ipv4Addr::LOCALHOST } else { Ipv4Addr::new(10, 128, 0, 1) };
        let doors = DOORS.map(|port| SocketAddr::from((at(port), port)));
        let dialled = self.bed.within(Location::NODE, || {
            let each = doors.iter().flat_map(|door| std::iter::repeat_n(door, IDLE_AT_ONCE));
            each.filter_map(|door| TcpStream::connect(door).ok()).collect::<Vec<_>>()
        });
        self.idle.extend(dialled.unwrap());
        self.idle.drain(..self.idle.len().saturating_sub(IDLE_OPEN));
    }
}

fn resident(kind: &str, number: u32) -> [Value; 2] {
    [
        service(kind, number, "", &json!([{"name": "", "protocol": "TCP", "port": 80}]), &json!({})),
        listed(kind, number, true),
    ]
}

/// One of the tenant's 64 thousand addresses.
fn own(number: u32) -> String {
    format!("10.97.{}.{}", number / 250, number % 250 + 1)
}

fn service(kind: &str, number: u32, created: &str, ports: &Value, annotations: &Value) -> Value {
    let address = own(number);
    let created = if created.is_empty() { "2026-02-01T00:00:00Z" } else { created };
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {"namespace": "tenant", "name": format!("{kind}-{number}"), "creationTimestamp": created,
                     "annotations": annotations},
        "spec": {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ports": ports},
    })
}

fn listed(kind: &str, number: u32, ready: bool) -> Value {
    let name = format!("{kind}-{number}");
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"namespace": "tenant", "name": format!("{name}-1"),
                     "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        "endpoints": [{"addresses": ["10.0.3.1"], "conditions": {"ready": ready}}],
    })
}

/// A slice without a service that lists a held backend with a new target each time.
fn claim(number: u32, round: u32) -> Value {
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"namespace": "tenant", "name": format!("claim-{number}")},
        "addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
        "endpoints": [{"addresses": [held_backend(number % HELD)], "conditions": {"ready": true},
                       "targetRef": {"kind": "Pod", "name": "forged", "uid": format!("forged-{round}")}}],
    })
}

fn claimant(number: u32, claims: bool) -> Value {
    let ports: Vec<Value> = (0..CLAIMED_PORTS)
        .map(|port| json!({"name": format!("p{port}"), "protocol": "TCP", "port": 1_000 + port}))
        .collect();
    let mut text = String::new();
    write!(text, "2026-01-{:02}T00:00:{:02}Z", number / 60 + 1, number % 60).unwrap();
    let mut claimant = service("claimant", number, &text, &json!(ports), &json!({}));
    if claims {
        claimant["spec"]["externalIPs"] = json!(["198.18.0.1"]);
    }
    claimant
}

/// A slice with the address of another machine, which all of these list.
fn probed(number: u32, has_it: bool) -> [Value; 2] {
    let mut slice = listed("probed", number, true);
    if !has_it {
        slice["endpoints"] = json!([]);
    }
    [service("probed", number, "", &json!([{"name": "", "protocol": "TCP", "port": 80}]), &json!({})), slice]
}

fn annotated(number: u32, round: u32) -> Value {
    let value = char::from(b'a' + u8::try_from(round % 26).unwrap()).to_string().repeat(ANNOTATION_BYTES);
    service(
        "annotated",
        number,
        "",
        &json!([{"name": "", "protocol": "TCP", "port": 80}]),
        &json!({"holdfast.io/on-empty": value}),
    )
}
