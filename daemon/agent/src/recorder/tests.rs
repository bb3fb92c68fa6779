//! Records of real changes: an engine over maps in memory, and a recorder behind it.
//!
//! Invariant of these tests: they compare sentences to the letter, because operators read them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_imports,
    reason = "it is for tests"
)]
#![cfg_attr(not(test), allow(dead_code, reason = "the tests of other crates need a part of it"))]

#[cfg(test)]
mod files;
#[cfg(test)]
mod flood;
#[cfg(test)]
mod remembered;
#[cfg(test)]
mod sentences;
#[cfg(test)]
mod thinned;

use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_core::change::Change;
use holdfast_core::event::Event;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, Meta, ServiceFacts, ServicePort, ServiceType,
    SliceFacts, SlicePort, Timestamp, Writer,
};
use holdfast_core::index::Seed;
use holdfast_core::keys::{Family, ObjectName, Protocol, ServiceKey, SliceKey, Source};
use holdfast_core::maps::MemoryMaps;
use holdfast_core::snapshot::Snapshot;
use holdfast_status::record::Record;
use tokio::sync::{mpsc, watch};

use super::*;
use holdfast_core::engine::Engine;
use holdfast_core::time::ClockReading;

const SOURCE: Source = Source::Kubernetes;

/// Seconds since 1970 of 2026-01-08T11:11:55Z.
const THEN: u64 = 1_767_870_715;

fn name(name: &str) -> ObjectName {
    ObjectName::new("default", name).unwrap()
}

fn port(number: u16) -> NonZeroU16 {
    NonZeroU16::new(number).unwrap()
}

/// An object's metadata in this version, written by that manager.
fn meta(version: &str, manager: &str) -> Meta {
    let writer = Writer {
        manager: manager.into(),
        operation: "Update".into(),
        subresource: None,
        at: Some(Timestamp(THEN.cast_signed())),
    };
    Meta {
        uid: Some("7c8d4a2e-0000-4000-8000-000000000001".into()),
        resource_version: Some(version.into()),
        writer: Some(writer),
        origin: Some("https://10.0.0.10:6443".into()),
        ..Meta::default()
    }
}

fn service(of: &str, ip: &str, meta: Meta) -> Event {
    let key = ServiceKey { name: name(of), source: SOURCE };
    let port = ServicePort { name: "".into(), protocol: Protocol::TCP, port: port(443), node_port: None };
    Event::ServiceApplied(Arc::new(ServiceFacts {
        meta,
        cluster_ips: vec![ip.parse().unwrap()],
        ports: vec![port],
        ..ServiceFacts::new(key, ServiceType::ClusterIp)
    }))
}

fn slice(of: &str, endpoints: &[&str], null: bool, meta: Meta) -> Event {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for text in endpoints {
        let (address, conditions) = (text.parse().unwrap(), Conditions::READY);
        builder
            .push(Endpoint { address, conditions, node: None, zone: None, hints: None, target: None })
            .unwrap();
    }
    Event::SliceApplied(Arc::new(SliceFacts {
        key: SliceKey { name: name(&format!("{of}-1")), source: SOURCE },
        meta,
        service: Some(of.into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port: port(6443) }].into(),
        endpoints: builder.finish(),
        endpoints_null: null,
        weights: None,
    }))
}

/// An engine over maps in memory.
struct Rig {
    engine: Engine<MemoryMaps>,
    steps: u64,
}

impl Rig {
    fn new() -> Self {
        let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(0), &[SOURCE]).unwrap();
        engine.apply(Event::Synced(SOURCE));
        engine.limit_pieces(u64::MAX);
        let mut rig = Self { engine, steps: 0 };
        rig.batch([]);
        rig
    }

    /// The changes of one batch; each begins a second after the previous.
    fn batch(&mut self, events: impl IntoIterator<Item = Event>) -> Vec<TimedChange> {
        events.into_iter().for_each(|event| self.engine.apply(event));
        self.steps += 1;
        let mono = Duration::from_secs(self.steps);
        let wall = Timestamp((THEN + self.steps).cast_signed());
        let at = UNIX_EPOCH + Duration::from_secs(THEN + self.steps);
        let mut told = Vec::new();
        let elapsed = Duration::from_micros(50);
        self.engine.step(ClockReading { wall, mono }, &mut |change| {
            told.push(TimedChange { change, at, mono, elapsed, reservation: None });
        });
        told
    }
}

/// The history of a recorder that has taken these changes, and has ended.
fn recorded(told: Vec<TimedChange>, folder: Option<&Path>) -> Arc<History> {
    recorded_on(told, folder, Disk::default())
}

fn recorded_on(told: Vec<TimedChange>, folder: Option<&Path>, disk: Disk) -> Arc<History> {
    let (changes, waiting) = mpsc::channel(told.len().max(1));
    told.into_iter().for_each(|it| changes.try_send(it).unwrap());
    drop(changes);
    let snapshots = watch::channel(Arc::<Snapshot>::default()).1;
    let (mut recorder, history) = Recorder::new(waiting, snapshots, folder);
    recorder.disk = disk;
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(recorder.run());
    history
}

fn all(history: &History) -> Vec<Record> {
    history.select(&RecordQuery::default()).iter().map(|line| line.record().unwrap()).collect()
}

fn seqs(history: &History) -> Vec<u64> {
    all(history).iter().filter_map(|record| record.seq).collect()
}

/// This many services, each with a backend.
fn services(rig: &mut Rig, count: u16) -> Vec<TimedChange> {
    let of = |number: u16| format!("web-{number}");
    let ip = |number: u16| format!("10.96.{}.{}", number >> 8, number & 255);
    let events = (0..count).flat_map(|number| {
        let of = of(number);
        [service(&of, &ip(number), meta("1", "kubectl")), slice(&of, &["10.1.1.1"], false, meta("2", "kcm"))]
    });
    rig.batch(events.collect::<Vec<_>>())
}

/// A small incident: two services with the same backend. A stopping apiserver empties one of them and fills it again;
/// the other one gets other metadata, and is deleted.
fn incident() -> Vec<TimedChange> {
    let mut rig = Rig::new();
    let mut told = rig.batch([
        service("kubernetes", "10.96.0.1", meta("1", "kube-apiserver")),
        slice("kubernetes", &["169.254.128.7"], false, meta("2", "kube-apiserver")),
        service("kubernetes-intranet", "10.96.0.2", meta("3", "kubectl-create")),
        slice("kubernetes-intranet", &["169.254.128.7"], false, meta("4", "kubectl-create")),
    ]);
    told.extend(rig.batch([slice("kubernetes", &[], true, meta("71", "kube-apiserver"))]));
    told.extend(rig.batch([service("kubernetes-intranet", "10.96.0.2", meta("72", "cloud-controller"))]));
    told.extend(rig.batch([slice(
        "kubernetes",
        &["169.254.128.7", "169.254.128.8"],
        false,
        meta("73", "kube-apiserver"),
    )]));
    told.extend(rig.batch([Event::ServiceDeleted(
        ServiceKey { name: name("kubernetes-intranet"), source: SOURCE },
        Some(Box::new(meta("74", "kubectl-create"))),
    )]));
    told
}

/// The history of these changes, for tests that show records.
pub fn history_of(changes: Vec<Change>) -> Arc<History> {
    let (at, mono, elapsed) = (SystemTime::UNIX_EPOCH, Duration::ZERO, Duration::ZERO);
    recorded(
        changes
            .into_iter()
            .map(|change| TimedChange { change, at, mono, elapsed, reservation: None })
            .collect(),
        None,
    )
}

/// The history of the small incident, for tests that show records.
pub fn incident_history() -> Arc<History> {
    recorded(incident(), None)
}

/// Sends the watchers the whole incident, with the events that changed nothing for clients, and the end.
pub fn tell_incident(history: &Arc<History>) {
    record_into(history, incident());
}

/// Sends the same change this many times, as fast as possible.
pub fn tell_many(history: &Arc<History>, changes: usize) {
    let recorded = recorded(services(&mut Rig::new(), 1), None);
    let line = recorded.select(&RecordQuery::default()).pop().unwrap();
    (0..changes).for_each(|_| history.notify_watchers(&line));
}

fn record_into(history: &Arc<History>, told: Vec<TimedChange>) {
    let (changes, waiting) = mpsc::channel(told.len().max(1));
    told.into_iter().for_each(|it| changes.try_send(it).unwrap());
    drop(changes);
    let (mut recorder, _) = Recorder::new(waiting, watch::channel(Arc::default()).1, None);
    recorder.history = Arc::clone(history);
    recorder.seq = history.status().seq;
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(recorder.run());
}
