//! Which versions of slices are counted, and with which latency.

use std::net::{IpAddr, Ipv4Addr};

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::{ObjectName, SliceKey, Transport};
use holdfast_core::maps::{Client, DialOutcome, MemoryMaps};
use holdfast_core::time::ClockReading;
use holdfast_laws::faulty::{Faults, FaultyMaps};
use holdfast_objects::{Defaulting, Provenance, from_value, parse_service, parse_slice, parse_time_micros};
use serde_json::{Value, json};

use super::*;

/// The age of every trigger, between the bounds of a bucket.
const AGO: Duration = Duration::from_secs(121);
const BUCKET: [Duration; 2] = [Duration::from_secs(120), Duration::from_secs(150)];

/// The Service's address.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 1));

/// How long the node has run.
const UPTIME: Duration = Duration::from_secs(600);

/// A node with the Service `web` of both families.
struct Rig {
    engine: Engine<FaultyMaps<MemoryMaps>>,
    programmed: ProgrammingLatency,
    source: Source,
    steps: u64,
}

impl Rig {
    fn new() -> Self {
        Self::of(Source::Kubernetes)
    }

    fn of(source: Source) -> Self {
        let maps = FaultyMaps::new(MemoryMaps::default(), Faults { seed: 1, per_mille: 0 });
        let (mut engine, _) = Engine::start(maps, Seed(0), &[source]).unwrap();
        engine.apply(Event::Synced(source));
        let mut rig = Self { engine, programmed: ProgrammingLatency::default(), source, steps: 0 };
        let web = json!({
            "metadata": {"namespace": "default", "name": "web"},
            "spec": {
                "type": "ClusterIP", "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"],
                "ipFamilies": ["IPv4", "IPv6"], "ports": [{"name": "a", "protocol": "TCP", "port": 80}],
            },
        });
        let facts = parse_service(&from_value(&web).unwrap(), &rig.provenance()).unwrap();
        rig.step([Event::ServiceApplied(Arc::new(facts))]);
        assert_eq!(
            rig.engine.maps().inner().lookup(ADDRESS, 80, Transport::Tcp, Client::Local),
            DialOutcome::Refused
        );
        rig
    }

    fn provenance(&self) -> Provenance {
        Provenance { source: self.source, origin: None, defaulting: Defaulting::Done }
    }

    fn applied(&self, object: &Value) -> Event {
        Event::SliceApplied(Arc::new(
            parse_slice(&from_value(object).unwrap(), &self.provenance()).unwrap().0,
        ))
    }

    fn deleted(&self, name: &str) -> Event {
        let name = ObjectName::new("default", name).unwrap();
        Event::SliceDeleted(SliceKey { name, source: self.source }, None)
    }

    /// Applies these events at once, and runs the engine until it is idle.
    fn step(&mut self, events: impl IntoIterator<Item = Event>) {
        events.into_iter().for_each(|event| self.engine.apply(event));
        for _ in 0..4 {
            self.steps += 1;
            let mono = Duration::from_secs(self.steps);
            let now = ClockReading { wall: Timestamp(1_767_870_715 + self.steps.cast_signed()), mono };
            self.engine.step(now, &mut |change| self.programmed.record_change(&change, wall(), UPTIME));
        }
    }

    /// The counts of IPv4 and of IPv6, all of them in their bucket.
    #[track_caller]
    fn check(&self, expected: [u64; 2]) {
        let counts = self.programmed.by_family().map(|(_, counts)| {
            let (buckets, all) = counts.totals();
            let of = |most| buckets.iter().find(|(bound, _)| *bound == most).unwrap().1;
            assert_eq!(BUCKET.map(of), [0, all]);
            all
        });
        assert_eq!(counts.collect::<Vec<_>>(), expected);
    }
}

/// The wall clock when a change reaches the maps.
fn wall() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_767_870_715)
}

/// A wall-clock time this long ago, in the annotation's format.
fn ago(ago: Duration) -> String {
    holdfast_host::clock::millis(wall().checked_sub(ago).unwrap()).to_string()
}

/// The slice's version is also its backend's number.
fn object(name: &str, version: u8) -> Value {
    json!({
        "metadata": {
            "namespace": "default", "name": name, "resourceVersion": version.to_string(),
            "labels": {"kubernetes.io/service-name": "web"},
            "annotations": {"endpoints.kubernetes.io/last-change-trigger-time": ago(AGO)},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [format!("10.0.0.{version}")]}],
        "ports": [{"name": "a", "protocol": "TCP", "port": 8080}],
    })
}

/// The object with a change.
fn but(mut object: Value, change: impl FnOnce(&mut Value)) -> Value {
    change(&mut object);
    object
}

#[test]
fn a_change_is_counted_in_the_family_of_its_slice() {
    let mut rig = Rig::new();
    rig.step([rig.applied(&object("web-1", 1))]);
    rig.check([1, 0]);
    let six = but(object("web-6", 1), |it| {
        (it["addressType"], it["endpoints"][0]["addresses"]) = (json!("IPv6"), json!(["fd00::7"]));
    });
    rig.step([rig.applied(&six)]);
    rig.check([1, 1]);
}

/// The count of one slice that differs from a good one by this change.
#[track_caller]
fn check(what: &str, expected: u64, change: impl FnOnce(&mut Value)) {
    let mut rig = Rig::new();
    rig.step([rig.applied(&but(object("web-1", 1), change))]);
    let (_, counts) = rig.programmed.by_family().next().unwrap();
    assert_eq!(counts.totals().1, expected, "{what}");
    assert!(counts.sum() <= LATENCY_MAX, "{what}");
}

#[track_caller]
fn check_annotation(text: &str, expected: u64) {
    let annotation = json!({"endpoints.kubernetes.io/last-change-trigger-time": text});
    check(text, expected, |it| it["metadata"]["annotations"] = annotation);
}

#[test]
fn a_time_that_is_nonsense_or_from_before_the_start_is_not_counted() {
    check_annotation(&ago(UPTIME / 2), 1);
    check_annotation(&ago(UPTIME + AGO), 0);
    check_annotation("9999-12-31T23:59:59.999999999Z", 1);
    for nonsense in ["", "now", "NaN", "-1", "1767870715", "0001-01-01T00:00:00Z", "0000-01-01T00:00:00Z"] {
        check_annotation(nonsense, 0);
    }
    check_annotation(&"9".repeat(100_000), 0);
    check("no annotation", 0, |it| it["metadata"]["annotations"] = json!({}));
}

#[test]
fn a_slice_that_is_for_no_proxy_is_not_counted() {
    check("as it is", 1, |_| ());
    check("hidden from proxies", 0, |it| {
        it["metadata"]["labels"]["service.kubernetes.io/headless"] = json!("");
    });
    check("host names", 0, |it| it["addressType"] = json!("FQDN"));
    check("of no service", 0, |it| it["metadata"]["labels"] = json!({}));
    check("of a service without an object", 1, |it| {
        it["metadata"]["labels"]["kubernetes.io/service-name"] = json!("other");
    });
}

#[test]
fn slices_of_other_sources_than_an_apiserver_are_not_counted() {
    let mut rig = Rig::of(Source::Manifests);
    rig.step([rig.applied(&object("web-1", 1))]);
    rig.check([0, 0]);
}

#[test]
fn each_version_before_a_map_write_is_counted() {
    let mut rig = Rig::new();
    rig.step([1, 2, 3].map(|version| rig.applied(&object("web-1", version))));
    rig.check([3, 0]);
    rig.step([rig.applied(&object("web-1", 4))]);
    rig.check([4, 0]);
}

#[test]
fn more_slices_than_a_change_has_causes_are_counted_once_each() {
    let mut rig = Rig::new();
    let all = |version: u8| (1..=40).map(move |number| object(&format!("web-{number}"), version));
    rig.step(all(1).map(|object| rig.applied(&object)).collect::<Vec<_>>());
    rig.check([40, 0]);
    rig.step(all(2).take(20).map(|object| rig.applied(&object)).collect::<Vec<_>>());
    rig.check([60, 0]);
}

#[test]
fn a_slice_delivered_again_is_not_counted_again() {
    let mut rig = Rig::new();
    for _ in 0..2 {
        let again = but(object("web-1", 1), |it| it["metadata"]["annotations"] = json!({}));
        rig.step([rig.applied(&again), rig.applied(&object("web-2", 1))]);
        rig.check([1, 0]);
    }
    rig.step([rig.applied(&object("web-1", 1))]);
    rig.check([1, 0]);
}

#[test]
fn a_deletion_or_a_slice_deleted_before_its_write_is_not_counted() {
    let mut rig = Rig::new();
    rig.step([rig.applied(&object("web-1", 1)), rig.deleted("web-1"), rig.applied(&object("web-2", 2))]);
    rig.check([1, 0]);
    rig.step([rig.deleted("web-2")]);
    rig.check([1, 0]);
}

#[test]
fn a_held_list_is_not_counted_until_backends_return() {
    let mut rig = Rig::new();
    rig.step([rig.applied(&object("web-1", 1))]);
    rig.check([1, 0]);
    rig.step([rig.applied(&but(object("web-1", 2), |it| it["endpoints"] = json!(null)))]);
    rig.check([1, 0]);
    rig.step([rig.applied(&object("web-1", 3))]);
    rig.check([2, 0]);
}

#[test]
fn a_refused_write_is_never_counted() {
    let mut rig = Rig::new();
    rig.engine.maps_mut().set_per_mille(1_000);
    rig.step([rig.applied(&object("web-1", 1))]);
    rig.check([0, 0]);
    rig.engine.maps_mut().set_per_mille(0);
    rig.step([]);
    rig.check([0, 0]);
    rig.step([rig.applied(&object("web-1", 2))]);
    rig.check([1, 0]);
}

#[track_caller]
fn check_age(since: &str, now: &str, uptime: Duration, expected: Option<Duration>) {
    let micros = |text| parse_time_micros(text).unwrap();
    let now = UNIX_EPOCH + Duration::from_micros(u64::try_from(micros(now)).unwrap());
    assert_eq!(age(micros(since), now, uptime), expected, "{since}");
}

#[test]
fn no_clock_makes_a_time_negative_or_endless() {
    const MINUTE: Duration = Duration::from_secs(60);
    const YEARS: Duration = Duration::from_secs(3_000_000_000);
    let now = "2026-01-08T11:11:55Z";
    check_age("2026-01-08T11:11:54.998750Z", now, MINUTE, Some(Duration::from_micros(1_250)));
    check_age("2026-01-08T11:10:55.000001Z", now, MINUTE, Some(Duration::from_micros(59_999_999)));
    check_age("2026-01-08T11:10:55Z", now, MINUTE, None);
    check_age(now, now, MINUTE, Some(Duration::ZERO));
    check_age("2026-01-08T11:11:56Z", now, MINUTE, Some(Duration::ZERO));
    check_age("9999-12-31T23:59:59Z", now, MINUTE, Some(Duration::ZERO));
    check_age("2025-01-08T11:11:55Z", now, YEARS, Some(LATENCY_MAX));
    check_age("1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", MINUTE, Some(Duration::from_secs(1)));
    for since in [i64::MIN, i64::MAX] {
        let before = UNIX_EPOCH.checked_sub(MINUTE).unwrap();
        assert!(age(since, before, Duration::MAX).is_none_or(|age| age <= LATENCY_MAX), "{since}");
        assert!(age(since, wall(), Duration::MAX).is_none_or(|age| age <= LATENCY_MAX), "{since}");
    }
}

#[test]
fn the_buckets_are_kube_proxys_with_finer_ones_below() {
    let all: Vec<f64> = bounds().map(|it| it.as_secs_f64()).collect();
    assert!(all.is_sorted_by(|one, next| one < next), "{all:?}");
    let (fine, theirs): (Vec<f64>, Vec<f64>) = all.into_iter().partition(|it| *it > 0.0 && *it < 0.25);
    assert_eq!(fine, [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128]);
    // As kube-proxy 1.37 makes them: 0, 2 from 0.25 by 0.25, 59 from 1 by 1, 12 from 60 by 5, 7 from 120 by 30.
    let linear = |from: f64, by: f64, count: u32| (0..count).map(move |it| by.mul_add(f64::from(it), from));
    let made = [(0.25, 0.25, 2), (1.0, 1.0, 59), (60.0, 5.0, 12), (120.0, 30.0, 7)];
    let made = made.into_iter().flat_map(|(from, by, count)| linear(from, by, count));
    assert_eq!(theirs, std::iter::once(0.0).chain(made).collect::<Vec<_>>());
}
