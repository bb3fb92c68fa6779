//! Marks ports with backends that may run outside the cluster, so that no unencapsulated packet goes to one.

use super::holds::restarted;
use super::*;
use crate::op::WordFlags;
use crate::snapshot::Verdict;

/// A world with DSR between nodes and one service of these endpoints.
fn rig(source: Source, endpoints: &[&str]) -> Rig {
    let mut rig = Rig::new();
    let name = ObjectName::new("default", "a").unwrap();
    let key = ServiceKey { name: name.clone(), source };
    rig.turn(vec![
        with(true),
        applied(ServiceFacts { key, ..service("a", "10.0.0.1", &["192.0.2.1"]) }),
        applied(service("b", "10.0.0.2", &[])),
        slice_of(source, endpoints),
        slice("b", &["@1.1.1.9"]),
    ]);
    rig.now += 1_000;
    rig
}

fn with(marks_outside: bool) -> Event {
    let hold = Policy { on_empty: OnEmpty::Auto, ..Policy::default() };
    Event::SettingsApplied(Arc::new(Settings { hold, has_dsr_from: marks_outside, ..Settings::default() }))
}

fn slice_of(source: Source, endpoints: &[&str]) -> Event {
    let key = SliceKey { name: ObjectName::new("default", "a").unwrap(), source };
    Event::SliceApplied(Arc::new(SliceFacts { key, ..slice_facts("a", "a", endpoints) }))
}

/// Whether the maps mark the service.
fn is_marked(rig: &Rig) -> bool {
    let dump = rig.dump();
    let of_service = |it: &&DumpPort| it.cluster.1.iter().all(|slot| slot.address != ip("1.1.1.9"));
    let port = dump.ports.iter().find(of_service).unwrap();
    port.cluster.0.flags.contains(WordFlags::OFF_CLUSTER)
}

#[test]
fn a_port_with_a_backend_that_names_no_node_is_marked() {
    let rows: [(Source, &[&str], bool); 6] = [
        (SOURCE, &["@1.1.1.1", "@1.1.1.2"], false),
        (SOURCE, &["@1.1.1.1", "1.1.1.2"], true),
        (SOURCE, &["1.1.1.1"], true),
        (Source::Kubernetes, &["@1.1.1.1"], false),
        (Source::Config, &["@1.1.1.1"], true),
        // The node's name belongs to another cluster.
        (Source::ClusterSet, &["@1.1.1.1"], true),
    ];
    for (source, endpoints, expected) in rows {
        assert_eq!(is_marked(&rig(source, endpoints)), expected, "{source:?} {endpoints:?}");
    }
}

#[test]
fn the_off_cluster_flag_follows_endpoints_and_settings() {
    let mut rig = rig(SOURCE, &["@1.1.1.1"]);
    for (event, expected) in [
        (slice("a", &["@1.1.1.1", "1.1.1.2"]), true),
        (slice("a", &["@1.1.1.1"]), false),
        (slice("a", &["1.1.1.1"]), true),
        (with(false), false),
    ] {
        rig.turn(vec![event]);
        assert_eq!(is_marked(&rig), expected);
    }
}

/// No slice says any more where the backends of such a list run.
#[test]
fn a_list_that_is_held_stays_as_the_maps_have_it() {
    for (endpoint, expected) in [("@1.1.1.1", false), ("1.1.1.1", true)] {
        let mut rig = rig(SOURCE, &[endpoint]);
        let snapshot = rig.turn(vec![slice("a", &[])]);
        assert_eq!(row(&view(&snapshot, "a"), "10.0.0.1").verdict, Verdict::Held);
        assert_eq!((is_marked(&rig), rig.log.len()), (expected, 0), "a hold writes nothing");
        let mut again = restarted(&rig, &snapshot);
        again.world.adopt(&rig.dump());
        again.turn(vec![with(true)]);
        assert_eq!(is_marked(&again), expected, "nor does a restart");
    }
}
